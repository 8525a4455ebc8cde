"""The placement: each cache block in at most one place, shares by capacity, and the inverse."""

from __future__ import annotations

import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import limits
from penstock.errors import UsageError
from penstock.order.order import Order
from penstock.plan.placement import CacheTier, Placement, divide_shares


@st.composite
def placements(draw: st.DrawFn) -> Placement:
    nodes = draw(st.integers(1, 8))
    capacities = st.lists(st.integers(0, 60), min_size=nodes, max_size=nodes).map(tuple)
    alike = st.integers(0, 60).map(lambda each: (each,) * nodes)
    placement = Placement(
        draw(st.integers(1, 400)),
        draw(capacities | alike),
        draw(st.none() | capacities),
        draw(st.none() | st.lists(st.integers(1, 9), min_size=nodes, max_size=nodes).map(tuple)),
        seed=draw(st.integers(0, 2**64 - 1)),
        cache_block=draw(st.integers(1, 12)),
    )
    size = np.random.default_rng(draw(st.integers(0, 9))).integers(0, 100, placement.cache_blocks)
    return placement.deal_bytes(lambda some: size[some]) if draw(st.booleans()) else placement


@given(placements())
def test_each_slot_holds_one_cache_block(placement: Placement) -> None:
    """Slots 0..share-1 of each node hold one cache block each, and the others have no owner."""
    cache_blocks = np.arange(placement.cache_blocks)
    owner, slot = placement.place(cache_blocks)
    for node, share in enumerate(placement.shares):
        own = np.flatnonzero(owner == node)
        assert sorted(slot[own].tolist()) == list(range(share))
    assert np.count_nonzero(owner < 0) == placement.cache_blocks - sum(placement.shares)


@given(placements())
def test_owners_are_by_cache_block(placement: Placement) -> None:
    """A sample is where its cache block is, in arrays of any shape; `kept` counts samples."""
    samples = np.arange(placement.count)
    owners = placement.owners(samples)
    assert owners.dtype == np.int32
    of_cache_blocks = placement.place(np.arange(placement.cache_blocks)).owner
    for cache_block in range(placement.cache_blocks):
        assert set(owners[slice(*placement.span(cache_block))].tolist()) == {
            int(of_cache_blocks[cache_block])
        }
    assert placement.owners(samples[None, ::-1]).tolist() == [owners[::-1].tolist()]
    assert placement.owners(0) == owners[0]
    assert placement.kept == np.count_nonzero(owners >= 0) / placement.count


@given(placements())
def test_low_slots_lie_in_memory(placement: Placement) -> None:
    """A node's cache blocks fill its memory first and its disk then, and no more than that."""
    cache_blocks = np.arange(placement.cache_blocks)
    owner, slot = placement.place(cache_blocks)
    tiers = placement.tiers(cache_blocks)
    assert np.array_equal(tiers == CacheTier.STORAGE, owner < 0)
    disk_cache_blocks = placement.disk_cache_blocks
    assert disk_cache_blocks is not None
    for node, (ram, disk) in enumerate(
        zip(placement.ram_cache_blocks, disk_cache_blocks, strict=True)
    ):
        own = owner == node
        assert np.array_equal(tiers[own] == CacheTier.RAM, slot[own] < ram)
        assert np.count_nonzero(own) <= ram + disk


@given(
    st.integers(0, 300),
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), min_size=1, max_size=8),
)
def test_shares_are_levelled(cache_blocks: int, nodes: list[tuple[int, int]]) -> None:
    """Everything is owned that capacities allow, and who is not full has no less by weight, up to
    one cache block, than anybody else."""
    capacities, weights = [c for c, _ in nodes], tuple(w for _, w in nodes)
    shares = divide_shares(cache_blocks, capacities, weights)
    assert sum(shares) == min(cache_blocks, sum(capacities))
    for share, capacity, weight in zip(shares, capacities, weights, strict=True):
        assert 0 <= share <= capacity
        if share < capacity:
            most = max(Fraction(s - 1, w) for s, w in zip(shares, weights, strict=True))
            assert Fraction(share + 1, weight) > most


def test_equal_nodes_differ_by_one() -> None:
    """If capacities allow, shares differ by at most one cache block; the first nodes have more."""
    assert Placement(10, (9,) * 4, seed=0).shares == (3, 3, 2, 2)
    assert Placement(10, (9, 1, 9, 9), seed=0).shares == (3, 1, 3, 3)
    assert Placement(12, (9, 9), ranks=(1, 3), seed=0).shares == (3, 9)
    assert Placement(10, (1,) * 4, (1,) * 4, seed=0, cache_block=2).shares == (2, 1, 1, 1)


