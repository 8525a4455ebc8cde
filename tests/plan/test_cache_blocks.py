"""Cache blocks: the choice by measured storage, the measurement, and its reuse by later runs."""

from __future__ import annotations

import errno
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks import emulation
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock import limits
from penstock.cache.agreement import CacheMembership, join_cache
from penstock.order.shuffling import ReadCost
from penstock.plan.cache_blocks import choose_cache_block
from penstock.ranks.place import Place
from tests.cache.test_cache import Gathering, run, total
from tests.slices import first

FLASH = ReadCost(latency_ns=8e4, bytes_per_s=2.5e9, requests=32)
SHARED = ReadCost(latency_ns=5e5, bytes_per_s=1e8, requests=64)
DISK = ReadCost(latency_ns=1e7, bytes_per_s=1.5e8, requests=1)
OBJECTS = ReadCost(latency_ns=2e7, bytes_per_s=1e9, requests=64)


@pytest.mark.parametrize(
    ("measured", "mean_bytes", "cache_block"),
    [
        (FLASH, 4096, 8),  # 2154 bytes beside each read: nine times that are 19 KiB
        (FLASH, 100_000, 1),
        (SHARED, 200, 40),  # 581 beside each: 5 KiB, so 8 KiB
        (SHARED, 12_288, 1),  # its 64 reads in flight are all the bandwidth there is
        (DISK, 12_288, 85),  # 13 MB would be needed: the most that a cache block may be
        (DISK, 300_000, 3),
        (OBJECTS, 100_000, 10),
        (OBJECTS, 3_000_000, 1),
    ],
)
def test_a_cache_block_suits_its_storage(
    measured: ReadCost, mean_bytes: int, cache_block: int
) -> None:
    """A laptop's flash, shared storage, a disk that turns, objects: as few samples as are read at
    nine tenths of the bandwidth."""
    assert choose_cache_block(10**6, mean_bytes, measured).samples == cache_block


def test_a_choice_says_why() -> None:
    """With the figures that it was made from."""
    chosen = choose_cache_block(10**6, 4096, FLASH)
    expected = (
        "random reads of single samples reach 66% of what large reads give, of cache blocks 94%"
    )
    assert chosen.reason == expected
    assert chosen.reached == pytest.approx(32768 / (32768 + 2154))


