"""Parquet files; pyarrow is the oracle."""

from __future__ import annotations

import contextlib
import datetime
import json

import numpy as np
import pytest

import penstock
from penstock import limits
from penstock.errors import FormatError, UsageError
from penstock.index.codecs.thrift import pack_varint
from tests.slices import first

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
        "image": [row["bytes"] for row in plain["image"]],
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
@pytest.mark.parametrize("compression", first(1, ["snappy", "zstd", "none"]))
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
    """Maps, wrong names, files that differ or were cut."""
    path = tmp_path / "x.parquet"
    maps = pa.array([[(1, 2)], []], pa.map_(pa.int32(), pa.int32()))
    pq.write_table(pa.table({"l": maps, "n": [1, 2], "t": ["a", "b"]}), path)
    with pytest.raises(FormatError, match="is a map.*fields="):
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
    with pytest.raises(FormatError, match="is truncated"):
        penstock.open(path, index="memory")
    path.write_bytes(whole[:-4] + b"PARE")
    with pytest.raises(FormatError, match="encrypted"):
        penstock.open(path, index="memory")


def test_types_are_pyarrows(tmp_path):
    """Every number that Parquet knows by an annotation, as pyarrow decodes it by itself."""
    whole = [1, 2, 100]
    columns = {
        f"{k}{b}": pa.array(whole, f"{k}{b}") for k in ("int", "uint") for b in (8, 16, 32, 64)
    }
    columns |= {
        "u64": pa.array([0, 1, 2**64 - 1], pa.uint64()),
        "i8": pa.array([-128, 0, 127], pa.int8()),
        "half": pa.array(np.array(whole, "f2")),
        "double": pa.array([1.5, -0.0, np.inf]),
        "s": pa.array(whole, pa.timestamp("s")),
        "ns": pa.array([0, 10**9, 10**18], pa.timestamp("ns", "UTC")),
        "t32": pa.array(whole, pa.time32("ms")),
        "t64": pa.array(whole, pa.time64("us")),
        "span": pa.array(whole, pa.duration("us")),
        "dictionary": pa.array(["a", "b", "a"]).dictionary_encode(),
        "deep": pa.array([{"a": {"b": n}} for n in whole]),
    }
    table = pa.table(columns)
    for version in ("1.0", "2.4", "2.6"):
        path = tmp_path / f"{version}.parquet"
        pq.write_table(
            table, path, version=version, row_group_size=2, use_dictionary=["dictionary"]
        )
        dataset = penstock.open(path, index="memory")
        stored = pq.read_table(path).flatten().flatten()
        assert [part.name for part in dataset.fields] == stored.column_names
        for name in stored.column_names:
            column = stored[name].combine_chunks()
            if name == "dictionary":
                assert [each[name] for each in dataset] == [b"a", b"b", b"a"]
                continue
            if pa.types.is_temporal(column.type):
                column = column.cast(pa.int64() if column.type.bit_width == 64 else pa.int32())
            values = column.to_numpy(zero_copy_only=False)
            found = np.array([each[name] for each in dataset])
            assert (found.dtype, found.tolist()) == (values.dtype, values.tolist()), name
    pq.write_table(table.select(["ns"]), path, use_deprecated_int96_timestamps=True)
    assert [int(each["ns"]) for each in penstock.open(path, index="memory")] == [
        0,
        10**9,
        10**18,
    ]


def test_forms_differ(tmp_path):
    """Compression, page versions and whether nulls are allowed may differ between files."""
    for number, (compression, version) in enumerate(
        (("snappy", "1.0"), ("gzip", "2.0"), ("zstd", "1.0"), ("lz4", "2.0"), ("brotli", "1.0"))
    ):
        schema = pa.schema([pa.field("n", pa.int32(), nullable=number % 2 == 0)])
        table = pa.table({"n": pa.array(range(9 * number, 9 * number + 9), pa.int32())}, schema)
        pq.write_table(
            table,
            tmp_path / f"{number}.parquet",
            row_group_size=4,
            compression=compression,
            data_page_version=version,
            write_page_checksum=True,
        )
    dataset = penstock.open(tmp_path, index="memory")
    assert [int(each["n"]) for each in dataset] == list(range(45))
    assert len(dataset.index.fields[0].codec.options["forms"]) == 5


