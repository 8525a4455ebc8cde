"""Workers: tasks in, results out, in threads and in processes that never outlive their use."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import limits
from penstock.budget import Budget
from penstock.errors import ForkError, UsageError, WorkerError
from penstock.loader.sources import WorkerSource
from penstock.loader.worker_processes import WorkerProcesses
from penstock.loader.workers import BatchTask, InlineWorkers, Workers, WorkerThreads
from penstock.meter import Meter
from tests import warm
from tests.shared_memory import named_memory
from tests.slices import first

KINDS: dict[str, Callable[..., Workers]] = {
    "inline": lambda opening: InlineWorkers(opening),
    "threads": lambda opening: WorkerThreads(opening, 2),
    "fork": lambda opening: WorkerProcesses(
        opening, 2, context=multiprocessing.get_context("fork")
    ),
    "spawn": lambda opening: WorkerProcesses(
        opening, 1, context=multiprocessing.get_context("spawn")
    ),
}


class Odd(Exception):
    """An exception that cannot be made from one string."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


class Squares:
    """A fetch function's opening that can be pickled: squares, and what goes wrong on request."""

    def __call__(self, number: int) -> Callable[[Any], Any]:
        self.number = number
        return self.fetch

    def fetch(self, task: Any) -> Any:
        task = task.ids if isinstance(task, BatchTask) else task
        if task == "lookup":
            return {}["no such key"]
        if task == "odd":
            raise Odd(1, 2)
        if task == "stop":
            return next(iter(()))
        if task == "faults":
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            text = b"x" * (40 << 20)
            assert len(text) == 40 << 20
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        if task == "leave":
            sys.exit(3)
        if task == "lambda":
            return lambda: None
        if task == "exit":
            os._exit(7)
        if task == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if task == "forever":
            threading.Event().wait()
        return {"square": np.full((3, 1000), task * task), "text": "x" * task, "pid": os.getpid()}


class Unopened:
    """An opening that fails."""

    def __call__(self, number: int) -> Callable[[Any], Any]:
        raise LookupError(f"worker {number} has no data")


@pytest.fixture(params=first(3, KINDS))
def workers(request: pytest.FixtureRequest) -> Iterator[Workers]:
    made = KINDS[request.param](Squares())
    yield made
    made.close()


@pytest.fixture
def processes() -> Iterator[WorkerProcesses]:
    made = WorkerProcesses(Squares(), 2)
    yield made
    made.close()


def gone(pid: int) -> bool:
    """True if a process has ended; one that nobody has reaped yet has ended too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def await_gone(pids: list[int]) -> None:
    """Wait until these processes have ended."""
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        multiprocessing.connection.wait([descriptor], 20)
        os.close(descriptor)
        assert gone(pid), f"process {pid} lives on"


def walk(workers: Workers, tasks: Iterable[Any], ahead: int) -> Iterator[Any]:
    """The batches of a source of these tasks."""
    batches = (BatchTask(task, 0, step, 0, 0, 0) for step, task in enumerate(tasks))
    options: Any = {"ahead": ahead, "timeout_s": None, "batched": False}
    source = WorkerSource(batches, workers, Meter(), Budget(), **options)
    try:
        while (ready := source.take(0, lambda: None)) is not None:
            yield ready[0]
    finally:
        source.close()


def test_results_in_order(workers: Workers) -> None:
    """Results come in the order of the tasks, however far ahead they are asked for."""
    for ahead in (0, 1, 3, 50):
        results = list(walk(workers, range(20), ahead))
        assert [int(r["square"][2, 999]) for r in results] == [n * n for n in range(20)]
        assert [len(r["text"]) for r in results] == list(range(20))
        assert all(r["square"].shape == (3, 1000) for r in results)


def test_two_walks_share_workers(workers: Workers) -> None:
    """Two iterators over the same workers do not disturb each other."""
    first, second = walk(workers, range(9), 3), walk(workers, range(10, 19), 2)
    for n, (a, b) in enumerate(zip(first, second, strict=True)):
        assert (len(a["text"]), len(b["text"])) == (n, 10 + n)


def test_abandoned_walk(workers: Workers) -> None:
    """A walk that is given up leaves nothing that the next one would see."""
    for _ in range(5):
        walked = walk(workers, range(100), 8)
        next(walked)
        del walked
        assert [len(r["text"]) for r in walk(workers, [3, 4], 2)] == [3, 4]


def test_exceptions(workers: Workers) -> None:
    """An exception keeps its type and tells where it was raised; the workers go on."""
    for _ in range(2):
        with pytest.raises(KeyError, match="no such key"):
            workers.result(workers.submit("lookup"))
    assert len(workers.result(workers.submit(5))[0]["text"]) == 5


def test_stop_iteration(workers: Workers) -> None:
    """A StopIteration of the user's code does not end a walk as if it were complete."""
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(walk(workers, ["stop", 3], 2))


