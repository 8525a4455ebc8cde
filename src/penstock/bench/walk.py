"""One rank's steps through an epoch: wait for a batch, compute, meet the others; with stamps."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import UsageError
from .metrics import Stamps
from .pace import StepPace

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
