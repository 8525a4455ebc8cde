"""Files of kinds that are not read: the error says what they are and the way out, which works."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import pickle
import sqlite3
import struct
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import penstock
from penstock.errors import FormatError
from penstock.index.formats import detection


def refused(path: Path) -> str:
    """Description of a file in the error's message."""
    with pytest.raises(penstock.PenstockError) as caught:
        penstock.open(path, index="memory")
    assert str(path) in str(caught.value)
    return str(caught.value)


def ffcv(version: int = 2, fields: int = 1, page_bytes: int = 1 << 23) -> bytes:
    """The header and the first field of what ffcv 1.0.2 writes."""
    header = struct.pack("<HHIQQ", version, fields, page_bytes, 200_000, 0x3200_0000)
    return header + struct.pack("<B16s1024s", 3, b"data", b"") + bytes(4096)


def torch_saved(**options: Any) -> bytes:
    torch = pytest.importorskip("torch")
    file = io.BytesIO()
    torch.save({"weight": torch.zeros(4)}, file, **options)
    return file.getvalue()


def safetensors() -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(8)


def zipped() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("cat/1.jpg", b"\xff\xd8\xff")
    return file.getvalue()


def orc() -> bytes:
    pa, write = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.orc")
    file = io.BytesIO()
    write.write_table(pa.table({"a": [1, 2]}), file)
    return file.getvalue()


def image(kind: str) -> bytes:
    pillow = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    pillow.new("RGB", (4, 4)).save(file, kind)
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "what", "remedy"),
    [
        ("train.beton", ffcv, "FFCV", "folders of images"),
        ("train", ffcv, "FFCV", "penstock formats"),
        ("later.beton", lambda: ffcv(version=9), "FFCV", "what it was made from"),
        ("x.pt", torch_saved, "torch.save", "torch.load"),
        ("x", lambda: torch_saved(_use_new_zipfile_serialization=False), "torch.save", "numpy"),
        ("x.safetensors", safetensors, "safetensors", "load_file"),
        ("x.pkl", lambda: pickle.dumps([b"x"] * 9), "pickle", "pickle.load"),
        ("data_batch_1", lambda: pickle.dumps({"data": 1}, 2), "pickle", "numpy.save"),
        ("x.pickle", lambda: pickle.dumps([1, 2], 0), "pickle", "pickle.load"),
        ("x.zip", zipped, "zip", "unpack it"),
        ("x.7z", lambda: b"7z\xbc\xaf\x27\x1c\0\4" + bytes(24), "7-Zip", "unpack it"),
        ("x.orc", orc, "ORC", "Parquet"),
        ("x.avro", lambda: b"Obj\1\4\x16avro.schema", "Avro", "Parquet"),
        ("x.png", lambda: image("png"), "image", "folder"),
        ("x.gif", lambda: image("gif"), "image", "write their paths into a text file"),
        ("x.jpg", lambda: image("jpeg"), "image", "folder"),
        ("x.csv", lambda: b"a,b\n1,2\n", "CSV", "pyarrow.csv"),
        ("x.tsv", lambda: b"a\tb\n1\t2\n", "CSV", "Parquet"),
        ("x.json", lambda: b'[{"a": 1}]', "JSON", "give format='jsonl'"),
        ("x.jsonl", lambda: b'[\n{"a": 1}]', "JSON", "jq -c"),
        ("z.jsonl", lambda: b'{\n"a": [\n1]}', "JSON", "jq -c"),
        ("x.log.gz", lambda: gzip.compress(b'{"a": 1}\n'), "gzip", "`gunzip` it"),
        ("x.csv.gz", lambda: gzip.compress(b"a,b"), "CSV", "`gunzip` it, then write it as Parquet"),
        ("y.json", lambda: b'\n  { "a": 1}\n', "JSON", "give format='jsonl'"),
        ("z.json", lambda: b'{\n "images": [\n', "z.json is JSON, which", "jq -c"),
        ("x.bz2", lambda: bz2.compress(bytes(99)), "bzip2", "`bunzip2`"),
        ("x.xz", lambda: lzma.compress(bytes(99)), "xz", "`unxz`"),
        ("x.lz4", lambda: b"\x04\x22\x4d\x18\x64\x40\xa7" + bytes(99), "LZ4", "`unlz4`"),
        ("x.zst", lambda: b"\x28\xb5\x2f\xfd\x24\x63" + bytes(99), "zstd", "`unzstd`"),
    ],
)
def test_it_is_named(
    name: str, content: Callable[[], bytes], what: str, remedy: str, tmp_path: Path
) -> None:
    """By what is in the file, or by its name where that shows nothing; with a way out."""
    (tmp_path / name).write_bytes(content())
    said = refused(tmp_path / name)
    assert what in said
    assert "does not read" in said
    assert remedy in said.partition("does not read")[2]


