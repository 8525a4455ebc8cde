"""Messages of peers, the same over every transport; every received message is checked.

A message starts with a header (little-endian): kind, job, ticket of the fetch. A fetch is one
message, with keys and lengths behind the header. An answer says which keys are refused. The bytes
of the other keys follow it, in pieces.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from .. import limits
from ..clock import Clock
from ..engine.protocol import Mask
from .peer import Bytes, Fetch, Keys, Peer, Reason

VERSION = 1
_MAGIC = b"PNST"
_HEADER = struct.Struct("<4sBB2xI4xQQ16s")
"""Magic, version, kind, count of keys, ticket, start of the piece in the answer, job."""

HEADER_BYTES = _HEADER.size
REQUEST_BYTES = HEADER_BYTES + 16 * limits.peer_keys_max
"""Size of the longest request."""

ASK, ANSWER, PIECE, REFUSAL, LEAVE, LEFT = range(1, 7)

Frame = bytes | bytearray | memoryview

_counters = (
    *("malformed", "version", "job", "oversized", "busy", "refused"),
    *("late", "unreachable", "gone"),
)


class PeerHeader(NamedTuple):
    kind: int
    keys: int
    ticket: int
    start: int


class PeerProtocolError(Exception):
    """A message that is rejected; `why` is the name of its counter."""

    def __init__(self, why: str, ticket: int | None = None) -> None:
        self.why, self.ticket = why, ticket


class PeerJob:
    """Headers of the messages of one job: made for outgoing messages, and checked in incoming
    ones."""

    def __init__(self, name: str) -> None:
        self._digest = hashlib.blake2b(name.encode(), digest_size=16).digest()

    def header(self, kind: int, keys: int = 0, ticket: int = 0, start: int = 0) -> bytes:
        return _HEADER.pack(_MAGIC, VERSION, kind, keys, ticket, start, self._digest)

    def read(self, message: memoryview) -> PeerHeader:
        """Return the header of a message; raise PeerProtocolError unless it is one for this job."""
        if len(message) < HEADER_BYTES:
            raise PeerProtocolError("malformed")
        magic, version, kind, keys, ticket, start, job = _HEADER.unpack_from(message)
        if magic != _MAGIC:
            raise PeerProtocolError("malformed")
        if version != VERSION:
            raise PeerProtocolError("version", ticket)
        if job != self._digest:
            raise PeerProtocolError("job", ticket)
        return PeerHeader(kind, keys, ticket, start)

    def request(self, fetch: Fetch) -> bytes:
        """Return the message that asks for a fetch."""
        columns = fetch.keys.astype("<u8"), fetch.lengths.astype("<i8")
        header = self.header(ASK, len(fetch.keys), fetch.ticket)
        return b"".join([header, *(column.tobytes() for column in columns)])


class MessagePeer(Peer):
    """A peer that exchanges these messages, over whatever transport.

    Counters of every transport:
        malformed   messages that are no fetch, or no answer to a fetch of ours
        version     messages of another version of penstock
        job         messages of another job
        oversized   fetches that claim too many keys
        busy        fetches of a node that has too many unanswered
        refused     fetches of ours that another node would not take
        late        answers that came after their fetch had been reported
        unreachable answers to a node that is gone
        gone        nodes that have closed their peers, or to which the connection broke
    """

    def __init__(
        self, node: int, job: str, timeout_s: float, clock: Clock, counters: Sequence[str]
    ) -> None:
        super().__init__(node, timeout_s, clock, [*_counters, *counters])
        self._job = PeerJob(job)

    def _take_request(
        self, node: int, message: memoryview, header: PeerHeader, way: object, *, busy: bool = False
    ) -> None:
        """Take a node's request, unless the node is busy: it has too many unanswered."""
        keys, lengths = unpack_request(header, message)
        if busy or self._unanswered[node] >= limits.peer_unanswered_max:
            raise PeerProtocolError("busy", header.ticket)
        if not self._closed:
            self._add_request(node, keys, lengths, header.ticket, way)

    def _find_asked(self, node: int, header: PeerHeader) -> Fetch | None:
        """Return the fetch that a node answers; None if the node refuses, which ends the fetch, or
        if it was reported before."""
        fetch = self._fetches.get(header.ticket)
        if fetch is None and header.ticket < self._submitted:
            self._counters["late"] += header.kind == ANSWER and not self._closed
            return None
        if self._find_sent(node, header.ticket) is None or fetch is None:
            raise PeerProtocolError("malformed")  # nobody asked this node for that
        if header.kind == REFUSAL:
            self._counters["refused"] += 1
            self._end(fetch, Reason.REFUSED)
            return None
        return fetch

    def _find_sent(self, node: int, ticket: int | None) -> Fetch | None:
        """Return the fetch of a ticket if it was sent to this node, and has not ended."""
        fetch = None if ticket is None else self._fetches.get(ticket)
        return fetch if fetch is not None and fetch.is_sent and fetch.node == node else None

    def _start_answer(self, fetch: Fetch, header: PeerHeader, mask: memoryview) -> None:
        """Take the start of an answer, with the mask of refused keys."""
        if fetch.received >= 0 or header.keys != len(fetch.keys):
            raise PeerProtocolError("malformed", fetch.ticket)
        fetch.start(unpack_mask(mask, header))

    def _judge(self, wrong: PeerProtocolError) -> Reason:
        """Count a rejected message; return the reason for which its fetch fails."""
        self._counters[wrong.why] += 1
        return Reason.DAMAGED if wrong.why == "malformed" else Reason.REFUSED


