"""Held saves: a job's threads drain them to the repository, and the next job recovers what a killed
job held.

A rank writes its shard to the tier, or straight to the repository, that frees the memory soonest. A
save is held once all ranks have written; then the next save may start. A thread of its own drains
it, after all saves that were held before. If that fails, the save stays held: the thread of the
next save tries again, or the next job does (`recover_held_saves`) before it loads or saves. `save`
draws the states of a save.

All ranks do the same in the same order, whatever their clocks show. The thread of a save starts
when the thread before has ended, and tries all saves that were held up to its own.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..budget import Budget
from ..errors import FormatError, MissingError, StorageError
from .background import JoinDeadline
from .manifest import Attempt, ShardEntry
from .repository import LastAttempt
from .save import Ranks, Save, SaveTarget, WrittenShard
from .shards import Flush
from .storage import CheckpointStorage
from .tiers import (
    REPOSITORY,
    HeldSave,
    LocalTier,
    TierChoice,
    TierRoom,
    Tiers,
    WaitingSave,
    choose_tiers,
    read_held_save,
)


class Drain:
    """The saves of one rank that are held. Used by one thread at a time, except for `stop` and
    `adopt`.

    save_ranks:   exchange texts about saves to be held.
    drain_ranks:  exchange texts about saves to be drained. If the two share a function, a save ends
                  only when it is committed.
    last:         the attempt of the last checkpoint in the repository.
    on_commit:    called after each commit.
    """

    def __init__(
        self,
        tiers: Tiers,
        repository_path: str,
        save_ranks: Ranks,
        drain_ranks: Ranks,
        budget: Budget,
        last: str | None,
        on_commit: Callable[[Save], None],
    ) -> None:
        self._tiers, self._repository_path = tiers, repository_path
        self._save_ranks, self._drain_ranks = save_ranks, drain_ranks
        self._budget, self._last, self._on_commit = budget, last, on_commit
        self._queue: list[tuple[Save, WaitingSave]] = []
        self._tasks: dict[int, Any] = {}
        """Tasks of `StartDrain` by number of their save; their errors are of any save up to it."""
        self._newest = self._ended = 0  # numbers: the last save held, the last whose thread ended
        self._flushes: set[Flush] = set()
        self._stopped = 0  # the last save whose threads are stopped
        self._choice: TierChoice | None = None

    # -- holding -----------------------------------------------------------------------------------

    def hold(self, save: Save) -> Exception | None:
        """Return when the memory of a save is free on all ranks: the save is held. If this raises,
        nothing of the save stays. Returns the error of an earlier save that is still held."""
        choices, line, ended = self._choose_places(save)
        self._choice = choice = choices[self._save_ranks.place.rank]
        try:
            written = save.write(self._save_ranks, lambda: self._write_shard(save, choice, line))
            save.hold(self._save_ranks, self._last)
        except BaseException as error:
            self._record_repository_failure(error)
            raise
        self._queue.append((save, self._record_measurements(written)))
        before, self._newest = self._tasks.get(self._newest), save.number
        self._tasks[save.number] = self._tiers.storage.start_thread(
            "penstock-checkpoint-drain", lambda: self._drain_up_to(save.number, before)
        )
        if self._save_ranks.gather is self._drain_ranks.gather is not None:
            ended = save.number
        failures: list[Exception] = []
        self._tell_failures(ended, failures.append)
        return failures[-1] if failures else None

    def _choose_places(self, save: Save) -> tuple[dict[int, TierChoice], list[int], int]:
        """Choose where each rank of this host writes. Returns the choices, the saves before this
        one that are on their way, and the number of the save up to which all ranks know the
        outcomes."""

        def describe() -> Any:
            size = len(save.staged.memory)  # the copy does not wait for other ranks
            room_rows = self._describe_choices() if self._tiers.leading else None
            return [self._ended, size, room_rows]

        rank_rows = self._save_ranks.run_together(describe)
        room_rows, line, repository_bytes_per_s = rank_rows[self._tiers.group[0]][2]
        sizes = [rank_rows[rank][1] for rank in self._tiers.group]
        line_now = [WaitingSave(left_bytes, tuple(freed)) for _, (left_bytes, freed) in line]
        choices = choose_tiers(
            sizes, [TierRoom(*row) for row in room_rows], line_now, repository_bytes_per_s
        )
        return (
            dict(zip(self._tiers.group, choices, strict=True)),
            [number for number, _ in line],
            max(row[0] for row in rank_rows),
        )

    def _describe_choices(self) -> Any:
        """Describe the input of the choice: the tiers, the saves on their way, and the rate to the
        repository."""
        tiers = range(len(self._tiers.paths))
        queue = list(self._queue)
        held_bytes = [sum(waiting.freed_bytes[tier] for _, waiting in queue) for tier in tiers]
        rooms = self._tiers.measure_rooms(held_bytes)
        # A save that could not be drained is tried again after this save, and not before.
        ended = self._ended
        line = [(save.number, waiting) for save, waiting in queue if save.number > ended]
        return rooms, line, self._tiers.rates[REPOSITORY]

    def _write_shard(self, save: Save, choice: TierChoice, line: list[int]) -> WrittenShard:
        """Write this rank's shard to the chosen place; to the repository if that fails."""
        self._join_saves(line[: choice.after])
        place, failed = choice.place, None
        clock = self._tiers.storage.read_clock
        began_s = clock()
        budget = Budget(direct="off" if self._budget.direct == "off" else "auto")
        if place != REPOSITORY:
            try:
                number, flush = save.number, Flush(budget, shared=False)
                with self._open_flush(number, flush):
                    return save.write_shard(place, flush)._replace(seconds=clock() - began_s)
            except StorageError as error:
                if error.errno == errno.ECANCELED:
                    raise
                self._tiers.record_failure(place, error)
            self._join_saves(line)
            failed, began_s = place, clock()
        return save.write_shard()._replace(seconds=clock() - began_s, failed=failed)

    def _record_measurements(self, written: list[WrittenShard]) -> WaitingSave:
        """Record the bytes that the ranks of this host wrote, and their rates. Returns the bytes
        that still have to be drained."""
        rates, on_host = self._tiers.rates, [written[rank] for rank in self._tiers.group]
        rates.record_save()
        sizes = []
        for place in (REPOSITORY, *range(len(self._tiers.paths))):
            at_place = [shard for shard in on_host if shard.tier == place]
            sizes.append(sum(shard.entry.bytes for shard in at_place))
            seconds = max((shard.seconds for shard in at_place), default=0.0)
            rates.record_measurement(place, sizes[-1], seconds)
        for shard in on_host:
            if shard.failed is not None:
                rates.record_failure(shard.failed)
        return WaitingSave(sum(sizes[1:]), tuple(sizes[1:]))

    # -- draining ----------------------------------------------------------------------------------

    def _drain_up_to(self, number: int, before: Any) -> Exception | None:
        """Drain all saves that are held up to a number, one after the other, in the task of a save.
        Returns the last error. before: the task of the save before."""
        failure: Exception | None = None
        if before is not None:
            before.join()
        for save, waiting in [pair for pair in list(self._queue) if pair[0].number <= number]:
            try:
                self._drain_save(save, number)
            except (MissingError, FormatError) as error:  # it is not held any more
                failure = error
                save.remove()
            except Exception as error:
                failure = error
                self._record_repository_failure(error)
                break
            self._queue.remove((save, waiting))
        self._ended = number
        return failure

    def _drain_save(self, save: Save, number: int) -> None:
        rows = save.drain(self._drain_ranks, lambda: self._open_flush(number, Flush(self._budget)))
        self._last = save.attempt
        if rows:
            host_rows = [rows[rank] for rank in self._tiers.group]
            size, seconds = sum(row[0] for row in host_rows), max(row[1] for row in host_rows)
            self._tiers.rates.record_measurement(REPOSITORY, size, seconds)
        self._on_commit(save)

    def _record_repository_failure(self, error: BaseException) -> None:
        """Write no shard straight to the repository until a save was drained to it, or no tier has
        room."""
        if isinstance(error, StorageError):
            self._tiers.rates.record_failure(REPOSITORY)

    @contextlib.contextmanager
    def _open_flush(self, number: int, flush: Flush) -> Iterator[Flush]:
        """Open a flush in the thread of a save, for `stop` to end and `adopt` to change."""
        self._flushes.add(flush)
        if number <= self._stopped:
            flush.stop()
        try:
            with flush:
                yield flush
        finally:
            self._flushes.discard(flush)

    # -- waiting -----------------------------------------------------------------------------------

    def wait(self, note: Callable[[Exception], None], within: JoinDeadline | None = None) -> None:
        """Wait until no save is on its way; StalledError if it takes too long. note: takes each
        error since the last call."""
        task = self._tasks.get(self._newest)
        if task is not None and within is not None:
            within.join(task, next((save.step for save, _ in list(self._queue)), 0))
        self._tell_failures(self._newest, note)

    @property
    def under_way(self) -> bool:
        """True if a save is being drained."""
        return any(task.is_alive() for task in list(self._tasks.values()))

    def _join_saves(self, numbers: Sequence[int]) -> None:
        """Wait for the tasks of these saves, and of the saves before."""
        task = self._tasks.get(max(numbers, default=0))
        if task is not None:
            task.join()

    def _tell_failures(self, over: int, note: Callable[[Exception], None]) -> None:
        """Pass on the errors of the threads up to a save; these have ended on all ranks or will
        soon."""
        tasks = [(number, task) for number, task in self._tasks.items() if number <= over]
        for number, task in tasks:
            task.join()
            if task.error is not None:
                note(task.error)  # Ctrl-C after this has it told twice, and not lost
                task.error = None
            if number < over:
                self._tasks.pop(number, None)

    def adopt(self, budget: Budget) -> None:
        """Change the rate towards the repository."""
        self._budget = budget
        for flush in list(self._flushes):
            flush.adopt(budget)

    def stop(self, number: int) -> None:
        """End the threads of the saves up to a number soon, without waiting for them; the saves
        stay held until the thread of a later save tries again."""
        self._stopped = number
        for flush in list(self._flushes):
            flush.stop()
        for task in list(self._tasks.values()):
            task.give_up()

    # -- statistics --------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Report the use of tiers: see `Checkpoints.stats`."""
        paths = [*self._tiers.paths, self._repository_path]
        rates = self._tiers.rates
        bytes_per_s = {path: rates[place] for place, path in enumerate(paths[:-1])}
        return {
            "held": [save.step for save, _ in list(self._queue)],
            "place": None if self._choice is None else paths[self._choice.place],
            "predicted_s": dict(zip(paths, self._choice.predicted_s, strict=True))
            if self._choice is not None
            else {},
            "bytes_per_s": bytes_per_s | {paths[-1]: rates[REPOSITORY]},
        }

    def close(self) -> None:
        """Let others use the tiers."""
        self._tiers.close()


