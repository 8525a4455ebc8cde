"""Peers over ZeroMQ: the suite, strangers, liars, and nodes that are killed."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from penstock import limits
from penstock.cache.peer import PeerCompletion, PeerEvents, Reason
from penstock.cache.zeromq import KeyPair, ZeromqMember, ZeroMQPeer
from penstock.clock import SystemClock
from penstock.errors import UsageError
from penstock.testing import PeerSuite
from penstock.testing.peer import Fetching, drive, requested
from tests import warm
from tests.jumping_clock import JumpingClock
from tests.slices import long_methods

SECOND_NS = 1_000_000_000
DEADLINE_S = 60
HEADER = struct.Struct("<4sBB2xI4xQQ16s")
ASK, ANSWER, PIECE, REFUSAL = 1, 2, 3, 4
JOB = hashlib.blake2b(b"job", digest_size=16).digest()


def message(kind: int, count: int, ticket: int, start: int = 0, rest: bytes = b"") -> bytes:
    """A message of the job."""
    return HEADER.pack(b"PNST", 1, kind, count, ticket, start, JOB) + rest


def columns(keys: Sequence[int], lengths: Sequence[int]) -> bytes:
    """The part of a fetch behind its header."""
    return np.array(keys, "<u8").tobytes() + np.array(lengths, "<i8").tobytes()


def job(count: int, timeout_s: float = DEADLINE_S) -> list[ZeroMQPeer]:
    """So many nodes that know each other."""
    keys = [KeyPair.generate() for _ in range(count)]
    peers = [ZeroMQPeer(node, "job", keys[node], timeout_s=timeout_s) for node in range(count)]
    members = {each.node: ZeromqMember(each.address, keys[each.node].public) for each in peers}
    for peer in peers:
        peer.meet(members)
    return peers


@long_methods("test_many_bytes", "test_more_than_is_in_flight", "test_the_most_keys")
class TestZeroMQPeer(PeerSuite):
    def make(self, count: int, timeout_s: float) -> list[ZeroMQPeer]:
        return job(count, timeout_s)


class Scene:
    """A node 1 to be attacked, a good node 0, and a bare socket of node 2, which is a member."""

    def __init__(self, timeout_s: float = DEADLINE_S) -> None:
        """`timeout_s` is that of the node."""
        self.keys = [KeyPair.generate() for _ in range(3)]
        self.good = ZeroMQPeer(0, "job", self.keys[0], timeout_s=DEADLINE_S)
        self.node = ZeroMQPeer(1, "job", self.keys[1], timeout_s=timeout_s)
        self.context = zmq.Context()
        self.sockets: list[zmq.Socket[bytes]] = []
        self.owner = self.context.socket(zmq.ROUTER)  # answers whom it likes, and what
        self._curve(self.owner, self.keys[2])
        self.owner.set(zmq.CURVE_SERVER, 1)
        self.owner.bind("tcp://127.0.0.1:*")
        addresses = [self.good.address, self.node.address, self.owner.get_string(zmq.LAST_ENDPOINT)]
        members = {
            node: ZeromqMember(address.rstrip("\0"), self.keys[node].public)
            for node, address in enumerate(addresses)
        }
        for peer in (self.good, self.node):
            peer.meet(members)

    def close(self) -> None:
        self.good.close()
        self.node.close()
        self.context.destroy(linger=0)

    @staticmethod
    def _curve(socket: zmq.Socket[bytes], keys: KeyPair) -> None:
        socket.set(zmq.CURVE_PUBLICKEY, keys.public)
        socket.set(zmq.CURVE_SECRETKEY, keys.secret)

    def dealer(self, keys: KeyPair | None, server_key: bytes | None = None) -> zmq.Socket[bytes]:
        """A bare socket that asks the node, with these keys or without any, and holds little."""
        socket = self.context.socket(zmq.DEALER)
        socket.set(zmq.RCVHWM, 1)
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.RECONNECT_IVL, -1)
        if keys is not None:
            self._curve(socket, keys)
            socket.set(zmq.CURVE_SERVERKEY, server_key or self.keys[1].public)
        socket.connect(self.node.address)
        self.sockets.append(socket)  # who forgets a socket closes it
        return socket

    def member(self) -> zmq.Socket[bytes]:
        """A bare socket of a member."""
        return self.dealer(self.keys[2])

    def until(self, done: Callable[[], object]) -> None:
        """Let the node take steps."""
        deadline = time.monotonic() + DEADLINE_S
        while not done():
            assert time.monotonic() < deadline, self.node.counters()
            assert self.node.step(1_000_000) == ([], [])

    def counted(self, **expected: int) -> None:
        """Let the node take steps until it has counted that, and nothing else."""
        self.until(lambda: all(self.node.counters()[why] >= n for why, n in expected.items()))
        assert self.wrong() == expected

    def wrong(self) -> dict[str, int]:
        """The node's counts, apart from connections that ended."""
        return {why: n for why, n in self.node.counters().items() if n and why != "ended"}

    def assert_serves(self) -> None:
        """The node still answers to who may ask."""
        fetching = Fetching([5, 2 * limits.MIB + 1], refused=[0])
        ticket = fetching.submit(self.good)
        fetching.assert_done(drive([self.good, self.node], [ticket], fetching.answer)[ticket])


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    try:
        yield made
    finally:
        made.close()


