"""Composer, of which there is a double: its releases ask for an older torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import penstock
from penstock.errors import UsageError
from penstock.torch import DataLoader
from tests.trainers import drives, scenario
from tests.trainers.doubles import ComposerTrainer

pytestmark = pytest.mark.usefixtures("group")


def drive(loader: Any, state: Any, count: int) -> tuple[list[list[int]], Any]:
    trainer = ComposerTrainer(penstock.composer.wrap(loader), state)
    trainer.fit(count)
    return [drives.read_batch(batch) for batch in trainer.batches], trainer.save()


def test_the_sequence_is_that_of_penstock(data: Path) -> None:
    drives.check_sequence(drive, data)


def test_places_divide_the_batches(data: Path) -> None:
    drives.check_places(drive, data)


def test_resumed_runs_are_equal(data: Path) -> None:
    drives.check_resuming(drive, data)
    drives.check_resuming_again(drive, data)


def test_composer_counts_steps_and_samples(data: Path) -> None:
    loader = scenario.make_loader(DataLoader, data)
    trainer = ComposerTrainer(penstock.composer.wrap(loader))
    assert (len(trainer.loader), trainer.num_samples) == (scenario.STEPS, scenario.COUNT)
    trainer.fit(scenario.STEPS + 1)
    assert trainer.time["epoch"] == 1


@pytest.mark.parametrize("point", drives.POINTS)
def test_epochs_end_where_composer_ends_them(point: int, data: Path) -> None:
    """After the last batch of an epoch, which Composer has not ended yet, none is left in it."""
    unbroken = ComposerTrainer(penstock.composer.wrap(scenario.make_loader(DataLoader, data)))
    unbroken.fit(drives.TOTAL)
    _, state = drive(scenario.make_loader(DataLoader, data), None, point)
    loader = penstock.composer.wrap(scenario.make_loader(DataLoader, data))
    resumed = ComposerTrainer(loader, state)
    resumed.fit(drives.TOTAL - point)
    assert resumed.time == unbroken.time


def test_earlier_batches_are_not_read_again(data: Path) -> None:
    _, state = drive(scenario.make_loader(DataLoader, data), None, 24)
    loader = scenario.make_loader(DataLoader, data)
    drive(loader, state, 2)
    assert loader.counters().batches == 2


def test_another_loader_is_refused() -> None:
    with pytest.raises(UsageError, match=r"penstock.composer.wrap was given a list"):
        penstock.composer.wrap([])
