"""The workload of a run: the sizes of samples, and the samples of each step. Pure.

The order is the library's own (`Order`), the same for every policy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.order import Order
from penstock.plan import Locality, Steps

from .scenario import Scenario

Ints = npt.NDArray[np.int64]
Nodes = npt.NDArray[np.int32]

BYTES = 1_000_000
"""Bytes of a MB."""

_window_samples = 1 << 20  # gone through at a time: enough for numpy, little for memory


class Window(NamedTuple):
    """Some steps of one epoch.

    step:     the first step, counted over all epochs.
    samples:  int64 (steps, global batch).
    """

    epoch: int
    step: int
    samples: Ints


@dataclass(frozen=True)
class SimulatedWorkload:
    """The samples of a scenario: sizes in bytes, int64 (samples,), and their order."""

    scenario: Scenario
    sizes: Ints = field(init=False, repr=False)

    def __post_init__(self) -> None:
        data = self.scenario.data
        random = self.random(0)
        sizes = random.normal(data.mean_mb, data.sigma_mb, data.samples)
        while len(negative := np.flatnonzero(sizes < 0)):
            sizes[negative] = random.normal(data.mean_mb, data.sigma_mb, len(negative))
        object.__setattr__(self, "sizes", np.maximum(1, np.rint(sizes * BYTES)).astype(np.int64))

    def random(self, *key: int) -> np.random.Generator:
        """Make a generator; each key has its own stream."""
        seed = np.random.SeedSequence([self.scenario.training.seed, *key])
        return np.random.Generator(np.random.Philox(seed))

    @property
    def steps(self) -> int:
        """Number of steps of all epochs."""
        return self.scenario.steps * self.scenario.training.epochs

    @property
    def strided(self) -> Nodes:
        """Node that processes each sample of a global batch, if it is dealt strided."""
        positions = np.arange(self.scenario.training.global_batch)
        return self.steps_of().ranks(positions).astype(np.int32)

    def steps_of(self, locality: Locality | None = None) -> Steps:
        """Return the library's geometry of an epoch, one rank a node: strided, or by locality."""
        training = self.scenario.training
        return Steps(
            self.scenario.data.samples,
            training.global_batch,
            training.nodes,
            drop_last=True,
            assignment="strided" if locality is None else "local",
            locality=locality,
        )

    def order(self, epoch: int) -> Order:
        return Order(self.scenario.data.samples, self.scenario.training.seed, epoch)

    def windows(self) -> Iterator[Window]:
        """Yield all steps of the run, some at a time."""
        batch = self.scenario.training.global_batch
        at_once = max(1, _window_samples // batch)
        for epoch in range(self.scenario.training.epochs):
            order = self.order(epoch)
            for first in range(0, self.scenario.steps, at_once):
                steps = min(at_once, self.scenario.steps - first)
                samples = order.run(first * batch, steps * batch).view(np.int64)
                step = epoch * self.scenario.steps + first
                yield Window(epoch, step, samples.reshape(steps, batch))
