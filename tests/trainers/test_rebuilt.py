"""Trainers that make a loader of their own out of a plain DataLoader get an error, not samples."""

from __future__ import annotations

from pathlib import Path

import pytest

accelerate = pytest.importorskip("accelerate")

from penstock.errors import UsageError  # noqa: E402
from penstock.torch import DataLoader  # noqa: E402
from tests.trainers import scenario  # noqa: E402


@pytest.mark.parametrize("foreign", [False, True])
def test_skip_first_batches_is_refused(data: Path, foreign: bool) -> None:
    """Another loader would give raw samples, without decode and in the order of an epoch that was
    begun; of a torch dataset, the samples of an epoch whose next one is another."""
    loader = scenario.make_loader(DataLoader, data)
    if foreign:
        loader = DataLoader(list(range(40)), 4, shuffle=True, seed=1)
    skipped = accelerate.skip_first_batches(loader, 3)
    with pytest.raises(UsageError, match=r"give penstock.torch.StepLoader, without"):
        next(iter(skipped))
