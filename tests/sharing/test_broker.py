"""The broker with real processes: jobs that come, go and are killed; strangers and nonsense."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import stat
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import limits
from penstock.errors import UsageError
from penstock.sharing.allocation import Resources
from penstock.sharing.broker import Broker
from penstock.sharing.ledger import Ledger
from tests.command import run
from tests.sharing.tenants import Caller, Ended, Job, broker, job

CORES, RATE = 4.0, 100e6
OPTIONS = ("--cores", "4", "--bytes-per-s", "100MB/s")
DECODES = {"samples_per_s": 1000.0, "cpu_s": 10e-3, "storage_bytes": 10e3}
"""Wants 10 cores."""
READS = {"samples_per_s": 1000.0, "cpu_s": 0.1e-3, "storage_bytes": 1e6}
"""Wants 1 GB/s."""
NOBODY = 65534
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become other users")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "broker.sock"


@pytest.fixture
def open_path() -> Iterator[Path]:
    """In a folder that all users can enter."""
    folder = tempfile.mkdtemp(prefix="penstock-test-", dir="/tmp")
    os.chmod(folder, 0o755)
    yield Path(folder, "broker.sock")
    shutil.rmtree(folder)


def has(cores: float) -> Callable[[dict[str, Any]], bool]:
    return lambda lease: abs(lease["cores"] - cores) < 1e-6


def floor(cores: float) -> Callable[[dict[str, Any]], bool]:
    return lambda lease: abs(lease["floor_cores"] - cores) < 1e-6


def most(lease: dict[str, Any]) -> bool:
    """Nearly all, and one of two."""
    return bool(lease["cores"] > 0.9 * CORES and lease["floor_cores"] == CORES / 2)


def test_two_jobs_share_a_host(path: Path) -> None:
    """The first has all of it, then half; once both are measured each has what it can use; and all
    of it is the other's when one is killed."""
    with broker(path, *OPTIONS), job(path, "a", DECODES) as decodes:
        decodes.until(has(CORES))
        with job(path, "b", READS) as reads:
            decodes.until(floor(CORES / 2))
            decodes.until(most)
            reads.until(lambda lease: lease["bytes_per_s"] > 0.9 * RATE)
        found = decodes.until(floor(CORES))
        assert found["cores"] == pytest.approx(CORES)
        assert found["bytes_per_s"] == pytest.approx(RATE)


def test_jobs_find_a_broker_that_comes_later_and_again(path: Path) -> None:
    """They run on their own budgets before, between, and after it."""
    with job(path, "a", DECODES) as first, job(path, "b", READS) as second:
        ends = {signal.SIGKILL: -signal.SIGKILL, signal.SIGTERM: 0, signal.SIGINT: 130}
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as under nohup
            ends[signal.SIGHUP] = 0
        for number, code in ends.items():
            with broker(path, *OPTIONS) as process:
                first.until(floor(CORES / 2))
                second.until(floor(CORES / 2))
                process.send_signal(number)
                first.until_alone()
                second.until_alone()
                assert process.wait(240) == code
                assert path.exists() == (number == signal.SIGKILL)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_kill_at_any_point(path: Path, seed: int) -> None:
    """Jobs and the broker die: the others go on, and divide what there is among them."""
    random = np.random.default_rng(seed)
    with ExitStack() as stack:
        jobs: dict[str, Job] = {}
        serving = stack.enter_context(broker(path, *OPTIONS))
        for number in range(8):
            choice = random.integers(3) if len(jobs) > 1 else 0
            if choice == 0:
                profile = (DECODES, READS, None)[random.integers(3)]
                jobs[str(number)] = stack.enter_context(job(path, str(number), profile))
            elif choice == 1:
                jobs.pop(random.choice(list(jobs))).end()
            else:
                serving.kill()
                serving.wait()
                serving = stack.enter_context(broker(path, *OPTIONS))
            time.sleep(random.uniform(0, 0.3))  # wherever that is
        with Caller(path) as caller:
            state = caller.state()
            while {each["job"] for each in state["jobs"]} != jobs.keys():
                state = caller.state()
        held = [member["cores"] for each in state["jobs"] for member in each["members"]]
        assert sum(held) == pytest.approx(CORES)
        for each in jobs.values():
            each.until(floor(CORES / len(jobs)))
        assert serving.poll() is None


