"""The times at which a rank uses samples, and the copies that it keeps: against epochs written out,
against the best that can be done, and against a list."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock import limits
from penstock.order.order import Order
from penstock.plan import replica_policy
from penstock.plan.replica_policy import Soonest, Uses
from penstock.plan.steps import Steps
from tests.slices import first


@st.composite
def geometries(draw: st.DrawFn) -> Steps:
    world_size = draw(st.integers(1, 5))
    global_batch = draw(st.integers(world_size, 40))
    last = draw(st.sampled_from([{}, {"drop_last": True}, {"pad": True}]))
    least = global_batch if last.get("drop_last") else world_size
    count = draw(st.integers(least, 200))
    assignment = draw(st.sampled_from(["strided", "contiguous"]))
    return Steps(count, global_batch, world_size, assignment=assignment, **last)


def dealt(steps: Steps, rank: int) -> np.ndarray:
    """The positions of a rank, without the repeats that pad its last step."""
    positions, _, repeats = steps.positions(0, len(steps), rank)
    return positions[: len(positions) - repeats].astype(np.int64)


@given(steps=geometries())
def test_positions_belong_to_the_ranks_that_they_were_dealt_to(steps):
    expected = np.full(steps.count, -1)
    for rank in range(steps.world_size):
        expected[dealt(steps, rank)] = rank
    assert steps.ranks(np.arange(steps.count)).tolist() == expected.tolist()


@dataclass(frozen=True)
class Question:
    """A question to `Uses.next`. Times count from the beginning of `epoch`."""

    steps: Steps
    ranks: frozenset[int]
    shuffle: str
    seed: int
    epoch: int
    start: int
    until: int


@st.composite
def questions(draw: st.DrawFn) -> Question:
    steps = draw(geometries())
    epoch = draw(st.sampled_from([0, 1, 17]))
    start = draw(st.integers(0, 2 * steps.count))
    horizon = start // steps.count + limits.replica_epochs
    return Question(
        steps,
        draw(st.frozensets(st.integers(0, steps.world_size - 1), min_size=1)),
        draw(st.sampled_from(["exact", "blocked", "none"])),
        draw(st.integers(0, 2**64 - 1)),
        epoch,
        start,
        draw(st.integers(-epoch * steps.count, (horizon + 1) * steps.count)),
    )


@given(question=questions())
@example(  # rank 0 never uses sample 1, and `until` lies in the first epoch that is not searched
    Question(
        Steps(2, 2, 2), frozenset({0}), "none", seed=0, epoch=0, start=0,
        until=2 * limits.replica_epochs + 1,
    )
)  # fmt: skip
def test_next_uses_are_those_of_epochs_written_out(question):
    """In the first epochs, by position; what is used in none of them comes after all of these. What
    is not to be looked for so long has no other time before that."""
    steps, ranks, seed, epoch = question.steps, question.ranks, question.seed, question.epoch
    order = Order(steps.count, seed, shuffle=question.shuffle, block=8, group=3)
    uses = Uses(order, steps, tuple(ranks), epoch)
    assert uses.begin == epoch * steps.count == uses.end - steps.count
    everything = np.arange(steps.count, dtype=np.uint64)
    start, until = uses.begin + question.start, uses.begin + question.until
    first = start // steps.count
    end = first + limits.replica_epochs
    expected: dict[int, int] = {}
    for later in range(first, end):
        positions = np.sort(np.concatenate([dealt(steps, rank) for rank in ranks]))
        samples = order.at_epoch(later).samples(positions)
        for sample, position in zip(samples.tolist(), positions.tolist(), strict=True):
            if later * steps.count + position >= start:
                expected.setdefault(sample, later * steps.count + position)
    times = uses.next(everything, start).tolist()
    for sample, time in enumerate(times):
        assert time == expected.get(sample, time)
        assert (time >= end * steps.count) == (sample not in expected)
    for time, known in zip(uses.next(everything, start, until).tolist(), times, strict=True):
        assert time == known or until < min(time, known)
    some = order.at_epoch(epoch).samples(np.arange(steps.count)[: 1 + seed % steps.count])
    assert uses.now(some) == uses.begin + len(some) - 1


def test_epochs_that_no_run_reaches_have_times():
    order = Order(100, 1)
    uses = Uses(order, Steps(100, 10, 2), (1,), 2**63)
    samples = np.arange(100, dtype=np.uint64)
    assert (uses.next(samples, uses.end) >= 0).all()
    assert uses.now(samples) >= 0


def most_hits(stream: list[list[int]], room: int) -> int:
    """The most that can be found in a room: uses of the same thing, one after the other, are
    intervals, and as many of these as possible are dealt to `room` tracks, by their ends."""
    intervals, last = [], {}
    for step, things in enumerate(stream):
        for thing in things:
            if thing in last:
                intervals.append((step, last[thing]))
            last[thing] = step
    tracks = [0] * room
    hits = 0
    for end, start in sorted(intervals):
        free = [(at, track) for track, at in enumerate(tracks) if at <= start]
        if free:
            hits += 1
            tracks[max(free)[1]] = end
    return hits


@given(
    stream=st.lists(st.lists(st.integers(0, 12), max_size=6, unique=True), max_size=40),
    room=st.integers(0, 10),
    sorted_min=st.sampled_from([1, 3, 1024]),
)
def test_no_policy_finds_more(stream, room, sorted_min):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replica_policy, "_sorted_min", sorted_min)
        assert hits_of(stream, room) == most_hits(stream, room)


def hits_of(stream: list[list[int]], room: int) -> int:
    """The hits among copies that are kept as `Soonest` says."""
    after, later = [], {}
    for step in range(len(stream) - 1, -1, -1):
        after.append([later.get(each, 1 << 40) for each in stream[step]])
        later |= dict.fromkeys(stream[step], step)
    after.reverse()
    soonest, here, hits = Soonest(room, room), {}, 0
    thing_of, free = {}, list(range(room))
    for things, times in zip(stream, after, strict=True):
        known = np.array([each in here for each in things], bool)
        times = np.array(times, np.int64)
        hits += int(known.sum())
        found = [here[each] for each in things if each in here]
        soonest.move(np.array(found, np.int64), times[known])
        new = np.array(things, np.int64)[~known]
        sizes = np.ones(len(new), np.int64)
        chosen, dropped = soonest.choose(times[~known], sizes)
        soonest.drop(dropped)
        for entry in dropped.tolist():
            del here[thing_of.pop(entry)]
            free.append(entry)
        entries = [free.pop() for _ in range(chosen.sum())]
        soonest.put(np.array(entries, np.int64), times[~known][chosen], sizes[chosen])
        for thing, entry in zip(new[chosen].tolist(), entries, strict=True):
            here[thing], thing_of[entry] = entry, thing
        assert soonest.free == len(free)
    return hits


@given(
    batches=st.lists(
        st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 7)), max_size=8), max_size=15
    ),
    moves=st.lists(st.integers(0, 1000), min_size=15, max_size=15),
    room=st.integers(0, 40),
    sorted_min=st.sampled_from([1, 4, 1024]),
)
def test_of_any_sizes_the_soonest_that_fit_stay(batches, moves, room, sorted_min):
    """All in the sequence of their times, up to the first for which there is no room."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replica_policy, "_sorted_min", sorted_min)
        soonest, model, number = Soonest(room, room), {}, 0  # entry -> (time, size)
        for batch, moved in zip(batches, moves, strict=False):
            new = []
            for time, size in batch:
                number += 1
                new.append((time * 1000 + number, size))  # no two at the same time
            times = np.array([time for time, _ in new], np.int64)
            sizes = np.array([size for _, size in new], np.int64)
            chosen, dropped = soonest.choose(times, sizes)
            everything = sorted([*model.values(), *new])
            if sum(size for _, size in everything) > room:
                total = np.cumsum([size for _, size in everything])
                everything = everything[: int(np.searchsorted(total, room, side="right"))]
            soonest.drop(dropped)
            for entry in dropped.tolist():
                del model[entry]
            spare = [entry for entry in range(room) if entry not in model][: chosen.sum()]
            soonest.put(np.array(spare, np.int64), times[chosen], sizes[chosen])
            kept = zip(times[chosen].tolist(), sizes[chosen].tolist(), strict=True)
            model |= dict(zip(spare, kept, strict=True))
            assert sorted(model.values()) == everything
            assert soonest.free == room - sum(size for _, size in everything)
            early = {entry for entry, (time, _) in model.items() if time < moved}
            assert set(soonest.before(moved).tolist()) == early
            if model:  # one of them is used at another time
                entry = sorted(model)[moved % len(model)]
                number += 1
                model[entry] = (moved * 1000 + number, model[entry][1])
                soonest.move(np.array([entry]), np.array([model[entry][0]]))


