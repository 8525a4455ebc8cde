"""Values that describe a checkpoint, and their file format: pieces of a shard, shards of a
checkpoint.

Pure: bytes in, values out. FormatError if any byte was altered or cut.

Both documents, manifest and index, are JSON with a seal: the line before the JSON has its kind,
length and CRC-32C. A shard is a file of pieces one after the other, each with zeros up to a
multiple of 64 that its CRC-32C covers, then the sealed manifest, then the offset at which the
manifest begins. So a check covers every byte.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..engine.native import crc32c
from ..errors import FormatError

Memory = npt.NDArray[np.uint8]
"""Bytes, in one dimension."""

ALIGNMENT = 64
"""Alignment of pieces in bytes: a cache line, and enough for any element of any dtype."""

STATE = "state"
"""The kind of an index whose content is a tree."""
STATE_BLOCK, OWN_BLOCK, OWN_TREE = "uint8", "per-rank", "per-rank tree"
"""Kinds of pieces, in place of a dtype: a block of the state that all ranks hold; a block of the
rank's own state, and the description of that."""

_VERSION = 1
_HEAD = "penstock {} {} {} {:08x}\n"
"""Line before a document: its kind, the version, and length and checksum of the JSON."""
SESSION_DIGITS = 8
_TRAILER = struct.Struct("<8sQ")  # magic, where the manifest begins
_MAGIC = b"PENSHARD"
TRAILER_BYTES = _TRAILER.size


class Piece(NamedTuple):
    """A part of a tensor or of a block of bytes, stored in one file without gaps.

    name:            of the tensor or block.
    dtype:           of its elements, in the writer's terms.
    shape:           of this part.
    offsets:         of its start in the whole, along each dimension.
    file:            the shard, relative to the checkpoint.
    offset, length:  of its bytes in the shard.
    crc32c:          of these bytes and the zeros after them, up to a multiple of ALIGNMENT.
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
    def padded_bytes(self) -> int:
        """Bytes that the piece takes in the file, with its zeros."""
        return pad_length(self.length)


class ShardEntry(NamedTuple):
    """A file of the checkpoint, as the index names it. crc32c: of its sealed manifest."""

    file: str
    bytes: int
    crc32c: int


class Attempt(NamedTuple):
    """The name of a save in storage: the session of its job, and the number of the save in the
    session. Numbers have gaps, because a save that failed has one, too."""

    session: str
    number: int

    @property
    def name(self) -> str:
        return f"{self.session}{self.number:x}"

    @classmethod
    def parse(cls, name: str) -> Attempt:
        """Parse a name."""
        return cls(name[:SESSION_DIGITS], int(name[SESSION_DIGITS:] or "0", 16))


class CheckpointIndex(NamedTuple):
    """The index of a checkpoint. A checkpoint exists if and only if this file does.

    attempt:  the save that made it; see `Attempt`.
    ranks:    the number of ranks that wrote it.
    kind:     the format of `content`; `penstock.checkpoint.pytree` makes "state".
    """

    step: int
    attempt: str
    ranks: int
    kind: str
    shards: tuple[ShardEntry, ...]
    content: Any

    @property
    def encoded(self) -> bytes:
        """The bytes of its file."""
        document = self._asdict() | {"shards": [list(shard) for shard in self.shards]}
        return seal("checkpoint", document)


def pad_length(length: int) -> int:
    """Round a length up to a multiple of ALIGNMENT."""
    return -(-length // ALIGNMENT) * ALIGNMENT


# -- sealed documents ------------------------------------------------------------------------------


def seal(kind: str, document: Any) -> bytes:
    """Encode a document with a seal that shows whether it is whole; equal documents give equal
    bytes."""
    body = json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
    return _HEAD.format(kind, _VERSION, len(body), crc32c(body)).encode() + body


def unseal(kind: str, data: bytes, where: str) -> Any:
    """Decode a sealed document; FormatError if any byte was altered or is missing."""
    head, _, body = data.partition(b"\n")
    if head + b"\n" != _HEAD.format(kind, _VERSION, len(body), crc32c(body)).encode():
        raise build_damage_error(where, f"its {kind} does not match the checksum before it")
    return parse_json(body, where)


def parse_json(body: bytes, where: str) -> Any:
    """Parse the JSON of a document; FormatError if it is none."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise _build_content_error(where, f"it is not JSON ({error!s:.100})") from None


def build_damage_error(where: str, how: str) -> FormatError:
    """Build the error for a damaged file."""
    return FormatError(f"{where} is damaged: {how}: load another checkpoint, and check the storage")


# -- schema ----------------------------------------------------------------------------------------

_SHARD_NAME = re.compile(r"rank-\d+\.shard")
_ATTEMPT_NAME = re.compile(r"[0-9a-f]+")
_BYTES_MAX = 1 << 62

_Test = Callable[[Any], bool]


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _BYTES_MAX


