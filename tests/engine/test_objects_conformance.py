"""The engine for objects passes the suite, over moto's S3."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

pytest.importorskip("obstore")
pytest.importorskip("moto")
from penstock.budget import Budget
from penstock.engine.object_store import ObjectStore
from penstock.engine.protocol import Engine
from penstock.engine.remote import RemoteEngine
from penstock.engine.request_queue import Aging
from penstock.extent import Files
from penstock.testing import EngineSuite
from penstock.testing.suite import vanished_bytes
from tests.engine.wrappers import Limited, Throttled, Traced
from tests.held import busied
from tests.services import S3, Fault, Proxy, environment, moto
from tests.slices import long_methods

_numbers = itertools.count()


class ObjectSuite(EngineSuite):
    """The suite over objects; what differs is the budget."""

    budget: ClassVar[dict[str, Any]] = {}
    many_runs: ClassVar[int] = 400  # each is a request
    bucket: ClassVar[S3]
    port: ClassVar[int]

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _service(cls) -> Iterator[None]:
        """Has s3:// mean a service of its own."""
        with moto() as port, pytest.MonkeyPatch.context() as patch:
            for name, value in environment(port).items():
                patch.setenv(name, value)
            cls.bucket, cls.port = S3(port, "suite"), port
            yield

    def make(self, contents: list[bytes | None], folder: Path) -> Engine:
        """The engine over objects below a prefix of its own."""
        engine = RemoteEngine(self.put(contents), budget=Budget(**self.budget))
        return self.wrapped(engine)

    @contextmanager
    def held(
        self, contents: list[bytes | None], folder: Path, aging: Aging
    ) -> Iterator[tuple[Engine, Callable[[], None]]]:
        """One request at a time, the first of which is answered late."""
        files = self.put(contents)
        begun, going_on = threading.Event(), threading.Event()

        def rule(method: str, path: str, before: int) -> Fault:
            begun.set()
            going_on.wait(60)
            return None

        with Proxy(self.port, rule) as proxy, pytest.MonkeyPatch.context() as patch:
            for name, value in environment(proxy.port).items():
                patch.setenv(name, value)
            engine = RemoteEngine(files, budget=Budget(requests=1), aging=aging)
            busied(engine)
            begun.wait(60)
            yield engine, going_on.set

    def put(self, contents: list[bytes | None]) -> Files:
        """The table of objects with these contents, below a prefix of their own."""
        prefix = f"run{next(_numbers)}"
        names = [f"part {number % 3}/{number}-ü.bin" for number in range(len(contents))]
        for name, content in zip(names, contents, strict=True):
            if content is not None:
                self.bucket.put(f"{prefix}/{name}", content)
        store = ObjectStore(f"s3://suite/{prefix}")
        there = [name for name, content in zip(names, contents, strict=True) if content is not None]
        listed = store.stat(there)
        states = dict(zip(there, zip(listed.size, listed.mtime_ns, strict=True), strict=True))
        columns = [states.get(name, (vanished_bytes, 0)) for name in names]
        size, version = np.array(columns, np.int64).reshape(-1, 2).T.copy()
        return Files.of(store.root, names, size, version)

    def wrapped(self, engine: RemoteEngine) -> Engine:
        """The engine itself, or what a subclass puts around it."""
        return engine


@long_methods("test_many_files", "test_many_runs", "test_many_tickets")
class TestObjects(ObjectSuite):
    """The suite with the default number of requests in flight."""


@pytest.mark.long
class TestStack(ObjectSuite):
    """One request at a time, at a rate that the long reads of the suite meet, in all wrappers."""

    budget: ClassVar[dict[str, Any]] = {"requests": 1, "bytes_per_s": 500e6}

    def wrapped(self, engine: RemoteEngine) -> Engine:
        """A limit, a rate and a trace."""
        return Limited(Throttled(Traced(engine, []), 4e9, 100_000), 1 << 20)
