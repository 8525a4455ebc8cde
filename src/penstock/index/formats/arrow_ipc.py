"""Messages of an Arrow stream or file: the columns, and the places of the batches' buffers.

A file (Feather too) is "ARROW1", padding, the messages of a stream, a footer that lists them, its
length, "ARROW1". A message is a marker, the length of its metadata, the metadata, and a body in
which the buffers are. The metadata are flatbuffers, laid down in Arrow's Message.fbs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ... import limits
from ...engine.store import StoreFile
from ...errors import FormatError
from .arrow_schema import COLUMNS_MAX, ArrowColumn, FlatTable, list_columns

MAGIC = b"ARROW1"
MARKER = b"\xff\xff\xff\xff"
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
_V4, _V5 = 3, 4
_SEGMENTS_MAX = 1_000
"""Most parts of one dictionary, each of which added values to those before."""
_OVERLAP_MAX = 16
"""Most times that the buffers of a batch may cover its body: writers share few of them or none."""
_PEEKED_BYTES = 4096
"""Bytes read together with a message's length: the metadata of most batches are shorter."""

PAIR = np.dtype([("first", "<i8"), ("second", "<i8")])
"""Type of a field node (rows, nulls) and of a buffer (offset, length)."""
BLOCK = np.dtype([("offset", "<i8"), ("metadata", "<i4"), ("_", "<i4"), ("body", "<i8")])


class Schema(NamedTuple):
    """The columns of a file, and its metadata."""

    columns: list[ArrowColumn]
    metadata: dict[str, str]


@dataclass(frozen=True)
class RecordBatch:
    """One record batch.

    at:           byte of the file where its message begins.
    start, body:  byte of the file where its body begins, and the body's length.
    rows:         their number.
    nodes, buffers:  as in the metadata, see PAIR; offsets are from the start of the body.
    compression:  "lz4", "zstd" or "".
    views:        buffers of each view column.
    dictionaries: batches of values of each dictionary, by its number; several where they grew.
    """

    at: int
    start: int
    body: int
    rows: int
    nodes: npt.NDArray[Any]
    buffers: npt.NDArray[Any]
    compression: str
    views: npt.NDArray[Any]
    dictionaries: Mapping[int, tuple[RecordBatch, ...]] = field(default_factory=dict)

    def buffer(self, number: int, views: int, source: StoreFile) -> tuple[int, int]:
        """Return the start of a buffer in the file, and its length; FormatError unless it fits."""
        number += int(self.views[:views].sum())
        if not 0 <= number < len(self.buffers):
            raise source.flaw(self.at, f"the record batch has no buffer {number}: write it again")
        offset, length = (int(value) for value in self.buffers[number])
        if offset < 0 or length < 0 or offset > self.body - length:
            raise source.flaw(self.at, f"buffer {number} lies outside the batch of {self.body:,}")
        return self.start + offset, length


