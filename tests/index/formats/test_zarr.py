"""Zarr arrays and groups; zarr is the oracle."""

from __future__ import annotations

import numpy as np
import pytest

import penstock
from penstock.errors import FormatError, MissingError, UsageError
from penstock.index.codecs import CompressedChunk
from penstock.index.codecs.chunked_arrays import decode_zarr, read_claimed_bytes
from penstock.index.layout import Chunked, Fixed, Pieces, RowTable

zarr = pytest.importorskip("zarr")


def assert_rows(dataset: penstock.Dataset, fields: dict[str, np.ndarray], labels=None) -> None:
    """Samples, one by one and in batches, are the rows of the arrays."""
    assert {part.name for part in dataset.fields} == set(fields)
    for name, rows in fields.items():
        assert len(dataset) == len(rows)
        for number in range(len(rows)):
            found = dataset[number][name]
            assert (found.dtype, found.shape) == (rows.dtype, rows.shape[1:])
            assert found.tobytes() == rows[number : number + 1].tobytes()
    for batch in penstock.Loader(dataset, 7, rank=0, world_size=1):
        ids = batch.ids.astype(np.int64)
        for name, rows in fields.items():
            assert batch[name].tobytes() == rows[ids].tobytes()
        if labels is not None:
            assert batch["label"].tolist() == labels[ids].tolist()


CASES = [
    ((21, 3, 5), {"chunks": (4, 3, 5)}, Fixed),
    ((21,), {"chunks": (4,)}, Fixed),
    ((21, 300), {"chunks": (4, 80)}, Pieces),
    ((21, 10), {"chunks": (4, 3)}, Chunked),
    ((21, 3, 5), {"chunks": (4, 3, 5), "order": "F"}, Chunked),
    ((21, 3, 5), {"chunks": (2, 3, 5), "shards": (8, 3, 5)}, RowTable),
    ((21, 6, 5), {"chunks": (2, 3, 5), "shards": (8, 6, 5)}, Chunked),
    ((21, 6, 5), {"chunks": (2, 4, 5), "shards": (4, 4, 10), "compressors": "auto"}, Chunked),
    ((21, 3, 5), {"chunks": (4, 2, 5), "compressors": "auto"}, Chunked),
]


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(("shape", "options", "layout"), CASES)
def test_rows_are_zarrs(shape, options, layout, version, tmp_path):
    """Chunks and shards, compressed or not, of both versions and orders."""
    if version == 2 and "shards" in options:
        pytest.skip("version 2 has no shards")
    if options.get("shards") == (4, 4, 10):
        shape = (21, 6, 10)
    rows = np.random.default_rng(1).random(shape)
    settings = {"compressors": None, "filters": None, **options}
    if version == 3 and "order" in settings:
        del settings["order"]
        from zarr.codecs import TransposeCodec

        settings["filters"] = [TransposeCodec(order=(2, 0, 1))]
    elif settings["filters"] is None:
        settings["filters"] = "auto" if version == 3 else None
    made = zarr.create_array(
        tmp_path / "x.zarr", shape=shape, dtype="f8", zarr_format=version, **settings
    )
    made[:] = rows
    dataset = penstock.open(tmp_path / "x.zarr", index="memory")
    assert isinstance(dataset.index.layouts[0], layout)
    assert_rows(dataset, {"data": rows})


def test_compressors(tmp_path):
    """The compressors of version 3."""
    from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec

    rows = np.random.default_rng(1).integers(0, 9, (20, 4)).astype("i4")
    for number, codec in enumerate((BloscCodec(), GzipCodec(), ZstdCodec(), Crc32cCodec())):
        path = tmp_path / f"{number}"
        zarr.create_array(path, shape=(20, 4), chunks=(6, 4), dtype="i4", compressors=[codec])[
            :
        ] = rows
        assert_rows(penstock.open(path, index="memory"), {"data": rows})


