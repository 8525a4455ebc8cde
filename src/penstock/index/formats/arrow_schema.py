"""Columns of an Arrow schema: where the batches have the values of each, and what they are.

The metadata of Arrow are flatbuffers, laid down in its Schema.fbs. A table starts with the signed
distance back to its vtable. The vtable holds its own length, the table's, and the place of each
slot in the table (0: the default). Everything else is reached by unsigned distances forward, so
that nothing can contain itself. Every position is checked: ValueError if bytes are missing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

COLUMNS_MAX = 10_000
_DEPTH_MAX = 32

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
_NESTED = ("struct", "list", "large list", "fixed-size list")
_VARIED = frozenset(["binary", "utf8", "large binary", "large utf8"])


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
        facts = (self.kind, self.dtype.str, self.shape, self.element, self.is_flags, self.refused)
        return (*facts, self.unit, widths, values)


def list_columns(fields: list[FlatTable]) -> list[ArrowColumn]:
    """List the columns of a schema's fields, the parts of structs one by one."""
    walk = _ColumnWalk()
    for field in fields:
        walk.add(field, field.text(0), _Around())
    return walk.columns


class _Around(NamedTuple):
    """The lists and structs around a column: see `ArrowColumn`; `sizes` of fixed-size lists."""

    nodes: tuple[ColumnNode, ...] = ()
    inner: tuple[ColumnNode, ...] = ()
    levels: tuple[ListLevel, ...] = ()
    sizes: tuple[int, ...] = ()
    may_lack: bool = False


class _SchemaField(NamedTuple):
    """A field of the schema: its name, type and node, and what is around its children."""

    name: str
    kind: str
    header: FlatTable | None
    node: ColumnNode
    below: _Around

    def refuse(self, reason: str) -> ArrowColumn:
        return ArrowColumn(self.name, refused=reason)


class _ColumnWalk:
    """Counter of nodes and buffers over the columns, depth first, in the order of the batches."""

    def __init__(self) -> None:
        self.columns: list[ArrowColumn] = []
        self.node = self.buffer = self.views = self.seen = 0

    def add(
        self, field: FlatTable, name: str, around: _Around, depth: int = 0, hidden: bool = False
    ) -> None:
        """Add one column, or the parts of a struct; hidden ones are counted only."""
        self.seen += 1
        if depth > _DEPTH_MAX or self.seen > 2 * COLUMNS_MAX:
            raise ValueError(f"columns nested deeper than {_DEPTH_MAX}, or too many")
        kind, header, encoding = _find_type(field), field.table(3), field.table(4)
        children = field.tables(5) if encoding is None else []  # a dictionary's are elsewhere
        node = ColumnNode(self.node, self.buffer, self.views, len(around.levels))
        if around.levels or around.sizes:
            below = around._replace(inner=(*around.inner, node))
        else:
            below = around._replace(nodes=(*around.nodes, node))
        described = _SchemaField(name, kind, header, node, below)
        self.node += 1
        self.buffer += 2 if encoding is not None else _BUFFERS.get(kind, 2)
        if kind == "union" and encoding is None and header is not None and header.integer(0, 2):
            self.buffer += 1  # a dense one has offsets
        self.views += encoding is None and kind in ("binary view", "utf8 view")
        if hidden:
            pass
        elif encoding is not None:
            self.columns.append(_make_coded(described, encoding))
        elif kind not in _NESTED:
            self.columns.append(_make_leaf(described))
        else:
            columns = _list_parts(described, children)
            if not isinstance(columns, str):
                for column in columns:
                    self.add(*column, depth + 1)
                return
            self.columns.append(described.refuse(columns))
        for child in children:
            self.add(child, name, around, depth + 1, hidden=True)


def _find_type(field: FlatTable) -> str:
    number = field.integer(2, 1)
    if not 0 < number < len(_TYPES):
        raise ValueError(f"a column of unknown type {number}")
    return _TYPES[number]


