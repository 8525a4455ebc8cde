"""Staging: a state is divided among the ranks, and each rank copies its part to memory where it
waits to be written.

*Division.* Every byte of a state that all ranks have is written once, and ranks write about equally
much. Small blocks, which may differ between ranks, are the first rank's. Large blocks, which the
ranks compare (`comparison`), are cut. The pieces go, largest first, to the rank with the fewest
bytes (LPT, at most 4/3 of the best division), so that ranks agree without a message.

*Copy.* Training waits only for the copy. A few threads make it outside the GIL, at the speed of
memory, and compute checksums on the way: memory is read once. A fresh page costs many times what a
copy into it does, so the memory is allocated and touched once, kept between saves, and grows only
with the state.

*Fence.* Tensors that only optimizers change stay as they are through forward and backward passes.
They are copied meanwhile, and a fence makes the optimizer's next step wait for the copy.
"""

from __future__ import annotations

import heapq
import json
import mmap
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from .. import _core, limits
from ..engine.threads import WakeUp
from ..errors import LimitError, UsageError
from ..ranks.place import Place
from .comparison import BlockSum, describe_blocks, sum_samples
from .manifest import (
    ALIGNMENT,
    OWN_BLOCK,
    OWN_TREE,
    STATE_BLOCK,
    Attempt,
    Memory,
    pad_length,
)
from .pytree import ArrayBlock, SplitState, import_tensors, pack_array, split_state

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

    @property
    def padded_bytes(self) -> int:
        """Staging memory that it takes, with its zeros."""
        return pad_length(self.bytes)


class Staged(NamedTuple):
    """Memory that waits to be written: parts one after the other, each with zeros up to a multiple
    of ALIGNMENT; and the CRC-32C of each part with its zeros."""

    memory: Memory
    checksums: list[int]

    def split(self, cuts: Sequence[Cut]) -> list[Memory]:
        """Split the memory into its parts, without their zeros."""
        ends = np.cumsum([cut.padded_bytes for cut in cuts], dtype=np.int64)
        padded = np.split(self.memory, ends)
        return [memory[: cut.bytes] for memory, cut in zip(padded, cuts, strict=False)]


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
                what = f"no memory to stage {size:,} bytes of a checkpoint"
                raise LimitError(f"{what}: use more ranks, or more memory") from None
            if hasattr(mmap, "MADV_HUGEPAGE"):
                fresh.madvise(mmap.MADV_HUGEPAGE)
            self._memory = np.frombuffer(fresh, np.uint8)
            self._memory[:: mmap.PAGESIZE] = 0
        return self._memory[:size]

    def stage(
        self,
        blocks: Sequence[ArrayBlock],
        cuts: Sequence[Cut],
        *,
        start: int = 0,
        room: int = 0,
        behind: bool = False,
    ) -> Staged:
        """Copy these parts of the blocks; the state may change once this returns.

        start:   offset of the copy in the staging memory; what was staged before it stays if there
                 was room for both.
        room:    bytes to take behind the copy.
        behind:  True copies on this thread alone, because training goes on meanwhile.
        """
        size = sum(cut.padded_bytes for cut in cuts)
        if start + size + room > len(self._memory):
            self.reserve(start + size + room)
        memory = self._memory[start : start + size]
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
            at += cut.padded_bytes
        if devices:
            import_tensors().wait_for_copies(devices)
        sums = np.zeros(len(cuts), np.uint32)
        lengths = np.array([cut.bytes for cut in cuts], np.int64)
        threads = 1 if behind else self._threads
        sources = np.array(addresses, np.uint64)
        _core.pack_extents(sources, lengths, ALIGNMENT, memory, threads, sums)
        return Staged(memory, sums.tolist())

    def collect(self, arrays: Sequence[Memory]) -> Staged:
        """Copy these arrays in the same way."""
        blocks = [
            ArrayBlock("", len(array), array.ctypes.data, "cpu", (), True) for array in arrays
        ]
        return self.stage(blocks, [Cut(i, 0, len(array)) for i, array in enumerate(arrays)])

    def close(self) -> None:
        """Give the memory back; a later call may take it again."""
        if self._pinned:
            import_tensors().unpin_memory(self._memory)
        self._memory, self._pinned = np.empty(0, np.uint8), False

    def _pin(self) -> None:
        if not self._pinned:
            self._pinned = import_tensors().pin_memory(self._memory)


# -- division among the ranks ----------------------------------------------------------------------


