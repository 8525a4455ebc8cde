"""Lengths and statistics, measured by many: each task measures some chunks of the samples."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import numpy as np

from .. import limits
from ..arguments import import_function
from ..dataset.dataset import Dataset
from ..dataset.measuring import LengthMeasuring
from ..dataset.sample import FieldReader
from ..dataset.stats import StatsMeasuring
from ..errors import UsageError
from ..extent import Int
from .dataset_work import DatasetWork, divide_evenly
from .work_plan import Sections, read_part


class LengthWork(DatasetWork):
    """The length of each sample: units are chunks."""

    noun = "chunks"

    def prepare(self, dataset: Dataset, settings: dict[str, Any], folder: str) -> None:
        """Check the settings of `measure_lengths`: by, field and tokenizer."""
        options = dict(settings)
        by = options.pop("by", "bytes")
        if not isinstance(by, str):
            raise UsageError(f"by is {by!r}: name a function, as module:function")
        rule: Any = import_function("by", by) if ":" in by else by
        self._source = _digest_source(rule) if callable(rule) else ""
        self._measuring = LengthMeasuring(dataset, rule, **options)

    def divide(self) -> Int:
        """Chunks, one a task unless there are very many."""
        return _divide(self._measuring.count)

    def describe(self) -> Any:
        """The rule: a tokenizer by its digest, a function by that of its module."""
        return [self._measuring.name, self._measuring.identity, self._source]

    def do(self, first: int, stop: int) -> tuple[dict[str, Any], Sections]:
        """Measure chunks."""
        return {}, {"numbers": self._measuring.measure(first, stop)}

    def commit(self, parts: Sequence[str], share: Callable[..., None]) -> str:
        """Save the lengths, beside the index."""
        samples = self._measuring.samples
        measured = _find_chunks(self.plan_made.sections["bounds"], parts, samples)
        saved = self._measuring.save(force=True, measured=measured)
        return f"lengths of {len(saved.values):,} samples by {saved.rule}: {saved.path}"


class StatsWork(DatasetWork):
    """Statistics of the fields of numbers: units are chunks."""

    noun = "chunks"

    def prepare(self, dataset: Dataset, settings: dict[str, Any], folder: str) -> None:
        """Check the settings of `Dataset.stats`."""
        self._measuring = StatsMeasuring(dataset, **settings)

    def divide(self) -> Int:
        """Chunks, one a task unless there are very many."""
        return _divide(self._measuring.count)

    def describe(self) -> Any:
        """Nothing but the settings."""
        return []

    def do(self, first: int, stop: int) -> tuple[dict[str, Any], Sections]:
        """Measure chunks."""
        with closing(FieldReader(self._measuring.dataset.index)) as reader:
            chunks = [self._measuring.measure(chunk, reader) for chunk in range(first, stop)]
        return {}, {"numbers": np.concatenate(chunks)}

    def commit(self, parts: Sequence[str], share: Callable[..., None]) -> str:
        """Save the statistics, beside the index."""
        measured = _find_chunks(self.plan_made.sections["bounds"], parts, self._measuring.width)
        found = self._measuring.save(1, force=True, measured=measured)
        return f"statistics of {', '.join(found)}, of {len(self._measuring.dataset):,} samples"


def _divide(count: int) -> Int:
    return divide_evenly(count, max(1, count // limits.measured_tasks_max))


def _digest_source(function: Callable[..., Any]) -> str:
    """The digest of the file that a function is in: what it measures changes with it."""
    try:
        with open(inspect.getfile(function), "rb") as file:
            return hashlib.blake2b(file.read(), digest_size=16).hexdigest()
    except (OSError, TypeError):  # a compiled one
        return ""


def _find_chunks(bounds: Int, parts: Sequence[str], numbers: int) -> Callable[[int], Int]:
    """Make the function that returns the numbers of a chunk, so many unless it is the last."""

    @functools.lru_cache(maxsize=1)
    def read(task: int) -> Int:
        found: Int = read_part(parts[task])[1]["numbers"]
        return found

    def find(chunk: int) -> Int:
        task = int(np.searchsorted(bounds, chunk, "right")) - 1
        first = (chunk - int(bounds[task])) * numbers
        return read(task)[first : first + numbers]

    return find
