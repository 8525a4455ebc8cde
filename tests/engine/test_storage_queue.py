"""The storage queue and queued engines pass their suites; budgets bound the queue of a process."""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.budget import Budget
from penstock.checkpoint import Checkpoints, load
from penstock.checkpoint.shards import Flush
from penstock.clock import Clock
from penstock.convert import convert
from penstock.engine import (
    Engine,
    Purpose,
    ReadingEngine,
    StorageQueue,
    request_queue,
    storage_queue,
)
from penstock.engine.request_queue import Aging, RateAccount
from penstock.engine.storage_queue import PROCESS_QUEUE, QueuedEngine, Turn
from penstock.testing import EngineRead, EngineSuite, finish
from tests.engine.memory import MemoryEngine
from tests.engine.queue_suite import StorageQueueSuite
from tests.interrupts import InterruptAt
from tests.jumping_clock import JumpingClock


class TestStorageQueue(StorageQueueSuite):
    def make(self, inflight_bytes_max: int | None, clock: Clock) -> StorageQueue:
        return StorageQueue(inflight_bytes_max, clock=clock)


def queued(contents: list[bytes | None], queue: StorageQueue) -> QueuedEngine:
    return QueuedEngine(cast(ReadingEngine, MemoryEngine(contents)), len(contents), Budget(), queue)


class TestQueuedEngine(EngineSuite):
    """Nothing is bounded: tickets go on at once."""

    def make(self, contents: list[bytes | None], folder: Path) -> Engine:
        return queued(contents, StorageQueue())

    @contextmanager
    def held(
        self, contents: list[bytes | None], folder: Path, aging: Aging
    ) -> Iterator[tuple[Engine, Callable[[], None]]]:
        with hold(contents, aging) as pair:
            yield pair


class TestBoundedEngine(EngineSuite):
    """One ticket goes at a time."""

    def make(self, contents: list[bytes | None], folder: Path) -> Engine:
        return queued(contents, StorageQueue(1))

    @contextmanager
    def held(
        self, contents: list[bytes | None], folder: Path, aging: Aging
    ) -> Iterator[tuple[Engine, Callable[[], None]]]:
        with hold(contents, aging) as pair:
            yield pair


@contextmanager
def hold(contents: list[bytes | None], aging: Aging) -> Iterator[tuple[Engine, Callable[[], None]]]:
    """A queued engine beside a write that has its turn until it is told to end."""
    queue = StorageQueue(1, aging=aging)
    write = queue.put("write", "checkpoint", 1)
    yield queued(contents, queue), write.end


class _Careless(StorageQueue):
    """Forgets which bytes requests have in common."""

    def put(self, kind: Any, purpose: Any, length: int, **where: Any) -> Turn:
        return super().put(kind, purpose, length)


class _Unlimited(StorageQueue):
    """Forgets rates."""

    def limit(self, holder: object, bytes_per_s: float | None) -> None:
        super().limit(holder, None)


class _Unfair(StorageQueue):
    """Forgets floors."""

    def reset(self) -> None:
        super().reset()
        self._floors = {}


class _Unbounded(StorageQueue):
    """Forgets the bound of bytes in flight."""

    def __init__(self, inflight_bytes_max: int | None, **options: Any) -> None:
        super().__init__(None, **options)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "test"),
    [
        (_Careless, "common_bytes_keep_their_order"),
        (_Unlimited, "one_rate_for_reads_and_writes"),
        (_Unfair, "a_loop_leaves_floors"),
        (_Unbounded, "bytes_in_flight"),
        (_Unbounded, "urgent_first"),
    ],
)
def test_suite_sees_defects(kind: type[StorageQueue], test: str) -> None:
    """A queue with a defect fails the test that is there to see it."""

    class Suite(StorageQueueSuite):
        def make(self, inflight_bytes_max: int | None, clock: Clock) -> StorageQueue:
            return kind(inflight_bytes_max, clock=clock)

    with pytest.raises((AssertionError, pytest.fail.Exception)):
        getattr(Suite(), f"test_{test}")()


