"""The save of one rank once it is staged: its shard, its description, the index of all ranks, and
the commit."""

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
from .all_gather import run_together
from .flushing import Flush, lay_out_pieces
from .manifest import CheckpointIndex, Piece, ShardEntry
from .partition import Cut
from .pytree import SplitState
from .repository import Repository, RepositoryLock
from .staging import Staged


@dataclass(frozen=True)
class Save:
    """A rank's part of a save.

    parts:    the split state, without its memory, which may have changed.
    cuts:     the parts of its blocks that this rank writes, as they will lie.
    copy:     completes the copy and returns it; called once.
    failure:  the reason why there is nothing to write: the other ranks raise it too.
    """

    step: int
    attempt: str
    place: Place
    parts: SplitState
    cuts: Sequence[Cut]
    copy: Callable[[], Staged]
    failure: Exception | None = None

    @property
    def name(self) -> str:
        return f"rank-{self.place.rank}.shard"

    @cached_property
    def staged(self) -> Staged:
        """The copy to be written; raises `failure` if there is one."""
        if self.failure is not None:
            raise self.failure
        return self.copy()

    def list_pieces(self) -> list[Piece]:
        """List the pieces of the shard, as they lie in it; raises as `staged` does."""
        blocks = self.parts.blocks
        pieces = [
            Piece(
                blocks[cut.block].name,
                "uint8",
                (cut.bytes,),
                (cut.start,),
                self.name,
                0,
                cut.bytes,
                0,
            )
            for cut in self.cuts
        ]
        return lay_out_pieces(pieces, self.staged.checksums)

    def hash_shape(self) -> str:
        """Hash the names and sizes of the blocks: equal for states of equal blocks."""
        names = json.dumps([[block.name, block.bytes] for block in self.parts.blocks])
        return hashlib.sha256(names.encode()).hexdigest()

    def build_index(self, entries: Sequence[ShardEntry], shapes: Sequence[str]) -> CheckpointIndex:
        """Build the index of all ranks' shards; UsageError if they are not of one state."""
        if any(shape != shapes[0] for shape in shapes):
            raise UsageError(
                f"the ranks save states of different shape at step {self.step}: save the same"
                " names, dtypes and shapes on all; nothing was committed"
            )
        content = loading.encode_content(self.parts)
        ranks = self.place.world_size
        return CheckpointIndex(
            self.step, self.attempt, ranks, loading.STATE, tuple(entries), content
        )


def commit_save(
    save: Save, repository: Repository, lock: RepositoryLock | None, gather: Gather, flush: Flush
) -> tuple[str, int]:
    """Write a save straight to its repository and commit it, together with the other ranks. Returns
    its path there, and the bytes of this rank's shard. lock: the first rank's."""
    attempt_path = ""

    def write() -> Any:
        nonlocal attempt_path
        pieces = save.list_pieces()
        attempt_path = repository.begin(save.step, save.attempt)
        shard = repository.write(attempt_path, save.name, save.staged.memory, pieces, flush)
        flush.check()
        return [list(shard), save.hash_shape()]

    def commit() -> str | None:
        if lock is None:
            return None
        flush.check()
        index = save.build_index(
            [ShardEntry(*shard) for shard, _ in rows], [shape for _, shape in rows]
        )
        return repository.commit(attempt_path, index, lock).path

    try:
        rows = run_together(gather, save.place, write)
        path = run_together(gather, save.place, commit)[0]
    except BaseException:
        if save.place.rank == 0:  # also what others have written, where this one could not begin
            with contextlib.suppress(PenstockError):
                repository.abandon(attempt_path or repository.begin(save.step, save.attempt))
        raise
    return path, int(rows[save.place.rank][0][1])
