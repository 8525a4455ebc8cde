"""Epochs that are cut short leave no descriptors: a loader has as many after ten as after one."""

from __future__ import annotations

import gc
import itertools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.torch import DataLoader, DeviceLoader

ROWS = 200


class Items:
    """A user's data set, whose items differ in size: slots get new memory on the way."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, number: int) -> Any:
        return np.full(10 + 100 * number, number)


def decode(sample: Any) -> Any:
    return sample["data"] + 1


def stack(items: list[Any]) -> Any:
    return np.concatenate(items)


KINDS: dict[str, tuple[Callable[[Path], Any], int]] = {
    "threads": (lambda path: DataLoader(open_rows(path), 4, num_workers=2), 2),
    "threads that decode": (
        lambda path: DataLoader(open_rows(path), 4, num_workers=2, decode=decode),
        2,
    ),
    "processes": (
        lambda path: DataLoader(open_rows(path), 4, num_workers=2, workers="processes"),
        6,
    ),
    "processes, items": (
        lambda path: DataLoader(Items(), 4, num_workers=2, collate_fn=stack, shuffle=True),
        6,
    ),
    "threads, items": (
        lambda path: DataLoader(Items(), 4, num_workers=2, collate_fn=stack, workers="threads"),
        2,
    ),
    "arrays": (lambda path: penstock.Loader(open_rows(path), 4), 2),
    "a device": (lambda path: DeviceLoader(open_rows(path), 4, device="cpu"), 0),
}
"""Loaders, and the most descriptors that a living one has: of files, threads' clocks or workers."""


def open_rows(path: Path) -> penstock.Dataset:
    np.save(path / "rows.npy", np.arange(ROWS * 10).reshape(ROWS, 10))
    return penstock.open(path / "rows.npy", index="memory")


def count_descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("kind", KINDS)
def test_interrupted_epochs_leave_no_descriptors(kind: str, tmp_path: Path) -> None:
    make, most = KINDS[kind]
    make(tmp_path)  # what the first of a kind loads stays
    before = count_descriptors()
    loader = make(tmp_path)
    counts = []
    for epoch in range(10):
        for batch in itertools.islice(loader, 1 + 2 * epoch):
            del batch
        counts.append(count_descriptors() - before)
    assert max(counts) <= most
    kept = list(itertools.islice(loader, 30))
    assert count_descriptors() - before <= most
    del loader
    for thread in threading.enumerate():
        if thread.name.startswith("penstock"):
            thread.join(60)
    assert count_descriptors() == before
    assert len(kept) == 30
