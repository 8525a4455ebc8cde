"""The queue of events: in the order of their times, and of adding where these are equal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.event_queue import EventQueue


@given(st.lists(st.integers(0, 5), max_size=30))
def test_calls_come_in_order(times: list[int]) -> None:
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
