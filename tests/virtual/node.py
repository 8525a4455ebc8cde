"""Modelled parts that the ranks of a node share: the data, a slab, a disk, replicas.

The slab and the disk have the claims of the real ones (`penstock.cache.shared_memory`,
`penstock.cache.disk`): a slot is claimed by one rank at a time, and the claim of a rank that has
ended is taken over. Bytes are real bytes, at the places that the session gives them.
"""

from __future__ import annotations

import itertools
import random
import zlib
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from penstock.extent import Int
from penstock.plan import Keys
from penstock.plan.cache_actions import BUSY, LEFT_OUT, MINE, READY
from penstock.plan.cache_keys import SampleKeys

SLAB_ALIGNMENT, DISK_ALIGNMENT = 64, 4096
"""Alignments of cache blocks, those of the real tiers."""
Buffer = npt.NDArray[np.uint8]


class ScenarioError(AssertionError):
    """An oracle's finding: what the session did wrong."""


def require(holds: bool, what: str) -> None:
    """Raise ScenarioError unless it holds."""
    if not holds:
        raise ScenarioError(what)


def pad_bytes(size_bytes: int) -> int:
    """Bytes of the block that `penstock.engine.Arena` lends for so many."""
    unit = max(4096, (1 << max(0, size_bytes.bit_length() - 1)) // 8)
    return -(-size_bytes // unit) * unit


def align(size_bytes: int, alignment: int) -> int:
    """Round bytes up to a multiple."""
    return -(-size_bytes // alignment) * alignment


class _Room:
    """Room that is given out once, as the real slab does: what is asked for has to fit, what
    alignment adds need not."""

    def __init__(self, room_bytes: int, alignment: int) -> None:
        self._room_bytes, self._alignment, self._used = room_bytes, alignment, 0

    def allocate(self, size_bytes: int) -> int:
        """Return an offset, -1 if it does not fit."""
        if self._used + size_bytes > self._room_bytes:
            return -1
        at = self._used
        self._used += align(size_bytes, self._alignment)
        return at


class VirtualData:
    """Samples of random lengths and bytes, addressed by key."""

    def __init__(self, seed: int, samples: int, fields: int, length_max: int) -> None:
        draw = np.random.default_rng(seed)
        self.fields: tuple[int, ...] = tuple(range(fields))
        self.row_bytes: tuple[int | None, ...] = (None,) * fields
        self.keys = SampleKeys(samples, fields)
        self.lengths = draw.integers(0, length_max + 1, samples * fields)
        if not seed % 3 and fields == 1:
            self.lengths[:] = length_max
            self.row_bytes = (length_max,)
        self.item_bytes = float(self.lengths.sum() / samples)
        self.lengths_list: list[int] = self.lengths.tolist()
        self._ends: list[int] = [0, *itertools.accumulate(self.lengths_list)]
        self._bytes = draw.integers(0, 256, self._ends[-1], np.uint8)
        self.sums = [_checksum(self.bytes_of(key)) for key in range(samples * fields)]
        """Checksum of each key, as a container has them."""

    def key_lengths(self, keys: Keys) -> Int:
        """Return the bytes of each key."""
        return self.lengths[keys.astype(np.int64)]

    def bytes_of(self, key: int) -> Buffer:
        """Return the bytes of a key."""
        return self._bytes[self._ends[key] : self._ends[key + 1]]

    def damaged_bytes_of(self, key: int) -> Buffer:
        """Return the bytes of a key as storage gives them that lies."""
        return self.bytes_of(key) ^ np.uint8(1 + key % 255)

    def is_whole(self, key: int, data: Buffer) -> bool:
        """Tell whether the bytes of a key pass the container's checksum."""
        return _checksum(data) == self.sums[key]


def _checksum(data: Buffer, salt: bytes = b"") -> int:
    return zlib.crc32(data.data, zlib.crc32(salt))


def _salt(slot: int) -> bytes:
    # Whole numbers, as in the real table: a byte of salt beside a byte of data tells too little.
    return slot.to_bytes(8, "little")


@dataclass(eq=False)
class _Claims:
    """Claims of slots: by which rank's life each is held."""

    holders: dict[int, object] = field(default_factory=dict)

    def claim(self, slot: int, life: object, living: set[object]) -> int:
        holder = self.holders.get(slot)
        if holder is not None and holder in living:
            return BUSY
        self.holders[slot] = life
        return MINE

    def is_held(self, slot: int, life: object) -> bool:
        return self.holders.get(slot) is life

    def give_back(self, slots: list[int], life: object) -> None:
        for slot in slots:
            if self.is_held(slot, life):
                del self.holders[slot]

    def end_life(self, life: object) -> None:
        """Give all claims of a rank that closes back."""
        self.give_back(list(self.holders), life)


def _check_slots(slots: Int, count: int) -> list[int]:
    """List slots, all of which have to be there."""
    numbers: list[int] = slots.tolist()
    is_there = min(numbers) >= 0 and max(numbers) < count
    require(is_there, "a slot is claimed that is not there")
    return numbers


class VirtualSlab:
    """Memory of a node for its cache blocks."""

    def __init__(self, slots: int, room_bytes: int) -> None:
        self._slots = slots
        self.data = np.full(room_bytes, 0xCC, np.uint8)
        self.claims = _Claims()
        self.ready: dict[int, int] = {}  # offsets by slot
        self._room = _Room(room_bytes, SLAB_ALIGNMENT)

    def claim(self, slots: Int, life: object, living: set[object]) -> npt.NDArray[np.uint8]:
        """Claim slots for a rank's life."""
        numbers = _check_slots(slots, self._slots)
        codes = [
            READY if slot in self.ready else self.claims.claim(slot, life, living)
            for slot in numbers
        ]
        return np.array(codes, np.uint8)

    def allocate(self, size: Int) -> Int:
        """Return room for so many bytes each, -1 if full."""
        return np.array([self._room.allocate(size_bytes) for size_bytes in size.tolist()], np.int64)

    def publish(self, slots: Int, at: Int, life: object) -> None:
        """Make slots ready that are claimed by this life."""
        for slot, place in zip(slots.tolist(), at.tolist(), strict=True):
            require(slot not in self.ready, f"slot {slot} of a slab is published twice")
            if self.claims.is_held(slot, life):
                self.ready[slot] = place
                del self.claims.holders[slot]

    def offsets(self, slots: Int) -> Int:
        """Return the offset of each slot, -1 if it is not ready."""
        return np.array([self.ready.get(slot, -1) for slot in slots.tolist()], np.int64)


class VirtualDisk:
    """Disk of a node for its cache blocks; its contents outlive the ranks."""

    def __init__(self, slots: int, room_bytes: int) -> None:
        self._slots = slots
        self.claims = _Claims()
        self.is_full = self.is_broken = False
        self.room_bytes = room_bytes
        self._room = _Room(room_bytes, DISK_ALIGNMENT)
        self._blocks: dict[int, tuple[Buffer, int]] = {}  # bytes, their checksum

    def claim(
        self, slots: Int, life: object, living: set[object], is_writable: bool
    ) -> npt.NDArray[np.uint8]:
        """Claim slots for a rank's life."""
        codes = []
        for slot in _check_slots(slots, self._slots):
            if slot in self._blocks:
                codes.append(READY)
            else:
                codes.append(self.claims.claim(slot, life, living) if is_writable else LEFT_OUT)
        return np.array(codes, np.uint8)

    def write(self, slots: list[int], blocks: list[Buffer], life: object) -> bool:
        """Write cache blocks of slots claimed by this life; False if writing is to end."""
        for slot, block in zip(slots, blocks, strict=True):
            if not self.claims.is_held(slot, life):
                continue
            is_writable = not (self.is_full or self.is_broken)
            if is_writable and self._room.allocate(block.nbytes) >= 0:
                self._blocks[slot] = (block.copy(), _checksum(block, _salt(slot)))
            del self.claims.holders[slot]
        return not self.is_broken

    def read(self, slots: list[int]) -> dict[int, Buffer]:
        """Read cache blocks that are there; one that fails its checksum is dropped."""
        blocks = {}
        for slot in slots:
            if slot not in self._blocks:
                continue
            block, checksum = self._blocks[slot]
            if _checksum(block, _salt(slot)) == checksum:
                blocks[slot] = block.copy()
            else:
                del self._blocks[slot]
        return blocks

    def damage(self, draw: random.Random) -> None:
        """Damage a cache block."""
        if self._blocks:
            self.cut(draw.choice(sorted(self._blocks)), 0)

    def tear(self, draw: random.Random) -> None:
        """Undo writes of some cache blocks, or their ends; or put them into each other's place."""
        blocks = self._blocks
        for slot in sorted(blocks):
            if draw.random() < 0.5:
                self.cut(slot, draw.choice((0, 0, draw.randrange(1 + blocks[slot][0].nbytes))))
        for one, other in itertools.pairwise(sorted(blocks)):
            if draw.random() < 0.1:
                blocks[one], blocks[other] = blocks[other], blocks[one]

    def cut(self, slot: int, kept_bytes: int) -> None:
        """Set what lies behind the first bytes of a cache block to what was there before: zeros."""
        block, checksum = self._blocks[slot]
        cut = np.zeros_like(block)
        cut[:kept_bytes] = block[:kept_bytes]
        self._blocks[slot] = (cut, checksum)


class VirtualReplicas:
    """Copies of keys of other nodes, a bounded number of them."""

    def __init__(self, keys_max: int) -> None:
        self._keys_max = keys_max
        self._copies: dict[int, bytes] = {}

    def find(self, key: int) -> bytes | None:
        """Return the copy of a key."""
        return self._copies.get(key)

    def offer(self, key: int, data: bytes, draw: random.Random) -> None:
        """Copy a key if chance has it; another one makes room."""
        if self._keys_max and draw.random() < 0.7:
            while len(self._copies) >= self._keys_max:
                del self._copies[draw.choice(list(self._copies))]
            self._copies[key] = data


@dataclass(eq=False)
class VirtualNode:
    """A node: what its ranks share."""

    slab: VirtualSlab
    disk: VirtualDisk
    replicas: VirtualReplicas
