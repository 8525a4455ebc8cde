"""The shell of a rank in the virtual cluster: it performs the actions of a session over modelled
parts, as `penstock.cache.engine` does over real ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...extent import Int
from ...plan import Keys, cache_actions
from ...plan.cache_actions import NodeTier, RowFailure
from .node import Buffer, ScenarioError, pad_bytes, require

if TYPE_CHECKING:
    from .cluster import VirtualCluster
    from .rank import VirtualRank

IO_ERROR = 5
"""Error of storage that fails."""


class VirtualShell:
    """The shell of one life of a rank.

    sources:  cache blocks of the disk that are in memory, by source and slot.
    """

    def __init__(self, cluster: VirtualCluster, life: VirtualRank) -> None:
        self._cluster, self._life = cluster, life
        self._node = cluster.nodes[cluster.scenario.nodes[life.rank]]
        self.sources: dict[int, dict[int, Buffer]] = {}
        self._source_bytes: dict[int, int] = {}
        self._is_disk_writable = True

    def perform(self, action: cache_actions.Action) -> None:
        """Perform an action; ScenarioError for `Stop`, which no fault of a scenario explains."""
        performer = self._performers.get(type(action))
        if performer is None:
            raise ScenarioError("the session gives up")
        performer(self, action)

    @property
    def lent_bytes(self) -> int:
        """Bytes of memory for cache blocks of the disk."""
        return sum(self._source_bytes.values())

    def _report(self, action: cache_actions.ReportStep) -> None:
        self._life.report(action)

    def _claim(self, action: cache_actions.ClaimSlots) -> None:
        living = self._cluster.living
        if action.tier is NodeTier.RAM:
            codes = self._node.slab.claim(action.slots, self._life, living)
        else:
            codes = self._node.disk.claim(action.slots, self._life, living, self._is_disk_writable)
        if self._cluster.trace is not None:
            self._life.say(f"... {codes.tolist()}")
        self._life.session.take_claims(action.want, codes)

    def _allocate(self, action: cache_actions.AllocateRoom) -> None:
        self._life.session.take_room(action.load, self._node.slab.allocate(action.size))

    def _publish(self, action: cache_actions.PublishSlots) -> None:
        self._node.slab.publish(action.slots, action.at, self._life)

    def _abandon(self, action: cache_actions.AbandonSlots) -> None:
        tier = self._node.slab if action.tier is NodeTier.RAM else self._node.disk
        tier.claims.give_back(action.slots.tolist(), self._life)

    def _load(self, action: cache_actions.LoadBlocks) -> None:
        cluster = self._cluster
        if action.tier is NodeTier.RAM:
            buffer = self._node.slab.data
        else:
            buffer = np.full(int(action.size.sum()), 0xDD, np.uint8)
            self._source_bytes[action.load] = pad_bytes(buffer.nbytes)
        cluster.count_load(self._life.rank, action.tier, action.slots)

        def end() -> None:
            failed = []
            at = zip(action.cache_blocks.tolist(), action.at.tolist(), strict=True)
            for block, place in at:
                block_keys = cluster.keys_of(block)
                failed.append(any(cluster.fails(self._life.rank, key) for key in block_keys))
                for key in block_keys:
                    data = cluster.read_key(self._life.rank, key)
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
                self.sources[action.load] = {
                    slot: buffer[a : a + n] for slot, a, n, has_failed in places if not has_failed
                }
            self._life.session.take_load(action.load, np.array(failed, bool))

        event = ("take_load", action.load, end)
        cluster.read_storage(self._life, int(action.size.sum()), event)

    def _write_disk(self, action: cache_actions.WriteDisk) -> None:
        slots = action.slots.tolist()
        blocks = [self.sources[action.source][slot] for slot in slots]

        def end() -> None:
            if not self._node.disk.write(slots, blocks, self._life):
                self._is_disk_writable = False
            self._life.session.take_write(action.source)

        self._cluster.use_disk(self._life, ("take_write", action.source, end))

    def _read_disk(self, action: cache_actions.ReadDisk) -> None:
        slots = action.slots.tolist()

        def end() -> None:
            blocks = self._node.disk.read(slots)
            self.sources[action.source] = blocks
            self._source_bytes[action.source] = sum(
                pad_bytes(block.nbytes) for block in blocks.values()
            )
            self._life.session.take_disk_read(action.source)

        self._cluster.use_disk(self._life, ("take_disk_read", action.source, end))

    def _release(self, action: cache_actions.ReleaseSource) -> None:
        self.sources.pop(action.source, None)
        self._source_bytes.pop(action.source, None)

    def _find(
        self, want: cache_actions.Want, sources: tuple[int, ...]
    ) -> tuple[dict[int, Buffer], list[bool]]:
        """Return the cache blocks of wanted slots that are there, and which keys that is."""
        blocks: dict[int, Buffer] = {}
        if want.tier is NodeTier.RAM:
            at = self._node.slab.offsets(want.slots).tolist()
            data = self._node.slab.data
            blocks = {
                slot: data[a:] for slot, a in zip(want.slots.tolist(), at, strict=True) if a >= 0
            }
        for source in sources:
            require(source in self.sources or source not in self._source_bytes, "a source is gone")
            blocks |= self.sources.get(source, {})
        return blocks, [slot in blocks for slot in want.slots.tolist()]

    def _view(self, blocks: dict[int, Buffer], want: cache_actions.Want, number: int) -> Buffer:
        """Return the bytes of a wanted key in its cache block."""
        cluster, key = self._cluster, int(want.keys[number])
        before = cluster.inside[key]
        return blocks[int(want.slots[number])][before : before + cluster.data.lengths[key]]

    def _copy(self, action: cache_actions.CopyKeys) -> None:
        want = action.want
        assert want.ticket is not None
        step = self._life.steps[want.ticket]
        blocks, there = self._find(want, action.sources)
        for number, row in enumerate(want.rows.tolist()):
            if there[number]:
                target = int(step.requests.target[row])
                data = self._view(blocks, want, number)
                buffer = step.buffers[int(step.requests.buffer[row])]
                buffer[target : target + len(data)] = data
        self._life.session.take_copy(want, np.array(there, bool))

    def _read_keys(self, action: cache_actions.ReadKeys) -> None:
        step, cluster = self._life.steps[action.ticket], self._cluster
        requests, rows = step.requests, action.rows.tolist()
        cluster.direct_keys += len(rows)
        self._life.check_read(requests.offset[action.rows].tolist())

        def end() -> None:
            failures = []
            for row in rows:
                key, target = int(requests.offset[row]), int(requests.target[row])
                data = cluster.read_key(self._life.rank, key)
                buffer = step.buffers[int(requests.buffer[row])]
                if cluster.fails(self._life.rank, key):
                    step.errors.add(key)
                    failures.append(RowFailure(row, IO_ERROR, 0))
                    buffer[target : target + len(data)] = 0xBE
                else:
                    buffer[target : target + len(data)] = data
            self._life.session.take_read(action.read, failures)

        size_bytes = int(requests.length[action.rows].sum())
        cluster.read_storage(self._life, size_bytes, ("take_read", action.read, end))

    def _take_replicas(self, action: cache_actions.TakeReplicas) -> None:
        step = self._life.steps[action.ticket]
        copied = []
        for row in action.rows.tolist():
            data = self._node.replicas.find(int(step.requests.offset[row]))
            copied.append(data is not None)
            if data is not None:
                target = int(step.requests.target[row])
                buffer = step.buffers[int(step.requests.buffer[row])]
                buffer[target : target + len(data)] = np.frombuffer(data, np.uint8)
        self._life.session.take_replicas(action.ticket, action.rows, np.array(copied, bool))

    def _offer_replicas(self, action: cache_actions.OfferReplicas) -> None:
        step = self._life.steps[action.ticket]
        requests = step.requests
        for row in action.rows.tolist():
            target, length = int(requests.target[row]), int(requests.length[row])
            data = step.buffers[int(requests.buffer[row])][target : target + length].tobytes()
            self._node.replicas.offer(int(requests.offset[row]), data, self._cluster.draw)

    def _give_up_replicas(self, action: cache_actions.GiveUpReplicas) -> None:
        pass

    def _fetch(self, action: cache_actions.FetchKeys) -> None:
        step, rows = self._life.steps[action.ticket], action.rows
        requests = step.requests
        self._life.check_fetch(action.rank)
        (number,) = set(requests.buffer[rows].tolist())  # a fetch is into one
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
        self._life.probed.add(action.rank)
        self._submit(action.rank, action.fetch, keys, lengths, np.zeros(1, np.int64), nowhere)

    def _submit(
        self, rank: int, fetch: int, keys: Keys, lengths: Int, targets: Int, buffer: Buffer
    ) -> None:
        def take(failures: Int, reason: str | None) -> None:
            self._life.note_peer(rank, reason, keys[failures].tolist())
            self._life.session.take_fetch(fetch, failures, reason)

        def ended(failures: Int, reason: str | None) -> None:
            self._life.post("take_fetch", fetch, partial(take, failures, reason))

        self._cluster.network.submit(self._life.rank, rank, keys, lengths, targets, buffer, ended)

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
        network.answer(self._life, action.request, data, refused)
        self._life.check_answers()
        self._life.session.take_answer(action.request, data.nbytes, network.sent_bytes(self._life))

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
