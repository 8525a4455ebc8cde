"""Cache blocks: their size, the number that fits into a room, and the keys in each. Pure.

A cache block is neighbouring items (`cache_keys`: samples, or compressed chunks) that are placed,
read and kept as one. Larger blocks make larger reads. They also make placement coarser, let a step
wait for more than it needs while the first epoch starts, and, if lengths vary, leave room unused
for chance. So the best block is the smallest one that reads about as fast as large reads do.

A cache block has all keys of its items, one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from .. import limits
from ..extent import Int
from ..order.shuffling import ReadCost
from .cache_keys import Keys, SampleKeys, UnitKeys

_enough = 0.9
"""Part of the bandwidth of large reads that reads of cache blocks have to reach.

Only the first epoch reads cache blocks from storage.
"""


@dataclass(frozen=True, slots=True)
class CacheBlockChoice:
    """Chosen size of cache blocks, and the reason.

    samples:  samples of a cache block.
    reached:  part of the bandwidth of large reads that reads of cache blocks are expected to get;
              None without a measurement.
    """

    samples: int
    reason: str
    reached: float | None = None


def choose_cache_block(count: int, mean_bytes: float, measured: ReadCost) -> CacheBlockChoice:
    """Choose the smallest cache block whose reads get 90 % of the bandwidth of large reads.

    It is a single sample if that is enough, and no smaller than what storage reads at a time
    anyway. Its size in bytes is a power of two, so that measuring again mostly gives the same size:
    from `limits.cache_block_bytes_min` up to `limits.cache_block_bytes_max`, and no larger than
    leaves `limits.cache_blocks_min` cache blocks.
    """
    size = max(1.0, mean_bytes)
    overhead = measured.overhead_bytes(size)

    def reach(samples: int) -> float:
        return samples * size / (samples * size + overhead)

    single = f"random reads of single samples reach {reach(1):.0%} of what large reads give"
    most = max(1, count // limits.cache_blocks_min)
    cache_block_bytes = limits.cache_block_bytes_min
    cache_block = samples_per_block(cache_block_bytes, count, size)
    while (
        cache_block < most
        and 2 * cache_block_bytes <= limits.cache_block_bytes_max
        and reach(cache_block) < _enough
    ):
        cache_block_bytes *= 2
        cache_block = min(most, samples_per_block(cache_block_bytes, count, size))
    reason = single if cache_block == 1 else f"{single}, of cache blocks {reach(cache_block):.0%}"
    return CacheBlockChoice(cache_block, reason, reach(cache_block))


def samples_per_block(cache_block_bytes: int, count: int, mean_bytes: float) -> int:
    """Number of samples in a cache block of about `cache_block_bytes` bytes."""
    return max(1, min(count, int(cache_block_bytes // max(1.0, mean_bytes))))


class KeyedSource(Protocol):
    """Data that is addressed by key: `penstock.cache.key_index.Addressed`.

    item_bytes:  of an item, on average.
    """

    @property
    def keys(self) -> SampleKeys | UnitKeys: ...
    @property
    def item_bytes(self) -> float: ...
    @property
    def row_bytes(self) -> Sequence[int | None]: ...
    def key_lengths(self, keys: Keys) -> Int: ...


def count_cache_blocks(
    source: KeyedSource, cache_block: int, room_bytes: int, alignment: int
) -> int:
    """Count the cache blocks that fit into a room; one that by chance does not fit is left out."""
    mean, deviation = measure_cache_blocks(source, cache_block, alignment)
    total = -(-source.keys.count // cache_block)
    if room_bytes >= total * mean + limits.slab_spare_bytes:
        return total
    return min(total, count_fitting(room_bytes, mean, deviation))


def count_fitting(room: float, mean: float, deviation: float) -> int:
    """Count the cache blocks of this mean size and standard deviation that fit into a room.

    They fit nearly for sure: their sum exceeds its mean by three standard deviations once in 700
    cases.
    """
    if deviation == 0:
        return int(room // mean)
    # n mean + 3 deviation sqrt(n) <= room
    root = (-3 * deviation + math.sqrt(9 * deviation**2 + 4 * mean * room)) / (2 * mean)
    return int(root**2)


def required_bytes(source: KeyedSource, cache_block: int, cache_blocks: int, alignment: int) -> int:
    """Bytes of room in which `cache_blocks` cache blocks fit, by `count_cache_blocks`'s rule."""
    mean, deviation = measure_cache_blocks(source, cache_block, alignment)
    return (
        math.ceil(cache_blocks * mean + 3 * deviation * math.sqrt(cache_blocks))
        + limits.slab_spare_bytes
    )


