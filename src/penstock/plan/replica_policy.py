"""Replication: the choice of the other nodes' samples that a node keeps a copy of. Pure.

If ranks get their samples by place in the order (strided, contiguous), a node uses each sample with
probability 1/N an epoch, whichever of the N nodes keeps it. The order has an inverse, so the time
of every next use is known (`Uses`). So Belady's rule needs no guess (`Soonest`): of the samples
just used and the samples kept, keep those that are used soonest.

Savings. Let an epoch last 1. Between a node's uses of a sample are g = k + v - u epochs, with
k geometric, P[k] = (1 - 1/N)^(k-1) / N, and u, v uniform in [0, 1]. In the long run copies are kept
whose g is at most some G, and each takes room for g epochs, so that with room for r of all samples,
q of which other nodes keep,

    (q / N) E[g; g <= G] = r,    and    P[g <= G]

of the samples that would come from others are found here: at N = 4, with room for
half of what others keep, 0.79, for a quarter of it 0.57. For many nodes g / N is exponential, and
that is 1 - exp(-x) where 1 - (1 + x) exp(-x) = r / q: about sqrt(2 r / q). Any fixed set finds
r / q, and the set that a node uses most often in its run more, by as much as frequencies differ.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .. import limits
from ..extent import Int
from ..order.order import Order
from ..order.selection import Selection
from .batch_layout import Ids
from .steps import Steps

Mask = npt.NDArray[np.bool_]

_gone, _never = -1, np.iinfo(np.int64).max
_sorted_min = 1024
_none = np.empty(0, np.int64)


Base = Order | Selection[Order]
"""An order with an inverse: every sample of it is used once an epoch."""


@dataclass(frozen=True, slots=True)
class Uses:
    """Times at which the ranks of a node use samples.

    The use at position p of epoch e has the time e * count + p, so times of all epochs compare.
    Repeats that pad a step are not counted.

    order:  order of any epoch.
    steps:  steps with assignment by place: strided or contiguous.
    ranks:  ranks of the node.
    epoch:  the current epoch.
    """

    order: Base
    steps: Steps
    ranks: tuple[int, ...]
    epoch: int
    _orders: dict[int, Base] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def begin(self) -> int:
        """The time at which the epoch begins."""
        return self._at(self.epoch)

    @property
    def end(self) -> int:
        """The time at which the next epoch begins."""
        return self._at(self.epoch + 1)

    def now(self, samples: Ids) -> int:
        """Return the time at which the last of these samples is used in this epoch."""
        return self.begin + int(self._order(self.epoch).positions(samples).max())

    def next(self, samples: Ids, start: int, until: int | None = None) -> Int:
        """Return the time at which each sample is first used at `start` or later, int64.

        Epochs are searched up to the epoch of `until`, and at most `limits.replica_epochs`. A
        sample that these ranks do not use in an epoch searched gets some time in a later epoch.
        """
        times = np.empty(len(samples), np.int64)
        pending = np.arange(len(samples))
        here = np.zeros(self.steps.world_size + 1, bool)  # the last one for nobody, -1
        here[list(self.ranks)] = True  # ranks of this node
        first = start // self.order.count
        end = first + limits.replica_epochs
        if until is not None:
            end = min(end, max(first, until // self.order.count) + 1)
        for epoch in range(first, end + 1):
            positions = self._order(epoch).positions(samples[pending]).view(np.int64)
            time = positions + self._at(epoch)
            is_used = here[self.steps.ranks(positions)] & (time >= start)
            is_used |= epoch == end
            times[pending[is_used]] = time[is_used]
            pending = pending[~is_used]
            if not len(pending):
                break
        return times

    def _order(self, epoch: int) -> Base:
        if epoch not in self._orders:
            self._orders[epoch] = self.order.at_epoch(epoch)
        return self._orders[epoch]

    def _at(self, epoch: int) -> int:
        # Runs do not get so far, but set_epoch does.
        return min(epoch * self.order.count, limits.order_count_max)


class Soonest:
    """A set of entries of limited size that keeps those that are used soonest.

    An entry is a number below `entries`, and takes some units of the `room`. The cost of a decision
    grows with the number of entries that it is about, not with the number kept.
    """

    def __init__(self, entries: int, room: int) -> None:
        self.free = room
        self._time = np.full(entries, _gone, np.int64)
        self._size = np.zeros(entries, np.int32)
        # Entries of `_floor` and later, by time, and their times. The others are not sorted.
        self._late, self._late_times = _none, _none
        self._floor = _never

    def sizes(self, entries: Int) -> Int:
        """Return the units that each entry takes."""
        return self._size[entries].astype(np.int64)

    def before(self, time: int) -> Int:
        """Return the entries whose time is before `time`."""
        return np.flatnonzero((self._time != _gone) & (self._time < time))

    def until(self, units: int) -> int | None:
        """Return the time after which a new entry of `units` units would not be kept.

        It is the time of the latest entry, or None while so many units are free.
        """
        if units <= self.free:
            return None
        late = self._latest(1)
        return int(self._time[late[-1]]) if len(late) else 0

    def choose(self, times: Int, sizes: Int) -> tuple[Mask, Int]:
        """Choose by Belady's rule, with bypass. Changes nothing.

        Returns a mask of the new entries to put in, and the present entries to drop for them. Of
        all of them, those used soonest are kept, as many as there is room for.
        """
        short = int(sizes.sum()) - self.free
        if short <= 0:
            return np.ones(len(times), bool), _none
        late = self._latest(short)
        size = np.concatenate([self._size[late], sizes])
        by_time = np.argsort(np.concatenate([self._time[late], times]), kind="stable")
        room = self.free + int(self._size[late].sum())
        kept = np.empty(len(size), bool)
        kept[by_time] = np.cumsum(size[by_time]) <= room
        return kept[len(late) :], late[~kept[: len(late)]]

    def put(self, entries: Int, times: Int, sizes: Int) -> None:
        """Put new entries in. The caller has checked that there is room for them."""
        self._size[entries] = sizes
        self.free -= int(sizes.sum())
        self._time[entries] = times
        self._sort_in(entries)

    def move(self, entries: Int, times: Int) -> None:
        """Change the times at which entries are used."""
        self._forget(entries)
        self._time[entries] = times
        self._sort_in(entries)

    def drop(self, entries: Int) -> Int:
        """Remove entries; return their sizes."""
        self._forget(entries)
        sizes = self.sizes(entries)
        self.free += int(sizes.sum())
        return sizes

    def _latest(self, units: int) -> Int:
        """Return the latest entries, by time, that take `units` units, or all entries."""
        late = self._latest_sorted(units)
        if len(late) or not self._floor:
            return late if len(late) else self._late
        self._sort(units)
        return self._latest(units)

    def _latest_sorted(self, units: int) -> Int:
        """Return such entries among the sorted ones, or none if these take less."""
        late = self._late[-units:]  # each takes one or more
        enough = int(np.searchsorted(np.cumsum(self._size[late[::-1]]), units)) + 1
        return late[len(late) - enough :] if enough <= len(late) else _none

    def _sort(self, units: int) -> None:
        """Sort the latest entries, enough of them that it is not soon needed again."""
        live = np.flatnonzero(self._time != _gone)
        time = self._time[live]
        self._floor = 0
        many = max(units, _sorted_min, len(live) // 32)
        if len(live) > many:
            # Of those at the same time all are sorted, or none.
            floor = int(np.partition(time, len(live) - many)[len(live) - many])
            late = time >= floor
            live, time, self._floor = live[late], time[late], floor
        by_time = np.argsort(time, kind="stable")
        self._late, self._late_times = live[by_time], time[by_time]

    def _sort_in(self, entries: Int) -> None:
        late = entries[self._time[entries] >= self._floor]
        if len(late):
            late = late[np.argsort(self._time[late], kind="stable")]
            times = self._time[late]
            at = np.searchsorted(self._late_times, times, side="right")
            self._late = np.insert(self._late, at, late)
            self._late_times = np.insert(self._late_times, at, times)

    def _forget(self, entries: Int) -> None:
        """Clear the times of entries, and remove them from the sorted ones."""
        times = self._time[entries]
        self._time[entries] = _gone
        late = times >= self._floor
        if late.any():
            at = int(np.searchsorted(self._late_times, times[late].min()))
            alive = np.flatnonzero(self._time[self._late[at:]] != _gone) + at
            self._late = np.concatenate([self._late[:at], self._late[alive]])
            self._late_times = np.concatenate([self._late_times[:at], self._late_times[alive]])
