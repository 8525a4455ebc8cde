"""Saves that are held on the tiers of their hosts, and the threads that drain them to the
repository.

    staged --> written --> held --> committed
                  |          |
                  |          +--> held: the drain failed; the thread of the next save tries again,
                  |               or a restart does (`recovery`)
                  +--> removed: a rank could not write, or the save was abandoned

A save is *written* by a rank when its shard is synced, on a tier, or in the repository already if
that frees the memory sooner. It is *held* once all ranks have written; then the next save may
begin. It is *committed* when a thread of its own has copied the shards on tiers to the repository,
after all saves that were held before.

All ranks do the same in the same order, whatever their clocks show. The thread of a save begins
when the thread before has ended, and tries all saves that were held up to its own.
"""

from __future__ import annotations

import contextlib
import errno
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..budget import Budget
from ..cache import Gather
from ..errors import DataError, FormatError, MissingError, PenstockError, StorageError
from ..topology import Place
from . import shards
from .all_gather import run_together
from .background import JoinDeadline, give_up_thread, start_thread
from .flushing import Flush
from .folder_repository import create_synced
from .manifest import CheckpointIndex, ShardEntry
from .repository import Repository, RepositoryLock
from .saving import Save
from .tier_choice import REPOSITORY, TierChoice, TierRoom, WaitingSave, choose_tiers
from .tiers import HeldSave, Tiers, copy_to_repository

OnCommit = Callable[[str, int], None]
"""Function that is called when a checkpoint is committed, with its path and the bytes of this
rank's shard."""


@dataclass(eq=False)
class _DrainingSave:
    """A save that is held.

    place:    where this rank's shard lies.
    index:    the index; in the first rank only.
    waiting:  the bytes of the save that this host has.
    """

    number: int
    step: int
    attempt: str
    shard: ShardEntry
    place: int
    index: CheckpointIndex | None
    waiting: WaitingSave
    on_commit: OnCommit
    tried: bool = False


class _WrittenShard(NamedTuple):
    """The report of a rank on its shard: where it is now, how long writing took, and which tier
    failed."""

    shard: Sequence[Any]
    shape: str
    place: int
    seconds: float
    failed: int | None


