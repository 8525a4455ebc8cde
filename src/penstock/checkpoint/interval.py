"""The best interval between the saves of a job: long enough that the job keeps up and saves cost
little, short enough that failures cost little. Pure.

A save takes from training the time for which it blocks, and the time by which steps take longer
while the write goes on behind them. Let C be that cost, and M the mean time between failures at
random (a Poisson process). With work t between two saves, the part of all time that is
lasting work is

    t / M * exp(-(t + L + R) / M) / (1 - exp(-(t + C) / M))

L is the time from the call of `save` to the commit: a job that fails in between goes back to the
save before. R is the time to start again. L and R are separate factors, so they do not move the
best t, a root of x + log(1 - x) = -C / M with x = t / M. Young's sqrt(2 C M) is the first
term of its series and Daly's formula the first three terms. The root itself costs no more, and
holds for any C / M.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Literal, NamedTuple

from .. import limits
from ..arguments import check_fields, check_kind, whole
from ..errors import UsageError
from ..sharing.job_state import quantity

OVERHEAD = 0.035
"""Part of training's own time that saving may cost; CheckFreq's bound."""

Binds = Literal["failures", "commit", "overhead", "step"]
"""The condition that demands the most steps between saves: the fewest losses to failures
("failures"), the commit of the save before ("commit"), or the bound on the cost of saving
("overhead"). "step" if none does: saving at each step is not too often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The times that a save takes, in seconds.

    blocked_s:  for which training does not go on.
    commit_s:   from the call to the commit; blocked_s or more.
    step_s:     of a training step while nothing is written.
    slowdown:   the part by which a step takes longer while a save is written: 0.03 is 3 %.
    """

    blocked_s: float = field(metadata=quantity(zero=True))
    commit_s: float = field(metadata=quantity(zero=True))
    step_s: float = field(metadata=quantity())
    slowdown: float = field(default=0.0, metadata=quantity(zero=True))

    def __post_init__(self) -> None:
        check_fields(self)
        if self.commit_s < self.blocked_s:
            what = f"Costs.commit_s is {self.commit_s!r}, below blocked_s {self.blocked_s!r}"
            raise UsageError(f"{what}: give the time from the call of save")

    @property
    def lost_s(self) -> float:
        """Training time that a save costs."""
        behind_s = self.commit_s - self.blocked_s
        return self.blocked_s + behind_s * self.slowdown / (1 + self.slowdown)

    @property
    def commit_steps(self) -> int:
        """Count the fewest steps after which the save before is committed, so that no save waits
        for it."""
        behind_s = self.commit_s - self.blocked_s
        return max(1, math.ceil(behind_s / (self.step_s * (1 + self.slowdown))))

    def overhead_steps(self, overhead: float) -> int:
        """Count the fewest steps between saves for which saves take no larger part of training's
        time."""
        return max(1, math.ceil(self.lost_s / (self.step_s * overhead)))

    def failure_steps(self, mtbf_s: float) -> int:
        """Count the steps between saves with which most work lasts."""
        before = max(1, math.floor(find_best_work_s(self.lost_s, mtbf_s) / self.step_s))
        # Compares the steps that last, if the job starts again at once.
        return max(before, before + 1, key=lambda steps: self.commits(steps, mtbf_s) * steps)

    def commits(self, steps: int, mtbf_s: float) -> float:
        """Compute the saves that are committed between two failures, on average.

        steps:  between saves; commit_steps or more.
        """
        work_s = steps * self.step_s
        first = math.exp(-(work_s + self.commit_s) / mtbf_s)
        return first / -math.expm1(-(work_s + self.lost_s) / mtbf_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """The failures of a job, in seconds.

    mtbf_s:     the mean time between failures of the job; of a node if `nodes` is given.
    nodes:      their number; a failure of any node is a failure of the job.
    restart_s:  from a failure until training goes on; failures may come during that time, too.
    """

    mtbf_s: float = field(metadata=quantity())
    nodes: int = field(default=1, metadata=whole())
    restart_s: float = field(default=0.0, metadata=quantity(zero=True))

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def job_mtbf_s(self) -> float:
        """Mean time between failures of all nodes together."""
        return self.mtbf_s / self.nodes


def find_best_work_s(cost_s: float, mtbf_s: float) -> float:
    """Find the work between saves, in seconds, with which most of it lasts; below mtbf_s.

    Young's sqrt(2 * cost_s * mtbf_s) is above it, by two thirds of cost_s if that is small.
    """
    if cost_s == 0:
        return 0.0
    cost = cost_s / mtbf_s
    # Newton's steps for -log(1 - x) - x = cost, which bends upwards, from above: they only go down.
    x = min(math.sqrt(2 * cost), -math.expm1(-1 - cost), 1 - 2.0**-53)
    while True:
        nearer = x - (-math.log1p(-x) - x - cost) * (1 - x) / x
        if not 0 < nearer < x:
            return x * mtbf_s
        x = nearer


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The advised interval between saves, and its cost.

    steps, seconds:                               from one save to the next, the save included.
    binds:                                        the condition that demands so many steps: the
                                                  largest of
    failure_steps, commit_steps, overhead_steps:  the steps that each condition demands.
    costs, failures:                              the input that the advice was computed from.
    saving, redoing, restarting:                  expected parts of all time: in saves; in work that
                                                  is done again after a failure; in starting again.
    lost_per_failure_s:                           expected training time that is done again after a
                                                  failure: about half of `seconds` and the time
                                                  until a commit. Without the restart.
    """

    steps: int
    seconds: float
    binds: Binds
    failure_steps: int
    commit_steps: int
    overhead_steps: int
    costs: Costs
    failures: Failures
    saving: float
    redoing: float
    restarting: float
    lost_per_failure_s: float

    @property
    def lost(self) -> float:
        """Expected part of all time that brings training no further: 0..1."""
        return self.saving + self.redoing + self.restarting


