"""The order of a weighted dataset: how often each sample comes in an epoch, by its weight.

An epoch has n picks. With W the sum of all weights (integers), pick t is at the point
(t * W + v) // n of the summed-up weights, and is the sample whose stretch of them holds that point.
The points are W / n apart, so a sample of weight w is picked n * w / W times, rounded down or up,
in every epoch. v in [0, W) is the epoch's offset. It moves from epoch to epoch by the golden ratio
of W, so that samples which are picked in some epochs only are picked in evenly spaced ones.

The picks are shuffled by the `Order` of an epoch: position -> pick -> sample, in constant memory
besides the table, equal on all machines.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import limits
from .._core import WeightTable as CoreWeightTable
from ..errors import UsageError
from .keys import GOLDEN, WORD, Words, mix_words
from .order import DerivedOrdering, Order

Values = Callable[[int, int], npt.NDArray[Any]]
"""Function that gives the weights of the samples [start, stop)."""

Integers = npt.NDArray[np.uint32]

_block = 32  # samples of one sum in `bases`


@dataclass(frozen=True, eq=False)
class WeightTable:
    """The weights of samples as integers, and their sums before each block of 32 samples.

    weights:  of each sample, 0..2^31-1.
    bases:    the sums; the last one is of all samples, and above 0.
    digest:   hash of the weights, as hex digits.

    It takes 4.25 bytes a sample; they may be a mapped file. Threads may share it.
    """

    weights: Integers
    bases: Words
    digest: str
    _core: CoreWeightTable = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_core", CoreWeightTable(self.weights, self.bases))

    @classmethod
    def from_integers(cls, weights: Integers) -> WeightTable:
        """Sum up weights; never change them afterwards. UsageError if all are 0."""
        count = len(weights)
        digest = hashlib.blake2b(f"weights-1:{count};".encode(), digest_size=16)
        digest.update(weights.data)
        sums = np.zeros(-(-count // _block) + 1, np.uint64)
        for start in range(0, count, limits.selection_chunk_samples):
            chunk = weights[start : start + limits.selection_chunk_samples]
            starts = np.arange(0, len(chunk), _block)
            first = start // _block + 1
            sums[first : first + len(starts)] = np.add.reduceat(chunk, starts, dtype=np.uint64)
        bases = np.cumsum(sums, dtype=np.uint64)
        if not bases[-1]:
            raise UsageError(f"the weights of all {count:,} samples are 0: give one above 0")
        return cls(weights, bases, digest.hexdigest())

    def __len__(self) -> int:
        return len(self.weights)

    @property
    def total(self) -> int:
        """Sum of the weights."""
        return self._core.total

    @property
    def nbytes(self) -> int:
        """Bytes of both columns."""
        return self.weights.nbytes + self.bases.nbytes

    def pick(self, numbers: Words, samples: Words, picks: int, offset: int) -> int:
        """Write the sample of each pick; return the index of the first one outside, or the size."""
        return self._core.pick(numbers, samples, picks, offset)

    def __reduce__(self) -> tuple[Any, ...]:
        return WeightTable, (self.weights, self.bases, self.digest)


def round_weights(count: int, values: Values, out: Integers) -> None:
    """Write weights as integers: as multiples of 2^-31 of the power of two above the largest.

    values:  gives weights as integers or floats.

    The result is the same on all machines: the factor is a power of two, so only one rounding, to
    the nearest integer, takes place. Integers below 2^31 keep their ratios exactly, and integers
    made here stay as they are. UsageError if a
    weight is negative or not finite, if all are 0, or if one above 0 would become 0.
    """
    largest = 0.0
    starts = range(0, count, limits.selection_chunk_samples)
    for start in starts:
        stop = min(start + limits.selection_chunk_samples, count)
        chunk = values(start, stop).astype(np.float64)
        is_wrong = ~((chunk >= 0) & (chunk < math.inf))
        if is_wrong.any():
            at = int(np.argmax(is_wrong))
            what = f"the weight of sample {start + at} is {float(chunk[at])}"
            raise UsageError(f"{what}: use a finite number from 0 on")
        largest = max(largest, float(chunk.max()))
    shift = 31 - math.frexp(largest)[1]
    for start in starts:
        stop = min(start + limits.selection_chunk_samples, count)
        chunk = values(start, stop).astype(np.float64)
        whole = out[start:stop]
        # Less than 2^31, so that rounding what is rounded changes nothing.
        whole[:] = np.minimum(np.rint(np.ldexp(chunk, shift)), 2**31 - 1)
        is_lost = (whole == 0) & (chunk > 0)
        if is_lost.any():
            at = int(np.argmax(is_lost))
            what = f"the weight of sample {start + at} is {float(chunk[at])}, too small beside"
            kept = f"the largest, {largest}: weights are kept to 2^-31 of that"
            raise UsageError(f"{what} {kept}, so raise it, or use 0 to leave it out")


@dataclass(frozen=True)
class WeightedOrder(DerivedOrdering):
    """An `Ordering` in which each sample comes as often as its weight says.

    inner:  the order of the picks of an epoch.
    table:  the weights.

    A sample of weight w is expected n * w / W times in an epoch of n picks; it comes so often,
    rounded down or up, in every epoch. Expected less than once, it comes at least once in any
    ceil(2 / expected) epochs. A lookup takes some tens of nanoseconds.
    """

    inner: Order
    table: WeightTable

    @property
    def algorithm(self) -> str:
        """Identifier of weights and algorithm; a saved state continues only under the same one."""
        return f"weights-1:{self.table.digest}x{len(self)}/{self.inner.algorithm}"

    @property
    def offset(self) -> int:
        """Offset of the epoch's points in the summed-up weights."""
        first = Order(1, self.seed, stream=self.inner.stream, purpose="weights").key()
        return (((first + self.epoch * GOLDEN) & WORD) * self.table.total) >> 64

    def samples(self, positions: npt.ArrayLike) -> Words:
        """Return the samples at these positions, in their shape."""
        picks = self.inner.samples(positions)
        flat = picks.reshape(-1)
        self.table.pick(flat, flat, len(self), self.offset)  # all are inside: `inner` has as many
        return picks


@dataclass(frozen=True)
class DrawnOrder(DerivedOrdering):
    """An `Ordering` that draws one sample, at random, of each of equal stretches of the data.

    inner:  the order of the stretches, 2^31 at most.
    count:  samples of the data.
    """

    inner: Order
    count: int

    @property
    def algorithm(self) -> str:
        """Identifier of the algorithm; a saved state continues only under the same one."""
        return f"draw-1:{self.count}/{self.inner.algorithm}"

    def samples(self, positions: npt.ArrayLike) -> Words:
        """Return the samples at these positions, in their shape."""
        stretches, flat = len(self.inner), self.inner.samples(positions)
        ends = np.add.outer(np.array([0, 1], np.uint64), flat.reshape(-1))
        share, rest = map(np.uint64, divmod(self.count, stretches))
        low, high = ends * share + ends * rest // np.uint64(stretches)
        key = Order(1, self.seed, self.epoch, stream=self.inner.stream, purpose="weights").key(
            0x300
        )
        chance = mix_words(np.uint64(key) + np.uint64(GOLDEN) * ends[1])  # SplitMix64's outputs
        drawn: Words = low + chance % (high - low)
        return drawn.reshape(flat.shape)
