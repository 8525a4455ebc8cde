"""Shards of MosaicML Streaming; its own writer is the oracle, where it is installed."""

from __future__ import annotations

import importlib.util
import json
import struct
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.errors import FormatError, MissingError, UsageError
from penstock.index.layout import Fixed
from tests.index.formats.writers import mds_shard, write_mds


def opened(path: Path, **options: Any) -> penstock.Dataset:
    """A data set without a saved index."""
    return penstock.open(path, index="memory", **options)


@pytest.fixture(scope="module")
def writer():
    """The library's MDSWriter, without the rest of the library, which wants much to be there."""
    found = importlib.util.find_spec("streaming")
    if found is None or not found.submodule_search_locations:
        pytest.skip("mosaicml-streaming is not installed")
    root = next(iter(found.submodule_search_locations))
    names = {"streaming": root, "streaming.base": f"{root}/base"}
    for name, path in names.items():
        module = types.ModuleType(name)
        module.__path__ = [path]
        sys.modules[name] = module
    try:
        yield pytest.importorskip("streaming.base.format.mds.writer").MDSWriter
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "streaming"]:
            del sys.modules[name]


def test_what_the_library_writes(writer, tmp_path):
    """Many shards with all kinds of columns: numbers and arrays typed, the rest as stored."""
    columns = {
        "x": "bytes",
        "label": "int",
        "a": "ndarray:float32:2,3",
        "v": "ndarray:int16",
        "t": "str",
        "j": "json",
        "u": "uint16",
        "h": "float16",
    }
    samples = [
        {
            "x": b"abc" * i,
            "label": 7 - i,
            "a": np.full((2, 3), i, np.float32),
            "v": np.arange(i + 1, dtype=np.int16),
            "t": "h\xe4" * (i % 3),
            "j": {"n": i},
            "u": np.uint16(i),
            "h": np.float16(i / 2),
        }
        for i in range(200)
    ]
    with writer(out=str(tmp_path / "mds"), columns=columns, size_limit=1 << 12) as out:
        for sample in samples:
            out.write(sample)
    dataset = opened(tmp_path / "mds")
    assert len(dataset.index.files) > 5
    assert len(dataset) == len(samples)
    for found, sample in zip(dataset, samples, strict=True):
        assert found["x"] == sample["x"]
        assert found["label"] == sample["label"]
        assert (found["a"] == sample["a"]).all()
        assert found["a"].dtype == np.float32
        assert found["t"].decode() == sample["t"]
        assert json.loads(found["j"]) == sample["j"]
        assert found["u"] == sample["u"]
        assert found["h"] == sample["h"]
        assert found["v"][-sample["v"].nbytes :] == sample["v"].tobytes()


def test_what_the_library_compresses_is_refused_until_it_is_unpacked(writer, tmp_path):
    """The message names the command; raw shards beside the compressed ones are read."""
    folder = tmp_path / "mds"
    with writer(out=str(folder), columns={"x": "bytes"}, compression="gz") as out:
        for i in range(5):
            out.write({"x": b"x" * (i + 1)})
    with pytest.raises(MissingError, match="gunzip -k "):
        opened(folder)
    import gzip

    packed = folder / "shard.00000.mds.gz"
    (folder / "shard.00000.mds").write_bytes(gzip.decompress(packed.read_bytes()))
    assert [len(sample["x"]) for sample in opened(folder)] == [1, 2, 3, 4, 5]


COLUMNS: dict[str, tuple[str, int | None]] = {
    "a": ("bytes", None),
    "b": ("bytes", None),
    "y": ("int", 8),
}


def samples(count: int, size: int = 5) -> list[list[bytes]]:
    """Samples of three columns."""
    return [[b"a" * (size + i), b"b" * i, struct.pack("<q", i * i)] for i in range(count)]


def test_fields_and_label_are_chosen(tmp_path):
    """Any column of integers may be the label, and only some columns fields."""
    write_mds(tmp_path / "mds", COLUMNS, [samples(3), samples(2)])
    dataset = opened(tmp_path / "mds", fields=["b"], label="y")
    assert [field.name for field in dataset.fields] == ["b"]
    assert [sample["label"] for sample in dataset] == [0, 1, 4, 0, 1]
    with pytest.raises(UsageError, match="one integer a sample"):
        opened(tmp_path / "mds", label="a")


def test_columns_of_fixed_size_need_no_table(tmp_path):
    """Their places are arithmetic, in fields of their own."""
    write_mds(tmp_path / "mds", {"y": ("int", 8), "z": ("uint8", 1)}, [[[bytes(8), b"z"]] * 9])
    assert all(isinstance(each, Fixed) for each in opened(tmp_path / "mds").index.layouts)


