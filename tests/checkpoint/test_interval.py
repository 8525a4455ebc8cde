"""The interval between saves, against a simulation of saves and failures, and against published
formulas."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from scipy import special

from penstock.checkpoint import Checkpoints
from penstock.checkpoint.interval import (
    OVERHEAD,
    Advice,
    Costs,
    Failures,
    SavePace,
    advise_interval,
    find_best_work_s,
)
from penstock.errors import UsageError
from tests.slices import fraction

Floats = npt.NDArray[np.float64]

ANY = 1e9  # an overhead that bounds nothing


class Job:
    """A job that trains and saves, event by event, without a formula of the module."""

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self.now_s = 0.0
        self.writes_until_s = 0.0
        self.waited_s = 0.0

    def train(self, steps: int) -> None:
        work_s = steps * self.costs.step_s
        slow = 1 + self.costs.slowdown
        slowly_s = max(0.0, self.writes_until_s - self.now_s)
        if work_s * slow <= slowly_s:
            self.now_s += work_s * slow
        else:
            self.now_s += slowly_s + (work_s - slowly_s / slow)

    def save(self) -> float:
        """Begin a save; the time of its commit."""
        wait_s = max(0.0, self.writes_until_s - self.now_s)
        self.waited_s += wait_s
        called_s = self.now_s + wait_s
        self.now_s = called_s + self.costs.blocked_s
        self.writes_until_s = called_s + self.costs.commit_s
        return self.writes_until_s


def commits(costs: Costs, steps: int, until_s: float) -> Floats:
    """Return the times of commits, in seconds since the job has started (again)."""
    job, found = Job(costs), [0.0]
    while found[-1] <= until_s:
        job.train(steps)
        found.append(job.save())
    return np.array(found[1:])


def failing(failures: Failures, count: int) -> tuple[Floats, float]:
    """Draw how long a job is up before each of its failures, and how long it took to start again.
    If it fails while it starts, it starts once more."""
    random = np.random.default_rng(0)
    mtbf_s, again_s, left = failures.job_mtbf_s, 0.0, count
    while left and failures.restart_s:
        until_s = random.exponential(mtbf_s, left)
        again_s += float(np.minimum(until_s, failures.restart_s).sum())
        left = int((until_s < failures.restart_s).sum())
    return random.exponential(mtbf_s, count), again_s


def simulated(costs: Costs, steps: int, up_s: Floats, again_s: float) -> float:
    """Simulate a job: the part of all time that was not lasting work."""
    times = commits(costs, steps, float(up_s.max()))
    lasting = np.searchsorted(times, up_s, side="right").sum() * steps * costs.step_s
    return float(1 - lasting / (up_s.sum() + again_s))


def some(least: float, most: float) -> st.SearchStrategy[float]:
    """Draw nothing at all, or a time up to a maximum."""
    return st.just(0.0) | st.floats(least, most)


COSTS = st.builds(
    lambda blocked, behind, slowdown: Costs(
        blocked_s=blocked, commit_s=blocked + behind, step_s=1.0, slowdown=slowdown
    ),
    st.floats(0.01, 30),
    some(1e-3, 100),
    some(1e-3, 0.5),
)
FAILURES = st.builds(
    lambda mtbf, nodes, restart: Failures(mtbf_s=mtbf * nodes, nodes=nodes, restart_s=restart),
    st.floats(60, 5000),
    st.integers(1, 1000),
    some(1, 200),
)


@given(COSTS, FAILURES)
@fraction(3)
def test_nothing_loses_less(costs: Costs, failures: Failures) -> None:
    """No simulated interval loses less than the advised one by more than a few percent, and the
    forecast for the advised one comes true."""
    up_s, again_s = failing(failures, 40_000)
    found = advise_interval(costs, failures, ANY)
    few, many = max(1, found.steps // 8), 6 * found.steps + 20
    tried = np.unique(np.geomspace(few, many, 40).astype(int)).tolist()
    lost = {steps: simulated(costs, steps, up_s, again_s) for steps in [*tried, found.steps]}
    assert lost[found.steps] <= 1.03 * min(lost.values()) + 1e-4
    assert lost[found.steps] == pytest.approx(found.lost, rel=0.04, abs=1e-3)


def test_chosen_by_what_binds() -> None:
    """Each condition in its turn demands most; one step is the least."""
    often, seldom = Failures(mtbf_s=60.0), Failures(mtbf_s=1e7)
    slow = Costs(blocked_s=0.01, commit_s=50.01, step_s=1.0)
    assert (advise_interval(slow, often).binds, advise_interval(slow, often).steps) == (
        "commit",
        50,
    )
    dear = Costs(blocked_s=10.0, commit_s=10.0, step_s=1.0)
    assert (advise_interval(dear, often).binds, advise_interval(dear, often).steps) == (
        "overhead",
        286,
    )
    assert advise_interval(dear, often, ANY).binds == "failures"
    assert advise_interval(dear, seldom).binds == "failures"
    long = Costs(blocked_s=0.01, commit_s=5.0, step_s=100.0)
    assert (advise_interval(long, often).binds, advise_interval(long, often).steps) == ("step", 1)


@given(COSTS, FAILURES, st.floats(0.001, 1))
def test_the_shortest_that_keeps_up(costs: Costs, failures: Failures, overhead: float) -> None:
    """In a running job no save waits for the one before, and the bound holds; with a step less, one
    of them fails."""

    def ran(steps: int) -> tuple[float, float]:
        """Return the waits of saves, and the training time that one of them took."""
        job = Job(costs)
        for _ in range(4):
            job.train(steps)
            began_s = job.now_s
            job.save()
        job.train(steps)
        return job.waited_s, job.now_s - began_s - steps * costs.step_s

    found = advise_interval(costs, failures, overhead)
    assert found.steps == max(found.failure_steps, found.commit_steps, found.overhead_steps)
    waited_s, lost_s = ran(found.steps)
    assert waited_s <= 1e-9
    assert lost_s <= overhead * found.steps * costs.step_s + 1e-9
    assert lost_s == pytest.approx(costs.lost_s)
    assert ran(found.commit_steps)[0] <= 1e-9
    if found.commit_steps > 1:
        assert ran(found.commit_steps - 1)[0] > 0
    if found.overhead_steps > 1:
        assert costs.lost_s > overhead * (found.overhead_steps - 1) * costs.step_s


@given(some(1e-3, 1e4), st.floats(1e-3, 1e4), st.floats(1e-3, 1e3))
def test_checkfreq(copy_s: float, write_s: float, step_s: float) -> None:
    """The interval is CheckFreq's k = max(1, ceil((t_f - o) / t_i)), if steps are not slowed."""
    costs = Costs(blocked_s=copy_s, commit_s=copy_s + write_s, step_s=step_s)
    behind_s = (copy_s + write_s) - copy_s
    assert costs.commit_steps == max(1, math.ceil(behind_s / step_s))


