"""Parquet files: a column is a field. pyarrow decodes them; indexing needs no library.

The parts of a struct are fields, such as "box.width", also in lists; of an image (a struct of
"bytes" and "path") they are "image" and "image.path". A column of a row group is
read and decoded as a whole. Small row groups, and shuffle="blocked", therefore save work. Dates and
times are their integers.

Options:

    fields    names of the columns that become fields; by default all.
    label     name of an integer column with the labels; by default "label" or "labels" where it
              holds integers (and is among `fields`); "" for none. They are decoded while indexing.
    nulls     "error" (default) refuses nulls; "empty" makes them empty strings and lists, also
              inside of lists. The path of an image may be null.

The footer is parsed here, because some damaged ones make pyarrow end the process: its C++ code
throws and nothing catches. pyarrow gets the pages of one column, and a footer made for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ... import limits
from ...engine.store import StoreFile
from ...errors import FormatError, PenstockError, UsageError
from ...extent import Int
from ..codecs import parquet as codec
from ..codecs.registry import CompressedChunk, Decoded
from ..codecs.thrift import BOOL, BYTES, INT, ThriftReader
from ..fields import Codec, Field
from ..layout import Chunked
from ..nested import unpack_rows
from ..table import Index
from . import options
from .shards import Columns, Scan, lay_out_extents, number_first

MAGIC = b"PAR1"
_EXTENSIONS = (".parquet", ".pq")
_FOOTER_BYTES_MAX = 256 * limits.MIB


@dataclass(frozen=True)
class ParquetColumn:
    """A leaf of the schema. `refused`: the reason why it cannot be a field, or "".

    number, path:  its number among the columns, and its names, as each row group repeats them.
    physical, length, repetition:  how it is stored, see `penstock.index.codecs.parquet`.
    element:  shape of an element of a list.
    unit:     what the integers of dates and times count, such as "timestamp[us]".
    may_lack: True if a null is the same as an empty string: the path of an image.
    """

    name: str
    dtype: str = "|u1"
    shape: tuple[int, ...] | None = None
    refused: str = field(default="", compare=False)
    number: int = field(default=0, compare=False)
    path: tuple[bytes, ...] = field(default=(), compare=False)
    physical: int = field(default=0, compare=False)
    length: int = field(default=0, compare=False)
    repetition: tuple[int, ...] = field(default=(), compare=False)
    element: tuple[int, ...] = ()
    lists: int = 0
    may_lack: bool = False
    unit: str = ""

    @property
    def levels(self) -> tuple[int, ...]:
        """Bytes of an offset of each level of nested lists, see `Field.levels`."""
        count = self.lists + (self.physical == codec.BINARY)
        return (codec.OFFSET_BYTES,) * count if self.lists and count > 1 else ()


class ColumnChunk(NamedTuple):
    """A column chunk: its place, the bytes of its pages uncompressed, the number of its values
    (elements of lists counted one by one), and how it is stored."""

    offset: int
    length: int
    claimed: int
    values: int
    form: dict[str, Any]


@dataclass
class ParquetContent:
    """Columns and row groups of one file.

    rows:    number of rows of each row group that is not empty.
    chunks:  by column, one in each of these row groups.
    """

    columns: dict[str, ParquetColumn]
    label: str | None
    metadata: dict[str, str]
    rows: list[int] = field(default_factory=list)
    chunks: dict[str, list[ColumnChunk]] = field(default_factory=dict)
    labels: Int | None = None


def _describe(column: ParquetColumn | None) -> str:
    """Describe the values of a column, for messages; None is one that is not there."""
    if column is None:
        return "missing"
    is_bytes = column.shape is None and column.dtype == "|u1"
    name = column.unit or ("bytes" if is_bytes else np.dtype(column.dtype).name)
    size = list(column.element or column.shape or ())
    return f"{'lists of ' * column.lists}{name}{size or ''}"


def build(
    scan: Scan, fields: Columns = None, label: str | None = None, nulls: str = "error"
) -> Index:
    """The index of all rows, file after file."""
    extensions = _EXTENSIONS if scan.place.kind == "folder" else ()
    files, sources = scan.list_files(extensions)
    contents = scan.parse(files, lambda _, source: _parse_file(source, fields, label, nulls))
    first = contents[0]
    for number, content in enumerate(contents):
        if content.columns != first.columns or content.label != first.label:
            names = [*first.columns, *content.columns]
            sides = [(name, content.columns.get(name), first.columns.get(name)) for name in names]
            unlike = [
                f" ({name!r} is {_describe(ours)}, and there {_describe(theirs)})"
                for name, ours, theirs in sides
                if ours != theirs
            ]
            what = f"{files.path(number)} has other columns than {files.path(0)}"
            remedy = "open files of one schema, or name some that are the same"
            raise FormatError(f"{what}{''.join(unlike[:1])}: {remedy}")
    rows = number_first([rows for content in contents for rows in content.rows])
    if len(rows) < 2:
        raise FormatError(f"{files.path(0)} holds no rows: there is nothing to read")
    column_fields, layouts = [], []
    for column in first.columns.values():
        if column.name == first.label:
            continue
        chunks = [content.chunks[column.name] for content in contents]
        made = Codec(
            "parquet", _make_options(column, [one for of_file in chunks for one in of_file], nulls)
        )
        shape, dtype = column.shape, np.dtype(column.dtype)
        levels, element = column.levels, column.element
        column_fields.append(Field(column.name, dtype, shape, made, element=element, levels=levels))
        offsets = [np.array([chunk.offset for chunk in of_file], np.int64) for of_file in chunks]
        lengths = [np.array([chunk.length for chunk in of_file], np.int64) for of_file in chunks]
        layouts.append(Chunked(rows, lay_out_extents(offsets, lengths)))
    if not column_fields:
        raise FormatError(f"{files.path(0)} has no column that can be a field")
    labels = classes = None
    if first.label is not None:
        labels = np.concatenate([np.asarray(content.labels) for content in contents])
        metadata = [content.metadata for content in contents]
        classes = options.read_classes(files, metadata, first.label, labels)
    return Index("parquet", files, tuple(column_fields), tuple(layouts), sources, classes, labels)


def _make_options(
    column: ParquetColumn, chunks: Sequence[ColumnChunk], nulls: str
) -> dict[str, Any]:
    """Make the codec's options: the forms of the chunks, each with the chunk it begins at."""
    new = [n for n, chunk in enumerate(chunks) if not n or chunk.form != chunks[n - 1].form]
    return {
        "column": column.name,
        "dtype": column.dtype,
        "shape": None if column.shape is None else list(column.shape),
        "nulls": "empty" if column.may_lack else nulls,
        **({"lists": column.lists, "element": list(column.element)} if column.lists else {}),
        **({"values": [chunk.values for chunk in chunks]} if column.lists else {}),
        "forms": [chunks[n].form for n in new],
        "since": new,
        "claimed": max((chunk.claimed for chunk in chunks), default=0),
    }