def unpack_request(header: PeerHeader, message: memoryview) -> tuple[Keys, Bytes]:
    """Return the keys that a request asks for, and the lengths that its sender expects."""
    count, ticket = header.keys, header.ticket
    if header.kind != ASK or header.start != 0:
        raise PeerProtocolError("malformed", ticket)
    if count > limits.peer_keys_max:
        raise PeerProtocolError("oversized", ticket)
    if len(message) != HEADER_BYTES + 16 * count:
        raise PeerProtocolError("malformed", ticket)
    columns = np.frombuffer(message, np.uint8)[HEADER_BYTES:].copy()
    keys = columns.view("<u8")[:count].astype(np.uint64, copy=False)
    lengths = columns.view("<i8")[count:].astype(np.int64, copy=False)
    if ((lengths < 0) | (lengths > limits.peer_length_max)).any():
        raise PeerProtocolError("malformed", ticket)
    return keys, lengths


def pack_mask(refused: Mask) -> bytes:
    """Pack the mask of refused keys; empty bytes if none is refused."""
    return np.packbits(refused).tobytes() if refused.any() else b""


def unpack_mask(mask: memoryview, header: PeerHeader) -> Mask:
    """Unpack the mask of refused keys."""
    count = header.keys
    if len(mask) == 0:
        return np.zeros(count, np.bool_)
    if len(mask) != -(-count // 8):
        raise PeerProtocolError("malformed", header.ticket)
    bits = np.unpackbits(np.frombuffer(mask, np.uint8)).astype(np.bool_)
    if bits[count:].any():
        raise PeerProtocolError("malformed", header.ticket)
    return bits[:count]


def split_pieces(views: list[memoryview]) -> Iterator[list[Frame]]:
    """Yield the bytes of an answer in messages: short parts joined, long ones without a
    copy."""
    piece: list[Frame] = []
    room = limits.peer_piece_bytes
    for view in views:
        while len(view):
            frame, view = view[:room], view[room:]
            if len(frame) >= limits.peer_join_bytes:
                piece.append(frame)
            elif piece and isinstance(piece[-1], bytearray):
                piece[-1] += frame
            else:
                piece.append(bytearray(frame))
            room -= len(frame)
            if room == 0:
                yield piece
                piece, room = [], limits.peer_piece_bytes
    if piece:
        yield piece
