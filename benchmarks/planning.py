"""planning: what the planner costs per sample (order, extents, sort, merge)."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from .record import Row

PLAN_US = 0.15
BATCH = 256
WINDOWS = {"in batch order": (64, None), "sorted and merged": (32, 16 << 10)}
"""Steps per window and gap limit: as the loader plans for copying from a map, and for reading."""


def rows(path: Path, record_bytes: int, repeats: int) -> tuple[list[Row], dict[str, Any]]:
    """One row a way of planning, held beside the permutation alone; "absent" if there is none."""
    try:
        epochs = planners(path, record_bytes)
    except (ImportError, AttributeError) as error:
        return [absent(str(error))], {}
    raw = {name: [cpu_us(epoch) for _ in range(repeats)] for name, epoch in epochs.items()}
    order_us = median(raw["order alone"])
    table = [planned(name, median(raw[name]), order_us) for name in WINDOWS]
    return table, raw


def planners(path: Path, record_bytes: int) -> dict[str, Callable[[], int]]:
    """Functions that plan one epoch and return its number of samples."""
    import penstock
    from penstock.plan.steps import Steps, plan_steps

    index = penstock.open(path, record_bytes=record_bytes).index
    count: int = index.count
    order = penstock.Order(count, seed=1)
    steps = Steps(count, BATCH, 1)

    def planner(window: int, gap_bytes: int | None) -> Callable[[], int]:
        def epoch() -> int:
            for first in range(0, len(steps), window):
                last = min(first + window, len(steps))
                plan_steps(index, order, steps, 0, first, last, gap_bytes)
            return count

        return epoch

    def order_alone() -> int:
        for first in range(0, count, 64 * BATCH):
            order.run(first, min(64 * BATCH, count - first))
        return count

    return {"order alone": order_alone} | {
        name: planner(window, gap) for name, (window, gap) in WINDOWS.items()
    }


def cpu_us(epoch: Callable[[], int]) -> float:
    """CPU time per sample of this thread, which is the only one at work."""
    start = time.thread_time()
    samples = epoch()
    return 1e6 * (time.thread_time() - start) / samples


def planned(name: str, value: float, order_us: float) -> Row:
    """A row whose target is an upper limit."""
    return Row(
        f"planning / {name}",
        value,
        "us/sample",
        floor=order_us,
        target=PLAN_US,
        met=value <= PLAN_US,
        note="target is an upper limit; floor is the permutation alone",
    )


def absent(reason: str) -> Row:
    """A row without a value is a target not met."""
    return Row("planning", None, "us/sample", target=PLAN_US, note=f"absent: {reason}")
