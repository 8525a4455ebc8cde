"""The request queue: hazards, pieces, the order of purposes, targets.

What every policy must do, and that a queue keeps what depends on order, is in the suite.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import limits
from penstock.engine.queue import (
    HIGH_BANDWIDTH,
    LOW_LATENCY,
    Fifo,
    LeastLoaded,
    Patience,
    Policy,
    Request,
    RequestQueue,
    RoundRobin,
    Target,
    Unit,
    WeightedScore,
    Weights,
    find_hazard,
    split_request,
)
from penstock.errors import LimitError, UsageError
from penstock.testing import PolicySuite

MS = 1_000_000


def request(number: int, purpose: Any = "demand", **fields: Any) -> Request:
    """A read of its own 10 bytes, which touch nobody's, at time 0."""
    given_fields = {"kind": "read", "file": 0, "offset": 20 * number, "length": 10, "arrived_ns": 0}
    return Request(id=number, purpose=purpose, **given_fields | fields)


def order(policy: Policy, requests: list[Request]) -> list[int]:
    """Ids as they go, one at a time, where all have come before the first one goes."""
    queue = RequestQueue(policy, [Target()])
    for request in requests:
        queue.put(request)
    ended = []
    while unit := queue.take():
        ended += queue.done(unit)
    assert len(queue) == 0
    return ended


# -- two requests ----------------------------------------------------------------------------------

_spans = st.tuples(st.integers(0, 1), st.integers(0, 8), st.integers(0, 4))


@given(_spans, _spans, st.sampled_from(["read", "write"]), st.sampled_from(["read", "write"]))
def test_hazards_are_bytes_in_common(
    first: tuple[int, int, int], second: tuple[int, int, int], before: Any, after: Any
) -> None:
    """A hazard needs common bytes, of which one request writes."""
    earlier, later = (
        request(0, kind=kind, file=file, offset=offset, length=length)
        for kind, (file, offset, length) in ((before, first), (after, second))
    )
    one, other = (
        {(request.file, byte) for byte in range(request.offset, request.end)}
        for request in (earlier, later)
    )
    hazard = find_hazard(earlier, later)
    assert (hazard is not None) == bool(one & other and "write" in (before, after))
    assert hazard in (None, f"{after} after {before}")


