"""Allocation of a host to its jobs: the shares that are best for all of them. Pure.

Throughput is linear in the share up to a ceiling (`job_state.predict`), so the best shares are a
linear program with two resources. By default no job gets less than an even split would give it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from ..arguments import check_choice, check_fields
from ..errors import UsageError
from .job_state import JobProfile, Prediction, Share, predict, quantity

Float = npt.NDArray[np.float64]

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
    """

    cores: float = field(metadata=quantity())
    bytes_per_s: float = field(default=math.inf, metadata=quantity(infinite=True))

    def __post_init__(self) -> None:
        check_fields(self)


# -- the linear program ----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, slots=True)
class Program:
    """Linear program of jobs that are raised from floor to ceiling, a fractional knapsack with two
    weights; finite, except that a limit may be infinite:

        maximise  sum value_j x_j    subject to    least_j <= x_j <= most_j,
                  sum cost_0j x_j <= limit_0,      sum cost_1j x_j <= limit_1

    value, least, most:  of each job, float64 (jobs,); values above 0, 0 <= least <= most.
    cost:   float64 (2, jobs), 0 or above.
    limit:  float64 (2,). The cost of `least` must be within it, up to rounding.
    """

    value: Float
    least: Float
    most: Float
    cost: Float
    limit: Float

    @property
    def room(self) -> Float:
        """Amount by which each job can be raised."""
        return self.most - self.least

    @property
    def spare(self) -> Float:
        """Amount of each resource that the floors leave."""
        spare: Float = np.maximum(0.0, self.limit - self.cost @ self.least)
        return spare


class Solution(NamedTuple):
    """Solution of a program.

    rates:   float64 (jobs,), never beyond a limit by more than rounding.
    prices:  float64 (2,), the dual: the gain in value by a unit more of each resource, at most;
             None without prices. By weak duality nothing is better than sum value *
             least + prices @ left + sum max(0, value - prices @ cost) * room.
    """

    rates: Float
    prices: Float | None


Solver = Callable[[Program], Solution]


def solve_exactly(program: Program) -> Solution:
    """Find the optimum by the dual, in O(jobs^2 log jobs) time and O(jobs^2) memory.

    At a price p of the second resource a sample is worth value - p cost_1, and the rest is a
    knapsack with one weight: the most valuable by cost_0 first. Its use of the second resource
    falls as p rises, and changes only at a price at which two jobs tie or one is worth nothing. So
    the right price is one of these, found by bisection. There the fillings just below and just
    above it are both best, and so is the mixture of them that uses up the second resource. Two jobs
    tie there, so at most two are left between floor and ceiling, unless jobs have equal
    proportions.
    """
    first, second = program.cost
    enough = program.spare[1]
    ties = _find_ties(program)
    edges = np.concatenate([[0.0], ties])
    inside = np.append((edges[:-1] + edges[1:]) / 2, 2 * edges[-1])  # a price in each interval

    low, high = 0, len(inside) - 1  # the highest price takes nothing that has a cost
    while low < high:
        middle = (low + high) // 2
        if second @ _fill(program, inside[middle]) <= enough:
            high = middle
        else:
            low = middle + 1
    price = edges[low]
    raised = _fill(program, inside[low])
    if low:
        more = _fill(program, inside[low - 1])
        used, wanted = second @ raised, second @ more
        raised = raised + (more - raised) * max(0.0, (enough - used) / (wanted - used))
    worth = program.value - price * second
    paid = (worth > 0) & (first > 0)
    density = worth[paid] / first[paid]
    order = np.argsort(-density, kind="stable")
    filled = np.cumsum((first * program.room)[paid][order])
    over = filled > program.spare[0]
    other = density[order][np.argmax(over)] if over.any() else 0.0
    return Solution(program.least + raised, np.array([other, price]))


