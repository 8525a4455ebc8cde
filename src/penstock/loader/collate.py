"""Collation of samples as torch's default_collate does it, into memory that is recycled.

Rows are written into the batch as they come, from any thread, so that a sample is copied while it
is still in a cache and no second pass over the batch is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .. import limits
from ..arguments import check_kind, check_whole
from ..errors import CollateError, UsageError

Take = Callable[[int], npt.NDArray[np.uint8]]
"""Return a writable uint8 array of so many bytes."""


class Leaves(Protocol):
    """Kind of leaves that a batch is made of: arrays, or the tensors of some framework."""

    def as_array(self, leaf: Any) -> npt.NDArray[Any] | None:
        """Return a framework's leaf (a tensor) as an array that shares its memory, else None."""
        ...

    def as_leaf(self, array: npt.NDArray[Any], like: Any) -> Any:
        """Return rows of leaves like `like` in the form that the user gets."""
        ...


class Arrays:
    """Leaves of a loader without a framework: numpy arrays."""

    def as_array(self, leaf: Any) -> npt.NDArray[Any] | None:
        del leaf
        return None

    def as_leaf(self, array: npt.NDArray[Any], like: Any) -> Any:
        del like
        return array


class LeafColumn(Protocol):
    """One leaf of the samples' structure, for all rows of a batch."""

    def put(self, row: int, value: Any) -> None: ...

    def result(self) -> Any: ...


class Collation:
    """Batch of `rows` samples that have the structure of `first`.

    Arrays and array-likes are stacked and keep their dtype; int becomes int64, float float64, bool
    bool; str, bytes and None stay in a list, memoryview and bytearray as bytes; mappings keep their
    type, namedtuples theirs; tuples and lists become lists. `put` may be called from several
    threads for different rows.

    Raises CollateError if a sample does not have the structure, shape or dtype of the first.
    """

    def __init__(self, first: Any, rows: int, take: Take, leaves: Leaves | None = None) -> None:
        self._root = _make_column(first, rows, take, "sample", leaves or Arrays())

    def put(self, row: int, sample: Any) -> None:
        self._root.put(row, sample)

    def result(self) -> Any:
        return self._root.result()


def _make_column(value: Any, rows: int, take: Take, where: str, leaves: Leaves) -> LeafColumn:
    """Make the column of values like this one, of the first sample."""
    array = _convert_leaf(leaves, value)
    if array is not None:
        memory = take(rows * array.nbytes)
        stack = memory.view(array.dtype).reshape((rows, *array.shape))
        return _StackColumn(stack, value, where, leaves)
    if isinstance(value, (bool, int, float, complex)):
        return _NumberColumn(type(value), rows, where, leaves)
    if isinstance(value, (str, bytes, bytearray, memoryview)) or value is None:
        return _ObjectColumn(rows)
    if isinstance(value, Mapping | Sequence):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        columns = {
            key: _make_column(item, rows, take, f"{where}[{key!r}]", leaves) for key, item in items
        }
        return _StructureColumn(type(value), columns, where)
    kind = f"{where} is a {type(value).__name__}, which cannot be collated"
    raise CollateError(f"{kind}: return arrays, numbers, strings, or dicts and lists of them")


def _convert_leaf(leaves: Leaves, value: Any) -> npt.NDArray[Any] | None:
    """Return the leaf as an array, or None if it is no array."""
    array = value if isinstance(value, np.ndarray) else None
    if array is None and isinstance(value, np.generic):
        array = np.asarray(value)
    if array is None:
        array = leaves.as_array(value)
    if array is not None and array.dtype.kind in "OUSV":
        raise CollateError(f"an array of dtype {array.dtype} cannot be collated: use numbers")
    return array


class _StackColumn:
    """Arrays of one shape and dtype, stacked."""

    def __init__(self, rows: npt.NDArray[Any], first: Any, where: str, leaves: Leaves) -> None:
        self._rows, self._first, self._where, self._leaves = rows, first, where, leaves

    def put(self, row: int, value: Any) -> None:
        array, rows = _convert_leaf(self._leaves, value), self._rows
        if array is None or array.shape != rows.shape[1:] or array.dtype != rows.dtype:
            actual = type(value).__name__ if array is None else f"{array.dtype} {array.shape}"
            what = (
                f"{self._where} is {actual} but {rows.dtype} {rows.shape[1:]} in the first sample"
            )
            raise CollateError(f"{what}: make decode return one shape, or collate by penstock.pad")
        rows[row] = array

    def result(self) -> Any:
        return self._leaves.as_leaf(self._rows, self._first)