@pytest.mark.parametrize("version", [2, 3])
def test_groups(version, tmp_path):
    """The arrays of a group are fields; one is the labels."""
    group = zarr.open_group(tmp_path / "g", mode="w", zarr_format=version)
    x, y = np.random.default_rng(1).random((9, 2)), np.arange(9, dtype="i2")
    group.create_array("x", data=x, chunks=(2, 2), compressors=None)
    group.create_array("z", data=x, chunks=(4, 1))
    group.create_array("label", data=y, chunks=(4,))
    group.create_array("deep/w", data=x, chunks=(9, 2))
    assert_rows(penstock.open(tmp_path / "g", index="memory"), {"x": x, "z": x}, y)
    found = penstock.open(tmp_path / "g", index="memory", fields={"w": "deep/w"}, label="label")
    assert_rows(found, {"w": x}, y)
    found = penstock.open(tmp_path / "g", index="memory", fields=["z", "deep/w"], label="label")
    assert_rows(found, {"z": x, "deep/w": x}, y)
    for wrong in ([], ["z", 1], [["z"]], "z"):
        with pytest.raises(UsageError, match="give names in the data, or {field: name}"):
            penstock.open(tmp_path / "g", index="memory", fields=wrong)
    with pytest.raises(UsageError, match=r"decode= adds labels .*labels\[sample\['__id__'\]\]"):
        penstock.open(tmp_path / "g", index="memory", labels=y)
    with pytest.raises(MissingError, match="no array 'q'"):
        penstock.open(tmp_path / "g", index="memory", dataset="q")
    with pytest.raises(UsageError, match="lead down"):
        penstock.open(tmp_path / "g", index="memory", dataset="../g/x")
    group.create_array("v", data=x[:4])
    with pytest.raises(FormatError, match="give fields="):
        penstock.open(tmp_path / "g", index="memory")


@pytest.mark.parametrize("compressors", [None, "auto"])
def test_absent_and_damaged_chunks(compressors, tmp_path):
    """A chunk that is gone or cut is an error; with fill=True one that is gone is filled."""
    path = tmp_path / "x"
    made = zarr.create_array(
        path, shape=(9, 2), chunks=(2, 2), dtype="f4", fill_value=3, compressors=compressors
    )
    made[:] = np.arange(18).reshape(9, 2)
    chunk = path / "c" / "2" / "0"
    data = chunk.read_bytes()
    chunk.write_bytes(data[:-1])
    with pytest.raises(FormatError, match="is truncated|cannot be decoded"):
        penstock.open(path, index="memory")[4]
    chunk.unlink()
    with pytest.raises(MissingError, match="c/2/0 does not exist: a chunk was lost"):
        penstock.open(path, index="memory")
    assert_rows(penstock.open(path, index="memory", fill=True), {"data": made[:]})


def test_damaged_shards(tmp_path):
    """The index of a shard is checked: by its checksum, and against the file."""
    path = tmp_path / "x"
    made = zarr.create_array(
        path, shape=(8, 2), chunks=(2, 2), shards=(4, 2), dtype="f4", compressors=None
    )
    made[:4] = 1
    made[4:6] = 2
    with pytest.raises(FormatError, match="chunks are absent"):
        penstock.open(path, index="memory")
    assert_rows(penstock.open(path, index="memory", fill=True), {"data": made[:]})
    shard = path / "c" / "0" / "0"
    whole = shard.read_bytes()
    for length in range(len(whole)):
        shard.write_bytes(whole[:length])
        with pytest.raises(FormatError):
            penstock.open(path, index="memory", fill=True)
    shard.write_bytes(whole[:40] + b"x" + whole[41:])
    with pytest.raises(FormatError, match="checksum"):
        penstock.open(path, index="memory", fill=True)


