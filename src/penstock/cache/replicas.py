"""Replicas: copies of samples that other nodes keep, in memory of this node that nothing else
needs.

Each rank of a node has a part of that memory, its *replica buffer*. It alone puts copies there and
overwrites them; all ranks of the node find copies in all replica buffers. `penstock.plan` decides
which samples are copied, and for how long: those that the ranks of the node use soonest. The order
of the epochs tells which these are.

No rank waits for another. A copy has a stamp, unique in its replica buffer. The stamp is
removed before the copy is overwritten, and set after the copy is whole. A reader reads the stamp
before and after it copies; if the stamp has changed, it has found nothing.

A copy is stored in pages. A page is a fraction of a mean sample, or one sample if lengths are
equal. So any page serves any sample, and room does not fragment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, Self

import numpy as np

from .. import limits
from ..engine.protocol import Buffer
from ..extent import Int
from ..plan.cache_keys import Keys
from ..plan.replica_policy import Soonest
from .shared_memory import fence, gather

_ways = 8
_sweeps = 64  # in an epoch


class UseTimes(Protocol):
    """Times at which the ranks of a node use samples: `penstock.plan.Uses`."""

    @property
    def begin(self) -> int: ...
    @property
    def end(self) -> int: ...
    def now(self, samples: Keys) -> int: ...
    def next(self, samples: Keys, start: int, until: int | None = None) -> Int: ...


class ReplicaLayout(NamedTuple):
    """Division of a replica buffer: the same for all ranks of a node.

    width:    most pages of a copy; a longer sample is not copied.
    buckets:  of 8 entries. A hash of a key names the bucket of its entry.
    """

    page_bytes: int
    width: int
    pages: int
    buckets: int

    @classmethod
    def of(cls, room_bytes: int, lengths: Int) -> Self:
        """Divide a replica buffer of a total size, for keys of about these lengths.

        There are no pages if the bytes are too few.
        """
        longest, mean = max(1, int(lengths.max(initial=1))), max(1.0, float(lengths.mean()))
        if (lengths == longest).all():
            page_bytes = copy_bytes = max(64, longest)
        else:
            page_bytes = max(64, int(mean) // limits.replica_pages)
            copy_bytes = int(mean) + page_bytes // 2
        width = min(limits.replica_pages_max, -(-longest // page_bytes))
        # Half of the entries are empty, so that few buckets are too full.
        entry_bytes = 16 + 4 * width
        buckets = 2 * room_bytes // (copy_bytes + 2 * entry_bytes) // _ways + 1
        left_bytes = room_bytes - buckets * _ways * entry_bytes
        pages = max(0, min(left_bytes // page_bytes, np.iinfo(np.int32).max))
        return cls(page_bytes, width, pages, buckets)

    @property
    def entries(self) -> int:
        return self.buckets * _ways

    @property
    def bytes(self) -> int:
        return self.entries * (16 + 4 * self.width) + self.pages * self.page_bytes


class _ReplicaBuffer:
    """Memory of one rank's copies, as any rank of the node sees it; zeros at first."""

    def __init__(self, layout: ReplicaLayout, memory: Buffer) -> None:
        self.layout = layout
        entries, width = layout.entries, layout.width
        cut = np.cumsum([8 * entries, 8 * entries, 4 * entries * width]).tolist()
        stamps, keys, pages, data = np.split(memory[: layout.bytes], cut)
        self.stamps, self.keys = stamps.view(np.uint64), keys.view(np.uint64)  # of each entry
        self.pages = pages.view(np.int32).reshape(entries, width)
        self.data = data

    def find_bucket(self, keys: Keys) -> Int:
        """Return the first entry of each key's bucket."""
        mixed = (keys * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)
        return (mixed % np.uint64(self.layout.buckets)).view(np.int64) * _ways

    def find(self, keys: Keys) -> tuple[Int, Int, Keys]:
        """Return the rows of keys that are here, their entries and stamps."""
        ways = self.find_bucket(keys)[:, None] + np.arange(_ways)
        stamps = self.stamps[ways]
        fence()
        here = (self.keys[ways] == keys[:, None]) & (stamps > 0)
        rows, way = np.nonzero(here)
        return rows, ways[rows, way], stamps[rows, way]

    def copy(self, keys: Keys, lengths: Int, out: Buffer, targets: Int) -> Int:
        """Copy keys that are here to `out[targets]`; return their rows."""
        rows, entries, stamps = self.find(keys)
        if not len(rows):
            return rows
        here, there, used = self.locate_pages(entries, lengths[rows], targets[rows])
        gather(self.data, here, used, out, there)
        fence()
        copied: Int = rows[self.stamps[entries] == stamps]
        return copied

    def locate_pages(self, entries: Int, lengths: Int, at: Int) -> tuple[Int, Int, Int]:
        """Locate all pages of these entries.

        Returns, for each page, its place here, its place in a buffer in which the copies start at
        `at`, and how many of its bytes are used.
        """
        page = self.layout.page_bytes
        sizes = np.minimum(-(-lengths // page), self.layout.width)
        which = np.repeat(np.arange(len(sizes)), sizes)
        inside = (np.arange(len(which)) - (np.cumsum(sizes) - sizes)[which]) * page
        used = np.minimum(page, lengths[which] - inside)
        return self.list_pages(entries, sizes) * page, at[which] + inside, used

    def list_pages(self, entries: Int, sizes: Int) -> Int:
        """Return all pages, entry by entry."""
        table = self.pages[entries]
        return table[np.arange(table.shape[1]) < sizes[:, None]].astype(np.int64)


class Replicas:
    """Copies of keys (`penstock.cache.key_index`), as one rank of a node finds and makes them.

    memories:  `layout.bytes` of each rank of the node, shared; zeros at first.
    own:       number of this rank's memory.
    fields:    of a sample.

    Used by one thread.
    """

    def __init__(
        self, layout: ReplicaLayout, memories: Sequence[Buffer], own_number: int, fields: int
    ) -> None:
        self._replica_buffers = [_ReplicaBuffer(layout, memory) for memory in memories]
        self._replica_buffer = self._replica_buffers[own_number]
        self._replica_buffers.insert(0, self._replica_buffers.pop(own_number))
        self._fields = np.uint64(fields)
        self._free = np.arange(layout.pages - 1, -1, -1)  # the first soonest.free of them
        self._soonest = Soonest(layout.entries, layout.pages)
        self._stamp = 0
        self._swept = 0

    def take(self, keys: Keys, lengths: Int, out: Buffer, targets: Int, uses: UseTimes) -> Int:
        """Copy those keys of a step that have copies to `out[targets]`; return their rows.

        The keys are used now.
        """
        self._sweep(uses.now(keys[-1:] // self._fields), uses)
        missing = np.arange(len(keys))
        for replica_buffer in self._replica_buffers:
            copied = replica_buffer.copy(keys[missing], lengths[missing], out, targets[missing])
            missing = np.delete(missing, copied)
        return np.setdiff1d(np.arange(len(keys)), missing, assume_unique=True)

    def offer(self, keys: Keys, lengths: Int, source: Buffer, at: Int, uses: UseTimes) -> None:
        """Copy fetched keys, at `source[at]`, that are used sooner than those here, in their
        place."""
        keys, first = np.unique(keys, return_index=True)
        lengths, at = lengths[first], at[first]
        sizes = -(-lengths // self._replica_buffer.layout.page_bytes)
        new = (sizes > 0) & (sizes <= self._replica_buffer.layout.width)
        new[self._replica_buffer.find(keys)[0]] = False
        keys, lengths, at, sizes = keys[new], lengths[new], at[new], sizes[new]
        until = self._soonest.until(int(sizes.sum()))
        times = uses.next(keys // self._fields, uses.end, until)
        chosen, dropped = self._soonest.choose(times, sizes)
        self._drop(dropped)
        rows, entries = self._find_places(keys, np.flatnonzero(chosen))
        if len(rows):
            self._put(entries, keys[rows], times[rows], sizes[rows])
            here, there, used = self._replica_buffer.locate_pages(entries, lengths[rows], at[rows])
            gather(source, there, used, self._replica_buffer.data, here)
            self._publish(entries)

    def _sweep(self, now: int, uses: UseTimes) -> None:
        """Now and then, give each copy that has been used the time of its next use.

        A copy that was to be used a while ago and was not, because its epoch was left early or
        passed over, is treated alike.
        """
        if 0 <= now - self._swept < (uses.end - uses.begin) // _sweeps:
            return
        used = self._soonest.before(min(now, self._swept))
        self._swept = now
        if len(used):
            until = self._soonest.until(int(self._soonest.sizes(used).sum()))
            if until is not None and until < now:  # all have been used
                until = None
            self._soonest.move(
                used, uses.next(self._replica_buffer.keys[used] // self._fields, now, until)
            )

    def _find_places(self, keys: Keys, rows: Int) -> tuple[Int, Int]:
        """Return empty entries for these rows; rows whose buckets are full are left out."""
        bucket = self._replica_buffer.find_bucket(keys[rows])
        order = np.argsort(bucket, kind="stable")
        rows, bucket = rows[order], bucket[order]
        number = np.arange(len(rows)) - np.searchsorted(bucket, bucket)  # in its bucket
        ways = bucket[:, None] + np.arange(_ways)
        taken = self._replica_buffer.stamps[ways] > 0
        fits = number < _ways - np.count_nonzero(taken, axis=1)
        way = np.argsort(taken, axis=1, kind="stable")[np.arange(len(rows)), number % _ways]
        return rows[fits], (bucket + way)[fits]

    def _put(self, entries: Int, keys: Keys, times: Int, sizes: Int) -> None:
        """Make new entries, with pages, that nobody finds yet."""
        total = int(sizes.sum())
        pages = self._free[self._soonest.free - total : self._soonest.free]
        which = np.repeat(np.arange(len(sizes)), sizes)
        inside = np.arange(total) - (np.cumsum(sizes) - sizes)[which]
        fence()  # after what was dropped
        self._replica_buffer.pages[entries[which], inside] = pages
        self._replica_buffer.keys[entries] = keys
        self._soonest.put(entries, times, sizes)
        fence()

    def _publish(self, entries: Int) -> None:
        fence()
        self._replica_buffer.stamps[entries] = np.arange(
            self._stamp + 1, self._stamp + 1 + len(entries)
        )
        self._stamp += len(entries)

    def _drop(self, entries: Int) -> None:
        if len(entries):
            self._replica_buffer.stamps[entries] = 0
            free = self._soonest.free
            sizes = self._soonest.drop(entries)
            self._free[free : self._soonest.free] = self._replica_buffer.list_pages(entries, sizes)
