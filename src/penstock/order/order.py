"""The order: a function from position to sample, and back, in constant memory.

`Order(count, seed).samples(positions)` gives the samples at those positions of an epoch;
`positions(samples)` gives the positions at which samples are used. Both are pure functions of the
order's fields, so every rank knows what every other reads, at any step, without messages.

A position goes through at most two permutations of the same kind:

    exact     position -> sample, one permutation of all samples.
    blocked   position -> (within its group of blocks) -> slot of a block -> (blocks) -> sample,
              for storage on which small reads are slow: a group's samples are in few blocks.
    none      position = sample.

Keys are a hash of (purpose, seed, epoch, stream, count), so that no two of these tuples give
related orders. `seed + epoch` would make epoch 1 of one seed equal to epoch 0 of the next.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import Any, Literal, Protocol, Self

import numpy as np
import numpy.typing as npt

from .. import limits
from .._core import Groups, Permutation
from ..arguments import check_fields, check_whole, choice, whole
from ..errors import UsageError
from .keys import GOLDEN, WORD, Words, find_outside, mix64

Shuffle = Literal["exact", "blocked", "none"]
"""Method by which the sequence of an epoch is drawn."""

Purpose = Literal[
    "sample", "placement", "shard", "mixture", "augmentation", "selection", "weights", "packing"
]
"""Use of an order; orders of different purposes are unrelated."""

_TAGS = {
    "sample": 1,
    "placement": 2,
    "shard": 3,
    "mixture": 4,
    "augmentation": 5,
    "selection": 6,
    "weights": 7,
    "packing": 8,
}
_BLOCKS, _GROUPS = 0x100, 0x200  # added to a tag for the two permutations of a blocked order


Marks = Mapping[str, npt.NDArray[np.int64]]
"""Values that an order gives for each position besides the sample, by name."""


class Ordering:
    """Assignment of samples to the positions of an epoch: the base of `Order`, `WeightedOrder`,
    `DrawnOrder`, `Mixture`, `Selection`, `Curriculum` and the orders of rows."""

    __slots__ = ()
    seed: int
    epoch: int
    shuffle: Shuffle

    @property
    def algorithm(self) -> str:
        """Identifier of the algorithm; a saved state continues only under the same one."""
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    def at_epoch(self, epoch: int) -> Self:
        """Return the order of another epoch of the same data."""
        return replace(self, epoch=epoch)  # type: ignore[type-var]

    def for_steps(self, global_batch: int, steps: int) -> Self:
        """Return the order that knows the division of an epoch into steps; see `Mixture`."""
        return self

    def samples(self, positions: npt.ArrayLike) -> Words:
        """Return the samples at these positions, in their shape."""
        return self.rows(positions)[0]

    def rows(self, positions: npt.ArrayLike) -> tuple[Words, Marks]:
        """Return the samples at these positions, and their marks."""
        return self.samples(positions), {}

    def count_drawn(self, position: int) -> list[int]:
        """Count the samples drawn over all epochs before a position, from each part."""
        raise NotImplementedError

    def parts(self) -> tuple[Order, ...]:
        """Return the orders that this one is made of."""
        raise NotImplementedError


class DerivedOrdering(Ordering):
    """An ordering that is made from another one, `inner`, and has its epochs."""

    inner: Ordering

    def __len__(self) -> int:
        return len(self.inner)

    @property
    def seed(self) -> int:  # type: ignore[override]
        return self.inner.seed

    @property
    def epoch(self) -> int:  # type: ignore[override]
        return self.inner.epoch

    @property
    def shuffle(self) -> Shuffle:  # type: ignore[override]
        return self.inner.shuffle

    def at_epoch(self, epoch: int) -> Self:
        return replace(self, inner=self.inner.at_epoch(epoch))  # type: ignore[type-var]

    def count_drawn(self, position: int) -> list[int]:
        return self.inner.count_drawn(position)

    def parts(self) -> tuple[Order, ...]:
        return self.inner.parts()


class _Map(Protocol):
    """Interface of permutations and their compositions, as `Permutation` of the core has it."""

    def forward(self, positions: Words, samples: Words) -> int: ...
    def inverse(self, samples: Words, positions: Words) -> int: ...


def key_state(tag: int, *words: int) -> int:
    """Hash 64-bit words to the generator's state from which a permutation is drawn."""
    state = tag
    for word in words:
        state = mix64(((state ^ word) + GOLDEN) & WORD)
    return state


