"""Steps of packed rows: on any worlds, killed at any steps, each document and target comes once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.order import Order, PackedOrder
from penstock.order.packed_order import PackingRule
from penstock.plan import Steps


def make_order(lengths: np.ndarray, rule: PackingRule, seed: int, epoch: int) -> PackedOrder:
    """Make the order of an epoch, of which nothing is counted yet, as after a start."""
    order = PackedOrder(Order(len(lengths), seed), rule, lambda ids: lengths[ids.view(np.int64)])
    return order.at_epoch(epoch)


def check_worlds(random: np.random.Generator) -> None:
    """Walk an epoch in some stretches, each on another world from the state of the one before."""
    lengths = random.integers(0, 50, random.integers(64, 600))
    lengths[0] = 1
    rule = PackingRule(int(random.integers(2, 70)), int(random.integers(5, 200)))
    seed, epoch = int(random.integers(9)), int(random.integers(3))
    rows = len(make_order(lengths, rule, seed, epoch))
    size = int(random.integers(1, 80))
    state, done = (0, 0, 0), list[list[int]]()
    targets, documents = list[np.ndarray](), list[np.ndarray]()
    while len(done) * size < rows:
        order = make_order(lengths, rule, seed, epoch)  # the run was killed
        step, window, before = state
        order.counts.resume_at(window, before, step * size)
        world = int(random.integers(1, min(64, size, rows) + 1))
        known = order.counts.reach(size)
        steps = Steps(known, size, world, counter=order.counts)
        stop = step + int(random.integers(1, 12))
        steps = steps.extend(stop + 1)
        stop = min(stop, len(steps))
        parts = [steps.positions(step, stop, rank, order) for rank in range(world)]
        for number in range(stop - step):
            own = [positions[bounds[number] : bounds[number + 1]] for positions, bounds, _ in parts]
            assert max(map(len, own)) - min(map(len, own)) <= 1
            done.append(sorted(np.concatenate(own).tolist()))
            pieces = order.pieces(np.concatenate(own))
            documents.append(pieces.documents)
            follows = pieces.length - 1  # a piece's first token is no target
            first = pieces.documents.view(np.int64) * 1000 + pieces.start + 1
            before = np.cumsum(follows) - follows
            targets.append(np.repeat(first - before, follows) + np.arange(follows.sum()))
        state = (stop, *order.counts.locate(min(stop * size, rows) - 1))
    batches = [list(range(at, min(at + size, rows))) for at in range(0, rows, size)]
    assert done == batches
    assert np.array_equal(np.unique(np.concatenate(documents)), np.flatnonzero(lengths))
    expected = [1000 * number + np.arange(1, size) for number, size in enumerate(lengths.tolist())]
    assert np.array_equal(np.sort(np.concatenate(targets)), np.concatenate(expected))


@given(st.integers(0, 2**32))
def test_documents_come_once_on_any_worlds(seed: int) -> None:
    check_worlds(np.random.default_rng(seed))


@pytest.mark.long
@pytest.mark.parametrize("hundred", range(10))
def test_documents_come_once_on_many_worlds(hundred: int) -> None:
    for seed in range(100):
        check_worlds(np.random.default_rng([hundred, seed]))


def test_steps_know_as_much_as_they_are_asked_for() -> None:
    order = make_order(np.full(1000, 4), PackingRule(8, 100), 0, 0)
    steps = Steps(order.counts.reach(7), 7, 2, counter=order.counts)
    assert order.counts.counted == 1
    assert steps.extend(7) is steps
    assert steps.extend(8).count == 100
    assert order.counts.counted == 2
    assert len(steps.extend(10**9)) == 72  # 500 rows
    assert Steps(500, 7, 2).extend(10**9).count == 500
