"""Draws from generators that threads share: refused in `decode`, told from the loop's own draws."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.dataset.fields import Ragged
from penstock.errors import UsageError
from penstock.loader.global_generators import is_same, list_moved, read_states, write_states

# ruff: noqa: NPY002 (numpy's global generator is what users draw from)


@pytest.fixture
def records(tmp_path: Path) -> penstock.Dataset:
    (tmp_path / "records.bin").write_bytes(bytes(range(256)) * 16)
    return penstock.open(tmp_path / "records.bin", record_bytes=16)  # 256 samples


def number(sample: Any) -> Any:
    return {"id": sample["__id__"]}


DRAWS: dict[str, Callable[[], float]] = {
    "random": random.random,
    "random's gauss": lambda: random.gauss(0, 1),
    "numpy": np.random.rand,
    "numpy's choice": lambda: float(np.random.choice(1000)),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_of_decode(name: str, records: penstock.Dataset) -> None:
    """A decode that draws is refused at the first batch, and at each that draws."""
    draw, module = DRAWS[name], name.partition("'")[0]
    wanted = f"decode draws from {module}'s global generator"
    with penstock.Loader(records, 32, decode=lambda sample: {"x": draw()}) as loader:
        batches = iter(loader)
        for _ in range(8):
            with pytest.raises(UsageError, match=wanted):
                next(batches)


def test_draws_of_collate(records: penstock.Dataset) -> None:
    def mix_up(samples: list[Any]) -> Any:
        return {"ids": [sample["id"] for sample in samples], "share": np.random.beta(1, 1)}

    wanted = "decode or collate draws from numpy's"
    loader = penstock.Loader(records, 32, decode=number, collate=mix_up)
    with loader, pytest.raises(UsageError, match=wanted):
        next(iter(loader))


def test_rare_draw(records: penstock.Dataset) -> None:
    """The one sample of an epoch for which decode draws stops its step, and no other."""

    def decode(sample: Any) -> Any:
        return {"x": random.random() if sample["__id__"] == 200 else 0.0}

    with penstock.Loader(records, 32, decode=decode, decode_threads=1) as loader:
        batches, ids = iter(loader), []
        for _ in range(8):
            with contextlib.suppress(UsageError):
                ids += next(batches).ids.tolist()
    assert len(set(ids)) == 256 - 32
    assert 200 not in ids


def test_draws_of_the_loop(records: penstock.Dataset) -> None:
    """A program that draws is not refused; in an epoch few samples are decoded again for it."""
    calls = []

    def decode(sample: Any) -> Any:
        calls.append(sample["__id__"])
        random.seed(len(calls))  # what a thread of the program that draws all the time does
        return {"x": np.array([np.nan, sample["__id__"]]), "text": "a", "list": [1, "b"]}

    with penstock.Loader(records, 4, decode=decode, decode_threads=2) as loader:
        for _ in range(4):
            assert len(list(loader)) == 64
    assert len(calls) <= 4 * 256 * 1.05 + 2 * 32


def test_sample_generator_is_no_draw(records: penstock.Dataset) -> None:
    def decode(sample: Any) -> Any:
        return {"x": sample["__rng__"].random(), "y": random.Random(sample["__id__"]).random()}

    before = read_states()
    with penstock.Loader(records, 32, decode=decode) as loader:
        assert len(list(loader)) == 8
    assert list_moved(before) == []


@pytest.mark.parametrize("name", DRAWS)
def test_states_are_read_and_written(name: str) -> None:
    """What a draw moves is told, and a state that is written back gives the same numbers."""
    module = name.partition("'")[0]
    random.seed(1)  # without a second number of `gauss` in hand
    np.random.seed(1)
    before = read_states()
    drawn = [DRAWS[name]() for _ in range(1000)]
    assert list_moved(before) == [module]
    write_states(before, [module])
    assert list_moved(before) == []
    assert [DRAWS[name]() for _ in range(1000)] == drawn


def test_another_generator_of_numpy() -> None:
    """A generator that the user has given numpy is watched, too."""
    kept = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.PCG64(1))
        before = read_states()
        assert list_moved(before) == []
        np.random.rand()
        assert list_moved(before) == ["numpy"]
    finally:
        np.random.set_bit_generator(kept)


class Plain:
    """An object that knows no equality."""

    def __init__(self, value: Any) -> None:
        self.value = value


def test_same_values() -> None:
    def make(value: float) -> list[Any]:
        array = np.array([value, np.nan])
        ragged = Ragged(array, np.array([0, 1, 2]))
        return [{"a": array, "b": (value, "x", None)}, [ragged], Plain(array), np.float32(value)]

    for one, other in zip(make(1.0), make(1.0), strict=True):
        assert is_same(one, other)
    for one, other in zip(make(1.0), make(2.0), strict=True):
        assert not is_same(one, other)
    assert not is_same(np.zeros(2), np.zeros(2, np.float32))
    assert not is_same([1], [1, 2])
