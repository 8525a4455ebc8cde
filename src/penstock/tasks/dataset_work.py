"""Work on the samples of a data set: the plan indexes it once, and divides its samples."""

from __future__ import annotations

import inspect
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from ..convert.manifest import describe_source
from ..dataset.dataset import Dataset
from ..dataset.dataset import open as open_dataset
from ..engine.atomic_file import storage_errors
from ..engine.store import Progress
from ..errors import ChangedError, SidecarError
from ..extent import Int
from ..index.table import Index
from .work_plan import Tasks, Work, WorkPlan

_INDEX = "index.penstock"


class DatasetWork(Work, ABC):
    """Work on a data set, for one plan: each kind says what it makes of which samples.

    noun:  of the units, in messages.
    """

    noun: ClassVar[str]

    def __init__(self, plan: WorkPlan) -> None:
        self.plan_made = plan
        try:
            dataset = self.open(plan.about, os.path.join(plan.folder, _INDEX))
        except SidecarError as error:
            what = re.sub(r": (rebuild|remove) it.*", "", str(error))
            raise ChangedError(f"{what}: plan the work again") from None
        self.prepare(dataset, dict(plan.about["settings"]), plan.folder)
        if names := _differ(plan.kept["made"], self._describe(dataset)):
            what = f"{plan.folder} was planned with other {', '.join(names)} than here"
            raise ChangedError(f"{what}: plan the work again, with the same versions everywhere")

    @classmethod
    def plan(
        cls,
        about: dict[str, Any],
        folder: str,
        before: WorkPlan | None,
        progress: Progress | None,
    ) -> Tasks:
        """Index the data, and divide its samples."""
        dataset = cls.open(about, "auto", progress)
        work = cls.__new__(cls)
        work.prepare(dataset, dict(about["settings"]), folder)
        work.begin()
        saved = dataset.sidecar  # without what `about` asks for again: other names, dtypes
        with storage_errors(folder):
            os.makedirs(folder, exist_ok=True)
            index = dataset.index if saved is None else Index.load(saved)
            index.save(os.path.join(folder, _INDEX))
        bounds = work.divide()
        made = work._describe(dataset)
        spans = [*pairwise(bounds.tolist())]
        states = [f"{made} {span}".encode() for span in spans]
        labels = [f"{cls.noun} {first:,} to {stop - 1:,}" for first, stop in spans]
        return Tasks(bounds, states, labels, {"made": made}, {})

    def _describe(self, dataset: Dataset) -> str:
        """Describe the data and what is made of it, as they are now."""
        return json.dumps([describe_source(dataset), self.describe()], sort_keys=True, default=str)

    @classmethod
    def open(cls, about: dict[str, Any], index: str, progress: Progress | None = None) -> Dataset:
        """Open the data, for the plan as "auto"."""
        return open_dataset(about["source"], index=index, progress=progress, **about["options"])

    def begin(self) -> None:
        """Begin the work, once it is planned: nothing by default."""

    @abstractmethod
    def prepare(self, dataset: Dataset, settings: dict[str, Any], folder: str) -> None:
        """Check the settings, and change those that depend on this process's folder."""

    @abstractmethod
    def divide(self) -> Int:
        """Return the bounds of tasks, in units; they are of the data alone."""

    def describe(self) -> Any:
        """Describe what is made, as it depends on files and libraries that settings name."""
        return []


def _differ(was: str, now: str) -> list[str]:
    """List what differs of two descriptions, by name."""
    names: list[str] = []
    for before, here in zip(json.loads(was), json.loads(now), strict=True):
        if isinstance(here, dict):
            names += [name for name in here if before.get(name) != here[name]]
        elif before != here:
            names.append("rule")
    return names


def list_settings(function: Callable[..., Any], without: str) -> tuple[str, ...]:
    """List the settings of a function that does the work on one host, but one."""
    names = inspect.signature(function).parameters
    return tuple(name for name in names if name not in ("source", "force", "progress", without))


def divide_evenly(count: int, size: int) -> Int:
    """Return the bounds of tasks of so many units each."""
    return np.append(np.arange(0, count, size), count)
