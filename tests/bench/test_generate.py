"""Generated data: read back by the libraries of each format, the same bytes whoever makes them."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
import os
import signal
import sys
import threading
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pyarrow.parquet
import pytest
import tfrecord
import webdataset
from PIL import Image

import penstock
from penstock.errors import StorageError, UsageError
from penstock_bench.data import data_paths, find_paths
from penstock_bench.data.formats import WRITERS
from penstock_bench.data.generate import MANIFEST, Generated, generate_data
from penstock_bench.data.samples import make_contents, shapes
from penstock_bench.workload.sections import (
    DatasetSpec,
    Hdf5Layout,
    ParquetColumnSpec,
    ParquetLayout,
)
from tests import warm
from tests.slices import first

SMALL = DatasetSpec(
    record_length_bytes=5_000,
    record_length_bytes_stdev=1_500,
    num_files_train=5,
    num_files_eval=3,
    num_samples_per_file=3,
    format="npz",
)


def made(root: Path, data: DatasetSpec = SMALL, **options: Any) -> Generated:
    """Generate below a folder."""
    return generate_data(data, root=str(root), **options)


def expected(
    data: DatasetSpec, part: str, number: int, kind: str = "random", seed: int = 10
) -> Any:
    """The samples of a file, from contents and sizes alone."""
    shape = tuple(shapes(data, part, seed=seed)[number].tolist())
    count = 1 if data.format in ("jpeg", "png") else data.num_samples_per_file
    maker = make_contents(kind, seed, data.record_element_type)
    pieces = maker.pieces(("train", "valid").index(part), number, shape, count)
    return np.concatenate(list(pieces)).view(data.record_element_type).reshape(count, *shape)


def bytes_below(folder: Path) -> dict[str, bytes]:
    """All files below a folder, hidden ones as well."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


# -- each format, by its own library ---------------------------------------------------------------


def read_npz(path: str, _: DatasetSpec) -> np.ndarray:
    with np.load(path) as file:
        assert file["y"].tolist() == [0] * file["x"].shape[-1]
        return np.moveaxis(file["x"], -1, 0)


def read_hdf5(path: str, data: DatasetSpec) -> np.ndarray:
    with h5py.File(path) as file:
        records = [file[f"records_{n}"][:] for n in range(data.hdf5.num_dset_per_record)]
        assert set(file) == {"labels", *(f"records_{n}" for n in range(len(records)))}
        assert file["labels"][:].tolist() == [0] * len(records[0])
    return np.concatenate(records, axis=1)


def read_tfrecord(path: str, data: DatasetSpec) -> list[bytes]:
    listed = path.replace("/data/", "/data/index/") + ".idx"
    loader = tfrecord.tfrecord_loader(path, None, {"image": "byte", "size": "int"})
    found = list(loader)
    for each in found:
        assert each["size"] == len(each["image"])
    places = [tuple(map(int, line.split())) for line in Path(listed).read_text().splitlines()]
    offsets = np.cumsum([0] + [length for _, length in places])
    assert [offset for offset, _ in places] == offsets[:-1].tolist()
    assert offsets[-1] == os.path.getsize(path)
    return [bytes(each["image"]) for each in found]


def read_indexed(path: str, _: DatasetSpec) -> list[bytes]:
    whole = Path(path).read_bytes()
    offsets, sizes = (np.fromfile(path + end, "<u8").tolist() for end in (".off.idx", ".sz.idx"))
    assert offsets[-1] + sizes[-1] == len(whole)
    return [whole[at : at + size] for at, size in zip(offsets, sizes, strict=True)]


def read_lmdb(path: str, _: DatasetSpec) -> list[bytes]:
    with lmdb.open(path, subdir=False, readonly=True, lock=False) as file, file.begin() as values:
        return [value for _, value in values.cursor()]


def read_tar(path: str, _: DatasetSpec) -> list[bytes]:
    return [sample["bin"] for sample in webdataset.WebDataset(path, shardshuffle=False)]


def read_parquet(path: str, _: DatasetSpec) -> list[bytes]:
    return [each.as_py() for each in pyarrow.parquet.read_table(path)["image"]]


