"""The storage queue: whose bytes move next among all reads and writes of a process.

Whoever is about to move bytes puts a request into the queue and waits for its turn; then it moves
them itself, in its own thread, and ends the turn. `queue.RequestQueue` decides: by purpose, with
aging, and in the order of the requests where a write and another request have bytes in common. This
module adds locks, a clock, the rate, and what each purpose got.

The life of a request: put -> waiting -> its turn (bytes are moving) -> ended; or put -> waiting ->
given up. A turn that nobody ends (its owner was dropped) ends with its owner. If an interrupt comes
inside a change, the queue begins anew: what has its turn goes on, and what waits is put again.

`PROCESS_QUEUE` is the one of this process. It has no bound until a budget gives one
(`Budget.process_bytes_per_s`), and then nothing waits except for the order of bytes in common.
"""

from __future__ import annotations

import errno
import itertools
import math
import os
import threading
import weakref
from collections import deque
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import NamedTuple, Self

from ..clock import Clock, SystemClock
from ..errors import PenstockError, UsageError
from .native import make_tallies
from .queue import (
    PATIENCE,
    Kind,
    Patience,
    Purpose,
    RateAccount,
    Request,
    RequestQueue,
    RoundRobin,
    Target,
    Unit,
)
from .threads import WakeUp

_WHOLE = 1 << 62
_WAIT_NS_MAX = 100_000_000
"""Longest sleep: a turn whose owner was dropped is noticed then."""
_SHARED = 0
"""The only target of the queue: storage that others use, too."""
_system_clock = SystemClock()


class PurposeTotals(NamedTuple):
    """Totals of one purpose.

    read_bytes:     bytes of the reads that engines were given.
    written_bytes:  bytes that were written.
    waited_ns:      time between requests and their turns.
    """

    read_bytes: int = 0
    written_bytes: int = 0
    waited_ns: int = 0


@dataclass(slots=True, eq=False)
class _Place:
    """A request in the queue. unit: None until its turn has come, at `began_ns`. is_lost: the queue
    began anew, and `again` is its next place, once it has one."""

    request: Request
    unit: Unit | None = None
    began_ns: int = 0
    is_over: bool = False
    is_lost: bool = False
    again: _Place | None = None
    news: WakeUp = field(default_factory=WakeUp)


class Turn:
    """The turn of one request. Methods may be called from any thread. A turn that is dropped ends.

    As a context it waits for the turn and ends it; OSError, ECANCELED, if it was given up.
    """

    def __init__(self, queue: StorageQueue, place: _Place) -> None:
        self._queue, self._place = queue, place

    @property
    def number(self) -> int | None:
        """Number of the turn, in the order in which turns come; None until it has come."""
        self._queue.advance()
        self._follow()
        return None if self._place.unit is None else self._place.unit.number

    def is_due(self) -> bool:
        """True if the bytes may move now: the turn has come and has not ended."""
        return self.number is not None and not self._place.is_over

    def wait(self, timeout_ns: int | None = None) -> bool:
        """Wait for the turn; False if it was given up or the time is over."""
        while True:
            has_come = self._queue.wait_for_turn(self._place, timeout_ns)
            if not self._follow():
                return has_come

    def end(self, moved_bytes: int | None = None) -> None:
        """End the turn, or give it up if it has not come. May be called again.

        moved_bytes:  bytes that moved, for the totals; all of them by default.
        """
        self._queue.end_turn(self._place, moved_bytes)

    def give_up(self) -> None:
        """End the turn unless it has come: who waits for it is told."""
        self._queue.end_turn(self._place, 0, is_waiting=True)

    def _follow(self) -> bool:
        """Put the request again if the queue began anew; True if it did."""
        if not self._place.is_lost:
            return False
        self._place = self._queue.put_again(self._place)
        return True

    def __del__(self) -> None:
        if not self._place.is_over:
            self._queue.drop(self._place)

    def __enter__(self) -> Self:
        try:
            if not self.wait():
                raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))
        except BaseException:
            self.end(0)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end(0 if error is not None else None)


