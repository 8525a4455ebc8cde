"""Clocks are monotonic, wait long enough, and jump when told to."""

from __future__ import annotations

import pytest

from penstock.clock import Clock, JumpingClock, SystemClock


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
