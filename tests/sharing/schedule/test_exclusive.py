"""Accesses to what few may use at a time: colours, two tasks, and longer jobs."""

from __future__ import annotations

import itertools
import random as randomness
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import limits
from penstock.errors import UsageError
from penstock_sim.schedule import (
    SHARED,
    list_schedule,
    lower_bound,
    stagger,
    two_task_bound,
    two_tasks,
)
from tests.slices import first

# -- in no order -----------------------------------------------------------------------------------

_accesses = st.integers(1, 8).flatmap(
    lambda nodes: st.lists(st.tuples(st.integers(0, nodes), st.integers(0, nodes)), max_size=60)
)


@given(_accesses)
def test_as_many_slots_as_the_busiest_needs(accesses: list[tuple[int, int]]) -> None:
    """König: no reader or target twice in a slot, and no slot more than the largest degree."""
    readers, targets = [each[0] for each in accesses], [each[1] for each in accesses]
    slots = stagger(readers, targets).tolist()
    assert len(slots) == len(accesses)
    for ends in (readers, targets):
        assert max(Counter(zip(ends, slots, strict=True)).values(), default=0) <= 1
    degree = max([*Counter(readers).values(), *Counter(targets).values()], default=0)
    assert max(slots, default=-1) + 1 == degree


_capacities = st.lists(st.integers(1, 4), min_size=9, max_size=9)