# -- one file --------------------------------------------------------------------------------------

_UNIT: dict[int, Any] = {1: {}, 2: {}, 3: {}}
_LOGICAL: dict[int, Any] = {
    **{number: {} for number in (2, 3, 5, 6, 11, 15)},  # map, list, decimal, date, null, half float
    **{number: {2: _UNIT} for number in (7, 8)},  # time, timestamp
    10: {1: INT, 2: BOOL},  # integer
}
_ELEMENT = {1: INT, 2: INT, 3: INT, 4: BYTES, 5: INT, 6: INT, 10: _LOGICAL}
_META = {1: INT, 3: [BYTES], 4: INT, 5: INT, 6: INT, 7: INT, 9: INT, 11: INT, 12: {3: INT}}
_CHUNK = {1: BYTES, 3: _META, 8: {}, 9: BYTES}
_FILE = {2: [_ELEMENT], 4: [{1: [_CHUNK], 3: INT}], 5: [{1: BYTES, 2: BYTES}], 6: BYTES}
"""Shape of the footer (parquet.thrift): schema elements, row groups, column chunks, metadata,
writer."""


def _parse_file(
    source: StoreFile, columns: Sequence[str] | None, label: str | None, nulls: str
) -> ParquetContent:
    size = source.size
    tail = source.read(max(size - 8, 0), 8)
    if tail[4:] == b"PARE":
        raise FormatError(f"{source.path} is encrypted: write it without encryption")
    if size < 12 or tail[4:] != MAGIC:
        raise source.flaw(max(size - 4, 0), "no PAR1 at the end: the file is truncated")
    length = int.from_bytes(tail[:4], "little")
    if not 0 < length <= min(size - 12, _FOOTER_BYTES_MAX):
        raise source.flaw(size - 8, f"the footer has {length:,} bytes: the file is damaged")
    start = size - 8 - length
    try:
        footer = ThriftReader(source.read(start, length)).struct(_FILE)
        content = _choose_columns(source, footer, columns, label)
        _take_groups(source, footer, start, content, nulls)
    except (ValueError, LookupError) as error:
        if isinstance(error, PenstockError):
            raise
        what = f"field {error} is missing" if isinstance(error, KeyError) else str(error)
        raise source.flaw(start, f"the footer is damaged ({what}): write the file again") from None
    if content.label is not None:
        chunks = _decode_chunks(source, content, content.label, "error")
        values = [np.zeros(0, np.int64), *map(np.asarray, chunks)]
        labels = [options.convert_labels(source.path, content.label, one) for one in values]
        content.labels = np.concatenate(labels)
    return content


