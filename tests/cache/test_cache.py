"""The cache that the ranks of a job share: every rank a thread with a loader of its own, hosts by
name, real slabs and real sockets."""

from __future__ import annotations

import itertools
import subprocess
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.engine.native import NativeEngine
from penstock.errors import ChangedError, PenstockError, UsageError
from tests.slices import first, fraction


class Gathering:
    """A launcher's store, for threads."""

    def __init__(self, world_size: int) -> None:
        self._texts = [""] * world_size
        self._barrier = threading.Barrier(world_size, timeout=240)

    def of(self, rank: int) -> Callable[[str], list[str]]:
        def gather(text: str) -> list[str]:
            self._texts[rank] = text
            self._barrier.wait()
            found = list(self._texts)
            self._barrier.wait()
            return found

        return gather


class Told(NamedTuple):
    """The record of a rank: the samples of each step of each epoch, and the loader's totals."""

    steps: list[list[list[int]]]
    stats: list[dict[str, Any]]


def run(
    dataset: penstock.Dataset,
    hosts: list[int],
    ram_bytes: int,
    *,
    epochs: int = 2,
    cache_block_bytes: int | None = None,
    disk: tuple[Path, int] | None = None,
    assignment: str = "local",
    replicas: bool = False,
    check: Callable[[penstock.Batch], None] = lambda batch: None,
    **options: Any,
) -> list[Told]:
    """All ranks at once; `hosts` says on which host each is, `disk` the folder of all hosts' disks
    and the bytes of each."""
    world = len(hosts)
    gathering = Gathering(world)
    done = threading.Barrier(world, timeout=240)

    def rank(number: int) -> Told:
        cache = penstock.Cache(
            ram_bytes=ram_bytes,
            cache_block_bytes=cache_block_bytes,
            disk_path=None if disk is None else str(disk[0] / str(hosts[number])),
            disk_bytes=0 if disk is None else disk[1],
            replicas=replicas,
            host=f"host {hosts[number]}",
            listen="127.0.0.1",
            gather=gathering.of(number),
        )
        told = Told([], [])
        try:
            with penstock.Loader(
                dataset,
                cache=cache,
                assignment=assignment,
                rank=number,
                world_size=world,
                **options,
            ) as loader:
                for _ in range(epochs):
                    told.steps.append([])
                    for batch in loader:
                        check(batch)
                        told.steps[-1].append(batch.ids.tolist())
                    done.wait()  # who is done goes on answering until all are
                    told.stats.append(loader.stats())
                    done.wait()
        except BaseException:
            done.abort()
            raise
        return told

    with ThreadPoolExecutor(world) as threads:
        return [each.result() for each in [threads.submit(rank, n) for n in range(world)]]


def total(told: list[Told], name: str, epoch: int = -1) -> int:
    return sum(each.stats[epoch].get(name, 0) for each in told)


def expected(dataset: penstock.Dataset, **options: Any) -> list[list[list[int]]]:
    """The global batches of two epochs, sorted, by one rank without a cache."""
    loader = penstock.Loader(dataset, rank=0, world_size=1, **options)
    return [[sorted(batch.ids.tolist()) for batch in loader] for _ in range(2)]


