"""Peers over TCP by ZeroMQ, encrypted and authenticated by CURVE with keys made for one job.

Each node answers at one bound socket (ROUTER) and asks through one connection to each node that it
has asked (DEALER). Only members of the job, known by their public keys, get past the handshake.

Messages are as in `peer_protocol`. The bytes of an answer come in pieces of
`limits.peer_piece_bytes`, the first with it. Every received message is checked: a piece against the
bytes that the fetch still expects, and an answer against the node that was asked.

A connection that breaks is thrown away, with all fetches that were sent over it. The next fetch
makes a new one, so that a node or network that recovers is found again. For `limits.peer_pause_s`
no fetch tries.

A message that was changed on its way is never received. The asker notices a changed answer at once,
a changed request only by the silence that follows, because libzmq then stops to answer heartbeats
but keeps the connection. Frames have flags that nothing signs: a change of these may lose a message
without a sign, so that its fetch ends by its time.

Only this module imports zmq. Threads of libzmq encrypt, and use the sockets; one more thread, of
pyzmq, frees memory that was sent without copying. None of them runs code of ours.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .. import limits
from ..clock import Clock, SystemClock
from ..engine.protocol import Mask
from ..errors import UsageError, missing_library
from .peer import NONE, Fetch, Numbers, Part, PeerEvents, Reason
from .peer_protocol import (
    ANSWER,
    HEADER_BYTES,
    PIECE,
    REFUSAL,
    REQUEST_BYTES,
    Frame,
    MessagePeer,
    PeerProtocolError,
    pack_mask,
    split_pieces,
)

try:
    import zmq
    from zmq.utils import z85
except ImportError as error:
    raise missing_library("pyzmq", "cluster", "the exchange of samples between nodes") from error

Socket = zmq.Socket[bytes]

_ENVELOPE_BYTES = 64
"""Bytes that CURVE adds to a message, rounded up."""

_ZAP = "inproc://zeromq.zap.01"
_BROKEN = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
_LOST = _BROKEN | zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED


@dataclass(frozen=True)
class KeyPair:
    """Keys by which a node proves its identity, for one job; only the public half is handed out."""

    public: bytes
    secret: bytes = field(repr=False)

    @staticmethod
    def generate() -> KeyPair:
        """Make a new pair, by the random numbers of the operating system."""
        return KeyPair(*zmq.curve_keypair())


class ZeromqMember(NamedTuple):
    """A node of the job: its bound `address`, and its public key."""

    address: str
    public_key: bytes


@dataclass(eq=False)
class _Link:
    """A connection to a node that is asked."""

    node: int
    socket: Socket
    monitor: Socket
    up: bool = False


@dataclass(eq=False)
class _Outgoing:
    """An answer on its way: its messages that were not sent yet."""

    route: bytes
    messages: Iterator[list[Frame]]
    next: list[Frame] | None
    deadline_ns: int


class ZeroMQPeer(MessagePeer):
    """A node that exchanges samples with others over TCP.

    node:      its number; the others know it by that.
    job:       name that all nodes of a job have in common and no other job has. Name the data in
               it too, because all must mean the same by a key.
    keys:      its own pair.
    host:      the address of the interface to be reached at.
    port:      by default one that the system chooses; `address` has it.
    timeout_s: how long a fetch may take, and an answer to be sent.

    It is bound when it is made, and answers nobody before `meet` has named the other nodes.
    Handshakes, too, make progress only in `step`.

    Counters besides `MessagePeer`'s:
        strangers   handshakes with a key that is no member's
        handshakes  handshakes that failed otherwise: no CURVE, or a wrong key for this node; and
                    requests that were changed on their way: libzmq reports them so
        ended       connections of others that ended, for these reasons or any other. Bytes that
                    are no ZMTP, and messages so large that they are not received (`peer_keys_max`
                    keys), are counted only here
        stalled     answers that a node did not take in time
    """

    def __init__(
        self,
        node: int,
        job: str,
        keys: KeyPair,
        host: str = "127.0.0.1",
        port: int | None = None,
        timeout_s: float = limits.peer_timeout_s,
        clock: Clock | None = None,
    ) -> None:
        counters = ("strangers", "handshakes", "ended", "stalled")
        super().__init__(node, job, timeout_s, clock or SystemClock(), counters)
        self._keys = keys
        self._outgoing: list[_Outgoing] = []
        self._members: dict[int, ZeromqMember] = {}
        self._nodes: dict[bytes, int] = {}  # by public key, as a handshake has it
        self._links: dict[int, _Link] = {}
        self._gone: dict[int, tuple[int, Reason]] = {}  # until when, and why
        self._handlers: dict[object, Callable[[], None]] = {}
        self._poller = zmq.Poller()
        self._monitors = itertools.count()
        self._context = zmq.Context(io_threads=limits.peer_io_threads)
        self._context.set(zmq.MAX_SOCKETS, limits.peer_sockets_max)
        try:
            self._bind(host, port)
        except BaseException:
            self.close()
            raise

    def _bind(self, host: str, port: int | None) -> None:
        # Handshakes ask this socket who may enter, and wait while nobody reads it.
        self._zap = self._context.socket(zmq.REP)
        self._zap.bind(_ZAP)
        self._router = self._socket(zmq.ROUTER, REQUEST_BYTES)
        self._router.set(zmq.ROUTER_MANDATORY, 1)  # a full queue is told, not hidden
        self._router.set(zmq.CURVE_SERVER, 1)
        self._router.setsockopt_string(zmq.ZAP_DOMAIN, "penstock")
        self._router.set(zmq.ZAP_ENFORCE_DOMAIN, 1)
        try:
            self._router.bind(f"tcp://{host}:{'*' if port is None else port}")
        except zmq.ZMQError as error:
            what = f"{host}:{port or '*'} cannot be bound ({error})"
            raise UsageError(f"{what}: use this machine's address and a free port") from None
        self.address = self._router.get_string(zmq.LAST_ENDPOINT).rstrip("\0")
        monitor = self._monitor(self._router, _BROKEN | zmq.EVENT_DISCONNECTED)
        self._register(self._router, self._hear_requests)
        self._register(monitor, lambda: self._count(monitor))

    def meet(self, members: Mapping[int, ZeromqMember]) -> None:
        """Give the nodes that take part, once: all by number (this one may be among them)."""
        self._require_open()
        if self._nodes:
            raise UsageError(f"node {self.node} has met the others: make a new peer for a new job")
        for node, member in members.items():
            if len(member.public_key) != 40:
                raise UsageError(f"the public key of node {node} has not 40 characters (Z85)")
        nodes = {z85.decode(member.public_key): node for node, member in members.items()}
        if len(nodes) != len(members):
            raise UsageError("two nodes have the same public key: let each make its own")
        self._members = {node: member for node, member in members.items() if node != self.node}
        self._nodes = nodes
        self._register(self._zap, self._admit)

    # -- the protocol --------------------------------------------------------------------------

    def _knows(self, node: int) -> bool:
        return node in self._members

    def _send_fetch(self, fetch: Fetch) -> bool:
        """Ask over the connection to the node; make it if there is none."""
        link = self._links.get(fetch.node)
        if link is None:
            until_ns, reason = self._gone.get(fetch.node, (0, Reason.GONE))
            if self._clock.now_ns() < until_ns:
                self._end_fetch(fetch, reason)
                return False
            link = self._links[fetch.node] = self._connect(fetch.node)
        try:
            if link.up:
                link.socket.send(self._job.request(fetch), zmq.DONTWAIT)
            return link.up
        except zmq.Again:
            return False

    def step(self, timeout_ns: int, also: Sequence[int] = ()) -> PeerEvents:
        """Send and receive messages; wait for one if there is none."""
        self._require_open()
        wait_ns = self._wait_ns(timeout_ns)
        if self._outgoing:
            wait_ns = min(wait_ns, int(limits.peer_retry_s * 1e9))
        for descriptor in also:
            self._poller.register(descriptor, zmq.POLLIN)
        try:
            ready = self._poller.poll(math.ceil(wait_ns / 1e6))
        finally:
            for descriptor in also:
                self._poller.unregister(descriptor)
        for socket, _ in ready:
            handler = self._handlers.get(socket)  # none where another one has just closed it
            if handler is not None:
                handler()
        self._send()
        for fetch in self._find_overdue():
            self._end(fetch, Reason.TIMEOUT)
        return self._report()

    def answer(self, request: int, parts: Sequence[Part], refused: Numbers = NONE) -> None:
        """Queue the answer; send as much as the node's queue takes now, and the rest in `step`.

        Parts of `limits.peer_join_bytes` and more are not copied.
        """
        asked, views, mask = self._settle(request, parts, refused)
        assert isinstance(asked.way, bytes)
        messages = self._answer(asked.ticket, views, mask)
        deadline_ns = self._clock.now_ns() + self._timeout_ns
        self._outgoing.append(_Outgoing(asked.way, messages, next(messages), deadline_ns))
        self._send()

    def close(self) -> None:
        """Close all connections; answers that are on their way are lost."""
        if self._closed:
            return
        super().close()
        self._outgoing.clear()
        self._links.clear()
        self._handlers.clear()
        self._context.destroy(linger=0)

    # -- sockets -------------------------------------------------------------------------------

    def _socket(self, kind: int, message_bytes: int) -> Socket:
        socket = self._context.socket(kind)
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.MAXMSGSIZE, message_bytes + _ENVELOPE_BYTES)
        socket.set(zmq.SNDHWM, limits.peer_messages_max)
        socket.set(zmq.RCVHWM, limits.peer_messages_max)
        socket.set(zmq.HANDSHAKE_IVL, int(limits.peer_handshake_s * 1e3))
        socket.set(zmq.HEARTBEAT_IVL, int(limits.peer_heartbeat_s * 1e3))
        socket.set(zmq.HEARTBEAT_TIMEOUT, int(limits.peer_silent_s * 1e3))
        socket.set(zmq.CURVE_PUBLICKEY, self._keys.public)
        socket.set(zmq.CURVE_SECRETKEY, self._keys.secret)
        return socket

    def _monitor(self, socket: Socket, events: int) -> Socket:
        """Make a socket that receives the events of another one's connections."""
        address = f"inproc://monitor-{next(self._monitors)}"
        socket.monitor(address, events)
        monitor = self._context.socket(zmq.PAIR)
        monitor.connect(address)
        return monitor

    def _register(self, socket: Socket, handler: Callable[[], None]) -> None:
        self._poller.register(socket, zmq.POLLIN)
        self._handlers[socket] = handler

    def _connect(self, node: int) -> _Link:
        """Begin a connection to a node."""
        member = self._members[node]
        socket = self._socket(zmq.DEALER, HEADER_BYTES + limits.peer_piece_bytes)
        socket.set(zmq.CURVE_SERVERKEY, member.public_key)
        socket.set(zmq.RECONNECT_IVL, -1)  # that is done here, and told
        socket.set(zmq.CONNECT_TIMEOUT, int(limits.peer_connect_s * 1e3))
        monitor = self._monitor(socket, _LOST | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        link = _Link(node, socket, monitor)
        self._register(socket, lambda: self._hear_answers(link))
        self._register(monitor, lambda: self._watch(link))
        socket.connect(member.address)
        return link

    def _watch(self, link: _Link) -> None:
        for event in _receive_events(link.monitor):
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                link.up = True
                self._ask(link.node)
            else:
                self._hear_answers(link)  # what came before the end counts
                failed = event == zmq.EVENT_HANDSHAKE_FAILED_AUTH
                self._drop(link, Reason.REFUSED if failed else Reason.GONE)
                return

    def _drop(self, link: _Link, reason: Reason) -> None:
        """Throw a connection away, with all fetches that were sent over it."""
        for socket in (link.socket, link.monitor):
            self._poller.unregister(socket)
            del self._handlers[socket]
            socket.close(0)
        del self._links[link.node]
        self._gone[link.node] = self._clock.now_ns() + int(limits.peer_pause_s * 1e9), reason
        self._counters["gone"] += 1
        for fetch in self._fetches_of(link.node):
            self._end_fetch(fetch, reason)

    # -- who may enter -------------------------------------------------------------------------

    def _admit(self) -> None:
        """Answer the handshakes that ask whether a public key is a member's (ZAP, RFC 27)."""
        for frames in _receive_messages(self._zap):
            version, number = frames[0].bytes, frames[1].bytes
            node = self._nodes.get(frames[6].bytes) if len(frames) == 7 else None
            if node is None:
                self._counters["strangers"] += 1
                self._zap.send_multipart([version, number, b"400", b"no member", b"", b""])
            else:
                user = str(node).encode()
                self._zap.send_multipart([version, number, b"200", b"OK", user, b""])

    def _count(self, monitor: Socket) -> None:
        for event in _receive_events(monitor):
            self._counters["handshakes" if event & _BROKEN else "ended"] += 1

    # -- asking --------------------------------------------------------------------------------

    def _hear_answers(self, link: _Link) -> None:
        for frames in _receive_messages(link.socket):
            try:
                self._take_answer(link, frames)
            except PeerProtocolError as wrong:
                reason = self._judge(wrong)
                if (fetch := self._find_sent(link.node, wrong.ticket)) is not None:
                    self._end(fetch, reason)
        self._ask(link.node)

    def _take_answer(self, link: _Link, frames: list[zmq.Frame]) -> None:
        header = self._job.read(frames[0].buffer)
        ticket, fetch = header.ticket, self._find_asked(link.node, header)
        if fetch is None:
            return
        if header.kind == ANSWER and len(frames) >= 2:
            self._start_answer(fetch, header, frames[1].buffer)
            data = frames[2:]
        elif header.kind == PIECE and fetch.received >= 0:
            data = frames[1:]
        else:
            raise PeerProtocolError("malformed", ticket)
        size = sum(map(len, data))
        if header.start != fetch.received or size > fetch.expected - fetch.received:
            raise PeerProtocolError("malformed", ticket)
        for frame in data:
            fetch.take(frame.buffer)
        if fetch.is_complete:
            self._end(fetch)

    # -- answering -----------------------------------------------------------------------------

    def _hear_requests(self) -> None:
        for frames in _receive_messages(self._router):
            route = frames[0].bytes
            try:
                self._take_frames(route, frames[1:])
            except PeerProtocolError as wrong:
                self._counters[wrong.why] += 1
                if wrong.ticket is not None:
                    refusal: list[Frame] = [self._job.header(REFUSAL, ticket=wrong.ticket)]
                    deadline_ns = self._clock.now_ns()  # now or never
                    self._outgoing.append(_Outgoing(route, iter(()), refusal, deadline_ns))

    def _take_frames(self, route: bytes, frames: list[zmq.Frame]) -> None:
        if len(frames) != 1:
            raise PeerProtocolError("malformed")
        header = self._job.read(frames[0].buffer)
        node = int(str(frames[0].get("User-Id")))  # as `_admit` has named it
        self._take_request(node, frames[0].buffer, header, route)

    def _answer(self, ticket: int, views: list[memoryview], refused: Mask) -> Iterator[list[Frame]]:
        """Yield the messages of an answer; there is at least one."""
        pieces = split_pieces(views)
        piece = next(pieces, [])
        yield [self._job.header(ANSWER, len(refused), ticket), pack_mask(refused), *piece]
        start = sum(map(len, piece))
        for piece in pieces:
            yield [self._job.header(PIECE, 0, ticket, start), *piece]
            start += sum(map(len, piece))

    def _send(self) -> None:
        """Send of each answer as much as the queue to its node takes."""
        now_ns = self._clock.now_ns() if self._outgoing else 0
        self._outgoing = [
            outgoing for outgoing in self._outgoing if self._send_one(outgoing, now_ns)
        ]

    def _send_one(self, outgoing: _Outgoing, now_ns: int) -> bool:
        """Send messages of an answer; return True if some are left to send."""
        while outgoing.next is not None:
            try:
                frames = [outgoing.route, *outgoing.next]
                self._router.send_multipart(frames, zmq.DONTWAIT, copy=False)
            except zmq.Again:
                if now_ns < outgoing.deadline_ns:
                    return True
                self._counters["stalled"] += 1
                return False
            except zmq.ZMQError:
                self._counters["unreachable"] += 1
                return False
            outgoing.next = next(outgoing.messages, None)
        return False


def _receive_messages(socket: Socket) -> Iterator[list[zmq.Frame]]:
    """Yield the messages that have come, up to a number that leaves time for other sockets."""
    for _ in range(limits.peer_round_messages):
        try:
            yield socket.recv_multipart(zmq.DONTWAIT, copy=False)
        except zmq.Again:
            return


def _receive_events(monitor: Socket) -> Iterator[int]:
    for frames in _receive_messages(monitor):
        yield struct.unpack_from("=H", frames[0].buffer)[0]