def _choose_columns(
    source: StoreFile, footer: dict[int, Any], columns: Sequence[str] | None, label: str | None
) -> ParquetContent:
    """Choose the columns to read, and the label, from the schema of a footer."""
    leaves = _list_leaves(footer[2])
    known = options.number_columns(source.path, [leaf.name for leaf in leaves])
    wanted = {
        name: leaves[known[name]]
        for name in options.list_wanted(source.path, known, columns, label)
    }
    for column in wanted.values():
        options.check_readable(source.path, column, leaves)
    label = options.find_label(wanted, label)
    if label is not None and not options.holds_integers(wanted[label]):
        raise UsageError(f"label is {label!r}, a column of {wanted[label].dtype}: use integers")
    metadata = {
        pair[1].decode("utf-8", "replace"): pair.get(2, b"").decode("utf-8", "replace")
        for pair in footer.get(5, [])
    }
    return ParquetContent(wanted, label, metadata, chunks={name: [] for name in wanted})


def _take_groups(
    source: StoreFile, footer: dict[int, Any], end: int, content: ParquetContent, nulls: str
) -> None:
    """Take the column chunks of all row groups of a footer at byte `end`."""
    old = footer.get(6, b"").startswith(b"parquet-cpp version 1.")
    columns = sum(1 in element for element in footer[2])
    total = 0
    for number, group in enumerate(footer.get(4, [])):
        rows, chunks = group[3], group[1]
        total += rows
        if rows < 0 or total > limits.order_count_max or len(chunks) != columns:
            what = f"{rows:,} rows, and {len(chunks)} columns of {columns}"
            raise source.flaw(end, f"row group {number} has {what}: damaged")
        if rows:
            content.rows.append(rows)
            for name, column in content.columns.items():
                chunk = chunks[column.number]
                content.chunks[name].append(_locate_chunk(source, chunk, rows, end, column, old))
                # Statistics that do not count nulls leave them to decoding; so do those of lists,
                # where they count more.
                count = 0 if column.lists or column.may_lack else chunk[3].get(12, {}).get(3, 0)
                if count and (nulls == "error" or column.shape is not None):
                    remedy = "" if column.shape is not None else ", or nulls='empty'"
                    what = f"{count:,} of {name!r} are null: fill them{remedy}"
                    raise FormatError(f"{source.path}: {what}")


def _locate_chunk(
    source: StoreFile, chunk: dict[int, Any], rows: int, end: int, column: ParquetColumn, old: bool
) -> ColumnChunk:
    """Locate a column chunk, and describe how it is stored."""
    what = f"column {column.name!r}"
    if chunk.get(1):
        raise FormatError(f"{source.path}: {what} lies in other files: merge them")
    if 8 in chunk or 9 in chunk:
        raise FormatError(f"{source.path}: {what} is encrypted: write it without encryption")
    meta = chunk[3]
    if meta[1] != column.physical or tuple(meta[3]) != column.path:
        raise source.flaw(end, f"{what} is of another type in a row group: damaged")
    start, size = meta[9], meta[7]
    if 0 < meta.get(11, 0) < start:
        start = meta[11]
    values = meta[5]
    is_short = values < rows if column.lists else values != rows
    if start < 4 or size <= 0 or start > end - size or is_short:
        raise source.flaw(end, f"the footer claims {size:,} bytes at {start:,}: damaged")
    row_bytes = (column.length or np.dtype(column.dtype).itemsize) + 4 * (column.shape is None)
    row_bytes += 4 * column.lists
    if max(meta[6], values * row_bytes) > limits.decoded_chunk_bytes_max:
        raise source.flaw(start, f"a row group has {meta[6]:,} bytes of {column.name!r}")
    if meta[4] not in _COMPRESSIONS:
        raise source.flaw(end, f"{what} is compressed by method {meta[4]}: use zstd")
    form = {
        "physical": column.physical,
        "length": column.length,
        "optional": list(column.repetition),
        "compression": meta[4],
        "old": old,
    }
    return ColumnChunk(start, size, meta[6], values, form)


# -- schema ----------------------------------------------------------------------------------------

_NESTED_MAX = 100
_COMPRESSIONS = {0, 1, 2, 4, 5, 6, 7}  # all but LZO
_REQUIRED, _OPTIONAL, _REPEATED = range(3)
_LIST = 3
_MAPS = (1, 2)
"""Kinds of groups, in the field of schema elements that newer writers still fill."""


