"""Replicas: copies of what other nodes keep, in memory of this rank that nothing else needs.

A copy lies in pages, each a fraction of a mean sample, or one sample where all have one length; so
any page serves any sample, and room does not fragment. What is copied, and for how long, is said by
`penstock.replication`: what this rank uses soonest, which the order of each later epoch tells.

They are of one rank, not of its host: one thread finds, makes and overwrites copies, so that nobody
has to agree on what may be overwritten while it is read.
"""

from __future__ import annotations

from itertools import repeat
from typing import Protocol

import numpy as np

from . import limits
from .addressed import Keys
from .engine import Buffer
from .extent import Int
from .replication import Soonest
from .tier import gather


class Timed(Protocol):
    """When this rank uses samples, as seen from an epoch: `penstock.replication.Uses`."""

    @property
    def begin(self) -> int: ...
    def since(self, samples: Keys, until: int | None = None) -> Int: ...
    def after(self, samples: Keys, until: int | None = None) -> Int: ...


class Replicas:
    """Copies of keys (`penstock.addressed`).

    room_bytes: of the copies, at most; what finds them takes about 200 bytes each besides.
    lengths:    of some keys, int64, from which the size of a page is chosen.
    fields:     of a sample.

    A copy is made of what is not longer than `limits.replica_pages_max` pages.
    """

    def __init__(self, room_bytes: int, lengths: Int, fields: int) -> None:
        longest = int(lengths.max(initial=1))
        alike = bool((lengths == longest).all())
        part = longest if alike else int(lengths.mean()) // limits.replica_pages
        self.page_bytes = max(64, part)
        pages = min(room_bytes // self.page_bytes, np.iinfo(np.int32).max)
        width = min(limits.replica_pages_max, -(-longest // self.page_bytes))
        self._fields = np.uint64(fields)
        self._data = np.empty(pages * self.page_bytes, np.uint8)
        self._at: dict[int, int] = {}  # key -> the first of its pages, which is its entry
        self._key = np.empty(pages, np.uint64)  # of each entry
        self._pages = np.empty(
            (pages, width), np.int64
        )  # of each entry; what is unused is undefined
        self._free = np.arange(pages - 1, -1, -1)  # pages; the first soonest.free of them
        self._soonest = Soonest(pages, pages)
        self._began = 0

    @property
    def room_bytes(self) -> int:
        """Of all pages."""
        return len(self._data)

    def __len__(self) -> int:
        return len(self._at)

    def take(self, keys: Keys, lengths: Int, out: Buffer, targets: Int, uses: Timed) -> Int:
        """Copy those keys that are here to `out[targets]`; returns which ones, as rows.

        They are used now, and kept for the use after that.
        """
        self._begin(uses)
        entries = self._entries(keys)
        rows = np.flatnonzero(entries >= 0)
        if len(rows):
            entries = entries[rows]
            self._copied(entries, lengths[rows], targets[rows], out, inwards=False)
            entries = np.unique(entries)
            until = self._soonest.until(int(self._soonest.sizes(entries).sum()))
            self._soonest.move(entries, uses.after(self._key[entries] // self._fields, until))
        return rows

    def offer(self, keys: Keys, lengths: Int, source: Buffer, at: Int, uses: Timed) -> None:
        """Keys that were fetched, at `source[at]`: copies are made of those that are used sooner
        than what is here, in its place."""
        keys, first = np.unique(keys, return_index=True)
        lengths, at = lengths[first], at[first]
        sizes = -(-lengths // self.page_bytes)
        new = (self._entries(keys) < 0) & (sizes > 0) & (sizes <= self._pages.shape[1])
        keys, lengths, at, sizes = keys[new], lengths[new], at[new], sizes[new]
        times = uses.after(keys // self._fields, self._soonest.until(int(sizes.sum())))
        chosen, dropped = self._soonest.choose(times, sizes)
        self._drop(dropped)
        if chosen.any():
            entries = self._put(keys[chosen], times[chosen], sizes[chosen])
            self._copied(entries, lengths[chosen], at[chosen], source, inwards=True)

    def _begin(self, uses: Timed) -> None:
        """An epoch begins: what should have been used before it, and was not, since the last epoch
        was left early or some were passed over, is used later."""
        if uses.begin == self._began:
            return
        self._began = uses.begin
        late = self._soonest.before(uses.begin)
        self._soonest.move(late, uses.since(self._key[late] // self._fields))

    def _entries(self, keys: Keys) -> Int:
        """Of each key; -1 where it is not here."""
        found: Int = np.fromiter(map(self._at.get, keys.tolist(), repeat(-1)), np.int64, len(keys))
        return found

    def _put(self, keys: Keys, times: Int, sizes: Int) -> Int:
        """Entries for new keys, with pages."""
        total = int(sizes.sum())
        pages = self._free[self._soonest.free - total : self._soonest.free]
        starts = np.cumsum(sizes) - sizes
        entries: Int = pages[starts]
        which = np.repeat(np.arange(len(sizes)), sizes)
        self._pages[entries[which], np.arange(total) - starts[which]] = pages
        self._key[entries] = keys
        self._soonest.put(entries, times, sizes)
        self._at.update(zip(keys.tolist(), entries.tolist(), strict=True))
        return entries

    def _drop(self, entries: Int) -> None:
        if not len(entries):
            return
        free = self._soonest.free
        sizes = self._soonest.drop(entries)
        self._free[free : self._soonest.free] = self._pages_of(entries, sizes)
        for key in self._key[entries].tolist():
            del self._at[key]

    def _pages_of(self, entries: Int, sizes: Int) -> Int:
        """All pages, entry by entry."""
        table = self._pages[entries]
        found: Int = table[np.arange(table.shape[1]) < sizes[:, None]].astype(np.int64)
        return found

    def _copied(
        self, entries: Int, lengths: Int, at: Int, buffer: Buffer, *, inwards: bool
    ) -> None:
        """Copy entries from or to `buffer[at]`, page by page."""
        page = self.page_bytes
        sizes = -(-lengths // page)
        which = np.repeat(np.arange(len(sizes)), sizes)
        inside = (np.arange(len(which)) - (np.cumsum(sizes) - sizes)[which]) * page
        part = np.minimum(page, lengths[which] - inside)
        here, there = self._pages_of(entries, sizes) * page, at[which] + inside
        if inwards:
            gather(buffer, there, part, self._data, here)
        else:
            gather(self._data, here, part, buffer, there)
