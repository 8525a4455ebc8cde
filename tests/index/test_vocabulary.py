"""Vocabularies: tokens beyond them are found in every container that holds tokens."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.errors import FormatError, UsageError
from penstock.index.vocabulary import find_foreign_token

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

LISTS = [[1, 2, 3], [], [4, 6], [5]]


@given(
    dtype=st.sampled_from(["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"]),
    vocabulary=st.sampled_from([1, 2, 127, 128, 256, 2**15, 2**16, 2**31, 2**32, 2**62]),
    near=st.lists(st.integers(-2, 2), max_size=5),
)
def test_the_first_foreign_token_is_found(dtype: str, vocabulary: int, near: list[int]) -> None:
    """At the edges of every type, negative ones too."""
    fit = np.iinfo(dtype)
    wanted = [0, *(vocabulary + step for step in near), *near, fit.max, fit.min]
    tokens = np.array([token for token in wanted if fit.min <= token <= fit.max], dtype)
    for part in (tokens, tokens[::-1], tokens[::2], tokens[:0]):
        foreign = [k for k, token in enumerate(part.tolist()) if not 0 <= token < vocabulary]
        assert find_foreign_token(part, vocabulary) == (foreign[0] if foreign else None)


def read_all(dataset: penstock.Dataset) -> int:
    with penstock.Loader(dataset, 2, seed=0, drop_last=False) as loader:
        return sum(len(batch.ids) for batch in loader)


def write_columns(folder: Path) -> list[str]:
    table = pa.table({"input_ids": LISTS, "mask": LISTS, "parts": [[row, row] for row in LISTS]})
    paths = [str(folder / name) for name in ("a.parquet", "a.arrow", "b.arrow")]
    pq.write_table(table, paths[0])
    for path, compression in ((paths[1], None), (paths[2], "zstd")):
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with pa.ipc.new_stream(path, table.schema, options=options) as writer:
            writer.write_table(table)
    return paths


def test_columns_of_tokens(tmp_path: Path) -> None:
    """Lists and lists of lists of Arrow and Parquet; pickles and mixtures keep the vocabulary."""
    for path in write_columns(tmp_path):
        assert read_all(penstock.open(path, vocabulary=7)) == 4
        assert read_all(penstock.open(path, vocabulary={"input_ids": 7})) == 4
        dataset = penstock.open(path, vocabulary=6, as_dtype="int64")
        wanted = r"sample 2 .*'input_ids' has the token 6 at position 1, .* of 6 tokens"
        for one in (dataset, pickle.loads(pickle.dumps(dataset)), dataset.select([1, 2])):
            with pytest.raises(FormatError, match=wanted):
                read_all(one)
        with pytest.raises(FormatError, match=wanted):
            dataset[2]
        with pytest.raises(FormatError, match=r"sample 2 .*'parts' has the token 6 at position 1"):
            read_all(penstock.open(path, vocabulary={"parts": 6}))
    mixed = penstock.mix([(dataset, 1), (dataset.select([0, 1]), 1)])
    with pytest.raises(FormatError, match="has the token 6 at position 1"):
        read_all(mixed)
    with pytest.raises(UsageError, match="'vocabulary 6'"):
        penstock.mix([(dataset, 1), (penstock.open(path, as_dtype="int64"), 1)])


def test_packed_rows(tmp_path: Path) -> None:
    """Packed documents, and parts of cut ones, by their place in the document."""
    documents = [[1, 2, 3], [4, 5, 6, 7, 1, 2, 3, 4, 5, 9, 1], [5]] * 9
    table = pa.table({"input_ids": pa.array(documents, pa.list_(pa.int32()))})
    path = tmp_path / "documents.arrow"
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table)
    for vocabulary in (10, 9):
        dataset = penstock.open(path, vocabulary=vocabulary)
        for data in (dataset, penstock.mix([(dataset, 1), (dataset.select([0, 1]), 1)])):
            with penstock.Loader(penstock.pack(data, 8), 2, seed=0) as loader:
                if vocabulary == 10:
                    assert next(iter(loader))["input_ids"].shape == (2, 8)
                    continue
                with pytest.raises(FormatError, match="has the token 9 at position 9, beyond"):
                    list(loader)


def test_windows_and_records(tmp_path: Path) -> None:
    """Flat tokens, Megatron's documents and windows of them, and records."""
    tokens = np.arange(640, dtype=np.uint16) % 100
    tokens[300] = 60_000
    tokens.tofile(tmp_path / "flat.bin")
    flat: dict[str, Any] = {"window": 64, "dtype": "uint16"}
    assert read_all(penstock.open(tmp_path / "flat.bin", **flat, vocabulary=60_001)) == 9
    dataset = penstock.open(tmp_path / "flat.bin", **flat, vocabulary=100)
    assert len(dataset[3]["tokens"]) == 65
    with pytest.raises(FormatError, match=r"flat.bin .* token 60000 at position 44, "):
        dataset[4]
    rows = penstock.open(tmp_path / "flat.bin", dtype="u2", shape=(4, 16), vocabulary=50_257)
    with pytest.raises(FormatError, match="sample 4 .* token 60000 at position 44, "):
        read_all(rows)


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [
        (0, "vocabulary"),
        (-1, "vocabulary"),
        (1.5, "vocabulary"),
        ({"ids": 5}, "has 'ids', and .* has rows of whole numbers in input_ids, mask, parts"),
        ({"input_ids": None}, "vocabulary"),
    ],
)
def test_wrong_vocabularies(tmp_path: Path, vocabulary: Any, message: str) -> None:
    """A vocabulary is a number of tokens, of a field that has such."""
    path = write_columns(tmp_path)[0]
    with pytest.raises(UsageError, match=message):
        penstock.open(path, vocabulary=vocabulary)
    with pytest.raises(UsageError, match="parquet has rows of whole numbers in mask, parts"):
        penstock.open(path, vocabulary=5, fields=["mask", "parts"])
    (tmp_path / "lines.jsonl").write_text('{"ids": [1], "n": 1}\n')
    for fields, more in (
        (None, {}),
        (["n"], {}),
        (["ids", "n"], {"vocabulary": {"n": 5}}),
        (["ids"], {"vocabulary": 5, "defaults": {"ids": [5]}}),
    ):
        with pytest.raises(UsageError, match=r"rows of whole numbers|the token 5 at position 0"):
            penstock.open(tmp_path / "lines.jsonl", fields=fields, **{"vocabulary": 5} | more)


