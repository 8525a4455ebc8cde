"""Staging: the memory to which a state is copied, and in which it waits to be written.

Training waits only for this copy. A few threads make it outside the GIL, at the speed of memory,
and compute checksums on the way: memory is read once, and nothing is left to compute behind
training. A fresh page costs many times what a copy into it does, so the memory is allocated and
touched once, kept between saves, and grows only when the state does.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .. import _core
from ..errors import LimitError
from .manifest import ALIGNMENT, Memory, Piece, pad_length
from .pytree import ArrayBlock, import_tensors, pack_array

_THREADS = 4
"""Most threads that copy: fewer than a large machine has use up its memory bandwidth."""


class Cut(NamedTuple):
    """Bytes [start, stop) of a block."""

    block: int
    start: int
    stop: int

    @property
    def bytes(self) -> int:
        return self.stop - self.start

    def make_piece(self, name: str, dtype: str, file: str, offsets: Sequence[int] = ()) -> Piece:
        """Make the piece of a shard that holds these bytes, still without its place in the shard
        and its checksum. offsets: of the block in its whole, if it is a chunk."""
        return Piece(name, dtype, (self.bytes,), (*offsets, self.start), file, 0, self.bytes, 0)


class Staged(NamedTuple):
    """Memory that waits to be written: parts one after the other, each with zeros up to a multiple
    of ALIGNMENT; and the CRC-32C of each part with its zeros."""

    memory: Memory
    checksums: list[int]

    def split(self, cuts: Sequence[Cut]) -> list[Memory]:
        """Split the memory into its parts, without their zeros."""
        ends = np.cumsum([pad_length(cut.bytes) for cut in cuts], dtype=np.int64)
        parts = np.split(self.memory, ends)
        return [part[: cut.bytes] for part, cut in zip(parts, cuts, strict=False)]


class Staging:
    """Staging memory for one state at a time. threads: that copy, at most."""

    def __init__(self, threads: int = _THREADS) -> None:
        self._memory: Memory = np.empty(0, np.uint8)
        self._pinned = False
        self._threads = min(threads, len(os.sched_getaffinity(0)))

    @property
    def bytes(self) -> int:
        """Bytes of memory that it keeps."""
        return len(self._memory)

    def reserve(self, size: int) -> Memory:
        """Return this much staging memory, page-aligned and touched; its former content may be
        lost."""
        if size > len(self._memory):
            self.close()  # both may not fit
            try:
                fresh = mmap.mmap(-1, size)
            except (OSError, OverflowError):
                raise LimitError(
                    f"no memory to stage {size:,} bytes of a checkpoint: use more ranks, which"
                    " divide it, or a machine with more memory"
                ) from None
            if hasattr(mmap, "MADV_HUGEPAGE"):
                fresh.madvise(mmap.MADV_HUGEPAGE)
            self._memory = np.frombuffer(fresh, np.uint8)
            self._memory[:: mmap.PAGESIZE] = 0
        return self._memory[:size]

    def stage(self, blocks: Sequence[ArrayBlock], cuts: Sequence[Cut]) -> Staged:
        """Copy these parts of the blocks; the state may change once this returns."""
        return self.fill(self.reserve(count_staged_bytes(cuts)), blocks, cuts)

    def fill(
        self,
        memory: Memory,
        blocks: Sequence[ArrayBlock],
        cuts: Sequence[Cut],
        *,
        behind: bool = False,
    ) -> Staged:
        """Copy these parts of the blocks into a part of the staging memory that is meant for them.

        behind:  True copies on this thread alone, because training goes on meanwhile.
        """
        apart = {
            number: pack_array(blocks[number].leaves[0])
            for number in {cut.block for cut in cuts}
            if not blocks[number].dense
        }
        addresses, at = [], 0
        devices = set()
        for cut in cuts:
            block = blocks[cut.block]
            if cut.block in apart:
                addresses.append(apart[cut.block].ctypes.data + cut.start)
            elif block.device == "cpu":
                addresses.append(block.lowest + cut.start)
            else:  # the device copies, and what it copied is summed in its place
                self._pin()
                devices.add(block.device)
                into = memory[at : at + cut.bytes]
                import_tensors().begin_copy(block.leaves[0].value, block.lowest + cut.start, into)
                addresses.append(into.ctypes.data)
            at += pad_length(cut.bytes)
        if devices:
            import_tensors().wait_for_copies(devices)
        threads = 1 if behind else self._threads
        return _copy_parts(addresses, [cut.bytes for cut in cuts], memory, threads)

    def collect(self, arrays: Sequence[Memory]) -> Staged:
        """Copy these arrays in the same way."""
        memory = self.reserve(sum(pad_length(len(array)) for array in arrays))
        addresses = [array.ctypes.data for array in arrays]
        return _copy_parts(addresses, [len(array) for array in arrays], memory, self._threads)

    def close(self) -> None:
        """Give the memory back; a later call may take it again."""
        if self._pinned:
            import_tensors().unpin_memory(self._memory)
        self._memory, self._pinned = np.empty(0, np.uint8), False

    def _pin(self) -> None:
        if not self._pinned:
            self._pinned = import_tensors().pin_memory(self._memory)


def count_staged_bytes(cuts: Sequence[Cut]) -> int:
    """Count the staging memory that these cuts take."""
    return sum(pad_length(cut.bytes) for cut in cuts)


def _copy_parts(addresses: list[int], lengths: list[int], memory: Memory, threads: int) -> Staged:
    sums = np.zeros(len(lengths), np.uint32)
    sources = np.array(addresses, np.uint64), np.array(lengths, np.int64)
    _core.pack_extents(*sources, ALIGNMENT, memory, threads, sums)
    return Staged(memory, sums.tolist())
