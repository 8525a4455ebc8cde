"""The placement of samples on the nodes of a job, as arithmetic. Pure.

Samples are placed in cache blocks of `cache_block` samples. Cache block u is the samples
[u * cache_block, (u+1) * cache_block): neighbours in storage that one node reads in one go and
keeps. A keyed permutation puts all cache blocks in a row that has nothing to do with their numbers,
so that data sorted by class is spread evenly. Each node owns one stretch of that row, its share. A
cache block's slot is its place in the owner's stretch. Low slots are in memory, the next ones on
the node's disk, and cache blocks beyond all shares stay in storage.

The key is the same in every epoch: a sample has one owner for the whole run. No policy reads less
from storage than such a fixed division, because every epoch needs every sample once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from enum import IntEnum
from fractions import Fraction
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .. import limits
from ..errors import UsageError
from ..extent import Int
from ..order.keys import Words
from ..order.order import Order, check_words

Nodes = npt.NDArray[np.int32]
"""Numbers of nodes, -1 for none."""

_measured_at_once = 1 << 16  # samples


class CacheTier(IntEnum):
    """Tier that keeps a cache block, the nearest first."""

    RAM = 0
    DISK = 1
    STORAGE = 2


class BlockSlots(NamedTuple):
    """Owners and slots of cache blocks.

    owner:  int32, the node; -1 if the cache block stays in storage.
    slot:   int64, the place among the owner's cache blocks, 0..share-1; undefined without an owner.
    """

    owner: Nodes
    slot: Int


@dataclass(frozen=True, slots=True)
class Placement:
    """A map that gives each cache block of `count` samples at most one owner, in O(nodes) memory.

    count:              samples of the data set, 1..2^62.
    ram_cache_blocks:   cache blocks that each node keeps in memory.
    disk_cache_blocks:  cache blocks that each node also keeps on its disk, if any.
    ranks:              ranks of each node. Nodes share in this proportion, because a node that
                        processes more should own more. None: all alike.
    seed:               of the permutation; equal on all ranks.
    cache_block:        samples of a cache block; the last cache block may have fewer.
    dealt:              cache blocks that each node owns, from `deal_bytes`; None: equal shares.

    Equal shares are as equal, by rank, as capacities allow. If they allow it, nodes with the same
    number of ranks differ by at most one cache block, and the first ones have more. A look-up takes
    about 15 ns a sample. Threads may use one placement together.
    """

    count: int
    ram_cache_blocks: tuple[int, ...]
    disk_cache_blocks: tuple[int, ...] | None = None
    ranks: tuple[int, ...] | None = None
    _: KW_ONLY
    seed: int
    cache_block: int = 1
    dealt: tuple[int, ...] | None = None
    _order: Order = field(init=False, repr=False, compare=False)
    _starts: Int = field(init=False, repr=False, compare=False)
    _ends: Int = field(init=False, repr=False, compare=False)
    _guide: Nodes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("count", "cache_block"):
            (value,) = _check_whole(name, [getattr(self, name)], 1)
            object.__setattr__(self, name, value)
        ram = _check_whole("ram_cache_blocks", self.ram_cache_blocks, 0)
        disk = _check_whole("disk_cache_blocks", self.disk_cache_blocks or [0] * len(ram), 0)
        ranks = _check_whole("ranks", self.ranks or [1] * len(ram), 1)
        if not ram or not len(ram) == len(disk) == len(ranks):
            sizes = f"{len(ram)}, {len(disk)} and {len(ranks)} nodes"
            what = f"ram_cache_blocks, disk_cache_blocks and ranks are of {sizes}"
            raise UsageError(f"{what}: give one entry a node")
        object.__setattr__(self, "ram_cache_blocks", ram)
        object.__setattr__(self, "disk_cache_blocks", disk)
        object.__setattr__(self, "ranks", ranks)
        object.__setattr__(self, "_order", Order(self.cache_blocks, self.seed, purpose="placement"))
        shares = self.dealt or divide_shares(self.cache_blocks, self._capacities, ranks)
        object.__setattr__(self, "_starts", np.array([0, *accumulate(shares)], np.int64))
        object.__setattr__(self, "_ends", np.append(self._starts[1:], limits.order_count_max))
        # One bucket is a few times shorter than a share, so that most hold no end, or one.
        buckets = np.arange((self.cache_blocks >> self._shift) + 1, dtype=np.int64) << self._shift
        guide = np.searchsorted(self._starts[1:], buckets, side="right").astype(np.int32)
        object.__setattr__(self, "_guide", guide)

    def deal_bytes(self, measure: Callable[[Words], Int]) -> Placement:
        """Return this placement with shares as equal in bytes as they are in cache blocks here.

        measure:  gives the bytes of cache blocks.

        If sizes vary, nodes with equal numbers of cache blocks have unequal bytes, and the first
        epoch ends when the fullest has read its own. So stretches are cut by bytes, as far as
        capacities allow. Nothing changes where some cache blocks have no owner, since each node is
        full then, nor above `limits.dealt_samples_max`, where chance evens out what nodes have and
        looking at all sizes takes long.
        """
        count = self.cache_blocks
        is_partial = int(self._starts[-1]) < count
        if self.nodes == 1 or is_partial or self.count > limits.dealt_samples_max:
            return self
        step = max(1, _measured_at_once // self.cache_block)
        runs = ((first, min(step, count - first)) for first in range(0, count, step))
        size = np.concatenate([measure(self._order.run(*run)) for run in runs])
        ends = np.cumsum(size)
        total = int(ends[-1])
        # A cache block goes to the stretch in which the middle of its bytes lies.
        cuts = np.searchsorted(
            2 * ends - size, [2 * total * end // count for end in self._starts[1:].tolist()]
        )
        shares, start, after = [], 0, sum(self._capacities)
        for cut, capacity in zip(cuts.tolist(), self._capacities, strict=True):
            after -= capacity
            end = min(max(start, cut, count - after), start + capacity)
            shares.append(end - start)
            start = end
        return (
            self
            if not total or tuple(shares) == self.shares
            else replace(self, dealt=tuple(shares))
        )

    @property
    def nodes(self) -> int:
        """Nodes of the job."""
        return len(self.ram_cache_blocks)

    @property
    def cache_blocks(self) -> int:
        """Cache blocks of the data set."""
        return -(-self.count // self.cache_block)

    @property
    def shares(self) -> tuple[int, ...]:
        """Cache blocks that each node owns."""
        return tuple(np.diff(self._starts).tolist())

    @property
    def kept(self) -> float:
        """Fraction of all samples that have an owner."""
        placed = int(self._starts[-1])
        missing = self.cache_blocks * self.cache_block - self.count  # of the last cache block
        (owner,), _ = self.place([self.cache_blocks - 1])
        return (placed * self.cache_block - (missing if owner >= 0 else 0)) / self.count

    def owners(self, samples: npt.ArrayLike) -> Nodes:
        """Return the node that keeps each of these samples, -1 for none, in their shape.

        Raises UsageError if a sample is not an integer in 0..count-1.
        """
        return self._owners_at(self._row(self.cache_blocks_at(samples)))

    def cache_blocks_at(self, samples: npt.ArrayLike) -> Words:
        """Return the cache block of each of these samples, uint64, in their shape.

        Raises UsageError if a sample is not an integer in 0..count-1.
        """
        words = check_words(samples, self.count, "sample")
        return words if self.cache_block == 1 else words // np.uint64(self.cache_block)

    def span(self, cache_block: int) -> tuple[int, int]:
        """Return the samples of a cache block as a half-open range (first, end)."""
        return cache_block * self.cache_block, min(self.count, (cache_block + 1) * self.cache_block)

    def place(self, cache_blocks: npt.ArrayLike) -> BlockSlots:
        """Return owner and slot of each of these cache blocks, in their shape."""
        row = self._row(cache_blocks)
        owner = self._owners_at(row)
        return BlockSlots(owner, row - self._starts[owner])

    def tiers(self, cache_blocks: npt.ArrayLike) -> npt.NDArray[np.int8]:
        """Return the `CacheTier` of each of these cache blocks, in their shape."""
        owner, slot = self.place(cache_blocks)
        ram = np.array(self.ram_cache_blocks, np.int64)
        node_tier = np.where(slot < ram[owner], np.int8(CacheTier.RAM), np.int8(CacheTier.DISK))
        return np.where(owner < 0, np.int8(CacheTier.STORAGE), node_tier)

    def _row(self, cache_blocks: npt.ArrayLike) -> Int:
        """Return the places of cache blocks in the row of which each node owns a stretch."""
        return self._order.positions(cache_blocks).view(np.int64)

    @property
    def _capacities(self) -> list[int]:
        """Cache blocks that each node has room for."""
        disk = self.disk_cache_blocks or (0,) * self.nodes
        return [a + b for a, b in zip(self.ram_cache_blocks, disk, strict=True)]

    @property
    def _shift(self) -> int:
        """Bits by which a place in the row is shifted to its bucket in the guide.

        There are at least 4 buckets to a mean share.
        """
        return max(0, (self.cache_blocks // (4 * self.nodes)).bit_length() - 1)

    def _owners_at(self, row: Int) -> Nodes:
        flat = row.reshape(-1)
        owner: Nodes = self._guide[flat >> self._shift]
        owner += flat >= self._ends[owner]
        short = np.flatnonzero(flat >= self._ends[owner])  # buckets with more ends, of small shares
        if len(short):
            owner[short] = np.searchsorted(self._ends, flat[short], side="right")
        if self._starts[-1] < self.cache_blocks:
            owner[owner == self.nodes] = -1
        return owner.reshape(row.shape)


def divide_shares(cache_blocks: int, capacities: list[int], weights: tuple[int, ...]) -> list[int]:
    """Divide cache blocks among nodes: min(capacity, level * weight) each, for one common level.

    As water fills vessels of these capacities and widths to one level. Shares are
    rounded by largest remainder.
    """
    shares = list(capacities)
    unshared, width = cache_blocks, sum(weights)
    nodes = sorted(range(len(shares)), key=lambda k: Fraction(capacities[k], weights[k]))
    for number, k in enumerate(nodes):
        if capacities[k] * width > unshared * weights[k]:  # nor will those after it be full
            open_nodes = sorted(nodes[number:])
            break
        unshared -= capacities[k]
        width -= weights[k]
    else:
        return shares
    for k in open_nodes:
        shares[k] = unshared * weights[k] // width
    by_remainder = sorted(open_nodes, key=lambda k: -(unshared * weights[k] % width))
    for k in by_remainder[: unshared - sum(shares[k] for k in open_nodes)]:
        shares[k] += 1
    return shares


def _check_whole(name: str, values: object, least: int) -> tuple[int, ...]:
    try:
        integers = tuple(operator.index(value) for value in values)  # type: ignore[attr-defined]
    except TypeError:
        raise UsageError(f"Placement.{name} is {values!r}: use whole numbers") from None
    for value in integers:
        if not least <= value <= limits.order_count_max:
            raise UsageError(f"Placement.{name} has {value}: use {least}..2^62")
    return integers