# -- strangers ---------------------------------------------------------------------------------


def test_stranger_with_keys(scene: Scene) -> None:
    """A stranger who has keys, but none of a member, is not let in."""
    scene.dealer(KeyPair.generate())
    scene.counted(strangers=1)
    scene.assert_serves()


def test_stranger_without_keys(scene: Scene) -> None:
    """A stranger who does not encrypt is not let in."""
    scene.dealer(None)
    scene.counted(handshakes=1)
    scene.assert_serves()


def test_member_that_takes_the_node_for_another(scene: Scene) -> None:
    """A handshake with somebody else's public key fails."""
    scene.dealer(scene.keys[2], server_key=scene.keys[0].public)
    scene.counted(handshakes=1)
    scene.assert_serves()


def test_other_protocols(scene: Scene) -> None:
    """Bytes that are not ZMTP end the connection that they came by."""
    host, port = scene.node.address.removeprefix("tcp://").split(":")
    connections = []
    for noise in (b"GET / HTTP/1.1\r\n\r\n", b"\0" * 100, b"\xff" * 5000):
        connections.append(socket.create_connection((host, int(port))))
        connections[-1].sendall(noise)
    scene.until(lambda: scene.node.counters()["ended"] == len(connections))
    for connection in connections:
        connection.close()
    scene.assert_serves()


@given(st.lists(st.binary(max_size=200), max_size=10))
def test_any_bytes_of_a_stranger(noises: list[bytes]) -> None:
    """No bytes on the wire keep the node from serving."""
    asking, answering = job(2)
    try:
        host, port = answering.address.removeprefix("tcp://").split(":")
        for noise in noises:
            with socket.create_connection((host, int(port))) as connection:
                connection.sendall(noise)
        fetching = Fetching([5])
        ticket = fetching.submit(asking)
        fetching.assert_done(drive([asking, answering], [ticket])[ticket])
    finally:
        asking.close()
        answering.close()


# -- members that send what is no fetch ----------------------------------------------------------

