"""Peers exchange samples between nodes; which node is asked for which samples is decided elsewhere.

A *fetch* asks one node for the bytes of some keys, and brings them to their targets in a buffer.
The owner of the keys knows which field of which sample a key means. Both sides know each length
beforehand, from the index. The node that is asked sees a *request*, and answers it when it has the
bytes: with all of them back to back, or without those that it refuses.

The life of a fetch: submit -> a request there -> answer there -> bytes at their targets here ->
reported by step. It is reported once, in bounded time, whatever the other side does: a fetch from a
peer that is silent fails after `timeout_s`, and `penstock.plan.CacheSession` decides how its keys
come then. Between submit and that report the peer keeps its arrays alive. Afterwards the peer holds
no reference to them, and an answer that comes too late is dropped.

A peer has no thread that runs Python code. One thread calls it, and requests and answers make
progress while that thread is in `step`.

`Peer` keeps the books of every transport: what was asked, by whom, and until when. A transport
(`zeromq`, `mpi`) moves messages. Each passes `penstock.testing.PeerSuite` unchanged.
"""

from __future__ import annotations

import enum
import math
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .. import limits
from ..clock import Clock
from ..engine.native import gather
from ..engine.protocol import Buffer, Mask, check_buffers, describe_argument, refuse_first
from ..errors import UsageError

Keys = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.int64]
"""Lengths, or targets in a buffer, in bytes."""

Numbers = npt.NDArray[np.int64]
"""Numbers of keys in a fetch or request: 0 is its first."""

Part = bytes | memoryview | npt.NDArray[np.uint8]

NONE: Numbers = np.empty(0, np.int64)
NONE.flags.writeable = False


class Reason(enum.Enum):
    """Reason for which a fetch failed as a whole."""

    GONE = "the connection broke, or could not be made"
    TIMEOUT = "no whole answer came in time"
    REFUSED = "the other side does not take part in this job, or has too much to answer"
    DAMAGED = "what came is no answer to this fetch"


class PeerCompletion(NamedTuple):
    """The report on one fetch.

    ticket:    returned by submit.
    failures:  numbers of the keys that did not arrive, ascending; their destinations are undefined.
               All others arrived, every byte.
    reason:    None if an answer came: the failures are the keys that the owner refused. Otherwise
               all keys failed, for this reason.
    """

    ticket: int
    failures: Numbers
    reason: Reason | None


class PeerRequest(NamedTuple):
    """Keys that another node asks for.

    number:   names the request to `answer`.
    node:     the node that asks.
    keys:     uint64.
    lengths:  bytes that the other side expects of each key, int64, none negative. They are a claim:
              refuse the keys whose length is another one here.
    """

    number: int
    node: int
    keys: Keys
    lengths: Bytes


class PeerEvents(NamedTuple):
    """Fetches that ended, and requests that came."""

    completions: list[PeerCompletion]
    requests: list[PeerRequest]


