"""Costs of samples: the time that a model takes for them, as a function of their lengths. Pure.

For a causal transformer of width d, what is linear in a document's s tokens (projections, feed
forward) takes 24 d^2 operations a token and layer, and attention 2 d s: in proportion,

    cost = s (1 + s / (12 d)).

The cost of a sample is the sum over its documents. Only ratios of costs matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .. import limits
from ..arguments import check_fields, check_whole, real
from ..errors import DataError, UsageError
from ..extent import Int
from ..order.buckets import apply_rule

Costs = npt.NDArray[np.float64]
CostRule = Callable[[Int], npt.ArrayLike]
"""Function of lengths, int64 (n,), to the cost of each."""


@dataclass(frozen=True, slots=True)
class LengthCost:
    """Cost of a document of s tokens: linear * s + quadratic * s * s.

    Additions and multiplications alone compute it, with one result on all machines.
    """

    linear: float = field(metadata=real())
    quadratic: float = field(metadata=real())

    def __post_init__(self) -> None:
        check_fields(self, "")
        if self.linear == self.quadratic == 0:
            raise UsageError("linear and quadratic are both 0: one of them must be above 0")

    def __call__(self, lengths: Int) -> Costs:
        tokens = lengths.astype(np.float64)
        return tokens * (self.linear + tokens * self.quadratic)


def cost_by_width(width: int) -> LengthCost:
    """Return the cost under a causal transformer of this width (d_model)."""
    width = check_whole("width", width, 1, limits.model_width_max)
    return LengthCost(1.0, 1 / (12 * width))


def apply_cost(cost: CostRule, lengths: Int) -> Costs:
    """Return the cost of each length. UsageError if the rule gives anything but finite costs."""
    return apply_rule("cost", cost, lengths)


def sum_costs(costs: Costs, starts: Int) -> Costs:
    """Sum the costs of documents by row; row k has documents [starts[k], starts[k + 1]).

    They are added one after the other, so that every machine gets the same sums.
    """
    rows = len(starts) - 1
    sums = np.bincount(np.repeat(np.arange(rows), np.diff(starts)), costs, rows)
    return sums.astype(np.float64, copy=False)


def fit_cost(lengths: Sequence[npt.ArrayLike], seconds: npt.ArrayLike) -> LengthCost:
    """Fit the cost to measured steps, by least squares of the relative errors.

    lengths:  of each step of one rank, the lengths of all its documents.
    seconds:  the duration of each step: of this rank's computing, without waiting for others.

    The model is seconds = constant + linear * sum(s) + quadratic * sum(s * s), none below 0. Both
    coefficients are scaled to linear = 1 (if it is above 0) and rounded to 4 digits. All ranks need
    equal ones: fit on one rank, and send the others its result.

    UsageError for fewer than 8 steps, and for steps that are too alike to tell.
    """
    steps = [np.asarray(step, np.float64).reshape(-1) for step in lengths]
    times = np.asarray(seconds, np.float64)
    if times.shape != (len(steps),):
        what = f"lengths are of {len(steps)} steps and seconds of shape {times.shape}"
        raise UsageError(f"{what}: give one duration for each step")
    if len(steps) < 8:
        raise UsageError(f"{len(steps)} steps are too few to fit a cost: give at least 8")
    sums = np.array([[step.sum(), (step * step).sum()] for step in steps])
    if not (np.isfinite(times).all() and np.isfinite(sums).all()):
        raise UsageError("lengths or seconds are not finite: leave out steps that were not timed")
    scale = sums.max(axis=0)
    if not scale.all():
        raise UsageError("no step has any tokens: give the lengths of each step's documents")
    if (times <= 0).any():
        raise UsageError("seconds has a duration that is not above 0: leave that step out")
    costs = _solve(sums / scale, times) / scale
    if not costs.any():
        what = f"the time of these {len(steps)} steps does not grow with their lengths"
        raise UsageError(f"{what}: give more steps, varied lengths, and times without waiting")
    if costs[0] > 0:
        costs = costs / costs[0]
    return LengthCost(float(f"{costs[0]:.4g}"), float(f"{costs[1]:.4g}"))


def _solve(columns: Costs, times: Costs) -> Costs:
    """Return the coefficients from 0 on, besides a constant, that have the smallest error.

    Errors are relative to the time of a step, as errors of measured times are. Where one of two or
    three coefficients would be below 0, the best choice of fewer is taken.
    """
    terms = np.column_stack([columns, np.ones(len(times))]) / times[:, None]
    best, best_error = np.zeros(3), np.inf
    for number in (4, 1, 2, 5, 6, 3, 7):
        used = [term for term in range(3) if number >> term & 1]
        costs, _, rank, _ = np.linalg.lstsq(terms[:, used], np.ones(len(times)), rcond=1e-9)
        error = float(((terms[:, used] @ costs - 1) ** 2).sum())
        # Steps that are all alike are explained by the constant alone; it comes first.
        if rank == len(used) and (costs >= 0).all() and error < best_error * (1 - 1e-9):
            best, best_error = np.zeros(3), error
            best[used] = costs
    return best[:2]


def check_lengths(lengths: Int, ids: npt.NDArray[np.uint64]) -> Int:
    """Return the lengths. DataError if one is below 0."""
    wrong = np.flatnonzero(lengths < 0)
    if len(wrong):
        at = int(wrong[0])
        what = f"sample {int(ids[at]):,} has the length {int(lengths[at]):,}"
        raise DataError(f"{what}: measure lengths again with `penstock lengths --force`")
    return lengths
