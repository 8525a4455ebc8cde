"""Duties of every adapter, whatever trainer drives it: three epochs, and going on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

import penstock
from penstock.torch import DataLoader
from tests.trainers.scenario import (
    COUNT,
    EPOCHS,
    GLOBAL,
    RANKS,
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


def check_sequence(drive: Drive, folder: Path, **options: Any) -> None:
    """Three epochs are those of penstock alone; those of all ranks are those of one process."""
    loader = make_loader(DataLoader, folder, **options)
    batches, _ = drive(loader, None, TOTAL)
    assert batches == list_rest(list_expected(folder), 0)
    ranks: list[Any] = [batches]
    if RANKS > 1:  # the group was asked, not the environment
        assert loader.place.source == "torch.distributed"
        dist.all_gather_object(ranks := [None] * RANKS, batches)
    check_shares(ranks, folder)


def check_places(drive: Drive, folder: Path, **options: Any) -> None:
    """`place=` says the rank where nothing else does: the shares of two are those of one."""
    shares = []
    for rank in range(2):
        place = {"place": penstock.Place(rank, 2), "batch_size": GLOBAL // 2}
        batches, _ = drive(make_loader(DataLoader, folder, **place, **options), None, TOTAL)
        assert batches == list_rest(list_expected(folder, **place), 0)
        shares.append(batches)
    check_shares(shares, folder)


def check_shares(ranks: list[list[Numbers]], folder: Path) -> None:
    """Check that the shares of all ranks are, at each step, the batch of one process: every sample
    is in an epoch, and once, but for those that fill the last step up to equal shares."""
    alone = {"place": penstock.Place(0, 1), "batch_size": GLOBAL}
    whole = list_rest(list_expected(folder, **alone), 0)
    for step, (batch, *shares) in enumerate(zip(whole, *ranks, strict=True)):
        given = [sample for share in shares for sample in share]
        filling = -len(batch) % len(ranks)
        assert len(given) == len(batch) + filling
        assert set(given) >= set(batch), step
    for epoch in range(EPOCHS):
        steps = [step for share in ranks for step in share[epoch * STEPS :][:STEPS]]
        assert {sample for step in steps for sample in step} == set(range(COUNT))


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
