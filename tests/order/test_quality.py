"""The number that says how good a shuffle is: the kernel, its mean, and what orders get."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Order, limits
from penstock.order import shuffle_quality
from penstock.order.shuffling import count_inversions, expected_kernel, label_mix
from penstock.plan.placement import Placement
from tests.slices import first


def discordant(one: list[int], other: list[int]) -> int:
    """Pairs that two rankings order differently, counted one by one."""
    return sum(
        (one[i] < one[j]) != (other[i] < other[j])
        for i, j in itertools.combinations(range(len(one)), 2)
    )


@given(st.integers(1, 40).flatmap(lambda n: st.permutations(range(n))))
def test_inversions_are_counted(ranking: list[int]) -> None:
    """Inversions by bits are those found by comparing all pairs."""
    expected = discordant(list(range(len(ranking))), ranking)
    assert count_inversions(np.array([ranking, sorted(ranking)])).tolist() == [expected, 0]


@pytest.mark.parametrize("count", [2, 3, 5])
def test_expected_kernel_is_the_mean_over_all_rankings(count: int) -> None:
    """The closed form agrees with enumerating every ranking."""
    pairs = count * (count - 1) / 2
    kernels = [
        math.exp(-5 * discordant(list(range(count)), list(ranking)) / pairs)
        for ranking in itertools.permutations(range(count))
    ]
    assert expected_kernel(count) == pytest.approx(np.mean(kernels), rel=1e-12)


def test_expected_kernel_has_its_published_values() -> None:
    """The means for 5 and 100 samples are those of the literature's formula."""
    assert expected_kernel(5) == pytest.approx(0.135510687066, abs=1e-12)
    assert expected_kernel(100) == pytest.approx(0.083273839494, abs=1e-12)
    assert expected_kernel(100, 10.0) == pytest.approx(0.007136789800, abs=1e-12)


@pytest.mark.parametrize("shuffle", ["exact", "blocked", "none"])
def test_quality_is_the_discrepancy_by_brute_force(shuffle: str) -> None:
    """On a few samples the number is what comparing all pairs of each two epochs gives."""
    order = Order(12, 3, shuffle=shuffle, block=4, group=1)  # type: ignore[arg-type]
    rankings = [
        order.at_epoch(epoch).positions(np.arange(12)).tolist()
        for epoch in range(limits.shuffle_pairs + 1)
    ]
    found = np.mean([math.exp(-5 * discordant(a, b) / 66) for a, b in itertools.pairwise(rankings)])
    expected = 1 - math.sqrt(max(0.0, (found - expected_kernel(12)) / (1 - expected_kernel(12))))
    assert shuffle_quality(order) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("count", first(2, [100, 2**40, 5000, 10**6]))
def test_a_perfect_shuffle_is_found_perfect(count: int) -> None:
    """An exact order has a kernel mean within 4.5 standard errors of a uniform shuffle's."""
    sampled = min(count, limits.shuffle_runs * limits.shuffle_run_samples)
    mean, square = expected_kernel(sampled), expected_kernel(sampled, 10.0)
    error = math.sqrt((square - mean**2) / limits.shuffle_pairs)
    least = 1 - math.sqrt(4.5 * error / (1 - mean))
    assert least > 0.92
    assert shuffle_quality(Order(count, 5)) >= least


@pytest.mark.long
def test_quality_tells_shuffles_apart() -> None:
    """Nothing is 0, blocks lie between, and mixing more of them is better; always the same."""
    count = 1 << 16
    blocked = [
        shuffle_quality(Order(count, 1, shuffle="blocked", block=256, group=group))
        for group in (1, 64, 128, 256)
    ]
    assert shuffle_quality(Order(count, 1, shuffle="none")) == 0.0
    assert 0.8 < blocked[0] < 0.9
    assert blocked == sorted(blocked)
    assert blocked[3] > 0.97  # one group of all is an exact shuffle
    assert shuffle_quality(Order(count, 1, shuffle="blocked", block=256, group=64)) == blocked[1]
    assert shuffle_quality(Order(1, 0)) == 1.0


# -- how evenly labels are dealt -------------------------------------------------------------------


@pytest.mark.long
def test_label_mix_of_chance_is_that_of_chi_square() -> None:
    """Dealt at random, the spread is 1 on average and p-values are uniform."""
    stats = pytest.importorskip("scipy.stats")
    generator = np.random.default_rng(3)
    labels = np.repeat(np.arange(10), 400)
    owners = np.arange(4000) % 4
    mixes = [label_mix(labels, generator.permutation(owners)) for _ in range(500)]
    spread = np.array([mix.spread[0] for mix in mixes])
    assert spread.mean() == pytest.approx(1, abs=4 * np.sqrt(2 / 9 / 500))
    assert stats.kstest([mix.p_value[0] for mix in mixes], "uniform").pvalue > 1e-3


@given(st.lists(st.lists(st.integers(0, 40), min_size=2, max_size=30), min_size=2, max_size=5))
def test_label_mix_by_definition(counts: list[list[int]]) -> None:
    """The spread of any table of owners and labels is chi-square over its mean, and the p-value the
    tail of the distribution."""
    stats = pytest.importorskip("scipy.stats")
    places = [
        (owner, label)
        for owner, row in enumerate(counts)
        for label, held in enumerate(row)
        for _ in range(held)
    ]
    if not places:
        return
    owners, labels = np.array(places).T
    mix = label_mix(labels, owners)
    names, totals = np.unique(labels, return_counts=True)
    for owner in range(len(mix.spread)):
        own = np.count_nonzero(owners == owner)
        if own in (0, len(labels)) or len(names) == 1:
            assert (mix.spread[owner], mix.p_value[owner]) == (1, 1)
            continue
        expected = totals * own / len(labels)
        found = [np.count_nonzero((owners == owner) & (labels == name)) for name in names]
        statistic = ((found - expected) ** 2 / expected).sum()
        corrected = statistic * (len(labels) - 1) / (len(labels) - own)
        assert mix.spread[owner] * (len(names) - 1) == pytest.approx(corrected)
        tail = stats.chi2.sf(corrected, len(names) - 1)
        assert mix.p_value[owner] == pytest.approx(tail, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("cache_block", "even"), [(1, True), (256, False)])
def test_label_mix_of_data_sorted_by_class(cache_block: int, even: bool) -> None:
    """Nodes that keep single samples have a random mix; nodes with large cache blocks do not."""
    labels = np.arange(64_000) // 640
    placement = Placement(
        64_000, (64_000 // cache_block // 8,) * 8, seed=2, cache_block=cache_block
    )
    mix = label_mix(labels, placement.owners(np.arange(64_000)))
    if even:
        assert mix.p_value.min() > 1e-3
        assert mix.spread.max() < 2
    else:
        assert mix.p_value.max() < 1e-9
        assert mix.spread.min() > 10


def test_label_mix_without_anything_to_tell() -> None:
    """One label, one owner of all, an owner of nothing: no spread beyond chance."""
    nothing = np.empty(0, np.int64)
    assert label_mix(nothing, nothing).spread.tolist() == []
    for labels, owners in (([3, 3, 3, 3], [0, 1, 0, -1]), ([1, 2, 1], [1, 1, 1])):
        mix = label_mix(np.array(labels), np.array(owners))
        assert mix.spread.tolist() == mix.p_value.tolist() == [1.0, 1.0]