_fetch = columns([1, 2], [3, 4])
_no_fetches: dict[str, tuple[str, list[bytes]]] = {
    "empty": ("malformed", [b""]),
    "short header": ("malformed", [message(ASK, 0, 1)[:-1]]),
    "other magic": ("malformed", [b"\0" + message(ASK, 0, 1)[1:]]),
    "two frames": ("malformed", [message(ASK, 0, 1), b""]),
    "many frames": ("malformed", [message(ASK, 0, 1)] * 1000),
    "an answer": ("malformed", [message(ANSWER, 2, 1, 0, _fetch)]),
    "unknown kind": ("malformed", [message(77, 2, 1, 0, _fetch)]),
    "start given": ("malformed", [message(ASK, 2, 1, 1, _fetch)]),
    "more keys than there are": ("malformed", [message(ASK, 3, 1, 0, _fetch)]),
    "fewer keys than there are": ("malformed", [message(ASK, 1, 1, 0, _fetch)]),
    "keys claimed, none there": ("malformed", [message(ASK, limits.peer_keys_max, 1)]),
    "odd length": ("malformed", [message(ASK, 2, 1, 0, _fetch + b"!")]),
    "negative length": ("malformed", [message(ASK, 1, 1, 0, columns([1], [-1]))]),
    "huge length": ("malformed", [message(ASK, 1, 1, 0, columns([1], [(1 << 63) - 1]))]),
    "too many keys": ("oversized", [message(ASK, limits.peer_keys_max + 1, 1, 0, _fetch)]),
    "most keys that can be claimed": ("oversized", [message(ASK, (1 << 32) - 1, 1, 0, _fetch)]),
    "other version": (
        "version",
        [HEADER.pack(b"PNST", 2, ASK, 2, 1, 0, JOB) + _fetch],
    ),
    "other job": ("job", [HEADER.pack(b"PNST", 1, ASK, 2, 1, 0, bytes(16)) + _fetch]),
}


@pytest.mark.parametrize("name", _no_fetches)
def test_messages_that_are_no_fetch(name: str, scene: Scene) -> None:
    """A member's message that is no fetch is counted by what is wrong with it, and no more."""
    why, frames = _no_fetches[name]
    scene.member().send_multipart(frames)
    scene.counted(**{why: 1})
    scene.assert_serves()


def test_message_beyond_the_largest(scene: Scene) -> None:
    """A message that is too large costs its sender the connection, before it is received."""
    member = scene.member()
    monitor = member.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    member.send(message(ASK, 0, 1, 0, bytes(17 * limits.peer_keys_max)))
    scene.until(lambda: monitor.poll(0) and scene.node.counters()["ended"])
    assert scene.wrong() == {}
    scene.assert_serves()


def test_other_version_is_told(scene: Scene) -> None:
    """A node of another version or job gets a refusal, which ends its fetch."""
    member = scene.member()
    member.send(HEADER.pack(b"PNST", 2, ASK, 2, 9, 0, JOB) + _fetch)
    scene.until(lambda: member.poll(0))
    assert member.recv_multipart() == [message(REFUSAL, 0, 9)]


def test_other_job() -> None:
    """Nodes of two jobs that hold each other's keys do not exchange anything."""
    keys = [KeyPair.generate(), KeyPair.generate()]
    peers = [ZeroMQPeer(node, f"job {node}", keys[node]) for node in (0, 1)]
    members = {node: ZeromqMember(peers[node].address, keys[node].public) for node in (0, 1)}
    for peer in peers:
        peer.meet(members)
    fetching = Fetching([8])
    ticket = fetching.submit(peers[0])
    done = drive(peers, [ticket])
    fetching.assert_failed(done[ticket], Reason.REFUSED)
    assert peers[1].counters()["job"] == 1
    for peer in peers:
        peer.close()


def test_too_many_unanswered(scene: Scene) -> None:
    """A member that asks on without waiting is refused from some number of fetches on."""
    member = scene.member()
    for ticket in range(limits.peer_unanswered_max + 3):
        member.send(message(ASK, 2, ticket, 0, _fetch))
    requests = []
    deadline = time.monotonic() + DEADLINE_S
    while scene.node.counters()["busy"] < 3:
        assert time.monotonic() < deadline
        requests += scene.node.step(1_000_000).requests
    assert len(requests) == limits.peer_unanswered_max
    assert {each.node for each in requests} == {2}
    scene.assert_serves()
    scene.node.answer(requests[0].number, [b"1234567"])
    member.send(message(ASK, 2, 0, 0, _fetch))
    while not (events := scene.node.step(1_000_000)).requests:
        assert time.monotonic() < deadline
    assert scene.node.counters()["busy"] == 3
    assert len(events.requests) == 1


