"""Costs of samples: the rule, functions of users, sums, and coefficients fitted to steps."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.plan.sample_cost import LengthCost, apply_cost, cost_by_width, fit_cost, sum_costs


@given(st.lists(st.integers(0, 1 << 40), max_size=20), st.integers(1, 1 << 24))
def test_cost_by_width(lengths: list[int], width: int) -> None:
    """s (1 + s / (12 width)), to the precision of floating point."""
    costs = apply_cost(cost_by_width(width), np.array(lengths, np.int64))
    for length, cost in zip(lengths, costs.tolist(), strict=True):
        assert cost == pytest.approx(float(length + Fraction(length * length, 12 * width)))


@given(st.lists(st.lists(st.floats(0, 1e9), max_size=4), max_size=9))
def test_sums_are_those_of_rows(rows: list[list[float]]) -> None:
    """Rows without documents cost nothing; each row is summed from its first document on."""
    starts = np.cumsum([0, *map(len, rows)])
    costs = np.array([cost for row in rows for cost in row], np.float64)
    wanted = []
    for row in rows:
        total = 0.0
        for cost in row:
            total += cost
        wanted.append(total)
    assert sum_costs(costs, starts).tolist() == wanted


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (lambda lengths: None, r"shape \(\) for 3"),
        (lambda lengths: "much", "str"),
        (lambda lengths: lengths[:-1], r"shape \(2,\) for 3 lengths"),
        (lambda lengths: 1.0, r"shape \(\) for 3"),
        (lambda lengths: lengths - 6.0, "-1.0 for the length 5"),
        (lambda lengths: np.where(lengths == 7, np.nan, 1), "nan for the length 7"),
        (lambda lengths: np.where(lengths == 9, np.inf, 1), "inf for the length 9"),
    ],
)
def test_functions_that_give_no_costs(rule: Any, message: str) -> None:
    """Anything but a finite number from 0 on for each length is refused, with the length."""
    with pytest.raises(UsageError, match=message):
        apply_cost(rule, np.array([5, 7, 9]))


@given(st.floats(1e-9, 1e-3), st.floats(1e-13, 1e-8), st.floats(0, 5), st.integers(0, 99))
def test_fit_finds_the_coefficients(
    linear: float, quadratic: float, constant: float, seed: int
) -> None:
    """Steps that were timed exactly give the ratio by which they were timed."""
    rng = np.random.default_rng(seed)
    steps = [rng.integers(1, 40_000, rng.integers(1, 9)) for _ in range(40)]
    seconds = [
        constant + linear * s.sum() + quadratic * (s.astype(float) ** 2).sum() for s in steps
    ]
    found = fit_cost(steps, seconds)
    assert found.linear == 1
    # The share of each part in the time says how well it can be told.
    if 1e-3 < quadratic * 20_000 / linear < 1e3:
        assert found.quadratic == pytest.approx(quadratic / linear, rel=0.02)


def test_fit_of_noise() -> None:
    """Under noise of 5 % the coefficients are near; what lacks is 0, never below it."""
    rng = np.random.default_rng(2)
    steps = [rng.lognormal(7, 1.2, 8).astype(int) for _ in range(400)]
    tokens = np.array([s.sum() for s in steps])
    squares = np.array([(s.astype(float) ** 2).sum() for s in steps])
    noise = rng.normal(1, 0.05, 400)
    assert fit_cost(steps, tokens * noise).quadratic < 1e-5
    assert fit_cost(steps, squares * noise).linear in (0, 1)
    near = fit_cost(steps, (tokens + squares / 5000) * noise)
    assert near.quadratic == pytest.approx(1 / 5000, rel=0.1)
    assert near == LengthCost(1.0, float(f"{near.quadratic:.4g}"))  # short enough to be written


@pytest.mark.parametrize(
    ("steps", "seconds", "message"),
    [
        ([[1]] * 8, [1.0] * 7, "8 steps and seconds of shape"),
        ([[1]] * 7, [1.0] * 7, "7 steps are too few"),
        ([[1]] * 8, [1.0] * 7 + [np.nan], "not finite"),
        ([[]] * 8, [1.0] * 8, "no step has any tokens"),
        ([[5, 5]] * 8, [1.0] * 8, "does not grow"),
        ([[k] for k in range(8)], [float(9 - k) for k in range(8)], "does not grow"),
        ([[1]] * 8, [1.0] * 7 + [0.0], "not above 0"),
    ],
)
def test_fits_that_say_nothing(steps: Any, seconds: Any, message: str) -> None:
    """Steps too few or too alike are refused, with the remedy."""
    with pytest.raises(UsageError, match=message):
        fit_cost(steps, seconds)


@pytest.mark.parametrize("pair", [(-1, 0), (0, 0), (np.nan, 1), (1, np.inf), (True, 1), ("1", 1)])
def test_wrong_coefficients(pair: Any) -> None:
    """Coefficients are finite numbers from 0 on, not both 0."""
    with pytest.raises(UsageError, match="linear|quadratic"):
        LengthCost(*pair)
