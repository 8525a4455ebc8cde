"""Clocks, and events to come: code that waits asks one, so that tests and the simulator can jump
in time.

All times are integer nanoseconds.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
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


class EventQueue:
    """Calls to be made at times to come, earliest first; of equal times, in the order of adding."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.made = 0
        self._calls: list[tuple[int, int, Callable[[], None]]] = []
        self._added = 0

    def add(self, at_ns: int, call: Callable[[], None]) -> None:
        """Make a call at this time, or now if that is over."""
        heapq.heappush(self._calls, (max(at_ns, self.now_ns), self._added, call))
        self._added += 1

    def add_in(self, delay_ns: float, call: Callable[[], None]) -> None:
        """Make a call after a delay."""
        self.add(self.now_ns + int(delay_ns), call)

    def step(self) -> bool:
        """Jump to the next call and make it; False if there is none."""
        if not self._calls:
            return False
        self.now_ns, _, call = heapq.heappop(self._calls)
        self.made += 1
        call()
        return True