_any_header = st.builds(
    HEADER.pack,
    st.sampled_from([b"PNST", b"tsnp"]),
    st.sampled_from([1, 1, 1, 0, 255]),
    st.integers(0, 5),
    st.integers(0, 4) | st.integers(0, (1 << 32) - 1),
    st.integers(0, 3) | st.integers(0, (1 << 64) - 1),
    st.integers(0, 8) | st.integers(0, (1 << 64) - 1),
    st.sampled_from([JOB, JOB, bytes(16)]),
)
_any_frame = (
    st.binary(max_size=200)
    | _any_header
    | st.builds(lambda header, rest: header + rest, _any_header, st.binary(max_size=80))
)
_any_messages = st.lists(st.lists(_any_frame, min_size=1, max_size=4), max_size=12)


@given(_any_messages)
def test_any_messages_of_a_member(messages: list[list[bytes]]) -> None:
    """Whatever a member sends, each message is a request or is counted, and others are served."""
    scene = Scene()
    try:
        member = scene.member()
        for frames in messages:
            member.send_multipart(frames)
        seen = 0
        deadline = time.monotonic() + DEADLINE_S
        while seen + sum(scene.wrong().values()) < len(messages):
            assert time.monotonic() < deadline
            for request in scene.node.step(1_000_000).requests:
                assert len(request.keys) == len(request.lengths)
                assert (request.lengths >= 0).all()
                everything = np.arange(len(request.keys))
                scene.node.answer(request.number, [], everything)
                seen += 1
        scene.assert_serves()
    finally:
        scene.close()


# -- members that answer what is no answer -------------------------------------------------------


class Lied:
    """The outcome of a fetch of `lengths` whose owner sent these messages, lists of frames."""

    def __init__(self, scene: Scene, lengths: Sequence[int], messages: list[list[bytes]]) -> None:
        self.fetching = Fetching(lengths, node=2)
        ticket = self.fetching.submit(scene.node)
        scene.until(lambda: scene.owner.poll(0))
        route, asked = scene.owner.recv_multipart()
        assert asked[HEADER.size :] == columns(
            self.fetching.keys.tolist(), self.fetching.lengths.tolist()
        )
        for frames in messages:
            scene.owner.send_multipart([route, *frames])
        self.completion = drive([scene.node], [ticket])[ticket]


_no_answers: dict[str, list[list[bytes]]] = {
    "no mask": [[message(ANSWER, 2, 0)]],
    "other number of keys": [[message(ANSWER, 3, 0), b"", b"1234567"]],
    "mask too long": [[message(ANSWER, 2, 0), b"\0\0", b"1234567"]],
    "mask beyond the keys": [[message(ANSWER, 2, 0), b"\x20", b"1234567"]],
    "too many bytes": [[message(ANSWER, 2, 0), b"", b"12345678"]],
    "bytes of refused keys": [[message(ANSWER, 2, 0), b"\x80", b"1234567"]],
    "bytes where all are refused": [[message(ANSWER, 2, 0), b"\xc0", b"1"]],
    "piece before the answer": [[message(PIECE, 0, 0), b"123"]],
    "answer begins twice": [[message(ANSWER, 2, 0), b"", b"123"]] * 2,
    "piece too far": [[message(ANSWER, 2, 0), b"", b"123"], [message(PIECE, 0, 0, 4), b"4567"]],
    "piece again": [
        [message(ANSWER, 2, 0), b"", b"123"],
        [message(PIECE, 0, 0, 3), b"45"],
        [message(PIECE, 0, 0, 3), b"45"],
    ],
    "piece too long": [[message(ANSWER, 2, 0), b"", b"123"], [message(PIECE, 0, 0, 3), b"45678"]],
    "a fetch": [[message(ASK, 2, 0, 0, _fetch)]],
    "unknown kind": [[message(9, 2, 0), b"", b"1234567"]],
    "other version": [[HEADER.pack(b"PNST", 2, ANSWER, 2, 0, 0, JOB), b"", b"1234567"]],
    "other job": [[HEADER.pack(b"PNST", 1, ANSWER, 2, 0, 0, bytes(16)), b"", b"1234567"]],
}


