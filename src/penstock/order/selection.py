"""Selections: sets of samples as bitmaps, and the order of the samples of a set. Pure.

A `Bitmap` finds the k-th sample of a set and the number of a sample in it, in 1.04 bits for each
sample of the dataset. Its arrays may be a mapped file. `JointBitmap` joins the sets of datasets
that are numbered one after the other.

A `Selection` goes from a position to a number in the set by its inner order, and to the sample by
the bitmap's select; back by its rank. Samples keep their numbers in the whole dataset, so keys,
labels, caches and placement are not concerned.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from .. import limits
from .._core import Bitmap as CoreBitmap
from .._core import count_bits
from .._core import set_bits as set_bits
from ..errors import UsageError
from .keys import Words
from .mixture import Mixture
from .order import DerivedOrdering, Marks, Order, check_words
from .weighted import DrawnOrder, WeightedOrder

Inner = TypeVar("Inner", Order, Mixture, WeightedOrder, DrawnOrder)

_stretch_bits = 2048


class Subset(Protocol):
    """Set of the samples of a dataset, each with a number in it, ascending from 0."""

    @property
    def count(self) -> int:
        """Samples of the dataset."""
        ...

    @property
    def digest(self) -> str:
        """Hash of the set, as hex digits."""
        ...

    def __len__(self) -> int:
        """Samples of the set."""
        ...

    def forward(self, positions: Words, samples: Words) -> int:
        """Write the sample of each number; return the index of the first one outside, or the
        size."""
        ...

    def inverse(self, samples: Words, positions: Words) -> int:
        """Write the number of each sample; return the index of the first one not in the set, or
        the size."""
        ...


def allot_words(count: int) -> Words:
    """Return the words of the empty set of samples of [0, count): whole stretches of zeros."""
    if not 1 <= count <= limits.selection_count_max:
        most = limits.selection_count_max
        raise UsageError(f"the dataset has {count:,} samples: select from 1 to {most:,}")
    return np.zeros(-(-count // _stretch_bits) * (_stretch_bits // 64), np.uint64)


@dataclass(frozen=True, eq=False)
class Bitmap:
    """A set of samples of [0, count), one bit each, and the counts that rank and select need.

    words:   bit s % 64 of word s // 64 is 1 if sample s is in the set; whole stretches of 2048.
    counts, bases, hints:  see cpp/order/bitmap.hpp.
    digest:  hash of count and words, as hex digits.

    Threads may share it. A lookup takes two places of memory beyond the caches.
    """

    count: int
    words: Words
    counts: Words
    bases: Words
    hints: npt.NDArray[np.uint32]
    digest: str
    _core: CoreBitmap = field(init=False, repr=False)

    def __post_init__(self) -> None:
        core = CoreBitmap(self.count, self.words, self.counts, self.bases, self.hints)
        object.__setattr__(self, "_core", core)

    @classmethod
    def from_words(cls, count: int, words: Words) -> Bitmap:
        """Count the bits of `words`; never change them afterwards. 0.2 s for 10^9."""
        digest = hashlib.blake2b(f"bitmap-1:{count};".encode(), digest_size=16)
        digest.update(words.data)
        return cls(count, words, *count_bits(words), digest.hexdigest())

    @classmethod
    def from_samples(cls, count: int, samples: npt.NDArray[Any]) -> Bitmap:
        """The set of these samples of [0, count), int64 or uint64, in any sequence.

        UsageError if one of them is outside, or comes twice.
        """
        words = allot_words(count)
        done = set_bits(words, count, samples.view(np.uint64))
        if done != len(samples):
            sample = int(samples[done])
            first = int(np.flatnonzero(samples == samples[done])[0])
            raise UsageError(
                f"ids[{done}] is {sample}: use 0..{count - 1}"
                if not 0 <= sample < count
                else f"ids[{done}] is {sample}, as ids[{first}] is: name a sample once"
            )
        return cls.from_words(count, words)

    def __len__(self) -> int:
        return self._core.ones

    @property
    def nbytes(self) -> int:
        """Bytes of all columns."""
        return sum(column.nbytes for column in (self.words, self.counts, self.bases, self.hints))

    def forward(self, positions: Words, samples: Words) -> int:
        return self._core.forward(positions, samples)

    def inverse(self, samples: Words, positions: Words) -> int:
        return self._core.inverse(samples, positions)

    def __reduce__(self) -> tuple[Any, ...]:
        columns = self.words, self.counts, self.bases, self.hints
        return Bitmap, (self.count, *columns, self.digest)


@dataclass(frozen=True, eq=False)
class JointBitmap:
    """The sets of several datasets as one; both numberings go from dataset to dataset.

    counts:  samples of each dataset.
    parts:   the set of each; None is all samples.
    """

    counts: tuple[int, ...]
    parts: tuple[Subset | None, ...]

    @property
    def count(self) -> int:
        return sum(self.counts)

    def __len__(self) -> int:
        return int(self._first_numbers[-1])

    @cached_property
    def digest(self) -> str:
        digests = [None if bitmap is None else bitmap.digest for bitmap in self.parts]
        text = repr(("joint-1", self.counts, digests))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    @cached_property
    def _first_numbers(self) -> Words:
        sizes = [
            count if bitmap is None else len(bitmap)
            for count, bitmap in zip(self.counts, self.parts, strict=True)
        ]
        return _sum_up(sizes)

    @cached_property
    def _first_samples(self) -> Words:
        return _sum_up(self.counts)

    def forward(self, positions: Words, samples: Words) -> int:
        return self._map("forward", self._first_numbers, self._first_samples, positions, samples)

    def inverse(self, samples: Words, positions: Words) -> int:
        return self._map("inverse", self._first_samples, self._first_numbers, samples, positions)

    def _map(self, way: str, begins: Words, targets: Words, values: Words, out: Words) -> int:
        first_outside = len(values)
        source = np.searchsorted(begins, values, side="right") - 1
        mapped = np.empty_like(values)
        for number in np.unique(source).tolist():
            rows = np.flatnonzero(source == number)
            if number == len(self.parts):
                first_outside = min(first_outside, int(rows[0]))
                continue
            local = values[rows] - begins[number]
            bitmap = self.parts[number]
            if bitmap is not None:
                outside = getattr(bitmap, way)(local, local)
                if outside != len(local):
                    first_outside = min(first_outside, int(rows[outside]))
            mapped[rows] = local + targets[number]
        out[:] = mapped
        return first_outside


def _sum_up(sizes: Sequence[int]) -> Words:
    return np.concatenate([np.zeros(1, np.uint64), np.cumsum(sizes, dtype=np.uint64)])


def map_numbers(subset: Subset, numbers: npt.ArrayLike) -> Words:
    """Return the samples with these numbers in the set, in their shape. UsageError if a number is
    outside."""
    words = check_words(numbers, len(subset), "sample")
    samples = np.empty(words.shape, np.uint64)
    subset.forward(words.reshape(-1), samples.reshape(-1))
    return samples


def find_base(order: object) -> Order | None:
    """Return the order in which an ordering has each sample of one dataset, or each selected one,
    once an epoch, or None: mixtures, weights and curricula have none."""
    inner = order.inner if isinstance(order, Selection) else order
    return inner if isinstance(inner, Order) else None


@dataclass(frozen=True)
class Selection(DerivedOrdering, Generic[Inner]):
    """An `Ordering` of the samples of a set, in the sequence that an inner order gives.

    inner:   an order of as many samples as the set has, or weights or a mixture.
    subset:  the set.
    """

    inner: Inner
    subset: Subset

    @property
    def count(self) -> int:
        """Positions of an epoch."""
        return len(self.inner)

    @property
    def algorithm(self) -> str:
        """Identifier of set and algorithm; a saved state continues only under the same one."""
        return f"selection-1:{self.subset.digest}/{self.inner.algorithm}"

    def for_steps(self, global_batch: int, steps: int) -> Selection[Inner]:
        return replace(self, inner=self.inner.for_steps(global_batch, steps))

    def rows(self, positions: npt.ArrayLike) -> tuple[Words, Marks]:
        """Return samples, and the marks of the inner order."""
        numbers, marks = self.inner.rows(positions)
        flat = numbers.reshape(-1)
        self.subset.forward(flat, flat)  # all are inside: there are as many as the set has
        return numbers, marks

    def positions(self, samples: npt.ArrayLike) -> Words:
        """Return the positions of these samples: the inverse of `samples`, for an `Order`.

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
            what = f"sample {words.reshape(-1)[outside]} is not one of the {len(self.subset):,}"
            raise UsageError(
                f"{what} selected of {self.subset.count:,}: leave it out, or select it"
            )
        return out