def read_messages(source: StoreFile) -> tuple[Schema, list[RecordBatch]]:
    """Read the schema of a stream or file, and its batches in order; or FormatError."""
    try:
        return _read_file(source) if source.read(0, 6) == MAGIC else _read_stream(source)
    except (ValueError, LookupError, OverflowError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{source.path}: Arrow metadata are damaged ({error})") from None


def _read_file(source: StoreFile) -> tuple[Schema, list[RecordBatch]]:
    size = source.size
    tail = source.read(max(size - 10, 0), 10)
    if size < 20 or tail[4:] != MAGIC:
        raise source.flaw(max(size - 6, 0), "no ARROW1 at the end: the file is truncated")
    length = int.from_bytes(tail[:4], "little", signed=True)
    if not 4 <= length <= min(size - 18, 64 * limits.header_bytes_max):
        raise source.flaw(size - 10, f"the footer has {length:,} bytes: the file is damaged")
    end = size - 10 - length
    footer = FlatTable.root(source.read(end, length))
    _check_version(footer.integer(0, 2), source, end)
    table = footer.table(1)
    if table is None:
        raise source.flaw(end, "the footer has no schema: write the file again")
    reader = _BatchReader(source)
    reader.schema = _parse_schema(table, source)
    listed = [(kind, footer.structs(slot, BLOCK).tolist()) for kind, slot in ((2, 2), (3, 3))]
    last = 8
    for at, metadata, _, body in sorted([*listed[0][1], *listed[1][1]]):
        if at < last or metadata < 8 or body < 0 or at > end - metadata - body:
            raise source.flaw(end, f"the footer's batch at byte {at:,} is outside, or overlaps")
        last = at + metadata + body
    for kind, blocks in listed:
        for at, metadata, _, body in blocks:
            message = _parse_message(source.read(at, metadata), source, at)
            if (message.kind, message.body) != (kind, body):
                raise source.flaw(at, "the footer lists a batch here, but there is none")
            reader.take(message, at, at + metadata)
    return reader.schema, reader.batches


def _read_stream(source: StoreFile) -> tuple[Schema, list[RecordBatch]]:
    reader = _BatchReader(source)
    for at, message in _walk_stream(source):
        reader.take(message, at, at + 8 + message.length)
    if reader.schema is None:
        raise source.flaw(0, "the stream has no schema: it is empty or no Arrow stream")
    return reader.schema, reader.batches


class _Message(NamedTuple):
    kind: int
    header: FlatTable
    body: int
    length: int


class _BatchReader:
    """Reader of the messages in order: the schema, dictionaries, and batches that use them."""

    def __init__(self, source: StoreFile) -> None:
        self._source = source
        self.schema: Schema | None = None
        self.batches: list[RecordBatch] = []
        self._dictionaries: dict[int, tuple[RecordBatch, ...]] = {}

    def take(self, message: _Message, at: int, start: int) -> None:
        """Take a message at a byte of the file, whose body begins at `start`."""
        kind, header, body, _ = message
        if kind == _SCHEMA and self.schema is None:
            self.schema = _parse_schema(header, self._source)
        elif kind == _BATCH and self.schema is not None:
            batch = _parse_batch(header, body, self._source, at, start)
            self.batches.append(replace(batch, dictionaries=self._dictionaries))
        elif kind == _DICTIONARY and self.schema is not None:
            data = header.table(1)
            if data is None:
                raise self._source.flaw(at, "a dictionary without values: write the file again")
            key, grows = header.integer(0, 8), header.integer(2, 1)
            before = self._dictionaries.get(key, ()) if grows else ()
            if len(before) >= _SEGMENTS_MAX:
                raise self._source.flaw(at, f"a dictionary grew {_SEGMENTS_MAX:,} times")
            batch = _parse_batch(data, body, self._source, at, start)
            self._dictionaries = self._dictionaries | {key: (*before, batch)}
        else:
            raise self._source.flaw(at, f"a message of kind {kind} out of place: write it again")


def _walk_stream(source: StoreFile) -> Iterator[tuple[int, _Message]]:
    """Yield the messages of a stream, each with its place; the stream must have its end marker."""
    at, size = 0, source.size
    while True:
        head = source.read(at, min(_PEEKED_BYTES, size - at))
        if len(head) < 8:
            raise source.flaw(at, "the stream has no end marker: truncated, or not closed")
        length = int.from_bytes(head[4:8], "little", signed=True)
        if head[:4] != MARKER:
            raise source.flaw(at, f"{head[:4]!r} starts no message: damaged, or before Arrow 0.15")
        if length == 0:
            if at + 8 != size:
                raise source.flaw(at + 8, "bytes follow the end of the stream: cut them off")
            return
        if not 0 < length <= min(size - at - 8, 64 * limits.header_bytes_max):
            raise source.flaw(at, f"metadata of {length:,} bytes: it is truncated")
        data = head if length + 8 <= len(head) else source.read(at, 8 + length)
        message = _parse_message(data, source, at)
        if not 0 <= message.body <= size - at - 8 - length:
            raise source.flaw(at, f"a body of {message.body:,} bytes: it is truncated")
        yield at, message
        at += 8 + length + message.body


def _parse_message(data: bytes, source: StoreFile, at: int) -> _Message:
    """Parse a message; `data` begins with its marker."""
    length = int.from_bytes(data[4:8], "little", signed=True)
    header = None
    if data[:4] == MARKER and 0 < length <= len(data) - 8:
        table = FlatTable.root(data[8 : 8 + length])
        _check_version(table.integer(0, 2), source, at)
        header = table.table(2)
    if header is None:
        raise source.flaw(at, "no message, or one without content: write the file again")
    return _Message(table.integer(1, 1), header, table.integer(3, 8), length)


def _check_version(version: int, source: StoreFile, at: int) -> None:
    if version not in (_V4, _V5):
        raise source.flaw(at, f"Arrow metadata of version {version + 1}: only 4 and 5 can be read")


def _parse_schema(table: FlatTable, source: StoreFile) -> Schema:
    if table.integer(0, 2):
        raise FormatError(f"{source.path} is big-endian Arrow: write it on this machine")
    pairs = {pair.text(0): pair.text(1) for pair in table.tables(2)}
    return Schema(list_columns(table.tables(1)), pairs)


def _parse_batch(
    header: FlatTable, body: int, source: StoreFile, at: int, start: int
) -> RecordBatch:
    rows = header.integer(0, 8)
    compression = header.table(3)
    method = ""
    if compression is not None:
        codec = compression.integer(0, 1)
        if codec not in (0, 1) or compression.integer(1, 1):
            raise source.flaw(at, f"compression {codec}, which is not LZ4 or ZSTD of buffers")
        method = ("lz4", "zstd")[codec]
    if not 0 <= rows < limits.order_count_max:
        raise source.flaw(at, f"a record batch of {rows:,} rows: the file is damaged")
    views = header.structs(4, "<i8")
    if ((views < 0) | (views > COLUMNS_MAX)).any():
        raise source.flaw(at, "a view column with too many buffers: the file is damaged")
    buffers = header.structs(2, PAIR)
    claimed = float(buffers["second"].clip(0).astype(np.float64).sum())
    if claimed > _OVERLAP_MAX * body + 4096:
        raise source.flaw(at, f"buffers claim {claimed:,.0f} bytes of a body of {body:,}")
    return RecordBatch(at, start, body, rows, header.structs(1, PAIR), buffers, method, views)
