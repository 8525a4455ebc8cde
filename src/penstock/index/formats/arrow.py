"""Arrow files and streams, Feather version 2 and folders of Hugging Face `datasets`.

Each column is a field: values of one size, byte strings and text (as UTF-8), lists of numbers; the
parts of a struct are fields of their own, such as "image.bytes". Dates and times are their
integers. Uncompressed columns are read where they lie. Compressed and boolean ones are decoded, and
compression needs pyarrow.

Options:

    fields    names of the columns that become fields; by default all, without those of only nulls.
    label     name of an integer column with the labels; by default "label" or "labels" where it
              holds integers (and is among `fields`); "" for none. Names of classes come
              from `datasets`.
    nulls     "error" (default) refuses nulls; "empty" makes them empty strings and lists.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ... import limits
from ...engine import Progress, Store, StoreFile
from ...errors import FormatError, UsageError
from ...extent import Files, Int, joined, unseen
from ..codecs import arrow as codec
from ..layout import Chunked, Fixed, Layout, Pieces, RowTable
from ..table import Codec, Field, Index
from . import column_choice
from .arrow_ipc import MAGIC, MARKER, ArrowColumn, RecordBatch, Schema, read_messages
from .location import Location
from .shards import list_files, number_first

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


def is_saved_dataset(store: Store) -> bool:
    """True if `datasets` saved this folder."""
    _, errors = store.probe(unseen(store.root, ["state.json", "dataset_dict.json"]))
    return not errors.all()


@dataclass
class ArrowPart:
    """Values of one column in one file.

    bases:    byte at which each batch's values begin, for values of one size.
    offset, length:  of each sample, if they vary; one array a batch.
    pieces:   for decoded columns: the extents of each batch's buffers.
    nulls:    number of nulls; `first_null` is the row of the first.
    """

    column: ArrowColumn
    bases: list[int] = field(default_factory=list)
    offset: list[Int] = field(default_factory=list)
    length: list[Int] = field(default_factory=list)
    pieces: list[list[tuple[int, int]]] = field(default_factory=list)
    nulls: int = 0
    first_null: int = -1
    labels: list[Int] = field(default_factory=list)


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
    files, sources = _list_files(store, place, progress)
    held = store.parse(files, lambda _, source: parse_file(source, fields, label), progress)
    return make_index("arrow", files, sources, held, fields, label, nulls)


def make_index(
    format: str,
    files: Files,
    sources: Files,
    held: list[ArrowContent],
    columns: Sequence[str] | None = None,
    label: str | None = None,
    nulls: str = "error",
) -> Index:
    """Make the index of all rows of the parsed files."""
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
        _check_nulls(files, held, parts.pop(named), named, "error")
        values = [batch_labels for content in held for batch_labels in content.parts[named].labels]
        label_column = np.concatenate(values) if values else np.zeros(0, np.int64)
        classes = _read_classes(held[0].schema, named, label_column)
    fields: list[Field] = []
    layouts: list[Layout] = []
    for name, column_parts in parts.items():
        if columns is None and sum(part.nulls for part in column_parts) == total:
            continue
        _check_nulls(files, held, column_parts, name, nulls)
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


def _list_files(store: Store, place: Location, progress: Progress | None) -> tuple[Files, Files]:
    """List the files of a place.

    Of a saved dataset only those in its list, since others lie beside.
    """
    if place.kind != "folder" or not is_saved_dataset(store):
        return list_files(store, place, progress, _EXTENSIONS if place.kind == "folder" else ())
    state = store.read("state.json", 0, limits.header_bytes_max) if _has_state(store) else b""
    if not state:
        raise UsageError(f"{store.root} holds several splits: open one of its folders")
    try:
        names = [str(entry["filename"]) for entry in json.loads(state)["_data_files"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        names = []
    if not names or any(name in ("", ".", "..") or {"/", "\0"} & set(name) for name in names):
        raise FormatError(f"{store.root}/state.json lists no files: save the dataset again")
    files = store.stat(names, lambda row: f"{store.root}/state.json, file {row}: ")
    return files, joined(files, store.stat(["state.json"]))


def _has_state(store: Store) -> bool:
    return not store.probe(unseen(store.root, ["state.json"]))[1].any()


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
        raise FormatError(
            f"{source.path} holds batches of different compression ({', '.join(sorted(methods))}): "
            f"write it again"
        )
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
                raise FormatError(
                    f"{source.path}: column {column.name!r} {column.refused}; or name the others "
                    f"(fields={rest})"
                )
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

    def node(number: int) -> int:
        """Count the nulls of a node."""
        if number >= len(batch.nodes):
            raise source.flaw(batch.at, "the record batch has fewer columns than the schema")
        held, null_count = (int(value) for value in batch.nodes[number])
        if not 0 <= null_count <= held or (number in column.nodes and held != rows):
            raise source.flaw(
                batch.at,
                f"column {column.name!r} has {held:,} rows and {null_count:,} nulls, in a "
                f"batch of {rows:,} rows: write the file again",
            )
        return null_count

    if any(node(number) for number in column.inner):
        raise source.flaw(batch.at, f"column {column.name!r} has nulls inside of lists: fill them")
    masks = [
        batch.buffer(*buffer, source)
        for number, buffer in zip(column.nodes, column.validity, strict=True)
        if node(number)
    ]
    missing = None
    if masks:
        missing = _read_nulls(source, batch, masks, rows)
        if part.first_null < 0:
            part.first_null = row + int(np.argmax(missing))
        part.nulls += int(np.count_nonzero(missing))
    first = batch.buffer(column.buffer, column.views, source)
    extents = [first]
    if column.kind == "varied":
        inside = 2 if column.inner else 1  # of lists, the elements' validity lies between
        extents.append(batch.buffer(column.buffer + inside, column.views, source))
    if is_label and column.kind == "fixed":
        size = rows * column.dtype.itemsize
        if not batch.compression and size > first[1]:
            raise source.flaw(first[0], f"there are {first[1]:,} bytes of labels for {rows:,} rows")
        data = _read_buffer(source, batch, first, size)
        if len(data) < size:
            raise source.flaw(
                first[0], f"there are {len(data):,} bytes of labels for {rows:,} rows"
            )
        values = np.frombuffer(data, column.dtype, rows)
        part.labels.append(column_choice.convert_labels(source.path, column.name, values))
    if batch.compression or column.kind == "bits":
        part.pieces.append([*masks, *extents])
    elif column.kind == "fixed":
        size = rows * _count_row_bytes(column)
        if size > first[1]:
            raise source.flaw(
                first[0],
                f"column {column.name!r} has {first[1]:,} bytes for {rows:,} rows: write it again",
            )
        part.bases.append(first[0])
    else:
        offset, length = _read_varied(source, column, first, extents[1], rows)
        if missing is not None:
            length[missing] = 0
        part.offset.append(offset)
        part.length.append(length)


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
    """Read the mask of the null rows."""
    size = -(-rows // 8)
    missing = np.zeros(rows, np.bool_)
    for place, length in masks:
        data = _read_buffer(source, batch, (place, length), size)
        if len(data) < size:
            raise source.flaw(place, f"there are {len(data):,} bytes of validity for {rows:,} rows")
        bits = np.unpackbits(np.frombuffer(data, np.uint8, size), bitorder="little")
        missing |= bits[:rows] == 0
    return missing


def _read_varied(
    source: StoreFile,
    column: ArrowColumn,
    offsets: tuple[int, int],
    data: tuple[int, int],
    rows: int,
) -> tuple[Int, Int]:
    """Read the place and length of each row's bytes."""
    place, held = offsets
    size = (rows + 1) * column.width
    if held < size:
        raise source.flaw(
            place, f"{held:,} bytes of offsets for {rows:,} rows of {column.name!r}: write it again"
        )
    read = source.read(place, size)
    if len(read) < size:
        raise source.flaw(place, "the file ends in the offsets: it is truncated")
    values = np.frombuffer(read, f"<i{column.width}").astype(np.int64)
    itemsize = column.dtype.itemsize
    length = np.diff(values)
    if int(values[0]) < 0 or (length < 0).any() or int(values[-1]) > data[1] // itemsize:
        raise source.flaw(
            place,
            f"the offsets of {column.name!r} are not ascending, or lead beyond its {data[1]:,} "
            f"bytes: the file is damaged",
        )
    return data[0] + values[:-1] * itemsize, length * itemsize


