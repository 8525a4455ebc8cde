"""Grain: a loader as an IterDataset, with a transformation and read-ahead behind it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

grain = pytest.importorskip("grain")

import penstock  # noqa: E402
from penstock.errors import UsageError  # noqa: E402
from penstock.torch import DataLoader  # noqa: E402
from tests.trainers import drives, scenario  # noqa: E402

pytestmark = pytest.mark.usefixtures("group")


def drive(loader: Any, state: Any, count: int) -> tuple[list[list[int]], Any]:
    """Walk through a pipeline that reads two batches ahead; its state goes through JSON."""
    pipeline = penstock.grain.IterDataset(loader).map(drives.read_batch)
    pipeline = grain.experimental.ThreadPrefetchIterDataset(pipeline, prefetch_buffer_size=2)
    iterator = iter(pipeline)
    if state is not None:
        iterator.set_state(json.loads(state))
    batches: list[list[int]] = []
    while len(batches) < count:
        batch = next(iterator, None)
        if batch is None:
            iterator.close()
            iterator = iter(pipeline)
        else:
            batches.append(batch)
    state = json.dumps(iterator.get_state())
    iterator.close()  # else Grain's thread may be the last to drop it, and join itself
    return batches, state


def test_the_sequence_is_that_of_penstock(data: Path) -> None:
    drives.check_sequence(drive, data)


def test_places_divide_the_batches(data: Path) -> None:
    drives.check_places(drive, data)


def test_resumed_runs_are_equal(data: Path) -> None:
    drives.check_resuming(drive, data)
    drives.check_resuming_again(drive, data)


def test_states_have_one_shape(data: Path) -> None:
    """Checkpoints ask for a state before the first batch, too; it leads back there."""
    loader = scenario.make_loader(DataLoader, data)
    iterator = iter(penstock.grain.IterDataset(loader))
    before = iterator.get_state()
    first = drives.read_batch(next(iterator))
    assert iterator.get_state() == before | {"step": 1}
    iterator.set_state(before)
    assert drives.read_batch(next(iterator)) == first


def test_iterators_have_states_of_their_own(data: Path) -> None:
    """A second iterator, in another epoch, does not move the first one's state."""
    dataset = penstock.grain.IterDataset(scenario.make_loader(DataLoader, data))
    first, second = iter(dataset), iter(dataset)
    next(first)
    state = first.get_state()
    for _ in range(3):
        next(second)
    assert first.get_state() == state
    assert second.get_state() == state | {"epoch": 1, "step": 3}


def test_another_loader_is_refused() -> None:
    with pytest.raises(UsageError, match=r"penstock.grain.IterDataset was given range: give"):
        penstock.grain.IterDataset(range)
