"""Interrupts in the thread that asks a cached loader: it can be used afterwards, or is closed."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.cache import engine, join, shared_memory
from penstock.loader import engine_source, epoch_iterator, step_reader, ticket_router
from tests.interrupts import InterruptAt

_modules = (
    *(engine, join, shared_memory, threading),
    *(engine_source, epoch_iterator, step_reader, ticket_router),
)
_patience_s = 240.0  # a guard against hanging, not a measure


def walk(loader: penstock.Loader) -> list[int]:
    """Return the samples of an epoch; their bytes are right."""
    seen: list[int] = []
    for batch in loader:
        assert (batch["data"] == batch.ids[:, None]).all()
        seen += batch.ids.tolist()
    return sorted(seen)


@pytest.mark.parametrize("stride", [127, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("disk", [False, pytest.param(True, marks=pytest.mark.long)])
def test_an_interrupt_at_any_place_leaves_the_cache_usable(
    tmp_path: Path, disk: bool, stride: int
) -> None:
    """Wherever an interrupt comes in an epoch, the next has every sample, and ends.

    With a disk, not while the cache is joined: between opening the lock of the disk's folder and
    keeping the descriptor, an interrupt keeps the folder until the process ends.
    """
    np.arange(24, dtype=np.uint8).repeat(16).tofile(tmp_path / "r.bin")
    dataset = penstock.open(tmp_path / "r.bin", record_bytes=16)
    place, interrupted = 0, True
    while interrupted:
        told: dict[str, Any] = {"ram_bytes": 1 << 16, "cache_block_bytes": 64}
        if disk:
            told = {
                "ram_bytes": 1 << 8,
                "cache_block_bytes": 64,
                "disk_bytes": 1 << 20,
                "disk_path": tmp_path / f"disk-{place}",
            }
        options = {"cache": penstock.Cache(**told), "rank": 0, "world_size": 1}
        with penstock.Loader(dataset, 6, **options) as loader:
            tracer = InterruptAt(place, _modules)
            batches = iter(loader)
            if disk:
                next(batches)
            sys.settrace(tracer)
            try:
                for _ in batches:
                    pass
                interrupted = False
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(None)
            assert tracer.left < 0 or not interrupted
            seen: list[list[int]] = []

            def walk_on() -> None:
                seen.append(walk(loader))  # noqa: B023

            reader = threading.Thread(target=walk_on, daemon=True)
            reader.start()
            reader.join(_patience_s)
            assert not reader.is_alive(), f"the epoch after an interrupt at place {place} hangs"
            assert seen == [list(range(24))], f"place {place}"
        place += stride
    assert place > 100