# -- all files -------------------------------------------------------------------------------------


def _collect_parts(files: Files, held: list[ArrowContent]) -> dict[str, list[ArrowPart]]:
    """Check that all files have the same columns, and collect the parts of each."""
    first = held[0]
    compression = next((content.compression for content in held if content.rows), "")
    for number, content in enumerate(held):
        for name in {**first.parts, **content.parts}:
            ours, theirs = first.parts.get(name), content.parts.get(name)
            if ours is None or theirs is None or ours.column.plain != theirs.column.plain:
                raise FormatError(
                    f"{files.path(number)}: column {name!r} is not the same as in "
                    f"{files.path(0)}: open files of one schema"
                )
        if content.rows and content.compression != compression:
            raise FormatError(
                f"{files.path(number)} is of compression {content.compression or 'none'}, and "
                f"others "
                f"are of {compression or 'none'}: write them alike"
            )
    return {name: [content.parts[name] for content in held] for name in first.parts}


def _check_nulls(
    files: Files, held: list[ArrowContent], parts: list[ArrowPart], name: str, nulls: str
) -> None:
    """Check for nulls that cannot be a sample: FormatError at the first."""
    fixed = parts[0].column.kind != "varied"
    for file, part in enumerate(parts):
        if part.nulls and (nulls == "error" or fixed):
            remedy = "fill it" if fixed else "fill it, or make them empty with nulls='empty'"
            raise FormatError(
                f"{files.path(file)}: row {part.first_null:,} of column {name!r} is null "
                f"({part.nulls:,} are, of {sum(held[file].rows):,}): {remedy}, or name other "
                f"columns (fields=)"
            )


