"""One rank's steps through an epoch: wait for a batch, compute, meet the others; with stamps.

A step computes on an emulated accelerator: a wait that ends when it should, on a core that is
mostly free. A sleep alone ends late, by the timer's slack and a wake-up (about 0.1 ms, a third of a
short step). So most of a wait is slept, without the interpreter's lock, and its last part is
watched.
"""

from __future__ import annotations

import contextlib
import time
from array import array
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import UsageError

from .results.metrics import Stamps

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


_END = object()


def walk(
    batches: Iterable[Any],
    nominal_ns: npt.NDArray[np.int64],
    pace: StepPace,
    barrier: Callable[[], object],
    taken: Callable[[Any], object],
    pause: Callable[[int], bool] | None = None,
    where: str = "the loader",
) -> Stamps:
    """Do `len(nominal_ns)` steps, each of which computes as long as its entry says.

    Beginning to iterate belongs to the first step's wait.

    taken:  receives each batch while the step computes: a step takes the longer of both.
    pause:  called after each step (from 1 on); True if it saved a checkpoint, whose time is then
            kept apart.
    where:  owner of the batches, for the error of an epoch that ends too early.
    """
    steps, nominal = len(nominal_ns), nominal_ns.tolist()
    columns = [array("q", bytes(8 * steps)) for _ in range(5)]
    asked, got, computed, left, paused = columns
    clock, until = pace.clock, pace.until
    began = clock()
    iterator = iter(batches)
    for step in range(steps):
        asked[step] = clock() if step else began
        batch = next(iterator, _END)
        arrived = got[step] = clock()
        if batch is _END:
            raise UsageError(
                f"{where} ended after {step:,} of {steps:,} steps: give --limit {step}, or make "
                "the workload's files, samples and batch size those of the loader"
            )
        taken(batch)
        computed[step] = until(arrived + nominal[step])
        barrier()
        left[step] = clock()
        if pause is not None and pause(step + 1):
            paused[step] = clock() - left[step]
    ended = clock()
    stamps = [np.frombuffer(column, np.int64) for column in columns]
    return Stamps(
        asked=stamps[0],
        got=stamps[1],
        computed=stamps[2],
        left=stamps[3],
        paused=stamps[4],
        nominal=nominal_ns,
        began=began,
        ended=ended,
    )
