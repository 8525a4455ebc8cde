"""What a checkpoint consists of, as its files say it: pieces of each shard, shards of the whole.

Pure: bytes in, values out. What was altered or cut at any byte is a FormatError.

Both documents are JSON, sealed: a line with what it is, its length and its CRC-32C stands before
it. A shard is a file of pieces, one after the other, each with zeros up to a multiple of 64 that
its CRC-32C covers, then the sealed manifest, then where that begins. So no byte is without a check.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ..engine import crc32c
from ..errors import FormatError

ALIGNMENT = 64
"""Where pieces begin: a cache line, and any element of any dtype."""

_VERSION = 1
_TRAILER = struct.Struct("<8sQ")  # magic, where the manifest begins
_MAGIC = b"PENSHARD"
TRAILER_BYTES = _TRAILER.size


class Piece(NamedTuple):
    """A part of a tensor, or of a block of bytes, that lies in one file as one.

    name:     of the tensor or block.
    dtype:    of its elements, as who wrote it calls it.
    shape:    of this part.
    offsets:  where it begins in the whole, along each dimension.
    file:     the shard, relative to the checkpoint.
    offset, length:  where its bytes lie in the shard.
    crc32c:   of these bytes and the zeros after them, up to a multiple of ALIGNMENT.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    file: str
    offset: int
    length: int
    crc32c: int

    @property
    def padded(self) -> int:
        """Bytes that it takes in the file."""
        return padded(self.length)


class Shard(NamedTuple):
    """A file of the checkpoint, as the index knows it. crc32c: of its manifest, sealed."""

    file: str
    bytes: int
    crc32c: int


class CheckpointIndex(NamedTuple):
    """What a checkpoint is. With this file, and not before, there is one.

    attempt:  the try that made it; ranks: that wrote it.
    kind:     what `content` describes: "state" is of `penstock.checkpoint.pytree`.
    """

    step: int
    attempt: str
    ranks: int
    kind: str
    shards: tuple[Shard, ...]
    content: Any


def padded(length: int) -> int:
    """The next multiple of ALIGNMENT."""
    return -(-length // ALIGNMENT) * ALIGNMENT


# -- sealed documents ------------------------------------------------------------------------------


def seal(what: str, document: Any) -> bytes:
    """A document that says itself whether it is whole; equal for equal documents."""
    body = json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
    return _line(what, body) + body


def unsealed(what: str, data: bytes, where: str) -> Any:
    """The document; FormatError where any byte is another or missing."""
    head, _, body = data.partition(b"\n")
    if head + b"\n" != _line(what, body):
        raise damaged(where, f"its {what} does not have the checksum that stands before it")
    return json.loads(body)


def _line(what: str, body: bytes) -> bytes:
    return f"penstock {what} {_VERSION} {len(body)} {crc32c(body):08x}\n".encode()


def damaged(where: str, how: str) -> FormatError:
    """What is said of each kind of damage."""
    return FormatError(
        f"{where} is damaged: {how}: it was cut or altered after it was written; load another"
        " checkpoint, and check the storage"
    )


# -- shards ----------------------------------------------------------------------------------------


def ending(pieces: Iterable[Piece], begin: int) -> tuple[bytes, int]:
    """What follows the pieces in their file, from byte `begin` on; and the manifest's checksum."""
    rows = [
        [p.name, p.dtype, list(p.shape), list(p.offsets), p.offset, p.length, p.crc32c]
        for p in pieces
    ]
    manifest = seal("shard", rows)
    return manifest + _TRAILER.pack(_MAGIC, begin), crc32c(manifest)


def manifest_place(trailer: bytes, file_bytes: int, where: str) -> tuple[int, int]:
    """Where the manifest of a shard lies: offset and length. trailer: its last TRAILER_BYTES."""
    if len(trailer) == TRAILER_BYTES:
        magic, begin = _TRAILER.unpack(trailer)
        if magic == _MAGIC and begin <= file_bytes - TRAILER_BYTES:
            return begin, file_bytes - TRAILER_BYTES - begin
    raise damaged(where, f"the last of its {file_bytes:,} bytes are not those of a shard")


def pieces_of(manifest: bytes, file: str, begin: int, where: str) -> tuple[Piece, ...]:
    """The pieces of a shard whose manifest begins at `begin`; they fill the file before it."""
    pieces, at = [], 0
    for name, dtype, shape, offsets, offset, length, crc in unsealed("shard", manifest, where):
        piece = Piece(name, dtype, tuple(shape), tuple(offsets), file, offset, length, crc)
        if offset != at:
            raise damaged(where, f"piece {name!r} is said to be at {offset:,}, not at {at:,}")
        at += piece.padded
        pieces.append(piece)
    if at != begin:
        raise damaged(where, f"its pieces take {at:,} bytes and its manifest is at {begin:,}")
    return tuple(pieces)


# -- the index -------------------------------------------------------------------------------------


def index_bytes(index: CheckpointIndex) -> bytes:
    """The file of an index."""
    document = index._asdict() | {"shards": [list(shard) for shard in index.shards]}
    return seal("checkpoint", document)


def index_of(data: bytes, where: str) -> CheckpointIndex:
    """An index from its file; FormatError where it is damaged."""
    document = unsealed("checkpoint", data, where)
    if not isinstance(document, Mapping) or set(document) != set(CheckpointIndex._fields):
        raise FormatError(f"{where} is an index of another penstock: load it with that one")
    shards = tuple(Shard(*each) for each in document["shards"])
    return CheckpointIndex(**{**document, "shards": shards})


def check_covered(sizes: Mapping[str, int], pieces: Sequence[Piece], where: str) -> None:
    """FormatError unless each byte of each block is in exactly one piece. sizes: by block."""
    at = dict.fromkeys(sizes, 0)
    for piece in sorted(pieces, key=lambda piece: (piece.name, piece.offsets)):
        if piece.offsets != (at.get(piece.name),):
            raise FormatError(f"{where}: {piece.name!r} is there twice, or a piece of it is not")
        at[piece.name] += piece.length
    for name, size in sizes.items():
        if at[name] != size:
            raise FormatError(f"{where}: {at[name]:,} of the {size:,} bytes of {name!r} are there")
