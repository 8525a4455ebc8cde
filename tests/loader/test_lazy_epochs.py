"""`iter` opens nothing: an epoch is begun by the first `next`, or by `begin`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from tests.loader.test_dropped import held

torch_loaders = pytest.importorskip("penstock.torch")

COUNT, BATCH = 40, 8


class Numbers:
    """Map-style dataset of the numbers themselves."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, i: int) -> int:
        return i


@pytest.fixture
def records(tmp_path: Path) -> penstock.Dataset:
    np.save(tmp_path / "rows.npy", np.arange(COUNT, dtype=np.int64)[:, None])
    return penstock.open(tmp_path / "rows.npy")


KINDS: dict[str, Callable[[penstock.Dataset], Any]] = {
    "arrays": lambda ds: penstock.Loader(ds, BATCH, seed=3),
    "decoded": lambda ds: penstock.Loader(ds, BATCH, seed=3, decode=lambda s: s["data"]),
    "tensors": lambda ds: torch_loaders.DataLoader(ds, BATCH, shuffle=True, seed=3),
    "torch dataset": lambda ds: torch_loaders.DataLoader(Numbers(), BATCH, shuffle=True, seed=3),
    "device": lambda ds: torch_loaders.DeviceLoader(ds, BATCH, shuffle=True, seed=3, device="cpu"),
}


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, records: penstock.Dataset) -> Callable[[], Any]:
    return lambda: KINDS[request.param](records)


def list_samples(batches: Any) -> list[list[int]]:
    """List the samples of each batch, which are their own numbers."""
    fields = [batch["data"] if hasattr(batch, "keys") else batch for batch in batches]
    return [np.asarray(field).ravel().tolist() for field in fields]


def test_iterators_that_are_not_used_move_nothing(make: Callable[[], Any]) -> None:
    """Whoever looks at a loader by `iter`, twice and before each epoch, gets the same epochs."""
    plain, looked_at = make(), make()
    for epoch in range(3):
        kept = iter(looked_at)
        iter(looked_at)
        assert looked_at.state_dict() == plain.state_dict()
        assert list_samples(looked_at) == list_samples(plain), epoch
        del kept
    plain.set_epoch(3)
    assert looked_at.state_dict() == plain.state_dict()


def test_an_unused_iterator_opens_nothing(make: Callable[[], Any]) -> None:
    """No thread, descriptor or memory is held: neither while it lives nor afterwards. What a test
    before this one has left may still be ending."""
    loader = make()
    before = held()
    kept = iter(loader)
    assert held() <= before
    del kept, loader
    assert held() <= before


@pytest.mark.parametrize("how", ["set_epoch", "load_state_dict"])
def test_an_epoch_is_chosen_until_the_first_batch(make: Callable[[], Any], how: str) -> None:
    """`set_epoch` and `load_state_dict` after `iter` hold, as trainers call them so."""
    other, loader = make(), make()
    other.set_epoch(2)
    batches = iter(other)
    first = list_samples([next(batches)])
    state = other.state_dict()
    waiting = iter(loader)
    if how == "set_epoch":
        loader.set_epoch(2)
        assert list_samples([next(waiting)]) == first
    else:
        loader.load_state_dict(state)
    assert list_samples(waiting) == list_samples(batches)


def test_iterators_begin_epochs_in_the_order_of_first_use(make: Callable[[], Any]) -> None:
    """The epoch belongs to whoever asks for a batch first, not to who called `iter` first."""
    expected, loader = make(), make()
    epochs = [list_samples(expected) for _ in range(2)]
    early, late = iter(loader), iter(loader)
    first: Iterator[Any] = late
    assert list_samples([next(first)]) == epochs[0][:1]
    assert list_samples(early) == epochs[1]
    assert list_samples(first) == epochs[0][1:]


def test_begin_reads_ahead_of_the_first_batch(records: penstock.Dataset) -> None:
    """`begin` opens the epoch at once, only once, and never after the end."""
    with penstock.Loader(records, BATCH, seed=3) as loader:
        expected = list_samples(penstock.Loader(records, BATCH, seed=3))
        batches = iter(loader).begin()
        assert loader.stats()["bytes"] >= 0
        loader.set_epoch(7)  # too late for this one
        assert batches.begin() is batches
        assert list_samples(batches) == expected
        batches.begin()
        assert list_samples(batches) == []
