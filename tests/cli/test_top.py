"""`penstock top`: what it shows of a real broker, in a terminal and without one."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import rich.console
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli import console as terminal
from penstock.cli.broker import _escape_name, render_state
from tests import warm
from tests.command import run
from tests.sharing.tenants import Job, broker, environ

DECODES = {"samples_per_s": 1000.0, "cpu_s": 10e-3, "storage_bytes": 10e3}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "broker.sock"


@contextlib.contextmanager
def jobs(path: Path) -> Iterator[dict[str, Job]]:
    """Two ranks of one job, measured, and one that says nothing of itself."""
    started = {
        "a 0": Job(path, "a", DECODES),
        "a 1": Job(path, "a", DECODES, rank=1),
        "b": Job(path, "b", None),
    }
    try:
        for each in started.values():
            each.until(lambda lease: lease is not None)
        yield started
    finally:
        for each in started.values():
            each.end()


def test_a_table_and_the_state(path: Path) -> None:
    """Jobs, with their members' ranks and processes, and the same as JSON."""
    with broker(path, "--cores", "4", "--bytes-per-s", "100MB/s"), jobs(path) as started:
        command = [sys.executable, "-m", "penstock", "top", "--socket", str(path)]
        said = subprocess.run(command, capture_output=True, text=True, env=environ(), timeout=240)
        assert said.returncode == 0, said.stderr
        for each in started.values():
            assert str(each.process.pid) in said.stdout
        row = next(line for line in said.stdout.splitlines() if line.lstrip().startswith("a "))
        assert "0,1" in row
        assert "3 loaders on 4 cores, 100 MB/s" in said.stdout
        narrow = run("top", "--socket", path, "--once", COLUMNS="40")
        table = narrow.stdout.split("2 jobs")[0]
        assert max(map(len, table.splitlines())) <= 40
        state = json.loads(run("top", "--socket", path, "--json").stdout)
        assert {job["job"]: len(job["members"]) for job in state["jobs"]} == {"a": 2, "b": 1}


def test_no_broker(path: Path) -> None:
    """One message that says what to do, and code 1; the same where one has died."""
    assert "penstock broker" in run("top", "--socket", path, code=1).stderr
    with broker(path) as process:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert path.exists()
        assert "no broker serves" in run("top", "--socket", path, code=1).stderr


def test_told_not_to_look() -> None:
    assert "PENSTOCK_BROKER" in run("top", PENSTOCK_BROKER="off", code=1).stderr


@contextlib.contextmanager
def in_terminal(path: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """`penstock top` in a terminal of 100 columns, and our end of that."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 30, 100, 0, 0))
    command = [sys.executable, "-m", "penstock", "top", "--socket", str(path)]
    env = {**environ(TERM="xterm"), "COLUMNS": ""}
    process = warm.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def until(terminal: int, wanted: str) -> str:
    """Return all that it shows up to where that is shown; all of it when it ends before."""
    shown = b""
    while wanted not in (plain := re.sub(r"\x1b[^a-zA-Z]*[a-zA-Z]", "", shown.decode())):
        try:
            shown += os.read(terminal, 1 << 16)
        except OSError:  # nobody has the other end any more
            raise AssertionError(f"{wanted!r} is not in {plain!r}") from None
    return plain


@pytest.mark.long
def test_live_until_the_broker_ends(path: Path) -> None:
    """A job that comes later is shown; when the broker ends, it says so."""
    with broker(path) as process, in_terminal(path) as (shown, ours):
        until(ours, "no jobs yet")
        with jobs(path):
            until(ours, "2 jobs")
        until(ours, "no jobs yet")
        process.kill()
        until(ours, f"the broker at {path} has ended")
        assert shown.wait(timeout=240) == 1


def test_interrupted(path: Path) -> None:
    with broker(path), in_terminal(path) as (shown, ours):
        until(ours, "no jobs yet")
        shown.send_signal(signal.SIGINT)
        assert shown.wait(timeout=240) == 130


# -- what is shown of any state --------------------------------------------------------------------

numbers = st.none() | st.floats(0, 1e18)
parts = st.none() | st.floats(0, 1)
members = st.fixed_dictionaries({"rank": st.integers(0, 9999), "pid": st.integers(1, 1 << 22)})
any_job = st.fixed_dictionaries(
    {
        "job": st.text(max_size=40),
        "standing": st.sampled_from(["measured", "unmeasured", "silent", "doubted"]),
        "members": st.lists(members, min_size=1, max_size=12),
        "cores": numbers,
        "bytes_per_s": numbers,
        "predicted": numbers,
        "predicted_least": numbers,
        "idle": parts,
        "binding": st.sampled_from([None, "model", "workers", "bandwidth"]),
        "measured": numbers,
        "stall": parts,
    }
).filter(lambda job: (job["predicted"] is None) == (job["idle"] is None))
states = st.fixed_dictionaries(
    {
        "cores": st.floats(0.1, 1e6),
        "bytes_per_s": numbers,
        "objective": st.sampled_from(["samples", "utilisation", "makespan"]),
        "floors": st.floats(0.01, 1),
        "value": numbers,
        "worth": st.none() | st.just({"core": 0.5, "byte_per_s": 1e-9}),
        "jobs": st.lists(any_job, max_size=5),
        "transfers": st.lists(
            st.fixed_dictionaries(
                {
                    "job": st.text(max_size=20),
                    "moved": st.floats(0, 1e15),
                    "bytes": st.floats(1, 1e15),
                    "measured": st.floats(0, 1e12),
                    "bytes_per_s": numbers,
                }
            ),
            max_size=2,
        ),
        "upstream": st.none() | st.just({"address": "tcp://h:1", "leased": True}),
        "refused": st.dictionaries(st.sampled_from(["absurd", "strangers"]), st.integers(1)),
    }
)


@given(states, st.integers(1, 240))
def test_any_state_on_any_width(state: dict[str, Any], width: int) -> None:
    """No line is wider than the terminal, every job has its row, and nothing that is in a name
    reaches the terminal but what can be printed."""
    written = io.StringIO()
    console = rich.console.Console(file=written, width=width, force_terminal=False)
    console.print(render_state(state, width))
    lines = written.getvalue().splitlines()
    assert all(rich.console.Console().measure(line).maximum <= width for line in lines)
    assert "".join(lines).isprintable()
    if width >= 40:
        body = lines[3 : 3 + len(state["jobs"])] if state["jobs"] else []
        assert all(line.strip() for line in body)


def test_names_are_not_markup() -> None:
    """A name in brackets is shown as it is."""
    assert terminal.escape("[red]x[/]") in _escape_name("[red]x[/]")
    assert "\x1b" not in _escape_name("\x1b[2Jx\n")
