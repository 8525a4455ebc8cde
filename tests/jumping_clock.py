"""A clock for tests, in which waiting takes no time."""

from __future__ import annotations


class JumpingClock:
    """A clock that jumps to the time that is waited for: waiting takes no time."""

    def __init__(self, start_ns: int = 0) -> None:
        self._now_ns = start_ns

    def now_ns(self) -> int:
        return self._now_ns

    def wait_until_ns(self, deadline_ns: int) -> None:
        self._now_ns = max(self._now_ns, deadline_ns)
