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
from .array_leaves import Memory
from .manifest import ALIGNMENT, padded
from .partition import Cut
from .pytree import ArrayBlock, packed, tensors

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

    def stage(self, blocks: Sequence[ArrayBlock], cuts: Sequence[Cut]) -> Staged:
        """A copy of these parts of the blocks; the state may change once this returns."""
        return self.fill(self.reserve(staged_bytes(cuts)), blocks, cuts)

    def fill(
        self,
        memory: Memory,
        blocks: Sequence[ArrayBlock],
        cuts: Sequence[Cut],
        *,
        behind: bool = False,
    ) -> Staged:
        """The same, into a part of the arena that is for them. behind: on this thread alone, as
        training goes on meanwhile."""
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
        threads = 1 if behind else self._threads
        return _copied(addresses, [cut.bytes for cut in cuts], memory, threads)

    def collect(self, arrays: Sequence[Memory]) -> Staged:
        """A copy of these arrays, in the same way."""
        memory = self.reserve(sum(padded(len(array)) for array in arrays))
        addresses = [array.ctypes.data for array in arrays]
        return _copied(addresses, [len(array) for array in arrays], memory, self._threads)

    def close(self) -> None:
        """Give the memory back; it may be taken anew."""
        if self._pinned:
            tensors().unpinned(self._memory)
        self._memory, self._pinned = np.empty(0, np.uint8), False

    def _pin(self) -> None:
        if not self._pinned:
            self._pinned = tensors().pinned(self._memory)


def staged_bytes(cuts: Sequence[Cut]) -> int:
    """What these take of an arena."""
    return sum(padded(cut.bytes) for cut in cuts)


def _copied(addresses: list[int], lengths: list[int], memory: Memory, threads: int) -> Staged:
    sums = np.zeros(len(lengths), np.uint32)
    sources = np.array(addresses, np.uint64), np.array(lengths, np.int64)
    _core.pack_extents(*sources, ALIGNMENT, memory, threads, sums)
    return Staged(memory, sums.tolist())