# -- recovery --------------------------------------------------------------------------------------


def open_tiers(
    local: Sequence[LocalTier],
    target: SaveTarget,
    ranks: Ranks,
    writer: bytes,
    budget: Budget,
    storage: CheckpointStorage | None = None,
) -> tuple[Tiers, str | None]:
    """Lock the tiers, and commit the saves held on them. Returns the tiers, now empty, and the
    attempt of the last checkpoint."""
    place, together = ranks.place, ranks.run_together
    tiers = Tiers(local, target.repository.path, place.rank, together, writer, storage)
    try:
        return tiers, recover_held_saves(tiers, target, ranks, budget)
    except BaseException:
        tiers.close()
        raise


def recover_held_saves(
    tiers: Tiers, target: SaveTarget, ranks: Ranks, budget: Budget
) -> str | None:
    """Commit the saves that all hosts together hold, in the order in which they were saved, and
    remove the rest, also the leftovers in the repository. All ranks call it. Returns the attempt of
    the last checkpoint in the repository; None if there is none.

    A held save is committed only if nothing else was committed since. UsageError if another job has
    taken the repository over: then the tiers are left as they are. StorageError if the repository
    cannot be written, or it cannot be told what was committed last: the saves stay held then.
    """
    last, newest, held_saves, folders = _find_held_saves(tiers, target, ranks)
    for attempt in sorted(held_saves, key=Attempt.parse):
        held_save = held_saves[attempt]
        if _is_committed(attempt, last):
            continue
        # The next after the last that was committed, or a later one of the same job, held while the
        # saves between were still on their way.
        if not (newest or last == held_save.after or _is_committed(last, attempt)):
            why = "another checkpoint was committed since"
        elif _commit_held_save(held_save, folders[attempt], target, ranks, budget):
            last, newest = attempt, False
            continue
        else:
            why = "shards of it are missing: were they on a host that this job does not have?"
        if target.place.rank == 0:
            step = held_save.index.step
            text = f"step {step} was held on tiers and is not committed: {why}"
            target.repository.storage.warn(text)

    def clear() -> None:
        tiers.clear()
        if target.lock is not None:
            target.repository.delete_leftovers(target.lock)

    ranks.run_together(clear)
    return last