@given(st.integers(0, 2**32), st.integers(1, 20), st.integers(1, 7))
def test_dealt_bytes_are_equal(seed: int, nodes: int, cache_block: int) -> None:
    """With room to spare each node has its part of the bytes, by rank, up to the largest cache
    block; more than one window of sizes is looked at."""
    random = np.random.default_rng(seed)
    ranks = tuple(random.integers(1, 4, nodes).tolist())
    placement = Placement(
        70_000, (70_000,) * nodes, None, ranks, seed=seed, cache_block=cache_block
    )
    size = random.integers(0, 1000, placement.cache_blocks)
    dealt = placement.deal_bytes(lambda some: size[some])
    held = np.bincount(dealt.owners(np.arange(0, 70_000, cache_block)), size, nodes)
    part = size.sum() * np.array(placement.shares) / placement.cache_blocks
    assert np.abs(held - part).max() <= 1000
    assert sum(dealt.shares) == placement.cache_blocks


def test_when_shares_stay_equal() -> None:
    """Sizes that are alike, nodes that are full, and more samples than sizes are looked at."""
    alike, full = Placement(1000, (1000,) * 8, seed=1), Placement(1000, (20,) * 8, seed=1)
    assert alike.deal_bytes(lambda some: np.full(len(some), 7)) is alike
    assert full.deal_bytes(lambda some: some.view(np.int64)) is full
    many = Placement(limits.dealt_samples_max + 1, (1 << 30,) * 8, seed=1)
    assert many.deal_bytes(lambda some: some.view(np.int64)) is many
    tight = Placement(1000, (125,) * 8, seed=1)
    assert tight.deal_bytes(lambda some: some.view(np.int64)) is tight


def test_small_shares_among_large_ones() -> None:
    """Owners are found where many shares end close together, as where they are alike."""
    capacities = [1, 0, 0, 2, 1, 10_000, 3, 1, 0, 5_000, 1, 1]
    placement = Placement(10_000, tuple(capacities), seed=4)
    row = np.repeat(np.arange(len(capacities)), placement.shares)
    cache_blocks = Order(10_000, 4, purpose="placement").run(0, len(row))
    assert np.array_equal(placement.owners(cache_blocks), row)


def test_neighbours_are_spread() -> None:
    """Neighbours in storage that are not in one cache block have random owners.

    Of a million in a row each of 16 nodes keeps a sixteenth, and neighbours share an owner as
    often."""
    placement = Placement(10**9, (10**8,) * 16, seed=7)
    owners = placement.owners(np.arange(10**6, dtype=np.uint64))
    counts = np.bincount(owners, minlength=16)
    assert np.abs(counts - 62_500).max() < 5 * np.sqrt(62_500)
    together = np.count_nonzero(owners[1:] == owners[:-1])
    assert abs(together - 62_500) < 5 * np.sqrt(62_500)


def test_known_owners() -> None:
    """The placement is part of a job's agreement: it does not change from version to version."""
    placement = Placement(10**9, (10**7,) * 8, (10**8,) * 8, seed=1, cache_block=4)
    assert placement.owners(np.arange(0, 40, 4)).tolist() == [6, 4, 3, 6, 5, 1, 5, 1, 0, 1]
    assert placement.kept == 1.0


def test_a_billion_samples_take_no_memory() -> None:
    """The memory kept grows with the nodes alone."""
    placement = Placement(10**9, (10**6,) * 4096, seed=1)
    assert len(pickle.dumps(placement)) < 400_000
    again = pickle.loads(pickle.dumps(placement))
    assert again == placement
    samples = np.arange(0, 10**9, 999_983)
    assert np.array_equal(again.owners(samples), placement.owners(samples))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"count": 0}, "count has 0"),
        ({"cache_block": 0}, "cache_block has 0"),
        ({"ram_cache_blocks": ()}, "one entry a node"),
        ({"ram_cache_blocks": (-1,)}, "ram_cache_blocks has -1"),
        ({"ram_cache_blocks": (1.5,)}, "whole numbers"),
        ({"ram_cache_blocks": 4}, "whole numbers"),
        ({"disk_cache_blocks": (1, 2)}, "of 1, 2 and 1 nodes"),
        ({"ranks": (0,)}, "ranks has 0"),
        ({"seed": -1}, "seed"),
    ],
)
def test_bad_placements(arguments: dict[str, object], message: str) -> None:
    """A placement that cannot be is refused, with the value."""
    with pytest.raises(UsageError, match=message):
        Placement(**{"count": 10, "ram_cache_blocks": (10,), "seed": 0, **arguments})  # type: ignore[arg-type]


def test_samples_that_are_none() -> None:
    """Samples beyond the data are refused, also where they would be in its last cache block."""
    placement = Placement(10, (10,), seed=0, cache_block=4)
    for sample in (10, 11, -1):
        with pytest.raises(UsageError, match="use 0..9"):
            placement.owners([0, sample])
