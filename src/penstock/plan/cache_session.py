"""The session of a cache: what one rank does with its node's tiers, peers and storage. Pure.

The session is a state machine of one thread. It reads nothing, waits for nothing, knows no clock
and holds no bytes. A driver tells it events by its methods, and performs the actions that it puts
into `actions` (`cache_actions`), in their order, before the next event. `penstock.cache` drives it
over real memory, disks, peers and engines, `tests.virtual` over modelled ones.

    event                                  method(s)            its actions, mostly
    a step is requested                    request              ClaimSlots, TakeReplicas,
                                                                FetchKeys, ReadKeys
    a peer asks                            ask                  ClaimSlots
    slots were claimed, room was given     take_claims,         AllocateRoom, LoadBlocks,
                                           take_room            ReadDisk
    storage brought cache blocks, or not   take_load            PublishSlots, WriteDisk,
                                                                AbandonSlots, CopyKeys
    a disk read or write ended             take_disk_read,      CopyKeys, ReleaseSource
                                           take_write
    keys were copied, replicas looked up   take_copy,           ReadKeys, FetchKeys, ReportStep
                                           take_replicas
    a peer answered, or was silent         take_fetch           OfferReplicas, ReadKeys, ReportStep
    storage brought keys, or not           take_read            ReportStep
    an answer was sent                     take_answer          ReleaseSource
    an action could not be performed       fail                 what replaces it
    time has passed, memory was freed      advance              ClaimSlots, FetchKeys, ProbeRank

States. A step is *waiting* until memory allows, *open* while parts of it are on their way, and
reported when the last part has ended. Each of its keys goes one of these ways:

    kept by this node     claimed -> ready -> copied; if it is not there in the end, read
    kept by another       replica, or asked for -> arrived; if it did not arrive, read
    kept by no node       read

The keys that a step wants of one tier are a *want*. It waits for loads (cache blocks on their way
from storage), for reads of the disk, and for slots that other ranks have claimed. These are looked
at again by every `advance`, due every `look_ns` then, until the step's deadline:
`limits.busy_cache_block_s` after it was requested, however long it waited for memory in between: it
takes memory in the order of deadlines, so whoever took some before does not wait for other ranks
any longer either. A peer's request is an answer of wants; its deadline leaves time for the answer.
A rank that did not answer is *silent* (`silent_peers`). What steps want of another node gathers
while two fetches to it are under way, and goes in one: a fetch is asked and answered in about the
same time whether one step wants its keys or several.

A *source* is memory with cache blocks of the disk: of a load, until its write has ended too, or of
a read of the disk. It is released when no want needs it.

Invariants. Each step is reported once, after all of its parts have ended, and each request is
answered once. A slot claimed here is published, written or abandoned. Each source is released. A
key that is copied was published, or passed its checksum, in the slot that the placement gives it.
No step starts, no peer is served and no want takes memory while sources of others take
`disk_buffer_bytes` or more; so sources take at most these bytes and what two steps want, one of
which shares the sources of the other. An answer starts only if it fits `answer_bytes` beside the
others, or is alone.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .. import limits
from ..extent import Int, Requests
from .cache_actions import (
    BUSY,
    MINE,
    READY,
    AbandonSlots,
    Action,
    AllocateRoom,
    AnswerPeer,
    ClaimSlots,
    CopyKeys,
    FetchKeys,
    GiveUpReplicas,
    LoadBlocks,
    NodeTier,
    OfferReplicas,
    ProbeRank,
    PublishSlots,
    ReadDisk,
    ReadKeys,
    ReleaseSource,
    ReportStep,
    RowFailure,
    Stop,
    TakeReplicas,
    Want,
    WriteDisk,
)
from .cache_blocks import BlockLayout, KeyedSource
from .cache_keys import Keys
from .placement import Placement
from .silent_peers import SilentPeers

Mask = npt.NDArray[np.bool_]

look_ns = 500_000
"""Interval of looking at slots that another rank has claimed, and at memory that peers free."""

_busy_ns = int(limits.busy_cache_block_s * 1e9)
_answer_ns = min(_busy_ns, int(limits.peer_timeout_s * 0.8e9))  # before the peer gives up
_fetches_at_once = 2
"""Fetches to a node that are not full: one is answered while the other is on its way."""
_page = 4096
_none = np.empty(0, np.int64)
_bytes_from = {NodeTier.RAM: "ram_bytes", NodeTier.DISK: "disk_bytes"}


@dataclass(slots=True, eq=False)
class _OpenStep:
    """A step of this rank, and how many parts of it are on their way.

    owner:  node of each row in question while replicas are looked up.
    """

    ticket: int
    requests: Requests
    buffers: int
    has_uses: bool
    deadline_ns: int
    parts: int = 1
    owner: npt.NDArray[np.int32] | None = None
    failures: list[RowFailure] = field(default_factory=list)

    @property
    def keys(self) -> Keys:
        return self.requests.offset.view(np.uint64)


@dataclass(slots=True, eq=False)
class _PeerRequest:
    """A peer's request: its keys, the wants that it became, and how many have not ended."""

    number: int
    keys: Keys
    lengths: Int
    size_bytes: int
    deadline_ns: int
    parts: int = 1
    wants: list[_OpenWant] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _OpenWant:
    """A want that has not ended.

    requester:    the step or the request.
    busy:     rows of the want, one for each slot that another rank has claimed.
    waiting:  loads and disk reads that bring some of its cache blocks.
    sources:  that hold cache blocks for it.
    """

    want: Want
    requester: _OpenStep | _PeerRequest
    busy: Int
    waiting: set[int] = field(default_factory=set)
    sources: list[int] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Source:
    """Memory of cache blocks of the disk, and how many wants and writes need it."""

    bytes: int
    users: int = 0


