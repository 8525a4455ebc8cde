"""Hosts that divide storage: the code on every line, what a host takes meanwhile, real brokers."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import math
import os
import re
import select
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import limits
from penstock.errors import UsageError
from penstock.sharing.allocation import Resources
from penstock.sharing.broker import Broker
from penstock.sharing.client import watch_broker
from penstock.sharing.connection import Address, AuthenticatedLines, WireError, read_key
from penstock.sharing.federation import FallbackRate
from penstock.sharing.lease import JobMeasurement, Lease, Report
from penstock.sharing.ledger import Ledger
from tests.command import run
from tests.sharing.tenants import Job, broker

KEY = b"sixteen bytes and more"


# -- lines -----------------------------------------------------------------------------------------


class Between:
    """An attacker on the network between the two: takes what each side says, and hands on what it
    likes."""

    def __init__(self, key: bytes = KEY, other: bytes = KEY) -> None:
        near, self.caller_end = socket.socketpair()
        far, self.called_end = socket.socketpair()
        self.caller = AuthenticatedLines(near, key, caller=True)
        self.called = AuthenticatedLines(far, other, caller=False)
        for end in (self.caller_end, self.called_end):
            end.setblocking(False)
        for side in (self.caller, self.called):
            side.flush()

    @staticmethod
    def said(end: socket.socket) -> list[bytes]:
        """The lines that a side has said."""
        with contextlib.suppress(BlockingIOError):
            return end.recv(1 << 20).splitlines(keepends=True)
        return []

    def meet(self) -> tuple[bytes, bytes]:
        """Hands on the nonces."""
        (caller,), (called,) = self.said(self.caller_end), self.said(self.called_end)
        self.called_end.sendall(caller)
        self.caller_end.sendall(called)
        assert self.called.receive() == self.caller.receive() == []
        return caller.strip(), called.strip()

    def close(self) -> None:
        for each in (self.caller, self.called, self.caller_end, self.called_end):
            each.close()


@pytest.fixture
def between() -> Iterator[Between]:
    found = Between()
    yield found
    found.close()


def code_of(
    key: bytes, caller: bytes, called: bytes, side: bytes, count: int, line: bytes
) -> bytes:
    """The code of a line, as it is described."""
    whole = caller + called + side + count.to_bytes(8, "big") + line
    return hmac.new(key, whole, hashlib.sha256).hexdigest().encode()


def test_a_line_as_it_is_described(between: Between) -> None:
    """Both sides' lines carry the code that the description gives; what comes is what was said."""
    caller, called = between.meet()
    for count in range(3):
        between.caller.send({"say": "up", "count": count})
        between.called.send({"say": "down", "count": count})
        for end, side in ((between.caller_end, b"caller"), (between.called_end, b"called")):
            (line,) = between.said(end)
            text = line[64:-1]
            assert line[:64] == code_of(KEY, caller, called, side, count, text)
            other = between.called_end if side == b"caller" else between.caller_end
            other.sendall(line)
        assert between.called.receive() == [{"say": "up", "count": count}]
        assert between.caller.receive() == [{"say": "down", "count": count}]
    assert between.caller.is_proven
    assert between.called.is_proven


def test_said_before_the_other_has_answered(between: Between) -> None:
    """A line said before the other has answered waits, and goes in order."""
    between.caller.send({"say": "first"})
    between.caller.send({"say": "second"})
    assert between.caller.waiting
    between.meet()
    assert not between.caller.waiting
    between.called_end.sendall(b"".join(between.said(between.caller_end)))
    assert between.called.receive() == [{"say": "first"}, {"say": "second"}]


