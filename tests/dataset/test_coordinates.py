"""Coordinates of windows, handed out beside them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr

import penstock
from penstock.errors import FormatError

LATITUDES = np.linspace(-60, 60, 5, dtype="f4")
MONTHS = (("hours since 2024-01-01", 24), ("hours since 2024-01-02 00:00:00", 30))


def write_netcdf(path: Path, hours: int, units: str, latitudes: Any = LATITUDES) -> None:
    """Write a field as NetCDF-4 does: scales, and texts of fixed length."""
    with h5py.File(path, "w") as file:
        for name, values in (("time", np.arange(hours)), ("lat", latitudes)):
            file[name] = values
            file[name].make_scale(name)
        file["time"].attrs["units"] = np.bytes_(units)
        field = file.create_dataset("t2m", data=np.zeros((hours, 5, 3)), chunks=(3, 5, 3))
        field.dims[0].attach_scale(file["time"])
        field.dims[1].attach_scale(file["lat"])


def write_group(path: Path, times: Any, version: int = 3, **attributes: Any) -> None:
    """Write a field as xarray does."""
    names = {} if version == 2 else {"dimension_names": ("time", "lat")}
    group = zarr.open_group(path, mode="w", zarr_format=version)
    field = group.create_array("t2m", shape=(len(times), 5), chunks=(7, 5), dtype="f4", **names)
    field[...] = 1
    for name, values in (("time", np.asarray(times)), ("lat", LATITUDES)):
        names = {} if version == 2 else {"dimension_names": (name,)}
        made = group.create_array(
            name, shape=values.shape, chunks=(4,), dtype=values.dtype, **names
        )
        made[...] = values
        made.attrs.update({"_ARRAY_DIMENSIONS": [name]} if version == 2 else {})
    field.attrs.update({"_ARRAY_DIMENSIONS": ["time", "lat"]} if version == 2 else {})
    group["time"].attrs.update(attributes)


def test_times_of_files_go_on_and_latitudes_repeat(tmp_path: Path) -> None:
    """Times of months that count from their own first days are datetime64 over all files, and the
    windows of a batch are dated by them."""
    for number, (units, hours) in enumerate(MONTHS):
        write_netcdf(tmp_path / f"{number}.nc", hours, units)
    data = penstock.open(tmp_path / "*.nc", window={"time": 6}, stride={"time": 5}, index="memory")
    assert list(data.coordinates) == ["time", "lat"]
    expected = np.datetime64("2024-01-01", "us") + np.arange(54) * np.timedelta64(3600, "s")
    np.testing.assert_array_equal(data.coordinates["time"], expected)
    assert data.coordinates["time"].dtype == "M8[us]"
    np.testing.assert_array_equal(data.coordinates["lat"], LATITUDES)
    assert data.coordinates["lat"].dtype == "f4"
    assert data.coordinates["time"] is data.coordinates["time"]
    batch = next(iter(penstock.Loader(data, 3, seed=0)))
    starts = data.origins(batch.ids)["time"]
    dated = data.coordinates["time"][starts[:, None] + np.arange(6)]
    np.testing.assert_array_equal(dated[:, 0], expected[batch.ids.astype(int) * 5])


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(
    ("times", "attributes", "expected"),
    [
        ([0.5, 1.25], {"units": "days since 1990-03-01"}, ["1990-03-01T12", "1990-03-02T06"]),
        (
            [7, 8],
            {"units": "minutes since 2000-1-1 1:30"},
            ["2000-01-01T01:37", "2000-01-01T01:38"],
        ),
        (
            [7, 8],
            {"units": "days since 2000-1-1", "calendar": "standard"},
            ["2000-01-08", "2000-01-09"],
        ),
        ([7, 8], {"units": "days since 2000-1-1", "calendar": "360_day"}, None),
        ([7, 8], {"units": "days since 1500-1-1"}, None),
        ([7, 1 << 62], {"units": "days since 2000-1-1"}, None),
        ([-3.5, 8], {"units": "degrees_north"}, None),
        ([7, 8], {"units": "hours since 2000-1-1 00:00:00 +01:00"}, None),
        ([7], {"units": "seconds since 2000-01-01T00:00:00+00:00"}, ["2000-01-01T00:00:07"]),
        ([-3e6], {"units": "days since 2000-1-1"}, None),
        ([7, 8], {"units": 3}, None),
        ([7, 8], {}, None),
    ],
)
def test_what_times_are(
    tmp_path: Path, version: int, times: list[float], attributes: dict[str, Any], expected: Any
) -> None:
    """Times of our calendar are dates; of other calendars, and what is no time, is as it is."""
    write_group(tmp_path / "w.zarr", times, version, **attributes)
    data = penstock.open(tmp_path / "w.zarr", index="memory", window={"time": 1})
    assert list(data.coordinates) == ["time", "lat"]
    wanted = times if expected is None else np.array(expected, "M8[us]")
    np.testing.assert_array_equal(data.coordinates["time"], wanted)
    np.testing.assert_array_equal(data.coordinates["lat"], LATITUDES)


@pytest.mark.parametrize("kind", ["h5", "zarr"])
def test_each_file_has_its_own(tmp_path: Path, kind: str) -> None:
    """Windows within files have an array for each file; lengths differ."""
    for number, hours in enumerate((3, 9)):
        if kind == "h5":
            write_netcdf(tmp_path / f"{number}.h5", hours, "m", LATITUDES + number)
        else:
            write_group(tmp_path / f"{number}.zarr", np.arange(hours) * (number + 1))
    more = {"isolate": False} if kind == "h5" else {}
    data = penstock.open(tmp_path, sample="file", window={"time": 2}, index="memory", **more)
    data = pickle.loads(pickle.dumps(data))
    first, second = data.coordinates["time"]
    assert (first.tolist(), len(second)) == ([0, 1, 2], 9)
    assert second[1] == (2 if kind == "zarr" else 1)
    assert data.coordinates["lat"][1][0] == LATITUDES[0] + (kind == "h5")


def test_coordinates_that_are_none(tmp_path: Path) -> None:
    """NaN, and another length than the axis has, are errors that name the file."""
    for times, words in (([0, np.nan, 2], "is nan at 1"), ([0, np.inf, 2], "is inf at 1")):
        write_group(tmp_path / "w.zarr", times)
        data = penstock.open(tmp_path / "w.zarr", index="memory", window={"time": 1})
        with pytest.raises(FormatError, match=rf"w.zarr/time.*{words}"):
            data.coordinates["lat"]
    with h5py.File(tmp_path / "short.h5", "w") as file:
        file["x"] = np.zeros((6, 2))
        file["x"].dims[0].label = "depth"
        file["depth"] = np.arange(5)
    options: dict[str, Any] = {"index": "memory", "isolate": False, "fields": ["x"]}
    data = penstock.open(tmp_path / "short.h5", window={"depth": 1}, **options)
    with pytest.raises(FormatError, match=r"short.h5.*'depth' has 5 values, and the axis 6"):
        data.coordinates["depth"]


def test_coordinates_of_files_that_differ(tmp_path: Path) -> None:
    """Units and grids that differ are errors that name both files."""
    paths = [tmp_path / "a.nc", tmp_path / "b.nc"]
    write_netcdf(paths[0], 6, "months")
    for units, latitudes, words in (
        ("years", LATITUDES, "b.nc.*is in 'years', and .*a.nc.*'months'"),
        ("months", LATITUDES[::-1], "b.nc.*has other values than .*a.nc"),
    ):
        write_netcdf(paths[1], 6, units, latitudes)
        with h5py.File(paths[1], "a") as file:
            file["time"][...] = np.arange(6, 12)
        data = penstock.open(paths, index="memory", isolate=False, window={"time": 1})
        with pytest.raises(FormatError, match=words):
            data.coordinates["time"]


def test_data_without_coordinates(tmp_path: Path) -> None:
    """Formats whose axes have no names have none, and no error but when one is asked for."""
    np.save(tmp_path / "a.npy", np.zeros((4, 3)))
    data = penstock.open(tmp_path / "a.npy", index="memory", window={0: 2})
    assert dict(data.coordinates) == {}
