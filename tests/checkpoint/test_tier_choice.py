"""The choice of a tier for a shard, held against a simulation of the writes, event by event."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.checkpoint.tiers import (
    REPOSITORY,
    Rates,
    TierChoice,
    TierRoom,
    WaitingSave,
    choose_tiers,
)

SIZES = st.integers(1, 100)
RATES = st.integers(1, 50).map(float)
ROOMS = st.lists(st.builds(TierRoom, st.integers(0, 300), RATES), max_size=3)


@st.composite
def lines(draw: st.DrawFn, tiers: int) -> list[WaitingSave]:
    freed = st.tuples(*[st.integers(0, 80)] * tiers)
    return draw(st.lists(st.builds(lambda each: WaitingSave(sum(each), each), freed), max_size=4))


def simulate_writes(
    sizes: list[int],
    places: list[tuple[int, int]],
    rooms: list[TierRoom],
    line: list[WaitingSave],
    repository_bytes_per_s: float,
) -> list[float]:
    """Simulate when the memory of each shard is free, in a host that divides each place evenly
    among its writers: saves are drained one after the other, and shards that go straight to the
    repository come last. inf if a shard never finds room."""
    released = list(
        itertools.accumulate(
            (save.left_bytes / repository_bytes_per_s for save in line), initial=0.0
        )
    )
    left = [float(size) for size in sizes]
    begins = [released[after] for _, after in places]
    free_s = [math.inf] * len(sizes)
    for number, room in enumerate(rooms):
        writers = [i for i, (place, _) in enumerate(places) if place == number]
        for at in {places[i][1] for i in writers}:
            free = room.free_bytes + sum(save.freed_bytes[number] for save in line[:at])
            if sum(sizes[i] for i in writers if places[i][1] <= at) > free:
                return [math.inf] * len(sizes)
    now = 0.0
    while going := [i for i in range(len(sizes)) if left[i] > 1e-9]:
        active = [i for i in going if begins[i] <= now + 1e-12]
        together = {place: sum(places[i][0] == place for i in active) for place, _ in places}
        speed = {
            i: (
                repository_bytes_per_s
                if places[i][0] == REPOSITORY
                else rooms[places[i][0]].bytes_per_s or 0.0
            )
            / together[places[i][0]]
            for i in active
        }
        steps = [left[i] / speed[i] for i in active]
        steps += [begins[i] - now for i in going if i not in active]
        step = min(steps)
        for i in active:
            left[i] -= speed[i] * step
            if left[i] <= 1e-9:
                free_s[i] = now + step
        now += step
    return free_s


def list_ways(rooms: list[TierRoom], line: list[WaitingSave]) -> list[tuple[int, int]]:
    """List all places and waits of one shard."""
    tiers = [(number, after) for number in range(len(rooms)) for after in range(len(line) + 1)]
    return [*tiers, (REPOSITORY, len(line))]


@given(st.data(), SIZES, ROOMS, RATES)
def test_one_shard_is_free_soonest(
    data: st.DataObject, size: int, rooms: list[TierRoom], repository_bytes_per_s: float
) -> None:
    """No other place, and no other wait, frees the memory earlier; and it is free when predicted. A
    tier is used only if it is faster than writing straight."""
    line = data.draw(lines(len(rooms)))
    (choice,) = choose_tiers([size], rooms, line, repository_bytes_per_s)
    (really,) = simulate_writes([size], [choice[:2]], rooms, line, repository_bytes_per_s)
    best = min(
        simulate_writes([size], [way], rooms, line, repository_bytes_per_s)[0]
        for way in list_ways(rooms, line)
    )
    assert really == pytest.approx(best)
    assert choice.predicted_s[choice.place] == pytest.approx(really)
    if choice.place != REPOSITORY:
        straight = choice.predicted_s[REPOSITORY]
        assert straight is not None
        assert really < straight


@given(
    st.integers(1, 5),
    SIZES,
    st.lists(st.builds(TierRoom, st.integers(0, 300), RATES), max_size=2),
    RATES,
)
def test_equal_shards_are_free_soonest(
    count: int, size: int, rooms: list[TierRoom], repository_bytes_per_s: float
) -> None:
    """No other division of the shards of a host, all of which begin now, ends earlier."""
    sizes = [size] * count
    choices = choose_tiers(sizes, rooms, [], repository_bytes_per_s)
    really = max(
        simulate_writes(sizes, [each[:2] for each in choices], rooms, [], repository_bytes_per_s)
    )
    best = min(
        max(simulate_writes(sizes, list(each), rooms, [], repository_bytes_per_s))
        for each in itertools.product(list_ways(rooms, []), repeat=count)
    )
    assert really == pytest.approx(best)


@given(st.data(), st.lists(SIZES, max_size=6), ROOMS, RATES)
def test_nothing_is_promised_too_early(
    data: st.DataObject, sizes: list[int], rooms: list[TierRoom], repository_bytes_per_s: float
) -> None:
    """However many ranks write, and whatever they wait for, all find room, and the last memory is
    free no later than predicted for any."""
    line = data.draw(lines(len(rooms)))
    choices = choose_tiers(sizes, rooms, line, repository_bytes_per_s)
    really = simulate_writes(
        sizes, [each[:2] for each in choices], rooms, line, repository_bytes_per_s
    )
    predicted = [each.predicted_s[each.place] for each in choices]
    assert all(each is not None for each in predicted)
    assert max(really, default=0.0) <= max((each or 0 for each in predicted), default=0.0) + 1e-6


def test_the_trap() -> None:
    """Eight ranks share a tier that takes 8 GB/s, and a repository that takes 2: each writer gets 1
    GB/s of the tier. To compare that with 2 chooses the repository, which takes four times as long.
    The other way round, one stream's share of the repository's bandwidth makes a slow tier look
    fast."""
    sizes, line = [10] * 8, list[WaitingSave]()
    fast = [TierRoom(1000, 8.0)]
    choices = choose_tiers(sizes, fast, line, 2.0)
    assert fast[0].bytes_per_s is not None
    assert fast[0].bytes_per_s / 8 < 2.0, "what one writer gets, against what all flush"
    assert sum(each.place == 0 for each in choices) > 4
    straight = max(simulate_writes(sizes, [(REPOSITORY, 0)] * 8, fast, line, 2.0))
    chosen = max(simulate_writes(sizes, [each[:2] for each in choices], fast, line, 2.0))
    assert chosen * 4 < straight + 1

    slow = [TierRoom(1000, 1.0)]
    choices = choose_tiers(sizes, slow, line, 4.0)
    assert 4.0 / 8 < 1.0, "what one writer gets of the home, against what all get of the tier"
    assert sum(each.place == 0 for each in choices) <= 2
    naive = max(simulate_writes(sizes, [(0, 0)] * 8, slow, line, 4.0))
    assert max(simulate_writes(sizes, [each[:2] for each in choices], slow, line, 4.0)) * 4 < naive


def test_a_fast_tier_is_waited_for() -> None:
    """A fast tier that first has to be drained is waited for, if that is sooner than a slow tier or
    the repository."""
    rooms = [TierRoom(0, 100.0), TierRoom(1000, 1.0)]
    line = [WaitingSave(10, (10, 0)), WaitingSave(50, (50, 0))]
    assert choose_tiers([10], rooms, line, 10.0) == [TierChoice(0, 1, (1.1, 10.0, 7.0))]
    assert choose_tiers([10, 10], rooms, line, 10.0)[1][:2] == (0, 2)
    assert choose_tiers([3], [TierRoom(0, 100.0), TierRoom(1000, 4.0)], line, 10.0)[0].place == 1
    assert choose_tiers([100], [TierRoom(0, 100.0)], line, 10.0) == [
        TierChoice(REPOSITORY, 2, (None, 16.0))
    ]


def test_the_unknown_is_tried() -> None:
    """Unknown tiers are tried in the order in which they were given, and never waited for. A tier
    that failed is left alone."""
    assert choose_tiers([5], [TierRoom(9, None), TierRoom(9, None)], [], None)[0].place == 0
    assert choose_tiers([5], [TierRoom(4, None), TierRoom(9, None)], [], None)[0].place == 1
    assert choose_tiers([5], [TierRoom(9, 1.0), TierRoom(9, None)], [], 100.0)[0].place == 1
    assert (
        choose_tiers([5], [TierRoom(4, None)], [WaitingSave(9, (9,))], 1.0)[0].place == REPOSITORY
    )
    assert choose_tiers([5], [TierRoom(9, 0.0)], [], None) == [
        TierChoice(REPOSITORY, 0, (None, None))
    ]
    for repository_bytes_per_s in (None, 0.0):  # straight is not known to be faster
        assert choose_tiers([5], [TierRoom(9, 1e-9)], [], repository_bytes_per_s)[0].place == 0
        assert (
            choose_tiers([5], [TierRoom(4, 1e9)], [WaitingSave(9, (9,))], repository_bytes_per_s)[
                0
            ].place
            == REPOSITORY
        )


def test_rates() -> None:
    rates = Rates([REPOSITORY, 0])
    assert rates[0] is None
    rates.record_measurement(0, 100, 1.0)
    rates.record_measurement(0, 200, 1.0)
    assert rates[0] == 150
    rates.record_failure(0)
    rates.record_measurement(REPOSITORY, 10, 1.0)
    for _ in range(10):
        rates.record_save()
        assert rates[0] == 0
    rates.record_save()
    assert rates[0] is None, "it may be well again"
    assert rates[REPOSITORY] == 10
    rates.record_measurement(0, 50, 1.0)
    assert rates[0] == 50