def _list_leaves(elements: list[dict[int, Any]]) -> list[ParquetColumn]:
    """List the columns of a schema, whose elements are a tree from the top down, parents first."""
    columns: list[ParquetColumn] = []
    rest = elements[::-1]

    def add(path: list[dict[int, Any]]) -> None:
        """Add the leaves below the group that a path leads to."""
        first = len(elements) - len(rest)
        members = elements[first : first + path[-1][5]][:3]
        # The leaves of a group are an image's or a sound's: bytes and path.
        is_media = sorted(member.get(4, b"") for member in members) == [b"bytes", b"path"] and all(
            member.get(1) == codec.BINARY and member.get(3) != _REPEATED for member in members
        )
        for _ in range(path[-1][5]):
            element = rest.pop()
            children = element.get(5, 0)
            if (children > 0) == (1 in element) or len(path) > _NESTED_MAX:
                raise ValueError("the schema is not a tree, or has no columns")
            if children:
                add([*path, element])
            else:
                columns.append(_make_column([*path[1:], element], len(columns), is_media))

    add([rest.pop()])
    if rest:
        raise ValueError("the schema has more elements than its tree")
    return columns


def _name_column(path: list[dict[int, Any]]) -> str:
    """Name a leaf by its parents and itself, without the groups that make a list."""
    names: list[bytes] = []
    above: dict[int, Any] = {}
    skips = False
    for element in path:
        is_list = above.get(6) == _LIST or 3 in above.get(10, {})
        if skips:
            skips = False
        elif is_list and element[3] == _REPEATED:
            name = element[4]
            skips = element.get(5, 0) == 1 and name != b"array" and not name.endswith(b"_tuple")
        else:
            names.append(element[4])
        above = element
    return b".".join(names).decode()


def _make_column(path: list[dict[int, Any]], number: int, is_media: bool) -> ParquetColumn:
    """Make the column of a leaf of the schema, below its parents.

    is_media:  True if it is the bytes or the path of an image or a sound.
    """
    leaf = path[-1]
    is_bytes = is_media and leaf[4] == b"bytes" and len(path) > 1
    name = _name_column(path[:-1] if is_bytes else path)
    if any(element[3] not in (_REQUIRED, _OPTIONAL, _REPEATED) for element in path):
        raise ValueError(f"column {name!r} is neither required nor optional nor repeated")
    if any(element.get(6) in _MAPS or 2 in element.get(10, {}) for element in path[:-1]):
        full = b".".join(element[4] for element in path).decode()
        return ParquetColumn(full, refused="is a map: make it a list of structs")
    lists = sum(element[3] == _REPEATED for element in path)
    dtype, shape = "|u1", None
    element_shape: tuple[int, ...] = ()
    refused = ""
    try:
        dtype, shape = _find_type(leaf)
    except TypeError as error:
        refused = f"is {error}: cast it"
    if lists:
        element_shape, shape = shape or (), None
    physical = leaf[1]
    return ParquetColumn(
        name,
        dtype,
        shape,
        refused,
        number,
        tuple(element[4] for element in path),
        physical,
        leaf[2] if physical == codec.FIXED else 0,
        tuple(element[3] for element in path),
        element_shape,
        lists,
        is_media and leaf[4] == b"path",
        _find_unit(leaf),
    )


_PLAIN = {
    codec.BOOLEAN: "|b1",
    codec.INT32: "<i4",
    codec.INT64: "<i8",
    codec.INT96: "<i8",  # nanoseconds of an outdated kind of time
    codec.FLOAT: "<f4",
    codec.DOUBLE: "<f8",
}
_WIDTH_MAX = 1 << 20
_CONVERTED = dict(enumerate(("|u1", "<u2", "<u4", "<u8", "|i1", "<i2", "<i4", "<i8"), 11))
_COUNTED = {6: "date", 7: "time", 8: "timestamp"}
_UNITS = {1: "ms", 2: "us", 3: "ns"}
_CONVERTED_UNITS = dict(
    enumerate(("date", "time[ms]", "time[us]", "timestamp[ms]", "timestamp[us]"), 6)
)


def _find_unit(leaf: dict[int, Any]) -> str:
    """Find what the integers of a leaf count, if they are dates or times."""
    for number, unit in leaf.get(10, {}).items():
        if number in _COUNTED:
            counts = [f"[{_UNITS[one]}]" for one in unit.get(2, ())]
            return _COUNTED[number] + "".join(counts)
    if leaf[1] == codec.INT96:
        return "timestamp[ns]"
    return _CONVERTED_UNITS.get(leaf.get(6, 0), "")


