"""Arrays of which a file or a group is a sample: HDF5, npz, npy and Zarr, against numpy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.errors import FormatError, PenstockError, UsageError
from tests.slices import first

FILES = 6
Arrays = dict[str, Any]


def write_npz(path: Path, arrays: Arrays) -> None:
    np.savez(path.with_suffix(".npz"), **arrays)


def write_npy(path: Path, arrays: Arrays) -> None:
    np.save(path.with_suffix(".npy"), arrays["data"])


def write_hdf5(path: Path, arrays: Arrays, **options: Any) -> None:
    with pytest.importorskip("h5py").File(path.with_suffix(".h5"), "w") as file:
        for name, value in arrays.items():
            chunks = {"chunks": tuple(-(-n // 2) for n in np.shape(value))} if options else {}
            file.create_dataset(name, data=value, **(options | chunks if np.ndim(value) else {}))


def write_chunks(path: Path, arrays: Arrays) -> None:
    write_hdf5(path, arrays, fletcher32=False)


def write_packed(path: Path, arrays: Arrays) -> None:
    write_hdf5(path, arrays, compression="gzip", shuffle=True)


def cosmoflow(number: int) -> Arrays:
    """The shape that was cut: channels became samples, and targets were dealt to them."""
    rng = np.random.default_rng(number)
    return {"full": rng.random((4, 6, 5, 3), np.float32), "unitPar": rng.random(4)}


def unequal(number: int) -> Arrays:
    return {"data": np.arange(60.0).reshape(3, 4, 5) + number, "t": np.float64(number), "y": number}


def one_array(number: int) -> Arrays:
    return {"data": np.full((4, 3), number, np.int16)}


def lengths(number: int) -> Arrays:
    return {"data": np.full((number + 1, 3), number, np.int32)}


CASES: list[tuple[Callable[[Path, Arrays], None], Callable[[int], Arrays]]] = [
    (write_npz, cosmoflow),
    (write_npz, unequal),
    (write_npz, lengths),
    (write_npy, one_array),
    (write_npy, lengths),
    (write_hdf5, cosmoflow),
    (write_hdf5, unequal),
    (write_hdf5, lengths),
    (write_chunks, cosmoflow),
    (write_packed, cosmoflow),
    (write_packed, unequal),
]


@pytest.mark.parametrize(("write", "make"), CASES)
@pytest.mark.parametrize("pattern", first(1, ["*.*", ""]))
def test_a_sample_a_file(write: Any, make: Any, pattern: str, tmp_path: Path) -> None:
    """With sample="file" samples and batches are the files' arrays; without it nothing is cut
    silently: the error shows both readings."""
    for number in range(FILES):
        write(tmp_path / str(number), make(number))
    place = tmp_path / pattern
    if write in (write_npz, write_npy) and not pattern:
        assert penstock.open(place, index="memory").index.format == "tree"  # whole files, as bytes
    else:
        with pytest.raises(PenstockError, match="sample='file'"):
            penstock.open(place, index="memory")
    dataset = penstock.open(place, sample="file")
    assert len(dataset) == FILES
    with penstock.Loader(dataset, FILES, shuffle="none") as loader:
        batch = next(iter(loader))
    for number in range(FILES):
        sample, wanted = dataset[number], make(number)
        if "y" in wanted and write is not write_npy:
            name = "label" if "label" in sample else "y"
            assert int(sample[name]) == number
            wanted.pop("y")
        for name, value in wanted.items():
            assert sample[name].dtype == np.asarray(value).dtype
            np.testing.assert_array_equal(sample[name], value)
            np.testing.assert_array_equal(batch[name][number], value)


@pytest.mark.parametrize("write", [write_npz, write_hdf5, write_npy])
def test_what_is_certain(write: Any, tmp_path: Path) -> None:
    """Rows are taken of one file, of files of one row, of labelled rows, and where it is said."""

    def count(shape: tuple[int, ...], files: int = 2, label: Any = None, **options: Any) -> int:
        folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        for number in range(files):
            labels = {} if label is None else {"label": label}
            write(folder / str(number), {"data": np.zeros(shape), **labels})
        return len(penstock.open(f"{folder}/*.*", index="memory", **options))

    assert count((4, 3), files=1) == 4
    assert count((1, 3)) == 2
    assert count((4, 3), sample="row") == 8
    assert count((4, 3), sample="file") == 2
    if write is not write_npy:
        assert count((4, 3), label=np.arange(4)) == 8
        assert count((4, 3), label=np.int64(3), sample="file") == 2
    with pytest.raises(UsageError, match=r"sample='file' \(2 samples: data \(4, 3\).* \(8: data"):
        count((4, 3))
    with pytest.raises(UsageError, match="use 'row' or 'file'"):
        count((4, 3), sample="files")


def test_files_that_differ(tmp_path: Path) -> None:
    """Arrays of other shapes, types and names, and empty ones, are no data set."""
    for other, message in (
        ({"data": np.zeros((4, 2))}, "only first axes may differ"),
        ({"data": np.zeros((4, 3, 1))}, "only first axes may differ"),
        ({"data": np.zeros((0, 3))}, "no samples"),
        ({"data": np.zeros((4, 3), np.float32)}, "holds other arrays"),
        ({"more": np.zeros((4, 3))}, "holds other arrays"),
    ):
        np.savez(tmp_path / "0.npz", data=np.zeros((4, 3)))
        np.savez(tmp_path / "1.npz", **other)
        with pytest.raises(FormatError, match=message):
            penstock.open(tmp_path, sample="file", index="memory")


def test_truncated_files(tmp_path: Path) -> None:
    """An array that ends early is an error when the index is made."""
    for number in range(2):
        write_npy(tmp_path / str(number), one_array(number))
    data = (tmp_path / "1.npy").read_bytes()
    (tmp_path / "1.npy").write_bytes(data[:-1])
    with pytest.raises(FormatError, match="truncated"):
        penstock.open(tmp_path, sample="file", index="memory")


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("chunks", [(4, 6, 5), (3, 4, 5)])
@pytest.mark.parametrize("compressors", [None, "auto"])
def test_zarr_groups(version: int, chunks: Any, compressors: Any, tmp_path: Path) -> None:
    """Of a folder of Zarr groups each is a sample, if that is said; chunks are no samples."""
    zarr = pytest.importorskip("zarr")
    wanted = np.random.default_rng(1).random((FILES, 4, 6, 5))
    for number in range(FILES):
        group = zarr.open_group(tmp_path / f"{number}.zarr", mode="w", zarr_format=version)
        group.create_array("full", data=wanted[number], chunks=chunks, compressors=compressors)
        group.create_array("targets", data=np.array([number, 1.0]))
    with pytest.raises(UsageError, match="sample='file' if each is a sample"):
        penstock.open(tmp_path)
    for _ in range(2):  # made, and saved
        dataset = penstock.open(tmp_path, sample="file")
        assert len(dataset) == FILES
        for number in range(FILES):
            np.testing.assert_array_equal(dataset[number]["full"], wanted[number])
            np.testing.assert_array_equal(dataset[number]["targets"], [number, 1.0])
    with penstock.Loader(dataset, FILES, shuffle="none") as loader:
        np.testing.assert_array_equal(next(iter(loader))["full"], wanted)
    more = zarr.open_group(tmp_path / "9.zarr", mode="w", zarr_format=version)
    more.create_array("full", data=wanted[0], chunks=chunks, compressors=compressors)
    with pytest.raises(FormatError, match="6 of 7 groups have 'targets': choose others by fields="):
        penstock.open(tmp_path, sample="file")
    assert len(penstock.open(tmp_path, sample="file", fields={"x": "full"})) == FILES + 1


def test_groups_in_a_group(tmp_path: Path) -> None:
    """Groups of a Zarr group are samples likewise."""
    zarr = pytest.importorskip("zarr")
    root = zarr.open_group(tmp_path / "x", mode="w")
    for number in range(3):
        root.create_group(f"g{number}").create_array("x", data=np.full((2, 2), number + 1))
    with pytest.raises(FormatError, match="sample='file' if each group is a sample"):
        penstock.open(tmp_path / "x")
    dataset = penstock.open(tmp_path / "x", sample="file")
    assert [int(sample["x"].sum()) for sample in dataset] == [4, 8, 12]
