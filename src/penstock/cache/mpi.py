"""Peers over MPI, for ranks that mpiexec or srun started: over any network that MPI supports.

Requests and answers are as in `peer_protocol`, with tag 0. The bytes of an answer follow it with
a tag of their fetch, in messages of at most `limits.peer_piece_bytes`. Long parts are sent from
the owner's memory without a copy. A receive is never posted ahead: a buffer is given to MPI when
the message for it is there (a matched probe), so no buffer has to be taken back when the time is
over. If the targets of a message are contiguous it is received there, without a copy of ours.

MPI cannot wait for messages and file descriptors together. So `step` probes, and sleeps ever longer
while nothing happens (`limits.peer_nap_s`). Nor can MPI end a receive under way: a fetch whose
bytes are arriving when its time is over is reported when that message is there. If that takes as
long again, `step` raises, because nobody may use memory that MPI may still write.

A node that closes its peer tells all others, and waits until they know, so that no message to it is
left. MPI keeps other jobs out: the ranks have a communicator of their own. A rank that is killed
ends the job in most MPIs.

Only this module and `rendezvous` import mpi4py. Why messages and not windows: decision 16.
"""

from __future__ import annotations

import errno
import select
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from .. import limits
from ..clock import SystemClock
from ..engine.protocol import Buffer
from ..errors import StorageError, UsageError, missing_library
from .peer import NONE, Fetch, Numbers, Part, PeerEvents, Reason
from .peer_protocol import (
    ANSWER,
    ASK,
    HEADER_BYTES,
    LEAVE,
    LEFT,
    REFUSAL,
    REQUEST_BYTES,
    Frame,
    MessagePeer,
    PeerHeader,
    PeerProtocolError,
    pack_mask,
    split_pieces,
)

try:
    from mpi4py import MPI
except ImportError as error:
    raise missing_library("mpi4py", "mpi", "the exchange of samples over MPI") from error

_SAID = 0
"""Tag of requests and answers."""
_LOOKS = 3
_KIND = slice(5, 6)
"""Place of the kind in a header."""
_SPARE = 16
"""Buffers that are kept to be used again."""

_abandoned: list[object] = []
"""Memory that MPI was still reading or writing when its peer was closed: it must not be freed."""


def explain_unusable(ranks: int) -> str | None:
    """Explain why this process's MPI cannot carry peers, with a remedy; return None if it can."""
    if not MPI.Is_initialized() or MPI.Is_finalized():
        return "MPI has not started, or has ended: import mpi4py.MPI first"
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        return (
            "MPI was started without MPI_THREAD_MULTIPLE, and peers have threads: let mpi4py "
            "start it, with mpi4py.rc.thread_level as it is"
        )
    if MPI.COMM_WORLD.Get_size() != ranks:
        return f"MPI has {MPI.COMM_WORLD.Get_size()} ranks, the loader {ranks}: start as many"
    return None


def make_communicator(rank: int) -> MPI.Comm:
    """Make a communicator of all ranks in the order of `rank`, for one peer each.

    All ranks have to call this together.
    """
    ranks = MPI.COMM_WORLD.Split(0, rank)
    ranks.Set_errhandler(MPI.ERRORS_RETURN)
    return ranks


@dataclass(eq=False)
class _Arrival:
    """A message that MPI is receiving.

    fetch:  whose buffer receives it; None for a buffer of ours.
    """

    request: MPI.Request
    data: Buffer
    tag: int
    fetch: Fetch | None = None


@dataclass(eq=False)
class _Node:
    """State of the exchange with another node."""

    arrivals: deque[_Arrival] = field(default_factory=deque)  # in the order they were sent in
    begun: dict[int, Fetch] = field(default_factory=dict)  # by tag: the answer has started
    unwanted: Counter[int] = field(default_factory=Counter)  # by tag: bytes for nobody
    copied: Counter[int] = field(default_factory=Counter)  # by tag: arrivals not in their place yet
    unsent: int = 0  # bytes
    gone: bool = False


