"""Selections and splits: against plain numpy, through loaders, mixtures, caches and pickles."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.errors import PenstockError, StateError, UsageError
from penstock.order import Order
from tests.slices import fraction

COUNT = 900
CLASSES = ("cat", "dog", "owl")


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: Any) -> penstock.Dataset:
    """Records that hold their own number."""
    return write_numbers(tmp_path_factory.mktemp("numbers") / "rows.bin", COUNT)


def write_numbers(path: Path, count: int) -> penstock.Dataset:
    rows = np.zeros((count, 2), np.int64)
    rows[:, 0] = np.arange(count)
    rows.tofile(path)
    return penstock.open(path, dtype="i8", shape=(2,))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: Any) -> penstock.Dataset:
    """Files of many lengths in folders of classes."""
    root = tmp_path_factory.mktemp("tree")
    for number in range(60):
        folder = root / CLASSES[number % 3]
        folder.mkdir(exist_ok=True)
        (folder / f"{number:03}.bin").write_bytes(b"x" * (number * 7 % 50 + 1))
    return penstock.open(root)


@st.composite
def selections(draw: Any, count: int) -> Any:
    """The arguments of a select, and the samples that numpy says it keeps."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    mask = random.random(count) < draw(st.sampled_from([0.05, 0.5, 0.95]))
    mask[random.integers(count)] = True
    ids = np.flatnonzero(mask)
    kind = draw(st.sampled_from(["ids", "mask", "range", "where", "function", "fraction"]))
    step = draw(st.sampled_from([1, 2, 7, -3]))
    values = random.integers(0, 9, count)
    some = values >= values[random.integers(count)]
    share = draw(st.sampled_from([0.1, 0.5, 1.0]))
    return {
        "ids": ({"ids": random.permutation(ids)}, ids),
        "mask": ({"mask": mask}, ids),
        "range": ({"ids": range(count)[::step]}, np.sort(np.arange(count)[::step])),
        "where": (
            {"where": f"score >= {values[some].min()}", "columns": {"score": values}},
            np.flatnonzero(some),
        ),
        "function": ({"where": lambda columns: columns["bytes"] > 0}, np.arange(count)),
        "fraction": (
            {"fraction": share, "seed": 5},
            np.sort(Order(count, 5, purpose="selection").run(0, round(share * count))),
        ),
    }[kind]


def read_global(
    dataset: Any, world: int, state: Any, steps: int, **arguments: Any
) -> tuple[list[list[int]], Any]:
    """Global batches from a state on, interleaved from all ranks, and the state after them."""
    loaders = [
        penstock.Loader(dataset, rank=rank, world_size=world, **arguments) for rank in range(world)
    ]
    for loader in loaders:
        if state is not None:
            loader.load_state_dict(state)
    ranks: list[list[list[int]]] = []
    for loader in loaders:
        own: list[list[int]] = []
        while len(own) < steps:
            for batch in loader:
                ids = batch.ids.astype(np.int64)
                assert np.array_equal(batch["data"][:, 0], ids)
                own.append(ids.tolist())
                if len(own) == steps:
                    break
        ranks.append(own)
    states = [loader.state_dict() for loader in loaders]
    assert all(each == states[0] for each in states)
    for loader in loaders:
        loader.close()
    found = []
    for batches in zip(*ranks, strict=True):
        rows = max(map(len, batches))
        found.append([ids[row] for row in range(rows) for ids in batches if row < len(ids)])
    return found, states[0]


@fraction(2)
@given(
    chosen=selections(COUNT),
    again=st.none() | st.integers(1, 60),
    shuffle=st.sampled_from(["exact", "blocked", "none"]),
    worlds=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    batch=st.integers(5, 90),
    data=st.data(),
)
def test_once_an_epoch_from_any_state_on_any_world(
    numbers: Any, chosen: Any, again: Any, shuffle: Any, worlds: Any, batch: int, data: Any
) -> None:
    """Every selection holds numpy's samples, once an epoch, in one sequence of global batches,
    whatever the shuffle, the world, and the step at which it is resumed on another."""
    arguments, expected = chosen
    dataset = numbers.select(**arguments)
    if again is not None and again <= len(expected):
        dataset, expected = dataset.select(range(0, len(expected), again)), expected[::again]
    assert dataset.ids(np.arange(len(dataset))).tolist() == expected.tolist()
    assert int(dataset[-1]["data"][0]) == dataset[-1]["__id__"] == expected[-1]
    if len(expected) < max(worlds):
        return
    options = {"global_batch_size": batch, "shuffle": shuffle, "seed": 3, "block": 4, "group": 8}
    steps = -(-len(expected) // batch)
    whole, _ = read_global(dataset, 1, None, 2 * steps, **options)
    assert sorted(i for step in whole[:steps] for i in step) == expected.tolist()
    assert sorted(i for step in whole[steps:] for i in step) == expected.tolist()
    if shuffle == "none":
        assert [i for step in whole[:steps] for i in step] == expected.tolist()
    stop = data.draw(st.integers(0, 2 * steps))
    head, state = read_global(dataset, worlds[0], None, stop, **options)
    copy = pickle.loads(pickle.dumps(dataset))
    tail, _ = read_global(copy, worlds[1], state, 2 * steps - stop, **options)
    assert head + tail == whole
