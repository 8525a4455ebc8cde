"""Tables with a file on each row: CSV, TSV, JSON lines, a list of objects in JSON, or Parquet.

One column names the files, relative to the folder of the table; the others are values of the
samples: fields of batches, and names in conditions of selections. Types are decided by
all values of a column: whole numbers are int64, numbers float64 (an empty cell and null are NaN),
truth values of JSON and Parquet bool, all else text (an empty cell and null are ""). Digits that
begin with 0, as in "007", are text; so are whole numbers that neither type holds, in JSON an error,
and numbers beyond float64, as "1e999".

Options:

    files     the column that names the files.
    columns   the other columns to take; by default all. [] takes none.
    label     the column with the labels: integers, or names of classes; by default "label" or
              "labels", "" for none.
    outside   True if the table may name files outside its folder, because you have written it.
"""

from __future__ import annotations

import csv
import io
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ... import limits
from ...engine.store import Store
from ...errors import FormatError, UsageError
from ...extent import Files, Int
from ..attributes import Attribute, make_texts
from ..json_fields import import_loads, is_rounded
from ..table import Index
from . import listing, options, parquet
from .shards import Columns, Scan, index_files, number_classes

_RESERVED = ("data", "key", "bytes", "source", "pass")


class _Table(NamedTuple):
    """Values of each column, as text or as JSON and Parquet have them; and the line of each row.

    lines:  None if rows have no lines: then messages count rows.
    """

    path: str
    columns: dict[str, Sequence[Any]]
    lines: Sequence[int] | None

    def locate(self, row: int) -> str:
        """Return the place of a row, for messages."""
        if self.lines is None:
            return f"{self.path}, row {row:,}: "
        return f"{self.path}, line {self.lines[row]:,}: "

    def make(self, names: Iterable[str]) -> dict[str, Attribute]:
        """Make columns of these names, each of the narrowest type that holds all values."""
        columns = self.columns
        return {name: _make_column(self.path, name, columns[name], self.locate) for name in names}


def normalize_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in canonical form."""
    name = options.text("the name of a column")
    if given.get("files") is None:
        raise UsageError("a table is opened by files=: name the column of the paths")
    return options.normalize(
        given,
        files=name,
        columns=options.texts("names of columns, in a list", name),
        label=options.text("the name of a column, or ''"),
        outside=options.one_of(False, True),
    )


def build(
    scan: Scan, files: str, columns: Columns = None, label: str | None = None, outside: bool = False
) -> Index:
    """Make the index of the files that a table names, in its order."""
    source = scan.store.stat([scan.place.name])
    path = source.path(0)
    wanted = None if columns is None else [files, *columns, *([label] if label else [])]
    table = read_table(scan.store, source, wanted)
    for name in wanted or [files, *([label] if label else [])]:
        options.check_known(path, name, table.columns)
    base, locate = os.path.dirname(scan.place.name), table.locate
    names = []
    for row, name in enumerate(table.columns[files]):
        if not isinstance(name, str) or not name or "\0" in name:
            raise FormatError(f"{locate(row)}column {files!r} is {name!r:.100}, no name of a file")
        names.append(os.path.join(base, name))
    if not names:
        raise FormatError(f"{path} names no files: it has no rows")
    names = listing.keep_inside(scan.store.root, names, locate, outside)
    named_files = scan.store.stat(names, locate, scan.progress)
    rest = {name: values for name, values in table.columns.items() if name != files}
    if label is None:
        label = next((name for name in options.DEFAULTS if name in rest), "")
    classes, labels = None, None
    if label:
        classes, labels = _make_labels(path, label, rest.pop(label), locate)
    made = tuple(table.make(rest).values())
    for name in rest:
        if name in _RESERVED or (name == "label" and labels is not None):
            raise UsageError(f"{path}: a column {name!r} would hide another: give columns= without")
    return index_files("table", named_files, source, classes, labels, made)


# -- reading ---------------------------------------------------------------------------------------


def read_table(store: Store, source: Files, wanted: Sequence[str] | None) -> _Table:
    """Read a table: by its first bytes Parquet or JSON, else separated values."""
    name, size = source.name(0), int(source.size[0])
    path = source.path(0)
    head = store.read(name, 0, 64).removeprefix(b"\xef\xbb\xbf").lstrip()
    if head.startswith(parquet.MAGIC):
        columns = store.parse(source, lambda _, file: parquet.read_columns(file, wanted))
        return _Table(path, columns[0], None)
    if size > limits.decoded_chunk_bytes_max:
        raise FormatError(f"{path} has {size:,} bytes: a table is read as a whole, use Parquet")
    data = store.read(name, 0, size)
    if head.startswith((b"{", b"[")):
        return _read_json(path, data, head.startswith(b"["), wanted)
    return _read_separated(path, data, wanted)


def _read_separated(path: str, data: bytes, wanted: Sequence[str] | None) -> _Table:
    """Read a table whose first line names the columns, separated by tabs, commas or semicolons."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise FormatError(f"{path}, line {line:,}: no UTF-8: convert it by iconv") from None
    first = text[: text.find("\n")] if "\n" in text else text
    separator = next((mark for mark in "\t,;" if mark in first), ",")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    rows: list[list[str]] = []
    lines: list[int] = []
    header: list[str] | None = None
    try:
        for row in reader:
            if not row:
                continue
            if header is None:
                header = [name.strip() for name in row]
                options.number_columns(path, header)
                continue
            if len(row) != len(header):
                raise FormatError(f"{path}, line {reader.line_num:,}: {len(row)} values")
            rows.append(row)
            lines.append(reader.line_num)
    except csv.Error as error:
        raise FormatError(f"{path}, line {reader.line_num:,}: {error}") from None
    header = header or []
    kept = [n for n, name in enumerate(header) if wanted is None or name in wanted]
    if wanted is not None:
        for name in wanted:
            options.check_known(path, name, dict.fromkeys(header))
    return _Table(path, {header[n]: [row[n] for row in rows] for n in kept}, lines)


