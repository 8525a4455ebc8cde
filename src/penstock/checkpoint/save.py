"""The save of one rank, from its copy in memory to the commit.

    staged ---> written ---> committed          straight to the repository
       |           |             ^
       |           +--> held ----+              with tiers; the saves that a killed job held
       |           |      |                     begin here in the next job
       +-----------+------+---> removed

    staged:     the rank's part of the state is copied to staging memory, or will be by the thread
                of the save.
    written:    all ranks have synced their shards, on a tier of their host or in the repository.
    held:       the index is on a tier of the first rank, so the save survives a kill of the job.
                Its memory is free, and the next save may begin.
    committed:  the repository has all shards and the index: the save is a checkpoint.
    removed:    the save is no checkpoint, and what was written of it is removed as far as that can
                be done.

All ranks take the same steps together (`Ranks.run_together`). A step that fails on one rank raises
on all: a save that is not held is removed then, and a save that is held stays held.

    thread                       calls
    of the user                  Save, start                 `Checkpoints.save`
    of the save                  write, commit               `Checkpoints`, without tiers
                                 write, hold                 `Drain.hold`, with tiers
    of the drain                 drain, which commits        `Drain`; again with the next save if it
                                                             failed
    of the user, the next job    restore, drain              `recovery`

A `Save` takes the steps, but does not decide on them. `Checkpoints` decides which saves begin and
which checkpoints are kept; `Drain` decides which tier a shard goes to, and which save is drained
next.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple, Self

from ..errors import DataError, PenstockError, StorageError
from ..topology import Place
from . import shards
from .all_gather import Ranks
from .background import BackgroundTask, JoinDeadline
from .comparison import build_difference_error
from .flushing import Flush, lay_out_pieces
from .folder_repository import create_synced
from .manifest import STATE, Attempt, CheckpointIndex, Piece, ShardEntry
from .pytree import encode_content
from .repository import Repository, RepositoryLock
from .snapshot import StateSnapshot
from .staging import Staged
from .tier_choice import REPOSITORY
from .tiers import HeldSave, Tiers, copy_to_repository

SaveState = Literal["staged", "written", "held", "committed", "removed"]

_NEXT: dict[SaveState, tuple[SaveState, ...]] = {
    "staged": ("written", "removed"),
    "written": ("held", "committed", "removed"),
    "held": ("committed", "removed"),
    "committed": (),
    "removed": (),
}


class CommittedSave(NamedTuple):
    """A save of this rank that was committed.

    bytes:      of its shard; the shards of all ranks together hold the state once.
    blocked_s:  how long training waited: for an earlier save, and for the copy, in `save` and in
                the optimizer's next step.
    seconds:    from the call of `save` to the commit.
    """

    step: int
    path: str
    bytes: int
    blocked_s: float
    seconds: float


class SaveTarget(NamedTuple):
    """The storage to which the saves of a rank go.

    lock:   the right to commit; in the first rank only.
    tiers:  where saves are held; None if they go straight to the repository.
    """

    place: Place
    repository: Repository
    lock: RepositoryLock | None
    tiers: Tiers | None = None


class WrittenShard(NamedTuple):
    """The report of a rank on its shard.

    digest:   equal for states that are equal, as far as ranks compare them.
    tier:     where the shard is: the number of a tier, or REPOSITORY.
    seconds:  how long writing took.
    failed:   a tier that failed to take the shard before.
    """

    entry: ShardEntry
    digest: str
    tier: int
    seconds: float
    failed: int | None = None


class Save:
    """A rank's part of a save. Methods that take `ranks` are called on all ranks.

    attempt:   equal on all ranks.
    snapshot:  the copy of the state, or the error that prevented it, which all ranks raise; None
               once the save is held.
    flush:     writes to the repository while the save is not held.
    began_s:   when `Checkpoints.save` was called, by `time.perf_counter`.
    """

    def __init__(
        self,
        target: SaveTarget,
        step: int,
        attempt: Attempt,
        *,
        snapshot: StateSnapshot | Exception | None,
        flush: Flush,
        began_s: float,
    ) -> None:
        self._target, self.place = target, target.place
        self.step, self.attempt, self.number = step, str(attempt), attempt.number
        self.flush = flush
        self.began_s = began_s
        self.blocked_s = time.perf_counter() - began_s
        """Time for which training has waited for this save."""
        self.state: SaveState = "staged"
        self.path = ""
        """The place of the checkpoint, once it is committed."""
        self._snapshot = snapshot
        self._written: list[WrittenShard] = []  # by rank
        self._shards: list[tuple[ShardEntry, str | None]] = []  # to drain, with folders on tiers
        self._index: CheckpointIndex | None = None  # in the first rank only
        self._attempt_path = ""  # in the repository
        self._has_tried_commit = False
        self._task: BackgroundTask | None = None  # until it was waited for

    @classmethod
    def restore(
        cls,
        target: SaveTarget,
        index: CheckpointIndex,
        held_shards: Sequence[tuple[ShardEntry, str | None]],
        flush: Flush,
    ) -> Self:
        """Restore a save that another job held.

        held_shards:  those that this rank drains, each with its folder on a tier; None if the shard
                      is in the repository.
        """
        attempt = Attempt.parse(index.attempt)
        save = cls(target, index.step, attempt, snapshot=None, flush=flush, began_s=0.0)
        save.state, save._index, save._shards = "held", index, list(held_shards)
        return save

    # -- staged ------------------------------------------------------------------------------------

    @property
    def staged(self) -> Staged:
        """The copy to be written. Raises the error that prevented it."""
        return self._get_snapshot().staged

    def _get_snapshot(self) -> StateSnapshot:
        if isinstance(self._snapshot, Exception):
            raise self._snapshot
        assert self._snapshot is not None, self.state
        return self._snapshot

    def free_memory(self) -> None:
        """Let the next save use the staging memory. May be called again."""
        if isinstance(self._snapshot, StateSnapshot):
            self.blocked_s += self._snapshot.waited_s
        self._snapshot = None

    # -- written -----------------------------------------------------------------------------------

    def write(
        self, ranks: Ranks, write_shard: Callable[[], WrittenShard] | None = None
    ) -> list[WrittenShard]:
        """Write and sync the shards of all ranks. Returns the reports of all ranks. UsageError if
        their states differ: see `comparison`.

        write_shard:  calls `write_to_tier` or `write_straight`, which is the default.
        """
        rows = self._step_together(ranks, write_shard or self.write_straight)
        self._written = [WrittenShard(ShardEntry(*row[0]), *row[1:]) for row in rows]
        if any(shard.digest != self._written[0].digest for shard in self._written):
            rank_rows = self._step_together(ranks, lambda: self._get_snapshot().sums)
            self.remove()
            raise build_difference_error(self.step, rank_rows)
        own = self._written[self.place.rank]
        self._shards = [(own.entry, self._get_tier_folder(own.tier))]
        self._enter("written")
        return self._written

    def write_straight(self) -> WrittenShard:
        """Write this rank's shard to the repository."""
        pieces, began_s = self._list_pieces(), time.perf_counter()
        repository = self._target.repository
        self._attempt_path = repository.begin(self.step, self.attempt)
        entry = repository.write(
            self._attempt_path, self._shard_name, self.staged.memory, pieces, self.flush
        )
        return self._report_shard(entry, REPOSITORY, began_s)

    def write_to_tier(self, tier: int, flush: Flush) -> WrittenShard:
        """Write this rank's shard to a tier."""
        pieces, began_s = self._list_pieces(), time.perf_counter()
        folder = self._get_tiers().begin(tier, self.step, self.attempt)
        with create_synced(folder, self._shard_name) as path:
            entry = flush.write(path, self.staged.memory, pieces)
        return self._report_shard(entry, tier, began_s)

    def _report_shard(self, entry: ShardEntry, tier: int, began_s: float) -> WrittenShard:
        self.flush.check()
        seconds = time.perf_counter() - began_s
        rows = json.dumps(self._get_snapshot().sums)
        return WrittenShard(entry, hashlib.sha256(rows.encode()).hexdigest(), tier, seconds)

    @property
    def _shard_name(self) -> str:
        return f"rank-{self.place.rank}.shard"

    def _list_pieces(self) -> list[Piece]:
        """List the pieces of the shard, as they lie in it; raises as `staged` does."""
        snapshot = self._get_snapshot()
        blocks = snapshot.parts.blocks
        pieces = [
            cut.make_piece(blocks[cut.block].name, blocks[cut.block].kind, self._shard_name)
            for cut in snapshot.cuts
        ]
        return lay_out_pieces(pieces, snapshot.staged.checksums)

    # -- held --------------------------------------------------------------------------------------

    def hold(self, ranks: Ranks, after: str | None) -> None:
        """Put the index on a tier of the first rank.

        after:  the attempt that was last committed in the repository; None if there was none.
        """
        tiers = self._get_tiers()

        def put_index() -> None:
            if self._target.lock is not None:
                self._index = self._build_index()
                tiers.put_index(HeldSave(after, self._index))

        self._step_together(ranks, put_index)
        self.free_memory()
        self._enter("held")

    def _build_index(self) -> CheckpointIndex:
        """Build the index of all ranks' shards, which are of one state."""
        self.flush.check()
        content = encode_content(self._get_snapshot().parts)
        ranks, entries = len(self._written), tuple(shard.entry for shard in self._written)
        return CheckpointIndex(self.step, self.attempt, ranks, STATE, entries, content)

    # -- committed ---------------------------------------------------------------------------------

    def drain(
        self, ranks: Ranks, open_flush: Callable[[], AbstractContextManager[Flush]]
    ) -> list[tuple[int, float]]:
        """Copy the shards of a held save to the repository, and commit it. Returns the bytes that
        each rank copied, and how long that took; nothing if it turns out that an earlier call,
        which raised, has committed the save.

        open_flush:  makes the flush of one shard.

        The save stays held if this raises. MissingError or FormatError if it is not whole any more.
        """
        if self._has_tried_commit:
            path: str | None = self._step_together(ranks, self._find_commit)[0]
            if path is not None:
                self._end_commit(path)
                return []
        self._has_tried_commit = True
        rows = self._step_together(ranks, lambda: self._copy_shards(open_flush))
        self.commit(ranks)
        return [(size, seconds) for size, seconds in rows]

    def _find_commit(self) -> str | None:
        """Find the path of a save that was committed although its commit raised an error; None if
        it was not."""
        repository = self._target.repository
        if self._index is not None:
            with contextlib.suppress(DataError):  # damaged, or not there: it is none then
                last = repository.entry()
                if repository.index(last).attempt == self.attempt:
                    return last.path
        return None

    def _copy_shards(
        self, open_flush: Callable[[], AbstractContextManager[Flush]]
    ) -> tuple[int, float]:
        repository = self._target.repository
        path = self._attempt_path = repository.begin(self.step, self.attempt)
        copied_bytes, seconds = 0, 0.0
        for shard, folder in self._shards:
            if folder is None:
                shards.list_shard_pieces(repository, path, shard)  # it is there still
                continue
            began_s = time.perf_counter()
            with open_flush() as flush:
                copy_to_repository(repository, path, folder, shard, flush)
                flush.check()
            copied_bytes += shard.bytes
            seconds += time.perf_counter() - began_s
        return copied_bytes, seconds

    def commit(self, ranks: Ranks) -> None:
        """Make the save a checkpoint: the shards of all ranks are in the repository."""
        repository, lock = self._target.repository, self._target.lock

        def commit_index() -> str | None:
            if lock is None:
                return None
            index = self._index or self._build_index()
            try:
                return repository.commit(self._attempt_path, index, lock).path
            except DataError as error:
                if self.state != "held":
                    raise
                raise StorageError(str(error)) from None  # what is held is whole

        self._end_commit(self._step_together(ranks, commit_index)[0])

    def _end_commit(self, path: str) -> None:
        self.path = path
        self.free_memory()
        self._enter("committed")
        if self._target.tiers is not None:
            self._target.tiers.remove(self.step, self.attempt)

    def describe_commit(self) -> CommittedSave:
        """Describe the save, which has been committed just now."""
        size = self._written[self.place.rank].entry.bytes
        seconds = time.perf_counter() - self.began_s
        return CommittedSave(self.step, self.path, size, self.blocked_s, seconds)

    # -- removed -----------------------------------------------------------------------------------

    def remove(self) -> None:
        """Remove what was written of the save, as far as that can be done. All ranks call it."""
        if self._target.tiers is not None:
            self._target.tiers.remove(self.step, self.attempt)
        if self._target.lock is not None:  # also what others have written where this rank failed
            repository = self._target.repository
            with contextlib.suppress(PenstockError):
                repository.abandon(self._attempt_path or repository.begin(self.step, self.attempt))
        self._enter("removed")

    # -- the thread --------------------------------------------------------------------------------

    def start(self, finish: Callable[[Save], Exception | None]) -> None:
        """Call `finish` in a thread behind training. It returns the error for a later call."""
        self._task = BackgroundTask("penstock-checkpoint", lambda: finish(self))

    @property
    def is_under_way(self) -> bool:
        return self._task is not None and self._task.is_alive

    def join(self, within: JoinDeadline) -> Exception | None:
        """Wait for the thread. The first call that returns has its error; StalledError if the time
        is over before."""
        if self._task is None:
            return None
        within.join(self._task.thread, self.step)
        error, self._task = self._task.take_error(), None
        return error

    def abandon(self) -> None:
        """End the thread soon, or do not wait for it at the end of the process."""
        if self._task is not None:
            self.flush.stop()
            self._task.give_up()

    # -- steps -------------------------------------------------------------------------------------

    def _step_together(self, ranks: Ranks, work: Callable[[], Any]) -> list[Any]:
        """Run a step on all ranks and return their results. If it fails on one, all ranks raise,
        and remove a save that is not held."""
        try:
            return ranks.run_together(work)
        except BaseException:
            if self.state != "held":
                self.remove()
            raise

    def _enter(self, state: SaveState) -> None:
        assert state in _NEXT[self.state], f"a save that is {self.state} cannot become {state}"
        self.state = state

    def _get_tiers(self) -> Tiers:
        assert self._target.tiers is not None
        return self._target.tiers

    def _get_tier_folder(self, tier: int) -> str | None:
        if tier == REPOSITORY:
            return None
        return self._get_tiers().get_folder(tier, self.step, self.attempt)