@pytest.mark.long
def test_a_broker_that_hangs_leaves_floors(path: Path) -> None:
    """A lease that is not renewed ends; when the broker goes on, so do leases."""
    with ExitStack() as stack:
        process = stack.enter_context(broker(path, *OPTIONS))
        decodes = stack.enter_context(job(path, "a", DECODES))
        stack.enter_context(job(path, "b", READS))
        decodes.until(most)
        process.send_signal(signal.SIGSTOP)
        found = decodes.until(has(CORES / 2))
        assert found["bytes_per_s"] == RATE / 2
        process.send_signal(signal.SIGCONT)
        decodes.until(most)


@pytest.mark.long
def test_a_job_that_hangs_is_at_its_floor(path: Path) -> None:
    """Until it goes on."""
    with ExitStack() as stack:
        stack.enter_context(broker(path, *OPTIONS))
        decodes = stack.enter_context(job(path, "a", DECODES))
        reads = stack.enter_context(job(path, "b", READS))
        decodes.until(most)
        reads.process.send_signal(signal.SIGSTOP)
        decodes.until(has(CORES / 2))
        reads.process.send_signal(signal.SIGCONT)
        decodes.until(most)


@pytest.mark.long
def test_a_greedy_job_is_at_its_floor(path: Path) -> None:
    with (
        broker(path, *OPTIONS),
        job(path, "a", DECODES, greed=2.0) as greedy,
        job(path, "b", READS),
    ):
        greedy.until(most)
        greedy.until(has(CORES / 2))
        with Caller(path) as caller:
            found = {each["job"]: each for each in caller.state()["jobs"]}
        assert (found["a"]["standing"], found["a"]["lies"]) == ("doubted", 1)
        assert (found["b"]["standing"], found["b"]["lies"]) == ("measured", 0)


BAD_LINES = [
    (b"x" * (limits.broker_line_bytes + 1), "oversized"),
    (b"x" * limits.broker_line_bytes * 100, "oversized"),
    (b" " * limits.broker_line_bytes + b"{}\n", "oversized"),
    (b"hello\n", "malformed"),
    (b"\n", "malformed"),
    (b"\xff\xfe\n", "malformed"),
    (b"[" * 4000 + b"\n", "malformed"),
    (b"[1]\n", "malformed"),
    (b"{}\n", "malformed"),
    (b'{"say": 1}\n', "malformed"),
    (pickle.dumps({"say": "join"}) + b"\n", "malformed"),
    (b'{"say": "report", "profile": null, "measured": {}}\n', "unexpected"),
    (b'{"say": "leave"}\n', "unexpected"),
    (b'{"say": "lease"}\n', "unexpected"),
]


def test_bad_lines_are_refused_and_counted(path: Path) -> None:
    """The connection is closed, and the others notice nothing."""
    counts: Counter[str] = Counter()
    with broker(path, *OPTIONS), Caller(path) as good:
        good.join("good")
        assert good.hear()["cores"] == CORES
        for line, counter in BAD_LINES:
            with Caller(path) as bad:
                with suppress(BrokenPipeError, ConnectionResetError):  # closed before all was said
                    bad.say(line)
                with pytest.raises(Ended):
                    assert counter in bad.hear()["why"], line[:50]
                    bad.hear()
            counts[counter] += 1
            state = good.state()
            assert state["refused"] == counts, line[:50]
            assert [each["job"] for each in state["jobs"]] == ["good"], line[:50]


def test_absurd_values_are_refused_by_name_and_counted(path: Path) -> None:
    """The connection stays, for something better."""
    report = {"say": "report", "profile": None, "measured": {"samples_per_s": 1.0}}
    profile = {"samples_per_s": 1.0, "cpu_s": 1.0, "storage_bytes": 1.0}
    absurd = [
        ("JobProfile.samples_per_s", {"profile": {**profile, "samples_per_s": 0}}),
        ("JobProfile.cpu_s", {"profile": {**profile, "cpu_s": -1}}),
        ("JobProfile.storage_bytes", {"profile": {**profile, "storage_bytes": float("inf")}}),
        ("JobProfile.storage_bytes", {"profile": {**profile, "storage_bytes": 10**3000}}),
        ("JobProfile.cpu_s", {"profile": {"samples_per_s": 1.0}}),
        ("JobProfile.colour", {"profile": {**profile, "colour": 1}}),
        ("Report.profile", {"profile": [1]}),
        ("Report.measured", {"measured": None}),
        ("JobMeasurement.samples_per_s", {"measured": {}}),
        ("JobMeasurement.stall", {"measured": {"samples_per_s": 1.0, "stall": 1.1}}),
        ("JobMeasurement.cores", {"measured": {"samples_per_s": 1.0, "cores": float("nan")}}),
    ]
    with broker(path, *OPTIONS), Caller(path) as caller:
        for wrong in ({"job": 1}, {"rank": "0"}, {"pid": True}, {"name": None}, {"version": 99}):
            caller.join(**{"job": "job", **wrong})
            assert next(iter(wrong)) in caller.hear()["why"]
        caller.join("job")
        assert caller.hear()["say"] == "lease"
        for name, change in absurd:
            caller.say({**report, **change})
            found = caller.hear()
            assert found["say"] == "refused"
            assert name in found["why"]
        caller.say({**report, "profile": profile})
        state = caller.state()
        assert state["refused"] == {"absurd": len(absurd) + 5}
        assert state["jobs"][0]["standing"] == "measured"


