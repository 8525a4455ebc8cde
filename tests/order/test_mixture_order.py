"""The promises of a mixture's order, for any datasets, weights and schedules."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock import limits
from penstock.order.mixture import Mixture, MixtureRecipe, divide_slots
from tests.slices import fraction

PERIOD = limits.mixture_slots


@st.composite
def recipes(draw: st.DrawFn) -> MixtureRecipe:
    """Up to four datasets, up to three stretches of weights, epochs of any length."""
    parts = draw(st.integers(1, 4))
    counts = draw(st.lists(st.integers(1, 5000), min_size=parts, max_size=parts))
    gaps = draw(st.lists(st.integers(1, 6000), max_size=2))
    starts = np.cumsum([0, *gaps]).tolist()
    weights = st.lists(st.sampled_from([0, 0.1, 1, 2.5, 7]), min_size=parts, max_size=parts).filter(
        any
    )
    slots = [divide_slots(draw(weights)) for _ in starts]
    length = draw(st.integers(1, 9000))
    return MixtureRecipe(tuple(counts), tuple(starts), tuple(slots), length, "samples")


seeds = st.integers(0, 2**64 - 1)


@given(st.lists(st.floats(0, 1e300), min_size=1, max_size=50))
def test_slots_are_proportional(weights: list[float]) -> None:
    """A period is dealt whole, each share rounded to one of its two neighbours."""
    total = sum(weights)
    if total == 0 or any(w > 0 and w / total * PERIOD < 1 for w in weights):
        return
    slots = divide_slots(weights)
    assert sum(slots) == PERIOD
    for held, weight in zip(slots, weights, strict=True):
        assert abs(held - weight / total * PERIOD) < 1 + 1e-6


@given(recipe=recipes(), seed=seeds, epochs=st.integers(1, 3))
def test_every_pass_is_a_permutation(recipe: MixtureRecipe, seed: int, epochs: int) -> None:
    """Over all epochs, each dataset's samples come once a pass, pass after pass, and the counts of
    what was drawn say so at every point that is asked."""
    mixture = Mixture(recipe, seed)
    first = np.cumsum([0, *recipe.counts])
    sources, passes, samples = [], [], []
    for epoch in range(epochs):
        order = mixture.at_epoch(epoch)
        everywhere = np.arange(len(order))
        marks = order.marks(everywhere)
        sources.append(marks["source"])
        passes.append(marks["pass"])
        samples.append(order.samples(everywhere).astype(np.int64) - first[marks["source"]])
    source, turn, sample = (np.concatenate(each) for each in (sources, passes, samples))
    for d, count in enumerate(recipe.counts):
        own = sample[source == d]
        assert turn[source == d].tolist() == (np.arange(len(own)) // count).tolist()
        for start in range(0, len(own), count):
            held = own[start : start + count]
            assert len(np.unique(held)) == len(held)
            assert held.min() >= 0
            assert held.max() < count
    middle = len(mixture) // 2
    drawn = mixture.at_epoch(epochs - 1).count_drawn(middle)
    before = source[: (epochs - 1) * len(mixture) + middle]
    assert drawn == np.bincount(before, minlength=len(recipe.counts)).tolist()


@fraction(2)
@given(recipe=recipes(), seed=seeds, data=st.data())
def test_shares_are_exact_in_each_stretch(
    recipe: MixtureRecipe, seed: int, data: st.DataObject
) -> None:
    """Any whole period within a stretch of constant weights holds the shares of these weights."""
    mixture = Mixture(recipe, seed)
    stretch = data.draw(st.integers(0, len(recipe.starts) - 1))
    begin = recipe.starts[stretch]
    end = (*recipe.starts[1:], 10**9)[stretch]
    if end - begin < PERIOD:
        return
    shift = data.draw(st.integers(0, min(end - begin, 3 * PERIOD) - PERIOD))
    places = np.arange(begin + shift, begin + shift + PERIOD)
    whose = np.concatenate(
        [
            mixture.at_epoch(int(epoch)).marks(
                places[places // len(mixture) == epoch] - epoch * len(mixture)
            )["source"]
            for epoch in np.unique(places // len(mixture))
        ]
    )
    found = np.bincount(whose, minlength=len(recipe.counts))
    assert found.tolist() == list(recipe.slots[stretch])


@given(recipe=recipes(), seed=seeds, epoch=st.integers(0, 2**40), data=st.data())
def test_there_is_a_way_back(
    recipe: MixtureRecipe, seed: int, epoch: int, data: st.DataObject
) -> None:
    """The position of a sample in a pass is where it is drawn, in any epoch however late."""
    order = Mixture(recipe, seed, epoch)
    position = data.draw(st.integers(0, len(order) - 1))
    marks = order.marks([position])
    source, turn = int(marks["source"][0]), int(marks["pass"][0])
    sample = int(order.samples([position])[0]) - sum(recipe.counts[:source])
    assert order.positions(source, turn, [sample]).tolist() == [epoch * len(order) + position]


@given(recipe=recipes(), seed=seeds, batch=st.integers(1, 500), steps=st.integers(1, 50))
def test_positions_are_independent_of_how_they_are_asked(
    recipe: MixtureRecipe, seed: int, batch: int, steps: int
) -> None:
    """Asked one by one, backwards or all at once, positions have the same samples."""
    order = Mixture(recipe, seed, 1).for_steps(batch, steps)
    positions = np.arange(min(len(order), 50))
    together = order.samples(positions).tolist()
    assert order.samples(positions[::-1]).tolist() == together[::-1]
    assert [int(order.samples([p])[0]) for p in positions.tolist()] == together