# -- engines beside writes -------------------------------------------------------------------------


def test_a_read_waits_for_the_rate_that_a_write_used() -> None:
    """Bytes of reads and of writes are paid for together; a demand goes before other reads."""
    clock, content = JumpingClock(), bytes(1000)
    queue = StorageQueue(clock=clock)
    engine = QueuedEngine(
        cast(ReadingEngine, MemoryEngine([content])), 1, Budget(process_bytes_per_s=1000), queue
    )
    queue.put("write", "checkpoint", 1000).end()
    readings = [EngineRead([content], [[(0, 0, 500)]]) for _ in range(2)]
    purposes: tuple[Purpose, ...] = ("prefetch", "demand")
    ahead, demand = (
        engine.submit(reading.requests, reading.buffers, purpose)
        for reading, purpose in zip(readings, purposes, strict=True)
    )
    clock.wait_until_ns(900_000_000)
    assert engine.poll(0) == []
    for reading in readings:
        reading.assert_untouched()
    clock.wait_until_ns(1_000_000_000)
    assert [done.ticket for done in engine.poll(0)] == [demand]
    clock.wait_until_ns(1_400_000_000)
    assert engine.poll(0) == []
    clock.wait_until_ns(1_500_000_000)
    assert [done.ticket for done in engine.poll(0)] == [ahead]
    assert queue.totals()["demand"].waited_ns == 1_000_000_000


def test_a_dropped_engine_leaves_nothing() -> None:
    """The bound and the turns of an engine that was neither polled nor closed end with it."""
    queue, content = StorageQueue(1), bytes(10)
    engine = QueuedEngine(
        cast(ReadingEngine, MemoryEngine([content])), 1, Budget(process_bytes_per_s=1e9), queue
    )
    for _ in range(3):
        reading = EngineRead([content], [[(0, 0, 10)]])
        engine.submit(reading.requests, reading.buffers)
    waiting = queue.put("write", "convert", 10)
    assert not waiting.is_due()
    del engine
    gc.collect()
    assert queue.bytes_per_s is None
    assert waiting.is_due()


def test_a_closed_engine_leaves_nothing() -> None:
    queue, content = StorageQueue(1), bytes(10)
    engine = queued([content], queue)
    for _ in range(3):
        reading = EngineRead([content], [[(0, 0, 10)]])
        engine.submit(reading.requests, reading.buffers)
    engine.close()
    assert queue.put("write", "convert", 10).is_due()


def test_a_bound_may_come_and_go() -> None:
    """Tickets from before a bound, within it, and after it are each reported once."""
    queue, content = StorageQueue(clock=JumpingClock()), bytes(10)
    engine = queued([content], queue)
    tickets = []
    for rate in (None, 1e9, 1e-3, 1e9, None):
        queue.limit(engine, rate)
        for _ in range(3):
            reading = EngineRead([content], [[(0, 0, 10)]])
            tickets.append(engine.submit(reading.requests, reading.buffers))
    assert sorted(finish(engine, tickets)) == tickets


def test_an_unbounded_engine_is_called_directly() -> None:
    """Nothing stands between a caller and the engine until a bound comes, from whomever."""
    queue, inner = StorageQueue(), cast(ReadingEngine, MemoryEngine([bytes(10)]))
    engine, holder = QueuedEngine(inner, 1, Budget(), queue), Bound()
    assert (engine.submit, engine.poll) == (inner.submit, inner.poll)
    queue.limit(holder, 1e9)
    later = QueuedEngine(inner, 1, Budget(), queue)
    assert inner.submit not in (engine.submit, later.submit)


def test_a_bound_comes_while_a_thread_polls() -> None:
    """A call of the engine's own poll may go on when a bound comes: it gets no report on tickets
    of the queue."""
    queue, content = StorageQueue(), bytes(10)
    engine = queued([content], queue)
    poll_under_way = engine.poll
    queue.limit(engine, 1e9)
    reading = EngineRead([content], [[(0, 0, 10)]])
    ticket = engine.submit(reading.requests, reading.buffers)
    assert poll_under_way(0) == []
    reading.assert_done(finish(engine, [ticket])[ticket])


