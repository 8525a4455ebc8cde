"""WebDataset over tar archives: shards dealt to ranks and workers, samples mixed in a buffer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import webdataset

from penstock.errors import UsageError

from .task import DeliveryTask


class WebDataset:
    """WebLoader: reader.read_threads workers. Its shuffle is one of shards and of a buffer of
    reader.shuffle_size samples, not an exact one."""

    def __init__(self, task: DeliveryTask) -> None:
        reader = task.workload.reader
        workers = reader.read_threads
        self._task = task
        self._mine = list(task.paths[task.rank :: task.ranks])
        if len(self._mine) < max(1, workers):
            raise UsageError(
                f"--loader webdataset: rank {task.rank} has {len(self._mine)} shards for {workers} "
                "workers, and a worker needs one: lower reader.read_threads, or make more files"
            )
        self._more: dict[str, Any] = {"num_workers": workers}
        if workers:
            self._more["prefetch_factor"] = -(-reader.prefetch_size // workers) or 2
        self.settings = {**self._more, "shuffle": task.shuffle, "buffer": reader.shuffle_size}

    def batches(self, epoch: int) -> Iterable[Any]:
        task, reader = self._task, self._task.workload.reader
        mixed = task.shuffle != "none"
        seed = task.seed + task.order_epoch(epoch)
        shards = webdataset.WebDataset(
            self._mine,
            shardshuffle=len(self._mine) if mixed else False,
            nodesplitter=lambda urls: urls,
            seed=seed,
            empty_check=False,
        ).repeat()
        if mixed:
            shards = shards.shuffle(reader.shuffle_size, seed=seed)
        batched = shards.map(_join_payload).batched(
            task.batch_size, collation_fn=None, partial=False
        )
        loader: Iterable[Any] = webdataset.WebLoader(batched, batch_size=None, **self._more)
        return loader

    def close(self) -> None:
        pass


def _join_payload(sample: dict[str, Any]) -> bytes:
    """The bytes of a sample, without its name."""
    return b"".join(value for key, value in sample.items() if not key.startswith("__"))


make = WebDataset
