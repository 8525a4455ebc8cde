"""Decisions of cache sessions, live and simulated: their record, and a virtual cluster that follows
a live one.

A *record* has all that the sessions of a cluster are told and all that they say, in order. Live
ranks are threads; one of them at a time takes a turn (from `advance` on until it waits), so the
record has one order. `follow` runs the virtual cluster in this order: it gives each rank the time
that its live twin read, and delivers the event that the live twin took next, which the modelled
parts must have brought forth by themselves.
"""

from __future__ import annotations

import functools
import io
import random
import tarfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import penstock
from penstock.budget import Budget
from penstock.cache.disk import DiskTier
from penstock.cache.engine import CachedEngine
from penstock.cache.key_index import Addressed
from penstock.cache.peer import PeerEvents
from penstock.cache.shared_memory import RamTier
from penstock.clock import SystemClock
from penstock.engine import Completion, Failure, Purpose
from penstock.engine.protocol import Buffer, ReadMethod
from penstock.extent import Requests
from penstock.plan import CacheSession
from penstock.plan.cache_actions import AnswerPeer
from tests.cache.memory import MemoryPeer
from tests.engine.memory import MemoryEngine
from tests.virtual import Fault, FaultKind, VirtualScenario, draw_scenario
from tests.virtual.cluster import VirtualCluster
from tests.virtual.rank import RankEvent, VirtualRank
from tests.virtual.shell import IO_ERROR

EVENTS = (
    "advance",
    "request",
    "ask",
    "take_claims",
    "take_room",
    "take_load",
    "take_write",
    "take_disk_read",
    "take_copy",
    "take_replicas",
    "take_fetch",
    "take_read",
    "take_answer",
    "fail",
)
DEADLINE_S = 60


class Entry(NamedTuple):
    """An event that a session was told, or an action that it asked for."""

    rank: int
    name: str
    values: tuple[Any, ...]


def flatten(value: object) -> Any:
    """Return plain values, which compare."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple | list):
        return tuple(map(flatten, value))
    return value


class Record:
    """The record of a run, and the turns of its ranks.

    askers:  of each rank, who sent its requests, in their order.
    """

    def __init__(self, ranks: int) -> None:
        self.entries: list[Entry] = []
        self.askers: list[list[int]] = [[] for _ in range(ranks)]
        self.is_over = False
        self.turn = threading.Lock()

    def close(self) -> None:
        """Record nothing more, and let the ranks end."""
        with self.turn:
            self.is_over = True


class _SaidActions(deque[Any]):
    """Actions, each of which is recorded when the session says it."""

    def __init__(self, session: RecordedSession) -> None:
        super().__init__()
        self._session = session

    def append(self, action: Any) -> None:
        self._session.note_action(action)
        super().append(action)


class RecordedSession(CacheSession):
    """A session whose events and actions are recorded. Numbers of requests, which the transport
    gives, are counted per rank instead."""

    def __init__(self, record: Record, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.actions = _SaidActions(self)
        self._record, self._rank = record, arguments[3]
        self._counted: dict[int, int] = {}
        self._has_turn = False

    def find_in_memory(self, keys: Any) -> None:
        """Return None: each step is an event, so that hits are recorded as well."""

    @property
    def wake_ns(self) -> int | None:
        """The time to wake; the rank is about to wait, so its turn ends."""
        if self._has_turn:
            self._has_turn = False
            self._record.turn.release()
        return super().wake_ns

    def begin_turn(self) -> None:
        """Wait for the turn of this rank."""
        while not (self._has_turn or self._record.is_over):
            self._has_turn = self._record.turn.acquire(timeout=0.05)

    def note_action(self, action: Any) -> None:
        """Record an action."""
        name = type(action).__name__
        if isinstance(action, AnswerPeer):
            action = action._replace(request=self._counted[action.request])
        self._note(name, action)

    def note_event(self, name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Record an event; return what the session is told."""
        noted = list(arguments)
        if name == "ask":
            noted[0] = self._counted.setdefault(arguments[0], len(self._counted))
        elif name == "take_answer":
            noted[0] = self._counted[arguments[0]]
        elif name == "take_read":
            noted[1] = sorted(arguments[1])
        self._note(name, tuple(noted))
        return arguments

    def _note(self, name: str, values: tuple[Any, ...]) -> None:
        if not self._record.is_over:
            self._record.entries.append(Entry(self._rank, name, flatten(values)))


def _record_event(name: str) -> Callable[..., None]:
    take = getattr(CacheSession, name)

    @functools.wraps(take)
    def record(self: RecordedSession, *arguments: Any) -> None:
        if name == "advance":
            self.begin_turn()
        take(self, *self.note_event(name, arguments))

    return record


for _name in EVENTS:
    setattr(RecordedSession, _name, _record_event(_name))


# -- the live cluster --------------------------------------------------------------------------


