"""The memory that a loader holds: within its budget and one step, whatever it loads and how."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from hypothesis import settings

import penstock
from penstock.cache.engine import CachedEngine
from penstock.engine import Arena
from penstock.index.codecs import RECENT
from penstock.index.sidecar import read_sidecar
from penstock.limits import MIB
from penstock.loader.batch import BatchReader
from penstock.loader.loader import Loader
from tests.cache.test_cache import Gathering
from tests.index.formats.containers import CONTAINERS
from tests.slices import CASES

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

    def measure_arenas(self) -> int:
        if self.loader is None or (arena := self.loader._arena) is None:
            return 0
        held_bytes = arena.ahead_bytes + arena.kept_bytes
        if isinstance(engine := self.loader._engine, CachedEngine):
            disk = engine._shell.disk
            for buffers in (engine._shell.answers, disk.arena if disk else Arena(0)):
                held_bytes += buffers.lent_bytes + buffers.kept_bytes
        return held_bytes

    def look(self) -> None:
        if not (held_bytes := self.measure_arenas()):
            return
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
    """Likewise for 200 loaders, of all containers, decoding or not, with and without a cache; every
    fifth of them where properties have fewer examples."""
    for seed in range(first, first + 20, 1 if settings().max_examples >= CASES else 5):
        (tmp_path / str(seed)).mkdir()
        run(tmp_path / str(seed), seed)


def run_hosts(folder: Path, seed: int) -> None:
    """Load two epochs on two or three hosts that keep the samples for each other, and check what
    the loaders of all held at any time: samples on their way to other hosts, too."""
    pytest.importorskip("zmq")
    random = np.random.default_rng(seed)
    hosts, batch = int(random.integers(2, 4)), int(random.integers(1, 20))
    rows, row_bytes = int(random.integers(50, 300)), int(10 ** random.uniform(2, 5))
    step_bytes = batch * row_bytes
    budget_bytes = int(step_bytes * 10 ** random.uniform(-0.5, 1.5))
    np.save(folder / "x.npy", random.integers(0, 256, (rows, row_bytes), np.uint8))
    data = penstock.open(folder / "x.npy", index="memory")
    watchers = [Watcher(0) for _ in range(hosts)]
    gathering, done = Gathering(hosts), threading.Barrier(hosts, timeout=240)

    def load(rank: int) -> None:
        cache = penstock.Cache(
            ram_bytes=2 * rows * row_bytes + MIB,
            host=str(rank),
            listen="127.0.0.1",
            gather=gathering.of(rank),
        )
        options: dict[str, Any] = {"rank": rank, "world_size": hosts, "assignment": "strided"}
        budget = penstock.Budget(readahead_bytes=budget_bytes)
        try:
            with Loader(data, batch, cache=cache, budget=budget, **options) as loader:
                watchers[rank].loader = loader
                for _ in range(2):
                    for _ in loader:
                        held_bytes = sum(each.measure_arenas() for each in watchers)
                        held_bytes += tracemalloc.get_traced_memory()[0]
                        # A step is read, and as much of it is an answer to another host.
                        bound_bytes = int(2.25 * step_bytes) + 8 * 4096 + OBJECTS_BYTES
                        assert held_bytes <= hosts * (budget_bytes + bound_bytes)
                    done.wait()  # who is done goes on answering until all are
                served_bytes = loader.counters().engine["served_bytes"]
                assert served_bytes > 0
        except BaseException:
            done.abort()
            raise

    tracemalloc.start()
    try:
        with ThreadPoolExecutor(hosts) as threads:
            for each in [threads.submit(load, rank) for rank in range(hosts)]:
                each.result()
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.long) for n in range(1, 20))]
)
def test_memory_is_bounded_where_hosts_serve_each_other(tmp_path: Path, seed: int) -> None:
    """Likewise with copies of samples on their way to other hosts."""
    run_hosts(tmp_path, seed)


class WorkerWatcher:
    """Decodes samples of a worker process to the bytes that the process holds meanwhile."""

    def __call__(self, sample: dict[str, Any]) -> Any:
        if not tracemalloc.is_tracing():
            tracemalloc.start()
            self._readers = [each for each in gc.get_objects() if isinstance(each, BatchReader)]
        arenas = [reader._reader.arena for reader in self._readers]
        held_bytes = sum(arena.lent_bytes + arena.kept_bytes for arena in arenas)
        return np.full(64, held_bytes + tracemalloc.get_traced_memory()[0])


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_memory_of_worker_processes_is_bounded(tmp_path: Path, seed: int) -> None:
    """Each holds its budget and one step at most; the batches that it has made lie in shared
    memory."""
    torch = pytest.importorskip("penstock.torch")
    random = np.random.default_rng(seed)
    batch, row_bytes = int(random.integers(1, 20)), int(10 ** random.uniform(3, 5))
    step_bytes = batch * row_bytes
    budget = penstock.Budget(readahead_bytes=int(step_bytes * 10 ** random.uniform(-0.5, 1)))
    np.save(tmp_path / "x.npy", random.integers(0, 256, (20 * batch, row_bytes), np.uint8))
    loader = torch.DataLoader(
        penstock.open(tmp_path / "x.npy"),
        batch_size=batch,
        num_workers=2,
        workers="processes",
        budget=budget,
        decode=WorkerWatcher(),
    )
    bound_bytes = budget.readahead_bytes + int(1.125 * step_bytes) + 8 * 4096 + OBJECTS_BYTES
    held = [int(batch.max()) for _ in range(2) for batch in loader]
    assert len(held) == 40
    assert step_bytes < max(held) <= bound_bytes


def test_pages_of_a_saved_index_are_those_of_its_file(tmp_path: Path) -> None:
    """The system may take them back at any time: no page of it, or of data that is mapped, is
    a copy of this process."""
    path, settings = CONTAINERS["tar"](tmp_path, [bytes(n % 9) for n in range(2000)])
    penstock.open(path, **settings)
    data = penstock.open(path, **settings)
    assert data.sidecar is not None
    _, sections = read_sidecar(data.sidecar)
    assert sum(int(section.view(np.uint8).sum()) for section in sections.values())
    with Loader(data, 64, rank=0, world_size=1, budget=penstock.Budget(mmap="required")) as loader:
        assert sum(len(batch.ids) for batch in loader) == 2000
        kinds = set()
        for line in Path("/proc/self/smaps").read_text().splitlines():
            name, *values = line.split()
            if not name.endswith(":"):
                mapped = values[-1]
            elif mapped.startswith(str(tmp_path)) and name == "Anonymous:":
                kinds.add(Path(mapped).suffix)
                assert values[0] == "0", mapped
        assert kinds == {".tar", ".penstock"}


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


@pytest.mark.parametrize("record_bytes", [1000, 4096, 65_536])
@pytest.mark.parametrize("budget_mib", [1, 2, 3, 4, 8, 16])
def test_a_loop_has_one_step_besides_the_budget(
    tmp_path: Path, record_bytes: int, budget_mib: int
) -> None:
    """Lent and kept, what the loop has included: also while it has one batch and gets the next.

    Two steps besides a budget of less than two: a step is read behind the two that the loop has.
    """
    batch = (1 << 20) // record_bytes + 5
    (tmp_path / "records.bin").write_bytes(bytes(25 * batch * record_bytes))
    dataset = penstock.open(tmp_path / "records.bin", record_bytes=record_bytes, index="memory")
    block_bytes = batch * record_bytes * 9 / 8  # sizes are rounded up by an eighth at most
    budget = penstock.Budget(readahead_bytes=budget_mib * MIB)
    worst_bytes = 0
    with Loader(dataset, batch, budget=budget, rank=0, world_size=1) as loader:
        iterator = iter(loader)
        latest = next(iterator)
        for _ in range(23):
            latest = next(iterator)
            arena = loader._arena
            assert arena is not None
            worst_bytes = max(worst_bytes, arena.lent_bytes + arena.kept_bytes)
    besides = 1 if budget.readahead_bytes >= 2 * batch * record_bytes else 2
    bound_bytes = budget.readahead_bytes + besides * block_bytes
    assert budget.readahead_bytes / 2 < worst_bytes <= bound_bytes
    assert latest is not None


def test_memory_of_later_steps_is_touched_in_a_thread(tmp_path: Path) -> None:
    """After a large first step its successors find memory, within the bound; small ones none."""
    path = tmp_path / "large.bin"
    path.write_bytes(bytes(6 * (9 << 20)))
    for rows, is_large in ((9, True), (1, False)):
        dataset = penstock.open(path, record_bytes=1 << 20, index="memory")
        budget = penstock.Budget(readahead_bytes=40 << 20)
        with penstock.Loader(dataset, batch_size=rows, seed=0, budget=budget) as loader:
            batches = iter(loader)
            next(batches)
            for thread in threading.enumerate():
                if thread.name == "penstock-memory":
                    thread.join()
            assert loader._arena is not None
            before = loader._arena.kept_bytes + loader._arena.ahead_bytes
            assert (before > 27 << 20) == is_large
            assert before <= 50 << 20  # the bound and one block
            assert sum(len(batch.ids) for batch in batches) == 54 - rows
