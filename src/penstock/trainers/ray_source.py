"""Samples of a data set as Ray Data's rows."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import ray.data
from ray.data.block import Block, BlockAccessor, BlockMetadata

from ..dataset.dataset import Dataset
from ..dataset.dataset import open as open_dataset
from ..dataset.fields import Ragged
from ..loader.batch import BatchReader

_block_bytes = 32 << 20
"""Bytes of samples that a block has, about."""


class RaySource(ray.data.Datasource):
    """Samples of a data set for Ray Data: `ray.data.read_datasource(penstock.ray.Source(path))`.

    path, options:  as for `penstock.open`.

    A row has the fields of a sample, its "label" where known, and "__id__", its number. Each task
    reads a stretch of neighbours. Ray Data has no position that a run could be resumed at.
    """

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        super().__init__()
        self._dataset = open_dataset(path, **options)

    def estimate_inmemory_data_size(self) -> int:
        """Return the bytes of all samples."""
        return self._dataset.index.total_bytes

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ray.data.ReadTask]:
        """Return tasks that read a stretch each."""
        count, mean_bytes = len(self._dataset), self._dataset.index.mean_bytes
        task_count = max(1, min(parallelism, count))
        tasks = []
        for task in range(task_count):
            first, end = count * task // task_count, count * (task + 1) // task_count
            metadata = BlockMetadata(end - first, int((end - first) * mean_bytes), None, None)
            read = functools.partial(_read_blocks, self._dataset, first, end)
            tasks.append(ray.data.ReadTask(read, metadata, per_task_row_limit=per_task_row_limit))
        return tasks


def _read_blocks(dataset: Dataset, first: int, end: int) -> Iterator[Block]:
    rows = max(1, int(_block_bytes / max(1.0, dataset.index.mean_bytes)))
    with contextlib.closing(BatchReader(dataset.index)) as reader:
        for begin in range(first, end, rows):
            ids = np.arange(begin, min(begin + rows, end), dtype=np.uint64)
            batch = reader.read(ids)
            columns = {name: _make_column(batch[name]) for name in batch}
            yield BlockAccessor.batch_to_block(columns | {"__id__": ids.astype(np.int64)})


def _make_column(rows: Any) -> Any:
    if not isinstance(rows, Ragged):
        return rows
    if isinstance(rows.values, Ragged):
        elements = _make_column(rows.values)
        ends = rows.offsets.tolist()
        return [elements[first:end] for first, end in itertools.pairwise(ends)]
    is_bytes = rows.values.dtype == np.uint8 and rows.values.ndim == 1
    return [row.tobytes() if is_bytes else row.tolist() for row in rows]