def _is_crc(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 32


def is_counts(value: Any) -> bool:
    """Return True if a value of a document is a list of whole numbers from 0 on."""
    return type(value) is list and all(map(_is_count, value))


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_name(pattern: re.Pattern[str]) -> _Test:
    return lambda value: type(value) is str and bool(pattern.fullmatch(value))


_PIECE: dict[str, _Test] = {
    "name": _is_text,
    "dtype": _is_text,
    "shape": is_counts,
    "offsets": lambda value: is_counts(value) and bool(value),
    "offset": _is_count,
    "length": _is_count,
    "crc32c": _is_crc,
}
_SHARD: dict[str, _Test] = {"file": _is_name(_SHARD_NAME), "bytes": _is_count, "crc32c": _is_crc}
_INDEX: dict[str, _Test] = {
    "step": _is_count,
    "attempt": _is_name(_ATTEMPT_NAME),
    "ranks": lambda value: _is_count(value) and value > 0,
    "kind": _is_text,
    "shards": lambda value: type(value) is list,
    "content": lambda value: type(value) is dict,
}


def _parse_row(tests: Mapping[str, _Test], row: Any, where: str) -> dict[str, Any]:
    """Name the values of a list; FormatError if they are not values that `tests` accept."""
    if type(row) is not list or len(row) != len(tests):
        raise _build_content_error(where, f"{row!r:.80} is not a list of {', '.join(tests)}")
    values = dict(zip(tests, row, strict=True))
    for name, is_right in tests.items():
        if not is_right(values[name]):
            raise _build_content_error(where, f"{name!r} is {values[name]!r:.80}")
    return values


def get_block_sizes(content: Any, where: str) -> dict[str, int]:
    """Return the bytes of each block, by name, from the description of a state."""
    sizes = content.get("blocks") if isinstance(content, dict) else None
    if not isinstance(sizes, dict) or not all(map(_is_count, sizes.values())):
        raise _build_content_error(where, f"'blocks' are {sizes!r:.80}, not bytes by name")
    return sizes


def _build_content_error(where: str, how: str) -> FormatError:
    """Build the error for a file that has the checksum that it should have, and makes no sense."""
    return FormatError(f"{where} is of another version of penstock ({how}): load it with that")


# -- shards ----------------------------------------------------------------------------------------


def encode_manifest(pieces: Iterable[Piece], begin: int) -> tuple[bytes, int]:
    """Encode the bytes that follow the pieces in their file from byte `begin` on. Returns them and
    the manifest's checksum."""
    rows = [
        [p.name, p.dtype, list(p.shape), list(p.offsets), p.offset, p.length, p.crc32c]
        for p in pieces
    ]
    manifest = seal("shard", rows)
    return manifest + _TRAILER.pack(_MAGIC, begin), crc32c(manifest)


def locate_manifest(trailer: bytes, file_bytes: int, where: str) -> tuple[int, int]:
    """Return offset and length of the manifest of a shard. trailer: the last TRAILER_BYTES of the
    shard."""
    if len(trailer) == TRAILER_BYTES:
        magic, begin = _TRAILER.unpack(trailer)
        if magic == _MAGIC and begin <= file_bytes - TRAILER_BYTES:
            return begin, file_bytes - TRAILER_BYTES - begin
    raise build_damage_error(where, f"its {file_bytes:,} bytes do not end as those of a shard do")


def decode_pieces(manifest: bytes, file: str, begin: int, where: str) -> tuple[Piece, ...]:
    """Decode the pieces of a shard whose manifest begins at `begin`; they fill the file before
    it."""
    pieces, at = [], 0
    rows = unseal("shard", manifest, where)
    if type(rows) is not list:
        raise _build_content_error(where, f"its manifest is {rows!r:.80}, not a list")
    for row in rows:
        fields = _parse_row(_PIECE, row, where)
        shape, offsets = tuple(fields.pop("shape")), tuple(fields.pop("offsets"))
        piece = Piece(file=file, shape=shape, offsets=offsets, **fields)
        if piece.offset != at:
            how = f"its manifest places {piece.name!r} at {piece.offset:,}, not at {at:,}"
            raise build_damage_error(where, how)
        at += piece.padded_bytes
        pieces.append(piece)
    if at != begin:
        how = f"its pieces take {at:,} bytes, but its manifest is at {begin:,}"
        raise build_damage_error(where, how)
    return tuple(pieces)


# -- the index -------------------------------------------------------------------------------------


def decode_index(data: bytes, where: str) -> CheckpointIndex:
    """Decode an index from the bytes of its file; FormatError if it is damaged, or names files that
    belong to another checkpoint."""
    document = unseal("checkpoint", data, where)
    if not isinstance(document, Mapping) or set(document) != set(CheckpointIndex._fields):
        raise FormatError(f"{where} is an index of another version of penstock: load it with that")
    values = _parse_row(_INDEX, [document[name] for name in _INDEX], where)
    shards = tuple(ShardEntry(**_parse_row(_SHARD, row, where)) for row in values["shards"])
    return CheckpointIndex(**{**values, "shards": shards})


def check_coverage(sizes: Mapping[str, int], pieces: Sequence[Piece], where: str) -> None:
    """Raise FormatError unless each byte of each block is in exactly one piece. sizes: bytes by
    block."""
    at = dict.fromkeys(sizes, 0)
    for piece in sorted(pieces, key=lambda piece: (piece.name, piece.offsets)):
        if piece.offsets != (at.get(piece.name),):
            raise FormatError(f"{where}: {piece.name!r} is there twice, or a piece is missing")
        at[piece.name] += piece.length
    for name, size in sizes.items():
        if at[name] != size:
            raise FormatError(f"{where}: {at[name]:,} of the {size:,} bytes of {name!r} are there")
