"""Threads use no more of processors than they are granted, and wait no longer than they must."""

from __future__ import annotations

import functools
import resource
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
import penstock.torch.loader
from penstock.engine import threads
from penstock.loader import cpu_throttle
from penstock.loader.cpu_throttle import CpuThrottle
from penstock.loader.workers import TimedFetch
from tests.contention import contended
from tests.interrupts import end_in_thread, interrupt
from tests.slices import first

CREDIT_S = 0.05


def burn(cpu_s: float) -> None:
    """Use a processor."""
    began_s = time.thread_time()
    while time.thread_time() - began_s < cpu_s:
        pass


@pytest.mark.parametrize("rate", [0.2, 0.7])
def test_threads_stay_within_the_rate(rate: float) -> None:
    """All threads together get what the rate allows, and what is allowed to come late."""
    throttle = CpuThrottle(rate)
    began = threading.Barrier(3)
    used: list[float] = []

    def work() -> None:
        throttle.take_turn()
        began.wait()
        began_s = time.thread_time()
        for _ in range(12):
            throttle.take_turn()
            burn(0.005)
        used.append(time.thread_time() - began_s)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    began.wait()
    began_s = time.monotonic()
    for thread in threads:
        thread.join()
    elapsed_s = time.monotonic() - began_s
    # Besides the credit, a turn; of each thread the last piece, and overdrafts of the other's last.
    assert sum(used) <= rate * (elapsed_s + CREDIT_S) + cpu_throttle._turn_s + 4 * 0.006 + 0.01


def waiting(throttle: CpuThrottle) -> threading.Thread:
    """A thread that stays in debt for ever."""
    in_debt = threading.Event()

    def work() -> None:
        throttle.take_turn()
        burn(0.02)
        in_debt.set()
        throttle.take_turn()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert in_debt.wait(240)
    return thread


def test_a_thread_works_for_some_milliseconds_before_it_waits() -> None:
    """One that waited after each small piece would find the processor's caches cold each time."""
    throttle = CpuThrottle(1e-6)  # any wait would be one for hours
    throttle.take_turn()
    burn(0.001)
    throttle.take_turn()
    burn(0.001)
    throttle.take_turn()
    assert throttle.is_in_debt


@pytest.mark.parametrize("change", ["unlimited", "raised", "closed"])
def test_who_waits_goes_on(change: str) -> None:
    """A thread that would have to wait for hours goes on with more, without a limit, at the end."""
    throttle = CpuThrottle(1e-6)
    thread = waiting(throttle)
    if change == "closed":
        throttle.close()
    else:
        throttle.adopt(None if change == "unlimited" else 1000.0)
    thread.join(240)
    assert not thread.is_alive()


def test_what_was_used_without_a_limit_is_not_charged() -> None:
    """A limit begins when it is set, for threads that have worked for long too."""
    throttle = CpuThrottle(0.5)
    throttle.take_turn()
    throttle.adopt(None)
    burn(0.05)
    throttle.take_turn()
    throttle.adopt(1e-6)
    throttle.take_turn()  # would wait for hours


@pytest.mark.parametrize("change", ["unlimited", "raised", "closed"])
def test_no_more_threads_than_cores(change: str) -> None:
    """A thread that a rate cannot keep busy has nothing to begin, until it is raised."""
    throttle = CpuThrottle(0.7)
    throttle.wait_until_wanted(0)
    thread = threading.Thread(target=throttle.wait_until_wanted, args=(1,), daemon=True)
    thread.start()
    throttle.adopt(0.9)
    thread.join(0.05)
    assert thread.is_alive()
    if change == "closed":
        throttle.close()
    else:
        throttle.adopt(None if change == "unlimited" else 1.1)
    thread.join(240)
    assert not thread.is_alive()


