"""Seeding of the generators of `random`, numpy and torch for each sample.

Only where one thread of a process makes the samples: docs/decisions/0024-random-numbers.md
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np

import torch

from ..loader import BatchTask
from ..order import derive_sample_seed

_Value = TypeVar("_Value")
DrawPoint = tuple[int, int, int]
"""Seed, epoch and sample; or, for samples that a sampler gives, its batch's key, epoch and row."""


class Generator(NamedTuple):
    """A global generator. State: `read` returns it, and values of `write` that are equal to it."""

    seed: Callable[[int], object]
    read: Callable[[], Any]
    write: Callable[[Any], object]


def _read_numpy() -> tuple[Any, ...]:
    state: Any = np.random.get_state()  # noqa: NPY002 (what users draw from)
    name, key, *rest = state
    return name, key.tobytes(), *rest


def _write_numpy(state: tuple[Any, ...]) -> None:
    name, key, *rest = state
    np.random.set_state((name, np.frombuffer(key, np.uint32), *rest))  # noqa: NPY002


_generators = (
    Generator(random.seed, random.getstate, random.setstate),
    Generator(
        lambda key: np.random.seed(key & 0xFFFFFFFF),  # noqa: NPY002
        _read_numpy,
        _write_numpy,
    ),
    Generator(
        # torch.manual_seed would grow CUDA's list of calls.
        torch.default_generator.manual_seed,
        lambda: torch.default_generator.get_state().numpy().tobytes(),
        lambda state: torch.default_generator.set_state(
            torch.frombuffer(bytearray(state), dtype=torch.uint8)
        ),
    ),
)
_watched_items = 32  # of a worker in an epoch


def seed_all(key: int) -> None:
    """Seed the generators that per-sample code draws from."""
    for generator in _generators:
        generator.seed(key)


class SampleSeeds:
    """Seeds of the samples that one worker makes.

    seed:      the loader's.
    is_alone:  whether no other thread of the process makes samples; else nothing is seeded.
    restores:  whether the process has a state of its own, which comes back after each batch.

    A generator is seeded for each sample if one of the worker's samples has drawn from it. The
    first samples of an epoch are watched for that: all generators are seeded for them.
    """

    def __init__(self, seed: int, is_alone: bool, restores: bool) -> None:
        self.seed = seed
        self._is_alone = is_alone
        self._restores = restores
        self._drawn: set[Generator] = set()
        self._epoch: int | None = None
        self._left = 0  # items of the epoch still to be watched
        self._is_watching = False  # in this batch

    @property
    def is_idle(self) -> bool:
        """True if nothing is to be seeded for the samples of this batch."""
        return not self._is_watching and not self._drawn

    @contextlib.contextmanager
    def begin_batch(self, task: BatchTask) -> Iterator[None]:
        """Prepare the generators for a batch, and restore them afterwards."""
        if not self._is_alone:
            yield
            return
        if task.epoch != self._epoch:
            self._epoch, self._left = task.epoch, _watched_items
        self._is_watching = self._left > 0
        if not self._restores:
            seed_all(task.key)
            yield
            return
        used = _generators if self._is_watching else tuple(self._drawn)
        states = [generator.read() for generator in used]
        try:
            yield
        finally:
            for generator, state in zip(used, states, strict=True):
                generator.write(state)

    def call(self, place: DrawPoint, function: Callable[[Any], _Value], argument: Any) -> _Value:
        """Call a function that makes a sample, or a batch of samples, with its own seeds."""
        if self.is_idle:
            return function(argument)
        key = derive_sample_seed(*place)
        for generator in _generators if self._is_watching else self._drawn:
            generator.seed(key)
        unknown = [one for one in _generators if self._is_watching and one not in self._drawn]
        fresh = [generator.read() for generator in unknown]
        value = function(argument)
        self._drawn |= {
            one for one, state in zip(unknown, fresh, strict=True) if one.read() != state
        }
        self._left -= 1
        return value
