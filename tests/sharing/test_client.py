"""A loader's side of the broker, against real brokers, in its own time."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock import limits
from penstock.budget import Budget
from penstock.errors import UsageError
from penstock.sharing.allocation import Resources
from penstock.sharing.broker import Broker
from penstock.sharing.client import Tenant, find_socket
from penstock.sharing.lease import JobMeasurement, Lease, Report, Terms, limit_budget
from penstock.sharing.ledger import Ledger

HOST = Resources(cores=4, bytes_per_s=1e8)
REPORT = Report(
    profile={"samples_per_s": 100.0, "cpu_s": 1e-3, "storage_bytes": 1e3},
    measured=JobMeasurement(samples_per_s=100.0),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "broker.sock"


@contextmanager
def serving(path: Path) -> Iterator[Broker]:
    """A broker in a thread."""
    with Broker(path, Ledger(HOST)) as broker:
        thread = threading.Thread(target=broker.serve)
        thread.start()
        try:
            yield broker
        finally:
            broker.stop()
            thread.join()


class Clock:
    """A tenant's time: it steps until something has come; virtual time hardly passes."""

    def __init__(self, tenant: Tenant) -> None:
        self.tenant, self.now_s, self.reports = tenant, 100.0, 0

    def measure(self) -> Report:
        self.reports += 1
        return REPORT

    def step(self, seconds: float = 0.0) -> Lease | None:
        self.now_s += seconds
        return self.tenant.step(self.now_s, self.measure)

    def until(self, wanted: Any) -> Lease | None:
        while not wanted(found := self.step()):
            pass
        return found


def test_it_joins_reports_and_leaves(path: Path) -> None:
    tenant = Clock(Tenant("job", 0, "train", str(path)))
    assert tenant.step() is None
    with serving(path) as broker:
        assert tenant.step(limits.broker_retry_s - 0.1) is None
        assert tenant.reports == 0, "it looks every two seconds"
        tenant.step(0.2)
        found = tenant.until(lambda lease: lease is not None)
        assert found == Lease(
            cores=4, bytes_per_s=1e8, floor_cores=4, floor_bytes_per_s=1e8, lasts_s=Terms().lease_s
        )
        assert tenant.reports == 1
        for _ in range(11):
            tenant.step(Terms().report_s / 10)
        assert tenant.reports == 2
        other = Clock(Tenant("other", 0, "train", str(path)))
        other.until(lambda lease: lease is not None and lease.cores == 2)
        tenant.until(lambda lease: lease is not None and lease.floor_cores == 2)
        other.tenant.close()
        tenant.until(lambda lease: lease is not None and lease.floor_cores == 4)
    tenant.until(lambda lease: lease is None)
    assert broker.path == path


