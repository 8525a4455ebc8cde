"""A rank of the event model; drives the shipped `Session` and `CacheSession` over devices.

    SharedStorage   readers divide a rate that depends on how many they are; each reads one thing
                    after the other
    Device          takes what comes in its sequence. Bytes go on as they come: what came from
                    another device passes while it comes, and is through when its last byte is

Times are whole nanoseconds, rounded up; rates are bytes/ns (`cpp/sim/fluid.hpp`).

The rank is to them what the loader and `penstock.cache` are in production: it asks for steps as far
ahead as memory allows, answers each action when devices have done it, and hands steps on. It holds
no bytes. Nothing fails here: faults are for `tests.virtual`.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from penstock import limits
from penstock.engine import AGING, Purpose
from penstock.extent import Int
from penstock.plan import CacheSession, Group, Keys, Placement, Session, StepPlan, cache_actions
from penstock.plan.cache_actions import BUSY, MINE, READY, NodeTier, Want

from .closed_forms import Floats
from .event_queue import EventQueue

Ended = Callable[[int], None]
"""Function called at the end of a read, with the time at which it began."""


class Flow(NamedTuple):
    """Bytes that come from a device: when the first of them came, and the last."""

    begun_ns: int
    ended_ns: int

    def join(self, other: Flow) -> Flow:
        """Return the flow of what both bring."""
        return Flow(min(self.begun_ns, other.begun_ns), max(self.ended_ns, other.ended_ns))


@dataclass(slots=True)
class Device:
    """A device of one node; serves requests in sequence."""

    rate: float
    _free_ns: int = 0

    def take(self, size_bytes: int, flow: Flow) -> Flow:
        """Take the bytes of a flow as they come; return the flow of what has passed."""
        begun_ns = max(self._free_ns, flow.begun_ns)
        self._free_ns = begun_ns + math.ceil(size_bytes / self.rate)
        return Flow(begun_ns, max(self._free_ns, flow.ended_ns))


@dataclass(slots=True)
class _NodeReads:
    """A node's reads: those that wait, by turn, and the one under way."""

    waiting: list[tuple[int, int, int, Ended]] = field(default_factory=list)
    is_reading: bool = False


class SharedStorage:
    """Storage that readers divide: g of them have `shares[g - 1]` bytes/ns each.

    All who read have been served the same number of bytes since the beginning, if idle ones are
    thought to have been; a read ends when that number has grown by its size.
    """

    def __init__(self, queue: EventQueue, shares: Floats) -> None:
        self._queue, self._shares = queue, shares.tolist()
        self._readers = [_NodeReads() for _ in self._shares]
        self._ends: list[tuple[float, int, int, int, Ended]] = []  # in bytes, number, reader, begun
        self._served, self._since_ns = 0.0, 0
        self._numbers = self._plans = 0

    def read(self, reader: int, size_bytes: int, turn_ns: int, ended: Ended) -> None:
        """Read so many bytes for a reader, whose reads go by turn; `ended` is called at the end."""
        self._numbers += 1
        heapq.heappush(self._readers[reader].waiting, (turn_ns, self._numbers, size_bytes, ended))
        if not self._readers[reader].is_reading:
            self._serve()
            self._begin(reader)
            self._plan()

    def _serve(self) -> None:
        now_ns = self._queue.now_ns
        if self._ends:
            self._served += self._shares[len(self._ends) - 1] * (now_ns - self._since_ns)
        self._since_ns = now_ns

    def _begin(self, reader: int) -> None:
        """Begin the next read of a reader."""
        state = self._readers[reader]
        state.is_reading = bool(state.waiting)
        if state.waiting:
            _, number, size_bytes, ended = heapq.heappop(state.waiting)
            heapq.heappush(
                self._ends, (self._served + size_bytes, number, reader, self._since_ns, ended)
            )

    def _plan(self) -> None:
        """Plan the next end of a read; it holds until a read begins or ends."""
        self._plans += 1
        if self._ends:
            remaining_bytes = max(0.0, self._ends[0][0] - self._served)
            delay_ns = math.ceil(remaining_bytes / self._shares[len(self._ends) - 1])
            self._queue.add(self._since_ns + delay_ns, partial(self._end, self._plans))

    def _end(self, plan: int) -> None:
        if plan != self._plans:
            return
        self._serve()
        self._served = max(self._served, self._ends[0][0])
        ended = []
        while self._ends and self._ends[0][0] <= self._served:
            ended.append(heapq.heappop(self._ends)[2:])
        if not self._ends:
            self._served = 0.0
        for reader, _, _ in ended:
            self._begin(reader)
        self._plan()
        for _, begun_ns, call in ended:
            call(begun_ns)


