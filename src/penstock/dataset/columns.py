"""Columns: one value for each sample of a dataset, from its index, its data, or the user."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .. import limits
from ..errors import LimitError, UsageError
from ..index.attributes import Attribute
from ..index.concat import JointIndex, rename_fields
from ..index.fields import SUMS_FIELD, Field
from ..index.json_fields import Column, is_rounded
from ..index.layout import Boxes, Chunked, Windows
from ..index.table import Index
from ..index.windows import WindowGrid
from ..order.selection import Subset
from ..plan.batch_layout import Ids
from .lengths import count_bytes
from .predicate import ENDS_IN_NUL, Kind, describe_unknown
from .sample import FieldReader

Array = npt.NDArray[Any]
Slice = Callable[[int, int], Array]


class IndexedSamples(Protocol):
    """A dataset as conditions and weights see it; `penstock.Dataset` is one."""

    path: str
    index: Index
    subset: Subset | None

    def __len__(self) -> int: ...

    @property
    def fields(self) -> tuple[Field, ...]: ...

    @property
    def classes(self) -> tuple[str, ...] | None: ...

    def ids(self, numbers: npt.ArrayLike) -> Ids: ...

    def find_lengths(self) -> Slice | None: ...

    def has_lengths(self) -> bool: ...


class WideTextsError(LimitError):
    """Error for texts of many samples that are asked for at once, where one of them is long."""


class Columns(Mapping[str, Array]):
    """Columns of a dataset by name, in the sequence of `dataset[i]`; made when they are asked for.

    label:   int64, where the samples have labels.
    bytes:   int64, the bytes of a sample, all fields, where they are known before decoding.
    attributes of the index: texts; numbers; and lists of whole numbers, such as the classes of the
             objects of an image, as (values, offsets), for `in`.
    key:     texts, as "__key__" has them.
    axes of windows, by name: int64, see `Dataset.origins`.
    source:  int64, in a mixture the number of the sample's dataset.
    length:  int64, where it is known, see `Dataset.lengths`; unless a field or one of `more` has
             the name.
    and each field that is one number or one text a sample (of JSON lines, Arrow and Parquet; it is
    read from the data at first use), and each of `more`, the user's arrays with a value for each
    sample. A field that is named as one of the columns above is left out where the dataset has that
    column.
    """

    def __init__(self, dataset: IndexedSamples, more: Mapping[str, Any] | None = None) -> None:
        self._dataset, index = dataset, dataset.index
        self._made: dict[str, Slice] = {}
        sources: dict[str, tuple[Kind, Callable[[], Slice]]] = {}
        if (labels := index.label_column) is not None:
            sources["label"] = "number", lambda: self._slice_labels(labels)
        if not any(isinstance(layout, Chunked) for layout in index.layouts):
            sources["bytes"] = "number", lambda: self._slice(partial(count_bytes, index))
        sources["key"] = (
            "text",
            lambda: self._slice(lambda ids: _make_texts("key", index.keys(ids))),
        )
        if isinstance(index, JointIndex):
            sources["source"] = (
                "number",
                lambda: self._slice(
                    lambda ids: np.searchsorted(index.first, ids, side="right") - 1
                ),
            )
        attributes = {attribute.name: attribute for attribute in index.attributes}
        for name, attribute in attributes.items():
            is_list = attribute.ends is not None and attribute.dtype.kind in "iub"
            if attribute.kind == "text" or is_list:
                kind: Kind = "list" if attribute.kind != "text" else "text"
                sources.setdefault(name, (kind, partial(self._slice_attribute, attribute)))
        for field in dataset.fields:
            if field.shape is not None and set(field.shape) <= {1} and field.dtype.kind in "biuf":
                make = partial(self._read, field)
                if field.name in attributes:
                    make = partial(self._slice_attribute, attributes[field.name])
                kind = "truth" if field.dtype.kind == "b" else "number"
                sources.setdefault(field.name, (kind, make))
        for name in _list_texts(index):
            sources.setdefault(name, ("text", partial(self._read_texts, name)))
        for name, column in _check_columns(more or {}, len(dataset)).items():
            if name in sources:
                raise UsageError(f"columns has {name!r}, which the dataset has too: rename yours")
            kinds: dict[str, Kind] = {"b": "truth", "U": "text"}
            sources[name] = kinds.get(column.dtype.kind, "number"), partial(slice_column, column)
        if isinstance(layout := index.layouts[0], Boxes | Windows):
            for axis in layout.grid.axes:
                slice_axis = partial(self._slice_origins, layout.grid, axis)
                sources.setdefault(axis, ("number", slice_axis))
        if "length" not in sources and dataset.has_lengths():
            sources["length"] = "number", self._slice_lengths
        self._sources = sources
        self.kinds: Mapping[str, Kind] = {name: kind for name, (kind, _) in sources.items()}

    def __getitem__(self, name: str) -> Array:
        """Return the whole column."""
        return self.find(name)(0, len(self._dataset))

    def __iter__(self) -> Iterator[str]:
        return iter(self.kinds)

    def __len__(self) -> int:
        return len(self.kinds)

    def find(self, name: str) -> Slice:
        """Return a function that gives the values of the samples [start, stop)."""
        if name not in self.kinds:
            raise UsageError(describe_unknown(name, self.kinds))
        if name not in self._made:
            self._made[name] = self._sources[name][1]()
        return self._made[name]

    def _ids(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        return self._dataset.ids(np.arange(start, stop, dtype=np.uint64)).view(np.int64)

    def _slice(self, take: Callable[[npt.NDArray[np.int64]], Array]) -> Slice:
        """Return the function that gives values by a function of numbers in the whole dataset."""
        return lambda start, stop: take(self._ids(start, stop))

    def _slice_labels(self, labels: Array) -> Slice:
        return slice_column(labels) if self._dataset.subset is None else self._slice(labels.take)

    def _slice_lengths(self) -> Slice:
        lengths = self._dataset.find_lengths()
        assert lengths is not None
        return lengths

    def _slice_origins(self, grid: WindowGrid, axis: str) -> Slice:
        return self._slice(lambda ids: grid.name_origins(ids)[axis])

    def _slice_attribute(self, attribute: Attribute) -> Slice:
        name = attribute.name
        return self._slice(lambda ids: _make_comparable(name, attribute.take(ids)))

    def _read(self, field: Field) -> Slice:
        """Read a field of all samples."""
        count, index = len(self._dataset), keep_fields(self._dataset.index, [field.name])
        values = np.empty(count, field.as_dtype or field.dtype)
        for start, read in read_steps(index, self._ids, count, limits.selection_chunk_samples):
            rows = read[field.name].reshape(-1)
            values[start : start + len(rows)] = rows
        return slice_column(values)

    def _read_texts(self, name: str) -> Slice:
        """Read a field of all samples: equal texts are one object. A broken line's is empty."""
        index = keep_fields(self._dataset.index, [name])
        step = int(limits.selection_read_bytes / max(1.0, index.mean_bytes))
        texts: list[str] = []
        known: dict[str, str] = {"": ""}
        held_bytes = 0
        for start, read in read_steps(index, self._ids, len(self._dataset), max(1, step)):
            for number, row in enumerate(read[name], start):
                text = _read_text(name, row, number)
                same = known.setdefault(text, text)
                if same is text:
                    held_bytes += len(text)
                texts.append(same)
            if held_bytes > (most := limits.selection_texts_bytes_max):
                raise LimitError(f"texts of {name!r} have more than {most:,} characters: give ids")
        return lambda start, stop: _make_comparable(name, texts[start:stop])


