"""The steps by which a checkpoint comes to be, one by one: where a test lets a process die.

Every operation that changes storage calls `reached` before and after. Nothing happens there, unless
a test has put something in `watcher`.
"""

from __future__ import annotations

from collections.abc import Callable

watcher: Callable[[str], None] | None = None


def reached(what: str) -> None:
    """This is about to be done, or has just been."""
    if watcher is not None:
        watcher(what)