def _find_type(leaf: dict[int, Any]) -> tuple[str, tuple[int, ...] | None]:
    """Find the numpy type and the shape of a leaf; TypeError for types that numpy lacks."""
    physical, converted, logical = leaf[1], leaf.get(6), leaf.get(10, {})
    if converted == 5 or 5 in logical:
        raise TypeError("of decimals")
    if 11 in logical:
        raise TypeError("of nothing but nulls")
    if physical == codec.BINARY:
        return "|u1", None
    if physical == codec.FIXED:
        if not 0 < leaf[2] <= _WIDTH_MAX or (15 in logical and leaf[2] != 2):
            raise ValueError(f"values of {leaf[2]:,} bytes")
        return ("<f2", ()) if 15 in logical else ("|u1", (leaf[2],))
    dtype = _CONVERTED.get(converted or 0, _PLAIN[physical])
    if 10 in logical:
        bits, signed = logical[10][1], logical[10].get(2, False)
        dtype = {(n, s): np.dtype(f"{s}{n // 8}").str for n in (8, 16, 32, 64) for s in "iu"}[
            bits, "i" if signed else "u"
        ]
    stored = codec.INT64 if dtype in ("<u8", "<i8") else codec.INT32
    if dtype != _PLAIN[physical] and physical != stored:
        raise ValueError(f"{dtype} stored as type {physical}")
    return dtype, ()


def read_columns(
    source: StoreFile,
    names: Sequence[str] | None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> dict[str, Any]:
    """Read columns of a file as a whole: arrays of numbers, and lists of texts.

    shapes:  of a row of columns of lists.

    FormatError for another column of lists, or of bytes that are no UTF-8.
    """
    content = _parse_file(source, names, "", "empty")
    table: dict[str, Any] = {}
    for name, column in content.columns.items():
        chunks = list(_decode_chunks(source, content, name, "empty"))
        if column.lists and shapes is not None and name in shapes:
            arrays = [_stack_lists(source, column, rows, shapes[name]) for rows in chunks]
            table[name] = np.concatenate([np.zeros((0, *shapes[name]), column.dtype), *arrays])
            continue
        if column.lists or column.shape not in (None, ()):
            raise FormatError(f"{source.path}: {name!r} has lists: give columns= without")
        if column.shape == ():
            numbers = [np.zeros(0, column.dtype), *(np.asarray(rows) for rows in chunks)]
            table[name] = np.concatenate(numbers)
            continue
        try:
            table[name] = [str(rows[row], "utf-8") for rows in chunks for row in range(len(rows))]
        except UnicodeDecodeError as error:
            raise FormatError(f"{source.path}: {name!r} is no text ({error})") from None
    return table


def _stack_lists(
    source: StoreFile, column: ParquetColumn, rows: Any, shape: tuple[int, ...]
) -> np.ndarray[Any, Any]:
    """Stack lists of one shape; FormatError if one is of another."""
    dtype, bounds = np.dtype(column.dtype), np.append(rows.start, rows.end[-1:])
    values, counts = np.frombuffer(rows.values, np.uint8), np.diff(bounds) // dtype.itemsize
    levels: list[Int] = []
    if column.levels:
        values, levels = unpack_rows(values, bounds, column.levels, dtype.itemsize)
        counts = np.diff(levels[0])
    sizes = [counts, *map(np.diff, levels[1:])]
    if len(shape) != column.lists or any(
        (one != size).any() for one, size in zip(sizes, shape, strict=True)
    ):
        what = f"column {column.name!r} has {column.lists} levels of lists, not all of {shape}"
        raise FormatError(f"{source.path}: {what}: write the file again, or leave it out")
    return values.view(dtype).reshape(-1, *shape)


def _decode_chunks(
    source: StoreFile, content: ParquetContent, name: str, nulls: str
) -> Iterator[Decoded]:
    """Read and decode the chunks of a column."""
    chunks = content.chunks[name]
    options = _make_options(content.columns[name], chunks, nulls)
    for number, (start, size, *_) in enumerate(chunks):
        data = source.read(start, size)
        if len(data) < size:
            raise source.flaw(start, f"the file ends in column {name!r}: it is truncated")
        compressed = CompressedChunk(number, memoryview(data), [size], content.rows[number])
        try:
            values = codec.decode(options, compressed)
        except ValueError as error:
            raise source.flaw(start, f"column {name!r} is damaged: {error}") from None
        if len(values) != content.rows[number]:
            raise source.flaw(start, f"{len(values):,} values of {name!r}: damaged")
        yield values
