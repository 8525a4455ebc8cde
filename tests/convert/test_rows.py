"""Shards of rows that many write, held against tarfile, numpy and the rows themselves."""

from __future__ import annotations

import io
import os
import re
import shutil
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock
from penstock import limits
from penstock.convert import convert
from penstock.convert.manifest import MANIFEST, ConversionManifest
from penstock.convert.rows import Columns, RowShards
from penstock.errors import LimitError, PenstockError, UsageError


def make_column(*values: Any) -> np.ndarray[Any, Any]:
    """A column of objects."""
    column = np.empty(len(values), object)
    column[:] = values
    return column


def make_table(first: int, count: int) -> dict[str, np.ndarray[Any, Any]]:
    """Rows from a number on: bytes and texts of many lengths, an array, a label."""
    numbers = range(first, first + count)
    return {
        "jpg": make_column(*(b"%d" % number * (number % 50) for number in numbers)),
        "note": make_column(*(f"nöte {number}" for number in numbers)),
        "box": np.arange(4 * first, 4 * (first + count), dtype=np.float32).reshape(count, 2, 2),
        "label": np.arange(first, first + count) % 7,
    }


def write(shards: RowShards, *writers: Iterable[Columns]) -> Any:
    """Write the tables of each writer, and commit, the last one first."""
    shards.begin()
    written = [shards.write(number, tables) for number, tables in enumerate(writers)]
    return shards.commit(written[::-1])