class MPIPeer(MessagePeer):
    """A node that exchanges samples with others by MPI.

    ranks:     made by `make_communicator`; nobody else may use it. A node's number is its rank
               there.
    job:       name that all nodes of a job have in common. Name the data in it too, because all
               must mean the same by a key.
    timeout_s: how long a fetch may take.

    Counters besides `MessagePeer`'s; `oversized` also counts messages longer than any may be:
        broken      messages that MPI could not send or receive
    """

    def __init__(
        self,
        ranks: MPI.Comm,
        job: str,
        timeout_s: float = limits.peer_timeout_s,
    ) -> None:
        super().__init__(ranks.Get_rank(), job, timeout_s, SystemClock(), ["broken"])
        self._ranks = ranks
        self._tags = int(ranks.Get_attr(MPI.TAG_UB) or 1 << 14)  # of fetches, from 1 on
        self._nodes = {node: _Node() for node in range(ranks.Get_size()) if node != self.node}
        self._active: set[int] = set()  # nodes from which something is arriving
        self._writing: Counter[int] = Counter()  # by ticket: messages on their way to its buffer
        self._verdicts: dict[int, Reason] = {}  # of fetches that MPI still writes for
        self._sending: list[tuple[MPI.Request, Frame, int]] = []
        self._spare: list[Buffer] = []
        self._status = MPI.Status()
        self._moved_ns = time.monotonic_ns()  # when something last happened

    # -- the protocol --------------------------------------------------------------------------

    def _knows(self, node: int) -> bool:
        return node in self._nodes

    def _send_fetch(self, fetch: Fetch) -> bool:
        if self._nodes[fetch.node].gone:
            self._end_fetch(fetch, Reason.GONE)
            return False
        self._send(fetch.node, _SAID, self._job.request(fetch))
        return True

    def step(self, timeout_ns: int, also: Sequence[int] = ()) -> PeerEvents:
        """Send and receive messages; probe again and again if there is none."""
        self._require_open()
        until_ns = time.monotonic_ns() + timeout_ns
        waiting = select.poll()
        for descriptor in also:
            waiting.register(descriptor, select.POLLIN)
        while True:
            self._exchange()
            self._expire()
            events = self._report()
            now_ns = time.monotonic_ns()
            if events.completions or events.requests or now_ns >= until_ns or waiting.poll(0):
                return events
            nap_ns = min((now_ns - self._moved_ns) // 8, int(limits.peer_nap_s * 1e9))
            nap_ns = min(nap_ns, self._wait_ns(until_ns - now_ns))
            if nap_ns >= 1_000_000 and waiting.poll(nap_ns // 1_000_000):
                return events
            if nap_ns < 1_000_000:
                time.sleep(0 if nap_ns < 10_000 else nap_ns * 1e-9)

    def answer(self, request: int, parts: Sequence[Part], refused: Numbers = NONE) -> None:
        """Send the answer. Parts of `limits.peer_join_bytes` and more are not copied by us."""
        asked, views, mask = self._settle(request, parts, refused)
        node = asked.request.node
        if self._nodes[node].gone:
            self._counters["unreachable"] += 1
            return
        size = sum(map(len, views))
        header = self._job.header(ANSWER, len(mask), asked.ticket, size)
        self._send(node, _SAID, header + pack_mask(mask))
        for piece in split_pieces(views):
            for frame in piece:
                self._send(node, self._tag(asked.ticket), frame)

    def close(self) -> None:
        """Tell the others, and wait for `limits.peer_leave_s` at most until they know."""
        if self._closed:
            return
        super().close()
        if MPI.Is_finalized():
            return
        for node, other in self._nodes.items():
            other.begun.clear()
            if not other.gone:
                self._send(node, _SAID, self._job.header(LEAVE))
        until = time.monotonic() + limits.peer_leave_s
        while time.monotonic() < until and not self._has_left():
            self._exchange()
            time.sleep(0)
        if not self._has_left():
            arriving = [other.arrivals for other in self._nodes.values()]
            _abandoned.append((self._sending, arriving))
        self._nodes.clear()
        self._sending, self._spare = [], []

    def _has_left(self) -> bool:
        """True if nothing is on its way, from here or to here."""
        return not (
            self._sending or self._active or not all(other.gone for other in self._nodes.values())
        )

    # -- messages ------------------------------------------------------------------------------

    def _send(self, node: int, tag: int, data: Frame) -> None:
        try:
            request = self._ranks.Isend([data, MPI.BYTE], node, tag)
        except MPI.Exception:
            self._counters["broken"] += 1
            return
        self._moved_ns = time.monotonic_ns()
        self._nodes[node].unsent += len(data)
        self._sending.append((request, data, node))

    def _exchange(self) -> None:
        """Free messages that were sent, and take those that have come."""
        if MPI.Is_finalized():
            raise UsageError("MPI was finalized under a loader: close the loader first")
        if self._sending:
            unfinished = []
            for sending in self._sending:
                if self._test(sending[0]) is False:
                    unfinished.append(sending)
                else:
                    self._nodes[sending[2]].unsent -= len(sending[1])
            self._sending = unfinished
        looked = 0  # in vain: a look finds what MPI had already seen, and makes it see more
        for _ in range(limits.peer_round_messages):
            message = self._ranks.Improbe(MPI.ANY_SOURCE, MPI.ANY_TAG, self._status)
            if message is None:
                looked += 1
                if looked == _LOOKS:
                    break
                continue
            looked = 0
            node, tag = self._status.Get_source(), self._status.Get_tag()
            self._receive(message, node, tag, self._status.Get_count(MPI.BYTE))
            self._arrive(node)
        for node in [*self._active]:
            self._arrive(node)

    def _test(self, request: MPI.Request) -> bool | None:
        """Return whether MPI is done with a message, or None after a failure."""
        try:
            done: bool = request.Test()
        except MPI.Exception:
            self._counters["broken"] += 1
            return None
        if done:
            self._moved_ns = time.monotonic_ns()
        return done

    def _tag(self, ticket: int) -> int:
        """Return the tag of the bytes of an answer."""
        return 1 + ticket % self._tags

    def _receive(self, message: MPI.Message, node: int, tag: int, count: int) -> None:
        """Begin to receive a message: at its target if that is known and contiguous."""
        other = self._nodes[node]
        fetch = other.begun.get(tag) if tag != _SAID else None
        data = None
        if fetch is not None and not other.copied[tag] and count <= fetch.expected - fetch.received:
            data = fetch.room(count) if count >= limits.peer_join_bytes else None
        if data is not None and fetch is not None:
            self._writing[fetch.ticket] += 1
        else:
            fetch = None
            other.copied[tag] += 1
            whole = count <= limits.peer_piece_bytes
            data = self._spare.pop()[:count] if whole and self._spare else _allocate_room(count)
        request = message.Irecv([data, MPI.BYTE])
        other.arrivals.append(_Arrival(request, data, tag, fetch))
        self._active.add(node)

    def _arrive(self, node: int) -> None:
        """Take the messages of a node that are there, in the order in which they were sent."""
        other = self._nodes[node]
        while other.arrivals:
            done = self._test(other.arrivals[0].request)
            if done is False:
                return
            arrival = other.arrivals.popleft()
            if arrival.fetch is not None:
                self._note_written(arrival.fetch, whole=done is True)
                continue
            other.copied[arrival.tag] -= 1
            try:
                if done is None:
                    raise PeerProtocolError("broken")
                if arrival.tag == _SAID:
                    self._hear(node, arrival.data.data)
                else:
                    self._take(node, arrival.tag, arrival.data)
            except PeerProtocolError as wrong:
                self._refuse(node, arrival, wrong)
            room = arrival.data.base  # as `_allocate_room` made it
            if room is not None and room.nbytes == limits.peer_piece_bytes:
                self._spare += [room] if len(self._spare) < _SPARE else []
        self._active.discard(node)

    def _hear(self, node: int, message: memoryview) -> None:
        """Take a request, an answer, or the news that a node leaves."""
        if len(message) > REQUEST_BYTES:
            raise PeerProtocolError("oversized")
        header = self._job.read(message)
        other = self._nodes[node]
        if header.kind == ASK:
            busy = other.unsent > 4 * limits.peer_inflight_bytes
            self._take_request(node, message, header, None, busy=busy)
        elif header.kind in (ANSWER, REFUSAL):
            self._hear_answer(node, header, message[HEADER_BYTES:])
        elif header.kind == LEAVE or (header.kind == LEFT and self._closed):
            other.gone = True
            if not self._closed:
                self._counters["gone"] += 1
                self._send(node, _SAID, self._job.header(LEFT))
            for fetch in self._fetches_of(node):
                self._end(fetch, Reason.GONE)
        else:
            raise PeerProtocolError("malformed")

    # -- asking --------------------------------------------------------------------------------

    def _hear_answer(self, node: int, header: PeerHeader, mask: memoryview) -> None:
        other, tag = self._nodes[node], self._tag(header.ticket)
        fetch = self._find_asked(node, header)
        if fetch is None:
            other.unwanted[tag] += header.start if header.kind == ANSWER else 0
            return
        if tag in other.begun:
            raise PeerProtocolError("malformed", header.ticket)
        self._start_answer(fetch, header, mask)
        if header.start != fetch.expected:
            raise PeerProtocolError("malformed", header.ticket)
        if fetch.is_complete:
            self._end(fetch)
        else:
            other.begun[tag] = fetch

    def _take(self, node: int, tag: int, data: Buffer) -> None:
        """Copy bytes of an answer to their targets."""
        other = self._nodes[node]
        fetch = other.begun.get(tag)
        if fetch is None:
            if not 0 < len(data) <= other.unwanted[tag]:
                del other.unwanted[tag]
                raise PeerProtocolError("malformed")
            other.unwanted[tag] -= len(data)
            if not other.unwanted[tag]:
                del other.unwanted[tag]
            return
        if not 0 < len(data) <= fetch.expected - fetch.received:
            raise PeerProtocolError("malformed", fetch.ticket)
        fetch.take(data)
        self._note_written(fetch)

    def _note_written(self, fetch: Fetch, whole: bool | None = None) -> None:
        """Record that bytes of an answer are in place; `whole` is False if MPI failed."""
        if whole is not None:
            self._writing[fetch.ticket] -= 1
            if not whole:
                self._verdicts.setdefault(fetch.ticket, Reason.GONE)
        if self._writing[fetch.ticket]:
            return
        del self._writing[fetch.ticket]
        reason = self._verdicts.pop(fetch.ticket, None)
        if reason is not None or fetch.is_complete:
            self._end(fetch, reason)

    def _end(self, fetch: Fetch, reason: Reason | None = None) -> None:
        """Report a fetch, at once or as soon as MPI no longer writes for it."""
        if fetch.ticket not in self._fetches:
            return
        other, tag = self._nodes[fetch.node], self._tag(fetch.ticket)
        if other.begun.pop(tag, None) is not None and not fetch.is_complete:
            other.unwanted[tag] += fetch.expected - fetch.received
        if reason is not None and self._writing[fetch.ticket]:
            self._verdicts.setdefault(fetch.ticket, reason)
            return
        self._end_fetch(fetch, reason)
        self._ask(fetch.node)

    def _expire(self) -> None:
        for fetch in self._find_overdue():
            if fetch.ticket not in self._verdicts:
                self._end(fetch, Reason.TIMEOUT)
            elif self._clock.now_ns() > fetch.deadline_ns + self._timeout_ns:
                raise StorageError(
                    errno.ETIMEDOUT,
                    f"rank {fetch.node} stopped while MPI was receiving from it: start the job "
                    'again, with Cache(peers="zeromq") if hosts often stop',
                )

    # -- answering -----------------------------------------------------------------------------

    def _refuse(self, node: int, arrival: _Arrival, wrong: PeerProtocolError) -> None:
        """Reject a message: refuse the request to its sender, or fail the fetch that it belongs
        to."""
        # `_test` has counted a broken message.
        reason = Reason.GONE if wrong.why == "broken" else self._judge(wrong)
        asked = arrival.tag == _SAID and arrival.data[_KIND].tobytes() == bytes([ASK])
        if asked and wrong.ticket is not None:
            self._send(node, _SAID, self._job.header(REFUSAL, ticket=wrong.ticket))
            return
        other = self._nodes[node]
        fetch = other.begun.get(arrival.tag)
        fetch = fetch or self._find_sent(node, wrong.ticket)
        if fetch is not None:
            self._end(fetch, reason)


def _allocate_room(count: int) -> Buffer:
    """Allocate memory of ours for a message."""
    return np.empty(max(count, limits.peer_piece_bytes), np.uint8)[:count]
