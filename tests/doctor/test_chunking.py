"""What `penstock doctor` says of chunks of arrays and of the samples that are cut of them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr

import penstock
from penstock.doctor.chunking import ArrayFit, fit_arrays
from penstock.index.layout import Windows

SHAPE = 96, 40, 64


def write(path: Path, chunks: tuple[int, ...]) -> Path:
    """Write an array of these chunks, as Zarr, HDF5 or NPY by the ending."""
    values = np.random.default_rng(0).normal(size=SHAPE).astype("float32")
    names = "time", "lat", "lon"
    if path.suffix == ".zarr":
        group = zarr.open_group(path, mode="w")
        array = group.create_array(
            "t", shape=SHAPE, chunks=chunks, dtype="float32", dimension_names=names
        )
        array[:] = values
    elif path.suffix == ".h5":
        with h5py.File(path, "w") as file:
            made = file.create_dataset("t", data=values, chunks=chunks, compression="gzip")
            for axis, name in enumerate(names):
                made.dims[axis].label = name
    else:
        np.save(path, values)
    return path


def fit(path: Path, **options: Any) -> ArrayFit:
    """The only array's fit."""
    (fitted,) = fit_arrays(penstock.open(path, index="memory", **options))
    return fitted


@pytest.mark.parametrize("ending", [".zarr", ".h5"])
@pytest.mark.parametrize("stride", [1, 3, 12])
def test_what_a_window_decodes_is_what_it_meets(tmp_path: Path, ending: str, stride: int) -> None:
    """The mean is that of all windows, counted one by one."""
    path = write(tmp_path / f"a{ending}", (24, 40, 64))
    options: dict[str, Any] = {
        "window": {"time": 12, "lat": 16},
        "stride": {"time": stride},
        "target": {"time": (12, 14)},
    }
    fitted = fit(path, **options)
    layout = penstock.open(path, index="memory", **options).index.layouts[0]
    assert isinstance(layout, Windows)
    assert fitted.now is not None
    met = len(layout.find_pairs(np.arange(layout.count))[0]) / layout.count
    assert fitted.now.met == pytest.approx(met)
    assert fitted.now.decoded == pytest.approx(met * 24 * 40 * 64 / (12 * 16 * 64))
    assert fitted.grid.axes == ("time", "lat", "lon")


@pytest.mark.parametrize("ending", [".zarr", ".h5"])
def test_better_chunks_are_better(tmp_path: Path, ending: str) -> None:
    """Written as it says, the array decodes as little as it says, and is not to be bettered."""
    window = {"time": 48, "lat": 8}
    fitted = fit(write(tmp_path / f"a{ending}", SHAPE), window=window)
    assert fitted.now is not None
    assert fitted.now.decoded == pytest.approx(96 * 40 / (48 * 8))
    assert fitted.better is not None
    assert "decodes 10 times its bytes; of" in fitted.describe("a.npy")
    assert fitted.chunks == "time=48,lat=8,lon=64"
    again = fit(write(tmp_path / f"b{ending}", fitted.better.chunk), window=window)
    assert again.now == fitted.better
    assert again.better is None


def test_rows_that_decode_many_others(tmp_path: Path) -> None:
    """A row decodes its chunk, and the better chunks have fewer rows, named by axes' numbers."""
    fitted = fit(write(tmp_path / "a.zarr", (96, 40, 64)))
    assert fitted.now is not None
    assert fitted.now.decoded == 96
    assert fitted.better is not None
    assert math.prod(fitted.better.chunk) * 4 >= 1 << 16
    assert fitted.chunks == "0=8,1=40,2=64"


def test_records_read_in_place(tmp_path: Path) -> None:
    """Nothing is decoded; that a window is read in tiny runs is worth chunks."""
    path = write(tmp_path / "a.npy", ())
    assert list(fit_arrays(penstock.open(path, index="memory"))) == []
    fitted = fit(path, window={0: 12})
    assert fitted.better is None
    assert "in 1 runs of 122,880 bytes" in fitted.describe("a.npy")
    fitted = fit(path, window={0: 12, 2: 8})
    assert fitted.runs == 480
    assert fitted.better is not None
