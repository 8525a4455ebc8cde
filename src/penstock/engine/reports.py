"""Reports of engines whose threads read: from these threads to the user's thread, which polls."""

from __future__ import annotations

import threading

from . import threads
from .protocol import Completion, check_usable
from .threads import WakeUp


class ReportQueue:
    """Tickets of an engine, and the reports on them that nobody has polled.

    lock:       guards all of this, and the state of the engine.
    is_closed:  True once the engine was closed.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.is_closed = False
        self._fault: BaseException | None = None
        self._forks = threads.forks
        self._submitted = self._polled = 0
        self._done: list[tuple[Completion, object]] = []
        self._news = WakeUp()

    @property
    def is_inherited(self) -> bool:
        """True in a forked process: threads, and perhaps a taken lock, are the parent's."""
        return threads.forks != self._forks

    @property
    def is_over(self) -> bool:
        """True if the engine was closed or has failed."""
        return self.is_closed or self._fault is not None

    def check_usable(self) -> None:
        """Raise the error that ended the engine; UsageError if it is closed, or the parent's."""
        check_usable(is_inherited=self.is_inherited)
        if self._fault is not None:
            raise self._fault
        check_usable(False, self.is_closed)

    def open_ticket(self) -> int:
        """Return the number of a new ticket. Called with the lock held."""
        self._submitted += 1
        return self._submitted - 1

    def report(self, completion: Completion, buffers: object = None) -> None:
        """Report on a ticket. Its buffers live until the report is polled."""
        with self.lock:
            self._done.append((completion, buffers))
            self._news.send()

    def poll(self, timeout_ns: int) -> list[Completion]:
        """Return the reports there are. Without any, wait for one while tickets are open."""
        self.check_usable()
        with self.lock:
            is_due = self._done or self._polled == self._submitted or self.is_over
        if not is_due:
            self._news.wait(timeout_ns * 1e-9)
        with self.lock:
            self.check_usable()
            done, self._done = self._done, []
            self._polled += len(done)
        return [completion for completion, _ in done]

    def fail(self, error: BaseException) -> None:
        """End the engine with an error, which the user's thread raises; the first one counts."""
        with self.lock:
            self._fault = self._fault or error
            self._news.send()

    def close(self) -> bool:
        """Drop what nobody has polled; False if that has been done before."""
        with self.lock:
            is_first, self.is_closed = not self.is_closed, True
            self._done.clear()
            self._news.send()
        return is_first