def test_label_is_chosen(tmp_path):
    """Labels by their usual name, by another name, or none."""
    group = zarr.open_group(tmp_path / "g", mode="w")
    for name, data in (("x", np.ones((3, 2))), ("y", np.arange(3)), ("z", np.arange(3) + 7)):
        group.create_array(name, data=data)
    for options, names, labels in (
        ({}, ["x", "z"], [0, 1, 2]),
        ({"fields": {"x": "x"}, "label": "z"}, ["x"], [7, 8, 9]),
        ({"label": ""}, ["x", "y", "z"], None),
        ({"fields": {"x": "x"}}, ["x"], None),
    ):
        dataset = penstock.open(tmp_path / "g", index="memory", **options)
        assert [part.name for part in dataset.fields] == names
        found = dataset.index.labels(np.arange(3))
        assert (found if found is None else found.tolist()) == labels


def test_codecs_that_run_code_are_refused(tmp_path):
    """An array that names numcodecs' pickle, or codecs that make objects, is not decoded."""
    import json
    import pickle

    class Evil:
        def __reduce__(self):
            return (tmp_path / "ran").mkdir, ()

    meta = {"zarr_format": 2, "shape": [3], "chunks": [3], "dtype": "|u1", "order": "C"}
    meta |= {"fill_value": 0}
    (tmp_path / "0").write_bytes(pickle.dumps(Evil()))
    for codec, message in (
        ({"id": "pickle"}, "codec 'pickle' is not decoded"),
        ({"id": "json2"}, "codec 'json2' is not decoded"),
        ({"id": "delta", "dtype": "O"}, "'delta' makes Python objects"),
        ({"id": "delta", "dtype": "nonsense"}, "nonsense"),
    ):
        for options in (
            {"compressor": codec, "filters": None},
            {"compressor": None, "filters": [codec]},
        ):
            (tmp_path / ".zarray").write_text(json.dumps(meta | options))
            with pytest.raises(FormatError, match=message):
                penstock.open(tmp_path, index="memory")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["lz4", "blosc", "zstd"])
@pytest.mark.parametrize("size", [1, 200, 256, 300, 65_792, 70_000])
def test_a_claimed_size_is_seen_before_it_is_allocated(name, size):
    """The codec's own header says the size; four damaged bytes must not take gigabytes."""
    numcodecs = pytest.importorskip("numcodecs")
    data = np.random.default_rng(1).bytes(size)
    stored = bytearray(numcodecs.get_codec({"id": name}).encode(data))
    assert read_claimed_bytes(name, bytes(stored[:18])) == size
    options = {
        "dtype": "|u1",
        "shape": [],
        "chunk": [size],
        "order": [0],
        "fill": "00",
        "codecs": [{"id": name}],
    }
    compressed = CompressedChunk(0, memoryview(bytes(stored)), [len(stored)], size)
    assert bytes(decode_zarr(options, compressed)) == data
    if name != "zstd" or size > 65_791:  # its size has four bytes from there on
        at = {"lz4": 3, "blosc": 7, "zstd": 5 + 3}[name]
        stored[at] = 0x7E
        compressed = compressed._replace(data=memoryview(bytes(stored)))
        with pytest.raises(ValueError, match="claims"):
            decode_zarr(options, compressed)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
def test_types(version, tmp_path):
    """Bytes of one length are read; structures, dates and texts are refused by their names."""
    rows = np.array([b"a", b"bc", b""])
    zarr.create_array(tmp_path / "bytes", data=rows, zarr_format=version)
    assert_rows(penstock.open(tmp_path / "bytes", index="memory"), {"data": rows})
    for name, array, wanted in (
        ("struct", np.zeros(2, [("a", ">f4"), ("b", ">i4")]), "struct"),
        ("date", np.array(["2020-01-01", "2021-01-01"], "M8[D]"), "datetime64"),
        ("time", np.array([1, 2], "m8[s]"), "timedelta64"),
        ("text", np.array(["a", "bc"]), "U2|utf32"),
    ):
        zarr.create_array(tmp_path / name, data=array, zarr_format=version)
        with pytest.raises(FormatError, match=rf"is of type \S*\s?\S*({wanted}).*: write numbers"):
            penstock.open(tmp_path / name, index="memory")