def test_databases_and_matlab(tmp_path: Path) -> None:
    """Writers of foreign files, by their own libraries."""
    with closing(sqlite3.connect(tmp_path / "x.db")) as database:
        database.execute("create table rows (a)")
        database.commit()
    assert "an SQLite database" in refused(tmp_path / "x.db")
    matlab = pytest.importorskip("scipy.io")
    matlab.savemat(tmp_path / "x.mat", {"a": np.zeros(3)})
    assert "MATLAB" in refused(tmp_path / "x.mat")


@pytest.mark.parametrize(
    ("ending", "compress", "program"),
    [
        (".tar.gz", gzip.compress, "gunzip"),
        (".tgz", gzip.compress, "gunzip"),
        (".tar.bz2", bz2.compress, "bunzip2"),
        (".tar.xz", lzma.compress, "unxz"),
        (".tar.lz4", lambda data: b"\x04\x22\x4d\x18" + data[:99], "unlz4"),
        (".tar.zst", lambda data: b"\x28\xb5\x2f\xfd" + data[:99], "unzstd"),
    ],
)
def test_compressed_archives(
    ending: str, compress: Callable[[bytes], bytes], program: str, tmp_path: Path
) -> None:
    """A tar archive that is compressed is called so."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("a.jpg"))
    (tmp_path / f"x{ending}").write_bytes(compress(file.getvalue()))
    said = refused(tmp_path / f"x{ending}")
    assert "a tar archive compressed by" in said
    assert f"`{program}` it" in said


def test_idx_by_the_options_that_are_named(tmp_path: Path) -> None:
    """MNIST's images and labels are records after a header, as the message says."""
    images = np.arange(3 * 28 * 28).astype(np.uint8).reshape(3, 28, 28)
    head = struct.pack(">BBBBIII", 0, 0, 8, 3, *images.shape)
    (tmp_path / "images").write_bytes(head + images.tobytes())
    (tmp_path / "labels").write_bytes(struct.pack(">BBBBI", 0, 0, 8, 1, 3) + bytes([7, 1, 4]))
    for name, shape, header_bytes in (("images", (28, 28), 16), ("labels", (), 8)):
        said = refused(tmp_path / name)
        assert "IDX" in said
        assert f"dtype='uint8', shape={shape}, header_bytes={header_bytes}" in said
    opened = penstock.open(
        tmp_path / "images", dtype="uint8", shape=(28, 28), header_bytes=16, index="memory"
    )
    np.testing.assert_array_equal(opened[2]["data"], images[2])
    opened = penstock.open(
        tmp_path / "labels", dtype="uint8", shape=(), header_bytes=8, index="memory"
    )
    assert [int(sample["data"]) for sample in opened] == [7, 1, 4]


