"""The native engine passes the suite with each backend, on disk and in memory, and wrapped."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from penstock.budget import Budget
from penstock.engine.native import NativeEngine
from penstock.engine.protocol import Engine
from penstock.engine.request_queue import Aging
from penstock.testing import EngineSuite, write_files
from tests import held
from tests.engine.wrappers import Limited, Throttled, Traced

SHARED_MEMORY = Path("/dev/shm")


class NativeSuite(EngineSuite):
    """The suite over files; what differs is the budget, and where the files are."""

    budget: ClassVar[dict[str, Any]] = {}
    keep_open_max: int | None = None
    parent: Path | None = None  # of the folders; None: the disk

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _place(cls) -> Iterator[None]:
        """Has the folders made below `parent`."""
        before = tempfile.tempdir
        if cls.parent is not None:
            if not os.access(cls.parent, os.W_OK):
                pytest.skip(f"{cls.parent} is not there")
            tempfile.tempdir = str(cls.parent)
        yield
        tempfile.tempdir = before

    def make(self, contents: list[bytes | None], folder: Path) -> Engine:
        """The engine alone; its choice is what the budget requires."""
        budget = Budget(**self.budget)
        engine = NativeEngine(
            write_files(folder, contents), budget=budget, keep_open_max=self.keep_open_max
        )
        choice = engine.choice
        assert (choice.backend == "io_uring") == (budget.io_uring == "required")
        assert (choice.backend == "mmap") == (budget.mmap == "required")
        assert choice.direct == (budget.direct == "required")
        return self.wrapped(engine)

    def held(
        self, contents: list[bytes | None], folder: Path, aging: Aging
    ) -> AbstractContextManager[tuple[Engine, Callable[[], None]]]:
        """One thread: rings and maps take from the same queue, several at a time."""
        return held.native(write_files(folder, contents), aging)

    def wrapped(self, engine: NativeEngine) -> Engine:
        """The engine itself, or what a subclass puts around it."""
        return engine


RING: dict[str, Any] = {"io_uring": "required", "mmap": "off", "direct": "off"}
POOL: dict[str, Any] = {"io_uring": "off", "mmap": "off", "direct": "off"}
MAP: dict[str, Any] = {"io_uring": "off", "mmap": "required", "direct": "off"}


@pytest.mark.long
class TestRing(NativeSuite):
    """io_uring, one thread."""

    budget = RING | {"threads": 1}


@pytest.mark.long
class TestRingThreads(NativeSuite):
    """io_uring, four threads, each with its ring."""

    budget = RING | {"threads": 4}


@pytest.mark.long
class TestRingDirect(NativeSuite):
    """io_uring past the page cache."""

    budget = RING | {"threads": 1, "direct": "required"}


class TestRingDirectThreads(NativeSuite):
    """io_uring past the page cache from four threads, opening a file for each read."""

    budget = RING | {"threads": 4, "direct": "required"}
    keep_open_max = 0


@pytest.mark.long
class TestRingManyFiles(NativeSuite):
    """io_uring with a file opened for each read."""

    budget = RING | {"threads": 1}
    keep_open_max = 0


@pytest.mark.long
class TestRingInMemory(NativeSuite):
    """io_uring on a file system that hands each read to a kernel worker."""

    budget = RING | {"threads": 1}
    parent = SHARED_MEMORY


@pytest.mark.long
class TestPool(NativeSuite):
    """pread, one thread."""

    budget = POOL | {"threads": 1}


@pytest.mark.long
class TestPoolThreads(NativeSuite):
    """pread, four threads."""

    budget = POOL | {"threads": 4}


@pytest.mark.long
class TestPoolDirect(NativeSuite):
    """pread past the page cache."""

    budget = POOL | {"threads": 1, "direct": "required"}


@pytest.mark.long
class TestPoolManyFiles(NativeSuite):
    """pread from four threads, with a file opened for each read."""

    budget = POOL | {"threads": 4}
    keep_open_max = 0


@pytest.mark.long
class TestPoolInMemory(NativeSuite):
    """pread from tmpfs."""

    budget = POOL | {"threads": 4}
    parent = SHARED_MEMORY


class TestMap(NativeSuite):
    """Copies from maps, by one thread and the one that polls."""

    budget = MAP | {"threads": 1}


@pytest.mark.long
class TestMapThreads(NativeSuite):
    """Copies from maps, by four threads and the one that polls."""

    budget = MAP | {"threads": 4}


@pytest.mark.long
class TestMapManyFiles(NativeSuite):
    """Copies from files that are opened and mapped for each read."""

    budget = MAP | {"threads": 4}
    keep_open_max = 0


@pytest.mark.long
class TestMapInMemory(NativeSuite):
    """Copies from maps of tmpfs."""

    budget = MAP | {"threads": 1}
    parent = SHARED_MEMORY


@pytest.mark.long
class TestAtARate(NativeSuite):
    """A rate that the long reads of the suite meet."""

    budget = POOL | {"threads": 2, "bytes_per_s": 500e6}


class TestStack(NativeSuite):
    """All wrappers around a ring."""

    budget = RING | {"threads": 1}

    def wrapped(self, engine: NativeEngine) -> Engine:
        """A limit, a rate and a trace."""
        return Limited(Throttled(Traced(engine, []), 4e9, 100_000), 1 << 20)


@pytest.mark.long
class TestStackInsideOut(NativeSuite):
    """All wrappers around a map, the other way round."""

    budget = MAP | {"threads": 2}

    def wrapped(self, engine: NativeEngine) -> Engine:
        """A trace, a rate and a limit."""
        return Traced(Throttled(Limited(engine, 1 << 20, 5), 4e9, 100_000), [])