class Drain:
    """The saves of one rank that are on their way. Used by one thread at a time, except for `stop`
    and `adopt`.

    lock:          of the repository; in the first rank only.
    save_gather:   exchanges texts about saves to be held.
    drain_gather:  exchanges texts about saves to be drained. If the two are the same function, a
                   save ends only when it is committed.
    last:          the attempt of the last checkpoint in the repository.
    """

    def __init__(
        self,
        tiers: Tiers,
        repository: Repository,
        lock: RepositoryLock | None,
        save_gather: Gather,
        drain_gather: Gather,
        budget: Budget,
        last: str | None,
    ) -> None:
        self._tiers, self._repository, self._lock = tiers, repository, lock
        self._save_gather, self._drain_gather = save_gather, drain_gather
        self._budget, self._last = budget, last
        self._queue: list[_DrainingSave] = []
        self._threads: dict[int, threading.Thread] = {}
        self._failures: dict[int, Exception] = {}
        self._held_count = self._ended_count = 0  # saves that were held; whose threads have ended
        self._flushes: set[Flush] = set()
        self._stopped = False
        self._choice: TierChoice | None = None

    # -- holding -----------------------------------------------------------------------------------

    def hold(
        self, save: Save, flush: Flush, describe_commit: Callable[[], OnCommit]
    ) -> Exception | None:
        """Return when the memory of a save is free on all ranks: the save is held. If this raises,
        nothing of the save is left. Returns the error of an earlier save, which is held still.

        flush:            for shards that are written straight to the repository.
        describe_commit:  called when the save is held, for the function to call at its commit.
        """
        choices, line, ended_count = self._choose_places(save)
        self._choice = choices[save.place.rank]

        def write() -> _WrittenShard:
            return self._write_shard(save, choices[save.place.rank], line, flush)

        index: CheckpointIndex | None = None

        def put_index() -> None:
            nonlocal index
            if save.place.rank == 0:
                flush.check()
                index = save.build_index(
                    [ShardEntry(*shard.shard) for shard in written],
                    [shard.shape for shard in written],
                )
                self._tiers.put_index(HeldSave(self._last, index))

        try:
            written = [
                _WrittenShard(*row) for row in run_together(self._save_gather, save.place, write)
            ]
            run_together(self._save_gather, save.place, put_index)
        except BaseException as error:
            self._record_repository_failure(error)
            self._tiers.remove(save.step, save.attempt)
            if save.place.rank == 0:
                with contextlib.suppress(PenstockError):
                    self._repository.abandon(self._repository.begin(save.step, save.attempt))
            raise
        own = written[save.place.rank]
        waiting = self._record_measurements(written, choices)
        self._held_count += 1
        self._queue.append(
            _DrainingSave(
                self._held_count,
                save.step,
                save.attempt,
                ShardEntry(*own.shard),
                own.place,
                index,
                waiting,
                describe_commit(),
            )
        )
        before = self._threads.get(self._held_count - 1)
        thread = start_thread(
            "penstock-checkpoint-drain", self._drain_up_to, self._held_count, before, save.place
        )
        self._threads[self._held_count] = thread
        if self._save_gather is self._drain_gather and save.place.world_size > 1:
            thread.join()
            ended_count = self._held_count
        return self._take_failure(ended_count)

    def _choose_places(self, save: Save) -> tuple[dict[int, TierChoice], list[int], int]:
        """Choose where each rank of this host writes. Returns the choices, the saves before this
        one that are on their way, and the number of the save up to which all ranks know the
        outcomes."""

        def describe() -> Any:
            size = len(save.staged.memory)  # the copy does not wait for other ranks
            room_rows = self._describe_choices() if self._tiers.leading else None
            return [self._ended_count, size, room_rows]

        rank_rows = run_together(self._save_gather, save.place, describe)
        room_rows, line, repository_bytes_per_s = rank_rows[self._tiers.group[0]][2]
        sizes = [rank_rows[rank][1] for rank in self._tiers.group]
        line_now = [WaitingSave(left, tuple(freed)) for _, (left, freed) in line]
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
        held = [sum(save.waiting.freed_bytes[tier] for save in list(self._queue)) for tier in tiers]
        rooms = self._tiers.measure_rooms(held)
        # A save that could not be drained is tried again after this save, and not before.
        ended_count = self._ended_count
        line = [
            (save.number, save.waiting) for save in list(self._queue) if save.number > ended_count
        ]
        return rooms, line, self._tiers.rates[REPOSITORY]

    def _write_shard(
        self, save: Save, choice: TierChoice, line: list[int], flush: Flush
    ) -> _WrittenShard:
        """Write this rank's shard to the chosen place; to the repository if that fails."""
        pieces, memory, failed = save.list_pieces(), save.staged.memory, None
        self._join_saves(line[: choice.after])
        if choice.place != REPOSITORY:
            began_s = time.perf_counter()
            try:
                folder = self._tiers.begin(choice.place, save.step, save.attempt)
                budget = Budget(direct="off" if self._budget.direct == "off" else "auto")
                with (
                    self._open_flush(Flush(budget, shared=False)) as local,
                    create_synced(folder, save.name) as path,
                ):
                    shard = local.write(path, memory, pieces)
                flush.check()
                seconds = time.perf_counter() - began_s
                return _WrittenShard(shard, save.hash_shape(), choice.place, seconds, None)
            except StorageError as error:
                if error.errno == errno.ECANCELED:
                    raise
                self._tiers.record_failure(choice.place, error)
                failed = choice.place
                self._join_saves(line)
        began_s = time.perf_counter()
        attempt_path = self._repository.begin(save.step, save.attempt)
        shard = self._repository.write(attempt_path, save.name, memory, pieces, flush)
        flush.check()
        return _WrittenShard(
            shard, save.hash_shape(), REPOSITORY, time.perf_counter() - began_s, failed
        )

    def _record_measurements(
        self, written: list[_WrittenShard], choices: dict[int, TierChoice]
    ) -> WaitingSave:
        """Record the bytes that the ranks of this host wrote, and their rates. Returns the bytes
        that still have to be drained."""
        rates, on_host = self._tiers.rates, [written[rank] for rank in self._tiers.group]
        rates.record_save()
        sizes = []
        for place in (REPOSITORY, *range(len(self._tiers.paths))):
            at_place = [shard for shard in on_host if shard.place == place]
            sizes.append(sum(ShardEntry(*shard.shard).bytes for shard in at_place))
            rates.record_measurement(
                place, sizes[-1], max((shard.seconds for shard in at_place), default=0.0)
            )
        for shard in on_host:
            if shard.failed is not None:
                rates.record_failure(shard.failed)
        return WaitingSave(sum(sizes[1:]), tuple(sizes[1:]))

    # -- draining ----------------------------------------------------------------------------------

    def _drain_up_to(self, number: int, before: threading.Thread | None, place: Place) -> None:
        """Drain all saves that are held up to a number, one after the other, in the thread of a
        save."""
        if before is not None:
            before.join()
        for save in [save for save in list(self._queue) if save.number <= number]:
            try:
                self._drain_save(save, place)
                self._queue.remove(save)
            except (MissingError, FormatError) as error:  # it is not held any more
                self._failures[number] = error
                self._queue.remove(save)
                self._tiers.remove(save.step, save.attempt)
                if place.rank == 0:
                    with contextlib.suppress(PenstockError):
                        self._repository.abandon(self._repository.begin(save.step, save.attempt))
            except Exception as error:
                self._failures[number] = error
                self._record_repository_failure(error)
                break
        self._ended_count = number

    def _drain_save(self, save: _DrainingSave, place: Place) -> None:
        path = None
        if save.tried:
            path = run_together(self._drain_gather, place, lambda: self._find_commit(save))[0]
        save.tried = True
        if path is None:
            path = self._commit(save, place)
        self._last = save.attempt
        self._tiers.remove(save.step, save.attempt)
        save.on_commit(path, save.shard.bytes)

    def _find_commit(self, save: _DrainingSave) -> str | None:
        """Find the path of a save that was committed although its commit raised an error; None if
        it was not."""
        if save.index is not None:
            with contextlib.suppress(DataError):  # damaged, or not there: it is none then
                last = self._repository.entry()
                if self._repository.index(last).attempt == save.attempt:
                    return last.path
        return None

    def _commit(self, save: _DrainingSave, place: Place) -> str:
        """Copy the shards and commit, together with the other ranks. Returns the path of the
        checkpoint."""
        repository, tiers = self._repository, self._tiers
        attempt_path = ""

        def put() -> tuple[int, float]:
            nonlocal attempt_path
            attempt_path = repository.begin(save.step, save.attempt)
            if save.place == REPOSITORY:
                shards.read_shard_pieces(repository, attempt_path, save.shard)  # it is there still
                return 0, 0.0
            began_s = time.perf_counter()
            folder = tiers.get_folder(save.place, save.step, save.attempt)
            with self._open_flush(Flush(self._budget)) as flush:
                copy_to_repository(repository, attempt_path, folder, save.shard, flush)
                flush.check()
            return save.shard.bytes, time.perf_counter() - began_s

        def commit() -> str | None:
            if self._lock is None or save.index is None:
                return None
            try:
                return repository.commit(attempt_path, save.index, self._lock).path
            except DataError as error:  # of the repository: the save is held still
                raise StorageError(str(error)) from None

        rows = run_together(self._drain_gather, place, put)
        path: str = run_together(self._drain_gather, place, commit)[0]
        host_rows = [rows[rank] for rank in tiers.group]
        size, seconds = sum(row[0] for row in host_rows), max(row[1] for row in host_rows)
        tiers.rates.record_measurement(REPOSITORY, size, seconds)
        return path

    def _record_repository_failure(self, error: BaseException) -> None:
        """Stop shards from being written straight to the repository, until a save was drained to it
        again, or no tier has room."""
        if isinstance(error, StorageError):
            self._tiers.rates.record_failure(REPOSITORY)

    @contextlib.contextmanager
    def _open_flush(self, flush: Flush) -> Iterator[Flush]:
        """Give a flush that `stop` ends, and `adopt` changes."""
        self._flushes.add(flush)
        if self._stopped:
            flush.stop()
        try:
            with flush:
                yield flush
        finally:
            self._flushes.discard(flush)

    # -- waiting -----------------------------------------------------------------------------------

    def settle(self, within: JoinDeadline) -> Exception | None:
        """Return when no save is on its way any more: the error since the last call, or None."""
        thread = self._threads.get(self._held_count)
        if thread is not None:
            within.join(thread, next((save.step for save in list(self._queue)), 0))
        return self._take_failure(self._held_count)

    @property
    def under_way(self) -> bool:
        """True if a save is being drained."""
        return any(thread.is_alive() for thread in self._threads.values())

    def _join_saves(self, numbers: Sequence[int]) -> None:
        """Wait for the threads of these saves, and of the saves before."""
        thread = self._threads.get(max(numbers, default=0))
        if thread is not None:
            thread.join()

    def _take_failure(self, over: int) -> Exception | None:
        """Return the last error up to the thread of a save, which has ended on all ranks or does
        soon."""
        self._join_saves([over])
        for number in [number for number in self._threads if number < over]:
            del self._threads[number]
        failures = [self._failures.pop(number) for number in list(self._failures) if number <= over]
        return failures[-1] if failures else None

    def adopt(self, budget: Budget) -> None:
        """Change the rate towards the repository."""
        self._budget = budget
        for flush in list(self._flushes):
            flush.adopt(budget)

    def stop(self) -> None:
        """End the saves on their way soon, or do not wait for them; they stay held."""
        self._stopped = True
        for flush in list(self._flushes):
            flush.stop()
        for thread in self._threads.values():
            give_up_thread(thread)

    def resume(self) -> None:
        """Let saves be drained again, after the saves that were stopped have ended."""
        self._stopped = False

    # -- statistics --------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Report the use of tiers: see `Checkpoints.stats`."""
        paths = [*self._tiers.paths, self._repository.path]
        rates = self._tiers.rates
        bytes_per_s = {path: rates[place] for place, path in enumerate(paths[:-1])}
        return {
            "held": [save.step for save in list(self._queue)],
            "place": None if self._choice is None else paths[self._choice.place],
            "predicted_s": dict(zip(paths, self._choice.predicted_s, strict=True))
            if self._choice is not None
            else {},
            "bytes_per_s": bytes_per_s | {paths[-1]: rates[REPOSITORY]},
        }

    def close(self) -> None:
        """Let others use the tiers."""
        self._tiers.close()
