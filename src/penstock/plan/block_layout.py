"""Layout of keys in their cache blocks. Pure.

A key is a field of a sample: sample * fields + field. A cache block has all keys of its samples,
one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..extent import Int
from .placement import Placement

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
        left = self._placement.count - cache_blocks.astype(np.int64) * samples
        held = np.minimum(samples, left) * self._fields
        first = np.concatenate([[0], np.cumsum(held)])
        inside = np.arange(first[-1]) - np.repeat(first[:-1], held)
        keys = np.repeat(cache_blocks * self._width, held) + inside.astype(np.uint64)
        return keys, first