def list_files(folder: Path) -> list[str]:
    """Every file and folder below a folder, hidden ones too."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def list_members(path: str) -> list[str]:
    with tarfile.open(path) as archive:
        return archive.getnames()


def test_tar_has_the_rows_in_the_order_of_the_writers(tmp_path: Path) -> None:
    shards = RowShards(tmp_path / "out", "tar", 20_000)
    made = write(shards, [make_table(0, 10), make_table(10, 15)], [], [make_table(25, 25)])
    assert (made.samples, made.written, made.options, made.labels) == (50, 50, {}, None)
    assert made.call == f"penstock.open({str(tmp_path / 'out')!r})"
    data = penstock.open(tmp_path / "out", index="memory")
    assert len(data) == 50
    for number in range(50):
        sample, row = data[number], make_table(number, 1)
        assert bytes(sample["jpg"]) == row["jpg"][0]
        assert bytes(sample["note.txt"]).decode() == row["note"][0]
        assert sample["label"] == number % 7
        assert (np.load(io.BytesIO(sample["box.npy"])) == row["box"][0]).all()
    members = [name for path in made.files for name in list_members(path)]
    assert members[:4] == [
        f"000000_00000000.{end}" for end in ("jpg", "note.txt", "box.npy", "cls")
    ]
    assert len(members) == len(set(members)) == 200
    manifest = ConversionManifest.load(str(tmp_path / "out"))
    assert manifest is not None
    assert manifest.complete
    assert manifest.samples == 50
    names = [f"out/{shard['name']}" for shard in manifest.shards]
    assert list_files(tmp_path) == ["out", f"out/{MANIFEST}", *names]
    assert len(names) == len(made.files) > 5
    assert max(map(os.path.getsize, made.files)) <= 20_480


def test_tfrecord_and_records_open_by_the_call_that_is_printed(tmp_path: Path) -> None:
    table = make_table(0, 30) | {"id": np.arange(30) ** 5, "__key__": make_column(*"abc" * 10)}
    made = write(RowShards(tmp_path / "t", "tfrecord", 500), [table], [make_table(0, 0)])
    data = eval(made.call, {"penstock": penstock})
    assert len(made.files) > 5
    assert made.files[1] == f"{tmp_path}/t/t-000001.tfrecord"
    assert [bytes(data[n]["jpg"]) for n in range(30)] == table["jpg"].tolist()
    assert [data[n]["label"] for n in range(30)] == table["label"].tolist()
    for name, column in (("box", table["box"]), ("raw", make_column(*[b"ab", b"cd"] * 15))):
        path = tmp_path / name
        made = write(RowShards(path, "records", 100, "n"), [{name: column}], [{name: column}])
        data = eval(made.call, {"penstock": penstock})
        wanted = b"".join(np.asarray(row).tobytes() for row in column)
        assert b"".join(Path(file).read_bytes() for file in made.files) == wanted * 2
        assert b"".join(data[n]["data"].tobytes() for n in range(60)) == wanted * 2
        assert len(made.files) > 1
        assert made.files[0] == f"{path}/n-000000.bin"


def test_attempts_that_are_repeated_or_fail_leave_nothing(tmp_path: Path) -> None:
    """A writer that fails amid its rows, one that is run twice, one that is late: each row once."""

    def fail() -> Iterator[Columns]:
        yield make_table(0, 20)
        raise OSError("this writer fails")

    shards = RowShards(tmp_path / "out", "tar", 20_000)
    shards.begin()
    with pytest.raises(OSError, match="this writer fails"):
        shards.write(0, fail())
    assert len(list_files(tmp_path)) > 2  # its first parts
    first = [shards.write(number, [make_table(20 * number, 20)]) for number in (0, 1)]
    second = [shards.write(number, [make_table(20 * number, 20)]) for number in (0, 1)]
    with pytest.raises(PenstockError):
        penstock.open(tmp_path)
    late = shards.write(2, [make_table(40, 20)])
    made = shards.commit([second[1], first[0]])
    assert late is not None
    assert made.samples == 40
    assert len(list_files(tmp_path)) == 2 + len(made.files)
    data = penstock.open(tmp_path / "out", index="memory")
    assert [int(data[n]["label"]) for n in range(40)] == [n % 7 for n in range(40)]
    with pytest.raises(UsageError, match="or the write has ended: write below a shared folder"):
        shards.write(0, [make_table(0, 20)])
    assert len(list_files(tmp_path)) == 2 + len(made.files)


def test_attempts_at_once_do_not_mix(tmp_path: Path) -> None:
    """One of two attempts has other rows, begins before the other, and ends after it."""
    shards = RowShards(tmp_path / "out", "tar", 20_000)
    done = []

    def be_overtaken() -> Iterator[Columns]:
        yield make_table(100, 20)
        done.append(shards.write(0, [make_table(0, 20)]))
        yield make_table(120, 20)

    shards.begin()
    assert shards.write(0, be_overtaken()) is not None
    assert shards.commit(done).samples == 20
    data = penstock.open(tmp_path / "out")
    assert [bytes(data[n]["jpg"]) for n in range(20)] == make_table(0, 20)["jpg"].tolist()


def test_the_destination_is_taken_by_the_first_commit(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    both = [RowShards(tmp_path / "out", "tar") for _ in range(2)]
    for shards in both:
        shards.begin()
    written = [shards.write(0, [make_table(n, 5)]) for n, shards in enumerate(both)]
    both[0].commit([written[0]])
    before = list_files(tmp_path / "out")
    with pytest.raises(UsageError, match=r"out', and something is there: remove it, or name"):
        both[1].commit([written[1]])
    both[1].discard()
    assert list_files(tmp_path) == sorted(["out", *(f"out/{name}" for name in before)])
    assert penstock.open(tmp_path / "out")[0]["label"] == 0


def test_convert_knows_what_was_written(tmp_path: Path) -> None:
    """It refuses the folder, and by force replaces what is in it, and nothing else."""
    np.save(tmp_path / "x.npy", np.zeros((5, 3)))
    source = penstock.open(tmp_path / "x.npy")
    write(RowShards(tmp_path / "out", "tar", 10_000), [make_table(0, 30)])
    with pytest.raises(UsageError, match=r"out holds a conversion of other data \(rows, now "):
        convert(source, tmp_path / "out", to="tar")
    (tmp_path / "out" / "mine").write_text("")
    convert(source, tmp_path / "out", to="tar", force=True)
    assert list_files(tmp_path / "out") == [MANIFEST, "mine", "out-000000.tar"]


NUMBERS = np.arange(3)
REFUSED: dict[str, tuple[str, Any, str]] = {
    "structs": (
        "tar",
        {"x": make_column({}, {})},
        "column 'x' holds dict, and tar bytes, text and",
    ),
    "mixed": ("tar", {"x": make_column(b"", "")}, "column 'x' holds bytes, str, and tar bytes, t"),
    "nested": ("tar", {"x": make_column(make_column(1), make_column(2))}, "'x' holds object, and"),
    "times": ("tfrecord", {"x": NUMBERS.astype("M8[s]")}, "holds datetime64[s], and tfrecord b"),
    "none": ("tar", {"x": make_column(b"", None)}, "holds NoneType, bytes, and tar bytes, text a"),
    "labels": ("tar", {"label": NUMBERS, "__key__": NUMBERS}, "columns are label: a sample is m"),
    "two": ("records", {"x": NUMBERS, "y": NUMBERS}, "one column, and there are x, y: select_col"),
    "no-column": ("records", {"__id__": NUMBERS}, "one column, and there are none: select_colum"),
    "sizes": ("records", {"x": make_column(b"a", b"bc")}, "different sizes, and records have one"),
    "names": ("tar", {"X": NUMBERS, "x": NUMBERS}, "share the extensions x.npy, x.npy: rename_"),
    "cls": ("tar", {"cls": make_column(*"abc"), "label": NUMBERS}, "extensions cls, cls: rename_"),
    "keys": (
        "tar",
        {"x": NUMBERS, "__key__": make_column("a.b", "a_b", "c")},
        "__key__ 'a_b' of row 1 of task 0 is empty, or of the row before: make it unique",
    ),
    "no-key": ("tar", {"x": NUMBERS, "__key__": make_column(b"", b"", b"")}, "'' of row 0 of task"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_container_cannot_hold_is_refused(name: str, tmp_path: Path) -> None:
    to, table, message = REFUSED[name]
    shards = RowShards(tmp_path / "out", to)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=re.escape(message)):
        write(shards, [table])
    shards.discard()
    assert list_files(tmp_path) == []


def test_tables_that_differ_are_refused(tmp_path: Path) -> None:
    ints, floats = {"x": NUMBERS}, {"x": NUMBERS * 0.5}
    lists = {"x": np.zeros((3, 2), np.int64)}
    wanted = r"blocks of task 0 differ in columns: x \(float64\), x \(int64\): cast, fill or"
    with pytest.raises(UsageError, match=wanted):
        write(RowShards(tmp_path / "one", "tar"), [ints, floats])
    with pytest.raises(UsageError, match="blocks of tasks 1 and 3 differ in columns: x .*, y "):
        write(RowShards(tmp_path / "two", "tar"), [], [ints], [], [{"y": NUMBERS}])
    with pytest.raises(UsageError, match=r"x \(arrays of int64\), x \(int64\)"):
        write(RowShards(tmp_path / "three", "tfrecord"), [ints], [lists])
    with pytest.raises(UsageError, match=r"x \(\(1,\) int64\), x \(\(2,\) int64\)"):
        write(RowShards(tmp_path / "four", "records"), [lists], [{"x": NUMBERS[:, None]}])
    shapes = make_column(np.zeros((1, 2)), np.zeros(3))
    made = write(RowShards(tmp_path / "five", "tar"), [{"x": shapes}], [{"x": np.ones(2)[:, None]}])
    sizes = [np.load(io.BytesIO(penstock.open(made.path)[n]["x.npy"])).shape for n in range(4)]
    assert sizes == [(1, 2), (3,), (1,), (1,)]


def test_destinations_that_cannot_be_are_refused(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    os.symlink(tmp_path, tmp_path / "link")
    for name in ("full", "full/x", "link"):
        with pytest.raises(UsageError, match="and something is there: remove it, or name another"):
            RowShards(tmp_path / name, "tar")
    with pytest.raises(UsageError, match="path is 's3://x': write to a folder, and copy it then"):
        RowShards("s3://x", "tar")
    with pytest.raises(UsageError, match="to is 'lmdb': use one of tar, tfrecord, records"):
        RowShards(tmp_path / "out", "lmdb")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="there are no rows to write to .*out: "):
        write(RowShards(tmp_path / "out", "tar"), [], [make_table(0, 0)])
    monkeypatch.setattr(limits, "shards_max", 2)
    with pytest.raises(LimitError, match="limits.shards_max, 2, is reached: write larger blocks"):
        write(RowShards(tmp_path / "out", "tar", 1), [make_table(0, 3)])
    assert not (tmp_path / "out").exists()


KINDS = {
    "bin": st.binary(max_size=20).map(lambda value: value),
    "txt": st.text(max_size=20),
    "npy": st.integers(-(2**40), 2**40),
}


@given(
    st.lists(st.tuples(*KINDS.values(), st.integers(0, 3)), min_size=1, max_size=30),
    st.integers(1, 20_000),
    st.booleans(),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_division_has_every_row_once(
    tmp_path: Path, rows: list[Any], shard_bytes: int, has_ids: bool
) -> None:
    """The rows in the order of writers and tables, whatever the writers, tables and shards."""
    writers: list[list[Columns]] = [[] for _ in range(4)]
    rows = sorted(rows, key=lambda row: row[-1])
    for number, row in enumerate(rows):
        table = {name: make_column(value) for name, value in zip(KINDS, row, strict=False)}
        table["npy"] = np.array([row[2]])
        writers[row[-1]].append(table | ({"__id__": np.array([number])} if has_ids else {}))
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    made = write(RowShards(tmp_path / "out", "tar", shard_bytes), *writers)
    data = penstock.open(made.path, index="memory", missing="empty")
    assert made.samples == len(data) == len(rows)
    for number, row in enumerate(rows):
        sample = data[number]
        assert (bytes(sample["bin"]), bytes(sample["txt"]).decode()) == row[:2]
        assert np.load(io.BytesIO(sample["npy"])) == row[2]
