"""Writes a file of fixed-size records into another loader's container: peer source bytes target."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import numpy as np


def read_rows(path: str, record_bytes: int) -> np.ndarray:
    """The records as a mapped array."""
    return np.memmap(path, np.uint8, "r").reshape(-1, record_bytes)


class OneField:
    """An indexed dataset of one field, as FFCV's writer wants it."""

    def __init__(self, path: str, record_bytes: int) -> None:
        self.path, self.record_bytes = path, record_bytes

    def __len__(self) -> int:
        return len(read_rows(self.path, self.record_bytes))

    def __getitem__(self, index: int) -> tuple[np.ndarray]:
        return (np.array(read_rows(self.path, self.record_bytes)[index]),)


def to_ffcv(source: str, record_bytes: int, target: str) -> None:
    """FFCV: a bytes field."""
    from ffcv.fields import BytesField
    from ffcv.writer import DatasetWriter

    writer = DatasetWriter(target, {"data": BytesField()}, num_workers=2)
    writer.from_indexed_dataset(OneField(source, record_bytes), chunksize=1000)


def row(source: str, record_bytes: int, index: int) -> np.ndarray:
    """One record as an array, the item that LitData reads back fastest."""
    return np.array(read_rows(source, record_bytes)[index])


def to_litdata(source: str, record_bytes: int, target: str) -> None:
    """LitData: chunks of 64 MB, its default."""
    import litdata

    litdata.optimize(
        fn=partial(row, source, record_bytes),
        inputs=list(range(len(read_rows(source, record_bytes)))),
        output_dir=target,
        chunk_bytes="64MB",
        num_workers=2,
        verbose=False,
    )


if __name__ == "__main__":
    peer, source, record_bytes, target = sys.argv[1:]
    {"ffcv": to_ffcv, "litdata": to_litdata}[peer](source, int(record_bytes), target)
    if not Path(target).exists():
        sys.exit(f"{peer} wrote nothing to {target}")
