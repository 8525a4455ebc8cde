"""Decoding of many rows at a time, without a Python call for each sample.

A `decode` that is a `RowDecode` is handed the arrays of a whole step, and writes the rows of the
batch where they will lie. It is a function of a sample as well, with the same results, for the ways
of reading that hand over samples.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from ..index import Index
from ..order import derive_epoch_key
from ..plan import PlanSource, StepPlan
from .collate import Leaves, Take
from .explain import DecodeGain


class RowWriter(Protocol):
    """Rows of one step that are being decoded; called from several threads."""

    def decode(self, first: int, end: int) -> None:
        """Decode the rows [first, end). An exception ends the step, and names the sample."""
        ...

    def result(self) -> Any:
        """Return the batch, once all rows are decoded."""
        ...


@dataclass(frozen=True, slots=True)
class LoadedStep:
    """The rows of a step, read and not yet decoded.

    fields:  from `build_fields`; those that are kept must be copied, because they are views of the
             memory in which all bytes of the step lie.
    take:    gives memory for the batch.
    count:   counts what `Loader.stats()["decoded"]` says, and returns the count so far.
    cropped: whether the bytes are those that `RowReader.crop_reads` has chosen.
    by_row:  draw random numbers by the row, not by the sample, which may come several times.
    """

    index: Index
    planned: StepPlan
    fields: dict[str, Any]
    epoch: int
    seed: int
    take: Take
    leaves: Leaves
    count: Callable[[str, int], int]
    cropped: bool = False
    by_row: bool = False

    def list_streams(self) -> npt.NDArray[np.uint64]:
        """List the number of each row's stream of random numbers."""
        if self.by_row:
            return np.arange(len(self.planned.ids), dtype=np.uint64)
        return np.ascontiguousarray(self.planned.ids, np.uint64)

    def derive_keys(self) -> npt.NDArray[np.uint64]:
        """Derive the key of each row's random numbers: in a mixture that of the sample's pass."""
        passes = self.planned.marks.get("pass")
        if passes is None:
            key = derive_epoch_key(self.seed, self.epoch)
            return np.full(len(self.planned.ids), key, np.uint64)
        turns, rows = np.unique(passes, return_inverse=True)
        keys = [derive_epoch_key(self.seed, int(turn)) for turn in turns]
        return np.array(keys, np.uint64)[rows.reshape(-1)]


class RowReader(Protocol):
    """A `RowDecode` of one data set."""

    def crop_reads(self, index: Index, seed: int, epoch: int) -> PlanSource | None:
        """Return the data with the bytes alone that this epoch needs; None for all bytes."""
        ...

    def open_rows(self, step: LoadedStep) -> RowWriter:
        """Return the rows of a step, to be decoded in chunks."""
        ...

    def measure_gains(self, index: Index) -> Sequence[DecodeGain]:
        """Measure on some samples, in at most two seconds and once, what would make decoding
        cheaper."""
        ...


@runtime_checkable
class RowDecode(Protocol):
    """A `decode` that decodes many rows at a time."""

    def open_data(self, index: Index, path: str | None, leaves: Leaves) -> RowReader:
        """Return the decoder of this data; UsageError if it has not what is to be decoded.

        path:    of the data, if files beside it may help.
        leaves:  of the batches.
        """
        ...

    def __call__(self, sample: Any) -> Any: ...


class DecodedCounts:
    """Counts of decoded rows by kind, from several threads."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, kind: str, rows: int) -> int:
        """Count rows of a kind, and return how many there are so far."""
        with self._lock:
            self._counts[kind] += rows
            return self._counts[kind]

    def list_all(self) -> dict[str, int]:
        return dict(self._counts)
