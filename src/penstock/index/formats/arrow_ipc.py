"""Messages of an Arrow stream or file: the columns, and the places of the batches' buffers.

A file (Feather too) is "ARROW1", padding, the messages of a stream, a footer that lists them, its
length, "ARROW1". A message is a marker, the length of its metadata, the metadata, and a body in
which the buffers lie. The metadata are flatbuffers, laid down in Arrow's Message.fbs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ... import limits
from ...engine import StoreFile
from ...errors import FormatError
from .flatbuffer import FlatTable

MAGIC = b"ARROW1"
MARKER = b"\xff\xff\xff\xff"
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
_V4, _V5 = 3, 4
_COLUMNS_MAX = 10_000
_DEPTH_MAX = 32
_PEEKED_BYTES = 4096
"""Bytes read together with a message's length: the metadata of most batches are shorter."""

PAIR = np.dtype([("first", "<i8"), ("second", "<i8")])
"""Type of a field node (rows, nulls) and of a buffer (offset, length)."""
BLOCK = np.dtype([("offset", "<i8"), ("metadata", "<i4"), ("_", "<i4"), ("body", "<i8")])

Kind = Literal["fixed", "varied", "bits"]
_BYTES = np.dtype(np.uint8)

# fmt: off
_TYPES = (
    "none", "null", "int", "floating point", "binary", "utf8", "bool", "decimal", "date", "time",
    "timestamp", "interval", "list", "struct", "union", "fixed-size binary", "fixed-size list",
    "map", "duration", "large binary", "large utf8", "large list", "run-end encoded",
    "binary view", "utf8 view", "list view", "large list view",
)
_BUFFERS = {
    "null": 0, "struct": 1, "fixed-size list": 1, "union": 1, "run-end encoded": 0, "list view": 3,
    "large list view": 3, "binary": 3, "utf8": 3, "large binary": 3, "large utf8": 3,
}
# fmt: on
"""Buffers of a column of each type, without its children's; all other types have two."""


