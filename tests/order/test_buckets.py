"""Buckets: batches of near lengths against plain Python, and what a rule refuses."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import DataError, UsageError
from penstock.order import Order, PackedOrder
from penstock.order.buckets import BucketRule


def cut_plainly(sizes: list[float], room: float) -> list[list[int]]:
    """The batches of a window: the largest first, as many as fit with the room of the first."""
    left = sorted(range(len(sizes)), key=lambda number: (-sizes[number], number))
    batches: list[list[int]] = []
    while left:
        count = 1
        while count < len(left) and (count + 1) * sizes[left[0]] <= room:
            count += 1
        batches.append(left[:count])
        left = left[count:]
    return batches


@given(
    st.lists(st.one_of(st.integers(0, 40), st.integers(0, 200_000)), min_size=1, max_size=200),
    st.integers(200_008, 1_000_000) | st.just(200_008),
    st.sampled_from([1, 1, 8]),
    st.booleans(),
)
def test_as_the_rule_is_worded(lengths: list[int], room: int, multiple: int, by_cost: bool) -> None:
    """Every sample of a window is in one batch, of no more room than given, padding included."""
    size_of = (lambda rounded: rounded * 0.5 + 1) if by_cost else None
    rule = BucketRule(room, 4096, multiple, size_of)
    rounded = [-(-length // multiple) * multiple for length in lengths]
    sizes = [length * 0.5 + 1 for length in rounded] if by_cost else rounded
    given_lengths = np.array(lengths, np.int64)
    rule.check(np.arange(len(lengths), dtype=np.uint64), given_lengths)
    offsets, which, start, tokens = rule.pack(given_lengths)
    batches = [which[a:b].tolist() for a, b in pairwise(offsets.tolist())]
    assert batches == cut_plainly(sizes, room)
    assert rule.count_rows(given_lengths) == len(batches)
    assert sorted(which.tolist()) == list(range(len(lengths)))
    assert all(len(own) * max(sizes[i] for i in own) <= room for own in batches)
    assert not start.any()
    assert tokens.tolist() == [lengths[i] for i in which.tolist()]


def test_near_lengths_waste_little() -> None:
    """Web-like lengths, some ten a batch, windows of 4,096: 97 % of the places hold tokens, where
    batches of equal numbers would waste most."""
    lengths = np.random.default_rng(1).lognormal(6.2, 1.1, 40_000).astype(np.int64).clip(1, 16_384)
    order = PackedOrder(
        Order(40_000, 1), BucketRule(16_384, 4096), lambda ids: lengths[ids.view(np.int64)]
    )
    pieces = order.pieces(np.arange(len(order)))
    longest = np.maximum.reduceat(pieces.length, pieces.offsets[:-1])
    counts = np.diff(pieces.offsets)
    assert sorted(pieces.documents.tolist()) == list(range(40_000))
    assert (counts * longest <= 16_384).all()
    assert lengths.sum() / (counts * longest).sum() > 0.97


def test_identity() -> None:
    """Whatever changes batches changes the name in states; a copy of a rule has the same one."""
    rules = [
        BucketRule(100, 64),
        BucketRule(101, 64),
        BucketRule(100.5, 64),
        BucketRule(100, 128),
        BucketRule(100, 64, 2),
        BucketRule(100, 64, 1, lambda lengths: lengths * 1.0),
        BucketRule(100, 64, 1, lambda lengths: lengths * 2.0),
    ]
    assert len({rule.name for rule in rules}) == len(rules)
    assert BucketRule(100.0, 64).name == rules[0].name
    assert BucketRule(100, 64, 1, lambda lengths: lengths + 0.0).name == rules[5].name


def test_samples_that_do_not_fit() -> None:
    """A sample larger than a batch may be is named, with its length."""
    rule = BucketRule(100, 64, 8)
    with pytest.raises(DataError, match=r"sample 7 of length 97 takes 104 alone, .*length < 97"):
        rule.check(np.array([3, 7], np.uint64), np.array([96, 97]))


@pytest.mark.parametrize("room", [0, -1, float("nan"), float("inf"), True, "8"])
def test_wrong_rooms(room: Any) -> None:
    """Tokens of a batch are a finite number above 0."""
    with pytest.raises(UsageError, match="batch_tokens is"):
        BucketRule(room, 64)


@pytest.mark.parametrize(
    "size_of",
    [lambda lengths: lengths[1:], lambda lengths: lengths - 2.0, lambda lengths: None],
)
def test_wrong_costs(size_of: Any) -> None:
    """A function that gives no sizes is refused when it is given."""
    with pytest.raises(
        UsageError,
        match="the cost of batches gives .*: return (one number for each|finite numbers from 0 on)",
    ):
        BucketRule(100, 64, 1, size_of)
