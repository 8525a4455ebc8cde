"""Parquet files; pyarrow is the oracle."""

from __future__ import annotations

import numpy as np
import pytest

import penstock
from penstock.errors import FormatError, UsageError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def table_of(rows: int, seed: int = 0):
    """A column of each kind."""
    random = np.random.default_rng(seed)
    texts = [random.bytes(int(n)).hex() for n in random.integers(0, 20, rows)]
    return pa.table(
        {
            "image": pa.array(
                [{"bytes": text.encode(), "path": text} for text in texts],
                pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
            ),
            "text": pa.array(texts, pa.string()),
            "large": pa.array(texts, pa.large_string()),
            "id": pa.array(random.integers(0, 99, rows), pa.uint16()),
            "label": pa.array(random.integers(0, 9, rows)),
            "real": random.random(rows).astype("f4"),
            "hash": pa.array([random.bytes(5) for _ in range(rows)], pa.binary(5)),
            "flag": random.integers(0, 2, rows).astype(bool),
            "when": pa.array(random.integers(0, 10**15, rows), pa.timestamp("us")),
            "day": pa.array(random.integers(0, 9999, rows).astype("i4"), pa.date32()),
        }
    )


def assert_rows(dataset: penstock.Dataset, table) -> None:
    """Samples, one by one and in batches, are the rows of the table."""
    plain = table.to_pydict()
    fields = {
        "image.bytes": [row["bytes"] for row in plain["image"]],
        "image.path": [row["path"].encode() for row in plain["image"]],
        "text": [text.encode() for text in plain["text"]],
        "large": [text.encode() for text in plain["large"]],
        "id": [np.array(n, "<u2") for n in plain["id"]],
        "real": [np.array(n, "<f4") for n in plain["real"]],
        "hash": [np.frombuffer(each, "u1") for each in plain["hash"]],
        "flag": [np.array(each) for each in plain["flag"]],
        "when": [np.array(n) for n in table["when"].cast(pa.int64()).to_pylist()],
        "day": [np.array(n, "i4") for n in table["day"].cast(pa.int32()).to_pylist()],
    }
    assert [part.name for part in dataset.fields] == list(fields)
    assert len(dataset) == len(table)

    def check(found, name: str, number: int) -> None:
        value = fields[name][number]
        data = found.tobytes() if isinstance(found, np.ndarray) else bytes(found)
        assert data == (value if isinstance(value, bytes) else value.tobytes()), (name, number)

    for number in range(len(table)):
        sample = dataset[number]
        assert sample["label"] == plain["label"][number]
        for name in fields:
            check(sample[name], name, number)
    for batch in penstock.Loader(dataset, 5, rank=0, world_size=1):
        assert batch["label"].tolist() == [plain["label"][i] for i in batch.ids.tolist()]
        for name in fields:
            for row, number in enumerate(batch.ids.tolist()):
                check(np.asarray(batch[name][row]), name, number)


@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize("compression", ["snappy", "zstd", "none"])
def test_rows_are_pyarrows(compression, dictionary, tmp_path):
    """Every kind of column, in several row groups and files."""
    tables = [table_of(30, 1), table_of(1, 2), table_of(0, 3), table_of(8, 4)]
    for number, table in enumerate(tables):
        pq.write_table(
            table,
            tmp_path / f"{number}.parquet",
            row_group_size=7,
            compression=compression,
            use_dictionary=dictionary,
        )
    assert_rows(penstock.open(tmp_path, index="memory"), pa.concat_tables(tables))
    assert_rows(penstock.open(tmp_path / "1.parquet", index="memory"), tables[1])


def test_nulls(tmp_path):
    """A null is an error at the open, or without statistics at the read; or empty on request."""
    path = tmp_path / "x.parquet"
    table = pa.table({"text": ["a", None, "bc"], "n": [1, None, 3], "m": [1, 2, 3]})
    for statistics in (True, False):
        pq.write_table(table, path, write_statistics=statistics)
        for name, nulls in (("text", "error"), ("n", "empty")):
            with pytest.raises(FormatError, match="null"):
                penstock.open(path, index="memory", fields=[name], nulls=nulls)[1]
        dataset = penstock.open(path, index="memory", fields="text", label="m", nulls="empty")
        assert [each["text"] for each in dataset] == [b"a", b"", b"bc"]
        with pytest.raises(FormatError, match="null"):
            penstock.open(path, index="memory", fields="text", label="n", nulls="empty")


def test_what_is_refused(tmp_path):
    """Lists, decimals, wrong names, files that differ or were cut."""
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"l": [[1], [2]], "n": [1, 2], "t": ["a", "b"]}), path)
    with pytest.raises(FormatError, match="is a list.*fields="):
        penstock.open(path, index="memory")
    assert [int(each["n"]) for each in penstock.open(path, index="memory", fields="n")] == [1, 2]
    with pytest.raises(UsageError, match="no column 'x'"):
        penstock.open(path, index="memory", fields="x")
    with pytest.raises(UsageError, match="use integers"):
        penstock.open(path, index="memory", fields="n", label="t")
    pq.write_table(pa.table({"n": [1.0, 2.0]}), tmp_path / "y.parquet")
    with pytest.raises(FormatError, match="other columns"):
        penstock.open(tmp_path, index="memory", fields="n")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(FormatError, match="was cut"):
        penstock.open(path, index="memory")
    path.write_bytes(whole[:-4] + b"PARE")
    with pytest.raises(FormatError, match="encrypted"):
        penstock.open(path, index="memory")