def advise_interval(costs: Costs, failures: Failures, overhead: float = OVERHEAD) -> Advice:
    """Advise the interval that loses least to failures, or the shortest that saving allows if that
    is longer.

    overhead:  the largest part of training's own time that saves may take, such as 0.035, however
               often the job fails. UsageError unless it is above 0.
    """
    check_kind("costs", costs, Costs, "a penstock.checkpoint.Costs")
    check_kind("failures", failures, Failures, "a penstock.checkpoint.Failures")
    least, most = limits.allocation_number_min, limits.allocation_number_max
    if not isinstance(overhead, int | float) or not least <= overhead <= most:
        raise UsageError(f"overhead is {overhead!r}: use a part of training's time, such as 0.035")
    mtbf_s = failures.job_mtbf_s
    wanted: dict[Binds, int] = {
        "failures": costs.failure_steps(mtbf_s),
        "commit": costs.commit_steps,
        "overhead": costs.overhead_steps(overhead),
    }
    steps = max(wanted.values())
    binds: Binds = "step" if steps == 1 else max(wanted, key=wanted.__getitem__)
    seconds = steps * costs.step_s + costs.lost_s
    commits = costs.commits(steps, mtbf_s)
    lost_s = max(0.0, mtbf_s - commits * seconds)
    up = math.exp(-failures.restart_s / mtbf_s)
    return Advice(
        steps=steps,
        seconds=seconds,
        binds=binds,
        failure_steps=wanted["failures"],
        commit_steps=wanted["commit"],
        overhead_steps=wanted["overhead"],
        costs=costs,
        failures=failures,
        saving=up * commits * costs.lost_s / mtbf_s,
        redoing=up * lost_s / mtbf_s,
        restarting=1 - up,
        lost_per_failure_s=lost_s,
    )


# -- measured times --------------------------------------------------------------------------------


_SAVES_KEPT = 8
"""Saves that are remembered: enough for a median that one odd save or pause does not move."""


class _SaveTimes(NamedTuple):
    """Times of one save, from its call on: how long it waited for the save before, how long
    training was blocked, and when it was committed."""

    step: int
    began_s: float
    waited_s: float
    blocked_s: float
    seconds: float


class SavePace:
    """The times of the last few saves, as medians.

    The time that a save waited for the one before is left out: longer intervals are there to remove
    it.
    """

    def __init__(self) -> None:
        self._saves: deque[_SaveTimes] = deque(maxlen=_SAVES_KEPT)

    def record_commit(self, step: int, began_s: float, blocked_s: float, seconds: float) -> None:
        """Record that the save which was called at `began_s` was committed `seconds` later, and
        that training was blocked for `blocked_s`. In the order of the saves."""
        waited_s = 0.0
        if self._saves:
            waited_s = self._saves[-1].began_s + self._saves[-1].seconds - began_s
        self._saves.append(_SaveTimes(step, began_s, max(0.0, waited_s), blocked_s, seconds))

    def compute_costs(self, step_s: float | None = None, slowdown: float = 0.0) -> Costs:
        """Compute the costs of a save.

        step_s:  of a step; None takes it from the steps and times at which `save` was called, with
                 all that the job did in between.

        UsageError before a save was committed, and if the length of steps is not known yet.
        """
        done = list(self._saves)
        if not done:
            raise UsageError("no save has been committed yet: ask for advice after one")
        if step_s is None:
            steps = [
                (after.began_s - before.began_s - before.blocked_s) / (after.step - before.step)
                for before, after in pairwise(done)
                if after.step > before.step
            ]
            if not steps:
                raise UsageError("a step's time is not known before a second save: give step_s=")
            step_s = median(steps)
        return Costs(
            blocked_s=max(0.0, median(save.blocked_s - save.waited_s for save in done)),
            commit_s=median(save.seconds - save.waited_s for save in done),
            step_s=step_s,
            slowdown=slowdown,
        )
