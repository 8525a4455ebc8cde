"""The order of a selection: an order over the numbers of a set, and the set, which maps them.

Position -> number in the set by the inner order -> sample by the bitmap's select; back by its rank.
Samples keep the numbers that they have in the whole dataset, so that everything which knows samples
by number (keys, labels, caches, placement) is not concerned.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from ..errors import UsageError
from .bitmap import Subset
from .keys import Words
from .mixture import Mixture
from .order import Marks, Order, Shuffle
from .weighted import WeightedOrder

Inner = TypeVar("Inner", Order, Mixture, WeightedOrder)


def find_base(order: object) -> Order | None:
    """Return the order in which an ordering has each sample of one dataset, or each selected one,
    once an epoch; None for mixtures, weights and curricula."""
    inner = order.inner if isinstance(order, Selection) else order
    return inner if isinstance(inner, Order) else None


@dataclass(frozen=True)
class Selection(Generic[Inner]):
    """An `Ordering` of the samples of a set, in the sequence that an inner order gives.

    inner:   an order of as many samples as the set has, or weights or a mixture of so many.
    subset:  the set.
    """

    inner: Inner
    subset: Subset

    def __len__(self) -> int:
        return len(self.inner)

    @property
    def count(self) -> int:
        """Positions of an epoch."""
        return len(self.inner)

    @property
    def seed(self) -> int:
        return self.inner.seed

    @property
    def epoch(self) -> int:
        return self.inner.epoch

    @property
    def shuffle(self) -> Shuffle:
        return self.inner.shuffle

    @property
    def algorithm(self) -> str:
        """Identifier of set and algorithm; a saved state continues only under the same one."""
        return f"selection-1:{self.subset.digest}/{self.inner.algorithm}"

    def at_epoch(self, epoch: int) -> Selection[Inner]:
        """The order of another epoch of the same data."""
        return replace(self, inner=self.inner.at_epoch(epoch))

    def for_steps(self, global_batch: int, steps: int) -> Selection[Inner]:
        """The same order, told of the division into steps; see `Mixture.for_steps`."""
        return replace(self, inner=self.inner.for_steps(global_batch, steps))

    def samples(self, positions: npt.ArrayLike) -> Words:
        """Return the samples at these positions, in their shape."""
        return self.rows(positions)[0]

    def rows(self, positions: npt.ArrayLike) -> tuple[Words, Marks]:
        """Return samples, and the marks of the inner order."""
        numbers, marks = self.inner.rows(positions)
        flat = numbers.reshape(-1)
        self.subset.forward(flat, flat)  # all are inside: there are as many as the set has
        return numbers, marks

    def positions(self, samples: npt.ArrayLike) -> Words:
        """Return the positions of these samples: the inverse of `samples`, which an `Order` has.

        UsageError if a sample is not in the set.
        """
        assert isinstance(self.inner, Order), "it may hold a sample several times"
        return self.inner.positions(self.numbers(samples))

    def numbers(self, samples: npt.ArrayLike) -> Words:
        """Return the numbers of these samples in the set. UsageError if one is not in it."""
        words = np.ascontiguousarray(np.asarray(samples), dtype=np.uint64)
        out = np.empty(words.shape, np.uint64)
        outside = self.subset.inverse(words.reshape(-1), out.reshape(-1))
        if outside != words.size:
            raise UsageError(
                f"sample {words.reshape(-1)[outside]} is not one of the {len(self.subset):,} that "
                f"were selected of {self.subset.count:,}: leave it out, or select it too"
            )
        return out

    def count_drawn(self, position: int) -> list[int]:
        """Count the samples drawn over all epochs before a position, from each dataset."""
        return self.inner.count_drawn(position)

    def parts(self) -> tuple[Order, ...]:
        """The orders that the inner one is made of, over numbers of the set."""
        return self.inner.parts()
