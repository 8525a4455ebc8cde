"""PerSched: a pattern of transfers that is repeated, found offline. Pure.

After Aupy, Gainaru and Le Fèvre, I/O Scheduling Strategy for Periodic Applications (TOPC 6(2),
2019), as their program has it where that and the printed algorithm differ. Jobs are put into a
pattern cycle by cycle, always the one that is furthest behind, until nothing fits; the pattern's
length is searched, upwards by a factor and then downwards in small steps.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, get_args

from penstock import limits
from penstock.arguments import check_choice
from penstock.errors import LimitError, UsageError

from .periodic import (
    Objective,
    PeriodicJob,
    ScheduleOutcome,
    compute_outcome,
    require,
    require_jobs,
)

_gain_min = 1e-6
"""Gain by which a longer pattern must be better."""
_tie_s = 1e-6
"""Difference below which two jobs are equally far behind."""
_time, _rate, _volume = 1e-11, 1e-9, 1e-9
"""Parts of the period, of the bandwidth and of a transfer that count as nothing."""


class TransferStretch(NamedTuple):
    """A part of a transfer, at one rate, from `start_s` to `end_s`."""

    start_s: float
    end_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Pattern:
    """Transfers of each job in one period that is repeated.

    period_s:   its length.
    transfers:  of each job, for each of its cycles, the stretches of the transfer. Times of a job
                ascend: its first transfer begins within [0, period_s), the last one ends, and
                `compute_s` more pass, before the first one begins again, a period later.
    outcome:    of the jobs if it is repeated for ever.
    """

    period_s: float
    transfers: tuple[tuple[tuple[TransferStretch, ...], ...], ...]
    outcome: ScheduleOutcome

    @property
    def cycles(self) -> tuple[int, ...]:
        """Cycles of each job in one period."""
        return tuple(map(len, self.transfers))


def plan_periodic(
    jobs: Sequence[PeriodicJob],
    bandwidth: float,
    *,
    objective: Objective = "efficiency",
    shortest_s: float | None = None,
    longest_ratio: float = 10,
    step: float = 0.01,
) -> Pattern:
    """Find the best pattern by PerSched: within the fluid bounds, every job in it once or more.

    bandwidth:      of the storage, bytes/s, shared by any jobs in any proportion.
    objective:      the patterns are compared by; the paper's is efficiency.
    shortest_s:     period at which the search begins. By default the longest cycle, or one transfer
                    of every job, whichever is more.
    longest_ratio:  the longest period, over the shortest.
    step:           a period is longer by this part than the one before.

    Takes seconds for ten jobs whose cycles differ by a factor of 100; it grows with that factor,
    and with the square of the number of jobs. Raises LimitError if a pattern would have more than
    `limits.pattern_cycles_max` cycles, and UsageError if no period holds every job.
    """
    require_jobs(jobs, bandwidth)
    check_choice("objective", objective, get_args(Objective))
    if shortest_s is None:
        needed_s = sum(job.transfer_bytes for job in jobs) / bandwidth
        shortest_s = max(needed_s, *(job.cycle_s(bandwidth) for job in jobs))
    require("shortest_s", shortest_s)
    require("longest_ratio", longest_ratio)
    if longest_ratio < 1:
        raise UsageError(f"longest_ratio is {longest_ratio!r}: use 1 or above")
    require("step", step)
    if not 1e-4 <= step <= 1:
        raise UsageError(f"step is {step!r}: use a fraction of 0.0001..1")
    most = sum(longest_ratio * shortest_s / job.cycle_s(bandwidth) for job in jobs)
    if most > limits.pattern_cycles_max:
        raise LimitError(
            f"a pattern of {longest_ratio * shortest_s:g} s has {most:,.0f} cycles of all jobs,"
            f" more than pattern_cycles_max {limits.pattern_cycles_max:,}: use an online rule, or"
            " a smaller longest_ratio"
        )

    best: Pattern | None = None
    period_s = shortest_s
    while period_s <= longest_ratio * shortest_s:
        pattern = _make_pattern(jobs, bandwidth, period_s)
        if pattern is not None and (
            best is None
            or pattern.outcome.score(objective) > best.outcome.score(objective) + _gain_min
        ):
            best = pattern
        period_s *= 1 + step
    if best is None:
        raise UsageError(
            f"no period of {shortest_s:g}..{longest_ratio * shortest_s:g} s holds a cycle of every"
            " job: use a larger shortest_s or longest_ratio"
        )
    return _shorten(jobs, bandwidth, best, step)


def _shorten(jobs: Sequence[PeriodicJob], bandwidth: float, best: Pattern, step: float) -> Pattern:
    """Shorten the pattern with the same cycles, as far as small steps go."""
    pieces = math.floor(1 / step)
    step_s = (best.period_s - best.period_s / (1 + step)) / pieces
    period_s = best.period_s - step_s
    while period_s > 0:
        pattern = _make_pattern(jobs, bandwidth, period_s)
        if pattern is None or pattern.cycles != best.cycles:
            break
        best = pattern
        period_s -= step_s
    return best


def _make_pattern(jobs: Sequence[PeriodicJob], bandwidth: float, period_s: float) -> Pattern | None:
    """Make a pattern of this length; None if a job has no place in it."""
    load = _PeriodLoad(period_s, bandwidth)
    transfers: list[list[tuple[TransferStretch, ...]]] = [[] for _ in jobs]

    def behind(number: int) -> tuple[float, float, int]:
        job = jobs[number]
        done_s = len(transfers[number]) * job.cycle_s(bandwidth)
        return round(done_s / _tie_s), -job.compute_s / job.transfer_s(bandwidth), number

    waiting = [behind(number) for number in range(len(jobs))]
    heapq.heapify(waiting)
    while waiting:
        number = waiting[0][2]
        transfer = load.place(jobs[number], transfers[number])
        if transfer is not None:
            load.add(transfer)
            transfers[number].append(transfer)
            heapq.heapreplace(waiting, behind(number))
        elif transfers[number]:
            heapq.heappop(waiting)  # never again: the load only grows
        else:
            return None
    got = compute_outcome(jobs, bandwidth, [period_s / len(cycles) for cycles in transfers])
    return Pattern(period_s, tuple(map(tuple, transfers)), got)


class _PeriodLoad:
    """Use of the bandwidth in each part of a period that is repeated.

    Part i is between _times[i] and _times[i + 1], the last one ends with the period.
    """

    def __init__(self, period_s: float, bandwidth: float) -> None:
        self._period_s = period_s
        self._bandwidth = bandwidth
        self._times = [0.0]
        self._used = [0.0]

    def place(
        self, job: PeriodicJob, earlier: Sequence[tuple[TransferStretch, ...]]
    ) -> tuple[TransferStretch, ...] | None:
        """Place the transfer of the job's next cycle after its earlier ones; None if it does not
        fit.

        The transfer of a job's first cycle is placed where it takes least time, so that not all
        jobs begin at once; the others are as early as they can be.
        """
        if earlier:
            start_s = earlier[-1][-1].end_s + job.compute_s
            first_again_s = earlier[0][0].start_s + self._period_s
            return self._fill_transfer(job, start_s, first_again_s - job.compute_s)
        least_s = job.transfer_s(self._bandwidth) * (1 + _volume)
        best: tuple[TransferStretch, ...] | None = None
        best_s = math.inf
        for start_s in self._times:
            transfer = self._fill_transfer(job, start_s, start_s + self._period_s - job.compute_s)
            if transfer is None:
                continue
            took_s = transfer[-1].end_s - start_s
            if took_s < best_s * (1 - _volume):
                best, best_s = transfer, took_s
            if best_s <= least_s:
                break
        return best

    def _fill_transfer(
        self, job: PeriodicJob, start_s: float, until_s: float
    ) -> tuple[TransferStretch, ...] | None:
        """Place the transfer in the rest from `start_s` on; None if it does not end in time."""
        tiny_s, tiny_rate = _time * self._period_s, _rate * self._bandwidth
        remaining_bytes = job.transfer_bytes
        stretches: list[TransferStretch] = []
        round_s = start_s - start_s % self._period_s
        place = bisect_right(self._times, start_s % self._period_s) - 1
        now_s = start_s
        while remaining_bytes > _volume * job.transfer_bytes:
            if place == len(self._times):
                place, round_s = 0, round_s + self._period_s
            end_s = round_s + (
                self._times[place + 1] if place + 1 < len(self._times) else self._period_s
            )
            rate = min(job.bytes_per_s, self._bandwidth - self._used[place])
            if rate > tiny_rate and end_s - now_s > tiny_s:
                end_s = min(end_s, now_s + remaining_bytes / rate)
                remaining_bytes -= rate * (end_s - now_s)
                stretches.append(TransferStretch(now_s, end_s, rate))
            if end_s > until_s + tiny_s:
                return None
            now_s = end_s
            place += 1
        return tuple(stretches)

    def add(self, stretches: Sequence[TransferStretch]) -> None:
        """Subtract the bandwidth that a transfer uses."""
        for start_s, end_s, rate in stretches:
            first = self._cut(start_s % self._period_s)
            last = self._cut(end_s % self._period_s)
            first = self._cut(start_s % self._period_s)  # a cut before it moves it
            if first == last and end_s - start_s < self._period_s / 2:
                continue  # so short that both ends are one
            until = last if last > first else last + len(self._times)
            for place in range(first, until):
                self._used[place % len(self._times)] += rate

    def _cut(self, time_s: float) -> int:
        """Return the place of the part that begins at a time; make one if none is so near."""
        tiny_s = _time * self._period_s
        place = bisect_right(self._times, time_s) - 1
        if time_s - self._times[place] <= tiny_s:
            return place
        following = self._times[place + 1] if place + 1 < len(self._times) else self._period_s
        if following - time_s <= tiny_s:
            return (place + 1) % len(self._times)
        self._times.insert(place + 1, time_s)
        self._used.insert(place + 1, self._used[place])
        return place + 1
