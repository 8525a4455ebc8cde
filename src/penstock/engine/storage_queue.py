"""The storage queue: orders the reads and writes of a process by purpose, within a shared rate.

To move bytes, put a request into the queue and wait for its turn; then move them in your own
thread, and end the turn. `request_queue.choose_next` decides: by purpose, with aging, and in the
order of the requests if a write and another request have bytes in common; of a rate each purpose
has a floor. This module adds a lock, a clock, the rate, the totals of each purpose, and engines
whose reads take turns.

The life of a request: put -> waiting -> its turn (bytes are moving) -> over; or put -> waiting ->
given up. A turn that nobody ends (its owner was dropped) ends with its owner. The state of the
queue is a list of requests, and each change of it is one assignment, so that an interrupt leaves
it whole.

`PROCESS_QUEUE` is the queue of this process. It has no bound until a budget gives one
(`Budget.process_bytes_per_s`). Without a bound, requests wait only for the order of common bytes.
"""

from __future__ import annotations

import errno
import itertools
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple, Self

from .. import limits
from ..budget import Budget
from ..clock import Clock, SystemClock
from ..errors import LimitError
from ..extent import Requests
from . import threads
from .protocol import (
    Buffer,
    Completion,
    EngineWrapper,
    ReadingEngine,
    check_requests,
    check_usable,
)
from .request_queue import (
    AGING,
    FLOORS,
    Aging,
    Kind,
    Purpose,
    RateAccount,
    Request,
    check_purpose,
    choose_next,
    make_tallies,
)
from .threads import WakeUp

_WAIT_NS_MAX = 100_000_000
"""Longest sleep: a turn whose owner was dropped is noticed then."""
_SLICE_NS = 5_000_000
"""Longest wait for reports of one ticket while the turn of another may come."""
_QUEUE_TICKETS = 1 << 40
"""Tickets up to this one are the engine's, from before the first bound."""
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
class _QueuedRequest(Request):
    """A request, and the wake-up of the thread that waits for its turn."""

    news: WakeUp = field(default_factory=WakeUp)


