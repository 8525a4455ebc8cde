"""The conformance suite of the policies of `penstock.engine.request_queue`: `PolicySuite`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .. import limits
from ..engine.request_queue import Dispatch, Policy, Purpose, Request, RequestQueue, Target
from .suite import Suite

_checked = settings(deadline=None, suppress_health_check=[HealthCheck.differing_executors])
_file_bytes = 64
_purposes = st.sampled_from(get_args(Purpose))


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
    ),
    min_size=1,
)


def _make_demand(number: int, at_ns: int) -> Request:
    return Request(number, "read", "demand", 0, 0, 1, at_ns)


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
        queue = RequestQueue(self.make(), [Target()])
        waiting = Request(0, kind, purpose, 1, 0, 1, at_ns)  # type: ignore[arg-type]
        queue.put(waiting)
        wait_ns = limits.patience_ns_max // 16
        for number in range(1, 20):
            queue.put(_make_demand(number, at_ns + (number - 1) * wait_ns))
            dispatch = queue.take()
            assert dispatch is not None
            if dispatch.request.id == 0:
                return
            queue.done(dispatch)
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

    @given(arrivals(), st.integers(0, 1 << 32))
    @_checked
    def test_a_queue_keeps_what_depends_on_order(self, requests: list[Request], seed: int) -> None:
        """Each request goes once, to a target that can serve it and has room. Reads return, and
        files keep, the same bytes as if every request were executed at once when it comes.
        """
        run = _RandomRun(self.make(), requests, np.random.default_rng(seed))
        run.run()
        results, files = _execute_in_order(requests)
        assert run.results == results
        assert run.files == files
        assert sorted(run.ended) == [request.id for request in requests]


def _execute_in_order(requests: Sequence[Request]) -> tuple[dict[int, list[int]], list[list[int]]]:
    """Return the result of each request, and the files' bytes in the end: a byte is the id of its
    last writer."""
    files = [[-1] * _file_bytes, [-1] * _file_bytes]
    results = {request.id: _execute(files, request) for request in requests}
    return results, files


def _execute(files: list[list[int]], request: Request) -> list[int]:
    """Execute a request and return the bytes that it read or wrote."""
    file = files[request.file]
    if request.kind == "write":
        file[request.offset : request.end] = [request.id] * request.length
    return file[request.offset : request.end]


class _RandomRun:
    """A queue driven at random. Requests are executed at a random time while in progress, and again
    at the end; both results must be equal."""

    def __init__(
        self, policy: Policy, requests: Sequence[Request], random: np.random.Generator
    ) -> None:
        self.queue = RequestQueue(policy, [Target(), Target(40), Target(7)])
        self.to_come = list(requests)
        self.random = random
        self.in_progress: list[tuple[Dispatch, list[int]]] = []
        self.files = [[-1] * _file_bytes, [-1] * _file_bytes]
        self.results: dict[int, list[int]] = {}
        self.ended: list[int] = []

    def run(self) -> None:
        while self.to_come or len(self.queue):
            chance = self.random.random()
            if self.to_come and chance < 0.4:
                self.queue.put(self.to_come.pop(0))
            elif chance < 0.7:
                self._take()
            elif self.in_progress:
                self._end(int(self.random.integers(len(self.in_progress))))
            elif not self.to_come:
                assert self._take(), "a request waits, and nothing that is in progress can end"

    def _take(self) -> bool:
        dispatch = self.queue.take()
        if dispatch is None:
            return False
        request, target = dispatch.request, self.queue.targets[dispatch.target]
        assert target.queued_bytes <= max(target.queued_bytes_max, request.length)
        assert not request.holders or dispatch.target in request.holders
        self.in_progress.append((dispatch, _execute(self.files, request)))
        return True

    def _end(self, number: int) -> None:
        dispatch, content = self.in_progress.pop(number)
        assert _execute(self.files, dispatch.request) == content
        self.results[dispatch.request.id] = content
        self.queue.done(dispatch)
        self.ended.append(dispatch.request.id)