class Fetch:
    """A fetch under way: the place of the next byte of its answer."""

    def __init__(
        self,
        ticket: int,
        node: int,
        columns: tuple[Keys, Bytes, Bytes, Numbers],
        buffers: Sequence[Buffer],
        deadline_ns: int,
    ) -> None:
        self.ticket, self.node, self.deadline_ns = ticket, node, deadline_ns
        self.keys, self.lengths, self.targets, self.numbers = columns
        self.size = int(self.lengths.sum())
        self.is_sent, self.expected = False, 0
        self.received = -1  # bytes, once an answer has started
        self.refused = NONE
        self._buffers = buffers
        # Of the keys to come, those that are neighbours in a buffer joined:
        self._target, self._length, self._in = NONE, NONE, NONE
        self._next = self._within = 0  # which of them is next, and how much of it is there
        self._ends, self._sums = NONE, NONE  # where others go to another buffer; bytes before each

    def start(self, refused: Mask) -> None:
        """Start an answer without the refused keys."""
        target, length, number = self.targets, self.lengths, self.numbers
        left_out = refused | (length == 0)
        if np.count_nonzero(left_out):
            self.refused = np.flatnonzero(refused)
            target, length, number = target[~left_out], length[~left_out], number[~left_out]
        self.expected = int(length.sum())
        if len(target) > 1:
            is_first = target[1:] != target[:-1] + length[:-1]
            is_first |= number[1:] != number[:-1]
            first = np.concatenate([[0], np.flatnonzero(is_first) + 1])
            target, length, number = target[first], np.add.reduceat(length, first), number[first]
        self._target, self._length, self._in = target, length, number
        self._ends = np.append(np.flatnonzero(number[1:] != number[:-1]) + 1, len(number))
        self._sums = np.append(0, np.cumsum(length))
        self.received = 0

    def take(self, data: memoryview | npt.NDArray[np.uint8]) -> None:
        """Copy the next bytes of the answer; not more than are expected."""
        source = np.frombuffer(data, np.uint8)
        at = 0
        while at < len(source):
            buffer = self._buffers[self._in[self._next]]
            whole = 0 if self._within else self._count_whole(len(source) - at)
            if whole > 1:  # many short ones: one call of the core
                keys = slice(self._next, self._next + whole)
                starts = self._sums[keys] - self._sums[self._next]
                gather(source[at:], starts, self._length[keys], self._target[keys], buffer)
                self._next += whole
                count = int(starts[-1] + self._length[keys][-1])
            else:
                target = int(self._target[self._next]) + self._within
                rest = int(self._length[self._next]) - self._within
                count = min(rest, len(source) - at)
                buffer[target : target + count] = source[at : at + count]
                self._next, self._within = (
                    (self._next + 1, 0) if count == rest else (self._next, self._within + count)
                )
            at += count
        self.received += at

    def _count_whole(self, count: int) -> int:
        """Return how many of the keys to come, of one buffer, so many bytes hold to their ends."""
        end = int(self._ends[np.searchsorted(self._ends, self._next, "right")])
        sums = self._sums[self._next : end + 1]
        return int(np.searchsorted(sums, sums[0] + count, "right")) - 1

    def room(self, count: int) -> Buffer | None:
        """Return the place of the next `count` bytes of the answer if it is contiguous, else None.

        The caller fills it; the bytes count as received.
        """
        if self._next == len(self._target) or count > int(self._length[self._next]) - self._within:
            return None
        target = int(self._target[self._next]) + self._within
        buffer: Buffer = self._buffers[self._in[self._next]]
        self._within += count
        if self._within == int(self._length[self._next]):
            self._next, self._within = self._next + 1, 0
        self.received += count
        return buffer[target : target + count]

    @property
    def is_complete(self) -> bool:
        return self.received == self.expected


class OpenRequest(NamedTuple):
    """A request that waits for its answer; `way` is the route of the answer."""

    request: PeerRequest
    ticket: int
    way: object


