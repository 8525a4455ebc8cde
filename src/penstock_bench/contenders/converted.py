"""Contenders whose data is converted from the files to their formats beforehand: FFCV and
Lightning's LitData.

Each library is imported when its contender is used.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import UsageError

from .delivery import DeliveryTask
from .samples import ByNumber, flatten_sample, open_samples, stack_samples

_FFCV_AHEAD = 3  # its default


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


def _convert_to_ffcv(task: DeliveryTask) -> None:
    """Write the part in FFCV's format into its place."""
    from ffcv.fields import BytesField
    from ffcv.writer import DatasetWriter

    rows = _FfcvRows(task)
    for number in range(len(task.paths)):  # the writer's processes cannot tell what is wrong
        rows[number * task.per_file]
    writer = DatasetWriter(_beton_path(task), {"x": BytesField()}, num_workers=os.cpu_count() or 1)
    writer.from_indexed_dataset(rows, chunksize=max(1, min(100, task.count // 8)))


def _beton_path(task: DeliveryTask) -> str:
    assert task.place is not None
    return os.path.join(task.place, f"{task.part}.beton")


class Ffcv:
    """FFCV's Loader: reader.read_threads threads; each rank mixes what it has for the whole run."""

    convert = staticmethod(_convert_to_ffcv)

    def __init__(self, task: DeliveryTask) -> None:
        from ffcv.fields.decoders import BytesDecoder
        from ffcv.loader import Loader, OrderOption

        mixed = task.shuffle != "none"
        threads = max(1, task.workload.reader.read_threads)
        order = OrderOption.RANDOM if mixed else OrderOption.SEQUENTIAL
        self._loader = Loader(
            _beton_path(task),
            batch_size=task.batch_size,
            num_workers=threads,
            os_cache=True,
            order=order,
            seed=task.seed,
            indices=np.arange(task.rank, task.count, task.ranks),
            pipelines={"x": [BytesDecoder()]},
            batches_ahead=_FFCV_AHEAD,
            drop_last=True,
            recompile=False,
        )
        self.settings = {"num_workers": threads, "order": order.name, "batches_ahead": _FFCV_AHEAD}

    def batches(self, epoch: int) -> Iterable[Any]:
        batches: Iterable[Any] = self._loader
        return batches

    def close(self) -> None:
        pass


_CHUNK_BYTES = "64MB"


class _LitDataRows:
    """Decodes the samples of a file, as bytes in arrays."""

    def __init__(self, task: DeliveryTask) -> None:
        self._data = task.workload.dataset

    def __call__(self, path: str) -> Iterator[Any]:
        samples = open_samples(self._data, path)
        for number in range(self._data.num_samples_per_file):
            yield flatten_sample(samples[number])


def _convert_to_litdata(task: DeliveryTask) -> None:
    """Write the part in LitData's format into its place."""
    import litdata

    litdata.optimize(
        _LitDataRows(task),
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
    """Lightning's LitData, StreamingDataLoader: reader.read_threads workers, chunks and
    samples mixed as it does."""

    convert = staticmethod(_convert_to_litdata)

    def __init__(self, task: DeliveryTask) -> None:
        import litdata
        from litdata.utilities.env import _DistributedEnv

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
