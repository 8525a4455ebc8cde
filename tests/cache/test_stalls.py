"""The cache when shared storage stalls: whoever needs nothing of it goes on, the others wait, and
afterwards everything is as if nothing had happened.

Storage is a FUSE mount for each host; one whose server is stopped answers nothing, as an NFS server
that hangs: reads neither end nor fail.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks import emulation
from benchmarks.emulation import Mount, Shared

import penstock
from tests.cache.ranks import Rank, Taken, begin, ended

pytest.importorskip("zmq")
pytestmark = pytest.mark.skipif(
    emulation.usable() is not None, reason=f"no emulated storage: {emulation.usable()}"
)

SAMPLES, WIDTH, BATCH = 2000, 4096, 40
BYTES = SAMPLES * WIDTH
STEPS = SAMPLES // BATCH
LOADER = {"global_batch_size": BATCH, "seed": 1, "assignment": "strided"}
LITTLE = {"readahead_bytes": 1}  # one step at a time
SHORT = {"peer_timeout_s": 1.0, "busy_cache_block_s": 2.0, "peer_pause_s": 0.1}
"""Bounds that a stall of 3 s is beyond, as one of 30 s is beyond the usual ones."""
SMOOTH_S = 60.0
"""Longer than any wait of a rank that is not disturbed, however busy the machine is."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "rows.npy"
    np.save(path, np.random.default_rng(8).integers(0, 256, (SAMPLES, WIDTH), np.uint8))
    return path


def alone(path: Path, rank: int, world_size: int, epochs: int = 1) -> list[list[int]]:
    """The batches that a rank has to get: those of a loader without a cache, by itself."""
    with penstock.Loader(
        penstock.open(path, index="memory"), rank=rank, world_size=world_size, **LOADER
    ) as loader:
        return [batch.ids.tolist() for _ in range(epochs) for batch in loader]


def longest_s(taken: Sequence[Taken]) -> float:
    return max(each.waited_s for each in taken)


@contextlib.contextmanager
def job(
    path: Path, hosts: list[int], bounds: dict[str, float], cache_block_bytes: int = 1
) -> Iterator[tuple[Sequence[Rank], list[Mount]]]:
    """Ranks on these hosts, each of which has its own mount of the storage."""
    with Shared() as storage:
        mounts = [storage.mount(path.parent, direct=True) for _ in set(hosts)]
        ranks = [
            Rank(
                Path(mounts[host].path) / path.name,
                number,
                len(hosts),
                truth=path,
                cache={
                    "ram_bytes": 2 * BYTES,
                    "host": str(host),
                    "listen": "127.0.0.1",
                    "cache_block_bytes": cache_block_bytes,
                },
                loader=LOADER,
                budget=LITTLE,
                bounds=bounds,
            )
            for number, host in enumerate(hosts)
        ]
        with ended(ranks):
            try:
                yield ranks, mounts
            finally:  # who waits for a server that is stopped cannot even be killed
                for mount in mounts:
                    goes_on(mount)


def stalls(mount: Mount) -> None:
    os.kill(mount.pid, signal.SIGSTOP)


def goes_on(mount: Mount) -> None:
    os.kill(mount.pid, signal.SIGCONT)


def totals(ranks: Sequence[Rank]) -> dict[str, int]:
    each = [rank.stats() for rank in ranks]
    names = ("bytes", "direct_bytes", "peer_bytes", "fetches_timeout")
    return {name: sum(stats.get(name, 0) for stats in each) for name in names}


def taken_by(ranks: Sequence[Rank], count: int | None = None) -> list[list[Taken]]:
    for each in ranks:
        each.tell("take", count)
    return [list(each.batches()) for each in ranks]