class _NumberColumn:
    """Numbers of one Python type, as an array: int becomes int64, float becomes float64."""

    def __init__(self, kind: type, rows: int, where: str, leaves: Leaves) -> None:
        self._kind, self._where, self._leaves = kind, where, leaves
        self._rows: npt.NDArray[Any] = np.empty(rows, np.dtype(kind))

    def put(self, row: int, value: Any) -> None:
        if type(value) is not self._kind:
            kind = self._kind.__name__
            raise CollateError(f"{self._where} is {value!r} but a {kind} in the first sample")
        self._rows[row] = value

    def result(self) -> Any:
        return self._leaves.as_leaf(self._rows, None)


class _ObjectColumn:
    """Strings, bytes and None, as a list."""

    def __init__(self, rows: int) -> None:
        self._rows: list[Any] = [None] * rows

    def put(self, row: int, value: Any) -> None:
        # A view would keep the memory of its whole step alive, or see it overwritten.
        self._rows[row] = bytes(value) if isinstance(value, (bytearray, memoryview)) else value

    def result(self) -> list[Any]:
        return self._rows


class _StructureColumn:
    """Columns by key of a mapping, or by place in a sequence.

    A mapping keeps its type if that can be built from a dict, a namedtuple its own; any other
    sequence becomes a list.
    """

    def __init__(self, kind: type, columns: dict[Any, LeafColumn], where: str) -> None:
        self._kind, self._columns, self._where = kind, columns, where
        self._is_mapping = issubclass(kind, Mapping)

    def put(self, row: int, value: Any) -> None:
        columns = self._columns
        if self._is_mapping:
            fits = isinstance(value, Mapping) and value.keys() == columns.keys()
        else:
            fits = isinstance(value, Sequence) and len(value) == len(columns)
        if not fits:
            shown = list(value) if isinstance(value, Mapping) else type(value).__name__
            if isinstance(value, Sequence) and not self._is_mapping:
                shown = f"{len(value)} parts"
            first = f"the keys {list(columns)}" if self._is_mapping else f"{len(columns)} parts"
            raise CollateError(f"{self._where} is {shown} but {first} in the first sample")
        for key, column in columns.items():
            column.put(row, value[key])

    def result(self) -> Any:
        results = {key: column.result() for key, column in self._columns.items()}
        if not self._is_mapping:
            values = list(results.values())
            return self._kind(*values) if hasattr(self._kind, "_fields") else values
        try:
            return self._kind(results)
        except TypeError:  # a mapping whose constructor takes something else
            return results


def _allot(size_bytes: int) -> npt.NDArray[np.uint8]:
    return np.empty(size_bytes, np.uint8)


