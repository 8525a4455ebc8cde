"""Joins: values for the samples of a dataset from another one, found by sequence or by name.

They become attributes of the index, which batches take them from: no decode function looks them up.
"""

from __future__ import annotations

import copy
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from .. import limits
from ..arguments import Path, check_path
from ..errors import LimitError, UsageError
from ..extent import Int
from ..index.attributes import Attribute, make_texts
from ..index.fields import RESERVED
from ..index.formats.options import convert_labels
from ..index.formats.table_of_files import read_table
from ..index.table import absorb_attribute
from .columns import keep_fields, make_array, read_steps
from .dataset import Dataset, Kind, open
from .fields import Ragged
from .mixing import check_part
from .sources import locate_data, pin_paths


class _Joinable(NamedTuple):
    """Columns of a dataset, a table in text or the user; names of rows; and classes of labels."""

    path: str
    rows: int
    names: Sequence[str]
    read: Callable[[Sequence[str]], Mapping[str, Attribute]]
    keys: Callable[[], list[str]] | None = None
    classes: tuple[str, ...] | None = None


def join(
    data: Dataset,
    other: Dataset | Path | Mapping[str, Any] | Any,
    *,
    on: str | None = None,
    rename: Mapping[str, str | None] | None = None,
) -> Dataset:
    """Return the dataset of the same samples with more fields: the values of `other`.

    data:    what `penstock.open` returns, also selected or weighed.
    other:   data of any format, opened or as its path; the path of a table in text (.csv, .tsv,
             .json, .jsonl); or a dict of columns {name: values}, or a table of pandas.
    on:      None: sample i gets row i, and there are equally many. Else the column of `other` that
             names the sample, by integers or texts: it is compared with the field or label of that
             name in `data`, if there is one, and with the sample's "__key__" if not. "key" also
             stands for the keys of `other`. An integer and a text are equal if the text is the
             integer's. A row may be of several samples, or of none.
    rename:  {name in `other`: name here}, or None for those to leave out.

    Numbers, rows and lists of numbers, and texts are added, bytes as texts, the column `on` is not.
    An integer "label" is the label of the samples, with the classes of `other`. Columns of a CSV
    have the types of `format="table"`: an empty cell is NaN or "".

    Values are read once, here, and are in memory, of each worker process too; LimitError if data
    has more than 1 GiB of them. They belong to the identity: a state is of one join. UsageError if
    counts differ, for samples that `other` does not name, doubled names, and fields that both have.
    """
    check_part("data", data, Kind, "what open() returns, before it is mixed or packed")
    source, index = _open_source(other), data.index
    if (count := max(source.rows, index.count)) > (most := limits.join_samples_max):
        raise LimitError(f"{count:,} samples to join, above {most:,}: write both into one file")
    names = _choose_names(data, source, on, {} if rename is None else rename)
    rows = _find_rows(data, source, on)
    ids, places = data.ids(np.arange(len(data))).view(np.int64), np.full(index.count, -1)
    places[ids] = rows
    columns, added = source.read([*names]), []
    labels, classes = index.label_column, index.classes
    state = hashlib.blake2b(f"{index.identity} {source.classes}".encode(), digest_size=16)
    for name, here in names.items():
        column = replace(columns[name].pick(places), name=here)
        absorb_attribute(state, column)
        if here == "label" and _is_whole(column):
            labels = np.full(index.count, -1)
            labels[ids] = convert_labels(source.path, name, np.asarray(column.take(ids)))
            classes = source.classes if name == here else None
        else:
            added.append(column)
    joined = copy.copy(data)
    joined.index = replace(
        index,
        attributes=(*index.attributes, *added),
        label_column=labels,
        classes=classes,
        joined=(state.hexdigest(), f"{source.path} ({', '.join(names.values())})"),
    )
    return joined


