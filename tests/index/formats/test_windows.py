"""Windows of arrays, against slices of numpy: each once, from each format, in any world."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock import _core
from penstock.engine.object_store import open_bucket
from penstock.errors import FormatError, MissingError, SidecarError, UsageError
from penstock.index.formats.windowing import measure_span
from penstock.index.layout import Boxes, Windows
from penstock.index.table import Index
from penstock.torch import DataLoader
from tests.services import S3, environment, moto

AXES = ("time", "lat", "lon")
Array = npt.NDArray[Any]


def list_windows(
    array: Array, window: Mapping[int, int], stride: Mapping[int, int], target: tuple[int, int]
) -> list[tuple[Array, Array]]:
    """All windows of an array and their targets along the first axis, by slices: the oracle."""
    low, high = target
    before = max(0, -low)
    spans = []
    for axis, length in enumerate(array.shape):
        size = window.get(axis, length)
        reach = before + max(size, high) if axis == 0 else size
        starts = range(0, length - reach + 1, stride.get(axis, size))
        spans.append([(start, size) for start in starts])
    windows = []
    for boxes in itertools.product(*spans):
        start = boxes[0][0] + before
        rest = tuple(slice(at, at + size) for at, size in boxes[1:])
        windows.append(
            (
                array[(slice(start, start + boxes[0][1]), *rest)],
                array[(slice(start + low, start + high), *rest)],
            )
        )
    return windows


def write(
    folder: Path, kind: str, array: Array, chunk: tuple[int, ...], files: int, fill: int = 0
) -> tuple[Any, dict[str, Any]]:
    """Write an array in a format, over some files; return what opens it, and further options."""
    if kind == "zarr":
        group = zarr.open_group(folder / "data.zarr", mode="w")
        names = AXES[: array.ndim]
        made = group.create_array(
            "x",
            shape=array.shape,
            chunks=chunk,
            dtype=array.dtype,
            dimension_names=names,
            fill_value=fill,
        )
        made[...] = array
        return folder / "data.zarr", {"fill": True}
    paths = []
    for number, part in enumerate(np.array_split(array, files)):
        paths.append(folder / f"{number}.{kind}")
        if kind == "npy":
            np.save(paths[-1], part)
            continue
        if kind == "npz":  # some members compressed, some not, unless none has chunks
            save = np.savez if not chunk or number % 2 else np.savez_compressed
            save(paths[-1], x=part, other=np.zeros((3, 2)), scale=2.5)
            continue
        with h5py.File(paths[-1], "w") as file:
            how = {} if not chunk else {"chunks": chunk, "compression": "gzip"}
            dataset = file.create_dataset("x", data=part, fillvalue=fill, **how)
            for axis, name in enumerate(AXES[: array.ndim]):
                dataset.dims[axis].label = name
    more = {"npy": {}, "npz": {"fields": ["x"]}, "h5": {"isolate": False}}
    return paths, more[kind]


@st.composite
def cuts(draw: st.DrawFn) -> dict[str, Any]:
    """An array, its chunks, and windows that fit into it."""
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    axes = sorted(draw(st.sets(st.sampled_from(range(len(shape))))) | {0})
    window = {axis: draw(st.integers(1, shape[axis])) for axis in axes}
    stride = {axis: draw(st.integers(1, 4)) for axis in axes if draw(st.booleans())}
    low = draw(st.integers(window[0] - shape[0], shape[0] - 1))
    most = shape[0] - max(0, -low)
    high = draw(st.integers(low + 1, max(low + 1, most)))
    if max(0, -low) + max(window[0], high) > shape[0]:
        low, high = 0, window[0]
    return {
        "shape": shape,
        "chunk": tuple(draw(st.integers(1, size)) for size in shape),
        "window": window,
        "stride": stride,
        "target": (low, high),
        "files": draw(st.integers(1, min(3, shape[0]))),
        "kind": draw(st.sampled_from(["npy", "zarr", "h5", "contiguous h5", "npz", "plain npz"])),
        "world": draw(st.integers(1, 3)),
        "batch": draw(st.integers(1, 5)),
        "decoded": draw(st.integers(0, 4 * math.prod(shape))),
        "shuffle": draw(st.sampled_from(["exact", "blocked"])),
    }


@given(cut=cuts())
def test_every_window_once_in_any_world(
    cut: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each window and its target come once an epoch over all ranks, with the bytes of the slice,
    and a rank that is resumed goes on with the same windows, whatever memory there is for decoded
    chunks."""
    folder = tmp_path_factory.mktemp("windows")
    rng = np.random.default_rng(0)
    array = rng.integers(1, 1 << 30, cut["shape"]).astype(np.int32)
    kind, _, plain = cut["kind"].rpartition(" ")[::-1]
    chunk = () if plain else cut["chunk"]
    size = min(len(part) for part in np.array_split(array, cut["files"]))
    if chunk and kind == "h5":
        chunk = (min(chunk[0], size), *chunk[1:])
    path, more = write(folder, kind, array, chunk, cut["files"])
    named = (lambda axis: axis) if kind in ("npy", "npz") else (lambda axis: AXES[axis])
    dataset = penstock.open(
        path,
        index="memory",
        window={named(axis): size for axis, size in cut["window"].items()},
        stride={named(axis): size for axis, size in cut["stride"].items()} or None,
        target={named(0): cut["target"]},
        **more,
    )
    name = "data" if kind == "npy" else "x"
    expected = list_windows(array, cut["window"], cut["stride"], cut["target"])
    assert len(dataset) == len(expected)
    came: list[int] = []
    world = min(cut["world"], len(expected))  # each rank needs a window
    options: dict[str, Any] = {
        "seed": 3,
        "world_size": world,
        "shuffle": cut["shuffle"],
        "budget": penstock.Budget(decoded_bytes=cut["decoded"]),
    }
    for rank in range(world):
        loader = penstock.Loader(dataset, cut["batch"], rank=rank, **options)
        batches = [(batch.ids.copy(), batch[name].copy()) for batch in loader]
        for batch in penstock.Loader(dataset, cut["batch"], rank=rank, **options):
            for row, number in enumerate(batch.ids.tolist()):
                window, target = expected[number]
                np.testing.assert_array_equal(batch[name][row], window)
                np.testing.assert_array_equal(batch[f"{name}_target"][row], target)
            came += batch.ids[batch.valid].tolist()
        half = penstock.Loader(dataset, cut["batch"], rank=rank, **options)
        steps = iter(half)
        for _ in range(len(batches) // 2):
            next(steps)
        state = half.state_dict()
        half.close()
        resumed = penstock.Loader(dataset, cut["batch"], rank=rank, **options)
        resumed.load_state_dict(state)
        rest = [(batch.ids.copy(), batch[name].copy()) for batch in resumed]
        for (ids, rows), (ids_again, rows_again) in zip(
            batches[len(batches) // 2 :], rest, strict=True
        ):
            np.testing.assert_array_equal(ids, ids_again)
            np.testing.assert_array_equal(rows, rows_again)
    assert sorted(came) == list(range(len(expected)))


@st.composite
def padded_cuts(draw: st.DrawFn) -> dict[str, Any]:
    """An array, its chunks, and windows with halos that may go beyond it."""
    shape = tuple(draw(st.lists(st.integers(1, 8), min_size=1, max_size=3)))
    axes = sorted(draw(st.sets(st.sampled_from(range(len(shape))))) | {0})
    drop = draw(st.sampled_from(["pad", "partial"]))
    most = {axis: shape[axis] if drop == "partial" else 11 for axis in axes}
    low = draw(st.integers(-min(3, shape[0] - 1), 4))
    window = {axis: draw(st.integers(1, most[axis])) for axis in axes}
    high = low + draw(st.integers(1, 5))
    if drop == "partial" and max(0, -low) + max(window[0], high) > shape[0]:
        low, high = 0, 1
    return {
        "shape": shape,
        "chunk": tuple(draw(st.integers(1, size)) for size in shape),
        "window": window,
        "stride": {axis: draw(st.integers(1, 9)) for axis in axes if draw(st.booleans())},
        "halo": {axis: draw(st.integers(0, 4)) for axis in axes if draw(st.booleans())},
        "target": (low, high),
        "drop": drop,
        "files": draw(st.integers(1, min(3, shape[0]))),
        "kind": draw(st.sampled_from(["npy", "zarr", "h5", "contiguous h5", "npz", "plain npz"])),
    }


def list_padded(
    array: Array, fill: int, cut: dict[str, Any]
) -> list[tuple[Array, Array, dict[str, Array]]]:
    """All windows, their targets along the first axis, and which places of each axis are real, by
    slices of an array with wide margins: the oracle."""
    margin = 40
    wide = np.pad(array, margin, constant_values=fill)
    low, high = cut["target"]
    before = max(0, -low)
    spans: list[list[int]] = []
    for axis, length in enumerate(array.shape):
        size = cut["window"].get(axis, length)
        first, reach = (before, before + max(size, high)) if axis == 0 else (0, size)
        starts = []
        for start in range(first, length, cut["stride"].get(axis, size)):
            is_whole = start - first + reach <= length
            if is_whole or (
                cut["drop"] == "pad" and (not starts or starts[-1] - first + reach < length)
            ):
                starts.append(start)
        spans.append(starts)
    windows = []
    for origin in itertools.product(*spans):
        box, behind, valid = [], [], {}
        for axis, start in enumerate(origin):
            size = cut["window"].get(axis, array.shape[axis])
            halo = cut["halo"].get(axis, 0)
            ends = (low, high) if axis == 0 else (0, size)
            box.append(slice(margin + start - halo, margin + start + size + halo))
            behind.append(slice(margin + start + ends[0], margin + start + ends[1]))
            for name, part in (("valid", box), ("valid_target", behind)):
                places = np.arange(part[-1].start, part[-1].stop) - margin
                valid[f"{axis}_{name}"] = (places >= 0) & (places < array.shape[axis])
        windows.append((wide[tuple(box)], wide[tuple(behind)], valid))
    return windows


@given(cut=padded_cuts())
def test_windows_beyond_the_array(
    cut: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """What lies beyond the array is its fill value, and marked; the grid counts no halo; and a
    selection, a saved index and the loader give the same."""
    folder = tmp_path_factory.mktemp("padded")
    array = np.random.default_rng(0).integers(1, 1 << 30, cut["shape"]).astype(">i4")
    kind, _, plain = cut["kind"].rpartition(" ")[::-1]
    chunk = () if plain else cut["chunk"]
    if chunk and kind == "h5":
        size = min(len(part) for part in np.array_split(array, cut["files"]))
        chunk = (min(chunk[0], size), *chunk[1:])
    fill = 0 if kind in ("npy", "npz") else -7
    path, more = write(folder, kind, array, chunk, cut["files"], fill)
    named = (lambda axis: axis) if kind in ("npy", "npz") else (lambda axis: AXES[axis])
    options = {
        name: {named(axis): size for axis, size in cut[name].items()} or None
        for name in ("window", "stride", "halo")
    }
    more |= {"drop": cut["drop"], "target": {named(0): cut["target"]}}
    made = penstock.open(path, index="memory", **options, **more)
    saved = tmp_path_factory.mktemp("saved") / "index"
    made.index.save(saved)
    dataset = penstock.open(path, index=saved, **options, **more)
    assert dataset.fingerprint == made.fingerprint
    name = "data" if kind == "npy" else "x"
    expected = list_padded(array, fill, cut)
    assert len(dataset) == len(expected)
    shapes = {field.name: field.shape for field in dataset.fields}
    came = set()
    for batch in penstock.Loader(dataset, 3, seed=1):
        for row, number in enumerate(batch.ids.tolist()):
            window, target, valid = expected[number]
            np.testing.assert_array_equal(batch[name][row], window)
            np.testing.assert_array_equal(batch[f"{name}_target"][row], target)
            came.add(number)
            for axis in cut["window"]:
                for which in ("valid", "valid_target"):
                    mask = f"{named(axis)}_{which}"
                    if mask in batch:
                        np.testing.assert_array_equal(batch[mask][row], valid[f"{axis}_{which}"])
                        assert shapes[mask] == batch[mask].shape[1:]
                    elif not valid[f"{axis}_{which}"].all():  # padding is always marked
                        assert which == "valid_target"
                        same = batch[f"{named(axis)}_valid"][row]
                        np.testing.assert_array_equal(same, valid[f"{axis}_{which}"])
        assert batch[name].dtype.kind == "i"
        assert batch[name].shape[1:] == shapes[name]
    assert came == set(range(len(expected)))
    np.testing.assert_array_equal(dataset[len(expected) - 1][name], expected[-1][0])


@pytest.fixture
def weather(tmp_path: Path) -> Path:
    """Ten days of two fields with their coordinates, as xarray writes Zarr 2."""
    group = zarr.open_group(tmp_path / "w.zarr", mode="w", zarr_format=2)
    values = np.random.default_rng(0).normal(size=(40, 6, 8)).astype("f4")
    for name, array, axes in (
        ("t2m", values, AXES),
        ("land", values[0], AXES[1:]),
        ("time", np.arange(40), AXES[:1]),
        ("lat", np.arange(6.0), AXES[1:2]),
    ):
        made = group.create_array(name, shape=array.shape, dtype=array.dtype, chunks=array.shape)
        made[...] = array
        made.attrs["_ARRAY_DIMENSIONS"] = list(axes)
    return tmp_path / "w.zarr"


@st.composite
def boxes(draw: st.DrawFn) -> dict[str, Any]:
    """Chunks of a grid, memory that holds each at its front, and windows anywhere."""
    axes = draw(st.integers(1, 4))
    chunks = draw(st.lists(st.lists(st.integers(0, 3), min_size=axes, max_size=axes), max_size=4))
    chunks = [list(one) for one in {tuple(chunk) for chunk in chunks}]
    width = [draw(st.integers(1, 4)) for _ in range(axes)]
    place = st.lists(st.integers(-3, 14), min_size=axes, max_size=axes)
    return {
        "start": [
            [cell * size for cell, size in zip(chunk, width, strict=True)] for chunk in chunks
        ],
        "width": [[draw(st.integers(0, size)) for size in width] for _ in chunks],
        "held": [[draw(st.integers(size, size + 2)) for size in width] for _ in chunks],
        "windows": [draw(st.lists(place, max_size=3)) for _ in chunks],
        "shape": [draw(st.integers(1, 5)) for _ in range(axes)],
        "dtype": draw(st.sampled_from(["u1", "<i2", "<f8", "S3"])),
        "threads": draw(st.integers(1, 3)),
    }


@given(cut=boxes())
def test_overlaps_as_numpy_copies_them(cut: dict[str, Any]) -> None:
    """Each window has of each chunk what slices of numpy say, and nothing else is written."""
    shape, dtype = cut["shape"], np.dtype(cut["dtype"])
    count = sum(map(len, cut["windows"]))
    random = np.random.default_rng(1)
    values = [random.integers(1, 99, held).astype(dtype) for held in cut["held"]]
    windows = np.zeros((count, *shape), dtype)
    expected = windows.copy()
    start, width = (
        np.array(cut[name], "i8").reshape(len(values), len(shape)) for name in ("start", "width")
    )
    row = 0
    for at, one in enumerate(values):
        for place in cut["windows"][at]:
            low = np.maximum(place, start[at])
            high = np.maximum(low, np.minimum(np.add(place, shape), start[at] + width[at]))
            into = tuple(map(slice, low - place, high - place))
            expected[row][into] = one[tuple(map(slice, low - start[at], high - start[at]))]
            row += 1
    box = np.array([*zip(start, start + width, cut["held"], strict=True)], "i8").reshape(-1)
    arguments = {
        "chunks": [one.reshape(-1).view("u1") for one in values],
        "boxes": box,
        "edges": np.cumsum([0, *map(len, cut["windows"])]),
        "places": np.array([place for met in cut["windows"] for place in met], "i8").reshape(-1),
        "rows": np.arange(count),
        "shape": np.array(shape),
        "item_bytes": dtype.itemsize,
        "windows": windows.reshape(-1).view("u1"),
        "threads": cut["threads"],
    }
    _core.copy_overlaps(**arguments)
    np.testing.assert_array_equal(windows, expected)
    if count:
        for wrong in (
            {"rows": np.arange(count) + 1},
            {"rows": np.arange(count) - 1},
            {"boxes": box + 1},
            {"boxes": -box - 1},
            {"boxes": np.full_like(box, 1 << 62)},
            {"edges": arguments["edges"][::-1].copy()},
            {"edges": arguments["edges"] + 1},
            {"places": arguments["places"][1:]},
            {"chunks": [*arguments["chunks"], np.zeros(0, "u1")]},
            {"item_bytes": 0},
            {"item_bytes": 1 << 62},
            {"shape": -arguments["shape"]},
            {"windows": arguments["windows"][:-1]},
        ):
            with pytest.raises((IndexError, ValueError)):
                _core.copy_overlaps(**arguments | wrong)
        np.testing.assert_array_equal(windows, expected)
    places = arguments["places"]
    for far in (-(1 << 63), (1 << 63) - 1):
        _core.copy_overlaps(**arguments | {"places": np.full_like(places, far)})
    np.testing.assert_array_equal(windows, expected)


def test_axes_of_xarray_and_arrays_that_lack_one(weather: Path) -> None:
    """Coordinates are left out; a mask without a time is cut along the axes that it has."""
    dataset = penstock.open(weather, window={"lat": 3, "time": 10}, index="memory", fill=True)
    assert {field.name: field.shape for field in dataset.fields} == {
        "t2m": (10, 3, 8),
        "land": (3, 8),
    }
    group = zarr.open_group(weather, mode="r")
    for number, (time, lat) in enumerate(itertools.product(range(0, 40, 10), (0, 3))):
        sample = dataset[number]
        np.testing.assert_array_equal(
            sample["t2m"], np.asarray(group["t2m"])[time : time + 10, lat : lat + 3]
        )
        np.testing.assert_array_equal(sample["land"], np.asarray(group["land"])[lat : lat + 3])
    assert len(dataset) == 8


def test_a_saved_index_has_the_same_windows(weather: Path) -> None:
    """The index is saved and loaded again; other windows are another index."""
    options: dict[str, Any] = {"window": {"time": 7}, "stride": {"time": 3}, "fill": True}
    made = penstock.open(weather, **options)
    again = penstock.open(weather, **options)
    other = penstock.open(weather, window={"time": 7}, fill=True)
    assert made.fingerprint == again.fingerprint != other.fingerprint
    assert len(made) == len(again) == 12
    assert len(other) == 5
    np.testing.assert_array_equal(made[11]["t2m"], again[11]["t2m"])


def test_windows_go_on_from_file_to_file(tmp_path: Path) -> None:
    """Hourly files are one axis: chunks of the last one of each file are cut short."""
    array = np.random.default_rng(0).integers(0, 99, (23, 5)).astype("i2")
    for number, part in enumerate((array[:7], array[7:12], array[12:])):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            dataset = file.create_dataset("x", data=part, chunks=(4, 2), compression="gzip")
            dataset.dims[0].label = "time"
    dataset = penstock.open(
        tmp_path / "*.h5", window={"time": 9}, stride={"time": 1}, isolate=False, index="memory"
    )
    assert len(dataset) == 15
    for start in range(15):
        np.testing.assert_array_equal(dataset[start]["x"], array[start : start + 9])


def test_a_billion_windows_take_no_memory(tmp_path: Path) -> None:
    """The index has no list of windows: it is as small for many as for few."""
    rows = np.lib.format.open_memmap(tmp_path / "a.npy", "w+", "u1", (40_000, 40_000))
    rows[39_999, 39_999] = 7
    rows.flush()
    dataset = penstock.open(tmp_path / "a.npy", window={0: 64, 1: 64}, stride={0: 1, 1: 1})
    assert len(dataset) == 39_937**2
    assert dataset[len(dataset) - 1]["data"][-1, -1] == 7
    assert Path(str(dataset.sidecar)).stat().st_size < 10_000


def test_other_windows_are_other_data(weather: Path, tmp_path: Path) -> None:
    """As many windows of one size, at other places, have another identity: no state of the one
    continues with the other. So have those of rows that are stored as they are."""
    np.save(tmp_path / "a.npy", np.arange(40))
    of_zarr: list[dict[str, Any]] = [
        {"window": {"time": 10}, "stride": {"time": stride}, "target": {"time": target}}
        for stride, target in ((14, (10, 12)), (13, (10, 12)), (14, (9, 11)))
    ]
    for path, axis in ((weather, "time"), (tmp_path / "a.npy", 0)):
        opened = [
            penstock.open(
                path,
                index="memory",
                **{name: {axis: value["time"]} for name, value in options.items()},
                **({"fill": True} if path == weather else {}),
            )
            for options in of_zarr
        ]
        assert {len(dataset) for dataset in opened} == {3}
        assert len({dataset.fingerprint for dataset in opened}) == 3


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"window": {"hour": 3}}, UsageError, ["'hour'", "'time' (40)", "'lat' (6)"]),
        ({"window": {"time": 41}}, UsageError, ["40", "41", "'time'"]),
        ({"window": {"time": 24}, "target": {"time": [24, 41]}}, UsageError, ["target", "41"]),
        ({"window": {"time": 24}, "target": {"lat": [0, 2]}}, UsageError, ["'lat'", "window="]),
        ({"window": {"time": 0}}, UsageError, ["window", "0"]),
        ({"window": 24}, UsageError, ["window", "24", "{axis: elements}"]),
        ({"window": {"time": 2}, "stride": {"time": 0}}, UsageError, ["stride", "0"]),
        ({"window": {"time": 2}, "target": {"time": [3, 3]}}, UsageError, ["target", "(3, 3)"]),
        ({"window": {"time": 2}, "sample": "row"}, UsageError, ["sample=", "window="]),
        ({"stride": {"time": 2}}, UsageError, ["stride=", "window="]),
        ({"halo": {"time": 2}}, UsageError, ["halo=", "window="]),
        ({"window": {"time": 2}, "halo": {"time": -1}}, UsageError, ["halo", "-1"]),
        ({"window": {"time": 2}, "halo": {"lat": 1}}, UsageError, ["'lat'", "window="]),
        ({"axis": "hour"}, UsageError, ["'hour'", "'time' (40)"]),
        ({"axis": "time", "window": {"time": 2}}, UsageError, ["window=", "axis=", "exclude"]),
        ({"axis": "time", "stride": {"time": 2}}, UsageError, ["stride=", "axis="]),
        ({"axis": "time", "sample": "row"}, UsageError, ["sample=", "axis="]),
        ({"axis": 1.5}, UsageError, ["axis", "1.5"]),
        ({"window": {"time": 2}, "drop": "last"}, UsageError, ["drop", "'partial' or 'pad'"]),
        ({"window": {"time": 41}}, UsageError, ["drop='pad'"]),
        ({"window": {"time": 1 << 40}, "drop": "pad"}, UsageError, ["elements", "smaller window"]),
        ({"window": {"time": 1}, "stride": {"time": 1 << 63}}, UsageError, ["stride"]),
        (
            {"window": {"time": 2}, "target": {"time": [-40, 0]}, "drop": "pad"},
            UsageError,
            ["fewer than", "give less"],
        ),
        ({"window": {"time": 2}, "fields": ["t2m", "wind"]}, FormatError, ["wind"]),
    ],
)
def test_what_cannot_be_cut(
    weather: Path, options: dict[str, Any], error: type[Exception], words: list[str]
) -> None:
    """The message names the axis or the option, its value, and what there is."""
    with pytest.raises((error, MissingError)) as caught:
        penstock.open(weather, index="memory", fill=True, **options)
    assert all(word in str(caught.value) for word in words), caught.value
    assert "\n" not in str(caught.value)


