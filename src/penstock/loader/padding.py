"""Padding: a collate function for samples whose fields differ in length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import limits
from ..arguments import check_whole
from ..errors import CollateError, UsageError
from .collate import Arrays, Collation, Leaves


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
            missing = self.values.keys() - sample.keys() if isinstance(sample, Mapping) else None
            if missing is None or missing:
                actual = list(sample) if isinstance(sample, Mapping) else type(sample).__name__
                raise CollateError(
                    f"pad: sample {row} of the batch is {actual}: make decode return a dict that "
                    f"has {', '.join(map(repr, missing or self.values))}"
                )
        if not samples:
            raise CollateError("pad: there is no sample that shows the structure: use drop_last")
        batch: dict[str, Any] = {}
        for name in samples[0]:
            if name in self.values:
                batch[name] = self._pad_field(name, [sample[name] for sample in samples])
        rest = [{k: v for k, v in sample.items() if k not in self.values} for sample in samples]
        collation = Collation(
            rest[0], len(rest), lambda size: np.empty(size, np.uint8), self.leaves
        )
        for row, sample in enumerate(rest):
            collation.put(row, sample)
        others = collation.result()
        batch = {name: batch[name] if name in batch else others[name] for name in samples[0]}
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
                raise CollateError(
                    f"pad: {name!r} is {array.dtype} {array.shape} in sample {row} of the batch "
                    f"but {first.dtype} {first.shape} in another: only the first axis may differ"
                )
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
            raise CollateError(
                f"pad: {name!r} is {type(row).__name__}: give a list, array or tensor of numbers"
            )
        return array

    def _check_value(self, name: str, value: float, dtype: np.dtype[Any], row: Any) -> None:
        own = str(getattr(row, "dtype", dtype)).rpartition(".")[2]
        if not isinstance(row, np.ndarray) and own != dtype.name and value != 0:
            raise CollateError(
                f"pad: {name!r} is {own}, which is padded with 0 only: make it float32 in decode"
            )
        if dtype.kind in "iub":
            low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
            if value != int(value) or not low <= value <= high:
                raise CollateError(
                    f"pad: {name!r} is {dtype}, which cannot hold the value {value!r}: let decode "
                    f"return int64, or open the data with as_dtype='int64'"
                )


def _cut_rows(part: Any) -> Any:
    if isinstance(part, dict):
        return {name: _cut_rows(inner) for name, inner in part.items()}
    return part[:0] if hasattr(part, "shape") or not part or isinstance(part[0], str) else part


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
        raise UsageError(
            f"values is {values!r}: give the fields to pad, such as {{'labels': -100}}"
        )
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UsageError(f"values[{name!r}] is {value!r}: give the number that fills")
    if mask is not None and not isinstance(mask, str):
        raise UsageError(f"mask is {mask!r}: give the name of the field, such as 'attention_mask'")
    multiple = check_whole("multiple", multiple, 1, limits.order_count_max)
    return Pad(dict(values), multiple, mask, Arrays())