@given(st.data())
def test_no_line_but_those_that_were_said(data: st.DataObject) -> None:
    """Whatever is done to the lines on their way, what is taken are the first ones that were said,
    in order, and then it is over."""
    between = Between()
    try:
        between.meet()
        said = [{"say": "x", "n": n} for n in range(data.draw(st.integers(1, 4)))]
        for message in said:
            between.caller.send(message)
        lines = between.said(between.caller_end)
        between.called.send({"say": "x", "n": 0})
        lines += between.said(between.called_end)  # of the other direction
        handed = list(data.draw(st.permutations(lines)))
        handed = handed[: data.draw(st.integers(1, len(handed)))]
        handed += data.draw(st.lists(st.sampled_from(lines), max_size=3))
        spot = data.draw(st.integers(0, len(b"".join(handed)) - 1) | st.none())
        sent = bytearray(b"".join(handed))
        if spot is not None:
            sent[spot] ^= data.draw(st.integers(1, 255))
        between.called_end.sendall(sent)
        taken: list[Any] = []
        with contextlib.suppress(WireError):
            taken = between.called.receive()
        assert taken == said[: len(taken)]
        if taken:
            assert bytes(sent).startswith(b"".join(lines[: len(taken)]))
    finally:
        between.close()


def test_a_replay_is_forged(between: Between) -> None:
    """Lines of one connection are worth nothing on another, nonces and all."""
    caller, _ = between.meet()
    between.caller.send({"say": "leave"})
    (line,) = between.said(between.caller_end)
    other = Between()
    try:
        other.said(other.caller_end)
        other.called_end.sendall(caller + b"\n" + line)
        with pytest.raises(WireError, match="forged"):
            other.called.receive()
        assert not other.called.is_proven
    finally:
        other.close()


def test_another_key_is_forged() -> None:
    """Both sides see it."""
    between = Between(KEY, b"another key of sixteen bytes")
    try:
        between.meet()
        between.caller.send({"say": "x"})
        between.called_end.sendall(between.said(between.caller_end)[0])
        with pytest.raises(WireError, match="forged"):
            between.called.receive()
        between.called.send({"say": "refused"})
        between.caller_end.sendall(between.said(between.called_end)[0])
        with pytest.raises(WireError, match="forged"):
            between.caller.receive()
    finally:
        between.close()


@pytest.mark.parametrize("first", [b"", b"00", b"x" * 65, b'{"say":"join"}'])
def test_no_nonce(between: Between, first: bytes) -> None:
    between.called_end.sendall(first + b"\n")
    with pytest.raises(WireError, match="forged"):
        between.called.receive()


def test_the_own_nonce_is_no_answer(between: Between) -> None:
    """A peer that only sends back what it hears is nobody."""
    between.caller_end.sendall(between.said(between.caller_end)[0])
    with pytest.raises(WireError, match="forged"):
        between.caller.receive()


# -- addresses and keys ----------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["tcp://127.0.0.1:7077", "tcp://[::1]:7077", "tcp://localhost:1"])
def test_addresses(text: str) -> None:
    assert Address(text).places


@pytest.mark.parametrize(
    "text",
    ["", "host:7077", "tcp://host", "tcp://:7077", "udp://host:1", "tcp://h:99999", "tcp://h:1/x"]
    + ["tcp://[::1:7077", "tcp://no.such.host.invalid:7077"],
)
def test_no_addresses(text: str) -> None:
    with pytest.raises(UsageError, match=re.escape(repr(text))):
        Address(text)


def test_keys(tmp_path: Path) -> None:
    """Too short, open to everybody, or not there: each is said with what to do."""
    path = tmp_path / "key"
    with pytest.raises(UsageError, match="openssl rand"):
        read_key(path)
    path.write_bytes(b"0123456789abcde\n")
    path.chmod(0o600)
    with pytest.raises(UsageError, match="15 bytes"):
        read_key(path)
    path.write_bytes(b"0123456789abcdef\n")
    assert read_key(path) == b"0123456789abcdef"
    path.chmod(0o640)
    assert read_key(path) == b"0123456789abcdef"
    path.chmod(0o644)
    with pytest.raises(UsageError, match="chmod"):
        read_key(path)


# -- what a host takes while nobody says so --------------------------------------------------------

TOTAL = 1e9
TICK_S = 0.25


