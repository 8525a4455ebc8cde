"""Lengths, statistics and damage of samples, found by many: each task reads some of them."""

from __future__ import annotations

import hashlib
import inspect
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import numpy as np

from .. import limits
from ..arguments import import_function
from ..dataset.dataset import Dataset
from ..dataset.measuring import LengthMeasuring
from ..dataset.sample import FieldReader
from ..dataset.saved import allot_array
from ..dataset.stats import StatsMeasuring
from ..engine.store import Progress
from ..errors import ChangedError, DataError, LimitError, PenstockError, StorageError, UsageError
from ..extent import Int
from ..images.rows import decode_whole
from .dataset_work import DatasetWork, divide_evenly
from .work_plan import Sections, read_part

_NOTED_MAX = 100  # damaged samples that are named; all are counted
_IMAGES = (b"\xff\xd8\xff", b"\x89PNG\r\n", b"GIF8")


class MeasureWork(DatasetWork):
    """Numbers measured in chunks of samples, and saved beside the index: units are chunks."""

    noun = "chunks"
    measuring: LengthMeasuring | StatsMeasuring

    def divide(self) -> Int:
        """Chunks, one a task unless there are very many."""
        count = self.measuring.count
        return divide_evenly(count, max(1, count // limits.measured_tasks_max))

    def do(self, first: int, stop: int) -> tuple[dict[str, Any], Sections]:
        return {}, {"numbers": self.measuring.measure(first, stop)}

    def commit(self, parts: Sequence[str], share: Callable[..., None]) -> str:
        """Save what was measured, as one process does."""
        count, folder = self.measuring.numbers, self.plan_made.folder
        numbers = allot_array(count, np.int64, folder, limits.lengths_samples_inline_max)
        filled = 0
        for part in parts:
            measured = read_part(part)[1]["numbers"]
            numbers[filled : filled + len(measured)] = measured
            filled += len(measured)
        return self.save(numbers if count else None)

    @abstractmethod
    def save(self, measured: Int | None) -> str:
        """Save the numbers of all chunks, if there are any: a line about them."""


class LengthWork(MeasureWork):
    """The length of each sample."""

    settings = ("by", "field", "tokenizer")
    measuring: LengthMeasuring

    def prepare(self, dataset: Dataset, settings: dict[str, Any], folder: str) -> None:
        """Check the settings of `measure_lengths`: by, field and tokenizer."""
        by = settings.pop("by", "bytes")
        rule: Any = import_function("by", by) if ":" in str(by) else by
        self._source = _digest_source(rule) if callable(rule) else ""
        self.measuring = LengthMeasuring(dataset, rule, **settings)

    def describe(self) -> Any:
        """The rule: a tokenizer by its digest, a function by that of its module."""
        return [self.measuring.name, self.measuring.identity, self._source]

    def save(self, measured: Int | None) -> str:
        saved = self.measuring.save(force=True, measured=measured)
        return f"lengths of {len(saved.values):,} samples by {saved.rule}: {saved.path}"


class StatsWork(MeasureWork):
    """Statistics of the fields of numbers."""

    settings = ("by_axis",)
    measuring: StatsMeasuring

    def prepare(self, dataset: Dataset, settings: dict[str, Any], folder: str) -> None:
        """Check the settings of `Dataset.stats`."""
        self.measuring = StatsMeasuring(dataset, **settings)

    def save(self, measured: Int | None) -> str:
        fields = self.measuring.save(1, force=True, measured=measured)
        return f"statistics of {', '.join(fields)}, of {len(self.measuring.dataset):,} samples"


class VerifyWork(DatasetWork):
    """The reading of all samples."""

    noun = "samples"

    @classmethod
    def open(cls, about: dict[str, Any], index: str, progress: Progress | None = None) -> Dataset:
        """Open the data, with checksums where the format has them; that index is of no use beside
        the data."""
        try:
            options = {"verify": True, **about["options"]}
            how = "read" if index == "auto" else index
            return super().open({**about, "options": options}, how, progress)
        except UsageError:  # of a format without this option
            return super().open(about, index, progress)

    def prepare(self, dataset: Dataset, settings: dict[str, Any], folder: str) -> None:
        """Keep the data."""
        self._data, self._mean = dataset, max(1, dataset.index.mean_bytes)

    def divide(self) -> Int:
        """Samples, so many that they have about as many bytes a task."""
        return divide_evenly(len(self._data), max(1, int(limits.task_bytes / self._mean)))

    def do(self, first: int, stop: int) -> tuple[dict[str, Any], Sections]:
        """Read samples, some at a time."""
        noted: list[PenstockError] = []
        size = max(1, min(256, int(limits.lengths_batch_bytes / self._mean)))
        with closing(FieldReader(self._data.index)) as reader:
            spans = ((at, min(at + size, stop)) for at in range(first, stop, size))
            digest = sum(self._read(reader, *span, noted) for span in spans)
        if len(noted) == stop - first and isinstance(noted[0], StorageError):
            raise noted[0]  # storage that is away damages nothing
        texts = [str(error) for error in noted[:_NOTED_MAX]]
        header = {"digest": digest, "damaged": len(noted), "noted": texts}
        return header, {"bounds": np.array([first, stop])}

    def _read(self, reader: FieldReader, first: int, stop: int, noted: list[PenstockError]) -> int:
        """Read samples, and add their digests up, which any tasks do in any sequence. Where some
        are damaged, each is read alone."""
        try:
            return self._add_digests(reader, first, stop)
        except ChangedError:
            raise
        except (DataError, LimitError, StorageError) as error:
            if stop - first == 1:
                noted.append(error)
                return 0
        return sum(self._read(reader, number, number + 1, noted) for number in range(first, stop))

    def _add_digests(self, reader: FieldReader, first: int, stop: int) -> int:
        index, total = self._data.index, 0
        sample_of = reader.read_samples(self._data.ids(np.arange(first, stop, dtype=np.uint64)))
        for number in range(first, stop):
            sample = {"number": number, **sample_of(number - first)}
            where = f"sample {number:,}: {index.where(sample.pop('__id__'))}"
            state = hashlib.blake2b(digest_size=16)
            _add(state, [*sample, *sample.values()], where)
            total += int.from_bytes(state.digest(), "little")
        return total

    def commit(self, parts: Sequence[str], share: Callable[..., None]) -> str:
        """Name the damaged samples; DataError if there are any."""
        headers = [read_part(part)[0] for part in parts]
        if damaged := sum(header["damaged"] for header in headers):
            noted = [text for header in headers for text in header["noted"]][:_NOTED_MAX]
            what = f"{self._data.path}: {damaged:,} of {len(self._data):,} samples are damaged"
            remedy = "restore them, `penstock index --force` it, and check it in a new folder"
            raise DataError("\n  ".join([f"{what}: {remedy}", *noted]))
        digest = sum(header["digest"] for header in headers) % (1 << 128)
        return f"{len(self._data):,} samples are whole: digest {digest:032x} of their contents"


def _add(state: Any, value: Any, where: str) -> None:
    """Add a value to a digest; images are decoded."""
    if isinstance(value, list | tuple):
        state.update(f"[{len(value)}]".encode())
        for each in value:
            _add(state, each, where)
        return
    array = np.frombuffer(value, np.uint8) if isinstance(value, bytes) else np.asarray(value)
    if isinstance(value, bytes) and value.startswith(_IMAGES):
        decode_whole(array, where, False)
    state.update(f"{array.dtype.str}{array.shape}".encode())
    state.update(array.tobytes())


def _digest_source(function: Callable[..., Any]) -> str:
    """The digest of the file that a function is in: what it measures changes with it."""
    try:
        with open(inspect.getfile(function), "rb") as file:
            return hashlib.blake2b(file.read(), digest_size=16).hexdigest()
    except (OSError, TypeError):  # a compiled one
        return ""
