"""Parquet files: a column is a field. Needs pyarrow.

The parts of a struct are fields of their own, such as "image.bytes". A column of a row group is
read and decoded as a whole, so that small row groups, and shuffle="blocked", save work. Dates and
times are their integers.

Options:

    fields    names of the columns that become fields; by default all.
    label     name of an integer column with the labels; by default "label" or "labels" where it
              holds integers (and is among `fields`); "" for none. They are decoded while indexing.
    nulls     "error" (default) refuses nulls; "empty" makes them empty strings.

pyarrow ends the process at some damaged footers, where its C++ code throws and nothing catches
(found by `python -m fuzz parquet --blind` with 26.0.1): index untrusted files where that does no
harm (`penstock index`), and open them with the saved index.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import limits
from ..codecs import parquet as codec
from ..errors import FormatError, PenstockError, UsageError
from ..extent import Int
from ..index import Codec, Field, Index
from ..layout import Chunked, Pieces
from .columns import by_name, canonical_columns, whole_numbers
from .shards import counted, files_of

if TYPE_CHECKING:
    from ..store import Progress, Source, Store
    from . import Place

MAGIC = b"PAR1"
_EXTENSIONS = (".parquet", ".pq")
_FOOTER_BYTES_MAX = 256 * limits.MIB
# fmt: off
_NUMBERS = {
    "int8": "|i1", "uint8": "|u1", "int16": "<i2", "uint16": "<u2", "int32": "<i4",
    "uint32": "<u4", "int64": "<i8", "uint64": "<u8", "halffloat": "<f2", "float": "<f4",
    "double": "<f8", "bool": "|b1",
}
# fmt: on


def canonical(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options in their one spelling."""
    found = canonical_columns(options)
    nulls = options.get("nulls", "error")
    if nulls not in ("error", "empty"):
        raise UsageError(f"nulls is {nulls!r}: use 'error' or 'empty'")
    if nulls != "error":
        found["nulls"] = nulls
    return found


def sniff(head: bytes, _: str) -> bool:
    """Whether a file is one."""
    return head.startswith(MAGIC)


@dataclass(frozen=True)
class Column:
    """A leaf of the schema. `refused`: why it cannot be a field, or ""."""

    name: str
    number: int
    dtype: str = "|u1"
    shape: tuple[int, ...] | None = None
    refused: str = ""

    @property
    def options(self) -> dict[str, Any]:
        """For the codec."""
        shape = None if self.shape is None else list(self.shape)
        return {"column": self.name, "dtype": self.dtype, "shape": shape}


@dataclass
class Held:
    """What one file holds.

    footer:  offset and length of the footer.
    rows:    of each row group that is not empty, and its number.
    chunks:  of each column, offset and length in each of these row groups.
    """

    columns: dict[str, Column]
    footer: tuple[int, int]
    rows: list[int] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    chunks: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    labels: Int | None = None
    label: str | None = None


def build(
    store: Store,
    place: Place,
    progress: Progress | None,
    *,
    columns: Sequence[str] | None = None,
    label: str | None = None,
    nulls: str = "error",
) -> Index:
    """The index of all rows, file after file."""
    codec.arrow()
    files, sources = files_of(store, place, progress, _EXTENSIONS if place.kind == "folder" else ())

    def parse(_: int, source: Source) -> Held:
        return _held(source, columns, label, nulls)

    held = store.parse(files, parse, progress)
    first = held[0]
    for number, each in enumerate(held):
        if each.columns != first.columns or each.label != first.label:
            raise FormatError(
                f"{files.path(number)} has other columns than {files.path(0)}: open files of one "
                f"schema, or name columns that are the same (fields=)"
            )
    counts = [rows for each in held for rows in each.rows]
    if not counts:
        raise FormatError(f"{files.path(0)} holds no rows: there is nothing to read")
    made, layouts = [], []
    for column in first.columns.values():
        if column.name == first.label:
            continue
        bands = _bands(held, column.name)
        options = column.options | {
            "nulls": nulls,
            "group": [group for each in held for group in each.groups],
            "start": bands.offset[::2].tolist(),
        }
        shape = column.shape
        made.append(Field(column.name, np.dtype(column.dtype), shape, Codec("parquet", options)))
        layouts.append(Chunked(counted(counts), bands))
    if not made:
        raise FormatError(f"{files.path(0)} has no column that can be a field")
    labels = [each.labels for each in held if each.labels is not None]
    return Index(
        format="parquet",
        files=files,
        fields=tuple(made),
        layouts=tuple(layouts),
        sources=sources,
        label_column=np.concatenate(labels) if labels else None,
    )


