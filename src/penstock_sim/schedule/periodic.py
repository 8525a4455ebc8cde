"""Jobs that compute, then transfer, again and again through one storage; and bounds of their
progress; and online rules, simulated. Pure.

    efficiency   the mean over jobs, by weight, of the fraction of time that they compute
    dilation     of the job that suffers most: how many times longer a cycle takes than alone

Both are bounded by a fluid schedule: bytes of all jobs that flow at once, in any proportion.

Online rules decide whenever a transfer starts or ends (`grant`): after Gainaru et al., Scheduling
the I/O of HPC Applications under Congestion (IPDPS 2015). A broker follows one of them,
min-dilation (`penstock.sharing`). `simulate` asks one again and again, for jobs that keep to their
cycles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from penstock import limits
from penstock.arguments import check_fields, choice, fraction
from penstock.errors import LimitError, UsageError
from penstock.sharing import grant_fairly, grant_in_order

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
    spare, computed = bandwidth, 0.0
    worth = [job.weight * job.compute_s / job.transfer_bytes for job in jobs]
    for number in sorted(range(len(jobs)), key=lambda number: -worth[number]):
        taken = min(spare, alone[number])
        spare -= taken
        computed += worth[number] * taken
    efficiency = computed / sum(job.weight for job in jobs)
    return ScheduleOutcome(efficiency, max(1.0, sum(alone) / bandwidth))


# -- online rules ----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Running:
    """A job on its way through its cycles: it computes until `ready_s`, or has
    `remaining_bytes` to transfer."""

    job: PeriodicJob
    cycle_s: float
    ready_s: float
    remaining_bytes: float = 0.0
    rate: float = 0.0
    cycles: int = 0
    idle_since_s: float = 0.0

    def find_next_s(self, now_s: float) -> float:
        """Return the time of the job's next event, as things are."""
        if not self.remaining_bytes:
            return self.ready_s
        return now_s + self.remaining_bytes / self.rate if self.rate else math.inf

    def advance(self, now_s: float, next_s: float, tiny_s: float) -> None:
        """Let a transfer go on, or end."""
        self.remaining_bytes -= self.rate * (next_s - now_s)
        if self.remaining_bytes <= self.rate * tiny_s:
            self.remaining_bytes, self.rate = 0.0, 0.0
            self.cycles += 1
            self.idle_since_s = next_s
            self.ready_s = next_s + self.job.compute_s


def simulate(
    jobs: Sequence[PeriodicJob], bandwidth: float, rule: Rule, *, cycles: int | None = None
) -> ScheduleOutcome:
    """Simulate jobs that all begin to compute at once, over so many of the longest cycles.

    By default there are as many as hold `limits.simulated_transfers`, and 20 at least. A job's
    cycles count up to the end of its last one, so that the outcome may exceed a bound, by one part
    in `cycles` at most. Takes a few microseconds for each transfer and job that waits meanwhile.
    Raises LimitError if that would be more than `limits.simulated_transfers_max` transfers.
    """
    require_jobs(jobs, bandwidth)
    longest_s = max(job.cycle_s(bandwidth) for job in jobs)
    transfers = sum(longest_s / job.cycle_s(bandwidth) for job in jobs)  # in a longest cycle
    if cycles is None:
        cycles = max(20, int(limits.simulated_transfers / transfers))
    if isinstance(cycles, bool) or not isinstance(cycles, int) or cycles < 1:
        raise UsageError(f"cycles is {cycles!r}: use a whole number above 0, or None")
    transfers *= cycles
    if transfers > limits.simulated_transfers_max:
        raise LimitError(
            f"{cycles} of the longest cycles hold {transfers:,.0f} transfers of all jobs, more than"
            f" simulated_transfers_max {limits.simulated_transfers_max:,}: use fewer cycles"
        )
    running = [_Running(job, job.cycle_s(bandwidth), job.compute_s) for job in jobs]
    horizon_s = cycles * longest_s
    tiny_s = 1e-12 * horizon_s
    now_s = 0.0
    while True:
        _decide(running, bandwidth, rule, now_s, tiny_s)
        next_s = min(runner.find_next_s(now_s) for runner in running)
        if next_s > horizon_s:
            break
        for runner in running:
            if runner.remaining_bytes:
                runner.advance(now_s, next_s, tiny_s)
        now_s = next_s
    return compute_outcome(
        jobs,
        bandwidth,
        [runner.idle_since_s / runner.cycles if runner.cycles else math.inf for runner in running],
    )