@pytest.mark.long
def test_who_does_not_read_is_left(path: Path) -> None:
    """And nobody waits for it meanwhile."""
    with broker(path, *OPTIONS), Caller(path) as deaf, job(path, "a", DECODES) as good:
        good.until(has(CORES))
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            while True:
                deaf.say({"say": "join"})  # what is wrong with that is told each time
        with Caller(path) as caller:
            caller.join("b")
            assert caller.hear()["cores"] == CORES / 2
            good.until(has(CORES / 2))
        good.until(has(CORES))


def test_too_many_are_told(path: Path) -> None:
    with broker(path, *OPTIONS) as process:
        with ExitStack() as stack:
            callers = [stack.enter_context(Caller(path)) for _ in range(limits.broker_members_max)]
            with Caller(path) as other:
                assert str(limits.broker_members_max) in other.hear()["why"]
                with pytest.raises(Ended):
                    other.hear()
            assert callers[0].state()["refused"] == {"crowded": 1}
        with Caller(path) as caller:
            caller.state()
        assert process.poll() is None


# -- who may join ----------------------------------------------------------------------------------


def as_user(user: int, groups: Sequence[int], function: Callable[[], str]) -> str:
    """Return what a function says as another user."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups(groups)
            os.setgid(user)
            os.setuid(user)
            said = function()
        except BaseException as error:
            said = repr(error)
        os.write(writable, said.encode())
        os._exit(0)
    os.close(writable)
    with open(readable) as file:
        said = file.read()
    os.waitpid(child, 0)
    return said


def joined(path: Path) -> str:
    """The broker's answer to a process that joins it."""
    with Caller(path) as caller:
        with suppress(BrokenPipeError):  # it was told before it could say anything
            caller.join("job")
        found = caller.hear()
        return str(found.get("why", found["say"]))


@needs_root
def test_other_users_are_refused(open_path: Path) -> None:
    """By the mode of the socket; and where that has been changed, by what the kernel says of who
    calls."""
    with broker(open_path, *OPTIONS):
        assert stat.S_IMODE(open_path.stat().st_mode) == 0o600
        assert "PermissionError" in as_user(NOBODY, [], lambda: joined(open_path))
        os.chmod(open_path, 0o666)
        assert f"user {NOBODY} is not admitted" in as_user(NOBODY, [], lambda: joined(open_path))
        assert joined(open_path) == "lease"
        with Caller(open_path) as caller:
            assert caller.state()["refused"] == {"strangers": 1}


@needs_root
def test_members_of_a_group_may_join(open_path: Path) -> None:
    with broker(open_path, *OPTIONS, "--group", "4321"):
        assert stat.S_IMODE(open_path.stat().st_mode) == 0o660
        for groups in ([4321], [1, 4321, 4322]):
            assert as_user(NOBODY, groups, lambda: joined(open_path)) == "lease"
        assert "PermissionError" in as_user(NOBODY, [], lambda: joined(open_path))
        os.chmod(open_path, 0o666)
        assert "and group 4321" in as_user(NOBODY, [4322], lambda: joined(open_path))


@needs_root
def test_jobs_of_two_users_are_two(open_path: Path) -> None:
    with broker(open_path, *OPTIONS, "--group", "4321"), Caller(open_path) as caller:
        caller.join("job")

        def share() -> str:
            with Caller(open_path) as other:
                other.join("job")
                return str(other.hear()["cores"])

        assert as_user(NOBODY, [4321], share) == "2.0"


