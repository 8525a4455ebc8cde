"""One epoch of random reads by penstock and by what people write themselves, in turns."""

from __future__ import annotations

import errno
import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from ..dataset.dataset import Dataset
from ..dataset.dataset import open as open_dataset
from ..errors import StorageError, UsageError
from ..loader.loader import Loader

RECORD_BYTES = 4096
RECORDS = 25_600
BATCH = 256
ROUNDS = 3

Read = Callable[[int], Any]
"""Function that reads the sample of a number."""


def write_records(folder: Path) -> Path:
    """Write random records, 105 MB. StorageError if the folder has less than four times that."""
    free = shutil.disk_usage(folder).free
    if free < 4 * RECORDS * RECORD_BYTES:
        raise StorageError(errno.ENOSPC, f"{folder} has {free / 1e6:,.0f} MB free, 420 are needed")
    path = folder / "records.bin"
    random = np.random.default_rng(1)
    with open(path, "wb") as file:
        for _ in range(0, RECORDS, BATCH):
            file.write(random.bytes(BATCH * RECORD_BYTES))
    return path


def race_records(path: Path) -> dict[str, float]:
    """Race over the records of a file: samples a second of each contender."""
    dataset = open_dataset(path, record_bytes=RECORD_BYTES, index="memory")
    file = os.open(path, os.O_RDONLY)
    try:
        return _race(
            dataset,
            "a Python loop of os.pread",
            lambda number: os.pread(file, RECORD_BYTES, number * RECORD_BYTES),
        )
    finally:
        os.close(file)


def race_files(folder: str) -> tuple[Dataset, dict[str, float]]:
    """Race over a folder of files, one a sample; return the dataset, and the race's results.

    UsageError if samples are no whole files.
    """
    dataset = open_dataset(folder, index="memory")
    files = dataset.index.files
    if len(files) != len(dataset):
        raise UsageError(f"{folder} has {dataset.index.format}: give a folder of images or texts")
    paths = [files.path(number) for number in range(len(files))]
    return dataset, _race(
        dataset, "a Python loop of open and read", lambda number: Path(paths[number]).read_bytes()
    )


def _race(dataset: Dataset, name: str, read: Read) -> dict[str, float]:
    """Let all read every sample once, in turns; the first round warms up.

    torch's DataLoader takes part if torch is installed.
    """
    contenders: dict[str, Callable[[], Iterable[Any]]] = {
        name: lambda: _read_by_hand(read, len(dataset))
    }
    if find_spec("torch") is not None:
        contenders["torch DataLoader, 0 workers"] = _make_torch_epochs(read, len(dataset))
    field = dataset.index.fields[0].name
    with Loader(dataset, BATCH, rank=0, world_size=1) as loader:
        contenders["penstock"] = lambda: (batch[field] for batch in loader)
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(ROUNDS + 1):
            for name, epoch in contenders.items():
                started = time.perf_counter()
                samples = sum(len(batch) for batch in epoch())
                seconds[name].append(time.perf_counter() - started)
                if samples != len(dataset):
                    raise AssertionError(f"{name} read {samples} of {len(dataset)} samples")
    return {name: len(dataset) / statistics.median(taken[1:]) for name, taken in seconds.items()}


def _read_by_hand(read: Read, count: int) -> Iterable[Any]:
    order = np.random.default_rng().permutation(count).tolist()
    for start in range(0, count, BATCH):
        samples = [np.frombuffer(read(n), np.uint8) for n in order[start : start + BATCH]]
        lengths = {len(sample) for sample in samples}
        yield np.stack(samples) if len(lengths) == 1 else samples


def _make_torch_epochs(read: Read, count: int) -> Callable[[], Iterable[Any]]:
    import torch

    class Samples(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return count

        def __getitem__(self, number: int) -> torch.Tensor:
            return torch.frombuffer(bytearray(read(number)), dtype=torch.uint8)

    def collate(samples: list[torch.Tensor]) -> Any:
        lengths = {len(sample) for sample in samples}
        return torch.stack(samples) if len(lengths) == 1 else samples

    return lambda: torch.utils.data.DataLoader(
        Samples(), batch_size=BATCH, shuffle=True, collate_fn=collate
    )
