"""Detector of jobs that have changed: when to divide shares anew, and whether it pays. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .. import limits
from .allocation import Allocation, Objective, score
from .throughput_model import JobProfile, Share, predict

_followed = ("samples_per_s", "cpu_s", "storage_bytes", "efficiency")


class Drift:
    """Comparison of one job's measured profile with the one that its share was made for.

    The job has changed when some value has been off by more than `tolerance` in `windows` windows
    in a row, both measured in that window and smoothed over the ones before, to the same side. So
    one odd window changes nothing, and a job changes at most once in `windows` of them.

    profile:    the one that the share was made for.
    tolerance:  relative, above 0.
    windows:    at least 1.
    weight:     of the newest window in the smoothed values, above 0 to 1.
    """

    def __init__(
        self, profile: JobProfile, *, tolerance: float = 0.2, windows: int = 3, weight: float = 0.5
    ) -> None:
        self._tolerance, self._windows, self._weight = tolerance, windows, weight
        self._base = profile
        self._smooth = {name: float(getattr(profile, name)) for name in _followed}
        self._off = dict.fromkeys(_followed, 0)

    @property
    def profile(self) -> JobProfile:
        """Profile that measured windows are compared with."""
        return self._base

    def observe(self, measured: JobProfile) -> JobProfile | None:
        """Take one window; return the smoothed profile if the shares are to be divided anew, else
        None.

        Later windows are compared with the profile that was returned.
        """
        for name in _followed:
            value = float(getattr(measured, name))
            before = self._smooth[name]
            smooth = before + self._weight * (value - before)
            if smooth < limits.allocation_number_min:
                smooth = value  # has come from something to nothing, and is none for a profile
            self._smooth[name] = smooth
            base = float(getattr(self._base, name))
            side = self._side(value, base)
            streak = self._off[name]
            if side == 0 or side != self._side(smooth, base):
                self._off[name] = 0
            else:
                self._off[name] = streak + side if streak * side >= 0 else side
        if max(map(abs, self._off.values())) < self._windows:
            return None
        smoothed: dict[str, Any] = dict(self._smooth)
        self._base = replace(measured, **smoothed)
        self._off = dict.fromkeys(_followed, 0)
        return self._base

    def _side(self, value: float, base: float) -> int:
        """Return 1 above the tolerance, -1 below, 0 within."""
        if value == base:
            return 0
        return (value > base * (1 + self._tolerance)) - (value < base * (1 - self._tolerance))


def is_worthwhile(
    jobs: Sequence[JobProfile],
    shares: Sequence[Share],
    proposed: Allocation,
    *,
    horizon_s: float,
    switch_s: float,
) -> bool:
    """True if shares should be replaced by a proposal.

    That is if a job is below its floor, which is a promise, or if the gain over the horizon is more
    than the cost of switching.

    jobs:       as they are now, the same as in the proposal.
    horizon_s:  for how long the new shares are expected to hold.
    switch_s:   seconds of all jobs' work that are lost by switching.
    """
    now = [predict(job, share).samples_per_s for job, share in zip(jobs, shares, strict=True)]
    if any(rate < 0.99 * floor for rate, floor in zip(now, proposed.floors, strict=True)):
        return True
    objective: Objective = proposed.objective
    value = score(jobs, now, objective)
    return (proposed.value - value) * horizon_s > switch_s * value
