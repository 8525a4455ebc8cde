"""Lightning's LitData over data in its own format, converted from the files beforehand."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

import litdata
from litdata.utilities.env import _DistributedEnv

from .samples import flatten_sample, open_samples, stack_samples
from .task import DeliveryTask

_CHUNK_BYTES = "64MB"


class _Samples:
    """Decodes the samples of a file, as bytes in arrays."""

    def __init__(self, task: DeliveryTask) -> None:
        self._data = task.workload.dataset

    def __call__(self, path: str) -> Iterator[Any]:
        samples = open_samples(self._data, path)
        for number in range(self._data.num_samples_per_file):
            yield flatten_sample(samples[number])


def convert(task: DeliveryTask) -> None:
    """Write the part in LitData's format into its place."""
    litdata.optimize(
        _Samples(task),
        inputs=list(task.paths),
        output_dir=_folder(task),
        chunk_bytes=_CHUNK_BYTES,
        num_workers=min(4, os.cpu_count() or 1),
        start_method="fork",
        verbose=False,
    )


def _folder(task: DeliveryTask) -> str:
    assert task.place is not None
    return os.path.join(task.place, f"litdata-{task.part}")


class LitData:
    """StreamingDataLoader: reader.read_threads workers, chunks and samples mixed as it does."""

    def __init__(self, task: DeliveryTask) -> None:
        reader = task.workload.reader
        dataset = litdata.StreamingDataset(
            _folder(task), shuffle=task.shuffle != "none", drop_last=True, seed=task.seed
        )
        dataset.distributed_env = _DistributedEnv(task.ranks, task.rank, 1)
        workers = reader.read_threads
        more: dict[str, Any] = {"num_workers": workers}
        if workers:
            more["prefetch_factor"] = -(-reader.prefetch_size // workers) or 2
            more["persistent_workers"] = True
        self._loader = litdata.StreamingDataLoader(
            dataset, batch_size=task.batch_size, drop_last=True, collate_fn=stack_samples, **more
        )
        self.settings = {**more, "shuffle": task.shuffle, "chunk_bytes": _CHUNK_BYTES}

    def batches(self, epoch: int) -> Iterable[Any]:
        batches: Iterable[Any] = self._loader
        return batches

    def close(self) -> None:
        pass


make = LitData