class Turn:
    """The turn of one request. Methods may be called from any thread. A turn that is dropped ends.

    As a context it waits for the turn and ends it; OSError, ECANCELED, if it was given up.
    """

    def __init__(self, queue: StorageQueue, request: _QueuedRequest) -> None:
        self._queue, self._request = queue, request

    @property
    def number(self) -> int | None:
        """Number of the turn, in the order in which turns come; None until it has come."""
        return self._request.number

    def is_due(self) -> bool:
        """True if the bytes may move now: the turn has come and has not ended."""
        self._queue.advance()
        return self._request.number is not None and not self._request.is_over

    def wait(self, timeout_ns: int | None = None) -> bool:
        """Wait for the turn; False if it was given up or the time is over."""
        return self._queue.wait_for_turn(self._request, timeout_ns)

    def end(self, moved_bytes: int | None = None) -> None:
        """End the turn, or give it up if it has not come. May be called again.

        moved_bytes:  bytes that moved, for the totals; all of them by default.
        """
        self._queue.end_turn(self._request, moved_bytes)

    def give_up(self) -> None:
        """End the turn unless it has come; a thread that waits for it goes on."""
        self._queue.end_turn(self._request, 0, is_waiting=True)

    def __del__(self) -> None:
        if not self._request.is_over:
            self._queue.drop(self._request)

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

    is_bounded:    whether requests may have to wait, and are put; else they are only counted.
    read_tallies:  by purpose, the bytes of reads that native engines were given.

    Guarantees, in addition to `choose_next`: every request has one turn, and shared storage moves
    no more than the lowest limit, on average over a tenth of a second and the last request. A
    request goes whole: put a long transfer in parts, so that urgent requests come between.
    """

    def __init__(
        self,
        inflight_bytes_max: int | None = None,
        *,
        aging: Aging = AGING,
        clock: Clock = _system_clock,
    ) -> None:
        self._inflight_bytes_max, self._aging = inflight_bytes_max, aging
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        """Forget everything, in a forked process: its parent's requests are not its own."""
        self._account = RateAccount()
        self._floors = {purpose: RateAccount() for purpose in FLOORS}
        self._limits: weakref.WeakKeyDictionary[object, float] = weakref.WeakKeyDictionary()
        self._engines: weakref.WeakSet[QueuedEngine] = weakref.WeakSet()
        self._requests: list[_QueuedRequest] = []  # in the order of their arrival
        self._dropped: deque[_QueuedRequest] = deque()
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
            if self.is_bounded:
                for engine in self._engines:
                    engine.start_queueing()
                self._engines.clear()
            self._advance()

    def watch(self, engine: QueuedEngine) -> None:
        """Have an engine start queueing at the next bound; at once if there is one."""
        with self._lock:
            if self.is_bounded:
                engine.start_queueing()
            else:
                self._engines.add(engine)

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
        """Put a request and return its turn, which has come if `is_due` returns True.

        file:  number by which requests for the same bytes know each other (`number_file`);
               None if no other request has bytes in common with this one.
        """
        with self._lock:
            if len(self._requests) >= limits.pieces_max:
                raise LimitError(f"pieces_max {limits.pieces_max} requests wait: finish some first")
            now_ns = self._clock.now_ns()
            request = _QueuedRequest(kind, purpose, length, now_ns, file, offset)
            turn = Turn(self, request)  # ends the request after an interrupt
            self._requests.append(request)
            self._advance()
        return turn

    def count(self, kind: Kind, purpose: Purpose, moved_bytes: int) -> None:
        """Count a request that takes no turn: the queue has no bound, or the request is for a disk
        of this host, outside the shared rate."""
        with self._lock:
            self._count(kind, purpose, moved_bytes, 0)

    def drop(self, request: _QueuedRequest) -> None:
        """End a turn whose owner is gone, soon. Takes no lock: the garbage collector calls it."""
        self._dropped.append(request)

    def totals(self) -> dict[Purpose, PurposeTotals]:
        """Return the bytes that moved, and the time waited, for each purpose."""
        with self._lock:
            totals = {purpose: PurposeTotals(*sums) for purpose, sums in self._totals.items()}
        for purpose, tally in self.read_tallies.items():
            if tally[0]:
                total = totals.get(purpose, PurposeTotals())
                totals[purpose] = total._replace(read_bytes=total.read_bytes + int(tally[0]))
        return totals

    def stats(self) -> dict[str, dict[str, int]]:
        """Return `totals` as plain dicts."""
        return {str(purpose): totals._asdict() for purpose, totals in self.totals().items()}

    # -- turns, for `Turn` -------------------------------------------------------------------------

    def advance(self) -> None:
        """Let the turns come that may."""
        with self._lock:
            self._advance()

    def wait_for_turn(self, request: _QueuedRequest, timeout_ns: int | None) -> bool:
        """Implement `Turn.wait`."""
        end_ns = None if timeout_ns is None else self._clock.now_ns() + timeout_ns
        while not request.is_over:
            with self._lock:
                self._advance()
                if request.is_over or request.number is not None:
                    return not request.is_over
                rate_ns = self._account.find_wait_ns(self._clock.now_ns())
                sleep_ns = min(_WAIT_NS_MAX, rate_ns or _WAIT_NS_MAX)
            if end_ns is not None:
                sleep_ns = min(sleep_ns, end_ns - self._clock.now_ns())
                if sleep_ns <= 0:
                    return False
            request.news.wait(sleep_ns * 1e-9)
        return False

    def end_turn(
        self, request: _QueuedRequest, moved_bytes: int | None, *, is_waiting: bool = False
    ) -> None:
        """Implement `Turn.end`, and `Turn.give_up` with `is_waiting`."""
        with self._lock:
            if not is_waiting or request.number is None:
                self._end(request, moved_bytes)
                self._advance()

    # -- with the lock held ------------------------------------------------------------------------

    def _advance(self) -> None:
        while self._dropped:
            self._end(self._dropped[0], 0)
            self._dropped.popleft()
        self._requests = [request for request in self._requests if not request.is_over]
        if not self._requests:
            return
        now_ns = self._clock.now_ns()
        while True:
            rate = self.bytes_per_s  # limits of dropped holders are gone
            self.is_bounded = rate is not None or self._inflight_bytes_max is not None
            self._account.set_rate(rate, now_ns)
            if self._account.find_wait_ns(now_ns):
                return
            for purpose, account in self._floors.items():
                account.set_rate(None if rate is None else FLOORS[purpose] * rate, now_ns)
            floors = {} if rate is None else self._floors
            row = choose_next(self._requests, self._aging, self._inflight_bytes_max, floors, now_ns)
            if row is None:
                return
            request = self._requests[row]
            self._account.charge(request.length, now_ns)
            floor = floors.get(request.purpose)
            if floor and floor.find_start_ns(request.arrived_ns) <= now_ns:
                floor.charge(request.length, request.arrived_ns)
            request.start_ns = now_ns
            request.number = next(self._numbers)
            request.news.send()

    def _end(self, request: _QueuedRequest, moved_bytes: int | None) -> None:
        is_new = not request.is_over and request in self._requests  # and not of the parent process
        if is_new and request.number is not None:
            moved = request.length if moved_bytes is None else moved_bytes
            self._count(request.kind, request.purpose, moved, request.start_ns - request.arrived_ns)
        request.is_over = True
        request.news.send()

    def _count(self, kind: Kind, purpose: Purpose, moved_bytes: int, waited_ns: int) -> None:
        sums = self._totals.setdefault(purpose, list(PurposeTotals()))
        sums[0 if kind == "read" else 1] += moved_bytes
        sums[2] += waited_ns