class Peer:
    """Sends and serves requests for samples between nodes; a transport defines `step`, `answer`,
    `close`, `_knows` and `_send_fetch`.

    timeout_s:  how long a node may be silent before a fetch from it fails.
    counters:   names of the transport's failures.
    """

    def __init__(self, node: int, timeout_s: float, clock: Clock, counters: Sequence[str]) -> None:
        if not 0 < timeout_s < math.inf:
            raise UsageError(f"timeout_s is {timeout_s}: give a number of seconds above 0")
        self.node = node
        self._clock, self._timeout_ns = clock, int(timeout_s * 1e9)
        self._counters = dict.fromkeys(counters, 0)
        self._closed = False
        # Fetches that were not reported: waiting to be sent, in flight (a bounded number and bytes
        # for each other node), and to be reported.
        self._submitted = 0
        self._fetches: dict[int, Fetch] = {}  # by ticket, in the order of their deadlines
        self._waiting: defaultdict[int, deque[Fetch]] = defaultdict(deque)  # by node, in order
        self._in_flight: Counter[int] = Counter()  # fetches, by node
        self._in_flight_bytes: Counter[int] = Counter()
        self._ended: list[PeerCompletion] = []
        # Requests of others.
        self._requested = 0
        self._requests: dict[int, OpenRequest] = {}  # by number: unanswered
        self._unanswered: Counter[int] = Counter()  # by node
        self._new_requests: list[PeerRequest] = []

    # -- for the node's thread ---------------------------------------------------------------------

    def submit(
        self,
        node: int,
        keys: Keys,
        lengths: Bytes,
        targets: Bytes,
        buffers: Sequence[Buffer],
        numbers: Numbers,
    ) -> int:
        """Ask a node for keys, and return the ticket of the fetch, a number that grows.

        keys (uint64), lengths, targets and numbers (int64) are one-dimensional and as long as each
        other, at most `limits.peer_keys_max`; key i goes to `lengths[i]` bytes from `targets[i]` on
        of the buffer `buffers[numbers[i]]`.
        Never waits. Raises UsageError if that cannot be done, or the node is none of the others;
        then no ticket is used up. Destinations of unreported keys must not overlap; nobody checks.
        """
        self._require_open()
        if not self._knows(node):
            raise UsageError(f"node {node} is none of the others of node {self.node}")
        _check_fetch(keys, lengths, targets, buffers, numbers)
        deadline_ns = self._clock.now_ns() + self._timeout_ns
        columns = (keys, lengths, targets, numbers)
        fetch = Fetch(self._submitted, node, columns, buffers, deadline_ns)
        self._fetches[fetch.ticket] = fetch
        self._waiting[node].append(fetch)
        self._submitted += 1
        self._ask(node)
        return fetch.ticket

    def step(self, timeout_ns: int, also: Sequence[int] = ()) -> PeerEvents:
        """Send and receive messages, and report events; wait while nothing happens.

        Returns after `timeout_ns` at the latest, and at once when one of the file descriptors
        `also` is readable. May return without events before that.
        """
        raise NotImplementedError

    def answer(self, request: int, parts: Sequence[Part], refused: Numbers = NONE) -> None:
        """Answer a request with `parts`.

        The parts, one after the other, are the bytes of the request's keys in their order, without
        the keys whose numbers are `refused` (int64, ascending, each once). The parts need not have
        the keys' boundaries. Nobody may change their memory afterwards: it may be read until the
        peer is closed.

        Never waits. Raises UsageError, and leaves the request open, if the bytes are not as many as
        those keys have. Each request is answered once; an answer that nobody waits for any more is
        dropped.
        """
        raise NotImplementedError

    def counters(self) -> dict[str, int]:
        """Return how often each failure occurred, by name; each transport's docstring lists its
        names."""
        return dict(self._counters)

    def close(self) -> None:
        """Forget all fetches and requests, and free everything. May be called again.

        To the others this node is gone. Fetches that were not reported by then never are.
        """
        self._closed = True
        self._fetches.clear()
        self._waiting.clear()
        self._ended.clear()
        self._requests.clear()
        self._new_requests.clear()

    # -- for transports: asking --------------------------------------------------------------------

    def _knows(self, node: int) -> bool:
        raise NotImplementedError

    def _send_fetch(self, fetch: Fetch) -> bool:
        """Send a fetch; return False if it has to wait, or has ended."""
        raise NotImplementedError

    def _ask(self, node: int) -> None:
        """Send the waiting fetches to a node while there is room in flight."""
        waiting = self._waiting[node]
        while waiting:
            fetch = waiting[0]
            is_full = (
                self._in_flight[node] >= limits.peer_inflight_fetches
                or self._in_flight_bytes[node] + fetch.size > limits.peer_inflight_bytes
            )
            if (self._in_flight[node] and is_full) or not self._send_fetch(fetch):
                return
            waiting.popleft()
            fetch.is_sent = True
            self._in_flight[node] += 1
            self._in_flight_bytes[node] += fetch.size

    def _fetches_of(self, node: int) -> list[Fetch]:
        """Return the fetches from a node."""
        return [fetch for fetch in self._fetches.values() if fetch.node == node]

    def _end_fetch(self, fetch: Fetch, reason: Reason | None = None) -> None:
        """End a fetch that was answered, or failed; the next report has it."""
        del self._fetches[fetch.ticket]
        if fetch.is_sent:
            self._in_flight[fetch.node] -= 1
            self._in_flight_bytes[fetch.node] -= fetch.size
        else:
            self._waiting[fetch.node].remove(fetch)  # else its buffers would stay alive
        failures = fetch.refused if reason is None else np.arange(len(fetch.keys))
        self._ended.append(PeerCompletion(fetch.ticket, failures, reason))

    def _end(self, fetch: Fetch, reason: Reason | None = None) -> None:
        """End a fetch, and send the next ones to its node."""
        self._end_fetch(fetch, reason)
        self._ask(fetch.node)

    def _find_overdue(self) -> list[Fetch]:
        """Find the fetches from nodes that have been silent for too long."""
        now_ns = self._clock.now_ns() if self._fetches else 0
        overdue = []
        for fetch in self._fetches.values():
            if fetch.deadline_ns > now_ns:
                break
            overdue.append(fetch)
        return overdue

    def _wait_ns(self, timeout_ns: int) -> int:
        """Return the longest time to wait: to the next deadline, or 0 if a report is due."""
        if self._ended:
            return 0
        for fetch in self._fetches.values():
            timeout_ns = min(timeout_ns, fetch.deadline_ns - self._clock.now_ns())
            break
        return max(timeout_ns, 0)

    # -- for transports: answering -----------------------------------------------------------------

    def _add_request(self, node: int, keys: Keys, lengths: Bytes, ticket: int, way: object) -> None:
        """Add a request that came."""
        request = PeerRequest(self._requested, node, keys, lengths)
        self._requests[request.number] = OpenRequest(request, ticket, way)
        self._new_requests.append(request)
        self._unanswered[node] += 1
        self._requested += 1

    def _settle(
        self, number: int, parts: Sequence[Part], refused: Numbers
    ) -> tuple[OpenRequest, list[memoryview], Mask]:
        """Take the request that is answered now; return it, its parts as bytes, and its refused
        keys.

        Raises UsageError, and changes nothing, if that is no answer to it.
        """
        self._require_open()
        asked = self._requests.get(number)
        if asked is None:
            raise UsageError(f"there is no open request {number}: answer each request once")
        lengths = asked.request.lengths
        mask = np.zeros(len(lengths), np.bool_)
        refused = np.asarray(refused)
        if refused.ndim != 1 or (len(refused) and refused.dtype != np.int64):
            raise UsageError(f"refused is {describe_argument(refused)}: use one dimension of int64")
        wrong = (refused < 0) | (refused >= len(lengths)) | (np.diff(refused, prepend=-1) <= 0)
        refuse_first(
            wrong,
            lambda i: (
                f"refused[{i}] is {refused[i]}: give ascending numbers below {len(lengths)}, the"
                f" keys of request {number}"
            ),
        )
        mask[refused] = True
        views = [_view_part(part, number) for part in parts]
        total, expected = sum(map(len, views)), int(lengths[~mask].sum())
        if total != expected:
            what = f"the answer to request {number} has {total} bytes, its keys have {expected}"
            raise UsageError(f"{what}: give the bytes of each key that is not refused")
        del self._requests[number]
        self._unanswered[asked.request.node] -= 1
        return asked, views, mask

    def _report(self) -> PeerEvents:
        """Return the fetches that ended and the requests that came since the last report."""
        events = PeerEvents(self._ended, self._new_requests)
        self._ended, self._new_requests = [], []
        return events

    def _require_open(self) -> None:
        if self._closed:
            raise UsageError("the peer is closed: make a new one")


