"""Every engine and every wrapper passes the suite, ten lines each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.engine.protocol import Engine
from penstock.engine.request_queue import Aging
from penstock.testing import EngineSuite
from tests.engine.memory import MemoryEngine
from tests.engine.wrappers import Faulty, Limited, Throttled, Traced, seeded_holds
from tests.held import busied
from tests.jumping_clock import JumpingClock

Held = tuple[Engine, Callable[[], None]]


def idle() -> None:
    """Do nothing: waiting tickets go on when the engine is polled."""


class TestMemoryEngine(EngineSuite):
    """Byte strings."""

    def make(self, contents: list[bytes | None], folder: Path) -> Engine:
        """The contents themselves."""
        return MemoryEngine(contents)

    @contextmanager
    def held(self, contents: list[bytes | None], folder: Path, aging: Aging) -> Iterator[Held]:
        """Yield an engine that reads when it is polled."""
        yield MemoryEngine(contents, aging=aging), idle


@pytest.mark.long
class TestLimited(EngineSuite):
    """Room for a few small tickets, or one large one."""

    def make(self, contents: list[bytes | None], folder: Path) -> Engine:
        """Both limits are reached."""
        return Limited(MemoryEngine(contents), 10_000, inflight_runs_max=5)

    @contextmanager
    def held(self, contents: list[bytes | None], folder: Path, aging: Aging) -> Iterator[Held]:
        """Room for one ticket."""
        yield busied(Limited(MemoryEngine(contents), 1, aging=aging)), idle


@pytest.mark.long
class TestThrottled(EngineSuite):
    """A slow disk whose time is free."""

    def make(self, contents: list[bytes | None], folder: Path) -> Engine:
        """10 MB/s and 5 ms."""
        return Throttled(MemoryEngine(contents), 1e7, 5_000_000, JumpingClock())

    @contextmanager
    def held(self, contents: list[bytes | None], folder: Path, aging: Aging) -> Iterator[Held]:
        """One byte takes a second."""
        slow = Throttled(MemoryEngine(contents), 1, 0, JumpingClock(), aging=aging)
        yield busied(slow), idle


@pytest.mark.long
class TestThrottledBySystemClock(TestThrottled):
    """A fast disk in real time."""

    def make(self, contents: list[bytes | None], folder: Path) -> Engine:
        """4 GB/s and 100 us."""
        return Throttled(MemoryEngine(contents), 4e9, 100_000)


@pytest.mark.long
class TestTraced(EngineSuite):
    """Traced into a list."""

    def make(self, contents: list[bytes | None], folder: Path) -> Engine:
        """By the system clock."""
        return Traced(MemoryEngine(contents), [])

    @contextmanager
    def held(self, contents: list[bytes | None], folder: Path, aging: Aging) -> Iterator[Held]:
        """Yield an engine that passes everything on."""
        yield Traced(MemoryEngine(contents, aging=aging), []), idle


@pytest.mark.long
class TestFaultyWithoutFaults(EngineSuite):
    """No faults, but reports out of order."""

    def make(self, contents: list[bytes | None], folder: Path) -> Engine:
        """Held back by up to three polls."""
        return Faulty(MemoryEngine(contents), hold=seeded_holds(1, 3))

    @contextmanager
    def held(self, contents: list[bytes | None], folder: Path, aging: Aging) -> Iterator[Held]:
        """Yield an engine that passes everything on."""
        yield Faulty(MemoryEngine(contents, aging=aging)), idle


class TestStack(EngineSuite):
    """Wrappers in wrappers."""

    def make(self, contents: list[bytes | None], folder: Path) -> Engine:
        """The limit outside, the trace inside."""
        clock = JumpingClock()
        traced = Traced(MemoryEngine(contents), [], clock)
        return Limited(Throttled(traced, 1e9, 1000, clock), 20_000)

    @contextmanager
    def held(self, contents: list[bytes | None], folder: Path, aging: Aging) -> Iterator[Held]:
        """Room for one ticket."""
        clock = JumpingClock()
        traced = Traced(MemoryEngine(contents), [], clock)
        yield busied(Limited(Throttled(traced, 1, 0, clock), 1, aging=aging)), idle


@pytest.mark.long
class TestStackInsideOut(EngineSuite):
    """The same and more, the other way round."""

    def make(self, contents: list[bytes | None], folder: Path) -> Engine:
        """The limit inside, the trace outside."""
        clock = JumpingClock()
        faulty = Faulty(Limited(MemoryEngine(contents), 20_000), hold=seeded_holds(2, 2))
        return Traced(Throttled(Limited(faulty, 30_000), 1e9, 1000, clock), [], clock)

    @contextmanager
    def held(self, contents: list[bytes | None], folder: Path, aging: Aging) -> Iterator[Held]:
        """One byte takes a second, in a room for all."""
        clock = JumpingClock()
        limited = Limited(Faulty(MemoryEngine(contents)), 1 << 20)
        slow = Throttled(limited, 1, 0, clock, aging=aging)
        yield busied(Traced(slow, [], clock)), idle
