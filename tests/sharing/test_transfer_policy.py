"""Transfers beside loaders: who gets how much in virtual time, and windows of a real broker."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.sharing.allocation import Resources
from penstock.sharing.client import watch_broker
from penstock.sharing.lease import Grant, JobMeasurement, Report, Terms
from penstock.sharing.ledger import Ledger
from penstock.sharing.transfer_permit import TransferPermit
from penstock.sharing.transfers import Transfers
from tests.sharing.tenants import Job, Lease, broker
from tests.slices import fraction

MB = 1e6
TICK_S = 0.25


class Writer:
    """A job that transfers, then does something else for a while, again and again; what it can
    take is known to nobody."""

    def __init__(self, number: int, bytes: float, own: float, pause_s: float) -> None:
        self.number, self.bytes, self.own, self.pause_s = number, bytes, own, pause_s
        self.left, self.rate, self.done, self.next_s = 0.0, 0.0, 0, 0.0
        self.began_s = self.longest_s = 0.0
        self.floor = 0.0

    def run(self, transfers: Transfers, now_s: float) -> None:
        """Do the work of a tick that ends now."""
        key = self.number, 0
        if self.left:
            self.left = max(0.0, self.left - min(self.rate, self.own) * TICK_S)
            self.longest_s = max(self.longest_s, now_s - self.began_s)
            if self.left:
                transfers.moved(key, now_s, self.bytes - self.left)
            else:
                transfers.end(key, now_s)
                self.done, self.rate, self.next_s = self.done + 1, 0.0, now_s + self.pause_s
        elif now_s >= self.next_s:
            self.left, self.began_s = self.bytes, now_s
            transfers.begin(key, now_s, owner=0, job=f"job {self.number}", bytes=self.bytes)


writers = st.lists(
    st.tuples(st.floats(1, 2000), st.floats(4, 2000), st.floats(0, 60)), min_size=1, max_size=5
)


@fraction(2)
@given(writers, st.floats(20, 1000))
def test_everybody_gets_a_turn(
    given_writers: list[tuple[float, float, float]], rate: float
) -> None:
    """Grants never exceed what there is, whoever transfers gets there in the time that all need
    one after the other a few times over, and nothing is left while it is not known that nobody
    could take it."""
    bandwidth = rate * MB
    transfers = Transfers(Terms())
    jobs = [
        Writer(n, size * MB, own * MB, pause) for n, (size, own, pause) in enumerate(given_writers)
    ]
    alone_s = math.fsum(each.bytes / min(each.own, bandwidth) for each in jobs)
    within_s = 6 * alone_s + 60
    tick = 0
    while tick * TICK_S < 2 * within_s and tick < 20_000:
        tick += 1
        now_s = tick * TICK_S
        for each in jobs:
            each.run(transfers, now_s)
        for (number, _), granted in transfers.tick(now_s, bandwidth).items():
            assert granted.bytes_per_s is not None
            assert granted.floor_bytes_per_s is not None
            jobs[number].rate, jobs[number].floor = granted.bytes_per_s, granted.floor_bytes_per_s
        open_ones = [each for each in jobs if each.left]
        total = math.fsum(each.rate for each in open_ones)
        assert total <= bandwidth * (1 + 1e-9)
        assert math.fsum(each.floor for each in open_ones) <= bandwidth * (1 + 1e-9)
        if open_ones:
            assert total >= min(bandwidth, transfers.could_bytes_per_s) * (1 - 1e-9)
    assert all(each.longest_s <= within_s for each in jobs)


def test_who_moves_nothing_holds_nothing() -> None:
    """Nor who is silent: the others have nearly all of it, and it has all again when it moves."""
    transfers = Transfers(Terms())
    for number, what in enumerate(["stuck", "silent", "good"]):
        transfers.begin((number, 0), 0.0, owner=0, job=what, bytes=1e12)
    rates: dict[int, float] = {}
    moved = 0.0
    for tick in range(1, 400):
        now_s = tick * TICK_S
        transfers.moved((0, 0), now_s, 0.0)
        moved += rates.get(2, 0.0) * TICK_S
        transfers.moved((2, 0), now_s, moved)
        for (number, _), granted in transfers.tick(now_s, 100 * MB).items():
            assert granted.bytes_per_s is not None
            rates[number] = granted.bytes_per_s
    assert rates[2] > 97 * MB
    assert rates[0] <= 2**20
    assert rates[1] <= 2**20


def test_transfers_of_one_job_go_together() -> None:
    """Four ranks of one job have what one of another has, in a row; and evenly among them."""
    transfers = Transfers(Terms())
    for number in range(4):
        transfers.begin((number, 0), 0.0, owner=0, job="ranks", bytes=1e9)
    found = transfers.tick(0.0, 100 * MB)
    assert [each.bytes_per_s for each in found.values()] == [25 * MB] * 4
    assert {each.floor_bytes_per_s for each in found.values()} == {25 * MB}


@pytest.mark.parametrize("again", [True, False])
def test_what_is_no_transfer(again: bool) -> None:
    transfers = Transfers(Terms())
    with pytest.raises(UsageError, match="has not started"):
        transfers.moved((0, 1), 0.0, 1.0)
    with pytest.raises(UsageError, match="has not started"):
        transfers.end((0, 1), 0.0)
    transfers.begin((0, 1), 0.0, owner=0, job="a", bytes=1.0)
    with pytest.raises(UsageError, match="another id"):
        transfers.begin((0, 1), 0.0, owner=0, job="a", bytes=1.0)
    with pytest.raises(UsageError, match="end one first"):
        for which in range(2, 1000):
            transfers.begin((0, which), 0.0, owner=0, job="a", bytes=1.0)
    transfers.leave(0, 1.0)
    assert not transfers.is_busy


profiles = st.fixed_dictionaries(
    {
        "samples_per_s": st.floats(1, 1e4),
        "cpu_s": st.just(0.0) | st.floats(1e-6, 0.1),
        "storage_bytes": st.just(0.0) | st.floats(1, 1e7),
    }
)
doings = st.tuples(
    st.sampled_from(["join", "leave", "report", "begin", "end", "resources"]),
    st.integers(0, 5),
    profiles,
    st.floats(1e6, 1e10),
)


@settings(deadline=None)
@given(st.lists(doings, max_size=20))
def test_loaders_and_transfers_never_exceed_storage(
    story: list[tuple[str, int, dict[str, float], float]],
) -> None:
    """Whatever jobs say and do: leases and grants in force add up to no more than there is;
    transfers have their part while there are any, and loaders all of it when there are none."""
    terms = Terms()
    there = 1e9
    ledger = Ledger(Resources(cores=8, bytes_per_s=there))
    leases: dict[int, float] = {}
    grants: dict[int, float] = {}
    for tick, (what, which, profile, rate) in enumerate(story):
        now_s = float(tick)
        if what == "join" and which not in leases:
            ledger.join(which, now_s, job=f"job {which}", rank=0, pid=1, name="x")
            leases[which] = 0.0
        elif what == "leave" and which in leases:
            ledger.leave(which)
            del leases[which]
        elif what == "begin" and which not in grants:
            ledger.transfers.begin((which, 0), now_s, owner=0, job=f"job {which}", bytes=1e9)
            grants[which] = 0.0
        elif what == "end" and which in grants:
            ledger.transfers.end((which, 0), now_s)
            del grants[which]
        elif what == "resources":
            there = rate
            ledger.resources = Resources(cores=8, bytes_per_s=there)
        for member in leases:
            given_profile = profile if member == which else None
            report = Report(profile=given_profile, measured=JobMeasurement(samples_per_s=1.0))
            ledger.report(member, now_s, report)
        for member, lease in ledger.tick(now_s).items():
            assert lease.bytes_per_s is not None
            leases[member] = lease.bytes_per_s
        for (number, _), granted in ledger.grants(now_s).items():
            assert granted.bytes_per_s is not None
            grants[number] = granted.bytes_per_s
        read, moved = math.fsum(leases.values()), math.fsum(grants.values())
        assert read + moved <= there * (1 + 1e-9)
        if grants:
            part = min(terms.transfer_part * there, ledger.transfers.could_bytes_per_s)
            assert moved >= part * (1 - 1e-9)
        assert len(ledger.state(now_s)["transfers"]) == len(grants)


def test_loaders_that_need_little_leave_the_rest() -> None:
    """Transfers have what loaders do not use, and their part at least."""
    ledger = Ledger(Resources(cores=8, bytes_per_s=1e9))
    ledger.join(0, 0.0, job="a", rank=0, pid=1, name="x")
    little = {"samples_per_s": 100.0, "cpu_s": 0.0, "storage_bytes": 1e6}
    measured = JobMeasurement(samples_per_s=100.0, bytes_per_s=1e8)
    ledger.report(0, 0.0, Report(profile=little, measured=measured))
    assert ledger.tick(0.0)[0].bytes_per_s == pytest.approx(1e9)
    ledger.transfers.begin((1, 0), 1.0, owner=0, job="a", bytes=1e9)
    lease = ledger.tick(1.0)[0].bytes_per_s
    assert lease == pytest.approx(1.1e8)
    assert ledger.grants(1.0)[1, 0].bytes_per_s == pytest.approx(8.9e8)
    ledger.transfers.end((1, 0), 2.0)
    assert ledger.tick(2.0)[0].bytes_per_s == pytest.approx(1e9)


def test_no_limit_no_wait() -> None:
    ledger = Ledger(Resources(cores=8))
    ledger.transfers.begin((1, 0), 1.0, owner=0, job="a", bytes=1e9)
    ledger.tick(1.0)
    assert ledger.grants(1.0)[1, 0] == Grant(bytes_per_s=None, floor_bytes_per_s=None, lasts_s=5.0)


# -- windows ---------------------------------------------------------------------------------------

READS = {"samples_per_s": 1000.0, "cpu_s": 0.1e-3, "storage_bytes": 1e6}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("PENSTOCK_BROKER")
    return tmp_path / "broker.sock"


def rate(megabytes: float) -> Callable[[Lease], bool]:
    """A predicate: the lease is of so many MB/s."""
    return lambda lease: lease is not None and lease["bytes_per_s"] == pytest.approx(megabytes * MB)


def moved_in(window: TransferPermit, bytes: int, piece: int) -> float:
    """Seconds that it takes until so many bytes may have been transferred."""
    began_s = time.monotonic()
    for _ in range(0, bytes + 1, piece):  # the first is on credit
        window.wait(piece)
    return time.monotonic() - began_s


def test_a_window_beside_a_loader(path: Path) -> None:
    """The window has its part, the loader the rest, and all of it again afterwards."""
    with broker(path, "--bytes-per-s", "100MB/s"):
        job = Job(path, "a", READS)
        try:
            job.until(rate(100))
            with TransferPermit(40_000_000, path=str(path)) as window:
                job.until(rate(80))
                took_s = moved_in(window, 20_000_000, 1_000_000)
                assert took_s > 0.85  # 20 MB at 20 MB/s, but for what may be made up for
            job.until(rate(100))
        finally:
            job.end()


@pytest.mark.long
def test_several_threads_and_jobs(path: Path) -> None:
    """Two jobs' windows of two threads each get through together no sooner than they may."""
    with broker(path, "--bytes-per-s", "20MB/s"):
        began_s = time.monotonic()
        windows = [TransferPermit(10_000_000, job=job, path=str(path)) for job in "ab"]
        threads = [
            threading.Thread(target=moved_in, args=(window, 5_000_000, 500_000))
            for window in windows
            for _ in range(2)
        ]
        for each in threads:
            each.start()
        for window, pair in zip(windows, (threads[:2], threads[2:]), strict=True):
            for each in pair:
                each.join()
            window.close()
        assert time.monotonic() - began_s > 0.8


