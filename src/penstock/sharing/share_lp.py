"""The linear program of shares: two resources; jobs that are raised from floor to ceiling. Pure.

    maximise  sum value_j x_j    subject to    least_j <= x_j <= most_j,
              sum cost_0j x_j <= limit_0,      sum cost_1j x_j <= limit_1

that is, a fractional knapsack with two weights. `solve_exactly` solves it by its dual, without a
library.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False, slots=True)
class Program:
    """Linear program to be solved; finite, except that a limit may be infinite.

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
    def left(self) -> Float:
        """Amount of each resource that the floors leave."""
        left: Float = np.maximum(0.0, self.limit - self.cost @ self.least)
        return left


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
    """Find the optimum, in O(jobs^2 log jobs) time and O(jobs^2) memory.

    At a price p of the second resource a sample is worth value - p cost_1, and the rest is a
    knapsack with one weight: the most valuable by cost_0 first. Its use of the second resource
    falls as p rises, and changes only at a price at which two jobs tie or one is worth nothing. So
    the right price is one of these, found by bisection. There the fillings just below and just
    above it are both best, and so is the mixture of them that uses up the second resource. Two jobs
    tie there, so at most two are left between floor and ceiling, unless jobs have equal
    proportions.
    """
    first, second = program.cost
    enough = program.left[1]
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
    over = filled > program.left[0]
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
    got = np.clip(program.left[0] - (np.cumsum(need) - need), 0.0, need)
    part = np.ones(len(need))
    np.divide(got, need, out=part, where=need > 0)
    raised = np.empty(len(need))
    raised[order] = wanted[order] * part
    return raised
