"""Arrays in zip archives; numpy and zipfile are the oracles."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.errors import FormatError, PenstockError, UsageError


def opened(path: Path, **options: Any) -> penstock.Dataset:
    """A data set without a saved index."""
    return penstock.open(path, index="memory", **options)


def npy(array: np.ndarray) -> bytes:
    """The file that numpy writes."""
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def archive(path: Path, *members: tuple[str, bytes], comment: bytes = b"", **how: Any) -> Path:
    """A zip archive as Python writes it."""
    with zipfile.ZipFile(path, "w", **how) as file:
        for name, content in members:
            file.writestr(name, content)
        file.comment = comment
    return path


ROWS = np.arange(12, dtype=np.int32).reshape(4, 3)


def test_fields_and_label_are_chosen(tmp_path):
    """By name and in the order asked for; the label is any column of integers, or none."""
    path = tmp_path / "x.npz"
    np.savez(path, a=ROWS, b=ROWS[:, :1] + 0.5, y=np.array([3, 1, 2, 0], np.uint8), scale=2.0)
    dataset = opened(path, fields=["b", "a"], label="y")
    assert [field.name for field in dataset.fields] == ["b", "a"]
    assert [sample["label"] for sample in dataset] == [3, 1, 2, 0]
    assert (dataset[1]["a"] == ROWS[1]).all()
    assert [field.name for field in opened(path, fields=["y"]).fields] == ["y"]
    np.savez(path, x=ROWS, label=np.arange(4))
    assert opened(path)[2]["label"] == 2
    plain = opened(path, label="")
    assert plain.index.label_column is None
    assert [field.name for field in plain.fields] == ["x", "label"]
    np.savez(path, label=np.arange(4))
    assert [field.name for field in opened(path).fields] == ["label"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "numbers of rows differ"),
        ({"fields": ["c"]}, "has no column 'c'"),
        ({"fields": []}, "give names"),
        ({"fields": ["a", "a"]}, "each once"),
        ({"fields": ["a"], "label": "x"}, "one integer a sample"),
        ({"fields": ["a"], "label": 3}, "name of a column"),
        ({"fields": ["short", "label"], "label": "y"}, "would hide"),
    ],
)
def test_a_choice_that_cannot_be(options, message, tmp_path):
    """Unknown names, rows that differ in number, labels that are no integers."""
    path = tmp_path / "x.npz"
    whole = np.arange(4)
    np.savez(path, a=ROWS, x=np.zeros(4), y=whole, label=whole, short=whole[:2])
    with pytest.raises(UsageError, match=message):
        opened(path, **options)


def test_rows_of_compressed_members_and_encrypted_ones_are_refused(tmp_path):
    """With the way to read or to write them."""
    path = tmp_path / "x.npz"
    np.savez_compressed(path, a=ROWS)
    with pytest.raises(FormatError, match="compressed, and rows of it .*: give sample='file'"):
        opened(path)
    archive(path, ("a.npy", npy(ROWS)))
    content = bytearray(path.read_bytes())
    content[6] |= 1
    content[content.index(b"PK\1\2") + 8] |= 1
    path.write_bytes(content)
    with pytest.raises(FormatError, match="encrypted"):
        opened(path)


SHAPES = [(), (4,), (3, 1, 5)]


def write_volumes(folder: Path, save: list[Any], shape: tuple[int, ...] = (3, 5)) -> list[Any]:
    """Archives of an array, a column of numbers and a label, by numpy's functions in turn."""
    rng = np.random.default_rng(0)
    volumes = [
        {"x": rng.normal(size=shape), "y": np.full(4, n, np.int16), "label": np.array(n % 3)}
        for n in range(6)
    ]
    for number, arrays in enumerate(volumes):
        save[number % len(save)](folder / f"{number}.npz", **arrays)
    return volumes


@pytest.mark.parametrize("save", [[np.savez_compressed], [np.savez_compressed, np.savez]])
@pytest.mark.parametrize("shape", SHAPES)
def test_compressed_files_are_samples(save, shape, tmp_path):
    """Also beside files that are not; in batches, by number, and saved with the index."""
    volumes = write_volumes(tmp_path, save, shape)
    for _ in range(2):
        dataset = penstock.open(tmp_path, format="npz", sample="file")
        assert [(field.name, field.shape) for field in dataset.fields] == [
            ("x", shape),
            ("y", (4,)),
        ]
        for sample, arrays in zip(dataset, volumes, strict=True):
            for name, value in arrays.items():
                np.testing.assert_array_equal(sample[name], value)
    with penstock.Loader(dataset, 4, seed=0, drop_last=False) as loader:
        for batch in loader:
            for row, number in enumerate(batch.ids):
                np.testing.assert_array_equal(batch["x"][row], volumes[number]["x"])
                assert batch["label"][row] == number % 3


