"""The memory that a loader holds: within its budget and one step, whatever it loads and how."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest

import penstock
from penstock.cache.engine import CachedEngine
from penstock.engine import Arena
from penstock.index.codecs import RECENT
from penstock.limits import MIB
from penstock.loader.loader import Loader
from tests.index.formats.containers import CONTAINERS

OBJECTS_BYTES = 512 * 1024
"""Python objects of a loader: its plan of a window of steps, tickets, locks; not in proportion to
what it loads."""


class Watcher:
    """The bytes that a loader holds, as the allocators tell: seen after each step, and from its
    decode threads. Batches that the user has are not among them."""

    def __init__(self, decoded_bytes: int) -> None:
        self.loader: Loader | None = None
        self.decoded_bytes = decoded_bytes
        self.worst_bytes = 0
        gc.collect()  # loaders of other tests have their share of what is kept decoded
        RECENT.share(self, 0)
        self._others_bytes = pyarrow.total_allocated_bytes()

    def decode(self, sample: dict[str, Any]) -> Any:
        self.look()
        return np.zeros(self.decoded_bytes, np.uint8)

    def look(self) -> None:
        assert self.loader is not None
        if (arena := self.loader._arena) is None:
            return
        held_bytes = arena.ahead_bytes + arena.kept_bytes
        if isinstance(engine := self.loader._engine, CachedEngine):
            disk = engine._shell._tiers._disk
            buffers = disk._arena if disk else Arena(0)
            held_bytes += buffers.lent_bytes + buffers.kept_bytes
        # Decoded chunks, passing buffers and whatever else Python, numpy and pyarrow hold.
        held_bytes += tracemalloc.get_traced_memory()[0]
        held_bytes += pyarrow.total_allocated_bytes() - self._others_bytes
        self.worst_bytes = max(self.worst_bytes, held_bytes)


def run(folder: Path, seed: int) -> float:
    """Load some epochs with a random loader, check what it held at any time, and return the most
    that was, in parts of the budget and one step."""
    random = np.random.default_rng(seed)
    form = list(CONTAINERS)[seed % len(CONTAINERS)]
    decode, cached = bool(random.integers(2)), int(random.integers(3))
    count, batch = int(random.integers(20, 200)), int(random.integers(1, 20))
    mean_bytes = int(10 ** random.uniform(2, 5))
    lengths = random.integers(1, 2 * mean_bytes, count)
    budget_bytes = int(sum(lengths) * 10 ** random.uniform(-1.5, 0.5))
    lowered_bytes = max(1, int(budget_bytes * random.uniform(0.02, 1)))
    (folder / "data").mkdir()
    path, settings = CONTAINERS[form](folder / "data", [random.bytes(n) for n in lengths])
    data = penstock.open(path, index="memory", **settings)
    coded = any(field.codec for field in data.index.fields)
    options: dict[str, Any] = {}
    watcher = Watcher(int(mean_bytes * random.uniform(0.1, 4)) + 1 if decode else 0)
    if decode:
        options |= {"decode": watcher.decode, "decode_threads": 2}
    total_bytes = int(data.index.mean_bytes * len(data)) + 1
    cache = None
    if cached == 1 and not coded:
        cache = penstock.Cache(ram_bytes=int(total_bytes * random.uniform(0, 2)) + MIB)
    elif cached == 2 and not coded:
        cache = penstock.Cache(
            ram_bytes=total_bytes // 3,
            disk_path=str(folder / "disk"),
            disk_bytes=total_bytes * 2 + MIB,
            cache_block_bytes=4096,
        )
    if cache is not None:
        options |= {"cache": cache, "rank": 0, "world_size": 1}
    budget = penstock.Budget(
        readahead_bytes=budget_bytes,
        mmap=str(random.choice(["off", "auto"])),  # type: ignore[arg-type]
    )
    if coded:  # a step may need every chunk, as it is stored and decoded
        step_bytes = 2 * int(sum(lengths)) + 200 * count
    else:
        step_bytes = max(sum(sorted(lengths.tolist())[-batch:]), batch * int(lengths[0]))
    if cache is not None and cache.disk_bytes:  # and its cache blocks there, in whole pages
        step_bytes += min(total_bytes, 2 * batch * max(4096, *lengths.tolist())) + 4096 * batch
    # As the arena counts: sizes in steps of an eighth, and a page of each of the few blocks.
    step_bytes = int(1.125 * (step_bytes + batch * watcher.decoded_bytes)) + 8 * 4096
    data[0]  # imports what decodes
    worst = 0.0
    tracemalloc.start()
    try:
        with Loader(data, batch, seed=seed, budget=budget, **options) as watcher.loader:
            for epoch in range(4):
                batches = iter(watcher.loader)
                step = 0
                while next(batches, None) is not None:
                    watcher.look()
                    if (epoch, step) == (1, 0):
                        watcher.loader.budget = budget.replace(readahead_bytes=lowered_bytes)
                        assert watcher.loader._arena is not None
                        assert watcher.loader._arena.kept_bytes <= lowered_bytes
                    step += 1
                # What had been requested before arrives in the epoch of the change.
                bound_bytes = budget_bytes if epoch < 2 else lowered_bytes
                bound_bytes += step_bytes + OBJECTS_BYTES
                facts = (form, decode, cached, coded, budget_bytes, lowered_bytes, step_bytes)
                worst = max(worst, watcher.worst_bytes / bound_bytes)
                assert 0 < watcher.worst_bytes <= bound_bytes, (epoch, *facts)
                watcher.worst_bytes = 0
            if cache is not None:  # tiers have budgets of their own
                counters = watcher.loader._engine.counters()  # type: ignore[union-attr]
                assert counters["slab_allocated_bytes"] <= cache.ram_bytes
                held = (folder / "disk").glob("*") if cache.disk_bytes else ()
                assert sum(512 * file.stat().st_blocks for file in held) <= cache.disk_bytes
    finally:
        tracemalloc.stop()
    return worst


@pytest.mark.parametrize("seed", [13, 35, 56])
def test_memory_is_bounded(tmp_path: Path, seed: int) -> None:
    """Memory that the library holds, in whatever allocator, is at most the budget and one step."""
    run(tmp_path, seed)


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 200, 20))
def test_memory_is_bounded_for_any_loader(tmp_path: Path, first: int) -> None:
    """Likewise for 200 loaders, of all containers, decoding or not, with and without a cache."""
    for seed in range(first, first + 20):
        (tmp_path / str(seed)).mkdir()
        run(tmp_path / str(seed), seed)


def test_lower_budget_holds_within_the_steps_that_were_requested(tmp_path: Path) -> None:
    """A lower budget frees what is kept at once, and no step is requested above it."""
    np.save(tmp_path / "x.npy", np.ones((90, 1_000_000), np.uint8))
    data = penstock.open(tmp_path / "x.npy")
    budget = penstock.Budget(readahead_bytes=33_600_000, mmap="off")
    with Loader(data, 1, budget=budget) as loader:
        steps = iter(loader)
        for _ in range(30):
            next(steps)
        arena = loader._arena
        assert arena is not None
        assert 15_000_000 < arena.ahead_bytes + arena.kept_bytes <= 34_700_000
        loader.budget = budget.replace(readahead_bytes=2_000_000)
        assert arena.kept_bytes == 0
        while arena.ahead_bytes > 2_000_000:
            before_bytes = arena.ahead_bytes
            next(steps)
            assert arena.ahead_bytes < before_bytes
            assert arena.kept_bytes == 0 or arena.ahead_bytes <= 2_000_000
        next(steps)
        assert arena.ahead_bytes + arena.kept_bytes <= 3_100_000
