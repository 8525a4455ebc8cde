"""Chunks of LitData; its own writer is the oracle, where it is installed."""

from __future__ import annotations

import contextlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.errors import FormatError, MissingError, PenstockError, UsageError
from penstock.index.layout import Chunked
from tests.index.formats.writers import litdata_chunk, write_litdata


def opened(path: Path, **options: Any) -> penstock.Dataset:
    """A data set without a saved index."""
    return penstock.open(path, index="memory", **options)


@pytest.fixture(scope="module")
def write():
    """A function that writes a folder by the library's own writer."""
    writer = pytest.importorskip("litdata.streaming.writer").BinaryWriter
    loader = pytest.importorskip("litdata.streaming.item_loader").TokensLoader

    def write(folder: Path, samples: list[Any], tokens: int = 0, **options: Any) -> Path:
        folder.mkdir()
        if tokens:
            options["item_loader"] = loader(block_size=tokens)
        out = writer(str(folder), **{"chunk_size": 8, **options})
        for number, sample in enumerate(samples):
            out[number] = sample
        out.done()
        out.merge()
        return folder

    return write


def test_what_the_library_writes(write, tmp_path):
    """Tuples, dicts within dicts, single leaves: numbers and arrays typed, the rest as stored."""
    tuples = [(b"abc" * i, i, i / 2, i % 2 == 0, "h\xe4" * i) for i in range(20)]
    dataset = opened(write(tmp_path / "tuples", tuples))
    assert len(dataset.index.files) == 3
    for found, sample in zip(dataset, tuples, strict=True):
        assert found["0"] == sample[0]
        assert [found[name].item() for name in "123"] == list(sample[1:4])
        assert found["4"].decode() == sample[4]
    dicts = [{"x": np.arange(i, dtype="f4"), "label": i, "z": {"u": 0.5}} for i in range(20)]
    dataset = opened(write(tmp_path / "dicts", dicts))
    for found, sample in zip(dataset, dicts, strict=True):
        assert (found["x"] == sample["x"]).all()
        assert found["x"].dtype == np.float32
        assert found["label"] == sample["label"]
        assert found["z.u"] == 0.5
    dataset = opened(write(tmp_path / "single", [b"x" * i for i in range(9)]))
    assert [sample["data"] for sample in dataset] == [b"x" * i for i in range(9)]


def test_tokens_as_the_library_reads_them(write, tmp_path):
    """Documents, or the blocks that its TokensLoader gives."""
    documents = [np.arange(i, i + 5, dtype=np.uint16) for i in range(20)]
    folder = write(tmp_path / "tokens", documents, tokens=3, chunk_size=20)
    assert [sample["tokens"].tolist() for sample in opened(folder)] == [
        each.tolist() for each in documents
    ]
    blocks = opened(folder, block_size=3)
    streaming = pytest.importorskip("litdata.streaming.dataset").StreamingDataset
    loader = pytest.importorskip("litdata.streaming.item_loader").TokensLoader
    expected = streaming(str(folder), item_loader=loader(block_size=3))
    assert len(blocks) == len(expected)
    for number in range(len(blocks)):
        assert blocks[number]["tokens"].tolist() == np.asarray(expected[number]).tolist()


@pytest.mark.parametrize("level", ["chunk", "sample", "batch"])
def test_what_the_library_compresses(level, write, tmp_path):
    """Whole chunks, samples or frames of samples are decoded; numbers keep their dtype."""
    pytest.importorskip("zstandard")
    samples = [(np.arange(i), i, b"x" * i) for i in range(30)]
    options = {"compression": "zstd", "compression_level": level, "compression_batch_size": 3}
    dataset = opened(write(tmp_path / "z", samples, **options))
    assert isinstance(dataset.index.layouts[0], Chunked)
    for found, (array, number, text) in zip(dataset, samples, strict=True):
        assert (found["0"] == array).all()
        assert found["1"] == number
        assert found["2"] == text
    seen = 0
    for batch in penstock.Loader(dataset, 7, rank=0, world_size=1):
        for row, number in enumerate(batch.ids.tolist()):
            seen += 1
            assert batch["0"][row].tolist() == list(range(number))
            assert batch["1"][row] == number
    assert seen == 30
    with pytest.raises(UsageError, match="take it as a field"):
        opened(tmp_path / "z", label="1")


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_arrow_tables(compression, write, tmp_path):
    """Chunks that the library writes of plain dicts, with labels, are read as tables."""
    samples = [{"image": b"x" * i, "label": i, "z": {"t": "ab" * i}} for i in range(20)]
    dataset = opened(write(tmp_path / "a", samples, compression=compression))
    assert dataset.index.format == "litdata"
    for found, sample in zip(dataset, samples, strict=True):
        assert found["image"] == sample["image"]
        assert found["label"] == sample["label"]
        assert found["z.t"].decode() == sample["z"]["t"]
    assert [field.name for field in opened(tmp_path / "a", fields=["image"]).fields] == ["image"]