class Leaving:
    """An opening that ends its thread."""

    def __call__(self, number: int) -> Callable[[Any], Any]:
        sys.exit(4)


def test_exit_in_a_thread() -> None:
    """A SystemExit in a worker thread reaches the user, who would wait for ever; others go on."""
    threads = WorkerThreads(Squares(), 1)
    with pytest.raises(SystemExit):
        threads.result(threads.submit("leave"), 10)
    assert len(threads.result(threads.submit(5), 10)[0]["text"]) == 5
    threads.close()
    threads = WorkerThreads(Leaving(), 1)
    with pytest.raises(SystemExit):
        threads.result(threads.submit(5), 10)
    threads.close()


def test_opening_fails() -> None:
    """A failure while a worker opens is raised by its tasks, with its own type."""
    for make in KINDS.values():
        made = make(Unopened())
        with pytest.raises(LookupError, match=r"worker \d has no data"):
            made.result(made.submit(1))
        made.close()


@pytest.mark.parametrize(
    ("task", "message"),
    [("lookup", 'return {}["no such key"]'), ("odd", "1 and 2"), ("lambda", "pickle")],
)
def test_exceptions_of_processes(processes: WorkerProcesses, task: str, message: str) -> None:
    """The message holds the worker's traceback, also where type or result cannot be pickled."""
    with pytest.raises(Exception, match="in DataLoader worker process") as caught:
        processes.result(processes.submit(task))
    assert message in str(caught.value)
    assert "\\n" not in str(caught.value)  # a KeyError shows no repr
    assert len(processes.result(processes.submit(5))[0]["text"]) == 5


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="no glibc")
def test_a_worker_uses_freed_memory_again() -> None:
    """Memory of a batch's size is touched once, and not mapped anew by each batch."""
    worker = WorkerProcesses(Squares(), 1)
    faults = [worker.result(worker.submit("faults"))[0] for _ in range(4)]
    worker.close()
    assert max(faults[2:]) < 200, faults


@pytest.mark.parametrize(("task", "cause"), [("kill", "SIGKILL"), ("exit", "exit code 7")])
def test_worker_ends(processes: WorkerProcesses, task: str, cause: str) -> None:
    """A worker that ends by itself is an error within seconds, naming it; none lives on."""
    pids = processes.pids
    started_s = time.monotonic()
    with pytest.raises(WorkerError, match="exited unexpectedly") as caught:
        processes.result(processes.submit(task))
    assert time.monotonic() - started_s < SOON_S
    assert cause in str(caught.value)
    assert any(str(pid) in str(caught.value) for pid in pids)
    await_gone(pids)
    with pytest.raises(UsageError, match="closed"):
        processes.submit(1)


def test_idle_worker_is_killed(processes: WorkerProcesses) -> None:
    """The end of a worker that had nothing to do is noticed at the next result."""
    os.kill(processes.pids[0], signal.SIGKILL)
    with pytest.raises(WorkerError, match="exited unexpectedly"):
        list(walk(processes, [1] * 100, 4))


def test_timeout(processes: WorkerProcesses) -> None:
    """A result that does not come in time is an error, and the worker is ended."""
    pids = processes.pids
    with pytest.raises(WorkerError, match="timed out after 0.2 seconds"):
        processes.result(processes.submit("forever"), 0.2)
    await_gone(pids)


def test_close_ends_a_busy_worker(processes: WorkerProcesses) -> None:
    """Closing does not wait for a task that never ends."""
    processes.submit("forever")
    pids, started_s = processes.pids, time.monotonic()
    processes.close()
    processes.close()
    assert time.monotonic() - started_s < SOON_S
    await_gone(pids)