def test_tables_by_way_of_parquet(tmp_path: Path) -> None:
    """Rows of text are read as the Parquet that the message says to write."""
    pytest.importorskip("pyarrow")
    from pyarrow import csv, parquet

    (tmp_path / "x.csv").write_text("a,b\n1,2\n3,4\n")
    said = refused(tmp_path / "x.csv")
    assert "pyarrow.csv.read_csv" in said
    assert "pyarrow.parquet.write_table" in said
    parquet.write_table(csv.read_csv(tmp_path / "x.csv"), tmp_path / "x.parquet")
    rows = penstock.open(tmp_path / "x.parquet", index="memory")
    assert [(int(row["a"]), int(row["b"])) for row in rows] == [(1, 2), (3, 4)]


def test_json_by_way_of_lines(tmp_path: Path) -> None:
    """A list in JSON is read as the lines that the message says to write; lines whose name says
    nothing of it, by the option that it names."""
    rows = [{"a": 1}, {"a": 2}]
    (tmp_path / "x.json").write_text(json.dumps(rows, indent=1))
    assert "`jq -c '.[]'`" in refused(tmp_path / "x.json")
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "x.jsonl").write_text(lines)
    (tmp_path / "one.json").write_text(lines[:9])
    assert "format='jsonl'" in refused(tmp_path / "one.json")
    opened = penstock.open(tmp_path / "x.jsonl", fields="a", index="memory")
    assert [sample["a"] for sample in opened] == [1, 2]
    opened = penstock.open(tmp_path / "one.json", format="jsonl", index="memory")
    assert [sample["data"] for sample in opened] == [b'{"a": 1}']


def test_what_is_read_is_not_foreign(tmp_path: Path) -> None:
    """A list of files with labels may be called .csv, a stored .npz is a zip, records may look
    like anything: none of them is refused."""
    (tmp_path / "a.jpg").write_bytes(b"one")
    (tmp_path / "x.csv").write_text("a.jpg,3\n")
    np.savez(tmp_path / "x.npz", a=np.zeros((2, 3)))
    (tmp_path / "x.beton").write_bytes(ffcv()[:4096])
    assert penstock.open(tmp_path / "x.csv", index="memory")[0]["label"] == 3
    assert len(penstock.open(tmp_path / "x.npz", index="memory")) == 2
    assert len(penstock.open(tmp_path / "x.beton", record_bytes=512, index="memory")) == 8


@given(st.binary(max_size=40), st.sampled_from(["x", "x.beton", "x.pkl", "x.tar.gz", ".csv", ""]))
@example(b"", "x")
@example(b"\x02\x00", "x")
@example(b"\0\0", "x")
def test_any_first_bytes(head: bytes, name: str) -> None:
    """However short a file is, something is said, or nothing."""
    said = detection.describe_unsupported(head, name)
    assert said == "" or ", which penstock does not read: " in said


def test_bytes_of_no_kind() -> None:
    """Random bytes are of no kind, and FFCV is not every file that begins with a small number."""
    random = np.random.default_rng(0)
    assert all(
        detection.describe_unsupported(b"\xaa" + random.bytes(4095), "x.bin") == ""
        for _ in range(99)
    )
    for head in (ffcv(fields=0), ffcv(page_bytes=4096), ffcv(page_bytes=3 << 21), ffcv(3)):
        assert detection.describe_unsupported(head, "x.bin") == ""


@pytest.mark.parametrize("options", [{}, {"fields": ["a"]}, {"format": "jsonl"}])
@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("name", ["x.json", "x.jsonl", "x"])
def test_a_list_of_json_is_no_line(
    tmp_path: Path, options: dict[str, object], indent: int | None, name: str
) -> None:
    """A document that is one list, in one line or several, says how its objects become lines."""
    (tmp_path / name).write_text(json.dumps([{"a": 1}, {"a": 2}], indent=indent))
    with pytest.raises(FormatError, match=r"jq -c '\.\[\]'"):
        penstock.open(tmp_path / name, index="memory", **options)
    (tmp_path / name).write_text('[{"role": 1}]\n[{"role": 2}]\n')  # lines that are lists
    if options.get("format"):
        assert len(penstock.open(tmp_path / name, index="memory", **options)) == 2