class Host:
    """One that looks for the broker as a tenant does, and reports what it wants."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.holding = FallbackRate(math.inf, limits.broker_gather_s)
        self.lease: Lease | None = None
        self.ends_s = self.joins_s = 0.0
        self.lost_s = math.inf
        self.joined = self.known = False
        self.wants = 1e6

    def hear(self, lease: Lease, now_s: float) -> None:
        self.lease, self.ends_s, self.known = lease, now_s + lease.lasts_s, True

    def rate(self, now_s: float) -> float:
        if now_s >= self.lost_s:
            self.lease, self.joined, self.lost_s = None, False, math.inf
        if self.lease is not None and now_s >= self.ends_s:
            self.lease, self.ends_s = self.lease.ended, math.inf
        return self.holding.rate(self.lease, now_s)


happenings = st.tuples(
    st.sampled_from(["nothing", "kill", "start", "stop", "go on", "want", "want", "host"]),
    st.integers(1, 40),
    st.integers(0, 3),
    st.floats(1e5, 1e10),
)


@settings(deadline=None)
@given(
    st.lists(happenings, max_size=25),
    st.lists(st.floats(0, limits.broker_retry_s), min_size=4, max_size=4),
    st.lists(st.floats(0, 10), min_size=4, max_size=4),
)
def test_hosts_never_exceed_the_total(
    story: list[tuple[str, int, int, float]], again_s: list[float], notice_s: list[float]
) -> None:
    """Whenever the broker of all is killed, stopped, and there again, however late hosts notice,
    where they find it within `limits.broker_retry_s`: all that have ever had a lease take no more
    than there is."""
    hosts = [Host(number) for number in range(2)]
    ledger: Ledger | None = Ledger(Resources(cores=1, bytes_per_s=TOTAL))
    running, tick = True, 0
    for what, ticks, which, wanted in [("nothing", 20, 0, 1e6), *story]:
        now_s = tick * TICK_S
        if what == "kill" and ledger is not None:
            ledger, running = None, True
            for host in hosts:
                if host.joined:
                    host.lost_s = now_s + notice_s[host.number]
        elif what == "start" and ledger is None:
            ledger = Ledger(Resources(cores=1, bytes_per_s=TOTAL))
            for host in hosts:
                host.lost_s = min(host.lost_s, now_s)  # the old connection is refused
                host.joins_s = now_s + again_s[host.number]
                host.rate(now_s)
            ticks += math.ceil(limits.broker_retry_s / TICK_S)
        elif what in ("stop", "go on"):
            running = what == "go on"
        elif what == "want":
            hosts[which % len(hosts)].wants = wanted
        elif what == "host" and len(hosts) < 4 and ledger is not None and running:
            hosts.append(Host(len(hosts)))
            hosts[-1].joins_s = now_s
        for _ in range(ticks):
            tick += 1
            now_s = tick * TICK_S
            if ledger is not None and running:
                _serve(ledger, hosts, now_s)
            total = math.fsum(host.rate(now_s) for host in hosts if host.known)
            assert total <= TOTAL * (1 + 1e-9)


def _serve(ledger: Ledger, hosts: list[Host], now_s: float) -> None:
    """A round of the broker: who is there joins and reports, and hears."""
    for host in hosts:
        if not host.joined and host.joins_s <= now_s:
            host.joined = True
            name = f"host {host.number}"
            ledger.join(host.number, now_s, job=name, rank=0, pid=1, name="broker")
        if host.joined:
            taken = min(host.wants, host.rate(now_s))
            profile = {"samples_per_s": host.wants, "cpu_s": 0.0, "storage_bytes": 1.0}
            measured = JobMeasurement(samples_per_s=taken, bytes_per_s=taken)
            ledger.report(host.number, now_s, Report(profile=profile, measured=measured))
    for number, lease in ledger.tick(now_s).items():
        hosts[number].hear(lease, now_s)


def test_what_it_takes_when() -> None:
    """Its own limit at first; then what is leased; the less of that and its floor when it is lost,
    the floor once it would have ended, and no more until the others are there, too."""
    holding = FallbackRate(80.0, 5.0)
    lease = Lease(cores=1, bytes_per_s=20, floor_cores=1, floor_bytes_per_s=50, lasts_s=5)
    assert holding.rate(None, 0.0) == 80
    assert holding.rate(lease, 1.0) == 20
    assert holding.rate(None, 2.0) == 20
    assert holding.rate(None, 6.9) == 20
    assert holding.rate(None, 7.0) == 50
    assert holding.rate(None, 1e6) == 50
    more = Lease(cores=1, bytes_per_s=100, floor_cores=1, floor_bytes_per_s=100, lasts_s=5)
    assert holding.rate(more, 1e6) == 50
    assert holding.rate(more, 1e6 + 4.9) == 50
    assert holding.rate(more, 1e6 + 9) == 50  # it came before the others were there
    assert holding.rate(replace(more), 1e6 + 9) == 80


# -- processes -------------------------------------------------------------------------------------

WANTS_LITTLE = {"samples_per_s": 20.0, "cpu_s": 0.1e-3, "storage_bytes": 1e6}
WANTS_ALL = {"samples_per_s": 1000.0, "cpu_s": 0.1e-3, "storage_bytes": 1e6}


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return keyed(tmp_path / "key")


def keyed(path: Path) -> Path:
    path.write_text(os.urandom(16).hex())
    path.chmod(0o600)
    return path


@pytest.fixture
def port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def upstream(path: Path, port: int, key: Path, host: str = "127.0.0.1") -> Any:
    listen = f"tcp://{host}:{port}"
    return broker(path, "--listen", listen, "--key-file", str(key), "--bytes-per-s", "100MB/s")


def downstream(path: Path, port: int, key: Path, host: str = "127.0.0.1") -> Any:
    above = f"tcp://{host}:{port}"
    return broker(path, "--upstream", above, "--key-file", str(key), "--name", path.stem)


def rate(low: float, high: float) -> Any:
    """A predicate: the lease has so many MB/s."""
    return lambda lease: lease is not None and low <= (lease["bytes_per_s"] or 0) / 1e6 <= high


def state_where(path: Path, wanted: Any) -> dict[str, Any]:
    """The first state of a broker that is as wanted."""
    with contextlib.closing(watch_broker(path)) as states:  # type: ignore[type-var]
        return next(state for state in states if wanted(state))


@pytest.mark.long
def test_two_hosts(tmp_path: Path, port: int, key: Path) -> None:
    """Storage goes to the host that can use it; with the broker of all killed each is at its floor,
    and with another one as before; a host's death gives what it had to the other."""
    above, a, b = (tmp_path / f"{name}.sock" for name in ("all", "a", "b"))
    with contextlib.ExitStack() as undo:
        first = undo.enter_context(upstream(above, port, key))
        host = undo.enter_context(downstream(a, port, key))
        undo.enter_context(downstream(b, port, key))
        little, much = Job(a, "little", WANTS_LITTLE), Job(b, "much", WANTS_ALL)
        undo.callback(little.end)
        undo.callback(much.end)
        much.until(rate(75, 81))
        little.until(rate(20, 25))
        first.kill()
        much.until(rate(50, 50))
        first.wait()
        with upstream(above, port, key):
            much.until(rate(75, 81))
            host.kill()
            much.until(rate(100, 100))


