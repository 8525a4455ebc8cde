"""Files of records of one size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock.errors import FormatError, MissingError, UsageError
from penstock.index.saved_index import flag_if_racy


def opened(path: Path | str, **options) -> penstock.Dataset:
    """A data set without a saved index."""
    return penstock.open(path, index="memory", **options)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A hundred bytes, each its own offset."""
    path = tmp_path / "x.bin"
    path.write_bytes(bytes(range(100)))
    return path


def test_record_bytes_cut_a_file_into_samples(file):
    """Samples follow each other from the first byte to the last."""
    dataset = opened(file, record_bytes=20)
    assert len(dataset) == 5
    assert b"".join(sample["data"].tobytes() for sample in dataset) == bytes(range(100))
    assert dataset.fields[0].shape == (20,)
    assert dataset[-1]["__key__"] == "x.bin#4"


def test_dtype_and_shape_give_arrays(file):
    """The record size follows from the two; the header is skipped."""
    dataset = opened(file, dtype="<u2", shape=(3, 4), header_bytes=4)
    assert len(dataset) == 4
    whole = np.frombuffer(bytes(range(4, 100)), "<u2").reshape(4, 3, 4)
    np.testing.assert_array_equal([sample["data"] for sample in dataset], whole)


def test_a_dtype_alone_gives_scalars(file):
    """Without a shape, every number is a sample."""
    assert opened(file, dtype=np.float32)[3]["data"].shape == ()
    assert len(opened(file, dtype=np.float32)) == 25


@pytest.mark.parametrize("pattern", ["d", "d/*.bin", "d/[ab].bin", "**/*.bin"])
def test_a_folder_or_pattern_is_one_sequence(tmp_path, pattern):
    """Files follow each other in order of their names; an empty one adds nothing."""
    (tmp_path / "d").mkdir()
    for name, content in (("a.bin", b"1122"), ("b.bin", b""), ("c.bin", b"33")):
        if not (pattern == "d/[ab].bin" and name == "c.bin"):
            (tmp_path / "d" / name).write_bytes(content)
    dataset = opened(tmp_path / pattern, record_bytes=2)
    expected = b"1122" if pattern == "d/[ab].bin" else b"112233"
    assert b"".join(sample["data"].tobytes() for sample in dataset) == expected


def test_a_file_that_records_do_not_fill_is_an_error(file):
    """The message says what is left over, and what would fit."""
    with pytest.raises(FormatError) as caught:
        opened(file, record_bytes=12)
    message = str(caught.value)
    assert "100 bytes of records, which 12 does not divide: 4 bytes are left over" in message
    assert "10 or 20" in message
    assert "header of 4 bytes would fit" in message
    assert len(opened(file, record_bytes=12, header_bytes=4)) == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"record_bytes": 0}, "record_bytes is 0: use a whole number from 1"),
        ({"record_bytes": -3}, "record_bytes is -3"),
        ({"record_bytes": float("nan")}, "record_bytes is nan"),
        ({"record_bytes": 2.0}, "record_bytes is 2.0"),
        ({"record_bytes": True}, "record_bytes is True"),
        ({"record_bytes": "10"}, "record_bytes is '10'"),
        ({"record_bytes": 1 << 70}, "record_bytes is 1180591620717411303424"),
        ({"record_bytes": 10, "header_bytes": -1}, "header_bytes is -1"),
        ({"record_bytes": 10, "dtype": "u1", "shape": 5}, "leave it out"),
        ({"dtype": "u1", "shape": (0,)}, "shape is 0"),
        ({"dtype": "u1", "shape": (-1, 2)}, "shape is -1"),
        ({"shape": (3,)}, "shape is .* without a dtype"),
        ({"dtype": "nope"}, "dtype is 'nope'"),
        ({"dtype": object}, "dtype is object"),
        ({"dtype": [("a", "u1")]}, "use a number type, or record"),
        ({"dtype": "U0"}, "use a number type, or record"),
        ({"format": "records"}, "records need a size"),
        ({"format": "record", "record_bytes": 10}, "did you mean 'records'"),
        (
            {"format": "npy", "record_bytes": 10},
            "which takes sample, window, .*; record_bytes= is of",
        ),
        ({"format": "tree"}, "x.bin is a file, but format 'tree'"),
    ],
)
def test_a_wrong_geometry_is_refused(file, options, message):
    """Every argument is checked, and the message names it and its value."""
    with pytest.raises(UsageError, match=message):
        opened(file, **options)