@given(
    count=st.integers(1, 2**40),
    mean_bytes=st.floats(0, 1e8),
    measured=st.builds(
        ReadCost,
        latency_ns=st.floats(1, 1e10),
        bytes_per_s=st.floats(1e3, 1e12),
        requests=st.floats(1, 1e4),
    ),
)
def test_every_choice_is_within_bounds(count: int, mean_bytes: float, measured: ReadCost) -> None:
    """Neither more than fits the bounds, nor more than is needed, nor less where more would do."""
    cache_block, size = (
        choose_cache_block(count, mean_bytes, measured).samples,
        max(1.0, mean_bytes),
    )
    overhead = max(
        0.0, measured.latency_ns * 1e-9 / measured.requests * measured.bytes_per_s - size
    )

    def reached(samples: float) -> float:
        return samples * size / (samples * size + overhead)

    assert 1 <= cache_block <= count
    assert cache_block == 1 or cache_block * size <= limits.cache_block_bytes_max
    if cache_block > max(
        1, limits.cache_block_bytes_min // size
    ):  # no more than needed, and cache blocks enough
        assert reached(cache_block // 2) < 0.9
        assert count // cache_block >= limits.cache_blocks_min
    larger = 2 * (cache_block + 1)
    if reached(cache_block) < 0.9 and count // larger >= limits.cache_blocks_min:
        assert larger * size > limits.cache_block_bytes_max


# -- measured --------------------------------------------------------------------------------------

needs_storage = pytest.mark.skipif(
    emulation.usable() is not None, reason=f"no emulated storage: {emulation.usable()}"
)
RECORD = 12_288
SURVEY = 1  # a read of an engine that begins: whether storage takes direct ones


@pytest.fixture(scope="module")
def holes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Many records that take no room."""
    path = tmp_path_factory.mktemp("holes") / "records"
    path.touch()
    os.truncate(path, RECORD * (1 << 17))
    return path


def joined(paths: list[str], cache_block_bytes: int | None = None) -> list[CacheMembership]:
    """Each path a host of one rank; nothing of the data is read but what is measured."""
    world = len(paths)
    gathering = Gathering(world)

    def rank(number: int) -> CacheMembership:
        dataset = penstock.open(paths[number], record_bytes=RECORD, index="memory")
        cache = penstock.Cache(
            ram_bytes=1 << 20,
            cache_block_bytes=cache_block_bytes,
            host=str(number),
            listen="127.0.0.1",
            gather=gathering.of(number),
        )
        return join_cache(
            dataset.index, dataset.path, cache, Place(number, world, "test"), penstock.Budget()
        )

    with ThreadPoolExecutor(world) as threads:
        parts = [each.result() for each in [threads.submit(rank, n) for n in range(world)]]
    for part in parts:
        part.engine.close()
    return parts


@needs_storage
def test_rank_0_measures_for_all(holes: Path) -> None:
    """A turning disk gets large cache blocks. Slow storage that serves many reads at once gets
    single samples, or a few where a busy machine adds to each read. The other ranks read nothing
    for it, and rank 0 little."""
    largest = limits.cache_block_bytes_max // RECORD
    for parameters, least, most in (
        ({"read_ns": 10_000_000, "slots": 1, "bytes_per_s": 150e6}, largest, largest),
        ({"read_ns": 500_000, "bytes_per_s": 10e6}, 1, largest // 4),
    ):
        with emulation.Shared(**parameters) as storage:
            mounts = [storage.mount(holes.parent, direct=True) for _ in range(2)]
            storage.reset()
            first, second = joined([f"{mount.path}/records" for mount in mounts])
            reads = [mount.counters()["reads"] for mount in mounts]
            read_bytes = storage.counters()["bytes"]
        assert first.cache_block == second.cache_block
        assert least <= first.cache_block["samples"] <= most
        assert first.cache_block["latency_ns"] >= parameters["read_ns"]
        assert "random reads of single samples" in first.cache_block["reason"]
        assert reads[0] > 10
        assert reads[1] <= SURVEY
        assert read_bytes <= limits.cache_block_probe_fraction * RECORD * (1 << 17) * 1.1


@needs_storage
def test_what_need_not_be_measured_is_not(holes: Path, tmp_path: Path) -> None:
    """If the cache block is given, or little depends on it, storage is left alone."""
    few = tmp_path / "records"
    few.touch()
    os.truncate(few, RECORD * 1000)
    with emulation.Shared() as storage:
        for source, cache_block_bytes, cache_block in ((holes, 30_000, 2), (few, None, 1)):
            mount = storage.mount(source.parent, direct=True)
            (one,) = joined([f"{mount.path}/records"], cache_block_bytes)
            assert one.cache_block["samples"] == cache_block
            assert mount.counters()["reads"] <= SURVEY


@needs_storage
def test_storage_that_fails_is_not_measured(holes: Path) -> None:
    """The batch that wants the bytes will tell; the ranks agree on some cache block."""
    with emulation.Shared() as storage:
        mount = storage.mount(holes.parent, direct=True)
        mount.fault("error", errno.EIO, (RECORD, 1 << 62))
        (one,) = joined([f"{mount.path}/records"])
    assert one.cache_block["samples"] == limits.cache_block_bytes_default // RECORD
    assert "could not be measured" in one.cache_block["reason"]


# -- of later runs ---------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("kept", first(1, [[1], [0, 1]]))
def test_a_later_run_keeps_the_cache_block_of_the_disks(kept: list[int], tmp_path: Path) -> None:
    """Whatever would be chosen now, what lies on the disks is found, also where one of the hosts
    has another disk."""
    data = np.random.default_rng(6).integers(0, 256, (1000, 600), np.uint8)
    np.save(tmp_path / "x.npy", data)
    dataset = penstock.open(tmp_path / "x.npy")

    def check(batch: penstock.Batch) -> None:
        assert (batch["data"] == data[batch.ids]).all()

    options: dict[str, Any] = {"disk": (tmp_path / "disks", 4 << 20), "global_batch_size": 50}
    ram_bytes = data.nbytes // 8
    first = run(dataset, [0, 1], ram_bytes, cache_block_bytes=3000, check=check, **options)
    assert total(first, "loaded_bytes") == data.nbytes
    for host in {0, 1} - set(kept):
        shutil.rmtree(tmp_path / "disks" / str(host))
    second = run(dataset, [0, 1], ram_bytes, check=check, **options)
    for each in second:
        assert each.stats[-1]["cache_block"]["samples"] == 5
        assert each.stats[-1]["cache_block"]["reason"] == "as on disk, from an earlier run"
    found = sum(second[host].stats[-1]["loaded_bytes"] < 0.3 * data.nbytes for host in range(2))
    assert found == len(kept)
    assert total(second, "loaded_bytes") < (1 - 0.3 * len(kept)) * data.nbytes
    other = run(dataset, [0, 1], ram_bytes, cache_block_bytes=600, check=check, **options)
    assert total(other, "loaded_bytes") == data.nbytes


def test_disks_of_other_data_decide_nothing(tmp_path: Path) -> None:
    for name, count in (("a", 1000), ("b", 900)):
        np.save(tmp_path / f"{name}.npy", np.zeros((count, 600), np.uint8))
    options: dict[str, Any] = {"disk": (tmp_path / "disks", 4 << 20), "global_batch_size": 50}
    run(penstock.open(tmp_path / "a.npy"), [0], 60_000, cache_block_bytes=3000, **options)
    (told,) = run(penstock.open(tmp_path / "b.npy"), [0], 60_000, **options)
    assert told.stats[-1]["cache_block"]["samples"] == limits.cache_block_bytes_min // 600
