"""Threads behind training. The end of the process waits for them, unless they were given up."""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable

from ..engine import start_threads
from ..errors import UsageError
from .fault_points import build_stall_error

_awaited: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


class BackgroundTask:
    """Work in a thread behind training. It returns the error that a later call of the user has to
    raise, or None. The end of the process waits for it, unless it was given up."""

    def __init__(self, name: str, work: Callable[[], Exception | None]) -> None:
        self._error: Exception | None = None

        def run() -> None:
            self._error = work()

        self.thread = threading.Thread(target=run, name=name, daemon=True)
        start_threads([self.thread])
        _awaited.add(self.thread)

    @property
    def is_alive(self) -> bool:
        return self.thread.is_alive()

    def take_error(self) -> Exception | None:
        """Wait for the end of the work. The first call returns its error."""
        self.thread.join()
        error, self._error = self._error, None
        return error

    def give_up(self) -> None:
        """Let the process end without this thread, which may hang."""
        _awaited.discard(self.thread)


@atexit.register
def _join_threads() -> None:
    for thread in list(_awaited):
        thread.join()


class JoinDeadline:
    """A time within which several joins have to end together; None is no limit."""

    def __init__(self, timeout_s: float | None) -> None:
        if timeout_s is not None and not timeout_s >= 0:
            raise UsageError(f"timeout_s={timeout_s!r}: use seconds from 0 on, or None")
        self._timeout_s = timeout_s
        self._began_s = time.monotonic()

    def join(self, thread: threading.Thread, step: int) -> None:
        """Return when a thread that saves a step has ended; StalledError if the time is over
        before."""
        if self._timeout_s is None:
            thread.join()
            return
        left_s = self._timeout_s - (time.monotonic() - self._began_s)
        thread.join(min(max(left_s, 0.0), threading.TIMEOUT_MAX))
        if thread.is_alive():
            raise build_stall_error(thread, step, self._timeout_s)