def test_compressed_arrays_of_several_shapes_are_refused(tmp_path):
    np.savez_compressed(tmp_path / "0.npz", x=np.zeros(3))
    np.savez_compressed(tmp_path / "1.npz", x=np.zeros(4))
    with pytest.raises(
        FormatError, match=r"1.npz: 'x' has the shape \(4,\), and \(3,\) in the first"
    ):
        opened(tmp_path, format="npz", sample="file")


def test_damage_of_compressed_arrays_is_an_error(tmp_path):
    """Each byte of an archive that is another: an error, or the same values."""
    path, values = tmp_path / "x.npz", np.arange(40, dtype=np.int16) // 3
    np.savez_compressed(path, x=values, label=7)
    whole = path.read_bytes()
    refused = 0
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 0x41
        path.write_bytes(damaged)
        try:
            (sample,) = list(opened(path, format="npz", sample="file"))
            sizes = {np.size(value): value for name, value in sample.items() if name != "__key__"}
            assert sizes.keys() == {1, 40}
            assert sizes[1] == 7
            np.testing.assert_array_equal(sizes[40], values)
        except PenstockError:
            refused += 1
    assert refused > len(whole) // 2


def test_archives_of_other_writers(tmp_path):
    """With a comment, after other bytes, and with a member that is no array and is not asked."""
    path = archive(
        tmp_path / "x.npz", ("b.txt", b"text"), ("a.npy", npy(ROWS)), comment=b"a comment" * 9
    )
    assert (opened(path, fields=["a"])[3]["a"] == ROWS[3]).all()
    with pytest.raises(FormatError, match="'b.txt' is not an array"):
        opened(path)
    path.write_bytes(b"#!/bin/sh\n" + path.read_bytes())
    assert (opened(path, fields=["a"], format="npz")[3]["a"] == ROWS[3]).all()
    with zipfile.ZipFile(path, "w") as file, file.open("a.npy", "w", force_zip64=True) as member:
        member.write(npy(ROWS))
    assert (opened(path)[3]["a"] == ROWS[3]).all()


def with_end64(content: bytes, **changed: int) -> bytes:
    """An archive with a ZIP64 end record."""
    at = content.index(b"PK\5\6")
    _, _, _, _, count, size, offset, _ = struct.unpack("<4s4H2IH", content[at:])
    said = {"length": 44, "count": count, "size": size, "offset": offset, "at": at} | changed
    record = struct.pack(
        "<4sQ2H2I4Q",
        b"PK\6\6",
        said["length"],
        45,
        45,
        0,
        0,
        said["count"],
        said["count"],
        said["size"],
        said["offset"],
    )
    locator = struct.pack("<4sIQI", b"PK\6\7", 0, said["at"], 1)
    short = 0xFFFFFFFF
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, short, short, 0)
    return content[:at] + record + locator + end


def test_zip64(tmp_path):
    """The ZIP64 end record counts; one that contradicts itself is refused, or does not matter."""
    path = archive(tmp_path / "x.npz", ("a.npy", npy(ROWS)))
    content = path.read_bytes()
    path.write_bytes(with_end64(content))
    assert (opened(path)[3]["a"] == ROWS[3]).all()
    with zipfile.ZipFile(path) as file:
        assert file.namelist() == ["a.npy"]
    for changed in (
        {"count": 2},
        {"count": 1 << 63},
        {"size": 1 << 60},
        {"size": (1 << 64) - 1},
        {"offset": 1 << 60},
        {"at": 3},
        {"length": 45},
    ):
        path.write_bytes(with_end64(content, **changed))
        assert_refused_or_whole(path)


def damaged(content: bytes, at: int, value: bytes) -> bytes:
    """The content with some bytes replaced."""
    return content[:at] + value + content[at + len(value) :]