def test_a_misspelled_keyword_is_refused(file):
    """Nothing is taken for an option that is none."""
    with pytest.raises(UsageError, match="recordbytes.*did you mean record_bytes"):
        penstock.open(file, recordbytes=10)


def test_files_without_records_are_an_error(tmp_path):
    """No bytes, fewer than the header, no files: each says so."""
    (tmp_path / "empty.bin").touch()
    with pytest.raises(FormatError, match="holds no records"):
        opened(tmp_path / "empty.bin", record_bytes=4)
    with pytest.raises(FormatError, match="0 bytes, below header_bytes=16"):
        opened(tmp_path / "empty.bin", record_bytes=4, header_bytes=16)
    with pytest.raises(MissingError, match="matches no files"):
        opened(tmp_path / "*.dat", record_bytes=4)
    with pytest.raises(MissingError, match="matches no files"):
        opened(tmp_path / "*.dat")
    (tmp_path / "d").mkdir()
    with pytest.raises(FormatError, match="holds no files"):
        opened(tmp_path / "d", record_bytes=4)


def test_bytes_without_a_geometry_are_of_no_known_format(file):
    """The message shows how the file starts, and the options that would help."""
    with pytest.raises(FormatError, match=r"starts with b'.x00.*record_bytes="):
        opened(file)


def test_a_saved_index_remembers_the_geometry(file):
    """Opened once with its record size, the file may be opened without, until it changes."""
    first = penstock.open(file, record_bytes=20, index="rebuild")
    saved = flag_if_racy(first.index, 0)  # as if made long after the file
    saved.save(first.sidecar)
    assert penstock.open(file).fingerprint == first.fingerprint
    file.write_bytes(bytes(120))
    with pytest.raises(FormatError, match="no format that penstock knows"):
        penstock.open(file)


def test_a_saved_index_of_a_pattern_remembers_the_geometry(tmp_path, monkeypatch):
    """A pattern's index lies in the user's cache, and a new file that matches is found."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.bin").write_bytes(bytes(8))
    first = penstock.open(data / "*.bin", record_bytes=4)
    assert first.sidecar.startswith(f"{tmp_path}/cache/penstock/")
    flag_if_racy(first.index, 0).save(first.sidecar)  # as if made long after the files
    assert len(penstock.open(data / "*.bin")) == 2
    (data / "b.bin").write_bytes(bytes(4))
    assert len(penstock.open(data / "*.bin", record_bytes=4)) == 3


def test_a_file_added_to_a_folder_is_found(tmp_path):
    """The saved index of several files knows their folder."""
    for name in ("a", "b"):
        (tmp_path / "d").mkdir(exist_ok=True)
        (tmp_path / "d" / name).write_bytes(bytes(8))
        assert len(penstock.open(tmp_path / "d", record_bytes=4)) == (2 if name == "a" else 4)


def test_a_thousand_million_records_open_at_once(tmp_path):
    """A sparse file of 512 GB: an extent of its last record, without a column anywhere."""
    path = tmp_path / "huge.bin"
    with path.open("wb") as out:
        try:
            out.truncate(512 * 10**9)
        except OSError:
            pytest.skip("the file system has no sparse files of this size")
    dataset = opened(path, record_bytes=512)
    assert len(dataset) == 10**9
    assert not dataset[10**9 - 1]["data"].any()