def test_another_key(tmp_path: Path, port: int, key: Path) -> None:
    """A host with another key is told so and has its own limit; the broker of all counts it, and
    serves who has the key."""
    above, a, b = (tmp_path / f"{name}.sock" for name in ("all", "a", "b"))
    with (
        upstream(above, port, key),
        downstream(a, port, keyed(tmp_path / "other")) as stranger,
        downstream(b, port, key),
    ):
        left, right = Job(a, "left", WANTS_ALL), Job(b, "right", WANTS_ALL)
        try:
            right.until(rate(100, 100))
            assert "another key" in stranger.stderr.readline()
            found = left.until(lambda lease: lease is not None)
            assert found is not None
            assert found["bytes_per_s"] is None
            state = state_where(above, lambda state: state["refused"].get("forged"))
            assert [job["job"] for job in state["jobs"]] == ["b"]
        finally:
            left.end()
            right.end()


@pytest.mark.long
def test_strangers(tmp_path: Path, port: int, key: Path) -> None:
    """A stranger who says something else, too much, nothing, or goes again is counted; nothing is
    said to it but a nonce; the broker goes on."""
    above = tmp_path / "all.sock"
    with upstream(above, port, key), contextlib.ExitStack() as undo:

        def call(what: bytes) -> socket.socket:
            found = undo.enter_context(socket.create_connection(("127.0.0.1", port), 60))
            found.sendall(what)
            return found

        call(b"").close()
        silent = call(b"")
        for what in (b"GET / HTTP/1.1\r\n\r\n", b'{"say":"watch"}\n', b"x" * 100_000):
            answer = b""
            stranger = call(what)
            with contextlib.suppress(ConnectionResetError):
                while found := stranger.recv(1 << 16):
                    answer += found
            assert b"say" not in answer
        assert silent.recv(100) == b""
        state = state_where(above, lambda state: sum(state["refused"].values()) >= 5)
        assert state["refused"]["strangers"] == 2
        with downstream(tmp_path / "a.sock", port, key):
            job = Job(tmp_path / "a.sock", "a", WANTS_ALL)
            try:
                job.until(rate(100, 100))
            finally:
                job.end()


