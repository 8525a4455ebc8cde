"""Periodic jobs: PerSched beside its authors' program, online rules, bounds, and which wins."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from benchmarks.schedule_comparison import compare
from benchmarks.schedules import BANDWIDTH, SETS
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from penstock import limits
from penstock.errors import LimitError, UsageError
from penstock_sim.schedule import (
    RULES,
    Pattern,
    PeriodicJob,
    Rule,
    fluid_bounds,
    plan_periodic,
    simulate,
)
from penstock_sim.schedule.periodic import Waiting, grant
from tests.slices import first

ALL_RULES = (
    *RULES,
    Rule("min-max", gamma=1),
    Rule("fair"),
    Rule("round-robin", divisible=False),
)
long = pytest.mark.long


@st.composite
def jobs(draw: st.DrawFn, most: int = 5) -> list[PeriodicJob]:
    """Jobs for a storage of 1 byte/s whose cycles differ by a factor of 20 at most."""
    found = []
    for _ in range(draw(st.integers(1, most))):
        transfer_s = draw(st.floats(0.1, 5))
        rate = draw(st.floats(0.05, 3))
        found.append(
            PeriodicJob(
                compute_s=draw(st.sampled_from([0.0, 1.0, 3.0]) | st.floats(0, 10)),
                transfer_bytes=transfer_s * min(rate, 1),
                bytes_per_s=rate,
                weight=draw(st.floats(0.1, 10)),
            )
        )
    return found


# -- PerSched --------------------------------------------------------------------------------------

CYCLES = {1: [10] * 3 + [11] * 7, 2: [1] + [25] * 8, 3: [1, 1] + [33] * 6}


@pytest.mark.parametrize("number", first(1, [1, 6, 8, 2, 3, 4, 7, 9, 10, 5], extra=9))
def test_patterns_are_those_of_the_authors(number: int) -> None:
    """Efficiency, dilation and period of all ten sets, to what is printed of them."""
    published = SETS[number]
    found = plan_periodic(published.jobs, BANDWIDTH, shortest_s=published.shortest_s)
    assert found.outcome.efficiency == pytest.approx(published.efficiency, rel=1e-5)
    assert found.outcome.dilation == pytest.approx(published.dilation, rel=1e-5)
    assert found.period_s == pytest.approx(published.period_s, rel=1e-5)
    if number in CYCLES:
        assert sorted(found.cycles) == CYCLES[number]
    assert_holds(found, published.jobs, BANDWIDTH)


@given(jobs(), st.sampled_from(["efficiency", "dilation"]))
def test_patterns_hold(given_jobs: list[PeriodicJob], objective: Any) -> None:
    """Whatever the jobs, what is promised can be done, and is within the bounds."""
    found = plan_periodic(given_jobs, 1.0, objective=objective, longest_ratio=3, step=0.1)
    assert_holds(found, given_jobs, 1.0)


def assert_holds(pattern: Pattern, given_jobs: Any, bandwidth: float) -> None:
    """A pattern beside its definition, by nothing of what made it."""
    period_s, tiny_s = pattern.period_s, 1e-9 * pattern.period_s
    events: list[tuple[float, float]] = []
    computed = 0.0
    for job, transfers in zip(given_jobs, pattern.transfers, strict=True):
        assert len(transfers) >= 1
        assert 0 <= transfers[0][0].start_s < period_s
        last_end_s = transfers[-1][-1].end_s - period_s
        for transfer in transfers:
            assert transfer[0].start_s - last_end_s >= job.compute_s - tiny_s
            moved, at_s = 0.0, transfer[0].start_s
            for stretch in transfer:
                assert at_s <= stretch.start_s < stretch.end_s
                assert 0 < stretch.bytes_per_s <= job.bytes_per_s * (1 + 1e-9)
                moved += (stretch.end_s - stretch.start_s) * stretch.bytes_per_s
                at_s = stretch.end_s
                for turn in (-1, 0, 1):
                    events += [
                        (stretch.start_s + turn * period_s, stretch.bytes_per_s),
                        (stretch.end_s + turn * period_s, -stretch.bytes_per_s),
                    ]
            assert moved == pytest.approx(job.transfer_bytes, rel=1e-6)
            last_end_s = at_s
        computed += job.weight * job.compute_s * len(transfers)
    times, changes = map(np.array, zip(*sorted(events), strict=True))
    used = np.cumsum(changes)[:-1]
    assert (used[np.diff(times) > tiny_s] <= bandwidth * (1 + 1e-6)).all()
    assert pattern.cycles == tuple(map(len, pattern.transfers))
    weights = sum(job.weight for job in given_jobs)
    dilation = max(
        period_s
        / (len(transfers) * (job.compute_s + job.transfer_bytes / min(job.bytes_per_s, bandwidth)))
        for job, transfers in zip(given_jobs, pattern.transfers, strict=True)
    )
    assert pattern.outcome.efficiency == pytest.approx(computed / period_s / weights)
    assert pattern.outcome.dilation == pytest.approx(dilation)
    bounds = fluid_bounds(given_jobs, bandwidth)
    assert pattern.outcome.efficiency <= bounds.efficiency * (1 + 1e-6)
    assert pattern.outcome.dilation >= bounds.dilation * (1 - 1e-6)


def rates_at(pattern: Pattern, time_s: float) -> list[float]:
    """Bytes/s of each job at a time since the pattern began."""
    time_s %= pattern.period_s
    times = (time_s, time_s + pattern.period_s)
    return [
        sum(
            stretch.bytes_per_s
            for transfer in transfers
            for stretch in transfer
            if any(stretch.start_s <= time < stretch.end_s for time in times)
        )
        for transfers in pattern.transfers
    ]


@given(jobs(3), st.integers(0, 3))
def test_rates_are_the_pattern(given_jobs: list[PeriodicJob], periods: int) -> None:
    """The rates that may flow at a time, added up over any period, are the transfers."""
    found = plan_periodic(given_jobs, 1.0, longest_ratio=2, step=0.25)
    edges = {0.0, found.period_s}
    for transfers in found.transfers:
        for transfer in transfers:
            for stretch in transfer:
                edges |= {stretch.start_s % found.period_s, stretch.end_s % found.period_s}
    times = np.array(sorted(edges))
    middle = (times[1:] + times[:-1]) / 2 + periods * found.period_s
    rates = np.array([rates_at(found, float(time_s)) for time_s in middle])
    moved = (rates * np.diff(times)[:, None]).sum(axis=0)
    expected = [
        job.transfer_bytes * cycles for job, cycles in zip(given_jobs, found.cycles, strict=True)
    ]
    np.testing.assert_allclose(moved, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("number", "efficiency", "dilation"),
    [
        (1, 0.0972, 1.901),
        pytest.param(2, 0.2922, 1.468, marks=long),
        pytest.param(3, 0.4860, 1.101, marks=long),
    ],
)
def test_the_search_begins_where_all_fits(number: int, efficiency: float, dilation: float) -> None:
    """Without being told where."""
    found = plan_periodic(SETS[number].jobs, BANDWIDTH).outcome
    assert found.efficiency == pytest.approx(efficiency, abs=1e-4)
    assert found.dilation == pytest.approx(dilation, abs=1e-3)


# -- bounds ----------------------------------------------------------------------------------------


@given(jobs(6), st.floats(0.05, 5))
def test_fluid_bounds_are_linear_programs(given_jobs: list[PeriodicJob], bandwidth: float) -> None:
    """The most efficiency, and the least dilation, by SciPy."""
    alone = np.array(
        [job.compute_s + job.transfer_bytes / min(job.bytes_per_s, bandwidth) for job in given_jobs]
    )
    volume = np.array([job.transfer_bytes for job in given_jobs])
    worth = np.array([job.weight * job.compute_s for job in given_jobs])
    limits_of = [(0, 1 / each) for each in alone]
    most = linprog(-worth, volume[None], [bandwidth], bounds=limits_of)
    bounds = fluid_bounds(given_jobs, bandwidth)
    weights = sum(job.weight for job in given_jobs)
    assert bounds.efficiency == pytest.approx(-most.fun / weights, rel=1e-6, abs=1e-9)
    speed = linprog([-1], [[(volume / alone).sum()]], [bandwidth], bounds=[(0, 1)])
    assert bounds.dilation == pytest.approx(-1 / speed.fun, rel=1e-6)


# -- online rules ----------------------------------------------------------------------------------

ONLINE = {
    Rule("round-robin"): [(0.0975, 1.770), (0.2926, 1.425), (0.4873, 1.081)],
    Rule("max-efficiency"): [(0.0975, 1.770), (0.2926, 1.425), (0.4873, 1.081)],
    Rule("min-max", 0.5): [(0.0975, 1.770), (0.2926, 1.425), (0.4873, 1.081)],
    Rule("min-dilation"): [(0.0975, 1.770), (0.2351, 1.422), (0.4601, 1.079)],
    Rule("min-max", 1.0): [(0.0975, 1.770), (0.2351, 1.422), (0.4601, 1.079)],
    Rule("fair"): [(0.0888, 1.942), (0.2745, 1.594), (0.4609, 1.247)],
    Rule("max-efficiency", divisible=False): [(0.0831, 2.083), (0.2783, 1.673), (0.4732, 1.268)],
}


@pytest.mark.parametrize("number", [1, *(pytest.param(n, marks=long) for n in (2, 3))])
@pytest.mark.parametrize("rule", ONLINE, ids=str)
def test_rules_give_what_another_program_found(rule: Rule, number: int) -> None:
    """To a hundredth: that one counts cycles up to a fixed time."""
    found = simulate(SETS[number].jobs, BANDWIDTH, rule, cycles=200)
    efficiency, dilation = ONLINE[rule][number - 1]
    assert found.efficiency == pytest.approx(efficiency, rel=0.01)
    assert found.dilation == pytest.approx(dilation, rel=0.01)


@given(jobs(), st.sampled_from(ALL_RULES))
def test_rules_stay_within_the_bounds(given_jobs: list[PeriodicJob], rule: Rule) -> None:
    """By one part in the number of cycles."""
    found = simulate(given_jobs, 1.0, rule, cycles=50)
    bounds = fluid_bounds(given_jobs, 1.0)
    assert found.efficiency <= bounds.efficiency * 1.02
    assert found.dilation * 1.02 >= bounds.dilation


@given(jobs(1), st.sampled_from(ALL_RULES))
def test_who_is_alone_is_not_slowed_down(given_jobs: list[PeriodicJob], rule: Rule) -> None:
    found = simulate(given_jobs, 1.0, rule, cycles=10)
    assert found.dilation == pytest.approx(1)
    assert found.efficiency == pytest.approx(fluid_bounds(given_jobs, 1.0).efficiency)


_fractions = st.floats(0, 1)


@given(
    st.lists(
        st.builds(
            Waiting,
            bytes_per_s=st.floats(0.01, 10),
            weight=st.floats(0.1, 10),
            idle_since_s=st.floats(0, 100),
            progress=_fractions,
        ),
        max_size=6,
    ),
    st.floats(0.1, 20),
    st.sampled_from(ALL_RULES),
)
def test_grants_are_what_there_is(waiting: list[Waiting], bandwidth: float, rule: Rule) -> None:
    """Nobody more than it can take, all together no more than there is, and nothing is left that
    somebody could take; without division, nobody a part."""
    rates = grant(waiting, bandwidth, rule)
    wanted = [min(each.bytes_per_s, bandwidth) for each in waiting]
    assert all(0 <= rate <= want for rate, want in zip(rates, wanted, strict=True))
    assert sum(rates) <= bandwidth * (1 + 1e-6)
    if rule.divisible:
        assert sum(rates) == pytest.approx(min(bandwidth, sum(wanted)))
    else:
        assert all(rate in (0, want) for rate, want in zip(rates, wanted, strict=True))
        left = bandwidth - sum(rates)
        assert all(
            rate or want >= left * (1 - 1e-6) for rate, want in zip(rates, wanted, strict=True)
        )


def test_each_rule_has_its_first() -> None:
    """The oldest, the slowest, the heaviest; and who is told first among equals."""
    waiting = [
        Waiting(1, weight=9, idle_since_s=7, progress=0.9),
        Waiting(1, weight=2, idle_since_s=5, progress=0.6),
        Waiting(1, weight=1, idle_since_s=6, progress=0.4),
        Waiting(1, weight=1, idle_since_s=6, progress=0.4),
    ]
    first = {
        Rule("round-robin"): 1,
        Rule("min-dilation"): 2,
        Rule("max-efficiency"): 0,
        Rule("min-max", gamma=0.3): 0,
        Rule("min-max", gamma=0.5): 2,
    }
    for rule, number in first.items():
        assert grant(waiting, 1.0, rule).index(1.0) == number, rule
    assert grant(waiting, 1.0, Rule("fair")) == [0.25] * 4
    assert grant(waiting, 2.5, Rule("round-robin")) == [0, 1, 1, 0.5]
    assert grant(waiting, 2.5, Rule("round-robin", divisible=False)) == [0, 1, 1, 0]


# -- which of them ---------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("objective", ["efficiency", "dilation"])
def test_a_rule_wins_where_storage_is_short(objective: Any) -> None:
    """The paper's first set, in either objective, contrary to the paper, whose rules do not divide
    bandwidth."""
    found = compare(SETS[1].jobs, BANDWIDTH, objective)
    assert isinstance(found.winner, Rule)
    assert "the best pattern" in found.reason
    assert found.pattern is not None
    assert found.bounds == fluid_bounds(SETS[1].jobs, BANDWIDTH)
    undivided = compare(SETS[1].jobs, BANDWIDTH, objective, [Rule("round-robin", divisible=False)])
    assert undivided.winner is undivided.pattern


@pytest.mark.long
@given(jobs(3), st.sampled_from(["efficiency", "dilation"]))
def test_the_winner_is_the_best(given_jobs: list[PeriodicJob], objective: Any) -> None:
    """By the objective that was asked for, to a thousandth."""
    found = compare(given_jobs, 1.0, objective)
    assert found.pattern is not None
    scores = [outcome.score(objective) for _, outcome in found.rules]
    best = max(scores)
    gained = found.pattern.outcome.score(objective) - best
    if isinstance(found.winner, Pattern):
        assert gained > 1e-3 * abs(best)
    else:
        assert gained <= 1e-3 * abs(best)
        assert dict(found.rules)[found.winner].score(objective) >= best - 1e-4


@pytest.mark.long
def test_a_rule_wins_where_a_pattern_would_be_too_long() -> None:
    """Among jobs of seconds and of hours there is no pattern to search for."""
    short, slow = PeriodicJob(1, 1, 10), PeriodicJob(4_000, 10, 10)
    found = compare([short, slow], 10, rules=[Rule("min-max")])
    assert isinstance(found.winner, Rule)
    assert found.pattern is None
    assert f"pattern_cycles_max {limits.pattern_cycles_max:,}" in found.reason


# -- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["compute_s", "transfer_bytes", "bytes_per_s", "weight"])
@pytest.mark.parametrize("value", [-1.0, math.inf, math.nan, "1", None, True])
def test_absurd_jobs_are_refused(field: str, value: object) -> None:
    """By the name of what is absurd."""
    good: dict[str, Any] = {"compute_s": 1, "transfer_bytes": 1, "bytes_per_s": 1}
    with pytest.raises(UsageError, match=f"PeriodicJob.{field} is"):
        PeriodicJob(**good | {field: value})


def test_other_bad_input_is_refused() -> None:
    job = PeriodicJob(1, 1, 1)
    for field in ("transfer_bytes", "bytes_per_s", "weight"):
        with pytest.raises(UsageError, match=f"PeriodicJob.{field} is 0"):
            PeriodicJob(**{"compute_s": 1, "transfer_bytes": 1, "bytes_per_s": 1, field: 0})
    with pytest.raises(UsageError, match="transfer_bytes / bytes_per_s is inf"):
        PeriodicJob(1, 1e308, 1e-308)
    calls: dict[str, Any] = {
        "jobs is empty": lambda: plan_periodic([], 1),
        r"jobs\[1\] is 3": lambda: simulate([job, 3], 1, Rule()),  # type: ignore[list-item]
        "bandwidth is 0": lambda: fluid_bounds([job], 0),
        "bandwidth is nan": lambda: compare([job], math.nan),
        "objective is 'speed'": lambda: plan_periodic([job], 1, objective="speed"),  # type: ignore[arg-type]
        "shortest_s is -1": lambda: plan_periodic([job], 1, shortest_s=-1),
        "longest_ratio is 0.5": lambda: plan_periodic([job], 1, longest_ratio=0.5),
        "step is 0": lambda: plan_periodic([job], 1, step=0.0),
        "step is 2: use a fraction": lambda: plan_periodic([job], 1, step=2),
        "no period of 0.1..1 s": lambda: plan_periodic([job], 1, shortest_s=0.1),
        "cycles is 0": lambda: simulate([job], 1, Rule(), cycles=0),
        "rules is empty": lambda: compare([job], 1, rules=[]),
        "Rule.name is 'best'": lambda: Rule("best"),  # type: ignore[arg-type]
        "Rule.gamma is 2": lambda: Rule("min-max", gamma=2),
    }
    for message, call in calls.items():
        with pytest.raises(UsageError, match=message):
            call()


def test_what_would_take_too_long_is_refused() -> None:
    """Rather than begun."""
    short, slow = PeriodicJob(1e-6, 1e-6, 1), PeriodicJob(1e6, 1, 1)
    with pytest.raises(LimitError, match="pattern_cycles_max"):
        plan_periodic([short, slow], 1)
    with pytest.raises(LimitError, match="simulated_transfers_max"):
        simulate([short, slow], 1, Rule())
    with pytest.raises(LimitError, match="simulated_transfers_max"):
        compare([short, slow], 1)
