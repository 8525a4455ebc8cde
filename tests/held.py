"""Engines that are busy, for the suite of engines: what is submitted to them waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock.budget import Budget
from penstock.engine.native import NativeEngine
from penstock.engine.protocol import Engine
from penstock.engine.request_queue import Aging
from penstock.extent import Files
from penstock.testing import EngineRead, finish


def busied(engine: Engine) -> Engine:
    """The engine with a ticket of one byte under way."""
    reading = EngineRead([b"1"], [[(0, 0, 1)]])
    engine.submit(reading.requests, reading.buffers, "demand")
    return engine


@contextmanager
def native(files: Files, aging: Aging) -> Iterator[tuple[NativeEngine, Callable[[], None]]]:
    """A thread that has read a byte more than its rate allows for days."""
    slow = Budget(pread="required", threads=1, bytes_per_s=1e-6)
    engine = NativeEngine(files, budget=slow, aging=aging)
    reading = EngineRead([b"1"], [[(0, 0, 1)]])
    finish(engine, [engine.submit(reading.requests, reading.buffers)])
    yield engine, lambda: engine.adopt(Budget(pread="required", threads=1))