def _find_held_saves(
    tiers: Tiers, target: SaveTarget, ranks: Ranks
) -> tuple[str | None, bool, dict[str, HeldSave], dict[str, dict[ShardEntry, tuple[int, str]]]]:
    """Return the last attempt in the repository, True if its index is lost, and by attempt the
    saves on tiers, and of each shard there the rank that has it, and its folder. StorageError if a
    save is held, and that index is damaged on its way."""

    def look() -> Any:
        if target.lock is not None:
            target.lock.check()  # else what is held may be that of the job after us
        last = LastAttempt()
        repository = target.repository
        if target.place.rank == 0 and repository.entries():
            repository.sync_names()  # what they hold is removed from the tiers
            last = repository.find_last_attempt()
        described = []
        for folder, attempt in tiers.list_held_folders():
            held_save = read_held_save(tiers.storage, folder)
            document = None if held_save is None else held_save.encode()
            shards = tiers.storage.find_whole_shards(folder)
            described.append([attempt, folder, shards, document])
        return [list(last), described]

    rank_rows = ranks.run_together(look)
    held_saves: dict[str, HeldSave] = {}
    folders: dict[str, dict[ShardEntry, tuple[int, str]]] = {}
    for rank, (_, described) in enumerate(rank_rows):
        for attempt, folder, rows, document in described:
            shard_folders = folders.setdefault(attempt, {})
            for row in rows:
                shard_folders.setdefault(ShardEntry(*row), (rank, folder))
            if document is not None:
                held_saves[attempt] = HeldSave.decode(document, folder)
    last = LastAttempt(*rank_rows[0][0])
    if last.damage and held_saves:
        raise StorageError(f"{last.damage}, and start the job again: what is held stays held")
    return last.attempt, last.is_lost, held_saves, folders


def _commit_held_save(
    held_save: HeldSave,
    folders: dict[ShardEntry, tuple[int, str]],
    target: SaveTarget,
    ranks: Ranks,
    budget: Budget,
) -> bool:
    """Commit a save whose shards are all there; return False if some are missing."""
    own_shards: list[tuple[ShardEntry, str | None]] = []
    for shard in held_save.index.shards:
        rank, folder = folders.get(shard, (0, None))  # it went straight there, or it is lost
        if rank == target.place.rank:
            own_shards.append((shard, folder))
    save = Save.restore(target, held_save.index, own_shards, Flush(budget))
    try:
        save.drain(ranks, lambda: Flush(budget))
    except (MissingError, FormatError):
        save.remove()
        return False
    return True


def _is_committed(attempt: str | None, last: str | None) -> bool:
    """Return True if a save is the last that was committed, or an earlier one of the same job."""
    if attempt is None or last is None:
        return False
    save, newest = Attempt.parse(attempt), Attempt.parse(last)
    return save.session == newest.session and save.number <= newest.number