# -- the queue of this process ---------------------------------------------------------------------


PURPOSES: tuple[Purpose, ...] = ("checkpoint", "convert")


def written_bytes(purpose: Purpose) -> int:
    totals = PROCESS_QUEUE.totals()
    return totals[purpose].written_bytes if purpose in totals else 0


def test_purposes_of_a_job_are_counted(tmp_path: Path) -> None:
    """A loader, a checkpoint and a conversion each find in the same table what they got."""
    data = np.random.default_rng(0).integers(0, 256, (64, 1000), np.uint8)
    np.save(tmp_path / "x.npy", data)
    dataset = penstock.open(tmp_path / "x.npy", index="memory")
    before = {purpose: written_bytes(purpose) for purpose in PURPOSES}
    convert(dataset, tmp_path / "shards", to="tfrecord", shards=1)
    read_before = sum(totals.read_bytes for totals in PROCESS_QUEUE.totals().values())
    with (
        penstock.Loader(dataset, batch_size=8, seed=0) as loader,
        Checkpoints(tmp_path / "checkpoints") as checkpoints,
    ):
        ids = [batch.ids.tolist() for batch in loader]
        checkpoints.save(1, {"x": data})
        checkpoints.wait()
        stats = loader.stats()["storage"]
        assert checkpoints.stats()["storage"] == stats
    assert sum(map(len, ids)) == 64
    assert sum(of["read_bytes"] for of in stats.values()) - read_before == data.nbytes
    # The last part of a page is written with the manifest, outside.
    assert stats["convert"]["written_bytes"] - before["convert"] > data.nbytes
    written = stats["checkpoint"]["written_bytes"] - before["checkpoint"]
    assert data.nbytes - 4096 < written <= data.nbytes + 4096


def test_a_process_rate_changes_no_batch(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(64_000, dtype=np.uint8).reshape(64, 1000))
    dataset = penstock.open(tmp_path / "x.npy", index="memory")
    found = []
    for budget in (Budget(), Budget(process_bytes_per_s=1e6)):
        with penstock.Loader(dataset, batch_size=8, seed=0, budget=budget) as loader:
            assert PROCESS_QUEUE.bytes_per_s is None
            found.append([(batch.ids.tolist(), batch["data"].tobytes()) for batch in loader])
            assert PROCESS_QUEUE.bytes_per_s == budget.process_bytes_per_s
            loader.budget = Budget()
            assert PROCESS_QUEUE.bytes_per_s is None
    assert found[0] == found[1]
    assert len(found[0]) == 8


def test_a_forked_process_begins_anew() -> None:
    """What waits or has its turn in the parent holds nothing up in the child."""
    held = PROCESS_QUEUE.put("write", "checkpoint", 10, file=0)
    pid = os.fork()
    if not pid:
        is_due = PROCESS_QUEUE.put("read", "demand", 10, file=0).is_due()
        os._exit(0 if is_due and not PROCESS_QUEUE.totals() else 1)
    assert os.waitpid(pid, 0)[1] == 0
    held.end(0)


def test_flush_keeps_to_the_rate_of_the_process() -> None:
    """The turns of a write are those of the process's queue, and its bound ends with them."""
    with Flush(Budget(process_bytes_per_s=1)) as flush:
        turns = flush.take_turns(64 << 20)
        assert next(turns) == (0, 1 << 20)
        assert PROCESS_QUEUE.bytes_per_s == 1
        flush.adopt(Budget())
        assert PROCESS_QUEUE.bytes_per_s is None
        assert next(turns) == (1 << 20, 2 << 20)  # it was asked for before
        assert next(turns) == (2 << 20, 34 << 20)
        flush.adopt(Budget(process_bytes_per_s=1))
        turns.close()
    assert PROCESS_QUEUE.bytes_per_s is None