class StorageQueue:
    """The requests of a process that wait for storage, reads and writes together.

    is_bounded:  True from the first bound on until the last one is taken back: requests may have to
                 wait, and are put. Else they are only counted.
    read_tallies:  by purpose, the bytes of reads that native engines were given.

    Guarantees, besides those of `queue.RequestQueue`: at most `inflight_bytes_max` bytes have their
    turn at a time (a larger request goes alone), and shared storage moves no more than the lowest
    limit, on average over a tenth of a second and the last request. A request goes whole: a long
    transfer is put in parts, so that urgent requests come between.
    """

    def __init__(
        self,
        inflight_bytes_max: int | None = None,
        *,
        patience: Patience = PATIENCE,
        clock: Clock = _system_clock,
    ) -> None:
        if inflight_bytes_max is not None and inflight_bytes_max < 1:
            raise UsageError(f"inflight_bytes_max is {inflight_bytes_max}: use 1 or above")
        self._inflight_bytes_max, self._patience = inflight_bytes_max, patience
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        """Forget everything. A forked process does this: its parent's requests are not its own."""
        self._core = self._make_core()
        self._account = RateAccount()
        self._limits: weakref.WeakKeyDictionary[object, float] = weakref.WeakKeyDictionary()
        self._places: dict[int, _Place] = {}  # by request
        self._parts: dict[int, int] = {}  # of units: requests that have not ended
        self._dropped: deque[_Place] = deque()
        self._numbers = itertools.count()
        self.read_tallies = make_tallies()
        self._totals: dict[Purpose, list[int]] = {}  # the fields of `PurposeTotals`
        self.is_bounded = self._inflight_bytes_max is not None
        self._lock = threading.RLock()  # guards all of the above

    # -- bounds ------------------------------------------------------------------------------------

    def limit(self, holder: object, bytes_per_s: float | None) -> None:
        """Set the rate that a holder allows this process, as long as the holder lives. None takes
        it back."""
        with self._lock:
            if bytes_per_s is None or bytes_per_s == math.inf:
                self._limits.pop(holder, None)
            else:
                self._limits[holder] = bytes_per_s
            self.is_bounded = bool(self._limits) or self._inflight_bytes_max is not None
            self._advance()

    @property
    def bytes_per_s(self) -> float | None:
        """The lowest rate that a holder allows; None if there is none."""
        with self._lock:
            return min(self._limits.values(), default=None)

    # -- requests ----------------------------------------------------------------------------------

    def put(
        self,
        kind: Kind,
        purpose: Purpose,
        length: int,
        *,
        file: int | None = None,
        offset: int = 0,
    ) -> Turn:
        """Put a request and return its turn, which has not come unless `is_due` says so.

        file:       number by which requests for the same bytes know each other (`number_file`);
                    None if no other request has bytes in common with this one.

        UsageError for an argument that `Request` refuses.
        """
        with self._lock:
            number = next(self._numbers)
            key = 2 * number + 1 if file is None else 2 * file
            now_ns = self._clock.now_ns()
            request = Request(number, kind, purpose, key, offset, length, now_ns)
            place = _Place(request)
            turn = Turn(self, place)
            self._put(place)
        return turn

    def put_again(self, place: _Place) -> _Place:
        """Put a request again that waited when the queue began anew, for `Turn`."""
        with self._lock:
            if place.again is None:
                request = replace(
                    place.request, id=next(self._numbers), arrived_ns=self._clock.now_ns()
                )
                again = _Place(request)
                self._put(again)
                place.again = again
            return place.again

    def _put(self, place: _Place) -> None:
        """Put a place into the queue. Called with the lock held."""
        try:
            self._core.put(place.request)
            self._places[place.request.id] = place
        except PenstockError:  # nothing was changed
            raise
        except BaseException:
            self._begin_anew()
            raise
        self._advance()

    def count(self, kind: Kind, purpose: Purpose, moved_bytes: int) -> None:
        """Count a request that did not have to wait: nothing is bounded, or it is of a disk of this
        host alone, which no rate is about."""
        with self._lock:
            self._count(kind, purpose, moved_bytes, 0)

    def drop(self, place: _Place) -> None:
        """End a turn whose owner is gone, soon. Takes no lock: the garbage collector calls it."""
        self._dropped.append(place)

    def totals(self) -> dict[Purpose, PurposeTotals]:
        """Return what each purpose got so far."""
        with self._lock:
            totals = {purpose: PurposeTotals(*found) for purpose, found in self._totals.items()}
        for purpose, tally in self.read_tallies.items():
            if tally[0]:
                found = totals.get(purpose, PurposeTotals())
                totals[purpose] = found._replace(read_bytes=found.read_bytes + int(tally[0]))
        return totals

    def stats(self) -> dict[str, dict[str, int]]:
        """Return `totals` as plain dicts."""
        return {str(purpose): totals._asdict() for purpose, totals in self.totals().items()}

    # -- turns, for `Turn` -------------------------------------------------------------------------

    def advance(self) -> None:
        """Let the turns come that may."""
        with self._lock:
            self._advance()

    def wait_for_turn(self, place: _Place, timeout_ns: int | None) -> bool:
        """Implement `Turn.wait`."""
        ends_ns = None if timeout_ns is None else self._clock.now_ns() + timeout_ns
        while not place.is_over:
            with self._lock:
                self._advance()
                if place.is_over or place.unit is not None:
                    return not place.is_over
                sleep_ns = self._find_sleep_ns()
            if ends_ns is not None:
                sleep_ns = min(sleep_ns, ends_ns - self._clock.now_ns())
                if sleep_ns <= 0:
                    return False
            place.news.wait(sleep_ns * 1e-9)
        return False

    def end_turn(self, place: _Place, moved_bytes: int | None, *, is_waiting: bool = False) -> None:
        """Implement `Turn.end`, and `Turn.give_up` with `is_waiting`."""
        with self._lock:
            if not is_waiting or place.unit is None:
                self._end(place, moved_bytes)
                self._advance()

    # -- with the lock held ------------------------------------------------------------------------

    def _begin_anew(self) -> None:
        """Forget all requests after an interrupt inside a change. What waits is told to be put
        again."""
        places, self._places, self._parts = self._places, {}, {}
        self._core = self._make_core()
        for place in places.values():
            place.is_lost = place.is_over = place.unit is None
            place.news.send()

    def _make_core(self) -> RequestQueue:
        target = Target(self._inflight_bytes_max or _WHOLE)
        return RequestQueue(RoundRobin(self._patience), [target], _WHOLE)

    def _advance(self) -> None:
        """Let the turns come that may."""
        try:
            self._let_turns_come()
        except BaseException:
            self._begin_anew()
            raise

    def _let_turns_come(self) -> None:
        while self._dropped:
            self._end(self._dropped.popleft(), 0)
        if not self._places:
            return
        now_ns = self._clock.now_ns()
        while True:
            rate = self.bytes_per_s
            self.is_bounded = rate is not None or self._inflight_bytes_max is not None
            self._account.set_rate(rate, now_ns)
            is_open = not self._account.find_wait_ns(now_ns)
            shared = self._core.targets[_SHARED]
            if shared.available != is_open:
                self._core.update(_SHARED, Target(shared.queued_bytes_max, available=is_open))
            unit = self._core.take()
            if unit is None:
                return
            self._parts[unit.number] = len(unit.requests)
            self._account.charge(unit.length, now_ns)
            for request in unit.requests:
                place = self._places[request.id]
                place.unit, place.began_ns = unit, now_ns
                place.news.send()

    def _end(self, place: _Place, moved_bytes: int | None) -> None:
        try:
            self._end_place(place, moved_bytes)
        except BaseException:
            self._begin_anew()
            raise

    def _end_place(self, place: _Place, moved_bytes: int | None) -> None:
        request, unit = place.request, place.unit
        place.is_over = True
        if self._places.get(request.id) is not place:
            return  # it has ended, is the parent's, or is from before the queue began anew
        del self._places[request.id]
        if unit is None:
            self._core.withdraw(request.id)
        else:
            moved = request.length if moved_bytes is None else moved_bytes
            self._count(request.kind, request.purpose, moved, place.began_ns - request.arrived_ns)
            self._parts[unit.number] -= 1
            if not self._parts[unit.number]:
                del self._parts[unit.number]
                self._core.done(unit)
        place.news.send()

    def _count(self, kind: Kind, purpose: Purpose, moved_bytes: int, waited_ns: int) -> None:
        found = self._totals.get(purpose)
        if found is None:
            found = self._totals[purpose] = list(PurposeTotals())
        found[0 if kind == "read" else 1] += moved_bytes
        found[2] += waited_ns

    def _find_sleep_ns(self) -> int:
        """Return how long nothing can change unless a turn ends."""
        return min(_WAIT_NS_MAX, self._account.find_wait_ns(self._clock.now_ns()) or _WAIT_NS_MAX)


def number_file(file: int) -> int:
    """Number the file behind a descriptor: all descriptors of one file have one number."""
    status = os.fstat(file)
    return (status.st_dev << 64) | status.st_ino


PROCESS_QUEUE = StorageQueue()
"""The queue of this process."""

os.register_at_fork(after_in_child=PROCESS_QUEUE.reset)
