"""Threads that the system may refuse."""

from __future__ import annotations

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
    """Start all threads, or `stop` those that were started and raise LimitError."""
    for number, thread in enumerate(threads):
        try:
            thread.start()
        except RuntimeError as error:
            stop()
            what = f"thread {thread.name}, number {number + 1} of {len(threads)}, did not start"
            raise build_refusal(what, error) from None


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
