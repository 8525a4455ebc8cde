"""Windows within each of several files, against slices of numpy, file by file."""

from __future__ import annotations

import io
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import numpy.typing as npt
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.errors import DataError, FormatError, SidecarError, UsageError
from penstock.index.codecs.chunked_arrays import decode_npz, unpack_entry
from penstock.index.codecs.registry import CompressedChunk
from penstock.index.layout import Boxes, Windows
from penstock.index.table import Index
from penstock.torch import DataLoader
from tests.slices import first

Array = npt.NDArray[Any]
AXES = ("z", "y", "x")
KINDS = ("npy", "zarr", "h5", "contiguous h5", "npz", "plain npz")


def flatten(array: Array) -> Array:
    """Return an array that lacks the first axis, if there are more."""
    return array[0] if array.ndim > 1 else array


class Scans(NamedTuple):
    """Arrays of files, how they are written, and how windows of them are cut, by number of axis.

    target:  of the first axis of the window.
    """

    kind: str
    arrays: list[Array]
    chunk: tuple[int, ...]
    window: dict[int, int]
    stride: dict[int, int]
    halo: dict[int, int]
    target: tuple[int, int]
    drop: str

    @property
    def name(self) -> str:
        return "data" if self.kind == "npy" else "scan"

    @property
    def fill(self) -> int:
        return 0 if "np" in self.kind else -7

    def write(self, folder: Path) -> dict[str, Any]:
        """Write the files; return what opens them by windows."""
        named: Any = str if "np" in self.kind else AXES.__getitem__
        cut = {
            option: {named(axis): size for axis, size in getattr(self, option).items()} or None
            for option in ("window", "stride", "halo")
        }
        cut["target"] = {named(min(self.window)): self.target}
        more = {"path": folder, "sample": "file", "drop": self.drop, **cut}
        for number, array in enumerate(self.arrays):
            path = folder / f"{number}.{self.kind.split()[-1]}"
            flat = flatten(array)
            if self.kind == "npy":
                np.save(path, array)
            elif "npz" in self.kind:
                save = np.savez if "plain" in self.kind or number % 2 else np.savez_compressed
                save(path, scan=array, other=np.zeros(number))
                more |= {"fields": ["scan"]}
            elif self.kind == "zarr":
                group = zarr.open_group(folder / f"{number}.zarr", mode="w")
                for name, values in (("scan", array), ("flat", flat)):
                    made = group.create_array(
                        name,
                        shape=values.shape,
                        chunks=tuple(size + number % 2 for size in self.chunk[-values.ndim :]),
                        dtype=values.dtype,
                        fill_value=self.fill,
                        dimension_names=AXES[: array.ndim][-values.ndim :],
                    )
                    made[...] = values
                more |= {"fill": True}
            else:
                how: Any = {}
                if self.kind == "h5":  # chunks of any shape, filters that differ
                    sizes = np.minimum(self.chunk, np.array(array.shape)) - number % 2
                    how = {"chunks": tuple(np.maximum(sizes, 1).tolist())}
                    how |= {"compression": "gzip", "shuffle": number == 1}
                with h5py.File(path, "w") as file:
                    made = file.create_dataset("scan", data=array, fillvalue=self.fill, **how)
                    of = file.create_dataset("flat", data=flat, fillvalue=self.fill)
                    for dataset in (made, of):
                        for axis, name in enumerate(AXES[: array.ndim][-dataset.ndim :]):
                            dataset.dims[axis].label = name
                more |= {"isolate": False}
        return more

    def list_windows(self) -> list[tuple[int, tuple[int, ...], dict[str, Array], dict[str, Array]]]:
        """All windows by slices of arrays with wide margins, the oracle: the file, where it starts,
        the fields, and which places of each axis are real."""
        margin, listed, led = 40, [], min(self.window)
        low, high = self.target
        before = max(0, -low)
        for file, array in enumerate(self.arrays):
            wide = np.pad(array, margin, constant_values=self.fill)
            flat = np.pad(flatten(array), margin, constant_values=self.fill)
            spans = []
            for axis, length in enumerate(array.shape):
                size = self.window.get(axis, length)
                first, reach = (before, before + max(size, high)) if axis == led else (0, size)
                starts: list[int] = []
                for start in range(first, length, self.stride.get(axis, size)):
                    is_whole = start - first + reach <= length
                    is_begun = not starts or starts[-1] - first + reach < length
                    if is_whole or (self.drop == "pad" and is_begun):
                        starts.append(start)
                spans.append(starts)
            for origin in itertools.product(*spans):
                box, behind, valid = [], [], {}
                for axis, start in enumerate(origin):
                    size = self.window.get(axis, array.shape[axis])
                    halo = self.halo.get(axis, 0)
                    ends = self.target if axis == led else (0, size)
                    box.append(slice(margin + start - halo, margin + start + size + halo))
                    behind.append(slice(margin + start + ends[0], margin + start + ends[1]))
                    for which, part in (("valid", box), ("valid_target", behind)):
                        places = np.arange(part[-1].start, part[-1].stop) - margin
                        named = str(axis) if "np" in self.kind else AXES[axis]
                        valid[f"{named}_{which}"] = (places >= 0) & (places < array.shape[axis])
                starts = [part.start - margin for part in box]
                fields = {
                    self.name: wide[tuple(box)],
                    f"{self.name}_target": wide[tuple(behind)],
                    "flat": flat[tuple(box[-flat.ndim :])],
                    "flat_target": flat[tuple(behind[-flat.ndim :])],
                }
                listed.append((file, tuple(starts), fields, valid))
        return listed


