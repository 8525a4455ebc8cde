"""torchdata's StatefulDataLoader is the oracle of resuming on ordinary datasets."""

from __future__ import annotations

import json
import warnings
from typing import Any

import pytest

torchdata = pytest.importorskip("torchdata.stateful_dataloader")
import torch.utils.data as torch_data  # noqa: E402
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler  # noqa: E402

import torch  # noqa: E402
from penstock.torch import DataLoader  # noqa: E402
from tests.torch.test_loader import Numbers, same, structure  # noqa: E402

_count = 13


def make_sampler(kind: str) -> Any:
    """Make a sampler of its own for each run, as a program that starts again does."""
    if kind == "none":
        return None
    if kind == "random":
        drawn = torch.Generator().manual_seed(3)
        return torch_data.RandomSampler(range(_count), generator=drawn)
    return StatefulDistributedSampler(range(_count), num_replicas=1, rank=0, shuffle=True, seed=4)


def make_loader(make: Any, kind: str, arguments: dict[str, Any]) -> Any:
    return make(Numbers(_count, structure), sampler=make_sampler(kind), **arguments)


@pytest.mark.parametrize("kind", ["none", "random", "distributed"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("size", [{"batch_size": 3}, {"batch_size": 3, "drop_last": True}])
def test_the_rest_is_as_of_stateful_data_loader(
    size: dict[str, Any], workers: int, kind: str
) -> None:
    """After any number of batches, a state that went through JSON gives the same rest."""
    arguments = {**size, "num_workers": workers, "persistent_workers": workers > 0}
    steps = len(make_loader(torchdata.StatefulDataLoader, kind, arguments))
    for done in range(0 if workers == 0 else steps - 1, steps):
        rests = []
        for make in (torchdata.StatefulDataLoader, DataLoader):
            first = make_loader(make, kind, arguments)
            batches = iter(first)
            for _ in range(done):
                next(batches)
            state = (
                json.loads(json.dumps(first.state_dict()))
                if make is DataLoader
                else (first.state_dict())
            )
            expected = list(batches)
            second = make_loader(make, kind, arguments)
            second.load_state_dict(state)
            rest = list(second)
            assert same(rest, expected)
            rests.append(rest)
        assert same(rests[1], rests[0])
        assert len(rests[0]) == steps - done


class Counting(Numbers):
    """Counts its calls, which a state of its own keeps."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.calls = 0

    def __getitem__(self, i: int) -> Any:
        self.calls += 1
        return i, self.calls

    def state_dict(self) -> dict[str, int]:
        return {"calls": self.calls}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.calls = state["calls"]


def test_a_stateful_dataset_is_named() -> None:
    """Its state is kept by StatefulDataLoader and not by ours, which says so, once."""
    ours = DataLoader(Counting(6), 2)
    with pytest.warns(UserWarning, match=r"Counting.state_dict\(\) returns is not part of it"):
        state = ours.state_dict()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ours.state_dict() == state
    theirs = torchdata.StatefulDataLoader(Counting(6), 2)
    next(iter(theirs))
    assert theirs.state_dict()["dataset_state"] == {"calls": 2}
