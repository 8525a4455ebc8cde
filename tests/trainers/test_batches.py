"""Batches as trainers take them: moved, rebuilt, traced; each by the trainer's own function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock

torch = pytest.importorskip("torch")


@pytest.fixture
def batch(tmp_path: Path) -> penstock.Batch:
    from penstock.torch import DataLoader

    np.save(tmp_path / "x.npy", np.arange(37 * 6, dtype=np.int32).reshape(37, 6))
    loader = DataLoader(
        penstock.open(tmp_path / "x.npy", index="memory"),
        8,
        shuffle=True,
        seed=1,
        decode=lambda sample: {"x": sample["data"], "labels": sample["__id__"]},
    )
    first: penstock.Batch = next(iter(loader))
    return first


def assert_fields(moved: Any, batch: penstock.Batch) -> None:
    assert type(moved) is penstock.Batch
    assert dict(moved).keys() == dict(batch).keys()
    assert all(torch.equal(moved[name], batch[name]) for name in batch)


def test_accelerate(batch: penstock.Batch) -> None:
    """A batch is moved by `to`, and its size known; mappings made of it have the fields."""
    operations = pytest.importorskip("accelerate.utils.operations")
    moved = operations.send_to_device(batch, "cpu")
    assert moved == batch
    assert moved.ids.tolist() == batch.ids.tolist() == batch["labels"].tolist()
    assert operations.find_batch_size(batch) == 8
    assert_fields(operations.concatenate([operations.slice_tensors(batch, slice(0, 8))]), batch)


def test_lightning(batch: penstock.Batch) -> None:
    """A batch is moved by `to`, and its size is known."""
    lightning = pytest.importorskip("pytorch_lightning.utilities")
    from pytorch_lightning.utilities.data import extract_batch_size

    assert lightning.move_data_to_device(batch, torch.device("cpu")) == batch
    assert extract_batch_size(batch) == 8


def test_transformers(batch: penstock.Batch, tmp_path: Path) -> None:
    """The Trainer makes another mapping of the fields, which a model takes as arguments."""
    transformers = pytest.importorskip("transformers")
    model = torch.nn.Linear(6, 1)
    arguments = transformers.TrainingArguments(str(tmp_path), use_cpu=True, report_to=[])
    prepared = transformers.Trainer(model, arguments)._prepare_inputs(batch)
    assert_fields(prepared, batch)
    with pytest.raises(AttributeError, match="made of fields alone"):
        prepared.ids  # noqa: B018
    assert (lambda x, labels: len(x) + len(labels))(**prepared) == 16


@pytest.mark.long
def test_compile(batch: penstock.Batch) -> None:
    """torch.compile traces through a batch as through a dict."""
    compiled = torch.compile(lambda batch: batch["x"].sum(), backend="eager", fullgraph=True)
    assert compiled(batch) == batch["x"].sum()
    names = torch.compile(
        lambda batch: [name + "!" for name in batch], backend="eager", fullgraph=True
    )
    assert names(batch) == [name + "!" for name in batch]
