"""The linear program of shares: the dual method against HiGHS, all vertices, and its own bound."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from benchmarks.share_study import solve_greedily
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.sharing.allocation import Program, solve_exactly
from tests.sharing.highs import solve_by_highs

CLOSE = 1e-7


def drawn(random: np.random.Generator, jobs: int) -> Program:
    """A program of any tightness; costs over four orders of magnitude, some of them nothing."""
    most = 10 ** random.uniform(1, 4, jobs)
    cost = np.stack([10 ** random.uniform(-4, 0, jobs), 10 ** random.uniform(2, 6, jobs)])
    cost *= random.random((2, jobs)) > 0.1
    least = most * random.random(jobs) * random.integers(0, 2)
    low, high = cost @ least, cost @ most
    limit = low + (high - low) * random.uniform(-0.1, 1.1, 2).clip(0)
    return Program(10 ** random.uniform(-2, 1, jobs), least, most, cost, limit)


@st.composite
def programs(draw: st.DrawFn, jobs: int = 4) -> Program:
    """Small whole numbers, so that ties, equal jobs, zeros and full resources come often."""
    count = draw(st.integers(1, jobs))

    def numbers(low: int, high: int) -> np.ndarray:
        each = st.lists(st.integers(low, high), min_size=count, max_size=count)
        return np.array(draw(each), np.float64)

    least = numbers(0, 2)
    cost = np.stack([numbers(0, 4), numbers(0, 4)])
    left = np.array([draw(st.integers(0, 12)), draw(st.integers(0, 12))], np.float64)
    if draw(st.booleans()):
        left[draw(st.integers(0, 1))] = np.inf
    return Program(numbers(1, 5), least, least + numbers(0, 5), cost, cost @ least + left)


def check(program: Program, rates: np.ndarray) -> float:
    """The value, of rates that keep every bound."""
    assert (rates >= program.least).all()
    assert (rates <= program.most * (1 + 1e-12)).all()
    assert (program.cost @ rates <= program.limit * (1 + 1e-9)).all()
    return float(program.value @ rates)


def bound(program: Program, prices: np.ndarray) -> float:
    """The bound that no rates are better than, by weak duality."""
    assert (prices >= 0).all()
    gain = np.maximum(0.0, program.value - prices @ program.cost)
    paid = prices > 0  # what is left may be infinite where it has no price
    return float(
        program.value @ program.least + prices[paid] @ program.spare[paid] + gain @ program.room
    )


def best_vertex(program: Program) -> float:
    """The best of all vertices: up to two jobs between their bounds, and as many full resources."""
    count = len(program.value)
    found = -np.inf
    for free in itertools.chain([()], *(itertools.combinations(range(count), k) for k in (1, 2))):
        fixed = [job for job in range(count) if job not in free]
        for ends in itertools.product((0, 1), repeat=len(fixed)):
            for full in itertools.combinations((0, 1), len(free)):
                rates = program.least.copy()
                rates[fixed] = np.where(ends, program.most[fixed], program.least[fixed])
                if free:
                    rows = np.ix_(full, free)
                    rest = (
                        program.limit[list(full)] - program.cost[np.ix_(full, fixed)] @ rates[fixed]
                    )
                    if not np.isfinite(rest).all() or abs(np.linalg.det(program.cost[rows])) < 1e-9:
                        continue
                    rates[list(free)] = np.linalg.solve(program.cost[rows], rest)
                if (rates < program.least - 1e-9).any() or (rates > program.most + 1e-9).any():
                    continue
                if (program.cost @ rates <= program.limit + 1e-9).all():
                    found = max(found, float(program.value @ rates))
    return found


@pytest.mark.long
def test_equal_to_highs() -> None:
    """In 3,000 random programs of 1 to 8 jobs, the dual method's value is HiGHS's."""
    random = np.random.default_rng(7)
    for _ in range(3000):
        program = drawn(random, int(random.integers(1, 9)))
        ours = check(program, solve_exactly(program).rates)
        theirs = check(program, solve_by_highs(program).rates)
        assert ours == pytest.approx(theirs, rel=CLOSE)


@pytest.mark.long
@given(programs())
def test_equal_to_the_best_vertex(program: Program) -> None:
    """Nothing is better than what is found, where ties and full resources are frequent."""
    wanted = best_vertex(program)
    assert check(program, solve_exactly(program).rates) == pytest.approx(wanted, abs=1e-9)
    assert check(program, solve_by_highs(program).rates) == pytest.approx(wanted, abs=1e-6)


@given(programs(jobs=12))
def test_prices_prove_the_optimum(program: Program) -> None:
    """The value is the bound that the prices give, so nothing is better."""
    found = solve_exactly(program)
    assert found.prices is not None
    value = check(program, found.rates)
    assert value == pytest.approx(bound(program, found.prices), abs=1e-9)


@given(st.integers(1, 300), st.integers(0, 2**32))
@example(75, 479691)  # the optimum is nothing at all, and the bound is above it by rounding
def test_prices_prove_the_optimum_of_many_jobs(jobs: int, seed: int) -> None:
    """Likewise with hundreds of jobs, and at most two of them are between floor and ceiling."""
    program = drawn(np.random.default_rng(seed), jobs)
    found = solve_exactly(program)
    assert found.prices is not None
    value = check(program, found.rates)
    assert value == pytest.approx(bound(program, found.prices), rel=1e-9, abs=1e-9)
    raised = (found.rates - program.least) / np.maximum(program.room, 1e-300)
    assert np.count_nonzero((raised > 1e-9) & (raised < 1 - 1e-9)) <= 2


@given(programs(jobs=8), st.integers(0, 1), st.integers(1, 5))
def test_more_is_never_worse(program: Program, resource: int, more: int) -> None:
    """With the same floors, a resource more adds to the value, at most its price a unit."""
    found = solve_exactly(program)
    assert found.prices is not None
    limit = program.limit.copy()
    limit[resource] += more
    gain = program.value @ solve_exactly(dataclasses.replace(program, limit=limit)).rates
    gain -= program.value @ found.rates
    assert -1e-9 <= gain <= found.prices[resource] * more + 1e-9


@given(programs(jobs=8))
def test_greedy_keeps_the_bounds(program: Program) -> None:
    """The greedy is never beyond a limit and never better than the optimum."""
    assert (
        check(program, solve_greedily(program).rates)
        <= check(program, solve_exactly(program).rates) + 1e-9
    )


@given(programs(jobs=8), st.integers(0, 1), st.booleans())
def test_greedy_is_exact_for_one_resource(program: Program, other: int, endless: bool) -> None:
    """If the other resource costs nothing, or has no limit, the greedy finds the optimum."""
    cost, limit = program.cost.copy(), program.limit.copy()
    if endless:
        limit[other] = np.inf
    else:
        cost[other] = 0.0
    program = dataclasses.replace(program, cost=cost, limit=limit)
    value = check(program, solve_greedily(program).rates)
    assert value == pytest.approx(check(program, solve_exactly(program).rates), abs=1e-9)


def test_no_jobs() -> None:
    """Nothing to divide is no error."""
    none = np.zeros(0)
    program = Program(none, none, none, np.zeros((2, 0)), np.ones(2))
    for solver in (solve_exactly, solve_by_highs, solve_greedily):
        assert len(solver(program).rates) == 0
