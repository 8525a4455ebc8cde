"""Arrow columns of lists, structs and dictionaries; pyarrow is the oracle."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.errors import FormatError

pa = pytest.importorskip("pyarrow")
from .nested import assert_batches, assert_columns, make_value, types  # noqa: E402


def write(path: Path, table: Any, compression: str | None = None, batch: int = 4) -> Path:
    """A table as a stream of batches."""
    options = pa.ipc.IpcWriteOptions(compression=compression, emit_dictionary_deltas=True)
    with pa.ipc.new_stream(str(path), table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=batch)
    return path


@given(
    kinds=st.lists(types(), min_size=1, max_size=2),
    rows=st.integers(1, 12),
    skipped=st.integers(0, 5),
    compression=st.sampled_from([None, "zstd"]),
    seed=st.integers(0, 99),
)
def test_any_nested_column_reads_as_pyarrow_reads_it(
    kinds, rows, skipped, compression, seed, tmp_path_factory
):
    """Lists and structs in each other, in several batches, also of a slice of a table."""
    random = np.random.default_rng(seed)
    columns = {
        f"c{number}": pa.array([make_value(kind, random) for _ in range(rows + skipped)], kind)
        for number, kind in enumerate(kinds)
    }
    table = pa.table(columns).slice(skipped)
    path = write(tmp_path_factory.mktemp("x") / "x.arrow", table, compression)
    assert_columns(penstock.open(path, index="memory"), table)


@given(
    values=st.lists(st.sampled_from(["cat", "dog", "é", ""]), min_size=1, max_size=12),
    kind=st.sampled_from([pa.string(), pa.large_string(), pa.int32(), pa.float64()]),
    index=st.sampled_from([pa.int8(), pa.uint16(), pa.int64()]),
    compression=st.sampled_from([None, "lz4"]),
    grows=st.booleans(),
)
def test_dictionaries_read_as_their_values(
    values, kind, index, compression, grows, tmp_path_factory
):
    """Texts and numbers behind indices, also of a dictionary that grows or is replaced."""
    known = ["cat", "dog", "é", ""]
    numbers = [known.index(value) for value in values]
    plain = values if pa.types.is_string(kind) or pa.types.is_large_string(kind) else numbers
    column = pa.array(plain, kind)
    entries = pa.array(known if isinstance(plain[0], str) else range(4), kind)
    path = tmp_path_factory.mktemp("x") / "x.arrow"
    options = pa.ipc.IpcWriteOptions(compression=compression, emit_dictionary_deltas=grows)
    schema = pa.schema([("x", pa.dictionary(index, kind))])
    with pa.ipc.new_stream(str(path), schema, options=options) as writer:
        for first in range(0, len(values), 3):
            own = numbers[first : first + 3]
            held = entries[: max(own) + 1] if grows else entries
            coded = pa.DictionaryArray.from_arrays(pa.array(own, index), held)
            writer.write_batch(pa.record_batch([coded], schema=schema))
    sizes = [max(numbers[first : first + 3]) for first in range(0, len(values), 3)]
    if compression and grows and sizes != sorted(sizes, reverse=True):
        with pytest.raises(FormatError, match="grows, and is compressed"):
            penstock.open(path, index="memory")
        return
    dataset = penstock.open(path, index="memory")
    assert_columns(dataset, pa.table({"x": column}))


def test_a_dictionary_of_labels_names_the_classes(tmp_path):
    """Labels are indices into the names, also where files have other dictionaries."""
    for number, names in enumerate((["b", "a"], ["c", "a"])):
        column = pa.DictionaryArray.from_arrays([0, 1, 0], names)
        write(tmp_path / f"{number}.arrow", pa.table({"label": column, "n": range(3)}))
    dataset = penstock.open(tmp_path, index="memory")
    assert dataset.classes == ("b", "a", "c")
    assert [dataset.classes[each["label"]] for each in dataset] == ["b", "a", "b", "c", "a", "c"]


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_nulls_inside_lists(compression, tmp_path):
    """Null texts, lists and structs are empty where that is asked for; numbers are refused."""
    table = pa.table(
        {
            "t": [["a", None], None, [None], []],
            "s": pa.array(
                [[{"x": "a", "y": [1]}, None], [], None, [{"x": None, "y": None}]],
                pa.list_(pa.struct([("x", pa.string()), ("y", pa.list_(pa.int8()))])),
            ),
        }
    )
    path = write(tmp_path / "x.arrow", table, compression, 3)
    with pytest.raises(FormatError, match="fill it, or make them empty with nulls='empty"):
        penstock.open(path, index="memory")
    assert_columns(penstock.open(path, index="memory", nulls="empty"), table)
    write(path, pa.table({"n": [[1, None]]}), compression)
    with pytest.raises(FormatError, match="'n' has nulls inside of lists: fill them"):
        penstock.open(path, index="memory", nulls="empty")
    covering = pa.Array.from_buffers(
        pa.string(),
        2,
        [pa.py_buffer(b"\x01"), pa.py_buffer(np.array([0, 1, 2], "<i4")), pa.py_buffer(b"ab")],
    )
    write(path, pa.table({"t": pa.ListArray.from_arrays([0, 2], covering)}), compression)
    with pytest.raises(FormatError, match="t' has nulls in lists with content"):
        penstock.open(path, index="memory", nulls="empty")


def test_nested_fields_in_caches_mixtures_tensors_and_saved_indexes(tmp_path):
    """Ways that carry bytes carry nested rows; others, without a form for them, say so."""
    random = np.random.default_rng(0)
    kind = pa.list_(pa.struct([("role", pa.string()), ("ids", pa.list_(pa.int32()))]))
    table = pa.table({"chat": pa.array([make_value(kind, random) for _ in range(9)], kind)})
    for name, compression in (("a", None), ("b", "zstd")):
        write(tmp_path / f"{name}.arrow", table, compression)
    one, two = (penstock.open(tmp_path / f"{name}.arrow") for name in "ab")
    assert penstock.open(tmp_path / "a.arrow").sidecar is not None
    assert_columns(penstock.open(tmp_path / "a.arrow"), table)
    mixed = penstock.mix([(one, 1), (two, 1)], samples_per_epoch=18)
    rows = table["chat"].to_pylist()
    for batch in penstock.Loader(mixed, 6, rank=0, world_size=1):
        for row, number in enumerate(batch.ids.tolist()):
            roles = [bytes(role).decode() for role in batch["chat.role"][row]]
            assert roles == [part["role"] for part in rows[number % 9]]
            ids = [part.tolist() for part in batch["chat.ids"][row]]
            assert ids == [part["ids"] for part in rows[number % 9]]
    wide = penstock.open(tmp_path / "a.arrow", as_dtype="int64")
    batch = next(iter(penstock.Loader(wide, 9, rank=0, world_size=1)))
    assert batch["chat.ids"].values.values.dtype == np.int64
    with pytest.raises(penstock.errors.UsageError, match=r"'chat\.role' is of nested lists"):
        penstock.convert.convert(one, tmp_path / "out", to="tar")


def test_token_lists_of_arrow_and_parquet_mix(tmp_path):
    """Extents beside chunks that are decoded, of lists and of lists of texts."""
    pq = pytest.importorskip("pyarrow.parquet")
    random = np.random.default_rng(1)
    tokens = [random.integers(0, 99, n).astype("i4") for n in random.integers(0, 9, 12)]
    texts = [["é" * len(row)] * (len(row) % 3) for row in tokens]
    table = pa.table({"ids": pa.array(tokens, pa.list_(pa.int32())), "texts": texts})
    write(tmp_path / "x.arrow", table)
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=5)
    parts = [penstock.open(tmp_path / f"x.{end}", index="memory") for end in ("arrow", "parquet")]
    mixed = penstock.mix([(part, 1) for part in parts], samples_per_epoch=24)
    seen = []
    for batch in penstock.Loader(mixed, 8, rank=0, world_size=1):
        for row, number in enumerate(batch.ids.tolist()):
            seen.append(number)
            assert batch["ids"][row].tolist() == tokens[number % 12].tolist()
            assert [bytes(t).decode() for t in batch["texts"][row]] == texts[number % 12]
    assert {number // 12 for number in seen} == {0, 1}


def test_nested_batches_as_tensors(tmp_path):
    """Nested rows as tensors, by threads; what keeps data on a device says what it takes."""
    torch = pytest.importorskip("torch")
    import penstock.torch

    rows = [[[1, 2], []], [], [[3]]]
    table = pa.table({"x": pa.array(rows, pa.list_(pa.list_(pa.int64())))})
    dataset = penstock.open(write(tmp_path / "x.arrow", table), index="memory")
    loader = penstock.torch.DataLoader(dataset, batch_size=3, rank=0, world_size=1)
    (batch,) = list(loader)
    moved = batch.to("cpu")["x"]
    assert isinstance(moved.values.values, torch.Tensor)
    found = [[part.tolist() for part in row] for row in moved]
    assert found == [rows[number] for number in batch.ids.tolist()]
    with pytest.raises(penstock.errors.UsageError, match="lists of texts or lists"):
        next(iter(penstock.torch.DeviceLoader(dataset, batch_size=3, device="cpu")))


def test_lengths_count_numbers_of_lists_alone(tmp_path):
    """Offsets of nested rows are no tokens: beside token lists they do not count, alone nothing."""
    columns = {"input_ids": [[1, 2, 3], [4]], "chat": [["a", "bc"], []]}
    path = write(tmp_path / "x.arrow", pa.table(columns))
    assert list(penstock.open(path, index="memory").lengths) == [3, 1]
    nested = penstock.open(path, index="memory", fields="chat")
    with pytest.raises(penstock.errors.PenstockError):
        _ = nested.lengths
    boxes = pa.array([[[1, 2]], [[3, 4], [5, 6]]], pa.list_(pa.list_(pa.int32(), 2)))
    path = write(tmp_path / "y.arrow", pa.table({"tokens": boxes}))
    assert list(penstock.open(path, index="memory").lengths) == [1, 2]


@pytest.mark.long
def test_nested_rows_through_workers_and_caches(tmp_path):
    """Rows of any depth come whole from worker processes, and from a cache's memory and disk."""
    torch = pytest.importorskip("penstock.torch")
    pq = pytest.importorskip("pyarrow.parquet")
    random = np.random.default_rng(3)
    ids = pa.list_(pa.list_(pa.int32()))
    kinds = {
        "chat": pa.list_(pa.struct([("role", pa.string()), ("ids", ids), ("n", pa.uint64())])),
        "deep": pa.list_(pa.large_list(pa.list_(pa.string()))),
        "input_ids": pa.large_list(pa.uint16()),
    }
    table = pa.table(
        {
            name: pa.array([make_value(kind, random) if row % 5 else [] for row in range(23)], kind)
            for name, kind in kinds.items()
        }
    )
    write(tmp_path / "a.arrow", table)
    write(tmp_path / "b.arrow", table, "zstd")
    pq.write_table(table, tmp_path / "c.parquet", row_group_size=4)
    place = {"rank": 0, "world_size": 1, "seed": 1}
    caches = [{"ram_bytes": 1 << 20}, {"ram_bytes": 256, "disk_bytes": 1 << 20}]
    for name in ("a.arrow", "b.arrow", "c.parquet"):
        whole = penstock.open(tmp_path / name)
        for dataset in (whole, whole.select(range(1, 23, 2))):
            workers = {"num_workers": 2, "workers": "processes", "shuffle": True}
            with contextlib.closing(torch.DataLoader(dataset, 4, **workers, **place)) as loader:
                for _ in "ab":
                    assert_batches(dataset, table, loader)
            for number, options in enumerate(caches):
                folder = tmp_path / f"{name}{number}{len(dataset)}"
                disk = {"disk_path": folder} if "disk_bytes" in options else {}
                cache = penstock.Cache(**options, **disk)
                with penstock.Loader(dataset, 4, cache=cache, **place) as loader:
                    for _ in "ab":
                        assert_batches(dataset, table, loader)