def read_steps(
    index: Index, ids: Callable[[int, int], Array], count: int, step: int
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read samples, at most `step` at a time: yield the place of the first, and their fields.

    ids:  gives the numbers of the samples [start, stop) of `count`.
    """
    reader, step = FieldReader(index), min(step, limits.selection_chunk_samples)
    try:
        for start in range(0, count, step):
            yield start, reader.read(ids(start, min(start + step, count)).view(np.uint64))
    finally:
        reader.close()


def keep_fields(index: Index, names: Sequence[str]) -> Index:
    """Return the index of these stored fields alone, without attributes."""
    others = {made.name: None for made in index.fields if made.name not in (*names, SUMS_FIELD)}
    if (parser := index.fields[0].parser) is not None:  # `broken` needs one
        kept = [key for key in parser.keys if key in names] or [next(iter(parser.keys))]
        others = {key: None for key in parser.keys if key not in kept}
    return rename_fields(replace(index, attributes=()), others)


def _make_comparable(name: str, column: Column) -> Any:
    """Return a column of the index as conditions take it: texts as an array.

    WideTextsError if that would take far more memory than the texts, because one of them is long.
    """
    if not isinstance(column, list):
        return column.reshape(-1) if isinstance(column, np.ndarray) else column
    lengths = [len(text) for text in column]
    longest = max(lengths, default=0)
    wide_bytes = 4 * longest * len(column)
    if wide_bytes > max(limits.selection_text_bytes_max, 16 * 4 * sum(lengths)):
        size = f"a text has {longest:,} characters, {len(column):,} such {wide_bytes:,} bytes"
        raise WideTextsError(f"{size}: select by a text as condition, ids or a mask")
    return _make_texts(name, column)


def _make_texts(name: str, texts: Sequence[str]) -> Array:
    """Return texts as an array; UsageError if one ends in NUL: such an array drops it."""
    array = np.array(texts, np.str_)
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    cut = np.flatnonzero(np.char.str_len(array) != lengths)
    if len(cut):
        raise UsageError(f"{name} has {texts[cut[0]][-50:]!r}: {ENDS_IN_NUL}")
    return array


def slice_column(column: Array) -> Slice:
    """Return the function that gives a part of an array."""
    return lambda start, stop: column[start:stop]


def _list_texts(index: Index) -> list[str]:
    """List the fields that are one text a sample: strings of JSON and of tables of columns.

    Columns of bytes are among them, because an index does not tell these from strings.
    """
    indexes = index.parts if isinstance(index, JointIndex) else (index,)
    has_bytes = all(member.format in ("arrow", "parquet", "jsonl") for member in indexes)
    names = []
    for field in index.fields:
        for made in field.made:
            is_bytes = made.dtype == np.uint8 and made.shape is None and not made.nesting
            if made.dtype.kind == "U" or (is_bytes and has_bytes):
                names.append(made.name)
    return names


def _read_text(name: str, row: Any, number: int) -> str:
    """Return the text of a sample; UsageError if its bytes are none."""
    if row is None or isinstance(row, str):
        return row or ""
    try:
        return np.asarray(row).tobytes().decode()
    except UnicodeDecodeError as error:
        where = f"field {name!r} of sample {number:,}"
        raise UsageError(f"{where} is no text ({error}): name another column") from None


_forms = {
    "b": "truth values",
    "iu": "integers",
    "iuf": "numbers",
    "biufU": "numbers, texts or truth values",
}


def make_array(name: str, values: Any, kinds: str, count: int | None = None) -> Array:
    """Return a row of values as an array; UsageError if they are none, or others than were given.

    kinds:  kinds of dtypes that it may have.
    count:  its length, if that is known.
    """
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"{name} makes no array ({error}): give a row of values") from None
    if np.ma.is_masked(values):
        raise UsageError(f"{name} is a masked array, and some of it is masked: fill it")
    if isinstance(values, list | tuple) and array.dtype.kind in "Uf":
        is_changed = (
            is_rounded if array.dtype.kind == "f" else lambda value: not isinstance(value, str)
        )
        if changed := [value for value in values if is_changed(value)]:
            how = "which would be rounded" if array.dtype.kind == "f" else "among texts"
            raise UsageError(f"{name} has {changed[0]!r:.100}, {how}: give an array of one kind")
    if not array.size and array.dtype.kind not in kinds:  # of no values, any dtype will do
        array = array.astype(bool if kinds == "b" else np.int64)
    if array.dtype.kind not in kinds or array.ndim != 1 or count not in (None, len(array)):
        shape = "(n,)" if count is None else f"({count},)"
        form = f"give {_forms[kinds]} of shape {shape}"
        raise UsageError(f"{name} is {array.dtype} of shape {array.shape}: {form}")
    if array.dtype.kind == "U" and isinstance(values, list | tuple):
        return _make_texts(name, values)
    return array


def _check_columns(columns: Mapping[str, Any], count: int) -> dict[str, Array]:
    """Return the user's columns as arrays of one value for each sample."""
    if not isinstance(columns, Mapping):
        raise UsageError(f"columns is a {type(columns).__name__}: give a dict of arrays by name")
    return {
        str(name): make_array(f"columns[{name!r}]", values, "biufU", count)
        for name, values in columns.items()
    }
