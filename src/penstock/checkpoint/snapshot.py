"""Snapshot of a state: its copy in staging memory, made at once where training may change the
state, and behind training where a fence holds the changes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from ..topology import Place
from .fence import Fence
from .partition import Cut, choose_piece_bytes, divide_blocks
from .pytree import SplitState, import_tensors, split_state
from .staging import Staged, Staging, count_staged_bytes


def divide_state(state: Any, loader: Any, place: Place) -> tuple[SplitState, list[Cut]]:
    """Split a state, and divide it among the ranks: the split state and this rank's cuts."""
    split = split_state({"state": state, "loader": loader})
    sizes, ranks = [block.bytes for block in split.blocks], place.world_size
    return split, divide_blocks(sizes, ranks, choose_piece_bytes(sizes, ranks))[place.rank]


class StateSnapshot:
    """A rank's part of a state, on its way to staging memory. Once this is made, the state may
    change, except for the tensors that the fence protects until `staged` has been read.

    parts:  the split state, without its arrays, which may have changed.
    cuts:   the parts of its blocks that this rank writes, as they will lie.
    """

    def __init__(
        self, split: SplitState, cuts: Sequence[Cut], staging: Staging, fence: Fence
    ) -> None:
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
            self._mark = import_tensors().record_mark()
            fence.put_up()

    @cached_property
    def staged(self) -> Staged:
        """The whole copy. The first access copies what the fence protects, and takes it down."""
        if not self._later:
            return self._first
        rest = self._memory[len(self._first.memory) :]
        try:
            with import_tensors().use_side_stream(self._mark):
                second = self._staging.fill(rest, self._blocks, self._later, behind=True)
        finally:
            self._fence.take_down()
            self._blocks.clear()
        return Staged(self._memory, self._first.checksums + second.checksums)

    @property
    def waited_s(self) -> float:
        """Time for which steps of optimizers have waited for this copy."""
        return self._fence.waited_s if self._later else 0.0