@pytest.mark.long
def test_loaders_take_the_cores_of_their_budget(tmp_path: Path) -> None:
    """The limit holds, may change in mid-epoch, wakes who waits, and changes no batch."""
    path = tmp_path / "records.bin"
    path.write_bytes(np.arange(400, dtype=np.uint64).tobytes())
    dataset = penstock.open(path, record_bytes=8, index="memory")

    def decode(sample: dict[str, object]) -> int:
        burn(0.002)
        return int(np.frombuffer(sample["data"], np.uint64)[0])  # type: ignore[call-overload]

    def loader(budget: penstock.Budget) -> penstock.Loader:
        return penstock.Loader(dataset, 10, seed=3, decode=decode, decode_threads=2, budget=budget)

    expected = [batch.tolist() for batch in loader(penstock.Budget())]
    began_s = time.monotonic()
    seen = []
    paced = loader(penstock.Budget(cores=0.5))
    before = paced.counters()
    for step, batch in enumerate(paced):
        seen.append(batch.tolist())
        if step == 20:
            spent = paced.counters().since(before)
            elapsed_s = time.monotonic() - began_s
            ahead_s = 2 * 0.01  # a batch that is ready is counted when it is handed over
            assert spent.decode_cpu_ns * 1e-9 <= 0.5 * (elapsed_s + CREDIT_S) + ahead_s + 0.02
            paced.budget = penstock.Budget(cores=1e-6)
            threading.Timer(0.05, setattr, (paced, "budget", penstock.Budget())).start()
    assert seen == expected


# -- among others ----------------------------------------------------------------------------------


def used_s() -> float:
    """The time of processors used by this thread, as the kernel accounts for it."""
    used = resource.getrusage(resource.RUSAGE_THREAD)
    return used.ru_utime + used.ru_stime


def burn_until_late(late_s: float) -> None:
    """Use a processor until others have had it for so long, which this thread was ready for."""
    began_s, cpu_s = time.monotonic(), time.thread_time()
    while time.monotonic() - began_s - (time.thread_time() - cpu_s) < late_s:
        pass


def test_what_others_take_is_not_charged() -> None:
    """A fetch that waits for a processor has used only what it ran."""
    timed = TimedFetch(burn_until_late)
    before_s = used_s()
    with contended(2):
        timed(0.3)
    spent = timed.spent
    assert spent.cpu_ns * 1e-9 <= used_s() - before_s + 0.01
    assert spent.busy_ns - spent.cpu_ns >= 290_000_000
    assert spent.ready_ns >= 0.5 * (spent.busy_ns - spent.cpu_ns)  # a host may stop us as well
    assert spent.cpu_ns + spent.ready_ns <= spent.busy_ns


class Burning:
    """A dataset of torch's kind: an item costs 10 ms of a processor."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        burn(0.01)
        return index


@pytest.mark.long
@pytest.mark.parametrize(
    ("workers", "kind"), first(1, [(1, "processes"), (0, "auto"), (1, "threads")])
)
def test_workers_are_not_throttled_below_their_rate(workers: int, kind: Any) -> None:
    """A thread that gets a third of a processor, as others are at it, owes nothing at 0.8."""
    budget = penstock.Budget(cores=0.8)
    forked = "fork" if kind == "processes" else None  # a fork server would stay where it was made
    with contended(2):
        loader = penstock.torch.DataLoader(
            Burning(),
            None,
            num_workers=workers,
            workers=kind,
            multiprocessing_context=forked,
            budget=budget,
        )
        batches = iter(loader)
        next(batches)  # a worker may begin before the rate is known
        before, began_s = loader.counters(), time.monotonic()
        owed = [batches._open.source._throttle.is_in_debt for _ in batches]
        spent, taken_s = loader.counters().since(before), time.monotonic() - began_s
        loader.close()
    assert len(owed) == 39
    assert spent.decode_cpu_ns >= 38 * 10_000_000
    assert spent.decode_cpu_ns * 1e-9 < 0.6 * taken_s  # others were at it
    assert not any(owed)


@pytest.mark.parametrize("call", ["adopt", "close", "charge", "wait", "wait_until_wanted"])
def test_an_interrupt_leaves_no_lock_taken(call: str) -> None:
    """Wherever it comes, it stays an interrupt, and threads that wait go on when there is more."""
    for place in range(25):
        throttle = CpuThrottle(0.5)
        throttle.charge(3600.0)
        thread = threading.Thread(target=throttle.wait, daemon=True)
        thread.start()
        calls: dict[str, tuple[float, ...]] = {"adopt": (0.1,), "charge": (1.0,), "wait": (0.001,)}
        calls["wait_until_wanted"] = (0,)  # which does not wait
        make = functools.partial(getattr(throttle, call), *calls.get(call, ()))
        interrupt(place, (cpu_throttle, threads, threading), make)
        assert end_in_thread(lambda: throttle.is_in_debt, place)  # noqa: B023
        end_in_thread(throttle.close, place)
        thread.join(240)
        assert not thread.is_alive()