def _read_json(path: str, data: bytes, is_list: bool, wanted: Sequence[str] | None) -> _Table:
    """Read lines of objects, or a list of objects."""
    loads = import_loads()
    text = data.removeprefix(b"\xef\xbb\xbf")
    lines: list[int] | None = None
    rows: list[Any] = []
    line = 0
    try:
        if is_list:
            rows = loads(text)
        else:
            lines = []
            for line, one in enumerate(text.split(b"\n"), 1):
                if one.strip():
                    rows.append(loads(one))
                    lines.append(line)
    except ValueError as error:
        where = path if is_list else f"{path}, line {line:,}"
        raise FormatError(f"{where}: no JSON ({error}): mend it") from None
    names = list(wanted or (rows[0] if rows and isinstance(rows[0], dict) else ()))
    for row, record in enumerate(rows):
        where = f"{path}, row {row:,}" if lines is None else f"{path}, line {lines[row]:,}"
        if not isinstance(record, dict):
            raise FormatError(f"{where}: no object, but {record!r:.100}: a row is an object")
        odd = [
            name
            for name in (*names, *(record if wanted is None else ()))
            if name not in record or name not in names
        ]
        if odd:
            raise FormatError(f"{where}: {odd[0]!r} is not in all rows: give columns= without it")
    return _Table(path, {name: [record[name] for record in rows] for name in names}, lines)


# -- types -----------------------------------------------------------------------------------------

_WHOLE = re.compile(r"-?(0|[1-9][0-9]*)")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(inf|nan)", re.I)
_LEADING = re.compile(r"[+-]?0[0-9]")
_WHOLE_CHARACTERS = len(str(-(1 << 63)))
_FLOAT_CHARACTERS = sys.float_info.max_10_exp + 2


def _make_column(path: str, name: str, values: Sequence[Any], locate: Any) -> Attribute:
    """Make a column of the narrowest type that holds all values."""
    if isinstance(values, np.ndarray):
        if values.dtype.kind in "iu":
            return Attribute(name, "numbers", options.convert_labels(path, name, values))
        return Attribute(
            name, "numbers", values if values.dtype.kind == "b" else values.astype(np.float64)
        )
    kinds = set(map(type, values))
    if kinds <= {str}:
        return _type_texts(name, values)
    known = kinds - {type(None)}
    if known == {bool} == kinds:
        return Attribute(name, "numbers", np.array(values, bool))
    if known and known <= {int, float}:
        if kinds == {int} and all(-(1 << 63) <= value < 1 << 63 for value in values):
            return Attribute(name, "numbers", np.array(values, np.int64))
        if not any(map(is_rounded, values)):
            numbers = [np.nan if value is None else value for value in values]
            return Attribute(name, "numbers", np.array(numbers, np.float64))
        row = next(row for row, value in enumerate(values) if is_rounded(value))
        raise FormatError(f"{locate(row)}column {name!r}: {values[row]!r:.60} fits no dtype")
    if known <= {str}:
        return make_texts(name, "text", [value or "" for value in values])
    first = type(values[0])
    row = next((n for n, value in enumerate(values) if type(value) is not first), 0)
    shown = f"{values[row]!r:.100}" + (f", and {values[0]!r:.100} before" if row else "")
    remedy = "a column is numbers, truth values or texts; name others (columns=)"
    raise FormatError(f"{locate(row)}column {name!r} has {shown}: {remedy}")


def _is_rounded(text: str) -> bool:
    """Whether float64 would change a number that is written as text: one beyond it, too."""
    if not _WHOLE.fullmatch(text.removeprefix("+")):
        return "n" not in text.lower() and np.isinf(float(text))
    return len(text) > _FLOAT_CHARACTERS or is_rounded(int(text))


def _type_texts(name: str, values: Sequence[str]) -> Attribute:
    """Make a column of values that are written as text."""
    if all(_WHOLE.fullmatch(value) and len(value) <= _WHOLE_CHARACTERS for value in values):
        numbers = list(map(int, values))
        if all(-(1 << 63) <= number < 1 << 63 for number in numbers):
            return Attribute(name, "numbers", np.array(numbers, np.int64))
    filled = [value for value in values if value]
    if filled and all(
        _NUMBER.fullmatch(v) and not _LEADING.match(v) and not _is_rounded(v) for v in filled
    ):
        return Attribute(
            name, "numbers", np.array([float(v) if v else np.nan for v in values], np.float64)
        )
    return make_texts(name, "text", values)


def _make_labels(
    path: str, name: str, values: Sequence[Any], locate: Any
) -> tuple[tuple[str, ...] | None, Int]:
    """Make labels of a column: integers, or names, numbered in sorted order."""
    listed = values if isinstance(values, list) else []  # an array has a value on each row
    empty = [row for row, value in enumerate(listed) if value is None or value == ""]
    for row in empty[:1]:
        count = f", as those of {len(empty):,} rows" * (len(empty) > 1)
        raise FormatError(f"{locate(row)}the label {name!r} is empty{count}: give label=''")
    column = _make_column(path, name, values, locate)
    if column.kind == "numbers":
        if column.dtype.kind not in "iu":
            raise UsageError(f"{path}: label {name!r} is {column.dtype}, neither whole nor a name")
        return None, options.convert_labels(path, name, column.values)
    return number_classes(values)
