"""Threads behind training. The end of the process waits for them, unless they were given up."""

from __future__ import annotations

import atexit
import errno
import math
import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

from ..engine.threads import WakeUp, start_threads
from ..errors import StalledError

_awaited: weakref.WeakSet[BackgroundThread] = weakref.WeakSet()


class BackgroundThread(threading.Thread):
    """A thread whose end can be waited for, whatever interrupts come.

    After an interrupted `join`, Python takes a thread for ended; after an interrupted `start` it
    refuses to wait for the thread, though that may start later.
    """

    def __init__(self, name: str, work: Callable[[], Exception | None]) -> None:
        super().__init__(name=name, daemon=True)
        self.error: Exception | None = None
        self._work = work
        self._lock = threading.Lock()
        self._is_wanted = True
        self._has_to_begin = self._has_begun = self._is_over = False
        self._news = WakeUp()  # of who waits for the end

    def run(self) -> None:
        with self._lock:
            if not self._is_wanted:
                return
            self._has_begun = True
        try:
            self.error = self._work()
        finally:
            del self._work  # and what it refers to: earlier threads, which would all be kept
            self._is_over = True
            self._news.send()

    def start_awaited(self) -> None:
        """Start, so that the end of the process waits for the thread until `give_up`. LimitError if
        the system refuses the thread. After an interrupt here the thread may start, now or later,
        until `call_off`."""
        _awaited.add(self)
        start_threads([self])
        self._has_to_begin = True

    def give_up(self) -> None:
        """Let the process end without this thread: it may hang."""
        _awaited.discard(self)

    def call_off(self) -> bool:
        """Keep the thread from starting; False if it has started, or has to."""
        with self._lock:
            self._is_wanted = self._has_begun or self._has_to_begin
            return not self._is_wanted

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end of the thread. Calls it off if its start was interrupted."""
        if self.call_off():
            return
        if self._news.wait_until(lambda: self._is_over, math.inf if timeout is None else timeout):
            super().join()  # the little that is left of it

    def is_alive(self) -> bool:
        return (self._has_begun or self._has_to_begin) and not self._is_over


@atexit.register
def _join_threads() -> None:
    for thread in list(_awaited):
        thread.join()


os.register_at_fork(after_in_child=_awaited.clear)


@dataclass(frozen=True)
class JoinDeadline:
    """A time limit for several joins together, from now on; None is no limit."""

    timeout_s: float | None
    _began_s: float = field(default_factory=time.monotonic)

    def join(self, thread: threading.Thread, step: int) -> None:
        """Wait for the end of a thread that saves a step; StalledError after the time limit."""
        if self.timeout_s is None:
            thread.join()
            return
        left_s = self.timeout_s - (time.monotonic() - self._began_s)
        thread.join(min(max(left_s, 0.0), threading.TIMEOUT_MAX))
        if thread.is_alive():
            raise build_stall_error(thread, step, self.timeout_s)


# -- points ----------------------------------------------------------------------------------------


watcher: Callable[[str], None] | None = None
"""Function of a test that is called at each point."""

_ABOUT = "it has been about to"
_last_points: weakref.WeakKeyDictionary[threading.Thread, tuple[str, float]]
_last_points = weakref.WeakKeyDictionary()
"""Last point of each thread, as a part of a sentence, and the time since then."""


def build_stall_error(thread: threading.Thread, step: int, timeout_s: float) -> StalledError:
    """Build the error for a thread that saves a step and did not end within `timeout_s`."""
    now_s = time.monotonic()
    point, since_s = _last_points.get(thread, (f"{_ABOUT} begin", now_s))
    failed = StalledError(
        f"the save of step {step} is still under way after {timeout_s:g} s of waiting: for"
        f" {now_s - since_s:.1f} s {point}: wait longer, or abandon it; and check the storage, also"
        " of the other ranks. Earlier checkpoints are not affected"
    )
    failed.errno = errno.ETIMEDOUT
    return failed


def mark(action: str, *, is_done: bool = False) -> None:
    """Note that the current thread is about to do this, or has just done it.

    action:  a verb and its object; the verb is in the past if the action is done.
    """
    sentence = f"nothing has happened since it {action}" if is_done else f"{_ABOUT} {action}"
    _last_points[threading.current_thread()] = sentence, time.monotonic()
    if watcher is not None:
        watcher(action)