def _find_ties(program: Program) -> Float:
    """Return the prices of the second resource, ascending and above 0, at which jobs change
    order."""
    value, (first, second) = program.value, program.cost
    one, other = np.triu_indices(len(value), 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        pairs = (value[one] * first[other] - value[other] * first[one]) / (
            second[one] * first[other] - second[other] * first[one]
        )
        prices = np.concatenate([pairs, value / second])
    return np.unique(prices[np.isfinite(prices) & (prices > 0)])


def _fill(program: Program, price: float) -> Float:
    """Return the raise of each job within the first resource, when the second has a price."""
    first = program.cost[0]
    worth = program.value - price * program.cost[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        density = np.where(first > 0, worth / first, np.inf)
    wanted = np.where(worth > 0, program.room, 0.0)
    order = np.argsort(-density, kind="stable")
    need = (first * wanted)[order]
    got = np.clip(program.spare[0] - (np.cumsum(need) - need), 0.0, need)
    fraction = np.ones(len(need))
    np.divide(got, need, out=fraction, where=need > 0)
    raised = np.empty(len(need))
    raised[order] = wanted[order] * fraction
    return raised


# -- shares ----------------------------------------------------------------------------------------


class Worth(NamedTuple):
    """Gain in value by a unit more of each resource, with the floors where they are.

    It is an upper bound, and exact until something else binds. It says which resource to buy.
    """

    core: float
    byte_per_s: float


@dataclass(frozen=True, slots=True)
class Allocation:
    """Shares of all jobs, in their order, and their predicted throughput.

    predictions:  None without a profile. If a job is short of both cores and bandwidth,
                  the one that costs it more is named.
    floors:       samples/s that were promised to each; 0.0 for a job without a profile.
    value:        of the objective, over the jobs with a profile: samples/s, accelerators busy, or
                  the slowest job's part of its remaining work a second (1 / makespan).
    worth:        None without prices.
    """

    objective: Objective
    shares: tuple[Share, ...]
    predictions: tuple[Prediction | None, ...]
    floors: tuple[float, ...]
    value: float
    worth: Worth | None


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
        row = remaining.index(None)
        raise UsageError(f"job {row} has no remaining_samples: 'makespan' needs them")
    return np.array(remaining, np.float64)


def even_share(jobs: Sequence[JobProfile | None], budget: Resources) -> Share:
    """Return the share of each of these jobs if all get the same."""
    count = len(jobs)
    return Share(workers=budget.cores / count, bytes_per_s=budget.bytes_per_s / count)


def allocate(
    jobs: Sequence[JobProfile | None],
    budget: Resources,
    objective: Objective = "utilisation",
    floors: float | Sequence[float] = 1.0,
    *,
    solver: Solver = solve_exactly,
) -> Allocation:
    """Find the shares that are best for all: the optimum of a linear program.

    No job is below its floor, and never more is given out than there is.

    jobs:    None is a job that has not been measured: it gets the even share.
    floors:  one number is the part of its even-split rate that each job keeps, 1.0 all of it; 0.0
             is without floors, and may stop jobs altogether. Or samples/s, one a job.
    solver:  another one than the optimal, to compare with.

    Workers are fractions, time-shared. Resources that no job can use are dealt as well,
    half of them in proportion to the use of each job, half evenly: spare for a hiccup. More cores
    or bandwidth never make the value less while floors stay; floors of the even split move with it.
    """
    check_choice("objective", objective, get_args(Objective))
    if not jobs:
        return Allocation(objective, (), (), (), 0.0, None)
    even = even_share(jobs, budget)
    places = [place for place, job in enumerate(jobs) if job is not None]
    known = [job for job in jobs if job is not None]
    promised = np.zeros(len(jobs))
    promised[places] = _compute_floors(known, places, len(jobs), even, floors)
    limit = np.array([even.workers, even.bytes_per_s]) * max(1, len(known))
    mix = _Mix(known, limit, objective, promised[places], solver)
    solution, value = mix.solve()
    shares = [even] * len(jobs)
    expected: list[Prediction | None] = [None] * len(jobs)
    for row, (workers, rate) in enumerate(mix.spread(solution.rates).T.tolist()):
        share = shares[places[row]] = Share(workers=workers, bytes_per_s=rate)
        prediction = predict(known[row], share)
        expected[places[row]] = mix.name_binding(row, prediction, solution.prices)
    worth = None if solution.prices is None else Worth(*solution.prices.tolist())
    return Allocation(
        objective, tuple(shares), tuple(expected), tuple(promised.tolist()), value, worth
    )


def _compute_floors(
    known: Sequence[JobProfile],
    places: Sequence[int],
    count: int,
    even: Share,
    floors: float | Sequence[float],
) -> Float:
    """Return the samples/s promised to each job that has a profile."""
    if isinstance(floors, int | float | np.integer | np.floating):
        if not 0 <= floors <= 1:
            raise UsageError(f"floors is {floors!r}: use a part of the even split, 0.0 to 1.0")
        return np.array([float(floors) * predict(job, even).samples_per_s for job in known])
    promised = np.asarray(floors, np.float64)
    if promised.shape != (count,):
        raise UsageError(f"floors has the shape {promised.shape}: give one number, or {count}")
    promised = promised[list(places)]
    for place, floor, job in zip(places, promised, known, strict=True):
        if not 0 <= floor <= job.samples_per_s:
            what = f"floors[{place}] is {floor:g} samples/s"
            raise UsageError(f"{what}: use 0 to what its model takes, {job.samples_per_s:g}")
    return promised


@dataclass(frozen=True, eq=False, slots=True)
class _Mix:
    """Jobs with profiles, and their resources together: cores and bytes/s."""

    jobs: Sequence[JobProfile]
    limit: Float
    objective: Objective
    floors: Float
    solver: Solver

    @property
    def cost(self) -> Float:
        """Core seconds and bytes of a sample of each job: (2, jobs)."""
        costs = [[job.cpu_s for job in self.jobs], [job.storage_bytes for job in self.jobs]]
        cost: Float = np.array(costs) / [job.efficiency for job in self.jobs]
        return cost

    def solve(self) -> tuple[Solution, float]:
        """Find the best rates, and their value."""
        cost = self.cost
        for name, need, limit in zip(
            ("cores", "bytes/s"), cost @ self.floors, self.limit, strict=True
        ):
            if need > limit * (1 + _rounding):
                raise UsageError(f"floors need {need:g} {name}, there are {limit:g}: lower them")
        most = np.array([job.samples_per_s for job in self.jobs])
        value = 1 / most if self.objective != "samples" else np.ones(len(most))
        program = Program(value, np.minimum(self.floors, most), most, cost, self.limit)
        prices = None
        if self.objective == "makespan":
            program, prices = _raise_floors(program, _list_remaining(self.jobs))
        solution = self.solver(program)
        if prices is not None:
            solution = solution._replace(prices=prices)
        return solution, score(self.jobs, solution.rates, self.objective)

    def spread(self, rates: Float) -> Float:
        """Deal all cores and bytes/s: the use of the rates, and a part of the rest: (2, jobs).

        Half of the rest is dealt in proportion to the use, half evenly. Needs vary by a part of
        themselves, and needs of small jobs, with small parts, by more than that.
        """
        used = self.cost * rates
        total = used.sum(axis=1, keepdims=True)
        limit = np.broadcast_to(self.limit[:, None], used.shape)
        even = np.full_like(used, 1 / max(1, len(self.jobs)))
        share = np.divide(used, total, out=even.copy(), where=total > 0)
        rest = np.subtract(limit, total, out=limit.copy(), where=np.isfinite(limit))
        spare = np.where(np.isfinite(limit), np.maximum(0.0, rest) * (share + even) / 2, math.inf)
        # Where numbers are absurd, rounding may have used more than there is.
        fits = np.divide(limit, total, out=np.ones_like(used), where=total > limit)
        spread: Float = used * fits + spare
        return spread

    def name_binding(self, row: int, prediction: Prediction, prices: Float | None) -> Prediction:
        """Name the binding resource in a prediction.

        A share has just enough of each resource that is short; the one that costs the job more is
        named.
        """
        if prices is None or prediction.binding == "model":
            return prediction
        core, rate = self.cost[:, row] * prices
        return (
            prediction
            if core == rate
            else prediction._replace(binding="workers" if core > rate else "bandwidth")
        )


def _raise_floors(program: Program, remaining: Float) -> tuple[Program, Float]:
    """Raise the floors so that the job that ends last ends as early as it can.

    Returns that program, and the gain in the part of its remaining work done a second by a unit
    more of each resource. At part t each job runs at max(floor, t * remaining). The cost of that is
    the greatest of linear functions of t, one for each number of jobs above their floor, lowest
    floor by remaining first.
    """
    share = float((program.most / remaining).min(initial=math.inf))
    prices = np.zeros(2)
    order = np.argsort(program.least / remaining, kind="stable")
    for resource in np.flatnonzero(np.isfinite(program.limit)):
        cost = program.cost[resource][order]
        slope = np.cumsum(cost * remaining[order])
        at_floor = cost * program.least[order]
        fixed = at_floor.sum() - np.cumsum(at_floor)
        rising = slope > 0
        shares = (program.limit[resource] - fixed[rising]) / slope[rising]
        if shares.min(initial=math.inf) < share:
            share = float(shares.min())
            prices[:] = 0.0
            prices[resource] = 1 / slope[rising][np.argmin(shares)]
    if not len(remaining):
        return program, prices
    least = np.minimum(program.most, np.maximum(program.least, share * remaining))
    return replace(program, least=least), prices
