"""The router of tickets: reports reach their receivers, whoever polls and whatever interrupts."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.engine.protocol import Completion, Failure
from penstock.loader import decode, epoch, step_reader
from penstock.loader import sources as engine_source
from penstock.loader import step_reader as ticket_router
from penstock.loader.step_reader import TicketRouter
from tests.interrupts import interrupt
from tests.slices import first, stride

_patience_s = 240.0  # a guard against hanging, not a measure


class Turnstile:
    """An engine whose polls wait until the test lets them pass, with the reports it gives them."""

    def __init__(self) -> None:
        self.polling = threading.Semaphore(0)
        self.reports: list[list[Completion]] = []
        self.passing = threading.Semaphore(0)
        self.at_once = self.most_at_once = 0

    def poll(self, timeout_ns: int) -> list[Completion]:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.polling.release()
        assert self.passing.acquire(timeout=_patience_s)
        self.at_once -= 1
        return self.reports.pop(0)

    def submit(self, *arguments: Any) -> int:
        raise NotImplementedError

    def close(self) -> None: ...


class Tray:
    """A receiver that keeps what it is given."""

    def __init__(self) -> None:
        self.keys: list[Any] = []
        self.is_closed = False

    def report(self, key: Any, failures: Sequence[Failure]) -> None:
        self.keys.append(key)

    def close(self) -> None:
        self.is_closed = True


def wait_for(router: TicketRouter, has_arrived: Callable[[], bool]) -> None:
    while not has_arrived():
        router.wait(has_arrived)


def test_one_thread_polls_for_all() -> None:
    """Reports reach the receivers of all threads; only one of the threads is ever in the engine."""
    engine = Turnstile()
    router = TicketRouter(engine)
    trays = [Tray() for _ in range(4)]
    for number, tray in enumerate(trays):
        router.add(tray)
        router.tickets[number] = weakref.ref(tray), f"key {number}"
    threads = [
        threading.Thread(target=wait_for, args=(router, lambda tray=tray: bool(tray.keys)))
        for tray in trays
    ]
    engine.reports = [[Completion(3, ())], [Completion(1, ()), Completion(0, ())]]
    engine.reports += [[]] * 2 + [[Completion(2, ())]] + [[]] * len(threads)
    for thread in threads:
        thread.start()
    for _ in range(len(engine.reports)):
        engine.passing.release()
    for thread in threads:
        thread.join(_patience_s)
        assert not thread.is_alive()
    assert [tray.keys for tray in trays] == [[f"key {number}"] for number in range(4)]
    assert engine.most_at_once == 1
    assert router.is_idle


def test_a_thread_sleeps_until_the_polling_one_has_delivered() -> None:
    """The second thread is woken by the report that the first one brings, and polls itself for
    nothing."""
    engine = Turnstile()
    router = TicketRouter(engine)
    first, second = Tray(), Tray()
    for number, tray in enumerate((first, second)):
        router.add(tray)
        router.tickets[number] = weakref.ref(tray), number
    engine.reports = [[Completion(0, ()), Completion(1, ())]]
    leader = threading.Thread(target=wait_for, args=(router, lambda: bool(first.keys)))
    leader.start()
    assert engine.polling.acquire(timeout=_patience_s)
    follower = threading.Thread(target=wait_for, args=(router, lambda: bool(second.keys)))
    follower.start()
    engine.passing.release()
    for thread in (leader, follower):
        thread.join(_patience_s)
        assert not thread.is_alive()
    assert (first.keys, second.keys) == ([0], [1])


def test_reports_to_dropped_receivers_are_lost() -> None:
    """A ticket keeps no receiver alive, and its report disturbs nobody."""
    engine = Turnstile()
    router = TicketRouter(engine)
    kept, dropped = Tray(), Tray()
    for number, tray in enumerate((kept, dropped)):
        router.add(tray)
        router.tickets[number] = weakref.ref(tray), number
    del dropped, tray
    engine.reports = [[Completion(1, ()), Completion(0, ()), Completion(7, ())]]
    engine.passing.release()
    router.wait(lambda: False)
    assert kept.keys == [0]
    assert router.is_idle


def test_a_failed_poll_abandons_every_ticket() -> None:
    """Reports may be lost with an exception: every receiver hears of it, and the next one polls."""

    class Failing(Turnstile):
        def poll(self, timeout_ns: int) -> list[Completion]:
            raise OSError("gone")

    router = TicketRouter(Failing())
    trays = [Tray(), Tray()]
    for number, tray in enumerate(trays):
        router.add(tray)
        router.tickets[number] = weakref.ref(tray), number
    for _ in range(2):
        with pytest.raises(OSError, match="gone"):
            router.wait(lambda: False)
    assert all(tray.is_closed for tray in trays)
    assert router.is_idle


# -- interrupts --------------------------------------------------------------------------------

_modules = (threading, decode, ticket_router, step_reader, engine_source, epoch)


def count(batch: Any) -> int:
    return len(batch.ids if isinstance(batch, penstock.Batch) else batch)


@stride(23)
@pytest.mark.parametrize("decode", first(1, [None, lambda sample: int(sample["data"][0])]))
def test_an_interrupt_at_any_place_leaves_nothing_waiting(
    tmp_path: Path, decode: Any, stride: int
) -> None:
    """Wherever an interrupt comes in an epoch, the next epoch has every sample, and ends; another
    iterator has all of its own, or raises."""
    np.arange(24, dtype=np.uint8).repeat(16).tofile(tmp_path / "r.bin")
    dataset = penstock.open(tmp_path / "r.bin", record_bytes=16)
    place, interrupted, cut = 0, True, 0
    while interrupted:
        with penstock.Loader(dataset, 6, decode=decode, decode_threads=1) as loader:
            other = iter(loader)
            rest = [next(other)]
            interrupted = interrupt(place, _modules, lambda: list(loader))
            try:
                rest += other
                assert sum(count(batch) for batch in rest) == 24, f"place {place}"
            except penstock.errors.UsageError:
                assert interrupted
                cut += 1
            seen: list[Any] = []
            reader = threading.Thread(target=lambda: seen.extend(loader), daemon=True)  # noqa: B023
            reader.start()
            reader.join(_patience_s)
            assert not reader.is_alive(), f"the epoch after an interrupt at place {place} hangs"
            assert sum(count(batch) for batch in seen) == 24, f"place {place}"
        place += stride
    assert place > 100
    assert cut or decode  # decode threads do what an interrupt of the user's thread could cut
