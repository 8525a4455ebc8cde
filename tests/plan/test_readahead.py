"""The session: what is asked for when, and what may be handed over."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock import limits
from penstock.order.order import Order
from penstock.plan.readahead import Session
from penstock.plan.steps import Steps
from tests.plan.test_steps import fixed_index

RECORD = 1000


@given(
    count=st.integers(1, 300),
    batch=st.integers(1, 20),
    first=st.integers(0, 5),
    readahead=st.integers(1, 100_000),
    ahead=st.integers(1, limits.readahead_steps_max),
    gap=st.sampled_from([None, 0, 5000]),
    shuffle=st.randoms(use_true_random=False),
)
def test_any_sequence_of_completions(
    count: int,
    batch: int,
    first: int,
    readahead: int,
    ahead: int,
    gap: int | None,
    shuffle: object,
) -> None:
    """Whatever order reads end in, steps are handed over in order, each once, within the budget."""
    steps = Steps(count, batch, 1)
    first = min(first, len(steps))
    session = Session(
        fixed_index(count, RECORD),
        Order(count, 7),
        steps,
        0,
        first_step=first,
        readahead_bytes=readahead,
        readahead_steps=ahead,
        gap_bytes=gap,
    )
    outstanding: list[int] = []
    held = 0
    handed: list[int] = []
    while not session.finished:
        for group in session.admit():
            assert held == 0 or held + group.bytes <= readahead
            held += group.bytes
            outstanding += [step.step for step in group.steps]
        assert session.head.step == len(handed) + first
        if session.head.step < session.reached:
            step = session.hand_over()
            assert step.step not in outstanding
            held -= step.layout.bytes
            handed.append(step.step)
        else:
            shuffle.shuffle(outstanding)  # type: ignore[attr-defined]
            session.record_arrival(outstanding.pop())
    assert handed == list(range(first, len(steps)))
    assert held == 0


def test_few_steps_before_the_first_batch() -> None:
    """The first admission is small, so that the first batch does not wait for memory of others."""
    session = Session(fixed_index(10_000, RECORD), Order(10_000, 1), Steps(10_000, 10, 1), 0)
    admitted = [step for group in session.admit() for step in group.steps]
    assert len(admitted) == 2
    for step in admitted:
        session.record_arrival(step.step)
    session.hand_over()
    assert len(list(session.admit())) > 1


def test_a_large_first_step_is_read_alone() -> None:
    """A second would take bandwidth and memory from it; then more for each that is taken."""
    index = fixed_index(1000, limits.alone_bytes // 10 + 1)
    session = Session(index, Order(1000, 1), Steps(1000, 10, 1), 0)
    counts = []
    for _ in range(4):
        admitted = [step.step for group in session.admit() for step in group.steps]
        counts.append(len(admitted))
        for step in admitted:
            session.record_arrival(step)
        session.hand_over()
    assert counts == [1, 3, 3, 3]


def test_order_does_not_depend_on_the_read_ahead() -> None:
    """Requests differ with the budget; the samples of each step do not."""

    def walk(readahead: int, gap: int | None) -> list[list[int]]:
        session = Session(
            fixed_index(500, RECORD),
            Order(500, 3),
            Steps(500, 7, 2),
            1,
            readahead_bytes=readahead,
            gap_bytes=gap,
        )
        ids = []
        while not session.finished:
            for group in session.admit():
                for step in group.steps:
                    session.record_arrival(step.step)
            ids.append(session.hand_over().ids.tolist())
        return ids

    assert walk(1, None) == walk(10**9, None) == walk(10**9, 4096) == walk(20_000, 0)
