"""Google's Grain over a source of samples by number, in threads, in the order that is given."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import grain.python as grain

from .samples import ByNumber, stack_samples
from .task import DeliveryTask


class Grain:
    """MapDataset: reader.read_threads threads, each at a batch of its own."""

    def __init__(self, task: DeliveryTask) -> None:
        reader = task.workload.reader
        self._task = task
        threads = max(1, reader.read_threads)
        ahead = max(threads, reader.prefetch_size)
        self._options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=ahead)
        self._samples = ByNumber(task, whole_kept=2 * threads)
        self.settings = {
            "num_threads": threads, "prefetch_buffer_size": ahead, "shuffle": task.shuffle
        }  # fmt: skip

    def batches(self, epoch: int) -> Iterable[Any]:
        ids, samples = self._task.ids(epoch).tolist(), self._samples
        numbers = grain.MapDataset.range(len(ids))
        batches = numbers.map(lambda number: samples[ids[number]]).batch(
            self._task.batch_size,
            drop_remainder=True,
            batch_fn=lambda rows: stack_samples(list(rows)),
        )
        loader: Iterable[Any] = batches.to_iter_dataset(self._options)
        return loader

    def close(self) -> None:
        pass


make = Grain
