"""The ticket router: brings each report of an engine to the receiver that submitted its ticket.

Several threads wait for reports: the user's, and those that decode. One of them polls the engine,
and the others sleep until it has delivered.

Theory of operation. `lock` guards the tickets, and whatever receivers change when reports come.
`_turn` is held by the thread that polls, only inside a `with`: no exception, and no interrupt
between two instructions, can leave it taken. A thread that finds it taken appends a new lock
to `_sleepers` and waits for it; the polling thread releases it after it has delivered. It also
stops waiting by itself after a while, so that a wake-up that an interrupt swallowed costs that
while, and no more.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..engine import Engine, Failure

poll_ns = 100_000_000
"""Time in which Ctrl-C, a passed deadline or a changed lease is noticed while storage is read."""


class Receiver(Protocol):
    """Receiver of the reports on its tickets. Both methods are called with the lock held."""

    def report(self, key: Any, failures: Sequence[Failure]) -> None:
        """Accept the report on a ticket that was expected with `key`."""
        ...

    def abandon(self) -> None:
        """Wait for nothing more: reports may have been lost."""
        ...


class TicketRouter:
    """Router of one engine's reports. Receivers are held weakly: no report keeps one alive."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.lock = threading.Lock()
        self._turn = threading.Lock()
        self._sleepers: list[threading.Lock] = []
        self.tickets: dict[int, tuple[weakref.ref[Receiver], Any]] = {}
        """Receiver and key of each expected report; added with the lock held since `submit`."""
        self._receivers: weakref.WeakSet[Receiver] = weakref.WeakSet()

    @property
    def is_idle(self) -> bool:
        """True if no report is expected."""
        return not self.tickets

    def add(self, receiver: Receiver) -> None:
        """Add a receiver that will expect tickets."""
        with self.lock:
            self._receivers.add(receiver)

    def wait(self, has_arrived: Callable[[], bool]) -> None:
        """Wait a while for reports, unless `has_arrived()`; it is called with the lock held.

        Raises the exceptions of the engine. Then, and after an interrupt, reports may be lost, and
        every receiver is told to abandon its tickets.
        """
        sleeper = None
        with self.lock:
            if has_arrived():
                return
            if self._turn.locked():
                sleeper = threading.Lock()
                sleeper.acquire()
                self._sleepers.append(sleeper)
        if sleeper is not None:
            sleeper.acquire(timeout=poll_ns * 1e-9)
            return
        try:
            with self._turn:
                self._poll(has_arrived)
        finally:
            with self.lock:
                sleepers, self._sleepers = self._sleepers, []
            for sleeper in sleepers:
                sleeper.release()

    def _poll(self, has_arrived: Callable[[], bool]) -> None:
        with self.lock:
            if has_arrived():  # another thread has polled since
                return
        try:
            completions = self._engine.poll(poll_ns)
            with self.lock:
                for ticket, failures in completions:
                    # Tickets from before an interrupt belong to nobody.
                    receiver, key = self.tickets.pop(ticket, (_nobody, None))
                    if (waiting := receiver()) is not None:
                        waiting.report(key, failures)
        except BaseException:
            with self.lock:
                self.tickets.clear()
                for waiting in list(self._receivers):
                    waiting.abandon()
            raise


def _nobody() -> None:
    return None
