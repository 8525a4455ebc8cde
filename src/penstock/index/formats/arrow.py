"""Arrow files and streams, Feather version 2 and folders of Hugging Face `datasets`.

Each column is a field: values of one size, byte strings and text (as UTF-8), lists of these and of
lists. The parts of a struct are fields, such as "box.width", also in lists; of an image (a struct
of "bytes" and "path") they are "image" and "image.path". A dictionary's column has the values.
Dates and times are their integers. Uncompressed columns are read in place. Compressed and boolean
ones are decoded, and compression needs pyarrow.

Options:

    fields    names of the columns that become fields; by default all but columns of only nulls.
    label     name of an integer column with the labels; by default "label" or "labels" where it
              holds integers (and is among `fields`); "" for none. Names of classes come
              from `datasets`, or from the column's dictionary.
    nulls     "error" (default) refuses nulls; "empty" makes them empty strings and lists, also
              inside of lists. The path of an image may be null.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import limits
from ...engine.store import Progress, Store, StoreFile
from ...errors import FormatError, UsageError
from ...extent import Files, Int
from ..codecs import arrow as codec
from ..fields import Codec, Field
from ..layout import Chunked, Fixed, Layout, Pieces, RowTable
from ..nested import lay_out_rows
from ..table import Index
from . import column_choice, saved_datasets
from .arrow_ipc import (
    MAGIC,
    MARKER,
    ArrowColumn,
    ColumnNode,
    RecordBatch,
    Schema,
    read_messages,
)
from .shards import Location, list_files, number_first

_FILL = "fill them, or give nulls='empty', or fields="
_EXTENSIONS = (".arrow", ".feather", ".ipc", ".arrows")


def sniff(head: bytes, _: str) -> bool:
    """True if a file is an Arrow file or stream."""
    if head.startswith(MAGIC + b"\0\0"):
        return True
    length = int.from_bytes(head[4:8], "little")
    # A file of floats may begin with the marker too: the schema's table must lie inside.
    return (
        head.startswith(MARKER)
        and 16 <= length < limits.header_bytes_max
        and length % 8 == 0
        and 4 <= int.from_bytes(head[8:12], "little") < length
    )


@dataclass
class ArrowPart:
    """Values of one column in one file.

    bases:    byte at which each batch's values begin, for values of one size.
    offset, length:  of each sample, if they vary; one array a batch.
    counts:   of nested columns: the pieces of each row; `offset` and `length` are of each piece.
    pieces:   for decoded columns: the extents of each batch's buffers.
    dictionary_rows:  of decoded columns with a dictionary: the values of each batch's dictionary.
    located, known:  place and length of the values of the last dictionary, and its labels; each
              with the bytes of the first and last of its messages.
    nulls:    number of nulls; `first_null` is the row of the first.
    inner_nulls:  number of nulls inside of lists.
    label_rows:  of a label with a dictionary: indices, and what they mean, of each batch.
    """

    column: ArrowColumn
    bases: list[int] = field(default_factory=list)
    offset: list[Int] = field(default_factory=list)
    length: list[Int] = field(default_factory=list)
    counts: list[Int] = field(default_factory=list)
    pieces: list[list[tuple[int, int]]] = field(default_factory=list)
    dictionary_rows: list[int] = field(default_factory=list)
    located: tuple[tuple[int, int], tuple[Int, Int]] | None = None
    known: tuple[tuple[int, int], tuple[str, ...] | Int] | None = None
    nulls: int = 0
    first_null: int = -1
    inner_nulls: int = 0
    labels: list[Int] = field(default_factory=list)
    label_rows: list[tuple[Int, tuple[str, ...] | Int]] = field(default_factory=list)


@dataclass
class ArrowContent:
    """Content of one file. `rows` is of each batch; batches without rows are left out."""

    schema: Schema
    rows: list[int]
    compression: str
    parts: dict[str, ArrowPart]


def build(
    store: Store,
    place: Location,
    progress: Progress | None,
    *,
    fields: Sequence[str] | None = None,
    label: str | None = None,
    nulls: str = "error",
) -> Index:
    """The index of all rows, file after file."""
    if place.kind != "folder" or not saved_datasets.is_saved_dataset(store):
        extensions = _EXTENSIONS if place.kind == "folder" else ()
        files, sources = list_files(store, place, progress, extensions)
        held = store.parse(files, lambda _, source: parse_file(source, fields, label), progress)
        return make_index("arrow", files, sources, held, fields, label, nulls)
    files, sources, rows = saved_datasets.list_streams(store)
    held = store.parse(files, lambda _, source: parse_file(source, fields, label), progress)
    found = sum(sum(content.rows) for content in held)
    if rows is not None and found != rows:
        raise FormatError(f"{store.root}: {found:,} rows, and dataset_info.json says {rows:,}")

    def read_names(column: str) -> list[Any] | None:
        return saved_datasets.read_class_names(store, column)

    return make_index("arrow", files, sources, held, fields, label, nulls, read_names)


def make_index(
    format: str,
    files: Files,
    sources: Files,
    held: list[ArrowContent],
    columns: Sequence[str] | None = None,
    label: str | None = None,
    nulls: str = "error",
    read_names: Callable[[str], list[Any] | None] = lambda _: None,
) -> Index:
    """Make the index of all rows of the parsed files.

    read_names:  reads the names of the classes of a column, if the files do not have them.
    """
    parts = _collect_parts(files, held)
    total = sum(sum(content.rows) for content in held)
    if not total:
        raise FormatError(f"{files.path(0)} holds no rows: there is nothing to read")
    if total > limits.order_count_max:
        raise FormatError(f"{files.path(0)} claims {total:,} rows: the file is damaged")
    label_column = None
    classes = None
    named = _choose_label(held[0], label)
    if named is not None:
        _check_nulls(files, parts.pop(named), named, "error")
        label_column, classes = _collect_labels(files, held, named)
        if classes is None:
            classes = column_choice.check_class_names(read_names(named), label_column)
    fields: list[Field] = []
    layouts: list[Layout] = []
    for name, column_parts in parts.items():
        if columns is None and sum(part.nulls for part in column_parts) == total:
            if f"{name}.path" in parts:
                raise FormatError(f"{files.path(0)}: {name!r} holds only paths: embed the files")
            continue
        _check_nulls(files, column_parts, name, nulls)
        field, layout = _make_field(held, column_parts)
        fields.append(field)
        layouts.append(layout)
    if not fields:
        raise FormatError(f"{files.path(0)} has no column that can be a field")
    return Index(
        format=format,
        files=files,
        fields=tuple(fields),
        layouts=tuple(layouts),
        sources=sources,
        classes=classes,
        label_column=label_column,
    )


# -- one file --------------------------------------------------------------------------------------


def parse_file(source: StoreFile, columns: Sequence[str] | None, label: str | None) -> ArrowContent:
    """Parse one file for the columns asked for."""
    schema, batches = read_messages(source)
    known = column_choice.number_columns(source.path, [column.name for column in schema.columns])
    wanted = [
        schema.columns[known[name]]
        for name in column_choice.list_wanted(source.path, known, columns, label)
    ]
    batches = [batch for batch in batches if batch.rows]
    methods = {batch.compression for batch in batches}
    if len(methods) > 1:
        raise FormatError(f"{source.path}: batches are compressed in several ways")
    held = ArrowContent(
        schema, [batch.rows for batch in batches], methods.pop() if methods else "", {}
    )
    named = column_choice.find_label({column.name: column for column in wanted}, label)
    for column in wanted:
        if column.refused:
            if columns is not None:
                raise FormatError(f"{source.path}: column {column.name!r} {column.refused}")
            if "of type null" not in column.refused:
                rest = [other.name for other in schema.columns if not other.refused]
                raise FormatError(f"{source.path}: {column.name!r} {column.refused}: fields={rest}")
            continue
        part = held.parts[column.name] = ArrowPart(column)
        row = 0
        for batch in batches:
            _add_batch(source, batch, part, row, column.name == named)
            row += batch.rows
    return held


def shift_places(held: ArrowContent, start: int) -> ArrowContent:
    """Shift all places, for a table that does not begin at the start of its file."""
    for part in held.parts.values():
        part.bases = [base + start for base in part.bases]
        part.offset = [offset + start for offset in part.offset]
        part.pieces = [[(at + start, length) for at, length in piece] for piece in part.pieces]
    return held


def _add_batch(
    source: StoreFile, batch: RecordBatch, part: ArrowPart, row: int, is_label: bool
) -> None:
    """Add the values of a column in one batch to its part."""
    column, rows = part.column, batch.rows
    masked = [node for node in column.nodes if _count_nulls(source, batch, column, node, rows)]
    masks = [batch.buffer(node.buffer, node.views, source) for node in masked]
    missing = None
    if masks:
        missing = _read_nulls(source, batch, masks, rows)
        if part.first_null < 0:
            part.first_null = row + int(np.argmax(missing))
        part.nulls += int(np.count_nonzero(missing))
    if column.values is not None:
        _add_coded(source, batch, part, masks, missing, is_label)
        return
    first = batch.buffer(column.buffer, column.views, source)
    offsets = [
        batch.buffer(level.node.buffer + 1, level.node.views, source) for level in column.levels
    ]
    _check_inner(source, batch, part, offsets)
    if is_label and column.kind == "fixed":
        values = _read_numbers(source, batch, first, column.dtype, rows, "labels")
        part.labels.append(column_choice.convert_labels(source.path, column.name, values))
    if batch.compression or column.is_flags:
        part.pieces.append([*masks, *offsets, first])
    elif column.kind == "fixed":
        size = rows * _count_row_bytes(column)
        if size > first[1]:
            raise source.flaw(first[0], f"{column.name!r} has too few bytes for {rows:,} rows")
        part.bases.append(first[0])
    else:
        ends = _read_offsets(source, batch, column, offsets, first)
        if column.kind == "varied":
            start, size_bytes = ends[0][:-1], np.diff(ends[0]) * _count_element_bytes(column)
            if missing is not None:
                size_bytes[missing] = 0
            part.offset.append(first[0] + start * _count_element_bytes(column))
            part.length.append(size_bytes)
            return
        bases = [*(place for place, _ in offsets), first[0]]
        element_bytes = _count_element_bytes(column)
        begin, place, length = lay_out_rows(ends, bases, column.widths, element_bytes, missing)
        part.counts.append(np.diff(begin))
        part.offset.append(place)
        part.length.append(length)


def _count_nulls(
    source: StoreFile, batch: RecordBatch, column: ArrowColumn, node: ColumnNode, rows: int = -1
) -> int:
    """Count the nulls of a node, of `rows` slots if that is known."""
    if node.number >= len(batch.nodes):
        raise source.flaw(batch.at, "the record batch has fewer columns than the schema")
    held, null_count = (int(value) for value in batch.nodes[node.number])
    if not 0 <= null_count <= held or (rows >= 0 and held != rows):
        raise source.flaw(batch.at, f"{column.name!r} is of {held:,} rows, {null_count:,} null")
    return null_count


def _check_inner(
    source: StoreFile,
    batch: RecordBatch,
    part: ArrowPart,
    offsets: list[tuple[int, int]],
) -> None:
    """Count nulls inside of lists; an error unless each is a list or text without content."""
    column = part.column
    for node in column.inner:
        if not _count_nulls(source, batch, column, node):
            continue
        slots = int(batch.nodes[node.number][0])
        if node.levels >= len(column.levels):
            raise source.flaw(batch.at, f"{column.name!r} has nulls inside of lists: fill them")
        mask = batch.buffer(node.buffer, node.views, source)
        missing = _read_nulls(source, batch, [mask], slots)
        part.inner_nulls += int(np.count_nonzero(missing))
        level = column.levels[node.levels]
        ends = _read_numbers(
            source,
            batch,
            offsets[node.levels],
            np.dtype(f"<i{level.width}"),
            slots + 1,
            f"offsets of {column.name!r}",
        )
        if (np.diff(ends)[missing] != 0).any():
            raise source.flaw(batch.at, f"{column.name!r} has nulls in lists with content")


def _read_numbers(
    source: StoreFile,
    batch: RecordBatch,
    extent: tuple[int, int],
    dtype: np.dtype[Any],
    count: int,
    what: str,
) -> npt.NDArray[Any]:
    """Read the first numbers of a buffer; FormatError if it has fewer."""
    size = count * dtype.itemsize
    data: bytes | memoryview = b""
    if batch.compression:
        data = _read_buffer(source, batch, extent, size)
    elif size <= extent[1]:
        data = source.read(extent[0], size)
    if len(data) < size:
        raise source.flaw(extent[0], f"too few bytes of {what} for {count:,}: truncated")
    return np.frombuffer(data, dtype, count)


def _read_offsets(
    source: StoreFile,
    batch: RecordBatch,
    column: ArrowColumn,
    offsets: list[tuple[int, int]],
    values: tuple[int, int],
) -> list[Int]:
    """Read the offsets of each level, as far as rows use them; FormatError unless they ascend."""
    found: list[Int] = []
    slots = batch.rows
    for number, (level, extent) in enumerate(zip(column.levels, offsets, strict=True)):
        ends = np.zeros(1, np.int64)
        if slots:
            dtype = np.dtype(f"<i{level.width}")
            what = f"offsets of {column.name!r}"
            ends = _read_numbers(source, batch, extent, dtype, slots + 1, what).astype(np.int64)
        below = column.levels[number + 1 :]
        most = (
            int(batch.nodes[below[0].node.number][0])
            if below
            else values[1] // _count_element_bytes(column)
        )
        if int(ends[0]) < 0 or (np.diff(ends) < 0).any() or int(ends[-1]) > most:
            beyond = f"{most:,} lists" if below else f"{values[1]:,} bytes"
            raise source.flaw(extent[0], f"the offsets of {column.name!r} leave its {beyond}")
        found.append(ends)
        slots = int(ends[-1])
    return found


def _add_coded(
    source: StoreFile,
    batch: RecordBatch,
    part: ArrowPart,
    masks: list[tuple[int, int]],
    missing: npt.NDArray[np.bool_] | None,
    is_label: bool,
) -> None:
    """Add the rows of a column of indices into a dictionary: each is the place of its value."""
    column, values = part.column, part.column.held
    extent = batch.buffer(column.buffer, column.views, source)
    segments = batch.dictionaries.get(column.key, ())
    if not segments:
        raise source.flaw(batch.at, f"column {column.name!r} has no dictionary: write it again")
    indices = _read_numbers(
        source, batch, extent, column.dtype, batch.rows, f"indices of {column.name!r}"
    ).astype(np.int64)
    if missing is not None:
        indices = np.where(missing, 0, indices)
    which = segments[0].at, segments[-1].at
    for segment in segments if part.located is None or part.located[0] != which else ():
        if _count_nulls(source, segment, values, ColumnNode(0, 0, 0), segment.rows):
            raise source.flaw(segment.at, f"the dictionary of {values.name!r} holds a null")
    count = sum(segment.rows for segment in segments)
    used = indices if missing is None else indices[~missing]
    if len(used) and not 0 <= int(used.min()) <= int(used.max()) < count:
        raise source.flaw(extent[0], f"an index of {column.name!r} leaves its dictionary")
    if is_label:
        if part.known is None or part.known[0] != which:
            part.known = which, _read_dictionary(source, values, segments)
        part.label_rows.append((indices, part.known[1]))
    if batch.compression or segments[0].compression:
        if len(segments) > 1:
            raise FormatError(f"{source.path}: the compressed dictionary of {column.name!r} grows")
        (held,) = segments
        if held.compression != batch.compression:
            raise FormatError(f"{source.path}: the dictionary of {column.name!r} is compressed")
        inside = [
            held.buffer(level.node.buffer + 1, level.node.views, source) for level in values.levels
        ]
        part.pieces.append([*masks, extent, *inside, held.buffer(values.buffer, 0, source)])
        part.dictionary_rows.append(held.rows)
        return
    if part.located is None or part.located[0] != which:
        part.located = which, _locate_dictionary(source, values, segments)
    place, length = part.located[1]
    part.offset.append(place[indices] if count else np.zeros(batch.rows, np.int64))
    own = length[indices] if count else np.zeros(batch.rows, np.int64)
    if missing is not None and values.kind == "varied":
        own[missing] = 0
    part.length.append(own)


def _locate_dictionary(
    source: StoreFile, values: ArrowColumn, segments: tuple[RecordBatch, ...]
) -> tuple[Int, Int]:
    """Locate the values of a dictionary: place and length of each."""
    places, lengths = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for segment in segments:
        data = segment.buffer(values.buffer, 0, source)
        if values.kind == "varied":
            size = _count_element_bytes(values)
            extent = segment.buffer(values.levels[0].node.buffer + 1, 0, source)
            (ends,) = _read_offsets(source, segment, values, [extent], data)
            places.append(data[0] + ends[:-1] * size)
            lengths.append(np.diff(ends) * size)
            continue
        size = _count_row_bytes(values)
        if segment.rows * size > data[1]:
            raise source.flaw(data[0], f"the dictionary of {values.name!r} is truncated")
        places.append(data[0] + np.arange(segment.rows) * size)
        lengths.append(np.full(segment.rows, size, np.int64))
    return np.concatenate(places), np.concatenate(lengths)


def _read_dictionary(
    source: StoreFile, values: ArrowColumn, segments: tuple[RecordBatch, ...]
) -> tuple[str, ...] | Int:
    """Read the values of a dictionary of labels: names, or integers."""
    names: list[str] = []
    numbers = [np.zeros(0, np.int64)]
    for segment in segments:
        data = segment.buffer(values.buffer, 0, source)
        if values.kind == "varied":
            level = values.levels[0]
            extent = segment.buffer(level.node.buffer + 1, 0, source)
            dtype = np.dtype(f"<i{level.width}")
            ends = _read_numbers(
                source, segment, extent, dtype, segment.rows + 1, "offsets of labels"
            ).tolist()
            if ends[0] < 0 or sorted(ends) != ends:
                raise source.flaw(extent[0], "the offsets of labels are not ascending: damaged")
            text = bytes(_read_numbers(source, segment, data, np.dtype("u1"), ends[-1], "labels"))
            names += [
                text[begin:end].decode("utf-8", "replace")
                for begin, end in itertools.pairwise(ends)
            ]
        else:
            read = _read_numbers(source, segment, data, values.dtype, segment.rows, "labels")
            numbers.append(column_choice.convert_labels(source.path, values.name, read))
    return tuple(names) if values.kind == "varied" else np.concatenate(numbers)


def _count_element_bytes(column: ArrowColumn) -> int:
    return Field("", column.dtype, None, element=column.element).element_bytes


def _count_row_bytes(column: ArrowColumn) -> int:
    row_bytes = Field("", column.dtype, column.shape).nbytes
    assert row_bytes is not None
    return row_bytes


def _read_buffer(
    source: StoreFile, batch: RecordBatch, extent: tuple[int, int], size: int
) -> bytes | memoryview:
    """Read a buffer and decompress it."""
    try:
        return codec.decompress_buffer(batch.compression, source.read(*extent), size)
    except UsageError:
        raise
    except ValueError as error:
        raise source.flaw(extent[0], f"a buffer is damaged: {error}: write it again") from None


def _read_nulls(
    source: StoreFile, batch: RecordBatch, masks: list[tuple[int, int]], rows: int
) -> npt.NDArray[np.bool_]:
    """Read which rows one of the masks leaves out."""
    size = -(-rows // 8)
    bytes_read = [
        _read_numbers(source, batch, mask, np.dtype("u1"), size, "validity") for mask in masks
    ]
    present = np.bitwise_and.reduce(bytes_read)
    missing: npt.NDArray[np.bool_] = np.unpackbits(present, bitorder="little")[:rows] == 0
    return missing


# -- all files -------------------------------------------------------------------------------------


def _collect_parts(files: Files, held: list[ArrowContent]) -> dict[str, list[ArrowPart]]:
    """Check that all files have the same columns, and collect the parts of each."""
    first = held[0]
    compression = next((content.compression for content in held if content.rows), "")
    for number, content in enumerate(held):
        for name in {**first.parts, **content.parts}:
            ours, theirs = first.parts.get(name), content.parts.get(name)
            same = ours is not None and theirs is not None and _are_alike(ours, theirs, content)
            if not same:
                raise FormatError(f"{files.path(number)}: {name!r} is not as in {files.path(0)}")
        if content.rows and content.compression != compression:
            raise FormatError(f"{files.path(number)} is compressed in another way than others")
    return {name: [content.parts[name] for content in held] for name in first.parts}


def _are_alike(ours: ArrowPart, theirs: ArrowPart, content: ArrowContent) -> bool:
    """Return whether the columns are read alike: compressed ones by offsets of one width, too."""
    one, other = ours.column, theirs.column
    coded = bool(content.rows and content.compression)
    return one.plain == other.plain and not (coded and one.held.widths != other.held.widths)


def _check_nulls(files: Files, parts: list[ArrowPart], name: str, nulls: str) -> None:
    """Check for nulls that cannot be a sample: FormatError at the first."""
    column = parts[0].column
    fixed = column.held.shape is not None
    if column.may_lack:
        return
    for file, part in enumerate(parts):
        if part.nulls and (nulls == "error" or fixed):
            remedy = "fill it" if fixed else "fill it, or make them empty with nulls='empty'"
            row = f"row {part.first_null:,}"
            raise FormatError(f"{files.path(file)}: {row} of {name!r} is null: {remedy}")
        if part.inner_nulls and nulls == "error":
            raise FormatError(f"{files.path(file)}: {name!r} has nulls inside of lists: {_FILL}")


def _make_field(held: list[ArrowContent], parts: list[ArrowPart]) -> tuple[Field, Layout]:
    """Make the field and layout of one column of all files."""
    column = parts[0].column
    values = column.held
    levels = column.widths if column.kind == "nested" and len(column.levels) > 1 else ()
    field = Field(column.name, values.dtype, values.shape, element=values.element, levels=levels)
    if any(part.pieces for part in parts):
        compression = next(content.compression for content in held if content.rows)
        options = {
            "compression": compression,
            "kind": values.kind,
            "dtype": values.dtype.str,
            "shape": None if values.shape is None else list(values.shape),
            "widths": list(values.widths),
            "element": list(values.element),
        }
        if column.values is not None:
            options["indices"] = column.dtype.str
            options["entries"] = [count for part in parts for count in part.dictionary_rows]
        first = number_first([rows for content in held for rows in content.rows])
        layout = Chunked(first, _lay_out_chunks(parts))
        return replace(field, codec=Codec("arrow", options)), layout
    counts = np.array([sum(content.rows) for content in held], np.int64)
    none = [np.zeros(0, np.int64)]
    if column.kind in ("varied", "nested", "coded"):
        offset = np.concatenate([*none, *(one for part in parts for one in part.offset)])
        length = np.concatenate([*none, *(one for part in parts for one in part.length)])
        if column.kind == "nested":
            pieces = [sum(map(len, part.offset)) for part in parts]
            file = np.repeat(np.arange(len(held), dtype=np.uint32), pieces)
            each = np.concatenate([*none, *(one for part in parts for one in part.counts)])
            return field, Pieces(np.concatenate([[0], np.cumsum(each)]), file, offset, length)
        file = np.repeat(np.arange(len(held), dtype=np.uint32), counts)
        return field, RowTable(file, offset, length)
    file = np.repeat(np.arange(len(held), dtype=np.uint32), counts)
    size = _count_row_bytes(column)
    if all(len(part.bases) <= 1 for part in parts):
        base = np.array([part.bases[0] if part.bases else 0 for part in parts], np.int64)
        return field, Fixed(number_first(counts.tolist()), base, size)
    rows = [rows for content in held for rows in content.rows]
    first = number_first(rows)
    inside = np.arange(int(first[-1])) - np.repeat(first[:-1], rows)
    bases = np.array([base for part in parts for base in part.bases], np.int64)
    offset = np.repeat(bases, rows) + inside * size
    return field, RowTable(file, offset, np.full(len(offset), size, np.int64))


def _lay_out_chunks(parts: list[ArrowPart]) -> Pieces:
    """Lay out the buffers of each batch as compressed chunks."""
    chunks = [(file, pieces) for file, part in enumerate(parts) for pieces in part.pieces]
    extents = [extent for _, pieces in chunks for extent in pieces]
    table = np.array(extents, np.int64).reshape(-1, 2)
    counts = [len(pieces) for _, pieces in chunks]
    file = np.repeat(np.array([file for file, _ in chunks], np.uint32), counts)
    return Pieces(number_first(counts), file, table[:, 0].copy(), table[:, 1].copy())


# -- labels ----------------------------------------------------------------------------------------


def _choose_label(held: ArrowContent, label: str | None) -> str | None:
    """Return the name of the column of labels, or None."""
    columns_by_name = {name: part.column for name, part in held.parts.items()}
    named = column_choice.find_label(columns_by_name, label)
    if named is not None and not column_choice.holds_integers(columns_by_name[named]):
        raise UsageError(f"label is {named!r}, and labels are single integers")
    return named


def _collect_labels(
    files: Files, held: list[ArrowContent], name: str
) -> tuple[Int, tuple[str, ...] | None]:
    """Collect the labels of all files, and the names of their classes, if they have such."""
    parts = [content.parts[name] for content in held]
    coded = [rows for part in parts for rows in part.label_rows]
    if not coded:
        values = [np.zeros(0, np.int64), *(labels for part in parts for labels in part.labels)]
        labels = np.concatenate(values)
        metadata = [content.schema.metadata for content in held]
        return labels, column_choice.read_classes(files, metadata, name, labels)
    if isinstance(coded[0][1], np.ndarray):
        return np.concatenate([np.asarray(known)[rows] for rows, known in coded]), None
    numbers: dict[Any, int] = {}  # dictionaries of several batches may differ
    found = []
    for rows, known in coded:
        own = np.array([numbers.setdefault(each, len(numbers)) for each in known], np.int64)
        found.append(own[rows])
    return np.concatenate(found), tuple(numbers)
