"""Columns of nested types, their values, and what samples and batches have of them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

import penstock

_LEAVES = (
    pa.int8(),
    pa.int32(),
    pa.uint64(),
    pa.float32(),
    pa.string(),
    pa.large_binary(),
    pa.bool_(),
    pa.binary(3),
)


def types() -> Any:
    """Types of columns: lists and structs around leaves, and fixed-size lists of numbers."""

    def around(inner: Any) -> Any:
        lists = inner.map(pa.list_)
        structs = st.lists(inner, min_size=1, max_size=2).map(
            lambda parts: pa.struct([(f"f{i}", part) for i, part in enumerate(parts)])
        )
        return lists | inner.map(pa.large_list) | structs

    fixed = st.sampled_from([pa.list_(pa.float32(), 2), pa.list_(pa.list_(pa.int8(), 2), 3)])
    return st.recursive(st.sampled_from(_LEAVES) | fixed, around, max_leaves=4)


def make_value(kind: Any, random: np.random.Generator) -> Any:
    """A value of a type."""
    if pa.types.is_struct(kind):
        return {part.name: make_value(part.type, random) for part in kind}
    if pa.types.is_fixed_size_list(kind):
        return [make_value(kind.value_type, random) for _ in range(kind.list_size)]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [make_value(kind.value_type, random) for _ in range(random.integers(0, 4))]
    if pa.types.is_fixed_size_binary(kind):
        return random.bytes(kind.byte_width)
    if pa.types.is_boolean(kind):
        return bool(random.integers(2))
    if pa.types.is_string(kind):
        return "".join(random.choice(list("aé中"), random.integers(0, 5)))
    if pa.types.is_large_binary(kind):
        return random.bytes(int(random.integers(0, 5)))
    if pa.types.is_floating(kind):
        return float(random.choice([0.5, -0.0, 3.0, 1e-45, 3.4028234663852886e38, np.inf]))
    fit = np.iinfo(kind.to_pandas_dtype())
    edges = [0, 1, 99, fit.max, fit.min, min(fit.max, 2**53 + 1)]
    return int(edges[random.integers(len(edges))])


def spread(name: str, kind: Any, rows: list[Any]) -> dict[str, list[Any]]:
    """The fields that a column of this type is, and their values; None is an empty list or text."""
    if pa.types.is_struct(kind):
        parts: dict[str, list[Any]] = {}
        for part in kind:
            own = [None if row is None else row[part.name] for row in rows]
            parts |= spread(f"{name}.{part.name}", part.type, own)
        return parts
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        lists = [row or [] for row in rows]
        flat = spread(name, kind.value_type, [element for row in lists for element in row])
        ends = np.cumsum([0, *map(len, lists)]).tolist()
        return {
            key: [values[first:end] for first, end in itertools.pairwise(ends)]
            for key, values in flat.items()
        }
    if pa.types.is_fixed_size_binary(kind):
        return {name: [list(row) for row in rows]}
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return {name: [(row or "").encode() for row in rows]}
    return {name: [b"" if row is None else row for row in rows]}


def as_plain(value: Any, texts: bool) -> Any:
    """A field of a sample or a row of a batch as lists, numbers and bytes."""
    if isinstance(value, bytes | memoryview):
        return bytes(value)
    if isinstance(value, list | penstock.Ragged):
        return [as_plain(one, texts) for one in value]
    value = np.asarray(value)
    return (
        value.tobytes() if texts and value.dtype == np.uint8 and value.ndim == 1 else value.tolist()
    )


def assert_columns(dataset: penstock.Dataset, table: Any) -> None:
    """Samples and shuffled batches are the rows of the table."""
    with penstock.Loader(dataset, 4, rank=0, world_size=1, seed=1) as loader:
        columns = assert_batches(dataset, table, loader)
    for name, (values, texts) in columns.items():
        for number, value in enumerate(values):
            assert as_plain(dataset[number][name], texts) == value, (name, number)


def assert_batches(dataset: penstock.Dataset, table: Any, batches: Any) -> dict[str, Any]:
    """Batches are rows of the table. Returns the values of each field, and whether it has texts."""
    columns: dict[str, Any] = {}
    for column in table.schema:
        rows = table[column.name].to_pylist()
        for name, values in spread(column.name, column.type, rows).items():
            part = next(part for part in dataset.fields if part.name == name)
            columns[name] = values, part.shape is None and not part.element
    seen = 0
    for batch in batches:
        seen += len(batch.ids)
        for name, (values, texts) in columns.items():
            for row, number in zip(batch[name], batch.ids.tolist(), strict=True):
                assert as_plain(row, texts) == values[number], (name, number)
    assert seen
    return columns