def _choose_names(
    data: Dataset, source: _Joinable, on: str | None, rename: Mapping[str, str | None]
) -> dict[str, str]:
    """Return the name here of each column that is added."""
    known = f"{source.path} has {', '.join(source.names)}"
    if on is not None and on not in source.names and not (on == "key" and source.keys):
        raise UsageError(f"on is {on!r:.100}, but {known}: name one of these")
    if not isinstance(rename, Mapping) or not rename.keys() <= {*source.names}:
        raise UsageError(f"rename is {rename!r:.100}, but {known}: give {{one of these: name}}")
    new = {name: rename.get(name, name) for name in source.names if name != on}
    names = {name: here for name, here in new.items() if here is not None}
    taken = {*RESERVED, "key", "bytes", "source", "pass", "stage"}  # of samples, or of conditions
    taken |= {made.name for made in data.index.made}
    if data.index.label_column is not None or data.classes is not None:
        taken |= {"label", "labels"}  # conditions compare both with the names of classes
    for name, here in names.items():
        if not isinstance(here, str) or here in taken:
            what = f"{here!r:.60} of {source.path} is taken, or no name"
            raise UsageError(f"{what}: give rename={{{name!r}: 'another', or None}}")
        taken.add(here)
    return names


def _find_rows(data: Dataset, source: _Joinable, on: str | None) -> Int:
    """Find the row of each sample."""
    if on is None:
        if source.rows != len(data):
            what = f"{data.path} has {len(data):,} samples, {source.path} {source.rows:,} rows"
            raise UsageError(f"{what}: name the samples by a column, on=")
        return np.arange(len(data))
    known, wanted = _list_names(source, on), _list_names(_open_source(data), on)
    if len({type(name) for name in (*known[:1], *wanted[:1])}) > 1:  # integers, and texts
        known, wanted = [*map(str, known)], [*map(str, wanted)]
    if doubled := [name for name, count in Counter(known).items() if count > 1]:
        what = f"{on!r} of {source.path} has {_show(doubled)} more than once"
        raise UsageError(f"{what}: keep one row of each")
    row_of = {name: row for row, name in enumerate(known)}
    rows = np.fromiter((row_of.get(name, -1) for name in wanted), np.int64, len(wanted))
    if missing := [wanted[row] for row in np.flatnonzero(rows < 0).tolist()]:
        what = f"{on!r} of {source.path} ({_show(known)}) lacks {_show(missing)} of {data.path}"
        raise UsageError(f"{what}: add them, or select() the others first")
    return rows


def _show(names: Sequence[Any]) -> str:
    """Show up to three names, and the number of the others."""
    shown = ", ".join(f"{name!r:.60}" for name in names[:3])
    return shown + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")


def _is_whole(column: Attribute) -> bool:
    """Whether a column is one integer a row."""
    return column.ends is None and not column.shape and column.dtype.kind in "iu"


def _list_names(source: _Joinable, name: str) -> list[Any]:
    """List the integers or texts of a column, or the keys of data without that column."""
    if name not in source.names and source.keys is not None:
        return source.keys()
    column = source.read([name])[name]
    if column.kind != "text" and not _is_whole(column):
        what = f"on is {name!r}, which is {column.dtype} of shape {column.shape} in {source.path}"
        raise UsageError(f"{what}: name a column of integers or texts")
    names: Any = column.take(np.arange(source.rows))
    return names if isinstance(names, list) else list(names.tolist())


# -- columns ---------------------------------------------------------------------------------------


