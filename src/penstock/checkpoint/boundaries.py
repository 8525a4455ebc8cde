"""The steps by which a checkpoint comes to be, one by one: where a test lets a process die, and
where one is looked for that hangs.

Every operation that changes storage calls `reached` before and after.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable

watcher: Callable[[str], None] | None = None
"""What a test has done at each of them."""

_stands: weakref.WeakKeyDictionary[threading.Thread, tuple[str, float]]
_stands = weakref.WeakKeyDictionary()


def stands(thread: threading.Thread) -> tuple[str, float]:
    """The last that a thread has reached, and for how many seconds it has been there."""
    what, since_s = _stands.get(thread, ("begin", time.monotonic()))
    return what, time.monotonic() - since_s


def reached(what: str) -> None:
    """This is about to be done, or has just been."""
    _stands[threading.current_thread()] = what, time.monotonic()
    if watcher is not None:
        watcher(what)