READERS: dict[str, Callable[[str, DatasetSpec], Any]] = {
    "npz": read_npz,
    "npy": lambda path, _: np.moveaxis(np.load(path), -1, 0),
    "hdf5": read_hdf5,
    "tfrecord": read_tfrecord,
    "csv": lambda path, data: np.loadtxt(path, data.record_element_type, delimiter=",", ndmin=2),
    "png": lambda path, _: np.asarray(Image.open(path))[None],
    "indexed_binary": read_indexed,
    "mmap_indexed_binary": read_indexed,
    "lmdb": read_lmdb,
    "tar": read_tar,
    "parquet": read_parquet,
}
OF_UINT8 = ("png",)


@pytest.mark.parametrize("samples", first(1, [3, 1]))
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("form", READERS)
def test_libraries_read_what_was_written(
    form: str, dtype: str, samples: int, tmp_path: Path
) -> None:
    """Every sample of every file is the one that contents and sizes say."""
    if dtype != "uint8" and form in OF_UINT8:
        pytest.skip("an image of bytes")
    data = replace(SMALL, format=form, num_samples_per_file=samples, record_element_type=dtype)
    done = made(tmp_path, data)
    assert done.written == done.files == 8
    for part in ("train", "valid"):
        paths = find_paths(data, part, str(tmp_path))
        assert paths == data_paths(data, part, str(tmp_path))
        for number, path in enumerate(paths):
            wanted = expected(data, part, number)
            found = READERS[form](path, data)
            assert len(found) == len(wanted)
            for one, other in zip(found, wanted, strict=True):
                same = one if isinstance(one, bytes) else np.ascontiguousarray(one).tobytes()
                assert same == other.tobytes()


@pytest.mark.long
def test_jpeg(tmp_path: Path) -> None:
    """One grey image a file, of the sides that the sizes say, near to what was encoded."""
    data = replace(SMALL, format="jpeg", num_samples_per_file=1)
    made(tmp_path, data, kind="field")
    for number, path in enumerate(find_paths(data, "train", str(tmp_path))):
        image = Image.open(path)
        wanted = expected(data, "train", number, "field")[0]
        assert (image.format, image.mode) == ("JPEG", "L")
        assert np.asarray(image).shape == wanted.shape
        assert np.abs(np.asarray(image).astype(int) - wanted).mean() < 4


def test_synthetic(tmp_path: Path) -> None:
    """A file holds its number; contents would have no place."""
    data = replace(SMALL, format="synthetic")
    made(tmp_path, data)
    paths = find_paths(data, "train", str(tmp_path))
    assert [Path(path).read_text() for path in paths] == list("01234")
    with pytest.raises(UsageError, match="synthetic files hold no samples"):
        made(tmp_path, data, kind="field")


OPENED: dict[str, tuple[str, dict[str, Any]]] = {
    "npz": ("", {"format": "tree"}),
    "npy": ("", {"format": "tree"}),
    "jpeg": ("", {}),
    "png": ("", {}),
    "csv": ("", {"format": "tree"}),
    "hdf5": ("", {"fields": {"data": "records_0"}, "sample": "row"}),
    "tfrecord": ("", {"example": {"data": "image"}}),
    "indexed_binary": ("/*.indexed_binary", {"record_bytes": 4_900}),
    "mmap_indexed_binary": ("/*.mmap_indexed_binary", {"record_bytes": 4_900}),
    "tar": ("", {}),
    "lmdb": ("/*.lmdb", {}),
    "parquet": ("", {}),
}


