"""Contenders that read in threads of this process, in the order that is given: Google's Grain over
a source of samples by number, a pipeline of Meta's SPDL; and reading switched off.

Each library is imported when its contender is made.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from .delivery import DeliveryTask
from .samples import ByNumber, open_samples, stack_samples


class Nothing:
    """A loader without reading: its time bounds every loader's utilisation."""

    def __init__(self, task: DeliveryTask) -> None:
        self.settings: dict[str, Any] = {}
        self._batch = np.zeros((task.batch_size, 1), np.uint8)

    def batches(self, epoch: int) -> Iterable[Any]:
        return itertools.repeat(self._batch)

    def close(self) -> None:
        pass


class Grain:
    """Google's Grain, MapDataset: reader.read_threads threads, each at another batch."""

    def __init__(self, task: DeliveryTask) -> None:
        import grain.python as grain

        reader = task.workload.reader
        self._task, self._range = task, grain.MapDataset.range
        threads = max(1, reader.read_threads)
        ahead = max(threads, reader.prefetch_size)
        self._options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=ahead)
        self._samples = ByNumber(task, whole_kept=2 * threads)
        self.settings = {
            "num_threads": threads, "prefetch_buffer_size": ahead, "shuffle": task.shuffle
        }  # fmt: skip

    def batches(self, epoch: int) -> Iterable[Any]:
        ids, samples = self._task.ids(epoch).tolist(), self._samples
        numbers = self._range(len(ids))
        batches = numbers.map(lambda number: samples[ids[number]]).batch(
            self._task.batch_size,
            drop_remainder=True,
            batch_fn=lambda rows: stack_samples(list(rows)),
        )
        loader: Iterable[Any] = batches.to_iter_dataset(self._options)
        return loader

    def close(self) -> None:
        pass


class Spdl:
    """Meta's SPDL, a pipeline: reader.read_threads threads; each reads a batch, or a file
    where that is read as a whole."""

    def __init__(self, task: DeliveryTask) -> None:
        from spdl.pipeline import PipelineBuilder

        reader = task.workload.reader
        self._builder = PipelineBuilder
        self._task, self._samples = task, ByNumber(task)
        self._threads = max(1, reader.read_threads)
        self._ahead = max(1, reader.prefetch_size)
        self.settings = {
            "threads": self._threads, "buffer_size": self._ahead, "shuffle": task.shuffle
        }  # fmt: skip

    def batches(self, epoch: int) -> Iterator[Any]:
        ids, size = self._task.ids(epoch).tolist(), self._task.batch_size
        builder: Any = self._builder()
        if self._task.by_file:
            builder = (
                builder.add_source(self._files(ids))
                .pipe(self._of_file, concurrency=self._threads, output_order="input")
                .disaggregate()
                .aggregate(size, drop_last=True)
                .pipe(stack_samples)
            )
        else:
            steps = (ids[first : first + size] for first in range(0, len(ids), size))
            builder = builder.add_source(steps).pipe(
                self._of_ids, concurrency=self._threads, output_order="input"
            )
        pipeline = builder.add_sink(self._ahead).build(num_threads=self._threads)
        with pipeline.auto_stop():
            yield from pipeline

    def _files(self, ids: list[int]) -> Iterator[list[int]]:
        """The numbers of the consecutive samples of each file."""
        for _, run in itertools.groupby(ids, lambda number: number // self._task.per_file):
            yield list(run)

    def _of_file(self, ids: list[int]) -> list[Any]:
        per_file = self._task.per_file
        samples = open_samples(self._task.workload.dataset, self._task.paths[ids[0] // per_file])
        return [samples[number % per_file] for number in ids]

    def _of_ids(self, ids: Iterable[int]) -> Any:
        return stack_samples([self._samples[number] for number in ids])

    def close(self) -> None:
        pass
