"""Messages of an Arrow stream or file: the columns, and the places of the batches' buffers.

A file (Feather too) is "ARROW1", padding, the messages of a stream, a footer that lists them, its
length, "ARROW1". A message is a marker, the length of its metadata, the metadata, and a body in
which the buffers are. The metadata are flatbuffers, laid down in Arrow's Message.fbs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ... import limits
from ...engine.store import StoreFile
from ...errors import FormatError
from .flatbuffer import FlatTable

MAGIC = b"ARROW1"
MARKER = b"\xff\xff\xff\xff"
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
_V4, _V5 = 3, 4
_COLUMNS_MAX = 10_000
_SEGMENTS_MAX = 1_000
"""Most parts of one dictionary, each of which added values to those before."""
_OVERLAP_MAX = 16
"""Most times that the buffers of a batch may cover its body: writers share few of them or none."""
_DEPTH_MAX = 32
_PEEKED_BYTES = 4096
"""Bytes read together with a message's length: the metadata of most batches are shorter."""

PAIR = np.dtype([("first", "<i8"), ("second", "<i8")])
"""Type of a field node (rows, nulls) and of a buffer (offset, length)."""
BLOCK = np.dtype([("offset", "<i8"), ("metadata", "<i4"), ("_", "<i4"), ("body", "<i8")])

Kind = Literal["fixed", "varied", "bits", "nested", "coded"]
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


class ColumnNode(NamedTuple):
    """A node of a column's tree: its number, and the buffer with its validity.

    views:   number of columns before it that have a varying number of buffers.
    levels:  number of lists of varying length around it.
    """

    number: int
    buffer: int
    views: int
    levels: int = 0


class ListLevel(NamedTuple):
    """Offsets of lists or strings: the list's node, and the bytes of an offset.

    The offsets are in the buffer after the node's validity.
    """

    node: ColumnNode
    width: int


@dataclass(frozen=True)
class ArrowColumn:
    """One column, or one part of a struct, as a field of samples.

    name:     of a part: the names of the structs, and its own, with dots between.
    kind:     fixed: rows of one size; varied: offsets and data; nested: several levels of offsets;
              bits: one bit a row; coded: indices into a dictionary of `values`.
    dtype, shape:  of a sample; shape None where it varies.
    element:  shape of an element of a list.
    levels:   its offsets, from the outside.
    nodes:    nodes whose nulls are nulls of this column: its own, and those around it, as far as
              each of their slots is a row.
    inner:    nodes of the elements of lists.
    buffer:   number of the buffer with its values; `views` columns before it have a varying number
              of buffers.
    may_lack: True if a null is the same as an empty string: the path of an image.
    is_flags: True if the values are bits.
    key, values:  of a coded column: the dictionary's number, and the column in it; `dtype` and
              `buffer` are of the indices.
    unit:     what the integers of dates and times count, such as "timestamp[us]".
    refused:  the reason why it cannot be read, or "".
    """

    name: str
    kind: Kind = "fixed"
    dtype: np.dtype[Any] = _BYTES
    shape: tuple[int, ...] | None = ()
    element: tuple[int, ...] = ()
    levels: tuple[ListLevel, ...] = ()
    nodes: tuple[ColumnNode, ...] = ()
    inner: tuple[ColumnNode, ...] = ()
    buffer: int = 0
    views: int = 0
    may_lack: bool = False
    is_flags: bool = False
    key: int = 0
    values: ArrowColumn | None = None
    refused: str = ""
    unit: str = ""

    @property
    def widths(self) -> tuple[int, ...]:
        """Bytes of an offset of each level."""
        return tuple(level.width for level in self.levels)

    @property
    def held(self) -> ArrowColumn:
        """The column that holds its values: itself, or its dictionary's."""
        return self.values or self

    @property
    def plain(self) -> tuple[Any, ...]:
        """Properties that must be the same in all files."""
        widths = self.widths if self.kind == "nested" else ()
        values = self.values and self.values.plain
        own = (self.kind, self.dtype.str, self.shape, self.element, self.is_flags, self.refused)
        return (*own, self.unit, widths, values)


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
    except (ValueError, IndexError, OverflowError) as error:
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
    held_first = footer.structs(2, BLOCK)
    for at, metadata, _, body in sorted([*blocks.tolist(), *held_first.tolist()]):
        if at < last or metadata < 8 or body < 0 or at > end - metadata - body:
            raise source.flaw(end, f"the footer's batch at byte {at:,} is outside, or overlaps")
        last = at + metadata + body
    dictionaries: _Dictionaries = {}
    for kind, listed in ((_DICTIONARY, held_first), (_BATCH, blocks)):
        for at, metadata, _, body in listed.tolist():
            held = _parse_message(source.read(at, metadata), source, at)
            if held is None or held.kind != kind or held.body != body:
                raise source.flaw(at, "the footer lists a batch here, but there is none")
            if kind == _DICTIONARY:
                dictionaries = _add_dictionary(dictionaries, held, source, at, at + metadata)
            else:
                batch = _parse_batch(held.header, held.body, source, at, at + metadata)
                batches.append(replace(batch, dictionaries=dictionaries))
    return schema, batches