@dataclass(frozen=True)
class ArrowColumn:
    """One column, or one part of a struct, as a field of samples.

    name:     of a part: the names of the structs, and its own, with dots between.
    kind:     fixed: rows of one size; varied: offsets and data; bits: one bit a row.
    dtype, shape:  of a sample; shape None where it varies.
    width:    bytes of an offset.
    nodes:    numbers of the field nodes whose nulls are nulls of this column: its own, the last,
              and those of the structs around it.
    inner:    numbers of the nodes of the lists' elements, which must not have nulls.
    validity: numbers of the buffers with the validity of `nodes`.
    buffer:   number of its first buffer of values; `views` columns before it have a varying
              number of buffers.
    refused:  the reason why it cannot be read, or "".
    """

    name: str
    kind: Kind = "fixed"
    dtype: np.dtype[Any] = _BYTES
    shape: tuple[int, ...] | None = ()
    width: int = 0
    nodes: tuple[int, ...] = ()
    inner: tuple[int, ...] = ()
    validity: tuple[tuple[int, int], ...] = ()
    buffer: int = 0
    views: int = 0
    refused: str = ""

    @property
    def plain(self) -> tuple[Any, ...]:
        """Properties that must be the same in all files."""
        return self.kind, self.dtype.str, self.shape, self.refused


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
    """

    at: int
    start: int
    body: int
    rows: int
    nodes: npt.NDArray[Any]
    buffers: npt.NDArray[Any]
    compression: str
    views: npt.NDArray[Any]

    def buffer(self, number: int, views: int, source: StoreFile) -> tuple[int, int]:
        """Return the start of a buffer in the file, and its length; FormatError unless it fits."""
        number += int(self.views[:views].sum())
        if not 0 <= number < len(self.buffers):
            raise source.flaw(self.at, f"the record batch has no buffer {number}: write it again")
        offset, length = (int(value) for value in self.buffers[number])
        if offset < 0 or length < 0 or offset > self.body - length:
            raise source.flaw(
                self.at,
                f"buffer {number} of the record batch is {length:,} bytes at {offset:,} of a body "
                f"of {self.body:,}: write the file again",
            )
        return self.start + offset, length


def read_messages(source: StoreFile) -> tuple[Schema, list[RecordBatch]]:
    """Read the schema of a stream or file, and its batches in order; or FormatError."""
    try:
        return _read_file(source) if source.read(0, 6) == MAGIC else _read_stream(source)
    except (ValueError, IndexError, OverflowError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(
            f"{source.path}: the Arrow metadata are damaged ({error}): write the file again"
        ) from None


def _read_file(source: StoreFile) -> tuple[Schema, list[RecordBatch]]:
    size = source.size
    tail = source.read(max(size - 10, 0), 10)
    if size < 20 or tail[4:] != MAGIC:
        raise source.flaw(
            max(size - 6, 0),
            "an Arrow file ends with ARROW1, but this one does not: it is truncated",
        )
    length = int.from_bytes(tail[:4], "little", signed=True)
    if not 4 <= length <= min(size - 18, 64 * limits.header_bytes_max):
        raise source.flaw(size - 10, f"the footer has {length:,} bytes: the file is damaged")
    footer = FlatTable.root(source.read(size - 10 - length, length))
    _check_version(footer.integer(0, 2), source, size - 10 - length)
    table = footer.table(1)
    if table is None:
        raise source.flaw(size - 10 - length, "the footer has no schema: write the file again")
    schema = _parse_schema(table, source)
    end = size - 10 - length
    batches = []
    last = 8
    blocks = footer.structs(3, BLOCK)
    for at, metadata, _, body in sorted(blocks.tolist()):
        if at < last or metadata < 8 or body < 0 or at > end - metadata - body:
            raise source.flaw(
                end,
                f"the footer lists a batch of {metadata:,} + {body:,} bytes at byte {at:,}, which "
                f"overlaps another or lies outside: write the file again",
            )
        last = at + metadata + body
    for at, metadata, _, body in blocks.tolist():
        message = source.read(at, metadata)
        held = _parse_message(message, source, at)
        if held is None or held.kind != _BATCH or held.body != body:
            raise source.flaw(
                at, "the footer lists a batch here, but there is none: write the file again"
            )
        batches.append(_parse_batch(held, source, at, at + metadata))
    return schema, batches


def _read_stream(source: StoreFile) -> tuple[Schema, list[RecordBatch]]:
    at, schema, batches = 0, None, []
    for at, held in _walk_stream(source):
        if held.kind == _SCHEMA and schema is None:
            schema = _parse_schema(held.header, source)
        elif held.kind == _BATCH and schema is not None:
            batches.append(_parse_batch(held, source, at, at + 8 + held.length))
        elif held.kind != _DICTIONARY or schema is None:
            raise source.flaw(at, f"a message of kind {held.kind} out of place: write it again")
    if schema is None:
        raise source.flaw(at, "the stream has no schema: it is empty or no Arrow stream")
    return schema, batches


class _Message(NamedTuple):
    kind: int
    header: FlatTable
    body: int
    length: int


def _walk_stream(source: StoreFile) -> Iterator[tuple[int, _Message]]:
    """Yield the messages of a stream, each with its place; the stream must have its end marker."""
    at, size = 0, source.size
    while True:
        head = source.read(at, min(_PEEKED_BYTES, size - at))
        if len(head) < 8:
            raise source.flaw(
                at,
                "the stream ends without its end marker: it is truncated, or was not closed",
            )
        length = int.from_bytes(head[4:8], "little", signed=True)
        if head[:4] != MARKER:
            raise source.flaw(
                at,
                f"a message begins with {head[:4]!r}, not with {MARKER!r}: the file is damaged, or "
                f"older than Arrow 0.15; write it again",
            )
        if length == 0:
            if at + 8 != size:
                raise source.flaw(
                    at + 8, f"{size - at - 8:,} bytes follow the end of the stream: cut them off"
                )
            return
        if not 0 < length <= min(size - at - 8, 64 * limits.header_bytes_max):
            raise source.flaw(
                at, f"metadata of {length:,} bytes, but {size - at - 8:,} are left: it is truncated"
            )
        held = _parse_message(
            head if length + 8 <= len(head) else source.read(at, 8 + length), source, at
        )
        if held is None:
            raise source.flaw(at, "a message without content: write the file again")
        if not 0 <= held.body <= size - at - 8 - length:
            left = size - at - 8 - length
            raise source.flaw(
                at, f"a body of {held.body:,} bytes, but {max(left, 0):,} are left: it is truncated"
            )
        yield at, held
        at += 8 + length + held.body


def _parse_message(data: bytes, source: StoreFile, at: int) -> _Message | None:
    """Parse a message; `data` begins with its marker. None if there is none."""
    length = int.from_bytes(data[4:8], "little", signed=True)
    if data[:4] != MARKER or not 0 < length <= len(data) - 8:
        return None
    table = FlatTable.root(data[8 : 8 + length])
    _check_version(table.integer(0, 2), source, at)
    header = table.table(2)
    if header is None:
        return None
    return _Message(table.integer(1, 1), header, table.integer(3, 8), length)


def _check_version(version: int, source: StoreFile, at: int) -> None:
    if version not in (_V4, _V5):
        raise source.flaw(at, f"Arrow metadata of version {version + 1}: only 4 and 5 can be read")


def _parse_batch(held: _Message, source: StoreFile, at: int, start: int) -> RecordBatch:
    header = held.header
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
    if ((views < 0) | (views > _COLUMNS_MAX)).any():
        raise source.flaw(at, "a view column with too many buffers: the file is damaged")
    return RecordBatch(
        at, start, held.body, rows, header.structs(1, PAIR), header.structs(2, PAIR), method, views
    )


# -- schema ----------------------------------------------------------------------------------------


def _parse_schema(table: FlatTable, source: StoreFile) -> Schema:
    if table.integer(0, 2):
        raise FormatError(
            f"{source.path} is big-endian Arrow, which cannot be read: write it again on this "
            f"machine"
        )
    walk = _ColumnCounter()
    for field in table.tables(1):
        walk.column(field, "", (), (), 0)
    pairs = {pair.text(0): pair.text(1) for pair in table.tables(2)}
    return Schema(walk.columns, pairs)


class _ColumnCounter:
    """Counter of nodes and buffers over the columns, depth first, in the order of the batches."""

    def __init__(self) -> None:
        self.columns: list[ArrowColumn] = []
        self.node = self.buffer = self.views = self.seen = 0

    def column(
        self,
        field: FlatTable,
        around: str,
        nodes: tuple[int, ...],
        validity: tuple[tuple[int, int], ...],
        depth: int,
    ) -> None:
        """Add one column, or the parts of a struct."""
        name = around + field.text(0)
        kind = self._type(field, depth)
        nodes = (*nodes, self.node)
        validity = (*validity, (self.buffer, self.views))
        own = ArrowColumn(
            name,
            nodes=nodes,
            validity=validity,
            buffer=self.buffer + (1 if kind != "null" else 0),
            views=self.views,
        )
        if field.table(4) is not None:  # the batches hold indices, of type int
            self._count("int")
            self.columns.append(
                replace(own, refused="is dictionary-encoded: write it cast to its value type")
            )
            return
        header = field.table(3)
        if kind == "struct":
            self._count(kind)
            for child in field.tables(5):
                self.column(child, f"{name}.", nodes, validity, depth + 1)
            return
        simple = _map_simple(kind, header)
        if kind == "fixed-size list" or kind in ("list", "large list"):
            self.columns.append(self._list(own, kind, field, header, depth))
            return
        self._count(kind)
        for child in field.tables(5):
            self._skip(child, depth + 1)
        if isinstance(simple, str):
            self.columns.append(replace(own, refused=simple))
        else:
            self.columns.append(replace(own, **simple))

    def _list(
        self, own: ArrowColumn, kind: str, field: FlatTable, header: FlatTable | None, depth: int
    ) -> ArrowColumn:
        """Make the column of lists of numbers, of one length or of varying lengths."""
        children = field.tables(5)
        self._count(kind)
        if len(children) != 1:
            raise ValueError("a list without one element type")
        child, shape = children[0], ()
        sizes = [header.integer(0, 4) if header is not None else 0]
        inner = [self.node]
        element = self._type(child, depth + 1)
        while kind == "fixed-size list" and element == "fixed-size list":
            self._count(element)
            nested, header = child.tables(5), child.table(3)
            if len(nested) != 1 or child.table(4) is not None:
                raise ValueError("a list without one element type")
            sizes.append(header.integer(0, 4) if header is not None else 0)
            child = nested[0]
            depth += 1
            inner.append(self.node)
            element = self._type(child, depth + 1)
        simple = _map_simple(element, child.table(3))
        data, views = self.buffer + 1, self.views
        self._skip(child, depth + 1)
        if child.table(4) is not None or isinstance(simple, str) or simple["kind"] != "fixed":
            return replace(own, refused=f"holds lists of {element}: use lists of numbers")
        dtype = simple.get("dtype", own.dtype)  # bytes, of fixed-size binary
        if kind == "fixed-size list":
            shape = (*sizes, *simple.get("shape", ()))
            if min(sizes) < 1:
                return replace(own, refused=f"holds lists of {min(sizes)} elements")
            return replace(
                own, dtype=dtype, shape=shape, inner=tuple(inner), buffer=data, views=views
            )
        if simple.get("shape"):
            return replace(own, refused=f"holds lists of {element}: use lists of numbers")
        width = 4 if kind == "list" else 8
        # Offsets are its own second buffer, the values those of its child, two further on.
        return replace(own, kind="varied", dtype=dtype, shape=None, width=width, inner=tuple(inner))

    def _skip(self, field: FlatTable, depth: int) -> None:
        """Count the nodes and buffers of a column that is not read."""
        kind = self._type(field, depth)
        if field.table(4) is not None:
            self._count("int")
            return
        self._count(kind, field.table(3))
        for child in field.tables(5):
            self._skip(child, depth + 1)

    def _type(self, field: FlatTable, depth: int) -> str:
        self.seen += 1
        if depth > _DEPTH_MAX or self.seen > 4 * _COLUMNS_MAX:
            raise ValueError(f"columns nested deeper than {_DEPTH_MAX}, or too many")
        number = field.integer(2, 1)
        if not 0 < number < len(_TYPES):
            raise ValueError(f"a column of unknown type {number}")
        return _TYPES[number]

    def _count(self, kind: str, header: FlatTable | None = None) -> None:
        self.node += 1
        self.buffer += _BUFFERS.get(kind, 2)
        if kind == "union" and header is not None and header.integer(0, 2):
            self.buffer += 1  # a dense one has offsets
        self.views += kind in ("binary view", "utf8 view")


def _map_simple(kind: str, header: FlatTable | None) -> dict[str, Any] | str:
    """Map a simple type to attributes of `ArrowColumn`, or to the reason of its refusal."""

    def number(slot: int, size: int, default: int = 0) -> int:
        return default if header is None else header.integer(slot, size, default)

    if kind in ("binary", "utf8", "large binary", "large utf8"):
        width = 8 if kind.startswith("large") else 4
        return {"kind": "varied", "shape": None, "width": width}
    if kind == "bool":
        return {"kind": "bits", "dtype": np.dtype(np.bool_)}
    if kind == "fixed-size binary":
        size = number(0, 4)
        if size < 1:
            return f"holds values of {size} bytes"
        return {"kind": "fixed", "shape": (size,)}
    if kind == "int":
        bits = number(0, 4)
        if bits not in (8, 16, 32, 64):
            raise ValueError(f"integers of {bits} bits")
        code = "<i" if number(1, 1) else "<u"
        return {"kind": "fixed", "dtype": np.dtype(f"{code}{bits // 8}")}
    if kind == "floating point":
        precision = number(0, 2)
        if precision not in (0, 1, 2):
            raise ValueError(f"floating point of precision {precision}")
        return {"kind": "fixed", "dtype": np.dtype(("<f2", "<f4", "<f8")[precision])}
    if kind in ("timestamp", "duration"):
        return {"kind": "fixed", "dtype": np.dtype("<i8")}
    if kind == "date":
        return {"kind": "fixed", "dtype": np.dtype("<i8" if number(0, 2, 1) else "<i4")}
    if kind == "time":
        return {"kind": "fixed", "dtype": np.dtype("<i8" if number(1, 4, 32) == 64 else "<i4")}
    return f"is of type {kind}, in which a sample has no place of its own: cast it"