@st.composite
def draw_scans(draw: st.DrawFn, kind: str) -> Scans:
    """Files of arrays of random shapes, and windows that may not fit into some of them."""
    ndim = draw(st.integers(1, 3))
    axes = sorted(draw(st.sets(st.sampled_from(range(ndim)), min_size=1)))
    rest = [draw(st.integers(1, 4)) for _ in range(ndim)]
    random = np.random.default_rng(draw(st.integers(0, 9)))
    arrays = []
    for _ in range(draw(st.integers(1, 4))):
        shape = [draw(st.integers(1, 8)) if axis in axes else rest[axis] for axis in range(ndim)]
        arrays.append(random.integers(1, 1 << 30, shape).astype(">i4"))
    drop = draw(st.sampled_from(["partial", "pad"]))
    low = draw(st.integers(-3, 4))
    return Scans(
        kind,
        arrays,
        tuple(draw(st.integers(1, 5)) for _ in range(ndim)),
        {axis: draw(st.integers(1, 6 if drop == "partial" else 10)) for axis in axes},
        {axis: draw(st.integers(1, 7)) for axis in axes if draw(st.booleans())},
        {axis: draw(st.integers(0, 3)) for axis in axes if draw(st.booleans())},
        (low, low + draw(st.integers(1, 4))),
        drop,
    )


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=max(17, settings().max_examples))
@given(
    data=st.data(),
    world=st.integers(1, 3),
    batch=st.integers(1, 5),
    decoded=st.integers(0, 2000),
    shuffle=st.sampled_from(["exact", "blocked"]),
)
def test_windows_within_files(
    kind: str,
    data: st.DataObject,
    world: int,
    batch: int,
    decoded: int,
    shuffle: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Each window of each file and its target come once an epoch over all ranks, with the bytes of
    the slice; a rank that is resumed goes on with the same ones; origins name the file."""
    scans = data.draw(draw_scans(kind))
    expected, folder = scans.list_windows(), tmp_path_factory.mktemp("scans")
    options = scans.write(folder)
    if not expected:
        with pytest.raises(UsageError, match=r"fewer than|there would be 0"):
            penstock.open(index="memory", **options)
        return
    made = penstock.open(index="memory", **options)
    saved = tmp_path_factory.mktemp("saved") / "index"
    made.index.save(saved)
    dataset = penstock.open(index=saved, **options)
    assert (dataset.fingerprint, len(dataset)) == (made.fingerprint, len(expected))
    origins = dataset.origins(np.arange(len(expected)), scans.name)
    file, *starts = (column.tolist() for column in origins.values())
    assert next(iter(origins)) == "file"
    assert list(zip(file, zip(*starts, strict=True), strict=True)) == [one[:2] for one in expected]
    shapes = {field.name: field.shape for field in dataset.fields}
    more: dict[str, Any] = {"seed": 3, "world_size": (world := min(world, len(expected)))}
    more |= {"shuffle": shuffle, "budget": penstock.Budget(decoded_bytes=decoded)}
    came: list[int] = []
    for rank in range(world):
        whole = list(penstock.Loader(dataset, batch, rank=rank, **more))
        for one in whole:
            came += one.ids[one.valid].tolist()
            for row, number in enumerate(one.ids.tolist()):
                _, _, fields, valid = expected[number]
                for field in {*fields, *valid} & set(one):
                    np.testing.assert_array_equal(one[field][row], (fields | valid)[field])
                    assert one[field].shape[1:] == shapes[field]
                assert f"{scans.name}_target" in one
        half = penstock.Loader(dataset, batch, rank=rank, **more)
        steps = iter(half)
        for _ in range(len(whole) // 2):
            next(steps)
        state = half.state_dict()
        half.close()
        resumed = penstock.Loader(dataset, batch, rank=rank, **more)
        resumed.load_state_dict(state)
        for before, after in zip(whole[len(whole) // 2 :], resumed, strict=True):
            np.testing.assert_array_equal(before.ids, after.ids)
            np.testing.assert_array_equal(before[scans.name], after[scans.name])
    assert sorted(came) == list(range(len(expected)))


def write_scan(path: Path, array: Array, name: str = "scan", **how: Any) -> None:
    """Write a file of one patient, whose axes have names."""
    with h5py.File(path, "w") as file:
        made = file.create_dataset(name, data=array, **how)
        for axis, label in enumerate(("z", "y", "x")[: array.ndim]):
            made.dims[axis].label = label


@pytest.fixture
def patients(tmp_path: Path) -> tuple[list[Path], list[Array]]:
    """Five patients of different depths, in compressed chunks, the first in a thin slab."""
    random, paths, arrays = np.random.default_rng(0), [], []
    for number, depth in enumerate((3, 9, 14, 8, 11)):
        arrays.append(random.normal(size=(depth, 12, 10)).astype("f4"))
        paths.append(tmp_path / f"{number}.h5")
        write_scan(paths[-1], arrays[-1], compression="gzip")
    return paths, arrays


def open_patients(paths: Any, **more: Any) -> penstock.dataset.Dataset:
    options = {"window": {"z": 6, "y": 8}, "stride": {"z": 2, "y": 4}, "index": "memory"}
    return penstock.open(paths, sample="file", **options | more)


def test_patients_are_selected_by_file(patients: tuple[list[Path], list[Array]]) -> None:
    """Columns and keys tell the file of a window; one that is too thin for a window has none."""
    paths, arrays = patients
    dataset = open_patients(paths)
    file = dataset.origins(np.arange(len(dataset)))["file"]
    counts = [0, 4, 10, 4, 6]
    np.testing.assert_array_equal(np.bincount(file), counts)
    assert len(dataset.select(where="file >= 3 and y == 4")) == 5
    held_out = dataset.select(where=lambda columns: np.isin(columns["file"], [1, 4]))
    for batch in penstock.Loader(held_out, 4, seed=0):
        for row, (at, z, y) in enumerate(
            zip(*(dataset.origins(batch.ids)[axis] for axis in ("file", "z", "y")), strict=True)
        ):
            assert at in (1, 4)
            np.testing.assert_array_equal(batch["scan"][row], arrays[at][z : z + 6, y : y + 8])
    assert len(dataset.select(where="key.startswith('2.h5#')")) == 10
    assert dataset[13]["__key__"] == "2.h5#9"


@pytest.mark.parametrize("kind", ["npy", "h5", "npz"])
def test_patients_at_random_in_workers_and_caches(tmp_path: Path, kind: str) -> None:
    """Random patches, in processes and from a cache, in blocks too, padded or not."""
    random = np.random.default_rng(0)
    arrays = [random.normal(size=(depth, 9)).astype("f4") for depth in (4, 13, 7)]
    for number, array in enumerate(arrays):
        path = tmp_path / f"{number}.{kind}"
        if kind == "h5":
            write_scan(path, array, chunks=(3, 4), compression="gzip")
        elif kind == "npz":
            np.savez_compressed(path, scan=array)
        else:
            np.save(path, array)
    first, name = ("z" if kind == "h5" else 0), ("data" if kind == "npy" else "scan")
    dataset = open_patients(
        tmp_path, window={first: 5}, stride={first: 1}, drop="pad", index="auto"
    )
    wide = [np.pad(array, ((0, 9), (0, 0))) for array in arrays]
    more: dict[str, Any] = {"batch_size": 3, "seed": 0}
    drawn = dataset.weigh(samples_per_epoch=6)
    loaders: list[Any] = [
        penstock.Loader(drawn, shuffle="auto", **more),
        penstock.Loader(drawn, shuffle="blocked", **more),
        DataLoader(drawn, num_workers=2, workers="processes", shuffle=True, **more),
    ]
    if kind == "npy":
        loaders.append(penstock.Loader(drawn, cache=penstock.Cache(ram_bytes=1 << 20), **more))
    for loader in loaders:
        for _ in range(2):
            seen = 0
            for batch in loader:
                ids = np.asarray(batch["__id__"]) if "__id__" in batch else batch.ids
                origins = dataset.origins(ids)
                at = zip(origins["file"], origins[str(first)], strict=True)
                for row, (file, start) in enumerate(at):
                    found = np.asarray(batch[name][row])
                    np.testing.assert_array_equal(found, wide[file][start : start + 5])
                    seen += 1
            assert seen == 6
        loader.close()
    with pytest.raises(UsageError, match="not mixed yet"):
        penstock.mix([(dataset, 1), (dataset, 1)])


@pytest.mark.parametrize(
    ("array", "how", "words"),
    [
        (np.ones((9, 12, 10), "f8"), {}, ["the type float64", "has float32"]),
        (np.ones((9, 12), "f4"), {}, ["the axes ('z', 'y')", "('z', 'y', 'x')"]),
        (np.ones((9, 12, 10), "f4"), {"compression": None}, ["chunks: False", "has True"]),
        (np.ones((9, 12, 10), "f4"), {"fillvalue": 3}, ["the fill value 00004040"]),
        (np.ones((9, 12, 11), "f4"), {}, ["{'x': 11}", "{'x': 10}", "window="]),
        (np.ones((0, 12, 10), "f4"), {"compression": None}, ["holds no samples", "0, 12, 10)"]),
    ],
)
def test_a_patient_unlike_the_others(
    patients: tuple[list[Path], list[Array]], array: Array, how: Any, words: list[str]
) -> None:
    """The message names both files, and what each of them has."""
    paths, _ = patients
    write_scan(paths[3], array, **{"compression": "gzip"} | how)
    with pytest.raises(FormatError) as caught:
        open_patients(paths)
    both = [str(paths[3])] if "holds no samples" in words else [str(paths[0]), str(paths[3])]
    assert all(word in str(caught.value) for word in [*both, *words]), caught.value
    assert "\n" not in str(caught.value)


def test_what_is_no_file_of_windows(tmp_path: Path) -> None:
    """Windows that no file has, and an axis that is called as the one that is added."""
    for number, shape in enumerate(((3, 9), (9, 3))):
        write_scan(tmp_path / f"{number}.h5", np.ones(shape))
    cut: dict[str, Any] = {"stride": None, "window": {"z": 5, "y": 5}}
    with pytest.raises(UsageError, match=r"would be 0 windows.*drop='pad'"):
        open_patients(tmp_path, **cut)
    with pytest.raises(UsageError, match=r"1.h5.* has 9 elements, fewer than a window of 10"):
        open_patients(tmp_path, **cut | {"window": {"z": 10, "y": 1}})
    with pytest.raises(UsageError, match=r"halo: no array has an axis 'file', but 'z' \(9\)"):
        open_patients(tmp_path, **cut, halo={"file": 1})
    for number in range(2):
        with h5py.File(tmp_path / f"{number}.h5", "a") as file:
            file["scan"].dims[1].label = "file"
    with pytest.raises(FormatError, match=r"0.h5.*has an axis 'file'.*rename"):
        open_patients(tmp_path, stride=None, window={"z": 1, "file": 1})


def test_a_patient_that_is_replaced(patients: tuple[list[Path], list[Array]]) -> None:
    """A file that changed after indexing is an error that names it; opened again it is indexed."""
    paths, _ = patients
    dataset = open_patients(paths, index="auto")
    write_scan(paths[2], np.ones((20, 12, 10), "f4"), compression="gzip")
    with pytest.raises(DataError, match=r"2\.h5"):
        list(penstock.Loader(dataset, 4, seed=0))
    again = open_patients(paths, index="auto")
    assert np.bincount(again.origins(np.arange(len(again)))["file"]).tolist() == [0, 4, 16, 4, 6]
    assert (again[10]["scan"] == 1).all()


@pytest.mark.parametrize("is_plain", [False, True])
@pytest.mark.parametrize(
    ("column", "row", "value"),
    first(
        8,
        [
            ("first", 1, 5),
            ("first", 5, 99),
            ("shape", (2, 1), 5),
            ("shape", (0, 1), 0),
            ("shape", (4, 2), 1 << 62),
            ("shape", (1, 0), 4),
            ("steps", (2, 1), 6),
            ("steps", (2, 1), 0),
            ("every", (2, 1), 0),
            ("every", (3, 2), 1 << 62),
            ("in_files", (2, 1), 1),
            ("in_files", (2, 1), 0),
            ("base", 2, 1 << 40),
            ("base", 2, -1),
        ],
    ),
)
def test_a_damaged_index_of_files(
    patients: tuple[list[Path], list[Array]], is_plain: bool, column: str, row: Any, value: int
) -> None:
    """Columns that lead beyond an array, or to no window, are refused when an index is loaded."""
    paths, arrays = patients
    if column in ("in_files", "base") and is_plain != (column == "base"):
        return
    for path, array in zip(paths, arrays, strict=True):
        write_scan(path, array, compression=None if is_plain else "gzip")
    index = open_patients(paths).index
    (layout,) = index.layouts
    assert isinstance(layout, Boxes | Windows)
    assert layout.grid.files is not None
    own = getattr(layout if column in ("in_files", "base") else layout.grid.files, column)
    saved = paths[0].with_suffix(".penstock")
    index.save(saved)
    assert len(Index.load(saved)) == len(index)
    own[row] = value
    index.save(saved)
    with pytest.raises(SidecarError):
        Index.load(saved)


def test_a_damaged_mask_of_files(patients: tuple[list[Path], list[Array]]) -> None:
    """A mask whose windows are others than those of the arrays is refused."""
    index = open_patients(patients[0], drop="pad").index
    saved = patients[0][0].with_suffix(".penstock")
    index.save(saved)
    sample = np.array([2])
    for mine, other in zip(Index.load(saved).attributes, index.attributes, strict=True):
        np.testing.assert_array_equal(mine.take(sample), other.take(sample))
    index.attributes[0].grid.files.first[1] += 99  # type: ignore[attr-defined]
    index.save(saved)
    with pytest.raises(SidecarError):
        Index.load(saved)


def test_pieces_of_chunks_are_measured(patients: tuple[list[Path], list[Array]]) -> None:
    """The elements that a plan counts of a window in a chunk are those that are copied."""
    for path, array in zip(*patients, strict=True):
        write_scan(path, array, chunks=(3, 5, 4))
    dataset = open_patients(patients[0], halo={"z": 1}, drop="pad")
    (layout,) = dataset.index.layouts
    assert isinstance(layout, Windows)
    windows = np.arange(len(dataset))
    pair, chunk = layout.find_pairs(windows)
    origins = layout.grid.find_origins(windows)
    copied = []
    for row, number in zip(pair.tolist(), chunk.tolist(), strict=True):
        ((into, taken),) = layout.overlap(number, origins[[row]])
        one, other = np.zeros(layout.grid.size)[into], np.zeros((1, *layout.find_shape(number)))
        assert one.shape == other[taken].shape
        copied.append(one.size)
    assert layout.measure_pieces(windows[pair], chunk).tolist() == copied


def test_damaged_numbers_of_chunks(patients: tuple[list[Path], list[Array]]) -> None:
    """A chunk larger than any array, and an entry of an archive that is cut off, are no chunks."""
    (layout,) = open_patients(patients[0]).index.layouts
    assert isinstance(layout, Windows)
    with pytest.raises(OverflowError):  # by which a saved index is refused
        replace(layout, grid=replace(layout.grid, files=None), in_files=None, chunk=(1, 10**40))
    with pytest.raises(ValueError, match="an entry has 1 bytes"):
        unpack_entry(memoryview(b"P"), 9)
    options = {"dtype": "|u1", "shapes": [[2]]}
    out = io.BytesIO()
    np.savez(out, x=np.zeros(2, "u1"))
    entry = memoryview(out.getvalue())[: out.getvalue().index(b"PK\1\2")]
    assert decode_npz(options, CompressedChunk(0, entry, [len(entry)], 1)).shape == (1, 2)
    with pytest.raises(ValueError, match=r"not \(\) of"):  # of more arrays than there are shapes
        decode_npz(options, CompressedChunk(1, entry, [len(entry)], 1))