@pytest.mark.parametrize("form", OPENED)
def test_penstock_opens_it(form: str, tmp_path: Path) -> None:
    """penstock's own reader finds all samples, of the right bytes."""
    whole = form in ("npz", "npy", "csv", "jpeg", "png")
    data = replace(
        SMALL,
        format=form,
        num_samples_per_file=1 if whole else 3,
        record_length_bytes=4_900,
        record_length_bytes_stdev=0,
    )
    made(tmp_path, data)
    pattern, options = OPENED[form]
    found = penstock.open(f"{tmp_path}/data/train{pattern}", index="memory", **options)
    assert len(found) == data.samples("train")
    paths = find_paths(data, "train", str(tmp_path))
    loader = penstock.Loader(found, 1, shuffle="none", rank=0, world_size=1)
    for number, batch in enumerate(loader):
        got = batch[next(iter(batch))][0].tobytes()
        if whole:
            assert got == Path(paths[number]).read_bytes()
        else:
            assert got == expected(data, "train", number // 3)[number % 3].tobytes()


def test_parquet_columns(tmp_path: Path) -> None:
    """Columns of numbers and of lists, each of values of its own, in row groups as asked for."""
    columns = (
        ParquetColumnSpec(name="t5", dtype="float32", size=300),
        ParquetColumnSpec(name="mean", dtype="float32", size=300),
        ParquetColumnSpec(name="stamp", dtype="int64"),
        ParquetColumnSpec(name="kept", dtype="bool", size=2),
    )
    table = ParquetLayout(columns=columns, row_group_size=20)
    data = replace(SMALL, format="parquet", num_samples_per_file=50, parquet=table)
    done = made(tmp_path, data)
    assert done.bytes == 8 * 50 * (2 * 1200 + 8 + 2) == data.sample_bytes() * 400
    file = pyarrow.parquet.ParquetFile(find_paths(data, "train", str(tmp_path))[2])
    rows = [file.metadata.row_group(number).num_rows for number in range(3)]
    assert rows == [20, 20, 10]
    read = {each: np.stack(file.read()[each].to_numpy()) for each in ("t5", "mean", "kept")}
    assert read["t5"].dtype == np.float32
    assert [each.shape for each in read.values()] == [(50, 300), (50, 300), (50, 2)]
    assert len(np.unique(np.concatenate([read["t5"], read["mean"]]))) > 29_000
    assert 0.3 < read["kept"].mean() < 0.7
    assert len(set(file.read()["stamp"].to_pylist())) == 50


# -- DLIO's layouts, to the byte -------------------------------------------------------------------


@pytest.mark.parametrize("samples", [1, 4])
def test_npz_is_what_numpy_saves(samples: int, tmp_path: Path) -> None:
    """Bit for bit, as DLIO's files are: the payload of one sample begins at byte 183."""
    data = replace(SMALL, num_samples_per_file=samples)
    made(tmp_path, data)
    for number, path in enumerate(find_paths(data, "train", str(tmp_path))):
        x = np.moveaxis(expected(data, "train", number), 0, -1)
        saved = io.BytesIO()
        np.savez(saved, x=np.ascontiguousarray(x), y=np.zeros(samples, np.int64))
        written = Path(path).read_bytes()
        assert written == saved.getvalue()
        assert len(written) == x.size + 490 + 8 * samples
        assert written[183 : 183 + x.size] == x.tobytes()


def test_tfrecord_overhead(tmp_path: Path) -> None:
    """A record of resnet50's size has 60 bytes beside the image, which begins at 39 or 56."""
    data = DatasetSpec(format="tfrecord", record_dims=(338, 338), num_files_train=1)
    made(tmp_path, data)
    (path,) = find_paths(data, "train", str(tmp_path))
    whole, image = Path(path).read_bytes(), expected(data, "train", 0).tobytes()
    assert len(whole) == len(image) + 60
    assert whole.index(image) in (39, 56)


@pytest.mark.parametrize(
    ("options", "dsets", "chunks", "most"),
    [
        (Hdf5Layout(), 1, None, (3, 12, 10)),
        (Hdf5Layout(num_dset_per_record=3), 3, None, (3, 4, 10)),
        (Hdf5Layout(chunk_dims=(5, 100)), 1, (1, 5, 10), (3, 12, 10)),
        (Hdf5Layout(chunk_dims=(2, 5, 5), max_shape=(3, 20, 20)), 1, (2, 5, 5), (3, 20, 20)),
    ],
)
def test_hdf5_options(
    options: Hdf5Layout, dsets: int, chunks: Any, most: tuple[int, ...], tmp_path: Path
) -> None:
    """A sample in several datasets, chunks, room to grow."""
    data = replace(
        SMALL, format="hdf5", hdf5=options, record_dims=(12, 10), record_length_bytes_stdev=0
    )
    made(tmp_path, data)
    path = find_paths(data, "train", str(tmp_path))[1]
    assert np.array_equal(read_hdf5(path, data), expected(data, "train", 1))
    with h5py.File(path) as file:
        assert len(file) == dsets + 1
        assert (file["records_0"].chunks, file["records_0"].maxshape) == (chunks, most)
    for wrong in (
        Hdf5Layout(chunk_dims=(3,)),
        Hdf5Layout(max_shape=(2, 12, 10)),
    ):
        with pytest.raises(UsageError, match=r"dataset\.(hdf5|record_dims)"):
            made(tmp_path / "wrong", replace(data, hdf5=wrong), force=True)


# -- defects of DLIO -------------------------------------------------------------------------------


def test_generating_does_not_change_the_workload(tmp_path: Path) -> None:
    """DLIO takes a record for one byte when it generates and trains in one run. Here a workload is
    a value, and the bytes of its data are what is on disk, generated just now or before."""
    data = replace(SMALL, num_samples_per_file=1)
    before = replace(data)
    first, second = made(tmp_path, data), made(tmp_path, data)
    assert data == before
    assert (first.written, second.written) == (8, 0)
    assert first.bytes == second.bytes == first.written_bytes
    stored = sum(os.path.getsize(each) - 498 for each in find_paths(data, "train", str(tmp_path)))
    stored += sum(os.path.getsize(each) - 498 for each in find_paths(data, "valid", str(tmp_path)))
    assert stored == first.bytes
    assert first.bytes == pytest.approx(8 * 5_000, rel=0.01)


def test_binary_samples_are_as_many_and_as_large_as_asked(tmp_path: Path) -> None:
    """DLIO writes 1 GiB for 4 MiB, restarts offsets, loses samples for 9 files on 4 ranks, and adds
    record_dims up instead of multiplying them."""
    data = DatasetSpec(
        format="indexed_binary",
        record_dims=(16, 16, 16),
        num_files_train=9,
        num_samples_per_file=7,
        generation_buffer_size=4096,
    )
    for rank in range(4):
        made(tmp_path, data, rank=rank, ranks=4)
    paths = find_paths(data, "train", str(tmp_path))
    assert len(paths) == 9
    for path in paths:
        assert os.path.getsize(path) == 7 * 4096
        assert (np.diff(np.fromfile(path + ".off.idx", "<u8").astype(np.int64)) > 0).all()
        assert len(read_indexed(path, data)) == 7


@pytest.mark.parametrize("form", WRITERS)
def test_nothing_is_announced_that_is_not_there(form: str, tmp_path: Path) -> None:
    """DLIO announces a trace that it does not write: here every file that a run counts exists, and
    nothing else lies in the folders that readers list."""
    data = replace(SMALL, format=form, num_files_train=12, num_subfolders_train=3)
    done = made(tmp_path, data)
    paths = data_paths(data, "train", str(tmp_path)) + data_paths(data, "valid", str(tmp_path))
    assert done.written == done.files == len(paths) == 15
    assert all(map(os.path.isfile, paths))
    folders = [tmp_path / "data" / part for part in ("train", "valid")]
    below = {str(path) for folder in folders for path in folder.rglob("*") if path.is_file()}
    assert {path for path in below if not path.endswith(".idx")} == set(paths)


def test_one_subfolder_is_none(tmp_path: Path) -> None:
    """DLIO generates flat for num_subfolders_train=1 and then fails."""
    data = replace(SMALL, num_subfolders_train=1, num_subfolders_eval=2)
    made(tmp_path, data)
    assert find_paths(data, "train", str(tmp_path))
    assert made(tmp_path, replace(data, num_subfolders_train=0)).written == 0
    assert sorted(each.name for each in (tmp_path / "data" / "valid").iterdir()) == ["0", "1"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("form", "compression", "suffix"),
    first(
        4,
        [
            ("npz", "none", "npz"),
            ("npz", "zip", "npz"),
            ("csv", "gzip", "csv.gz"),
            ("hdf5", "gzip", "hdf5"),
            ("csv", "none", "csv"),
            ("csv", "bz2", "csv.bz2"),
            ("csv", "xz", "csv.xz"),
            ("hdf5", "none", "hdf5"),
            ("hdf5", "lzf", "hdf5"),
        ],
    ),
)
def test_compression_is_the_one_asked_for(
    form: str, compression: str, suffix: str, tmp_path: Path
) -> None:
    """DLIO stores npz members whatever is asked, calls gzipped CSV .csv, and fails to write hdf5
    without compression."""
    data = replace(SMALL, format=form, compression=compression, compression_level=3)
    made(tmp_path, data, kind="field")
    path = find_paths(data, "train", str(tmp_path))[1]
    assert path.endswith(f"img_1_of_5.{suffix}")
    wanted = expected(data, "train", 1, "field")
    opened: Any = path
    if form == "csv":
        openers = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
        opened = openers.get(Path(path).suffix, open)(path)
    assert np.array_equal(np.ravel(READERS[form](opened, data)), wanted.ravel())
    if form == "npz":
        members = zipfile.ZipFile(path).infolist()
        deflated = zipfile.ZIP_STORED if compression == "none" else zipfile.ZIP_DEFLATED
        assert [each.compress_type for each in members] == [deflated] * 2
        assert (members[0].compress_size < members[0].file_size) == (compression == "zip")
    if form == "hdf5":
        with h5py.File(path) as file:
            filters = None if compression == "none" else compression
            assert file["records_0"].compression == filters


# -- the same bytes whoever makes them -------------------------------------------------------------


@pytest.mark.parametrize("form", first(4, WRITERS))
def test_threads_and_ranks_make_the_same_bytes(form: str, tmp_path: Path) -> None:
    """One thread, many, three ranks of several: no byte differs, nor does any name."""
    data = replace(SMALL, format=form, num_files_train=20, num_subfolders_train=2)
    made(tmp_path / "one", data, threads=1)
    made(tmp_path / "many", data, threads=8)
    barrier = threading.Barrier(3)

    def rank(number: int) -> None:
        made(tmp_path / "ranks", data, threads=2, rank=number, ranks=3, barrier=barrier.wait)

    ranks = [threading.Thread(target=rank, args=(number,)) for number in range(3)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()
    one = bytes_below(tmp_path / "one")
    assert bytes_below(tmp_path / "many") == one
    assert bytes_below(tmp_path / "ranks") == one
    other = replace(data, num_files_train=20)
    made(tmp_path / "other", other, seed=11)
    if form != "synthetic":
        assert bytes_below(tmp_path / "other") != one


KILLED = """
import os, signal, sys
from penstock_bench.data.generate import generate_data
from penstock_bench.workload.sections import DatasetSpec

data = DatasetSpec(format=sys.argv[2], record_length_bytes=100_000, num_files_train=160)
def progress(done, total):
    if done > total / 3:
        os.kill(os.getpid(), signal.SIGKILL)
import penstock_bench.data.generate as module
module._LOOK_S = 0.0
generate_data(data, root=sys.argv[1], threads=2, progress=progress)
"""


AFTER = [pytest.param(form, marks=pytest.mark.long) for form in ("indexed_binary", "lmdb")]


@pytest.mark.long
@pytest.mark.parametrize("form", first(1, ["npz", "tfrecord", *AFTER]))
def test_killed_and_taken_up(form: str, tmp_path: Path) -> None:
    """After kill -9 whatever has its name is whole; the same call makes the rest, as it would have
    been, and leaves nothing else."""
    data = DatasetSpec(format=form, record_length_bytes=100_000, num_files_train=160)
    made(tmp_path / "whole", data)
    killed = warm.run([sys.executable, "-c", KILLED, str(tmp_path / "cut"), form])
    assert killed.returncode == -signal.SIGKILL
    whole = bytes_below(tmp_path / "whole")
    before = bytes_below(tmp_path / "cut")
    finished = {name for name in before if not name.endswith(".part")}
    assert finished <= set(whole)
    assert all(before[name] == whole[name] for name in finished)
    done = made(tmp_path / "cut", data)
    data_files = [name for name in finished if name.endswith(form)]
    assert done.written == 160 - len(data_files)
    assert bytes_below(tmp_path / "cut") == whole


# -- what else is there ----------------------------------------------------------------------------


def test_other_data_is_refused(tmp_path: Path) -> None:
    """Data of another shape, seed or kind is named and kept; with force it is replaced."""
    made(tmp_path)
    before = bytes_below(tmp_path)
    for options, name in (
        ({"data": replace(SMALL, record_length_bytes=6_000)}, "dataset.record_length_bytes=5000"),
        ({"data": replace(SMALL, num_files_train=6)}, "dataset.num_files_train=5"),
        ({"seed": 11}, "seed=10, and now seed=11 is asked"),
        ({"kind": "field"}, "contents='random'"),
        ({"sizes": "dlio"}, "sizes='normal'"),
    ):
        with pytest.raises(UsageError) as caught:
            made(tmp_path, **options)
        assert name in str(caught.value)
        assert "--force" in str(caught.value)
    assert bytes_below(tmp_path) == before
    other = replace(SMALL, num_files_train=6, num_subfolders_train=2)
    made(tmp_path, other, force=True)
    made(tmp_path / "new", other)
    assert bytes_below(tmp_path / "data") == bytes_below(tmp_path / "new" / "data")


def test_how_data_is_read_does_not_change_it(tmp_path: Path) -> None:
    """Settings that only readers look at may change without data being other data."""
    column = ParquetColumnSpec(name="a", size=8)
    data = replace(SMALL, format="parquet", parquet=ParquetLayout(columns=(column,)))
    made(tmp_path, data)
    unread = ParquetLayout(columns=(replace(column, read=False),), read_mode="row_group")
    again = replace(data, parquet=unread, record_length_bytes_resize=7, keep_files=False)
    assert made(tmp_path, again).written == 0


def test_data_of_others_is_not_touched(tmp_path: Path) -> None:
    """Files without our record are refused; force removes what has the name of a data file, and
    nothing at all where anything has not."""
    folder = tmp_path / "data" / "train"
    folder.mkdir(parents=True)
    (folder / "img_0_of_3.npz").write_bytes(b"of DLIO")
    with pytest.raises(UsageError, match="not written by this command"):
        made(tmp_path)
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"notes\.txt is no data file of a benchmark"):
        made(tmp_path, force=True)
    assert (folder / "img_0_of_3.npz").read_bytes() == b"of DLIO"
    (folder / "notes.txt").unlink()
    made(tmp_path, force=True)
    assert len(list(folder.iterdir())) == 5


def test_parts_one_after_the_other(tmp_path: Path) -> None:
    """Training and evaluation data may be made apart, and are what they would be together."""
    made(tmp_path / "apart", parts=("valid",))
    made(tmp_path / "apart", parts=("train",))
    made(tmp_path / "together")
    assert bytes_below(tmp_path / "apart" / "data" / "train") == bytes_below(
        tmp_path / "together" / "data" / "train"
    )
    assert made(tmp_path / "apart").written == 0


def test_a_part_without_files_has_a_folder(tmp_path: Path) -> None:
    """The folder is there as after DLIO: it lists it in any case, and ends where there is none."""
    generate_data(DatasetSpec(num_files_train=1, format="npz", data_folder=str(tmp_path / "data")))
    assert list((tmp_path / "data" / "valid").iterdir()) == []


def test_damaged_record(tmp_path: Path) -> None:
    """A record that cannot be read is an error, not a reason to write over data."""
    made(tmp_path)
    (tmp_path / "data" / MANIFEST).write_text("{")
    with pytest.raises(UsageError, match="is damaged"):
        made(tmp_path)


@pytest.mark.parametrize("form", ["npz", "hdf5", "lmdb", "indexed_binary"])
def test_full_disk(form: str, small_disk: Path, tmp_path: Path) -> None:
    """A full disk is named before or while it fills; with room the same call goes on."""
    data = replace(SMALL, format=form, num_files_train=3, num_files_eval=0)
    with pytest.raises(StorageError, match=r"make room there") as caught:
        made(small_disk, replace(data, record_length_bytes=50_000))
    assert caught.value.errno == errno.ENOSPC
    filler = small_disk / "filler"
    filler.write_bytes(bytes(os.statvfs(small_disk).f_bavail * 4096 - 49_152 - 4_096))
    with pytest.raises(StorageError, match=r"make room there") as caught:
        made(small_disk / "x", replace(data, num_samples_per_file=1, num_files_train=11))
    assert caught.value.errno == errno.ENOSPC
    assert not list(small_disk.rglob("*.part"))


def test_progress_is_told(tmp_path: Path) -> None:
    """Bytes done go up to all of them; what is there already is not counted."""
    told: list[tuple[int, int]] = []
    done = made(tmp_path, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (done.bytes, done.bytes)
    assert [each for each, _ in told] == sorted(each for each, _ in told)


def test_ranks_wait_for_the_first(tmp_path: Path) -> None:
    """Without a barrier the others wait for what rank 0 writes; force would be a race."""
    others = [
        threading.Thread(target=made, args=(tmp_path,), kwargs={"rank": rank, "ranks": 3})
        for rank in (1, 2)
    ]
    for each in others:
        each.start()
    made(tmp_path, rank=0, ranks=3)
    for each in others:
        each.join()
    made(tmp_path / "one")
    assert bytes_below(tmp_path / "data") == bytes_below(tmp_path / "one" / "data")
    with pytest.raises(UsageError, match="force would remove what other ranks"):
        made(tmp_path, rank=0, ranks=3, force=True)
