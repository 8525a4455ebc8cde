"""Online rules: which transfer goes first, decided whenever one begins or ends. Pure.

After Gainaru et al., Scheduling the I/O of HPC Applications under Congestion (IPDPS 2015). `grant`
is the decision, for a storage that running jobs share. `simulate` asks it again and again, for jobs
that keep to their cycles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from ... import limits
from ...errors import LimitError, UsageError
from .jobs import PeriodicJob, ScheduleOutcome, compute_outcome, require, require_jobs

RuleName = Literal["round-robin", "min-dilation", "max-efficiency", "min-max", "fair"]


@dataclass(frozen=True, slots=True)
class Rule:
    """Rule by which bandwidth is granted.

    name:           "round-robin": first the job that has waited longest since its last transfer;
                    "min-dilation": first the one that is slowed down most; "max-efficiency": first
                    the one with most weight, if all are slowed down alike; "min-max": the same, but
                    while a job's progress is below `gamma`, first the one that is slowed down most;
                    "fair": to all at once, none gets less than another that could do with less: so
                    does storage that is left to itself.
    gamma:          progress, as in `Waiting`, of 0..1; for "min-max" alone.
    divisible:      True if the last job that gets something may get a part of the rate that it
                    could take; else a job that cannot have all of it waits.

    Raises UsageError if one is something else.
    """

    name: RuleName = "round-robin"
    gamma: float = 0.5
    divisible: bool = True

    def __post_init__(self) -> None:
        if self.name not in get_args(RuleName):
            raise UsageError(
                f"Rule.name is {self.name!r}: use one of {', '.join(get_args(RuleName))}"
            )
        require("Rule.gamma", self.gamma, zero=True)
        if self.gamma > 1:
            raise UsageError(f"Rule.gamma is {self.gamma!r}: use a fraction of 0..1")


RULES = (
    Rule("round-robin"),
    Rule("min-dilation"),
    Rule("max-efficiency"),
    Rule("min-max", gamma=0.5),
)
"""The rules of the paper, with bandwidth that can be divided.

On the paper's own jobs that is better in both objectives than without, for every rule.
"""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job that has something to transfer now.

    bytes_per_s:   rate that it could take.
    weight:        of the job.
    idle_since_s:  end of its last transfer, 0 if there was none.
    progress:      its cycles so far, over those that it could have finished alone: 0..1.
    """

    bytes_per_s: float
    weight: float = 1.0
    idle_since_s: float = 0.0
    progress: float = 1.0


def grant(waiting: Sequence[Waiting], bandwidth: float, rule: Rule) -> list[float]:
    """Grant bytes/s to each waiting job.

    None gets more than it could take, nor all more than `bandwidth`. With a divisible bandwidth
    nothing is left while a job could take it.
    """
    if rule.name == "fair":
        return _grant_fairly(waiting, bandwidth)
    rates = [0.0] * len(waiting)
    left = bandwidth
    for number in _order_by_rule(waiting, rule):
        wanted = min(waiting[number].bytes_per_s, bandwidth)
        if rule.divisible or wanted <= left * (1 + 1e-9):
            rates[number] = min(wanted, left)
            left -= rates[number]
    return rates


def _order_by_rule(waiting: Sequence[Waiting], rule: Rule) -> list[int]:
    """Return the order of the jobs; among equals the first in the list goes first."""
    by_progress = rule.name == "min-dilation" or (
        rule.name == "min-max" and any(job.progress < rule.gamma for job in waiting)
    )

    def key(number: int) -> float:
        job = waiting[number]
        if rule.name == "round-robin":
            return job.idle_since_s
        return job.progress if by_progress else job.progress / job.weight

    return sorted(range(len(waiting)), key=key)


def _grant_fairly(waiting: Sequence[Waiting], bandwidth: float) -> list[float]:
    rates = [0.0] * len(waiting)
    left, unserved = bandwidth, len(waiting)
    for number in sorted(range(len(waiting)), key=lambda number: waiting[number].bytes_per_s):
        rates[number] = min(waiting[number].bytes_per_s, left / unserved)
        left -= rates[number]
        unserved -= 1
    return rates


@dataclass(slots=True)
class _Running:
    """A job on its way through its cycles: it computes until `ready_s`, or has `left` bytes to
    transfer."""

    job: PeriodicJob
    cycle_s: float
    ready_s: float
    left: float = 0.0
    rate: float = 0.0
    cycles: int = 0
    idle_since_s: float = field(default=0.0)


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
        next_s = min(_find_next_s(runner, now_s) for runner in running)
        if next_s > horizon_s:
            break
        for runner in running:
            if runner.left:
                _advance(runner, now_s, next_s, tiny_s)
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
        if not runner.left and runner.ready_s <= now_s + tiny_s:
            runner.left = runner.job.transfer_bytes
    active = [runner for runner in running if runner.left]
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


def _find_next_s(running: _Running, now_s: float) -> float:
    """Return the time of a job's next event, as things are."""
    if not running.left:
        return running.ready_s
    return now_s + running.left / running.rate if running.rate else math.inf


def _advance(running: _Running, now_s: float, next_s: float, tiny_s: float) -> None:
    """Let a transfer go on, or end."""
    running.left -= running.rate * (next_s - now_s)
    if running.left <= running.rate * tiny_s:
        running.left, running.rate = 0.0, 0.0
        running.cycles += 1
        running.idle_since_s = next_s
        running.ready_s = next_s + running.job.compute_s