@given(st.floats(1e-9, 0.5) | st.floats(0, 8).map(lambda x: 0.5 * 2**x), st.floats(1, 1e7))
@example(1e-9, 1.0)
@example(128.0, 1.0)
def test_the_best_work_between_saves(cost: float, mtbf_s: float) -> None:
    """The best work is given by Lambert's W. Young's formula (1974) has the first term of its
    series, and Daly's (2006) the first three, if the cost is small."""
    found = find_best_work_s(cost * mtbf_s, mtbf_s)
    assert 0 < found < mtbf_s or cost > 30
    young_s = math.sqrt(2 * cost) * mtbf_s
    assert found <= young_s
    if cost > 1e-6:  # the argument of W has too few digits below
        exact = mtbf_s * (1 + float(special.lambertw(-math.exp(-1 - cost)).real))
        assert found == pytest.approx(exact, rel=1e-4)
    if cost < 0.5:
        assert found == pytest.approx(young_s - cost * mtbf_s * 2 / 3, rel=0.1 * cost + 1e-9)
        half = cost / 2
        daly_s = young_s * (1 + math.sqrt(half) / 3 + half / 9) - cost * mtbf_s
        assert found == pytest.approx(daly_s, rel=0.02 * cost**1.5 + 1e-9)


@given(st.floats(1, 600), st.floats(1e3, 1e6), some(1, 600), st.floats(1, 1e4))
def test_dalys_time_of_a_run(dump_s: float, mtbf_s: float, restart_s: float, work_s: float) -> None:
    """If training waits for the commit, a run takes M e^(R/M) (e^((t + d)/M) - 1) / t times its
    work (Daly 2006, equation 13)."""
    costs = Costs(blocked_s=dump_s, commit_s=dump_s, step_s=work_s)
    found = advise_interval(costs, Failures(mtbf_s=mtbf_s, restart_s=restart_s), ANY)

    def times(steps: int) -> float:
        between_s = steps * work_s
        again = math.exp(restart_s / mtbf_s)
        return mtbf_s * again * math.expm1((between_s + dump_s) / mtbf_s) / between_s

    assert 1 / (1 - found.lost) == pytest.approx(times(found.steps), rel=1e-9)
    for steps in (max(1, found.failure_steps - 1), found.failure_steps + 1):
        assert times(found.failure_steps) <= times(steps) * (1 + 1e-12)


