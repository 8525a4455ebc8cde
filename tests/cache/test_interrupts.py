"""Interrupts in the thread that asks a cached loader: it can be used afterwards, or is closed."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.cache import agreement, engine, shared_memory
from penstock.cache import disk as disk_tier
from penstock.loader import epoch, step_reader
from penstock.loader import sources as engine_source
from penstock.loader import step_reader as ticket_router
from tests.interrupts import interrupt
from tests.slices import stride

_modules = (
    *(disk_tier, engine, agreement, shared_memory, threading),
    *(engine_source, epoch, step_reader, ticket_router),
)
_joining = (disk_tier, engine, agreement, shared_memory)
_patience_s = 240.0  # a guard against hanging, not a measure


def walk(loader: penstock.Loader) -> list[int]:
    """Return the samples of an epoch; their bytes are right."""
    seen: list[int] = []
    for batch in loader:
        assert (batch["data"] == batch.ids[:, None]).all()
        seen += batch.ids.tolist()
    return sorted(seen)


def walk_on(loader: penstock.Loader, place: int) -> None:
    """Walk through an epoch after an interrupt at a place: it has every sample, and ends."""
    seen: list[list[int]] = []
    reader = threading.Thread(target=lambda: seen.append(walk(loader)), daemon=True)
    reader.start()
    reader.join(_patience_s)
    assert not reader.is_alive(), f"the epoch after an interrupt at place {place} hangs"
    assert seen == [list(range(24))], f"place {place}"


@stride(127)
@pytest.mark.parametrize("disk", [False, pytest.param(True, marks=pytest.mark.long)])
def test_an_interrupt_at_any_place_leaves_the_cache_usable(
    tmp_path: Path, disk: bool, stride: int
) -> None:
    """Wherever an interrupt comes in an epoch, the next has every sample, and ends.

    With a disk, once the cache is joined: see the next test.
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
            batches = iter(loader)
            if disk:
                next(batches)
            interrupted = interrupt(place, _modules, lambda: list(batches))  # noqa: B023
            walk_on(loader, place)
        place += stride
    assert place > 100


def wait_for_threads(count: int) -> bool:
    """Wait until there are no more threads than before, the core's included; whether that came.

    A thread whose start was interrupted ends later than its loader is closed, and the core gives a
    thread's descriptors back after Python has seen its end.
    """
    pause, until_s = threading.Event(), time.monotonic() + _patience_s / 10
    while len(os.listdir("/proc/self/task")) > count:
        if time.monotonic() > until_s:
            return False
        pause.wait(0.001)
    return True


def list_descriptors() -> list[str]:
    """Return what is open."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return sorted(found)


@stride(37)
def test_an_interrupt_while_a_node_joins_leaves_nothing(tmp_path: Path, stride: int) -> None:
    """Wherever an interrupt comes while the first batch joins a cache with a disk: the loader finds
    its folder free, and once it is closed no thread and no descriptor is left.

    Without the places in Python's `threading`: an interrupt in `Thread.start` may leave the lock
    taken for which the new thread waits first, for ever. Nothing else waits for that thread.
    """
    np.arange(24, dtype=np.uint8).repeat(16).tofile(tmp_path / "r.bin")
    dataset = penstock.open(tmp_path / "r.bin", record_bytes=16)
    threads = len(os.listdir("/proc/self/task"))
    descriptors: list[str] = []  # after the first loader, which may open what the process keeps
    place, interrupted = 0, True
    while interrupted:
        cache = penstock.Cache(
            ram_bytes=1 << 8,
            cache_block_bytes=64,
            disk_bytes=1 << 20,
            disk_path=str(tmp_path / f"disk-{place}"),
        )
        with penstock.Loader(dataset, 6, cache=cache, rank=0, world_size=1) as loader:
            batches = iter(loader)
            interrupted = interrupt(place, _joining, lambda: next(batches))  # noqa: B023
            walk_on(loader, place)
        del loader, batches
        gc.collect()
        assert wait_for_threads(threads), f"place {place} leaves {threading.enumerate()}"
        descriptors = descriptors or list_descriptors()
        assert list_descriptors() == descriptors, f"place {place}"
        place += stride
    assert place > 200
