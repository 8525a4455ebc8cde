"""Grain: its exact shuffle over a source that reads the records' own file, one `pread` a sample."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from importlib.metadata import version

import grain
import numpy as np

from benchmarks.baselines.serve import Epochs, serve


class Records:
    """A random-access source in Grain's sense: length and item."""

    def __init__(self, path: str, record_bytes: int) -> None:
        self.record_bytes = record_bytes
        self.count = os.stat(path).st_size // record_bytes
        self.file = os.open(path, os.O_RDONLY)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> np.ndarray:
        data = os.pread(self.file, self.record_bytes, index * self.record_bytes)
        return np.frombuffer(data, np.uint8)


def make(options: argparse.Namespace) -> tuple[Epochs, dict[str, str]]:
    """Reads whole batches with `workers` threads; 0 threads reads inline.

    Batching before the prefetch hands over batches; after it, samples, at a tenth of the rate.
    """
    records = grain.MapDataset.source(Records(options.path, options.record_bytes))
    reading = grain.ReadOptions(
        num_threads=options.workers, prefetch_buffer_size=options.ahead * options.workers
    )
    turn = iter(range(1 << 30))

    def epochs() -> Iterator[np.ndarray]:
        order = records.shuffle(seed=options.seed + next(turn))
        return iter(order.batch(options.batch).to_iter_dataset(reading))

    return epochs, {"grain": version("grain")}


if __name__ == "__main__":
    serve(make)