def test_worked_by_hand() -> None:
    """Five minutes a save and a failure a day: sqrt(2 * 300 s * 86400 s) is two hours, less 200 s.
    1024 nodes that fail every 120 days are a job that fails every 2.8 hours."""
    costs = Costs(blocked_s=300.0, commit_s=300.0, step_s=1.0)
    assert advise_interval(costs, Failures(mtbf_s=86400.0), ANY).steps == pytest.approx(
        7000, abs=10
    )
    assert Failures(mtbf_s=120 * 86400.0, nodes=1024).job_mtbf_s == 10125.0
    # About half an interval, and until the commit.
    costs = Costs(blocked_s=1.0, commit_s=31.0, step_s=1.0)
    found = advise_interval(costs, Failures(mtbf_s=1e7))
    assert found.lost_per_failure_s == pytest.approx(found.seconds / 2 + 30, rel=1e-3)


@given(COSTS, FAILURES)
def test_parts_are_a_whole(costs: Costs, failures: Failures) -> None:
    """The parts of the loss sum up to it; lasting work is the rest."""
    found = advise_interval(costs, failures)
    assert min(found.saving, found.redoing, found.restarting) >= 0
    assert found.lost == pytest.approx(found.saving + found.redoing + found.restarting)
    assert 0 < found.lost < 1 + 1e-12
    assert found.seconds == pytest.approx(found.steps * costs.step_s + costs.lost_s)


