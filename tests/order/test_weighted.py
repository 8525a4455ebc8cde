"""Weights as integers, and how often they make samples come."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.order import Order, WeightedOrder
from penstock.order.keys import GOLDEN, WORD, mix64
from penstock.order.weighted import DrawnOrder, WeightTable, round_weights


def make_table(values: Any) -> WeightTable:
    given_values = np.asarray(values)
    out = np.empty(len(given_values), np.uint32)
    round_weights(len(given_values), lambda start, stop: given_values[start:stop], out)
    return WeightTable.from_integers(out)


def count_samples(order: WeightedOrder, epoch: int) -> np.ndarray:
    samples = order.at_epoch(epoch).samples(np.arange(len(order)))
    return np.bincount(samples.astype(np.int64), minlength=len(order.table))


@given(
    values=st.lists(st.integers(0, 1000) | st.floats(0.001, 1e6), min_size=1, max_size=150),
    picks=st.integers(1, 700),
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 2**40),
    shuffle=st.sampled_from(["exact", "blocked", "none"]),
)
def test_counts_are_the_expected_ones_rounded(
    values: Any, picks: int, seed: int, epoch: int, shuffle: Any
) -> None:
    """In every epoch each sample comes n * w / W times, rounded down or up, in integers, and is
    the one that the rule names, whatever the shuffle."""
    if not any(values):
        values[0] = 1
    table = make_table(values)
    weights, total = table.weights.astype(object), table.total
    assert total == sum(map(int, weights))
    order = WeightedOrder(Order(picks, seed, shuffle=shuffle, block=4, group=3), table)
    counts = count_samples(order, epoch)
    for count, weight in zip(counts.tolist(), map(int, weights), strict=True):
        assert picks * weight // total <= count <= -(-picks * weight // total)
    ends = np.cumsum(weights)
    offset = order.at_epoch(epoch).offset
    assert 0 <= offset < total
    by_rule = [int(np.argmax(ends > (t * total + offset) // picks)) for t in range(picks)]
    numbers = order.inner.at_epoch(epoch).samples(np.arange(picks)).astype(np.int64)
    samples = order.at_epoch(epoch).samples(np.arange(picks))
    assert samples.tolist() == [by_rule[number] for number in numbers]


def test_the_mean_over_offsets_is_exact() -> None:
    """Over all offsets each sample is picked n * w times, which is the expectation times W."""
    table = WeightTable.from_integers(np.array([5, 0, 1, 30, 7, 2], np.uint32))
    picks = 17
    counts = np.zeros(6, np.int64)
    for offset in range(table.total):
        samples = np.arange(picks, dtype=np.uint64)
        table.pick(samples, samples, picks, offset)
        counts += np.bincount(samples.astype(np.int64), minlength=6)
    assert counts.tolist() == (picks * table.weights.astype(np.int64)).tolist()


@pytest.mark.parametrize("seed", [0, 7, 2**63])
def test_rare_samples_come_evenly(seed: int) -> None:
    """A sample that is expected f < 1 times comes in any ceil(2 / f) epochs, and as often as it
    should over many, to a few times."""
    values = np.concatenate([np.full(300, 1.0), np.full(40, 0.013), np.full(60, 0.21)])
    table, epochs = make_table(values), 600
    order = WeightedOrder(Order(400, seed), table)
    expected = 400 * table.weights.astype(np.float64) / table.total
    counts = np.array([count_samples(order, epoch) for epoch in range(epochs)])
    assert np.abs(counts.sum(axis=0) - epochs * expected).max() < 4
    for sample in np.flatnonzero(expected < 1).tolist():
        there = np.flatnonzero(counts[:, sample])
        longest = np.diff(np.concatenate([[-1], there, [epochs]])).max()
        assert longest <= math.ceil(2 / expected[sample])


def test_many_picks_and_large_sums() -> None:
    """Points are exact where picks times the sum of weights take more than 64 bits."""
    table = WeightTable.from_integers(np.full(5000, 2**31, np.uint32))
    picks = 2**61 + 12345
    numbers = np.random.default_rng(1).integers(0, picks, 2000).astype(np.uint64)
    samples, offset = np.empty_like(numbers), table.total - 1
    assert table.pick(numbers, samples, picks, offset) == len(numbers)
    assert samples.tolist() == [
        (number * table.total + offset) // picks // 2**31 for number in numbers.tolist()
    ]
    numbers[1234] = picks
    assert table.pick(numbers, samples, picks, offset) == 1234


def test_rounding_is_by_powers_of_two() -> None:
    """Ratios of integers stay exact, and scaling all weights by a power of two changes nothing."""
    values = np.random.default_rng(0).integers(0, 2**20, 1000)
    table = make_table(values)
    assert len(set((table.weights[values > 0] // values[values > 0]).tolist())) == 1
    assert make_table(values * 2.0**-900).digest == table.digest
    assert make_table([5e-324, 1e-323]).weights.tolist() == [2**29, 2**30]
    assert make_table([0, 1.7976931348623157e308]).weights.tolist() == [0, 2**31 - 1]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.0, -0.5], r"the weight of sample 1 is -0.5: use a finite number from 0 on"),
        ([1.0, 2.0, math.nan], r"the weight of sample 2 is nan"),
        ([math.inf], r"the weight of sample 0 is inf"),
        ([0.0, 0.0], r"the weights of all 2 samples are 0: give one above 0"),
        ([1.0, 1e-12], r"sample 1 is 1e-12, too small beside the largest, 1.0: .* or use 0 to"),
    ],
)
def test_weights_that_are_refused(values: Any, message: str) -> None:
    """Each names the sample, its weight and the remedy."""
    with pytest.raises(UsageError, match=message):
        make_table(values)


@given(
    count=st.integers(1, 2**62 - 1),
    stretches=st.integers(1, 2**31 - 1),
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 2**40),
    shuffle=st.sampled_from(["exact", "blocked", "none"]),
)
def test_a_draw_of_each_stretch(
    count: int, stretches: int, seed: int, epoch: int, shuffle: Any
) -> None:
    """At each position comes a sample of the stretch that is there, by a hash of seed, epoch and
    stretch alone, in Python's integers."""
    stretches = min(stretches, count)
    order = DrawnOrder(Order(stretches, seed, shuffle=shuffle), count).at_epoch(epoch)
    positions = np.unique(np.linspace(0, stretches - 1, 50).astype(np.uint64))
    at = order.inner.samples(positions).tolist()
    key = Order(1, seed, epoch, purpose="weights").key(0x300)
    for sample, stretch in zip(order.samples(positions).tolist(), at, strict=True):
        low, high = (end * count // stretches for end in (stretch, stretch + 1))
        chance = mix64((key + GOLDEN * (stretch + 1)) & WORD)
        assert sample == low + chance % (high - low)
    assert order.samples(positions[:, None]).shape == (len(positions), 1)
    assert int(order.samples(int(positions[-1]))) == order.samples(positions).tolist()[-1]


def test_draws_are_even_and_differ_by_epoch() -> None:
    """Each place of a stretch is drawn as often, and other epochs draw others."""
    order = DrawnOrder(Order(1000, 7), 10_000)
    places = np.arange(1000)
    drawn = np.array([np.sort(order.at_epoch(epoch).samples(places)) % 10 for epoch in range(300)])
    counts = np.bincount(drawn.reshape(-1).astype(int), minlength=10)
    assert abs(counts - 30_000).max() < 5 * math.sqrt(30_000)
    assert abs(np.mean(drawn[1:] == drawn[:-1]) - 0.1) < 0.005
