"""Engine of a rank over the caches of its job: own tiers, peers, storage.

`CachedEngine` executes requests of keys (`key_index`). It computes where the bytes of each key come
from:

    a replica here                copied from it (`replicas`), if replicas are asked for
    cache block of this node      copied from the slab, into which the first who wants it reads
                                  it; or from the cache block read from this node's disk
    cache block of another node   asked of that node, which reads what it does not have yet
    cache block of no node        read from storage, into the batch

If any of the first three ways fails (no room in the slab; a peer that is gone or slow, or has no
such cache block), the key is read from storage. So a batch is never wrong, and waits no longer than
a peer's deadline. Later batches do not wait for a peer that has failed: it is asked for one key at
a time, which nobody waits for, until it answers again. Errors of storage are reported as any engine
reports them.

One thread of each engine does all of this and answers the peers. A second thread waits for storage.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import select
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import limits
from ..budget import Budget
from ..engine import (
    Arena,
    Buffer,
    Completion,
    Failure,
    Purpose,
    ReadingEngine,
    ReadMethod,
    check_purpose,
    check_requests,
    check_usable,
    start_threads,
)
from ..errors import PenstockError
from ..extent import Int, Requests, merge, slice_files
from ..plan import Placement, rotation_start
from .disk import DiskTier
from .key_index import Addressed
from .node_tiers import NodeTiers, WantedKeys
from .peer import Peer, PeerCompletion, PeerRequest
from .replicas import Replicas, UseTimes
from .shared_memory import RamTier
from .source_check import SourceCheck

log = logging.getLogger("penstock")
_poll_ns = 100_000_000
_busy_ns = 500_000
"""Interval of looking at a cache block that another rank is reading."""
_view_bytes = 64 << 10
"""Mean size of samples from which an answer is sent from the slab; smaller ones are gathered."""


@dataclass(slots=True, eq=False)
class _Step:
    """A ticket of this engine: its requests, and how many parts of it are on their way."""

    ticket: int
    requests: Requests
    buffers: Sequence[Buffer]
    purpose: Purpose
    uses: UseTimes | None
    parts: int = 1
    failures: list[Failure] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Answer:
    """An answer to a peer: the rows of its request that are kept here, and those that are there."""

    request: PeerRequest
    rows: Int
    parts: int = 1
    ready_parts: list[tuple[WantedKeys, Int, Int]] = field(default_factory=list)


class CacheShell:
    """Shell that executes requests of keys in threads of its own; see the module.

    The threads refer to it. So it lives until it is closed, by the `CachedEngine` that has it.

    inner:      reads the files of `index`; this engine closes it.
    placement:  which node keeps which cache blocks.
    nodes:      the node of each rank; this one is `rank`.
    slab:       of this node, shared by its ranks; this engine closes it.
    disk:       of this node, for its slots from `placement.ram_cache_blocks` on; this engine closes
                it.
    peer:       to the ranks of other nodes; None if there are none.
    replicas:   copies of samples that other nodes keep; None for none.
    """

    def __init__(
        self,
        addressed: Addressed,
        inner: ReadingEngine,
        placement: Placement,
        nodes: Sequence[int],
        rank: int,
        slab: RamTier,
        disk: DiskTier | None,
        peer: Peer | None,
        replicas: Replicas | None = None,
    ) -> None:
        self._replicas = replicas
        self._addressed = addressed
        self._inner = inner
        self._placement = placement
        self._node = nodes[rank]
        self._beginning = rotation_start(rank, len(nodes))
        # Of each node, the ranks that may be asked, the best one first; spread over who asks.
        self._via = [
            deque(other for other, at in enumerate(nodes) if at == node)
            for node in range(placement.nodes)
        ]
        for ranks in self._via:
            ranks.rotate(-rank)
        self._peer = peer
        self._fields = np.uint64(len(addressed.fields))
        self._pid = os.getpid()
        self._closed = False
        files, world = addressed.index.files, len(nodes)
        part = slice_files(files, len(files) * rank // world, len(files) * (rank + 1) // world)
        self._check = SourceCheck(part, functools.partial(_fail, weakref.ref(self)))
        self._fault: BaseException | None = None
        # Between the user's thread and ours.
        self._lock = threading.Condition()
        self._asked: deque[_Step] = deque()
        self._done: list[Completion] = []
        self._outstanding = 0
        self._submitted = 0
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._woken = select.poll()
        self._woken.register(self._wake_fd, select.POLLIN)
        # Ours alone.
        self._counts: Counter[str] = Counter()
        self._direct: dict[int, tuple[_Step, Requests]] = {}  # by ticket of the inner engine
        self._fetches: dict[int, tuple[_Step, Int, int]] = {}  # by ticket of the peer: rows, rank
        self._failed: dict[int, float] = {}  # rank -> when it is tried again
        self._trials: dict[int, int] = {}  # by ticket of the peer: rank
        self._waiting: deque[PeerRequest] = deque()  # for memory of an answer
        self._answers = Arena(limits.peer_answers_bytes_max)
        self._answering_bytes = 0  # of requests whose answers are not made yet
        self._tiers = NodeTiers(
            addressed,
            placement,
            self._node,
            slab,
            disk,
            read=self._submit,
            begin=self._beginning,
            wake=self._wake,
            counts=self._counts,
        )
        # Between the thread that waits for storage, and ours.
        self._reports: deque[Completion] = deque()
        self._more = threading.Semaphore(0)
        self._threads = [
            threading.Thread(target=self._guard, args=(run,), name=name, daemon=True)
            for name, run in (("penstock-cache", self._run), ("penstock-storage", self._watch))
        ]
        start_threads(self._threads, self.close)

    # -- the user's side -----------------------------------------------------------------------

    @property
    def choice(self) -> ReadMethod:
        """Method by which storage is read."""
        return self._inner.choice

    def submit(
        self,
        requests: Requests,
        buffers: Sequence[Buffer],
        purpose: Purpose = "prefetch",
        uses: UseTimes | None = None,
    ) -> int:
        """Accept requests of keys, as `Addressed` gives them.

        purpose:  of the reads from storage, those of cache blocks that are to be kept included. A
                  read for a peer is a demand.
        uses:     times at which the ranks of this node use samples, as seen from the epoch of these
                  requests. Without it replicas are neither read nor made.
        """
        check_requests(requests, buffers, len(self._addressed.index.files))
        check_purpose(purpose)
        with self._lock:
            self._check_usable()
            ticket = self._submitted
            self._submitted += 1
            self._outstanding += 1
            self._asked.append(_Step(ticket, requests, list(buffers), purpose, uses))
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
        """Pass the budget for reading storage on to the storage engine, and that of the disk;
        bound the memory of answers to peers."""
        self._inner.adopt(budget)
        self._tiers.adopt(budget)
        self._answers.limit(budget.peer_answers_bytes)

    def measure_buffers(self, budget: Budget) -> int:
        """Return the bytes of a budget that this engine's own buffers may take."""
        answers_bytes = 0 if self._peer is None else budget.peer_answers_bytes
        return answers_bytes + (budget.disk_buffer_bytes if self._tiers.has_disk else 0)

    def survey(self) -> None:
        """Look whether files have changed since they were indexed; see `SourceCheck`.

        A changed one ends this engine with ChangedError, at once or, where storage is slow, later
        in the epoch. Each rank looks at its part of the files. How storage is read stays as it was.
        """
        self._check.begin()

    def counters(self) -> dict[str, int]:
        """Return the counters of the storage engine and of the cache.

        ram_bytes, disk_bytes, replica_bytes, peer_bytes, direct_bytes:  where the bytes of batches
                       came from.
        loaded_bytes:  read from storage to be kept.
        served_bytes:  given to peers.
        slab_*:        those of `SlabCounters`, of all ranks of this host.
        disk_blocks_*: cache blocks that this rank has read from the disk tier and written to it;
                       those damaged there are read from storage again.

        Further counters tell how often a key took another way.
        """
        names = (
            "loaded_bytes",
            "ram_bytes",
            "disk_bytes",
            "replica_bytes",
            "peer_bytes",
            "direct_bytes",
            "served_bytes",
        )
        counts = self._inner.counters() | {name: self._counts[name] for name in names}
        counts |= dict(self._counts)
        of_slab = self._tiers.slab.counters()._asdict()
        counts |= {f"slab_{name}": count for name, count in of_slab.items()}
        counts |= {
            f"disk_blocks_{name}": count for name, count in self._tiers.count_on_disk().items()
        }
        if self._peer is not None:
            counts |= {f"peer_{name}": count for name, count in self._peer.counters().items()}
        return counts

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
        for thread in self._threads:
            if thread.ident is not None:  # else the system refused it
                thread.join()
        self._inner.close()
        if self._peer is not None:
            self._peer.close()
        self._tiers.close()
        self._replicas = None
        os.close(self._wake_fd)

    def _check_usable(self) -> None:
        if self._fault is not None:
            raise self._fault
        check_usable(False, self._closed)

    # -- the threads ---------------------------------------------------------------------------

    def _guard(self, run: Callable[[], None]) -> None:
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
            busy = self._tiers.busy
            self._sleep(_busy_ns if busy or self._waiting else _poll_ns)
            while self._reports:
                self._take_report(self._reports.popleft())
            self._tiers.drain()
            self._serve_waiting()
            while self._asked and not self._tiers.is_full:
                self._begin(self._asked.popleft())
            if busy:
                self._tiers.look_again()

    def _sleep(self, timeout_ns: int) -> None:
        """Wait until something happens; take the events of the peer."""
        if self._peer is None:
            self._woken.poll(timeout_ns / 1e6)
        else:
            completions, requests = self._peer.step(timeout_ns, [self._wake_fd])
            for completion in completions:
                self._finish_fetch(completion)
            self._waiting.extend(requests)
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake_fd)

    # -- a step of this rank -------------------------------------------------------------------

    def _begin(self, step: _Step) -> None:
        keys = step.requests.offset.view(np.uint64)
        cache_blocks = self._placement.cache_blocks_at(keys // self._fields)
        owner, slot = self._placement.place(cache_blocks)
        own = owner == self._node
        for tier, rows, slots in self._tiers.split_by_tier(np.flatnonzero(own), slot):
            step.parts += 1
            done = self._make_copier(step, rows)
            self._tiers.want(tier, keys[rows], slots, cache_blocks[rows], step.purpose, done)
        away = owner >= 0
        away &= ~own
        rows = np.flatnonzero(away)
        if self._replicas is not None and len(rows):
            rows = self._take_replicas(step, self._replicas, rows)
        if len(rows):
            rows = rows[np.argsort(owner[rows], kind="stable")]
            nodes, first = np.unique(owner[rows], return_index=True)
            for node, part in zip(nodes.tolist(), np.split(rows, first[1:]), strict=True):
                self._fetch(step, node, part)
        self._read(step, np.flatnonzero(owner < 0))
        self._end_part(step)

    def _make_copier(self, step: _Step, rows: Int) -> Callable[[WantedKeys], None]:
        """Return a callback that copies from the tier into the batch, and reads the rest from
        storage."""

        def done(wanted: WantedKeys) -> None:
            there = self._tiers.find_ready(wanted)
            length, target = step.requests.length[rows], step.requests.target[rows]
            for number, buffer in enumerate(step.buffers):
                part = np.flatnonzero(there & (step.requests.buffer[rows] == number))
                self._tiers.copy(wanted, part, length[part], buffer, target[part])
            name = "ram_bytes" if wanted.tier is self._tiers.slab else "disk_bytes"
            self._counts[name] += int(length[there].sum())
            self._read(step, rows[~there])
            self._end_part(step)

        return done

    def _take_replicas(self, step: _Step, replicas: Replicas, rows: Int) -> Int:
        """Copy rows of other nodes out of replicas; return the rows that have none."""
        if step.uses is None:
            return rows
        was_copied = np.zeros(len(rows), bool)
        keys, length = step.requests.offset.view(np.uint64), step.requests.length
        with self._give_up_on_error():
            for number, buffer in enumerate(step.buffers):
                at = np.flatnonzero(step.requests.buffer[rows] == number)
                some = rows[at]
                target = step.requests.target[some]
                here = replicas.take(keys[some], length[some], buffer, target, step.uses)
                was_copied[at[here]] = True
        self._counts["replica_bytes"] += int(length[rows[was_copied]].sum())
        return rows[~was_copied]

    def _make_replicas(self, step: _Step, rows: Int) -> None:
        """Make replicas of rows that another node has sent, if they are worth it."""
        replicas = self._replicas
        if replicas is None or step.uses is None or not len(rows):
            return
        requests = step.requests
        with self._give_up_on_error():
            replicas.offer(
                requests.offset[rows].view(np.uint64),
                requests.length[rows],
                step.buffers[int(requests.buffer[rows[0]])],  # a fetch is into one
                requests.target[rows],
                step.uses,
            )

    @contextlib.contextmanager
    def _give_up_on_error(self) -> Iterator[None]:
        """Give replicas up, and go on without them, if an error is raised inside."""
        try:
            yield
        except Exception:
            self._replicas = None
            log.exception("copies of what other hosts keep are given up; batches are not affected")

    def _fetch(self, step: _Step, node: int, rows: Int) -> None:
        """Ask another node, buffer by buffer, or storage if nobody there would answer."""
        requests = step.requests
        self._try(node, step, rows[:1])
        rank = next((other for other in self._via[node] if other not in self._failed), None)
        if rank is None:
            self._counts["fetches_avoided"] += 1
            self._read(step, rows)
            return
        for number, buffer in enumerate(step.buffers):
            part = rows[requests.buffer[rows] == number]
            length = requests.length[part]
            group = (np.cumsum(length) - length) // limits.peer_fetch_bytes
            cut = np.diff(group) != 0
            cut |= np.arange(1, len(part)) % limits.peer_keys_max == 0
            for some in np.split(part, np.flatnonzero(cut) + 1) if len(part) else ():
                assert self._peer is not None
                ticket = self._peer.submit(
                    rank,
                    requests.offset[some].view(np.uint64),
                    requests.length[some],
                    requests.target[some],
                    buffer,
                )
                self._fetches[ticket] = (step, some, rank)
                step.parts += 1

    def _try(self, node: int, step: _Step, row: Int) -> None:
        """Ask ranks of a node that have failed, if it is time, whether they answer again.

        Each is asked for one key, whose bytes are thrown away.
        """
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

    def _finish_fetch(self, completion: PeerCompletion) -> None:
        if completion.reason is not None:
            self._counts[f"fetches_{completion.reason.name.lower()}"] += 1
        if completion.ticket in self._trials:
            self._note_answer(self._trials.pop(completion.ticket), completion)
            return
        step, rows, rank = self._fetches.pop(completion.ticket)
        self._note_answer(rank, completion)
        missing = rows[completion.failures]
        length = step.requests.length
        self._counts["peer_bytes"] += int(length[rows].sum() - length[missing].sum())
        self._make_replicas(step, np.delete(rows, completion.failures))
        self._read(step, missing)
        self._end_part(step)

    def _note_answer(self, rank: int, completion: PeerCompletion) -> None:
        """Note whether the rank that was asked has answered."""
        if completion.reason is None:
            self._failed.pop(rank, None)
        else:
            self._failed[rank] = time.monotonic() + limits.peer_pause_s

    def _read(self, step: _Step, rows: Int) -> None:
        """Read keys from storage into the batch."""
        if not len(rows):
            return
        asked = step.requests
        placed = self._addressed.place_keys(
            asked.offset[rows].view(np.uint64), asked.buffer[rows], asked.target[rows]
        )
        for requests in merge(placed, len(step.buffers), 0, self._beginning):
            if len(requests.file):
                ticket = self._submit(requests, step.buffers, step.purpose)
                self._direct[ticket] = (step, requests)
                step.parts += 1
        self._counts["direct_bytes"] += int(asked.length[rows].sum())

    def _submit(self, requests: Requests, buffers: Sequence[Buffer], purpose: Purpose) -> int:
        ticket = self._inner.submit(requests, buffers, purpose)
        self._more.release()
        return ticket

    def _take_report(self, report: Completion) -> None:
        """Take a report of the storage engine: cache blocks, or rows of a batch."""
        if self._tiers.take_report(report):
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

    # -- peers ---------------------------------------------------------------------------------

    def _serve_waiting(self) -> None:
        """Begin answers to peers while there is memory for them; one answer may always be there."""
        while self._waiting and not self._tiers.is_full:
            size_bytes = int(self._waiting[0].lengths.sum())
            is_alone = not self._answering_bytes and not self._answers.ahead_bytes
            if not is_alone and not self._answers.has_room([size_bytes], self._answering_bytes):
                return
            self._answering_bytes += size_bytes
            self._serve(self._waiting.popleft())

    def _serve(self, request: PeerRequest) -> None:
        """Answer a peer with the keys that are kept here and have the length that it expects."""
        keys = request.keys
        ours = keys < np.uint64(self._placement.count) * self._fields
        keys = np.where(ours, keys, np.uint64(0))
        cache_blocks = self._placement.cache_blocks_at(keys // self._fields)
        owner, slot = self._placement.place(cache_blocks)
        ours &= owner == self._node
        ours &= self._addressed.key_lengths(keys) == request.lengths
        answer = _Answer(request, np.flatnonzero(ours))
        for tier, rows, slots in self._tiers.split_by_tier(answer.rows, slot):
            answer.parts += 1
            done = self._make_answerer(answer, rows)
            self._tiers.want(tier, keys[rows], slots, cache_blocks[rows], "demand", done)
        self._end_answer(answer)

    def _make_answerer(self, answer: _Answer, rows: Int) -> Callable[[WantedKeys], None]:
        def done(wanted: WantedKeys) -> None:
            there = self._tiers.find_ready(wanted)
            answer.ready_parts.append((wanted, np.flatnonzero(there), rows[there]))
            self._end_answer(answer)

        return done

    def _end_answer(self, answer: _Answer) -> None:
        """Send the answer to a peer once each of its keys is there, or known not to come."""
        answer.parts -= 1
        if answer.parts:
            return
        assert self._peer is not None
        request = answer.request
        self._answering_bytes -= int(request.lengths.sum())
        there = np.zeros(len(request.keys), bool)
        for _, _, rows in answer.ready_parts:
            there[rows] = True
        length = np.where(there, request.lengths, 0)
        ends = np.cumsum(length)
        total = int(ends[-1]) if len(ends) else 0
        if len(answer.ready_parts) == 1 and total >= _view_bytes * np.count_nonzero(there):
            out = self._tiers.view_keys(*answer.ready_parts[0], request.lengths)
        else:
            out = [self._answers.take(total)]
            for wanted, positions, rows in answer.ready_parts:
                self._tiers.copy(wanted, positions, length[rows], out[0], (ends - length)[rows])
        self._peer.answer(request.number, out, np.flatnonzero(~there))
        self._counts["served_bytes"] += total


def _fail(shell: weakref.ref[CacheShell], error: PenstockError) -> None:
    if (alive := shell()) is not None:
        with alive._lock:
            alive._fault = alive._fault or error
            alive._lock.notify_all()


class CachedEngine:
    """Engine that executes requests of keys; see the module, and `penstock.engine.Engine`.

    It ends with `close`, or with the last reference to it: then too its threads end, and its
    descriptors and shared memory are given back. The arguments are those of `CacheShell`.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._shell = CacheShell(*arguments, **options)
        self._finalizer = weakref.finalize(self, self._shell.close)
        self._finalizer.atexit = False  # threads that wait for storage must not delay the end

    @property
    def choice(self) -> ReadMethod:
        """Method by which storage is read."""
        return self._shell.choice

    def submit(
        self,
        requests: Requests,
        buffers: Sequence[Buffer],
        purpose: Purpose = "prefetch",
        uses: UseTimes | None = None,
    ) -> int:
        """Accept requests of keys; see `CacheShell.submit`."""
        return self._shell.submit(requests, buffers, purpose, uses)

    def poll(self, timeout_ns: int) -> list[Completion]:
        """Report finished tickets."""
        return self._shell.poll(timeout_ns)

    def adopt(self, budget: Budget) -> None:
        """Pass the budget for reading storage on to the storage engine; see `CacheShell.adopt`."""
        self._shell.adopt(budget)

    def measure_buffers(self, budget: Budget) -> int:
        """Return the bytes of a budget that this engine's own buffers may take."""
        return self._shell.measure_buffers(budget)

    def survey(self) -> None:
        """Look whether files have changed since they were indexed; see `CacheShell.survey`."""
        self._shell.survey()

    def counters(self) -> dict[str, int]:
        """Return the counters of the storage engine and of the cache; see `CacheShell.counters`."""
        return self._shell.counters()

    def close(self) -> None:
        """End the threads, the storage engine, the slab and the peer."""
        self._finalizer()
