"""Snapshot of a state: its division among the ranks, and the copy of one rank's part to staging.

Every byte of a state that all ranks have is written once, and ranks write about equally much. Small
blocks, which may differ between ranks, are the first rank's. Large blocks, which the ranks compare
(`comparison`), are cut. The pieces go, largest first, to the rank that has least so far (LPT, at
most 4/3 of the best division), so that ranks agree without a message.

The copy is made at once where training may change the state. Tensors that only optimizers change
stay as they are through forward and backward passes: they are copied meanwhile, and a fence makes
the optimizer's next step wait until the copy is done.
"""

from __future__ import annotations

import heapq
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from .. import limits
from ..engine import WakeUp
from ..errors import UsageError
from ..ranks import Place
from .comparison import BlockSum, describe_blocks, sum_samples
from .manifest import OWN_BLOCK, OWN_TREE, STATE_BLOCK, Attempt, pad_length
from .pytree import ArrayBlock, SplitState, encode_content, import_tensors, split_state
from .staging import Cut, Staged, Staging, count_staged_bytes


def divide_state(
    state: Any, loader: Any, place: Place, per_rank: Any = None
) -> tuple[SplitState, list[Cut]]:
    """Split a state, and divide it among the ranks: the split state and this rank's cuts. The
    blocks of what is this rank's own are the last."""
    split = split_state({"state": state, "loader": loader})
    sizes, ranks = [block.bytes for block in split.blocks], place.world_size
    piece_bytes = choose_piece_bytes(sizes, ranks)
    shares = divide_blocks(sizes, ranks, piece_bytes, limits.checkpoint_first_rank_bytes)
    cuts = shares[place.rank]
    if per_rank is None:
        return split, cuts
    own = _split_own(per_rank)
    own_cuts = cut_blocks([block.bytes for block in own], limits.checkpoint_piece_bytes)
    cuts += [cut._replace(block=len(sizes) + cut.block) for cut in own_cuts]
    return SplitState(split.skeleton, split.blocks + own), cuts


def _split_own(per_rank: Any) -> tuple[ArrayBlock, ...]:
    """Split what is this rank's own: its blocks, and one that describes them."""
    split = split_state({"per_rank": per_rank})
    (tree,) = split_state(json.dumps(encode_content(split)).encode()).blocks
    own = tuple(replace(block, kind=OWN_BLOCK) for block in split.blocks)
    return (*own, replace(tree, kind=OWN_TREE))


def choose_piece_bytes(sizes: Sequence[int], ranks: int) -> int:
    """Choose the largest size of a piece: small enough that ranks get about equally much, and no
    smaller than needed."""
    fair = sum(sizes) // (limits.checkpoint_pieces * ranks)
    most, least = limits.checkpoint_piece_bytes, limits.checkpoint_piece_bytes_min
    return most if ranks == 1 else pad_length(min(most, max(least, fair)))


def _cut_block(block: int, size: int, piece_bytes: int) -> list[Cut]:
    return [
        Cut(block, start, min(start + piece_bytes, size)) for start in range(0, size, piece_bytes)
    ]


def cut_blocks(sizes: Sequence[int], piece_bytes: int) -> list[Cut]:
    """Cut blocks into pieces of at most so many bytes."""
    return [cut for block, size in enumerate(sizes) for cut in _cut_block(block, size, piece_bytes)]


def divide_blocks(
    sizes: Sequence[int], ranks: int, piece_bytes: int, first_rank_bytes: int = 0
) -> list[list[Cut]]:
    """Divide blocks that all ranks have: the cuts of each rank, in the order of the blocks. sizes:
    bytes of each block. first_rank_bytes: blocks with fewer are the first rank's."""
    cuts = cut_blocks(sizes, piece_bytes)
    small = [cut for cut in cuts if sizes[cut.block] < first_rank_bytes]
    shares: list[list[Cut]] = [small, *([] for _ in range(ranks - 1))]
    loads = [(sum(cut.bytes for cut in small) if rank == 0 else 0, rank) for rank in range(ranks)]
    heapq.heapify(loads)
    large = [cut for cut in cuts if sizes[cut.block] >= first_rank_bytes]
    for cut in sorted(large, key=lambda cut: (-cut.bytes, cut)):
        load, rank = loads[0]
        heapq.heapreplace(loads, (load + cut.bytes, rank))
        shares[rank].append(cut)
    return [sorted(share) for share in shares]


