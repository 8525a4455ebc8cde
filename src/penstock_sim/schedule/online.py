"""Online rules, simulated for jobs that compute and transfer in turns. Pure.

`penstock.sharing.grant` decides whenever a transfer starts or ends; `simulate` asks it again and
again, for jobs that keep to their cycles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock import limits
from penstock.errors import LimitError, UsageError
from penstock.sharing import Rule, Waiting, grant

from .jobs import PeriodicJob, ScheduleOutcome, compute_outcome, require_jobs


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
