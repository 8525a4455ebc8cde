"""Named points that the making of a checkpoint passes: tests let a process die at them, and error
messages name the point at which a thread hangs.

Every operation that changes storage calls `mark_point` before, and some call `mark_done` after.
"""

from __future__ import annotations

import errno
import threading
import time
import weakref
from collections.abc import Callable

from ..errors import StalledError

watcher: Callable[[str], None] | None = None
"""Function of a test that is called at each point."""

_last_points: weakref.WeakKeyDictionary[threading.Thread, tuple[str, float]]
_last_points = weakref.WeakKeyDictionary()
"""Last point of each thread, as a part of a sentence, and the time since then."""


def build_stall_error(thread: threading.Thread, step: int, timeout_s: float) -> StalledError:
    """Build the error for a thread that saves a step and did not end within `timeout_s`."""
    now_s = time.monotonic()
    point, since_s = _last_points.get(thread, ("it has been about to begin", now_s))
    failed = StalledError(
        f"the save of step {step} is still under way after {timeout_s:g} s of waiting: for"
        f" {now_s - since_s:.1f} s {point}: wait longer, or abandon it; and check the storage, also"
        " of the other ranks. Earlier checkpoints are not affected"
    )
    failed.errno = errno.ETIMEDOUT
    return failed


def mark_point(action: str) -> None:
    """Note that the current thread is about to do this. action: a verb and its object."""
    _mark(action, f"it has been about to {action}")


def mark_done(action: str) -> None:
    """Note that the current thread has just done this. action: a verb in the past, and its
    object."""
    _mark(action, f"nothing has happened since it {action}")


def _mark(action: str, sentence: str) -> None:
    _last_points[threading.current_thread()] = sentence, time.monotonic()
    if watcher is not None:
        watcher(action)