def divide_state(
    state: Any, loader: Any, place: Place, per_rank: Any = None
) -> tuple[SplitState, list[Cut]]:
    """Split a state, and divide it among the ranks. Returns the split state and this rank's cuts;
    the blocks of this rank alone are the last."""
    split = split_state({"state": state, "loader": loader})
    sizes, ranks = [block.bytes for block in split.blocks], place.world_size
    if ranks == 1:
        cuts = cut_blocks(sizes, limits.checkpoint_piece_bytes)
    else:
        small, piece_bytes = limits.checkpoint_first_rank_bytes, choose_piece_bytes(sizes, ranks)
        cuts = divide_blocks(sizes, ranks, piece_bytes, small)[place.rank]
    if per_rank is None:
        return split, cuts
    own_blocks = _split_own(per_rank)
    own_cuts = cut_blocks([block.bytes for block in own_blocks], limits.checkpoint_piece_bytes)
    cuts += [cut._replace(block=len(sizes) + cut.block) for cut in own_cuts]
    return SplitState(split.skeleton, split.blocks + own_blocks), cuts


def _split_own(per_rank: Any) -> tuple[ArrayBlock, ...]:
    """Split the state of this rank alone: its blocks, and one that describes them."""
    split = split_state({"per_rank": per_rank})
    (tree,) = split_state(json.dumps(split.content).encode()).blocks
    own_blocks = tuple(replace(block, kind=OWN_BLOCK) for block in split.blocks)
    return (*own_blocks, replace(tree, kind=OWN_TREE))


def choose_piece_bytes(sizes: Sequence[int], ranks: int) -> int:
    """Choose the largest size of a piece: small enough that ranks get about equally much, and no
    smaller than needed."""
    fair = sum(sizes) // (limits.checkpoint_pieces * ranks)
    most, least = limits.checkpoint_piece_bytes, limits.checkpoint_piece_bytes_min
    return most if ranks == 1 else pad_length(min(most, max(least, fair)))


def cut_blocks(sizes: Sequence[int], piece_bytes: int) -> list[Cut]:
    """Cut blocks into pieces of at most `piece_bytes`."""
    return [
        Cut(block, start, min(start + piece_bytes, size))
        for block, size in enumerate(sizes)
        for start in range(0, size, piece_bytes)
    ]


def divide_blocks(
    sizes: Sequence[int],
    ranks: int,
    piece_bytes: int,
    first_rank_bytes: int = 0,
    holders: Sequence[Sequence[int]] | None = None,
) -> list[list[Cut]]:
    """Divide blocks: the cuts of each rank, in the order of the blocks. sizes: bytes of each block.

    holders:  the ranks that have each block; None: all have all.

    A block that only one rank has, or that is below `first_rank_bytes`, is the first holder's: it
    is not cut, and counts before the rest is divided.
    """
    shares: list[list[Cut]] = [[] for _ in range(ranks)]
    loads, whole = [0] * ranks, set()
    for block, size in enumerate(sizes):
        if size < first_rank_bytes or (holders is not None and len(holders[block]) == 1):
            whole.add(block)
            first = 0 if holders is None else holders[block][0]
            loads[first] += size
            shares[first] += [Cut(block, 0, size)] if size else []
    cuts = [cut for cut in cut_blocks(sizes, piece_bytes) if cut.block not in whole]
    heap = sorted(zip(loads, range(ranks), strict=True))
    for cut in sorted(cuts, key=lambda cut: (-cut.bytes, cut)):
        if holders is None:
            load, rank = heap[0]
            heapq.heapreplace(heap, (load + cut.bytes, rank))
        else:
            rank = min(holders[cut.block], key=lambda rank: (loads[rank], rank))
            loads[rank] += cut.bytes
        shares[rank].append(cut)
    return [sorted(share) for share in shares]


# -- the snapshot ------------------------------------------------------------------------------