def expected_hits(nodes: int, others: float, room: float) -> float:
    """Fraction of the samples kept by other nodes that a node finds among its copies.

    It holds in the long run; the formula is in the module's docstring.

    others:  fraction of all samples that other nodes keep.
    room:    copies that a node has room for, as a fraction of all samples.
    """
    if room >= others or nodes == 1:
        return 1.0
    # g - k has the density of a triangle on [-1, 1]; both are cut into bins.
    bins = 1 << 8
    epochs = math.ceil(40 * nodes)
    triangle = 1 - np.abs((np.arange(2 * bins) + 0.5) / bins - 1)
    p = np.zeros((epochs + 2) * bins)
    for k in range(1, epochs + 1):
        chance = (1 - 1 / nodes) ** (k - 1) / nodes
        p[(k - 1) * bins : (k + 1) * bins] += chance * triangle / bins
    taken = others / nodes * np.cumsum(p * (np.arange(len(p)) + 0.5) / bins)
    return float(np.interp(room, taken, np.cumsum(p)))


@pytest.mark.long
@pytest.mark.parametrize("ranks", first(1, [2, 4, 8]))
@pytest.mark.parametrize("part", first(1, [0.5, 0.25, 1.0]))
def test_the_formula_says_what_is_found_in_the_long_run(ranks, part):
    count, epochs = 4000, 6 * ranks
    others = 1 - 1 / ranks
    steps = Steps(count, 40, ranks)
    theirs = np.random.default_rng(1).permutation(count) < others * count
    stream = []
    for epoch in range(epochs):
        samples = Order(count, 7, epoch).samples(dealt(steps, 0)).astype(np.int64)
        stream += [step[theirs[step]].tolist() for step in np.array_split(samples, len(steps))]
    room = int(part * others * count)
    counts = [hits_of(stream[: len(steps) * k], room) for k in (epochs // 2, epochs)]
    wanted = sum(map(len, stream[len(stream) // 2 :]))
    found = (counts[1] - counts[0]) / wanted
    assert found == pytest.approx(expected_hits(ranks, others, part * others), abs=0.02)
