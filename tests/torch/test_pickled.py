"""Loaders go to spawned processes as torch's do, with their position."""

from __future__ import annotations

import copy
import itertools
import multiprocessing
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.errors import UsageError
from penstock.torch import DataLoader, DeviceLoader, StepLoader

ROWS, BATCH = 24, 4


def decode(sample: Any) -> Any:
    return sample["data"]


class Named(penstock.Loader):
    """Loader with arguments and attributes of its own, one of them set first."""

    def __init__(self, data: penstock.Dataset) -> None:
        self.first = "mine, too"
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
    "a device": lambda ds: DeviceLoader(ds, BATCH, shuffle=True, seed=3, device="cpu"),
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
    assert vars(sent).keys() == vars(loader).keys()
    for name in ("first", "label"):
        assert getattr(sent, name, None) == getattr(loader, name, None)
    for made in (loader, sent, expected):
        made.close()


def test_what_was_set_since_is_sent(records: penstock.Dataset) -> None:
    """Attributes that a user changes or adds, and another budget, go to copies of copies."""
    loader = DataLoader(list(range(ROWS)), BATCH, num_workers=1, timeout=5)
    loader.worker_init_fn, loader.timeout = list_batches, 60
    loader.note = "mine"  # type: ignore[attr-defined]
    plain = penstock.Loader(records, BATCH)
    plain.budget = penstock.Budget(threads=3)
    for _ in range(2):
        loader, plain = pickle.loads(pickle.dumps((loader, plain)))
    assert (loader.worker_init_fn, loader.timeout, loader.note) == (list_batches, 60, "mine")
    assert plain.budget == penstock.Budget(threads=3)
    with pytest.raises(ValueError, match="fixed"):
        loader.batch_size = 3


def go_on(loaders: list[Any], answers: Any) -> None:
    """Send the batches that loaders have in another process, in which this is called."""
    answers.send([list_batches(loader) for loader in loaders])
    for loader in loaders:
        loader.close()


def test_a_spawned_process_goes_on(records: penstock.Dataset) -> None:
    """Loaders that have run are arguments of a process that is spawned: it has what is left."""
    kinds = [kind for kind in KINDS if kind != "records, processes"]  # of daemons: no children
    loaders = [KINDS[kind](records) for kind in kinds]
    for loader in loaders:
        for _ in itertools.islice(loader, 2):
            pass
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=go_on, args=(loaders, theirs), daemon=True)
    child.start()
    theirs.close()
    sent = ours.recv()
    child.join(60)
    for kind, loader, batches in zip(kinds, loaders, sent, strict=True):
        loader.load_state_dict(loader.state_dict())
        assert len(batches) == ROWS // BATCH - 2, kind
        assert batches == list_batches(loader), kind
        loader.close()


def test_a_step_loader_says_what_to_do(records: penstock.Dataset) -> None:
    with pytest.raises(UsageError, match="make it there"):
        pickle.dumps(StepLoader(records, BATCH))