def _make_field(held: list[ArrowContent], parts: list[ArrowPart]) -> tuple[Field, Layout]:
    """Make the field and layout of one column of all files."""
    column = parts[0].column
    field = Field(column.name, column.dtype, column.shape)
    if any(part.pieces for part in parts):
        compression = next(content.compression for content in held if content.rows)
        options = {
            "compression": compression,
            "kind": column.kind,
            "dtype": column.dtype.str,
            "shape": None if column.shape is None else list(column.shape),
            "width": column.width,
        }
        first = number_first([rows for content in held for rows in content.rows])
        layout = Chunked(first, _lay_out_chunks(parts))
        return Field(column.name, column.dtype, column.shape, Codec("arrow", options)), layout
    counts = np.array([sum(content.rows) for content in held], np.int64)
    file = np.repeat(np.arange(len(held), dtype=np.uint32), counts)
    if column.kind == "varied":
        none = [np.zeros(0, np.int64)]
        offset = np.concatenate([*none, *(one for part in parts for one in part.offset)])
        length = np.concatenate([*none, *(one for part in parts for one in part.length)])
        return field, RowTable(file, offset, length)
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
        raise UsageError(
            f"label is {named!r}, a column of {columns_by_name[named].dtype}: labels are single "
            f"integers"
        )
    return named


def _read_classes(schema: Schema, name: str, labels: Int) -> tuple[str, ...] | None:
    """Return the names of classes that `datasets` keeps in the metadata, if they fit."""
    try:
        features = json.loads(schema.metadata["huggingface"])["info"]["features"]
        names = features[name]["names"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
    if not isinstance(names, list) or not all(isinstance(class_name, str) for class_name in names):
        return None
    if len(labels) and not (int(labels.min()) >= 0 and int(labels.max()) < len(names)):
        return None
    return tuple(names)
