"""The order of requests: hazards, purposes, aging, bytes in flight.

That a queue keeps what depends on order is in the suite of storage queues.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import limits
from penstock.engine.request_queue import AGING, PURPOSES, Aging, Request, choose_next, must_follow
from penstock.engine.storage_queue import StorageQueue
from penstock.errors import LimitError, UsageError

MS = 1_000_000


def request(place: int, purpose: Any = "demand", **fields: Any) -> Request:
    """A read of its own 10 bytes, which touch nobody's, at time 0."""
    given_fields = {"kind": "read", "file": 0, "offset": 20 * place, "length": 10, "arrived_ns": 0}
    return Request(purpose=purpose, **given_fields | fields)


def order(requests: list[Request], aging: Aging = AGING) -> list[int]:
    """Rows as they go, one at a time, where all have come before the first one goes."""
    waiting, ended = list(requests), []
    while (row := choose_next(waiting, aging)) is not None:
        ended.append(requests.index(waiting.pop(row)))
    assert not waiting
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
    earlier.file = later.file = None  # of no file that others name
    assert not must_follow(later, earlier)


# -- whose turn ------------------------------------------------------------------------------------


def test_purposes_go_by_urgency() -> None:
    """Arrival decides within a purpose."""
    purposes = ["checkpoint", "sweep", "prefetch", "demand", "prefetch", "demand"]
    requests = [request(number, purpose) for number, purpose in enumerate(purposes)]
    assert order(requests) == [3, 5, 2, 4, 1, 0]


def test_who_has_waited_long_goes_first() -> None:
    """A prefetch before demands that came 100 ms later, and not before those before."""
    requests = [
        request(0, "prefetch"),
        request(1, arrived_ns=99 * MS),
        request(2, arrived_ns=101 * MS),
    ]
    assert order(requests) == [1, 0, 2]
    assert order(requests, Aging(prefetch=50 * MS)) == [0, 1, 2]


@pytest.mark.parametrize("purpose", PURPOSES)
def test_nobody_starves(purpose: Any) -> None:
    """Every waiting request goes in the end, even while demands keep coming."""
    aging = Aging(**dict.fromkeys(PURPOSES[1:], limits.patience_ns_max))
    waiting = request(0, purpose)
    for number in range(1, 20):
        demand = request(number, arrived_ns=number * (limits.patience_ns_max // 16))
        if choose_next([waiting, demand], aging) == 0:
            return
    raise AssertionError("it waits longer than the longest patience")


def test_who_holds_up_a_demand_is_as_urgent() -> None:
    """A demand for bytes of a snapshot that waits behind others: that goes first, and what that
    waits for; the demand follows it."""
    requests = [
        request(0, "sweep", file=1),
        request(1, "checkpoint", kind="write", file=2, offset=0, length=30),
        request(2, "checkpoint", kind="write", file=2, offset=20, length=30),
        request(3, "demand", file=2, offset=40, length=5),
    ]
    assert order(requests) == [1, 2, 3, 0]
    assert order(requests[:3]) == [0, 1, 2]


def test_who_follows_one_under_way_waits() -> None:
    """A read waits for the write under way, not for one that was given up."""
    writes = [request(number, kind="write", offset=0, number=number) for number in range(2)]
    read = request(2, offset=0)
    assert choose_next([writes[0], read]) is None
    assert choose_next([read]) == 0


def test_a_large_request_goes_alone() -> None:
    """Bytes under way leave room for others up to the bound, and nobody overtakes who is too
    large for the room."""
    under_way, large, small = request(0, number=0), request(1, length=100), request(2, length=1)
    assert choose_next([under_way, small], inflight_bytes_max=11) == 1
    assert choose_next([under_way, large, small], inflight_bytes_max=11) is None
    assert choose_next([large, small], inflight_bytes_max=11) == 0


# -- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "delete"}, "Request.kind is 'delete'"),
        ({"purpose": "urgent"}, "Request.purpose is 'urgent'"),
        ({"offset": -1}, "Request.offset is -1"),
        ({"length": 1.5}, "Request.length is 1.5"),
        ({"arrived_ns": None}, "Request.arrived_ns is None"),
        ({"offset": 1 << 63}, "Request.offset is 9223372036854775808"),
    ],
)
def test_absurd_requests_are_refused(fields: dict[str, Any], message: str) -> None:
    """By the name of what is absurd."""
    with pytest.raises(UsageError, match=message):
        request(0, **fields)


def test_absurd_agings_are_refused() -> None:
    with pytest.raises(UsageError, match="Aging.sweep is -1"):
        Aging(sweep=-1)
    with pytest.raises(UsageError, match="Aging.checkpoint is"):
        Aging(checkpoint=limits.patience_ns_max + 1)


def test_a_queue_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that is full refuses one request more, and goes on."""
    monkeypatch.setattr(limits, "pieces_max", 1)
    queue = StorageQueue()
    first = queue.put("read", "demand", 1)
    with pytest.raises(LimitError, match="pieces_max"):
        queue.put("read", "demand", 1)
    first.end()
    assert queue.put("read", "demand", 1).is_due()