@pytest.mark.parametrize("name", _no_answers)
def test_answers_that_are_none(name: str, scene: Scene) -> None:
    """An owner that sends what is no answer lets the fetch fail at once, and is counted."""
    lied = Lied(scene, [3, 4], _no_answers[name])
    foreign = name.startswith("other ") and "keys" not in name
    lied.fetching.assert_failed(lied.completion, Reason.REFUSED if foreign else Reason.DAMAGED)
    counters = scene.node.counters()
    assert counters["malformed"] + counters["version"] + counters["job"] == 1
    scene.assert_serves()


def test_answer_in_small_frames(scene: Scene) -> None:
    """Bytes may come in any frames and pieces."""
    lied = Lied(
        scene,
        [3, 0, 4],
        [
            [message(ANSWER, 3, 0), b"\x40", b"1", b"", b"2"],
            [message(PIECE, 0, 0, 2), b"34"],
            [message(PIECE, 0, 0, 4), b"5", b"67"],
        ],
    )
    assert lied.completion.reason is None
    assert lied.completion.failures.tolist() == [1]
    (buffer,), targets = lied.fetching.buffers, lied.fetching.targets
    assert buffer[targets[0] : targets[0] + 3].tobytes() == b"123"
    assert buffer[targets[2] : targets[2] + 4].tobytes() == b"4567"


def test_answer_of_another_node(scene: Scene) -> None:
    """A member cannot answer in the name of another one."""
    asked_of_good = Fetching([3, 4], node=0)
    ticket = asked_of_good.submit(scene.node)
    mine = Fetching([1], node=2)
    others = mine.submit(scene.node)
    scene.until(lambda: scene.owner.poll(0))
    route, _ = scene.owner.recv_multipart()
    scene.owner.send_multipart([route, message(ANSWER, 2, ticket), b"", b"1234567"])
    scene.owner.send_multipart([route, message(REFUSAL, 0, others)])
    completion = drive([scene.node], [others])[others]
    mine.assert_failed(completion, Reason.REFUSED)
    assert scene.node.counters()["malformed"] == 1
    asked_of_good.assert_done(drive([scene.node, scene.good], [ticket])[ticket])


@given(_any_messages)
def test_any_answers(messages: list[list[bytes]]) -> None:
    """Whatever an owner sends, the fetch is reported once, and nothing beside it is written."""
    scene = Scene(timeout_s=0.5)
    try:
        end = [message(ANSWER, 2, 0), b"", b"1234567"]
        lied = Lied(scene, [3, 4], [*messages, end])
        fetching, completion = lied.fetching, lied.completion
        if completion.reason is not None:
            fetching.assert_failed(completion, *Reason)
        else:
            failed = completion.failures.tolist()
            assert failed == sorted({*failed} & {0, 1})
            fetching._assert_buffers(np.arange(2))
        scene.assert_serves()
    finally:
        scene.close()


# -- nodes that stall, stop and come back --------------------------------------------------------


def test_node_that_does_not_read() -> None:
    """An answer that is not taken is given up in time, and holds nobody up meanwhile."""
    scene = Scene(timeout_s=1.0)
    try:
        member = scene.member()
        length = 3 * limits.peer_messages_max * limits.peer_piece_bytes
        member.send(message(ASK, 1, 1, 0, columns([1], [length])))
        (request,) = requested([scene.node], 1)
        scene.node.answer(request.number, [memoryview(bytes(length))])
        scene.assert_serves()
        scene.counted(stalled=1)
    finally:
        scene.close()


