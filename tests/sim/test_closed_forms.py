"""Closed forms against enumeration, loops over single settings, seeded Monte Carlo, and tables that
were worked out independently."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.plan.assignment import assign_nodes
from penstock_sim.closed_forms import (
    RESOURCES,
    Settings,
    find_shares,
    forecast_least,
    forecast_nopfs,
    forecast_penstock,
    forecast_storage,
    remote_share,
)

stats = pytest.importorskip("scipy.stats")


# -- local assignment ------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [1, 2, 3, 16, 64])
@pytest.mark.parametrize("capacity", [1, 4, 32, 256])
@pytest.mark.parametrize("kept", [0.0, 0.3, 0.9, 0.95, 1.0])
def test_remote_share(nodes: int, capacity: int, kept: float) -> None:
    """The remote share is the mean surplus over the binomial, summed up."""
    owned = np.arange(capacity * nodes + 1)
    surplus = np.maximum(0, owned - capacity) @ stats.binom.pmf(
        owned, capacity * nodes, kept / nodes
    )
    assert remote_share(capacity, nodes, kept) == pytest.approx(surplus / capacity, abs=1e-12)


def test_remote_share_table() -> None:
    """Published cells, of full caches and of caches for a part."""
    whole = remote_share(np.array([[8], [32], [64], [256]]), [2, 4, 16, 64])
    assert np.round(whole, 6).tolist() == [
        [0.098190, 0.120781, 0.135148, 0.138491],
        [0.049673, 0.060903, 0.068106, 0.069789],
        [0.035193, 0.043126, 0.048221, 0.049412],
        [0.017622, 0.021586, 0.024134, 0.024730],
    ]
    part = remote_share(np.array([[8], [32], [64]]), 16, [1, 0.95, 0.9, 0.75])
    want = [[0.135, 0.109, 0.087, 0.037], [0.068, 0.045, 0.028, 0.0036]]
    assert part == pytest.approx(np.array([*want, [0.048, 0.027, 0.013, 0.0005]]), abs=6e-4)


@pytest.mark.parametrize("kept", [1.0, 0.9])
def test_remote_share_of_the_real_assignment(kept: float) -> None:
    """Batches dealt by the library's own rule move that much, within 4 standard errors."""
    generator = np.random.default_rng(3)
    nodes, capacity, steps = 4, 16, 4000
    owners = generator.integers(0, nodes, (steps, nodes * capacity)).astype(np.int32)
    owners[generator.random(owners.shape) >= kept] = -1
    at = assign_nodes(owners, np.full(nodes, capacity))
    moved = ((at != owners) & (owners >= 0)).mean(axis=1)
    error = moved.std() / math.sqrt(steps)
    assert moved.mean() == pytest.approx(float(remote_share(capacity, nodes, kept)), abs=4 * error)


# -- access frequencies ----------------------------------------------------------------------------


def test_coverage_table() -> None:
    """Published cells."""
    epochs, nodes = np.array([[90, 16], [90, 4], [90, 64], [10, 4], [5, 4], [300, 8]]).T[:, :, None]
    found, _ = find_shares(epochs, nodes, [0.05, 0.10, 0.20, 0.25, 0.50])
    assert np.round(found, 3).tolist() == [
        [0.096, 0.177, 0.321, 0.383, 0.664],
        [0.069, 0.133, 0.252, 0.309, 0.573],
        [0.155, 0.263, 0.453, 0.524, 0.817],
        [0.109, 0.201, 0.361, 0.430, 0.720],
        [0.133, 0.253, 0.416, 0.496, 0.790],
        [0.066, 0.127, 0.243, 0.299, 0.561],
    ]


@pytest.mark.parametrize(("nodes", "epochs"), [(1, 3), (2, 1), (2, 7), (3, 5), (4, 4), (5, 3)])
def test_frequencies_by_enumeration(nodes: int, epochs: int) -> None:
    """All courses of a sample over the nodes, one by one: who keeps it, and which accesses that
    serves."""
    courses = np.array(list(itertools.product(range(nodes), repeat=epochs)))
    counts = (courses[:, :, None] == np.arange(nodes)).sum(axis=1)
    often = np.sort(counts[:, 0])[::-1]
    for part in range(len(courses) + 1):
        found, _ = find_shares(epochs, nodes, part / len(courses))
        assert found == pytest.approx(often[:part].sum() / often.sum(), abs=1e-9)
    for part in np.linspace(0, 1, 23):
        room, kept = part * len(courses), np.zeros(epochs + 1)
        for count in range(epochs, 0, -1):  # what is never used is not kept
            held = max(1, np.count_nonzero(often == count))
            kept[count] = min(1.0, room / held)
            room -= kept[count] * held
        want = np.prod(1 - kept[counts], axis=1).mean()
        assert find_shares(epochs, nodes, part)[1] == pytest.approx(want, abs=5e-4)


