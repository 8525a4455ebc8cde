"""Worker processes beside what a program does with its children, its limits and its threads."""

from __future__ import annotations

import gc
import itertools
import os
import sys
import tempfile
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import UsageError
from penstock.loader.worker_processes import WorkerProcesses
from tests import warm
from tests.loader.test_workers import await_gone, walk

PROGRAM = """
import os, signal, sys
from penstock.loader.worker_processes import WorkerProcesses
from tests.loader.test_workers import await_gone, walk

{prelude}
workers = WorkerProcesses(lambda number: lambda task: task.ids, 2)
pids = workers.pids
batches = walk(workers, range(16), 4)
first = [next(batches)]
{meanwhile}
print(len(first + list(batches)), len(list(walk(workers, range(16), 4))))
descriptors = len(os.listdir("/proc/self/fd"))
workers.close()
await_gone(pids)
print(descriptors - len(os.listdir("/proc/self/fd")) == 6)
"""
FORK = """
child = os.fork()
if child == 0:
    {ending}
os.waitpid(child, 0)
"""
REAP = """
def reap(*_):
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
signal.signal(signal.SIGCHLD, reap)
"""


def run(prelude: str = "", meanwhile: str = "") -> list[str]:
    script = PROGRAM.format(prelude=textwrap.dedent(prelude), meanwhile=textwrap.dedent(meanwhile))
    done = warm.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        lean=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return str(done.stdout).split()


@pytest.mark.parametrize(
    "ending", ["sys.exit(0)", "raise SystemExit", "workers.close(); sys.exit(0)"]
)
def test_a_forked_child_exits(ending: str) -> None:
    """The parent's workers go on: the epoch has its rest, and the next one is whole."""
    assert run(meanwhile=FORK.format(ending=ending)) == ["16", "16", "True"]


@pytest.mark.parametrize("prelude", ["signal.signal(signal.SIGCHLD, signal.SIG_IGN)", REAP])
def test_a_program_that_takes_the_ends_of_children(prelude: str) -> None:
    """`close` ends all workers and gives back their descriptors, without an error."""
    assert run(prelude) == ["16", "16", "True"]


def test_a_worker_that_ends_where_nobody_learns_how() -> None:
    """Its exit code is taken by the program: the error says so."""
    meanwhile = """
    os.kill(pids[0], signal.SIGKILL)
    try:
        list(batches)
    except Exception as error:
        assert "SIGCHLD" in str(error), error
    workers = WorkerProcesses(lambda number: lambda task: task.ids, 2)
    pids = workers.pids
    batches = walk(workers, range(15), 4)
    """
    prelude = "signal.signal(signal.SIGCHLD, signal.SIG_IGN)"
    assert run(prelude, meanwhile) == ["16", "16", "True"]


class Waiting:
    """Fetch that never ends."""

    def __call__(self, task: Any) -> Any:
        threading.Event().wait()


def test_closed_while_another_thread_waits_for_a_result() -> None:
    """It gets the error of closed workers, and no descriptor is used after it was closed."""
    workers = WorkerProcesses(lambda number: Waiting(), 2)
    pids, errors = workers.pids, []
    ticket = workers.submit(1)

    def wait() -> None:
        try:
            workers.result(ticket)
        except UsageError as error:
            errors.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    while workers._lock.acquire(blocking=False):  # until the thread waits, with its turn
        workers._lock.release()
    workers.close()
    thread.join(60)
    assert errors == ["the workers were closed: begin another epoch"]
    await_gone(pids)


def make_batch(number: int) -> Any:
    return lambda task: np.full(1000, task.ids)


def count_slots() -> int:
    """Count the pieces of memory that this process shares with workers."""
    gc.collect()
    return Path("/proc/self/maps").read_text().count("memfd:penstock ")


@pytest.mark.parametrize("taken", [1, 2, 5])
def test_interrupted_epochs_leave_few_slots(taken: int) -> None:
    """Slots that no task needs any more are given up, also those of an epoch that was kept."""
    before = count_slots()
    workers = WorkerProcesses(make_batch, 2)
    kept = list(walk(workers, range(40), 4))
    assert count_slots() >= before + 8
    del kept
    for _ in range(60):
        for batch in itertools.islice(walk(workers, range(20), 4), taken):
            del batch
    assert count_slots() <= before + 2 * (4 + 2)
    last = [int(batch[0]) for batch in walk(workers, range(20), 4)]
    assert last == list(range(20))
    workers.close()


FULL = """
import os, resource, sys
import numpy as np
import penstock
from penstock.loader.worker_processes import WorkerProcesses

workers = WorkerProcesses(lambda number: lambda size: np.zeros(size), 1)
assert len(workers.result(workers.submit(9))[0]) == 9
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
taken = []
try:
    while True:
        taken.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    pass
for spare in taken[:int(sys.argv[1])]:
    os.close(spare)
assert len(workers.result(workers.submit(9))[0]) == 9  # in memory that is there
try:
    print(len(workers.result(workers.submit(9999))[0]))
except penstock.errors.LimitError as error:
    print(error)
"""


@pytest.mark.parametrize("spare", [0, 1, 2])
def test_the_limit_of_descriptors_is_named(spare: int) -> None:
    """A larger batch takes two descriptors for a moment; without these an error names the limit."""
    command = [sys.executable, "-c", FULL, str(spare)]
    done = warm.run(command, capture_output=True, text=True, timeout=120, check=False, lean=True)
    assert done.returncode == 0, done.stderr
    assert str(done.stdout).strip() == "9999" if spare == 2 else "(`ulimit -n`)" in str(done.stdout)


LIMITED = """
import os, resource, sys
import numpy as np
import penstock
path = sys.argv[1]
np.save(path, np.arange(8))
data = penstock.open(path, index="memory")
list(penstock.Loader(data, 4))  # all is imported
penstock.open(os.path.dirname(path), index="memory")
os.setgroups([])
os.setresgid(54321, 54321, 54321)
os.setresuid(54321, 54321, 54321)
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
for begin in (lambda: list(penstock.Loader(data, 4)), lambda: penstock.open(os.path.dirname(path))):
    try:
        begin()
    except penstock.errors.LimitError as error:
        print(str(error).partition(":")[0])
"""


@pytest.mark.skipif(os.getuid() != 0, reason="the limit is of users")
def test_the_limit_of_processes_is_named() -> None:
    """Where the system refuses the core its first thread, the error names the limit."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)  # for the user that the limit is of
        done = warm.run(
            [sys.executable, "-c", LIMITED, os.path.join(folder, "rows.npy")],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            lean=True,
        )
    lines = str(done.stdout).splitlines()
    assert lines == [
        "a thread that reads files did not start",
        "a thread that lists files did not start",
    ], done.stderr