def test_waiting_for_the_rate_of_the_process_ends() -> None:
    """A stop ends the wait for a turn that would come in a week."""
    with Flush(Budget(process_bytes_per_s=1)) as flush:
        turns = flush.take_turns(64 << 20)
        next(turns)
        stop = threading.Timer(0.05, flush.stop)
        stop.start()
        with pytest.raises(OSError, match="abandoned") as found:
            next(turns)
        assert found.value.errno == errno.ECANCELED
        stop.join()
    assert PROCESS_QUEUE.bytes_per_s is None


def test_loading_takes_turns_and_is_counted(tmp_path: Path) -> None:
    """A checkpoint is loaded within the rate of the process, which the writes of others use too."""
    state = {"x": np.random.default_rng(0).integers(0, 256, 9 << 20, np.uint8)}
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state)
        checkpoints.wait()
    before = PROCESS_QUEUE.totals()["checkpoint"]
    assert load(tmp_path).step == 1
    counted = PROCESS_QUEUE.totals()["checkpoint"]
    assert counted.read_bytes - before.read_bytes >= 9 << 20
    bound = Bound()
    PROCESS_QUEUE.limit(bound, 200e6)
    assert np.array_equal(load(tmp_path).state["x"], state["x"])
    PROCESS_QUEUE.limit(bound, None)
    waited = PROCESS_QUEUE.totals()["checkpoint"]
    assert waited.read_bytes - counted.read_bytes >= 9 << 20
    assert waited.waited_ns > counted.waited_ns


def test_an_interrupt_ends_loading_that_waits_for_its_turn(tmp_path: Path) -> None:
    """The turn would come in a week."""
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"x": np.zeros(9 << 20, np.uint8)})
        checkpoints.wait()
    bound = Bound()
    PROCESS_QUEUE.limit(bound, 1)

    def interrupt() -> None:
        while not any(request.number is None for request in PROCESS_QUEUE._requests):
            os.sched_yield()  # until the load waits
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            load(tmp_path)
    finally:
        PROCESS_QUEUE.limit(bound, None)
        thread.join()
    assert load(tmp_path).step == 1


class Bound:
    """A holder of a rate of the process."""


# -- the account -----------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.none() | st.floats(1e-3, 1e12), st.integers(0, 10**9), st.integers(0, 10**10)),
        max_size=20,
    )
)
def test_account_never_goes_back(steps: list[tuple[float | None, int, int]]) -> None:
    """Waiting for what is owed ends exactly when the account says so, at any rate; without a rate
    nothing waits."""
    account, now_ns = RateAccount(), 0
    for rate, size, pause_ns in steps:
        now_ns += pause_ns
        account.set_rate(rate, now_ns)
        wait_ns = account.find_wait_ns(now_ns)
        assert wait_ns >= 0
        assert account.find_wait_ns(now_ns + wait_ns) == 0
        assert not wait_ns or account.find_wait_ns(now_ns + wait_ns - 1) == 1
        now_ns += wait_ns
        account.charge(size, now_ns)
        owed_ns = account.find_wait_ns(now_ns)
        if rate is None:
            assert owed_ns == 0
        else:
            exact_ns = Fraction(size) / Fraction(rate) * 10**9
            rounding_ns = 1 + exact_ns / 2**50
            burst_ns = 100_000_000
            assert exact_ns - burst_ns - rounding_ns <= owed_ns <= exact_ns + rounding_ns


@pytest.mark.long
def test_an_interrupt_anywhere_leaves_a_queue_usable() -> None:
    """Wherever an interrupt comes while a turn ends and the next one begins, what waits still gets
    its turn, and so does what is put later."""
    number, was_raised = 0, True
    while was_raised:
        queue = StorageQueue(1, clock=JumpingClock())
        held, waiting = queue.put("read", "demand", 1), queue.put("write", "checkpoint", 1, file=0)
        interrupt = InterruptAt(number, [storage_queue, request_queue])
        sys.settrace(interrupt)
        try:
            queue.put("read", "demand", 1).end()
            held.end()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        was_raised = interrupt.left == -1
        held.end()
        assert waiting.wait(0), number
        waiting.end()
        assert queue.put("write", "convert", 1).is_due(), number
        number += 1
    assert number > 30