@pytest.mark.parametrize(
    ("stall_s", "bounds"),
    [(3.0, SHORT), pytest.param(30.0, {}, marks=pytest.mark.long)],
    ids=["3 s", "30 s"],
)
@pytest.mark.parametrize(
    "cache_block_bytes",
    [pytest.param(1, marks=[pytest.mark.long, pytest.mark.extra]), 4 * WIDTH],
    ids=["samples", "cache_blocks"],
)
def test_a_stall_delays_batches_and_no_more(
    stall_s: float, bounds: dict[str, float], cache_block_bytes: int, path: Path
) -> None:
    """In the middle of the first epoch, all of storage, two hosts of two ranks: longer than peers
    wait for each other. Every batch comes, right and once; most bytes leave storage once; and hosts
    ask each other again as before."""
    hosts = [0, 0, 1, 1]
    with job(path, hosts, bounds, cache_block_bytes) as (ranks, mounts):
        begin(ranks)
        taken = taken_by(ranks, 10)
        for mount in mounts:
            stalls(mount)
        since = time.monotonic()
        again = threading.Timer(stall_s, lambda: [goes_on(mount) for mount in mounts])
        again.start()
        for each, more in zip(taken, taken_by(ranks), strict=True):
            each += more
        assert time.monotonic() - since >= stall_s
        first = totals(ranks)
        begin(ranks)
        warm = taken_by(ranks)
        second = totals(ranks)
    for rank, (cold, more) in enumerate(zip(taken, warm, strict=True)):
        assert [each.ids for each in cold + more] == alone(path, rank, len(hosts), epochs=2)
        assert longest_s(cold) < stall_s + SMOOTH_S
        assert longest_s(more) < SMOOTH_S
    assert first["fetches_timeout"] > 0
    # What was asked for while storage stalled was read by who wanted it, and perhaps once more by
    # its owner: a step or two of all ranks, which do not go on without it.
    assert first["bytes"] <= BYTES * 1.2
    assert second["peer_bytes"] - first["peer_bytes"] > BYTES * 0.4
    assert second["direct_bytes"] == first["direct_bytes"]


@pytest.mark.long
def test_who_needs_nothing_of_storage_is_not_disturbed(path: Path) -> None:
    """An epoch of what the hosts have kept begins and ends while storage answers nothing."""
    hosts = [0, 1]
    with job(path, hosts, SHORT) as (ranks, mounts):
        begin(ranks)
        taken_by(ranks)
        before = totals(ranks)
        for mount in mounts:
            stalls(mount)
        begin(ranks)
        warm = taken_by(ranks)
        after = totals(ranks)
    for rank, taken in enumerate(warm):
        assert [each.ids for each in taken] == alone(path, rank, 2, epochs=2)[STEPS:]
        assert longest_s(taken) < SMOOTH_S
    assert after["bytes"] == before["bytes"] == BYTES


@pytest.mark.long
def test_a_host_whose_storage_stalls_delays_others_once(path: Path) -> None:
    """Samples that the host does not send in time the others read themselves; when its storage
    answers, it does so too, and is asked again."""
    with job(path, [0, 1], SHORT) as ((other, stalled), mounts):
        begin([other, stalled])
        taken_by([other, stalled], 10)
        stalls(mounts[1])
        stalled.tell("take", None)
        (taken,) = taken_by([other])
        waited_s = sum(each.waited_s for each in taken)
        during = other.stats()
        goes_on(mounts[1])
        late = list(stalled.batches())
        epochs, again = 1, []
        while other.stats()["peer_bytes"] < during["peer_bytes"] + BYTES // 8:
            begin([other, stalled])
            again, _ = taken_by([other, stalled])
            epochs += 1
        assert [each.ids for each in again] == alone(path, 0, 2, epochs)[-STEPS:]
    assert [each.ids for each in taken] == alone(path, 0, 2)[10:]
    assert [each.ids for each in late] == alone(path, 1, 2)[10:]
    assert during["fetches_timeout"] > 0
    assert waited_s < SHORT["peer_timeout_s"] + SMOOTH_S


def test_a_deadline_ends_the_wait(path: Path) -> None:
    """With `timeout`, the batch that does not come is an error within that time, and one that can
    be acted on; when storage answers again, batches go on."""
    pytest.importorskip("torch")
    from penstock.torch.loader import DataLoader

    timeout_s = 1.0
    with Shared() as storage:
        mount = storage.mount(path.parent, direct=True)
        dataset = penstock.open(Path(mount.path) / path.name, index="memory")
        options: dict[str, Any] = {"batch_size": BATCH, "num_workers": 1, "timeout": timeout_s}
        cache = penstock.Cache(ram_bytes=2 * BYTES, cache_block_bytes=1)
        loader = DataLoader(dataset, cache=cache, shuffle=False, **options)
        reading = iter(loader)
        next(reading)
        stalls(mount)
        since = time.monotonic()
        with pytest.raises(RuntimeError, match="timed out"):
            for _ in range(STEPS):
                next(reading)
        took_s = time.monotonic() - since
        goes_on(mount)
        assert timeout_s <= took_s < timeout_s + SMOOTH_S
        assert len(list(loader)) == STEPS