def test_asking_before_the_others_are_known() -> None:
    """A node that has met nobody yet keeps who asks waiting, and then answers."""
    keys = [KeyPair.generate(), KeyPair.generate()]
    early, late = (ZeroMQPeer(node, "job", keys[node]) for node in (0, 1))
    members = {
        each.node: ZeromqMember(each.address, keys[each.node].public) for each in (early, late)
    }
    early.meet(members)
    fetching = Fetching([8])
    ticket = fetching.submit(early)
    for _ in range(100):
        assert early.step(1_000_000) == late.step(1_000_000) == ([], [])
    late.meet(members)
    fetching.assert_done(drive([early, late], [ticket])[ticket])
    early.close()
    late.close()


def test_fetch_that_is_never_sent_is_released() -> None:
    """A fetch whose time is over before the node lets us in leaves no reference to its buffers."""
    keys = [KeyPair.generate(), KeyPair.generate()]
    asking, silent = (ZeroMQPeer(node, "job", keys[node], timeout_s=0.2) for node in (0, 1))
    asking.meet({node: ZeromqMember(silent.address, keys[node].public) for node in (0, 1)})
    fetching = Fetching([8])
    ticket, buffer = fetching.submit(asking), weakref.ref(fetching.buffers[0])
    fetching.assert_failed(drive([asking], [ticket])[ticket], Reason.TIMEOUT)
    del fetching
    gc.collect()
    assert buffer() is None
    asking.close()
    silent.close()


def test_node_comes_back() -> None:
    """A node that is gone fails at once for a while, then is tried again, and found."""
    clock = JumpingClock(SystemClock().now_ns())
    keys = [KeyPair.generate(), KeyPair.generate()]
    asking = ZeroMQPeer(0, "job", keys[0], clock=clock)
    first = ZeroMQPeer(1, "job", keys[1])
    address, port = first.address, int(first.address.rsplit(":", 1)[1])
    members = {
        0: ZeromqMember(asking.address, keys[0].public),
        1: ZeromqMember(address, keys[1].public),
    }
    asking.meet(members)
    first.meet(members)
    fetching = Fetching([100])
    ticket = fetching.submit(asking)
    fetching.assert_done(drive([asking, first], [ticket])[ticket])
    first.close()

    ticket = fetching.submit(asking)
    assert drive([asking], [ticket])[ticket].reason is Reason.GONE
    second = ZeroMQPeer(1, "job", keys[1], port=port)
    second.meet(members)
    ticket = fetching.submit(asking)
    assert asking.step(0).completions[0].reason is Reason.GONE  # not tried again yet
    clock.wait_until_ns(clock.now_ns() + int(limits.peer_pause_s * 1e9))
    ticket = fetching.submit(asking)
    fetching.assert_done(drive([asking, second], [ticket])[ticket])
    assert asking.counters()["gone"] == 1
    asking.close()
    second.close()