def _open_source(other: Any) -> _Joinable:
    """Return the columns of what the user gives; UsageError if it has none."""
    if hasattr(other, "keys"):  # a table of pandas has them, too
        columns = {name: _read_user(name, other[name]) for name in other}
        counts = {column.count for column in columns.values()} or {0}
        if len(counts) > 1 or not all(isinstance(name, str) for name in columns):
            what = ", ".join(f"{name!r:.60} ({one.count:,})" for name, one in columns.items())
            raise UsageError(f"other has {what}: give columns of one length, named by texts")
        return _Joinable("other", counts.pop(), [*columns], lambda names: columns)
    if not isinstance(other, Dataset):
        path = check_path("other", other)
        if path.lower().endswith((".csv", ".tsv", ".json", ".jsonl")):
            place, store = locate_data(*pin_paths([path]))
            table = read_table(store, store.stat([place.name]), None)
            rows = len(next(iter(table.columns.values()), ()))
            return _Joinable(path, rows, [*table.columns], table.make)
        other = open(path)
    check_part("other", other, Kind, "what open() or select() returns")
    index, rows = other.index, other.ids(np.arange(len(other)))
    names, classes, labels = [made.name for made in other.fields], None, index.label_column
    if labels is not None:
        names, classes = [*names, "label"], other.classes
    read, keys = partial(_read_fields, other, rows.view(np.int64)), partial(index.keys, rows)
    return _Joinable(other.path, len(other), names, read, keys, classes)


def _read_user(name: str, values: Any) -> Attribute:
    """Return a column of the user's."""
    if isinstance(values, list | tuple) or np.ma.is_masked(values) or not np.ndim(values):
        values = make_array(f"other[{name!r}]", values, "biufU")
    return _make_column("other", name, np.asarray(values))


def _read_fields(data: Dataset, rows: Int, names: Sequence[str]) -> Mapping[str, Attribute]:
    """Read fields of these samples."""
    index = data.index
    columns = {one.name: one.pick(rows) for one in index.attributes if one.name in names}
    if index.label_column is not None and "label" in names:
        columns["label"] = Attribute("label", "numbers", index.label_column.take(rows))
    stored = [name for name in names if name not in columns]
    if not stored:
        return columns
    narrow, total, parts = keep_fields(index, stored), 0, []
    fixed = sum(made.nbytes or 0 for made in narrow.made)
    step = max(1, int(limits.selection_read_bytes / max(1.0, narrow.mean_bytes, fixed)))
    for _, read in read_steps(narrow, lambda start, stop: rows[start:stop], len(rows), step):
        parts.append([_make_column(data.path, name, read[name]) for name in stored])
        total += sum(one.values.nbytes for one in parts[-1])
        if max(total, fixed * len(rows)) > (most := limits.join_bytes_max):
            what = f"{', '.join(stored)} of {data.path} take more than {most:,} bytes"
            raise LimitError(f"{what}: leave large ones out, rename={{{stored[0]!r}: None}}")
    made = [_concatenate(column) for column in zip(*parts, strict=True)]
    return columns | dict(zip(stored, made, strict=True))


def _concatenate(parts: Sequence[Attribute]) -> Attribute:
    """Make one column of the columns of samples one after the other."""
    lengths = [np.diff(one.ends, prepend=0) for one in parts if one.ends is not None]
    ends = np.cumsum(np.concatenate(lengths)) if lengths else None
    return replace(parts[0], values=np.concatenate([one.values for one in parts]), ends=ends)


def _make_column(path: str, name: str, rows: Any) -> Attribute:
    """Make a column of rows as batches have them: numbers, lists of them, or texts."""
    values, ends = rows, None
    if isinstance(rows, Ragged):
        values, ends = rows.values[: int(rows.offsets[-1])], rows.offsets[1:]
    dtype = values.dtype if isinstance(values, np.ndarray) else np.dtype(object)
    if ends is not None and dtype == np.uint8:
        rows, dtype = [row.tobytes() for row in rows], np.dtype(object)
    if dtype.kind in "biuf":  # copied: a batch's memory, or the user's, is used again
        return Attribute(name, "numbers", values.astype(dtype.newbyteorder("=")), ends)
    texts: list[str] = []
    try:
        for row in rows:
            text = row if isinstance(row, str) else row.decode()
            text.encode()  # no half of a pair
            texts.append(text)
    except (UnicodeError, AttributeError):
        what = f"{name!r} of {path}, row {len(texts):,}, is {row!r:.60}, neither numbers nor a text"
        raise UsageError(f"{what}: leave it out, rename={{{name!r}: None}}") from None
    return make_texts(name, "text", texts)
