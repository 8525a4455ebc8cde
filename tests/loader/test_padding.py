"""Padding of fields of different lengths, by the loaders and by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.errors import CollateError, UsageError

COUNT = 23


@pytest.fixture
def records(tmp_path: Path) -> penstock.Dataset:
    np.arange(COUNT, dtype=np.uint8).tofile(tmp_path / "r.bin")
    return penstock.open(tmp_path / "r.bin", record_bytes=1, index="memory")


def tokenize(sample: dict[str, Any]) -> dict[str, Any]:
    number = sample["__id__"]
    ids = list(range(number % 7))
    boxes = np.full((number % 3, 4), number, np.float32)
    return {"input_ids": ids, "labels": np.array(ids, np.int64), "boxes": boxes, "n": number}


PAD = penstock.pad({"input_ids": 0, "labels": -100, "boxes": -1}, multiple=4, mask="attention_mask")


def check(batch: dict[str, Any], ids: list[int]) -> None:
    """Check a batch against its samples, one value after the other."""
    assert list(batch) == ["input_ids", "labels", "boxes", "n", "attention_mask"]
    assert [int(n) for n in batch["n"]] == ids
    longest = max((number % 7 for number in ids), default=1)
    assert batch["labels"].shape[1] == -(-longest // 4) * 4
    for row, number in enumerate(ids):
        size = number % 7
        for name, fill in (("input_ids", 0), ("labels", -100)):
            values = batch[name][row].tolist()
            assert values == list(range(size)) + [fill] * (len(values) - size)
        assert batch["attention_mask"][row].tolist() == [int(k < size) for k in range(len(values))]
        assert (batch["boxes"][row][: number % 3] == number).all()
        assert (batch["boxes"][row][number % 3 :] == -1).all()


@pytest.mark.parametrize("world", [1, 4])
def test_loader(records: penstock.Dataset, world: int) -> None:
    """All fields are padded to the longest of the batch; an empty share has their structure."""
    for rank in range(world):
        loader = penstock.Loader(
            records, 5, seed=2, rank=rank, world_size=world, decode=tokenize, collate=PAD
        )
        for batch in loader:
            assert type(batch) is penstock.Batch
            if len(batch.ids):
                check(batch, batch.ids.tolist())
            assert {len(part) for part in batch.values()} == {len(batch.ids)}
            assert batch["labels"].dtype == batch["input_ids"].dtype == np.int64


@pytest.mark.parametrize(
    ("values", "sample", "match"),
    [
        ({"x": -100}, {"x": np.zeros(3, np.uint16)}, "uint16, which cannot hold the value -100"),
        ({"x": 0.5}, {"x": [1, 2]}, "int64, which cannot hold"),
        ({"y": 0}, {"x": [1]}, "has 'y'"),
        ({"x": 0}, [1, 2], "is list"),
        ({"x": 0}, {"x": "text"}, "is str"),
        ({"x": 0}, {"x": 3}, "is int"),
        ({"x": 0}, {"x": [1], "m": 1}, "field of the samples already"),
    ],
)
def test_samples_that_cannot_be_padded(values: dict[str, float], sample: Any, match: str) -> None:
    """Nothing is wrapped round or cut: the error names field, dtype and value."""
    with pytest.raises(CollateError, match=match):
        penstock.pad(values, mask="m")([sample])


def test_rows_that_do_not_fit() -> None:
    """Rows may differ in their first axis only; empty lists have any dtype."""
    pad = penstock.pad({"x": 7})
    for other in ([1.5], np.zeros(2, np.int32), np.zeros((1, 2), np.int64)):
        with pytest.raises(CollateError, match="only the first axis may differ"):
            pad([{"x": [1, 2]}, {"x": other}])
    assert pad([{"x": []}, {"x": [1.5]}, {"x": []}])["x"].tolist() == [[7], [1.5], [7]]
    assert pad([{"x": []}])["x"].shape == (1, 0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: penstock.pad({}),
        lambda: penstock.pad("labels"),  # type: ignore[arg-type]
        lambda: penstock.pad({"x": "0"}),  # type: ignore[dict-item]
        lambda: penstock.pad({"x": 0}, multiple=0),
        lambda: penstock.pad({"x": 0}, mask=3),  # type: ignore[arg-type]
    ],
)
def test_arguments(make: Any) -> None:
    """Wrong arguments are refused when the function is made."""
    with pytest.raises(UsageError, match="give|use"):
        make()
