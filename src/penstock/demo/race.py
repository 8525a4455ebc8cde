"""One epoch of small records in memory, by penstock and by what people write themselves."""

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

from ..errors import StorageError
from ..loader import Loader
from ..loader import open as open_dataset

RECORD_BYTES = 4096
RECORDS = 25_600
BATCH = 256
ROUNDS = 3


def write_records(folder: Path) -> Path:
    """Write random records, 105 MB. StorageError if the folder has no room for four times that."""
    free = shutil.disk_usage(folder).free
    if free < 4 * RECORDS * RECORD_BYTES:
        raise StorageError(errno.ENOSPC, f"{folder} has {free / 1e6:,.0f} MB free, 420 are needed")
    path = folder / "records.bin"
    random = np.random.default_rng(1)
    with open(path, "wb") as file:
        for _ in range(0, RECORDS, BATCH):
            file.write(random.bytes(BATCH * RECORD_BYTES))
    return path


def run_race(path: Path) -> dict[str, float]:
    """Let all read every record once, in turns; return the samples a second of each.

    torch's DataLoader takes part if torch is installed.
    """
    contenders: dict[str, Callable[[], Iterable[Any]]] = {
        "a Python loop of os.pread": lambda: _read_by_hand(path)
    }
    if find_spec("torch") is not None:
        contenders["torch DataLoader, 0 workers"] = _make_torch_epochs(path)
    dataset = open_dataset(path, record_bytes=RECORD_BYTES, index="memory")
    with Loader(dataset, BATCH, rank=0, world_size=1) as loader:
        contenders["penstock"] = lambda: (batch["data"] for batch in loader)
        taken: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(ROUNDS + 1):  # the first warms up
            for name, epoch in contenders.items():
                started = time.perf_counter()
                seen = sum(len(batch) for batch in epoch())
                taken[name].append(time.perf_counter() - started)
                if seen != RECORDS:
                    raise AssertionError(f"{name} gave {seen} of {RECORDS} records")
    return {name: RECORDS / statistics.median(times[1:]) for name, times in taken.items()}


def _read_by_hand(path: Path) -> Iterable[Any]:
    file = os.open(path, os.O_RDONLY)
    try:
        order = np.random.default_rng().permutation(RECORDS).tolist()
        for start in range(0, RECORDS, BATCH):
            records = (
                os.pread(file, RECORD_BYTES, number * RECORD_BYTES)
                for number in order[start : start + BATCH]
            )
            yield np.stack([np.frombuffer(record, np.uint8) for record in records])
    finally:
        os.close(file)


def _make_torch_epochs(path: Path) -> Callable[[], Iterable[Any]]:
    import torch

    data = np.memmap(path, np.uint8, "r", shape=(RECORDS, RECORD_BYTES))

    class Records(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return RECORDS

        def __getitem__(self, number: int) -> torch.Tensor:
            return torch.from_numpy(data[number].copy())

    loader = torch.utils.data.DataLoader(Records(), batch_size=BATCH, shuffle=True)
    return lambda: loader
