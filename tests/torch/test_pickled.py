"""Loaders go to spawned processes as torch's do, with their position."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.errors import UsageError
from penstock.torch import DataLoader, StepLoader

ROWS, BATCH = 24, 4


def decode(sample: Any) -> Any:
    return sample["data"]


class Named(penstock.Loader):
    """Loader with an attribute and arguments of its own."""

    def __init__(self, data: penstock.Dataset) -> None:
        super().__init__(data, BATCH, seed=2)
        self.label = "mine"


KINDS: dict[str, Callable[[penstock.Dataset], Any]] = {
    "arrays": lambda ds: penstock.Loader(ds, BATCH, seed=3),
    "decoded": lambda ds: penstock.Loader(ds, BATCH, seed=3, decode=decode, decode_threads=1),
    "a subclass": Named,
    "tensors": lambda ds: DataLoader(ds, BATCH, shuffle=True, seed=3),
    "records, processes": lambda ds: DataLoader(ds, BATCH, num_workers=1, workers="processes"),
    "items": lambda ds: DataLoader(list(range(ROWS)), BATCH, shuffle=True, seed=3),
    "items, a sampler": lambda ds: DataLoader(list(range(ROWS)), BATCH, sampler=range(ROWS)),
}


@pytest.fixture
def records(tmp_path: Path) -> penstock.Dataset:
    np.save(tmp_path / "rows.npy", np.arange(ROWS, dtype=np.int64)[:, None])
    return penstock.open(tmp_path / "rows.npy", index="memory")


def list_batches(loader: Any) -> list[list[int]]:
    fields = [batch["data"] if hasattr(batch, "keys") else batch for batch in loader]
    return [np.asarray(field).ravel().tolist() for field in fields]


@pytest.mark.parametrize("send", [lambda x: pickle.loads(pickle.dumps(x)), copy.deepcopy])
@pytest.mark.parametrize("steps", [0, 2, ROWS // BATCH])
@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_goes_on_at_the_position(
    records: penstock.Dataset, kind: str, steps: int, send: Callable[[Any], Any]
) -> None:
    """A copy of a loader that has run is a loader with its state, and independent of it."""
    loader = KINDS[kind](records)
    for _ in itertools.islice(loader, steps):
        pass
    state = loader.state_dict() if steps else None
    sent = send(loader)
    expected = KINDS[kind](records)
    if state is not None:
        expected.load_state_dict(state)
    assert list_batches(sent) == list_batches(expected)
    assert list_batches(sent) == list_batches(expected)
    assert getattr(sent, "label", None) == getattr(loader, "label", None)
    for made in (loader, sent, expected):
        made.close()


def test_a_step_loader_says_what_to_do(records: penstock.Dataset) -> None:
    with pytest.raises(UsageError, match="make it there"):
        pickle.dumps(StepLoader(records, BATCH))
