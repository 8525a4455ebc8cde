"""Tables with a file on each row, and their other columns."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.errors import FormatError, MissingError, UsageError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def folder_of(folder: Path, count: int) -> list[str]:
    """Files to name: each holds its own name."""
    names = [f"f{number}.bin" for number in range(count)]
    for name in names:
        (folder / name).write_text(name)
    return names


def write(folder: Path, how: str, columns: dict[str, list[Any]]) -> Path:
    """A table in one of the forms."""
    path = folder / f"table.{how}"
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if how == "parquet":
        pq.write_table(pa.table(columns), path, row_group_size=3)
    elif how == "json":
        path.write_text(json.dumps(rows))
    elif how == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        out = io.StringIO()
        writer = csv.writer(out, delimiter="\t" if how == "tsv" else ",")
        writer.writerows([list(columns), *zip(*columns.values(), strict=True)])
        path.write_bytes(out.getvalue().encode())
    return path


_TEXTS = st.text(st.sampled_from('ab",;\té\n 0'), max_size=6).map(lambda text: f"x{text}")


@given(
    how=st.sampled_from(["csv", "tsv", "json", "jsonl", "parquet"]),
    texts=st.lists(_TEXTS, min_size=1, max_size=8),
    seed=st.integers(0, 99),
)
def test_columns_are_those_of_the_table(how, texts, seed, tmp_path_factory):
    """Whole numbers, numbers and texts of every form, in samples, batches and saved indexes."""
    folder = tmp_path_factory.mktemp("x")
    random = np.random.default_rng(seed)
    count = len(texts)
    columns = {
        "file_name": folder_of(folder, count),
        "n": random.integers(-(2**62), 2**62, count).tolist(),
        "score": (random.random(count) - 0.5).tolist(),
        "caption": texts,
        "label": random.integers(0, 3, count).tolist(),
    }
    path = write(folder, how, columns)
    penstock.open(path, files="file_name")
    dataset = penstock.open(path, files="file_name")
    assert dataset.sidecar is not None
    assert [part.name for part in dataset.fields] == ["data", "n", "score", "caption"]
    for number in range(count):
        sample = dataset[number]
        assert sample["data"].decode() == columns["file_name"][number]
        for name in ("n", "score", "caption", "label"):
            assert sample[name] == columns[name][number], name
    batches = penstock.Loader(dataset, 3, rank=0, world_size=1)
    for batch in batches:
        for name in ("n", "score", "caption"):
            assert list(batch[name]) == [columns[name][i] for i in batch.ids.tolist()]
    middle = sorted(columns["score"])[count // 2]
    chosen = dataset.select(where=f"score >= {middle!r} and caption.startswith('x')")
    assert [each["score"] for each in chosen] == [s for s in columns["score"] if s >= middle]
    other = dict(columns, n=[n + 1 for n in columns["n"]])
    write(folder, how, other)
    assert penstock.open(path, files="file_name").fingerprint != dataset.fingerprint


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        (["1", "-2"], "<i8", [1, -2]),
        (["1", ""], "<f8", [1.0, np.nan]),
        (["1", "2.5e3"], "<f8", [1.0, 2500.0]),
        (["007", "12"], "<U0", ["007", "12"]),
        (["9223372036854775807", "-9223372036854775808"], "<i8", [2**63 - 1, -(2**63)]),
        (["9223372036854775808", "1"], "<f8", [2.0**63, 1.0]),
        (["9007199254740993", ""], "<U0", ["9007199254740993", ""]),
        (["9223372036854775809", "1"], "<U0", ["9223372036854775809", "1"]),
        (["9007199254740993", "0.5"], "<U0", ["9007199254740993", "0.5"]),
        (["9007199254740992", "0.5"], "<f8", [2.0**53, 0.5]),
        (["1e400", "1"], "<U0", ["1e400", "1"]),
        (["-inf", "1e5"], "<f8", [-np.inf, 1e5]),
        (["1" * 5000, "1"], "<U0", ["1" * 5000, "1"]),
        (["1", "x"], "<U0", ["1", "x"]),
        (["", ""], "<U0", ["", ""]),
        (["1_0", "2"], "<U0", ["1_0", "2"]),
    ],
)
def test_types_of_separated_values(values, dtype, expected, tmp_path):
    """All values decide, not the first."""
    names = folder_of(tmp_path, len(values))
    path = write(tmp_path, "csv", {"f": names, "x": values})
    dataset = penstock.open(path, files="f", index="memory")
    assert dataset.fields[1].dtype.str == dtype
    np.testing.assert_array_equal([each["x"] for each in dataset], expected)


def test_integers_beyond_the_dtype_are_refused(tmp_path):
    """`as_dtype` does not wrap numbers around."""
    path = write(tmp_path, "csv", {"f": folder_of(tmp_path, 2), "x": ["200", "-3"]})
    assert [each["x"] for each in penstock.open(path, files="f", as_dtype="int16")] == [200, -3]
    for dtype in ("int8", "uint8"):
        with pytest.raises(UsageError, match=f"is {dtype}, too narrow for 'x'"):
            penstock.open(path, files="f", as_dtype=dtype)


def test_types_of_json(tmp_path):
    """Null is NaN or empty; truth values are such; what is no value is refused with its line."""
    names = folder_of(tmp_path, 2)
    table = {"f": names, "b": [True, False], "x": [None, 2], "t": [None, "a"], "o": [[1], [2]]}
    path = write(tmp_path, "jsonl", table)
    with pytest.raises(
        FormatError, match=r"table\.jsonl, line 1: column 'o' has \[1\]: a column is"
    ):
        penstock.open(path, files="f", index="memory")
    dataset = penstock.open(path, files="f", columns=["b", "x", "t"], index="memory")
    first = dataset[0]
    assert (bool(first["b"]), np.isnan(first["x"]), first["t"]) == (True, True, "")
    path.write_text(
        json.dumps({"f": names[0], "x": 1}) + "\n" + json.dumps({"f": names[1], "x": "a"})
    )
    with pytest.raises(FormatError, match="line 2: column 'x' has 'a', and 1 before"):
        penstock.open(path, files="f", index="memory")
    path.write_text("".join(json.dumps({"f": names[0], "x": x}) + "\n" for x in (None, 2**53 + 1)))
    with pytest.raises(FormatError, match="fits no dtype"):
        penstock.open(path, files="f", index="memory")
    path.write_text(json.dumps({"f": names[0], "x": 1}) + "\n\n" + json.dumps({"f": names[1]}))
    with pytest.raises(FormatError, match="give columns= without it"):
        penstock.open(path, files="f", index="memory")


def test_labels_are_numbers_or_names(tmp_path):
    """Names become classes in sorted order; label='' keeps them as a column."""
    names = folder_of(tmp_path, 3)
    path = write(tmp_path, "csv", {"f": names, "label": ["b", "a", "b"], "kind": ["1", "2", "2"]})
    dataset = penstock.open(path, files="f", index="memory")
    assert dataset.classes == ("a", "b")
    assert [each["label"] for each in dataset] == [1, 0, 1]
    dataset = penstock.open(path, files="f", label="kind", columns=[], index="memory")
    assert [each["label"] for each in dataset] == [1, 2, 2]
    dataset = penstock.open(path, files="f", label="", index="memory")
    assert [each["label"] for each in dataset] == ["b", "a", "b"]


@pytest.mark.parametrize("how", ["csv", "jsonl", "json", "parquet"])
def test_files_lie_inside(how, tmp_path):
    """A file outside, one that is not there, and none are errors that name the row."""
    inner = tmp_path / "inner"
    inner.mkdir()
    folder_of(inner, 1)
    (tmp_path / "secret").write_text("secret")
    path = write(inner, how, {"f": ["f0.bin", "../secret"], "n": [1, 2]})
    where = {"csv": "line 3", "jsonl": "line 2"}.get(how, "row 1")
    with pytest.raises(FormatError, match=rf"{where}: .*secret' is not below .*outside=True"):
        penstock.open(path, files="f", index="memory")
    assert penstock.open(path, files="f", outside=True, index="memory")[1]["data"] == b"secret"
    write(inner, how, {"f": ["f0.bin", "gone"], "n": [1, 2]})
    with pytest.raises(MissingError, match=f"{where}: .*gone"):
        penstock.open(path, files="f", index="memory")
    write(inner, how, {"f": ["f0.bin", ""], "n": [1, 2]})
    with pytest.raises(FormatError, match=f"{where}: column 'f' is ''"):
        penstock.open(path, files="f", index="memory")


def test_wrong_tables_and_calls(tmp_path):
    """Unknown columns with the nearest, rows of other lengths, quotes, bytes that are no text."""
    names = folder_of(tmp_path, 2)
    path = write(tmp_path, "csv", {"file_name": names, "score": [1, 2], "data": [1, 2]})
    with pytest.raises(UsageError, match="no column 'filename': did you mean 'file_name'"):
        penstock.open(path, files="filename")
    with pytest.raises(UsageError, match="no column 'scores': did you mean 'score'"):
        penstock.open(path, files="file_name", columns=["scores"])
    with pytest.raises(UsageError, match="column 'data' would hide"):
        penstock.open(path, files="file_name")
    with pytest.raises(MissingError, match="files=.file_name."):
        (tmp_path / "none.csv").write_text("x,y\n1,2\n")
        penstock.open(tmp_path / "none.csv")
    for data, message in (
        (b"f,x\nf0.bin,1,2\n", "csv, line"),
        (b'f,x\nf0.bin,"1\n', "unexpected end of data"),
        (b"f,x\nf0.bin,\xff\n", "convert it by iconv"),
        (b"f,f\n", "two columns 'f'"),
        (b"f,x\n", "names no files"),
        (b"[1", "no JSON"),
        (b"[1]", "row 0: no object"),
        (b"PAR1", "truncated"),
    ):
        path.write_bytes(data)
        with pytest.raises(FormatError, match=message):
            penstock.open(path, files="f", index="memory")


def test_columns_in_mixtures(tmp_path):
    """Values of each dataset's own table; tables of other columns are refused."""
    for name, score in (("a", 1.5), ("b", 2.5)):
        (tmp_path / name).mkdir()
        names = folder_of(tmp_path / name, 4)
        columns = {"f": names, "score": [score] * 4, "t": [name] * 4}
        write(tmp_path / name, "csv", columns)
    one, two = (penstock.open(tmp_path / n / "table.csv", files="f", index="memory") for n in "ab")
    mixed = penstock.mix([(one, 1), (two, 1)], samples_per_epoch=8)
    for batch in penstock.Loader(mixed, 4, rank=0, world_size=1):
        assert batch["t"] == ["ab"[source] for source in batch["source"].tolist()]
        assert batch["score"].tolist() == [1.5 + source for source in batch["source"].tolist()]
    assert len(mixed.select(where="score > 2 or key == 'f0.bin'")) == 5
    other = penstock.open(tmp_path / "b" / "table.csv", files="f", columns=["t"], index="memory")
    with pytest.raises(UsageError, match="the fields of dataset 1"):
        penstock.mix([(one, 1), (other, 1)])
    with pytest.raises(UsageError, match="has annotations"):
        penstock.convert.convert(one, tmp_path / "out", to="tar")


def test_empty_labels_and_urls_name_their_line(tmp_path: Path) -> None:
    """A cell without a label, and one with a URL, are errors that name the line."""
    (tmp_path / "a.jpg").write_bytes(b"1")
    table = tmp_path / "x.csv"
    for labels, count in (
        (("1", "", "2"), ""),
        (("cat", "dog", ""), ""),
        (("", "", "1"), "2 rows"),
    ):
        table.write_text("name,label\n" + "".join(f"a.jpg,{label}\n" for label in labels))
        line = labels.index("") + 2
        with pytest.raises(FormatError, match=rf"line {line}: the label 'label' is empty.*{count}"):
            penstock.open(table, files="name", label="label", index="memory")
    for url in ("s3://bucket/a.jpg", "https://x.org/a.jpg"):
        for outside in (False, True):
            table.write_text(f"name\na.jpg\n{url}\n")
            with pytest.raises(FormatError, match=rf"line 3: '{url}' is a URL"):
                penstock.open(table, files="name", index="memory", outside=outside)
        (tmp_path / "list.txt").write_text(f"a.jpg\n{url}\n")
        with pytest.raises(FormatError, match=rf"line 2: '{url}' is a URL"):
            penstock.open(tmp_path / "list.txt", index="memory")
