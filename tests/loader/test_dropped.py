"""Nothing is left behind: dropped objects give back threads, descriptors and shared memory."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.checkpoint import Checkpoints

ROWS, WIDTH = 96, 64
_patience_s = 240.0  # a guard against hanging, not a measure


def held() -> tuple[int, list[str], list[str]]:
    """Descriptors, names of threads, and files in memory that this process maps."""
    gc.collect()
    threads = sorted(thread.name for thread in threading.enumerate())
    maps = Path("/proc/self/maps").read_text().splitlines()
    memory = sorted(line.split()[5] for line in maps if "/dev/shm/" in line or "/memfd:" in line)
    return len(os.listdir("/proc/self/fd")), threads, memory


@pytest.fixture
def data(tmp_path: Path) -> penstock.Dataset:
    folder = tmp_path / "tree"
    folder.mkdir()
    for row in range(ROWS):
        (folder / f"{row:03}.bin").write_bytes(np.full(WIDTH, row, np.uint8).tobytes())
    return penstock.open(folder, index="memory")


def cache(path: Path, **options: Any) -> penstock.Cache:
    return penstock.Cache(ram_bytes=ROWS * WIDTH // 2, cache_block_bytes=4 * WIDTH, **options)


def fails(sample: dict[str, Any]) -> Any:
    raise ValueError("decode fails")


MAKERS: dict[str, Callable[[penstock.Dataset, Path], Any]] = {
    "arrays": lambda data, path: penstock.Loader(data, 8),
    "decoded": lambda data, path: penstock.Loader(data, 8, decode=lambda sample: 1),
    "failing": lambda data, path: penstock.Loader(data, 8, decode=fails, decode_threads=2),
    "mixed": lambda data, path: penstock.Loader(penstock.mix([(data, 1), (data, 2)]), 8),
    "memory": lambda data, path: penstock.Loader(data, 8, cache=cache(path), rank=0, world_size=1),
    "memory, decoded": lambda data, path: penstock.Loader(
        data, 8, cache=cache(path), rank=0, world_size=1, decode=lambda sample: 1
    ),
    "disk": lambda data, path: penstock.Loader(
        data,
        8,
        cache=cache(path, disk_path=str(path / "disk"), disk_bytes=1 << 20),
        rank=0,
        world_size=1,
    ),
}


def walk(loader: Any, steps: int) -> None:
    batches = iter(loader)
    try:
        for _ in range(steps):
            next(batches, None)
    except ValueError:
        pass


STEPS = [
    pytest.param(1, id="in mid-epoch"),
    pytest.param(0, id="unused", marks=pytest.mark.long),
    pytest.param(100, id="used", marks=pytest.mark.long),
]


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("kind", MAKERS)
def test_a_dropped_loader_leaves_nothing(
    kind: str, steps: int, data: penstock.Dataset, tmp_path: Path
) -> None:
    """Without close: threads, descriptors and shared memory are those of before, and the folder of
    a disk tier is free."""
    walk(MAKERS[kind](data, tmp_path), 0)
    wait_until(lambda: not any("penstock" in name for name in held()[1]))
    before = held()
    for _ in range(3):
        loader = MAKERS[kind](data, tmp_path)
        if steps:
            walk(loader, steps)
        del loader
        wait_until(lambda: held() == before)


def wait_until(as_before: Callable[[], bool]) -> None:
    """Threads that were told to end do so by themselves: look until they have."""
    event = threading.Event()
    for _ in range(int(_patience_s / 0.01)):
        if as_before():
            return
        event.wait(0.01)
    raise AssertionError(f"left behind: {held()}")


def iterators(data: penstock.Dataset, path: Path) -> Iterator[Any]:
    """Yield every other public object that holds resources, used."""
    yield data[3]
    loader = penstock.Loader(data, 8, cache=cache(path), rank=0, world_size=1)
    batches = iter(loader)
    batch = next(batches)
    yield batch
    del loader, batches
    yield batch
    checkpoints = Checkpoints(path / "checkpoints")
    checkpoints.save(1, {"weights": np.arange(1000.0)})
    checkpoints.close()
    yield checkpoints


def test_other_objects_leave_nothing(data: penstock.Dataset, tmp_path: Path) -> None:
    for _ in iterators(data, tmp_path):
        pass
    wait_until(lambda: not any("penstock" in name for name in held()[1]))
    before = held()
    for used in iterators(data, tmp_path):
        del used
    wait_until(lambda: held() == before)
