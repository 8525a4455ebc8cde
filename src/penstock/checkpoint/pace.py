"""Measured times of a job's saves, and of its steps between them, by the job's own clock. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from ..errors import UsageError
from .interval import Costs

_SAVES_KEPT = 8
"""Saves that are remembered: enough for a median that one odd save or pause does not move."""


@dataclass(slots=True)
class _SaveTimes:
    """Times of one save, from its call on: how long it waited for the save before, how long
    training was blocked, and when it was committed; 0 until then."""

    step: int
    began_s: float
    waited_s: float
    blocked_s: float = 0.0
    seconds: float = 0.0


class SavePace:
    """The times of the last few saves, as medians.

    The time that a save waited for the one before is left out: longer intervals are there to remove
    it.
    """

    def __init__(self) -> None:
        self._saves: deque[_SaveTimes] = deque(maxlen=_SAVES_KEPT)

    def record_start(self, step: int, now_s: float) -> None:
        """Record that `save` was called at this time, when no other save is in memory any more."""
        waited_s = 0.0
        if self._saves:
            waited_s = self._saves[-1].began_s + self._saves[-1].seconds - now_s
        self._saves.append(_SaveTimes(step, now_s, max(0.0, waited_s)))

    def record_commit(self, began_s: float, blocked_s: float, seconds: float) -> None:
        """Record that the save that began at `began_s` was committed `seconds` after its call, and
        that training was blocked for `blocked_s`."""
        for save in reversed(list(self._saves)):
            if save.began_s == began_s:
                save.blocked_s, save.seconds = blocked_s, seconds
                break

    def compute_costs(self, step_s: float | None = None, slowdown: float = 0.0) -> Costs:
        """Compute the costs of a save.

        step_s:  of a step; None takes it from the steps and times at which `save` was called, with
                 all that the job did in between.

        UsageError before a save was committed, and if the length of steps is not known yet.
        """
        done = [save for save in self._saves if save.seconds]
        if not done:
            raise UsageError("no save has been committed yet: ask for advice after one")
        if step_s is None:
            steps = [
                (after.began_s - before.began_s - before.blocked_s) / (after.step - before.step)
                for before, after in pairwise(self._saves)
                if before.seconds and after.step > before.step
            ]
            if not steps:
                raise UsageError(
                    "how long a step takes is not known before a second save: give step_s="
                )
            step_s = median(steps)
        return Costs(
            blocked_s=max(0.0, median(save.blocked_s - save.waited_s for save in done)),
            commit_s=median(save.seconds - save.waited_s for save in done),
            step_s=step_s,
            slowdown=slowdown,
        )