@given(st.integers(0, 1000), st.integers(0, 300), st.integers(1, 100))
def test_pieces_are_the_whole(offset: int, length: int, piece_bytes: int) -> None:
    whole = request(3, offset=offset, length=length)
    parts = list(split_request(whole, piece_bytes))
    at = offset
    for part in parts:
        assert part.offset == at
        assert part.length <= piece_bytes
        assert replace(part, offset=offset, length=length) == whole
        at = part.end
    assert at == whole.end
    assert len(parts) == max(1, -(-length // piece_bytes))


# -- whose turn ------------------------------------------------------------------------------------


def test_purposes_go_by_urgency() -> None:
    """Arrival decides within a purpose; for fifo only arrival decides."""
    purposes = ["checkpoint", "sweep", "prefetch", "demand", "prefetch", "demand"]
    requests = [request(number, purpose) for number, purpose in enumerate(purposes)]
    assert order(RoundRobin(), requests) == [3, 5, 2, 4, 1, 0]
    assert order(LeastLoaded(), requests) == [3, 5, 2, 4, 1, 0]
    assert order(WeightedScore(), requests) == [3, 5, 2, 4, 1, 0]
    assert order(Fifo(), requests) == [0, 1, 2, 3, 4, 5]


def test_who_has_waited_long_goes_first() -> None:
    """A prefetch before demands that came 100 ms later, and not before those before."""
    requests = [
        request(0, "prefetch"),
        request(1, arrived_ns=99 * MS),
        request(2, arrived_ns=101 * MS),
    ]
    assert order(LeastLoaded(), requests) == [1, 0, 2]
    assert order(LeastLoaded(Patience(prefetch=50 * MS)), requests) == [0, 1, 2]


def test_deadlines_and_steps_count() -> None:
    """A late request is as urgent as a demand; of equals the earlier step goes first."""
    requests = [
        request(0, "prefetch", step=7),
        request(1, "prefetch"),
        request(2, "prefetch", step=6),
        request(3, "checkpoint", deadline_ns=50 * MS),
        request(4, "checkpoint", deadline_ns=0),
        request(5, "checkpoint", deadline_ns=10_000 * MS),
    ]
    assert order(LeastLoaded(), requests) == [4, 3, 2, 0, 1, 5]


def test_who_holds_up_a_demand_is_as_urgent() -> None:
    """A demand for bytes of a snapshot that waits behind others: that goes first, and what that
    waits for; the demand follows it."""
    requests = [
        request(0, "sweep", file=1),
        request(1, "checkpoint", kind="write", file=2, offset=0, length=30),
        request(2, "checkpoint", kind="write", file=2, offset=20, length=30),
        request(3, "demand", file=2, offset=40, length=5),
    ]
    assert order(RoundRobin(), requests) == [1, 2, 3, 0]
    assert order(RoundRobin(), requests[:3]) == [0, 1, 2]


# -- at which target -------------------------------------------------------------------------------

TARGETS = [
    Target(queued_bytes_max=100, queued_bytes=50, speed=1.0, free=0.5),
    Target(queued_bytes_max=1000, queued_bytes=400, speed=0.2),
    Target(queued_bytes_max=100, queued_bytes=60, speed=0.9, free=0.9),
]


def test_each_policy_has_its_target() -> None:
    """In turn, the emptiest, the best by weights; the first one for fifo."""
    offered = dict(enumerate(TARGETS))
    one = request(0)
    assert Fifo().choose(one, offered) == 0
    assert LeastLoaded().choose(one, offered) == 1
    assert WeightedScore(weights=HIGH_BANDWIDTH).choose(one, offered) == 0
    assert WeightedScore().choose(one, offered) == 0
    in_turn = RoundRobin()
    assert [in_turn.choose(one, offered) for _ in range(4)] == [0, 1, 2, 0]
    assert in_turn.choose(one, {0: TARGETS[0], 2: TARGETS[2]}) == 2


def test_scores_are_weighted_sums() -> None:
    scores = [HIGH_BANDWIDTH.score(target) for target in TARGETS]
    assert scores == pytest.approx([0.15 * 0.5 + 0.15 * 0.5 + 0.7, 0.38, 0.825])
    assert LOW_LATENCY.score(replace(TARGETS[0], available=False)) == pytest.approx(0.325)


def test_requests_go_where_they_can() -> None:
    """To holders that are there, and have room; who waits for one holds up nobody else."""
    queue = RequestQueue(LeastLoaded(), [Target(10), Target(10), Target(10, available=False)])
    for number, holders in enumerate([(0,), (0,), (2,), (), ()]):
        queue.put(request(number, holders=holders))
    units = [queue.take(), queue.take()]
    assert [(unit.requests[0].id, unit.target) for unit in units if unit] == [(0, 0), (3, 1)]
    assert queue.take() is None
    queue.update(2, Target(10))
    third = queue.take()
    assert third is not None
    assert (third.requests[0].id, third.target) == (2, 2)
    assert units[0] is not None
    assert queue.done(units[0]) == [0]
    queue.update(0, Target(10, available=False))
    assert queue.take() is None
    queue.update(0, Target(10, free=0))
    last = queue.take()
    assert last is not None
    assert last.requests[0].id == 1


# -- what goes together ----------------------------------------------------------------------------


def test_neighbours_go_together() -> None:
    """Neighbours of one file, kind and purpose go together, in both directions, up to the size of a
    unit."""
    queue = RequestQueue(RoundRobin(), [Target()], unit_bytes=40)
    spans = {0: 20, 1: 30, 2: 10, 3: 0, 4: 40, 5: 60}
    for number, offset in spans.items():
        queue.put(request(number, offset=offset))
    queue.put(request(6, "prefetch", offset=70))
    queue.put(request(7, offset=50, file=1))
    units = []
    while unit := queue.take():
        units.append([request.id for request in unit.requests])
    assert units == [[2, 0, 1, 4], [3], [5], [7], [6]]


def test_neighbours_of_other_holders_stay() -> None:
    """They may not be served where this one is."""
    queue = RequestQueue(Fifo(), [Target(), Target()])
    for number, holders in enumerate([(0,), (1,), (0, 1), ()]):
        queue.put(request(number, offset=10 * number, holders=holders))
    units = [queue.take() for _ in range(4)]
    assert [(len(unit.requests), unit.target) for unit in units if unit] == [
        (1, 0),
        (1, 1),
        (1, 0),
        (1, 0),
    ]


def test_what_is_large_goes_in_pieces() -> None:
    """A demand that comes meanwhile waits for one of them."""
    queue = RequestQueue(RoundRobin(), [Target(100)], unit_bytes=100)
    queue.put(request(0, "checkpoint", kind="write", offset=50, length=250))
    first = queue.take()
    assert first is not None
    assert (first.offset, first.length) == (50, 100)
    assert queue.take() is None
    queue.put(request(1, file=1))
    assert queue.done(first) == []
    assert queue.take() == Unit(1, 0, (request(1, file=1),))


# -- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "delete"}, "Request.kind is 'delete': use one of read, write"),
        ({"purpose": "urgent"}, "Request.purpose is 'urgent'"),
        ({"offset": -1}, "Request.offset is -1"),
        ({"length": 1.5}, "Request.length is 1.5"),
        ({"file": True}, "Request.file is True"),
        ({"arrived_ns": None}, "Request.arrived_ns is None"),
        ({"deadline_ns": -5}, "Request.deadline_ns is -5"),
        ({"step": "3"}, "Request.step is '3'"),
        ({"offset": (1 << 63) - 5}, "Request 0 ends at 9223372036854775813"),
        ({"holders": [1]}, r"Request.holders is \[1\]"),
        ({"holders": (-1,)}, "Request.holders is -1"),
    ],
)
def test_absurd_requests_are_refused(fields: dict[str, Any], message: str) -> None:
    """By the name of what is absurd."""
    with pytest.raises(UsageError, match=message):
        request(0, **fields)


