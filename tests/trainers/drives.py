"""Duties of every adapter, whatever trainer drives it: three epochs, and going on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.torch import DataLoader
from tests.trainers.scenario import (
    COUNT,
    EPOCHS,
    STEPS,
    Numbers,
    list_expected,
    list_rest,
    make_loader,
    read_numbers,
)

TOTAL = EPOCHS * STEPS
POINTS = (1, 8, STEPS, STEPS + 1, 40, TOTAL - 1)
"""Batches before a run is resumed: up to the first, a middle and the last step of epochs."""

Drive = Callable[[Any, Any, int], tuple[list[Numbers], Any]]
"""Drives a trainer on a loader from a state of the trainer's, or None, for a number of batches.

Returns the batches and the trainer's state after them.
"""


def read_batch(batch: Any) -> Numbers:
    return read_numbers(batch["x"])


def check_sequence(drive: Drive, folder: Path) -> None:
    """Three epochs are those of penstock alone, and each has every sample."""
    batches, _ = drive(make_loader(DataLoader, folder), None, TOTAL)
    assert batches == list_rest(list_expected(folder), 0)
    for epoch in range(EPOCHS):
        given = {sample for batch in batches[epoch * STEPS :][:STEPS] for sample in batch}
        assert given == set(range(COUNT))


def check_resuming(drive: Drive, folder: Path, points: tuple[int, ...] = POINTS) -> None:
    """Check that a run which ends after any of these batches goes on as if it had not."""
    expected = list_rest(list_expected(folder), 0)
    for point in points:
        batches, state = drive(make_loader(DataLoader, folder), None, point)
        assert batches == expected[:point]
        rest, _ = drive(make_loader(DataLoader, folder), state, TOTAL - point)
        assert rest == expected[point:], f"resumed after {point} batches"


def check_resuming_again(drive: Drive, folder: Path) -> None:
    """Check a run that is resumed three times in one epoch, and again in the next."""
    batches: list[Numbers] = []
    state = None
    for stop in (18, 21, 30, 37, TOTAL):
        given, state = drive(make_loader(DataLoader, folder), state, stop - len(batches))
        batches += given
    assert batches == list_rest(list_expected(folder), 0)
