"""The steps by which a checkpoint comes to be, one by one: where a test lets a process die, and
where one is looked for that hangs.

Every operation that changes storage calls `reached` before and after.
"""

from __future__ import annotations

import errno
import threading
import time
import weakref
from collections.abc import Callable

from ..errors import StalledError

watcher: Callable[[str], None] | None = None
"""What a test has done at each of them."""

_stands: weakref.WeakKeyDictionary[threading.Thread, tuple[str, float]]
_stands = weakref.WeakKeyDictionary()


def stalled(thread: threading.Thread, step: int, timeout_s: float) -> StalledError:
    """What is said of a thread that saves a step, and was waited for so long."""
    now_s = time.monotonic()
    what, since_s = _stands.get(thread, ("begin", now_s))
    failed = StalledError(
        f"the save of step {step} is still under way after {timeout_s:g} s of waiting: for"
        f" {now_s - since_s:.1f} s it has been about to {what}: wait on, or abandon it; and check"
        " the storage, also of the other ranks. What was committed before stands"
    )
    failed.errno = errno.ETIMEDOUT
    return failed


def reached(what: str) -> None:
    """This is about to be done, or has just been."""
    _stands[threading.current_thread()] = what, time.monotonic()
    if watcher is not None:
        watcher(what)
