"""Batches: what a loader without `decode` yields."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .extent import Int
from .plan import Ids


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """Byte strings of different lengths, one after the other.

    values:   uint8, all bytes.
    offsets:  int64 (n+1,), string i is values[offsets[i]:offsets[i+1]].
    """

    values: npt.NDArray[np.uint8]
    offsets: Int

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> npt.NDArray[np.uint8]:
        if not -len(self) <= i < len(self):
            raise IndexError(f"row {i} of {len(self)}")
        i %= len(self)
        return self.values[self.offsets[i] : self.offsets[i + 1]]

    def __iter__(self) -> Iterator[npt.NDArray[np.uint8]]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"Ragged({len(self)} rows, {len(self.values):,} bytes)"


class Batch:
    """One rank's part of one step, undecoded.

    ids:    uint64 (B,), sample numbers.
    epoch, step: where in the run.
    valid:  bool (B,), False where a row repeats a sample to fill a padded step (`pad=True`).

    `batch["data"]` is a field: an array (B, L) of uint8, or (B, *shape) of the field's dtype where
    the format has one, if all samples have one length, else `Ragged`; `batch["label"]` is int64
    (B,) where labels are known. The memory is the batch's own until the last view of it is gone.
    """

    __slots__ = ("epoch", "fields", "ids", "repeats", "step")

    def __init__(
        self, ids: Ids, step: int, epoch: int, fields: dict[str, Any], repeats: int = 0
    ) -> None:
        self.ids = ids
        self.step = step
        self.epoch = epoch
        self.fields = fields
        self.repeats = repeats

    @property
    def valid(self) -> npt.NDArray[np.bool_]:
        return np.arange(len(self.ids)) < len(self.ids) - self.repeats

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, field: str) -> Any:
        return self.fields[field]

    def __getattr__(self, name: str) -> Any:
        # Only reached for names that are no slot: batch.data is batch["data"].
        try:
            return object.__getattribute__(self, "fields")[name]
        except KeyError:
            raise AttributeError(
                f"a batch has ids, step, epoch, valid and the fields {', '.join(self.fields)}; "
                f"not {name!r}"
            ) from None

    def __repr__(self) -> str:
        return (
            f"Batch(epoch={self.epoch}, step={self.step}, {len(self)} samples, {list(self.fields)})"
        )
