"""Queued reads: an engine whose submissions wait for their turn in the process's storage queue.

Until something bounds the queue, tickets are the engine's own, which counts their bytes: a step of
small samples may take 30 us in all, and a turn would take as long. From the
first bound on, a ticket is one request of `storage_queue`, of all its bytes: it goes to the engine
when its turn comes, and the turn ends when the engine reports it. Reads of engines take no part in
the order of bytes in common: their files do not change while they are read, or are reported
(ESTALE).

A budget's `process_bytes_per_s` bounds the queue as long as the engine is open.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

from ..budget import Budget
from ..extent import Requests
from .native import ReadingEngine, ReadMethod
from .protocol import Buffer, Completion, check_requests, check_usable
from .queue import Purpose, check_purpose
from .storage_queue import PROCESS_QUEUE, StorageQueue, Turn

_SLICE_NS = 5_000_000
"""Time in which a thread that waits for reports sees that the turn of another ticket has come."""


_OWN_TICKETS = 1 << 40
"""Tickets up to this one are the engine's own, from before the first bound."""


class _WaitingTicket(NamedTuple):
    """A ticket whose turn has not come."""

    turn: Turn
    requests: Requests
    buffers: list[Buffer]
    purpose: Purpose


class _StartedTicket(NamedTuple):
    """A ticket whose turn it is, so that the engine has it."""

    ticket: int
    turn: Turn


class QueuedEngine:
    """Engine that reads when it is its turn; see the module."""

    def __init__(
        self,
        engine: ReadingEngine,
        file_count: int,
        budget: Budget,
        queue: StorageQueue = PROCESS_QUEUE,
    ) -> None:
        self._engine, self._file_count, self._queue = engine, file_count, queue
        self._pid = os.getpid()
        self._lock = threading.Lock()  # guards what follows
        self._last_ticket = 0  # of the queue; 0 before the first bound
        self._waiting: dict[int, _WaitingTicket] = {}
        self._started: dict[int, _StartedTicket] = {}  # by ticket of the engine
        self._closed = False
        queue.limit(self, budget.process_bytes_per_s)

    @property
    def choice(self) -> ReadMethod:
        """Read method of the engine."""
        return self._engine.choice

    def adopt(self, budget: Budget) -> None:
        """Pass a changed budget to the engine, and its bound to the queue."""
        self._engine.adopt(budget)
        self._queue.limit(self, budget.process_bytes_per_s)

    def survey(self) -> None:
        """Let the engine survey its files."""
        self._engine.survey()

    def counters(self) -> dict[str, int]:
        """Return the engine's counters."""
        return self._engine.counters()

    def submit(
        self, requests: Requests, buffers: Sequence[Buffer], purpose: Purpose = "prefetch"
    ) -> int:
        """Submit the requests to the engine, or put them into the queue if it is bounded."""
        if not (self._last_ticket or self._queue.is_bounded):
            return self._engine.submit(requests, buffers, purpose)
        if os.getpid() != self._pid:  # its locks may be held for ever
            check_usable(is_inherited=True)
        check_requests(requests, buffers, self._file_count)  # later there is nobody to tell
        check_purpose(purpose)
        with self._lock:
            check_usable(False, self._closed)
            turn = self._queue.put("read", purpose, int(requests.length.sum()))
            ticket = self._last_ticket = max(self._last_ticket, _OWN_TICKETS) + 1
            self._waiting[ticket] = _WaitingTicket(turn, requests, list(buffers), purpose)
            self._forward()
        return ticket

    def poll(self, timeout_ns: int) -> list[Completion]:
        """Report finished tickets, and hand on those whose turn has come."""
        if not self._last_ticket:
            # Another thread may submit the first ticket of a bound meanwhile.
            done = self._engine.poll(timeout_ns)
            return self._report(done) if self._last_ticket else done
        if os.getpid() != self._pid:
            check_usable(is_inherited=True)
        ends_ns = time.monotonic_ns() + timeout_ns
        while True:
            with self._lock:
                self._forward()
                is_reading = bool(self._started)
                first = next(iter(self._waiting.values()), None)
            left_ns = max(0, ends_ns - time.monotonic_ns())
            if first is None and not is_reading:  # what is left is from before the first bound
                return self._report(self._engine.poll(left_ns))
            if first is not None and not is_reading:
                first.turn.wait(min(left_ns, _SLICE_NS))
                done = self._engine.poll(0)
            else:
                done = self._engine.poll(min(left_ns, _SLICE_NS))
            if done or time.monotonic_ns() >= ends_ns:
                return self._report(done)

    def close(self) -> None:
        """Give up what waits, and close the engine."""
        if os.getpid() == self._pid:
            self._queue.limit(self, None)
            with self._lock:
                self._closed = True
                turns = [waiting.turn for waiting in self._waiting.values()]
                self._waiting.clear()
            for turn in turns:
                turn.end(0)
        self._engine.close()  # waits for the reads under way
        if os.getpid() == self._pid:
            with self._lock:
                started = list(self._started.values())
                self._started.clear()
            for ticket in started:
                ticket.turn.end(0)

    def _forward(self) -> None:
        """Hand the tickets on whose turn has come, the most urgent first. Called with the lock
        held."""
        if not self._waiting:
            return
        due = [
            (number, ticket)
            for ticket, waiting in self._waiting.items()
            if (number := waiting.turn.number) is not None
        ]
        for _, ticket in sorted(due):
            turn, requests, buffers, purpose = self._waiting.pop(ticket)
            own = self._engine.submit(requests, buffers, purpose)
            self._started[own] = _StartedTicket(ticket, turn)

    def _report(self, done: list[Completion]) -> list[Completion]:
        """Translate the engine's reports, and end their turns."""
        reports = []
        for own, failures in done:
            with self._lock:
                started = self._started.pop(own, None)
            if started is not None:
                started.turn.end(0)  # its bytes were counted by the engine
            # Else it is from before the first bound, or an interrupt came between its submission
            # and the note of it, and nobody waits for it.
            ticket = own if started is None else started.ticket
            reports.append(Completion(ticket, failures))
        return reports