@dataclass(frozen=True, slots=True)
class Order(Ordering):
    """A bijection between the positions of an epoch and its samples, both 0..count-1.

    count:    samples, 1..2^62.
    seed, epoch, stream:  0..2^64-1; any change gives an unrelated order. They are hashed to 64
              bits, so that 2^64 orders are drawn at most: beyond 20 samples not every sequence.
    shuffle:  "exact", "blocked" or "none".
    block:    samples that are neighbours in storage and stay together, for "blocked".
    group:    blocks whose samples are mixed with each other, for "blocked".
    purpose:  keeps the orders of samples, placement and so on apart.

    Memory is constant (a table of 16 KiB serves counts up to 4096); threads may share an
    order. About 2 ns a sample with AVX-512; forward and back cost the same.
    """

    count: int = field(metadata=whole(1, limits.order_count_max))
    seed: int = field(metadata=whole(0, WORD))
    epoch: int = field(default=0, metadata=whole(0, WORD))
    _: KW_ONLY
    shuffle: Shuffle = field(default="exact", metadata=choice(Shuffle))
    block: int = field(default=256, metadata=whole(1, limits.order_count_max))
    group: int = field(default=64, metadata=whole(1, limits.order_count_max))
    stream: int = field(default=0, metadata=whole(0, WORD))
    purpose: Purpose = field(default="sample", metadata=choice(Purpose))
    _map: _Map = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_fields(self, "")
        if self.block * self.group > limits.order_count_max:
            raise UsageError(f"block * group is {self.block * self.group}: use at most 2^62")
        mapping: _Map
        match self.shuffle:
            case "none":
                mapping = _Identity(self.count)
            case "blocked":
                mapping = _Blocked(self)
            case _:
                mapping = Permutation(self.count, self.key())
        object.__setattr__(self, "_map", mapping)

    def __len__(self) -> int:
        return self.count

    def __reduce__(self) -> tuple[Any, ...]:
        # The fields are enough; permutations live in the core and are not pickled.
        options = {name: getattr(self, name) for name in ("shuffle", "block", "group", "stream")}
        again = partial(Order, purpose=self.purpose, **options)
        return again, (self.count, self.seed, self.epoch)

    def count_drawn(self, position: int) -> list[int]:
        return [self.epoch * self.count + position]

    def parts(self) -> tuple[Order, ...]:
        return (self,)

    @property
    def algorithm(self) -> str:
        match self.shuffle:
            case "none":
                return "none-1"
            case "blocked":
                return f"mixfeistel8-1/blocked-1:{self.block}x{self.group}"
        return "mixfeistel8-1"

    def key(self, draw: int = 0, *words: int) -> int:
        """The 64-bit state that the order's permutation is drawn from (part 0: the exact one)."""
        tag = _TAGS[self.purpose] + draw
        return key_state(tag, self.seed, self.epoch, self.stream, self.count, *words)

    def samples(self, positions: npt.ArrayLike) -> Words:
        """Return the samples at these positions, in their shape; uint64 input is not copied.

        Raises UsageError if a position is not an integer in 0..count-1.
        """
        return self._map_values(self._map.forward, positions, "position")

    def positions(self, samples: npt.ArrayLike) -> Words:
        """Return the positions of these samples, in their shape: the inverse of `samples`."""
        return self._map_values(self._map.inverse, samples, "sample")

    def run(self, start: int, count: int) -> Words:
        """Return the samples at positions start .. start+count-1."""
        start = check_whole("run(start)", start, 0, self.count)
        count = check_whole("run(count)", count, 0, self.count - start)
        out = np.empty(count, np.uint64)
        if isinstance(self._map, Permutation):
            self._map.run(start, out)
        else:
            out[:] = np.arange(start, start + count, dtype=np.uint64)
            self._map.forward(out, out)
        return out

    def _map_values(
        self, apply: Callable[[Words, Words], int], values: npt.ArrayLike, noun: str
    ) -> Words:
        integers = _check_integers(values, noun)
        # Negative values become 2^63 and more: outside as well.
        words = integers.view(np.uint64)
        out = np.empty(words.shape, np.uint64)
        outside = apply(words.reshape(-1), out.reshape(-1))
        if outside != words.size:
            raise _describe_outside(noun, integers.reshape(-1)[outside], self.count)
        return out


