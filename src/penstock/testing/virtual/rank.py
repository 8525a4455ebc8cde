"""A rank of the virtual cluster: it drives the shipped `CacheSession` over modelled parts.

The rank is its session's driver, as `penstock.cache.engine` is in production, and the loader that
asks for steps. It checks what the session promises at every event; see `VirtualRank.check`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ... import limits
from ...extent import Int, Requests
from ...plan import Keys, cache_actions
from ...plan.cache_actions import NodeTier, RowFailure
from .node import Buffer, ScenarioError, pad_bytes, require
from .scenario import MS

if TYPE_CHECKING:
    from .cluster import VirtualCluster

IO_ERROR = 5
_REFUSED = (
    cache_actions.LoadBlocks,
    cache_actions.FetchKeys,
    cache_actions.ProbeRank,
    cache_actions.ReadDisk,
    cache_actions.WriteDisk,
    cache_actions.TakeReplicas,
    cache_actions.OfferReplicas,
    cache_actions.AnswerPeer,
)


_pause_ns = int(limits.peer_pause_s * 1e9)


class _Killed(BaseException):
    """The rank ends here."""


@dataclass(eq=False)
class _SubmittedStep:
    """A step that was asked for: its number in the rank's work, keys, and buffers to be filled."""

    number: int
    requests: Requests
    buffers: list[Buffer]
    since_ns: int
    uses: bool
    errors: set[int] = field(default_factory=set)  # keys that storage has failed for it


