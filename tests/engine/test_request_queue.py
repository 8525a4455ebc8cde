"""The request queue: hazards, the order of purposes, targets, policies.

What every policy must do, and that a queue keeps what depends on order, is in the suite.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import limits
from penstock.engine.request_queue import (
    Aging,
    LeastLoaded,
    Policy,
    Request,
    RequestQueue,
    RoundRobin,
    Target,
    must_follow,
)
from penstock.errors import LimitError, UsageError
from penstock.testing import PolicySuite

MS = 1_000_000


@pytest.mark.long
class TestRoundRobin(PolicySuite):
    """One target after the other."""

    def make(self) -> Policy:
        return RoundRobin()


@pytest.mark.long
class TestLeastLoaded(PolicySuite):
    """The emptiest queue, with other aging."""

    def make(self) -> Policy:
        return LeastLoaded(Aging(prefetch=0, checkpoint=limits.patience_ns_max))


class Fifo:
    """First come, first served, at the first target; a policy as somebody else may write it."""

    def rank(self, request: Request) -> int:
        return request.arrived_ns

    def choose(self, request: Request, targets: Mapping[int, Target]) -> int:
        return min(targets)


class TestFifo(PolicySuite):
    """The suite for requests in the order of arrival."""

    def make(self) -> Policy:
        return Fifo()


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
    while dispatch := queue.take():
        queue.done(dispatch)
        ended.append(dispatch.request.id)
    assert len(queue) == 0
    return ended


# -- two requests ----------------------------------------------------------------------------------

_spans = st.tuples(st.integers(0, 1), st.integers(0, 8), st.integers(0, 4))


@given(_spans, _spans, st.sampled_from(["read", "write"]), st.sampled_from(["read", "write"]))
def test_requests_follow_for_bytes_in_common(
    first: tuple[int, int, int], second: tuple[int, int, int], before: Any, after: Any
) -> None:
    """The order of two requests counts if one of them writes bytes of the other."""
    earlier, later = (
        request(0, kind=kind, file=file, offset=offset, length=length)
        for kind, (file, offset, length) in ((before, first), (after, second))
    )
    one, other = (
        {(request.file, byte) for byte in range(request.offset, request.end)}
        for request in (earlier, later)
    )
    assert must_follow(later, earlier) == bool(one & other and "write" in (before, after))


# -- whose turn ------------------------------------------------------------------------------------


def test_purposes_go_by_urgency() -> None:
    """Arrival decides within a purpose; for fifo only arrival decides."""
    purposes = ["checkpoint", "sweep", "prefetch", "demand", "prefetch", "demand"]
    requests = [request(number, purpose) for number, purpose in enumerate(purposes)]
    assert order(RoundRobin(), requests) == [3, 5, 2, 4, 1, 0]
    assert order(LeastLoaded(), requests) == [3, 5, 2, 4, 1, 0]
    assert order(Fifo(), requests) == [0, 1, 2, 3, 4, 5]


def test_who_has_waited_long_goes_first() -> None:
    """A prefetch before demands that came 100 ms later, and not before those before."""
    requests = [
        request(0, "prefetch"),
        request(1, arrived_ns=99 * MS),
        request(2, arrived_ns=101 * MS),
    ]
    assert order(LeastLoaded(), requests) == [1, 0, 2]
    assert order(LeastLoaded(Aging(prefetch=50 * MS)), requests) == [0, 1, 2]


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


def test_a_withdrawn_request_holds_nothing_up() -> None:
    queue = RequestQueue(RoundRobin(), [Target()])
    for number, kind in enumerate(["write", "write", "read"]):
        queue.put(request(number, kind=kind, offset=0))
    first = queue.take()
    assert first is not None
    queue.withdraw(1)
    assert queue.take() is None
    queue.done(first)
    last = queue.take()
    assert last is not None
    assert last.request.id == 2


# -- at which target -------------------------------------------------------------------------------


def test_each_policy_has_its_target() -> None:
    """In turn, the emptiest."""
    targets = [Target(100, 50), Target(1000, 400), Target(100, 60)]
    offered = dict(enumerate(targets))
    one = request(0)
    assert LeastLoaded().choose(one, offered) == 1
    in_turn = RoundRobin()
    assert [in_turn.choose(one, offered) for _ in range(4)] == [0, 1, 2, 0]
    assert in_turn.choose(one, {0: targets[0], 2: targets[2]}) == 2


def test_requests_go_where_they_can() -> None:
    """To holders that are there, and have room; who waits for one holds up nobody else."""
    queue = RequestQueue(LeastLoaded(), [Target(10), Target(10), Target(10, available=False)])
    for number, holders in enumerate([(0,), (0,), (2,), (), ()]):
        queue.put(request(number, holders=holders))
    sent = [queue.take(), queue.take()]
    assert [(one.request.id, one.target) for one in sent if one] == [(0, 0), (3, 1)]
    assert queue.take() is None
    queue.update(2, Target(10))
    third = queue.take()
    assert third is not None
    assert (third.request.id, third.target) == (2, 2)
    assert sent[0] is not None
    queue.done(sent[0])
    queue.update(0, Target(10, available=False))
    assert queue.take() is None
    queue.update(0, Target(10))
    last = queue.take()
    assert last is not None
    assert last.request.id == 1


# -- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "delete"}, "Request.kind is 'delete'"),
        ({"purpose": "urgent"}, "Request.purpose is 'urgent'"),
        ({"offset": -1}, "Request.offset is -1"),
        ({"length": 1.5}, "Request.length is 1.5"),
        ({"file": True}, "Request.file is True"),
        ({"arrived_ns": None}, "Request.arrived_ns is None"),
        ({"offset": 1 << 63}, "Request.offset is 9223372036854775808"),
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
        "Aging.sweep is -1": lambda: Aging(sweep=-1),
        "Aging.checkpoint is": lambda: Aging(checkpoint=limits.patience_ns_max + 1),
    }
    for message, call in calls.items():
        with pytest.raises(UsageError, match=message):
            call()


def test_a_queue_refuses_what_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """And goes on."""
    monkeypatch.setattr(limits, "pieces_max", 1)
    queue = RequestQueue(Fifo(), [Target()])
    queue.put(request(0, arrived_ns=5))
    for bad in (
        request(0, arrived_ns=5),
        request(1, arrived_ns=4),
        request(1, arrived_ns=5, holders=(0, 1)),
    ):
        with pytest.raises(UsageError, match="give a new id, holders below 1"):
            queue.put(bad)
    with pytest.raises(LimitError, match="pieces_max"):
        queue.put(request(1, arrived_ns=5))
    dispatch = queue.take()
    assert dispatch is not None
    queue.done(dispatch)
    assert len(queue) == 0


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