def test_checksums_of_pages(tmp_path):
    """A damaged page is an error where the writer left checksums."""
    path = tmp_path / "x.parquet"
    table = pa.table({"n": np.arange(1000)})
    pq.write_table(table, path, write_page_checksum=True, compression="none", use_dictionary=False)
    data = bytearray(path.read_bytes())
    data[4000] ^= 1
    path.write_bytes(data)
    with pytest.raises(FormatError, match="(?i)crc|checksum"):
        penstock.open(path, index="memory")[0]


def test_thrift_is_bounded():
    """Nesting, lengths and integers beyond their bounds are refused; unknown fields are skipped."""
    from penstock.index.codecs.thrift import (
        BYTES,
        I32,
        I64,
        INT,
        LIST,
        STRING,
        STRUCT,
        ThriftReader,
        pack_struct,
    )

    inner = pack_struct([(1, I64, -(1 << 63)), (2, STRING, b"abc")])
    data = pack_struct([(1, I32, -5), (3, LIST, (STRUCT, [inner] * 20)), (9, STRING, b"x" * 300)])
    shape = {1: INT, 3: [{1: INT, 2: BYTES}], 9: BYTES}
    assert ThriftReader(data).struct(shape) == {
        1: -5,
        3: [{1: -(1 << 63), 2: b"abc"}] * 20,
        9: b"x" * 300,
    }
    assert ThriftReader(data).struct({9: BYTES}) == {9: b"x" * 300}
    # A boolean, a byte, a double, lists of both kinds of size, a set and two maps, then field 20.
    others = b"\x11\x12\x13\xff\x17" + bytes(8) + b"\x19\x21\x01\x02\x19\xf5\x10" + b"\x02" * 16
    others += b"\x1a\x18\x01z\x1b\x00\x1b\x01\x85\x01q\x02\x05\x28\x0e\x00"
    assert ThriftReader(others).struct({20: INT}) == {20: 7}
    for end in range(len(data)):
        with pytest.raises(ValueError, match="bytes into it"):
            ThriftReader(data[:end]).struct(shape)
    for wrong, message in (
        (b"\x1c" * 100, "more than 32"),
        (b"\x19\x19" + b"\x19" * 100, "more than 32"),
        (b"\x19\xfc\xff\xff\xff\xff\x0f\x00", "a length of 4,294,967,295"),
        (b"\x18\x05abcd", "a length of 5"),
        (b"\x16" + b"\xff" * 11, "more than 10 bytes"),
        (b"\x16" + b"\xff" * 9 + b"\x7f\x00", "more than 64 bits"),
        (b"\x1d\x00", "type 13"),
    ):
        for shape in ({}, {1: INT}):
            with pytest.raises(ValueError, match=f"{message}|type"):
                ThriftReader(wrong).struct(shape)


def test_the_footer_is_not_pyarrows(tmp_path):
    """Indexing needs no pyarrow, and a footer that ends its process is none of its business."""
    import os
    import subprocess
    import sys

    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"n": [1, 2], "t": ["a", "b"]}), path)
    program = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "import penstock; print(len(penstock.open(sys.argv[1], index='memory')))"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, env=env
    )
    assert done.stdout == "2\n", done.stderr


@contextlib.contextmanager
def most_allocated():
    """The most bytes that pyarrow had allocated at once, of those allocated inside."""
    plain = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(plain)
    pa.set_memory_pool(pool)
    try:
        yield pool.max_memory
    finally:
        pa.set_memory_pool(plain)


LONG_BYTES = 1 << 20
ENCODINGS = {
    "dictionary": {},
    "delta": {"use_dictionary": False, "column_encoding": {"x": "DELTA_BYTE_ARRAY"}},
}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_long_strings_that_repeat_take_no_memory(encoding, tmp_path, monkeypatch):
    """A row group of few bytes whose strings take more than a chunk may is refused before they
    do; those of a dictionary are not made at all."""
    monkeypatch.setattr(limits, "decoded_chunk_bytes_max", 16 * LONG_BYTES)
    table = pa.table({"x": pa.array([b"y" * LONG_BYTES] * 100)})
    pq.write_table(table, tmp_path / "x.parquet", compression="zstd", **ENCODINGS[encoding])
    assert (tmp_path / "x.parquet").stat().st_size < LONG_BYTES
    data = penstock.open(tmp_path / "x.parquet", index="memory")
    with most_allocated() as most, pytest.raises(FormatError, match="its values take"):
        data[0]
    assert most() < (4 if encoding == "dictionary" else 40) * LONG_BYTES


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_strings_that_might_grow_are_read_in_parts(encoding, tmp_path, monkeypatch):
    """Strings that fit come out as they are, also where long ones might have repeated."""
    monkeypatch.setattr(limits, "decoded_chunk_bytes_max", 16 * LONG_BYTES)
    texts = [b"y" * (LONG_BYTES if row == 7 else row % 5) for row in range(200)]
    pq.write_table(pa.table({"x": texts}), tmp_path / "x.parquet", **ENCODINGS[encoding])
    data = penstock.open(tmp_path / "x.parquet", index="memory")
    assert [bytes(data[row]["x"]) for row in range(200)] == texts


