"""Threads that the system refuses: every part of the package says so by name, and works again."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.checkpoint import Checkpoints
from penstock.engine import threads
from penstock.engine.host import measure_copying
from penstock.engine.store import map_in_threads
from penstock.engine.threads import ThreadPool, WakeUp, join_threads
from penstock.errors import LimitError
from tests.interrupts import InterruptAt


@contextmanager
def refusing() -> Iterator[None]:
    """No thread of Python gets the stack that it asks for."""
    before = threading.stack_size(1 << 46)
    try:
        yield
    finally:
        threading.stack_size(before)


def open_samples(path: Path) -> Path:
    for row in range(16):
        (path / f"{row:02}.bin").write_bytes(bytes([row]) * 8)
    return path


def walk(path: Path, **options: Any) -> int:
    data = penstock.open(path, index="memory", mirrors=options.pop("mirrors", ()))
    return len(list(penstock.Loader(data, 4, rank=0, world_size=1, **options)))


def save(path: Path) -> bool:
    with Checkpoints(path / "checkpoints") as checkpoints:
        return checkpoints.save(1, {"weights": np.arange(10.0)})


USES: dict[str, Callable[[Path], Any]] = {
    "pool": lambda path: list(ThreadPool(2, "pool").map(abs, range(3))),
    "files": lambda path: map_in_threads(abs, 3),
    "copies": lambda path: measure_copying(2),
    "decode": lambda path: walk(path, decode=len),
    "cache": lambda path: walk(path, cache=penstock.Cache(ram_bytes=1 << 20)),
    "mirrors": lambda path: walk(path, mirrors=[path]),
    "save": save,
}


@pytest.mark.parametrize("use", USES)
def test_refused_threads_are_named(use: str, tmp_path: Path) -> None:
    path = open_samples(tmp_path)
    before = {*threading.enumerate()}
    with refusing(), pytest.raises(LimitError, match=r"can't start new thread: .*`ulimit -u`"):
        USES[use](path)
    assert not {*threading.enumerate()} - before
    USES[use](path)


class LateThread(threading.Thread):
    """A thread that has a number and then, as on a busy machine, takes a while to begin."""

    def __init__(self, gate: threading.Lock, target: Callable[[], None]) -> None:
        super().__init__(target=target, daemon=True)
        self._gate = gate

    def _set_native_id(self) -> None:
        self._gate.acquire(timeout=0.003)
        super()._set_native_id()  # type: ignore[misc]


def test_an_interrupt_while_threads_start_stops_them_and_stays_an_interrupt() -> None:
    """Wherever it comes, threads that were begun are told to stop before it is raised."""
    place, interrupted = 0, True
    while interrupted:
        gate, is_stopped, worked = threading.Lock(), threading.Event(), []
        gate.acquire()

        def work(is_stopped: threading.Event = is_stopped, worked: list[int] = worked) -> None:
            if not is_stopped.is_set():
                worked.append(1)
            is_stopped.wait()

        late = [LateThread(gate, work) for _ in range(2)]

        def stop(late: list[LateThread] = late, stopped: threading.Event = is_stopped) -> None:
            stopped.set()
            join_threads(late)

        tracer = InterruptAt(place, (threads, threading))
        sys.settrace(tracer)
        try:
            threads.start_threads(late, stop)
            interrupted = False
        except KeyboardInterrupt:
            sys.settrace(None)
            assert is_stopped.is_set() or not worked, f"place {place}"
        finally:
            sys.settrace(None)
            stop()
        assert interrupted or len(worked) == 2
        assert not any(thread.is_alive() for thread in late)
        place += 1
    assert place > 30


def test_every_pool_has_the_named_error() -> None:
    source = Path(penstock.__file__).parent
    bare = re.compile(r"\bThreadPoolExecutor\(\w")
    found = [path.name for path in source.rglob("*.py") if bare.search(path.read_text())]
    assert not found


def test_one_wake_up_wakes_all_who_wait_for_the_same() -> None:
    news, is_so = WakeUp(), False
    results: list[bool] = []

    def wait() -> None:
        results.append(news.wait_until(lambda: is_so))

    waiting = [threading.Thread(target=wait) for _ in range(3)]
    for thread in waiting:
        thread.start()
    assert not news.wait_until(lambda: is_so, 0.001)
    is_so = True
    news.send()
    for thread in waiting:
        thread.join()
    assert results == [True] * 3
