"""The save of one rank, from its copy in memory to the commit.

    staged ---> written ---> committed          straight to the repository
       |           |             ^
       |           +--> held ----+              with tiers; the saves that a killed job held
       |           |      |                     start here in the next job
       +-----------+------+---> removed

    staged:     the rank's part of the state is copied to staging memory, or will be by the thread
                of the save.
    written:    all ranks have synced their shards, on a tier of their host or in the repository.
    held:       the index is on a tier of the first rank, so the save survives a kill of the job.
                Its memory is free, and the next save may begin.
    committed:  the repository has all shards and the index: the save is a checkpoint.
    removed:    the save is no checkpoint, and its files are removed if possible.

All ranks make each transition together (`Ranks.run_together`). One that fails on one rank raises on
all: a save that is not held is removed then, and a save that is held stays held.

    thread                       calls
    of the user                  Save, start                 `Checkpoints.save`
    of the save                  write, commit               `Checkpoints`, without tiers
                                 write, hold                 `Drain.hold`, with tiers
    of the drain                 drain, which commits        `Drain`; again with the next save if it
                                                             failed
    of the user, the next job    restore, drain              `recover_held_saves`

A `Save` does not decide when: `Checkpoints` decides which saves start and which checkpoints are
kept, and `Drain` which tier a shard goes to and which save is drained next.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple, Self

from ..errors import DataError, MissingError, PenstockError, StorageError
from ..ranks.place import Place
from .all_gather import Ranks
from .comparison import build_difference_error
from .flushing import Flush, lay_out_pieces
from .manifest import STATE, Attempt, CheckpointIndex, Piece, ShardEntry
from .pytree import encode_content
from .repository import Repository
from .staging import Staged, StateSnapshot
from .tiers import REPOSITORY, HeldSave, Tiers, copy_to_repository
from .write_lock import WriteLock

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
    lock: WriteLock | None
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
    snapshot:  the copy of the state; or the error that prevented it, for all ranks to raise; None
               once the save is held.
    flush:     writes to the repository while the save is not held.
    began_s:   when `Checkpoints.save` was called, by `CheckpointStorage.read_clock`.
    blocked_s: time for which training waited until the save was begun.
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
        blocked_s: float = 0.0,
    ) -> None:
        self._target, self.place = target, target.place
        self.step, self.attempt, self.number = step, str(attempt), attempt.number
        self.flush = flush
        self.began_s = began_s
        self.blocked_s = blocked_s
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

        write_shard:  calls `write_to_tier` or `write_straight`, the default.
        """
        rows = self._run_together(ranks, write_shard or self.write_straight)
        self._written = [WrittenShard(ShardEntry(*row[0]), *row[1:]) for row in rows]
        if any(shard.digest != self._written[0].digest for shard in self._written):
            rank_rows = self._run_together(ranks, self._get_sums)
            self.remove()
            raise build_difference_error(self.step, rank_rows)
        own = self._written[self.place.rank]
        self._shards = [(own.entry, self._get_tier_folder(own.tier))]
        self._enter("written")
        return self._written

    def _get_sums(self) -> Any:
        return self._get_snapshot().sums

    def write_straight(self) -> WrittenShard:
        """Write this rank's shard to the repository."""
        repository = self._target.repository
        began_s = repository.storage.read_clock()
        pieces = self._list_pieces()
        self._attempt_path = repository.start_attempt(self.step, self.attempt)
        entry = repository.write_shard(
            self._attempt_path, self._shard_name, self.staged.memory, pieces, self.flush
        )
        return self._report_shard(entry, REPOSITORY, began_s)

    def write_to_tier(self, tier: int, flush: Flush) -> WrittenShard:
        """Write this rank's shard to a tier."""
        began_s = self._target.repository.storage.read_clock()
        pieces, name = self._list_pieces(), self._shard_name
        tiers, memory = self._get_tiers(), self.staged.memory
        entry = tiers.write_shard(tier, self.step, self.attempt, name, memory, pieces, flush)
        return self._report_shard(entry, tier, began_s)

    def _report_shard(self, entry: ShardEntry, tier: int, began_s: float) -> WrittenShard:
        seconds = self._target.repository.storage.read_clock() - began_s
        self.flush.check()
        rows = json.dumps(self._get_snapshot().sums)
        return WrittenShard(entry, hashlib.sha256(rows.encode()).hexdigest(), tier, seconds)

    @property
    def _shard_name(self) -> str:
        return f"rank-{self.place.rank}.shard"

    def _list_pieces(self) -> list[Piece]:
        """List the pieces of the shard in order; raises as `staged` does."""
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

        def put_index() -> None:
            if self._target.lock is not None:
                self._index = self._build_index()
                if any(shard.tier == REPOSITORY for shard in self._written):
                    self._target.repository.sync_names()
                self._get_tiers().put_index(HeldSave(after, self._index))

        # If the exchange fails, others may take the save for held: what is on the tiers stays.
        outcomes = ranks.exchange_outcomes(put_index)
        try:
            outcomes.take_results()
        except Exception:
            self.remove()
            raise
        self.free_memory()
        self._enter("held")

    def _build_index(self) -> CheckpointIndex:
        """Build the index of all ranks' shards."""
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
            paths = self._run_together(ranks, self._find_commit)
            if paths[0] is not None:
                self._end_commit(paths[0])
                return []
        self._has_tried_commit = True
        rows = self._run_together(ranks, lambda: self._copy_shards(open_flush))
        self.commit(ranks)
        return [(size, seconds) for size, seconds in rows]

    def _find_commit(self) -> str | None:
        """Return the path of the checkpoint if the save was committed although its commit raised an
        error. StorageError if that is not known."""
        repository = self._target.repository
        if self._index is None:
            return None
        try:
            last = repository.find_last_attempt()
        except MissingError:  # the copy of the shards says more
            return None
        if last.damage:
            raise StorageError(f"{last.damage}: step {self.step} stays held, and is tried again")
        if last.attempt != self.attempt:
            return None
        repository.sync_names()  # what is held is removed now
        return last.path

    def _copy_shards(
        self, open_flush: Callable[[], AbstractContextManager[Flush]]
    ) -> tuple[int, float]:
        repository = self._target.repository
        path = self._attempt_path = repository.start_attempt(self.step, self.attempt)
        copied_bytes, seconds = 0, 0.0
        for shard, folder in self._shards:
            if folder is None:
                repository.storage.check_shard(path, shard)  # it is there still
                continue
            began_s = repository.storage.read_clock()
            with open_flush() as flush:
                copy_to_repository(repository, path, folder, shard, flush)
                flush.check()
            copied_bytes += shard.bytes
            seconds += repository.storage.read_clock() - began_s
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

        paths = self._run_together(ranks, commit_index)
        self._end_commit(paths[0])

    def _end_commit(self, path: str) -> None:
        self.path = path
        self.free_memory()
        self._enter("committed")
        if self._target.tiers is not None:
            self._target.tiers.remove(self.step, self.attempt)

    def describe_commit(self, now_s: float) -> CommittedSave:
        """Describe the save just after its commit."""
        size = self._written[self.place.rank].entry.bytes
        return CommittedSave(self.step, self.path, size, self.blocked_s, now_s - self.began_s)

    # -- removed -----------------------------------------------------------------------------------

    def remove(self) -> None:
        """Remove everything written of the save; errors are ignored. All ranks call it."""
        if self._target.tiers is not None:
            self._target.tiers.remove(self.step, self.attempt)
        if self._target.lock is not None:  # also what others have written where this rank failed
            repository = self._target.repository
            with contextlib.suppress(PenstockError):
                path = self._attempt_path or repository.start_attempt(self.step, self.attempt)
                repository.abandon(path)
        self._enter("removed")

    # -- transitions -------------------------------------------------------------------------------

    def _run_together(self, ranks: Ranks, work: Callable[[], Any]) -> list[Any]:
        """Run `work` on all ranks and return their results. If it fails on one, all ranks raise,
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
