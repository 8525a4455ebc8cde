"""Arrow files and streams; pyarrow is the oracle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.errors import FormatError, PenstockError, UsageError
from tests.slices import first

pa = pytest.importorskip("pyarrow")
feather = pytest.importorskip("pyarrow.feather")


def table_of(rows: int, seed: int = 0) -> Any:
    """A column of each kind."""
    random = np.random.default_rng(seed)
    texts = [random.bytes(int(n)).hex() for n in random.integers(0, 20, rows)]
    numbers = [random.integers(0, 9, n).tolist() for n in random.integers(0, 5, rows)]
    return pa.table(
        {
            "skipped": pa.array([None] * rows, pa.string()),
            "nothing": pa.nulls(rows),
            "image": pa.array(
                [
                    {"bytes": text.encode(), "path": None if n % 2 else f"{n}.jpg"}
                    for n, text in enumerate(texts)
                ],
                pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
            ),
            "text": pa.array(texts, pa.string()),
            "large": pa.array(texts, pa.large_string()),
            "id": pa.array(random.integers(0, 99, rows), pa.uint16()),
            "label": pa.array(random.integers(0, 9, rows)),
            "real": random.random(rows),
            "half": pa.array(random.random(rows).astype("f2")),
            "hash": pa.array([random.bytes(5) for _ in range(rows)], pa.binary(5)),
            "box": pa.array(
                [[[1.0, 2.0], [n, 4.0], [5.0, n]] for n in range(rows)],
                pa.list_(pa.list_(pa.float32(), 2), 3),
            ),
            "hashes": pa.array(
                [[random.bytes(5), random.bytes(5)] for _ in range(rows)], pa.list_(pa.binary(5), 2)
            ),
            "tokens": pa.array(numbers, pa.list_(pa.int32())),
            "flag": random.integers(0, 2, rows).astype(bool),
            "when": pa.array(random.integers(0, 10**15, rows), pa.timestamp("us")),
        }
    )


def expected(table: Any) -> dict[str, list[Any]]:
    """Expected fields of `table_of`."""
    plain = table.to_pydict()
    return {
        "image": [row["bytes"] for row in plain["image"]],
        "image.path": [(row["path"] or "").encode() for row in plain["image"]],
        "text": [text.encode() for text in plain["text"]],
        "large": [text.encode() for text in plain["large"]],
        "id": [np.array(n, "<u2") for n in plain["id"]],
        "real": [np.array(n) for n in plain["real"]],
        "half": [np.array(n, "<f2") for n in plain["half"]],
        "hash": [np.frombuffer(each, "u1") for each in plain["hash"]],
        "box": [np.array(each, "<f4") for each in plain["box"]],
        "hashes": [np.array([[*each] for each in pair], "u1") for pair in plain["hashes"]],
        "tokens": [np.array(each, "<i4") for each in plain["tokens"]],
        "flag": [np.array(each) for each in plain["flag"]],
        "when": [np.array(n) for n in table["when"].cast(pa.int64()).to_pylist()],
    }


def write(path: Path, table: Any, how: str, compression: str | None, batch: int = 7) -> None:
    """A table as a file or stream."""
    options = pa.ipc.IpcWriteOptions(compression=compression)
    make = pa.ipc.new_file if how == "file" else pa.ipc.new_stream
    with make(str(path), table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=batch)


def assert_rows(dataset: penstock.Dataset, table: Any) -> None:
    """Samples, one by one and in batches, are the rows of the table."""
    fields = expected(table)
    assert [part.name for part in dataset.fields] == list(fields)
    labels = table["label"].to_pylist()
    assert len(dataset) == len(table)

    def check(found: Any, name: str, number: int) -> None:
        value = fields[name][number]
        data = found.tobytes() if isinstance(found, np.ndarray) else bytes(found)
        assert data == (value if isinstance(value, bytes) else value.tobytes()), (name, number)

    for number in range(len(table)):
        sample = dataset[number]
        assert sample["label"] == labels[number]
        for name in fields:
            check(sample[name], name, number)
    for batch in penstock.Loader(dataset, 5, rank=0, world_size=1):
        assert batch["label"].tolist() == [labels[i] for i in batch.ids.tolist()]
        for name in fields:
            for row, number in enumerate(batch.ids.tolist()):
                check(np.asarray(batch[name][row]), name, number)


@pytest.mark.parametrize("compression", first(2, [None, "zstd", "lz4"]))
@pytest.mark.parametrize("how", ["file", "stream"])
def test_rows_are_pyarrows(how, compression, tmp_path):
    """Every kind of column, in several batches and files, compressed or not."""
    tables = [table_of(30, 1), table_of(1, 2), table_of(0, 3), table_of(8, 4)]
    for number, table in enumerate(tables):
        write(tmp_path / f"{number}.arrow", table, how, compression)
    assert_rows(penstock.open(tmp_path, index="memory"), pa.concat_tables(tables).combine_chunks())
    one = penstock.open(tmp_path / "1.arrow", index="memory")
    assert_rows(one, tables[1])


def test_feather_and_slices(tmp_path):
    """Feather files, compressed by default, and tables that are slices of others."""
    table = table_of(40).slice(3, 20)
    feather.write_feather(table, tmp_path / "x.feather")
    assert_rows(penstock.open(tmp_path / "x.feather", index="memory"), table)
    write(tmp_path / "y.arrow", table, "file", None, 6)
    assert_rows(penstock.open(tmp_path / "y.arrow", index="memory"), table)


def test_views_before_a_column(tmp_path):
    """Columns of views, which have a varying number of buffers, may lie before one."""
    texts = [f"a text of more than twelve bytes {n}" for n in range(9)]
    table = pa.table(
        {
            "view": pa.array(texts, pa.string_view()),
            "text": texts,
            "none": pa.nulls(9),
            "n": range(9),
        }
    )
    write(tmp_path / "x.arrow", table, "stream", None, 4)
    with pytest.raises(FormatError, match="utf8 view"):
        penstock.open(tmp_path / "x.arrow", index="memory")
    dataset = penstock.open(tmp_path / "x.arrow", index="memory", fields=["text", "n"])
    assert [sample["text"].decode() for sample in dataset] == texts
    assert [int(sample["n"]) for sample in dataset] == list(range(9))


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_nulls(compression, tmp_path):
    """A null is an error that names its row, or an empty string where that is asked for."""
    texts = ["a", "bc", None, "d", None]
    table = pa.table({"text": texts, "n": pa.array([1, 2, 3, None, 5]), "m": range(5)})
    write(tmp_path / "x.arrow", table, "file", compression, 2)
    with pytest.raises(FormatError, match="row 2 of 'text' is null"):
        penstock.open(tmp_path / "x.arrow", index="memory")
    with pytest.raises(FormatError, match="row 3 of 'n' is null"):
        penstock.open(tmp_path / "x.arrow", index="memory", nulls="empty")
    with pytest.raises(FormatError, match="row 3 of 'n' is null"):
        penstock.open(tmp_path / "x.arrow", index="memory", label="n", fields=["m"])
    dataset = penstock.open(
        tmp_path / "x.arrow", index="memory", nulls="empty", fields="text", label="m"
    )
    assert [each["text"] for each in dataset] == [(text or "").encode() for text in texts]
    assert [each["label"] for each in dataset] == list(range(5))


def test_nulls_that_cover_bytes(tmp_path):
    """A null whose offsets span bytes is empty all the same, also below a null struct."""
    inner = pa.Array.from_buffers(
        pa.binary(),
        3,
        [
            pa.py_buffer(b"\x05"),
            pa.py_buffer(np.array([0, 2, 4, 6], "<i4")),
            pa.py_buffer(b"aabbcc"),
        ],
    )
    outer = pa.Array.from_buffers(
        pa.struct([("b", pa.binary())]), 3, [pa.py_buffer(b"\x03")], children=[inner]
    )
    for compression in (None, "lz4"):
        write(tmp_path / "x.arrow", pa.table({"s": outer, "n": range(3)}), "file", compression)
        dataset = penstock.open(tmp_path / "x.arrow", index="memory", nulls="empty")
        assert [each["s.b"] for each in dataset] == [b"aa", b"", b""]


def test_saved_datasets(tmp_path):
    """A folder of Hugging Face `datasets`: its list of files counts, its class names are taken."""
    table = pa.table({"text": ["a", "b", "c"], "label": [0, 1, 1]})
    features = {"text": {"dtype": "string"}, "label": {"names": ["cat", "dog"]}}
    info = json.dumps({"info": {"features": features}})
    table = table.replace_schema_metadata({"huggingface": info})
    folder = tmp_path / "train"
    folder.mkdir()
    for number in range(2):
        write(folder / f"data-0000{number}-of-00002.arrow", table, "stream", None)
    write(folder / "cache-123.arrow", table, "stream", None)
    (folder / "dataset_info.json").write_text("{}")
    names = [{"filename": f"data-0000{number}-of-00002.arrow"} for number in range(2)]
    (folder / "state.json").write_text(json.dumps({"_data_files": names}))
    dataset = penstock.open(folder, index="memory")
    assert (len(dataset), dataset.classes) == (6, ("cat", "dog"))
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train"]}')
    with pytest.raises(UsageError, match="has the splits"):
        penstock.open(tmp_path, index="memory")
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "../x"}]}))
    with pytest.raises(FormatError, match="lists no files"):
        penstock.open(folder, index="memory")


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.DictionaryArray.from_arrays([0, 1], [True, False]), "dictionary-encoded, of bool"),
        (pa.array([{"a": 1}, {"b": 2}], pa.map_(pa.string(), pa.int32())), "map"),
        (pa.array([["a"], []], pa.list_(pa.string_view())), "lists of utf8 view"),
        (pa.array([["a"], ["b"]], pa.list_(pa.string(), 1)), "fixed-size lists of utf8"),
        (pa.array([[1, None], []], pa.list_(pa.int32())), "nulls inside of lists"),
        (pa.array([1, 2], pa.decimal128(5)), "decimal"),
        (pa.array([b"", b""], pa.binary(0)), "values of 0 bytes"),
    ],
)
def test_columns_that_are_refused(column, message, tmp_path):
    """Columns without bytes of their own are refused by name, unless other columns are named."""
    write(tmp_path / "x.arrow", pa.table({"x": column, "n": [3, 4]}), "file", None)
    with pytest.raises(FormatError, match=message):
        penstock.open(tmp_path / "x.arrow", index="memory")
    dataset = penstock.open(tmp_path / "x.arrow", index="memory", fields=["n"])
    assert [int(each["n"]) for each in dataset] == [3, 4]


def test_compressed_files_have_offsets_of_one_width(tmp_path):
    """Uncompressed ones may differ: their offsets are read when they are indexed."""
    for compression in (None, "zstd"):
        write(tmp_path / "0.arrow", pa.table({"t": pa.array(["a", "b"])}), "file", compression)
        wide = pa.table({"t": pa.array(["c", "d"], pa.large_string())})
        write(tmp_path / "1.arrow", wide, "file", compression)
        if compression is None:
            dataset = penstock.open(tmp_path, index="memory")
            assert b"".join(each["t"] for each in dataset) == b"abcd"
            continue
        with pytest.raises(FormatError, match="t' is not as in"):
            penstock.open(tmp_path, index="memory")


def test_wrong_calls_and_files(tmp_path):
    """Names that are not there, labels that are none, files that differ or were cut."""
    table = pa.table({"text": ["a", "b"], "n": [1, 2]})
    path = tmp_path / "x.arrow"
    write(path, table, "stream", None)
    for options, message in (
        ({"fields": ["x"]}, "no column 'x': it has text, n"),
        ({"label": "text"}, "labels are single integers"),
        ({"nulls": "none"}, "use 'error' or 'empty'"),
        ({"fields": ["n", "n"]}, "name each once"),
    ):
        with pytest.raises(UsageError, match=message):
            penstock.open(path, index="memory", **options)
    write(
        tmp_path / "y.arrow",
        table.cast(pa.schema([("text", "string"), ("n", "int32")])),
        "stream",
        None,
    )
    with pytest.raises(FormatError, match="'n' is not as in"):
        penstock.open(tmp_path, index="memory")
    (tmp_path / "y.arrow").unlink()
    whole = path.read_bytes()
    path.write_bytes(whole[:-8])  # the end marker alone: all rows are there
    with pytest.raises(FormatError, match="no end marker"):
        penstock.open(path, index="memory")
    path.write_bytes(whole + b"\0" * 8)
    with pytest.raises(FormatError, match="bytes follow the end"):
        penstock.open(path, index="memory")
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["n", "n"])
    write(path, twice, "file", None)
    with pytest.raises(FormatError, match="two columns 'n'"):
        penstock.open(path, index="memory")


def test_damaged_chunks(tmp_path):
    """A compressed buffer that was damaged is an error at the read, with its place."""
    write(tmp_path / "x.arrow", pa.table({"n": np.arange(5000)}), "file", "zstd", 5000)
    data = bytearray((tmp_path / "x.arrow").read_bytes())
    dataset = penstock.open(tmp_path / "x.arrow", index="memory")
    (extents, _) = dataset.index.units(np.array([0], np.uint64))
    at = int(extents.offset[-1])
    for change in (b"\xff" * 7 + b"\x7f", b"\0" * 8, b"\xff" * 8):
        data[at : at + 8] = change
        (tmp_path / "x.arrow").write_bytes(data)
        with pytest.raises(PenstockError, match="cannot be decoded as arrow"):
            penstock.open(tmp_path / "x.arrow", index="memory")[0]