@pytest.mark.parametrize(
    ("nodes", "epochs", "copies", "local", "storage"),
    [
        (4, 90, 1, 0.308, 0.178),
        (16, 30, 1, 0.160, 0.294),
        (16, 90, 1, 0.117, 0.299),
        (64, 90, 1, 0.057, 0.335),
        (16, 90, 2, 0.214, 0.058),
        (64, 90, 2, 0.101, 0.111),
        (16, 90, 0.5, 0.063, 0.574),
    ],
)
def test_frequencies_of_the_original(
    nodes: int, epochs: int, copies: float, local: float, storage: float
) -> None:
    """The figures of NoPFS's own sampler for 8192 samples, within 0.014: one draw of its orders."""
    covered, nobody = find_shares(epochs, nodes, copies / nodes)
    assert covered == pytest.approx(local, abs=2e-3)
    assert nobody == pytest.approx(storage, abs=0.014)


@pytest.mark.parametrize(("nodes", "epochs", "fraction"), [(4, 30, 0.25), (8, 10, 0.3)])
def test_frequencies_by_monte_carlo(nodes: int, epochs: int, fraction: float) -> None:
    """Seeded orders dealt to nodes, which keep what they use most often."""
    samples = 1 << 14
    generator = np.random.default_rng(7)
    counts = np.zeros((nodes, samples))
    for _ in range(epochs):
        node = np.empty(samples, int)
        node[generator.permutation(samples)] = np.arange(samples) % nodes
        counts[node, np.arange(samples)] += 1
    ranked = np.argsort(-(counts + generator.random(counts.shape) / 2), axis=1)
    kept = np.zeros_like(counts, dtype=bool)
    np.put_along_axis(kept, ranked[:, : round(fraction * samples)], True, axis=1)
    local = counts[kept].sum() / counts.sum()
    covered, nobody = find_shares(epochs, nodes, fraction)
    assert local == pytest.approx(float(covered), abs=0.01)
    missing = 1 - kept.any(axis=0).mean()
    assert missing == pytest.approx(float(nobody), abs=0.015)


@given(st.integers(1, 40), st.integers(1, 200), st.lists(st.floats(0, 1), min_size=2, max_size=9))
def test_frequencies_promises(nodes: int, epochs: int, fractions: list[float]) -> None:
    """More cache serves more and leaves less; no cache serves nothing; a cache for everything
    serves everything; what is kept somewhere is at most what all caches hold together."""
    q = np.sort([0.0, *fractions, 1.0])
    served, missing = find_shares(epochs, nodes, q)
    for values in (served, -missing):
        assert (np.diff(values) >= -1e-9).all()
    assert served[0] == 0
    assert served[-1] == pytest.approx(1)
    assert missing[0] == pytest.approx(1)
    assert missing[-1] == pytest.approx(0, abs=1e-12)
    assert (served >= q - 1e-9).all()
    assert (missing >= 1 - nodes * q - 1e-3).all()


# -- epoch times -----------------------------------------------------------------------------------

POLICIES: list[Any] = [forecast_penstock, forecast_nopfs, forecast_storage, forecast_least]


@st.composite
def machines(draw: st.DrawFn, count: int = 5, **fixed: Any) -> Settings:
    """Settings of several machines, from slow to fast in every respect."""

    def column(low: int, high: int) -> np.ndarray:
        values = st.lists(st.integers(low, high), min_size=count, max_size=count)
        return np.array(draw(values), float)

    columns = {
        "nodes": column(1, 64),
        "samples": column(1, 10**7),
        "sample_bytes": column(1, 10**6),
        "cache_bytes": column(0, 10**12),
        "capacity": column(1, 512),
        "epochs": column(1, 50),
        "compute_samples_per_s": column(1, 10**5),
        "storage_bytes_per_s": column(10**6, 10**12),
        "storage_node_bytes_per_s": column(10**6, 10**11),
        "peer_bytes_per_s": column(10**6, 10**11),
        "cache_bytes_per_s": column(10**6, 10**11),
    }
    return Settings(**{**columns, **fixed})