class Tamperer:
    """The way to a node, on which one bit of what is sent changes where it is told to.

    It changes byte `at` of the next bytes that the system hands over in the direction `way`.
    """

    def __init__(self, address: str) -> None:
        host, port = address.removeprefix("tcp://").split(":")
        self._target = (host, int(port))
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._server.getsockname()[1]}"
        self.way, self.at, self.mask = "", 0, 1
        self.changed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # until it is closed
            while True:
                asking, _ = self._server.accept()
                answering = socket.create_connection(self._target)
                for way, ends in (("ask", (asking, answering)), ("answer", (answering, asking))):
                    threading.Thread(target=self._forward, args=(way, *ends), daemon=True).start()

    def _forward(self, way: str, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while received := bytearray(source.recv(1 << 20)):
                if way == self.way and self.at < len(received):
                    received[self.at] ^= self.mask
                    self.way, self.changed = "", True
                sink.sendall(received)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()


def fetch_over_tampered_way(way: str, at: int, mask: int, lengths: Sequence[int]) -> None:
    """A bit changes on the way of a fetch, after the handshake: the fetch ends by its deadline,
    failed or with the right bytes, and the next ones find the node again."""
    keys = [KeyPair.generate() for _ in range(2)]
    asking = ZeroMQPeer(0, "job", keys[0], timeout_s=2.0)
    answering = ZeroMQPeer(1, "job", keys[1], timeout_s=2.0)
    tamperer = Tamperer(answering.address)
    members = {
        0: ZeromqMember(asking.address, keys[0].public),
        1: ZeromqMember(tamperer.address, keys[1].public),
    }
    peers = [asking, answering]
    deadline = time.monotonic() + DEADLINE_S

    def fetch(lengths: Sequence[int]) -> PeerCompletion:
        fetching = Fetching(lengths)
        ticket = fetching.submit(asking)
        completion = drive(peers, [ticket], fetching.answer)[ticket]
        if completion.reason is None:
            fetching.assert_done(completion)
        else:
            fetching.assert_failed(completion, Reason.GONE, Reason.TIMEOUT, Reason.DAMAGED)
        return completion

    def fetch_until_right() -> None:
        while fetch([3000]).reason is not None:
            assert time.monotonic() < deadline, asking.counters()
            for peer in peers:
                peer.step(10_000_000)

    try:
        for peer in peers:
            peer.meet(members)
        fetch_until_right()
        tamperer.at, tamperer.mask, tamperer.way = at, mask, way
        completion = fetch(lengths)
        # The flags of a frame are not signed, and most do not matter.
        assert completion.reason is not None or not tamperer.changed or at == 0
        fetch_until_right()
    finally:
        tamperer.close()
        asking.close()
        answering.close()


@pytest.fixture
def short_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that is silent ends in a fraction of a second."""
    for name, seconds in (("heartbeat", 0.2), ("silent", 0.6), ("pause", 0.05)):
        monkeypatch.setattr(limits, f"peer_{name}_s", seconds)


@pytest.mark.usefixtures("short_silence")
@pytest.mark.parametrize(("way", "at"), [("ask", 1), ("ask", 40), ("answer", 1), ("answer", 40)])
def test_byte_that_changes_on_the_way(way: str, at: int) -> None:
    """A changed length or body of a message is noticed, whichever node sent it."""
    fetch_over_tampered_way(way, at, 0x10, [50_000, 70_000])


@pytest.mark.long
@pytest.mark.usefixtures("short_silence")
@given(
    st.sampled_from(["ask", "answer"]),
    st.integers(0, 20) | st.integers(0, 150) | st.integers(0, 60_000),
    st.sampled_from([1 << bit for bit in range(8)]),
    st.sampled_from([[10], [50_000, 70_000], [3 * limits.MIB]]),
)
def test_any_bit_that_changes_on_the_way(
    way: str, at: int, mask: int, lengths: Sequence[int]
) -> None:
    """Whatever bit of a fetch or its answer changes, no wrong byte is handed over."""
    fetch_over_tampered_way(way, at, mask, lengths)


NODE = """
import sys
from penstock.cache.zeromq import KeyPair, ZeromqMember, ZeroMQPeer
public, secret, other_address, other_public = (each.encode() for each in sys.argv[1:])
peer = ZeroMQPeer(1, "job", KeyPair(public, secret))
peer.meet({0: ZeromqMember(other_address.decode(), other_public)})
print(peer.address, flush=True)
block = bytes(range(256)) * 4096
while True:
    for request in peer.step(10**9).requests:
        length = int(request.lengths.sum())
        peer.answer(request.number, [block] * (length // len(block)))
"""


@contextmanager
def node_process() -> Iterator[tuple[ZeroMQPeer, subprocess.Popen[str]]]:
    """A node 0 here and a node 1 in a process of its own."""
    keys = [KeyPair.generate(), KeyPair.generate()]
    peer = ZeroMQPeer(0, "job", keys[0], timeout_s=DEADLINE_S)
    process = warm.Popen(
        [sys.executable, "-c", NODE, keys[1].public, keys[1].secret, peer.address, keys[0].public],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        assert process.stdout is not None
        peer.meet({1: ZeromqMember(process.stdout.readline().strip(), keys[1].public)})
        yield peer, process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        peer.close()


def begun(peer: ZeroMQPeer, size: int) -> tuple[int, np.ndarray]:
    """A fetch of so many bytes, the first of which have come. One that all came at once, while this
    process had to wait for a core, is followed by another."""
    buffer = np.zeros(size, np.uint8)
    keys, lengths, targets = np.zeros(1, np.uint64), np.array([size]), np.zeros(1, np.int64)
    deadline = time.monotonic() + DEADLINE_S
    while True:
        buffer[[1, -1]] = 0  # which say that the first bytes have come, and the last
        ticket = peer.submit(1, keys, lengths, targets, [buffer], targets)
        events = PeerEvents([], [])
        while not buffer[1] and not events.completions:
            assert time.monotonic() < deadline
            events = peer.step(1_000_000)
        if not events.completions:
            return ticket, buffer
        assert not len(events.completions[0].failures)


@pytest.mark.long
@pytest.mark.parametrize(
    "how", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.long)]
)
def test_node_ends_in_the_middle_of_an_answer(how: signal.Signals) -> None:
    """The fetch fails well before its time when the other process is killed, or stands still."""
    with node_process() as (peer, process):
        ticket, buffer = begun(peer, 256 * limits.MIB)
        process.send_signal(how)
        start = time.monotonic()
        completion: PeerCompletion = drive([peer], [ticket])[ticket]
        assert completion.reason is Reason.GONE
        assert completion.failures.tolist() == [0]
        assert time.monotonic() - start < DEADLINE_S
        assert not buffer[-1]
        left = buffer.copy()
        assert peer.step(0) == PeerEvents([], [])
        np.testing.assert_array_equal(buffer, left)


# -- words ---------------------------------------------------------------------------------------


def test_secret_keys_are_not_shown() -> None:
    """A key pair in a log does not give the secret away."""
    keys = KeyPair.generate()
    assert keys.secret.decode() not in repr(keys)
    assert keys.secret.decode() not in str(keys)


def test_wrong_members() -> None:
    """Keys that are none, or not each node's own, and a second meeting are refused."""
    keys = KeyPair.generate()
    peer = ZeroMQPeer(0, "job", keys)
    with pytest.raises(UsageError, match="public key of node 3"):
        peer.meet({3: ZeromqMember(peer.address, b"short")})
    with pytest.raises(UsageError, match="same public key"):
        peer.meet(
            {0: ZeromqMember(peer.address, keys.public), 1: ZeromqMember(peer.address, keys.public)}
        )
    peer.meet({0: ZeromqMember(peer.address, keys.public)})
    with pytest.raises(UsageError, match="has met"):
        peer.meet({0: ZeromqMember(peer.address, keys.public)})
    peer.close()


def test_host_that_is_not_here() -> None:
    """An address of another machine cannot be bound, and the message says so."""
    with pytest.raises(UsageError, match=r"192\.0\.2\.1.* cannot be bound"):
        ZeroMQPeer(0, "job", KeyPair.generate(), host="192.0.2.1")


def test_without_pyzmq() -> None:
    """The error says what to install."""
    code = "import sys; sys.modules['zmq'] = None; import penstock.cache.zeromq"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.returncode != 0
    assert "needs pyzmq: pip install pyzmq (or 'penstock[cluster]')" in done.stderr
