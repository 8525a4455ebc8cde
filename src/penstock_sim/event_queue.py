"""Events to come, in simulated nanoseconds."""

from __future__ import annotations

import heapq
from collections.abc import Callable


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
