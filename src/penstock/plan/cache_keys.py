"""Keys of what a cache keeps, and the items that cache blocks are made of. Pure.

    SampleKeys   an item is a sample, with a key for each field.
    UnitKeys     of data that is decoded: an item is an equal share of the units of each array.

A unit is what is read as a whole: a sample of a field, or a compressed chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..extent import Int

Keys = npt.NDArray[np.uint64]
"""Numbers of units of fields, as `SampleKeys` or `UnitKeys` give them."""


@dataclass(frozen=True, slots=True)
class SampleKeys:
    """Keys of samples: sample * fields + field.

    count:  of the items, here samples.
    width:  keys of an item.
    """

    count: int
    width: int = 1

    @property
    def key_count(self) -> int:
        return self.count * self.width

    def find_items(self, keys: Keys) -> Keys:
        """Return the item of each key."""
        return keys // np.uint64(self.width)

    def locate(self, keys: Keys) -> tuple[Keys, Int]:
        """Return the unit and the array of each key: here the sample and the field."""
        unit, array = np.divmod(keys, np.uint64(self.width))
        return unit, array.view(np.int64)

    def address(self, units: Int, array: int) -> Int:
        """Return the keys of units of an array, as int64."""
        return units * self.width + array

    def list_keys(self, first: Int, end: Int) -> tuple[Keys, Int]:
        """List the keys of ranges of items, and where each range starts among them (and the
        end)."""
        counts = (end - first) * self.width
        edges = np.concatenate([[0], np.cumsum(counts)])
        inside = np.arange(edges[-1]) - np.repeat(edges[:-1], counts)
        return (np.repeat(first * self.width, counts) + inside).view(np.uint64), edges

    def find_rows(self, keys: Keys, first: Int, items: int) -> Int:
        """Return the place of each key among those of so many items, from a first one on."""
        return keys.view(np.int64) - first * self.width


@dataclass(frozen=True, slots=True, eq=False)
class UnitKeys:
    """Keys of units, one array after the other.

    units:  of each array.
    count:  of the items. Item k of n has the units from k/n to (k+1)/n of the way through each
            array, so that a chunk of images is kept beside their labels.
    """

    units: Sequence[int]
    count: int

    @property
    def width(self) -> int:
        """Keys of an item; 0 if their number varies."""
        return 1 if len(self.units) == 1 and self.units[0] == self.count else 0

    @property
    def key_count(self) -> int:
        return sum(self.units)

    def find_items(self, keys: Keys) -> Keys:
        unit, array = self.locate(keys)
        end = unit.view(np.int64) * self.count + self.count
        items: Keys = ((end - 1) // np.take(self.units, array)).view(np.uint64)
        return items

    def locate(self, keys: Keys) -> tuple[Keys, Int]:
        base = np.cumsum([0, *self.units])
        array = np.searchsorted(base, keys.view(np.int64), side="right") - 1
        return keys - base.take(array).view(np.uint64), array

    def address(self, units: Int, array: int) -> Int:
        return units + sum(self.units[:array])

    def list_keys(self, first: Int, end: Int) -> tuple[Keys, Int]:
        ranges = [(self._find_start(first, n), self._find_start(end, n)) for n in self._arrays]
        low, high = (np.stack(ends, axis=1) for ends in zip(*ranges, strict=True))
        counts = high - low
        low += np.cumsum([0, *self.units[:-1]])
        ends = np.cumsum(counts)
        inside = np.arange(ends[-1]) - np.repeat(ends - counts.reshape(-1), counts.reshape(-1))
        keys = np.repeat(low.reshape(-1), counts.reshape(-1)) + inside
        return keys.view(np.uint64), np.concatenate([[0], np.cumsum(counts.sum(axis=1))])

    def find_rows(self, keys: Keys, first: Int, items: int) -> Int:
        unit, array = self.locate(keys)
        end = np.minimum(first + items, self.count)
        rows = unit.view(np.int64).copy()
        for n in self._arrays:
            start = self._find_start(first, n)
            before = np.where(array > n, self._find_start(end, n) - start, 0)
            rows += np.where(array == n, -start, before)
        return rows

    @property
    def _arrays(self) -> range:
        return range(len(self.units))

    def _find_start(self, items: Int, array: int) -> Int:
        """Return the first unit of an array that items have."""
        return items * self.units[array] // self.count