def single(machine: Settings, row: int) -> Settings:
    return Settings(*(values[row] for values in machine))


@settings(max_examples=12)
@given(machines())
def test_as_it_is_worded(machine: Settings) -> None:
    """Vectorised over settings, each has what the formula in words gives for it alone."""
    whole = [policy(machine) for policy in POLICIES]
    for row in range(5):
        one = single(machine, row)
        n, data = float(one.nodes), float(one.samples * one.sample_bytes)
        q = min(1.0, n * float(one.cache_bytes) / data)
        own = min(1.0, float(one.cache_bytes) / data)
        storage = min(float(one.storage_bytes_per_s), n * float(one.storage_node_bytes_per_s))
        surplus = np.maximum(0, np.arange(n * one.capacity + 1) - one.capacity)
        moved = surplus @ stats.binom.pmf(np.arange(n * one.capacity + 1), n * one.capacity, q / n)
        found, missing = map(float, find_shares(one.epochs, one.nodes, own))
        shares = [
            (1 - q, moved / float(one.capacity)),
            (missing, max(0, 1 - missing - found)),
            (1.0, 0.0),
            (1 - q, 0.0),
        ]
        for number, (s, r) in enumerate(shares):
            busy = [
                float(one.samples) / (n * float(one.compute_samples_per_s)),
                s * data / storage,
                r * data / n / float(one.peer_bytes_per_s),
                (1 - s) * data / n / float(one.cache_bytes_per_s) * (number != 3),
            ]
            forecast = whole[number]
            assert forecast.later_s[row] == pytest.approx(max(busy), rel=1e-9)
            assert busy[forecast.binding[row]] == pytest.approx(max(busy), rel=1e-9)
            first = max(busy[0], data / storage, busy[2] if number == 0 else 0)
            assert forecast.first_s[row] == pytest.approx(first, rel=1e-9)
            assert forecast.storage[row] == pytest.approx(s, rel=1e-9, abs=1e-12)
            assert forecast.remote[row] == pytest.approx(r, rel=1e-9, abs=1e-12)
            total = forecast.storage + forecast.remote + forecast.local
            assert total == pytest.approx(np.ones(5))
    assert len(RESOURCES) == len(busy)


@given(machines(), st.sampled_from([0.5, 2.0, 8.0]))
def test_bounds_and_units(machine: Settings, factor: float) -> None:
    """Nothing is below the bound, this library reaches it where neither peers nor caches bind, and
    no time depends on the unit of bytes."""
    bound = forecast_least(machine)
    values = machine._asdict()
    scaled = Settings(
        **{name: each * (factor if "bytes" in name else 1) for name, each in values.items()}
    )
    for policy in POLICIES:
        forecast = policy(machine)
        assert (forecast.later_s >= bound.later_s * (1 - 1e-12)).all()
        assert (forecast.first_s >= bound.first_s * (1 - 1e-12)).all()
        assert policy(scaled).later_s == pytest.approx(forecast.later_s, rel=1e-9)
    fast = Settings(**{**values, "peer_bytes_per_s": np.inf, "cache_bytes_per_s": np.inf})
    for assignment in ("local", "strided"):
        assert forecast_penstock(fast, assignment).later_s == pytest.approx(bound.later_s)


def test_strided() -> None:
    """Dealt by rank, a node owns what it processes as often as any other does."""
    machine = Settings(8, 1000, 100, 5000, 32, 10, 1e9, 1e9, peer_bytes_per_s=1.0)
    forecast = forecast_penstock(machine, "strided")
    assert forecast.remote == pytest.approx(0.4 * 7 / 8)
    assert forecast.local == pytest.approx(0.4 / 8)
    # Slow links between nodes bind in the first epoch as well: owners hand on what they read.
    for seconds in (forecast.first_s, forecast.later_s):
        assert seconds == pytest.approx(0.35 * 100_000 / 8)
