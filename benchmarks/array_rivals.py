"""Loaders of arrays that penstock is held against: xbatcher and MONAI, under torch's DataLoader.

Each function takes the samples to read, in their order, and gives a function that times one pass
over them, and its setting. The data set is open and workers run before the clock starts; 0
and 2 workers are tried, and the faster are kept.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import zarr
from torch.utils.data import DataLoader

import torch

Pass = tuple[Callable[[], float], str]
Make = Callable[[int], "DataLoader[Any]"]
TRIED = 20
"""Batches by which a number of workers is chosen."""


def choose_workers(make: Make) -> Pass:
    """Time loaders of 0 and 2 workers over a few batches, and keep the faster."""
    rates = {}
    for workers in (0, 2):
        batches = iter(make(workers))
        next(batches)  # workers have started
        began = time.perf_counter()
        read = sum(1 for _ in itertools.islice(batches, TRIED))
        rates[workers] = read / (time.perf_counter() - began)
    workers = max(rates, key=rates.__getitem__)
    loader = make(workers)
    next(iter(loader))

    def run() -> float:
        began = time.perf_counter()
        for _ in loader:
            pass
        return time.perf_counter() - began

    return run, f"{workers} workers"


def set_workers(workers: int) -> dict[str, Any]:
    return {"num_workers": workers, "persistent_workers": workers > 0}


def join_fields(window: Any) -> torch.Tensor:
    """Join the fields of a window of xarray; input and target are parts of it."""
    return torch.from_numpy(np.stack([window[name].values for name in ("t2m", "wind")]))


def limit_threads(_: int) -> None:
    """Give each worker one thread of zarr, which is the fastest."""
    zarr.config.set({"threading.max_workers": 1})


def time_xbatcher(path: Path, is_loaded: bool, numbers: Sequence[int]) -> Pass:
    """xbatcher's windows of 30 hours; xarray opens without dask, with which all takes longer.

    is_loaded:  the whole data set is decoded into memory before, and that time counts.
    """
    import xarray
    import xbatcher
    from xbatcher.loaders.torch import MapDataset

    data, spent = xarray.open_zarr(path, chunks=None, consolidated=False), 0.0
    if is_loaded:
        began = time.perf_counter()
        data = data.load()
        spent = time.perf_counter() - began
    sizes, overlaps = {"time": 30, "lat": 64, "lon": 64}, {"time": 24, "lat": 32, "lon": 32}
    windows = xbatcher.BatchGenerator(data, sizes, overlaps, preload_batch=False)

    def make(workers: int) -> DataLoader[Any]:
        samples: Any = MapDataset(windows, transform=join_fields)
        options = {**set_workers(workers), "worker_init_fn": limit_threads}
        return DataLoader(samples, 16, sampler=numbers, **options)

    run, setting = choose_workers(make)
    return lambda: spent + run(), setting


class Volumes:
    """Volumes of an HDF5 file, each with the numbers of the patches that are wanted of it."""

    def __init__(self, path: Path, wanted: list[tuple[int, list[int]]]) -> None:
        self.path, self.wanted = path, wanted
        self._scan: Any = None

    def __len__(self) -> int:
        return len(self.wanted)

    def __getitem__(self, number: int) -> tuple[Any, list[int]]:
        if self._scan is None:  # in the worker
            self._scan = h5py.File(self.path)["scan"]
        volume, patches = self.wanted[number]
        return self._scan[volume], patches


def cut_patches(item: tuple[Any, list[int]]) -> list[torch.Tensor]:
    """Cut 96^3, every 32, out of a volume of 192^3."""
    volume, patches = item
    places = (32 * at for number in patches for at in np.unravel_index(number, (4, 4, 4)))
    corners: Iterator[Any] = zip(*[iter(places)] * 3, strict=True)
    return [torch.from_numpy(volume[a : a + 96, b : b + 96, c : c + 96]) for a, b, c in corners]


def time_monai(path: Path, together: int, numbers: Sequence[int]) -> Pass:
    """MONAI's PatchDataset, which reads a volume and cuts `together` patches of it."""
    from monai.data import PatchDataset

    wanted = [
        (numbers[first] // 64, [number % 64 for number in numbers[first : first + together]])
        for first in range(0, len(numbers), together)
    ]

    def make(workers: int) -> DataLoader[Any]:
        patches = PatchDataset(Volumes(path, wanted), cut_patches, together)
        return DataLoader(patches, 8, **set_workers(workers))

    return choose_workers(make)
