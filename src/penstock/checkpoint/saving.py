"""A save of one rank, once it is staged: its shard, what is said of it, and the index of all."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..cache import Gather
from ..errors import PenstockError, UsageError
from ..topology import Place
from . import loading
from .all_gather import together
from .flushing import Flush, lay_out_pieces
from .manifest import CheckpointIndex, Piece, Shard
from .partition import Cut
from .pytree import Taken
from .repository import Repository, RepositoryLock
from .staging import Staged


@dataclass(frozen=True)
class Save:
    """What a rank writes of a state.

    parts:    of the state, without its memory, which may have changed.
    cuts:     of its blocks, which this rank writes, as they will lie.
    copy:     ends what is left of their copy; called once.
    failure:  why there is nothing to write: the other ranks are told.
    """

    step: int
    attempt: str
    place: Place
    parts: Taken
    cuts: Sequence[Cut]
    copy: Callable[[], Staged]
    failure: Exception | None = None

    @property
    def name(self) -> str:
        return f"rank-{self.place.rank}.shard"

    @cached_property
    def staged(self) -> Staged:
        """What is written; raises what is to be told instead."""
        if self.failure is not None:
            raise self.failure
        return self.copy()

    def pieces(self) -> list[Piece]:
        """Of the shard, as they lie in it; raises as `staged`."""
        blocks = self.parts.blocks
        pieces = [
            Piece(blocks[c.block].name, "uint8", (c.bytes,), (c.start,), self.name, 0, c.bytes, 0)
            for c in self.cuts
        ]
        return lay_out_pieces(pieces, self.staged.checksums)

    def shape(self) -> str:
        """Equal where states have the same blocks."""
        names = json.dumps([[block.name, block.bytes] for block in self.parts.blocks])
        return hashlib.sha256(names.encode()).hexdigest()

    def index(self, made: Sequence[Shard], shapes: Sequence[str]) -> CheckpointIndex:
        """Of all ranks' shards; UsageError where they are not of one state."""
        if any(shape != shapes[0] for shape in shapes):
            raise UsageError(
                f"the ranks save states of different shape at step {self.step}: save the same"
                " names, dtypes and shapes on all; nothing was committed"
            )
        content = loading.content_of(self.parts)
        ranks = self.place.world_size
        return CheckpointIndex(self.step, self.attempt, ranks, loading.STATE, tuple(made), content)


def committed(
    save: Save, home: Repository, lock: RepositoryLock | None, gather: Gather, flush: Flush
) -> tuple[str, int]:
    """Write a save straight to its home and commit it, together with the other ranks: its path
    there, and the bytes of this rank's shard. lock: the first rank's."""
    begun = ""

    def write() -> Any:
        nonlocal begun
        pieces = save.pieces()
        begun = home.begin(save.step, save.attempt)
        shard = home.write(begun, save.name, save.staged.memory, pieces, flush)
        flush.check()
        return [list(shard), save.shape()]

    def commit() -> str | None:
        if lock is None:
            return None
        flush.check()
        index = save.index([Shard(*shard) for shard, _ in said], [shape for _, shape in said])
        return home.commit(begun, index, lock).path

    try:
        said = together(gather, save.place, write)
        path = together(gather, save.place, commit)[0]
    except BaseException:
        if save.place.rank == 0:  # also what others have written, where this one could not begin
            with contextlib.suppress(PenstockError):
                home.abandon(begun or home.begin(save.step, save.attempt))
        raise
    return path, int(said[save.place.rank][0][1])
