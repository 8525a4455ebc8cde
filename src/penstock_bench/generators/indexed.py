"""Samples back to back, and beside the file the offset and the size of each, 64 bits."""

from __future__ import annotations

import numpy as np

from penstock.engine import AtomicFile

from ..file_draft import Draft

_AT_ONCE = 1 << 20


def write(part: AtomicFile, draft: Draft) -> None:
    """Write a file, its offsets and its sizes."""
    for piece in draft.pieces():
        part.write(piece.data)
    size = draft.sample_bytes
    offsets, sizes = (draft.beside(draft.path + suffix) for suffix in (".off.idx", ".sz.idx"))
    for first in range(0, draft.count, _AT_ONCE):
        samples = np.arange(first, min(first + _AT_ONCE, draft.count), dtype="<u8")
        offsets.write((samples * np.uint64(size)).view(np.uint8).data)
        sizes.write(np.full(len(samples), size, "<u8").view(np.uint8).data)
