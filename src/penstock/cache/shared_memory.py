"""Tiers of a node, shared by its ranks and filled once, slot by slot; and the tier in memory.

A slot holds one cache block. Its life: empty -> claimed by the rank that reads it -> ready at an
offset, for as long as the job runs; nothing is evicted. A rank calls

    codes = tier.claim(slots)                  READY, MINE or BUSY
    at = tier.allocate(lengths)                of those that are MINE; -1 where the tier is full
    ... bytes are read into tier.data[at:at + length], by an engine for instance
    tier.publish(slots, at, lengths)           or tier.abandon(slots), where reading failed
    tier.gather(at, lengths, out, targets)     of those that are READY, at `tier.offsets(slots)`

A slot that is BUSY is asked for again later, or its bytes are read from storage. All calls take
many slots, release the GIL and may come from any thread. A rank that is killed costs the others
nothing: its claims name it, and the next rank that wants one of them takes it over.
cpp/cache/shared_memory.hpp says how.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import ClassVar, NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt

from .. import _core
from ..engine.protocol import Buffer
from ..errors import ForkError, LimitError, StateError, StorageError, UsageError
from ..extent import Int
from ..plan.cache_actions import BUSY as BUSY
from ..plan.cache_actions import LEFT_OUT as LEFT_OUT
from ..plan.cache_actions import MINE as MINE
from ..plan.cache_actions import READY as READY

T = TypeVar("T")

Codes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]

alignment_default = 64
"""Alignment of cache blocks: a cache line. Engines that read past the page cache want 4096."""


class SlabAddress(NamedTuple):
    """Address by which other processes of the host attach to a tier, while this one has it."""

    pid: int
    fd: int


class SlabCounters(NamedTuple):
    """Totals of all ranks of the host since the tier was created.

    ready:            slots.
    allocated_bytes:  given out by `allocate`, with what alignment adds.
    published_bytes:  of slots that became ready; the difference to `allocated_bytes` is
                      being filled, or was left behind by a rank that was killed or gave up.
    taken_over:       claims of ranks that were killed.
    dropped:          slots that were ready and were found damaged.
    """

    ready: int
    allocated_bytes: int
    published_bytes: int
    taken_over: int
    dropped: int


class SlotTable:
    """The slots of a tier, shared by the processes of one host; the tier knows where its cache
    blocks are.

    Offsets are of room that `allocate` gives out once, in a memory or a file of `room_bytes`.
    Methods raise UsageError after `close`, and ForkError in a forked child if they would claim.
    """

    _inside: ClassVar[bool] = False
    """True if the room is part of the shared memory."""

    def __init__(self, core: _core.Slab) -> None:
        self._core = core

    @classmethod
    def create(
        cls,
        slots: int,
        room_bytes: int,
        identity: bytes,
        *,
        alignment: int = alignment_default,
    ) -> Self:
        """Create a table whose slots are all empty.

        slots:       of cache blocks, 1 or more; each costs 8 bytes.
        room_bytes:  for all cache blocks together; each starts at a multiple of `alignment`.
        identity:    16 bytes, of the data and its placement; processes that attach give the same.

        Raises StorageError if the system refuses, LimitError if the machine has less memory.
        """
        check_identity(identity)
        if slots < 1 or room_bytes < 0:
            raise UsageError(f"a tier of {slots} slots, {room_bytes} bytes: use 1 and 0, or more")
        if not 1 <= alignment <= 4096 or alignment & (alignment - 1):
            raise UsageError(f"an alignment of {alignment}: use a power of two from 1 to 4096")
        shared_bytes = 8 * slots + (room_bytes if cls._inside else 0)
        installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if shared_bytes > installed:
            what = f"a tier of {shared_bytes:,} bytes exceeds this machine's {installed:,}"
            raise LimitError(f"{what}: lower Cache.ram_bytes")
        core = _call_core(
            lambda: _core.Slab.create(slots, room_bytes, alignment, cls._inside, identity),
            f"shared memory of {shared_bytes:,} bytes",
            "give the tier less",
        )
        return cls(core)

    @classmethod
    def attach(cls, address: SlabAddress | tuple[int, int], identity: bytes) -> Self:
        """Attach to the slots of another, living process of this host.

        Raises StorageError if that process is gone or may not be looked into, StateError if its
        memory holds no tier of this data.
        """
        check_identity(identity)
        pid, fd = address
        what = f"the tier of process {pid}, descriptor {fd}"
        core = _call_core(
            lambda: _core.Slab.attach(pid, fd, identity),
            what,
            "attach through another process of the same user that has it",
        )
        if core.is_data_inside != cls._inside:
            raise StateError(f"{what}, is of another kind: attach a {cls.__name__} to one")
        return cls(core)

    @property
    def address(self) -> SlabAddress:
        """Address by which others attach."""
        return SlabAddress(os.getpid(), self._call(lambda: int(self._core.fd)))

    @property
    def slots(self) -> int:
        return self._call(lambda: int(self._core.slots))

    def claim(self, slots: Int) -> Codes:
        """Return READY, MINE or BUSY for each slot. A claim of a process that ended is taken
        over."""
        return self._call(self._core.claim, slots)

    def offsets(self, slots: Int) -> Int:
        """Return the offset of each slot's bytes; -1 if it is not ready."""
        return self._call(self._core.find_offsets, slots)

    def allocate(self, lengths: Int) -> Int:
        """Reserve room for bytes of these lengths; return the offsets, -1 if full."""
        return self._call(self._core.allocate, lengths)

    def holds(self, slots: Int) -> Mask:
        """Return a mask of the slots that are claimed here."""
        return self._call(self._core.has_claims, slots)

    def publish(self, slots: Int, at: Int, lengths: Int) -> Mask:
        """Make slots ready that were claimed here and whose bytes are in place.

        The mask is False for a claim that was not held here; nothing was changed for it.
        """
        return self._call(self._core.publish, slots, at, lengths)

    def abandon(self, slots: Int) -> None:
        """Give claims back, so that others may claim; room that was allocated for them is lost."""
        self._call(self._core.abandon, slots)

    def drop(self, slots: Int, at: Int) -> None:
        """Empty slots whose bytes were found damaged at these offsets."""
        self._call(self._core.drop, slots, at)

    def counters(self) -> SlabCounters:
        return SlabCounters(*self._call(self._core.counters))

    def close(self) -> None:
        """Give all claims back. May be called again."""
        self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, function: Callable[..., T], *columns: object) -> T:
        try:
            return function(*columns)
        except RuntimeError:
            if not self._core.is_inherited:
                raise
            raise ForkError("this tier's claims are the parent's: attach in the child") from None
        except (ValueError, TypeError, IndexError) as error:
            raise UsageError(f"the tier cannot do this: {error}") from None