def _decide(
    running: Sequence[_Running], bandwidth: float, rule: Rule, now_s: float, tiny_s: float
) -> None:
    """Let jobs that have done computing wait from now on, and give a rate to each that waits."""
    for runner in running:
        if not runner.remaining_bytes and runner.ready_s <= now_s + tiny_s:
            runner.remaining_bytes = runner.job.transfer_bytes
    active = [runner for runner in running if runner.remaining_bytes]
    elapsed_s = now_s or math.inf
    waiting = [
        Waiting(
            runner.job.bytes_per_s,
            runner.job.weight,
            runner.idle_since_s,
            runner.cycles * runner.cycle_s / elapsed_s,
        )
        for runner in active
    ]
    for runner, rate in zip(active, grant(waiting, bandwidth, rule), strict=True):
        runner.rate = rate


# -- online rules ----------------------------------------------------------------------------------

RuleName = Literal["round-robin", "min-dilation", "max-efficiency", "min-max", "fair"]


@dataclass(frozen=True, slots=True)
class Rule:
    """Rule by which bandwidth is granted.

    name:       "round-robin": first the job with the longest wait since its last transfer;
                "min-dilation": first the job slowed down most; "max-efficiency": first the job with
                most weight, among equally slowed ones; "min-max": the same, but first the job
                slowed down most while one's progress is below `gamma`; "fair": all at once,
                max-min fair, as storage does by default.
    gamma:      progress, as in `Waiting`, of 0..1; for "min-max" alone.
    divisible:  True if the last job may get a part of the rate that it could take; else it waits.

    Raises UsageError for other values.
    """

    name: RuleName = field(default="round-robin", metadata=choice(RuleName))
    gamma: float = field(default=0.5, metadata=fraction())
    divisible: bool = True

    def __post_init__(self) -> None:
        check_fields(self)


RULES = (
    Rule("round-robin"),
    Rule("min-dilation"),
    Rule("max-efficiency"),
    Rule("min-max", gamma=0.5),
)
"""Rules of the paper, with divisible bandwidth: better in both objectives on the paper's jobs."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job with something to transfer.

    bytes_per_s:   rate that it could take.
    weight:        of the job.
    idle_since_s:  end of its last transfer, 0 if there was none.
    progress:      cycles finished, over the cycles that it could have finished alone: 0..1.
    """

    bytes_per_s: float
    weight: float = 1.0
    idle_since_s: float = 0.0
    progress: float = 1.0


def grant(waiting: Sequence[Waiting], bandwidth: float, rule: Rule) -> list[float]:
    """Grant bytes/s to waiting jobs: no job more than it could take, all together no more than
    `bandwidth`. With a divisible bandwidth nothing remains while a job could take it."""
    wanted = [job.bytes_per_s for job in waiting]
    if rule.name == "fair":
        return grant_fairly(wanted, bandwidth)
    order = _order_by_rule(waiting, rule)
    return grant_in_order(wanted, order, bandwidth, divisible=rule.divisible)


def _order_by_rule(waiting: Sequence[Waiting], rule: Rule) -> list[int]:
    """Return the order of the jobs; among equals the first in the list wins."""
    by_progress = rule.name == "min-dilation" or (
        rule.name == "min-max" and any(job.progress < rule.gamma for job in waiting)
    )

    def key(number: int) -> float:
        job = waiting[number]
        if rule.name == "round-robin":
            return job.idle_since_s
        return job.progress if by_progress else job.progress / job.weight

    return sorted(range(len(waiting)), key=key)
