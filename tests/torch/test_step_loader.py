"""StepLoader: the batches of every rank in turn, whoever deals them, exactly as DataLoader's."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.utils.data
from torch.utils.data import BatchSampler

import penstock
from penstock.errors import UsageError
from penstock.torch import DataLoader, StepLoader

COUNT, GLOBAL, STEPS = 125, 8, 16


@pytest.fixture
def rows(tmp_path: Path) -> penstock.Dataset:
    np.save(tmp_path / "rows.npy", np.arange(COUNT, dtype=np.int64)[:, None])
    return penstock.open(tmp_path / "rows.npy")


class Dealt(BatchSampler):
    """Every world-th batch of a batch sampler, from a first one on."""

    def __init__(self, batches: Any, rank: int, world: int, skipped: int = 0) -> None:
        self._batches, self._rank, self._world, self._skipped = batches, rank, world, skipped

    def __iter__(self) -> Iterator[list[int]]:
        for number, batch in enumerate(self._batches):
            if number % self._world == self._rank and number >= self._skipped * self._world:
                yield batch


def deal(loader: StepLoader, rank: int, world: int, skipped: int = 0) -> Any:
    """Make another loader of the attributes of one, as trainers do."""
    return torch.utils.data.DataLoader(
        loader.dataset,
        batch_sampler=Dealt(loader.batch_sampler, rank, world, skipped),
        collate_fn=loader.collate_fn,
    )


def make(kind: type[Any], rows: penstock.Dataset, rank: int = 0, world: int = 1) -> Any:
    size = GLOBAL // world
    return kind(rows, size, shuffle=True, seed=3, rank=rank, world_size=world, decode=take_number)


def take_number(sample: dict[str, Any]) -> Any:
    return {"number": sample["data"][0]}


def list_numbers(batches: Any) -> list[list[int]]:
    return [batch["number"].tolist() for batch in batches]


@pytest.mark.parametrize(("rank", "world"), [(0, 1), (0, 2), (1, 2), (3, 4)])
def test_dealt_batches_are_those_of_the_rank(rank: int, world: int, rows: Any) -> None:
    """Whoever deals the batches of W ranks to them gives each what `DataLoader` gives it."""
    plain, steps = make(DataLoader, rows, rank, world), make(StepLoader, rows, rank, world)
    dealt = deal(steps, rank, world)
    assert len(steps) == world * STEPS
    assert len(steps.dataset) == COUNT
    for _ in range(3):
        assert list_numbers(dealt) == list_numbers(plain)


@pytest.mark.parametrize("world", [1, 2])
def test_skipping_is_a_seek(world: int, rows: Any) -> None:
    """A part of an epoch that is left out is not read, and what follows is exact."""
    plain, steps = make(DataLoader, rows, world - 1, world), make(StepLoader, rows, 0, 1)
    epochs = [list_numbers(plain) for _ in range(3)]
    for epoch in range(2):
        for skipped in (0, 1, 7, STEPS - 1):
            steps = make(StepLoader, rows, world - 1, world)
            steps.set_epoch(epoch)
            assert list_numbers(deal(steps, world - 1, world, skipped)) == epochs[epoch][skipped:]
            assert steps.counters().batches == STEPS - skipped
            assert list_numbers(deal(steps, world - 1, world)) == epochs[epoch + 1]


def test_iterators_in_turn_have_their_own_epochs(rows: Any) -> None:
    """Two epochs that are read alternately are those that they would be apart."""
    plain = make(DataLoader, rows)
    epochs = [list_numbers(plain) for _ in range(2)]
    steps = make(StepLoader, rows)
    first, second = iter(steps), iter(steps)
    taken: list[list[list[int]]] = [list_numbers([next(first) for _ in range(3)]), []]
    for _ in range(5):
        taken[1] += list_numbers([next(second)])
        taken[0] += list_numbers([next(first)])
    assert taken == [epochs[0][:8], epochs[1][:5]]


@pytest.mark.parametrize("kind", [DataLoader, StepLoader])
def test_states_go_from_one_kind_to_the_other(kind: type[Any], rows: Any) -> None:
    """At every step of two epochs, the rest is the same."""
    expected = make(DataLoader, rows)
    epochs = [list_numbers(expected) for _ in range(2)]
    other = DataLoader if kind is StepLoader else StepLoader
    saving = make(kind, rows)
    for epoch in range(2):
        for step, _ in enumerate(saving, 1):
            loaded = make(other, rows)
            loaded.load_state_dict(saving.state_dict())
            rest = list_numbers(loaded)
            if step < STEPS:
                assert rest == epochs[epoch][step:]
            elif epoch == 0:
                assert rest == epochs[1]


def test_what_would_go_wrong_in_silence_is_refused(rows: Any) -> None:
    """Batches of other ranks, worker processes, copies and divided batches."""
    steps = make(StepLoader, rows, 0, 2)
    with pytest.raises(UsageError, match=r"rank 0 of 2 .* rank 1's batch: .* dispatch_batches"):
        list(steps)  # nobody dealt
    with pytest.raises(UsageError, match="leave it out"):
        _ = steps.batch_sampler.batch_size % 2
    assert steps.batch_sampler.batch_size % 1 == 0
    with pytest.raises(UsageError, match="is not sent to workers"):
        copy.deepcopy(steps)
    inside = torch.utils.data.DataLoader(
        make(StepLoader, rows).dataset,
        batch_size=1,
        num_workers=1,
        multiprocessing_context="fork",
    )
    with pytest.raises(UsageError, match="a StepLoader runs in no worker"):
        list(inside)


def test_a_position_is_not_restored_and_skipped(rows: Any) -> None:
    """Both would leave out batches in silence."""
    saved = make(StepLoader, rows)
    batches = iter(saved)
    for _ in range(3):
        next(batches)
    loaded = make(StepLoader, rows)
    loaded.load_state_dict(saved.state_dict())
    with pytest.raises(UsageError, match="step 3 of epoch 0 was restored, and step 6 .*not both"):
        next(iter(deal(loaded, 0, 1, 3)))


@pytest.mark.parametrize(
    ("restored", "named"), [((1, 3), 0), ((1, 3), 1), ((1, 3), 2), ((3, 0), 2)]
)
def test_the_first_epoch_that_is_named_is_the_restored_one(
    restored: tuple[int, int], named: int, rows: Any
) -> None:
    """Whatever number a trainer gives it; the next ones follow."""
    plain = make(DataLoader, rows)
    epochs = [list_numbers(plain) for _ in range(5)]
    steps = make(StepLoader, rows)
    epoch, step = restored
    steps.load_state_dict(steps.state_dict() | {"epoch": epoch, "step": step})
    steps.batch_sampler.set_epoch(named)
    steps.dataset.set_epoch(named)  # accelerate tells both
    assert list_numbers(steps) == epochs[epoch][step:]
    steps.batch_sampler.set_epoch(named + 1)
    assert list_numbers(steps) == epochs[epoch + 1]
    steps.set_epoch(0)  # the user counts as the run does
    assert list_numbers(steps) == epochs[0]


def test_an_error_of_decode_is_raised_at_its_step(rows: Any) -> None:
    """The next batch is the one after, as in torch."""

    def fail(sample: dict[str, Any]) -> Any:
        if sample["__id__"] == failing:
            raise ValueError("decode fails")
        return take_number(sample)

    epoch = list_numbers(make(DataLoader, rows))
    failing = epoch[2][0]
    steps = StepLoader(rows, GLOBAL, shuffle=True, seed=3, decode=fail)
    batches = iter(steps)
    assert list_numbers([next(batches), next(batches)]) == epoch[:2]
    with pytest.raises(ValueError, match="decode fails"):
        next(batches)
    assert steps.state_dict()["step"] == 2  # a run that ends here goes on with what failed
    assert list_numbers(batches) == epoch[3:]
