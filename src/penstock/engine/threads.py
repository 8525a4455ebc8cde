"""Threads that the system may refuse, and a wake-up that no interrupt can spoil.

What the user's thread does with locks is done in C: `with` a `Lock` or `RLock`, and a `WakeUp`. The
conditions, events and semaphores of `threading` are Python, and an interrupt in them, between
taking their lock and returning, leaves it taken: every other thread would wait for ever.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from ..errors import LimitError

P = ParamSpec("P")
T = TypeVar("T")


def build_refusal(what: str, error: Exception) -> LimitError:
    """Build the error for a thread or process that the system did not start."""
    return LimitError(
        f"{what}: {error}: the limit of processes (`ulimit -u`, pids.max of the container) or of "
        f"memory is reached: raise it, or ask for fewer threads and processes"
    )


def start_threads(
    threads: Sequence[threading.Thread], stop: Callable[[], object] = lambda: None
) -> None:
    """Start all threads, or `stop` those that were started. LimitError if the system refuses one.

    After an interrupt a thread may still begin, later than `stop`: it has to look first whether it
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
    """Wait for the end of threads, but for this one and those that have not begun."""
    for thread in threads:
        # A thread whose start was interrupted may have a number, and not have begun.
        with contextlib.suppress(RuntimeError):
            thread.join()


class WakeUp:
    """A wake-up of one thread that waits. It is kept until somebody waits; several count once."""

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


class ThreadPool(ThreadPoolExecutor):
    """Pool of threads; LimitError where the system refuses one of them."""

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Begin a call; LimitError if it needs a thread more than the system gives."""
        try:
            return super().submit(function, *args, **kwargs)
        except RuntimeError as error:
            if "start new thread" not in str(error):  # the pool is closed
                raise
            name, count = self._thread_name_prefix, len(self._threads)
            what = f"thread {name}, number {count + 1} of {self._max_workers}, did not start"
            raise build_refusal(what, error) from None
