"""Clocks: code that waits asks one, so that tests and the simulator can jump in time.

All times are integer nanoseconds.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic time and waiting, in nanoseconds."""

    def now_ns(self) -> int: ...

    def wait_until_ns(self, deadline_ns: int) -> None: ...


class SystemClock:
    """The monotonic clock of the machine."""

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def wait_until_ns(self, deadline_ns: int) -> None:
        remaining_ns = deadline_ns - time.monotonic_ns()
        if remaining_ns > 0:
            time.sleep(remaining_ns * 1e-9)


class JumpingClock:
    """A clock that jumps to the time that is waited for: waiting takes no time."""

    def __init__(self, start_ns: int = 0) -> None:
        self._now_ns = start_ns

    def now_ns(self) -> int:
        return self._now_ns

    def wait_until_ns(self, deadline_ns: int) -> None:
        self._now_ns = max(self._now_ns, deadline_ns)