@pytest.mark.parametrize(
    "change",
    [
        lambda c, central, end: damaged(c, 30, b"A"),
        lambda c, central, end: damaged(c, 8, b"\x08"),
        lambda c, central, end: damaged(c, 0, b"pk"),
        lambda c, central, end: damaged(c, central + 20, b"\xf0\xff"),
        lambda c, central, end: damaged(c, central, b"pk"),
        lambda c, central, end: damaged(c, central + 42, b"\xff\xff\xff"),
        lambda c, central, end: damaged(c, end + 12, b"\xff"),
        lambda c, central, end: c[:-1],
        lambda c, central, end: damaged(c, end + 20, b"\x16") + c[end:],
    ],
)
def test_contradictions_are_errors(change, tmp_path):
    """Local and central headers, end record and directory have to agree."""
    path = archive(tmp_path / "x.npz", ("a.npy", npy(ROWS)))
    content = path.read_bytes()
    path.write_bytes(change(content, content.index(b"PK\1\2"), content.index(b"PK\5\6")))
    with pytest.raises(FormatError, match=r"x\.npz"):
        opened(path, format="npz")


@pytest.mark.parametrize(
    ("record", "at", "value"),
    [
        (b"PK\3\4", 18, b"\x01"),
        (b"PK\1\2", 28, b"\xff\xff"),
        (b"PK\5\6", 4, b"\x01"),
        (b"PK\5\6", 8, bytes(4)),
    ],
)
def test_contradictions_that_zipfile_reads_over(record, at, value, tmp_path):
    """Counts and sizes that nothing depends on: an error, or the same rows."""
    path = archive(tmp_path / "x.npz", ("a.npy", npy(ROWS)))
    content = path.read_bytes()
    path.write_bytes(damaged(content, content.index(record) + at, value))
    assert_refused_or_whole(path)


def assert_refused_or_whole(path):
    try:
        dataset = opened(path, format="npz", fields=["a"])
    except PenstockError:
        return
    assert (np.stack([sample["a"] for sample in dataset]) == ROWS).all()


def test_overlapping_members_and_double_names_are_errors(tmp_path):
    """Two entries of one member, and two members of one name."""
    path = archive(tmp_path / "x.npz", ("a.npy", npy(ROWS)), ("b.npy", npy(ROWS)))
    content = path.read_bytes()
    second = content.index(b"PK\1\2", content.index(b"PK\1\2") + 1)
    path.write_bytes(damaged(damaged(content, second + 42, bytes(4)), second + 46, b"a"))
    with pytest.raises(FormatError, match="two members have one name"):
        opened(path)
    with pytest.warns(UserWarning, match="Duplicate"):
        archive(path, ("a.npy", npy(ROWS)), ("a.npy", npy(ROWS)))
    with pytest.raises(FormatError, match="two members have one name"):
        opened(path)


def test_an_array_longer_than_its_member_is_an_error(tmp_path):
    """The array's own header is compared with the member's size."""
    path = archive(tmp_path / "x.npz", ("a.npy", npy(ROWS)[:-1]), ("b.npy", npy(ROWS)))
    with pytest.raises(FormatError, match="it is truncated"):
        opened(path)


def test_arrays_of_several_files_have_to_agree(tmp_path):
    """Names, dtypes and row shapes, in archives and in single arrays."""
    np.savez(tmp_path / "1.npz", a=ROWS)
    np.savez(tmp_path / "2.npz", a=ROWS.astype(float))
    with pytest.raises(FormatError, match="choose some by fields="):
        opened(tmp_path / "*.npz")
    np.save(tmp_path / "1.npy", ROWS)
    np.save(tmp_path / "2.npy", ROWS[:, :2])
    with pytest.raises(FormatError, match="as others"):
        opened(tmp_path / "*.npy")


def test_what_is_damaged_and_read_by_numpy_too_is_the_same(tmp_path):
    """Each byte changed: an error, or what numpy reads from the same damage."""
    path = tmp_path / "x.npz"
    np.savez(path, a=ROWS)
    content = path.read_bytes()
    same = 0
    for at in range(len(content)):
        path.write_bytes(damaged(content, at, bytes([content[at] ^ 0x41])))
        try:
            found = np.stack([sample["a"] for sample in opened(path, fields=["a"])])
        except PenstockError:
            continue
        try:
            with np.load(path) as expected:
                np.testing.assert_array_equal(found, expected["a"])
            same += 1
        except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError):
            pass  # checksums are not checked here
    assert same