def _read_stream(source: StoreFile) -> tuple[Schema, list[RecordBatch]]:
    at, schema, batches = 0, None, []
    dictionaries: _Dictionaries = {}
    for at, held in _walk_stream(source):
        if held.kind == _SCHEMA and schema is None:
            schema = _parse_schema(held.header, source)
        elif held.kind == _BATCH and schema is not None:
            batch = _parse_batch(held.header, held.body, source, at, at + 8 + held.length)
            batches.append(replace(batch, dictionaries=dictionaries))
        elif held.kind == _DICTIONARY and schema is not None:
            dictionaries = _add_dictionary(dictionaries, held, source, at, at + 8 + held.length)
        else:
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
        held = _parse_message(
            head if length + 8 <= len(head) else source.read(at, 8 + length), source, at
        )
        if held is None:
            raise source.flaw(at, "a message without content: write the file again")
        if not 0 <= held.body <= size - at - 8 - length:
            raise source.flaw(at, f"a body of {held.body:,} bytes: it is truncated")
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


_Dictionaries = dict[int, tuple[RecordBatch, ...]]


def _add_dictionary(
    before: _Dictionaries, held: _Message, source: StoreFile, at: int, start: int
) -> _Dictionaries:
    """Return the dictionaries with a message's, as a new one or more of one."""
    key, data = held.header.integer(0, 8), held.header.table(1)
    if data is None:
        raise source.flaw(at, "a dictionary without values: write the file again")
    batch = _parse_batch(data, held.body, source, at, start)
    grown = before.get(key, ()) if held.header.integer(2, 1) else ()
    if len(grown) >= _SEGMENTS_MAX:
        raise FormatError(f"{source.path}: a dictionary grew {_SEGMENTS_MAX:,} times")
    return before | {key: (*grown, batch)}


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
    if ((views < 0) | (views > _COLUMNS_MAX)).any():
        raise source.flaw(at, "a view column with too many buffers: the file is damaged")
    buffers = header.structs(2, PAIR)
    claimed = float(buffers["second"].clip(0).astype(np.float64).sum())
    if claimed > _OVERLAP_MAX * body + 4096:
        raise source.flaw(at, f"buffers claim {claimed:,.0f} bytes of a body of {body:,}")
    return RecordBatch(at, start, body, rows, header.structs(1, PAIR), buffers, method, views)


# -- schema ----------------------------------------------------------------------------------------


def _parse_schema(table: FlatTable, source: StoreFile) -> Schema:
    if table.integer(0, 2):
        raise FormatError(f"{source.path} is big-endian Arrow: write it on this machine")
    walk = _ColumnCounter()
    for part in table.tables(1):
        walk.column(part, part.text(0), _Around(), 0)
    pairs = {pair.text(0): pair.text(1) for pair in table.tables(2)}
    return Schema(walk.columns, pairs)


@dataclass(frozen=True)
class _Around:
    """The lists and structs around a column: see `ArrowColumn`; `sizes` of fixed-size lists."""

    nodes: tuple[ColumnNode, ...] = ()
    inner: tuple[ColumnNode, ...] = ()
    levels: tuple[ListLevel, ...] = ()
    sizes: tuple[int, ...] = ()
    may_lack: bool = False

    def below(self, node: ColumnNode) -> _Around:
        """Return what is around the children of a node."""
        if self.levels or self.sizes:
            return replace(self, inner=(*self.inner, node))
        return replace(self, nodes=(*self.nodes, node))


