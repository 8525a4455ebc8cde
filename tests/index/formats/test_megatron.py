"""Tokenized documents; Megatron-Core's own builder is the oracle, where it is installed."""

from __future__ import annotations

import importlib.util
import itertools
import struct
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.errors import FormatError, MissingError, PenstockError, UsageError
from penstock.index.layout import Fixed, Pieces, RowTable
from tests.index.formats.writers import write_megatron


def opened(path: Path | list[Path], **options: Any) -> penstock.Dataset:
    """A data set without a saved index."""
    return penstock.open(path, index="memory", **options)


@pytest.fixture(scope="module")
def builder():
    """Megatron-Core's writer and reader, without the rest of it, which wants a GPU's libraries."""
    pytest.importorskip("torch")
    found = importlib.util.find_spec("megatron")
    if found is None or not found.submodule_search_locations:
        pytest.skip("megatron-core is not installed")
    root = next(iter(found.submodule_search_locations))
    for name in ("megatron", "megatron.core", "megatron.core.datasets"):
        module = types.ModuleType(name)
        module.__path__ = ["/".join([root, *name.split(".")[1:]])]
        sys.modules[name] = module
    try:
        pytest.importorskip("megatron.core.parallel_state")
        yield pytest.importorskip("megatron.core.datasets.indexed_dataset")
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "megatron"]:
            del sys.modules[name]


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64, np.uint16, np.float32, np.float64])
def test_what_megatron_writes(dtype, builder, tmp_path):
    """Documents of several sequences, of each type of tokens."""
    import torch

    prefix = tmp_path / "text_document"
    out = builder.IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
    for i in range(10):
        out.add_document(torch.arange(i * 3), [i, 2 * i])
    out.finalize(f"{prefix}.idx")
    expected = builder.IndexedDataset(str(prefix))
    sequences = [expected[i] for i in range(len(expected))]
    dataset = opened(prefix)
    assert dataset.fields[0].dtype == dtype
    assert len(dataset) == 10
    for i, sample in enumerate(dataset):
        document = np.concatenate(sequences[2 * i : 2 * i + 2])
        assert bytes(sample["tokens"]) == document.tobytes()
    tokens = np.concatenate(sequences)
    windows = opened(prefix, window=16)
    assert len(windows) == (len(tokens) - 1) // 16
    for k, sample in enumerate(windows):
        np.testing.assert_array_equal(sample["tokens"], tokens[16 * k : 16 * k + 17])


def numbered(*sizes: int, dtype: str = "<u2") -> list[list[np.ndarray]]:
    """Documents of one sequence each, of tokens that count up."""
    edges = np.cumsum([0, *sizes])
    return [[np.arange(a, b).astype(dtype)] for a, b in itertools.pairwise(edges)]


def test_any_of_the_two_files_and_their_prefix(tmp_path):
    """All name the same data, alone and in lists."""
    write_megatron(tmp_path / "a", numbered(3, 4))
    write_megatron(tmp_path / "b", numbered(5))
    names = ["a", "a.bin", "a.idx"]
    prints = {opened(tmp_path / name).fingerprint for name in names}
    assert len(prints) == 1
    both = opened([tmp_path / "a.bin", tmp_path / "b.idx"])
    assert [len(sample["tokens"]) for sample in both] == [3, 4, 5]
    assert len(opened(tmp_path / "*")) == 3
    assert len(opened([tmp_path / "a", tmp_path / "b"], format="megatron")) == 3
    (tmp_path / "b.bin").unlink()
    with pytest.raises(MissingError, match=r"b\.bin does not exist"):
        opened(tmp_path / "b.idx")


def test_layouts(tmp_path):
    """One extent a document and arithmetic for windows where tokens are adjacent, else pieces."""
    write_megatron(tmp_path / "a", numbered(3, 4, 5))
    write_megatron(tmp_path / "b", numbered(3, 4, 5), order=[2, 0, 1])
    write_megatron(tmp_path / "c", [[each[0] for each in numbered(3, 4, 5)]], order=[2, 0, 1])
    assert isinstance(opened(tmp_path / "a").index.layouts[0], RowTable)
    assert isinstance(opened(tmp_path / "b").index.layouts[0], RowTable)
    assert isinstance(opened(tmp_path / "c").index.layouts[0], Pieces)
    assert isinstance(opened(tmp_path / "a", window=2).index.layouts[0], Fixed)
    assert isinstance(opened(tmp_path / "b", window=2).index.layouts[0], Pieces)
    for name in "abc":
        windows = opened(tmp_path / name, window=2)
        assert [each["tokens"].tolist() for each in windows] == [
            [2 * k, 2 * k + 1, 2 * k + 2] for k in range(5)
        ]


@pytest.mark.parametrize(
    ("code", "dtype"), [(6, "<f8"), (6, "<f4"), (7, "<f4"), (7, "<f8"), (9, "?"), (9, "<u4")]
)
def test_types_that_forks_number_differently(code, dtype, tmp_path):
    """The size of .bin decides."""
    write_megatron(tmp_path / "a", numbered(3, 4, dtype=dtype), code)
    assert opened(tmp_path / "a").fields[0].dtype == dtype


def changed(path: Path, at: int, kind: str, value: int) -> None:
    """One value in the file replaced."""
    content = bytearray(path.read_bytes())
    struct.pack_into(kind, content, at, value)
    path.write_bytes(content)