def test_absurd_targets_and_policies_are_refused() -> None:
    calls: dict[str, Any] = {
        "Target.queued_bytes_max is 0": lambda: Target(0),
        "Target.queued_bytes is -1": lambda: Target(1, -1),
        "Target.speed is 2": lambda: Target(speed=2),
        "Target.free is nan": lambda: Target(free=float("nan")),
        "Patience.sweep is -1": lambda: Patience(sweep=-1),
        "Patience.checkpoint is": lambda: Patience(checkpoint=limits.patience_ns_max + 1),
        "Weights.idle is 1.5": lambda: Weights(idle=1.5),
        "the sum of Weights": lambda: Weights(idle=0.5),
        "targets is empty": lambda: RequestQueue(Fifo(), []),
        "unit_bytes is 0": lambda: RequestQueue(Fifo(), [Target()], unit_bytes=0),
    }
    for message, call in calls.items():
        with pytest.raises(UsageError, match=message):
            call()


def test_a_queue_refuses_what_cannot_be() -> None:
    """And goes on."""
    queue = RequestQueue(Fifo(), [Target()], unit_bytes=10)
    queue.put(request(0, arrived_ns=5))
    for bad, message in (
        (request(0, arrived_ns=5), "request 0 is not done yet"),
        (request(1, arrived_ns=4), "request 1 arrived at 4 ns"),
        (request(1, arrived_ns=5, holders=(0, 1)), r"targets \(0, 1\): there are 1"),
    ):
        with pytest.raises(UsageError, match=message):
            queue.put(bad)
    with pytest.raises(LimitError, match="pieces_max"):
        queue.put(request(1, arrived_ns=5, length=1 << 62))
    with pytest.raises(UsageError, match="target 1 does not exist"):
        queue.update(1, Target())
    unit = queue.take()
    assert unit is not None
    assert queue.done(unit) == [0]
    with pytest.raises(UsageError, match="unit 0 is not in progress"):
        queue.done(unit)
    assert len(queue) == 0


def test_a_policy_that_chooses_another_target_is_told() -> None:
    class Wrong(Fifo):
        def choose(self, request: Request, targets: Any) -> int:
            return 7

    queue = RequestQueue(Wrong(), [Target()])
    queue.put(request(0))
    with pytest.raises(UsageError, match=r"chose target 7 of \[0\]"):
        queue.take()


def test_the_suite_is_not_overridden() -> None:
    with pytest.raises(TypeError, match="overrides a test of PolicySuite: mend the policy"):

        class TestBent(PolicySuite):
            def test_nobody_starves(self) -> None:  # type: ignore[override]
                pass


@pytest.mark.long
def test_the_suite_finds_a_policy_that_starves() -> None:
    """One that goes by purpose alone."""

    class Strict(Fifo):
        def rank(self, request: Request) -> int:
            return 0 if request.purpose == "demand" else 1

    class Suited(PolicySuite):
        def make(self) -> Policy:
            return Strict()

    with pytest.raises(AssertionError, match="longer than the longest patience"):
        Suited().test_nobody_starves()
    with pytest.raises(AssertionError):
        Suited().test_rank_lies_between_arrival_and_patience()
