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
from ...engine.store import StoreFile
from ...errors import FormatError, UsageError
from ...extent import Files, Int
from ..codecs import arrow as codec
from ..codecs.registry import CompressedChunk, Decoded
from ..fields import Codec, Field
from ..layout import Chunked, Fixed, Layout
from ..nested import lay_out_rows
from ..table import Index
from . import options, saved_datasets
from .arrow_ipc import MAGIC, MARKER, RecordBatch, Schema, read_messages
from .arrow_schema import ArrowColumn, ColumnNode
from .shards import Columns, Scan, lay_out_extents, lay_out_pieces, number_first

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
    dictionary:  the bytes of the first and last message of the last dictionary; place and length of
              its values; these themselves, for a label.
    nulls:    number of nulls; `first_null` is the row of the first.
    inner_nulls:  number of nulls inside of lists.
    names:    of a label with a dictionary of names: indices, and what they mean, of each batch.
    """

    column: ArrowColumn
    bases: list[int] = field(default_factory=list)
    offset: list[Int] = field(default_factory=list)
    length: list[Int] = field(default_factory=list)
    counts: list[Int] = field(default_factory=list)
    pieces: list[list[tuple[int, int]]] = field(default_factory=list)
    dictionary_rows: list[int] = field(default_factory=list)
    dictionary: tuple[tuple[int, int], Int, Int, Any] | None = None
    nulls: int = 0
    first_null: int = -1
    inner_nulls: int = 0
    labels: list[Int] = field(default_factory=list)
    names: list[tuple[Int, list[str]]] = field(default_factory=list)


@dataclass
class ArrowContent:
    """Content of one file. `rows` is of each batch; batches without rows are left out."""

    schema: Schema
    rows: list[int]
    compression: str
    parts: dict[str, ArrowPart]


def build(
    scan: Scan, fields: Columns = None, label: str | None = None, nulls: str = "error"
) -> Index:
    """The index of all rows, file after file."""
    is_saved = scan.place.kind == "folder" and saved_datasets.is_saved_dataset(scan.store)
    rows = None
    if is_saved:
        files, sources, rows = saved_datasets.list_streams(scan.store, scan.place.splits)
    else:
        extensions = _EXTENSIONS if scan.place.kind == "folder" else ()
        files, sources = scan.list_files(extensions)
    contents = scan.parse(files, lambda _, source: parse_file(source, fields, label))
    total = sum(sum(content.rows) for content in contents)
    if rows not in (None, total):
        raise FormatError(f"{scan.store.root}: {total:,} rows, and dataset_info.json says {rows:,}")

    def read_names(column: str) -> list[Any] | None:
        return saved_datasets.read_class_names(scan.store, column) if is_saved else None

    return make_index("arrow", files, sources, contents, fields, label, nulls, read_names)


def make_index(
    format: str,
    files: Files,
    sources: Files,
    contents: list[ArrowContent],
    columns: Sequence[str] | None = None,
    label: str | None = None,
    nulls: str = "error",
    read_names: Callable[[str], list[Any] | None] = lambda _: None,
) -> Index:
    """Make the index of all rows of the parsed files.

    read_names:  reads the names of the classes of a column, if the files do not have them.
    """
    parts = _collect_parts(files, contents)
    total = sum(sum(content.rows) for content in contents)
    if not total:
        raise FormatError(f"{files.path(0)} holds no rows: there is nothing to read")
    if total > limits.order_count_max:
        raise FormatError(f"{files.path(0)} claims {total:,} rows: the file is damaged")
    known = {name: column_parts[0].column for name, column_parts in parts.items()}
    labels = classes = None
    named = options.find_label(known, label)
    if named is not None:
        if not options.holds_integers(known[named]):
            raise UsageError(f"label is {named!r}, and labels are single integers")
        _check_nulls(files, parts[named], named, "error")
        labels, classes = _collect_labels(files, contents, parts.pop(named), named)
        if classes is None:
            classes = options.check_class_names(read_names(named), labels)
    fields: list[Field] = []
    layouts: list[Layout] = []
    for name, column_parts in parts.items():
        if columns is None and sum(column_part.nulls for column_part in column_parts) == total:
            if f"{name}.path" in parts:
                raise FormatError(f"{files.path(0)}: {name!r} holds only paths: embed the files")
            continue
        _check_nulls(files, column_parts, name, nulls)
        field, layout = _make_field(contents, column_parts)
        fields.append(field)
        layouts.append(layout)
    if not fields:
        raise FormatError(f"{files.path(0)} has no column that can be a field")
    return Index(format, files, tuple(fields), tuple(layouts), sources, classes, labels)


# -- one file --------------------------------------------------------------------------------------


def parse_file(source: StoreFile, columns: Sequence[str] | None, label: str | None) -> ArrowContent:
    """Parse one file for the columns asked for."""
    schema, batches = read_messages(source)
    known = options.number_columns(source.path, [column.name for column in schema.columns])
    wanted = {
        name: schema.columns[known[name]]
        for name in options.list_wanted(source.path, known, columns, label)
    }
    batches = [batch for batch in batches if batch.rows]
    methods = {batch.compression for batch in batches}
    if len(methods) > 1:
        raise FormatError(f"{source.path}: batches are compressed in several ways")
    content = ArrowContent(schema, [batch.rows for batch in batches], "".join(methods), {})
    named = options.find_label(wanted, label)
    for name, column in wanted.items():
        if columns is None and "of type null" in column.refused:
            continue
        options.check_readable(source.path, column, schema.columns)
        part = content.parts[name] = ArrowPart(column)
        row = 0
        for batch in batches:
            _add_batch(_BatchColumn(source, batch, column), part, row, name == named)
            row += batch.rows
    return content


def shift_places(content: ArrowContent, start: int) -> ArrowContent:
    """Shift all places, for a table that does not begin at the start of its file."""
    for part in content.parts.values():
        part.bases = [base + start for base in part.bases]
        part.offset = [offset + start for offset in part.offset]
        part.pieces = [[(at + start, length) for at, length in piece] for piece in part.pieces]
    return content


class _BatchColumn:
    """Buffers of a column in one batch, or in one batch of a dictionary."""

    def __init__(self, source: StoreFile, batch: RecordBatch, column: ArrowColumn) -> None:
        self.source, self.batch, self.column = source, batch, column
        self.data = batch.buffer(column.buffer, column.views, source)
        self.offsets = [self.find(level.node, 1) for level in column.levels]

    def find(self, node: ColumnNode, number: int = 0) -> tuple[int, int]:
        """Return the extent of a node's buffer, by default of its validity."""
        return self.batch.buffer(node.buffer + number, node.views, self.source)

    def flaw(self, what: str, at: int | None = None) -> FormatError:
        return self.source.flaw(self.batch.at if at is None else at, what)

    def count_nulls(self, node: ColumnNode, rows: int = -1) -> int:
        """Count the nulls of a node, of `rows` slots if that is known."""
        if node.number >= len(self.batch.nodes):
            raise self.flaw("the record batch has fewer columns than the schema")
        slots, null_count = map(int, self.batch.nodes[node.number])
        if not 0 <= null_count <= slots or rows not in (-1, slots):
            raise self.flaw(f"{self.column.name!r} is of {slots:,} rows, {null_count:,} null")
        return null_count

    def read(self, extent: tuple[int, int], dtype: Any, count: int) -> npt.NDArray[Any]:
        """Read the first numbers of a buffer; FormatError if it has fewer."""
        size, compression = count * np.dtype(dtype).itemsize, self.batch.compression
        whole = self.source.read(extent[0], extent[1] if compression else min(size, extent[1]))
        try:
            data = codec.decompress_buffer(compression, whole, size)
        except UsageError:
            raise
        except ValueError as error:
            raise self.flaw(f"a buffer is damaged: {error}: write it again", extent[0]) from None
        if len(data) < size:
            what = f"too few bytes of {self.column.name!r} for {count:,} values: truncated"
            raise self.flaw(what, extent[0])
        return np.frombuffer(data, dtype, count)

    def read_missing(self, masks: list[tuple[int, int]], slots: int) -> npt.NDArray[np.bool_]:
        """Read which slots one of the masks leaves out."""
        present = np.bitwise_and.reduce([self.read(mask, "u1", -(-slots // 8)) for mask in masks])
        missing: npt.NDArray[np.bool_] = np.unpackbits(present, bitorder="little")[:slots] == 0
        return missing

    def count_inner_nulls(self) -> int:
        """Count nulls inside of lists; an error unless each is a list or text without content."""
        total = 0
        for node in filter(self.count_nulls, self.column.inner):
            slots = int(self.batch.nodes[node.number][0])
            if node.levels >= len(self.column.levels):
                raise self.flaw(f"{self.column.name!r} has nulls inside of lists: fill them")
            missing = self.read_missing([self.find(node)], slots)
            width = self.column.levels[node.levels].width
            ends = self.read(self.offsets[node.levels], f"<i{width}", slots + 1)
            if (np.diff(ends)[missing] != 0).any():
                raise self.flaw(f"{self.column.name!r} has nulls in lists with content")
            total += int(np.count_nonzero(missing))
        return total

    def read_ends(self) -> list[Int]:
        """Read the offsets of each level, as far as rows use them; FormatError unless they ascend
        within the next level's."""
        level_ends: list[Int] = []
        slots, levels = self.batch.rows, self.column.levels
        room = [int(self.batch.nodes[level.node.number][0]) for level in levels[1:]]
        room.append(self.data[1] // _count_element_bytes(self.column))
        for level, extent, most in zip(levels, self.offsets, room, strict=True):
            ends = np.zeros(1, np.int64)
            if slots:
                ends = self.read(extent, f"<i{level.width}", slots + 1).astype(np.int64)
            if int(ends[0]) < 0 or (np.diff(ends) < 0).any() or int(ends[-1]) > most:
                what = f"the offsets of {self.column.name!r} leave its {most:,} elements"
                raise self.flaw(what, extent[0])
            level_ends.append(ends)
            slots = int(ends[-1])
        return level_ends

    def locate(self) -> tuple[Int, Int]:
        """Locate values of one size, or of one level: place and length of each."""
        if self.column.kind == "varied":
            (ends,) = self.read_ends()
            size = _count_element_bytes(self.column)
            return self.data[0] + ends[:-1] * size, np.diff(ends) * size
        rows, size = self.batch.rows, _count_row_bytes(self.column)
        if rows * size > self.data[1]:
            what = f"{self.column.name!r} has too few bytes for {rows:,} rows: truncated"
            raise self.flaw(what, self.data[0])
        return self.data[0] + np.arange(rows) * size, np.full(rows, size, np.int64)

    def decode(self) -> Decoded:
        """Read and decode the values, without nulls."""
        extents = [*self.offsets, self.data]
        data = b"".join(self.source.read(*extent) for extent in extents)
        lengths = [length for _, length in extents]
        chunk = CompressedChunk(0, memoryview(data), lengths, self.batch.rows)
        try:
            return codec.decode(_make_options(self.batch.compression, self.column), chunk)
        except UsageError:
            raise
        except ValueError as error:
            raise self.flaw(f"{self.column.name!r} is damaged: {error}", self.data[0]) from None


def _add_batch(values: _BatchColumn, part: ArrowPart, row: int, is_label: bool) -> None:
    """Add the values of a column in one batch to its part."""
    batch, column, rows = values.batch, part.column, values.batch.rows
    masks = [values.find(node) for node in column.nodes if values.count_nulls(node, rows)]
    missing = values.read_missing(masks, rows) if masks else None
    if missing is not None:
        if part.first_null < 0:
            part.first_null = row + int(np.argmax(missing))
        part.nulls += int(np.count_nonzero(missing))
    if column.values is not None:
        _add_coded(values, part, masks, missing, is_label)
        return
    part.inner_nulls += values.count_inner_nulls()
    if is_label and column.kind == "fixed":
        numbers = values.read(values.data, column.dtype, rows)
        part.labels.append(options.convert_labels(values.source.path, column.name, numbers))
    if batch.compression or column.is_flags:
        part.pieces.append([*masks, *values.offsets, values.data])
    elif column.kind == "nested":
        bases = [place for place, _ in (*values.offsets, values.data)]
        element_bytes = _count_element_bytes(column)
        begin, place, length = lay_out_rows(
            values.read_ends(), bases, column.widths, element_bytes, missing
        )
        part.counts.append(np.diff(begin))
        part.offset.append(place)
        part.length.append(length)
    else:
        place, length = values.locate()
        if column.kind == "fixed":
            part.bases.append(values.data[0])
            return
        if missing is not None:
            length[missing] = 0
        part.offset.append(place)
        part.length.append(length)


def _add_coded(
    values: _BatchColumn,
    part: ArrowPart,
    masks: list[tuple[int, int]],
    missing: npt.NDArray[np.bool_] | None,
    is_label: bool,
) -> None:
    """Add the rows of a column of indices into a dictionary: each is the place of its value."""
    source, batch, column = values.source, values.batch, part.column
    segments = batch.dictionaries.get(column.key, ())
    if not segments:
        raise values.flaw(f"column {column.name!r} has no dictionary: write it again")
    indices = values.read(values.data, column.dtype, batch.rows).astype(np.int64)
    used = indices if missing is None else indices[~missing]
    if missing is not None:
        indices = np.where(missing, 0, indices)
    count = sum(segment.rows for segment in segments)
    if len(used) and not 0 <= int(used.min()) <= int(used.max()) < count:
        raise values.flaw(f"an index of {column.name!r} leaves its dictionary", values.data[0])
    coded = bool(batch.compression or segments[0].compression)
    which = segments[0].at, segments[-1].at
    if part.dictionary is None or part.dictionary[0] != which:
        pages = [_BatchColumn(source, segment, column.held) for segment in segments]
        for page in pages:
            if page.count_nulls(ColumnNode(0, 0, 0), page.batch.rows):
                raise page.flaw(f"the dictionary of {column.name!r} holds a null")
        empty = np.zeros(0, np.int64)
        located = [(empty, empty), *([] if coded else [page.locate() for page in pages])]
        places, lengths = map(np.concatenate, zip(*located, strict=True))
        part.dictionary = which, places, lengths, _read_labels(source, pages) if is_label else None
    _, places, lengths, known = part.dictionary
    if is_label and isinstance(known, list):
        part.names.append((indices, known))
    elif known is not None:
        part.labels.append(np.asarray(known)[indices])
    if coded:
        if len(segments) > 1:
            raise FormatError(f"{source.path}: the compressed dictionary of {column.name!r} grows")
        if segments[0].compression != batch.compression:
            raise FormatError(f"{source.path}: the dictionary of {column.name!r} is compressed")
        page = _BatchColumn(source, segments[0], column.held)
        part.pieces.append([*masks, values.data, *page.offsets, page.data])
        part.dictionary_rows.append(count)
        return
    length = lengths[indices] if count else np.zeros(batch.rows, np.int64)
    if missing is not None and column.held.kind == "varied":
        length[missing] = 0
    part.offset.append(places[indices] if count else np.zeros(batch.rows, np.int64))
    part.length.append(length)


def _read_labels(source: StoreFile, pages: list[_BatchColumn]) -> list[str] | Int:
    """Read the values of a dictionary of labels: names, or integers."""
    column = pages[0].column
    decoded = [page.decode() for page in pages]
    if column.kind == "varied":
        return [str(page[row], "utf-8", "replace") for page in decoded for row in range(len(page))]
    numbers = np.concatenate([np.asarray(page) for page in decoded])
    return options.convert_labels(source.path, column.name, numbers)


def _count_element_bytes(column: ArrowColumn) -> int:
    return Field("", column.dtype, None, element=column.element).element_bytes


def _count_row_bytes(column: ArrowColumn) -> int:
    return Field("", column.dtype, column.shape).nbytes or 0


# -- all files -------------------------------------------------------------------------------------


def _collect_parts(files: Files, contents: list[ArrowContent]) -> dict[str, list[ArrowPart]]:
    """Check that all files have the same columns, and collect the parts of each.

    Compressed columns must have offsets of one width, too.
    """
    first = contents[0]
    compression = next((content.compression for content in contents if content.rows), "")
    for number, content in enumerate(contents):
        coded = bool(content.rows and content.compression)
        for name in {**first.parts, **content.parts}:
            described = [
                (part.column.plain, part.column.held.widths if coded else ())
                for part in (one.parts.get(name) for one in (first, content))
                if part is not None
            ]
            if len(described) < 2 or described[0] != described[1]:
                raise FormatError(f"{files.path(number)}: {name!r} is not as in {files.path(0)}")
        if content.rows and content.compression != compression:
            raise FormatError(f"{files.path(number)} is compressed in another way than others")
    return {name: [content.parts[name] for content in contents] for name in first.parts}


def _check_nulls(files: Files, parts: list[ArrowPart], name: str, nulls: str) -> None:
    """Check for nulls that cannot be a sample: FormatError at the first."""
    column = parts[0].column
    fixed = column.held.shape is not None
    for file, part in enumerate(parts if not column.may_lack else ()):
        if part.nulls and (nulls == "error" or fixed):
            remedy = "fill it" if fixed else "fill it, or make them empty with nulls='empty'"
            row = f"row {part.first_null:,}"
            raise FormatError(f"{files.path(file)}: {row} of {name!r} is null: {remedy}")
        if part.inner_nulls and nulls == "error":
            raise FormatError(f"{files.path(file)}: {name!r} has nulls inside of lists: {_FILL}")


def _make_options(compression: str, column: ArrowColumn) -> dict[str, Any]:
    """Make the codec's options for values of a column without dictionary."""
    return {
        "compression": compression,
        "kind": column.kind,
        "dtype": column.dtype.str,
        "shape": None if column.shape is None else list(column.shape),
        "widths": list(column.widths),
        "element": list(column.element),
    }


def _make_field(contents: list[ArrowContent], parts: list[ArrowPart]) -> tuple[Field, Layout]:
    """Make the field and layout of one column of all files."""
    column, values = parts[0].column, parts[0].column.held
    levels = column.widths if column.kind == "nested" and len(column.levels) > 1 else ()
    field = Field(column.name, values.dtype, values.shape, element=values.element, levels=levels)
    rows = [rows for content in contents for rows in content.rows]
    if any(part.pieces for part in parts):
        compression = next(content.compression for content in contents if content.rows)
        options = _make_options(compression, values)
        if column.values is not None:
            options["indices"] = column.dtype.str
            options["entries"] = [count for part in parts for count in part.dictionary_rows]
        extents = [list(itertools.chain(*part.pieces)) for part in parts]
        tables = [np.array(one, np.int64).reshape(-1, 2) for one in extents]
        chunks = lay_out_pieces(
            np.array([len(pieces) for part in parts for pieces in part.pieces], np.int64),
            [table[:, 0] for table in tables],
            [table[:, 1] for table in tables],
        )
        return replace(field, codec=Codec("arrow", options)), Chunked(number_first(rows), chunks)
    if column.kind in ("varied", "nested", "coded"):
        none = np.zeros(0, np.int64)
        offsets = [np.concatenate([none, *part.offset]) for part in parts]
        lengths = [np.concatenate([none, *part.length]) for part in parts]
        if column.kind == "nested":
            counts = np.concatenate([none, *(count for part in parts for count in part.counts)])
            return field, lay_out_pieces(counts, offsets, lengths)
        return field, lay_out_extents(offsets, lengths)
    size = _count_row_bytes(column)
    if all(len(part.bases) <= 1 for part in parts):
        counts = np.array([sum(content.rows) for content in contents], np.int64)
        base = np.array([part.bases[0] if part.bases else 0 for part in parts], np.int64)
        return field, Fixed(number_first(counts), base, size)
    offsets = [
        np.concatenate(
            [np.zeros(0, np.int64)]
            + [base + np.arange(n) * size for base, n in zip(part.bases, content.rows, strict=True)]
        )
        for content, part in zip(contents, parts, strict=True)
    ]
    return field, lay_out_extents(offsets, [np.full(len(one), size, np.int64) for one in offsets])


def _collect_labels(
    files: Files, contents: list[ArrowContent], parts: list[ArrowPart], name: str
) -> tuple[Int, tuple[str, ...] | None]:
    """Collect the labels of all files, and the names of their classes, if they have such."""
    numbers: dict[str, int] = {}  # dictionaries of several batches may differ
    labels = [np.zeros(0, np.int64), *(one for part in parts for one in part.labels)]
    for rows, known in (coded for part in parts for coded in part.names):
        renumbered = np.array([numbers.setdefault(text, len(numbers)) for text in known], np.int64)
        labels.append(renumbered[rows])
    column = np.concatenate(labels)
    if any(part.names for part in parts):
        return column, tuple(numbers)
    metadata = [content.schema.metadata for content in contents]
    if parts[0].column.values is not None:
        return column, None
    return column, options.read_classes(files, metadata, name, column)