def test_arrays_of_two_grids(tmp_path: Path) -> None:
    """Two lengths of one axis are an error: windows of one would be at other places than those of
    the other."""
    group = zarr.open_group(tmp_path / "w.zarr", mode="w")
    for name, size in (("a", 10), ("b", 11)):
        made = group.create_array(name, shape=(size,), dtype="f4", dimension_names=("time",))
        made[...] = 1
    with pytest.raises(FormatError, match="'time'.*choose arrays of one grid"):
        penstock.open(tmp_path / "w.zarr", window={"time": 2}, index="memory")


def test_a_target_with_the_name_of_an_array(tmp_path: Path) -> None:
    """An array that is called as the target of another would be hidden by it: an error."""
    group = zarr.open_group(tmp_path / "w.zarr", mode="w")
    for name in ("x", "x_target"):
        made = group.create_array(name, shape=(10,), dtype="f4", dimension_names=("time",))
        made[...] = 1
    options: dict[str, Any] = {"window": {"time": 2}, "target": {"time": (2, 3)}}
    with pytest.raises(UsageError, match="two fields of .* would be 'x_target'"):
        penstock.open(tmp_path / "w.zarr", index="memory", **options)
    dataset = penstock.open(tmp_path / "w.zarr", index="memory", fields=["x"], **options)
    assert [field.name for field in dataset.fields] == ["x", "x_target"]