class _ColumnCounter:
    """Counter of nodes and buffers over the columns, depth first, in the order of the batches."""

    def __init__(self) -> None:
        self.columns: list[ArrowColumn] = []
        self.node = self.buffer = self.views = self.seen = 0

    def column(self, field: FlatTable, name: str, around: _Around, depth: int) -> None:
        """Add one column, or the parts of a struct."""
        kind = self._type(field, depth)
        header, children = field.table(3), field.tables(5)
        node = ColumnNode(self.node, self.buffer, self.views, len(around.levels))
        below = around.below(node)
        if field.table(4) is not None:
            self._add_coded(field, name, kind, below)
            return
        self._count(kind, header)
        if kind == "struct" and around.sizes:
            self._refuse(name, "holds fixed-size lists of structs: cast them to lists", children)
        elif kind == "struct":
            names = [child.text(0) for child in children]
            is_media = sorted(names) == ["bytes", "path"] and {
                self._type(child, depth + 1) for child in children
            } <= {"binary", "large binary", "utf8", "large utf8"}
            for child, own in zip(children, names, strict=True):
                inside = replace(below, may_lack=True) if is_media and own == "path" else below
                self.column(
                    child,
                    name if is_media and own == "bytes" else f"{name}.{own}",
                    inside,
                    depth + 1,
                )
        elif kind in ("list", "large list", "fixed-size list"):
            if len(children) != 1:
                raise ValueError("a list without one element type")
            if kind == "fixed-size list":
                size = header.integer(0, 4) if header is not None else 0
                if size < 1:
                    self._refuse(name, f"holds lists of {size} elements", children)
                    return
                below = replace(below, sizes=(*around.sizes, size))
            elif around.sizes:
                self._refuse(
                    name, f"holds fixed-size lists of {kind}: cast them to lists", children
                )
                return
            else:
                level = ListLevel(node, 4 if kind == "list" else 8)
                below = replace(below, levels=(*around.levels, level))
            self.column(children[0], name, below, depth + 1)
        else:
            for child in children:
                self._skip(child, depth + 1)
            self.columns.append(self._make_leaf(name, kind, header, node, below))

    def _make_leaf(
        self, name: str, kind: str, header: FlatTable | None, node: ColumnNode, around: _Around
    ) -> ArrowColumn:
        """Make the column of a type without children, inside of the lists around it."""
        simple = _map_simple(kind, header)
        levels, sizes = around.levels, around.sizes
        if isinstance(simple, str):
            reason = f"holds lists of {kind}: use lists of numbers or texts"
            return ArrowColumn(name, refused=reason if levels or sizes else simple)
        dtype, shape = simple.get("dtype", _BYTES), simple.get("shape", ())
        leaf_kind: Kind = simple["kind"]
        if sizes and leaf_kind != "fixed":
            return ArrowColumn(
                name, refused=f"holds fixed-size lists of {kind}: use lists of numbers"
            )
        buffer = node.buffer + 1
        if leaf_kind == "varied":
            levels = (*levels, ListLevel(node, simple["width"]))
            buffer += 1
        fixed = (*sizes, *(shape or ()))
        if levels:
            is_nested = len(levels) > 1 or leaf_kind == "bits"
            leaf_kind, shape, element = "nested" if is_nested else "varied", None, fixed
        else:
            shape, element = fixed, ()
        return ArrowColumn(
            name,
            leaf_kind,
            dtype,
            shape,
            element,
            levels,
            around.nodes,
            around.inner,
            buffer,
            node.views,
            around.may_lack,
            is_flags=dtype.kind == "b",
            unit=simple.get("unit", ""),
        )

    def _add_coded(self, field: FlatTable, name: str, kind: str, around: _Around) -> None:
        """Add a column whose batches hold indices into a dictionary of its values."""
        encoding = field.table(4)
        assert encoding is not None
        index = encoding.table(1)
        indices: dict[str, Any] = {"kind": "fixed", "dtype": np.dtype("<i4")}
        if index is not None:
            found = _map_simple("int", index)
            assert not isinstance(found, str)
            indices = found
        node = ColumnNode(self.node, self.buffer, self.views)
        self._count("int")
        values = self._make_leaf(name, kind, field.table(3), ColumnNode(0, 0, 0), _Around())
        if around.levels or around.sizes or values.kind not in ("fixed", "varied"):
            self.columns.append(
                ArrowColumn(
                    name,
                    refused="is dictionary-encoded inside of lists: write it cast to its value type"
                    if around.levels or around.sizes
                    else f"is dictionary-encoded, of {kind}: write it cast to its value type",
                )
            )
            return
        if values.refused:
            self.columns.append(values)
            return
        self.columns.append(
            ArrowColumn(
                name,
                "coded",
                indices["dtype"],
                nodes=around.nodes,
                buffer=node.buffer + 1,
                views=node.views,
                may_lack=around.may_lack,
                key=encoding.integer(0, 8),
                values=values,
            )
        )

    def _refuse(self, name: str, reason: str, children: list[FlatTable]) -> None:
        for child in children:
            self._skip(child, 0)
        self.columns.append(ArrowColumn(name, refused=reason))

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


_UNITS = ("s", "ms", "us", "ns")


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
        unit = _UNITS[number(0, 2, kind == "duration")]
        return {"kind": "fixed", "dtype": np.dtype("<i8"), "unit": f"{kind}[{unit}]"}
    if kind == "date":
        unit, code = ("ms", "<i8") if number(0, 2, 1) else ("day", "<i4")
        return {"kind": "fixed", "dtype": np.dtype(code), "unit": f"{kind}[{unit}]"}
    if kind == "time":
        code = "<i8" if number(1, 4, 32) == 64 else "<i4"
        unit = _UNITS[number(0, 2, 1)]
        return {"kind": "fixed", "dtype": np.dtype(code), "unit": f"{kind}[{unit}]"}
    return f"is of type {kind}, in which a sample has no place of its own: cast it"
