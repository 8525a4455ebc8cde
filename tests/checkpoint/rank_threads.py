"""Ranks of a job that are threads of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from penstock.checkpoint import Checkpoints
from penstock.errors import UsageError
from penstock.ranks.gather import Gather


class Meeting:
    """A place where all ranks exchange texts."""

    def __init__(self, ranks: int) -> None:
        self._barrier = threading.Barrier(ranks, timeout=240)
        self._texts = [""] * ranks

    def join(self, rank: int) -> Gather:
        def gather(text: str) -> list[str]:
            self._texts[rank] = text
            self._barrier.wait()
            texts = list(self._texts)
            self._barrier.wait()
            return texts

        return gather


def run_job(
    folder: Path | str, ranks: int, work: Callable[[Checkpoints, int], Any], **options: Any
) -> list[Any]:
    """Run `work` on the checkpoints of each rank. Returns the results, or the errors."""
    meetings = [Meeting(ranks) for _ in range(3)]

    def run_rank(rank: int) -> Any:
        train, save, drain = (meeting.join(rank) for meeting in meetings)
        with Checkpoints(
            folder, rank=rank, world_size=ranks, gather=(train, save, drain), **options
        ) as checkpoints:
            try:
                return work(checkpoints, rank)
            except Exception as error:
                return error

    with ThreadPoolExecutor(ranks) as threads:
        return list(threads.map(run_rank, range(ranks)))


def save_unequal(checkpoints: Checkpoints, rank: int) -> list[int]:
    """Save weights that differ, which is refused, and then equal ones. Returns the steps."""
    said = []
    for step in (1, 2):
        weights = np.full(300_000, rank if step == 1 else 0, np.uint8)
        checkpoints.save(step, {"weights": weights}, per_rank=rank)
        try:
            checkpoints.wait()
        except UsageError as error:
            said.append(str(error))
    assert len(said) == 1
    assert "'state.weights' of rank 1 differs from rank 0" in said[0]
    assert checkpoints.load().per_rank == rank
    return checkpoints.steps()
