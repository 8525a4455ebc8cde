"""The number that says how good a shuffle is: the kernel, its mean, and what orders get."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Order, limits, shuffle_quality
from penstock.quality import expected_kernel, inversions


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
    assert inversions(np.array([ranking, sorted(ranking)])).tolist() == [expected, 0]


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


@pytest.mark.parametrize("count", [100, 5000, 10**6, 2**40])
def test_a_perfect_shuffle_is_found_perfect(count: int) -> None:
    """An exact order has a kernel mean within 4.5 standard errors of a uniform shuffle's."""
    sampled = min(count, limits.shuffle_runs * limits.shuffle_run_samples)
    mean, square = expected_kernel(sampled), expected_kernel(sampled, 10.0)
    error = math.sqrt((square - mean**2) / limits.shuffle_pairs)
    least = 1 - math.sqrt(4.5 * error / (1 - mean))
    assert least > 0.92
    assert shuffle_quality(Order(count, 5)) >= least


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