@dataclass(frozen=True)
class Pad:
    """Collate function that pads fields, as `pad` makes it."""

    values: Mapping[str, float]
    multiple: int
    mask: str | None
    leaves: Leaves

    def with_leaves(self, leaves: Leaves) -> Pad:
        """Return the function for batches of other leaves, such as tensors."""
        return replace(self, leaves=leaves)

    def __call__(self, samples: Sequence[Any]) -> dict[str, Any]:
        for row, sample in enumerate(samples):
            if not isinstance(sample, Mapping) or self.values.keys() - sample.keys():
                actual = list(sample) if isinstance(sample, Mapping) else type(sample).__name__
                names = ", ".join(map(repr, self.values))
                what = f"pad: sample {row} of the batch is {actual}"
                raise CollateError(f"{what}: make decode return a dict that has {names}")
        if not samples:
            raise CollateError("pad: there is no sample that shows the structure: use drop_last")
        rest = [{k: v for k, v in sample.items() if k not in self.values} for sample in samples]
        collation = Collation(rest[0], len(rest), _allot, self.leaves)
        for row, sample in enumerate(rest):
            collation.put(row, sample)
        batch: dict[str, Any] = collation.result()
        for name in self.values:
            batch[name] = self._pad_field(name, [sample[name] for sample in samples])
        batch = {name: batch[name] for name in samples[0]}
        if self.mask is not None:
            if self.mask in batch:
                raise CollateError(f"pad: mask={self.mask!r} is a field of the samples already")
            first = next(iter(self.values))
            lengths = np.array([len(sample[first]) for sample in samples])
            taken = np.arange(batch[first].shape[1]) < lengths[:, None]
            batch[self.mask] = self.leaves.as_leaf(taken.astype(np.int64), None)
        return batch

    def collate_none(self, sample: Any) -> dict[str, Any]:
        """Return the batch of no samples, in the structure of this one."""
        batch: dict[str, Any] = _cut_rows(self([sample]))
        return batch

    def _pad_field(self, name: str, rows: list[Any]) -> Any:
        arrays = [self._as_array(name, row) for row in rows]
        known = [array for array in arrays if array is not None]
        first = known[0] if known else np.empty(0, np.int64)
        value = self.values[name]
        self._check_value(name, value, first.dtype, next((r for r in rows if len(r)), rows[0]))
        longest = max(map(len, rows))
        length = -(-longest // self.multiple) * self.multiple
        stack = np.full((len(rows), length, *first.shape[1:]), value, first.dtype)
        for row, array in enumerate(arrays):
            if array is None:
                continue
            if array.dtype != first.dtype or array.shape[1:] != first.shape[1:]:
                pair = f"{array.dtype} {array.shape} in sample {row} of the batch"
                pair += f" but {first.dtype} {first.shape} in another"
                raise CollateError(f"pad: {name!r} is {pair}: only the first axis may differ")
            stack[row, : len(array)] = array
        return self.leaves.as_leaf(stack, rows[0])

    def _as_array(self, name: str, row: Any) -> npt.NDArray[Any] | None:
        """Return a row as an array, or None for an empty list, which has no dtype."""
        array = row if isinstance(row, np.ndarray) else self.leaves.as_array(row)
        if array is None:
            if isinstance(row, list | tuple) and not row:
                return None
            array = np.asarray(row)
        if array.ndim == 0 or array.dtype.kind not in "iufbc":
            kind = type(row).__name__
            raise CollateError(f"pad: {name!r} is {kind}: give a list, array or tensor of numbers")
        return array

    def _check_value(self, name: str, value: float, dtype: np.dtype[Any], row: Any) -> None:
        kind = str(getattr(row, "dtype", dtype)).rpartition(".")[2]
        if not isinstance(row, np.ndarray) and kind != dtype.name and value != 0:
            raise CollateError(f"pad: {name!r} is {kind}, padded with 0 only: make it float32")
        if dtype.kind in "iub":
            low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
            if value != int(value) or not low <= value <= high:
                fault = f"{dtype}, which cannot hold the value {value!r}"
                raise CollateError(f"pad: {name!r} is {fault}: open the data with as_dtype='int64'")


def _cut_rows(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _cut_rows(inner) for name, inner in value.items()}
    return value[:0] if hasattr(value, "shape") or not value or isinstance(value[0], str) else value


def pad(values: Mapping[str, float], *, multiple: int = 1, mask: str | None = None) -> Pad:
    """Make a collate function that pads fields to the length of the batch's longest.

        Loader(dataset, 8, decode=tokenize, collate=pad({"input_ids": 0, "labels": -100}))

    values:    the fields to pad, with the value that fills each. A field is a list, an array or a
               tensor of numbers, whose first axis may differ in length; it keeps its dtype, a list
               of integers becomes int64. Values that the dtype cannot hold are refused.
    multiple:  of which the length is, for kernels and compilers that like few shapes.
    mask:      name of a field that is added: int64, 1 where the first of `values` has data, 0 where
               it was filled: `mask="attention_mask"`.

    Samples are dicts; the other fields are collated as without it. `penstock.torch.DataLoader`
    takes it as `collate_fn` and makes tensors, also of torch datasets. Raises UsageError, and
    CollateError for samples that do not fit.
    """
    if not isinstance(values, Mapping) or not values:
        raise UsageError(f"values is {values!r}: give the fields to pad, as {{'labels': -100}}")
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UsageError(f"values[{name!r}] is {value!r}: give the number that fills")
    if mask is not None:
        check_kind("mask", mask, str, "the name of the field, such as 'attention_mask'")
    multiple = check_whole("multiple", multiple, 1, limits.order_count_max)
    return Pad(dict(values), multiple, mask, Arrays())
