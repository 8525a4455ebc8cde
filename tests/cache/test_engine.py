"""The engine over the caches of a job: what it holds for others."""

from __future__ import annotations

import io
import tarfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import penstock
from penstock.budget import Budget
from penstock.cache.disk import DiskTier
from penstock.cache.engine import CachedEngine
from penstock.cache.key_index import Addressed
from penstock.cache.peer import PeerEvents
from penstock.cache.shared_memory import Mask, RamTier
from penstock.clock import SystemClock
from penstock.engine import Completion, ReadingEngine, open_engine
from penstock.engine.protocol import Buffer
from penstock.errors import LimitError
from penstock.extent import Int, Requests
from penstock.plan import CacheSession, Placement
from tests.cache.memory import MemoryPeer
from tests.testing.decisions import SlowMemoryEngine


class Counted(MemoryPeer):
    """A peer that counts its steps."""

    steps = 0

    def step(self, timeout_ns: int, also: Sequence[int] = ()) -> PeerEvents:
        events = super().step(timeout_ns, also)
        self.steps += 1
        return events


def wait_until_idle(engine: CachedEngine, peer: Counted, count: Callable[[], int]) -> int:
    """Wait until the engine's thread has gone round several times, and brought nothing more."""
    pause, until_s = threading.Event(), time.monotonic() + 60
    while time.monotonic() < until_s:
        steps, before = peer.steps, count()
        while peer.steps < steps + 4 and time.monotonic() < until_s:
            pause.wait(0.001)
        if before and before == count() and not engine._shell.session._answering_bytes:
            return before
    raise AssertionError("no answer has come")


