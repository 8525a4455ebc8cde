"""Clocks are monotonic, wait long enough, and jump when told to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.clock import Clock, SystemClock
from penstock_sim.event_queue import EventQueue
from tests.jumping_clock import JumpingClock


@pytest.mark.parametrize("clock", [SystemClock(), JumpingClock()], ids=["system", "jumping"])
def test_wait_reaches_the_deadline(clock: Clock) -> None:
    """After waiting for a time the clock shows that time or a later one, in whole nanoseconds."""
    deadline_ns = clock.now_ns() + 1_000_000
    clock.wait_until_ns(deadline_ns)
    assert clock.now_ns() >= deadline_ns
    assert isinstance(clock.now_ns(), int)


@pytest.mark.parametrize("clock", [SystemClock(), JumpingClock(5)], ids=["system", "jumping"])
def test_time_does_not_go_back(clock: Clock) -> None:
    """Waiting for the past returns at once and leaves the time as it is."""
    start_ns = clock.now_ns()
    clock.wait_until_ns(start_ns - 5)
    assert start_ns <= clock.now_ns() < start_ns + 1_000_000_000


def test_jumping_clock_moves_only_when_somebody_waits() -> None:
    """A jumping clock arrives exactly where it was told to, a year ahead in no time."""
    clock = JumpingClock(start_ns=7)
    assert [clock.now_ns(), clock.now_ns()] == [7, 7]
    year_ns = 365 * 86_400 * 1_000_000_000
    clock.wait_until_ns(year_ns)
    assert clock.now_ns() == year_ns


@given(st.lists(st.integers(0, 5), max_size=30))
def test_events_come_in_order(times: list[int]) -> None:
    """The earliest first; of equal times the first added; the time is that of the call."""
    queue, log = EventQueue(), []
    for number, at_ns in enumerate(times):
        queue.add(at_ns, lambda number=number: log.append((queue.now_ns, number)))
    while queue.step():
        pass
    assert log == sorted((at_ns, number) for number, at_ns in enumerate(times))
    assert queue.made == len(times)


def test_what_is_late_comes_now() -> None:
    """A call for a time that is over is made at once, after those that wait for now."""
    queue, log = EventQueue(), []

    def first() -> None:
        queue.add(3, lambda: log.append(("late", queue.now_ns)))
        queue.add_in(2.9, lambda: log.append(("in", queue.now_ns)))

    queue.add(10, first)
    queue.add(10, lambda: log.append(("second", queue.now_ns)))
    while queue.step():
        pass
    assert log == [("second", 10), ("late", 10), ("in", 12)]