@pytest.mark.long
def test_damaged_frames_and_tables(write, tmp_path):
    """Any byte changed: an error, or another value; never a crash."""
    pytest.importorskip("zstandard")
    samples = [(np.arange(i), i) for i in range(9)]
    options = {"compression": "zstd", "compression_batch_size": 3, "chunk_size": 9}
    folders = [
        write(tmp_path / "z", samples, **options),
        write(tmp_path / "a", [{"x": b"y" * i, "label": i} for i in range(9)], chunk_size=9),
    ]
    for folder in folders:
        (path,) = folder.glob("*.bin")
        whole = path.read_bytes()
        for at in range(len(whole)):
            for value in (0xFF, whole[at] ^ 1):
                path.write_bytes(whole[:at] + bytes([value]) + whole[at + 1 :])
                with contextlib.suppress(PenstockError):
                    list(opened(folder))
            path.write_bytes(whole[:at])
            with pytest.raises(PenstockError):
                list(opened(folder))


LEAVES = {"image": "jpeg", "y": "int"}


def samples(count: int) -> list[list[bytes]]:
    """Samples of two leaves."""
    return [[b"x" * i, struct.pack("<q", i)] for i in range(count)]


def test_fields_and_label_are_chosen(tmp_path):
    """Any integer may be the label; without names leaves are numbered."""
    write_litdata(tmp_path / "a", LEAVES, [samples(3), samples(2)])
    dataset = opened(tmp_path / "a", label="y")
    assert [sample["label"] for sample in dataset] == [0, 1, 2, 0, 1]
    write_litdata(tmp_path / "b", LEAVES, [samples(3)], data_spec="[1, 2]")
    assert [field.name for field in opened(tmp_path / "b").fields] == ["0", "1"]
    with pytest.raises(UsageError, match="block_size= is for chunks of tokens"):
        opened(tmp_path / "b", block_size=4)
    with pytest.raises(UsageError, match="number from 1 on"):
        opened(tmp_path / "b", block_size=0)


def test_integers_as_text_of_old_releases(tmp_path):
    """Numbers that are not of eight bytes are the bytes they are."""
    write_litdata(tmp_path / "a", {"n": "int"}, [[[b"1"], [b"23"]]])
    assert [sample["n"] for sample in opened(tmp_path / "a")] == [b"1", b"23"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"encryption": {"algorithm": "fernet"}}, "encrypted"),
        ({"data_format": None}, "needs a list .data_format."),
        ({"data_format": ["no_header_numpy:9", "int"]}, "has 'image' of no whole float"),
        ({"data_format": ["jpeg"]}, "do not add up|does not add up"),
    ],
)
def test_a_configuration_that_cannot_be(config, message, tmp_path):
    """Each is an error that names the folder."""
    write_litdata(tmp_path / "a", LEAVES, [samples(3)], **config)
    with pytest.raises(FormatError, match=message) as caught:
        opened(tmp_path / "a")
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("chunk", "error", "message"),
    [
        ({"chunk_size": 4}, FormatError, "samples, and index"),
        ({"chunk_size": 1 << 61}, FormatError, "samples is larger than the file"),
        ({"chunk_size": None}, FormatError, "not a number"),
        ({"filename": "../x"}, FormatError, "not the path of a file"),
        ({"filename": "chunk-0-9.bin"}, MissingError, "does not exist"),
        ({"filename": 3}, FormatError, "malformed"),
    ],
)
def test_a_chunk_that_cannot_be(chunk, error, message, tmp_path):
    """Contradictions of index.json and chunk."""
    write_litdata(tmp_path / "a", LEAVES, [samples(3)])
    value = json.loads((tmp_path / "a" / "index.json").read_text())
    value["chunks"][0] |= chunk
    (tmp_path / "a" / "index.json").write_text(json.dumps(value))
    with pytest.raises(error, match=message) as caught:
        opened(tmp_path / "a")
    assert str(tmp_path) in str(caught.value)


def test_sizes_that_do_not_add_up(tmp_path):
    """The sizes at a sample's head are compared with the table."""
    write_litdata(tmp_path / "a", LEAVES, [samples(300)])
    content = bytearray(litdata_chunk(samples(300)))
    (begin,) = struct.unpack_from("<I", content, 4 * 250)
    content[begin] += 1
    (tmp_path / "a" / "chunk-0-0.bin").write_bytes(content)
    with pytest.raises(FormatError, match=f"at byte {begin:,}: .* do not add up"):
        opened(tmp_path / "a")
