"""A rank's engine over the caches of its job: own slab, peers, storage.

`Addressed` is the index as a plan sees it here: a field of a sample is one extent, at an offset
that is its *key*, sample * fields + field. `CachedEngine` executes such requests, and decides for
each key by arithmetic where its bytes come from:

    the lot is kept by this node   copied from the slab, into which the first who wants it reads it;
                                   or out of the lot read from this node's disk
    by another node                asked of that node, which reads what it does not have yet
    by nobody                      read from storage, into the batch

Whatever goes wrong on the first two ways (no room in the slab, a peer that is gone, slow, or has no
such lot) ends in the third, so a batch is never wrong and waits no longer than a peer's deadline.
What storage itself says is reported as any engine does.

One thread for each engine does all of this and answers the peers; a second one waits for storage.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import limits
from .budget import Budget
from .disk_tier import DiskTier
from .engine import Buffer, Completion, Failure, check
from .engines import Reader
from .errors import UsageError
from .extent import Extents, Int, Placed, Requests, merge
from .index import Index, Samples
from .layout import Chunked
from .native import Choice
from .peer import Peer, PeerCompletion, PeerRequest
from .placement import Placement
from .plan import pieced
from .tier import BUSY, MINE, READY, RamTier

Keys = npt.NDArray[np.uint64]
_Tier = RamTier | DiskTier

_poll_ns = 100_000_000
_busy_ns = 500_000
"""How often a lot that another rank is reading is looked at."""
_view_bytes = 64 << 10
"""Answers of samples this large on average are sent from the slab; smaller ones are gathered."""


class Addressed:
    """An index whose samples are asked for by key; what `plan_samples` needs of one.

    Raises UsageError where a field has to be decoded in bands: bytes of bands are not cached.
    """

    def __init__(self, index: Index) -> None:
        for part, layout in zip(index.fields, index.layouts, strict=True):
            if isinstance(layout, Chunked):
                raise UsageError(
                    f"field {part.name!r} of {index.files.root} is compressed in chunks of several "
                    "samples, which are not cached: leave cache= out, or convert it "
                    "(penstock convert)"
                )
        self.index = index
        self.fields, self.layouts, self.row_bytes = index.fields, index.layouts, index.row_bytes
        self.count, self.mean_bytes = index.count, index.mean_bytes
        self.labels = index.labels

    def units(self, units: Samples, field: int = 0) -> tuple[Extents, None]:
        """One extent for each sample; the file is that of its first bytes."""
        key = units.astype(np.int64) * len(self.fields) + field
        extents, pieces = self.index.units(units, field)
        if pieces is None:
            return Extents(extents.file, key, extents.length), None
        first = np.minimum(np.cumsum(pieces) - pieces, max(0, len(extents.file) - 1))
        file = extents.file[first] if len(extents.file) else np.zeros(len(key), np.uint32)
        return Extents(file, key, self.index.lengths(units, field)), None

    def key_lengths(self, keys: Keys) -> Int:
        """Bytes of each key."""
        sample, number = np.divmod(keys, np.uint64(len(self.fields)))
        if len(self.fields) == 1:
            return self.index.lengths(sample)
        found = np.empty(len(keys), np.int64)
        for each in range(len(self.fields)):
            rows = number == each
            found[rows] = self.index.lengths(sample[rows], each)
        return found

    def placed(self, keys: Keys, part: npt.NDArray[Any], target: Int) -> Placed:
        """The extents of keys in storage, with their destinations."""
        sample, number = np.divmod(keys, np.uint64(len(self.fields)))
        found: list[Placed] = []
        for each in range(len(self.fields)):
            rows = np.flatnonzero(number == each)
            extents, pieces = self.index.units(sample[rows], each)
            to, of = target[rows], part[rows].astype(np.uint32)
            if pieces is not None:
                to, of = pieced(extents, pieces, to, of)
            found.append(Placed(*extents, of, to))
        return Placed(*(np.concatenate(each) for each in zip(*found, strict=True)))


class _Load(NamedTuple):
    """Lots on their way from storage to where they are kept."""

    tier: _Tier
    slots: Int
    at: Int  # where each lies in `buffer`: the slab, or a passing one of lots for the disk
    size: Int
    requests: Requests
    buffer: Buffer


@dataclass(slots=True, eq=False)
class _Wanted:
    """Keys kept by one tier of this node that somebody waits for: a step of this rank, or a peer.

    slots, lots:  of each key; slots are the tier's own.
    done:         what becomes of them, once none of the following is left.
    waiting:      tickets of the storage engine, or jobs of the disk, that bring some.
    busy:         keys' rows, one for each lot that another rank of this node is reading.
    held:         lots of the disk, by slot.
    """

    tier: _Tier
    keys: Keys
    slots: Int
    lots: Keys
    done: Callable[[_Wanted], None]
    deadline: float
    busy: Int
    waiting: set[int] = field(default_factory=set)
    held: dict[int, Buffer] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Step:
    """A ticket of ours: what was asked for, and how many parts of it are on their way."""

    ticket: int
    requests: Requests
    buffers: Sequence[Buffer]
    parts: int = 1
    failures: list[Failure] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Answer:
    """What a peer is to be given: the rows of its request that are kept here, and what is there."""

    request: PeerRequest
    rows: Int
    parts: int = 1
    found: list[tuple[_Wanted, Int, Int]] = field(default_factory=list)


class CachedEngine:
    """Executes requests of keys; see the module, and `penstock.engine.Engine`.

    inner:      reads the files of `index`; this engine closes it.
    placement:  which node keeps what.
    nodes:      of each rank; this one is `rank`.
    slab:       of this node, shared by its ranks; this engine closes it.
    disk:       of this node, for slots from `placement.ram_lots` of it on; this engine closes it.
    peer:       to the ranks of other nodes; None where there are none.
    """

    def __init__(
        self,
        addressed: Addressed,
        inner: Reader,
        placement: Placement,
        nodes: Sequence[int],
        rank: int,
        slab: RamTier,
        disk: DiskTier | None,
        peer: Peer | None,
    ) -> None:
        self._addressed = addressed
        self._inner = inner
        self._placement = placement
        self._node = nodes[rank]
        # Of each node, the ranks that may be asked, the next one first; spread over who asks.
        self._via = [
            deque(other for other, at in enumerate(nodes) if at == node)
            for node in range(placement.nodes)
        ]
        for ranks in self._via:
            ranks.rotate(-rank)
        self._slab = slab
        self._disk = disk
        self._ram_lots = placement.ram_lots[self._node]
        self._peer = peer
        self._fields = np.uint64(len(addressed.fields))
        self._pid = os.getpid()
        self._closed = False
        self._fault: BaseException | None = None
        # Between the user's thread and ours.
        self._lock = threading.Condition()
        self._asked: deque[_Step] = deque()
        self._done: list[Completion] = []
        self._outstanding = 0
        self._submitted = 0
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Ours alone.
        self._counts: Counter[str] = Counter()
        self._loads: dict[int, _Load] = {}  # by ticket of the inner engine
        self._reading: dict[tuple[bool, int], int] = {}  # (on disk, slot) -> that ticket
        self._direct: dict[int, tuple[_Step, Requests]] = {}  # by ticket of the inner engine
        self._wanted: list[_Wanted] = []
        self._fetches: dict[int, tuple[_Step, Int, int]] = {}  # by ticket of the peer: rows, node
        # Between the threads that wait for storage and for the disk, and ours.
        self._reports: deque[Completion] = deque()
        self._news: deque[Callable[[], None]] = deque()
        self._jobs = itertools.count(-1, -1)  # told from tickets by their sign
        self._disk_threads = ThreadPoolExecutor(limits.disk_threads, "penstock-disk")
        self._more = threading.Semaphore(0)
        self._threads = [
            threading.Thread(target=self._guarded, args=(run,), name=name, daemon=True)
            for name, run in (("penstock-cache", self._run), ("penstock-storage", self._watch))
        ]
        for each in self._threads:
            each.start()

    # -- the user's side -----------------------------------------------------------------------

    @property
    def choice(self) -> Choice:
        """How storage is read."""
        return self._inner.choice

    def submit(self, requests: Requests, buffers: Sequence[Buffer]) -> int:
        """Accept requests of keys, as `Addressed` gives them."""
        check(requests, buffers, len(self._addressed.index.files))
        with self._lock:
            self._check_usable()
            ticket = self._submitted
            self._submitted += 1
            self._outstanding += 1
            self._asked.append(_Step(ticket, requests, list(buffers)))
        self._wake()
        return ticket

    def poll(self, timeout_ns: int) -> list[Completion]:
        """Report finished tickets."""
        with self._lock:
            self._check_usable()
            if not self._done and self._outstanding:
                self._lock.wait(timeout_ns * 1e-9)
            self._check_usable()
            done, self._done = self._done, []
            self._outstanding -= len(done)
        return done

    def adopt(self, budget: Budget) -> None:
        """Pass on what storage may be read with."""
        self._inner.adopt(budget)

    def counters(self) -> dict[str, int]:
        """Those of the storage engine; where the bytes of batches came from: ram_bytes, disk_bytes,
        peer_bytes, direct_bytes; loaded_bytes, read to be kept; served_bytes, which peers were
        given; and what went another way.
        """
        names = (
            "loaded_bytes",
            "ram_bytes",
            "disk_bytes",
            "peer_bytes",
            "direct_bytes",
            "served_bytes",
        )
        found = self._inner.counters() | {name: self._counts[name] for name in names}
        found |= dict(self._counts)
        if self._peer is not None:
            found |= {f"peer_{name}": count for name, count in self._peer.counters().items()}
        return found

    def close(self) -> None:
        """End the threads, the storage engine, the slab and the peer."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._lock.notify_all()
        if os.getpid() != self._pid:
            return  # its threads are the parent's
        self._more.release()
        self._wake()
        for each in self._threads:
            each.join()
        self._inner.close()
        self._disk_threads.shutdown(cancel_futures=True)
        for load in self._loads.values():  # the other ranks need not find out by themselves
            load.tier.abandon(load.slots)
        if self._disk is not None:
            self._disk.close()
        if self._peer is not None:
            self._peer.close()
        self._slab.close()
        os.close(self._wake_fd)

    def _check_usable(self) -> None:
        if self._fault is not None:
            raise self._fault
        if self._closed:
            raise UsageError("this engine is closed: create another")

    # -- the threads ---------------------------------------------------------------------------

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as error:  # the user's thread raises it
            with self._lock:
                self._fault = self._fault or error
                self._lock.notify_all()

    def _wake(self) -> None:
        os.eventfd_write(self._wake_fd, 1)

    def _watch(self) -> None:
        """Wait for storage. The engine's own lock lets others submit meanwhile."""
        while not self._closed:
            self._more.acquire()
            reported = 0
            while not reported and not self._closed:
                reports = self._inner.poll(_poll_ns)
                reported = len(reports)
                self._reports.extend(reports)
            for _ in range(reported - 1):  # one was acquired above
                self._more.acquire()
            if reported:
                self._wake()

    def _run(self) -> None:
        while not self._closed and self._fault is None:
            waiting = any(len(each.busy) for each in self._wanted)
            self._sleep(_busy_ns if waiting else _poll_ns)
            while self._reports:
                self._arrived(self._reports.popleft())
            while self._news:
                self._news.popleft()()
            with self._lock:
                asked = list(self._asked)
                self._asked.clear()
            for step in asked:
                self._begin(step)
            if waiting:
                for each in list(self._wanted):
                    if len(each.busy):
                        self._look(each)

    def _sleep(self, timeout_ns: int) -> None:
        """Until something happens; what peers say is dealt with."""
        if self._peer is None:
            select.select([self._wake_fd], [], [], timeout_ns * 1e-9)
        else:
            completions, requests = self._peer.step(timeout_ns, [self._wake_fd])
            for completion in completions:
                self._fetched(completion)
            for request in requests:
                self._serve(request)
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake_fd)

    # -- a step of this rank -------------------------------------------------------------------

    def _begin(self, step: _Step) -> None:
        keys = step.requests.offset.view(np.uint64)
        lots = self._placement.lots_at(keys // self._fields)
        owner, slot = self._placement.place(lots)
        own = owner == self._node
        for tier, rows, slots in self._tiers(np.flatnonzero(own), slot):
            step.parts += 1
            self._want(tier, keys[rows], slots, lots[rows], self._copying(step, rows))
        away = owner >= 0
        away &= ~own
        if away.any():
            rows = np.flatnonzero(away)
            rows = rows[np.argsort(owner[rows], kind="stable")]
            nodes, first = np.unique(owner[rows], return_index=True)
            for node, part in zip(nodes.tolist(), np.split(rows, first[1:]), strict=True):
                self._fetch(step, node, part)
        self._read(step, np.flatnonzero(owner < 0))
        self._end_part(step)

    def _copying(self, step: _Step, rows: Int) -> Callable[[_Wanted], None]:
        """Out of the slab into the batch; what is not there is read from storage."""

        def done(wanted: _Wanted) -> None:
            there = self._there(wanted)
            length, target = step.requests.length[rows], step.requests.target[rows]
            for number, buffer in enumerate(step.buffers):
                part = np.flatnonzero(there & (step.requests.buffer[rows] == number))
                self._copy(wanted, part, length[part], buffer, target[part])
            name = "ram_bytes" if wanted.tier is self._slab else "disk_bytes"
            self._counts[name] += int(length[there].sum())
            self._read(step, rows[~there])
            self._end_part(step)

        return done

    def _fetch(self, step: _Step, node: int, rows: Int) -> None:
        """Ask another node, buffer by buffer."""
        requests = step.requests
        for number, buffer in enumerate(step.buffers):
            part = rows[requests.buffer[rows] == number]
            for first in range(0, len(part), limits.peer_keys_max):
                some = part[first : first + limits.peer_keys_max]
                keys, length = requests.offset[some].view(np.uint64), requests.length[some]
                assert self._peer is not None
                rank = self._via[node][0]
                ticket = self._peer.submit(rank, keys, length, requests.target[some], buffer)
                self._fetches[ticket] = (step, some, node)
                step.parts += 1

    def _fetched(self, completion: PeerCompletion) -> None:
        step, rows, node = self._fetches.pop(completion.ticket)
        if completion.reason is not None:
            self._counts[f"fetches_{completion.reason.name.lower()}"] += 1
            self._via[node].rotate(-1)  # another rank there may answer the next one
        missing = rows[completion.failures]
        length = step.requests.length
        self._counts["peer_bytes"] += int(length[rows].sum() - length[missing].sum())
        self._read(step, missing)
        self._end_part(step)

    def _read(self, step: _Step, rows: Int) -> None:
        """Read keys from storage into the batch."""
        if not len(rows):
            return
        asked = step.requests
        placed = self._addressed.placed(
            asked.offset[rows].view(np.uint64), asked.buffer[rows], asked.target[rows]
        )
        for requests in merge(placed, len(step.buffers), self._inner.choice.gap_bytes):
            if len(requests.file):
                self._direct[self._submit(requests, step.buffers)] = (step, requests)
                step.parts += 1
        self._counts["direct_bytes"] += int(asked.length[rows].sum())

    def _submit(self, requests: Requests, buffers: Sequence[Buffer]) -> int:
        ticket = self._inner.submit(requests, buffers)
        self._more.release()
        return ticket

    def _arrived(self, report: Completion) -> None:
        """Something from storage, or the news that it cannot be had."""
        if report.ticket in self._loads:
            self._loaded(report)
            return
        step, requests = self._direct.pop(report.ticket)
        asked = step.requests
        for extent, code, got in report.failures:
            target = int(requests.target[extent])
            inside = target - asked.target
            there = (asked.buffer == requests.buffer[extent]) & (inside >= 0)
            row = int(np.flatnonzero(there & (inside < np.maximum(asked.length, 1)))[0])
            step.failures.append(Failure(row, code, int(inside[row]) + got))
        self._end_part(step)

    def _end_part(self, step: _Step) -> None:
        step.parts -= 1
        if step.parts:
            return
        with self._lock:
            self._done.append(Completion(step.ticket, tuple(sorted(step.failures))))
            self._lock.notify_all()

    # -- what this node keeps ------------------------------------------------------------------

    def _tiers(self, rows: Int, slots: Int) -> list[tuple[_Tier, Int, Int]]:
        """Rows of keys kept by this node, and the tiers' own slots, by tier."""
        ram = slots[rows] < self._ram_lots
        found: list[tuple[_Tier, Int, Int]] = []
        if ram.any():
            found.append((self._slab, rows[ram], slots[rows[ram]]))
        if not ram.all():
            assert self._disk is not None
            found.append((self._disk, rows[~ram], slots[rows[~ram]] - self._ram_lots))
        return found

    def _want(
        self,
        tier: _Tier,
        keys: Keys,
        slots: Int,
        lots: Keys,
        done: Callable[[_Wanted], None],
    ) -> None:
        """Have the lots of these keys in the tier, as far as that can be, and call `done`."""
        _, busy = np.unique(slots, return_index=True)
        deadline = time.monotonic() + limits.busy_lot_s
        wanted = _Wanted(tier, keys, slots, lots, done, deadline, busy)
        self._wanted.append(wanted)
        self._look(wanted)

    def _look(self, wanted: _Wanted) -> None:
        """Claim what is not in the slab yet, and read it."""
        rows, tier = wanted.busy, wanted.tier
        slots = wanted.slots[rows]
        claim = tier.claim(slots)
        mine = rows[claim == MINE]
        if len(mine):
            self._load(tier, wanted.slots[mine], wanted.lots[mine])
        if tier is self._disk and (claim == READY).any():
            self._from_disk(wanted, rows[claim == READY])
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

    def _finish(self, wanted: _Wanted) -> None:
        if not wanted.waiting and not len(wanted.busy):
            self._wanted.remove(wanted)
            wanted.done(wanted)

    def _load(self, tier: _Tier, slots: Int, lots: Keys) -> None:
        """Read lots from storage; those that have no room in the slab are abandoned."""
        size = self._lot_bytes(lots)
        buffer: Buffer
        if tier is self._slab:
            buffer, at = self._slab.data, self._slab.allocate(size)
            room = at >= 0
            if not room.all():
                self._slab.abandon(slots[~room])
                self._counts["lots_without_room"] += int(np.count_nonzero(~room))
                slots, lots, at, size = slots[room], lots[room], at[room], size[room]
        else:
            at = np.cumsum(size) - size
            buffer = np.empty(int(size.sum()), np.uint8)
        if not len(slots):
            return
        keys, first = self._keys_of(lots)
        length = self._addressed.key_lengths(keys)
        ends = np.cumsum(length) - length
        target = ends + np.repeat(at - ends[first[:-1]], np.diff(first))
        placed = self._addressed.placed(keys, np.zeros(len(keys), np.int64), target)
        (requests,) = merge(placed, 1, self._inner.choice.gap_bytes)
        ticket = self._submit(requests, [buffer])
        self._loads[ticket] = _Load(tier, slots, at, size, requests, buffer)
        self._reading |= dict.fromkeys(((tier is self._disk, s) for s in slots.tolist()), ticket)
        self._counts["loaded_bytes"] += int(size.sum())

    def _loaded(self, report: Completion) -> None:
        load = self._loads.pop(report.ticket)
        whole = np.ones(len(load.slots), bool)
        for extent, _, _ in report.failures:  # whoever wants them will find out what it is
            target = int(load.requests.target[extent])
            whole &= (target < load.at) | (target >= load.at + np.maximum(load.size, 1))
        self._counts["failed_loads"] += int(np.count_nonzero(~whole))
        load.tier.abandon(load.slots[~whole])
        lots: dict[int, Buffer] = {}
        slots, at, size = load.slots[whole], load.at[whole], load.size[whole]
        if load.tier is self._slab:
            self._slab.publish(slots, at, size)
        else:
            for slot, a, b in zip(slots.tolist(), at.tolist(), (at + size).tolist(), strict=True):
                lots[slot] = load.buffer[a:b]
            assert self._disk is not None
            self._disk_threads.submit(self._disk.write, slots, list(lots.values()))
        for slot in load.slots.tolist():
            del self._reading[load.tier is self._disk, slot]
        self._brought(report.ticket, lots)

    def _brought(self, ticket: int, lots: dict[int, Buffer]) -> None:
        """A ticket or a job has ended; these lots came with it, of the disk tier."""
        for wanted in list(self._wanted):
            if ticket in wanted.waiting:
                wanted.waiting.remove(ticket)
                wanted.held |= lots
                self._finish(wanted)

    def _from_disk(self, wanted: _Wanted, rows: Int) -> None:
        """Read lots from the disk, in another thread; what is damaged there is just not there."""
        disk, job = self._disk, next(self._jobs)
        assert disk is not None
        slots, size = wanted.slots[rows], self._lot_bytes(wanted.lots[rows])
        wanted.waiting.add(job)

        def read() -> None:
            found = zip(slots.tolist(), disk.read(slots, size), strict=True)
            lots = {slot: lot for slot, lot in found if lot is not None}
            self._news.append(lambda: self._brought(job, lots))
            self._wake()

        self._disk_threads.submit(read)

    def _lot_bytes(self, lots: Keys) -> Int:
        """Bytes of each lot."""
        keys, first = self._keys_of(lots)
        ends = np.concatenate([[0], np.cumsum(self._addressed.key_lengths(keys))])
        size: Int = np.diff(ends[first])
        return size

    def _keys_of(self, lots: Keys) -> tuple[Keys, Int]:
        """All keys of lots, and where each lot begins among them (and the end)."""
        lot, fields = self._placement.lot, int(self._fields)
        held = np.minimum(lot, self._placement.count - lots.astype(np.int64) * lot) * fields
        first = np.concatenate([[0], np.cumsum(held)])
        inside = np.arange(first[-1]) - np.repeat(first[:-1], held)
        keys = np.repeat(lots * np.uint64(lot * fields), held) + inside.astype(np.uint64)
        return keys, first

    def _there(self, wanted: _Wanted) -> npt.NDArray[np.bool_]:
        """Which keys can be copied."""
        if wanted.tier is self._slab:
            found: npt.NDArray[np.bool_] = self._slab.offsets(wanted.slots) >= 0
            return found
        return np.isin(wanted.slots, np.fromiter(wanted.held, np.int64, len(wanted.held)))

    def _copy(self, wanted: _Wanted, rows: Int, length: Int, out: Buffer, target: Int) -> None:
        """Copy keys that are there to where they are wanted."""
        inside = self._inside(wanted.keys[rows], wanted.lots[rows])
        if wanted.tier is self._slab:
            at = self._slab.offsets(wanted.slots[rows])
            self._slab.gather(at + inside, length, out, target)
            return
        columns = (wanted.slots[rows], inside, length, target)
        for slot, a, n, to in zip(*(each.tolist() for each in columns), strict=True):
            out[to : to + n] = wanted.held[slot][a : a + n]

    def _inside(self, keys: Keys, lots: Keys) -> Int:
        """Where in its lot each key begins."""
        width = np.uint64(self._placement.lot) * self._fields
        if width == 1:
            return np.zeros(len(keys), np.int64)
        row = (keys - lots * width).astype(np.int64)
        if len(self._addressed.fields) == 1 and self._addressed.row_bytes[0] is not None:
            return row * self._addressed.row_bytes[0]
        lot, number = np.unique(lots, return_inverse=True)
        every, first = self._keys_of(lot)
        ends = np.concatenate([[0], np.cumsum(self._addressed.key_lengths(every))])
        inside: Int = ends[first[number] + row] - ends[first[number]]
        return inside

    # -- peers ---------------------------------------------------------------------------------

    def _serve(self, request: PeerRequest) -> None:
        """Answer a peer: what is kept here, of the length that it expects."""
        keys = request.keys
        ours = keys < np.uint64(self._placement.count) * self._fields
        keys = np.where(ours, keys, np.uint64(0))
        lots = self._placement.lots_at(keys // self._fields)
        owner, slot = self._placement.place(lots)
        ours &= owner == self._node
        ours &= self._addressed.key_lengths(keys) == request.lengths
        answer = _Answer(request, np.flatnonzero(ours))
        for tier, rows, slots in self._tiers(answer.rows, slot):
            answer.parts += 1
            self._want(tier, keys[rows], slots, lots[rows], self._answering(answer, rows))
        self._end_answer(answer)

    def _answering(self, answer: _Answer, rows: Int) -> Callable[[_Wanted], None]:
        def done(wanted: _Wanted) -> None:
            there = self._there(wanted)
            answer.found.append((wanted, np.flatnonzero(there), rows[there]))
            self._end_answer(answer)

        return done

    def _end_answer(self, answer: _Answer) -> None:
        """Answer a peer once all that it wants is there, or will not be."""
        answer.parts -= 1
        if answer.parts:
            return
        assert self._peer is not None
        request = answer.request
        there = np.zeros(len(request.keys), bool)
        for _, _, rows in answer.found:
            there[rows] = True
        length = np.where(there, request.lengths, 0)
        ends = np.cumsum(length)
        total = int(ends[-1]) if len(ends) else 0
        out: list[Buffer] = [np.empty(total, np.uint8)]
        if len(answer.found) == 1 and total >= _view_bytes * np.count_nonzero(there):
            out = self._views(*answer.found[0], request.lengths)
        else:
            for wanted, found, rows in answer.found:
                self._copy(wanted, found, length[rows], out[0], (ends - length)[rows])
        self._peer.answer(request.number, out, np.flatnonzero(~there))
        self._counts["served_bytes"] += total

    def _views(self, wanted: _Wanted, found: Int, rows: Int, length: Int) -> list[Buffer]:
        """Large keys, where they lie: the slab stays as it is."""
        inside = self._inside(wanted.keys[found], wanted.lots[found])
        if wanted.tier is self._slab:
            at = self._slab.offsets(wanted.slots[found]) + inside
            data = self._slab.data
            return [
                data[a : a + n] for a, n in zip(at.tolist(), length[rows].tolist(), strict=True)
            ]
        columns = (wanted.slots[found], inside, length[rows])
        each = zip(*(column.tolist() for column in columns), strict=True)
        return [wanted.held[slot][a : a + n] for slot, a, n in each]
