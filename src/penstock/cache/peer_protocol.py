"""Messages of peers, the same over every transport; every received message is checked.

A message begins with a header (little-endian): kind, job, ticket of the fetch. A fetch is one
message, with keys and lengths behind the header. An answer says which keys are refused. The bytes
of the other keys follow it, in pieces.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from .. import limits
from ..engine import Mask
from .peer import Bytes, Fetch, Keys

VERSION = 1
_MAGIC = b"PNST"
_HEADER = struct.Struct("<4sBB2xI4xQQ16s")
"""Magic, version, kind, count of keys, ticket, start of the piece in the answer, job."""

HEADER_BYTES = _HEADER.size
REQUEST_BYTES = HEADER_BYTES + 16 * limits.peer_keys_max
"""Size of the longest request."""

ASK, ANSWER, PIECE, REFUSAL, LEAVE, LEFT = range(1, 7)

Frame = bytes | memoryview


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
    """Yield the bytes of an answer in messages: short parts joined, long ones as they lie in
    memory."""
    piece: list[Frame] = []
    short: list[memoryview] = []
    room = limits.peer_piece_bytes
    for view in views:
        if len(view) < min(room, limits.peer_join_bytes):
            short.append(view)
            room -= len(view)
            continue
        while len(view):
            part, view = view[:room], view[room:]
            if len(part) >= limits.peer_join_bytes:
                piece += [b"".join(short)] if short else []
                short = []
                piece.append(part)
            else:
                short.append(part)
            room -= len(part)
            if room == 0:
                yield piece + ([b"".join(short)] if short else [])
                piece, short, room = [], [], limits.peer_piece_bytes
    if piece or short:
        yield piece + ([b"".join(short)] if short else [])