def check_words(values: npt.ArrayLike, count: int, noun: str) -> Words:
    """Return the values as uint64. Raises UsageError if one is not an integer in 0..count-1."""
    integers = _check_integers(values, noun)
    words = integers.view(np.uint64)
    outside = find_outside(words.reshape(-1), count)
    if outside != words.size:
        raise _describe_outside(noun, integers.reshape(-1)[outside], count)
    return words


def _describe_outside(noun: str, value: object, count: int) -> UsageError:
    return UsageError(f"{noun} {value} is outside this order: use 0..{count - 1}")


_composed = re.compile(r"(selection-1:[0-9a-f]+/)?(weights-1:[0-9a-f]+x\d+/|draw-1:\d+/)?")
_blocked = re.compile(r"mixfeistel8-1/blocked-1:(\d+)x(\d+)")


def parse_shuffle(algorithm: str) -> tuple[Shuffle, int, int] | None:
    """Return `shuffle`, `block` and `group` of the order with this `algorithm`.

    None for anything but an `Order`, or a selection or weights in one.
    """
    algorithm = _composed.sub("", algorithm, count=1)
    plain: dict[str, Shuffle] = {"mixfeistel8-1": "exact", "none-1": "none"}
    if algorithm in plain:
        return plain[algorithm], 256, 64
    blocked = _blocked.fullmatch(algorithm)
    return None if blocked is None else ("blocked", int(blocked[1]), int(blocked[2]))


class _Identity:
    """The map in which position = sample."""

    def __init__(self, count: int) -> None:
        self._count = count

    def forward(self, values: Words, out: Words) -> int:
        out[:] = values
        return find_outside(values, self._count)

    inverse = forward


class _Blocked:
    """A permutation of blocks, and of the samples within groups of `group` blocks.

    The stream is the blocks laid end to end in their permuted sequence. Its place t belongs to
    group t // (group * block). One block may be partial and is permuted like the others. From the
    place where it ends every slot starts `missing` places earlier than slot * block.
    """

    def __init__(self, order: Order) -> None:
        blocks = -(-order.count // order.block)
        span = order.block * order.group
        self._count = order.count
        self._block = np.uint64(order.block)
        self._blocks = Permutation(blocks, order.key(_BLOCKS, blocks))
        self._groups = Groups(order.count, span, order.key(_GROUPS, span))
        slot = np.array([blocks - 1], np.uint64)
        self._blocks.inverse(slot, slot)
        missing = blocks * order.block - order.count
        self._missing = np.uint64(missing)
        self._partial_slot = slot[0]
        self._partial_end = np.uint64((int(slot[0]) + 1) * order.block - missing)

    def forward(self, positions: Words, samples: Words) -> int:
        place = np.empty_like(positions)
        mapped: int = self._groups.forward(positions, place)
        if mapped == positions.size:
            place += self._missing * (place >= self._partial_end)
            slot = place // self._block
            offset = place - slot * self._block
            self._blocks.forward(slot, slot)
            np.add(slot * self._block, offset, out=samples)
        return mapped

    def inverse(self, samples: Words, positions: Words) -> int:
        outside = find_outside(samples, self._count)
        if outside == samples.size:
            slot = samples // self._block
            offset = samples - slot * self._block
            self._blocks.inverse(slot, slot)
            place = slot * self._block + offset
            place -= self._missing * (slot > self._partial_slot)
            self._groups.inverse(place, positions)
        return outside


def _check_integers(values: npt.ArrayLike, noun: str) -> npt.NDArray[Any]:
    """Return the values as a contiguous int64 or uint64 array, copied only if they are not one."""
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"{noun}s are not an array of integers: {error}") from None
    if array.size == 0 and not isinstance(values, np.ndarray):
        array = array.astype(np.uint64)  # numpy takes [] for floats
    if array.dtype.kind not in "iu":
        raise UsageError(f"{noun}s are of type {array.dtype}: use 64-bit integers")
    wide = np.int64 if array.dtype.kind == "i" else np.uint64
    return array.astype(wide, order="C", copy=False)