def sample_key_lengths(source: KeyedSource) -> Int:
    """Lengths in bytes of some keys, of items spread over the data: array after array."""
    count = source.keys.count
    items = np.linspace(0, count - 1, min(count, limits.cache_blocks_looked_at)).astype(np.int64)
    keys, _ = source.keys.list_keys(items, items + 1)
    _, array = source.keys.locate(keys)
    return source.key_lengths(keys[np.argsort(array, kind="stable")])


def measure_cache_blocks(
    source: KeyedSource, cache_block: int, alignment: int
) -> tuple[float, float]:
    """Measure the mean bytes that a cache block takes, and their standard deviation."""
    whole = max(1, source.keys.count // cache_block)  # the last one may have fewer items
    some = np.linspace(0, whole - 1, min(whole, limits.cache_blocks_looked_at)).astype(np.uint64)
    size = BlockLayout(source, cache_block).measure(some)
    padding = float((-size % alignment).mean())
    return max(1.0, source.item_bytes * cache_block + padding), float(size.std())


class BlockLayout:
    """Keys, sizes and offsets within cache blocks."""

    def __init__(self, source: KeyedSource, cache_block: int) -> None:
        self._source, self._cache_block = source, cache_block

    def measure(self, cache_blocks: Keys) -> Int:
        """Return the bytes of each cache block."""
        ends, first = self._accumulate(cache_blocks)
        size: Int = np.diff(ends[first])
        return size

    def spread(self, cache_blocks: Keys, at: Int) -> tuple[Keys, Int]:
        """Return all keys of cache blocks that start at these offsets, and the offset of each
        key."""
        keys, first = self._source.keys.list_keys(*self._find_items(cache_blocks))
        length = self._source.key_lengths(keys)
        ends = np.cumsum(length) - length
        return keys, ends + np.repeat(at - ends[first[:-1]], np.diff(first))

    def find_offsets(self, keys: Keys, cache_blocks: Keys) -> Int:
        """Return the offset of each key in its cache block."""
        width = self._source.keys.width
        if width * self._cache_block == 1:
            return np.zeros(len(keys), np.int64)
        first_item = cache_blocks.view(np.int64) * self._cache_block
        row = self._source.keys.find_rows(keys, first_item, self._cache_block)
        row_bytes = self._source.row_bytes[0]
        if width == 1 and row_bytes is not None:
            return row * row_bytes
        cache_block, number = np.unique(cache_blocks, return_inverse=True)
        ends, first = self._accumulate(cache_block)
        inside: Int = ends[first[number] + row] - ends[first[number]]
        return inside

    def _accumulate(self, cache_blocks: Keys) -> tuple[Int, Int]:
        """Bytes before each key of cache blocks (and all), and where each cache block starts among
        the keys (and the end)."""
        keys, first = self._source.keys.list_keys(*self._find_items(cache_blocks))
        return np.concatenate([[0], np.cumsum(self._source.key_lengths(keys))]), first

    def _find_items(self, cache_blocks: Keys) -> tuple[Int, Int]:
        """Return the first item of each cache block, and the end."""
        first = cache_blocks.astype(np.int64) * self._cache_block
        return first, np.minimum(first + self._cache_block, self._source.keys.count)
