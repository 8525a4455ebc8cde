"""Caching by importance: caches against plain loops, drawing against its chances, and what is known
of caches in theory."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock_sim.importance import (
    Draw,
    FirstSeenCache,
    History,
    RecentCache,
    ValueCache,
    correct_bias,
    draw_batches,
    fedcase,
    replay,
)
from tests.slices import first

from .comparison import compare, replay_warm, walk_epochs


def skewed(ids: np.ndarray, uses: np.ndarray) -> np.ndarray:
    """Losses that fall with the sample's number, and a little with use."""
    return 10 / (1 + ids) + 1 / (2 + uses)


def flat(ids: np.ndarray, uses: np.ndarray) -> np.ndarray:
    return np.ones(len(ids))


batches_of = st.lists(st.lists(st.integers(0, 11), min_size=1, max_size=8), max_size=12)


# -- caches ----------------------------------------------------------------------------------------


def by_value(room: int, batches: list[list[int]], values: list[np.ndarray]) -> list[list[bool]]:
    """Admission as it is worded, one miss at a time, by looking for the least each time."""
    kept: list[int] = []
    found = []
    for batch, worth in zip(batches, values, strict=True):
        before = list(kept)
        found.append([id in before or id in batch[:row] for row, id in enumerate(batch)])
        for id in dict.fromkeys(batch):
            if id in before:
                continue
            if len(kept) < room:
                kept.append(id)
                continue
            least = min(worth[each] for each in kept)
            if worth[id] > least:
                kept.remove([each for each in kept if worth[each] == least][-1])
                kept.append(id)
    return found


@given(st.integers(1, 6), batches_of, st.data())
def test_by_value_as_it_is_worded(room: int, batches: list[list[int]], data: st.DataObject) -> None:
    """The whole batch at once gives what admission one by one gives, ties included."""
    worth = st.lists(st.integers(0, 3), min_size=12, max_size=12)
    values = [np.array(data.draw(worth), float) for _ in batches]
    cache = ValueCache(room)
    found = [
        cache.serve(np.array(batch), each).tolist()
        for batch, each in zip(batches, values, strict=True)
    ]
    assert found == by_value(room, batches, values)
    assert cache.serve(np.arange(12), np.zeros(12)).sum() <= room


@given(st.integers(1, 6), batches_of)
def test_recent_and_fixed_by_loops(room: int, batches: list[list[int]]) -> None:
    """LRU looks back for fewer than `room` others; a fixed division knows the first ones met."""
    recent, fixed = RecentCache(room), FirstSeenCache(room)
    past: list[int] = []
    for batch in batches:
        first = list(dict.fromkeys(past))[:room]
        kept = fixed.serve(np.array(batch), np.zeros(12))
        assert kept.tolist() == [id in first or id in batch[:row] for row, id in enumerate(batch)]
        for id, hit in zip(batch, recent.serve(np.array(batch), np.zeros(12)), strict=True):
            near = itertools.takewhile(lambda each, id=id: each != id, reversed(past))
            assert hit == (id in past and len(set(near)) < room)
            past.append(id)


# -- values ----------------------------------------------------------------------------------------


@given(batches_of, st.data())
def test_history_by_loops(batches: list[list[int]], data: st.DataObject) -> None:
    """Ranks, losses and uses are those of plain bookkeeping, and FedCaSe's value its formula."""
    history = History.of(12)
    rank, loss, uses = [0] * 12, [math.nan] * 12, [0] * 12
    for batch in batches:
        size = st.lists(st.integers(0, 5), min_size=12, max_size=12)
        of_sample = data.draw(size)
        losses = np.array([of_sample[id] for id in batch], float)
        history = history.after(np.array(batch), losses)
        for place, row in enumerate(sorted(range(len(batch)), key=lambda row: losses[row])):
            rank[batch[row]] = place
        for id in batch:
            loss[id] = of_sample[id]
            uses[id] += 1
    assert history.rank.tolist() == rank
    assert history.uses.tolist() == uses
    assert np.array_equal(history.loss, loss, equal_nan=True)
    heavy = [math.log(r + 10) if u else 1.0 for r, u in zip(rank, uses, strict=True)]
    want = [0.0] * 12
    for values in (heavy, uses):
        low, high = min(values), max(values)
        for id, value in enumerate(values):
            want[id] += (value - low) / (high - low) if high > low else 0.0
    assert fedcase(history) == pytest.approx(want)


def test_a_users_value() -> None:
    """Any function of the history decides: here the highest losses are kept."""

    def dearest(history: History) -> np.ndarray:
        return np.nan_to_num(history.loss)

    cache = ValueCache(5)
    replay(draw_batches(40, 8, skewed, value=dearest, floor=1.0), {"it": cache}, batches=400)
    kept = cache.serve(np.arange(40), np.zeros(40))
    assert np.flatnonzero(kept).tolist() == [0, 1, 2, 3, 4]


# -- streams ---------------------------------------------------------------------------------------


