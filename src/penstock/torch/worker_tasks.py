"""Reading of a batch inside a worker, in a thread or in a process of its own."""

from __future__ import annotations

import contextlib
import operator
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from torch.utils.data import default_collate
from torch.utils.data._utils import worker as torch_worker

import torch

from ..budget import Budget
from ..loader import Batch, BatchReader, BatchTask, Dataset, Decode
from .tensors import Tensors, finish_batch


class TaskReader(Protocol):
    """Reader that turns tasks into batches."""

    @property
    def dataset(self) -> Any: ...
    def open(self) -> Callable[[BatchTask], Any]: ...


@dataclass(frozen=True)
class FetchItems:
    """Reader that asks a torch dataset for its items."""

    dataset: Any
    collate: Callable[[Any], Any]
    batched: bool

    def open(self) -> Callable[[BatchTask], Any]:
        return self._fetch

    def _fetch(self, task: BatchTask) -> Any:
        ids = task.ids.tolist() if isinstance(task.ids, np.ndarray) else task.ids
        if not self.batched:
            items = self.dataset[ids[0] if isinstance(task.ids, np.ndarray) else ids]
        elif getattr(self.dataset, "__getitems__", None):
            items = self.dataset.__getitems__(ids)
        else:
            items = [self.dataset[i] for i in ids]
        if self.collate is default_collate:
            with _hide_worker_info():
                return default_collate(items)
        return self.collate(items)


@dataclass(frozen=True)
class ReadSamples:
    """Reader of the samples of a penstock dataset."""

    dataset: Dataset
    decode: Decode | None
    collate: Callable[[list[Any]], Any] | None
    budget: Budget

    def open(self) -> Callable[[BatchTask], Any]:
        reader = BatchReader(
            self.dataset,
            decode=self.decode,
            collate=self.collate,
            leaves=Tensors(),
            budget=self.budget,
        )

        def read(task: BatchTask) -> Any:
            ids = self._check_numbers(task.ids)
            batch = reader.read(
                ids, epoch=task.epoch, step=task.step, repeats=task.repeats, marks=task.marks
            )
            raw = self.decode is None
            return finish_batch(batch, raw) if isinstance(batch, Batch) else batch

        return read

    def _check_numbers(self, samples: Any) -> np.ndarray[Any, np.dtype[np.uint64]]:
        if isinstance(samples, np.ndarray):
            return samples  # from our own order
        numbers = samples if isinstance(samples, Sequence) else [samples]
        ids = [operator.index(i) for i in numbers]
        count = len(self.dataset)
        for i in ids:
            if not -count <= i < count:
                raise IndexError(f"the sampler gave sample {i}: there are {count:,}")
        return np.array([i % count for i in ids], np.uint64)


@dataclass(frozen=True)
class WorkerOpening:
    """Opening of a worker, in its own thread or process."""

    reading: TaskReader
    workers: int
    process: bool
    seed: int
    init: Callable[[int], None] | None

    def __call__(self, number: int) -> Callable[[BatchTask], Any]:
        if self.process:
            torch.set_num_threads(1)
            _seed_all(self.seed + number)
            torch_worker._worker_info = torch_worker.WorkerInfo(
                id=number,
                num_workers=self.workers,
                seed=self.seed + number,
                dataset=self.reading.dataset,
            )
        if self.init is not None:
            self.init(number)
        fetch = self.reading.open()
        if not self.process:
            return fetch  # the random state of this process is the user's

        def seeded(task: BatchTask) -> Any:
            _seed_all(task.key)
            return fetch(task)

        return seeded


def _seed_all(key: int) -> None:
    """Seed the generators that per-sample code draws from."""
    random.seed(key)
    np.random.seed([key & 0xFFFFFFFF, key >> 32])  # noqa: NPY002 (what users draw from)
    torch.default_generator.manual_seed(key)  # torch.manual_seed would grow CUDA's list of calls


@contextlib.contextmanager
def _hide_worker_info() -> Iterator[None]:
    """Hide that this is a worker from default_collate.

    In a worker it would stack into shared memory of torch's own; ours is recycled.
    """
    info, torch_worker._worker_info = torch_worker._worker_info, None
    try:
        yield
    finally:
        torch_worker._worker_info = info


class SingleCollation:
    """Collation of one sample by itself, for `batch_size=None`."""

    def __init__(self, convert: Callable[[Any], Any]) -> None:
        self._convert = convert

    def __call__(self, samples: list[Any]) -> Any:
        return self._convert(samples[0])


def return_sample(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


def divide_budget(budget: Budget, workers: int) -> Budget:
    """Return the share of one worker in a budget."""
    threads, rate = budget.threads, budget.bytes_per_s
    return budget.replace(
        threads=None if threads is None else max(1, threads // workers),
        bytes_per_s=None if rate is None else rate / workers,
        readahead_bytes=max(1, budget.readahead_bytes // workers),
    )
