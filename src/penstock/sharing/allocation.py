"""Allocation of a host to its jobs: the shares that are best for all of them. Pure.

Throughput is linear in the share up to a ceiling (`throughput_model`), so the best shares are a
linear program (`share_lp`). By default no job gets less than an even split would give it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

import numpy as np

from .. import limits
from ..errors import UsageError
from .share_lp import SOLVERS, Float, Program, Solver
from .throughput_model import Contention, JobProfile, Prediction, Share, check_number, predict

__all__ = [
    "Allocation",
    "Contention",
    "JobProfile",
    "Objective",
    "Prediction",
    "Resources",
    "Share",
    "Worth",
    "allocate",
    "even_share",
    "predict",
    "round_workers",
    "score",
]

Objective = Literal["samples", "utilisation", "makespan"]
"""Quantity that is maximised.

samples: samples/s of all jobs. utilisation: the sum of the parts of their time in which
accelerators are busy. makespan: the slowest job's part of its remaining work a second, so that the
last job ends as early as it can, and then, with the rest, utilisation.
"""

UNITS: dict[Objective, str] = {
    "samples": "samples/s",
    "utilisation": "accelerators kept busy",
    "makespan": "of the remaining work a second",
}
"""Units of the value of an objective, in words."""

_rounding = 1e-9
"""Relative difference below which sums of shares are equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Resources to share.

    cores:        of the host, or a part of them.
    bytes_per_s:  of storage, inf without a limit.
    cache_bytes:  of a cache that jobs share.
    contention:   of storage under several streams: then no more than its best rate is given out,
                  and no more streams than have it.
    """

    cores: float
    bytes_per_s: float = math.inf
    cache_bytes: float = 0.0
    contention: Contention | None = None

    def __post_init__(self) -> None:
        check_number(self, "cores")
        check_number(self, "bytes_per_s", infinite=True)
        check_number(self, "cache_bytes", zero=True)

    def after(self, jobs: Sequence[JobProfile | None]) -> Resources:
        """Return the resources without the jobs' steady checkpoint traffic.

        Raises UsageError if that leaves nothing.
        """
        traffic = math.fsum(job.checkpoint_bytes_per_s for job in jobs if job is not None)
        most = self.bytes_per_s
        if self.contention is not None:
            most = min(most, self.contention.total(self.contention.best))
        left = most - traffic
        if left < limits.allocation_number_min:
            raise UsageError(
                f"checkpoints write {traffic:g} bytes/s, and storage takes {most:g}: nothing is "
                "left to read with; write them less often"
            )
        return replace(self, bytes_per_s=left)


class Worth(NamedTuple):
    """Gain in value by a unit more of each resource, with the floors where they are.

    It is an upper bound, and exact until something else binds. It says which resource to buy.
    """

    core: float
    byte_per_s: float
    cache_byte: float


@dataclass(frozen=True, slots=True)
class Allocation:
    """Shares of all jobs, in their order, and their predicted throughput.

    predictions:  None for a job without a profile. If a job is short of both cores and bandwidth,
                  the one that costs it more is named, unless workers are whole.
    floors:       samples/s that were promised to each; 0.0 for a job without a profile.
    value:        of the objective, over the jobs with a profile: samples/s, accelerators busy, or
                  the slowest job's part of its remaining work a second (1 / makespan).
    worth:        None unless the solver is "exact".
    """

    objective: Objective
    shares: tuple[Share, ...]
    predictions: tuple[Prediction | None, ...]
    floors: tuple[float, ...]
    value: float
    worth: Worth | None

    def advice(self) -> str:
        """Describe in words the gain by more of each resource."""
        if self.worth is None:
            return "what more would bring is known with solver='exact' alone"
        core, rate, cache = self.worth
        return (
            f"one more core is worth {core:.3g}, 100 MB/s more {rate * 1e8:.3g}, 1 GB more of "
            f"cache {cache * 1e9:.3g} {UNITS[self.objective]}"
        )


def score(
    jobs: Sequence[JobProfile], rates: Sequence[float] | Float, objective: Objective
) -> float:
    """Return the value of an objective at given samples/s; more is better."""
    if objective == "samples":
        return math.fsum(rates)
    if objective == "utilisation":
        return math.fsum(rate / job.samples_per_s for job, rate in zip(jobs, rates, strict=True))
    pairs = zip(rates, _list_remaining(jobs), strict=True)
    return min((float(rate / remaining) for rate, remaining in pairs), default=0.0)


def _list_remaining(jobs: Sequence[JobProfile]) -> Float:
    remaining = [job.remaining_samples for job in jobs]
    if None in remaining:
        raise UsageError(
            f"job {remaining.index(None)} has no remaining_samples: the objective 'makespan' needs"
            " them"
        )
    return np.array(remaining, np.float64)


def even_share(jobs: Sequence[JobProfile | None], budget: Resources) -> Share:
    """Return the share of each of these jobs if all get the same, checkpoint traffic subtracted."""
    count = len(jobs)
    curve = budget.contention
    return Share(
        workers=budget.cores / count,
        bytes_per_s=budget.after(jobs).bytes_per_s / count,
        streams=None if curve is None else curve.best / count,
        cache_bytes=budget.cache_bytes / count,
    )


def allocate(
    jobs: Sequence[JobProfile | None],
    budget: Resources,
    objective: Objective = "utilisation",
    floors: float | Sequence[float] = 1.0,
    *,
    solver: Solver = "exact",
    whole: bool = False,
) -> Allocation:
    """Find the shares that are best for all: the optimum of a linear program.

    No job is below its floor, and never more is given out than there is.

    jobs:    None is a job that has not been measured: it gets the even share.
    floors:  one number is the part of its even-split rate that each job keeps, 1.0 all of it; 0.0
             is without floors, which may stop jobs altogether. Or samples/s, one a job.
    solver:  "exact", without a library; "highs", the same by SciPy; "greedy": see `share_lp`.
    whole:   True for whole workers, at least one each (UsageError with fewer cores than jobs). A
             job may then be below its floor by less than a worker's work; fractions are
             time-shared.

    Resources that no job can use are dealt as well, half of them in proportion to the use of each
    job, half evenly: spare for a hiccup. More cores or bandwidth never make the value less while
    floors stay; those of the even split move with it. The cache goes to the jobs with most epochs a
    second first, if that is better than an even split of it: exact for given caches, a heuristic
    for the cache.
    """
    for name, choice, choices in (
        ("objective", objective, get_args(Objective)),
        ("solver", solver, get_args(Solver)),
    ):
        if choice not in choices:
            raise UsageError(f"{name} is {choice!r}: use one of {', '.join(choices)}")
    if not jobs:
        return Allocation(objective, (), (), (), 0.0, None)
    even = even_share(jobs, budget)
    places = [place for place, job in enumerate(jobs) if job is not None]
    known = [_slow_down(job, budget.contention) for job in jobs if job is not None]
    promised = np.zeros(len(jobs))
    promised[places] = _compute_floors(known, places, len(jobs), even, floors)
    limit = np.array([even.workers, even.bytes_per_s]) * max(1, len(known))
    mix = _Mix(known, limit, objective, promised[places], solver)
    solved = mix.best(even.cache_bytes)
    worth = mix.worth(solved)
    workers = np.full(len(jobs), even.workers)
    workers[places] = mix.spread(solved)[0]
    if whole:
        workers = round_workers(workers, int(budget.cores))
        solved = mix.solve(solved.caches, workers[places])
    shares = [replace(even, workers=float(held)) for held in workers]
    expected: list[Prediction | None] = [None] * len(jobs)
    for row, share in enumerate(mix.shares(solved)):
        place = places[row]
        shares[place] = replace(share, workers=float(workers[place]))
        prediction = predict(known[row], shares[place])
        expected[place] = prediction if whole else mix.name_binding(row, prediction, solved)
    reached = [prediction.samples_per_s for prediction in expected if prediction is not None]
    value = score(known, reached, objective)
    return Allocation(
        objective, tuple(shares), tuple(expected), tuple(promised.tolist()), value, worth
    )


def round_workers(wanted: Float, cores: int) -> Float:
    """Round to whole workers for each job, `cores` in all and at least one each.

    Shares are rounded down, and the rest goes to the largest remainders. Raises UsageError with
    fewer cores than jobs. Workers go one by one to the job that is shortest of its share; that is
    the same, and makes up for the first one of jobs whose share is less than one.
    """
    if cores < len(wanted):
        raise UsageError(
            f"{len(wanted)} jobs have {cores} whole cores: use whole=False, workers that take turns"
        )
    dealt = np.ones(len(wanted))
    for _ in range(cores - len(wanted)):
        dealt[np.argmax(wanted - dealt)] += 1
    return dealt


def _slow_down(job: JobProfile, contention: Contention | None) -> JobProfile:
    """Return the job as it is when as many streams read as are best together."""
    if contention is None or job.stream_bytes_per_s == math.inf:
        return job
    rate = min(job.stream_bytes_per_s, contention.each(contention.best))
    return replace(job, stream_bytes_per_s=rate)


def _compute_floors(
    known: Sequence[JobProfile],
    places: Sequence[int],
    count: int,
    even: Share,
    floors: float | Sequence[float],
) -> Float:
    """Return the samples/s promised to each job that has a profile."""
    if isinstance(floors, int | float):
        if not 0 <= floors <= 1:
            raise UsageError(f"floors is {floors!r}: use a part of the even split, 0.0 to 1.0")
        return np.array([floors * predict(job, even).samples_per_s for job in known])
    promised = np.asarray(floors, np.float64)
    if promised.shape != (count,):
        raise UsageError(f"floors has the shape {promised.shape}: give one number, or {count}")
    promised = promised[list(places)]
    for place, floor, job in zip(places, promised, known, strict=True):
        if not 0 <= floor <= job.samples_per_s:
            raise UsageError(
                f"floors[{place}] is {floor:g} samples/s: use 0 to what its model takes, "
                f"{job.samples_per_s:g}"
            )
    return promised


class _Solved(NamedTuple):
    """Rates of all jobs that are best with these caches."""

    caches: Float
    rates: Float
    prices: Float | None
    value: float


@dataclass(frozen=True, eq=False, slots=True)
class _Mix:
    """Jobs with profiles, and their resources together: cores and bytes/s."""

    jobs: Sequence[JobProfile]
    limit: Float
    objective: Objective
    floors: Float
    solver: Solver

    def cost(self, caches: Float) -> Float:
        """Return the core seconds and bytes of a sample of each job: (2, jobs)."""
        pairs = list(zip(self.jobs, caches.tolist(), strict=True))
        whole = [
            [job.core_s_with(held) for job, held in pairs],
            [job.bytes_with(held) for job, held in pairs],
        ]
        cost: Float = np.array(whole) / [job.efficiency for job in self.jobs]
        return cost

    def best(self, cache_bytes: float) -> _Solved:
        """Solve with so much cache for each, or dealt by epochs a second while that is better."""
        useful = np.array([job.cacheable_bytes for job in self.jobs])
        caches = np.minimum(cache_bytes, useful)
        needed = self.cost(caches) @ self.floors
        for name, need, limit in zip(("cores", "bytes/s"), needed, self.limit, strict=True):
            if need > limit * (1 + _rounding):
                raise UsageError(f"floors need {need:g} {name}, there are {limit:g}: lower them")
        solved = self.solve(caches)
        for _ in self.jobs if cache_bytes else ():
            caches = self.deal_cache(solved.rates, cache_bytes * len(self.jobs))
            if (self.cost(caches) @ self.floors > self.limit).any():
                break
            other = self.solve(caches)
            if other.value <= solved.value * (1 + _rounding):
                break
            solved = other
        return solved

    def deal_cache(self, rates: Float, cache_bytes: float) -> Float:
        """Deal the cache: jobs with most epochs a second get all that they can use.

        Each cached byte saves one byte an epoch.
        """
        caches = np.zeros(len(self.jobs))
        for job in np.argsort(-self.epochs_per_s(rates), kind="stable"):
            caches[job] = min(self.jobs[job].cacheable_bytes, cache_bytes)
            cache_bytes -= caches[job]
        return caches

    def epochs_per_s(self, rates: Float) -> Float:
        """Return the epochs a second of each job; 0 for a job that can cache nothing."""
        return np.array(
            [rate / (job.samples or math.inf) for job, rate in zip(self.jobs, rates, strict=True)]
        )

    def solve(self, caches: Float, workers: Float | None = None) -> _Solved:
        """Find the best rates with these caches, and with so many workers each, if that is
        settled."""
        cost, limit = self.cost(caches), self.limit
        most = np.array([job.samples_per_s for job in self.jobs])
        value = 1 / most if self.objective != "samples" else np.ones(len(most))
        if workers is not None:
            held = np.divide(workers, cost[0], out=most.copy(), where=cost[0] > 0)
            most, limit = np.minimum(most, held), np.array([math.inf, limit[1]])
        program = Program(value, np.minimum(self.floors, most), most, cost, limit)
        prices = None
        if self.objective == "makespan":
            program, prices = _raise_floors(program, _list_remaining(self.jobs))
        solution = SOLVERS[self.solver](program)
        return _Solved(
            *(caches, solution.rates, solution.prices if prices is None else prices),
            score(self.jobs, solution.rates, self.objective),
        )

    def spread(self, solved: _Solved) -> Float:
        """Deal all cores and bytes/s: the use of the rates, and a part of the rest: (2, jobs).

        Half of the rest is dealt in proportion to the use, half evenly. Needs vary by a part of
        themselves, and those of small jobs, of which the parts are small, by more than that.
        """
        used = self.cost(solved.caches) * solved.rates
        total = used.sum(axis=1, keepdims=True)
        limit = np.broadcast_to(self.limit[:, None], used.shape)
        even = np.full_like(used, 1 / max(1, len(self.jobs)))
        part = np.divide(used, total, out=even.copy(), where=total > 0)
        left = np.subtract(limit, total, out=limit.copy(), where=np.isfinite(limit))
        spare = np.where(np.isfinite(limit), np.maximum(0.0, left) * (part + even) / 2, math.inf)
        # Where numbers are absurd, rounding may have used more than there is.
        fits = np.divide(limit, total, out=np.ones_like(used), where=total > limit)
        spread: Float = used * fits + spare
        return spread

    def shares(self, solved: _Solved) -> list[Share]:
        """Return the shares for the rates, everything dealt."""
        workers, rates = self.spread(solved)
        return [
            Share(
                workers=float(workers[row]),
                bytes_per_s=float(rates[row]),
                streams=self.streams(row, solved) if job.separate else None,
                cache_bytes=float(solved.caches[row]),
            )
            for row, job in enumerate(self.jobs)
        ]

    def streams(self, row: int, solved: _Solved) -> float:
        """Return the read threads that the job keeps busy at its rate, rounded up; at least one."""
        job = self.jobs[row]
        size = job.bytes_with(float(solved.caches[row])) / job.efficiency
        busy = float(solved.rates[row]) * size / job.stream_bytes_per_s
        return max(1.0, math.ceil(busy * (1 - _rounding)))

    def name_binding(self, row: int, prediction: Prediction, solved: _Solved) -> Prediction:
        """Name the binding resource in a prediction.

        A share has just enough of each resource that is short; the one that costs the job more is
        named.
        """
        if solved.prices is None or prediction.binding not in ("workers", "bandwidth"):
            return prediction
        core, rate = self.cost(solved.caches)[:, row] * solved.prices
        return (
            prediction
            if core == rate
            else prediction._replace(binding="workers" if core > rate else "bandwidth")
        )

    def worth(self, solved: _Solved) -> Worth | None:
        """Return the worth of a unit more of each resource; of cache, to the job that gains
        most."""
        if solved.prices is None:
            return None
        core, rate = solved.prices.tolist()
        epochs = self.epochs_per_s(solved.rates).tolist()
        saved = [
            epochs[row]
            / job.efficiency
            * (rate + (0.0 if job.separate else core / job.stream_bytes_per_s))
            for row, job in enumerate(self.jobs)
            if solved.caches[row] < job.cacheable_bytes
        ]
        return Worth(core, rate, max(saved, default=0.0))


def _raise_floors(program: Program, remaining: Float) -> tuple[Program, Float]:
    """Raise the floors so that the job that ends last ends as early as it can.

    Returns that program, and the gain in the part of its remaining work done a second by a unit
    more of each resource. At part t each job runs at max(floor, t * remaining). The cost of that is
    the greatest of linear functions of t, one for each number of jobs above their floor, lowest
    floor by remaining first.
    """
    part = float((program.most / remaining).min(initial=math.inf))
    prices = np.zeros(2)
    order = np.argsort(program.least / remaining, kind="stable")
    for resource in np.flatnonzero(np.isfinite(program.limit)):
        cost = program.cost[resource][order]
        slope = np.cumsum(cost * remaining[order])
        at_floor = cost * program.least[order]
        fixed = at_floor.sum() - np.cumsum(at_floor)
        rising = slope > 0
        parts = (program.limit[resource] - fixed[rising]) / slope[rising]
        if parts.min(initial=math.inf) < part:
            part = float(parts.min())
            prices[:] = 0.0
            prices[resource] = 1 / slope[rising][np.argmin(parts)]
    if not len(remaining):
        return program, prices
    least = np.minimum(program.most, np.maximum(program.least, part * remaining))
    return replace(program, least=least), prices