def test_no_broker_no_wait(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor with one that is killed meanwhile, nor with PENSTOCK_BROKER=off."""
    with TransferPermit(10**15, path=str(path)) as window:
        moved_in(window, 10**15, 10**12)
    with (
        broker(path, "--bytes-per-s", "1MB/s") as process,
        TransferPermit(10**15, path=str(path)) as window,
    ):
        window.wait(10**14)  # will be paid for in three years
        threading.Timer(0.2, process.kill).start()
        moved_in(window, 10**15, 10**12)
    monkeypatch.setenv("PENSTOCK_BROKER", "off")
    with broker(path, "--bytes-per-s", "1MB/s"), TransferPermit(10**15, path=str(path)) as window:
        moved_in(window, 10**15, 10**12)


@pytest.mark.long
def test_a_stopped_broker_leaves_the_floor(path: Path) -> None:
    """Two jobs: one waits for its turn. When the broker says nothing any more, both go on."""
    with (
        broker(path, "--bytes-per-s", "100MB/s") as process,
        TransferPermit(10**12, job="a", path=str(path)) as first,
        TransferPermit(10**12, job="b", path=str(path)) as second,
    ):
        with contextlib.closing(watch_broker(path)) as states:  # type: ignore[type-var]
            next(state for state in states if len(state["transfers"]) == 2)
        os.kill(process.pid, signal.SIGSTOP)
        try:
            while not first.bytes_per_s == second.bytes_per_s == 50 * MB:
                pass
        finally:
            os.kill(process.pid, signal.SIGCONT)


def test_a_window_that_dies_gives_back(path: Path) -> None:
    """A forked writer is killed without a word."""
    with broker(path, "--bytes-per-s", "100MB/s"):
        job = Job(path, "a", READS)
        try:
            job.until(rate(100))
            pid = os.fork()
            if not pid:
                window = TransferPermit(10**12, path=str(path))
                window.wait(1)
                signal.pause()
            job.until(rate(80))
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            job.until(rate(100))
        finally:
            job.end()


def test_absurd_windows() -> None:
    with pytest.raises(UsageError, match="bytes is 0"):
        TransferPermit(0)
