"""Contenders that read in worker processes of torch: DataLoader over a map dataset, as a competent
user would write it; and WebDataset, shards dealt to ranks and workers, samples mixed in a buffer.

Each library is imported when its contender is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from penstock.errors import UsageError

from .delivery import DeliveryTask
from .samples import ByNumber


class Batches:
    """The numbers of each batch of an epoch. If files are read as a whole, the files of the batches
    w, w + workers, ... of worker w are in these batches alone."""

    def __init__(self, task: DeliveryTask, workers: int) -> None:
        self._task = task
        self._lanes = workers if task.by_file and workers > 1 else 1
        self.epoch = 0

    def __len__(self) -> int:
        return self._task.steps

    def __iter__(self) -> Iterator[list[int]]:
        ids = self._task.ids(self.epoch)
        lanes = self._dealt(ids) if self._lanes > 1 else [ids]
        size, taken = self._task.batch_size, [0] * len(lanes)
        for step in range(self._task.steps):
            batch: list[int] = []
            for lane in range(step, step + len(lanes)):  # its own, and where that is used up others
                lane %= len(lanes)
                more = lanes[lane][taken[lane] : taken[lane] + size - len(batch)].tolist()
                taken[lane] += len(more)
                batch += more
                if len(batch) == size:
                    break
            yield batch

    def _dealt(self, ids: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
        """The files of the sequence, dealt to workers."""
        file = ids // self._task.per_file
        number = np.concatenate([[0], np.cumsum(file[1:] != file[:-1])])
        return [ids[number % self._lanes == lane] for lane in range(self._lanes)]


def _collate_tensors(rows: list[Any]) -> Any:
    """Arrays of one shape become a tensor, others stay a list."""
    import torch.utils.data

    import torch

    first = rows[0]
    if isinstance(first, tuple):
        return tuple(_collate_tensors(list(column)) for column in zip(*rows, strict=True))
    if not isinstance(first, np.ndarray) or any(row.shape != first.shape for row in rows):
        return [torch.from_numpy(row) if isinstance(row, np.ndarray) else row for row in rows]
    out = torch.from_numpy(np.empty(0, first.dtype)).new_empty((len(rows), *first.shape))
    if torch.utils.data.get_worker_info() is not None:  # written where the other process reads
        out.share_memory_()  # type: ignore[no-untyped-call]
    np.stack(rows, out=out.numpy())
    return out


class Torch:
    """torch.utils.data.DataLoader: read_threads workers that last for the run."""

    def __init__(self, task: DeliveryTask) -> None:
        import torch.utils.data

        reader = task.workload.reader
        workers = reader.read_threads
        more: dict[str, Any] = {}
        if workers:
            ahead = -(-reader.prefetch_size // workers) or 2
            context = reader.multiprocessing_context
            more = {"prefetch_factor": ahead, "multiprocessing_context": context}
            more["persistent_workers"] = True
        pinned = reader.pin_memory and torch.cuda.is_available()
        self._order = Batches(task, workers)
        self._loader = torch.utils.data.DataLoader(
            cast(Any, ByNumber(task)),
            batch_sampler=self._order,
            num_workers=workers,
            pin_memory=pinned,
            collate_fn=_collate_tensors,
            **more,
        )
        self.settings = {"num_workers": workers, "pin_memory": pinned, "shuffle": task.shuffle}
        self.settings |= more

    def batches(self, epoch: int) -> Iterable[Any]:
        self._order.epoch = epoch
        return self._loader

    def close(self) -> None:
        iterator = self._loader._iterator
        if iterator is not None and hasattr(iterator, "_shutdown_workers"):
            iterator._shutdown_workers()


class WebDataset:
    """WebDataset over tar archives, WebLoader: reader.read_threads workers. Its shuffle is
    one of shards and of a buffer of reader.shuffle_size samples, not an exact one."""

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
        import webdataset

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