def test_collected_with_their_owner() -> None:
    """Workers end with the object, without a call."""
    processes = WorkerProcesses(Squares(), 2)
    processes.result(processes.submit(2))
    pids = processes.pids
    del processes
    await_gone(pids)


def test_memory_is_recycled(processes: WorkerProcesses) -> None:
    """Results lie in shared memory, which is used again once they are gone, and not before."""
    descriptors = len(os.listdir("/proc/self/fd"))
    kept = list(walk(processes, range(100), 4))
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert all(len(w._slots) < limits.lent_slots_max + 5 for w in processes._workers)
    for _ in walk(processes, [7] * 200, 4):
        pass
    assert [int(r["square"][0, 0]) for r in kept] == [n * n for n in range(100)]
    kept[0]["square"][:] = 1  # the user's own memory, writable
    slots = [worker._slots for worker in processes._workers]
    del kept
    gc.collect()
    for _ in walk(processes, [7] * 200, 4):
        pass
    assert [worker._slots for worker in processes._workers] == slots
    processes.close()
    del processes


def test_results_outlive_workers() -> None:
    """A result stays valid after its worker has been closed."""
    processes = WorkerProcesses(Squares(), 1)
    result, _ = processes.result(processes.submit(6))
    processes.close()
    del processes
    assert (result["square"] == 36).all()


def test_nothing_is_left(processes: WorkerProcesses) -> None:
    """Closing gives back every descriptor; the memory that was shared had no name."""
    list(walk(processes, range(10), 4))
    processes.close()
    gc.collect()
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        made = WorkerProcesses(Squares(), 2)
        list(walk(made, range(10), 4))
        for pid in [os.getpid(), *made.pids]:
            assert not named_memory(pid)
        made.close()
        del made
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_fork_after_use(processes: WorkerProcesses) -> None:
    """A forked child may not use its parent's workers, and does not end them by exiting."""
    processes.result(processes.submit(1))
    reader, writer = multiprocessing.Pipe()
    child = os.fork()
    if child == 0:
        try:
            processes.submit(1)
            writer.send("accepted")
        except ForkError:
            writer.send("refused")
        finally:
            processes.close()
            os._exit(0)
    os.waitpid(child, 0)
    assert reader.recv() == "refused"
    assert len(processes.result(processes.submit(3))[0]["text"]) == 3


SOON_S = 60.0
"""A wait that is short on an idle machine ends by then on any; one for ever does not."""

PROGRAM = """
import os, signal, sys, threading
from penstock.loader.worker_processes import WorkerProcesses
from tests.loader.test_workers import walk

def opening(number):
    def fetch(task):
        if task.ids == "forever":
            threading.Event().wait()
        return task.ids
    return fetch

workers = WorkerProcesses(opening, 2)
walk = walk(workers, [1, 2] + ["forever"] * 8, 4)
next(walk)
print(*workers.pids, flush=True)
{ending}
"""


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("", 0),
        ("sys.exit(3)", 3),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os._exit(4)", 4),
        ("raise KeyboardInterrupt", -signal.SIGINT),
    ],
)
def test_parent_ends(ending: str, code: int) -> None:
    """However the parent ends, with an iterator alive and workers busy, no worker outlives it."""
    script = PROGRAM.format(ending=textwrap.dedent(ending))
    started_s = time.monotonic()
    done = warm.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        lean=True,
    )
    assert done.returncode == code, done.stderr
    assert time.monotonic() - started_s < SOON_S
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2
    await_gone(pids)


def sleeping(pid: int) -> bool:
    """True if the main thread of a process waits in poll."""
    return "poll" in Path(f"/proc/{pid}/wchan").read_text()


def test_interrupt_while_waiting() -> None:
    """Ctrl-C reaches a parent that waits for a batch; the workers print nothing and end."""
    script = PROGRAM.format(ending="print('waiting', flush=True)\nlist(walk)")
    process = warm.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        lean=True,
    )
    assert process.stdout is not None
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert process.stdout.readline() == "waiting\n"
    # Python loses an interrupt that comes while a finalizer runs: let it reach its wait first.
    deadline = time.monotonic() + 120
    while not sleeping(process.pid) and time.monotonic() < deadline:
        os.sched_yield()
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers too
    _, errors = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGINT
    assert errors.count("Traceback") == 1
    await_gone(pids)
