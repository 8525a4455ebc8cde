"""HDF5 files; h5py is the oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.errors import FormatError, UsageError
from penstock.index.layout import Chunked, Fixed, Pieces

h5py = pytest.importorskip("h5py")


def assert_rows(
    dataset: penstock.Dataset, fields: dict[str, np.ndarray], labels: Any = None
) -> None:
    """Samples, one by one and in batches, are the rows of the arrays."""
    assert {part.name for part in dataset.fields} == set(fields)
    count = len(dataset)
    for name, rows in fields.items():
        assert len(rows) == count
        for number in range(count):
            found = dataset[number][name]
            assert (found.dtype, found.shape) == (rows.dtype, rows.shape[1:])
            assert found.tobytes() == rows[number : number + 1].tobytes()
    for batch in penstock.Loader(dataset, 7, rank=0, world_size=1):
        ids = batch.ids.astype(np.int64)
        for name, rows in fields.items():
            assert batch[name].tobytes() == rows[ids].tobytes()
        if labels is not None:
            assert batch["label"].tolist() == labels[ids].tolist()


def opened(path: Path, **options: Any) -> penstock.Dataset:
    """Without another process for each, of which test_apart.py has the tests."""
    return penstock.open(path, index="memory", isolate=False, **options)


def test_label_is_chosen(tmp_path):
    """Labels by their usual name, by another name, or none."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = np.arange(6).reshape(3, 2)
        file["y"] = np.arange(3)
        file["z"] = np.arange(3) + 7
    path = tmp_path / "x.h5"
    for options, names, labels in (
        ({}, ["x", "z"], [0, 1, 2]),
        ({"fields": {"x": "x"}, "label": "z"}, ["x"], [7, 8, 9]),
        ({"label": ""}, ["x", "y", "z"], None),
        ({"fields": {"x": "x"}}, ["x"], None),
    ):
        dataset = opened(path, **options)
        assert [part.name for part in dataset.fields] == names
        found = dataset.index.labels(np.arange(3))
        assert (found if found is None else found.tolist()) == labels
    with pytest.raises(UsageError, match="give the name of a column, '' for none"):
        opened(path, label=3)


SHAPES: list[tuple[tuple[int, ...], tuple[int, ...] | None, type]] = [
    ((20, 3, 5), None, Fixed),
    ((20,), None, Fixed),
    ((20, 3, 5), (20, 3, 5), Fixed),
    ((21, 3, 5), (4, 3, 5), Fixed),
    ((21, 300), (4, 80), Pieces),
    ((9, 3, 200), (4, 2, 80), Pieces),
    ((9, 3, 200), (4, 2, 200), Pieces),
    ((21, 10), (4, 3), Chunked),
    ((9, 7, 5, 3), (2, 3, 2, 2), Chunked),
]


@pytest.mark.parametrize("userblock", [0, 512])
@pytest.mark.parametrize(("shape", "chunks", "layout"), SHAPES)
def test_rows_are_h5pys(shape, chunks, layout, userblock, tmp_path):
    """Contiguous and chunked datasets, whole rows and pieces, with a user block and without."""
    path = tmp_path / "x.h5"
    rows = np.random.default_rng(1).random(shape)
    with h5py.File(path, "w", userblock_size=userblock) as file:
        file.create_dataset("x", data=rows, chunks=chunks)
    dataset = opened(path)
    assert isinstance(dataset.index.layouts[0], layout)
    assert_rows(dataset, {"x": rows})


FILTERS = [
    {"compression": "gzip"},
    {"compression": "gzip", "shuffle": True},
    {"shuffle": True},
    {"compression": "lzf", "shuffle": True, "fletcher32": True},
    {"fletcher32": True},
    {"compression": "gzip", "fletcher32": True, "shuffle": True},
    {"scaleoffset": 0},
    {"scaleoffset": 0, "shuffle": True},
]


