"""Threads: how many read by default, starting them, and a wake-up that no interrupt can spoil.

The user's thread handles locks in C: `with` a `Lock` or `RLock`, and a `WakeUp`. The conditions,
events and semaphores of `threading` are Python. An interrupt in them, between taking their lock and
returning, leaves the lock taken, and every other thread would wait for ever.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from .. import limits
from ..errors import LimitError

P = ParamSpec("P")
T = TypeVar("T")

_LOOK_S = 0.1
"""Longest sleep in `WakeUp.wait_until`: an interrupt in one of several threads that wait there may
lose what was sent to them."""


forks = 0
"""Number of forks from the first process of the library to this one. An object whose threads are in
another process has another number; reading it costs no system call."""


_turns: weakref.WeakSet[Any] = weakref.WeakSet()


def make_turn() -> Any:
    """Make a re-entrant lock that is free in a forked child, unless the thread that forked has it:
    the threads that wait for others' turns to end do not exist there."""
    turn = threading.RLock()
    _turns.add(turn)
    return turn


def _count_fork() -> None:
    global forks
    forks += 1
    for turn in list(_turns):
        if not turn._is_owned():
            turn._at_fork_reinit()


os.register_at_fork(after_in_child=_count_fork)


def count_reading_threads(backend: str, cores: int, is_near: bool, direct: bool) -> int:
    """Return the number of threads that read if the budget names none.

    is_near:  whether the data is on a disk of this machine, or in the page cache.
    """
    if backend == "pread":  # one thread for each read in flight
        return min(16, 2 * cores) if is_near else limits.remote_threads
    if backend == "io_uring":  # the thread that asks copies what is in the page cache
        return min(4 if direct else 16, cores)
    return max(1, cores - 1)  # mmap: the thread that waits for a batch copies too


def build_refusal(what: str, error: Exception) -> LimitError:
    """Build the error for a thread or process that the system did not start."""
    return LimitError(
        f"{what}: {error}: the limit of processes (`ulimit -u`, pids.max of the container) or of "
        f"memory is reached: raise it, or ask for fewer threads and processes"
    )


@contextlib.contextmanager
def name_refusal(what: str) -> Iterator[None]:
    """Raise LimitError where the system refuses the core a thread: what did not start."""
    try:
        yield
    except RuntimeError as error:
        if os.strerror(errno.EAGAIN) not in str(error):
            raise
        raise build_refusal(what, error) from None


def start_threads(
    threads: Sequence[threading.Thread], stop: Callable[[], object] = lambda: None
) -> None:
    """Start all threads, or call `stop`. LimitError if the system refuses one.

    After an interrupt a thread may still start, later than `stop`: it has to look first whether it
    is wanted.
    """
    started = 0
    try:
        for thread in threads:
            thread.start()
            started += 1
    except BaseException as error:
        stop()
        if isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from None  # which Python's own condition made an error of
        if not isinstance(error, RuntimeError):
            raise
        name, number = threads[started].name, started + 1
        what = f"thread {name}, number {number} of {len(threads)}, did not start"
        raise build_refusal(what, error) from None


def join_threads(threads: Sequence[threading.Thread]) -> None:
    """Wait for the end of threads, except this one and threads that have not started."""
    for thread in threads:
        # A thread whose start was interrupted may have a number, and not have started.
        with contextlib.suppress(RuntimeError):
            thread.join()


class WakeUp:
    """A wake-up of one thread that waits. It is kept until a thread waits; several count once."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def send(self) -> None:
        """Wake the thread that waits, or the next that will."""
        with contextlib.suppress(RuntimeError):  # sent before, and not waited for yet
            self._lock.release()

    def wait(self, timeout_s: float) -> None:
        """Wait until it is sent, or the time is over."""
        self._lock.acquire(timeout=min(timeout_s, threading.TIMEOUT_MAX))

    def wait_until(self, is_so: Callable[[], bool], timeout_s: float = math.inf) -> bool:
        """Wait until a condition holds; False if the time is over before. One `send` is enough for
        several waiting threads: each wakes the next."""
        ends_s = time.monotonic() + timeout_s
        while not is_so():
            left_s = ends_s - time.monotonic()
            if left_s <= 0:
                return False
            self.wait(min(left_s, _LOOK_S))
        self.send()
        return True


class ThreadPool(ThreadPoolExecutor):
    """Pool of threads; LimitError where the system refuses one of them."""

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Start a call; LimitError if it needs a thread that the system refuses."""
        try:
            return super().submit(function, *args, **kwargs)
        except RuntimeError as error:
            if "start new thread" not in str(error):  # the pool is closed
                raise
            name, count = self._thread_name_prefix, len(self._threads)
            what = f"thread {name}, number {count + 1} of {self._max_workers}, did not start"
            raise build_refusal(what, error) from None