@pytest.mark.parametrize("part", [0.5, 3], ids=["several answers fit", "none fits"])
def test_answers_to_others_wait_for_memory(part: float, tmp_path: Path) -> None:
    """A node that does not take its answers is not given more of them than the budget has room
    for; all come once it does."""
    np.save(tmp_path / "x.npy", np.arange(64 * 32768).reshape(-1, 4096))
    data = penstock.open(tmp_path / "x.npy")
    row_bytes, fetches, keys_each = 8 * 4096, 32, 16
    answer_bytes = row_bytes * keys_each
    budget = Budget(readahead_bytes=int(4 * answer_bytes / part))
    group: list[MemoryPeer] = []
    answering = Counted(0, group, 60, SystemClock())
    asking = MemoryPeer(1, group, 60, SystemClock())
    group += [answering, asking]
    engine = CachedEngine(
        Addressed(data.index),
        open_engine(data.index.files, budget, data.index.mean_bytes),
        Placement(len(data), (len(data), 0), seed=1),
        [0, 1],
        0,
        RamTier.create(len(data), 2 * len(data) * row_bytes, bytes(16)),
        None,
        answering,
    )
    engine.adopt(budget)
    try:
        rows = np.arange(fetches * keys_each)
        out = np.zeros((len(rows), row_bytes), np.uint8)
        lengths = np.full(keys_each, row_bytes)
        for some in rows.reshape(fetches, keys_each):
            keys = some.astype(np.uint64)
            asking.submit(
                0, keys, lengths, some * row_bytes, [out.reshape(-1)], np.zeros_like(some)
            )
        done, most = 0, max(1, budget.peer_answers_bytes // answer_bytes)
        while done < fetches:
            there = wait_until_idle(engine, answering, lambda: len(asking._inbox))
            assert there == min(most, fetches - done)
            assert engine._shell.answers.lent_bytes <= 1.25 * there * answer_bytes
            done += len(asking.step(0).completions)
        assert (out == np.load(tmp_path / "x.npy").view(np.uint8)[rows]).all()
    finally:
        engine.close()
        asking.close()


class Refusing(MemoryPeer):
    """A peer whose transport refuses every fetch."""

    def submit(self, *_: object) -> int:
        raise OSError(105, "no buffer space")


def test_a_fetch_that_the_system_refuses_is_read_from_storage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An action that fails is told to the session, which goes another way: no error, no wait, and
    a warning that says why."""
    rows = np.random.default_rng(0).integers(0, 256, (64, 100), np.uint8)
    np.save(tmp_path / "x.npy", rows)
    data = penstock.open(tmp_path / "x.npy")
    group: list[MemoryPeer] = []
    group += [Refusing(0, group, 60, SystemClock()), MemoryPeer(1, group, 60, SystemClock())]
    engine = CachedEngine(
        Addressed(data.index),
        open_engine(data.index.files, Budget(), data.index.mean_bytes),
        Placement(64, (32, 32), seed=1),
        [0, 1],
        0,
        RamTier.create(64, 1 << 20, bytes(16)),
        None,
        group[0],
    )
    try:
        out = np.zeros(6400, np.uint8)
        engine.submit(keys_of(64, 100), [out])
        (report,) = engine.poll(60 * 10**9)
        assert report.failures == ()
        assert (out.reshape(64, 100) == rows).all()
        stats = engine.counters()
        assert (stats["failed_actions"], stats["fetches_failed"]) == (1, 1)
        assert (stats["ram_bytes"], stats["direct_bytes"]) == (3200, 3200)
        assert "no buffer space" in caplog.text
    finally:
        engine.close()
        group[1].close()


def keep_on_disk(
    data: penstock.Dataset, disk: DiskTier, inner: ReadingEngine | None = None
) -> CachedEngine:
    """Return the engine of the one rank of 64 samples, all of which a disk tier keeps."""
    return CachedEngine(
        Addressed(data.index),
        inner or open_engine(data.index.files, Budget(), data.index.mean_bytes),
        Placement(64, (0,), (64,), seed=1),
        [0],
        0,
        RamTier.create(1, 1 << 20, bytes(16)),
        disk,
        None,
    )


def test_threads_beside_a_disk_tier(tmp_path: Path) -> None:
    """Two threads do all there is to do, and the disk gives back in the second epoch what the first
    one wrote."""
    rows = np.random.default_rng(0).integers(0, 256, (64, 100), np.uint8)
    np.save(tmp_path / "x.npy", rows)
    data = penstock.open(tmp_path / "x.npy")
    inner = open_engine(data.index.files, Budget(), data.index.mean_bytes)
    before = set(threading.enumerate())
    engine = keep_on_disk(
        data, DiskTier.open(str(tmp_path / "tier"), 64, 1 << 20, bytes(16)), inner
    )
    try:
        for epoch in (1, 2):
            out = np.zeros(6400, np.uint8)
            engine.submit(keys_of(64, 100), [out])
            (report,) = engine.poll(60 * 10**9)
            assert report.failures == ()
            assert (out.reshape(64, 100) == rows).all()
            names = {thread.name for thread in set(threading.enumerate()) - before}
            assert names == {"penstock-cache", "penstock-storage"}
            wait_for(lambda: engine._shell.session.is_idle)
            stats = engine.counters()
            assert (stats["disk_blocks_written"], stats["disk_blocks_read"]) == (
                64,
                64 * (epoch - 1),
            )
            assert stats["loaded_bytes"] == 6400
    finally:
        engine.close()


class UnwritableDisk(DiskTier):
    """A disk tier for whose writes the system has no memory."""

    def write(self, slots: Int, cache_blocks: Sequence[Buffer]) -> Mask:
        raise LimitError("no memory for a cache block")


def test_a_write_that_the_system_refuses_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Cache blocks that could not be written are read from storage again: no error, no wait for
    their slots, and a warning that says why."""
    rows = np.random.default_rng(0).integers(0, 256, (64, 100), np.uint8)
    np.save(tmp_path / "x.npy", rows)
    data = penstock.open(tmp_path / "x.npy")
    engine = keep_on_disk(data, UnwritableDisk.open(str(tmp_path / "tier"), 64, 1 << 20, bytes(16)))
    try:
        for epoch in (1, 2):
            out = np.zeros(6400, np.uint8)
            engine.submit(keys_of(64, 100), [out])
            (report,) = engine.poll(60 * 10**9)
            assert report.failures == ()
            assert (out.reshape(64, 100) == rows).all()
            wait_for(lambda: engine._shell.session.is_idle)
            stats = engine.counters()
            assert stats["failed_actions"] == epoch
            assert stats["loaded_bytes"] == epoch * 6400
            assert stats["disk_blocks_written"] == 0
        assert "no memory for a cache block" in caplog.text
    finally:
        engine.close()


def test_a_write_that_fails_is_counted(tmp_path: Path) -> None:
    """A disk that takes no write: one warning, one failed action, and every batch is right."""
    rows = np.random.default_rng(0).integers(0, 256, (64, 100), np.uint8)
    np.save(tmp_path / "x.npy", rows)
    data = penstock.open(tmp_path / "x.npy")
    disk = DiskTier.open(str(tmp_path / "tier"), 64, 1 << 20, bytes(16))
    disk._data.close()
    disk._data = io.FileIO(tmp_path / "tier" / "tier.data", "r")
    engine = keep_on_disk(data, disk)
    try:
        assert engine.counters()["failed_actions"] == 0
        with pytest.warns(RuntimeWarning, match="keeps no more cache blocks: Bad file descriptor"):
            read_rows(engine, rows)
        read_rows(engine, rows)
        stats = engine.counters()
        assert stats["failed_actions"] == 1
        assert stats["disk_blocks_written"] == 0
    finally:
        engine.close()


@pytest.mark.parametrize("failing", [0, 2, 3])
def test_a_failure_is_reported_of_the_key_that_failed(failing: int, tmp_path: Path) -> None:
    """Where a key that storage does not give lies beside keys of no bytes, the report names it, not
    those: nobody takes its bytes for good."""
    samples = [b"abc", b"", b"defgh", b"ij"]
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for number, sample in enumerate(samples):
            entry = tarfile.TarInfo(f"{number}.x")
            entry.size = len(sample)
            tar.addfile(entry, io.BytesIO(sample))
    source = Addressed(penstock.open(tmp_path / "x.tar").index)
    keys = np.arange(4)
    extents = source.place_keys(keys.astype(np.uint64), np.zeros(4), keys)
    content = (tmp_path / "x.tar").read_bytes()
    engine = CachedEngine(
        source,
        SlowMemoryEngine(content, [int(extents.offset[failing])], 1),
        Placement(4, (0,), seed=1),
        [0],
        0,
        RamTier.create(1, 1 << 10, bytes(16)),
        None,
        None,
    )
    try:
        out = np.zeros(10, np.uint8)
        zeros, lengths = np.zeros(4, np.uint32), np.array([3, 0, 5, 2])
        targets = np.array([0, 3, 3, 8])
        engine.submit(Requests(zeros, keys, lengths, zeros, targets, np.arange(5)), [out])
        (report,) = engine.poll(60 * 10**9)
        assert [failure.extent for failure in report.failures] == [failing]
        for key, sample in enumerate(samples):
            found = out[targets[key] : targets[key] + lengths[key]].tobytes()
            assert (found == sample) == (key != failing)
    finally:
        engine.close()


class CountedSession(CacheSession):
    """A session that counts the steps that it is told of."""

    steps = 0

    def request(self, *arguments: Any) -> None:
        self.steps += 1
        super().request(*arguments)


@pytest.mark.parametrize("buffers", [1, 3])
def test_a_hit_is_copied_by_submit(
    buffers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys that the node's memory has are there when `submit` returns, without the session: all of
    a step or none. A large step is copied behind the user, with the same bytes."""
    rows = np.random.default_rng(0).integers(0, 256, (64, 100), np.uint8)
    np.save(tmp_path / "x.npy", rows)
    data = penstock.open(tmp_path / "x.npy")
    engine = CachedEngine(
        Addressed(data.index),
        open_engine(data.index.files, Budget(), data.index.mean_bytes),
        Placement(64, (64,), seed=1, cache_block=2),
        [0],
        0,
        RamTier.create(64, 1 << 20, bytes(16)),
        None,
        None,
        session_class=CountedSession,
    )

    def read(*keys: int) -> Requests:
        all_keys = keys_of(64, 100)
        file, offset, length, _, target = (column[list(keys)] for column in all_keys[:5])
        buffer = (offset % buffers).astype(np.uint32)
        return Requests(file, offset, length, buffer, target, np.arange(len(keys) + 1))

    def submit(*keys: int) -> list[npt.NDArray[np.uint8]]:
        out = [np.zeros(rows.size, np.uint8) for _ in range(buffers)]
        engine.submit(read(*keys), out)
        return out

    def wait() -> list[Completion]:
        return next(done for _ in range(9) if (done := engine.poll(60 * 10**9)))

    def check(out: list[npt.NDArray[np.uint8]], *keys: int) -> None:
        for key in keys:
            there = out[key % buffers].reshape(rows.shape)[key]
            assert (there == rows[key]).all()

    session = engine._shell.session
    assert isinstance(session, CountedSession)
    try:
        out = submit(3, 8, 11)  # read from storage, with their cache blocks
        assert wait() == [(0, ())]
        check(out, 3, 8, 11)
        assert session.steps == 1
        check(submit(2, 9, 10), 2, 9, 10)  # the other samples of these cache blocks
        check(submit(), *())
        assert engine.poll(0) == [(1, ()), (2, ())]
        assert session.steps == 1
        out = submit(3, 12)  # one of them is not there
        assert wait() == [(3, ())]
        check(out, 3, 12)
        assert session.steps == 2
        monkeypatch.setattr("penstock.cache.engine._direct_bytes_max", 299)
        out = submit(2, 9, 10)
        assert wait() == [(4, ())]
        check(out, 2, 9, 10)
        assert session.steps == 3
        assert engine.counters()["ram_bytes"] == 1100
    finally:
        engine.close()


def keys_of(count: int, row_bytes: int) -> Requests:
    """Requests of all keys, which go to one buffer."""
    zeros, places = np.zeros(count, np.uint32), np.arange(count) * row_bytes
    lengths = np.full(count, row_bytes)
    return Requests(zeros, np.arange(count), lengths, zeros, places, np.arange(count + 1))


def read_rows(engine: CachedEngine, rows: npt.NDArray[np.uint8]) -> None:
    """Read all keys, and wait until nothing is left to be done; the bytes are right."""
    out = np.zeros(rows.size, np.uint8)
    engine.submit(keys_of(*rows.shape), [out])
    (report,) = engine.poll(60 * 10**9)
    assert report.failures == ()
    assert (out.reshape(rows.shape) == rows).all()
    wait_for(lambda: engine._shell.session.is_idle)


def wait_for(holds: Callable[[], bool]) -> None:
    """Wait until the engine's thread has brought this about."""
    pause, until_s = threading.Event(), time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until_s
        pause.wait(0.001)
