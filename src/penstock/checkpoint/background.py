"""Threads behind training: the end of the process waits for them, unless they were given up."""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from ..errors import UsageError
from .fault_points import stalled

_awaited: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def started(name: str, target: Callable[..., None], *args: Any) -> threading.Thread:
    """A thread that has begun."""
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)
    thread.start()
    _awaited.add(thread)
    return thread


def given_up(thread: threading.Thread) -> None:
    """The end of the process does not wait for this one, which may hang."""
    _awaited.discard(thread)


@atexit.register
def _finish() -> None:
    for thread in list(_awaited):
        thread.join()


class Within:
    """Waits that have to end within a time together; None is as long as they take."""

    def __init__(self, timeout_s: float | None) -> None:
        if timeout_s is not None and not timeout_s >= 0:
            raise UsageError(f"timeout_s={timeout_s!r}: use seconds from 0 on, or None")
        self._timeout_s = timeout_s
        self._began_s = time.monotonic()

    def join(self, thread: threading.Thread, step: int) -> None:
        """Returns when a thread that saves a step has ended; StalledError where it is too late."""
        if self._timeout_s is None:
            thread.join()
            return
        left_s = self._timeout_s - (time.monotonic() - self._began_s)
        thread.join(min(max(left_s, 0.0), threading.TIMEOUT_MAX))
        if thread.is_alive():
            raise stalled(thread, step, self._timeout_s)