class StillClock:
    """A clock at which nobody's time runs out."""

    def now_ns(self) -> int:
        return 0

    def wait_until_ns(self, deadline_ns: int) -> None:
        del deadline_ns


def test_idle_strangers_keep_nobody_out(tmp_path: Path, port: int) -> None:
    """A stranger who says nothing has one of so many places until they are needed; what is ended
    then is the oldest of the host that has most."""
    address = Address(f"tcp://127.0.0.1:{port}")
    ledger = Ledger(Resources(cores=1))
    with (
        Broker(tmp_path / "b.sock", ledger, listen=(address, KEY), clock=StillClock()) as serving,
        contextlib.ExitStack() as undo,
    ):

        def connect(host: str) -> socket.socket:
            return undo.enter_context(
                socket.create_connection(("127.0.0.1", port), 60, source_address=(host, 0))
            )

        few = [connect("127.0.0.3") for _ in range(3)]
        many = [connect("127.0.0.2") for _ in range(limits.broker_unproven_max)]
        serve = threading.Thread(target=serving.serve)
        serve.start()
        undo.callback(serve.join)
        undo.callback(serving.stop)
        with contextlib.closing(AuthenticatedLines(address.call(), KEY, caller=True)) as member:
            member.send({"say": "watch"})
            heard: list[Any] = []
            while not heard:
                ready, writable, _ = select.select([member], [member] if member.waiting else [], [])
                if writable:
                    member.flush()
                if ready:
                    heard = member.receive()
            assert heard[0]["say"] == "state"
            assert heard[0]["refused"] == {"crowded": 4, "strangers": 4}
        for ended in many[:4]:
            assert ended.recv(1) == b""
        for stranger in (*few, *many[4:]):
            stranger.setblocking(False)
            with pytest.raises(BlockingIOError):
                stranger.recv(1)


@pytest.mark.long
def test_ipv6(tmp_path: Path, port: int, key: Path) -> None:
    with contextlib.closing(socket.socket(socket.AF_INET6)) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
    a = tmp_path / "a.sock"
    with (
        upstream(tmp_path / "all.sock", port, key, "[::]"),
        downstream(a, port, key, "[::1]"),
        downstream(tmp_path / "b.sock", port, key),
    ):
        job = Job(a, "a", WANTS_ALL)
        other = Job(tmp_path / "b.sock", "b", WANTS_ALL)
        try:
            job.until(rate(50, 50))
            other.until(rate(50, 50))
        finally:
            job.end()
            other.end()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--upstream", "tcp://127.0.0.1:1"], "--key-file"),
        (["--key-file", "key"], "--key-file"),
        (["--upstream", "storage", "--key-file", "key"], "tcp://"),
        (["--listen", "tcp://192.0.2.1:7077", "--key-file", "key"], "this host's address"),
        (["--listen", "tcp://127.0.0.1:7077", "--key-file", "none"], "openssl rand"),
    ],
)
def test_what_is_refused_at_the_start(
    tmp_path: Path, key: Path, options: list[str], said: str
) -> None:
    done = run("broker", "--socket", "b.sock", *options, folder=tmp_path, code=1)
    assert said in done.stderr


def test_the_state_is_json(tmp_path: Path, port: int, key: Path) -> None:
    """The state that is shown of the broker above is JSON."""
    path = tmp_path / "a.sock"
    with downstream(path, port, key):
        state = state_where(path, lambda state: True)
        json.dumps(state, allow_nan=False)
        expected = {"address": f"tcp://127.0.0.1:{port}", "leased": False, "bytes_per_s": None}
        assert state["upstream"] == expected