@pytest.mark.parametrize("chunks", [(4, 6), pytest.param((30, 4), marks=pytest.mark.long)])
@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_filters(filters, chunks, tmp_path):
    """Chunks with every filter that HDF5 has, in several files of different length."""
    all_rows, labels = [], []
    for number, count in enumerate((20, 3, 41)):
        rows = np.random.default_rng(number).integers(0, 99, (count, 12)).astype("i4")
        grain = chunks if chunks is True else (min(chunks[0], count), chunks[1])
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file.create_dataset("rows", data=rows, chunks=grain, **filters)
            file.create_dataset("y", data=np.arange(count), chunks=(3,), compression="gzip")
        all_rows.append(rows)
        labels.append(np.arange(count))
    dataset = opened(tmp_path)
    assert isinstance(dataset.index.layouts[0], Chunked)
    assert_rows(dataset, {"rows": np.concatenate(all_rows)}, np.concatenate(labels))


@pytest.mark.parametrize("filters", [{}, {"compression": "gzip"}, {"compression": "lzf"}])
def test_chunks_of_larger_axes_and_masks(filters, tmp_path):
    """Chunks that reach beyond the array, and chunks written without their filters."""
    rows = np.random.default_rng(1).integers(0, 9, (10, 5, 6)).astype("i2")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for name, chunk in (("a", (4, 8, 6)), ("b", (4, 8, 8)), ("c", (4, 5, 8))):
            made = file.create_dataset(
                name, (10, 5, 6), "i2", chunks=chunk, maxshape=(None, None, None), **filters
            )
            made[:] = rows
            if filters:
                whole = np.zeros(chunk, "i2")
                whole[:4, :5, :6] = rows[:4]
                made.id.write_direct_chunk((0, 0, 0), whole.tobytes(), 1)
    dataset = opened(tmp_path / "x.h5")
    assert_rows(dataset, dict.fromkeys("abc", rows))


@pytest.mark.parametrize("filters", [{}, {"compression": "gzip"}, {"compression": "lzf"}])
def test_absent_chunks(filters, tmp_path):
    """A chunk that was never written is an error, or on request the fill value."""
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        made = file.create_dataset("x", (10, 4), "f4", chunks=(3, 2), fillvalue=7, **filters)
        made[:3] = 1
        made[6:9, :2] = 2
        rows = made[:]
    with pytest.raises(FormatError, match="chunks were never written"):
        opened(path)
    assert_rows(opened(path, fill=True), {"x": rows})


def test_types(tmp_path):
    """Booleans, complex numbers, halves, strings of one length, and both byte orders."""
    random = np.random.default_rng(1)
    fields = {
        "flag": random.integers(0, 2, (6, 2)).astype(bool),
        "wave": random.random((6, 2)).astype("c8"),
        "half": random.random(6).astype(">f2"),
        "text": np.array([b"a", b"bc", b"def", b"", b"x", b"yz"], "S3"),
        "byte": random.integers(0, 255, (6, 1), np.uint8),
    }
    for filters in ({}, {"compression": "gzip", "chunks": True}, {"compression": "lzf"}):
        with h5py.File(tmp_path / "x.h5", "w") as file:
            for name, rows in fields.items():
                file.create_dataset(name, data=rows, **filters)
        assert_rows(opened(tmp_path / "x.h5"), fields)


def test_fields_by_path(tmp_path):
    """Datasets in groups and behind links within the file; labels by path."""
    rows, labels = np.random.default_rng(1).random((5, 2)), np.arange(5, dtype="u1")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["train/x"] = rows
        file["train/deep/y"] = labels
        file["link"] = h5py.SoftLink("/train/x")
        file["group"] = h5py.SoftLink("train")
        file["test"] = np.arange(3)
        file["away"] = h5py.ExternalLink("y.h5", "/x")
        file["loop"] = h5py.SoftLink("loop")
    for where in ("train/x", "/train/x", "link", "group/x"):
        dataset = opened(tmp_path / "x.h5", fields={"x": where}, label="group/deep/y")
        assert_rows(dataset, {"x": rows}, labels)
    assert_rows(opened(tmp_path / "x.h5", dataset="train/x"), {"data": rows})
    for where, message in (
        ("away", "away' links to another file"),
        ("loop", "too many links"),
        ("train", "is a group"),
        ("none", "no dataset 'none'"),
        ("train/x/y", "no dataset"),
    ):
        with pytest.raises(FormatError, match=message):
            opened(tmp_path / "x.h5", dataset=where)
    with pytest.raises(UsageError, match="dataset 'link' is float"):
        opened(tmp_path / "x.h5", dataset="train/x", label="link")
    with pytest.raises(FormatError, match="rows differ"):
        opened(tmp_path / "x.h5", fields={"x": "link", "t": "test"})
    with pytest.raises(UsageError, match="exclude each other"):
        opened(tmp_path / "x.h5", fields={"x": "link"}, dataset="test")