def _bands(held: Sequence[Held], name: str) -> Pieces:
    """The column chunk of each row group, and the footer."""
    extents = [
        (file, *extent)
        for file, each in enumerate(held)
        for chunk in each.chunks[name]
        for extent in (chunk, each.footer)
    ]
    table = np.array(extents, np.int64).reshape(-1, 3)
    first = np.arange(len(table) // 2 + 1, dtype=np.int64) * 2
    return Pieces(first, table[:, 0].astype(np.uint32), table[:, 1].copy(), table[:, 2].copy())


# -- one file --------------------------------------------------------------------------------------


def _held(source: Source, columns: Sequence[str] | None, label: str | None, nulls: str) -> Held:
    size = source.size
    tail = source.read(max(size - 8, 0), 8)
    if tail[4:] == b"PARE":
        raise FormatError(f"{source.path} is encrypted: write it without encryption")
    if size < 12 or tail[4:] != MAGIC:
        raise source.flaw(max(size - 4, 0), "a Parquet file ends with PAR1: this one was cut")
    length = int.from_bytes(tail[:4], "little")
    if not 0 < length <= min(size - 12, _FOOTER_BYTES_MAX):
        raise source.flaw(size - 8, f"the footer has {length:,} bytes: the file is damaged")
    start = size - 8 - length
    footer = source.read(start, length + 8)
    pa = codec.arrow()
    try:
        metadata = codec.footer_of(footer)
        schema = metadata.schema.to_arrow_schema()
        return _of(source, metadata, schema, (start, length + 8), columns, label, nulls)
    except PenstockError:
        raise
    except (OSError, ValueError, KeyError, IndexError, OverflowError, MemoryError) as error:
        raise source.flaw(start, f"the footer is damaged ({error}): write the file again") from None
    except (pa.ArrowException, TypeError, UnicodeError, RuntimeError) as error:
        raise source.flaw(start, f"the footer is damaged ({error!r}): write it again") from None


def _of(
    source: Source,
    metadata: Any,
    schema: Any,
    footer: tuple[int, int],
    columns: Sequence[str] | None,
    label: str | None,
    nulls: str,
) -> Held:
    leaves = [_column(metadata.schema.column(n), n, schema) for n in range(metadata.num_columns)]
    known = by_name(source.path, [each.name for each in leaves])
    for name in (*(columns or ()), *filter(None, [label])):
        if name not in known:
            raise UsageError(
                f"{source.path} has no column {name!r}: its columns are {', '.join(known)}"
            )
    asked = list(known) if columns is None else [*dict.fromkeys([*columns, *filter(None, [label])])]
    wanted = {name: leaves[known[name]] for name in asked}
    for each in wanted.values():
        if each.refused:
            rest = [other.name for other in leaves if not other.refused]
            raise FormatError(
                f"{source.path}: column {each.name!r} {each.refused}; or name others "
                f"(fields={rest})"
            )
    if label is None:
        label = next((n for n in ("label", "labels") if n in wanted and _is_label(wanted[n])), None)
    elif label and not _is_label(wanted[label]):
        raise UsageError(f"label is {label!r}, a column of {wanted[label].dtype}: use integers")
    held = Held(wanted, footer, label=label or None, chunks={name: [] for name in wanted})
    total = 0
    for group in range(metadata.num_row_groups):
        found = metadata.row_group(group)
        rows = int(found.num_rows)
        total += rows
        if not rows >= 0 or total > limits.order_count_max:
            raise source.flaw(footer[0], f"row group {group} has {rows:,} rows: damaged")
        if rows:
            held.rows.append(rows)
            held.groups.append(group)
            for each in wanted.values():
                chunk = found.column(each.number)
                stored, said = chunk.physical_type, metadata.schema.column(each.number)
                if stored != said.physical_type:
                    raise source.flaw(
                        footer[0],
                        f"column {each.name!r} is {said.physical_type}, and in row group {group} "
                        f"{stored}: the file is damaged",
                    )
                held.chunks[each.name].append(_chunk(source, chunk, rows, footer[0], each))
                _check_nulls(source, chunk, each, nulls, total - rows)
    if label:
        held.labels = _labels(source, held, footer)
    return held


def _chunk(source: Source, chunk: Any, rows: int, end: int, column: Column) -> tuple[int, int]:
    """Where a column chunk lies."""
    if chunk.file_path:
        raise FormatError(f"{source.path}: column {column.name!r} lies in other files: merge them")
    starts = [chunk.data_page_offset]
    if chunk.has_dictionary_page and chunk.dictionary_page_offset:
        starts.append(chunk.dictionary_page_offset)
    start, size = int(min(starts)), int(chunk.total_compressed_size)
    if start < 4 or size <= 0 or start > end - size or chunk.num_values != rows:
        raise source.flaw(
            end,
            f"the footer says {size:,} bytes at {start:,} with {chunk.num_values:,} values of "
            f"{column.name!r}, for {rows:,} rows: the file is damaged",
        )
    if chunk.total_uncompressed_size > limits.decoded_band_bytes_max:
        raise source.flaw(
            start,
            f"a row group of {chunk.total_uncompressed_size:,} bytes of {column.name!r}: write "
            f"smaller row groups",
        )
    return start, size


def _check_nulls(source: Source, chunk: Any, column: Column, nulls: str, row: int) -> None:
    """FormatError where the statistics know of nulls; where they do not, decoding tells."""
    found = chunk.statistics  # of a chunk of another type these would end the process
    if found is None or not found.has_null_count or not found.null_count:
        return
    if nulls == "error" or column.shape is not None:
        remedy = "fill them" + ("" if column.shape is not None else ", or nulls='empty'")
        raise FormatError(
            f"{source.path}: column {column.name!r} has {found.null_count:,} nulls in the row "
            f"group that begins with row {row:,}: {remedy}, or name other columns (fields=)"
        )


def _column(leaf: Any, number: int, schema: Any) -> Column:
    """A leaf of the schema as a field."""
    pa, name = codec.arrow(), str(leaf.path)
    if leaf.max_repetition_level:
        return Column(name, number, refused="is a list, which has no row of its own: flatten it")
    kind: Any = None
    for part in name.split("."):
        fields = schema if kind is None else kind
        if kind is not None and not pa.types.is_struct(kind):
            return Column(name, number, refused=f"is nested in {kind}: flatten it")
        at = fields.get_field_index(part)
        if at < 0:
            return Column(name, number, refused="has a name that is not found: rename it")
        kind = fields.field(at).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    text = str(kind)
    if pa.types.is_fixed_size_binary(kind) and not pa.types.is_decimal(kind):
        return Column(name, number, shape=(int(kind.byte_width),))
    if text in ("binary", "string", "large_binary", "large_string"):
        return Column(name, number)
    if text in _NUMBERS:
        return Column(name, number, _NUMBERS[text], ())
    if pa.types.is_temporal(kind) and kind.bit_width in (32, 64):
        return Column(name, number, f"<i{kind.bit_width // 8}", ())
    return Column(name, number, refused=f"is of type {text}: cast it")


def _is_label(column: Column) -> bool:
    return column.shape == () and np.dtype(column.dtype).kind in "iu"


def _labels(source: Source, held: Held, footer: tuple[int, int]) -> Int:
    """The labels of a file, decoded now."""
    from ..codecs import Band

    assert held.label is not None
    tail = source.read(*footer)
    chunks = held.chunks[held.label]
    options = held.columns[held.label].options | {
        "nulls": "error",
        "group": held.groups,
        "start": [start for start, _ in chunks],
    }
    found = [np.zeros(0, np.int64)]
    for number, (start, size) in enumerate(chunks):
        data = source.read(start, size) + tail
        lengths = [size, len(tail)]
        if len(data) < sum(lengths):
            raise source.flaw(start, "the file ends in the labels: it was cut")
        band = Band(number, memoryview(data), lengths, held.rows[number])
        try:
            values = np.asarray(codec.decode(options, band))
        except ValueError as error:
            raise source.flaw(start, f"the labels {held.label!r} are damaged: {error}") from None
        if len(values) != held.rows[number]:
            raise source.flaw(start, f"{len(values):,} labels for {held.rows[number]:,} rows")
        found.append(whole_numbers(source.path, held.label, values))
    return np.concatenate(found)
