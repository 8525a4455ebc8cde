"""FFCV over data in its own format, converted from the files beforehand."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from ffcv.fields import BytesField
from ffcv.fields.decoders import BytesDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.writer import DatasetWriter

from penstock.errors import UsageError

from .samples import ByNumber, flatten_sample
from .task import DeliveryTask

_AHEAD = 3  # its default


class _FfcvRows:
    """The samples as FFCV's writer asks for them: tuples of fields, by number."""

    def __init__(self, task: DeliveryTask) -> None:
        self._samples, self._count = ByNumber(task), task.count
        self._size = len(flatten_sample(self._samples[0]))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> tuple[npt.NDArray[np.uint8]]:
        row = flatten_sample(self._samples[int(number)])
        if len(row) != self._size:
            raise UsageError(
                f"--loader ffcv: sample {number} has {len(row)} bytes and sample 0 has "
                f"{self._size}: FFCV's rows of bytes have one size: set "
                "dataset.record_length_bytes_stdev to 0, or leave this loader out"
            )
        return (row,)


def convert(task: DeliveryTask) -> None:
    """Write the part in FFCV's format into its place."""
    rows = _FfcvRows(task)
    for number in range(len(task.paths)):  # the writer's processes cannot tell what is wrong
        rows[number * task.per_file]
    writer = DatasetWriter(_file(task), {"x": BytesField()}, num_workers=os.cpu_count() or 1)
    writer.from_indexed_dataset(rows, chunksize=max(1, min(100, task.count // 8)))


def _file(task: DeliveryTask) -> str:
    assert task.place is not None
    return os.path.join(task.place, f"{task.part}.beton")


class Ffcv:
    """Loader: reader.read_threads threads; each rank mixes what it has for the whole run."""

    def __init__(self, task: DeliveryTask) -> None:
        mixed = task.shuffle != "none"
        threads = max(1, task.workload.reader.read_threads)
        order = OrderOption.RANDOM if mixed else OrderOption.SEQUENTIAL
        self._loader = Loader(
            _file(task),
            batch_size=task.batch_size,
            num_workers=threads,
            os_cache=True,
            order=order,
            seed=task.seed,
            indices=np.arange(task.rank, task.count, task.ranks),
            pipelines={"x": [BytesDecoder()]},
            batches_ahead=_AHEAD,
            drop_last=True,
            recompile=False,
        )
        self.settings = {"num_workers": threads, "order": order.name, "batches_ahead": _AHEAD}

    def batches(self, epoch: int) -> Iterable[Any]:
        batches: Iterable[Any] = self._loader
        return batches

    def close(self) -> None:
        pass


make = Ffcv