def number_file(file: int) -> int:
    """Number the file behind a descriptor: all descriptors of one file have one number."""
    status = os.fstat(file)
    return (status.st_dev << 64) | status.st_ino


PROCESS_QUEUE = StorageQueue()
"""The queue of this process."""

os.register_at_fork(after_in_child=PROCESS_QUEUE.reset)


# -- engines ---------------------------------------------------------------------------------------


class _QueuedTicket(NamedTuple):
    """A ticket whose turn has not come."""

    turn: Turn
    requests: Requests
    buffers: list[Buffer]
    purpose: Purpose


class _ForwardedTicket(NamedTuple):
    """A ticket whose turn has come, so that the engine has it."""

    ticket: int
    turn: Turn


class QueuedEngine(EngineWrapper):
    """Engine whose reads take turns in a queue while something bounds the queue.

    Until the first bound, `submit` and `poll` of the object are the methods of the wrapped engine
    itself, because small reads take as long as a turn. From the first bound on, a ticket is one
    request for all its bytes: the engine gets it at its turn, and the turn ends with its report.
    Reads of engines do not wait for writes of the same bytes: files of a dataset do not change, or
    the engine reports it (ESTALE).

    A budget's `process_bytes_per_s` bounds the queue as long as the engine is open.
    """

    def __init__(
        self,
        engine: ReadingEngine,
        file_count: int,
        budget: Budget,
        queue: StorageQueue = PROCESS_QUEUE,
    ) -> None:
        super().__init__(engine)
        self._file_count, self._queue = file_count, queue
        self._forks = threads.forks
        self._lock = threading.Lock()  # guards what follows
        self._last_ticket = _QUEUE_TICKETS
        self._waiting: dict[int, _QueuedTicket] = {}
        self._forwarded: dict[int, _ForwardedTicket] = {}  # by ticket of the engine
        self._closed = False
        # Calls cost more than small reads: attributes of the object hide its methods.
        self.submit = engine.submit  # type: ignore[method-assign]
        self.poll = engine.poll  # type: ignore[method-assign]
        queue.watch(self)
        queue.limit(self, budget.process_bytes_per_s)
        self._may_forward = "poll" not in self.__dict__

    def start_queueing(self) -> None:
        """Queue reads from now on. Called by the queue at its first bound."""
        self.__dict__.pop("submit", None)
        self.__dict__.pop("poll", None)

    def adopt(self, budget: Budget) -> None:
        """Pass a changed budget to the engine, and its bound to the queue."""
        super().adopt(budget)
        self._queue.limit(self, budget.process_bytes_per_s)

    def submit(
        self, requests: Requests, buffers: Sequence[Buffer], purpose: Purpose = "prefetch"
    ) -> int:
        """Put the requests into the queue."""
        check_usable(is_inherited=threads.forks != self._forks)  # its locks may be held for ever
        check_requests(requests, buffers, self._file_count)  # at its turn nobody gets the error
        check_purpose(purpose)
        with self._lock:
            check_usable(False, self._closed)
            turn = self._queue.put("read", purpose, int(requests.length.sum()))
            self._last_ticket += 1
            ticket = self._last_ticket
            self._waiting[ticket] = _QueuedTicket(turn, requests, list(buffers), purpose)
            self._forward()
        return ticket

    def poll(self, timeout_ns: int) -> list[Completion]:
        """Report finished tickets, and forward those whose turn has come."""
        check_usable(is_inherited=threads.forks != self._forks)
        end_ns = time.monotonic_ns() + timeout_ns
        self._may_forward = True
        while True:
            with self._lock:
                self._forward()
                is_reading = bool(self._forwarded)
                first = next(iter(self._waiting.values()), None)
            left_ns = max(0, end_ns - time.monotonic_ns())
            if first is None and not is_reading:  # only tickets from before the bound, if any
                return self._report(self._engine.poll(left_ns))
            if first is not None and not is_reading:
                first.turn.wait(min(left_ns, _SLICE_NS))
                done = self._engine.poll(0)
            else:
                done = self._engine.poll(min(left_ns, _SLICE_NS))
            if done or time.monotonic_ns() >= end_ns:
                return self._report(done)

    def close(self) -> None:
        """Give up what waits, and close the engine."""
        if threads.forks != self._forks:
            self._engine.close()
            return
        self._queue.limit(self, None)
        with self._lock:
            self._closed = True
            turns = [waiting.turn for waiting in self._waiting.values()]
            self._waiting.clear()
        for turn in turns:
            turn.end(0)
        self._engine.close()  # waits for the reads in progress
        with self._lock:
            forwarded = list(self._forwarded.values())
            self._forwarded.clear()
        for ticket in forwarded:
            ticket.turn.end(0)

    def _forward(self) -> None:
        """Submit the tickets whose turn has come, the most urgent first. Called with the lock held.

        Before the first poll in here, another thread may be inside the engine's own, where the
        report on a forwarded ticket would be lost: tickets wait for that poll.
        """
        if not self._waiting or not self._may_forward:
            return
        self._queue.advance()
        due = [
            (number, ticket)
            for ticket, waiting in self._waiting.items()
            if (number := waiting.turn.number) is not None
        ]
        for _, ticket in sorted(due):
            turn, requests, buffers, purpose = self._waiting.pop(ticket)
            number = self._engine.submit(requests, buffers, purpose)
            self._forwarded[number] = _ForwardedTicket(ticket, turn)

    def _report(self, done: list[Completion]) -> list[Completion]:
        """Translate the engine's reports, and end their turns."""
        reports = []
        for number, failures in done:
            with self._lock:
                forwarded = self._forwarded.pop(number, None)
            if forwarded is not None:
                forwarded.turn.end(0)  # its bytes were counted by the engine
            # Else it is from before the first bound, or an interrupt came between its submission
            # and the note of it, and nobody waits for it.
            ticket = number if forwarded is None else forwarded.ticket
            reports.append(Completion(ticket, failures))
        return reports
