"""Cache blocks: their size, the number that fits into a room, and the keys in each. Pure.

A cache block is neighbouring samples that are placed, read and kept as one. Larger blocks make
larger reads. They also make placement coarser, let a step wait for more than it needs while the
first epoch starts, and, if lengths vary, leave room unused for chance. So the best block is the
smallest one that reads about as fast as large reads do.

A key is a field of a sample: sample * fields + field. A cache block has all keys of its samples,
one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from .. import limits
from ..extent import Int
from ..index.table import Index
from ..order.shuffling import ReadCost
from .placement import Placement

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


def count_cache_blocks(index: Index, cache_block: int, room_bytes: int, alignment: int) -> int:
    """Count the cache blocks that fit into a room; one that by chance does not fit is left out."""
    mean, deviation = measure_cache_blocks(index, cache_block, alignment)
    total = -(-index.count // cache_block)
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


def required_bytes(index: Index, cache_block: int, cache_blocks: int, alignment: int) -> int:
    """Bytes of room in which `cache_blocks` cache blocks fit, by `count_cache_blocks`'s rule."""
    mean, deviation = measure_cache_blocks(index, cache_block, alignment)
    return (
        math.ceil(cache_blocks * mean + 3 * deviation * math.sqrt(cache_blocks))
        + limits.slab_spare_bytes
    )


def sample_key_lengths(index: Index) -> Int:
    """Lengths in bytes of some keys, of samples spread over the data: field after field."""
    ids = np.linspace(0, index.count - 1, min(index.count, limits.cache_blocks_looked_at))
    samples = ids.astype(np.uint64)
    fields = range(len(index.fields))
    return np.concatenate([index.lengths(samples, field) for field in fields])


def measure_cache_blocks(index: Index, cache_block: int, alignment: int) -> tuple[float, float]:
    """Measure the mean bytes that a cache block takes, and their standard deviation."""
    total = -(-index.count // cache_block)
    some = np.linspace(0, total - 1, min(total, limits.cache_blocks_looked_at)).astype(np.int64)
    ids = (some[:, None] * cache_block + np.arange(cache_block)).reshape(-1)
    ids = np.minimum(ids, index.count - 1).astype(np.uint64)
    size = sum(
        (index.lengths(ids, field) for field in range(len(index.fields))),
        np.zeros(len(ids), np.int64),
    )
    cache_blocks = size.reshape(-1, cache_block).sum(axis=1)
    padding = float((-cache_blocks % alignment).mean())
    return max(1.0, index.mean_bytes * cache_block + padding), float(cache_blocks.std())


# -- keys ------------------------------------------------------------------------------------------

Keys = npt.NDArray[np.uint64]
"""Fields of samples: sample * fields + field."""


class KeyedSource(Protocol):
    """Data whose samples are addressed by key: `penstock.cache.key_index.Addressed`."""

    @property
    def fields(self) -> Sequence[object]: ...
    @property
    def row_bytes(self) -> Sequence[int | None]: ...
    def key_lengths(self, keys: Keys) -> Int: ...


class BlockLayout:
    """Keys, sizes and offsets within cache blocks."""

    def __init__(self, source: KeyedSource, placement: Placement) -> None:
        self._source, self._placement = source, placement
        self._fields = len(source.fields)
        self._width = np.uint64(placement.cache_block * self._fields)

    def measure(self, cache_blocks: Keys) -> Int:
        """Return the bytes of each cache block."""
        ends, first = self._accumulate(cache_blocks)
        size: Int = np.diff(ends[first])
        return size

    def spread(self, cache_blocks: Keys, at: Int) -> tuple[Keys, Int]:
        """Return all keys of cache blocks that start at these offsets, and the offset of each
        key."""
        keys, first = self._list_keys(cache_blocks)
        length = self._source.key_lengths(keys)
        ends = np.cumsum(length) - length
        return keys, ends + np.repeat(at - ends[first[:-1]], np.diff(first))

    def find_offsets(self, keys: Keys, cache_blocks: Keys) -> Int:
        """Return the offset of each key in its cache block."""
        if self._width == 1:
            return np.zeros(len(keys), np.int64)
        row = (keys - cache_blocks * self._width).astype(np.int64)
        row_bytes = self._source.row_bytes[0]
        if self._fields == 1 and row_bytes is not None:
            return row * row_bytes
        cache_block, number = np.unique(cache_blocks, return_inverse=True)
        ends, first = self._accumulate(cache_block)
        inside: Int = ends[first[number] + row] - ends[first[number]]
        return inside

    def _accumulate(self, cache_blocks: Keys) -> tuple[Int, Int]:
        """Bytes before each key of cache blocks (and all), and where each cache block starts among
        the keys (and the end)."""
        keys, first = self._list_keys(cache_blocks)
        return np.concatenate([[0], np.cumsum(self._source.key_lengths(keys))]), first

    def _list_keys(self, cache_blocks: Keys) -> tuple[Keys, Int]:
        """All keys of cache blocks, and where each cache block starts among them (and the end)."""
        samples = self._placement.cache_block
        remaining = self._placement.count - cache_blocks.astype(np.int64) * samples
        key_counts = np.minimum(samples, remaining) * self._fields
        first = np.concatenate([[0], np.cumsum(key_counts)])
        inside = np.arange(first[-1]) - np.repeat(first[:-1], key_counts)
        keys = np.repeat(cache_blocks * self._width, key_counts) + inside.astype(np.uint64)
        return keys, first
