"""The conformance suite of peers: `PeerSuite`."""

from __future__ import annotations

import gc
import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .. import limits
from ..cache.peer import Bytes, Keys, Peer, PeerCompletion, PeerRequest, Reason
from ..engine.protocol import Buffer
from ..errors import UsageError
from .suite import Suite, deadline_s, random_bytes, second_ns

Answer = Callable[[Peer, PeerRequest], None]
"""Function by which a node answers a request."""


def key_bytes(node: int, key: int, length: int) -> bytes:
    """Return the bytes that a node has of a key."""
    return random_bytes(length, node << 32 | key)


class Fetching:
    """A fetch, buffers of random bytes for it, and the verdict on what a peer made of them.

    Key i of the fetch has `lengths[i]` bytes, and is one of a thousand if none are given. Targets
    are dealt out in random order, or one after the other, with a few bytes between some of them
    that nobody may touch; with several buffers, each key goes to any of them, or the first ones to
    the first. The owner refuses the keys numbered `refused`.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        refused: Iterable[int] = (),
        seed: int = 0,
        node: int = 1,
        in_order: bool = False,
        buffers: int = 1,
    ) -> None:
        random = np.random.default_rng(seed)
        self.node = node
        self.keys: Keys = random.integers(0, 1000, len(lengths)).astype(np.uint64)
        self.lengths: Bytes = np.array(lengths, np.int64)
        self.targets: Bytes = np.zeros(len(lengths), np.int64)
        self.refused = np.array(sorted(refused), np.int64)
        self.numbers: npt.NDArray[np.int64] = random.integers(0, buffers, len(lengths))
        if in_order:
            self.numbers.sort()
        filled = random.integers(0, 8, buffers)
        for number in range(len(lengths)) if in_order else random.permutation(len(lengths)):
            into = self.numbers[number]
            self.targets[number] = filled[into]
            gap = 0 if random.random() < 0.5 else int(random.integers(8))
            filled[into] += lengths[number] + gap
        self.buffers: list[Buffer] = [random.integers(0, 256, size, np.uint8) for size in filled]
        self._before = [buffer.copy() for buffer in self.buffers]
        self._held: dict[tuple[int, int], bytes] = {}  # by key and length

    def submit(self, peer: Peer) -> int:
        columns = self.keys, self.lengths, self.targets
        return peer.submit(self.node, *columns, self.buffers, self.numbers)

    def answer(self, peer: Peer, request: PeerRequest) -> None:
        """Answer as the owner would, in parts that are cut anywhere."""
        np.testing.assert_array_equal(request.keys, self.keys)
        np.testing.assert_array_equal(request.lengths, self.lengths)
        there = np.setdiff1d(np.arange(len(self.keys)), self.refused)
        whole = b"".join(self._bytes(number) for number in there)
        random = np.random.default_rng(len(whole))
        cuts = np.sort(random.integers(0, len(whole) + 1, 3)).tolist()
        ends = itertools.pairwise([0, *cuts, len(whole)])
        peer.answer(request.number, [memoryview(whole)[a:b] for a, b in ends], self.refused)

    def assert_untouched(self) -> None:
        """Assert that nothing was written to the buffers."""
        self._assert_equal(self._before)

    def assert_done(self, completion: PeerCompletion) -> None:
        """Assert that every key that is not refused arrived, and nothing between them was
        touched."""
        assert completion.reason is None
        np.testing.assert_array_equal(completion.failures, self.refused)
        self._assert_buffers(self.refused)

    def assert_failed(self, completion: PeerCompletion, *reasons: Reason) -> None:
        """Assert that every key failed, for one of the reasons, and nothing between them was
        touched."""
        assert completion.reason in reasons
        np.testing.assert_array_equal(completion.failures, np.arange(len(self.keys)))
        self._assert_buffers(completion.failures)

    def _assert_buffers(self, failures: npt.NDArray[np.int64]) -> None:
        expected = [before.copy() for before in self._before]
        failed = {*failures.tolist()}
        columns = self.numbers.tolist(), self.targets.tolist(), self.lengths.tolist()
        for number, (into, target, length) in enumerate(zip(*columns, strict=True)):
            there = self.buffers[into][target : target + length]
            if number not in failed:
                there = np.frombuffer(self._bytes(number), np.uint8)
            expected[into][target : target + length] = there
        self._assert_equal(expected)

    def _assert_equal(self, expected: Sequence[Buffer]) -> None:
        for buffer, wanted in zip(self.buffers, expected, strict=True):
            np.testing.assert_array_equal(buffer, wanted)

    def _bytes(self, number: int) -> bytes:
        key, length = int(self.keys[number]), int(self.lengths[number])
        if (key, length) not in self._held:
            self._held[key, length] = key_bytes(self.node, key, length)
        return self._held[key, length]


def answer_all(peer: Peer, request: PeerRequest) -> None:
    """Answer with every key."""
    pairs = zip(request.keys.tolist(), request.lengths.tolist(), strict=True)
    peer.answer(request.number, [key_bytes(peer.node, key, length) for key, length in pairs])


def drive(
    peers: Sequence[Peer], tickets: Iterable[int], answer: Answer = answer_all
) -> dict[int, PeerCompletion]:
    """Let all peers take steps until the first one has reported all tickets, each once."""
    missing = set(tickets)
    done: dict[int, PeerCompletion] = {}
    deadline = time.monotonic() + deadline_s
    while missing:
        assert time.monotonic() < deadline, f"{len(missing)} fetches are not reported in time"
        for peer in peers:
            events = peer.step(1_000_000)
            for request in events.requests:
                answer(peer, request)
            for completion in events.completions:
                assert peer is peers[0]
                assert completion.ticket not in done, "a fetch is reported twice"
                assert completion.ticket in missing, "a fetch is reported that is not outstanding"
                missing.remove(completion.ticket)
                done[completion.ticket] = completion
    assert peers[0].step(0).completions == []
    return done


def requested(peers: Sequence[Peer], count: int) -> list[PeerRequest]:
    """Let all peers take steps until the last one has received `count` requests."""
    requests: list[PeerRequest] = []
    deadline = time.monotonic() + deadline_s
    while len(requests) < count:
        assert time.monotonic() < deadline, f"{len(requests)} of {count} requests came in time"
        for peer in peers:
            events = peer.step(1_000_000)
            assert events.completions == []
            requests += events.requests
    return requests


_lengths = st.sampled_from([0, 1, 4096, 65_535, 65_536, limits.MIB, limits.MIB + 1])
_lengths |= st.integers(0, 9000)


@st.composite
def fetchings(draw: st.DrawFn) -> Fetching:
    """Strategy: any fetch from node 1, some keys of which are refused."""
    lengths = draw(st.lists(_lengths, max_size=20))
    refused = draw(st.sets(st.integers(0, len(lengths) - 1))) if lengths else set()
    seed, in_order = draw(st.integers(0, 1 << 32)), draw(st.booleans())
    return Fetching(lengths, refused, seed, in_order=in_order, buffers=draw(st.integers(1, 3)))


_bends: dict[str, dict[str, Callable[[Any], Any]]] = {
    "node itself": {"node": lambda _: 0},
    "node unknown": {"node": lambda _: 99},
    "node negative": {"node": lambda _: -1},
    "signed keys": {"keys": lambda keys: keys.astype(np.int64)},
    "keys are a list": {"keys": lambda keys: keys.tolist()},
    "two-dimensional keys": {"keys": lambda keys: keys.reshape(1, -1)},
    "too many keys": {
        name: lambda column: np.zeros(limits.peer_keys_max + 1, column.dtype)
        for name in ("keys", "lengths", "targets", "numbers")
    },
    "float lengths": {"lengths": lambda lengths: lengths.astype(np.float64)},
    "short lengths": {"lengths": lambda lengths: lengths[:-1]},
    "negative length": {"lengths": lambda lengths: lengths * [1, -1, 1]},
    "length beyond the buffer": {"lengths": lambda lengths: lengths + (1 << 40)},
    "long targets": {"targets": lambda targets: np.append(targets, 0)},
    "negative target": {"targets": lambda targets: targets * 0 - 1},
    "target beyond the buffer": {"targets": lambda targets: targets + (1 << 40)},
    "target wraps round": {"targets": lambda targets: targets * 0 + ((1 << 63) - 1)},
    "buffer of other type": {"buffers": lambda buffers: [buffers[0].view(np.int8)]},
    "buffer is bytes": {"buffers": lambda buffers: [buffers[0].tobytes()]},
    "buffer with stride": {"buffers": lambda buffers: [np.repeat(buffers[0], 2)[::2]]},
    "no buffers": {"buffers": lambda _: []},
    "number of no buffer": {"numbers": lambda numbers: numbers + 1},
    "negative number": {"numbers": lambda numbers: numbers - 1},
    "unsigned numbers": {"numbers": lambda numbers: numbers.astype(np.uint32)},
}

_no_answers: dict[str, tuple[list[Any], Any]] = {
    "too few bytes": ([b"123"], []),
    "too many bytes": ([bytes(30), b"1"], []),
    "bytes of a refused key": ([bytes(30)], [0]),
    "no bytes": ([], []),
    "refused number too large": ([], [0, 1, 2, 3]),
    "refused number negative": ([bytes(30)], [-1]),
    "refused twice": ([bytes(20)], [1, 1]),
    "refused descends": ([bytes(10)], [2, 0]),
    "refused is a mask": ([bytes(30)], np.zeros(3, np.bool_)),
    "part with stride": ([np.zeros(60, np.uint8)[::2]], []),
}


class PeerSuite(Suite):
    """The tests that every peer passes.

    A subclass, named Test..., defines `make` and no more. To override a test is a defect: the
    protocol means the same for all, or means nothing.
    """

    subject = "peer"

    def make(self, count: int, timeout_s: float) -> Sequence[Peer]:
        """Create the nodes 0 to count - 1, in this process; they know each other."""
        raise NotImplementedError("a PeerSuite says how to make its peers")

    @contextmanager
    def opened(self, count: int = 2, timeout_s: float = deadline_s) -> Iterator[Sequence[Peer]]:
        """Open `count` nodes; they are closed at the end."""
        peers = self.make(count, timeout_s)
        try:
            yield peers
        finally:
            for peer in peers:
                peer.close()

    def assert_fetches(self, fetching: Fetching) -> None:
        """Submit one fetch, answered at once, and compare the result with the oracle."""
        with self.opened() as peers:
            ticket = fetching.submit(peers[0])
            fetching.assert_done(drive(peers, [ticket], fetching.answer)[ticket])

    # -- bytes -------------------------------------------------------------------------------

    @given(st.lists(fetchings(), min_size=1, max_size=5))
    @settings(
        max_examples=25, deadline=None, suppress_health_check=[HealthCheck.differing_executors]
    )
    def test_any_fetches(self, fetchings: list[Fetching]) -> None:
        """Any fetches, one after the other, bring the keys that are not refused and no more."""
        with self.opened() as peers:
            for fetching in fetchings:
                ticket = fetching.submit(peers[0])
                fetching.assert_done(drive(peers, [ticket], fetching.answer)[ticket])

    def test_no_keys(self) -> None:
        """A fetch of no keys is asked and answered like any other."""
        self.assert_fetches(Fetching([]))

    def test_no_bytes(self) -> None:
        """Keys of no bytes arrive, or are refused."""
        self.assert_fetches(Fetching([0, 0, 0], refused=[1]))

    def test_all_refused(self) -> None:
        """An owner may refuse every key."""
        self.assert_fetches(Fetching([5, 0, 3000], refused=[0, 1, 2]))

    def test_long_keys(self) -> None:
        """Keys of far more than a message, at odd targets, with a refused one among them."""
        length = 5 * limits.peer_piece_bytes + 7
        self.assert_fetches(Fetching([3, length, length - 1, length], refused=[2]))

    def test_more_than_is_in_flight(self) -> None:
        """One fetch may be larger than what is in flight, and than the queues hold."""
        self.assert_fetches(Fetching([limits.peer_messages_max * limits.MIB + 1, 7], in_order=True))

    def test_the_most_keys(self) -> None:
        """A fetch of the most keys, each with a few bytes of its own."""
        lengths = np.random.default_rng(1).integers(0, 9, limits.peer_keys_max).tolist()
        self.assert_fetches(Fetching(lengths, refused=range(0, len(lengths), 1001)))

    @pytest.mark.parametrize("length", [1, 1000, 4096, 700_000])
    def test_keys_of_one_length(self, length: int) -> None:
        """Keys that all have one length, as records do, which ends within a message or with it."""
        count = 3 * limits.MIB // length if length > 1 else 1000
        self.assert_fetches(Fetching([length] * count, refused=[0, count - 1]))

    def test_same_key_twice(self) -> None:
        """A fetch may ask for a key several times, for different targets."""
        fetching = Fetching([100, 100, 100])
        fetching.keys[:] = 7
        self.assert_fetches(fetching)

    def test_largest_key(self) -> None:
        """Keys are any 64 bits."""
        keys = np.array([0, (1 << 64) - 1], np.uint64)
        buffer = np.zeros(2, np.uint8)
        with self.opened() as peers:
            columns = keys, np.ones(2, np.int64), np.arange(2)
            ticket = peers[0].submit(1, *columns, [buffer], np.zeros(2, np.int64))
            (request,) = requested(peers, 1)
            assert request.keys.tolist() == keys.tolist()
            assert request.node == 0
            peers[1].answer(request.number, [b"ab"])
            assert drive(peers, [ticket])[ticket].reason is None
        assert buffer.tobytes() == b"ab"

    # -- tickets -----------------------------------------------------------------------------

    def test_many_fetches(self) -> None:
        """Tickets grow; many more fetches than are in flight are reported, each once."""
        fetchings = [Fetching([100 + i, 3 * i, 5000], seed=i) for i in range(200)]
        with self.opened() as peers:
            tickets = [fetching.submit(peers[0]) for fetching in fetchings]
            assert all(np.diff(tickets) > 0)
            done = drive(peers, tickets)
        for ticket, fetching in zip(tickets, fetchings, strict=True):
            fetching.assert_done(done[ticket])

    def test_many_bytes(self) -> None:
        """Fetches of more bytes than are in flight wait for each other, and arrive."""
        share = limits.peer_inflight_bytes // 3
        fetchings = [Fetching([share, i], seed=i) for i in range(6)]
        with self.opened() as peers:
            tickets = [fetching.submit(peers[0]) for fetching in fetchings]
            done = drive(peers, tickets)
        for ticket, fetching in zip(tickets, fetchings, strict=True):
            fetching.assert_done(done[ticket])

    def test_answers_in_any_order(self) -> None:
        """Requests may be answered later, and in another order than they came in."""
        fetchings = [Fetching([2000 + i, limits.MIB], [i % 2], seed=i) for i in range(8)]
        with self.opened() as peers:
            tickets = [fetching.submit(peers[0]) for fetching in fetchings]
            requests = requested(peers, len(fetchings))
            assert len({request.number for request in requests}) == len(requests)
            for place in np.random.default_rng(1).permutation(len(requests)):
                fetchings[place].answer(peers[1], requests[place])
            done = drive(peers, tickets)
        for ticket, fetching in zip(tickets, fetchings, strict=True):
            fetching.assert_done(done[ticket])

    def test_everybody_asks_everybody(self) -> None:
        """Nodes ask and answer at the same time."""
        with self.opened(3) as peers:
            open_fetches = {}
            for peer, node, seed in itertools.product(peers, range(3), range(4)):
                if peer.node != node:
                    fetching = Fetching([70_000, 11], seed=seed, node=node)
                    open_fetches[peer.node, fetching.submit(peer)] = fetching
            deadline = time.monotonic() + deadline_s
            while open_fetches:
                assert time.monotonic() < deadline
                for peer in peers:
                    events = peer.step(1_000_000)
                    for request in events.requests:
                        assert request.node != peer.node
                        answer_all(peer, request)
                    for completion in events.completions:
                        open_fetches.pop((peer.node, completion.ticket)).assert_done(completion)

    @pytest.mark.parametrize("name", _bends)
    def test_bad_fetches(self, name: str) -> None:
        """An impossible fetch is refused, and the peer goes on."""
        refused, fetching = Fetching([10, 20, 30]), Fetching([10, 20, 30])
        arguments: dict[str, Any] = {
            name: getattr(refused, name)
            for name in ("node", "keys", "lengths", "targets", "buffers", "numbers")
        }
        for argument, bend in _bends[name].items():
            arguments[argument] = bend(arguments[argument])
        with self.opened() as peers:
            with pytest.raises(UsageError):
                peers[0].submit(**arguments)
            assert peers[0].step(0) == ([], [])
            ticket = fetching.submit(peers[0])
            fetching.assert_done(drive(peers, [ticket])[ticket])
        refused.assert_untouched()

    @pytest.mark.parametrize("name", _no_answers)
    def test_bad_answers(self, name: str) -> None:
        """An impossible answer is refused, and the request can still be answered."""
        answered, refused = _no_answers[name]
        fetching = Fetching([10, 10, 10])
        with self.opened() as peers:
            ticket = fetching.submit(peers[0])
            (request,) = requested(peers, 1)
            refused = refused if isinstance(refused, np.ndarray) else np.array(refused, np.int64)
            with pytest.raises(UsageError):
                peers[1].answer(request.number, answered, refused)
            fetching.answer(peers[1], request)
            with pytest.raises(UsageError, match="answer each request once"):
                fetching.answer(peers[1], request)
            fetching.assert_done(drive(peers, [ticket])[ticket])

    # -- failures ----------------------------------------------------------------------------

    def test_no_answer_in_time(self) -> None:
        """A fetch without an answer fails once; the answer that comes late is dropped, counted."""
        first, late = Fetching([8]), Fetching([1000, 5])
        with self.opened(timeout_s=2) as peers:
            ticket = first.submit(peers[0])  # they know each other now
            first.assert_done(drive(peers, [ticket])[ticket])
            ticket = late.submit(peers[0])
            requests: list[PeerRequest] = []
            done = drive(peers, [ticket], lambda _, request: requests.append(request))
            late.assert_failed(done[ticket], Reason.TIMEOUT)
            late.assert_untouched()
            late.answer(peers[1], requests[0])
            deadline = time.monotonic() + deadline_s
            while peers[0].counters()["late"] == 0:
                assert time.monotonic() < deadline
                for peer in peers:
                    assert peer.step(1_000_000) == ([], [])
            late.assert_untouched()
            ticket = first.submit(peers[0])
            first.assert_done(drive(peers, [ticket])[ticket])

    def test_silence_for_many(self) -> None:
        """A node that never answers lets more fetches than are in flight fail, each in time."""
        fetchings = [Fetching([10], seed=i) for i in range(3 * limits.peer_inflight_fetches)]
        with self.opened(timeout_s=0.2) as peers:
            tickets = [fetching.submit(peers[0]) for fetching in fetchings]
            start = time.monotonic()
            done = drive(peers, tickets, lambda _, __: None)
            assert time.monotonic() - start < 20
        for ticket, fetching in zip(tickets, fetchings, strict=True):
            fetching.assert_failed(done[ticket], Reason.TIMEOUT)

    def test_node_that_is_gone(self) -> None:
        """After a node is gone, fetches from it, earlier and later ones, fail soon."""
        before, others, after = Fetching([9]), Fetching([9], node=2), Fetching([9])
        with self.opened(3) as (asking, going, staying):
            ticket = before.submit(asking)
            requested([asking, going], 1)
            going.close()
            start = time.monotonic()
            done = drive([asking], [ticket])
            before.assert_failed(done[ticket], Reason.GONE)
            ticket = after.submit(asking)
            after.assert_failed(drive([asking], [ticket])[ticket], Reason.GONE)
            assert time.monotonic() - start < deadline_s / 2
            ticket = others.submit(asking)
            others.assert_done(drive([asking, staying], [ticket])[ticket])

    def test_answer_to_a_node_that_is_gone(self) -> None:
        """An answer to a node that has gone is dropped, and others are answered."""
        lost, fetching = Fetching([3 * limits.MIB], node=2), Fetching([70_000], node=2)
        with self.opened(3) as (going, staying, answering):
            lost.submit(going)
            (request,) = requested([going, answering], 1)
            going.close()
            lost.answer(answering, request)
            ticket = fetching.submit(staying)
            fetching.assert_done(drive([staying, answering], [ticket])[ticket])

    # -- waiting -----------------------------------------------------------------------------

    def test_step_returns_in_time(self) -> None:
        """A step without events lasts as long as it is told to, not longer."""
        with self.opened() as peers:
            start = time.monotonic()
            assert peers[0].step(0) == ([], [])
            assert peers[0].step(1_000_000) == ([], [])
            assert time.monotonic() - start < 5

    def test_step_returns_for_others(self) -> None:
        """A step ends when another file descriptor is readable, however long it may wait."""
        reader, writer = os.pipe()
        try:
            os.write(writer, b"!")
            with self.opened() as peers:
                start = time.monotonic()
                assert peers[0].step(20 * second_ns, [reader]) == ([], [])
                assert time.monotonic() - start < 10
                fetching = Fetching([10])
                ticket = fetching.submit(peers[0])
                fetching.assert_done(drive(peers, [ticket])[ticket])
        finally:
            os.close(reader)
            os.close(writer)

    def test_request_ends_a_step(self) -> None:
        """A node that waits is woken by a request, and one that asks by the answer."""
        fetching = Fetching([10, 2 * limits.MIB])
        with self.opened() as peers:
            asking, answering = peers

            def serve() -> None:
                while True:
                    for request in answering.step(20 * second_ns).requests:
                        answer_all(answering, request)
                        if not len(request.keys):  # the last one
                            return

            thread = threading.Thread(target=serve)
            thread.start()
            start = time.monotonic()
            completions: list[PeerCompletion] = []
            for attempt in (fetching, Fetching([])):
                ticket = attempt.submit(asking)
                while not completions or completions[-1].ticket != ticket:
                    completions += asking.step(20 * second_ns).completions
                    assert time.monotonic() - start < 15
            thread.join(deadline_s)
            assert not thread.is_alive()
            fetching.assert_done(completions[0])

    # -- the end -----------------------------------------------------------------------------

    def test_buffers_are_released(self) -> None:
        """The caller may forget its arrays: the peer keeps them until it reports, not longer."""
        fetching = Fetching([5, 2 * limits.MIB])
        with self.opened() as peers:
            ticket = fetching.submit(peers[0])
            columns = fetching.keys, fetching.lengths, fetching.targets, fetching.numbers
            arrays = (*columns, *fetching.buffers)
            watched = [weakref.ref(array) for array in arrays]
            del fetching, columns, arrays
            gc.collect()
            assert all(reference() is not None for reference in watched), (
                "arrays die while in flight"
            )
            drive(peers, [ticket])
            gc.collect()
            assert not any(reference() is not None for reference in watched)

    def test_close_with_fetches_under_way(self) -> None:
        """Close neither hangs nor keeps buffers, nor writes to them afterwards."""
        fetchings = [Fetching([limits.MIB], seed=i) for i in range(20)]
        with self.opened() as peers:
            for fetching in fetchings:
                fetching.submit(peers[0])
            requests = requested(peers, 20)
            for request, fetching in zip(requests, fetchings, strict=True):
                fetching.answer(peers[1], request)
            peers[1].step(0)
            peers[0].close()
            copies = [fetching.buffers[0].copy() for fetching in fetchings]
            peers[1].step(0)
            for fetching, buffer in zip(fetchings, copies, strict=True):
                np.testing.assert_array_equal(fetching.buffers[0], buffer)
            watched = [weakref.ref(fetching.buffers[0]) for fetching in fetchings]
            del fetchings, fetching
            gc.collect()
            assert not any(buffer() is not None for buffer in watched)

    def test_use_after_close(self) -> None:
        """A closed peer refuses to be used, and to be closed again does nothing."""
        with self.opened() as peers:
            fetching = Fetching([1])
            fetching.submit(peers[0])
            (request,) = requested(peers, 1)
            for peer in peers:
                peer.close()
                peer.close()
                for use in (
                    lambda peer=peer: Fetching([1], node=1 - peer.node).submit(peer),
                    lambda peer=peer: peer.step(0),
                    lambda peer=peer: peer.answer(request.number, [b"1"]),
                ):
                    with pytest.raises(UsageError, match="closed"):
                        use()
