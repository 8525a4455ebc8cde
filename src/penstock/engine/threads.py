"""Threads that the system may refuse."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from ..errors import LimitError


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
