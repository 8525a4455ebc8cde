"""Saves on their way to the home by the tiers of their hosts: held first, brought there behind.

A save is held once all ranks have synced their shards, on a tier or, where that frees the memory
sooner, in the home already; then the next may begin. It is committed when a thread of its own has
brought what lies on tiers to the home, after all that were held before. What cannot be brought
stays held: the thread of the next save tries again, or a restart does (`recovery`).

All ranks do the same in the same order, whatever their clocks say: each save's thread begins when
the one before has ended, and tries what was held up to its save.
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
from .all_gather import together
from .background import Within, given_up, started
from .flushing import Flush
from .folder import synced
from .manifest import CheckpointIndex, Shard
from .repository import Repository, RepositoryLock
from .saving import Save
from .tier_choice import HOME, Room, TierChoice, WaitingSave, dealt
from .tiers import HeldSave, Tiers, bring

Done = Callable[[str, int], None]
"""Called when a checkpoint is committed, with its path, and the bytes of this rank's shard."""


@dataclass(eq=False)
class _Leaving:
    """A save that is held. place: where this rank's shard lies; index: of the first rank;
    waiting: what this host has of it."""

    number: int
    step: int
    attempt: str
    shard: Shard
    place: int
    index: CheckpointIndex | None
    waiting: WaitingSave
    done: Done
    tried: bool = False


class _Put(NamedTuple):
    """What a rank tells of its shard: where it is now, how long writing took, and which tier
    failed."""

    shard: Sequence[Any]
    shape: str
    place: int
    seconds: float
    failed: int | None