def test_datasets_that_are_refused(tmp_path):
    """Datasets without bytes of their own in the file are refused by name."""

    def write(file: Any, case: str) -> None:
        if case == "varying length":
            file.create_dataset("x", data=["a", "bc"])
        elif case == "for each member":
            file["x"] = np.zeros(3, [("a", "i4"), ("b", "f4")])
        elif case == "other files":
            file.create_dataset("x", (4,), "u1", external=[(str(tmp_path / "raw"), 0, 4)])
        elif case == "virtual":
            sources = h5py.VirtualLayout((4,), "u1")
            sources[:] = h5py.VirtualSource("x.h5", "y", (4,))
            file.create_virtual_dataset("x", sources)
        elif case == "never written":
            file.create_dataset("x", (4,), "u1")
        elif case == "holds no samples":
            file.create_dataset("x", (0, 4), "u1")
        elif case == "inside a header":
            plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            plist.set_layout(h5py.h5d.COMPACT)
            space = h5py.h5s.create_simple((4,))
            h5py.h5d.create(file.id, b"x", h5py.h5t.STD_U8LE, space, plist)
        elif case == "numpy does not have":
            kind = h5py.h5t.STD_I32LE.copy()
            kind.set_precision(20)
            kind.set_offset(3)
            made = h5py.h5d.create(file.id, b"x", kind, h5py.h5s.create_simple((4,)))
            made.write(h5py.h5s.ALL, h5py.h5s.ALL, np.arange(4, dtype="i4"))
        else:
            file.create_group("x")

    for case in (
        "varying length",
        "for each member",
        "other files",
        "virtual",
        "never written",
        "holds no samples",
        "inside a header",
        "numpy does not have",
        "give fields= of",
    ):
        for userblock in (0, 512):
            with h5py.File(tmp_path / "x.h5", "w", userblock_size=userblock) as file:
                write(file, case)
            with pytest.raises(FormatError, match=case):
                opened(tmp_path / "x.h5")


def test_files_that_differ(tmp_path):
    """Files of several kinds are no dataset."""

    def write(name: str, **datasets: Any) -> None:
        with h5py.File(tmp_path / name, "w") as file:
            for key, (data, options) in datasets.items():
                file.create_dataset(key, data=data, **options)

    packed = {"compression": "gzip"}
    write("0.h5", x=(np.zeros((4, 2)), packed))
    for wrong, message in (
        ({"z": (np.zeros(4), {})}, "holds other datasets"),
        ({"x": (np.zeros((4, 3)), packed)}, "is unlike"),
        ({"x": (np.zeros((4, 2)), {})}, "x' is decoded in some files, not in others"),
    ):
        write("1.h5", **wrong)
        with pytest.raises(FormatError, match=message):
            opened(tmp_path)


def test_damaged_chunks(tmp_path):
    """A chunk that was damaged is an error at the read, whichever filter it has."""
    for filters in ({"compression": "gzip"}, {"compression": "lzf", "fletcher32": True}):
        path = Path(tmp_path / "x.h5")
        with h5py.File(path, "w") as file:
            made = file.create_dataset("x", data=np.arange(4000), chunks=(2000,), **filters)
            info = made.id.get_chunk_info(1)
        data = bytearray(path.read_bytes())
        data[info.byte_offset + 20 : info.byte_offset + 40] = bytes(20)
        path.write_bytes(data)
        dataset = opened(path)
        assert int(dataset[0]["x"]) == 0
        with pytest.raises(FormatError, match="cannot be decoded as hdf5"):
            dataset[3999]