def test_pages_beyond_the_footer_take_no_memory(tmp_path):
    """Pages that claim far more than the footer says are refused before pyarrow sees them."""
    zeros, path = 32 * LONG_BYTES, tmp_path / "x.parquet"
    table = pa.table({"x": pa.array(np.zeros(zeros // 8))})
    pq.write_table(table, path, compression="zstd", use_dictionary=False)
    stated = pq.read_metadata(path).row_group(0).column(0).total_uncompressed_size
    head, end = path.read_bytes()[:-5_000_000], path.read_bytes()[-5_000_000:]
    lie = pack_varint(2 * LONG_BYTES)
    assert len(lie) == len(pack_varint(2 * stated))
    path.write_bytes(head + end.replace(pack_varint(2 * stated), lie))
    data = penstock.open(path, index="memory")
    with most_allocated() as most, pytest.raises(FormatError, match="where the footer says"):
        data[0]
    assert most() < LONG_BYTES


def test_times_that_nanoseconds_do_not_hold(tmp_path):
    """Spark's INT96 reaches to the year 9999; pyarrow wraps what 64 bits of nanoseconds lack."""
    path = tmp_path / "times.parquet"
    far, last = datetime.datetime(9999, 12, 31), datetime.datetime(2262, 4, 11, 23)
    plain = pa.timestamp("us")
    for kind, wrap in ((plain, lambda t: t), (pa.list_(plain), lambda t: [t])):
        for times in ([last, far], [last, last]):
            table = pa.table({"t": pa.array(list(map(wrap, times)), kind)})
            pq.write_table(table, path, use_deprecated_int96_timestamps=True)
            dataset = penstock.open(path, index="memory")
            if far in times:
                with pytest.raises(FormatError, match="TIMESTAMP"):
                    dataset[0]
            else:
                assert int(np.ravel(dataset[0]["t"])[0]) == 9223369200 * 10**9


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"a": pa.array([1], pa.int32())}, "'a' is int32, and there int64"),
        ({"a": [[1]]}, "'a' is lists of int64, and there int64"),
        ({"b": ["x"]}, "'a' is missing, and there int64"),
        ({"a": [1], "b": ["x"]}, "'b' is bytes, and there missing"),
    ],
)
def test_files_of_other_columns(values, message, tmp_path):
    """The first column that differs is named, with what it is in both files."""
    pq.write_table(pa.table({"a": [1]}), tmp_path / "0.parquet")
    pq.write_table(pa.table(values), tmp_path / "1.parquet")
    with pytest.raises(FormatError, match=f"1.parquet has other columns .*0.parquet .{message}"):
        penstock.open(tmp_path)


def test_files_whose_numbers_mean_other_things(tmp_path):
    """Times of two units, and numbers of other classes, are not one column."""
    for number, unit in enumerate(["ms", "us"]):
        table = pa.table({"t": pa.array([5], pa.timestamp(unit))})
        pq.write_table(table, tmp_path / f"{number}.parquet")
        with pa.ipc.new_stream(tmp_path / f"{number}.arrow", table.schema) as writer:
            writer.write_table(table)
    for pattern in ("*.parquet", "*.arrow"):
        with pytest.raises(FormatError, match=r"not as in|other columns than"):
            penstock.open(tmp_path / pattern)
    for number, names in enumerate([["cat", "dog"], ["dog", "cat"]]):
        features = {"label": {"names": names, "_type": "ClassLabel"}}
        metadata = {"huggingface": json.dumps({"info": {"features": features}})}
        table = pa.table({"label": [0, 1], "x": [1, 2]}).replace_schema_metadata(metadata)
        pq.write_table(table, tmp_path / f"l{number}.pq")
        with pa.ipc.new_stream(tmp_path / f"l{number}.ipc", table.schema) as writer:
            writer.write_table(table)
    for pattern in ("*.pq", "*.ipc"):
        with pytest.raises(FormatError, match=r"'dog', 'cat'.*'cat', 'dog'.*mean two"):
            penstock.open(tmp_path / pattern)
        assert len(penstock.open(tmp_path / pattern, label="")) == 4