@given(_accesses, _capacities, _capacities)
def test_as_many_slots_as_capacities_need(
    accesses: list[tuple[int, int]], of_readers: list[int], of_targets: list[int]
) -> None:
    """The most accesses of a reader or target over its capacity, rounded up."""
    readers, targets = [each[0] for each in accesses], [each[1] for each in accesses]
    slots = stagger(
        readers, targets, reader_capacity=of_readers, target_capacity=np.array(of_targets)
    ).tolist()
    needed = 0
    for ends, capacity in ((readers, of_readers), (targets, of_targets)):
        for (node, _), count in Counter(zip(ends, slots, strict=True)).items():
            assert count <= capacity[node]
        for node, count in Counter(ends).items():
            needed = max(needed, -(-count // capacity[node]))
    assert max(slots, default=-1) + 1 == needed


def test_many_accesses_are_planned() -> None:
    """Many accesses are planned, of skewed loads, too."""
    random = np.random.default_rng(1)
    readers = random.integers(0, 64, 20_000)
    targets = random.geometric(0.1, 20_000) % 40
    slots = stagger(readers, targets, target_capacity=4)
    assert np.bincount(slots * 64 + readers).max() == 1
    assert np.bincount(slots * 40 + targets).max() <= 4
    assert slots.max() + 1 == max(np.bincount(readers).max(), -(-np.bincount(targets).max() // 4))


# -- two tasks -------------------------------------------------------------------------------------


def assert_possible(jobs: Sequence[Any], slots: Sequence[Any], capacity: Sequence[int]) -> None:
    """Tasks of a job follow each other, and no resource has more of them than it may."""
    taken: Counter[tuple[int, int]] = Counter()
    for job, times in zip(jobs, slots, strict=True):
        assert len(job) == len(times)
        assert all(a < b for a, b in itertools.pairwise([-1, *times]))
        taken.update((r, slot) for r, slot in zip(job, times, strict=True) if r != SHARED)
    assert all(count <= capacity[resource] for (resource, _), count in taken.items())


def shortest(jobs: Sequence[Sequence[int]], capacity: Sequence[int]) -> int:
    """The fewest slots, by trying every choice of tasks in every slot."""
    states, slots = {(0,) * len(jobs)}, 0
    end = tuple(map(len, jobs))
    while end not in states:
        states = {after for state in states for after in afterwards(jobs, capacity, state)}
        slots += 1
    return slots


def afterwards(
    jobs: Sequence[Sequence[int]], capacity: Sequence[int], state: tuple[int, ...]
) -> set[tuple[int, ...]]:
    """The states in which jobs may be a slot later."""
    found = {(state, ())}
    for number, (job, done) in enumerate(zip(jobs, state, strict=True)):
        if done < len(job):
            found |= {
                ((*reached[:number], done + 1, *reached[number + 1 :]), (*used, job[done]))
                for reached, used in found
                if job[done] == SHARED or used.count(job[done]) < capacity[job[done]]
            }
    return {reached for reached, _ in found}


def drawn(random: randomness.Random, jobs: int, tasks: int) -> tuple[list[list[int]], list[int]]:
    """Jobs and capacities of 1 to 4 resources, of which one may be shared."""
    resources = random.randint(1, 4)
    least = random.choice([0, SHARED])
    capacity = [random.choice([1, 1, 1, 2, 3]) for _ in range(resources)]
    return [
        [random.randint(least, resources - 1) for _ in range(tasks)]
        for _ in range(random.randint(1, jobs))
    ], capacity


@pytest.mark.parametrize("count", first(1, [50, 200, 3000], extra=2))
def test_two_tasks_take_the_fewest_slots(count: int) -> None:
    """The slots are as few as brute force finds, for any small jobs, resources and capacities."""
    random = randomness.Random(count)
    for _ in range(count):
        jobs, capacity = drawn(random, jobs=6, tasks=2)
        first, second = map(list, zip(*jobs, strict=True))
        slots = two_tasks(first, second, capacity).tolist()
        assert_possible(jobs, slots, capacity)
        best = shortest(jobs, capacity)
        assert max(each[1] for each in slots) + 1 == best, (jobs, capacity)
        assert two_task_bound(first, second, capacity) == best


@given(
    st.lists(st.tuples(st.integers(-1, 20), st.integers(-1, 20)), max_size=200),
    st.lists(st.integers(1, 9), min_size=21, max_size=21),
)
def test_two_tasks_reach_their_bound(jobs: list[tuple[int, int]], capacity: list[int]) -> None:
    """However many there are."""
    first, second = [each[0] for each in jobs], [each[1] for each in jobs]
    slots = two_tasks(first, second, capacity).tolist()
    assert_possible(jobs, slots, capacity)
    end = max((each[1] for each in slots), default=-1) + 1
    assert end == two_task_bound(first, second, capacity)


# -- longer jobs -----------------------------------------------------------------------------------

_longer = st.lists(st.lists(st.integers(-1, 5), max_size=6), max_size=25)


@given(_longer, st.lists(st.integers(1, 3), min_size=6, max_size=6))
def test_longer_jobs_are_scheduled(jobs: list[list[int]], capacity: list[int]) -> None:
    """So that it can be done, and not below the bound."""
    slots = list_schedule(jobs, capacity)
    assert_possible(jobs, slots, capacity)
    end = max((int(each.max(initial=-1)) for each in slots), default=-1) + 1
    bound = lower_bound(jobs, capacity)
    assert bound <= end
    assert end <= max(1, sum(map(len, jobs)))


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.long)])
def test_no_schedule_is_below_the_bound(count: int) -> None:
    """By brute force, of jobs of one to four tasks; the heuristic is seldom a slot above it."""
    random = randomness.Random(count)
    above = 0
    for _ in range(count):
        jobs, capacity = drawn(random, jobs=4, tasks=random.randint(1, 4))
        best = shortest(jobs, capacity)
        assert lower_bound(jobs, capacity) <= best
        above += max(int(each.max()) for each in list_schedule(jobs, capacity)) + 1 - best
    assert above <= 0.1 * count


def test_the_bound_counts_what_comes_before_and_after() -> None:
    """Tasks of one resource that each have another one before or after them."""
    assert lower_bound([[0, 1], [0, 2], [0, 3]]) == 4
    assert lower_bound([[1, 0], [2, 0], [3, 0]]) == 4
    assert lower_bound([[1, 0, 4], [2, 0, 5], [3, 0]]) == 4
    assert lower_bound([[1, 0, 4], [2, 0, 5], [3, 0, 6]]) == 5
    assert lower_bound([[1, 0, 4], [2, 0, 5], [3, 0, 6]], [2, 1, 1, 1, 1, 1, 1]) == 4
    assert lower_bound([[1, 2, 3, SHARED], [0]]) == 4


@pytest.mark.parametrize("shape", [(32, 8, 4), (64, 8, 8), (256, 16, 4), (64, 4, 16)])
def test_heuristic_is_near_the_bound(shape: tuple[int, int, int]) -> None:
    """Within two per cent, where resources are drawn at random."""
    count, resources, tasks = shape
    random = np.random.default_rng(7)
    ends, bounds = 0, 0
    for _ in range(10):
        jobs = list(random.integers(0, resources, (count, tasks)))
        ends += max(int(each.max()) for each in list_schedule(jobs)) + 1
        bounds += lower_bound(jobs)
    assert ends <= 1.02 * bounds


# -- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: stagger([0, 1], [0]), "readers has 2 values where targets has 1"),
        (lambda: stagger([0.5], [0]), "readers is float64"),
        (lambda: stagger([[0]], [[0]]), r"readers is int64 of shape \(1, 1\)"),
        (lambda: stagger([0], [-1]), "targets has -1"),
        (lambda: stagger([limits.schedule_nodes_max], [0]), "readers has 1048576"),
        (lambda: stagger([0], [0], target_capacity=0), "target_capacity is 0"),
        (lambda: stagger([0], [1], target_capacity=[1]), "target_capacity has 1 values"),
        (lambda: stagger([0], [0], reader_capacity=1.5), "reader_capacity is 1.5"),
        (lambda: two_tasks([0], []), "first has 1 values where second has 0"),
        (lambda: two_tasks([0], [-2]), "second has -2..-2"),
        (lambda: two_tasks([0], [1], [1]), "capacity has 1 values"),
        (lambda: two_task_bound(["a"], [0]), "first is <U1"),
        (lambda: list_schedule([[0], ["b"]]), r"jobs\[1\] is <U1"),
        (lambda: lower_bound([[0]], -1), "capacity is -1"),
    ],
)
def test_bad_input_is_refused(call: Any, message: str) -> None:
    """By name."""
    with pytest.raises(UsageError, match=message):
        call()