# Three sequences: tokens at 34, pointers at 46, documents at 70.
@pytest.mark.parametrize(
    ("at", "kind", "value", "message"),
    [
        (9, "<Q", 2, "version 2"),
        (17, "<B", 77, "type 77"),
        (17, "<B", 5, "does not fit"),
        (18, "<Q", 1 << 63, "truncated or damaged"),
        (26, "<Q", 5, "truncated or damaged"),
        (34, "<i", -1, "tokens is negative"),
        (34, "<i", 1 << 30, "does not fit"),
        (42, "<i", 1, "does not fit"),
        (46, "<q", -1, "pointer is negative"),
        (54, "<q", (1 << 63) - 1, "does not fit"),
        (54, "<q", 4, "overlap"),
        (70, "<q", 1, "documents do not cover"),
        (78, "<q", 9, "ends before it begins"),
        (94, "<q", 2, "documents do not cover"),
    ],
)
def test_an_index_that_cannot_be(at, kind, value, message, tmp_path):
    """Each is an error that names the .idx and the place in it."""
    write_megatron(tmp_path / "a", numbered(3, 4, 5))
    changed(tmp_path / "a.idx", at, kind, value)
    with pytest.raises(FormatError, match=message) as caught:
        opened(tmp_path / "a.idx")
    assert str(tmp_path / "a.idx") in str(caught.value)


def test_other_files_are_refused(tmp_path):
    """The older format, tokens of two types, too few tokens, too long or too short a .bin."""
    (tmp_path / "old.idx").write_bytes(b"TNTIDX\0\0" + bytes(80))
    (tmp_path / "old.bin").write_bytes(b"")
    with pytest.raises(FormatError, match="TNTIDX"):
        opened(tmp_path / "old.idx")
    write_megatron(tmp_path / "a", numbered(3, 4, 5))
    write_megatron(tmp_path / "b", numbered(3, dtype="<i4"), 4)
    with pytest.raises(FormatError, match="bin is int"):
        opened([tmp_path / "a.idx", tmp_path / "b.idx"])
    with pytest.raises(FormatError, match="shorten it"):
        opened(tmp_path / "a", window=12)
    with pytest.raises(UsageError, match="number from 1 on"):
        opened(tmp_path / "a", window=True)
    for content in (bytes(26), bytes(22)):
        (tmp_path / "a.bin").write_bytes(content)
        with pytest.raises(FormatError, match="does not fit"):
            opened(tmp_path / "a")


def test_flat_tokens(tmp_path):
    """Flat files as nanoGPT writes them are read; others that do not fit are refused."""
    tokens = np.arange(100, dtype="<u2")
    path = tmp_path / "train.bin"
    path.write_bytes(tokens.tobytes())
    dataset = opened(path, format="tokens", window=9)
    assert [sample["tokens"].tolist() for sample in dataset] == [
        list(range(9 * k, 9 * k + 10)) for k in range(11)
    ]
    assert len(opened(path, format="tokens", window=9, dtype="uint32", header_bytes=4)) == 5
    with pytest.raises(FormatError, match="bytes are no whole uint"):
        opened(path, format="tokens", window=9, header_bytes=3)
    with pytest.raises(UsageError, match="penstock formats"):
        opened(path, format="tokens")
    with pytest.raises(UsageError, match="such as 'uint16'"):
        opened(path, format="tokens", window=9, dtype="object")
    header = np.zeros(256, "<i4")
    header[:3] = 20240520, 1, 101
    path.write_bytes(header.tobytes() + tokens.tobytes())
    with pytest.raises(FormatError, match="says 101 tokens, but 100 follow"):
        opened(path, window=9)


def test_a_folder_of_token_files(tmp_path: Path) -> None:
    """A folder, patterns and prefixes of what `penstock tokenize` writes are its documents."""
    (tmp_path / "tokens").mkdir()
    for name in ("a", "b"):
        write_megatron(tmp_path / "tokens" / name, [[np.arange(3, dtype=np.uint16)]] * 2)
        (tmp_path / "tokens" / f"{name}.manifest.json").write_text("{}")
    folder = tmp_path / "tokens"
    for path in (folder, f"{folder}/*", f"{folder}/*.bin", [folder / "a", folder / "b"]):
        dataset = penstock.open(path, index="memory")
        assert [sample["tokens"].tolist() for sample in dataset] == [[0, 1, 2]] * 4
    assert len(penstock.open(folder, index="memory", window=2)) == 4
    age = penstock.open(folder)
    write_megatron(folder / "c", [[np.arange(3, dtype=np.uint16)]])
    assert (len(age), len(penstock.open(folder))) == (4, 5)
    (folder / "b.idx").unlink()
    with pytest.raises(PenstockError, match="b"):
        penstock.open(folder, index="memory")


def test_splits_of_token_files(tmp_path: Path) -> None:
    """The .idx goes with its .bin: a split has both."""
    (tmp_path / "tokens").mkdir()
    for number, name in enumerate(("train", "val")):
        write_megatron(tmp_path / "tokens" / name, [[np.full(3, number, np.uint16)]])
    with pytest.raises(UsageError, match="has the splits train"):
        penstock.open(tmp_path / "tokens", index="memory")
    dataset = penstock.open(tmp_path / "tokens", index="memory", split="val")
    assert [sample["tokens"].tolist() for sample in dataset] == [[1, 1, 1]]
