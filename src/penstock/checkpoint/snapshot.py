"""Snapshot of a state: its copy in staging memory, made at once where training may change the
state, and behind training where a fence holds the changes back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from .. import limits
from ..ranks import Place
from .comparison import BlockSum, describe_blocks, sum_samples
from .fence import Fence
from .manifest import OWN_BLOCK, OWN_TREE, STATE_BLOCK, Attempt
from .partition import Cut, choose_piece_bytes, cut_blocks, divide_blocks
from .pytree import ArrayBlock, SplitState, encode_content, import_tensors, split_state
from .staging import Staged, Staging, count_staged_bytes


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