class VirtualRank:
    """One life of a rank: from its start until it is killed."""

    def __init__(self, cluster: VirtualCluster, rank: int, first_step: int, kill_at: int) -> None:
        scenario = cluster.scenario
        self._cluster, self._queue, self._draw = cluster, cluster.queue, cluster.draw
        self.rank, self.node = rank, cluster.nodes[scenario.nodes[rank]]
        self.session: Any = cluster.session_class(
            cluster.data, cluster.placement, scenario.nodes, rank, replicas=scenario.replicas > 0
        )
        self.session.disk_buffer_bytes = self._disk_bytes = scenario.disk_buffer_bytes
        self.session.answer_bytes = self._answer_bytes = scenario.answer_bytes
        self.is_alive = True
        self.next_step = first_step
        self.kill_at, self._performed = kill_at, 0
        self._steps: dict[int, _SubmittedStep] = {}
        self._reported: list[tuple[_SubmittedStep, list[bytes]]] = []
        self._tickets = 0
        self._sources: dict[int, dict[int, Buffer]] = {}
        self._source_bytes: dict[int, int] = {}
        self._is_disk_writable = True
        self._inbox: deque[Callable[[], None]] = deque()
        self._has_turn = False
        self._late_ns = MS // 10
        self._silent_ns: dict[int, int] = {}  # ranks that did not answer, and since when
        self._probed: set[int] = set()
        self._missed: set[int] = set()  # keys that a peer did not send, of the event in hand

    # -- what the loader does ------------------------------------------------------------------

    @property
    def is_done(self) -> bool:
        """True if all of its steps were reported."""
        return not self._steps and self.next_step == len(self._cluster.work[self.rank])

    @property
    def first_missing(self) -> int:
        """The first step that was not reported."""
        return min((step.number for step in self._steps.values()), default=self.next_step)

    def begin_steps(self) -> None:
        """Ask for steps, as far ahead as the loader does."""
        scenario, work = self._cluster.scenario, self._cluster.work[self.rank]
        while len(self._steps) < scenario.ahead and self.next_step < len(work):
            requests, sizes = work[self.next_step]
            buffers = [np.full(size, 0xEE, np.uint8) for size in sizes]
            uses = self._draw.random() < 0.9
            step = _SubmittedStep(self.next_step, requests, buffers, self._queue.now_ns, uses)
            ticket, self._tickets = self._tickets, self._tickets + 1
            self._steps[ticket] = step
            self.next_step += 1
            self.post(partial(self._request, ticket, step))

    def _request(self, ticket: int, step: _SubmittedStep) -> None:
        if self._cluster.trace is not None:
            keys = step.requests.offset.tolist()
            self._say(f"wants step {step.number} as {ticket}: keys {keys}")
        self.session.request(ticket, step.requests, len(step.buffers), step.uses)

    def _report(self, action: cache_actions.ReportStep) -> None:
        require(action.ticket in self._steps, f"step {action.ticket} is reported twice")
        step = self._steps.pop(action.ticket)
        self._check_failures(step, action.failures)
        self._check_bytes(step, {failure.row for failure in action.failures})
        self._reported.append((step, [buffer.tobytes() for buffer in step.buffers]))
        self._cluster.delivered += len(step.requests.offset)
        self.begin_steps()

    def _check_failures(self, step: _SubmittedStep, failures: tuple[RowFailure, ...]) -> None:
        for row, errno, _ in failures:
            key = int(step.requests.offset[row])
            require(errno == IO_ERROR, f"key {key} fails with error {errno}, which nobody raised")
            require(key in step.errors, f"key {key} is reported as failed, and did not fail")

    def _check_bytes(self, step: _SubmittedStep, failed_rows: set[int]) -> None:
        requests = step.requests
        columns = (requests.offset, requests.length, requests.buffer, requests.target)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for row, (key, length, buffer, target) in enumerate(rows):
            found = step.buffers[buffer][target : target + length]
            if (
                row not in failed_rows
                and found.tobytes() != self._cluster.data.bytes_of(key).tobytes()
            ):
                require(False, f"step {step.number}: the bytes of key {key} are wrong")

    # -- turns ---------------------------------------------------------------------------------

    def post(self, event: Callable[[], None]) -> None:
        """Have the rank take an event at its next turn."""
        if self.is_alive:
            self._inbox.append(event)
            self._late_ns = MS // 10
            self._take_turn_in(
                self._draw.randrange(1000, 50_000) + self._cluster.slow_ns(self.rank)
            )

    def adopt(self, budget_bytes: int) -> None:
        """Change the budget; what was begun under the one before may still be there."""
        self.session.disk_buffer_bytes = self.session.answer_bytes = budget_bytes
        self._disk_bytes = max(self._disk_bytes, budget_bytes)
        self._answer_bytes = max(self._answer_bytes, budget_bytes)

    def take_request(self, number: int, keys: Keys, lengths: Int) -> None:
        """Take a request of another rank."""
        self.post(lambda: self.session.ask(number, keys, lengths))

    def _take_turn_in(self, delay_ns: int) -> None:
        if not self._has_turn:
            self._has_turn = True
            self._queue.add_in(delay_ns, self._take_turn)

    def _take_turn(self) -> None:
        stopped_ns = self._cluster.stopped_until_ns(self.rank)
        if not self.is_alive:
            return
        if stopped_ns > self._queue.now_ns:
            self._queue.add(stopped_ns, self._take_turn)
            return
        self._has_turn = False
        try:
            sent_bytes = self._cluster.network.sent_bytes(self)
            self.session.advance(self._cluster.clock_ns(self.rank), sent_bytes)
            self._perform()
            for _ in range(len(self._inbox)):
                self._missed.clear()
                self._inbox.popleft()()
                self._perform()
        except _Killed:
            self._cluster.end_life(self)
            return
        self.check()
        self._wake_later()

    def _wake_later(self) -> None:
        wake_ns = self.session.wake_ns
        if self._inbox:
            self._take_turn_in(1000)
        elif wake_ns is not None:
            # A busy machine wakes late, and later where nothing else happens: there are few looks.
            late_ns_max = 10 * MS if self._cluster.scenario.is_calm else 1000 * MS
            self._late_ns = min(2 * self._late_ns, late_ns_max)
            wait_ns = max(0, wake_ns - self._cluster.clock_ns(self.rank))
            self._take_turn_in(wait_ns + self._late_ns)

    def _perform(self) -> None:
        actions = self.session.actions
        while actions:
            action = actions.popleft()
            if self._cluster.trace is not None:
                self._say(describe(action))
            self._performed += 1
            if self._performed == self.kill_at:
                raise _Killed
            if self._is_refused(action):
                self._cluster.failures += 1
                self._say("... which the system refuses")
                self._note_refusal(action)
                if isinstance(action, cache_actions.WriteDisk | cache_actions.ReadDisk):
                    self.post(partial(self.session.fail, action))
                else:
                    self.session.fail(action)
                continue
            performer = self._performers.get(type(action))
            if performer is None:
                raise ScenarioError("the session gives up")
            performer(self, action)

    def _is_refused(self, action: cache_actions.Action) -> bool:
        if not isinstance(action, _REFUSED):
            return False
        if isinstance(action, cache_actions.AnswerPeer) and not action.wants:
            return False  # it takes no memory
        return self._cluster.refuses(self.rank, _REFUSED.index(type(action)))

    def _note_refusal(self, action: cache_actions.Action) -> None:
        if isinstance(action, cache_actions.FetchKeys):
            keys = self._steps[action.ticket].requests.offset[action.rows]
            self._note_peer(action.rank, "failed", keys.tolist())
        elif isinstance(action, cache_actions.ProbeRank):
            self._note_peer(action.rank, "failed", [])

    def _note_peer(self, rank: int, reason: str | None, missed: list[int]) -> None:
        """Note that a rank has answered, or has not, and the keys that it did not send."""
        self._missed.update(missed)
        self._probed.discard(rank)
        if reason is None:
            self._silent_ns.pop(rank, None)
        else:
            self._silent_ns[rank] = self._cluster.clock_ns(self.rank)

    def _check_read(self, keys: list[int]) -> None:
        """Check that keys of other nodes are read from storage only if nobody there answers, and
        that who is silent is tried again after a pause."""
        cluster, nodes = self._cluster, self._cluster.scenario.nodes
        now_ns = cluster.clock_ns(self.rank)
        for key in keys:
            owner = cluster.node_of(key)
            if owner in (-1, nodes[self.rank]) or key in self._missed:
                continue
            for rank in (rank for rank, node in enumerate(nodes) if node == owner):
                require(rank in self._silent_ns, f"key {key} is read, rank {rank} is not asked")
                is_late = self._silent_ns[rank] + _pause_ns <= now_ns
                require(rank in self._probed or not is_late, f"rank {rank} is not tried again")

    def _say(self, what: str) -> None:
        if self._cluster.trace is not None:
            self._cluster.trace(f"rank {self.rank}: {what}")

    # -- oracles -------------------------------------------------------------------------------

    def check(self) -> None:
        """Check what holds between events: memory within its bounds, no step without an end."""
        session = self.session
        lent_bytes = sum(self._source_bytes.values())
        require(
            lent_bytes <= session.passing_bytes, "memory is lent that the session does not count"
        )
        bound = max(1, self._disk_bytes) + 2 * self._cluster.step_bytes_max
        require(
            session.passing_bytes <= bound,
            f"{session.passing_bytes} bytes pass to or from the disk where {bound} may",
        )
        now_ns = self._queue.now_ns
        allowed_ns = self._cluster.step_ns_max(self.rank)
        for step in self._steps.values():
            require(now_ns - step.since_ns < allowed_ns, f"step {step.number} does not come")

    def check_end(self) -> None:
        """Check that everything was reported, answered and freed, and nothing changed since."""
        session = self.session
        require(self.is_done, f"rank {self.rank} waits for steps, and nothing happens any more")
        require(session.is_idle, f"the session of rank {self.rank} is not idle in the end")
        require(session.passing_bytes == 0, "memory of the disk is not freed in the end")
        require(not self._sources, "sources are not released in the end")
        require(not self._cluster.network.unanswered(self), "a request was not answered")
        for claims in (self.node.slab.claims, self.node.disk.claims):
            held = [slot for slot in claims.holders if claims.is_held(slot, self)]
            require(not held, f"slots {held} stay claimed")
        for step, before in self._reported:
            now = [buffer.tobytes() for buffer in step.buffers]
            require(now == before, f"step {step.number} was written to after its report")

    # -- actions -------------------------------------------------------------------------------

    def _claim(self, action: cache_actions.ClaimSlots) -> None:
        living = self._cluster.living
        if action.tier is NodeTier.RAM:
            codes = self.node.slab.claim(action.slots, self, living)
        else:
            codes = self.node.disk.claim(action.slots, self, living, self._is_disk_writable)
        if self._cluster.trace is not None:
            self._say(f"... {codes.tolist()}")
        self.session.take_claims(action.want, codes)

    def _allocate(self, action: cache_actions.AllocateRoom) -> None:
        self.session.take_room(action.load, self.node.slab.allocate(action.size))

    def _publish(self, action: cache_actions.PublishSlots) -> None:
        self.node.slab.publish(action.slots, action.at, self)

    def _abandon(self, action: cache_actions.AbandonSlots) -> None:
        tier = self.node.slab if action.tier is NodeTier.RAM else self.node.disk
        tier.claims.give_back(action.slots.tolist(), self)

    def _load(self, action: cache_actions.LoadBlocks) -> None:
        cluster = self._cluster
        if action.tier is NodeTier.RAM:
            buffer = self.node.slab.data
        else:
            buffer = np.full(int(action.size.sum()), 0xDD, np.uint8)
            self._source_bytes[action.load] = pad_bytes(buffer.nbytes)
        cluster.count_load(self.rank, action.tier, action.slots)

        def end() -> None:
            failed = []
            at = zip(action.cache_blocks.tolist(), action.at.tolist(), strict=True)
            for block, place in at:
                block_keys = cluster.keys_of(block)
                failed.append(any(cluster.fails(self.rank, key) for key in block_keys))
                for key in block_keys:
                    data = cluster.data.bytes_of(key)
                    buffer[place : place + len(data)] = 0xBD if failed[-1] else data
                    place += len(data)
            if action.tier is NodeTier.DISK:
                places = zip(
                    action.slots.tolist(),
                    action.at.tolist(),
                    action.size.tolist(),
                    failed,
                    strict=True,
                )
                self._sources[action.load] = {
                    slot: buffer[a : a + n] for slot, a, n, has_failed in places if not has_failed
                }
            self.session.take_load(action.load, np.array(failed, bool))

        cluster.read_storage(self, int(action.size.sum()), end)

    def _write_disk(self, action: cache_actions.WriteDisk) -> None:
        slots = action.slots.tolist()
        blocks = [self._sources[action.source][slot] for slot in slots]

        def end() -> None:
            if not self.node.disk.write(slots, blocks, self):
                self._is_disk_writable = False
            self.session.take_write(action.source)

        self._cluster.use_disk(self, end)

    def _read_disk(self, action: cache_actions.ReadDisk) -> None:
        slots = action.slots.tolist()

        def end() -> None:
            blocks = self.node.disk.read(slots)
            self._sources[action.source] = blocks
            self._source_bytes[action.source] = sum(
                pad_bytes(block.nbytes) for block in blocks.values()
            )
            self.session.take_disk_read(action.source)

        self._cluster.use_disk(self, end)

    def _release(self, action: cache_actions.ReleaseSource) -> None:
        self._sources.pop(action.source, None)
        self._source_bytes.pop(action.source, None)

    def _find(
        self, want: cache_actions.Want, sources: tuple[int, ...]
    ) -> tuple[dict[int, Buffer], list[bool]]:
        """Return the cache blocks of wanted slots that are there, and which keys that is."""
        blocks: dict[int, Buffer] = {}
        if want.tier is NodeTier.RAM:
            at = self.node.slab.offsets(want.slots).tolist()
            data = self.node.slab.data
            blocks = {
                slot: data[a:] for slot, a in zip(want.slots.tolist(), at, strict=True) if a >= 0
            }
        for source in sources:
            require(source in self._sources or source not in self._source_bytes, "a source is gone")
            blocks |= self._sources.get(source, {})
        return blocks, [slot in blocks for slot in want.slots.tolist()]

    def _view(self, blocks: dict[int, Buffer], want: cache_actions.Want, number: int) -> Buffer:
        """Return the bytes of a wanted key in its cache block."""
        cluster, key = self._cluster, int(want.keys[number])
        block_keys = cluster.keys_of(int(want.cache_blocks[number]))
        before = cluster.data.lengths[block_keys[0] : key].sum()
        length = cluster.data.lengths[key]
        return blocks[int(want.slots[number])][before : before + length]

    def _copy(self, action: cache_actions.CopyKeys) -> None:
        want = action.want
        assert want.ticket is not None
        step = self._steps[want.ticket]
        blocks, there = self._find(want, action.sources)
        for number, row in enumerate(want.rows.tolist()):
            if there[number]:
                target = int(step.requests.target[row])
                data = self._view(blocks, want, number)
                buffer = step.buffers[int(step.requests.buffer[row])]
                buffer[target : target + len(data)] = data
        self.session.take_copy(want, np.array(there, bool))

    def _read_keys(self, action: cache_actions.ReadKeys) -> None:
        step, cluster = self._steps[action.ticket], self._cluster
        requests, rows = step.requests, action.rows.tolist()
        cluster.direct_keys += len(rows)
        self._check_read(requests.offset[action.rows].tolist())

        def end() -> None:
            failures = []
            for row in rows:
                key, target = int(requests.offset[row]), int(requests.target[row])
                data = cluster.data.bytes_of(key)
                buffer = step.buffers[int(requests.buffer[row])]
                if cluster.fails(self.rank, key):
                    step.errors.add(key)
                    failures.append(RowFailure(row, IO_ERROR, 0))
                    buffer[target : target + len(data)] = 0xBE
                else:
                    buffer[target : target + len(data)] = data
            self.session.take_read(action.read, failures)

        cluster.read_storage(self, int(requests.length[action.rows].sum()), end)

    def _take_replicas(self, action: cache_actions.TakeReplicas) -> None:
        step = self._steps[action.ticket]
        copied = []
        for row in action.rows.tolist():
            data = self.node.replicas.find(int(step.requests.offset[row]))
            copied.append(data is not None)
            if data is not None:
                target = int(step.requests.target[row])
                buffer = step.buffers[int(step.requests.buffer[row])]
                buffer[target : target + len(data)] = np.frombuffer(data, np.uint8)
        self.session.take_replicas(action.ticket, action.rows, np.array(copied, bool))

    def _offer_replicas(self, action: cache_actions.OfferReplicas) -> None:
        step = self._steps[action.ticket]
        requests = step.requests
        for row in action.rows.tolist():
            target, length = int(requests.target[row]), int(requests.length[row])
            data = step.buffers[int(requests.buffer[row])][target : target + length].tobytes()
            self.node.replicas.offer(int(requests.offset[row]), data, self._draw)

    def _give_up_replicas(self, action: cache_actions.GiveUpReplicas) -> None:
        pass

    def _fetch(self, action: cache_actions.FetchKeys) -> None:
        step, rows = self._steps[action.ticket], action.rows
        requests = step.requests
        require(
            action.rank not in self._silent_ns, f"rank {action.rank}, which is silent, is asked"
        )
        (number,) = set(requests.buffer[rows].tolist())  # a fetch is into one
        require(
            self._cluster.scenario.nodes[action.rank] != self._cluster.scenario.nodes[self.rank],
            "a rank of the own node is asked",
        )
        keys = requests.offset[rows].view(np.uint64)
        self._submit(
            action.rank,
            action.fetch,
            keys,
            requests.length[rows],
            requests.target[rows],
            step.buffers[number],
        )

    def _probe(self, action: cache_actions.ProbeRank) -> None:
        keys, lengths = np.array([action.key], np.uint64), np.array([action.length])
        nowhere = np.empty(action.length, np.uint8)
        self._probed.add(action.rank)
        self._submit(action.rank, action.fetch, keys, lengths, np.zeros(1, np.int64), nowhere)

    def _submit(
        self, rank: int, fetch: int, keys: Keys, lengths: Int, targets: Int, buffer: Buffer
    ) -> None:
        def take(failures: Int, reason: str | None) -> None:
            self._note_peer(rank, reason, keys[failures].tolist())
            self.session.take_fetch(fetch, failures, reason)

        def ended(failures: Int, reason: str | None) -> None:
            self.post(partial(take, failures, reason))

        self._cluster.network.submit(self.rank, rank, keys, lengths, targets, buffer, ended)

    def _answer(self, action: cache_actions.AnswerPeer) -> None:
        parts: dict[int, Buffer] = {}
        for want, sources in action.wants:
            blocks, there = self._find(want, sources)
            for number, row in enumerate(want.rows.tolist()):
                if there[number]:
                    parts[row] = self._view(blocks, want, number)
        rows = sorted(parts)
        data = np.concatenate([parts[row] for row in rows]) if rows else np.empty(0, np.uint8)
        refused = np.setdiff1d(np.arange(len(action.lengths)), rows)
        network = self._cluster.network
        network.answer(self, action.request, data, refused)
        sent_bytes = network.sent_bytes(self)
        is_bounded = sent_bytes <= self._answer_bytes
        require(is_bounded or network.sends_one(self), f"answers take {sent_bytes} bytes")
        self.session.take_answer(action.request, data.nbytes, network.sent_bytes(self))

    _performers: ClassVar[dict[type, Callable[[Any, Any], None]]] = {
        cache_actions.ClaimSlots: _claim,
        cache_actions.AllocateRoom: _allocate,
        cache_actions.LoadBlocks: _load,
        cache_actions.PublishSlots: _publish,
        cache_actions.AbandonSlots: _abandon,
        cache_actions.WriteDisk: _write_disk,
        cache_actions.ReadDisk: _read_disk,
        cache_actions.ReleaseSource: _release,
        cache_actions.CopyKeys: _copy,
        cache_actions.ReadKeys: _read_keys,
        cache_actions.TakeReplicas: _take_replicas,
        cache_actions.OfferReplicas: _offer_replicas,
        cache_actions.GiveUpReplicas: _give_up_replicas,
        cache_actions.FetchKeys: _fetch,
        cache_actions.ProbeRank: _probe,
        cache_actions.AnswerPeer: _answer,
        cache_actions.ReportStep: _report,
    }


def describe(action: cache_actions.Action) -> str:
    """Describe an action in a line."""
    words = []
    for name, value in action._asdict().items():
        if isinstance(value, np.ndarray):
            value = value.tolist()
        elif isinstance(value, cache_actions.Want):
            value = f"{value.tier.value} keys {value.keys.tolist()} for {value.ticket}"
        elif isinstance(value, NodeTier):
            value = value.value
        elif name == "wants":
            value = [want.keys.tolist() for want, _ in value]
        words.append(f"{name} {value}")
    return f"{type(action).__name__}: {', '.join(words)}"


assert set(VirtualRank._performers) == set(cache_actions.Action.__args__) - {cache_actions.Stop}
