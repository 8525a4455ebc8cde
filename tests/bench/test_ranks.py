"""Ranks start, meet and end together."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import penstock
from penstock.errors import UsageError, WorkerError
from penstock_bench.ranks import launch
from tests import warm

SOURCE = str(Path(penstock.__file__).parents[1])

SCRIPT = """
import json, sys
from penstock_bench.ranks import launch

def work(crew):
    met = []
    for turn in range(50):
        crew.barrier()
        met.append(turn)
    ends = sys.argv[1:] == ["dies"] and crew.rank == 1
    if ends:
        import os
        os._exit(3)
    return crew.gather((crew.rank, crew.ranks, crew.share(crew.rank * 7), crew.hosts, len(met)))

found = launch(None, work)
if found is not None:
    print(json.dumps(found))
"""


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_nobody_leaves_a_barrier_before_all_have_come(ranks, tmp_path):
    """Every rank notes each arrival in a file of all before it waits, and counts afterwards."""
    counts = tmp_path / "arrivals"
    counts.touch()

    def work(crew):
        found = []
        with counts.open("ab", buffering=0) as file:
            for turn in range(1, 40):
                file.write(b".")
                crew.barrier()
                found.append(counts.stat().st_size >= turn * crew.ranks)
                crew.barrier()
        return crew.gather((crew.rank, all(found), crew.share(("of", crew.rank)), crew.hosts))

    assert launch(ranks, work) == [(rank, True, ("of", 0), 1) for rank in range(ranks)]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGUSR1, None])
def test_a_rank_that_dies_ends_the_others(how):
    """One error, within seconds, whatever the others wait for: a barrier, a message, storage."""

    def work(crew):
        crew.share(None)
        if crew.rank == 2:
            os._exit(7) if how is None else os.kill(os.getpid(), how)
        if crew.rank == 1:
            signal.pause()  # as if storage never answered
        crew.barrier()

    started, before = time.monotonic(), children()
    said = "code 7" if how is None else how.name
    with pytest.raises(WorkerError, match=rf"rank 2 of 3 \(pid \d+\).*{said}"):
        launch(3, work)
    assert time.monotonic() - started < 120  # for ever, were they to wait for it
    assert children() <= before  # nobody is left


def children() -> set[str]:
    """The processes of this one, those of other tests among them."""
    tasks = Path("/proc/self/task").glob("*/children")
    return {child for task in tasks for child in task.read_text().split()}


def test_what_a_rank_raises_is_raised_here():
    def foreseen(crew):
        if crew.rank == 1:
            raise UsageError("batch 7 is too small: take 8")
        crew.barrier()

    def unforeseen(crew):
        if crew.rank == 1:
            raise ZeroDivisionError("of mine")
        crew.barrier()

    with pytest.raises(UsageError, match="batch 7 is too small: take 8"):
        launch(2, foreseen)
    with pytest.raises(WorkerError, match="rank 1 of 2 failed with ZeroDivisionError: of mine"):
        launch(2, unforeseen)


def test_a_rank_tidies_up_when_another_fails(tmp_path):
    """Files that ranks remove when they end are removed."""
    folder = tmp_path / "staged"

    def work(crew):
        if crew.rank == 1:
            crew.barrier()
            raise UsageError("no")
        folder.mkdir()
        try:
            crew.barrier()
            crew.barrier()
        finally:
            folder.rmdir()

    with pytest.raises(UsageError, match="no"):
        launch(2, work)
    assert not folder.exists()


def environment(**more):
    return {**os.environ, "PYTHONPATH": SOURCE, **{key: str(more[key]) for key in more}}


@contextlib.contextmanager
def torchruns_port():
    """One at which torchrun listens, whose next one is free: below those that others are given."""

    def listening(port):
        with contextlib.suppress(OSError), contextlib.ExitStack() as taken:
            first = taken.enter_context(socket.create_server(("127.0.0.1", port)))
            socket.create_server(("", port + 1)).close()
            taken.pop_all()
            return first
        return None

    ports = iter(lambda: random.randrange(20_000, 32_000), None)
    with next(filter(None, map(listening, ports))) as first:
        yield first.getsockname()[1]


@pytest.mark.parametrize("local", [2, 1])
def test_ranks_of_torchrun(local, tmp_path):
    """Ranks start as by torchrun, on one host and as on two, without torch."""
    with torchruns_port() as port:
        started = [
            warm.Popen(
                [sys.executable, "-c", SCRIPT],
                env=environment(
                    RANK=rank, WORLD_SIZE=2, LOCAL_RANK=rank % local, LOCAL_WORLD_SIZE=local,
                    MASTER_ADDR="127.0.0.1", MASTER_PORT=port, TORCHELASTIC_RUN_ID=tmp_path.name,
                ),
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]  # fmt: skip
        said = [process.communicate(timeout=240)[0] for process in started]
    assert json.loads(said[0]) == [[0, 2, 0, 1, 50], [1, 2, 0, 1, 50]]
    assert said[1] == ""


def test_a_port_that_is_taken(tmp_path):
    with torchruns_port() as port, socket.create_server(("", port + 1)):
        names = {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
        done = warm.run(
            [sys.executable, "-c", SCRIPT],
            env=environment(**names, MASTER_ADDR="127.0.0.1", MASTER_PORT=port),
            capture_output=True,
            text=True,
        )
    assert f"cannot listen at ('', {port + 1}) (Address already in use)" in done.stderr


def test_a_lost_rank_of_torchrun_is_an_error_for_the_others(tmp_path):
    """Rank 0 notices when it wants something of it, and says so."""
    started = [
        warm.Popen(
            [sys.executable, "-c", SCRIPT, "dies"],
            env=environment(
                RANK=rank, WORLD_SIZE=2, LOCAL_RANK=rank, LOCAL_WORLD_SIZE=2,
                MASTER_PORT=1, TORCHELASTIC_RUN_ID=tmp_path.name,
            ),
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    said = [process.communicate(timeout=240)[1] for process in started]
    assert [process.returncode for process in started] == [1, 3]
    assert "WorkerError: another rank has ended" in said[0]


@pytest.mark.long
def test_ranks_of_mpiexec():
    """Ranks start as by MPICH's mpiexec; a rank that dies ends the job."""
    mpiexec = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or "mpiexec"
    command = [mpiexec, "-n", "2", sys.executable, "-c", SCRIPT]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=100, check=True
    )
    assert json.loads(done.stdout) == [[0, 2, 0, 1, 50], [1, 2, 0, 1, 50]]
    assert subprocess.run([*command, "dies"], env=environment(), capture_output=True).returncode


def test_ranks_are_asked_for_once(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(UsageError, match="--ranks is 2, and torchrun started 4"):
        launch(2, lambda crew: None)
