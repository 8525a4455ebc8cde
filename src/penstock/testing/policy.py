"""The conformance suite of the policies of `penstock.engine.queue`: `PolicySuite`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .. import limits
from ..engine import Policy, Purpose, Request, RequestQueue, Target, Unit
from .suite import Suite

_checked = settings(deadline=None, suppress_health_check=[HealthCheck.differing_executors])
_file_bytes = 64
_purposes = st.sampled_from(get_args(Purpose))
_ns = st.integers(0, 2 * limits.patience_ns_max)


@st.composite
def arrivals(draw: st.DrawFn, targets: int = 3) -> list[Request]:
    """Strategy: requests for a few bytes of two files, as they come; they overlap and touch each
    other."""
    at_ns = 0
    requests = []
    for number in range(draw(st.integers(0, 25))):
        at_ns += draw(st.sampled_from([0, 1, 10**6, 10**9]))
        offset = draw(st.integers(0, _file_bytes))
        requests.append(
            Request(
                id=number,
                kind=draw(st.sampled_from(["read", "write"])),
                purpose=draw(_purposes),
                file=draw(st.integers(0, 1)),
                offset=offset,
                length=draw(st.integers(0, _file_bytes - offset)),
                arrived_ns=at_ns,
                deadline_ns=draw(st.none() | _ns),
                step=draw(st.none() | st.integers(0, 5)),
                holders=tuple(sorted(draw(st.sets(st.integers(0, targets - 1))))),
            )
        )
    return requests


_targets = st.dictionaries(
    st.integers(0, 9),
    st.builds(
        Target,
        queued_bytes_max=st.integers(1, 1 << 30),
        queued_bytes=st.integers(0, 1 << 30),
        speed=st.floats(0, 1),
        free=st.floats(0.01, 1),
    ),
    min_size=1,
)


def _make_demand(number: int, at_ns: int) -> Request:
    return Request(number, "read", "demand", 0, 0, 1, at_ns, deadline_ns=0, step=0)


class PolicySuite(Suite):
    """The tests that every policy passes. A subclass, named Test..., defines `make` and no more."""

    subject = "policy"

    def make(self) -> Policy:
        """Create a policy that has chosen nothing yet."""
        raise NotImplementedError("a PolicySuite says how to make its policy")

    # -- whose turn --------------------------------------------------------------------------

    @given(arrivals())
    @_checked
    def test_rank_lies_between_arrival_and_patience(self, requests: list[Request]) -> None:
        """No rank is before the arrival, nor later than any patience allows."""
        policy = self.make()
        for request in requests:
            assert 0 <= policy.rank(request) - request.arrived_ns <= limits.patience_ns_max

    @given(arrivals(), _targets)
    @_checked
    def test_rank_is_of_the_request_alone(
        self, requests: list[Request], targets: dict[int, Target]
    ) -> None:
        """The rank of a request stays the same, whatever was asked and chosen before."""
        policy = self.make()
        for request in requests:
            policy.rank(request)
            policy.choose(request, targets)
        for request in requests:
            assert policy.rank(request) == self.make().rank(request)

    @given(arrivals(), st.integers(0, limits.patience_ns_max))
    @_checked
    def test_who_comes_later_is_not_before_its_like(
        self, requests: list[Request], later_ns: int
    ) -> None:
        """The earlier of two requests that differ in arrival alone goes first."""
        policy = self.make()
        for request in requests:
            later = replace(request, arrived_ns=request.arrived_ns + later_ns)
            assert policy.rank(request) <= policy.rank(later)

    @given(_purposes, st.sampled_from(["read", "write"]), st.integers(0, 1 << 40))
    @_checked
    def test_nobody_starves(self, purpose: Purpose, kind: str, at_ns: int) -> None:
        """Every waiting request is sent in the end, even while demands keep coming, all of them
        late."""
        queue = RequestQueue(self.make(), [Target()], unit_bytes=1)
        waiting = Request(0, kind, purpose, 1, 0, 1, at_ns)  # type: ignore[arg-type]
        queue.put(waiting)
        wait_ns = limits.patience_ns_max // 16
        for number in range(1, 20):
            queue.put(_make_demand(number, at_ns + (number - 1) * wait_ns))
            unit = queue.take()
            assert unit is not None
            if 0 in queue.done(unit):
                return
        raise AssertionError("it waits longer than the longest patience")

    # -- at which target ---------------------------------------------------------------------

    @given(arrivals(), st.lists(_targets, min_size=1, max_size=5))
    @_checked
    def test_chooses_one_that_is_offered(
        self, requests: list[Request], offers: list[dict[int, Target]]
    ) -> None:
        """The chosen target is one of those offered, however they change."""
        policy = self.make()
        for number, request in enumerate(requests):
            offered = offers[number % len(offers)]
            assert policy.choose(request, offered) in offered

    @given(arrivals(), st.lists(_targets, min_size=1, max_size=5))
    @_checked
    def test_same_calls_same_choices(
        self, requests: list[Request], offers: list[dict[int, Target]]
    ) -> None:
        """The same calls give the same choices, even if the targets are listed in another order, so
        that every rank can compute them."""

        def choices(policy: Policy, turned: bool) -> list[int]:
            return [
                policy.choose(
                    request,
                    dict(sorted(offers[number % len(offers)].items(), reverse=turned)),
                )
                for number, request in enumerate(requests)
            ]

        assert choices(self.make(), False) == choices(self.make(), True)

    # -- in a queue --------------------------------------------------------------------------

    @given(arrivals(), st.integers(1, 100), st.integers(0, 1 << 32))
    @_checked
    def test_a_queue_keeps_what_depends_on_order(
        self, requests: list[Request], unit_bytes: int, seed: int
    ) -> None:
        """Each byte of each request goes once, to a target that can serve it and has room. Reads
        return, and files keep, the same bytes as if every request were executed at once when it
        comes.
        """
        run = _RandomRun(self.make(), requests, unit_bytes, np.random.default_rng(seed))
        run.run()
        expected, kept = _execute_in_order(requests)
        assert run.found == expected
        assert run.files == kept
        assert sorted(run.ended) == [request.id for request in requests]


def _execute_in_order(requests: Sequence[Request]) -> tuple[dict[int, list[int]], list[list[int]]]:
    """Return the result of each read, and the files' bytes in the end: a byte is the id of its last
    writer."""
    files = [[-1] * _file_bytes, [-1] * _file_bytes]
    results = {}
    for request in requests:
        if request.kind == "read":
            results[request.id] = files[request.file][request.offset : request.end]
        else:
            files[request.file][request.offset : request.end] = [request.id] * request.length
    return results, files


class _RandomRun:
    """A queue driven at random. Requests are executed at a random time while in progress, and again
    at the end; both results must be equal."""

    def __init__(
        self,
        policy: Policy,
        requests: Sequence[Request],
        unit_bytes: int,
        random: np.random.Generator,
    ) -> None:
        self.queue = RequestQueue(policy, [Target(), Target(40), Target(7, free=0.0)], unit_bytes)
        self.to_come = list(requests)
        self.waiting = {request.id: request.length for request in requests}
        self.unit_bytes = unit_bytes
        self.random = random
        self.under_way: list[tuple[Unit, list[list[int]]]] = []
        self.files = [[-1] * _file_bytes, [-1] * _file_bytes]
        self.found = {
            request.id: [-2] * request.length for request in requests if request.kind == "read"
        }
        self.offsets = {request.id: request.offset for request in requests}
        self.ended: list[int] = []

    def run(self) -> None:
        # Only to the full target there is: such writes would wait for ever.
        self.to_come = [
            replace(request, holders=(0, 2)) if request.holders == (2,) else request
            for request in self.to_come
        ]
        while self.to_come or len(self.queue):
            chance = self.random.random()
            if self.to_come and chance < 0.4:
                self.queue.put(self.to_come.pop(0))
            elif chance < 0.7:
                self._take()
            elif self.under_way:
                self._end(int(self.random.integers(len(self.under_way))))
            elif not self.to_come:
                assert self._take(), "something waits, nothing is under way, and nothing may go"

    def _take(self) -> bool:
        unit = self.queue.take()
        if unit is None:
            return False
        target = self.queue.targets[unit.target]
        assert unit.length == sum(request.length for request in unit.requests)
        assert unit.length <= self.unit_bytes
        assert target.queued_bytes <= max(target.queued_bytes_max, unit.length)
        for request, following in zip(unit.requests, unit.requests[1:], strict=False):
            assert (request.end, request.file) == (following.offset, following.file)
        assert len({(request.kind, request.purpose) for request in unit.requests}) == 1
        for request in unit.requests:
            assert not request.holders or unit.target in request.holders
            assert request.kind == "read" or target.free
        self.under_way.append((unit, [self._execute(request) for request in unit.requests]))
        return True

    def _end(self, number: int) -> None:
        unit, contents = self.under_way.pop(number)
        assert [self._execute(request) for request in unit.requests] == contents
        for request, content in zip(unit.requests, contents, strict=True):
            self.waiting[request.id] -= request.length
            if request.kind == "read":
                start = request.offset - self.offsets[request.id]
                assert (
                    self.found[request.id][start : start + request.length] == [-2] * request.length
                )
                self.found[request.id][start : start + request.length] = content
        for ended in self.queue.done(unit):
            assert self.waiting[ended] == 0
            self.ended.append(ended)

    def _execute(self, piece: Request) -> list[int]:
        file = self.files[piece.file]
        if piece.kind == "write":
            file[piece.offset : piece.end] = [piece.id] * piece.length
        return file[piece.offset : piece.end]