class Relay:
    """The saves of one rank that are on their way. Used by one thread at a time, but for `stop`
    and `adopt`.

    lock:     of the home, in the first rank.
    back:     tells the ranks of what is held; far: of what is brought home. Where these are one
              and the same, a save is not over until it is committed.
    last:     the attempt of the last checkpoint in the home.
    """

    def __init__(
        self,
        tiers: Tiers,
        home: Repository,
        lock: RepositoryLock | None,
        back: Gather,
        far: Gather,
        budget: Budget,
        last: str | None,
    ) -> None:
        self._tiers, self._home, self._lock = tiers, home, lock
        self._back, self._far = back, far
        self._budget, self._last = budget, last
        self._line: list[_Leaving] = []
        self._threads: dict[int, threading.Thread] = {}
        self._failures: dict[int, Exception] = {}
        self._held = self._over = 0  # saves that were held; whose threads have ended
        self._flushes: set[Flush] = set()
        self._stopped = False
        self._choice: TierChoice | None = None

    # -- holding -----------------------------------------------------------------------------------

    def hold(self, save: Save, flush: Flush, done: Callable[[], Done]) -> Exception | None:
        """Returns when the memory of a save is free, on all ranks: it is held. Where this raises,
        nothing of it is left. Returns what went wrong with one before, which is held still.

        flush:  for what is written straight to the home; done: asked when it is held.
        """
        choices, line, over = self._chosen(save)
        self._choice = choices[save.place.rank]

        def write() -> _Put:
            return self._put_down(save, choices[save.place.rank], line, flush)

        index: CheckpointIndex | None = None

        def put_index() -> None:
            nonlocal index
            if save.place.rank == 0:
                flush.check()
                index = save.index([Shard(*e.shard) for e in said], [e.shape for e in said])
                self._tiers.put_index(HeldSave(self._last, index))

        try:
            said = [_Put(*each) for each in together(self._back, save.place, write)]
            together(self._back, save.place, put_index)
        except BaseException as error:
            self._home_failed(error)
            self._tiers.remove(save.step, save.attempt)
            if save.place.rank == 0:
                with contextlib.suppress(PenstockError):
                    self._home.abandon(self._home.begin(save.step, save.attempt))
            raise
        mine = said[save.place.rank]
        waiting = self._measured(said, choices)
        self._held += 1
        self._line.append(
            _Leaving(
                self._held,
                save.step,
                save.attempt,
                Shard(*mine.shard),
                mine.place,
                index,
                waiting,
                done(),
            )
        )
        before = self._threads.get(self._held - 1)
        thread = started(
            "penstock-checkpoint-home", self._bring_all, self._held, before, save.place
        )
        self._threads[self._held] = thread
        if self._back is self._far and save.place.world_size > 1:
            thread.join()
            over = self._held
        return self._failed(over)

    def _chosen(self, save: Save) -> tuple[dict[int, TierChoice], list[int], int]:
        """Where each rank of this host writes; the saves before this one that are on their way; and
        up to which it is known, on all ranks, how they went."""

        def say() -> Any:
            size = len(save.staged.memory)  # the copy does not wait for other ranks
            rooms = self._rooms() if self._tiers.leading else None
            return [self._over, size, rooms]

        said = together(self._back, save.place, say)
        rooms, line, home = said[self._tiers.group[0]][2]
        sizes = [said[rank][1] for rank in self._tiers.group]
        line_now = [WaitingSave(left, tuple(freed)) for _, (left, freed) in line]
        found = dealt(sizes, [Room(*each) for each in rooms], line_now, home)
        return (
            dict(zip(self._tiers.group, found, strict=True)),
            [number for number, _ in line],
            max(each[0] for each in said),
        )

    def _rooms(self) -> Any:
        """What there is to choose by: the tiers, what is on its way, how fast it goes home."""
        tiers = range(len(self._tiers.paths))
        held = [sum(each.waiting.freed_bytes[tier] for each in list(self._line)) for tier in tiers]
        rooms = self._tiers.rooms(held)
        # What could not be brought home goes there again after this save, and not before.
        over = self._over
        line = [(each.number, each.waiting) for each in list(self._line) if each.number > over]
        return rooms, line, self._tiers.rates[HOME]

    def _put_down(self, save: Save, choice: TierChoice, line: list[int], flush: Flush) -> _Put:
        """This rank's shard, where it was chosen; in the home where that fails."""
        pieces, memory, failed = save.pieces(), save.staged.memory, None
        self._until(line[: choice.after])
        if choice.place != HOME:
            began_s = time.perf_counter()
            try:
                folder = self._tiers.begin(choice.place, save.step, save.attempt)
                budget = Budget(direct="off" if self._budget.direct == "off" else "auto")
                with (
                    self._flushing(Flush(budget, shared=False)) as local,
                    synced(folder, save.name) as path,
                ):
                    shard = local.write(path, memory, pieces)
                flush.check()
                seconds = time.perf_counter() - began_s
                return _Put(shard, save.shape(), choice.place, seconds, None)
            except StorageError as error:
                if error.errno == errno.ECANCELED:
                    raise
                self._tiers.failed(choice.place, error)
                failed = choice.place
                self._until(line)
        began_s = time.perf_counter()
        begun = self._home.begin(save.step, save.attempt)
        shard = self._home.write(begun, save.name, memory, pieces, flush)
        flush.check()
        return _Put(shard, save.shape(), HOME, time.perf_counter() - began_s, failed)

    def _measured(self, said: list[_Put], choices: dict[int, TierChoice]) -> WaitingSave:
        """What the ranks of this host wrote, and how fast; and what of it has to go home still."""
        rates, mine = self._tiers.rates, [said[rank] for rank in self._tiers.group]
        rates.saved()
        sizes = []
        for place in (HOME, *range(len(self._tiers.paths))):
            puts = [each for each in mine if each.place == place]
            sizes.append(sum(Shard(*each.shard).bytes for each in puts))
            rates.measured(place, sizes[-1], max((each.seconds for each in puts), default=0.0))
        for each in mine:
            if each.failed is not None:
                rates.failed(each.failed)
        return WaitingSave(sum(sizes[1:]), tuple(sizes[1:]))

    # -- bringing home -----------------------------------------------------------------------------

    def _bring_all(self, number: int, before: threading.Thread | None, place: Place) -> None:
        """The thread of a save: what is held up to it goes home, one after the other."""
        if before is not None:
            before.join()
        for each in [each for each in list(self._line) if each.number <= number]:
            try:
                self._bring(each, place)
                self._line.remove(each)
            except (MissingError, FormatError) as error:  # it is not held any more
                self._failures[number] = error
                self._line.remove(each)
                self._tiers.remove(each.step, each.attempt)
                if place.rank == 0:
                    with contextlib.suppress(PenstockError):
                        self._home.abandon(self._home.begin(each.step, each.attempt))
            except Exception as error:
                self._failures[number] = error
                self._home_failed(error)
                break
        self._over = number

    def _bring(self, leaving: _Leaving, place: Place) -> None:
        path = None
        if leaving.tried:
            path = together(self._far, place, lambda: self._committed(leaving))[0]
        leaving.tried = True
        if path is None:
            path = self._commit(leaving, place)
        self._last = leaving.attempt
        self._tiers.remove(leaving.step, leaving.attempt)
        leaving.done(path, leaving.shard.bytes)

    def _committed(self, leaving: _Leaving) -> str | None:
        """Whether a commit was one, though it raised an error: the path then."""
        if leaving.index is not None:
            with contextlib.suppress(DataError):  # damaged, or not there: it is none then
                last = self._home.entry()
                if self._home.index(last).attempt == leaving.attempt:
                    return last.path
        return None

    def _commit(self, leaving: _Leaving, place: Place) -> str:
        """Together with the other ranks: the path of the checkpoint."""
        home, tiers = self._home, self._tiers
        begun = ""

        def put() -> tuple[int, float]:
            nonlocal begun
            begun = home.begin(leaving.step, leaving.attempt)
            if leaving.place == HOME:
                shards.pieces(home, begun, leaving.shard)  # it is there still
                return 0, 0.0
            began_s = time.perf_counter()
            folder = tiers.folder(leaving.place, leaving.step, leaving.attempt)
            with self._flushing(Flush(self._budget)) as flush:
                bring(home, begun, folder, leaving.shard, flush)
                flush.check()
            return leaving.shard.bytes, time.perf_counter() - began_s

        def commit() -> str | None:
            if self._lock is None or leaving.index is None:
                return None
            try:
                return home.commit(begun, leaving.index, self._lock).path
            except DataError as error:  # of the home: it is held still
                raise StorageError(str(error)) from None

        said = together(self._far, place, put)
        path: str = together(self._far, place, commit)[0]
        put_here = [said[rank] for rank in tiers.group]
        size, seconds = sum(each[0] for each in put_here), max(each[1] for each in put_here)
        tiers.rates.measured(HOME, size, seconds)
        return path

    def _home_failed(self, error: BaseException) -> None:
        """Nothing goes straight there, until something was brought there again, or no tier has
        room."""
        if isinstance(error, StorageError):
            self._tiers.rates.failed(HOME)

    @contextlib.contextmanager
    def _flushing(self, flush: Flush) -> Iterator[Flush]:
        """A flush that `stop` ends, and `adopt` changes."""
        self._flushes.add(flush)
        if self._stopped:
            flush.stop()
        try:
            with flush:
                yield flush
        finally:
            self._flushes.discard(flush)

    # -- waiting -----------------------------------------------------------------------------------

    def settle(self, within: Within) -> Exception | None:
        """Returns when nothing is on its way any more; what went wrong since it was last told."""
        thread = self._threads.get(self._held)
        if thread is not None:
            within.join(thread, next((each.step for each in list(self._line)), 0))
        return self._failed(self._held)

    @property
    def under_way(self) -> bool:
        """Whether something is being brought home."""
        return any(thread.is_alive() for thread in self._threads.values())

    def _until(self, numbers: Sequence[int]) -> None:
        """Wait for the threads of these saves, and of those before."""
        thread = self._threads.get(max(numbers, default=0))
        if thread is not None:
            thread.join()

    def _failed(self, over: int) -> Exception | None:
        """What went wrong up to the thread of a save, which has ended on all ranks or does soon."""
        self._until([over])
        for number in [each for each in self._threads if each < over]:
            del self._threads[number]
        failures = [self._failures.pop(each) for each in list(self._failures) if each <= over]
        return failures[-1] if failures else None

    def adopt(self, budget: Budget) -> None:
        """Another rate towards the home."""
        self._budget = budget
        for flush in list(self._flushes):
            flush.adopt(budget)

    def stop(self) -> None:
        """What is on its way ends soon, or is not waited for; it stays held."""
        self._stopped = True
        for flush in list(self._flushes):
            flush.stop()
        for thread in self._threads.values():
            given_up(thread)

    def go_on(self) -> None:
        """What was stopped has ended, and may be brought home again."""
        self._stopped = False

    # -- what is told ------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """See `Checkpoints.stats`."""
        paths = [*self._tiers.paths, self._home.path]
        rates = self._tiers.rates
        found = {path: rates[place] for place, path in enumerate(paths[:-1])}
        return {
            "held": [each.step for each in list(self._line)],
            "place": None if self._choice is None else paths[self._choice.place],
            "predicted_s": dict(zip(paths, self._choice.predicted_s, strict=True))
            if self._choice is not None
            else {},
            "bytes_per_s": found | {paths[-1]: rates[HOME]},
        }

    def close(self) -> None:
        """Others may use the tiers."""
        self._tiers.close()
