"""The shell of a rank in the virtual cluster: it performs the actions of a session over modelled
parts, as `penstock.cache.engine` does over real ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from penstock.extent import Int
from penstock.plan import Keys, cache_actions
from penstock.plan.cache_actions import NodeTier, RowFailure
from tests.virtual.node import Buffer, ScenarioError, pad_bytes, require

if TYPE_CHECKING:
    from tests.virtual.cluster import VirtualCluster
    from tests.virtual.rank import VirtualRank

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

    def _find(self, want: cache_actions.Want, sources: tuple[int, ...]) -> list[Buffer | None]:
        """Return the bytes of the wanted keys in their cache blocks, None of those not there."""
        blocks: dict[int, Buffer] = {}
        if want.tier is NodeTier.RAM:
            slab = self._node.slab
            slots = want.slots.tolist()
            blocks = {slot: slab.data[slab.ready[slot] :] for slot in slots if slot in slab.ready}
        for source in sources:
            require(source in self.sources or source not in self._source_bytes, "a source is gone")
            blocks |= self.sources.get(source, {})
        inside, lengths = self._cluster.inside, self._cluster.data.lengths_list
        return [
            blocks[slot][inside[key] : inside[key] + lengths[key]] if slot in blocks else None
            for key, slot in zip(want.keys.tolist(), want.slots.tolist(), strict=True)
        ]

    def _copy(self, action: cache_actions.CopyKeys) -> None:
        want = action.want
        assert want.ticket is not None
        step = self._life.steps[want.ticket]
        parts = self._find(want, action.sources)
        targets = step.requests.target[want.rows].tolist()
        numbers = step.requests.buffer[want.rows].tolist()
        for data, target, number in zip(parts, targets, numbers, strict=True):
            if data is not None:
                step.buffers[number][target : target + len(data)] = data
        self._life.session.take_copy(want, np.array([data is not None for data in parts], bool))

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
        self._life.check_fetch(action.rank)
        keys: list[int] = []
        lengths: list[int] = []
        places: list[Buffer] = []
        for ticket, rows in action.parts:
            step = self._life.steps[ticket]
            requests = step.requests
            keys += requests.offset[rows].tolist()
            lengths += requests.length[rows].tolist()
            places += [
                step.buffers[int(requests.buffer[row])][
                    int(requests.target[row]) : int(requests.target[row] + requests.length[row])
                ]
                for row in rows.tolist()
            ]
        self._submit(
            action.rank,
            action.fetch,
            np.array(keys, np.uint64),
            np.array(lengths, np.int64),
            places,
        )

    def _probe(self, action: cache_actions.ProbeRank) -> None:
        keys, lengths = np.array([action.key], np.uint64), np.array([action.length])
        nowhere = np.empty(action.length, np.uint8)
        self._life.probed.add(action.rank)
        self._submit(action.rank, action.fetch, keys, lengths, [nowhere])

    def _submit(
        self, rank: int, fetch: int, keys: Keys, lengths: Int, places: Sequence[Buffer]
    ) -> None:
        def take(failures: Int, reason: str | None) -> None:
            self._life.note_peer(rank, reason, keys[failures].tolist())
            self._life.session.take_fetch(fetch, failures, reason)

        def ended(failures: Int, reason: str | None) -> None:
            self._life.post("take_fetch", fetch, partial(take, failures, reason))

        self._cluster.network.submit(self._life.rank, rank, keys, lengths, places, ended)

    def _answer(self, action: cache_actions.AnswerPeer) -> None:
        parts: dict[int, Buffer] = {}
        for want, sources in action.wants:
            found = self._find(want, sources)
            rows = zip(want.rows.tolist(), found, strict=True)
            parts |= {row: part for row, part in rows if part is not None}
        sent = sorted(parts)
        data = np.concatenate([parts[row] for row in sent]) if sent else np.empty(0, np.uint8)
        is_refused = np.ones(len(action.lengths), bool)
        is_refused[sent] = False
        refused = np.flatnonzero(is_refused)
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