def divide_held_blocks(
    sizes: Sequence[int],
    holders: Sequence[Sequence[int]],
    ranks: int,
    piece_bytes: int,
    first_rank_bytes: int = 0,
) -> list[list[Cut]]:
    """Divide blocks as `divide_blocks` does, if not all ranks have all blocks. holders: the ranks
    that have each block.

    A block that only one rank has, or that is small, is the first holder's: it is not cut, and
    counts before the rest is divided.
    """
    shares: list[list[Cut]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    cuts = []
    for block, (size, block_holders) in enumerate(zip(sizes, holders, strict=True)):
        if len(block_holders) == 1 or size < first_rank_bytes:
            loads[block_holders[0]] += size
            shares[block_holders[0]] += [Cut(block, 0, size)] if size else []
        else:
            cuts += _cut_block(block, size, piece_bytes)
    for cut in sorted(cuts, key=lambda cut: (-cut.bytes, cut)):
        rank = min(holders[cut.block], key=lambda rank: (loads[rank], rank))
        loads[rank] += cut.bytes
        shares[rank].append(cut)
    return [sorted(share) for share in shares]


# -- the copy --------------------------------------------------------------------------------------


class StateSnapshot:
    """A rank's part of a state, on its way to staging memory. Once this is made, the state may
    change, except for the tensors that the fence protects until `staged` has been read.

    parts:  the split state, without its arrays, which may have changed.
    cuts:   the parts of its blocks that this rank writes, as they will lie.
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
        self._samples = sum_samples(_list_common_blocks(split), ranks, attempt)
        now, later = fence.divide_cuts(split.blocks, cuts)
        end = count_staged_bytes(now)
        self._memory = staging.reserve(count_staged_bytes(cuts))
        self._first = staging.fill(self._memory[:end], split.blocks, now)
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
        return describe_blocks(_list_common_blocks(self.parts), self._samples)

    @cached_property
    def staged(self) -> Staged:
        """The whole copy. The first access copies what the fence protects, and takes it down."""
        if not self._later:
            return self._first
        rest = self._memory[len(self._first.memory) :]
        try:
            with import_tensors().use_side_streams(self._marks):
                second = self._staging.fill(rest, self._blocks, self._later, behind=True)
        finally:
            self._fence.take_down()
            self._blocks.clear()
        return Staged(self._memory, self._first.checksums + second.checksums)

    @property
    def waited_s(self) -> float:
        """Time for which steps of optimizers have waited for this copy."""
        return self._fence.waited_s if self._later else 0.0


def _list_common_blocks(parts: SplitState) -> list[ArrayBlock]:
    """List the blocks that all ranks hold."""
    return [block for block in parts.blocks if block.kind == STATE_BLOCK]


# -- the fence -------------------------------------------------------------------------------------


class Fence:
    """Stands between the copy of a state and the next steps of the optimizers attached to it."""

    def __init__(self) -> None:
        self._optimizers: list[Any] = []
        self._hooks: list[Any] = []
        self._is_up = False
        self._news = WakeUp()  # of who waits
        self.waited_s = 0.0
        """Time for which steps have waited here since the fence was put up."""

    def attach(self, optimizer: Any) -> None:
        """Make the steps of an optimizer of torch wait at this fence."""
        if not hasattr(optimizer, "register_step_pre_hook"):
            raise UsageError(
                f"{type(optimizer).__name__} has no register_step_pre_hook: attach an optimizer of"
                " torch"
            )
        if any(known is optimizer for known in self._optimizers):
            return
        self._hooks.append(optimizer.register_step_pre_hook(lambda *_: self.wait()))
        self._optimizers.append(optimizer)

    def divide_cuts(
        self, blocks: Sequence[ArrayBlock], cuts: Sequence[Cut]
    ) -> tuple[list[Cut], list[Cut]]:
        """Divide the cuts into those to copy at once and those that may be copied while the fence
        stands. The latter are of blocks that are exactly a parameter of the attached optimizers, or
        a tensor of their state."""
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
        """Make the steps wait from now on."""
        self.waited_s = 0.0
        self._is_up = True

    def take_down(self) -> None:
        """Let the steps go on."""
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
