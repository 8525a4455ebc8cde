"""A rank's engine over the caches of its job: own slab, peers, storage.

`Addressed` is the index as a plan sees it here: a field of a sample is one extent, at an offset
that is its *key*, sample * fields + field. `CachedEngine` executes such requests, and decides for
each key by arithmetic where its bytes come from:

    the lot is kept by this node   copied from the slab, into which the first who wants it reads it
    by another node                asked of that node, which reads what it does not have yet
    by nobody                      read from storage, into the batch

Whatever goes wrong on the first two ways (no room in the slab, a peer that is gone, slow, or has no
such lot) ends in the third, so a batch is never wrong and waits no longer than a peer's deadline.
No other batch waits for a peer that has failed: it is given one key at a time, which nobody waits
for, until it brings that.
What storage itself says is reported as any engine does.

One thread for each engine does all of this and answers the peers; a second one waits for storage.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import limits
from .budget import Budget
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
    """Lots on their way from storage into the slab."""

    slots: Int
    at: Int  # where each will lie
    size: Int
    requests: Requests


@dataclass(slots=True, eq=False)
class _Wanted:
    """Keys kept by this node that somebody waits for: a step of this rank, or a peer.

    slots, lots:  of each key.
    done:         what becomes of them, once none of the following is left.
    waiting:      tickets of the storage engine that bring some.
    busy:         keys' rows, one for each lot that another rank of this node is reading.
    """

    keys: Keys
    slots: Int
    lots: Keys
    done: Callable[[_Wanted], None]
    deadline: float
    busy: Int
    waiting: set[int] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class _Step:
    """A ticket of ours: what was asked for, and how many parts of it are on their way."""

    ticket: int
    requests: Requests
    buffers: Sequence[Buffer]
    parts: int = 1
    failures: list[Failure] = field(default_factory=list)


class CachedEngine:
    """Executes requests of keys; see the module, and `penstock.engine.Engine`.

    inner:      reads the files of `index`; this engine closes it.
    placement:  which node keeps what.
    nodes:      of each rank; this one is `rank`.
    slab:       of this node, shared by its ranks; this engine closes it.
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
        peer: Peer | None,
    ) -> None:
        self._addressed = addressed
        self._inner = inner
        self._placement = placement
        self._node = nodes[rank]
        # Of each node, the ranks that may be asked, the best one first; spread over who asks.
        self._via = [
            deque(other for other, at in enumerate(nodes) if at == node)
            for node in range(placement.nodes)
        ]
        for ranks in self._via:
            ranks.rotate(-rank)
        self._slab = slab
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
        self._reading: dict[int, int] = {}  # slot -> that ticket
        self._direct: dict[int, tuple[_Step, Requests]] = {}  # by ticket of the inner engine
        self._wanted: list[_Wanted] = []
        self._fetches: dict[int, tuple[_Step, Int, int]] = {}  # by ticket of the peer: rows, rank
        self._failed: dict[int, float] = {}  # rank -> when it is tried again
        self._trials: dict[int, int] = {}  # by ticket of the peer: rank
        # Between the thread that waits for storage and the other.
        self._reports: deque[Completion] = deque()
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
        """Those of the storage engine, and where the bytes of batches came from: ram_bytes,
        peer_bytes, direct_bytes; bytes that peers were given; what went another way; and `slab_`
        those of `tier.Counters`, which are of all ranks of the host."""
        names = ("ram_bytes", "peer_bytes", "direct_bytes", "served_bytes")
        found = self._inner.counters() | {name: self._counts[name] for name in names}
        found |= dict(self._counts)
        of_slab = self._slab.counters()._asdict()
        found |= {f"slab_{name}": count for name, count in of_slab.items()}
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
        for load in self._loads.values():  # the other ranks need not find out by themselves
            self._slab.abandon(load.slots)
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
        if own.any():
            rows = np.flatnonzero(own)
            step.parts += 1
            self._want(keys[rows], slot[rows], lots[rows], self._copying(step, rows))
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
            there, offset = self._offsets(wanted)
            found = rows[there]
            length = step.requests.length[found]
            for number, buffer in enumerate(step.buffers):
                part = step.requests.buffer[found] == number
                target = step.requests.target[found[part]]
                self._slab.gather(offset[part], length[part], buffer, target)
            self._counts["ram_bytes"] += int(length.sum())
            self._read(step, rows[~there])
            self._end_part(step)

        return done

    def _fetch(self, step: _Step, node: int, rows: Int) -> None:
        """Ask another node, buffer by buffer, or storage where nobody there would answer."""
        requests = step.requests
        self._try(node, step, rows[:1])
        rank = next((each for each in self._via[node] if each not in self._failed), None)
        if rank is None:
            self._counts["fetches_avoided"] += 1
            self._read(step, rows)
            return
        for number, buffer in enumerate(step.buffers):
            part = rows[requests.buffer[rows] == number]
            for first in range(0, len(part), limits.peer_keys_max):
                some = part[first : first + limits.peer_keys_max]
                keys, length = requests.offset[some].view(np.uint64), requests.length[some]
                assert self._peer is not None
                ticket = self._peer.submit(rank, keys, length, requests.target[some], buffer)
                self._fetches[ticket] = (step, some, rank)
                step.parts += 1

    def _try(self, node: int, step: _Step, row: Int) -> None:
        """Ask the ranks of a node that have failed, where it is time, for a key that goes nowhere:
        whether they answer again."""
        now, requests = time.monotonic(), step.requests
        for rank in self._via[node]:
            if self._failed.get(rank, math.inf) > now:
                continue
            self._failed[rank] = math.inf
            keys, length = requests.offset[row].view(np.uint64), requests.length[row]
            nowhere = np.empty(int(length[0]), np.uint8)
            assert self._peer is not None
            ticket = self._peer.submit(rank, keys, length, np.zeros(1, np.int64), nowhere)
            self._trials[ticket] = rank

    def _fetched(self, completion: PeerCompletion) -> None:
        if completion.reason is not None:
            self._counts[f"fetches_{completion.reason.name.lower()}"] += 1
        if completion.ticket in self._trials:
            self._heard(self._trials.pop(completion.ticket), completion)
            return
        step, rows, rank = self._fetches.pop(completion.ticket)
        self._heard(rank, completion)
        missing = rows[completion.failures]
        length = step.requests.length
        self._counts["peer_bytes"] += int(length[rows].sum() - length[missing].sum())
        self._read(step, missing)
        self._end_part(step)

    def _heard(self, rank: int, completion: PeerCompletion) -> None:
        """What a fetch says of the rank that was asked."""
        if completion.reason is None:
            self._failed.pop(rank, None)
        else:
            self._failed[rank] = time.monotonic() + limits.peer_pause_s

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

    def _want(self, keys: Keys, slots: Int, lots: Keys, done: Callable[[_Wanted], None]) -> None:
        """Have the lots of these keys in the slab, as far as that can be, and call `done`."""
        _, busy = np.unique(slots, return_index=True)
        deadline = time.monotonic() + limits.busy_lot_s
        wanted = _Wanted(keys, slots, lots, done, deadline, busy)
        self._wanted.append(wanted)
        self._look(wanted)

    def _look(self, wanted: _Wanted) -> None:
        """Claim what is not in the slab yet, and read it."""
        rows = wanted.busy
        claim = self._slab.claim(wanted.slots[rows])
        mine = rows[claim == MINE]
        if len(mine):
            self._load(wanted.slots[mine], wanted.lots[mine])
        left = []
        pending = claim != READY
        for row, slot, code in zip(
            rows[pending].tolist(),
            wanted.slots[rows[pending]].tolist(),
            claim[pending].tolist(),
            strict=True,
        ):
            ticket = self._reading.get(slot)
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

    def _load(self, slots: Int, lots: Keys) -> None:
        """Read lots into the slab; those that have no room there are abandoned."""
        keys, first = self._keys_of(lots)
        length = self._addressed.key_lengths(keys)
        ends = np.concatenate([[0], np.cumsum(length)])
        size = np.diff(ends[first])
        at = self._slab.allocate(size)
        if (at < 0).any():
            room = at >= 0
            self._slab.abandon(slots[~room])
            self._counts["lots_without_room"] += int(np.count_nonzero(~room))
            every = np.repeat(room, np.diff(first))
            slots, at, size, keys, length = (
                slots[room],
                at[room],
                size[room],
                keys[every],
                length[every],
            )
            first = np.concatenate([[0], np.cumsum(np.diff(first)[room])])
            ends = np.concatenate([[0], np.cumsum(length)])
        if not len(slots):
            return
        target = ends[:-1] + np.repeat(at - ends[first[:-1]], np.diff(first))
        placed = self._addressed.placed(keys, np.zeros(len(keys), np.int64), target)
        (requests,) = merge(placed, 1, self._inner.choice.gap_bytes)
        ticket = self._submit(requests, [self._slab.data])
        self._loads[ticket] = _Load(slots, at, size, requests)
        self._reading |= dict.fromkeys(slots.tolist(), ticket)
        self._counts["loaded_bytes"] += int(size.sum())

    def _loaded(self, report: Completion) -> None:
        load = self._loads.pop(report.ticket)
        whole = np.ones(len(load.slots), bool)
        for extent, _, _ in report.failures:  # whoever wants them will find out what it is
            target = int(load.requests.target[extent])
            whole &= (target < load.at) | (target >= load.at + np.maximum(load.size, 1))
        self._counts["failed_loads"] += int(np.count_nonzero(~whole))
        self._slab.publish(load.slots[whole], load.at[whole], load.size[whole])
        self._slab.abandon(load.slots[~whole])
        for slot in load.slots.tolist():
            del self._reading[slot]
        for wanted in list(self._wanted):
            if report.ticket in wanted.waiting:
                wanted.waiting.remove(report.ticket)
                self._finish(wanted)

    def _keys_of(self, lots: Keys) -> tuple[Keys, Int]:
        """All keys of lots, and where each lot begins among them (and the end)."""
        lot, fields = self._placement.lot, int(self._fields)
        held = np.minimum(lot, self._placement.count - lots.astype(np.int64) * lot) * fields
        first = np.concatenate([[0], np.cumsum(held)])
        inside = np.arange(first[-1]) - np.repeat(first[:-1], held)
        keys = np.repeat(lots * np.uint64(lot * fields), held) + inside.astype(np.uint64)
        return keys, first

    def _offsets(self, wanted: _Wanted) -> tuple[npt.NDArray[np.bool_], Int]:
        """Which keys are in the slab, and where those are."""
        offset = self._slab.offsets(wanted.slots)
        there = offset >= 0
        keys = wanted.keys[there]
        return there, offset[there] + self._inside(keys, wanted.lots[there])

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
        rows = np.flatnonzero(ours)

        def done(wanted: _Wanted) -> None:
            there, offset = self._offsets(wanted)
            length = request.lengths[rows[there]]
            refused = np.ones(len(request.keys), bool)
            refused[rows[there]] = False
            self._peer_answer(request.number, offset, length, np.flatnonzero(refused))

        self._want(keys[rows], slot[rows], lots[rows], done)

    def _peer_answer(self, number: int, offset: Int, length: Int, refused: Int) -> None:
        assert self._peer is not None
        total = int(length.sum())
        parts: list[npt.NDArray[np.uint8]]
        if len(length) and total >= _view_bytes * len(length):
            data = self._slab.data
            parts = [data[a:b] for a, b in zip(offset, offset + length, strict=True)]
        else:
            parts = [np.empty(total, np.uint8)]
            self._slab.gather(offset, length, parts[0], np.cumsum(length) - length)
        self._peer.answer(number, parts, refused)
        self._counts["served_bytes"] += total