class RamTier(SlotTable):
    """Slots with their cache blocks in memory that the processes of one host share.

    Memory is taken from the system as it is touched, and gone when the last process that has the
    tier has closed it or ended, by whatever cause; arrays on `data` keep it too.

    The first rank creates it, the others attach through any process that has it.
    """

    _inside = True

    @property
    def data(self) -> Buffer:
        """All bytes, writable: a cache block is read straight to its final place."""
        return self._call(lambda: self._core.data)

    def populate(self) -> None:
        """Take all memory from the system now (0.2 to 2 GB/s), rather than as it is touched."""
        _call_core(self._core.populate, "taking the memory of a tier", "give the tier less")

    def gather(self, at: Int, lengths: Int, out: Buffer, targets: Int) -> None:
        """Copy `lengths[i]` bytes from `data[at[i]:]` to `out[targets[i]:]`.

        Raises UsageError, with nothing copied, if an extent leaves `data` or `out`.
        """
        self._call(self._core.gather, at, lengths, targets, out)


def gather(source: Buffer, at: Int, lengths: Int, out: Buffer, targets: Int) -> None:
    """Copy `lengths[i]` bytes from `source[at[i]:]` to `out[targets[i]:]`, for many i.

    Raises IndexError, with nothing copied, if an extent leaves `source` or `out`.
    """
    _core.gather(source, at, lengths, targets, out)


def fence() -> None:
    """Order this thread's accesses to shared memory.

    Others see the writes before this call before those after it. Reads after this call are not done
    before it.
    """
    _core.fence()


def check_identity(identity: bytes) -> None:
    """Raise UsageError unless it has 16 bytes."""
    if len(identity) != 16:
        raise UsageError(f"an identity of {len(identity)} bytes: use 16, of a hash for instance")


def _call_core(call: Callable[[], T], what: str, remedy: str) -> T:
    """Call the core; turn its errors into errors of penstock."""
    try:
        return call()
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise StorageError(error.errno, f"{what}: {reason}: {remedy}") from None
    except ValueError as error:
        raise StateError(f"{what}: {error}: {remedy}") from None
