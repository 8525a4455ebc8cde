"""Shell of a rank's cache: performs what `plan.CacheSession` decides, in two threads.

One thread passes events to the session, performs its actions over the slab, the disk, the peers and
the storage engine, and answers the peers. An action that fails is an event, too. The other thread
waits for storage, and reads and writes the disk, reads first: all waiting cache blocks are on their
way at once.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, assert_never

import numpy as np

from .. import limits
from ..engine.native import Arena
from ..engine.protocol import Buffer, Completion, Failure, ReadingEngine
from ..engine.reports import ReportQueue
from ..engine.request_queue import Purpose
from ..engine.threads import join_threads, start_threads
from ..extent import Int, Requests, merge
from ..plan import cache_actions
from ..plan.cache_actions import NodeTier, RowFailure
from ..plan.cache_blocks import BlockLayout
from ..plan.cache_session import CacheSession
from ..plan.placement import Placement
from .disk import DiskTier, own_descriptor
from .key_index import Addressed
from .peer import Peer, PeerCompletion, PeerRequest
from .replicas import Replicas, UseTimes
from .shared_memory import RamTier

log = logging.getLogger("penstock")
_poll_ns = 100_000_000
_slice_ns = 1_000_000
"""Time for which a thread that waits for storage may leave the disk alone."""
_disk_blocks_max = 64
"""Cache blocks of the disk that are read together, unless one action reads more."""
_view_bytes = 64 << 10
"""Mean size of samples from which an answer is sent from the slab; smaller ones are gathered."""


class SubmittedStep(NamedTuple):
    """Requests of keys, and their buffers; `CachedEngine.submit` describes them."""

    requests: Requests
    buffers: Sequence[Buffer]
    purpose: Purpose
    uses: UseTimes | None


class _LoadRead(NamedTuple):
    """A read of cache blocks from storage."""

    load: cache_actions.LoadBlocks
    requests: Requests
    buffer: Buffer


@dataclass(slots=True, eq=False)
class _KeyRead:
    """A read of keys from storage into a batch, in one or more requests."""

    number: int
    step: Requests
    pending: int = 0
    failures: list[RowFailure] = field(default_factory=list)


class _ReadyKeys(NamedTuple):
    """Wanted keys that are there.

    at:    offset of each key's cache block in the slab, 0 for the disk; -1 if it is not there.
    blocks:  cache blocks of the disk by slot.
    """

    at: Int
    blocks: dict[int, Buffer]


class CacheShell:
    """Threads of a `CachedEngine`; see the module.

    The threads refer to the shell: once started, it lives until the engine closes it.

    inner:      reads the files of `index`; the shell closes it.
    placement:  which node keeps which cache blocks.
    nodes:      node of each rank; this rank is `rank`.
    slab:       of this node, shared by its ranks; the shell closes it.
    disk:       of this node, for its slots from `placement.ram_cache_blocks` on; the shell closes
                it.
    peer:       to the ranks of other nodes, if there are any.
    replicas:   copies of samples that other nodes keep, if wanted.
    session_class:  makes the session.
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
        *,
        session_class: Callable[..., CacheSession] = CacheSession,
    ) -> None:
        self.addressed, self.nodes, self.rank = addressed, nodes, rank
        self.inner, self.slab, self.disk, self.peer = inner, slab, disk, peer
        self._replicas = replicas
        self._turn = rank, len(nodes)
        self.layout = BlockLayout(addressed, placement.cache_block)
        # Shared with the user's threads.
        self.reports = ReportQueue()
        self._submitted_steps: deque[tuple[int, SubmittedStep]] = deque()
        self.copied_bytes = 0  # in `CachedEngine.submit`
        self._wake_file = own_descriptor(os.eventfd, 0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._woken = select.poll()
        self._woken.register(self._wake_file, select.POLLIN)
        # The session thread's alone.
        self.session = session_class(
            addressed, placement, nodes, rank, replicas=replicas is not None
        )
        self._steps: dict[int, SubmittedStep] = {}
        self._reads: dict[int, _LoadRead | tuple[_KeyRead, Requests]] = {}  # by storage ticket
        self._fetches: dict[int, int] = {}  # by ticket of the peer
        self.answers = Arena(limits.peer_answers_bytes_max)
        self._sources: dict[int, dict[int, Buffer]] = {}  # cache blocks of the disk by slot
        self._warned: set[type] = set()  # actions whose failure was logged
        self.failed_writes = 0  # of the disk tier; for the session these writes have ended
        # Shared with the storage thread.
        self._reports: deque[Completion] = deque()
        self._more = threading.Semaphore(0)
        self._disk_ended: deque[tuple[cache_actions.Action, BaseException | None]] = deque()
        self._disk_reads: deque[cache_actions.ReadDisk] = deque()
        self._disk_writes: deque[tuple[cache_actions.WriteDisk, list[Buffer]]] = deque()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start the threads. The caller closes the shell, whatever happens."""
        self._threads = [
            threading.Thread(target=self._guard, args=(run,), name=name, daemon=True)
            for name, run in (("penstock-cache", self._run), ("penstock-storage", self._watch))
        ]
        start_threads(self._threads)

    # -- the user's threads --------------------------------------------------------------------

    def accept(self, step: SubmittedStep | None, copied_bytes: int = 0) -> int:
        """Return a new ticket. None is a step whose bytes are copied; the next poll reports it."""
        reports = self.reports
        with reports.lock:
            reports.check_usable()
            ticket = reports.open_ticket()
            if step is None:
                self.copied_bytes += copied_bytes
                reports.report(Completion(ticket, ()))
            else:
                self._submitted_steps.append((ticket, step))
                self._wake()
        return ticket

    def close(self) -> None:
        """End the threads, the storage engine, the slab and the peer."""
        if self.reports.is_inherited or not self.reports.close():
            return
        self._more.release()
        self._wake()
        join_threads(self._threads)
        self.inner.close()
        if self.peer is not None:
            self.peer.close()
        if self.disk is not None:
            self.disk.close()
        self.slab.close()  # claims are given back: the other ranks need not find out themselves
        self._replicas = None
        self._wake_file.close()

    # -- the threads ---------------------------------------------------------------------------

    def _guard(self, run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as error:
            self.reports.fail(error)

    def _wake(self) -> None:
        os.eventfd_write(self._wake_file.fileno(), 1)

    def _watch(self) -> None:
        """Wait for storage, and use the disk. The engine's lock lets others submit meanwhile."""
        announced = 0  # tickets and disk work that began, less those that ended
        wait_ns = _poll_ns if self.disk is None else _slice_ns
        while not self.reports.is_closed:
            while announced < 1:
                self._more.acquire()
                announced += 1
            ended = self._use_disk()
            is_busy = ended or self._disk_reads or self._disk_writes
            reports = self.inner.poll(0 if is_busy else wait_ns)
            self._reports.extend(reports)
            if ended or reports:
                announced -= ended + len(reports)
                self._wake()

    def _run(self) -> None:
        """Tell the session what happens, event by event, and do what it says."""
        session = self.session
        while not self.reports.is_over:
            completions, requests = self._sleep()
            session.advance(time.monotonic_ns(), self.answers.ahead_bytes)
            self._perform()
            for completion in completions:
                self._end_fetch(completion)
            while self._reports:
                self._end_storage_read(self._reports.popleft())
            while self._disk_ended:
                self._end_disk_work(*self._disk_ended.popleft())
            for number, _, keys, lengths in requests:
                session.ask(number, keys, lengths)
                self._perform()
            while self._submitted_steps:
                ticket, step = self._submitted_steps.popleft()
                self._steps[ticket] = step
                session.request(ticket, step.requests, len(step.buffers), step.uses is not None)
                self._perform()

    def _sleep(self) -> tuple[Sequence[PeerCompletion], Sequence[PeerRequest]]:
        """Wait until something happens; return the events of the peer."""
        timeout_ns, wake_ns = _poll_ns, self.session.wake_ns
        if wake_ns is not None:
            timeout_ns = min(max(0, wake_ns - time.monotonic_ns()), _poll_ns)
        completions: Sequence[PeerCompletion] = ()
        requests: Sequence[PeerRequest] = ()
        if self.peer is None:
            self._woken.poll(timeout_ns / 1e6)
        else:
            completions, requests = self.peer.step(timeout_ns, [self._wake_file.fileno()])
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake_file.fileno())
        return completions, requests

    # -- what the session says -----------------------------------------------------------------

    def _perform(self) -> None:
        """Perform the session's actions, and those that come of them."""
        actions = self.session.actions
        while actions:
            action = actions.popleft()
            try:
                self._perform_action(action)
            except Exception as error:
                self._take_failure(action, error)

    def _perform_action(self, action: cache_actions.Action) -> None:
        session = self.session
        match action:
            case cache_actions.CopyKeys():
                self._copy(action)
            case cache_actions.ReportStep():
                self._report(action)
            case cache_actions.ClaimSlots():
                session.take_claims(action.want, self._tier(action.tier).claim(action.slots))
            case cache_actions.AllocateRoom():
                session.take_room(action.load, self.slab.allocate(action.size))
            case cache_actions.LoadBlocks():
                self._load(action)
            case cache_actions.PublishSlots():
                self.slab.publish(*action)
            case cache_actions.AbandonSlots():
                self._tier(action.tier).abandon(action.slots)
            case cache_actions.WriteDisk():
                blocks = self._sources[action.source]
                self._disk_writes.append((action, [blocks[slot] for slot in action.slots.tolist()]))
                self._more.release()
            case cache_actions.ReadDisk():
                self._disk_reads.append(action)
                self._more.release()
            case cache_actions.ReleaseSource():
                self._sources.pop(action.source, None)  # none if nothing came
            case cache_actions.ReadKeys():
                self._read_keys(action)
            case cache_actions.TakeReplicas():
                self._take_replicas(action)
            case cache_actions.OfferReplicas():
                self._offer_replicas(action)
            case cache_actions.GiveUpReplicas():
                self._replicas = None
            case cache_actions.FetchKeys():
                self._fetch(action)
            case cache_actions.ProbeRank():
                self._probe(action)
            case cache_actions.AnswerPeer():
                self._answer(action)
            case _:
                assert not isinstance(action, cache_actions.Stop)  # `_take_failure` has raised
                assert_never(action)

    def _take_failure(self, action: cache_actions.Action, error: BaseException) -> None:
        """Tell the session of an action that failed; end if it knows no other way."""
        session = self.session
        session.fail(action)
        if any(isinstance(follow_up, cache_actions.Stop) for follow_up in session.actions):
            raise error
        if isinstance(action, cache_actions.TakeReplicas | cache_actions.OfferReplicas):
            what = "copies of what other hosts keep are given up; batches are not affected"
            log.error(what, exc_info=error)
        elif type(action) not in self._warned:  # the counter tells how often
            self._warned.add(type(action))
            what = "%s was refused: samples come another way, perhaps slower"
            log.warning(what, type(action).__name__, exc_info=error)

    def _tier(self, tier: NodeTier) -> RamTier | DiskTier:
        if tier is NodeTier.RAM:
            return self.slab
        assert self.disk is not None
        return self.disk

    def _report(self, action: cache_actions.ReportStep) -> None:
        del self._steps[action.ticket]
        failures = tuple(Failure(*failure) for failure in action.failures)
        self.reports.report(Completion(action.ticket, failures))

    # -- storage -------------------------------------------------------------------------------

    def _load(self, action: cache_actions.LoadBlocks) -> None:
        """Read cache blocks from storage."""
        if action.tier is NodeTier.RAM:
            buffer = self.slab.data
        else:
            assert self.disk is not None
            buffer = self.disk.arena.take(int(action.size.sum()))
        keys, target = self.layout.spread(action.cache_blocks, action.at)
        placed = self.addressed.place_keys(keys, np.zeros(len(keys), np.int64), target)
        # Bytes between are read by another rank, once.
        (requests,) = merge(placed, 1, 0, self._turn)
        purpose = "demand" if action.ticket is None else self._steps[action.ticket].purpose
        ticket = self._submit(requests, [buffer], purpose)
        self._reads[ticket] = _LoadRead(action, requests, buffer)

    def _read_keys(self, action: cache_actions.ReadKeys) -> None:
        """Read keys from storage into the batch."""
        step, rows = self._steps[action.ticket], action.rows
        asked = step.requests
        placed = self.addressed.place_keys(
            asked.offset[rows].view(np.uint64), asked.buffer[rows], asked.target[rows]
        )
        read = _KeyRead(action.read, asked)
        for requests in merge(placed, len(step.buffers), 0, self._turn):
            if len(requests.file):
                ticket = self._submit(requests, step.buffers, step.purpose)
                self._reads[ticket] = (read, requests)
                read.pending += 1
        if not read.pending:  # keys of nothing
            self.session.take_read(action.read, ())

    def _submit(self, requests: Requests, buffers: Sequence[Buffer], purpose: Purpose) -> int:
        ticket = self.inner.submit(requests, buffers, purpose)
        self._more.release()
        return ticket

    def _end_storage_read(self, report: Completion) -> None:
        """Take a report of the storage engine: cache blocks, or keys of a batch."""
        read = self._reads.pop(report.ticket)
        if isinstance(read, _LoadRead):
            self._end_load(read, report)
        else:
            keys, requests = read
            asked = keys.step
            for extent, code, got in report.failures:
                row = _find_row(asked, requests, extent)
                inside = int(requests.target[extent] - asked.target[row])
                keys.failures.append(RowFailure(row, code, inside + got))
            keys.pending -= 1
            if not keys.pending:
                self.session.take_read(keys.number, keys.failures)
        self._perform()

    def _end_load(self, read: _LoadRead, report: Completion) -> None:
        load = read.load
        ends = load.at + np.maximum(load.size, 1)
        failed = np.zeros(len(load.slots), bool)
        for extent, _, _ in report.failures:
            if not read.requests.length[extent]:
                continue  # no byte is missing
            target = int(read.requests.target[extent])
            failed |= (target >= load.at) & (target < ends)
        if load.tier is NodeTier.DISK:
            columns = (load.slots[~failed], load.at[~failed], (load.at + load.size)[~failed])
            places = zip(*(column.tolist() for column in columns), strict=True)
            self._sources[load.load] = {slot: read.buffer[a:b] for slot, a, b in places}
        self.session.take_load(load.load, failed)

    # -- the disk ------------------------------------------------------------------------------

    def _use_disk(self) -> int:
        """Perform reads of the disk that wait, or else a write; return how many actions ended."""
        reads: list[cache_actions.ReadDisk] = []
        count = 0
        while self._disk_reads and (not reads or count < _disk_blocks_max):
            reads.append(self._disk_reads.popleft())
            count += len(reads[-1].slots)
        ended: list[cache_actions.Action] = [*reads]
        error = None
        try:
            if reads:
                self._read_blocks(reads)
            elif self._disk_writes:
                write, blocks = self._disk_writes.popleft()
                ended.append(write)
                self._write_blocks(write, blocks)
                del blocks  # they are free when the other thread is woken
        except BaseException as failure:
            error = failure
        self._disk_ended.extend((action, error) for action in ended)
        return len(ended)

    def _read_blocks(self, reads: Sequence[cache_actions.ReadDisk]) -> None:
        assert self.disk is not None
        slots = np.concatenate([read.slots for read in reads])
        sizes = np.concatenate([read.size for read in reads])
        blocks = iter(self.disk.read(slots, sizes))
        for read in reads:
            pairs = zip(read.slots.tolist(), blocks, strict=False)
            self._sources[read.source] = {slot: block for slot, block in pairs if block is not None}

    def _write_blocks(self, write: cache_actions.WriteDisk, blocks: Sequence[Buffer]) -> None:
        assert self.disk is not None
        kept = self.disk.write(write.slots, blocks)
        if not kept.all() and not self.disk.is_writable:
            self.failed_writes += 1

    def _end_disk_work(self, action: cache_actions.Action, error: BaseException | None) -> None:
        if error is not None:
            self._take_failure(action, error)
        elif isinstance(action, cache_actions.ReadDisk):
            self.session.take_disk_read(action.source)
        else:
            assert isinstance(action, cache_actions.WriteDisk)
            self.session.take_write(action.source)
        self._perform()

    # -- copies --------------------------------------------------------------------------------

    def _find(self, want: cache_actions.Want, sources: tuple[int, ...]) -> _ReadyKeys:
        """Find the wanted keys that are there."""
        if want.tier is NodeTier.RAM:
            return _ReadyKeys(self.slab.offsets(want.slots), {})
        blocks: dict[int, Buffer] = {}
        for source in sources:
            blocks |= self._sources.get(source, {})
        there = np.isin(want.slots, np.fromiter(blocks, np.int64, len(blocks)))
        return _ReadyKeys(np.where(there, 0, -1), blocks)

    def _copy_keys(
        self,
        want: cache_actions.Want,
        ready: _ReadyKeys,
        rows: Int,
        length: Int,
        out: Buffer,
        target: Int,
    ) -> None:
        """Copy some wanted keys to their targets; all are there."""
        inside = self.layout.find_offsets(want.keys[rows], want.cache_blocks[rows])
        if want.tier is NodeTier.RAM:
            self.slab.gather(ready.at[rows] + inside, length, out, target)
            return
        columns = (want.slots[rows], inside, length, target)
        for slot, a, n, to in zip(*(column.tolist() for column in columns), strict=True):
            out[to : to + n] = ready.blocks[slot][a : a + n]

    def _copy(self, action: cache_actions.CopyKeys) -> None:
        want = action.want
        assert want.ticket is not None
        step = self._steps[want.ticket]
        ready = self._find(want, action.sources)
        there = ready.at >= 0
        requests = step.requests
        length, target = requests.length[want.rows], requests.target[want.rows]
        for number, buffer in enumerate(step.buffers):
            rows = np.flatnonzero(there & (requests.buffer[want.rows] == number))
            self._copy_keys(want, ready, rows, length[rows], buffer, target[rows])
        self.session.take_copy(want, there)

    def _take_replicas(self, action: cache_actions.TakeReplicas) -> None:
        step, rows = self._steps[action.ticket], action.rows
        assert self._replicas is not None
        assert step.uses is not None
        requests = step.requests
        keys, length = requests.offset.view(np.uint64), requests.length
        copied = np.zeros(len(rows), bool)
        for number, buffer in enumerate(step.buffers):
            at = np.flatnonzero(requests.buffer[rows] == number)
            some = rows[at]
            target = requests.target[some]
            here = self._replicas.take(keys[some], length[some], buffer, target, step.uses)
            copied[at[here]] = True
        self.session.take_replicas(action.ticket, rows, copied)

    def _offer_replicas(self, action: cache_actions.OfferReplicas) -> None:
        step, rows = self._steps[action.ticket], action.rows
        assert self._replicas is not None
        assert step.uses is not None
        requests = step.requests
        for number, buffer in enumerate(step.buffers):
            some = rows[requests.buffer[rows] == number]
            if len(some):
                self._replicas.offer(
                    requests.offset[some].view(np.uint64),
                    requests.length[some],
                    buffer,
                    requests.target[some],
                    step.uses,
                )

    # -- peers ---------------------------------------------------------------------------------

    def _fetch(self, action: cache_actions.FetchKeys) -> None:
        assert self.peer is not None
        keys, lengths, targets, numbers = [], [], [], []
        buffers: list[Buffer] = []
        for ticket, rows in action.parts:
            step = self._steps[ticket]
            requests = step.requests
            keys.append(requests.offset[rows])
            lengths.append(requests.length[rows])
            targets.append(requests.target[rows])
            numbers.append(requests.buffer[rows].astype(np.int64) + len(buffers))
            buffers += step.buffers
        peer_ticket = self.peer.submit(
            action.rank,
            np.concatenate(keys).view(np.uint64),
            np.concatenate(lengths),
            np.concatenate(targets),
            buffers,
            np.concatenate(numbers),
        )
        self._fetches[peer_ticket] = action.fetch

    def _probe(self, action: cache_actions.ProbeRank) -> None:
        assert self.peer is not None
        keys, length = np.array([action.key], np.uint64), np.array([action.length])
        nowhere = np.empty(action.length, np.uint8)
        zero = np.zeros(1, np.int64)
        ticket = self.peer.submit(action.rank, keys, length, zero, [nowhere], zero)
        self._fetches[ticket] = action.fetch

    def _end_fetch(self, completion: PeerCompletion) -> None:
        reason = None if completion.reason is None else completion.reason.name.lower()
        number = self._fetches.pop(completion.ticket)
        self.session.take_fetch(number, completion.failures, reason)
        self._perform()

    def _answer(self, action: cache_actions.AnswerPeer) -> None:
        """Send a peer those keys that are there."""
        assert self.peer is not None
        there = np.zeros(len(action.lengths), bool)
        ready_wants = []
        for want, sources in action.wants:
            ready = self._find(want, sources)
            positions = np.flatnonzero(ready.at >= 0)
            there[want.rows[positions]] = True
            ready_wants.append((want, ready, positions))
        length = np.where(there, action.lengths, 0)
        ends = np.cumsum(length)
        total = int(ends[-1]) if len(ends) else 0
        is_large = total >= _view_bytes * np.count_nonzero(there)
        if len(ready_wants) == 1 and ready_wants[0][0].tier is NodeTier.RAM and is_large:
            ((want, ready, positions),) = ready_wants  # views of the slab: its contents never move
            inside = self.layout.find_offsets(want.keys[positions], want.cache_blocks[positions])
            extents = zip(ready.at[positions] + inside, length[want.rows[positions]], strict=True)
            data = self.slab.data
            out = [data[a : a + n] for a, n in extents]
        else:
            out = [self.answers.take(total)]
            for want, ready, positions in ready_wants:
                rows = want.rows[positions]
                target = (ends - length)[rows]
                self._copy_keys(want, ready, positions, length[rows], out[0], target)
        self.peer.answer(action.request, out, np.flatnonzero(~there))
        self.session.take_answer(action.request, total, self.answers.ahead_bytes)


def _find_row(asked: Requests, requests: Requests, extent: int) -> int:
    """Return the row of the key to which an extent of a read belongs. Keys of
    no bytes may start where another key does."""
    inside = requests.target[extent] - asked.target
    is_there = (asked.buffer == requests.buffer[extent]) & (inside >= 0)
    rows = np.flatnonzero(is_there & (inside < np.maximum(asked.length, 1)))
    alike = rows[(asked.length[rows] == 0) == (requests.length[extent] == 0)]
    return int((alike if len(alike) else rows)[0])