def _list_parts(
    field: _SchemaField, children: list[FlatTable]
) -> list[tuple[FlatTable, str, _Around]] | str:
    """List the columns in a struct or list, each with its name; or the reason of its refusal."""
    name, kind, header, node, below = field
    if below.sizes and kind != "fixed-size list":
        what = "structs" if kind == "struct" else kind
        return f"holds fixed-size lists of {what}: cast them to lists"
    if kind == "struct":
        names = [child.text(0) for child in children]
        if sorted(names) == ["bytes", "path"] and _VARIED.issuperset(map(_find_type, children)):
            lacking = below._replace(may_lack=True)
            return [
                (child, name, below) if child_name == "bytes" else (child, f"{name}.path", lacking)
                for child, child_name in zip(children, names, strict=True)
            ]
        return [(child, f"{name}.{child.text(0)}", below) for child in children]
    if len(children) != 1:
        raise ValueError("a list without one element type")
    if kind == "fixed-size list":
        size = header.integer(0, 4) if header is not None else 0
        if size < 1:
            return f"holds lists of {size} elements"
        return [(children[0], name, below._replace(sizes=(*below.sizes, size)))]
    level = ListLevel(node, 4 if kind == "list" else 8)
    return [(children[0], name, below._replace(levels=(*below.levels, level)))]


def _make_leaf(field: _SchemaField) -> ArrowColumn:
    """Make the column of a type without children, inside of the lists around it."""
    name, kind, header, node, around = field
    simple = _map_simple(kind, header)
    levels, sizes = around.levels, around.sizes
    if isinstance(simple, str):
        reason = f"holds lists of {kind}: use lists of numbers or texts"
        return field.refuse(reason if levels or sizes else simple)
    if sizes and simple.kind != "fixed":
        return field.refuse(f"holds fixed-size lists of {kind}: use lists of numbers")
    buffer = node.buffer + 1
    if simple.kind == "varied":
        levels = (*levels, ListLevel(node, 8 if kind.startswith("large") else 4))
        buffer += 1
    shape: tuple[int, ...] = (*sizes, *(simple.shape or ()))
    leaf_kind: Kind = simple.kind
    if levels:
        leaf_kind = "nested" if len(levels) > 1 or simple.kind == "bits" else "varied"
    return replace(
        simple,
        name=name,
        kind=leaf_kind,
        shape=None if levels else shape,
        element=shape if levels else (),
        levels=levels,
        nodes=around.nodes,
        inner=around.inner,
        buffer=buffer,
        views=node.views,
        may_lack=around.may_lack,
        is_flags=simple.kind == "bits",
    )


def _make_coded(field: _SchemaField, encoding: FlatTable) -> ArrowColumn:
    """Make a column whose batches hold indices into a dictionary of its values."""
    name, kind, header, node, around = field
    index = encoding.table(1)
    indices = ArrowColumn("", dtype=np.dtype("<i4")) if index is None else _map_simple("int", index)
    assert not isinstance(indices, str)
    values = _make_leaf(_SchemaField(name, kind, header, ColumnNode(0, 0, 0), _Around()))
    inside = bool(around.levels or around.sizes)
    if inside or kind in _NESTED or values.kind not in ("fixed", "varied"):
        where = " inside of lists" if inside else f", of {kind}"
        return field.refuse(f"is dictionary-encoded{where}: write it cast to its value type")
    if values.refused:
        return values
    return ArrowColumn(
        name,
        "coded",
        indices.dtype,
        nodes=around.nodes,
        buffer=node.buffer + 1,
        views=node.views,
        may_lack=around.may_lack,
        key=encoding.integer(0, 8),
        values=values,
    )


_SECONDS = dict(enumerate(("s", "ms", "us", "ns")))
_FLOATS = {0: "<f2", 1: "<f4", 2: "<f8"}