def test_a_lease_that_is_not_renewed_ends(path: Path) -> None:
    """Its floor stays, until there is a new one."""
    with listening(path) as listener:
        tenant = Clock(Tenant("job", 0, "train", str(path)))
        tenant.step()
        broker, _ = listener.accept()
        lease = Lease(cores=3, bytes_per_s=None, floor_cores=1, floor_bytes_per_s=None, lasts_s=2.0)
        say(broker, {"say": "lease", **lease.message()})
        assert tenant.until(lambda found: found is not None) == lease
        assert tenant.step(1.9) == lease
        assert tenant.step(0.2) == lease.ended
        assert lease.ended.cores == 1
        assert tenant.step(100) == lease.ended
        say(broker, {"say": "lease", **lease.message()})
        assert tenant.until(lambda found: found != lease.ended) == lease
        broker.close()


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """A socket that takes a broker's place."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        yield listener


def say(broker: socket.socket, message: Any) -> None:
    broker.sendall(json.dumps(message).encode() + b"\n")


LEASE = {"cores": 1.0, "bytes_per_s": 1.0, "floor_cores": 1.0, "floor_bytes_per_s": 1.0}


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense\n",
        b"\x00" * (limits.broker_line_bytes + 1),
        b'{"say": "lease"}\n',
        *(
            json.dumps({"say": "lease", **LEASE, "lasts_s": 1.0, **change}).encode() + b"\n"
            for change in (
                {"cores": -1},
                {"cores": 0},
                {"cores": float("nan")},
                {"cores": None},
                {"cores": "8"},
                {"bytes_per_s": float("inf")},
                {"lasts_s": []},
            )
        ),
    ],
)
def test_it_never_fails_for_what_a_broker_says(
    path: Path, line: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """A tenant leaves a broker that says such a line, says so once, and tries again later."""
    with listening(path) as listener:
        tenant = Clock(Tenant("job", 0, "train", str(path)))
        for _ in range(2):
            tenant.step()
            broker, _ = listener.accept()
            broker.sendall(line)
            while tenant.tenant.step(tenant.now_s, tenant.measure) is None and not closed(broker):
                pass
            broker.close()
            assert tenant.step(limits.broker_retry_s - 0.1) is None
            tenant.now_s += 0.2
    assert sum("not believed" in each.message for each in caplog.records) == 1


def closed(broker: socket.socket) -> bool:
    """True if the other side has closed; its last words are thrown away."""
    broker.setblocking(False)
    try:
        while broker.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except ConnectionResetError:
        pass
    return True


def test_refusals_are_said_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with listening(path) as listener:
        tenant = Clock(Tenant("job", 0, "train", str(path)))
        for _ in range(3):
            tenant.step()
            broker, _ = listener.accept()
            say(broker, {"say": "refused", "why": "user 7 is not admitted"})
            broker.close()
            tenant.step(1.0)
            tenant.step()
            tenant.now_s += limits.broker_retry_s
    refusals = [each for each in caplog.records if "user 7 is not admitted" in each.message]
    assert [each.levelno for each in refusals] == [logging.WARNING]


def test_a_broker_that_does_not_read_costs_nothing(path: Path) -> None:
    """Reports are left out, whatever time passes; no step waits."""
    with listening(path) as listener:
        tenant = Clock(Tenant("job", 0, "train", str(path)))
        tenant.step()
        broker, _ = listener.accept()
        say(broker, {"say": "lease", **LEASE, "lasts_s": 1e9})
        tenant.until(lambda lease: lease is not None)
        before = -1
        while tenant.reports != before:  # as many as fit into the socket
            before = tenant.reports
            for _ in range(100):
                assert tenant.step(1.0) is not None
        while not closed(broker):
            if tenant.step(1.0) is None or tenant.reports > before + 100:
                break
        assert tenant.reports > before + 100, "it goes on when the broker does"
        broker.close()


def test_a_forked_process_makes_its_own_connection(path: Path) -> None:
    with serving(path):
        tenant = Clock(Tenant("job", 0, "train", str(path)))
        tenant.until(lambda lease: lease is not None)
        readable, writable = os.pipe()
        child = os.fork()
        if child == 0:
            found = tenant.until(lambda lease: lease is not None and lease.cores == 2)
            os.write(writable, b"." if found is not None else b"!")
            tenant.until(lambda lease: lease is not None and lease.cores == 4)
            os._exit(0)
        tenant.until(lambda lease: lease is not None and lease.cores == 2)
        assert os.read(readable, 1) == b"."
        tenant.tenant.close()  # not the child's
        assert os.waitpid(child, 0)[1] == 0
        os.close(readable)
        os.close(writable)


def test_off_is_off(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_BROKER", "off")
    with serving(path):
        tenant = Clock(Tenant("job", 0, "train", str(path)))
        assert [tenant.step(1.0) for _ in range(5)] == [None] * 5
        assert tenant.reports == 0


def test_where_the_broker_is() -> None:
    own = Path("/tmp", f"penstock-{os.getuid()}", "broker.sock")
    assert find_socket({}) == own
    assert find_socket({"XDG_RUNTIME_DIR": "/run/u"}) == Path("/run/u/penstock/broker.sock")
    assert find_socket({"PENSTOCK_BROKER": "/b", "XDG_RUNTIME_DIR": "/run/u"}) == Path("/b")
    assert find_socket({"PENSTOCK_BROKER": "off"}) is None


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become other users")
def test_a_stranger_in_the_usual_place_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that is named is, in a folder that nobody else may write to."""
    monkeypatch.delenv("PENSTOCK_BROKER", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    path = tmp_path / "penstock" / "broker.sock"
    path.parent.mkdir()
    with listening(path) as listener:
        os.seteuid(65534)  # who listens is who the kernel names
        try:
            listener.listen()
        finally:
            os.seteuid(0)
        tenant = Clock(Tenant("job", 0, "train"))
        assert tenant.step() is None
        assert tenant.reports == 0
        assert any("65534" in each.message for each in caplog.records)
        tenant = Clock(Tenant("job", 0, "train", str(path)))
        tenant.step()
        assert tenant.reports == 1


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become other users")
@pytest.mark.parametrize("way", ["folder", "socket", "link", "link to a folder"])
@pytest.mark.parametrize("named", ["path", "variable"])
def test_a_stranger_who_came_first_is_not_believed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    way: str,
    named: str,
) -> None:
    """At a path that can be guessed, in a folder such as /tmp, any user may put a socket."""
    common, private = tmp_path / "tmp", tmp_path / "private"
    common.mkdir()
    common.chmod(0o1777)
    for folder in (private, common / "job"):
        folder.mkdir()
        os.chown(folder, 65534, 65534)
    path = common / "broker.sock" if way == "socket" else common / "job" / "broker.sock"
    real = private / "broker.sock" if "link" in way else path
    if way == "link":
        path.symlink_to(real)
        os.chown(path, 65534, 65534, follow_symlinks=False)
    elif way == "link to a folder":
        path.parent.rmdir()
        path.parent.symlink_to(private)
        os.chown(path.parent, 65534, 65534, follow_symlinks=False)
    with listening(real) as listener:
        os.chown(real, 65534, 65534)
        os.seteuid(65534)
        try:
            listener.listen()
        finally:
            os.seteuid(0)
        monkeypatch.setenv("PENSTOCK_BROKER", str(path) if named == "variable" else "/none")
        tenant = Clock(Tenant("job", 0, "train", None if named == "variable" else str(path)))
        assert tenant.step() is None
        assert tenant.reports == 0
        assert f"it is user 65534's, and other users may write to {common}" in caplog.text


