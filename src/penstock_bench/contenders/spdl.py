"""Meta's SPDL: a pipeline of threads, in the order that is given."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from spdl.pipeline import PipelineBuilder

from .samples import ByNumber, open_samples, stack_samples
from .task import DeliveryTask


class Spdl:
    """reader.read_threads threads; each reads a batch, or a file where that is read as a whole."""

    def __init__(self, task: DeliveryTask) -> None:
        reader = task.workload.reader
        self._task, self._samples = task, ByNumber(task)
        self._threads = max(1, reader.read_threads)
        self._ahead = max(1, reader.prefetch_size)
        self.settings = {
            "threads": self._threads, "buffer_size": self._ahead, "shuffle": task.shuffle
        }  # fmt: skip

    def batches(self, epoch: int) -> Iterator[Any]:
        ids, size = self._task.ids(epoch).tolist(), self._task.batch_size
        builder: Any = PipelineBuilder()
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


make = Spdl
