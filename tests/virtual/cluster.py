"""The virtual cluster: ranks in one thread and in virtual time, over modelled parts.

A run is a function of its scenario: no clock, no thread, no file, and one source of random numbers.
`run_scenario` ends when nothing more happens. It raises ScenarioError if an oracle finds a fault of
the session: `VirtualRank` looks at every event and at the end, the modelled parts where they are
used, and this module when all is over.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock import limits
from penstock.errors import PenstockError
from penstock.extent import Int, Requests
from penstock.plan import CacheSession, Keys, Placement
from penstock.plan.cache_actions import NodeTier
from penstock.plan.cache_blocks import BlockLayout
from penstock_sim.event_queue import EventQueue
from tests.virtual.network import VirtualNetwork
from tests.virtual.node import (
    DISK_ALIGNMENT,
    SLAB_ALIGNMENT,
    Buffer,
    ScenarioError,
    VirtualData,
    VirtualDisk,
    VirtualNode,
    VirtualReplicas,
    VirtualSlab,
    align,
    pad_bytes,
    require,
)
from tests.virtual.rank import VirtualRank
from tests.virtual.scenario import Fault, FaultKind, VirtualScenario

_events_max = 200_000
"""Most events of a run; more are a loop that does not end."""
_delaying = (FaultKind.STOP, FaultKind.SLOW, FaultKind.STALL)
_step_ns = int(1e9 * (limits.busy_cache_block_s + limits.peer_timeout_s + 3))
"""Longest time of a step in which claims of other ranks, then a peer are waited for in vain."""
_wrong_keys = 6
"""Keys of a request that asks for what is not there."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """Counts of a run: its virtual time, events, keys that were handed over, and faults."""

    virtual_ns: int
    events: int
    delivered_keys: int
    failures: int


@dataclass(frozen=True, slots=True)
class _PlacementTable(Placement):
    """A placement that looks up what it has worked out once, of all cache blocks. IndexError for
    others."""

    _slots: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        Placement.__post_init__(self)
        slots = Placement.place(self, np.arange(self.cache_blocks, dtype=np.uint64))
        object.__setattr__(self, "_slots", slots)

    def cache_blocks_at(self, samples: npt.ArrayLike) -> Keys:
        return np.asarray(samples, np.uint64) // np.uint64(self.cache_block)

    def place(self, cache_blocks: npt.ArrayLike) -> Any:
        owner, slot = self._slots
        return self._slots._replace(owner=owner[cache_blocks], slot=slot[cache_blocks])


class VirtualCluster:
    """The parts of a run, and what all ranks share."""

    def __init__(
        self,
        scenario: VirtualScenario,
        trace: Callable[[str], None] | None = None,
        session_class: Callable[..., Any] = CacheSession,
        rank_class: type[VirtualRank] = VirtualRank,
    ) -> None:
        self.scenario, self.session_class = scenario, session_class
        self.queue = EventQueue()
        self.draw = random.Random(f"run {scenario.seed}")
        self.trace = None if trace is None else self._stamp(trace)
        self.data = VirtualData(
            scenario.seed, scenario.samples, scenario.fields, scenario.length_max
        )
        self.placement = _PlacementTable(
            scenario.samples,
            scenario.ram_blocks,
            scenario.disk_blocks,
            tuple(scenario.nodes.count(node) for node in sorted(set(scenario.nodes))),
            seed=scenario.seed,
            cache_block=scenario.cache_block,
        )
        self.rank_class = rank_class
        self.ranks: list[VirtualRank] = []
        self.network = VirtualNetwork(scenario, self.queue, self.draw, self.ranks)
        self.nodes = [self._make_node(node) for node in range(self.placement.nodes)]
        self._map_blocks()
        self.work = _list_work(scenario, self.data)
        self.step_bytes_max = self._measure_steps()
        self.delivered = self.direct_keys = self.failures = 0
        self.living: set[object] = set()
        self._lied: set[int] = set()  # keys that storage has answered with other bytes
        self._loads: Counter[tuple[int, NodeTier, int]] = Counter()
        self._clock_ahead_ns = [0] * len(scenario.nodes)
        self._faults: dict[tuple[FaultKind, int], list[Fault]] = {}
        for fault in scenario.faults:
            self._faults.setdefault((fault.kind, fault.rank), []).append(fault)
        self._kills = {
            rank: sorted(self._faults.get((FaultKind.KILL, rank), ()), key=lambda fault: fault.at)
            for rank in range(len(scenario.nodes))
        }

    def run(self) -> RunResult:
        """Run until nothing more happens; raise ScenarioError for what is wrong."""
        self.begin()
        while self.queue.step():
            require(self.queue.made < _events_max, "the run does not end")
        for life in self.ranks:
            if life.is_alive:
                life.check_end()
        if self.scenario.is_calm:
            self._check_storage()
        return RunResult(self.queue.now_ns, self.queue.made, self.delivered, self.failures)

    def begin(self) -> None:
        """Start all ranks, which ask for their first steps."""
        for rank in range(len(self.scenario.nodes)):
            self.ranks.append(self._start(rank, 0))
        for fault in self.scenario.faults:
            self._plan_fault(fault)
        for life in self.ranks:
            life.begin_steps()

    # -- ranks ---------------------------------------------------------------------------------

    def _start(self, rank: int, first_step: int) -> VirtualRank:
        kill_at = self._kills[rank].pop(0).at + 1 if self._kills[rank] else -1
        life = self.rank_class(self, rank, first_step, kill_at)
        self.living.add(life)
        return life

    def end_life(self, life: VirtualRank) -> None:
        """End a rank that is killed; another life may follow."""
        self.failures += 1
        life.is_alive = False
        self.living.discard(life)
        if self.trace is not None:
            self.trace(f"rank {life.rank}: is killed")
        self.network.lose(life)
        node = self.scenario.nodes[life.rank]
        if not any(self.scenario.nodes[each.rank] == node for each in self.ranks if each.is_alive):
            fresh = self._make_node(node)  # memory and claims end with the last process
            self.nodes[node].slab, self.nodes[node].replicas = fresh.slab, fresh.replicas
            self.nodes[node].disk.claims = fresh.disk.claims
        fault = next(
            each for each in self._faults[FaultKind.KILL, life.rank] if each.at + 1 == life.kill_at
        )
        if fault.length_ns:
            self.queue.add_in(fault.length_ns, lambda: self._restart(life))

    def _restart(self, life: VirtualRank) -> None:
        if self.trace is not None:
            self.trace(f"rank {life.rank}: begins anew")
        self.ranks[life.rank] = self._start(life.rank, life.first_missing)
        self.ranks[life.rank].begin_steps()

    def step_ns_max(self, rank: int) -> int:
        """Return the longest time that a step of a rank may take."""
        scenario = self.scenario
        delays_ns = scenario.storage_ns + scenario.disk_ns + scenario.network_ns
        own_ns = sum(
            fault.length_ns + fault.extra * (fault.kind is FaultKind.SLOW)
            for fault in scenario.faults
            if fault.rank == rank and fault.kind in _delaying
        )
        return _step_ns + scenario.ahead * 40 * delays_ns + own_ns

    def clock_ns(self, rank: int) -> int:
        """Return the time on a rank's clock."""
        return self.queue.now_ns + self._clock_ahead_ns[rank]

    # -- faults --------------------------------------------------------------------------------

    def _plan_fault(self, fault: Fault) -> None:
        node = self.nodes[self.scenario.nodes[fault.rank]]

        def begin() -> None:
            match fault.kind:
                case FaultKind.CUT:
                    link = (fault.rank, fault.extra)
                    self.network.cut_until_ns[link] = self.queue.now_ns + fault.length_ns
                case FaultKind.JUMP:
                    self._clock_ahead_ns[fault.rank] += fault.length_ns
                case FaultKind.FULL:
                    node.disk.is_full = True
                case FaultKind.BROKEN:
                    node.disk.is_broken = True
                case FaultKind.DAMAGE:
                    node.disk.damage(self.draw)
                case FaultKind.TEAR:
                    node.disk.tear(self.draw)
                case FaultKind.BUDGET:
                    life = self.ranks[fault.rank]
                    life.post("adopt", fault.extra, lambda: life.adopt(fault.extra))
                case FaultKind.WRONG:
                    self._ask_wrongly(fault.rank)
                case _:  # what it changes looks at the time
                    pass
            self.failures += 1
            if self.trace is not None:
                self.trace(f"fault: {fault}")

        if fault.kind is not FaultKind.KILL:
            self.queue.add(fault.at, begin)

    def _ask_wrongly(self, rank: int) -> None:
        """Ask a rank for random keys of random lengths; check that it gives its own alone."""
        count = self.scenario.samples * self.scenario.fields
        keys = self.draw.sample(range(2 * count), min(_wrong_keys, 2 * count))
        right = [int(self.data.lengths[key]) if key < count else 3 for key in keys]
        lengths = [length + (self.draw.random() < 0.3) for length in right]
        sizes = np.array(lengths, np.int64)
        ends = np.cumsum(sizes)
        buffer = np.full(int(ends[-1]), 0xEE, np.uint8)
        targets = ends - sizes

        def ended(failures: Int, reason: str | None) -> None:
            for number in np.delete(np.arange(len(keys)), failures).tolist():
                key = keys[number]
                is_kept = key < count and self.node_of(key) == self.scenario.nodes[rank]
                is_right = lengths[number] == right[number]
                require(is_kept and is_right, f"rank {rank} gives key {key}, which is not its own")
                found = buffer[targets[number] : ends[number]].tobytes()
                self.check_bytes(key, found)

        numbers = np.array(keys, np.uint64)
        places = np.split(buffer, ends[:-1])
        self.network.submit(rank, rank, numbers, sizes, places, ended)

    def node_of(self, key: int) -> int:
        """Return the node that keeps a key, -1 for none."""
        return self._block_nodes[key // self.scenario.fields // self.scenario.cache_block]

    def _active(self, kind: FaultKind, rank: int) -> Sequence[Fault]:
        faults = self._faults.get((kind, rank))
        if faults is None:
            return ()
        now_ns = self.queue.now_ns
        return [fault for fault in faults if fault.at <= now_ns < fault.at + fault.length_ns]

    def stopped_until_ns(self, rank: int) -> int:
        """Return the time until which a rank is stopped; 0 if it is not."""
        faults = self._active(FaultKind.STOP, rank)
        return max(fault.at + fault.length_ns for fault in faults) if faults else 0

    def slow_ns(self, rank: int) -> int:
        """Return how much longer a turn of a rank takes."""
        faults = self._active(FaultKind.SLOW, rank)
        return sum(fault.extra for fault in faults) if faults else 0

    def refuses(self, rank: int, kind: int) -> bool:
        """Tell whether the system refuses this kind of action of a rank now."""
        faults = self._active(FaultKind.REFUSE, rank)
        return bool(faults) and any(fault.extra % 8 == kind for fault in faults)

    def fails(self, rank: int, key: int) -> bool:
        """Tell whether storage fails reads of a key by a rank now; of nothing, it does not."""
        faults = self._active(FaultKind.ERRORS, rank)
        if not faults or not self.data.lengths_list[key]:
            return False
        return any((key * 40503 + fault.extra) % 5 == 0 for fault in faults)

    # -- storage and disks ---------------------------------------------------------------------

    def read_key(self, rank: int, key: int) -> Buffer:
        """Return the bytes of a key that storage gives a rank now."""
        lies = self._active(FaultKind.LIE, rank)
        if lies and any((key * 40503 + fault.extra) % 3 == 0 for fault in lies):
            self._lied.add(key)
            return self.data.damaged_bytes_of(key)
        return self.data.bytes_of(key)

    def check_bytes(self, key: int, found: bytes, where: str = "") -> None:
        """Check the bytes of a key: they are those of the data. Those of storage that lied fail the
        container's checksum, as a whole: they are never mixed with others, nor given for another
        key."""
        if found == self.data.bytes_of(key).tobytes():
            return
        is_lie = key in self._lied and found == self.data.damaged_bytes_of(key).tobytes()
        require(is_lie, f"{where}the bytes of key {key} are wrong")
        require(not self.data.is_whole(key, np.frombuffer(found, np.uint8)), "a lie is not noticed")

    def read_storage(
        self, life: VirtualRank, size_bytes: int, event: tuple[str, int, Callable[[], None]]
    ) -> None:
        """Read so many bytes; the rank is told the event when they are there."""
        delay_ns = self.scenario.storage_ns * (0.5 + self.draw.expovariate(1)) + 10 * size_bytes
        stalls = self._active(FaultKind.STALL, life.rank)
        stalled_ns = max((each.at + each.length_ns for each in stalls), default=0)
        at_ns = max(self.queue.now_ns, stalled_ns) + int(delay_ns)
        self.queue.add(at_ns, lambda: life.post(*event))

    def use_disk(self, life: VirtualRank, event: tuple[str, int, Callable[[], None]]) -> None:
        """Read or write the node's disk; the rank is told the event afterwards."""
        delay_ns = self.scenario.disk_ns * (0.5 + self.draw.expovariate(1))
        self.queue.add_in(delay_ns, lambda: life.post(*event))

    def count_load(self, rank: int, tier: NodeTier, slots: Int) -> None:
        """Count cache blocks that a rank reads from storage."""
        node = self.scenario.nodes[rank]
        self._loads.update((node, tier, slot) for slot in slots.tolist())

    def keys_of(self, cache_block: int) -> range:
        """Return the keys of a cache block."""
        first, end = self.placement.span(cache_block)
        return range(first * self.scenario.fields, end * self.scenario.fields)

    def _check_storage(self) -> None:
        """While nothing fails, each kept cache block is read once, and the others as often as they
        are used."""
        self._check_loads()
        keys = range(self.scenario.samples * self.scenario.fields)
        unkept = sum(self.node_of(key) < 0 for key in keys)
        expected = unkept * self.scenario.epochs
        require(self.direct_keys == expected, f"{self.direct_keys} keys read where {expected} stay")

    def _check_loads(self) -> None:
        """While nothing fails, each kept cache block is read once."""
        twice = [what for what, count in self._loads.items() if count > 1]
        require(not twice, f"cache blocks are read from storage again: {twice}")

    # -- shape ---------------------------------------------------------------------------------

    def _make_node(self, node: int) -> VirtualNode:
        scenario = self.scenario
        block_bytes = scenario.length_max * scenario.fields * scenario.cache_block
        ram, disk = scenario.ram_blocks[node], scenario.disk_blocks[node]
        return VirtualNode(
            VirtualSlab(ram, int(scenario.room * ram * align(block_bytes, SLAB_ALIGNMENT))),
            VirtualDisk(disk, int(scenario.room * disk * align(block_bytes, DISK_ALIGNMENT))),
            VirtualReplicas(scenario.replicas),
        )

    def _map_blocks(self) -> None:
        """Look up of all cache blocks which node keeps them, and what memory those on disks take;
        of all keys where they begin in their cache block."""
        scenario, placement = self.scenario, self.placement
        layout = BlockLayout(self.data, placement.cache_block)
        keys = np.arange(scenario.samples * scenario.fields, dtype=np.uint64)
        block = keys // np.uint64(scenario.fields * scenario.cache_block)
        self.inside: list[int] = layout.find_offsets(keys, block).tolist()
        blocks = np.unique(block)
        owner, slot = placement.place(blocks)
        on_disk = (owner >= 0) & (slot >= np.array(scenario.ram_blocks)[owner])
        self._block_nodes: list[int] = owner.tolist()
        self._disk_bytes = {
            number: pad_bytes(size)
            for number, size in enumerate(layout.measure(blocks).tolist())
            if on_disk[number]
        }

    def _measure_steps(self) -> int:
        """Most memory that one step or request may take for its cache blocks on a disk."""
        scenario = self.scenario
        largest_bytes = pad_bytes(scenario.length_max * scenario.fields * scenario.cache_block)
        is_asked_wrongly = any(fault.kind is FaultKind.WRONG for fault in scenario.faults)
        most_bytes = (_wrong_keys + 1) * largest_bytes if is_asked_wrongly else 0
        keys_each = scenario.fields * scenario.cache_block
        for steps in self.work:
            for step, _ in steps:
                on_nodes = [largest_bytes] * self.placement.nodes
                for block in {key // keys_each for key in step.offset.tolist()}:
                    if block in self._disk_bytes:
                        on_nodes[self._block_nodes[block]] += self._disk_bytes[block]
                most_bytes = max(most_bytes, *on_nodes)
        return most_bytes

    def _stamp(self, trace: Callable[[str], None]) -> Callable[[str], None]:
        return lambda text: trace(f"{self.queue.now_ns / 1e6:14.3f} ms  {text}")


def _list_work(
    scenario: VirtualScenario, data: VirtualData
) -> list[list[tuple[Requests, list[int]]]]:
    """List the steps of each rank, with the sizes of their buffers: each epoch deals a permutation
    of the samples to the ranks."""
    world = len(scenario.nodes)
    work: list[list[tuple[Requests, list[int]]]] = [[] for _ in range(world)]
    for epoch in range(scenario.epochs):
        order = np.random.default_rng((scenario.seed, epoch)).permutation(scenario.samples).tolist()
        for rank, steps in enumerate(work):
            own = order[rank::world]
            for first in range(0, len(own), scenario.batch):
                steps.append(_make_step(scenario, data, own[first : first + scenario.batch]))
    return work


def _make_step(
    scenario: VirtualScenario, data: VirtualData, samples: list[int]
) -> tuple[Requests, list[int]]:
    """Make the requests of a batch, and list the sizes of its buffers, which take turns."""
    fields = range(scenario.fields)
    keys = [sample * scenario.fields + number for sample in samples for number in fields]
    lengths = data.lengths[keys]
    sizes, buffers, targets = [0] * scenario.buffers, [], []
    for number, length in enumerate(lengths.tolist()):
        buffer = number % scenario.buffers
        buffers.append(buffer)
        targets.append(sizes[buffer])
        sizes[buffer] += length
    requests = Requests(
        np.zeros(len(keys), np.uint32),
        np.array(keys, np.int64),
        lengths,
        np.array(buffers, np.uint32),
        np.array(targets, np.int64),
        np.arange(len(keys) + 1),
    )
    return requests, sizes


def run_scenario(
    scenario: VirtualScenario,
    trace: Callable[[str], None] | None = None,
    session_class: type[Any] = CacheSession,
) -> RunResult:
    """Run a scenario; raise ScenarioError if the session does something wrong."""
    try:
        return VirtualCluster(scenario, trace, session_class).run()
    except ScenarioError:
        raise
    except (PenstockError, AssertionError, LookupError, ValueError, TypeError) as error:
        raise ScenarioError(f"{type(error).__name__}: {error}") from error