def test_large_samples_are_not_read_for_their_sizes(tmp_path):
    """Only the heads of samples above the limit are read, and give the same places."""
    shard = [[bytes([i]) * (200_000 + i), b"b" * i, struct.pack("<q", i)] for i in range(9)]
    write_mds(tmp_path / "mds", COLUMNS, [shard])
    dataset = opened(tmp_path / "mds", label="y")
    for sample, (a, b, _) in zip(dataset, shard, strict=True):
        assert sample["a"] == a
        assert sample["b"] == b
    assert [sample["label"] for sample in dataset] == list(range(9))


def test_empty_samples_and_shards(tmp_path):
    """A sample of no bytes and a shard of no samples are legal."""
    write_mds(tmp_path / "mds", {"a": ("bytes", None)}, [[[b""], [b"x"]], [], [[b""]]])
    assert [sample["a"] for sample in opened(tmp_path / "mds")] == [b"", b"x", b""]


def test_a_folder_of_splits_names_them(tmp_path):
    """The root of splits is no tree of shards: the message says what to open."""
    for split in ("train", "val"):
        write_mds(tmp_path / split, COLUMNS, [samples(3)])
    with pytest.raises(UsageError, match="has the splits train, val: give split='train'"):
        opened(tmp_path)
    assert len(penstock.open(tmp_path, index="memory", split="val")) == 3


def changed_index(folder: Path, **changes: Any) -> None:
    """The first shard's entry of index.json with other values."""
    path = folder / "index.json"
    value = json.loads(path.read_text())
    value["shards"][0] |= changes
    path.write_text(json.dumps(value))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 1}, "write it with MDSWriter"),
        ({"format": "csv"}, "'csv'"),
        ({"samples": 4}, "samples, and index"),
        ({"samples": -1}, "not a number"),
        ({"samples": 1 << 61}, "samples is larger than the file"),
        ({"column_sizes": [None, None, 4]}, "column 'y' of int has"),
        ({"column_sizes": [None, 1 << 70, 8]}, "has a size of"),
        ({"column_sizes": [None, 7, 8]}, "bytes has a size of 7"),
        ({"column_names": ["a", "a", "y"]}, "two columns"),
        ({"column_names": ["a"]}, "malformed"),
        ({"column_names": None}, "malformed"),
        ({"raw_data": {"basename": "../shard.00000.mds", "bytes": 9}}, "not the path of a file"),
        ({"raw_data": {"basename": "/etc/passwd", "bytes": 9}}, "not the path of a file"),
        ({"raw_data": {"basename": "a\0b", "bytes": 9}}, "not the path of a file"),
        ({"raw_data": {"basename": "shard.00000.mds", "bytes": 9}}, "fetch it"),
        ({"raw_data": {"basename": "shard.00001.mds", "bytes": 9}}, "twice"),
        ({"raw_data": None}, "malformed"),
    ],
)
def test_an_index_that_cannot_be(changes, message, tmp_path):
    """Each contradiction is an error that names index.json, or the shard."""
    folder = tmp_path / "mds"
    write_mds(folder, COLUMNS, [samples(3), samples(2)])
    changed_index(folder, **changes)
    if "column" in str(changes):
        value = json.loads((folder / "index.json").read_text())
        value["shards"] = value["shards"][:1]
        (folder / "index.json").write_text(json.dumps(value))
    with pytest.raises(FormatError, match=message) as caught:
        opened(folder)
    assert str(folder) in str(caught.value)


def test_links_out_of_the_folder_are_refused(tmp_path):
    """A list of files that came with the data does not reach elsewhere, by links neither."""
    folder = tmp_path / "mds"
    write_mds(folder, COLUMNS, [samples(3)])
    (folder / "shard.00000.mds").rename(tmp_path / "elsewhere")
    (folder / "shard.00000.mds").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FormatError, match="mds is a link out of the data set"):
        opened(folder)


@pytest.mark.parametrize(
    ("word", "value", "message"),
    [
        (0, 2, "samples, and index"),
        (1, 0, "within the table"),
        (2, 0xFFFFFFFF, "ends before it begins"),
        (2, 1, "ends before it begins"),
        (4, 77, "samples end at|ends before"),
    ],
)
def test_a_table_of_samples_that_cannot_be(word, value, message, tmp_path):
    """Offsets ascend from behind the table to the end of the file."""
    folder = tmp_path / "mds"
    write_mds(folder, COLUMNS, [samples(3)])
    content = bytearray((folder / "shard.00000.mds").read_bytes())
    content[4 * word : 4 * word + 4] = struct.pack("<I", value)
    (folder / "shard.00000.mds").write_bytes(content)
    with pytest.raises(FormatError, match=message):
        opened(folder)


def test_sizes_that_do_not_add_up(tmp_path):
    """The sizes at a sample's head are compared with the table, for every sample."""
    folder = tmp_path / "mds"
    write_mds(folder, COLUMNS, [samples(300)])
    content = bytearray(mds_shard(samples(300), [None, None, 8]))
    (begin,) = struct.unpack_from("<I", content, 4 * 250)
    content[begin] += 1
    (folder / "shard.00000.mds").write_bytes(content)
    with pytest.raises(FormatError, match=f"at byte {begin:,}: .* do not add up"):
        opened(folder)