class SlowMemoryEngine(MemoryEngine):
    """Storage in memory for two threads: it reports one read at a time, in an order that a seed
    draws, and fails some keys."""

    def __init__(self, content: bytes, failing: Sequence[int], seed: int) -> None:
        super().__init__([content])
        self._failing = failing
        self._draw = random.Random(seed)
        self._more = threading.Condition()

    def submit(
        self, requests: Requests, buffers: Sequence[Buffer], purpose: Purpose = "prefetch"
    ) -> int:
        with self._more:
            self._more.notify()
            return super().submit(requests, buffers, purpose)

    def poll(self, timeout_ns: int) -> list[Completion]:
        with self._more:
            if not self._pending:
                self._more.wait(timeout_ns * 1e-9)
            if not self._pending:
                return []
            _, ticket, requests, buffers = self._pending.pop(
                self._draw.randrange(len(self._pending))
            )
        self._read(requests, buffers)
        failed = np.flatnonzero(np.isin(requests.offset, self._failing))
        for row in failed.tolist():
            target, length = requests.target[row], requests.length[row]
            buffers[requests.buffer[row]][target : target + length] = 0xBE
        return [Completion(ticket, tuple(Failure(int(row), IO_ERROR, 0) for row in failed))]

    @property
    def choice(self) -> ReadMethod:
        raise NotImplementedError

    def adopt(self, budget: Budget) -> None:
        pass

    def survey(self) -> None:
        pass

    def counters(self) -> dict[str, int]:
        return {}


class _KnownPeer(MemoryPeer):
    """A peer that notes who asks."""

    def __init__(self, node: int, group: Sequence[MemoryPeer], record: Record) -> None:
        super().__init__(node, group, DEADLINE_S, SystemClock())
        self._askers = record.askers[node]

    def step(self, timeout_ns: int, also: Sequence[int] = ()) -> PeerEvents:
        events = super().step(timeout_ns, also)
        self._askers += (request.node for request in events.requests)
        return events


def _write_tar(path: Path, scenario: VirtualScenario, cluster: VirtualCluster) -> None:
    with tarfile.open(path, "w") as tar:
        for key in range(scenario.samples * scenario.fields):
            sample, field = divmod(key, scenario.fields)
            data = cluster.data.bytes_of(key).tobytes()
            entry = tarfile.TarInfo(f"{sample:06}.f{field}")
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))


class LiveCluster:
    """The ranks of a scenario as threads of this process: shipped engines over real slabs, disk
    tiers and an index, with storage and a network in memory."""

    def __init__(self, scenario: VirtualScenario, folder: Path) -> None:
        self._scenario = scenario
        self._shape = shape = VirtualCluster(scenario)
        self.record = Record(len(scenario.nodes))
        _write_tar(folder / "x.tar", scenario, shape)
        source = Addressed(penstock.open(folder / "x.tar").index)
        content = (folder / "x.tar").read_bytes()
        keys = np.arange(scenario.samples * scenario.fields).astype(np.uint64)
        offsets = source.place_keys(keys, np.zeros(len(keys)), keys.astype(np.int64))
        slabs = [
            RamTier.create(max(1, ram), max(1, len(node.slab.data)), bytes(16))
            for ram, node in zip(scenario.ram_blocks, shape.nodes, strict=True)
        ]
        peers: list[MemoryPeer] = []
        peers += (_KnownPeer(rank, peers, self.record) for rank in range(len(scenario.nodes)))
        self.sessions: list[RecordedSession] = []
        self.engines: list[CachedEngine] = []
        seen: set[int] = set()
        for rank, node in enumerate(scenario.nodes):
            failing = [
                at
                for at, key in zip(offsets.offset.tolist(), offsets.target.tolist(), strict=True)
                if shape.fails(rank, key)
            ]
            slab = RamTier.attach(slabs[node].address, bytes(16)) if node in seen else slabs[node]
            seen.add(node)
            disk = None
            if scenario.disk_blocks[node]:
                disk = DiskTier.open(
                    str(folder / f"tier{node}"),
                    scenario.disk_blocks[node],
                    shape.nodes[node].disk.room_bytes,
                    bytes(16),
                )
            engine = CachedEngine(
                source,
                SlowMemoryEngine(content, failing, scenario.seed * 100 + rank),
                shape.placement,
                scenario.nodes,
                rank,
                slab,
                disk,
                peers[rank] if len(slabs) > 1 else None,
                session_class=self._make_session,
            )
            self.engines.append(engine)

    def _make_session(self, *arguments: Any, **options: Any) -> RecordedSession:
        session = RecordedSession(self.record, *arguments, **options)
        session.disk_buffer_bytes = self._scenario.disk_buffer_bytes
        session.answer_bytes = self._scenario.answer_bytes
        self.sessions.append(session)
        return session

    def run(self, in_lockstep: bool) -> None:
        """Read all steps of all ranks, and check their bytes.

        in_lockstep:  a step begins when everything before it has ended, on all ranks.
        """
        ahead = 1 if in_lockstep else self._scenario.ahead
        waiting = [deque(steps) for steps in self._shape.work]
        begun: list[dict[int, tuple[Requests, list[Buffer]]]] = [{} for _ in waiting]
        until_s = time.monotonic() + DEADLINE_S
        while any(waiting) or any(begun):
            assert time.monotonic() < until_s
            for engine, steps, own in zip(self.engines, waiting, begun, strict=True):
                while steps and len(own) < ahead:
                    requests, sizes = steps.popleft()
                    buffers = [np.full(size, 0xEE, np.uint8) for size in sizes]
                    own[engine.submit(requests, buffers)] = requests, buffers
                for ticket, failures in engine.poll(10**10 if in_lockstep and own else 1_000_000):
                    self._check_bytes(*own.pop(ticket), {failure.extent for failure in failures})
                while in_lockstep and not self._is_idle():
                    assert time.monotonic() < until_s

    def _is_idle(self) -> bool:
        with self.record.turn:
            return all(session.is_idle and not session.actions for session in self.sessions)

    def _check_bytes(self, requests: Requests, buffers: list[Buffer], failed: set[int]) -> None:
        columns = (column.tolist() for column in requests[1:5])
        for row, (key, length, buffer, target) in enumerate(zip(*columns, strict=True)):
            found = buffers[buffer][target : target + length]
            assert row in failed or (found == self._shape.data.bytes_of(key)).all()

    def close(self) -> None:
        self.record.close()
        for engine in self.engines:
            engine.close()


