"""The memory in which a state waits to be written: taken once, touched once, and used again.

Copying is all that training waits for. A few threads do it outside the GIL, at the speed of memory,
and sum what they copy on the way: memory is read once, and nothing is left to compute behind
training. A fresh page costs many times what a copy into it does, so the arena is kept between
saves and grows only when the state does.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .. import _core
from ..errors import LimitError
from .division import Cut
from .leaves import Memory
from .manifest import ALIGNMENT, padded
from .tree import Block, packed

_THREADS = 4
"""Most that copy: memory is used up by fewer than a large machine has."""


class Staged(NamedTuple):
    """What waits to be written: parts, one after the other, each with zeros up to a multiple of
    ALIGNMENT; and the CRC-32C of each with its zeros."""

    memory: Memory
    checksums: list[int]


class Staging:
    """An arena for one state at a time."""

    def __init__(self) -> None:
        self._memory: Memory = np.empty(0, np.uint8)
        self._threads = min(_THREADS, len(os.sched_getaffinity(0)))

    @property
    def bytes(self) -> int:
        """That it holds on to."""
        return len(self._memory)

    def reserve(self, size: int) -> Memory:
        """So much of the arena, page-aligned and touched; what was in it may be gone."""
        if size > len(self._memory):
            self._memory = np.empty(0, np.uint8)  # given back first: both may not fit
            try:
                fresh = mmap.mmap(-1, max(size, 1))
            except (OSError, OverflowError):
                raise LimitError(
                    f"no memory to stage {size:,} bytes of a checkpoint: use more ranks, which"
                    " divide it, or a machine with more"
                ) from None
            if hasattr(mmap, "MADV_HUGEPAGE"):
                fresh.madvise(mmap.MADV_HUGEPAGE)
            self._memory = np.frombuffer(fresh, np.uint8)
            self._memory[:: mmap.PAGESIZE] = 0
        return self._memory[:size]

    def stage(self, blocks: Sequence[Block], cuts: Sequence[Cut]) -> Staged:
        """A copy of these parts of the blocks; the state may change once this returns."""
        dense = {
            block: packed(blocks[block].leaves[0])
            for block in {cut.block for cut in cuts}
            if not blocks[block].dense
        }
        begins = [
            dense[block].ctypes.data if block in dense else blocks[block].lowest
            for block in (cut.block for cut in cuts)
        ]
        addresses = [begin + cut.start for begin, cut in zip(begins, cuts, strict=True)]
        return self._copied(addresses, [cut.bytes for cut in cuts])

    def collect(self, arrays: Sequence[Memory]) -> Staged:
        """A copy of these arrays, in the same way."""
        return self._copied([a.ctypes.data for a in arrays], [len(a) for a in arrays])

    def _copied(self, addresses: Sequence[int], lengths: Sequence[int]) -> Staged:
        memory = self.reserve(sum(map(padded, lengths)))
        sums = np.zeros(len(lengths), np.uint32)
        sources = np.array(addresses, np.uint64), np.array(lengths, np.int64)
        _core.collect(*sources, ALIGNMENT, memory, self._threads, sums)
        return Staged(memory, sums.tolist())
