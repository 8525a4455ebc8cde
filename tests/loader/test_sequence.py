"""The promises about the sequence: exactly once, the same at any speed, exact elastic resume."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from tests.slices import fraction

COUNT, RECORD = 240, 32


@pytest.fixture(scope="module")
def dataset() -> Any:
    """240 records that begin with their number."""
    with tempfile.TemporaryDirectory() as folder:
        data = np.zeros((COUNT, RECORD), np.uint8)
        data[:, :8] = np.arange(COUNT, dtype=np.uint64)[:, None].view(np.uint8)
        path = Path(folder) / "records.bin"
        path.write_bytes(data.tobytes())
        yield penstock.open(path, record_bytes=RECORD, index="memory")


budgets = st.builds(
    penstock.Budget,
    threads=st.sampled_from([None, 1, 2, 5]),
    readahead_bytes=st.sampled_from([1, 300, 10_000, 1 << 28]),
    io_uring=st.sampled_from(["auto", "off"]),
    mmap=st.sampled_from(["auto", "off"]),
)
shuffles = st.sampled_from(["exact", "blocked", "none"])


def global_steps(
    ds: penstock.Dataset,
    world: int,
    start: dict[str, Any] | None,
    steps: int | None,
    **arguments: Any,
) -> tuple[list[list[int]], dict[str, Any]]:
    """The global batches of `world` ranks, as (position-ordered) lists of ids, and the state after
    them. Checks that ids and bytes agree, and that all ranks stop together."""
    loaders = [
        penstock.Loader(ds, rank=rank, world_size=world, **arguments) for rank in range(world)
    ]
    if start is not None:
        for loader in loaders:
            loader.load_state_dict(start)
    iterators = [iter(loader) for loader in loaders]
    found: list[list[int]] = []
    while steps is None or len(found) < steps:
        batches = [next(iterator, None) for iterator in iterators]
        if None in batches:
            assert all(batch is None for batch in batches)
            break
        for batch in batches:
            numbers = np.ascontiguousarray(batch["data"][:, :8]).view(np.uint64).reshape(-1)
            assert np.array_equal(numbers, batch.ids)
        rows = max(len(batch.ids) for batch in batches)
        dealt = [b.ids.tolist() for b in batches]
        found.append([ids[row] for row in range(rows) for ids in dealt if row < len(ids)])
    states = [loader.state_dict() for loader in loaders]
    assert all(state == states[0] for state in states)
    for loader in loaders:
        loader.close()
    return found, states[0]


@given(
    world=st.integers(1, 6),
    batch=st.integers(6, 50),
    shuffle=shuffles,
    seed=st.integers(0, 2**64 - 1),
    budget=budgets,
)
def test_exactly_once(
    dataset: Any, world: int, batch: int, shuffle: Any, seed: int, budget: penstock.Budget
) -> None:
    """An epoch holds every sample once, on any number of ranks, at any batch size and budget."""
    found, _ = global_steps(
        dataset, world, None, None,
        global_batch_size=batch, shuffle=shuffle, seed=seed, budget=budget,
    )  # fmt: skip
    assert sorted(i for step in found for i in step) == list(range(COUNT))
    assert [len(step) for step in found[:-1]] == [batch] * (len(found) - 1)


@given(
    worlds=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    batch=st.integers(5, 40),
    shuffle=shuffles,
    two=st.tuples(budgets, budgets),
)
def test_same_sequence_at_any_speed(
    dataset: Any, worlds: tuple[int, int], batch: int, shuffle: Any, two: tuple[Any, Any]
) -> None:
    """Budgets and world sizes change how fast, never which samples form which global batch."""
    runs = [
        global_steps(
            dataset, world, None, None,
            global_batch_size=batch, shuffle=shuffle, seed=11, budget=budget,
        )[0]
        for world, budget in zip(worlds, two, strict=True)
    ]  # fmt: skip
    assert runs[0] == runs[1]


@fraction(2)
@given(
    worlds=st.lists(st.integers(1, 5), min_size=2, max_size=5),
    batch=st.integers(5, 40),
    shuffle=shuffles,
    data=st.data(),
)
def test_elastic_resume(
    dataset: Any, worlds: list[int], batch: int, shuffle: Any, data: st.DataObject
) -> None:
    """A run that stops at any step and goes on with another world size, again and again, gives the
    sequence of an uninterrupted one, over two epochs."""
    arguments: dict[str, Any] = {"global_batch_size": batch, "shuffle": shuffle, "seed": 5}
    whole = penstock.Loader(dataset, **arguments)
    expected = [batch.ids.tolist() for _ in range(2) for batch in whole]
    found: list[list[int]] = []
    state: dict[str, Any] | None = None
    turn = 0
    while len(found) < len(expected):
        world = worlds[turn % len(worlds)]
        steps = data.draw(st.integers(1, len(whole)))
        part, state = global_steps(
            dataset, world, state, min(steps, len(expected) - len(found)), **arguments
        )
        found += part
        turn += 1
    assert found == expected


def test_resume_at_every_step_on_another_world(dataset: Any) -> None:
    """Resumed at every step of an epoch, 1 -> 2 -> 4 -> 3 ranks continue with exactly the rest."""
    arguments: dict[str, Any] = {"global_batch_size": 24, "seed": 3}
    expected, _ = global_steps(dataset, 1, None, None, **arguments)
    for step in range(len(expected)):
        first, state = global_steps(dataset, 1, None, step, **arguments)
        for world in (2, 4, 3):
            rest, _ = global_steps(dataset, world, state if step else None, None, **arguments)
            assert first + rest == expected