@pytest.mark.parametrize("as_dtype", [None, "int32"])
def test_tokens_in_lines(tmp_path: Path, as_dtype: str | None) -> None:
    """A token list of JSON with a token beyond the vocabulary is a broken line: an error that names
    line, field, position and token, or masked; also by `decode=` of a mixture."""
    path = tmp_path / "lines.jsonl"
    rows = [[1, 2], [], [4, 0, 5], [3], [-1]]
    path.write_text("".join(f'{{"ids": {row}, "n": 9}}\n' for row in rows))
    options: dict[str, Any] = {"fields": ["ids", "n"], "as_dtype": as_dtype, "vocabulary": 5}
    dataset = penstock.open(path, **options)
    found = pickle.loads(pickle.dumps(dataset))
    assert [found[row]["ids"].tolist() for row in (0, 1, 3)] == [[1, 2], [], [3]]
    both = [(dataset, 1), (penstock.open(path, **options), 1)]

    def count(sample: Any) -> int:
        return len(sample["ids"])

    message = r"(line 3|jsonl#2).*: field 'ids' has the token 5 at position 2, beyond "
    for act in (
        lambda: found[2],
        lambda: read_all(dataset),
        lambda: read_all(penstock.mix(both)),
        lambda: list(penstock.Loader(penstock.mix(both, decode=[count, count]), 2, seed=0)),
    ):
        with pytest.raises(FormatError, match=message):
            act()
    with pytest.raises(FormatError, match="has the token -1 at position 0"):
        dataset[4]
    masked = penstock.open(path, broken="mask", **options)
    batch = next(iter(penstock.Loader(masked, batch_size=5, shuffle="none", seed=0)))
    assert batch["broken"].tolist() == [False, False, True, False, True]
    assert batch["ids"].values.tolist() == [1, 2, 3]
