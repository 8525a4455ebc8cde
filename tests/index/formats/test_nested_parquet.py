"""Parquet columns of lists and structs; pyarrow is the oracle."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.errors import FormatError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
from .nested import assert_columns, make_value, types  # noqa: E402


@given(
    kinds=st.lists(types(), min_size=1, max_size=2),
    rows=st.integers(1, 12),
    group=st.integers(1, 6),
    dictionary=st.booleans(),
    version=st.sampled_from(["1.0", "2.0"]),
    seed=st.integers(0, 99),
)
def test_any_nested_column_reads_as_pyarrow_reads_it(
    kinds, rows, group, dictionary, version, seed, tmp_path_factory
):
    """Lists and structs in each other, in several row groups and pages."""
    random = np.random.default_rng(seed)
    table = pa.table(
        {
            f"c{number}": pa.array([make_value(kind, random) for _ in range(rows)], kind)
            for number, kind in enumerate(kinds)
        }
    )
    path = tmp_path_factory.mktemp("x") / "x.parquet"
    pq.write_table(
        table,
        path,
        row_group_size=group,
        use_dictionary=dictionary,
        # pyarrow 26 loses or refuses nested booleans that it has written in pages of version 2
        data_page_version="1.0" if "bool" in str(kinds) else version,
        data_page_size=16,
        write_batch_size=2,
    )
    assert_columns(penstock.open(path, index="memory"), table)


def test_nulls_in_lists(tmp_path):
    """An error at the read that names the column, or empty; numbers are never made up."""
    path = tmp_path / "x.parquet"
    table = pa.table({"t": [["a", None], None, []], "n": [[[1], None], [], None]})
    pq.write_table(table, path)
    dataset = penstock.open(path, index="memory")
    message = (
        "row 1, sample 1 of the data: a value of column 't' is null: fill it, or "
        r"make such empty with nulls='empty'$"
    )
    with pytest.raises(FormatError, match=message):
        dataset[0]
    assert_columns(penstock.open(path, index="memory", nulls="empty"), table)
    rows: list[object] = [[[1]], [], [[], [2]], [[3], [4, None]], [[5]]]
    pq.write_table(pa.table({"n": rows}), path, row_group_size=3)
    dataset = penstock.open(path, index="memory", nulls="empty")
    assert dataset[2]["n"][1].tolist() == [2]
    message = "row 0, sample 3 of the data: a value inside of a list of column 'n'"
    with pytest.raises(FormatError, match=rf"{message} is null: fill it$"):
        dataset[4]
    mixed = penstock.mix([(penstock.open(path, index="memory"), 1), (dataset, 1)])
    with pytest.raises(FormatError, match=message):
        mixed[9]


def test_files_as_the_hub_has_them(tmp_path):
    """An image is its bytes, and a path that may be null; the metadata name the classes."""
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    images = [{"bytes": b"1", "path": "a.jpg"}, {"bytes": b"22", "path": None}]
    table = pa.table(
        {
            "image": pa.array(images, image),
            "crops": pa.array([images, []], pa.list_(image)),
            "label": [1, 0],
        }
    )
    info = json.dumps({"info": {"features": {"label": {"names": ["cat", "dog"]}}}})
    pq.write_table(table.replace_schema_metadata({"huggingface": info}), tmp_path / "x.parquet")
    dataset = penstock.open(tmp_path / "x.parquet", index="memory")
    assert dataset.classes == ("cat", "dog")
    names = ["image", "image.path", "crops", "crops.path"]
    assert [part.name for part in dataset.fields] == names
    assert [dataset[1][name] for name in names] == [b"22", b"", [], []]
    assert [dataset[0][name] for name in names] == [b"1", b"a.jpg", [b"1", b"22"], [b"a.jpg", b""]]


def test_lists_of_older_writers(tmp_path):
    """Names of the groups that make a list do not show, whatever they are."""
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"ids": [[1, 2], [], [3]]}), path, use_compliant_nested_type=False)
    assert b"item" in path.read_bytes()
    dataset = penstock.open(path, index="memory")
    assert [part.name for part in dataset.fields] == ["ids"]
    assert [each["ids"].tolist() for each in dataset] == [[1, 2], [], [3]]
