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

All ranks make each transition together (`Ranks.run_together`): each sends a text about its part to
all others, by gloo groups of torch.distributed or by a function of the user. One that fails on one
rank raises on all: a save that is not held is removed then, and a save that is held stays held. If
a rank is gone, the others notice: no rank waits for ever, and nothing is committed without all. A
rank that is alone sends nothing.

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
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Self

from .. import errors
from ..errors import DataError, MissingError, PenstockError, StorageError, UsageError, WorkerError
from ..ranks.gather import Gather
from ..ranks.place import Place
from .background import mark
from .comparison import build_difference_error
from .manifest import STATE, Attempt, CheckpointIndex, Piece, ShardEntry
from .repository import Repository, WriteLock
from .shards import Flush
from .staging import Staged, StateSnapshot
from .tiers import REPOSITORY, HeldSave, Tiers

# -- ranks -----------------------------------------------------------------------------------------

Gathers = tuple[Gather, Gather, Gather]
"""Three functions that are used at once: by the thread that trains, by the thread behind it, and by
the threads that drain held saves to the repository."""


class Ranks(NamedTuple):
    """The ranks of a job, as one thread of this rank reaches them. gather: None if it is alone."""

    place: Place
    gather: Gather | None

    def run_together(
        self, work: Callable[[], Any], on_failure: Callable[[], None] = lambda: None
    ) -> list[Any]:
        """Run `work` on each rank and return the results of all ranks, as JSON has them if there
        are several. If it raises on any rank, all ranks raise.

        on_failure:  called before that; but not if the exchange itself fails, because other ranks
                     may have all results then.
        """
        value, own_error = None, None
        try:
            value = work()
        except Exception as error:
            own_error = error
        error_row = None if own_error is None else [type(own_error).__name__, str(own_error)]
        rows: list[Any] = [[value, error_row]]
        if self.gather is not None:
            text = json.dumps(rows[0])
            mark("wait for the other ranks")
            texts = self.gather(text)
            mark("heard from the other ranks", is_done=True)
            rows = [json.loads(row) for row in texts]
        if own_error is not None:
            on_failure()
            raise own_error
        for rank, (_, rank_error) in enumerate(rows):
            if rank_error is not None:
                kind = getattr(errors, rank_error[0], WorkerError)
                on_failure()
                raise (kind if issubclass(kind, PenstockError) else WorkerError)(
                    f"rank {rank}: {rank_error[1]}"
                )
        return [row for row, _ in rows]


def connect_ranks(
    place: Place, modules: Mapping[str, Any], gather: Gather | Gathers | None
) -> tuple[Ranks, Ranks, Ranks]:
    """Choose the functions by which the threads of `Gathers` exchange texts.

    gather:  the user's own; a single one is used by all threads, never by two at once.

    UsageError if there are several ranks and no way to exchange texts.
    """
    three = gather if isinstance(gather, tuple) else (gather, gather, gather)
    if gather is not None and (len(three) != 3 or not all(map(callable, three))):
        what = f"gather is {gather!r:.100}"
        raise UsageError(f"{what}: give a function of a text, which all ranks call, or three")
    if place.world_size == 1:
        alone = Ranks(place, None)
        return alone, alone, alone
    if gather is not None:
        train, save, drain = gather if isinstance(gather, tuple) else (gather, gather, gather)
        return Ranks(place, train), Ranks(place, save), Ranks(place, drain)
    distributed = modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        who = f"{place.world_size} ranks ({place.source}) save"
        raise UsageError(f"{who}: initialise torch.distributed first, or pass gather=")
    if distributed.get_world_size() != place.world_size:
        ranks = f"{distributed.get_world_size()} ranks, not {place.world_size} ({place.source})"
        raise UsageError(f"the process group has {ranks}: pass gather=")
    for_train, for_save, for_drain = (
        Ranks(place, _make_group_gather(distributed, place)) for _ in range(3)
    )
    return for_train, for_save, for_drain


def _make_group_gather(distributed: Any, place: Place) -> Gather:
    group = distributed.new_group(backend="gloo")

    def gather(text: str) -> list[str]:
        texts: list[Any] = [None] * place.world_size
        try:
            distributed.all_gather_object(texts, text, group=group)
        except RuntimeError as error:  # a connection was lost, or the time-out of the group
            what = f"rank {place.rank} lost the others ({error!s:.200}): the save was not committed"
            raise WorkerError(f"{what}; restart the job from the last checkpoint") from None
        return texts

    return gather