def run_live(scenario: VirtualScenario, folder: Path) -> Record:
    """Run a scenario with threads; return its record."""
    folder.mkdir()
    cluster = LiveCluster(scenario, folder)
    try:
        cluster.run(in_lockstep=any(scenario.disk_blocks))
    finally:
        cluster.close()
    return cluster.record


def draw_live_scenario(seed: int) -> VirtualScenario:
    """Draw a scenario for both: without losses and replicas; storage fails some keys of every
    third. Where there are disk tiers each rank has a node of its own."""
    scenario = draw_scenario(seed)
    nodes = tuple(sorted(set(scenario.nodes))) if any(scenario.disk_blocks) else scenario.nodes
    errors = (Fault(FaultKind.ERRORS, rank, 0, 1 << 62, seed) for rank in range(len(nodes)))
    return replace(
        scenario,
        nodes=nodes,
        replicas=0,
        lost=0.0,
        damaged=0.0,
        refused=0.0,
        faults=() if seed % 3 else tuple(errors),
        storage_ns=100_000,
        network_ns=0,  # messages between two ranks keep their order
        disk_ns=100_000,
    )


# -- the virtual cluster that follows ------------------------------------------------------------


class _FollowingSession(RecordedSession):
    """A session of the virtual cluster: it is told the live run's bytes of answers on their way."""

    live: list[Entry]

    def begin_turn(self) -> None:
        pass

    def note_event(self, name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        if name == "take_answer":
            twin = self.live[len(self._record.entries)]
            if twin.name == name:
                arguments = (*arguments[:2], twin.values[2])
        return super().note_event(name, arguments)


class _FollowingRank(VirtualRank):
    """A rank that takes no turn by itself."""

    def _take_turn_in(self, delay_ns: int) -> None:
        pass

    def check_answers(self) -> None:
        """Check nothing: the session knows the answers on their way of its twin, not the own."""

    def follow(self, entry: Entry, asker: int | None) -> None:
        """Take the event of an entry once the modelled parts have brought it."""
        if entry.name == "advance":
            self.session.advance(*entry.values)
            self.perform()
            return
        while not (found := [event for event in self._inbox if self._is_twin(event, entry, asker)]):
            assert self._queue.step(), f"{entry} does not happen in the virtual cluster"
        self._inbox.remove(found[0])
        self.take(found[0])

    def _is_twin(self, event: RankEvent, entry: Entry, asker: int | None) -> bool:
        if event.name != entry.name:
            return False
        if event.name != "ask":
            return bool(event.number == entry.values[0])
        fetch, _ = self._cluster.network.requests[event.number]
        return (fetch.asker, *flatten((fetch.keys, fetch.lengths))) == (asker, *entry.values[1:])


def follow(scenario: VirtualScenario, live: Record) -> list[Entry]:
    """Run the virtual cluster in the order of a live run; return its entries, up to the first that
    differ."""
    record = Record(len(scenario.nodes))

    def make_session(*arguments: Any, **options: Any) -> RecordedSession:
        session = _FollowingSession(record, *arguments, **options)
        session.live = live.entries
        return session

    cluster = VirtualCluster(scenario, session_class=make_session, rank_class=_FollowingRank)
    cluster.begin()
    done = 0
    while done < len(live.entries):
        entry = live.entries[done]
        life = cluster.ranks[entry.rank]
        assert isinstance(life, _FollowingRank)
        asker = live.askers[entry.rank][entry.values[0]] if entry.name == "ask" else None
        life.follow(entry, asker)
        if record.entries[done:] != live.entries[done : len(record.entries)]:
            break
        done = len(record.entries)
    else:
        for life in cluster.ranks:
            life.check_end()
    return record.entries
