"""Tiers of this node: cache blocks are read in once, and samples are copied out.

A cache block is read when the first rank or peer wants it. `NodeTiers` is a state machine of one
thread. `want` is given keys, and calls back when their cache blocks are there, or when it is known
that they will not be. The cache blocks are claimed in the tier; then they are read from storage, or
waited for while another rank of this node reads them.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from .. import limits
from ..budget import Budget
from ..engine import Buffer, Completion, Purpose, ThreadPool
from ..extent import Int, Requests, merge
from ..plan import Placement
from .disk import DiskTier
from .key_index import Addressed, Keys
from .shared_memory import BUSY, MINE, READY, RamTier

Tier: TypeAlias = RamTier | DiskTier


class _TierLoad(NamedTuple):
    """Cache blocks on their way from storage to the tier that keeps them."""

    tier: Tier
    slots: Int
    at: Int  # where each lies in `buffer`: the slab, or a passing one of cache blocks for the disk
    size: Int
    requests: Requests
    buffer: Buffer


@dataclass(slots=True, eq=False)
class WantedKeys:
    """Keys kept by one tier of this node that a step of this rank, or a peer, waits for.

    slots, cache_blocks:  of each key; slots are the tier's own.
    purpose:  of reading them, if a read is begun for them.
    done:     callback, called once nothing of the following is left.
    waiting:  tickets of the storage engine, or jobs of the disk, that bring some of them.
    busy:     rows of keys, one for each cache block that another rank of this node is reading.
    held:     cache blocks of the disk, by slot.
    """

    tier: Tier
    keys: Keys
    slots: Int
    cache_blocks: Keys
    purpose: Purpose
    done: Callable[[WantedKeys], None]
    deadline: float
    busy: Int
    waiting: set[int] = field(default_factory=set)
    held: dict[int, Buffer] = field(default_factory=dict)


class NodeTiers:
    """The tiers of a node, as one of its ranks uses them.

    read:    submits requests to the storage engine, for a purpose, and returns the ticket. The
             report on that ticket is to be given to `take_report`.
    begin:   function of a number of reads of one ticket: which of them to begin with.
    wake:    called from other threads when `drain` has something to do.
    counts:  counters that are added to.
    """

    def __init__(
        self,
        addressed: Addressed,
        placement: Placement,
        node: int,
        slab: RamTier,
        disk: DiskTier | None,
        *,
        read: Callable[[Requests, Sequence[Buffer], Purpose], int],
        begin: Callable[[int], int],
        wake: Callable[[], None],
        counts: Counter[str],
    ) -> None:
        self._addressed = addressed
        self._placement = placement
        self._ram_cache_blocks = placement.ram_cache_blocks[node]
        self.slab = slab
        self._disk = disk
        self._read, self._wake, self._counts = read, wake, counts
        self._begin = begin
        self._fields = np.uint64(len(addressed.fields))
        self._loads: dict[int, _TierLoad] = {}  # by ticket of the storage engine
        self._reading: dict[tuple[bool, int], int] = {}  # (on disk, slot) -> that ticket
        self._wanted: list[WantedKeys] = []
        self._news: deque[Callable[[], None]] = deque()  # from the threads of the disk
        self._queued_bytes = 0  # of cache blocks that are about to be read from the disk
        self._jobs = itertools.count(-1, -1)  # told from tickets by their sign
        self._disk_threads = ThreadPool(limits.disk_threads, "penstock-disk")

    @property
    def busy(self) -> bool:
        """True if cache blocks are awaited that another rank reads: call `look_again` soon."""
        return any(len(wanted.busy) for wanted in self._wanted)

    @property
    def is_full(self) -> bool:
        """True if cache blocks on their way to or from the disk take all memory that they may."""
        if self._disk is None:
            return False
        passing_bytes = self._queued_bytes + self._disk.passing_bytes
        return passing_bytes >= max(1, self._disk.buffer_bytes_max)

    @property
    def has_disk(self) -> bool:
        """True if this node keeps cache blocks on a disk."""
        return self._disk is not None

    def adopt(self, budget: Budget) -> None:
        """Bound the memory of cache blocks on their way to or from the disk."""
        if self._disk is not None:
            self._disk.limit(budget.disk_buffer_bytes)

    def look_again(self) -> None:
        """Look for cache blocks that other ranks have read, or have given up."""
        for wanted in list(self._wanted):
            if len(wanted.busy):
                self._look(wanted)

    def count_on_disk(self) -> dict[str, int]:
        """Return the `DiskCounters` by name; none without a disk tier."""
        return {} if self._disk is None else self._disk.own_counters()._asdict()

    def drain(self) -> None:
        """Take the results that other threads have brought."""
        while self._news:
            self._news.popleft()()

    def close(self) -> None:
        """Abandon all loads and close the tiers; the storage engine must be closed already."""
        self._disk_threads.shutdown(cancel_futures=True)
        for load in self._loads.values():  # the other ranks need not find out by themselves
            load.tier.abandon(load.slots)
        if self._disk is not None:
            self._disk.close()
        self.slab.close()
        del self._read, self._wake  # they refer to the owner, which must end with its last user

    def split_by_tier(self, rows: Int, slots: Int) -> list[tuple[Tier, Int, Int]]:
        """Return, by tier, the rows of keys that this node keeps, and the tier's own slots."""
        ram = slots[rows] < self._ram_cache_blocks
        parts: list[tuple[Tier, Int, Int]] = []
        if ram.any():
            parts.append((self.slab, rows[ram], slots[rows[ram]]))
        if not ram.all():
            assert self._disk is not None
            parts.append((self._disk, rows[~ram], slots[rows[~ram]] - self._ram_cache_blocks))
        return parts

    def want(
        self,
        tier: Tier,
        keys: Keys,
        slots: Int,
        cache_blocks: Keys,
        purpose: Purpose,
        done: Callable[[WantedKeys], None],
    ) -> None:
        """Bring the cache blocks of these keys into the tier, as far as possible, and call
        `done`."""
        _, busy = np.unique(slots, return_index=True)
        deadline = time.monotonic() + limits.busy_cache_block_s
        wanted = WantedKeys(tier, keys, slots, cache_blocks, purpose, done, deadline, busy)
        self._wanted.append(wanted)
        self._look(wanted)

    def _look(self, wanted: WantedKeys) -> None:
        """Claim the cache blocks that are not in the tier yet, and read them."""
        rows, tier = wanted.busy, wanted.tier
        slots = wanted.slots[rows]
        claim = tier.claim(slots)
        mine = rows[claim == MINE]
        if len(mine):
            self._load(tier, wanted.slots[mine], wanted.cache_blocks[mine], wanted.purpose)
        if tier is self._disk and (claim == READY).any():
            self._read_from_disk(wanted, rows[claim == READY])
        left = []
        for row, slot, code in zip(rows.tolist(), slots.tolist(), claim.tolist(), strict=True):
            ticket = None if code == READY else self._reading.get((tier is self._disk, slot))
            if ticket is not None:
                wanted.waiting.add(ticket)
            elif code == BUSY:
                left.append(row)
        if left and time.monotonic() > wanted.deadline:
            self._counts["busy_too_long"] += len(left)
            left = []
        wanted.busy = np.array(left, np.int64)
        self._finish(wanted)

    def _finish(self, wanted: WantedKeys) -> None:
        if not wanted.waiting and not len(wanted.busy):
            self._wanted.remove(wanted)
            wanted.done(wanted)

    def _load(self, tier: Tier, slots: Int, cache_blocks: Keys, purpose: Purpose) -> None:
        """Read cache blocks from storage; abandon those that have no room in the slab."""
        size = self._measure_cache_blocks(cache_blocks)
        buffer: Buffer
        if tier is self.slab:
            buffer, at = self.slab.data, self.slab.allocate(size)
            room = at >= 0
            if not room.all():
                self.slab.abandon(slots[~room])
                self._counts["cache_blocks_without_room"] += int(np.count_nonzero(~room))
                slots, cache_blocks, at, size = (
                    slots[room],
                    cache_blocks[room],
                    at[room],
                    size[room],
                )
        else:
            at = np.cumsum(size) - size
            assert self._disk is not None
            buffer = self._disk.take_buffer(int(size.sum()))
        if not len(slots):
            return
        keys, first = self._list_keys(cache_blocks)
        length = self._addressed.key_lengths(keys)
        ends = np.cumsum(length) - length
        target = ends + np.repeat(at - ends[first[:-1]], np.diff(first))
        placed = self._addressed.place_keys(keys, np.zeros(len(keys), np.int64), target)
        (requests,) = merge(
            placed, 1, 0, self._begin
        )  # what lies between is another's to read, once
        ticket = self._read(requests, [buffer], purpose)
        self._loads[ticket] = _TierLoad(tier, slots, at, size, requests, buffer)
        self._reading |= dict.fromkeys(((tier is self._disk, s) for s in slots.tolist()), ticket)
        self._counts["loaded_bytes"] += int(size.sum())

    def take_report(self, report: Completion) -> bool:
        """Take the report on a ticket if it is of cache blocks, and return whether it is.

        Cache blocks that were read become ready; the others are given up.
        """
        load = self._loads.pop(report.ticket, None)
        if load is None:
            return False
        whole = np.ones(len(load.slots), bool)
        for extent, _, _ in report.failures:  # whoever wants them will find out what it is
            target = int(load.requests.target[extent])
            whole &= (target < load.at) | (target >= load.at + np.maximum(load.size, 1))
        self._counts["failed_loads"] += int(np.count_nonzero(~whole))
        load.tier.abandon(load.slots[~whole])
        cache_blocks: dict[int, Buffer] = {}
        slots, at, size = load.slots[whole], load.at[whole], load.size[whole]
        if load.tier is self.slab:
            self.slab.publish(slots, at, size)
        else:
            for slot, a, b in zip(slots.tolist(), at.tolist(), (at + size).tolist(), strict=True):
                cache_blocks[slot] = load.buffer[a:b]
            blocks = list(cache_blocks.values())
            self._run_behind(lambda: self._write_to_disk(slots, blocks))
        for slot in load.slots.tolist():
            del self._reading[load.tier is self._disk, slot]
        self._finish_waiting(report.ticket, cache_blocks)
        return True

    def _finish_waiting(self, ticket: int, cache_blocks: dict[int, Buffer]) -> None:
        """Note that a ticket or a job has ended, with these cache blocks of the disk tier."""
        for wanted in list(self._wanted):
            if ticket in wanted.waiting:
                wanted.waiting.remove(ticket)
                wanted.held |= cache_blocks
                self._finish(wanted)

    def _read_from_disk(self, wanted: WantedKeys, rows: Int) -> None:
        """Read cache blocks from the disk, in another thread; damaged ones count as not there."""
        disk, job = self._disk, next(self._jobs)
        assert disk is not None
        slots, size = wanted.slots[rows], self._measure_cache_blocks(wanted.cache_blocks[rows])
        wanted.waiting.add(job)
        queued_bytes = int(size.sum())
        self._queued_bytes += queued_bytes

        def finish() -> None:
            self._queued_bytes -= queued_bytes
            self._finish_waiting(job, cache_blocks)

        cache_blocks: dict[int, Buffer] = {}

        def read() -> None:
            try:
                pairs = zip(slots.tolist(), disk.read(slots, size), strict=True)
                cache_blocks.update(
                    (slot, cache_block) for slot, cache_block in pairs if cache_block is not None
                )
            finally:  # no memory, for instance: who waits reads from storage
                self._news.append(finish)
                self._wake()

        self._run_behind(read)

    def _run_behind(self, function: Callable[[], None]) -> None:
        """Run a function in a thread of the disk; its exception is raised by `drain`."""
        functions = [function]

        def run() -> None:
            try:
                functions.pop()()  # its buffers are free when we wake
            except BaseException as error:
                self._news.append(functools.partial(_raise, error))
            finally:
                self._wake()

        self._disk_threads.submit(run)

    def _write_to_disk(self, slots: Int, cache_blocks: Sequence[Buffer]) -> None:
        """Write claimed cache blocks to the disk, in another thread."""
        assert self._disk is not None
        try:
            self._disk.write(slots, cache_blocks)
        except BaseException:
            self._disk.abandon(slots)  # nobody is to wait for what is not written
            raise

    def _measure_cache_blocks(self, cache_blocks: Keys) -> Int:
        """Bytes of each cache block."""
        keys, first = self._list_keys(cache_blocks)
        ends = np.concatenate([[0], np.cumsum(self._addressed.key_lengths(keys))])
        size: Int = np.diff(ends[first])
        return size

    def _list_keys(self, cache_blocks: Keys) -> tuple[Keys, Int]:
        """All keys of cache blocks, and where each cache block begins among them (and the end)."""
        cache_block, fields = self._placement.cache_block, int(self._fields)
        held = (
            np.minimum(
                cache_block, self._placement.count - cache_blocks.astype(np.int64) * cache_block
            )
            * fields
        )
        first = np.concatenate([[0], np.cumsum(held)])
        inside = np.arange(first[-1]) - np.repeat(first[:-1], held)
        keys = np.repeat(cache_blocks * np.uint64(cache_block * fields), held) + inside.astype(
            np.uint64
        )
        return keys, first

    def find_ready(self, wanted: WantedKeys) -> npt.NDArray[np.bool_]:
        """Return a mask of the keys that can be copied."""
        if wanted.tier is self.slab:
            is_ready: npt.NDArray[np.bool_] = self.slab.offsets(wanted.slots) >= 0
            return is_ready
        return np.isin(wanted.slots, np.fromiter(wanted.held, np.int64, len(wanted.held)))

    def copy(self, wanted: WantedKeys, rows: Int, length: Int, out: Buffer, target: Int) -> None:
        """Copy keys that are there to their targets."""
        inside = self._find_offsets(wanted.keys[rows], wanted.cache_blocks[rows])
        if wanted.tier is self.slab:
            at = self.slab.offsets(wanted.slots[rows])
            self.slab.gather(at + inside, length, out, target)
            return
        columns = (wanted.slots[rows], inside, length, target)
        for slot, a, n, to in zip(*(column.tolist() for column in columns), strict=True):
            out[to : to + n] = wanted.held[slot][a : a + n]

    def _find_offsets(self, keys: Keys, cache_blocks: Keys) -> Int:
        """Return the offset of each key in its cache block."""
        width = np.uint64(self._placement.cache_block) * self._fields
        if width == 1:
            return np.zeros(len(keys), np.int64)
        row = (keys - cache_blocks * width).astype(np.int64)
        if len(self._addressed.fields) == 1 and self._addressed.row_bytes[0] is not None:
            return row * self._addressed.row_bytes[0]
        cache_block, number = np.unique(cache_blocks, return_inverse=True)
        every, first = self._list_keys(cache_block)
        ends = np.concatenate([[0], np.cumsum(self._addressed.key_lengths(every))])
        inside: Int = ends[first[number] + row] - ends[first[number]]
        return inside

    def view_keys(self, wanted: WantedKeys, positions: Int, rows: Int, length: Int) -> list[Buffer]:
        """Return large keys as views of where they lie: the slab never moves its contents."""
        inside = self._find_offsets(wanted.keys[positions], wanted.cache_blocks[positions])
        if wanted.tier is self.slab:
            at = self.slab.offsets(wanted.slots[positions]) + inside
            data = self.slab.data
            return [
                data[a : a + n] for a, n in zip(at.tolist(), length[rows].tolist(), strict=True)
            ]
        columns = (wanted.slots[positions], inside, length[rows])
        places = zip(*(column.tolist() for column in columns), strict=True)
        return [wanted.held[slot][a : a + n] for slot, a, n in places]


def _raise(error: BaseException) -> None:
    raise error
