"""The RAM tier of a node: memory that its ranks share, filled once, slot by slot.

A slot holds one lot. Its life: empty -> claimed by the rank that reads it -> ready at an offset,
for as long as the job runs; nothing is evicted. The work of a rank is

    codes = tier.claim(slots)                  READY, MINE or BUSY
    at = tier.allocate(lengths)                of those that are MINE; -1 where the tier is full
    ... bytes are read into tier.data[at:at + length], by an engine for instance
    tier.publish(slots, at, lengths)           or tier.abandon(slots), where reading failed
    tier.gather(at, lengths, out, targets)     of those that are READY, at `tier.offsets(slots)`

and what is BUSY is asked for again, or read from storage. All calls take many slots, release the
GIL and may come from any thread. A rank that is killed loses nothing of the others': its claims
name it, and the next rank that wants one of them takes it over. cpp/slab.hpp says how.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt

from . import _core
from .engine import Buffer
from .errors import ForkError, LimitError, StateError, StorageError, UsageError
from .extent import Int

T = TypeVar("T")

READY, MINE, BUSY = 0, 1, 2
"""What `claim` says of a slot: it is ready; it is the caller's, from now on, to publish or abandon;
another claim stands, of another rank or of this one."""

Codes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]

alignment_default = 64
"""Where lots begin: a cache line. Engines that read past the page cache want 4096."""


class Address(NamedTuple):
    """Where other processes of the host find a tier, while this one has it."""

    pid: int
    fd: int


class Counters(NamedTuple):
    """Totals of all ranks of the host since the tier was created.

    ready:            slots.
    allocated_bytes:  given out by `allocate`, with what alignment adds.
    published_bytes:  those of slots that became ready; what is missing from `allocated_bytes` is
                      being filled, or was left behind by a rank that was killed or gave up.
    taken_over:       claims of ranks that were killed.
    dropped:          slots that were ready and were found damaged.
    """

    ready: int
    allocated_bytes: int
    published_bytes: int
    taken_over: int
    dropped: int


class RamTier:
    """A slab of memory that the processes of one host share.

    Memory is taken from the system as it is touched, and gone when the last process that has the
    tier has closed it or ended, by whatever cause; arrays on `data` keep it too.

    The first rank creates it, the others attach through any process that has it.
    """

    def __init__(self, core: _core.Slab, identity: bytes) -> None:
        self._core = core
        self.identity = identity

    @classmethod
    def create(
        cls,
        slots: int,
        data_bytes: int,
        identity: bytes,
        *,
        alignment: int = alignment_default,
        populate: bool = False,
    ) -> Self:
        """An empty tier.

        slots:      of lots, 1 or more; each costs 8 bytes.
        data_bytes: for all lots together; each begins at a multiple of `alignment`.
        identity:   16 bytes, of the data and how it is placed; who attaches gives the same.
        populate:   takes all memory now (0.2 to 2 GB/s), rather than when it is first used.

        Raises LimitError where the machine has less memory, StorageError where it refuses.
        """
        _check_identity(identity)
        if slots < 1 or data_bytes < 0:
            raise UsageError(f"a tier of {slots} slots, {data_bytes} bytes: use 1 and 0, or more")
        if not 1 <= alignment <= 4096 or alignment & (alignment - 1):
            raise UsageError(f"an alignment of {alignment}: use a power of two from 1 to 4096")
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if data_bytes + 8 * slots > memory:
            raise LimitError(
                f"a tier of {data_bytes:,} bytes and {slots:,} slots does not fit into the"
                f" {memory:,} bytes of memory of this machine: give it fewer"
            )
        core = _asked(
            lambda: _core.Slab.create(slots, data_bytes, alignment, True, identity),
            f"shared memory of {data_bytes:,} bytes with {slots:,} slots",
            "give the tier less memory",
        )
        if populate:
            _asked(core.populate, f"taking {data_bytes:,} bytes of memory", "give the tier less")
        return cls(core, identity)

    @classmethod
    def attach(cls, address: Address | tuple[int, int], identity: bytes) -> Self:
        """The tier of another process of this host, which is alive and has it.

        Raises StorageError where that process is gone or may not be looked into, StateError where
        what is found there is no tier of this data.
        """
        _check_identity(identity)
        pid, fd = address
        core = _asked(
            lambda: _core.Slab.attach(pid, fd, identity),
            f"the tier of process {pid}, descriptor {fd}",
            "attach through another process of the same user that has it",
        )
        return cls(core, identity)

    @property
    def address(self) -> Address:
        """What others attach with."""
        return Address(os.getpid(), self._core.fd)

    @property
    def slots(self) -> int:
        return int(self._core.slots)

    @property
    def data(self) -> Buffer:
        """All bytes, writable: a lot is read straight to where it is to lie."""
        data: Buffer = self._core.data
        return data

    def claim(self, slots: Int) -> Codes:
        """READY, MINE or BUSY of each slot. A claim of a process that ended is taken over."""
        codes: Codes = self._call(self._core.claim, slots)
        return codes

    def offsets(self, slots: Int) -> Int:
        """Where the bytes of each slot lie in `data`; -1 where it is not ready."""
        found: Int = self._call(self._core.offsets, slots)
        return found

    def allocate(self, lengths: Int) -> Int:
        """Offsets in `data` for so many bytes each, which nobody else is given; -1 where full."""
        found: Int = self._call(self._core.allocate, lengths)
        return found

    def publish(self, slots: Int, at: Int, lengths: Int) -> Mask:
        """Makes slots ready that this tier claimed and whose bytes are in place.

        Where the mask is False this tier did not hold the claim, and nothing was changed.
        """
        done: Mask = self._call(self._core.publish, slots, at, lengths)
        return done

    def abandon(self, slots: Int) -> None:
        """Gives claims back, so that others may claim; what was allocated for them is lost."""
        self._call(self._core.abandon, slots)

    def gather(self, at: Int, lengths: Int, out: Buffer, targets: Int) -> None:
        """Copies `lengths[i]` bytes from `data[at[i]:]` to `out[targets[i]:]`.

        Raises UsageError, with nothing copied, where an extent leaves `data` or `out`.
        """
        self._call(self._core.gather, at, lengths, targets, out)

    def counters(self) -> Counters:
        return Counters(*self._call(self._core.counters))

    def close(self) -> None:
        """Gives all claims back and the memory up, which others and arrays may still have."""
        self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, function: Callable[..., T], *columns: object) -> T:
        try:
            return function(*columns)
        except RuntimeError:
            raise ForkError(
                "this tier's claims belong to the process that was forked: attach in the child"
            ) from None
        except (ValueError, TypeError, IndexError) as error:
            raise UsageError(f"the tier cannot do this: {error}") from None


def _check_identity(identity: bytes) -> None:
    if len(identity) != 16:
        raise UsageError(f"an identity of {len(identity)} bytes: use 16, of a hash for instance")


def _asked(call: Callable[[], T], what: str, remedy: str) -> T:
    """What the core returns, or this module's errors."""
    try:
        return call()
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise StorageError(error.errno, f"{what}: {reason}: {remedy}") from None
    except ValueError as error:
        raise StateError(f"{what}: {error}: {remedy}") from None