def test_drawn_by_chance() -> None:
    """Samples come in proportion to value + floor, in a chi-square test; the same seed draws the
    same; weighted means are those of uniform drawing, and plain ones are not."""
    stats = pytest.importorskip("scipy.stats")
    worth = np.array([0.0, 1.0, 2.0, 5.0, 0.5])
    chances = (worth + 0.25) / (worth + 0.25).sum()

    def value(history: History) -> np.ndarray:
        return worth

    taken = list(itertools.islice(draw_batches(5, 100, flat, value=value, floor=0.25, seed=4), 200))
    again = itertools.islice(draw_batches(5, 100, flat, value=value, floor=0.25, seed=4), 200)
    assert all(np.array_equal(a.ids, b.ids) for a, b in zip(taken, again, strict=True))
    ids = np.concatenate([draw.ids for draw in taken])
    counts = np.bincount(ids, minlength=5)
    assert stats.chisquare(counts, chances * len(ids)).pvalue > 1e-4
    w = np.concatenate([draw.weights for draw in taken])
    assert w == pytest.approx(correct_bias(chances)[ids])
    assert correct_bias(chances) @ chances == pytest.approx(1)
    of_sample = np.array([3.0, -1.0, 4.0, 1.0, 5.0])
    weighted = w * of_sample[ids]
    error = weighted.std() / math.sqrt(len(ids))
    assert weighted.mean() == pytest.approx(of_sample.mean(), abs=4 * error)
    assert (
        abs(of_sample[ids].mean() - of_sample.mean()) > 8 * of_sample[ids].std() / len(ids) ** 0.5
    )


@given(st.integers(1, 40), st.integers(1, 15), st.integers(0, 5))
def test_epochs_have_each_sample_once(samples: int, batch: int, seed: int) -> None:
    """Three epochs, and each holds every sample."""
    steps = -(-samples // batch)
    taken = list(itertools.islice(walk_epochs(samples, batch, flat, seed=seed), 3 * steps))
    for epoch in range(3):
        ids = np.concatenate([draw.ids for draw in taken[epoch * steps : (epoch + 1) * steps]])
        assert Counter(ids.tolist()) == Counter(range(samples))


# -- comparison ------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("q", first(1, [0.5, 0.25, 0.75]))
def test_epochs_in_theory(q: float) -> None:
    """On epochs a fixed division finds q, no value more, and LRU q + (1 - q) ln(1 - q)."""
    samples, batch = 2048, 32
    steps = samples // batch
    outcome = compare(
        samples, batch, int(q * samples), skewed, batches=8 * steps, warmup=2 * steps, seed=1
    )["epochs"]
    assert outcome.hits["fixed"] == pytest.approx(q)
    assert outcome.hits["value"] <= q
    assert outcome.hits["recent"] == pytest.approx(q + (1 - q) * math.log(1 - q), abs=0.02)
    assert outcome.effective == pytest.approx(1)


@pytest.mark.long
def test_importance_changes_the_stream() -> None:
    """Drawing by value makes caches find more than on epochs, the one by value most; the price is
    that some samples are drawn less, and that weights vary."""
    found = compare(1000, 50, 100, skewed, batches=600, warmup=400, seed=2)
    drawn_, epochs = found["importance"], found["epochs"]
    assert drawn_.hits["value"] > drawn_.hits["recent"] > epochs.hits["recent"]
    assert drawn_.hits["value"] > drawn_.hits["fixed"]
    assert drawn_.effective < 0.9
    # Drawing uniformly with replacement, which is what equal values mean, any cache finds its part.
    even = replay_warm(
        draw_batches(1000, 50, flat, value=lambda history: np.zeros(1000), seed=2),
        {"value": ValueCache(100), "recent": RecentCache(100), "fixed": FirstSeenCache(100)},
        batches=600,
        warmup=100,
    )
    twice = 49 / 2 / 1000  # what a batch has already read; LRU keeps that among its samples
    assert even.effective == pytest.approx(1)
    assert even.hits["recent"] == pytest.approx(0.1, abs=0.01)
    for name in ("value", "fixed"):
        assert even.hits[name] == pytest.approx(0.1 + 0.9 * twice, abs=0.01)


def test_replay_by_counting() -> None:
    """Shares count what comes after the warm-up, for each cache by itself."""
    one = np.ones(2)
    stream = [Draw(np.array(ids), np.zeros(4), one) for ids in ([0, 1], [2, 2], [0, 3], [3, 0])]
    caches = {"a": FirstSeenCache(1), "b": FirstSeenCache(4)}
    assert replay_warm(iter(stream), caches, 3, 1).hits == {"a": 3 / 6, "b": 4 / 6}


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: ValueCache(0), "room is 0"),
        (lambda: RecentCache(1.5), "room is 1.5"),  # type: ignore[arg-type]
        (lambda: FirstSeenCache(True), "room is True"),
        (lambda: draw_batches(0, 1, flat), "samples is 0"),
        (lambda: draw_batches(1, 1, flat, floor=0), "floor is 0"),
        (lambda: draw_batches(1, -1, flat), "batch is -1"),
        (lambda: next(draw_batches(2, 1, flat, value=lambda h: np.ones(3))), r"shape \(3,\) for 2"),
        (lambda: next(draw_batches(2, 1, flat, value=lambda h: -np.ones(2))), "below 0"),
        (lambda: replay(draw_batches(2, 1, flat), {}, batches=0), "batches is 0"),
    ],
)
def test_wrong_use(call: Any, said: str) -> None:
    """Errors name the argument and its value, when it is given."""
    with pytest.raises(UsageError, match=said):
        call()