def test_axes_that_are_renamed(weather: Path) -> None:
    """A saved index is made anew when the names of axes change, which lie beside the array."""
    penstock.open(weather, window={"time": 10}, fill=True)
    for name in ("t2m", "land", "time", "lat"):
        attributes = weather / name / ".zattrs"
        attributes.write_text(attributes.read_text().replace("time", "hour"))
    with pytest.raises(UsageError, match="no array has an axis 'time'"):
        penstock.open(weather, window={"time": 10}, fill=True)


def test_a_damaged_chunk_is_named(tmp_path: Path) -> None:
    """A chunk whose bytes were changed is an error of the step, and no other window has its
    place."""
    array = np.random.default_rng(0).integers(0, 99, (40, 6)).astype("i4")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dataset = file.create_dataset("x", data=array, chunks=(10, 6), compression="gzip")
        place = dataset.id.get_chunk_info(2)
    with (tmp_path / "a.h5").open("r+b") as file:
        file.seek(place.byte_offset + place.size // 2)
        file.write(b"\xff" * 8)
    dataset = penstock.open(tmp_path / "a.h5", window={"0": 5}, isolate=False, index="memory")
    np.testing.assert_array_equal(dataset[3]["x"], array[15:20])
    with pytest.raises(FormatError, match="damaged") as caught:
        dataset[5]
    assert "a.h5" in str(caught.value)
    assert "'x'" in str(caught.value)


def write_hours(folder: Path, hours: list[tuple[str, list[float], str]]) -> None:
    """Write a file of hourly values for each name, with its times and their units."""
    for name, times, units in hours:
        with h5py.File(folder / name, "w") as file:
            if not times:  # two values without a coordinate
                file["x"] = np.zeros(2, "f4")
                file["x"].dims[0].label = "time"
                continue
            file["time"] = np.array(times)
            file["time"].attrs["units"] = units
            file["time"].make_scale("time")
            file["x"] = np.arange(len(times), dtype="f4")
            file["x"].dims[0].attach_scale(file["time"])


SINCE = "hours since 2020-01-01"


@pytest.mark.parametrize(
    "hours",
    [
        [("a.nc", [0, 1, 2], SINCE), ("b.nc", [3, 4], SINCE)],
        [("a.nc", [22, 23], SINCE), ("b.nc", [0, 1], "hours since 2020-01-02 00:00:00")],
        [("a.nc", [22, 23], SINCE), ("b.nc", [0, 60], "minutes since 2020-1-2 0:0:00.0 UTC")],
        [("a.nc", [5], SINCE), ("b.nc", [6], SINCE), ("c.nc", [7], SINCE)],
    ],
)
def test_times_that_go_on(tmp_path: Path, hours: list[tuple[str, list[float], str]]) -> None:
    """Hourly files in the sequence of time are one axis, whatever their times count from."""
    write_hours(tmp_path, hours)
    count = sum(len(times) for _, times, _ in hours)
    dataset = penstock.open(
        tmp_path / "*.nc", window={"time": 2}, stride={"time": 1}, isolate=False, index="memory"
    )
    assert [field.name for field in dataset.fields] == ["x"]
    assert len(dataset) == count - 1


@pytest.mark.parametrize(
    ("hours", "words"),
    [
        ([("1.nc", [0, 1], SINCE), ("10.nc", [4, 5], SINCE), ("2.nc", [2, 3], SINCE)], "gap"),
        ([("a.nc", [2, 3], SINCE), ("b.nc", [0, 1], SINCE)], "does not go on behind"),
        ([("a.nc", [0, 1, 2], SINCE), ("b.nc", [2, 3, 4], SINCE)], "does not go on behind"),
        ([("a.nc", [0, 1], SINCE), ("b.nc", [3, 4], SINCE)], "gap"),
        ([("a.nc", [0, 1], SINCE), ("b.nc", [2, 2], SINCE)], "drop doubles"),
        ([("a.nc", [0, 1], SINCE), ("b.nc", [2, np.nan], SINCE)], "nan at 1"),
        ([("a.nc", [0, 2, 1], SINCE), ("b.nc", [3, 4], SINCE)], "another way before"),
        ([("a.nc", [0, 1], SINCE), ("b.nc", [0, 1], SINCE)], "does not go on behind"),
        ([("a.nc", [0, 1], SINCE), ("b.nc", [], SINCE)], "1 of 2 files have the coordinate"),
    ],
)
def test_times_that_do_not_go_on(
    tmp_path: Path, hours: list[tuple[str, list[float], str]], words: str
) -> None:
    """Files out of sequence, with a gap or with doubled times would give windows of hours that do
    not follow each other: the message names the file."""
    write_hours(tmp_path, hours)
    with pytest.raises(FormatError, match=words) as caught:
        penstock.open(tmp_path / "*.nc", window={"time": 2}, isolate=False, index="memory")
    assert ".nc" in str(caught.value)
    assert "time" in str(caught.value)


@pytest.mark.parametrize("name", ["a.npy", "w.zarr"])
@pytest.mark.parametrize(
    "change",
    [
        {"start": (1,)},
        {"steps": (5,)},
        {"stride": (11,)},
        {"size": (11,)},
        {"shape": (41,)},
        {"every": (0,)},
        {"every": (2,)},
        {"stride": (1 << 63,), "steps": (1,)},
        {"start": (-1,)},
    ],
)
def test_a_saved_index_that_leads_beyond_the_array(
    weather: Path, tmp_path: Path, name: str, change: dict[str, tuple[int, ...]]
) -> None:
    """Windows of a damaged index that reach beyond their array are refused when it is loaded."""
    np.save(tmp_path / "a.npy", np.arange(40.0))
    axis, more = ("time", {"fill": True, "fields": ["time"]}) if name == "w.zarr" else (0, {})
    dataset = penstock.open(tmp_path / name, index="memory", window={axis: 10}, **more)
    (layout,) = dataset.index.layouts
    assert isinstance(layout, Boxes | Windows)
    saved = tmp_path / "saved.penstock"
    dataset.index.save(saved)
    assert len(Index.load(saved)) == 4
    replace(dataset.index, layouts=(replace(layout, grid=replace(layout.grid, **change)),)).save(
        saved
    )
    with pytest.raises(SidecarError):
        Index.load(saved)


@pytest.mark.parametrize("kind", ["npy", "zarr", "h5", "contiguous h5", "npz"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_rows_along_any_axis(tmp_path: Path, kind: str, axis: int) -> None:
    """A sample is a place along an axis, which it has no more, over all files."""
    array = np.random.default_rng(0).integers(1, 99, (11, 6, 5)).astype("i2")
    path, more = write(
        tmp_path, kind.split()[-1], array, () if " " in kind else (3, 3, 2), 3 if axis == 0 else 1
    )
    of_numpy = kind in ("npy", "npz")
    dataset = penstock.open(path, axis=axis if of_numpy else AXES[axis], **more)
    again = penstock.open(path, axis=axis if of_numpy else AXES[axis], **more)
    name = "data" if kind == "npy" else "x"
    rows = np.moveaxis(array, axis, 0)
    assert len(dataset) == len(rows)
    assert {field.name: field.shape for field in again.fields} == {name: rows.shape[1:]}
    for batch in penstock.Loader(again, 4, seed=0):
        np.testing.assert_array_equal(batch[name], rows[batch.ids.astype(int)])
    np.testing.assert_array_equal(dataset[2][name], rows[2])


def test_rows_of_one_axis(tmp_path: Path) -> None:
    """Samples of an array of one axis are single numbers."""
    np.save(tmp_path / "a.npy", np.arange(7))
    dataset = penstock.open(tmp_path / "a.npy", axis=0, index="memory")
    assert [int(dataset[number]["data"]) for number in range(7)] == list(range(7))
    batches = list(penstock.Loader(dataset, 7, shuffle="none"))
    np.testing.assert_array_equal(batches[0]["data"], np.arange(7))


@pytest.mark.parametrize(
    "units", ["days since 292277026597-1-1", "days since 2000-1-100", "days since \u0661-1-1"]
)
def test_a_date_that_no_calendar_has(units: str) -> None:
    """A coordinate since such a date is compared as it is, and not since another day."""
    assert measure_span("x", np.array([1.0, 2.0]), units) == (1.0, 2.0, 1.0)


@pytest.mark.parametrize("kind", ["npy", "zarr"])
@pytest.mark.parametrize("shuffle", ["exact", "auto"])
def test_random_windows(tmp_path: Path, kind: str, shuffle: Any) -> None:
    """An epoch of as many windows as wanted, at random places among all."""
    array = np.random.default_rng(0).integers(1, 99, (60, 9)).astype("u1")
    path, more = write(tmp_path, kind, array, (8, 4), 1)
    axes = (0, 1) if kind == "npy" else AXES[:2]
    window, stride = dict(zip(axes, (8, 4), strict=True)), dict.fromkeys(axes, 1)
    dataset = penstock.open(path, index="memory", window=window, stride=stride, **more)
    drawn, places = dataset.weigh(samples_per_epoch=24), []
    with penstock.Loader(drawn, 5, seed=0, shuffle=shuffle) as loader:
        for _ in range(3):
            seen = []
            for batch in loader:
                seen += batch.ids.tolist()
                for row, number in enumerate(batch.ids.tolist()):
                    time, lat = divmod(number, 6)
                    expected = array[time : time + 8, lat : lat + 4]
                    np.testing.assert_array_equal(
                        batch["data" if axes[0] == 0 else "x"][row], expected
                    )
            places.append(sorted(seen))
    alike = dataset.weigh(np.ones(len(dataset)), samples_per_epoch=24)
    with penstock.Loader(alike, 5, seed=0, shuffle=shuffle) as loader:
        assert sum(len(batch.ids) for batch in loader) == 24
    assert [len(numbers) for numbers in places] == [24, 24, 24]
    assert len({tuple(numbers) for numbers in places}) == 3


@pytest.mark.parametrize("kind", ["npy", "zarr"])
def test_origins_of_windows(tmp_path: Path, kind: str) -> None:
    """Where windows start is known by axis, of batches, and as columns for selections."""
    array = np.arange(60 * 9 * 4).reshape(60, 9, 4)
    path, more = write(tmp_path, kind, array, (8, 4, 4), 1)
    time, lat, lon = ("0", "1", "2") if kind == "npy" else AXES
    name = "data" if kind == "npy" else "x"
    options = {"window": {time: 5, lat: 3}, "stride": {time: 7}, "halo": {lat: 1}}
    dataset = penstock.open(path, index="memory", target={time: (5, 6)}, **options, **more)
    for batch in penstock.Loader(dataset, 4, seed=0):
        origins = dataset.origins(batch.ids)
        behind = dataset.origins(batch.ids, f"{name}_target")
        for row, valid in enumerate(batch[f"{lat}_valid"]):
            at = {axis: int(column[row]) for axis, column in origins.items()}
            first = batch[name][row][0, :, 0]
            np.testing.assert_array_equal(
                first[valid], array[at[time], np.arange(5)[valid] + at[lat], at[lon]]
            )
            assert int(behind[time][row]) == at[time] + 5
            assert int(behind[lat][row]) == at[lat] + 1
    places = dataset.origins(np.arange(len(dataset)))
    assert {axis: sorted(set(column.tolist())) for axis, column in places.items()} == {
        time: list(range(0, 55, 7)),
        lat: [-1, 2, 5],
        lon: [0],
    }
    kept = dataset.select(where=lambda columns: (columns[time] < 21) & (columns[lat] > 0))
    np.testing.assert_array_equal(
        kept.ids(np.arange(len(kept))), np.flatnonzero((places[time] < 21) & (places[lat] > 0))
    )
    mine = dataset.select(where=lambda columns: columns[lat] == 7, columns={lat: places[time]})
    assert len(mine) == 3
    if kind == "zarr":
        assert len(dataset.select(where="time >= 21 and lat == 2")) == 5
    for fields in (["y"], [f"{lat}_valid"]):
        with pytest.raises(UsageError, match="has no windows"):
            dataset.origins([0], *fields)
    with pytest.raises(UsageError, match="sample"):
        dataset.origins([len(dataset)])


@pytest.mark.parametrize("change", [{"start": (-10,)}, {"fill": "00"}, {"size": (4,)}])
def test_a_damaged_index_of_padded_windows(tmp_path: Path, change: dict[str, Any]) -> None:
    """Windows that have no place in the array, or no fill value of its type, are refused."""
    np.save(tmp_path / "a.npy", np.arange(42.0))
    dataset = penstock.open(tmp_path / "a.npy", index="memory", window={0: 10}, drop="pad")
    (layout,) = dataset.index.layouts
    assert isinstance(layout, Boxes)
    dataset.index.save(tmp_path / "saved.penstock")
    assert len(Index.load(tmp_path / "saved.penstock")) == 5
    damaged = replace(layout, grid=replace(layout.grid, **change))
    replace(dataset.index, layouts=(damaged,)).save(tmp_path / "saved.penstock")
    with pytest.raises(SidecarError):
        Index.load(tmp_path / "saved.penstock")


def number_sample(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "number": sample["__id__"]}


@pytest.mark.parametrize("kind", ["npy", "zarr", "contiguous h5", "npz"])
def test_padded_windows_in_workers_caches_and_selections(tmp_path: Path, kind: str) -> None:
    """However windows come, what lies beyond the array is filled up once; they are not mixed."""
    array = np.random.default_rng(0).integers(1, 99, (23, 7)).astype("f4")
    path, more = write(tmp_path, kind.split()[-1], array, () if " " in kind else (5, 3), 1, fill=5)
    path = path[0] if isinstance(path, list) else path
    time = 0 if kind in ("npy", "npz") else "time"
    name = "data" if kind == "npy" else "x"
    dataset = penstock.open(path, window={time: 6}, halo={time: 3}, drop="pad", **more)
    wide = np.pad(array, ((3, 40), (0, 0)), constant_values=0 if time == 0 else 5)
    expected = [wide[start : start + 12] for start in range(0, 23, 6)]
    assert len(dataset) == 4
    selected, more = dataset.select([0, 3]), {"batch_size": 2, "seed": 0, "decode": number_sample}
    loaders: list[Any] = [
        penstock.Loader(selected, **more),
        DataLoader(selected, num_workers=2, workers="processes", shuffle=True, **more),
    ]
    if kind not in ("zarr", "npz"):
        cache = penstock.Cache(ram_bytes=1 << 20)
        loaders.append(penstock.Loader(selected, cache=cache, **more))
    for loader in loaders:
        for _ in range(2):
            for batch in loader:
                for row, number in enumerate(np.asarray(batch["number"]).tolist()):
                    np.testing.assert_array_equal(batch[name][row], expected[number])
                    real = np.arange(12) + number * 6 - 3
                    valid = (real >= 0) & (real < 23)
                    np.testing.assert_array_equal(batch[f"{time}_valid"][row], valid)
        loader.close()
    with pytest.raises(UsageError, match="not mixed yet"):
        penstock.mix([(dataset, 1), (dataset, 1)])


def test_windows_of_archives(tmp_path: Path) -> None:
    """Arrays of an archive that have the axis are cut, whether compressed or not; scalars, and a
    damaged member, are not."""
    array, mask = np.arange(60.0).reshape(12, 5), np.arange(12)
    arrays = {"x": array, "labels": mask, "scale": np.float32(2)}
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", **arrays)
        dataset = penstock.open(tmp_path / "a.npz", index="memory", window={0: 5}, stride={0: 2})
        assert [field.name for field in dataset.fields] == ["x", "labels"]
        for number in range(4):
            np.testing.assert_array_equal(dataset[number]["x"], array[number * 2 :][:5])
            np.testing.assert_array_equal(dataset[number]["labels"], mask[number * 2 :][:5])
    noise = np.random.default_rng(0).normal(size=(12, 500))
    np.savez_compressed(tmp_path / "a.npz", x=noise, y=array[:9])
    with pytest.raises(FormatError, match="choose arrays of one grid by fields="):
        penstock.open(tmp_path / "a.npz", index="memory", window={0: 5})
    data = bytearray((tmp_path / "a.npz").read_bytes())
    data[noise.nbytes // 2] ^= 255
    (tmp_path / "a.npz").write_bytes(data)
    dataset = penstock.open(tmp_path / "a.npz", index="memory", window={0: 5}, fields=["x"])
    with pytest.raises(FormatError, match=r"'x'.*damaged"):
        dataset[0]


def test_windows_of_a_bucket(weather: Path) -> None:
    """Chunks that are objects of S3 give the same windows as files."""
    options: dict[str, Any] = {"index": "memory", "fill": True, "window": {"time": 9, "lat": 4}}
    expected = penstock.open(weather, **options)
    with moto() as port, pytest.MonkeyPatch.context() as patch:
        for name, value in environment(port).items():
            patch.setenv(name, value)
        S3(port, "arrays")
        bucket = open_bucket("s3://arrays")
        for path in weather.rglob("*"):
            if path.is_file():
                bucket.put(f"w.zarr/{path.relative_to(weather)}", path.read_bytes())
        with penstock.Loader(penstock.open("s3://arrays/w.zarr", **options), 3, seed=0) as loader:
            for batch in loader:
                for row, number in enumerate(batch.ids.tolist()):
                    np.testing.assert_array_equal(batch["t2m"][row], expected[number]["t2m"])
    assert len(expected) == 4