@given(*[st.floats(1e-12, 1e18)] * 6, st.integers(1, 10**9))
def test_any_number(
    blocked: float, behind: float, step: float, slow: float, mtbf: float, restart: float, nodes: int
) -> None:
    """Any valid numbers, however absurd, give a possible answer."""
    assume(blocked + behind <= 1e18)
    costs = Costs(blocked_s=blocked, commit_s=blocked + behind, step_s=step, slowdown=slow)
    found = advise_interval(costs, Failures(mtbf_s=mtbf, nodes=nodes, restart_s=restart))
    assert found.steps >= 1
    assert -1e-9 <= found.lost <= 1 + 1e-9


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (lambda: Costs(blocked_s=-1, commit_s=1, step_s=1), "blocked_s is -1"),
        (lambda: Costs(blocked_s=2, commit_s=1, step_s=1), "give the time from the call of save"),
        (lambda: Costs(blocked_s=0, commit_s=1, step_s=0), "step_s is 0"),
        (lambda: Costs(blocked_s=0, commit_s=1, step_s=1, slowdown=math.nan), "slowdown is nan"),
        (lambda: Failures(mtbf_s=0), "mtbf_s is 0"),
        (lambda: Failures(mtbf_s=math.inf), "mtbf_s is inf"),
        (lambda: Failures(mtbf_s=1, nodes=0), "nodes is 0"),
        (lambda: Failures(mtbf_s=1, restart_s=-1), "restart_s is -1"),
        (
            lambda: advise_interval(
                Costs(blocked_s=0, commit_s=1, step_s=1), Failures(mtbf_s=1), 0.0
            ),
            "overhead is 0.0",
        ),
    ],
)
def test_absurd_numbers(asked: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        asked()


# -- measured ----------------------------------------------------------------------------------


def test_pace_leaves_out_what_waited() -> None:
    """Saves of 1 s that are committed after 30 s begin 10 steps of 2 s after the one before has
    returned: the 10 s that each waits for the one before are left out."""
    pace, now_s, free_s = SavePace(), 100.0, 0.0
    for step in range(10, 60, 10):
        wait_s = max(0.0, free_s - now_s)
        pace.record_commit(step, now_s, wait_s + 1.0, wait_s + 30.0)
        free_s = now_s + wait_s + 30.0
        now_s += wait_s + 1.0 + 20.0
    assert pace.compute_costs() == Costs(blocked_s=1.0, commit_s=30.0, step_s=2.0)
    assert pace.compute_costs(3.0, 0.1) == Costs(
        blocked_s=1.0, commit_s=30.0, step_s=3.0, slowdown=0.1
    )


def test_pace_of_few_saves() -> None:
    """A job that went back, a first save that was slow, and pauses do not
    change the medians."""
    pace = SavePace()
    with pytest.raises(UsageError, match="after one"):
        pace.compute_costs(1.0)
    pace.record_commit(5, 0.0, 50.0, 60.0)
    with pytest.raises(UsageError, match="give step_s="):
        pace.compute_costs()
    assert pace.compute_costs(1.0).blocked_s == 50.0
    pace.record_commit(3, 100.0, 2.0, 4.0)
    with pytest.raises(UsageError, match="give step_s="):
        pace.compute_costs()
    now_s = 102.0
    for step in range(4, 40):
        now_s += 1000.0 if step % 5 == 0 else 3.0
        pace.record_commit(step, now_s, 2.0, 4.0)
        now_s += 2.0
    assert pace.compute_costs() == Costs(blocked_s=2.0, commit_s=4.0, step_s=3.0)


def test_advice_from_real_saves(tmp_path: Path) -> None:
    """The costs are those of the saves, and steps are timed between them."""
    state = {"x": np.ones(1 << 20, np.uint8)}
    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(UsageError, match="no save has been committed yet"):
            checkpoints.advice(3600.0)
        before_s = time.perf_counter()
        checkpoints.save(100, state)
        began_s = time.perf_counter()
        while time.perf_counter() - began_s < 0.2:
            pass
        checkpoints.wait()
        alone = checkpoints.last
        assert alone is not None
        with pytest.raises(UsageError, match="give step_s="):
            checkpoints.advice(3600.0)
        found = checkpoints.advice(3600.0, step_s=0.5, slowdown=0.03)
        assert found.costs == Costs(
            blocked_s=alone.blocked_s, commit_s=alone.seconds, step_s=0.5, slowdown=0.03
        )
        inner_s = time.perf_counter() - began_s
        checkpoints.save(120, state)
        outer_s = time.perf_counter() - before_s
        found = checkpoints.advice(86400.0, nodes=24, restart_s=60.0, overhead=0.1)
    assert inner_s <= 20 * found.costs.step_s <= outer_s
    assert isinstance(found, Advice)
    failures = Failures(mtbf_s=86400.0, nodes=24, restart_s=60.0)
    assert found == advise_interval(found.costs, failures, 0.1)
    assert found != advise_interval(found.costs, failures, OVERHEAD / 1000)
    with pytest.raises(UsageError, match="closed"):
        checkpoints.advice(3600.0, step_s=1.0)
