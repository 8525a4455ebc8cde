"""Memory for decoded chunks: shares of owners, and what they give for chunks alone."""

from __future__ import annotations

import gc

import numpy as np

from penstock.index.codecs.registry import DecodedChunks


class Owner:
    """Somebody with memory for chunks."""


def test_shares_are_bounded_and_own_memory_comes_on_top() -> None:
    """Shares together take the common bound at most; memory for chunks alone is added, and goes
    with its owner."""
    chunks = DecodedChunks(100)
    one, other = Owner(), Owner()
    chunks.share(one, 80)
    chunks.share(other, 80, 60)
    for number in range(32):
        chunks.put((number,), np.zeros(10, np.uint8))
    assert chunks.bytes == 160
    assert chunks.get((15,)) is None
    assert chunks.get((16,)) is not None
    del other
    gc.collect()
    chunks.put((99,), np.zeros(10, np.uint8))
    assert chunks.bytes == 80
    assert chunks.get((99,)) is not None