@needs_root
def test_root_may_join_what_others_serve(open_path: Path) -> None:
    """A broker of another user, whose socket in turn is not taken for root's own."""
    os.chmod(open_path.parent, 0o777)
    os.chown(open_path.parent, NOBODY, NOBODY)
    os.chmod(open_path.parent, 0o755)

    def serve() -> str:
        with Broker(open_path, Ledger(Resources(cores=4))) as serving:
            os.write(ready, b".")
            serving.serve()
        return ""

    waiting, ready = os.pipe()
    child = os.fork()
    if child == 0:
        as_user(NOBODY, [], serve)
        os._exit(0)
    try:
        os.read(waiting, 1)
        assert joined(open_path) == "lease"
    finally:
        with Caller(open_path) as caller:
            pid = int(Path(f"{open_path}.lock").read_text())
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(Ended):
                caller.hear()
        os.waitpid(child, 0)


# -- the socket ------------------------------------------------------------------------------------


def ledger() -> Ledger:
    return Ledger(Resources(cores=1))


def test_one_broker_at_a_place(path: Path) -> None:
    """A second one is refused while the first lives, and says whose place it is."""
    with Broker(path, ledger()):
        with pytest.raises(UsageError, match=rf"process {os.getpid()}\)"):
            Broker(path, ledger())
        with Caller(path):
            pass
    assert not path.exists()
    with Broker(path, ledger()):
        assert path.exists()


def test_a_broker_without_its_lock_file_keeps_its_socket(path: Path) -> None:
    """What removes old files in /tmp takes the lock file: the living socket is not taken over, and
    a broker that ends leaves the socket of the one that came after."""
    with broker(path) as process:
        Path(f"{path}.lock").unlink()
        with pytest.raises(UsageError, match="serves at .* already"):
            Broker(path, ledger())
        with Caller(path):
            pass
        path.unlink()
        Path(f"{path}.lock").unlink(missing_ok=True)
        with Broker(path, ledger()):
            process.terminate()
            process.wait()
            with Caller(path):
                pass
    assert not path.exists()


def test_what_a_dead_broker_left_is_taken_over(path: Path) -> None:
    with broker(path) as process:
        process.kill()
        process.wait()
    assert stat.S_ISSOCK(path.stat().st_mode)
    Path(f"{path}.new").touch()
    with Broker(path, ledger()), Caller(path):
        pass


def test_what_is_no_socket_is_left_alone(path: Path) -> None:
    path.write_text("mine")
    with pytest.raises(UsageError, match="no socket"):
        Broker(path, ledger())
    assert path.read_text() == "mine"


def test_its_folder_is_made_for_it_alone(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "broker.sock"
    with Broker(path, ledger()):
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_folders_that_others_may_write_are_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(UsageError, match="others may write to"):
        Broker(tmp_path / "broker.sock", ledger())
    tmp_path.chmod(0o1777)
    with Broker(tmp_path / "broker.sock", ledger()):
        pass


@needs_root
def test_folders_of_others_are_refused(open_path: Path) -> None:
    """And those that a group cannot enter, if it is to join."""
    os.chmod(open_path.parent, 0o700)
    with pytest.raises(UsageError, match="group 4321 cannot enter"):
        Broker(open_path, ledger(), group="4321")
    os.chown(open_path.parent, NOBODY, NOBODY)
    with pytest.raises(UsageError, match=f"user {NOBODY}"):
        Broker(open_path, ledger())


def test_wrong_use(tmp_path: Path) -> None:
    """Is one message."""
    with pytest.raises(UsageError, match="too long"):
        Broker(tmp_path / ("x" * 108), ledger())
    with pytest.raises(UsageError, match="nobody-has-this"):
        Broker(tmp_path / "broker.sock", ledger(), group="nobody-has-this")
    for options, word in (
        (["--cores", "0"], "cores"),
        (["--cores", "nan"], "cores"),
        (["--bytes-per-s", "fast"], "--bytes-per-s"),
        (["--bytes-per-s", "-1GB/s"], "--bytes-per-s"),
        (["--bytes-per-s", "1..0GB/s"], "--bytes-per-s"),
        (["--objective", "speed"], "objective"),
        (["--floor", "0"], "floor"),
    ):
        done = run("broker", "--socket", tmp_path / "broker.sock", *options, code=1)
        assert word in done.stderr


def test_off_is_no_place() -> None:
    assert "PENSTOCK_BROKER" in run("broker", PENSTOCK_BROKER="off", code=1).stderr


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("1GB/s", 1e9),
        ("250 MiB/s", 250 * 2**20),
        ("1e9", 1e9),
        ("1.5TB", 1.5e12),
        ("800kB/s", 8e5),
    ],
)
def test_rates(text: str, rate: float) -> None:
    from penstock.cli.broker import parse_amount

    assert parse_amount("--bytes-per-s", text, "1GB/s") == rate
