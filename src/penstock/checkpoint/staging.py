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
from .tree import Block, packed, tensors

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
        self._pinned = False
        self._threads = min(_THREADS, len(os.sched_getaffinity(0)))

    @property
    def bytes(self) -> int:
        """That it holds on to."""
        return len(self._memory)

    def reserve(self, size: int) -> Memory:
        """So much of the arena, page-aligned and touched; what was in it may be gone."""
        if size > len(self._memory):
            self.close()  # both may not fit
            try:
                fresh = mmap.mmap(-1, size)
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
        memory = self.reserve(sum(padded(cut.bytes) for cut in cuts))
        apart = {
            number: packed(blocks[number].leaves[0])
            for number in {cut.block for cut in cuts}
            if not blocks[number].dense
        }
        addresses, at, away = [], 0, False
        for cut in cuts:
            block = blocks[cut.block]
            if cut.block in apart:
                addresses.append(apart[cut.block].ctypes.data + cut.start)
            elif block.device == "cpu":
                addresses.append(block.lowest + cut.start)
            else:  # the device copies, and what it copied is summed in its place
                self._pin()
                away = True
                into = memory[at : at + cut.bytes]
                tensors().copied(block.leaves[0].value, block.lowest + cut.start, into)
                addresses.append(into.ctypes.data)
            at += padded(cut.bytes)
        if away:
            tensors().settled()
        return self._copied(addresses, [cut.bytes for cut in cuts], memory)

    def collect(self, arrays: Sequence[Memory]) -> Staged:
        """A copy of these arrays, in the same way."""
        memory = self.reserve(sum(padded(len(array)) for array in arrays))
        return self._copied([a.ctypes.data for a in arrays], [len(a) for a in arrays], memory)

    def close(self) -> None:
        """Give the memory back; it may be taken anew."""
        if self._pinned:
            tensors().unpinned(self._memory)
        self._memory, self._pinned = np.empty(0, np.uint8), False

    def _copied(self, addresses: list[int], lengths: list[int], memory: Memory) -> Staged:
        sums = np.zeros(len(lengths), np.uint32)
        sources = np.array(addresses, np.uint64), np.array(lengths, np.int64)
        _core.collect(*sources, ALIGNMENT, memory, self._threads, sums)
        return Staged(memory, sums.tolist())

    def _pin(self) -> None:
        if not self._pinned:
            self._pinned = tensors().pinned(self._memory)