class StateSnapshot:
    """A rank's part of a state, on its way to staging memory. Once this is made, the state may
    change, except for the tensors that the fence protects until `staged` has been read.

    parts:  the split state without its arrays: these may have changed.
    cuts:   the parts of its blocks that this rank writes, in order.
    """

    def __init__(
        self,
        split: SplitState,
        cuts: Sequence[Cut],
        staging: Staging,
        fence: Fence,
        ranks: int,
        attempt: Attempt,
    ) -> None:
        common = [block for block in split.blocks if block.kind == STATE_BLOCK]
        self._samples = sum_samples(common, ranks, attempt) if ranks > 1 else [0] * len(common)
        now, later = fence.divide_cuts(split.blocks, cuts) if fence.is_attached else ([*cuts], [])
        room = sum(cut.padded_bytes for cut in later)
        self._first = staging.stage(split.blocks, now, room=room)
        bare = tuple(replace(block, leaves=()) for block in split.blocks)
        self.parts, self.cuts = SplitState(split.skeleton, bare), now + later
        self._staging, self._later, self._fence = staging, later, fence
        if later:
            self._blocks = list(bare)
            for cut in later:
                self._blocks[cut.block] = split.blocks[cut.block]
            devices = {self._blocks[cut.block].device for cut in later}
            self._marks = import_tensors().record_marks(devices)
            fence.put_up()

    @cached_property
    def sums(self) -> list[BlockSum]:
        """The blocks that all ranks hold, as ranks compare them."""
        common = [block for block in self.parts.blocks if block.kind == STATE_BLOCK]
        return describe_blocks(common, self._samples)

    @cached_property
    def staged(self) -> Staged:
        """The whole copy. The first access copies what the fence protects, and takes it down."""
        if not self._later:
            return self._first
        start = len(self._first.memory)
        try:
            with import_tensors().use_side_streams(self._marks):
                second = self._staging.stage(self._blocks, self._later, start=start, behind=True)
        finally:
            self._fence.take_down()
            self._blocks.clear()
        memory = self._staging.reserve(start + len(second.memory))
        return Staged(memory, self._first.checksums + second.checksums)

    @property
    def waited_s(self) -> float:
        """Time for which optimizers have waited for this copy."""
        return self._fence.waited_s if self._later else 0.0


# -- the fence -------------------------------------------------------------------------------------


class Fence:
    """A barrier between the copy of a state and the next steps of the attached optimizers."""

    def __init__(self) -> None:
        self._optimizers: list[Any] = []
        self._hooks: list[Any] = []
        self._is_up = False
        self._news = WakeUp()  # of who waits
        self.waited_s = 0.0
        """Time for which optimizers have waited since the fence was put up."""

    @property
    def is_attached(self) -> bool:
        """True if the steps of an optimizer wait here."""
        return bool(self._optimizers)

    def attach(self, optimizer: Any) -> None:
        """Make the steps of an optimizer of torch wait at this fence."""
        if not hasattr(optimizer, "register_step_pre_hook"):
            kind = type(optimizer).__name__
            raise UsageError(f"{kind} has no register_step_pre_hook: attach one of torch")
        if any(known is optimizer for known in self._optimizers):
            return
        self._hooks.append(optimizer.register_step_pre_hook(lambda *_: self.wait()))
        self._optimizers.append(optimizer)

    def divide_cuts(
        self, blocks: Sequence[ArrayBlock], cuts: Sequence[Cut]
    ) -> tuple[list[Cut], list[Cut]]:
        """Divide the cuts into cuts to copy at once, and cuts to copy while the fence is up: blocks
        that are exactly a parameter of the attached optimizers, or a tensor of their state."""
        changed = {
            (tensor.data_ptr(), tensor.nbytes, str(tensor.device))
            for optimizer in self._optimizers
            for tensor in _list_changed_tensors(optimizer)
        }
        can_wait = [
            block.dense
            and bool(block.leaves)
            and all((leaf.lowest, leaf.extent, leaf.device) in changed for leaf in block.leaves)
            for block in blocks
        ]
        now = [cut for cut in cuts if not can_wait[cut.block]]
        return now, [cut for cut in cuts if can_wait[cut.block]]

    def put_up(self) -> None:
        """Make the optimizers wait from now on."""
        self.waited_s = 0.0
        self._is_up = True

    def take_down(self) -> None:
        """Let the optimizers continue."""
        self._is_up = False
        self._news.send()

    def wait(self) -> None:
        """Return once the fence is down."""
        if self._is_up:
            began_s = time.perf_counter()
            self._news.wait_until(lambda: not self._is_up)
            self.waited_s += time.perf_counter() - began_s

    def detach(self) -> None:
        """Remove the fence from all its optimizers."""
        while self._hooks:
            self._hooks[-1].remove()
            self._hooks.pop()
        self._optimizers.clear()


def _list_changed_tensors(optimizer: Any) -> list[Any]:
    """List the tensors that an optimizer's steps change in place."""
    changed = [tensor for group in optimizer.param_groups for tensor in group["params"]]
    for state in optimizer.state.values():
        if isinstance(state, dict):
            changed += [value for value in state.values() if hasattr(value, "data_ptr")]
    return [tensor for tensor in changed if tensor.is_contiguous()]