# -- leases and budgets ----------------------------------------------------------------------------


def test_a_lease_caps_the_own_budget() -> None:
    lease = Lease(cores=2.0, bytes_per_s=1e8, floor_cores=1.0, floor_bytes_per_s=1e7, lasts_s=5.0)
    own = Budget()
    assert limit_budget(own, lease) == own.replace(
        cores=2.0, bytes_per_s=1e8, readahead_bytes=int(1e8 * limits.lease_readahead_s)
    )
    assert limit_budget(own, lease.ended).bytes_per_s == 1e7
    assert limit_budget(own, lease, step_bytes=60e6).readahead_bytes == 240_000_000
    small = Budget(cores=0.5, bytes_per_s=1e6, readahead_bytes=1000, threads=3, mmap="off")
    assert limit_budget(small, lease) == small
    slow = Lease(cores=1.0, bytes_per_s=1.0, floor_cores=1, floor_bytes_per_s=1, lasts_s=1)
    assert limit_budget(own, slow).readahead_bytes == limits.lease_readahead_bytes_min
    free = Lease(cores=1.0, bytes_per_s=None, floor_cores=1, floor_bytes_per_s=None, lasts_s=1)
    assert limit_budget(own, free) == own.replace(cores=1.0)


def test_reports_as_messages() -> None:
    report = Report(
        profile=REPORT.profile,
        measured=JobMeasurement(samples_per_s=1.0, stall=0.5),
    )
    message = json.loads(json.dumps(report.message(), allow_nan=False))
    assert Report.of(message) == Report(profile=REPORT.profile, measured=report.measured)
    with pytest.raises(UsageError, match=r"JobMeasurement\.stall"):
        JobMeasurement(samples_per_s=1.0, stall=2.0)
