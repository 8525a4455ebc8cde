"""Work on the samples of a data set: the plan indexes it once, and divides its samples."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ..convert.manifest import describe_source
from ..dataset.dataset import Dataset
from ..dataset.dataset import open as open_dataset
from ..dataset.sources import pin_paths
from ..engine.store import Progress
from ..errors import UsageError
from .work_plan import Sections, Tasks, WorkPlan

_INDEX = "index.penstock"


class DatasetWork(ABC):
    """Work on a data set, for one plan: each kind says what it makes of which samples.

    noun:  of the units, in messages.
    """

    noun: ClassVar[str]

    def __init__(self, plan: WorkPlan) -> None:
        self.plan_made = plan
        index = os.path.join(plan.folder, _INDEX)
        dataset = _open(plan.about, index)
        if describe_source(dataset)["stamp"] != plan.kept["stamp"]:
            raise UsageError(f"{index} is of another plan: plan the work again")
        self.prepare(dataset, dict(plan.about["settings"]), plan.folder)

    @classmethod
    def plan(
        cls,
        paths: list[str],
        folder: str,
        options: dict[str, Any],
        settings: dict[str, Any],
        before: WorkPlan | None,
        progress: Progress | None,
    ) -> Tasks:
        """Index the data, and divide its samples."""
        source = pin_paths(paths)
        dataset = _open({"source": source, "options": options}, "auto", progress)
        work = cls.__new__(cls)
        work.prepare(dataset, settings, folder)
        os.makedirs(folder, exist_ok=True)
        dataset.index.save(os.path.join(folder, _INDEX))
        count, size = work.divide()
        bounds = np.array([*range(0, count, size), count], np.int64)
        if not count:
            bounds = bounds[:1]
        described = describe_source(dataset)
        spans = list(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True))
        states = [repr((described, work.describe(), span)).encode() for span in spans]
        labels = [f"{cls.noun} {first:,} to {stop - 1:,}" for first, stop in spans]
        return Tasks(source, bounds, states, labels, {"stamp": described["stamp"]}, {})

    @abstractmethod
    def prepare(self, dataset: Dataset, settings: dict[str, Any], folder: str) -> None:
        """Check the settings, and change those that depend on this process's folder."""

    @abstractmethod
    def divide(self) -> tuple[int, int]:
        """Return the number of units, and how many a task has; both are of the data alone."""

    @abstractmethod
    def describe(self) -> Any:
        """Describe what is made, as it depends on files and libraries that settings name."""

    @abstractmethod
    def do(self, first: int, stop: int) -> tuple[dict[str, Any], Sections]:
        """Do the units [first, stop): header and arrays of the part."""

    @abstractmethod
    def commit(self, parts: Sequence[str]) -> str:
        """Put the parts together: a line about the result."""


def _open(about: dict[str, Any], index: str, progress: Progress | None = None) -> Dataset:
    return open_dataset(about["source"], index=index, progress=progress, **about["options"])