def _map_simple(kind: str, header: FlatTable | None) -> ArrowColumn | str:
    """Map a simple type to a column without place, or to the reason of its refusal."""

    def number(slot: int, size: int, default: int = 0) -> int:
        return default if header is None else header.integer(slot, size, default)

    def make(code: str, unit: str = "") -> ArrowColumn:
        return ArrowColumn("", dtype=np.dtype(code), unit=unit and f"{kind}[{unit}]")

    if kind in _VARIED:
        return ArrowColumn("", "varied", shape=None)
    if kind == "bool":
        return ArrowColumn("", "bits", np.dtype(np.bool_))
    if kind == "fixed-size binary":
        size = number(0, 4)
        return f"holds values of {size} bytes" if size < 1 else ArrowColumn("", shape=(size,))
    if kind == "int":
        bits = number(0, 4)
        if bits not in (8, 16, 32, 64):
            raise ValueError(f"integers of {bits} bits")
        return make(f"<{'i' if number(1, 1) else 'u'}{bits // 8}")
    if kind == "floating point":
        return make(_FLOATS[number(0, 2)])
    if kind in ("timestamp", "duration"):
        return make("<i8", _SECONDS[number(0, 2, kind == "duration")])
    if kind == "date":
        return make("<i8", "ms") if number(0, 2, 1) else make("<i4", "day")
    if kind == "time":
        return make("<i8" if number(1, 4, 32) == 64 else "<i4", _SECONDS[number(0, 2, 1)])
    return f"is of type {kind}, in which a sample has no place of its own: cast it"


# -- flatbuffers -----------------------------------------------------------------------------------


class FlatTable:
    """One table of a buffer."""

    __slots__ = ("_at", "_data", "_slots")

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at
        vtable = at - _read_integer(data, at, 4, True)
        size = _read_integer(data, vtable, 2)
        if size < 4 or size % 2 or vtable + size > len(data):
            raise ValueError(f"a vtable of {size} bytes at {vtable}")
        self._slots = np.frombuffer(data, "<u2", size // 2, vtable).tolist()

    @classmethod
    def root(cls, data: bytes) -> FlatTable:
        """Return the root table of a buffer."""
        return cls(data, _read_integer(data, 0, 4))

    def _place(self, slot: int) -> int:
        """Return the place of a slot's value; 0 if it has the default."""
        slots = self._slots
        if slot + 2 >= len(slots) or not slots[slot + 2]:
            return 0
        return int(self._at + slots[slot + 2])

    def integer(self, slot: int, size: int, default: int = 0) -> int:
        """Return a signed integer of `size` bytes."""
        place = self._place(slot)
        return _read_integer(self._data, place, size, True) if place else default

    def table(self, slot: int) -> FlatTable | None:
        """Return a table, or None."""
        place = self._place(slot)
        return FlatTable(self._data, place + _read_integer(self._data, place, 4)) if place else None

    def _vector(self, slot: int, itemsize: int) -> tuple[int, int]:
        """Return the start of a vector's elements, and their number."""
        place = self._place(slot)
        if not place:
            return 0, 0
        start = place + _read_integer(self._data, place, 4)
        count = _read_integer(self._data, start, 4)
        if start + 4 + count * itemsize > len(self._data):
            raise ValueError(f"a vector of {count:,} elements at {start}")
        return start + 4, count

    def tables(self, slot: int) -> list[FlatTable]:
        """Return a vector of tables."""
        start, count = self._vector(slot, 4)
        places = range(start, start + 4 * count, 4)
        return [
            FlatTable(self._data, place + _read_integer(self._data, place, 4)) for place in places
        ]

    def text(self, slot: int) -> str:
        """Return a string; bytes that are not UTF-8 are replaced."""
        start, count = self._vector(slot, 1)
        return self._data[start : start + count].decode("utf-8", "replace")

    def structs(self, slot: int, dtype: Any) -> npt.NDArray[Any]:
        """Return a vector of structs or numbers."""
        start, count = self._vector(slot, np.dtype(dtype).itemsize)
        return np.frombuffer(self._data, dtype, count, start)


def _read_integer(data: bytes, at: int, size: int, signed: bool = False) -> int:
    if at < 0 or at + size > len(data):
        raise ValueError(f"{size} bytes at {at}, outside of {len(data):,}")
    return int.from_bytes(data[at : at + size], "little", signed=signed)