# -- the save --------------------------------------------------------------------------------------

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
    seconds:  how long writing took; measured with tiers alone.
    failed:   a tier that failed to take the shard before.
    """

    entry: ShardEntry
    digest: str
    tier: int
    seconds: float = 0.0
    failed: int | None = None


@dataclass(eq=False)
class Save:
    """A rank's part of a save. Methods that take `ranks` are called on all ranks.

    attempt:   equal on all ranks.
    snapshot:  the copy of the state; or the error that prevented it, for all ranks to raise; None
               once the save is held.
    flush:     writes to the repository while the save is not held.
    began_s:   when `Checkpoints.save` was called, by `CheckpointStorage.read_clock`.
    blocked_s: time for which training has waited for this save.
    path:      of the checkpoint, once it is committed.
    """

    target: SaveTarget
    step: int
    attempt: str
    snapshot: StateSnapshot | Exception | None = field(kw_only=True)
    flush: Flush = field(kw_only=True)
    began_s: float = field(kw_only=True)
    blocked_s: float = field(default=0.0, kw_only=True)
    _state: SaveState = field(default="staged", init=False)
    path: str = field(default="", init=False)
    _written: list[WrittenShard] = field(default_factory=list, init=False)
    """By rank."""
    _shards: list[tuple[ShardEntry, str | None]] = field(default_factory=list, init=False)
    """Shards that this rank drains, each with its folder on a tier; None if it is in the
    repository."""
    _index: CheckpointIndex | None = field(default=None, init=False)
    """In the first rank only, once all shards are written."""
    _attempt_path: str = field(default="", init=False)
    """In the repository."""
    _has_tried_commit: bool = field(default=False, init=False)

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
        save = cls(target, index.step, index.attempt, snapshot=None, flush=flush, began_s=0.0)
        save._state, save._index, save._shards = "held", index, list(held_shards)
        return save

    @property
    def state(self) -> SaveState:
        return self._state

    @state.setter
    def state(self, state: SaveState) -> None:
        assert state in _NEXT[self._state], f"a save that is {self._state} cannot become {state}"
        self._state = state

    @property
    def number(self) -> int:
        """Number of the save in its job."""
        return Attempt.parse(self.attempt).number

    # -- staged ------------------------------------------------------------------------------------

    @property
    def _copy(self) -> StateSnapshot:
        """The copy to be written. Raises the error that prevented it."""
        if isinstance(self.snapshot, Exception):
            raise self.snapshot
        assert self.snapshot is not None, self.state
        return self.snapshot

    @property
    def staged(self) -> Staged:
        """The memory of the copy, complete. Raises the error that prevented it."""
        return self._copy.staged

    def free_memory(self) -> None:
        """Let the next save use the staging memory. May be called again."""
        if isinstance(self.snapshot, StateSnapshot):
            self.blocked_s += self.snapshot.waited_s
        self.snapshot = None

    # -- written -----------------------------------------------------------------------------------

    def write(
        self, ranks: Ranks, write_shard: Callable[[], WrittenShard] | None = None
    ) -> list[WrittenShard]:
        """Write and sync the shards of all ranks. Returns the reports of all ranks. UsageError if
        their states differ: see `comparison`.

        write_shard:  calls the method of this name; None writes straight to the repository.
        """
        rows = self._run_together(ranks, write_shard or self.write_shard)
        self._written = [WrittenShard(ShardEntry(*row[0]), *row[1:]) for row in rows]
        if any(shard.digest != self._written[0].digest for shard in self._written):
            rank_rows = self._run_together(ranks, lambda: self._copy.sums)
            self.remove()
            raise build_difference_error(self.step, rank_rows)
        own_shard, folder = self._written[self.target.place.rank], None
        if own_shard.tier != REPOSITORY:
            folder = self._get_tiers().get_folder(own_shard.tier, self.step, self.attempt)
        self._shards = [(own_shard.entry, folder)]
        if self.target.lock is not None:
            entries = tuple(shard.entry for shard in self._written)
            self._index = CheckpointIndex(
                self.step, self.attempt, len(entries), STATE, entries, self._copy.parts.content
            )
        self.state = "written"
        return self._written

    def write_shard(self, tier: int = REPOSITORY, flush: Flush | None = None) -> WrittenShard:
        """Write this rank's shard to the repository, or to a tier."""
        copy, name, repository = (
            self._copy,
            f"rank-{self.target.place.rank}.shard",
            self.target.repository,
        )
        blocks, memory, flush = copy.parts.blocks, copy.staged.memory, flush or self.flush
        pieces, at = [], 0
        for cut, crc in zip(copy.cuts, copy.staged.checksums, strict=True):
            block, size = blocks[cut.block], cut.bytes
            pieces.append(Piece(block.name, block.kind, (size,), (cut.start,), name, at, size, crc))
            at += cut.padded_bytes
        content = memory, pieces
        if tier == REPOSITORY:
            self._attempt_path = repository.start_attempt(self.step, self.attempt)
            entry = repository.write_shard(self._attempt_path, name, content, flush)
        else:
            entry = self._get_tiers().write_shard(
                tier, self.step, self.attempt, name, content, flush
            )
        self.flush.check()
        sums = json.dumps(copy.sums) if self.target.place.world_size > 1 else ""
        return WrittenShard(entry, hashlib.sha256(sums.encode()).hexdigest(), tier)

    # -- held --------------------------------------------------------------------------------------

    def hold(self, ranks: Ranks, after: str | None) -> None:
        """Put the index on a tier of the first rank.

        after:  the attempt that was last committed in the repository; None if there was none.
        """

        def put_index() -> None:
            if self._index is not None:
                self.flush.check()
                if any(shard.tier == REPOSITORY for shard in self._written):
                    self.target.repository.sync_names()
                self._get_tiers().put_index(HeldSave(after, self._index))

        # If the exchange fails, others may take the save for held: what is on the tiers stays.
        ranks.run_together(put_index, on_failure=self.remove)
        self.free_memory()
        self.state = "held"

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
        repository = self.target.repository
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
        repository = self.target.repository
        path = self._attempt_path = repository.start_attempt(self.step, self.attempt)
        copied_bytes, seconds = 0, 0.0
        for shard, folder in self._shards:
            if folder is None:
                repository.storage.check_shard(path, shard)  # it is there still
                continue
            began_s = repository.storage.read_clock()
            repository.storage.check_shard(folder, shard)
            with open_flush() as flush:
                try:
                    file = f"{folder}/{shard.file}"
                    repository.write_shard(path, shard.file, file, flush)
                except DataError as error:
                    raise StorageError(str(error)) from None
                flush.check()
            copied_bytes += shard.bytes
            seconds += repository.storage.read_clock() - began_s
        return copied_bytes, seconds

    def commit(self, ranks: Ranks) -> None:
        """Make the save a checkpoint: the shards of all ranks are in the repository."""
        paths = self._run_together(ranks, self._commit_index)
        self._end_commit(paths[0])

    def _commit_index(self) -> str | None:
        """Commit in the first rank, which has the lock, and return the path of the checkpoint."""
        repository, lock = self.target.repository, self.target.lock
        if lock is None or self._index is None:
            return None
        if self.state != "held":
            self.flush.check()
        try:
            return repository.commit(self._attempt_path, self._index, lock).path
        except DataError as error:
            if self.state != "held":
                raise
            raise StorageError(str(error)) from None  # what is held is whole

    def _end_commit(self, path: str) -> None:
        self.path = path
        self.free_memory()
        self.state = "committed"
        if self.target.tiers is not None:
            self.target.tiers.remove(self.step, self.attempt)

    def describe_commit(self, now_s: float) -> CommittedSave:
        """Describe the save just after its commit."""
        size = self._written[self.target.place.rank].entry.bytes
        return CommittedSave(self.step, self.path, size, self.blocked_s, now_s - self.began_s)

    # -- removed -----------------------------------------------------------------------------------

    def remove(self) -> None:
        """Remove everything written of the save; errors are ignored. All ranks call it."""
        if self.target.tiers is not None:
            self.target.tiers.remove(self.step, self.attempt)
        if self.target.lock is not None:  # also what others have written where this rank failed
            repository = self.target.repository
            with contextlib.suppress(PenstockError):
                path = self._attempt_path or repository.start_attempt(self.step, self.attempt)
                repository.abandon(path)
        self.state = "removed"

    # -- transitions -------------------------------------------------------------------------------

    def _run_together(self, ranks: Ranks, work: Callable[[], Any]) -> list[Any]:
        """Run `work` on all ranks and return their results. If it fails on one, all ranks raise,
        and remove a save that is not held."""
        try:
            return [work()] if ranks.gather is None else ranks.run_together(work)
        except BaseException:
            if self.state != "held":
                self.remove()
            raise

    def _get_tiers(self) -> Tiers:
        assert self.target.tiers is not None
        return self.target.tiers
