"""Clocks: code that waits asks one, so that tests can jump in time.

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