class CacheSession:
    """The session of `rank`; events and states are in the module's docstring.

    nodes:     node of each rank.
    replicas:  True if the driver keeps replicas.
    disk_buffer_bytes, answer_bytes:  bounds of memory, changeable: of cache blocks on their
               way to or from the disk, and of answers to peers.
    counts:    what happened, by name: where the bytes of batches came from, and how often a key
               took another way.
    """

    def __init__(
        self,
        source: KeyedSource,
        placement: Placement,
        nodes: Sequence[int],
        rank: int,
        *,
        replicas: bool = False,
    ) -> None:
        self.actions: deque[Action] = deque()
        self.counts: Counter[str] = Counter()
        self.disk_buffer_bytes = limits.disk_buffers_bytes_max
        self.answer_bytes = limits.peer_answers_bytes_max
        self._data, self._placement = source, placement
        self._layout = BlockLayout(source, placement.cache_block)
        self._node = nodes[rank]
        self._ram_cache_blocks = placement.ram_cache_blocks[self._node]
        disk_cache_blocks = placement.disk_cache_blocks or (0,) * placement.nodes
        self._has_disk = disk_cache_blocks[self._node] > 0
        self._peers = SilentPeers(nodes, placement.nodes, rank)
        self._replicas = replicas
        self._now_ns = self._look_at_ns = 0
        self._numbers = 0  # of wants, loads, disk reads, reads and fetches
        self._waiting: deque[_OpenStep] = deque()  # for memory of the disk
        self._steps: dict[int, _OpenStep] = {}
        self._peer_requests: deque[_PeerRequest] = deque()  # for memory of an answer
        self._answering_bytes = 0  # of requests requester answers are not made yet
        self._sent_bytes = 0  # of answers that are being sent
        self._requests: dict[int, _PeerRequest] = {}
        self._wants: dict[int, _OpenWant] = {}
        self._to_look: deque[_OpenWant] = deque()  # with slots to be claimed again
        self._unclaimed = 0  # claims without an answer, from which loads may come
        self._loads: dict[int, LoadBlocks] = {}
        self._loading: dict[tuple[NodeTier, int], int] = {}  # by slot, its load
        self._sources: dict[int, _Source] = {}
        self.passing_bytes = 0
        """Bytes of memory for cache blocks on their way to or from the disk."""
        self._reads: dict[int, _OpenStep] = {}
        self._nodes = tuple(nodes)
        # Of each node, what is to be asked of it: rows of steps, each part of no more than a fetch.
        self._unasked: list[deque[tuple[_OpenStep, Int]]] = [
            deque() for _ in range(placement.nodes)
        ]
        self._fetches: dict[int, tuple[list[tuple[_OpenStep, Int]], int]] = {}  # parts, rank
        self._under_way = [0] * placement.nodes  # fetches, by node
        # An answer from a disk takes memory for whole cache blocks: there each want is asked alone.
        self._is_gathering = [not blocks for blocks in disk_cache_blocks]
        self._probes: dict[int, int] = {}  # rank

    # -- what a driver may ask -----------------------------------------------------------------

    @property
    def wake_ns(self) -> int | None:
        """Time by which `advance` is to be called if nothing happens, if any."""
        if self._is_busy() or (self._peer_requests and not self._is_full()):
            return self._look_at_ns
        return None

    @property
    def is_idle(self) -> bool:
        """True if nothing is on its way: no step, no request, no claim, no memory."""
        open_parts = (self._steps, self._requests, self._wants, self._loads, self._sources)
        return not any(open_parts) and not (self._waiting or self._peer_requests or self._fetches)

    def find_in_memory(self, keys: Keys) -> tuple[Keys, Int] | None:
        """Return the cache blocks and slots of keys if this node's memory keeps all of them.

        If these slots are ready, a driver may copy the keys without telling the session: a step of
        them would only lead to ClaimSlots, CopyKeys and ReportStep, and change nothing else. Reads
        what never changes, so any thread may call it.
        """
        cache_blocks = self._placement.cache_blocks_at(self._data.keys.find_items(keys))
        owner, slot = self._placement.place(cache_blocks)
        away = (owner != self._node) | (slot >= self._ram_cache_blocks)
        return None if np.count_nonzero(away) else (cache_blocks, slot)

    # -- events --------------------------------------------------------------------------------

    def advance(self, now_ns: int, sent_bytes: int = 0) -> None:
        """Take the time, and the bytes of answers that are being sent."""
        self._now_ns, self._sent_bytes = now_ns, sent_bytes
        self._look_at_ns = now_ns + look_ns
        self._look()
        self._proceed()

    def request(self, ticket: int, requests: Requests, buffers: int, has_uses: bool) -> None:
        """Take a step of requests of keys; they go to `buffers` buffers.

        has_uses:  True if replicas may be used and made.
        """
        deadline_ns = self._now_ns + _busy_ns
        self._waiting.append(_OpenStep(ticket, requests, buffers, has_uses, deadline_ns))
        self._proceed()

    def ask(self, number: int, keys: Keys, lengths: Int) -> None:
        """Take a peer's request of keys that it expects to have these lengths."""
        deadline_ns = self._now_ns + _answer_ns
        self._peer_requests.append(
            _PeerRequest(number, keys, lengths, int(lengths.sum()), deadline_ns)
        )
        self._proceed()

    def take_claims(self, number: int, codes: npt.NDArray[np.uint8]) -> None:
        """Take the states of slots that a want has claimed."""
        self._unclaimed -= 1
        waiting = self._wants[number]
        want, rows = waiting.want, waiting.busy
        waiting.busy = _none
        on_disk = want.tier is NodeTier.DISK
        if on_disk or np.count_nonzero(codes):  # else all are ready
            mine = rows[codes == MINE]
            if len(mine):
                self._begin_load(want, mine)
            if on_disk and len(ready := rows[codes == READY]):
                self._read_disk(waiting, ready)
            still_busy = []
            slots = want.slots[rows]
            for row, slot, code in zip(rows.tolist(), slots.tolist(), codes.tolist(), strict=True):
                load = None if code == READY else self._loading.get((want.tier, slot))
                if load is not None:
                    waiting.waiting.add(load)
                elif code == BUSY:
                    still_busy.append(row)
            waiting.busy = np.array(still_busy, np.int64)
            if still_busy and self._now_ns > waiting.requester.deadline_ns:
                self._give_up(waiting, len(still_busy))
        self._end_want_if_done(waiting)
        self._look_again()
        self._proceed()

    def take_room(self, number: int, at: Int) -> None:
        """Take the offsets of room in memory for the cache blocks of a load; -1 for no room."""
        load = self._loads[number]
        has_room = at >= 0
        if not has_room.all():
            lost = load.slots[~has_room]
            self._forget_loading(load.tier, lost)
            self.actions.append(AbandonSlots(load.tier, lost))
            self.counts["cache_blocks_without_room"] += len(lost)
            if not has_room.any():
                del self._loads[number]
                self._end_waiting(number)
                return
        self._load(
            load._replace(
                cache_blocks=load.cache_blocks[has_room],
                slots=load.slots[has_room],
                at=at[has_room],
                size=load.size[has_room],
            )
        )

    def take_load(self, number: int, failed: Mask) -> None:
        """Take the end of a load: a mask of its cache blocks that storage did not give."""
        load = self._loads.pop(number)
        self._forget_loading(load.tier, load.slots)
        whole = ~failed
        if not whole.all():  # whoever wants them will find out what it is
            self.counts["failed_loads"] += int(np.count_nonzero(failed))
            self.actions.append(AbandonSlots(load.tier, load.slots[failed]))
        slots = load.slots[whole]
        if load.tier is NodeTier.DISK:
            source = self._sources[number]
            if len(slots):
                source.users += 1
                self.actions.append(WriteDisk(number, slots))
            self._end_waiting(number)
            self._release_unused(number)
        else:
            if len(slots):
                self.actions.append(PublishSlots(slots, load.at[whole], load.size[whole]))
            self._end_waiting(number)
        self._proceed()

    def take_write(self, source: int) -> None:
        """Take the end of a write to the disk; slots that were not written are abandoned there."""
        self._sources[source].users -= 1
        self._release_unused(source)
        self._look()  # others here may wait for what was written
        self._proceed()

    def take_disk_read(self, source: int) -> None:
        """Take the end of a read of the disk; it has brought all undamaged blocks."""
        self._end_waiting(source)
        self._release_unused(source)
        self._proceed()

    def take_copy(self, want: Want, copied: Mask) -> None:
        """Take the end of a copy: a mask of the wanted keys that were there."""
        assert want.ticket is not None
        step = self._steps[want.ticket]
        rows = want.rows
        if copied.all():
            missing = _none
        else:
            missing = rows[~copied]
            rows = rows[copied]
        self.counts[_bytes_from[want.tier]] += int(step.requests.length[rows].sum())
        self._drop_sources(self._wants.pop(want.number))
        self._read(step, missing)
        self._end_part(step)
        self._proceed()

    def take_replicas(self, ticket: int, rows: Int, copied: Mask) -> None:
        """Take the look-up of replicas: a mask of the rows that had one."""
        step = self._steps[ticket]
        assert step.owner is not None
        owner, step.owner = step.owner[~copied], None
        self.counts["replica_bytes"] += int(step.requests.length[rows[copied]].sum())
        self._fetch_rows(step, owner, rows[~copied])
        self._end_part(step)

    def take_fetch(self, number: int, failures: Int, reason: str | None) -> None:
        """Take the end of a fetch or probe: numbers of its keys that did not arrive, and the reason
        if all of them failed for one; no reason if an answer came."""
        if reason is not None:
            self.counts[f"fetches_{reason}"] += 1
        if number in self._probes:
            self._peers.note(self._probes.pop(number), reason is None, self._now_ns)
            return
        asked, rank = self._fetches.pop(number)
        node = self._nodes[rank]
        self._under_way[node] -= 1
        self._peers.note(rank, reason is None, self._now_ns)
        first = 0
        for step, rows in asked:
            end = first + len(rows)
            failed = failures[(failures >= first) & (failures < end)] - first
            arrived = np.delete(rows, failed) if len(failed) else rows
            self.counts["peer_bytes"] += int(step.requests.length[arrived].sum())
            if self._replicas and step.has_uses and len(arrived):
                self.actions.append(OfferReplicas(step.ticket, arrived))
            self._read(step, rows[failed])
            self._end_part(step)
            first = end
        self._ask(node)

    def take_read(self, number: int, failures: Sequence[RowFailure]) -> None:
        """Take the end of a read from storage: the keys that it did not give."""
        step = self._reads.pop(number)
        step.failures += failures
        self._end_part(step)

    def take_answer(self, number: int, answer_bytes: int, sent_bytes: int) -> None:
        """Take the bytes of an answer that was sent, and of all answers that are being sent."""
        request = self._requests.pop(number)
        self._answering_bytes -= request.size_bytes
        self._sent_bytes = sent_bytes
        self.counts["served_bytes"] += answer_bytes
        for waiting in request.wants:
            del self._wants[waiting.want.number]
            self._drop_sources(waiting)
        self._proceed()

    def fail(self, action: Action) -> None:
        """Take the failure of an action that the driver could not perform at all.

        What can be had in another way is. The driver ends with the error otherwise (`Stop`).
        """
        self.counts["failed_actions"] += 1
        match action:
            case LoadBlocks(load, _, _, _, slots):
                self.take_load(load, np.ones(len(slots), bool))
            case ReadDisk(source):
                self.take_disk_read(source)
            case WriteDisk(source, slots):
                self.actions.append(AbandonSlots(NodeTier.DISK, slots))
                self.take_write(source)
            case FetchKeys(fetch, _, parts):
                keys = sum(len(rows) for _, rows in parts)
                self.take_fetch(fetch, np.arange(keys), "failed")
            case ProbeRank(fetch):
                self.take_fetch(fetch, np.zeros(1, np.int64), "failed")
            case TakeReplicas(ticket, rows):
                self._give_up_replicas()
                self.take_replicas(ticket, rows, np.zeros(len(rows), bool))
            case OfferReplicas():
                self._give_up_replicas()
            case AnswerPeer(request, lengths, wants) if wants:  # refuse what was asked
                self.actions.append(AnswerPeer(request, lengths, ()))
            case _:
                self.actions.append(Stop())

    # -- a step of this rank -------------------------------------------------------------------

    def _proceed(self) -> None:
        """Start waiting steps and answers while memory allows, the earliest deadline first."""
        while (self._peer_requests or self._waiting) and not self._is_full():
            step_ns = self._waiting[0].deadline_ns if self._waiting else math.inf
            if (
                self._peer_requests
                and self._peer_requests[0].deadline_ns <= step_ns
                and self._has_room_for_answer()
            ):
                self._serve(self._peer_requests.popleft())
            elif self._waiting:
                self._begin(self._waiting.popleft())
            else:
                return

    def _is_full(self) -> bool:
        """True if cache blocks on their way to or from the disk take all memory that they may, or
        claims are open that may take it."""
        if self.passing_bytes >= max(1, self.disk_buffer_bytes):
            return True
        return self._is_claiming

    @property
    def _is_claiming(self) -> bool:
        """True if claims are open that may take memory of the disk."""
        return self._unclaimed > 0 and self._has_disk

    def _begin(self, step: _OpenStep) -> None:
        self._steps[step.ticket] = step
        keys = step.keys
        cache_blocks = self._placement.cache_blocks_at(self._data.keys.find_items(keys))
        owner, slot = self._placement.place(cache_blocks)
        is_own = owner == self._node
        self._want(step, np.flatnonzero(is_own), keys, cache_blocks, slot)
        away = owner >= 0
        away &= ~is_own
        rows = np.flatnonzero(away)
        if len(rows):
            owner_of_rows = owner[rows]
            if self._replicas and step.has_uses:
                step.owner = owner_of_rows
                step.parts += 1
                self.actions.append(TakeReplicas(step.ticket, rows))
            else:
                self._fetch_rows(step, owner_of_rows, rows)
        self._read(step, np.flatnonzero(owner < 0))
        self._end_part(step)

    def _read(self, step: _OpenStep, rows: Int) -> None:
        """Read rows from storage into the batch."""
        if len(rows):
            step.parts += 1
            number = self._number()
            self._reads[number] = step
            self.counts["direct_bytes"] += int(step.requests.length[rows].sum())
            self.actions.append(ReadKeys(number, step.ticket, rows))

    def _end_part(self, step: _OpenStep) -> None:
        step.parts -= 1
        if not step.parts:
            del self._steps[step.ticket]
            self.actions.append(ReportStep(step.ticket, tuple(sorted(step.failures))))

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    # -- cache blocks of this node -------------------------------------------------------------

    def _want(
        self,
        requester: _OpenStep | _PeerRequest,
        rows: Int,
        keys: Keys,
        cache_blocks: Keys,
        slots: Int,
    ) -> None:
        """Want rows that this node keeps of its tiers."""
        if not len(rows):
            return
        in_ram = slots[rows] < self._ram_cache_blocks
        ticket = requester.ticket if isinstance(requester, _OpenStep) else None
        for tier, some, first in (
            (NodeTier.RAM, rows[in_ram], 0),
            (NodeTier.DISK, rows[~in_ram], self._ram_cache_blocks),
        ):
            if len(some):
                own_slots = slots[some] - first
                _, busy = np.unique(own_slots, return_index=True)
                number = self._number()
                want = Want(number, ticket, tier, some, keys[some], own_slots, cache_blocks[some])
                waiting = _OpenWant(want, requester, busy)
                self._wants[number] = waiting
                requester.parts += 1
                if isinstance(requester, _PeerRequest):
                    requester.wants.append(waiting)
                self._claim(waiting)

    def _claim(self, waiting: _OpenWant) -> None:
        want = waiting.want
        self._unclaimed += 1
        self.actions.append(ClaimSlots(want.number, want.tier, want.slots[waiting.busy]))

    def _look(self) -> None:
        """Look at all slots that another rank had claimed."""
        self._to_look.extend(want for want in self._wants.values() if len(want.busy))
        self._look_again()

    def _look_again(self) -> None:
        """Claim slots again that another rank had claimed. Those of the disk may take memory, so
        they are claimed one want after the other, and while memory allows."""
        while self._to_look and not self._is_claiming:
            waiting = self._to_look.popleft()
            if not len(waiting.busy):
                continue
            if waiting.want.tier is NodeTier.RAM or self._has_memory(waiting):
                self._claim(waiting)
            elif self._now_ns > waiting.requester.deadline_ns:
                self._give_up(waiting, len(waiting.busy))
                self._end_want_if_done(waiting)

    def _has_memory(self, waiting: _OpenWant) -> bool:
        """True if sources that others use leave memory: of those who wait, the last one to take
        some always may go on."""
        sources = {*waiting.sources, *waiting.waiting} & self._sources.keys()
        others_bytes = self.passing_bytes - sum(self._sources[source].bytes for source in sources)
        return others_bytes < max(1, self.disk_buffer_bytes)

    def _give_up(self, waiting: _OpenWant, slots: int) -> None:
        """Wait for no more slots of other ranks."""
        self.counts["busy_too_long"] += slots
        waiting.busy = _none

    def _begin_load(self, want: Want, rows: Int) -> None:
        """Read cache blocks that were claimed here from storage."""
        number, slots, cache_blocks = self._number(), want.slots[rows], want.cache_blocks[rows]
        size = self._layout.measure(cache_blocks)
        self._loading |= dict.fromkeys(((want.tier, slot) for slot in slots.tolist()), number)
        load = LoadBlocks(number, want.ticket, want.tier, cache_blocks, slots, _none, size)
        self._loads[number] = load
        if want.tier is NodeTier.RAM:
            self.actions.append(AllocateRoom(number, size))
            return
        # While one of them is written it is copied, padded.
        largest_bytes = _pad_bytes(int(size.max()))
        self._open_source(number, _pad_bytes(int(size.sum())) + largest_bytes)
        self._load(load._replace(at=np.cumsum(size) - size))

    def _load(self, load: LoadBlocks) -> None:
        self._loads[load.load] = load
        self.counts["loaded_bytes"] += int(load.size.sum())
        self.actions.append(load)

    def _forget_loading(self, tier: NodeTier, slots: Int) -> None:
        for slot in slots.tolist():
            del self._loading[tier, slot]

    def _read_disk(self, waiting: _OpenWant, rows: Int) -> None:
        """Read cache blocks from the disk; damaged ones count as not there."""
        number, want = self._number(), waiting.want
        size = self._layout.measure(want.cache_blocks[rows])
        waiting.waiting.add(number)
        self._open_source(number, sum(map(_pad_bytes, size.tolist())))
        self.actions.append(ReadDisk(number, want.slots[rows], size))

    def _end_waiting(self, number: int) -> None:
        """End the wait of all who wait for this load or disk read."""
        for waiting in [other for other in self._wants.values() if number in other.waiting]:
            waiting.waiting.remove(number)
            if (source := self._sources.get(number)) is not None:
                source.users += 1
                waiting.sources.append(number)
            self._end_want_if_done(waiting)

    def _end_want_if_done(self, waiting: _OpenWant) -> None:
        if waiting.waiting or len(waiting.busy):
            return
        requester = waiting.requester
        if isinstance(requester, _OpenStep):
            self.actions.append(CopyKeys(waiting.want, tuple(waiting.sources)))
        else:
            self._end_request_part(requester)

    def _open_source(self, number: int, size_bytes: int) -> None:
        self._sources[number] = _Source(size_bytes)
        self.passing_bytes += size_bytes

    def _drop_sources(self, waiting: _OpenWant) -> None:
        for number in waiting.sources:
            self._sources[number].users -= 1
            self._release_unused(number)

    def _release_unused(self, number: int) -> None:
        if not self._sources[number].users:
            self.passing_bytes -= self._sources.pop(number).bytes
            self.actions.append(ReleaseSource(number))

    def _is_busy(self) -> bool:
        return any(len(waiting.busy) for waiting in self._wants.values())

    # -- other nodes ---------------------------------------------------------------------------

    def _fetch_rows(self, step: _OpenStep, owner: npt.NDArray[np.int32], rows: Int) -> None:
        """Ask the nodes that keep these rows for them."""
        if not len(rows):
            return
        by_node = np.argsort(owner, kind="stable")
        nodes, first = np.unique(owner[by_node], return_index=True)
        by_owner = np.split(rows[by_node], first[1:])
        for node, node_rows in zip(nodes.tolist(), by_owner, strict=True):
            length = step.requests.length[node_rows]
            group = (np.cumsum(length) - length) // limits.peer_fetch_bytes
            cut = np.diff(group) != 0
            cut |= np.arange(1, len(node_rows)) % limits.peer_keys_max == 0
            for some in np.split(node_rows, np.flatnonzero(cut) + 1) if cut.any() else (node_rows,):
                step.parts += 1
                self._unasked[node].append((step, some))
            self._ask(node)

    def _ask(self, node: int) -> None:
        """Ask another node for what steps want of it, or storage if nobody there would answer.

        While `_fetches_at_once` are under way to it, wants gather until they fill a fetch: what
        several steps want costs hardly more than what one wants.
        """
        unasked = self._unasked[node]
        while unasked:
            self._probe(node, *unasked[0])
            rank = self._peers.choose(node)
            if rank is None:
                self.counts["fetches_avoided"] += 1
                step, rows = unasked.popleft()
                self._read(step, rows)
                self._end_part(step)
                continue
            count, is_full = self._count_parts(node)
            if not is_full and self._under_way[node] >= _fetches_at_once:
                return
            asked = [unasked.popleft() for _ in range(count)]
            fetch = self._number()
            self._fetches[fetch] = (asked, rank)
            self._under_way[node] += 1
            by_ticket = tuple((step.ticket, rows) for step, rows in asked)
            self.actions.append(FetchKeys(fetch, rank, by_ticket))

    def _count_parts(self, node: int) -> tuple[int, bool]:
        """Count the parts that the next fetch to a node takes, and tell if no more go into it."""
        if not self._is_gathering[node]:
            return 1, True
        bytes_max = min(limits.peer_fetch_bytes, self.answer_bytes // 8)
        keys = size_bytes = 0
        for number, (step, rows) in enumerate(self._unasked[node]):
            keys += len(rows)
            size_bytes += int(step.requests.length[rows].sum())
            if keys > limits.peer_keys_max or size_bytes > bytes_max:
                return max(1, number), True
        return len(self._unasked[node]), False

    def _probe(self, node: int, step: _OpenStep, rows: Int) -> None:
        """Ask silent ranks of a node, if it is time, for the first of these rows."""
        for rank in self._peers.take_due(node, self._now_ns):
            fetch = self._number()
            self._probes[fetch] = rank
            requests, row = step.requests, rows[0]
            key, length = int(requests.offset[row]), int(requests.length[row])
            self.actions.append(ProbeRank(fetch, rank, key, length))

    def _give_up_replicas(self) -> None:
        if self._replicas:
            self._replicas = False
            self.actions.append(GiveUpReplicas())

    # -- answers to peers ----------------------------------------------------------------------

    def _has_room_for_answer(self) -> bool:
        used_bytes = self._answering_bytes + self._sent_bytes
        return not used_bytes or used_bytes + self._peer_requests[0].size_bytes <= self.answer_bytes

    def _serve(self, request: _PeerRequest) -> None:
        """Answer a peer with the keys that are kept here and have the length that it expects."""
        self._requests[request.number] = request
        self._answering_bytes += request.size_bytes
        keys = request.keys
        ours = keys < np.uint64(self._data.keys.key_count)
        keys = np.where(ours, keys, np.uint64(0))
        cache_blocks = self._placement.cache_blocks_at(self._data.keys.find_items(keys))
        owner, slot = self._placement.place(cache_blocks)
        ours &= owner == self._node
        ours &= self._data.key_lengths(keys) == request.lengths
        self._want(request, np.flatnonzero(ours), keys, cache_blocks, slot)
        self._end_request_part(request)

    def _end_request_part(self, request: _PeerRequest) -> None:
        """Send the answer to a peer once each of its keys is there, or known not to come."""
        request.parts -= 1
        if not request.parts:
            wants = tuple((want.want, tuple(want.sources)) for want in request.wants)
            self.actions.append(AnswerPeer(request.number, request.lengths, wants))


def _pad_bytes(size_bytes: int) -> int:
    """Return the bytes of the memory block for `size_bytes`: whole pages, eight sizes to the
    doubling."""
    unit = max(_page, (1 << max(0, size_bytes.bit_length() - 1)) // 8)
    return -(-size_bytes // unit) * unit