_NEVER: int = np.iinfo(np.int64).max
_FREE = 255
"""State of a slot that was never claimed; see `plan.cache_actions` for the others."""


@dataclass(slots=True)
class _AskedStep:
    """A step that was asked of the cache, since when, and when the first bytes of it came."""

    plan: StepPlan
    since_ns: int
    purpose: Purpose
    begun_ns: int


class _TakenFetch(NamedTuple):
    """A fetch of another rank for these steps, and when it asked."""

    asker: EventRank
    steps: Sequence[_AskedStep]
    fetch: int
    since_ns: int


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """Devices of one node."""

    tiers: tuple[Device, ...]
    sender: Device
    receiver: Device
    staging: Device


class Cluster(Protocol):
    """The cluster as a rank knows it: `EventCluster`."""

    queue: EventQueue
    source: Any
    placement: Placement
    tier_ends: Int
    window_bytes: int
    storage: SharedStorage
    moved: Counter[str]
    tier_bytes: Int
    ranks: list[EventRank]

    def make_devices(self) -> NodeDevices: ...
    def find_tiers(self, slots: Int) -> Int: ...
    def check_staging(self, group: Group) -> None: ...
    def begin_step(self, rank: EventRank) -> None: ...


class EventRank:
    """A rank that has a node to itself."""

    def __init__(self, cluster: Cluster, rank: int) -> None:
        placement = cluster.placement
        self._cluster, self._queue, self.rank = cluster, cluster.queue, rank
        self._cache = CacheSession(cluster.source, placement, range(placement.nodes), rank)
        # A scenario says nothing of this memory.
        self._cache.disk_buffer_bytes = self._cache.answer_bytes = limits.readahead_bytes_max
        self._devices = cluster.make_devices()
        share, ram = placement.shares[rank], cluster.tier_ends[0]
        self._slots = {
            NodeTier.RAM: np.full(min(share, ram), _FREE, np.uint8),
            NodeTier.DISK: np.full(max(0, share - ram), _FREE, np.uint8),
        }
        # When the first bytes of cache blocks came: of each slot of memory, and of each source.
        self._loaded_ns = np.zeros(len(self._slots[NodeTier.RAM]), np.int64)
        self._source_ns: dict[int, int] = {}
        self._brought: dict[int, Int] = {}  # slots that a want has read from storage
        self._steps: dict[int, _AskedStep] = {}
        self._asked: dict[int, _TakenFetch] = {}
        self._numbers = 0  # of steps and of requests
        self._staged_ns = 0  # when the last step is staged
        self._held_bytes = 0  # of steps, from when they are asked for until all have processed them

    # -- what the loader does ------------------------------------------------------------------

    def begin_epoch(self, session: Session) -> None:
        """Begin an epoch."""
        self._session = session
        self._arrived: dict[int, _AskedStep] = {}
        self._to_stage = 0
        self._staged: set[int] = set()
        self.admit()

    def admit(self) -> None:
        """Ask for the steps that memory allows: one, and then the next, so that the ranks of a
        cluster take turns."""
        group = next(self._session.admit(self._has_memory), None)
        if group is None:
            return
        (plan,) = group.steps
        self._cluster.check_staging(group)
        purpose: Purpose = "demand" if plan is self._session.head else "prefetch"
        self._held_bytes += group.bytes
        number = self._number()
        now_ns = self._queue.now_ns
        self._steps[number] = _AskedStep(plan, now_ns, purpose, _NEVER)
        self._cache.request(number, plan.requests, 1, False)
        self._perform()
        self._queue.add_in(0, self.admit)

    def take_step(self, step: int) -> int | None:
        """Take a step to be processed, if it is there; return its bytes."""
        if step not in self._staged:
            return None
        self._staged.remove(step)
        size_bytes = self._session.hand_over().layout.bytes
        self.admit()
        return size_bytes

    def free(self, size_bytes: int) -> None:
        """Free the memory of a step that all ranks have processed."""
        self._held_bytes -= size_bytes
        self.admit()

    def _has_memory(self, group: Group) -> bool:
        return self._held_bytes + group.bytes <= self._cluster.window_bytes

    def _report(self, action: cache_actions.ReportStep) -> None:
        assert not action.failures, "a step is reported as failed, and nothing fails here"
        step = self._steps.pop(action.ticket)
        self._arrived[step.plan.step] = step
        self._session.record_arrival(step.plan.step)
        while self._to_stage < self._session.reached:
            step = self._arrived.pop(self._to_stage)
            # One step is staged at a time: what has come of the next one waits.
            flow = Flow(max(step.begun_ns, self._staged_ns), self._queue.now_ns)
            self._staged_ns = self._devices.staging.take(step.plan.layout.bytes, flow).ended_ns
            self._queue.add(self._staged_ns, partial(self._end_staging, self._to_stage))
            self._to_stage += 1

    def _end_staging(self, step: int) -> None:
        self._staged.add(step)
        self._cluster.begin_step(self)

    # -- the cache -----------------------------------------------------------------------------

    def _ask(self, asked: _TakenFetch, keys: Keys, lengths: Int) -> None:
        """Take a request of another rank."""
        number = self._number()
        self._asked[number] = asked
        self._cache.ask(number, keys, lengths)
        self._perform()

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _tell_at(self, at_ns: int, event: Callable[..., None], *values: object) -> None:
        """Tell the session of an event at a time to come."""
        self._queue.add(at_ns, partial(self._tell, event, *values))

    def _tell(self, event: Callable[..., None], *values: object) -> None:
        self._cache.advance(self._queue.now_ns)
        event(*values)
        self._perform()

    def _perform(self) -> None:
        actions = self._cache.actions
        while actions:
            action = actions.popleft()
            self._performers[type(action)](self, action)

    def _claim(self, action: cache_actions.ClaimSlots) -> None:
        states = self._slots[action.tier]
        codes = states[action.slots]
        codes[codes == _FREE] = MINE
        mine = action.slots[codes == MINE]
        if len(mine):
            states[mine] = BUSY
            self._brought[action.want] = mine
        self._cache.take_claims(action.want, codes)

    def _allocate(self, action: cache_actions.AllocateRoom) -> None:
        self._cache.take_room(action.load, np.zeros(len(action.size), np.int64))

    def _load(self, action: cache_actions.LoadBlocks) -> None:
        purpose = "demand" if action.ticket is None else self._steps[action.ticket].purpose

        def end(begun_ns: int) -> None:
            if action.tier is NodeTier.RAM:
                self._loaded_ns[action.slots] = begun_ns
            else:
                self._source_ns[action.load] = begun_ns
            self._tell(self._cache.take_load, action.load, np.zeros(len(action.slots), bool))

        self._read_storage(int(action.size.sum()), purpose, end)

    def _read_keys(self, action: cache_actions.ReadKeys) -> None:
        step = self._steps[action.ticket]

        def end(begun_ns: int) -> None:
            step.begun_ns = min(step.begun_ns, begun_ns)
            self._tell(self._cache.take_read, action.read, ())

        size_bytes = int(step.plan.requests.length[action.rows].sum())
        self._read_storage(size_bytes, step.purpose, end)

    def _read_storage(self, size_bytes: int, purpose: Purpose, end: Ended) -> None:
        cluster = self._cluster
        cluster.moved["storage"] += size_bytes
        cluster.storage.read(self.rank, size_bytes, self._queue.now_ns + AGING.of(purpose), end)

    def _publish(self, action: cache_actions.PublishSlots) -> None:
        self._slots[NodeTier.RAM][action.slots] = READY

    def _write_disk(self, action: cache_actions.WriteDisk) -> None:
        self._slots[NodeTier.DISK][action.slots] = READY
        self._cache.take_write(action.source)

    def _read_disk(self, action: cache_actions.ReadDisk) -> None:
        tiers = self._cluster.find_tiers(action.slots + len(self._slots[NodeTier.RAM]))
        now_ns = self._queue.now_ns
        flow = Flow(_NEVER, now_ns)
        for tier in np.unique(tiers).tolist():
            size_bytes = int(action.size[tiers == tier].sum())
            flow = flow.join(self._read_tier(tier, size_bytes, now_ns))
        self._source_ns[action.source] = flow.begun_ns
        self._tell_at(flow.ended_ns, self._cache.take_disk_read, action.source)

    def _read_tier(self, tier: int, size_bytes: int, since_ns: int) -> Flow:
        self._cluster.tier_bytes[tier] += size_bytes
        return self._devices.tiers[tier].take(size_bytes, Flow(since_ns, self._queue.now_ns))

    def _release(self, action: cache_actions.ReleaseSource) -> None:
        del self._source_ns[action.source]

    def _take_want(
        self, want: Want, sources: tuple[int, ...], lengths: Int, since_ns: int
    ) -> tuple[Flow, int]:
        """Take the bytes of a want, all of which are there; return their flow, and how many of them
        were kept. The first key of each cache block that was read for it was not."""
        kept = np.ones(len(want.slots), bool)
        brought = self._brought.pop(want.number, None)
        if brought is not None:
            slots, first = np.unique(want.slots, return_index=True)
            kept[first[np.isin(slots, brought)]] = False
        kept_bytes = int(lengths[kept].sum())
        flow = Flow(_NEVER, self._queue.now_ns)
        begun_ns = [self._source_ns[source] for source in sources]
        if want.tier is NodeTier.RAM:
            begun_ns += self._loaded_ns[want.slots[~kept]].tolist()
            if kept_bytes:
                flow = self._read_tier(0, kept_bytes, since_ns)
        if begun_ns:
            flow = flow.join(Flow(max(since_ns, min(begun_ns)), self._queue.now_ns))
        return flow, kept_bytes

    def _copy(self, action: cache_actions.CopyKeys) -> None:
        want = action.want
        assert want.ticket is not None
        step = self._steps[want.ticket]
        lengths = step.plan.requests.length[want.rows]
        flow, kept_bytes = self._take_want(want, action.sources, lengths, step.since_ns)
        step.begun_ns = min(step.begun_ns, flow.begun_ns)
        self._cluster.moved["local"] += kept_bytes
        self._tell_at(flow.ended_ns, self._cache.take_copy, want, np.ones(len(want.rows), bool))

    def _fetch(self, action: cache_actions.FetchKeys) -> None:
        now_ns = self._queue.now_ns
        steps = [self._steps[ticket] for ticket, _ in action.parts]
        pairs = [
            (step.plan.requests, rows) for step, (_, rows) in zip(steps, action.parts, strict=True)
        ]
        keys = np.concatenate([requests.offset[rows] for requests, rows in pairs]).view(np.uint64)
        lengths = np.concatenate([requests.length[rows] for requests, rows in pairs])
        asked = _TakenFetch(self, steps, action.fetch, now_ns)
        self._queue.add(
            now_ns, partial(self._cluster.ranks[action.rank]._ask, asked, keys, lengths)
        )

    def _answer(self, action: cache_actions.AnswerPeer) -> None:
        asked = self._asked.pop(action.request)
        size_bytes, flow = int(action.lengths.sum()), Flow(_NEVER, self._queue.now_ns)
        answered = 0
        for want, sources in action.wants:
            answered += len(want.rows)
            lengths = action.lengths[want.rows]
            flow = flow.join(self._take_want(want, sources, lengths, asked.since_ns)[0])
        assert answered == len(action.lengths), "a rank is asked for what it does not keep"
        asked.asker._receive(asked, size_bytes, self._devices.sender.take(size_bytes, flow))
        self._cache.take_answer(action.request, size_bytes, 0)

    def _receive(self, asked: _TakenFetch, size_bytes: int, sent: Flow) -> None:
        """Receive an answer of another rank."""
        flow = self._devices.receiver.take(size_bytes, sent)
        for step in asked.steps:
            step.begun_ns = min(step.begun_ns, flow.begun_ns)
        self._cluster.moved["peers"] += size_bytes
        none = np.empty(0, np.int64)
        self._tell_at(flow.ended_ns, self._cache.take_fetch, asked.fetch, none, None)

    _performers: ClassVar[dict[type, Callable[[Any, Any], None]]] = {
        cache_actions.ClaimSlots: _claim,
        cache_actions.AllocateRoom: _allocate,
        cache_actions.LoadBlocks: _load,
        cache_actions.ReadKeys: _read_keys,
        cache_actions.PublishSlots: _publish,
        cache_actions.WriteDisk: _write_disk,
        cache_actions.ReadDisk: _read_disk,
        cache_actions.ReleaseSource: _release,
        cache_actions.CopyKeys: _copy,
        cache_actions.FetchKeys: _fetch,
        cache_actions.AnswerPeer: _answer,
        cache_actions.ReportStep: _report,
    }
