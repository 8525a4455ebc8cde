"""The emulated accelerator: waits that end when they should, on a core that is mostly free.

A sleep alone ends late, by the timer's slack and a wake-up (about 0.1 ms, a third of a short step).
So most of a wait is slept, without the interpreter's lock, and its last part is watched.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

_MARGIN_NS = (60_000, 250_000)
"""Least and most time that is watched at the end of a wait. Watching takes time from the loader's
own threads, so it has to be short even if sleeps end late."""


class StepPace:
    """Waits until a time; learns how late sleeps end, and wakes up as much earlier.

    clock, sleep:  of the world; tests have their own.
    """

    def __init__(
        self,
        clock: Callable[[], int] = time.perf_counter_ns,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.clock = clock
        self._sleep = sleep
        self._margin_ns = sum(_MARGIN_NS) // 2

    def until(self, due_ns: int) -> int:
        """Wait until `due_ns`, or not at all if it has passed; return the time then."""
        clock, margin_ns = self.clock, self._margin_ns
        now_ns = clock()
        left_ns = due_ns - now_ns - margin_ns
        if left_ns > 0:
            self._sleep(left_ns * 1e-9)
            late_ns = clock() - now_ns - left_ns
            least_ns, most_ns = _MARGIN_NS
            wanted_ns = max(margin_ns * 63 // 64, late_ns * 5 // 4, least_ns)
            self._margin_ns = min(wanted_ns, most_ns)
            now_ns = clock()
        while now_ns < due_ns:
            now_ns = clock()
        return now_ns


def sharpen_timers() -> None:
    """Let this process's main thread sleep to the nanosecond instead of to 50 us, if the kernel
    permits it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/timerslack_ns").write_text("1")