def _check_fetch(
    keys: Keys, lengths: Bytes, targets: Bytes, buffers: Sequence[Buffer], numbers: Numbers
) -> None:
    """Raise UsageError unless a peer may be asked for this; the message names the first culprit."""
    check_buffers(buffers)
    columns = {"keys": keys, "lengths": lengths, "targets": targets, "numbers": numbers}
    for name, column in columns.items():
        dtype = np.dtype(np.uint64 if name == "keys" else np.int64)
        if not isinstance(column, np.ndarray) or column.ndim != 1 or column.dtype != dtype:
            raise UsageError(f"{name} is {describe_argument(column)}: use one dimension of {dtype}")
        if len(column) != len(keys):
            raise UsageError(f"{name} has {len(column)} values where keys has {len(keys)}")
    if len(keys) > limits.peer_keys_max:
        most = limits.peer_keys_max
        raise UsageError(f"a fetch of {len(keys)} keys is more than peer_keys_max {most}: split it")
    refuse_first(lengths < 0, lambda i: f"key {i} has length {lengths[i]}: give 0 or more")
    refuse_first(
        (numbers < 0) | (numbers >= len(buffers)),
        lambda i: f"key {i} goes to buffer {numbers[i]} of {len(buffers)}: count from 0",
    )
    size = np.array([len(buffer) for buffer in buffers], np.int64)[numbers]
    refuse_first(
        (targets < 0) | (targets > size - lengths),
        lambda i: (
            f"key {i} goes to {targets[i]}..{int(targets[i]) + int(lengths[i])} of a buffer of"
            f" {size[i]} bytes"
        ),
    )


def _view_part(part: Part, number: int) -> memoryview:
    view = part.data if isinstance(part, np.ndarray) else memoryview(part)
    try:
        return view.cast("B")
    except TypeError:
        if view.nbytes == 0:  # nothing with a zero in its shape can be cast
            return memoryview(b"")
        what = f"a part of the answer to request {number} is {describe_argument(part)}"
        raise UsageError(f"{what}: use contiguous bytes") from None
