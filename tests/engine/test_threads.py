"""Threads that the system refuses: every part of the package says so by name, and works again."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.checkpoint import Checkpoints
from penstock.engine.probe import measure_copying
from penstock.engine.store import map_in_threads
from penstock.engine.threads import ThreadPool
from penstock.errors import LimitError


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
    threads = threading.active_count()
    with refusing(), pytest.raises(LimitError, match=r"can't start new thread: .*`ulimit -u`"):
        USES[use](path)
    assert threading.active_count() == threads
    USES[use](path)


def test_every_pool_has_the_named_error() -> None:
    source = Path(penstock.__file__).parent
    bare = re.compile(r"\bThreadPoolExecutor\(\w")
    found = [path.name for path in source.rglob("*.py") if bare.search(path.read_text())]
    assert not found
