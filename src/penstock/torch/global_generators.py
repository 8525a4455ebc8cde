"""Seeding of the generators of `random`, numpy and torch for each sample.

Only where one thread of a process makes the samples: docs/decisions/0024-random-numbers.md
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np

import torch

from ..loader.batch_tasks import BatchTask
from ..order.augmentation import derive_sample_seed

_Value = TypeVar("_Value")
DrawPoint = tuple[int, int, int]
"""Seed, epoch and sample; or, for samples that a sampler gives, its batch's key, epoch and row."""


class Generator(NamedTuple):
    """A global generator: how to seed it, to draw a number, and to read and write its state."""

    seed: Callable[[int], object]
    draw: Callable[[], float]
    read: Callable[[], Any]
    write: Callable[[Any], object]

    def has_moved(self, key: int) -> bool:
        """True if something was drawn since the generator was seeded with `key`. Seeds it again.

        The next number tells, in a tenth of the time of reading numpy's state twice.
        """
        drawn = self.draw()
        self.seed(key)
        return drawn != self.draw()


# ruff: disable[NPY002] (numpy's global generator is what users draw from)
_generators = (
    Generator(random.seed, random.random, random.getstate, random.setstate),
    Generator(
        lambda key: np.random.seed(key & 0xFFFFFFFF),
        np.random.random,
        np.random.get_state,
        np.random.set_state,
    ),
    Generator(
        # torch.manual_seed would grow CUDA's list of calls. torch.initial_seed() fits an int64.
        lambda key: torch.default_generator.manual_seed(key & ((1 << 63) - 1)),
        # torch.rand takes three times as long.
        lambda: torch.empty((), dtype=torch.float64, device="cpu").uniform_().item(),
        torch.default_generator.get_state,
        torch.default_generator.set_state,
    ),
)
# ruff: enable[NPY002]
_watched_items = 32  # of a worker in an epoch


def seed_all(key: int) -> None:
    """Seed the generators that per-sample code draws from."""
    for generator in _generators:
        generator.seed(key)


class SampleSeeds:
    """Seeds of the samples that one worker makes.

    seed:      the loader's.
    is_alone:  whether no other thread of the process makes samples; else nothing is seeded.
    restores:  whether the process has a private state, restored after each batch.

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

    def make_batch(self, task: BatchTask, function: Callable[[BatchTask], _Value]) -> _Value:
        """Call the function that makes a batch, with the generators prepared for it.

        A process with its own state gets it back afterwards.
        """
        if not self._is_alone:
            return function(task)
        if task.epoch != self._epoch:
            self._epoch, self._left = task.epoch, _watched_items
        self._is_watching = self._left > 0
        if not self._restores:
            seed_all(task.key)
            return function(task)
        if self.is_idle:
            return function(task)
        used = _generators if self._is_watching else tuple(self._drawn)
        states = [generator.read() for generator in used]
        try:
            return function(task)
        finally:
            for generator, state in zip(used, states, strict=True):
                generator.write(state)

    def call(self, place: DrawPoint, function: Callable[[Any], _Value], argument: Any) -> _Value:
        """Call a function that makes a sample, or a batch of samples, with its own seeds."""
        # A batch's collation is watched although its items have used up the number to be watched.
        is_watched = self._left > 0 or (self._is_watching and place[2] < 0)
        seeded = _generators if is_watched else self._drawn
        if not seeded:
            return function(argument)
        key = derive_sample_seed(*place)
        for generator in seeded:
            generator.seed(key)
        value = function(argument)
        if is_watched:
            self._left -= 1
            new = [one for one in _generators if one not in self._drawn]
            self._drawn |= {one for one in new if one.has_moved(key)}
        return value