def global_batches(told: list[Told]) -> list[list[list[int]]]:
    return [
        [sorted(itertools.chain(*rows)) for rows in zip(*epoch, strict=True)]
        for epoch in zip(*(each.steps for each in told), strict=True)
    ]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Samples of all lengths, also none, each a file of its own."""
    folder = tmp_path_factory.mktemp("files")
    random = np.random.default_rng(5)
    for number, size in enumerate([0, 1, 70_000, *random.integers(0, 3000, 150).tolist()]):
        (folder / f"{number:03}.bin").write_bytes(random.bytes(size))
    return folder


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("records") / "x.npy"
    np.save(path, np.random.default_rng(6).integers(0, 256, (1000, 600), np.uint8))
    return path


@pytest.mark.parametrize("assignment", ["local", "strided"])
@pytest.mark.parametrize("hosts", first(2, [[0], [0, 1, 0, 1, 1], [0, 0], [0, 1]]))
def test_every_byte_is_read_once(hosts, assignment, records):
    """Every byte is read once, from the first epoch on, where the hosts can keep the data."""
    dataset = penstock.open(records)
    data = np.load(records)

    def check(batch: penstock.Batch) -> None:
        assert (batch["data"] == data[batch.ids]).all()

    options = {"global_batch_size": 70, "seed": 3}
    told = run(dataset, hosts, 1 << 20, assignment=assignment, check=check, epochs=2, **options)
    assert global_batches(told) == expected(dataset, **options)
    for epoch in range(2):
        assert total(told, "loaded_bytes", epoch) == data.nbytes
        assert total(told, "direct_bytes", epoch) == 0
    assert total(told, "ram_bytes") + total(told, "peer_bytes") == 2 * data.nbytes


def test_hosts_read_equal_bytes(tmp_path):
    """Samples of unequal sizes: each is read once, by an owner that has about as many bytes as the
    others; order and batch sizes are as ever, where each rank processes what its host keeps too."""
    for number, size in enumerate(np.random.default_rng(8).integers(0, 3000, 400).tolist()):
        (tmp_path / f"{number:03}.bin").write_bytes(bytes([number % 256]) * size)
    dataset = penstock.open(tmp_path)
    options = {"global_batch_size": 40, "seed": 3}
    for assignment in ("strided", "local"):
        told = run(dataset, [0, 1, 2, 3], 1 << 20, assignment=assignment, **options)
        assert global_batches(told) == expected(dataset, **options)
        assert {len(ids) for each in told for ids in each.steps[0]} == {10}
        loaded = [each.stats[-1]["loaded_bytes"] for each in told]
        assert sum(loaded) == dataset.index.total_bytes
        assert max(loaded) - min(loaded) < 3000


@fraction(2)
@given(
    hosts=st.lists(st.integers(0, 2), min_size=1, max_size=4),
    ram_bytes=st.sampled_from([4096, 200_000, 1 << 20]),
    cache_block_bytes=st.sampled_from([None, 1, 5000]),
    assignment=st.sampled_from(["local", "strided", "contiguous", "replicas"]),
    share=st.sampled_from([0.2, 0.7]),
    kind=st.sampled_from(["selected", "mixed", "weighed", "staged"]),
)
def test_selections_are_cached_as_their_data_is(
    hosts, ram_bytes, cache_block_bytes, assignment, share, kind, records
):
    """A selection, a mixture with one, weights and a curriculum give through a cache what they give
    without, byte by byte, also where copies are kept by the next use of a sample."""
    data = np.load(records)
    whole = penstock.open(records, index="memory")
    dataset = whole.select(fraction=share, seed=1)
    has_replicas = assignment == "replicas" and kind == "selected"
    if kind in ("weighed", "staged"):
        dataset = dataset.weigh(np.arange(len(dataset)) % 5)
    if kind == "staged":
        dataset = penstock.curriculum([(0, whole.select(range(90))), (1, dataset)])
    if kind == "mixed":
        dataset = penstock.mix([(whole, 1), (dataset, 2)], samples_per_epoch=300)

    def check(batch: penstock.Batch) -> None:
        assert (batch["data"] == data[batch.ids % np.uint64(len(data))]).all()

    options = {"global_batch_size": 70, "seed": 3}
    told = run(
        dataset, hosts, ram_bytes, cache_block_bytes=cache_block_bytes, check=check,
        assignment="strided" if assignment == "replicas" else assignment, replicas=has_replicas,
        **options,
    )  # fmt: skip
    assert global_batches(told) == expected(dataset, **options)


@fraction(2)
@given(
    hosts=st.lists(st.integers(0, 2), min_size=1, max_size=4),
    ram_bytes=st.sampled_from([0, 4096, 40_000, 200_000, 1 << 20]),
    cache_block_bytes=st.sampled_from([None, 1, 5000, 1 << 20]),
    assignment=st.sampled_from(["local", "strided", "contiguous"]),
    batch=st.integers(4, 60),
    last=st.sampled_from([{}, {"drop_last": True}, {"pad": True}]),
    disk_bytes=st.sampled_from([0, 60_000, 1 << 22]),
)
def test_budgets_change_no_batch(
    hosts, ram_bytes, cache_block_bytes, assignment, batch, last, disk_bytes, files
):
    """Any memory, cache blocks and hosts: the same global batches, every byte right, no rank
    without its share."""
    hosts = [sorted(set(hosts)).index(each) for each in hosts]
    dataset = penstock.open(files)

    def check(found: penstock.Batch) -> None:
        for row, sample in enumerate(found.ids.tolist()):
            path = files / found_name(dataset, sample)
            assert bytes(found["data"][row]) == path.read_bytes()

    options = {"global_batch_size": batch, "seed": 1, **last}
    with tempfile.TemporaryDirectory() as folder:
        told = run(
            dataset,
            hosts,
            ram_bytes,
            cache_block_bytes=cache_block_bytes,
            disk=(Path(folder), disk_bytes) if disk_bytes else None,
            assignment=assignment,
            check=check,
            **options,
        )
    if not last.get("pad"):
        assert global_batches(told) == expected(dataset, **options)
    loader = penstock.Loader(dataset, rank=0, world_size=len(hosts), **options)
    for rank, each in enumerate(told):
        rows = [loader.steps.rows(step, rank) for step in range(len(loader))]
        assert [[len(ids) for ids in epoch] for epoch in each.steps] == [rows, rows]


def found_name(dataset: penstock.Dataset, sample: int) -> str:
    return dataset.index.keys(np.array([sample]))[0]


def test_what_a_peer_waits_for_goes_before_what_is_read_ahead(records, monkeypatch):
    """Cache blocks are read on demand for other hosts, and for the step that is waited for."""
    asked: dict[int, list[str]] = {}

    class Asked(NativeEngine):
        def submit(self, requests, buffers, purpose="prefetch"):
            asked.setdefault(id(self), []).append(purpose)
            return super().submit(requests, buffers, purpose)

    monkeypatch.setattr(
        penstock.cache.agreement,
        "open_engine",
        lambda files, budget, mean_bytes: Asked(files, budget=budget, mean_bytes=mean_bytes),
    )
    options = {
        "assignment": "strided",
        "cache_block_bytes": 600,
        "global_batch_size": 20,
        "epochs": 1,
    }
    run(penstock.open(records), [0, 0], 1 << 20, **options)
    alone, asked = asked, {}
    run(penstock.open(records), [0, 1], 1 << 20, **options)
    assert len(alone) == len(asked) == 2
    for purposes in alone.values():
        assert purposes.count("demand") == 1
        assert set(purposes) == {"demand", "prefetch"}
    for purposes in asked.values():  # each host keeps half of each step of the other one
        assert purposes.count("demand") > 10
        assert purposes.count("prefetch") > 10


def test_half_the_memory_reads_the_other_half(records):
    """Storage bytes are the lower bound, S + (E - 1) (S - D), and what no node can keep."""
    dataset = penstock.open(records)
    size = dataset.index.total_bytes
    told = run(dataset, [0, 1], size // 4, epochs=3, cache_block_bytes=1, global_batch_size=50)
    read = [total(told, "bytes", epoch) for epoch in range(3)]
    kept = total(told, "loaded_bytes")
    assert 0.45 * size < kept <= 0.5 * size
    assert np.diff([0, *read]).tolist() == [size, size - kept, size - kept]


@pytest.mark.parametrize("hosts", first(1, [[0, 1], [0], [0, 0]]))
def test_what_memory_cannot_hold_lies_on_disk_for_the_next_run(hosts, records, tmp_path):
    """Read once by the first run, and only what memory holds by the second."""
    dataset = penstock.open(records)
    data = np.load(records)

    def check(batch: penstock.Batch) -> None:
        assert (batch["data"] == data[batch.ids]).all()

    ram_bytes = data.nbytes // 2 // len(set(hosts))
    options = {"cache_block_bytes": 6000, "disk": (tmp_path, 4 << 20), "global_batch_size": 50}
    first = run(dataset, hosts, ram_bytes, check=check, **options)
    assert total(first, "loaded_bytes") == data.nbytes
    assert total(first, "direct_bytes") == 0
    assert total(first, "disk_bytes") > 0
    second = run(dataset, hosts, ram_bytes, check=check, **options)
    assert 0.4 * data.nbytes < total(second, "loaded_bytes") <= 0.5 * data.nbytes
    assert global_batches(first) == global_batches(second)
    assert total(second, "disk_blocks_read") > total(second, "disk_blocks_damaged") == 0
    for kept in tmp_path.glob("*/tier.data"):
        with kept.open("r+b") as file:
            for page in range(4096, kept.stat().st_size, 4096):
                file.seek(page)
                file.write(b"damaged")
    third = run(dataset, hosts, ram_bytes, check=check, **options)
    assert total(third, "disk_blocks_damaged") > 0
    assert global_batches(first) == global_batches(third)


def test_a_disk_that_fills_up_costs_reads_and_no_waiting(records, tmp_path):
    """Samples that it cannot keep are read from storage, with one warning; nobody waits for it."""
    dataset = penstock.open(records)
    data = np.load(records)
    disk = tmp_path / "0"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=128k,mode=0700", "none", disk]
    ).returncode:
        pytest.skip("cannot mount tmpfs (root can)")

    def check(batch: penstock.Batch) -> None:
        assert (batch["data"] == data[batch.ids]).all()

    try:
        with pytest.warns(RuntimeWarning, match="keeps no more cache blocks"):
            told = run(
                dataset,
                [0],
                100_000,
                cache_block_bytes=600,
                disk=(tmp_path, 8 << 20),
                check=check,
                global_batch_size=50,
            )
    finally:
        subprocess.run(["umount", disk], check=True)
    assert total(told, "disk_bytes") > 0
    assert total(told, "busy_too_long") == 0


def test_ranks_must_have_the_same_data(records, files):
    with pytest.raises(UsageError, match="open the same data"):
        disagree(penstock.open(records), penstock.open(files))


def disagree(*datasets: penstock.Dataset) -> None:
    gathering = Gathering(len(datasets))

    def rank(number: int) -> None:
        cache = penstock.Cache(ram_bytes=1 << 16, host="one", gather=gathering.of(number))
        loader = penstock.Loader(
            datasets[number], 5, cache=cache, rank=number, world_size=len(datasets)
        )
        next(iter(loader))

    with ThreadPoolExecutor(len(datasets)) as threads:
        for each in [threads.submit(rank, n) for n in range(len(datasets))]:
            each.result()


def test_a_changed_file_is_told_and_kept_by_nobody(tmp_path):
    """The cache blocks of a file that changed fail, on the rank that wants them; others go on."""
    for name in ("a", "b"):
        np.save(tmp_path / f"{name}.npy", np.full((100, 100), ord(name), np.uint8))
    dataset = penstock.open([tmp_path / "a.npy", tmp_path / "b.npy"], sample="row")
    (tmp_path / "b.npy").write_bytes((tmp_path / "b.npy").read_bytes()[:5000])
    cache = penstock.Cache(ram_bytes=1 << 20, cache_block_bytes=100)
    with penstock.Loader(dataset, 1, shuffle="none", cache=cache, rank=0, world_size=1) as loader:
        reading = iter(loader)
        assert [int(next(reading)["data"][0, 0]) for _ in range(100)] == [ord("a")] * 100
        for _ in range(100):
            with pytest.raises(ChangedError, match=r"b\.npy"):
                next(reading)


def test_a_host_that_leaves_costs_reads_and_nothing_else(records):
    """Its samples are read from storage; no batch is wrong or missing."""
    dataset = penstock.open(records)
    data = np.load(records)
    gathering = Gathering(2)
    left = threading.Event()

    def rank(number: int) -> tuple[list[int], dict[str, Any]]:
        cache = penstock.Cache(
            ram_bytes=1 << 20, host=str(number), listen="127.0.0.1", gather=gathering.of(number)
        )
        seen = []
        with penstock.Loader(
            dataset, 10, cache=cache, assignment="strided", rank=number, world_size=2
        ) as loader:
            for step, batch in enumerate(loader):
                assert (batch["data"] == data[batch.ids]).all()
                seen += batch.ids.tolist()
                if number == 1 and step == 3:
                    break
                if number == 0 and step == 5:
                    left.wait(60)
            stats = loader.stats()
        left.set()
        return seen, stats

    with ThreadPoolExecutor(2) as threads:
        first, _ = [each.result() for each in [threads.submit(rank, n) for n in range(2)]]
    seen, stats = first
    assert len(set(seen)) == 500
    assert stats["direct_bytes"] > 0
    assert stats["fetches_gone"] > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache": 5}, "give a penstock.Cache"),
        ({"assignment": "local"}, "give cache="),
    ],
)
def test_arguments_that_cannot_be(options, message, records):
    with pytest.raises(UsageError, match=message):
        penstock.Loader(penstock.open(records), 5, **options)


@pytest.mark.parametrize("value", [-1, 1.5, True])
@pytest.mark.parametrize("name", ["ram_bytes", "disk_bytes", "cache_block_bytes"])
def test_cache_arguments(name, value):
    with pytest.raises(PenstockError, match=name):
        penstock.Cache(**{"ram_bytes": 1, name: value})
    with pytest.raises(PenstockError, match="both or none"):
        penstock.Cache(ram_bytes=1, disk_bytes=1)


def test_ranks_without_a_way_to_each_other_are_told(records):
    cache = penstock.Cache(ram_bytes=1 << 20)
    loader = penstock.Loader(penstock.open(records), 5, cache=cache, rank=0, world_size=2)
    assert len(loader) == 100  # asking for it makes nobody wait
    with pytest.raises(UsageError, match=r"torch\.distributed"):
        next(iter(loader))
