"""Jobs that compute, then transfer, again and again through one storage; and bounds of their
progress.

    efficiency   the mean over jobs, by weight, of the fraction of time that they compute
    dilation     of the job that suffers most: how many times longer a cycle takes than alone

Both are bounded by a fluid schedule: bytes of all jobs that flow at once, in any proportion.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from penstock.arguments import check_choice
from penstock.errors import UsageError

Objective = Literal["efficiency", "dilation"]
"""Objective of a schedule: efficiency is wanted high, dilation low."""


class ScheduleOutcome(NamedTuple):
    """Efficiency and dilation of a schedule; `dilation` is infinite if a job finishes no cycle."""

    efficiency: float
    dilation: float

    def score(self, objective: Objective) -> float:
        """Return the value by an objective; more is better."""
        return self.efficiency if objective == "efficiency" else -self.dilation


@dataclass(frozen=True, slots=True)
class PeriodicJob:
    """A job that computes, then transfers, then computes again, without overlap.

    compute_s:       between two transfers; 0 for one that only transfers.
    transfer_bytes:  of each transfer.
    bytes_per_s:     most that the job's own nodes can take or give.
    weight:          of the job in the efficiency, such as its nodes.

    Raises UsageError if one is absurd.
    """

    compute_s: float
    transfer_bytes: float
    bytes_per_s: float
    weight: float = 1.0

    def __post_init__(self) -> None:
        require("PeriodicJob.compute_s", self.compute_s, zero=True)
        require("PeriodicJob.transfer_bytes", self.transfer_bytes)
        require("PeriodicJob.bytes_per_s", self.bytes_per_s)
        require("PeriodicJob.weight", self.weight)
        require("PeriodicJob.transfer_bytes / bytes_per_s", self.transfer_bytes / self.bytes_per_s)

    def transfer_s(self, bandwidth: float) -> float:
        """Return the seconds of a transfer that has the storage to itself."""
        return self.transfer_bytes / min(self.bytes_per_s, bandwidth)

    def cycle_s(self, bandwidth: float) -> float:
        """Return the seconds of a cycle that has the storage to itself."""
        return self.compute_s + self.transfer_s(bandwidth)


def require(name: str, value: object, *, zero: bool = False) -> None:
    """Raise UsageError unless a value is a finite number above 0, or 0 if that is allowed."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (number and math.isfinite(value) and (value > 0 or (zero and value == 0))):  # type: ignore[arg-type, operator]
        least = "of 0 or above" if zero else "above 0"
        raise UsageError(f"{name} is {value!r}: use a finite number {least}")


def require_jobs(jobs: Sequence[PeriodicJob], bandwidth: float) -> None:
    """Raise UsageError unless there are jobs, and a storage that each of them can use."""
    require("bandwidth", bandwidth)
    if not jobs:
        raise UsageError("jobs is empty: give one PeriodicJob or more")
    for number, job in enumerate(jobs):
        if not isinstance(job, PeriodicJob):
            raise UsageError(f"jobs[{number}] is {job!r}: use a PeriodicJob")
        require(f"the transfer_s of jobs[{number}]", job.transfer_s(bandwidth))


def require_objective(objective: str) -> None:
    """Raise UsageError unless this is an objective."""
    check_choice("objective", objective, get_args(Objective))


def compute_outcome(
    jobs: Sequence[PeriodicJob], bandwidth: float, cycles_s: Sequence[float]
) -> ScheduleOutcome:
    """Return the outcome of jobs whose cycles take so long each, on average; infinite if none
    ends."""
    computing = sum(
        job.weight * job.compute_s / cycle_s for job, cycle_s in zip(jobs, cycles_s, strict=True)
    )
    dilation = max(
        cycle_s / job.cycle_s(bandwidth) for job, cycle_s in zip(jobs, cycles_s, strict=True)
    )
    return ScheduleOutcome(computing / sum(job.weight for job in jobs), dilation)


def fluid_bounds(jobs: Sequence[PeriodicJob], bandwidth: float) -> ScheduleOutcome:
    """Return the most efficiency and the least dilation that any schedule can have, each by itself.

    Efficiency is a fractional knapsack: x cycles a second of a job compute weight * compute_s * x,
    take transfer_bytes * x of the bandwidth, and x is 1 / cycle_s at most. With all jobs equally
    slow, dilation is the bandwidth that they would use alone over the bandwidth that there is.
    """
    require_jobs(jobs, bandwidth)
    alone = [job.transfer_bytes / job.cycle_s(bandwidth) for job in jobs]
    left, computed = bandwidth, 0.0
    worth = [job.weight * job.compute_s / job.transfer_bytes for job in jobs]
    for number in sorted(range(len(jobs)), key=lambda number: -worth[number]):
        taken = min(left, alone[number])
        left -= taken
        computed += worth[number] * taken
    efficiency = computed / sum(job.weight for job in jobs)
    return ScheduleOutcome(efficiency, max(1.0, sum(alone) / bandwidth))
