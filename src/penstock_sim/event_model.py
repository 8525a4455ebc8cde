"""The model of events: the shipped state machines, event by event, on a described cluster.

Each node has a rank that drives `plan.Session` and `plan.CacheSession` (`event_rank`), over devices
of which bytes flow as in the corrected model. What is read when, by whom and how
often is not modelled: the shipped code decides it. It costs time for each step and each pair of
nodes, so it is for clusters of up to `limits.simulated_ranks_max` ranks; the corrected model takes
any.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from penstock import limits
from penstock.errors import UsageError
from penstock.extent import Extents, Int
from penstock.index import Field, Layout, RowTable
from penstock.plan import Group, Ids, Keys, Locality, SampleKeys, Session

from . import contention, policies
from .event_queue import EventQueue
from .event_rank import Device, EventRank, NodeDevices, SharedStorage
from .fluid_model import check_staging, stage_mb_s
from .scenario import SOURCES, EpochSampling, Result, Scenario
from .workload import BYTES, SimulatedWorkload

SHIPPED = ("penstock", "penstock_local")
"""Policies that are the library's own."""

_ns = 1e9  # of a second
_bytes_per_ns = BYTES / _ns  # of a rate of 1 MB/s


def simulate(scenario: Scenario, policy: str) -> Result:
    """Simulate one policy by the model of events. Raises UsageError if it cannot run."""
    if policy not in SHIPPED:
        raise UsageError(
            f"policy {policy!r} is not the library's own: the events model runs the shipped code; "
            f"use model='corrected', or one of {', '.join(SHIPPED)}"
        )
    if not isinstance(scenario.sampling, EpochSampling):
        raise UsageError(
            f"{scenario.name} draws batches by importance, which has no order to plan by: leave "
            "sampling out, or use model='corrected'"
        )
    nodes = scenario.training.nodes
    if nodes > limits.simulated_ranks_max:
        raise UsageError(
            f"{scenario.name} has {nodes} nodes, above limits.simulated_ranks_max = "
            f"{limits.simulated_ranks_max}: use fewer nodes, or model='corrected'"
        )
    return EventCluster(scenario, policy).run()


class _SampleSource:
    """Samples of one field, addressed by key, as `penstock.cache.key_index.Addressed` has them."""

    def __init__(self, sizes: Int) -> None:
        self.fields = (Field("sample", np.dtype(np.uint8), None),)
        self._rows = RowTable(np.zeros(len(sizes), np.uint32), np.arange(len(sizes)), sizes)
        self.layouts: tuple[Layout, ...] = (self._rows,)
        self.row_bytes = (self._rows.row_bytes,)
        self.mean_bytes = self.item_bytes = float(sizes.mean())
        self.keys = SampleKeys(len(sizes))

    def labels(self, samples: Ids) -> None:
        return None

    def units(self, units: Ids, field: int) -> tuple[Extents, None]:
        return self._rows.extents(units.view(np.int64)), None

    def key_lengths(self, keys: Keys) -> Int:
        return self._rows.lengths(keys.view(np.int64))


class EventCluster:
    """The ranks of a scenario, what they share, and how far they are.

    moved:       bytes of the epoch, by source.
    tier_bytes:  int64 (tiers,), bytes read from tiers in the epoch, for the own node and others.
    """

    def __init__(self, scenario: Scenario, policy: str) -> None:
        training, system = scenario.training, scenario.system
        workload = SimulatedWorkload(scenario)
        self._scenario, self._policy, self._order = scenario, policy, workload.order
        self.queue = EventQueue()
        self.source = _SampleSource(workload.sizes)
        self.placement, cache_blocks = policies.place_cache_blocks(workload)
        self.tier_ends = np.cumsum(cache_blocks)
        self._steps = workload.steps_of(
            Locality(self.placement, tuple(range(training.nodes)))
            if policy == "penstock_local"
            else None
        )
        self.window_bytes = int(system.staging.capacity_mb * BYTES)
        self._spare = contention.find_remaining(
            scenario, peers=self.placement.kept > 0, storage=True
        )
        shares = system.storage.shares(training.nodes)
        self.storage = SharedStorage(self.queue, shares * self._spare.storage * _bytes_per_ns)
        self.moved: Counter[str] = Counter()
        self.tier_bytes = np.zeros(len(system.tiers), np.int64)
        self.ranks = [EventRank(self, rank) for rank in range(training.nodes)]
        self._epoch = self._step = 0
        self._taken: dict[EventRank, int] = {}  # bytes of the step that each rank has taken
        self._processed = self._longest_ns = 0

    def make_devices(self) -> NodeDevices:
        """Make the devices of a node."""
        system = self._scenario.system
        link = system.network_mb_s * self._spare.peers * _bytes_per_ns
        return NodeDevices(
            tuple(Device(tier.rate_mb_s * _bytes_per_ns) for tier in system.tiers),
            Device(link),
            Device(link),
            Device(stage_mb_s(self._scenario) * _bytes_per_ns),
        )

    def check_staging(self, group: Group) -> None:
        """Raise UsageError if staging memory does not hold these steps."""
        check_staging(self._scenario, group.bytes)

    def find_tiers(self, slots: Int) -> Int:
        """Find the tier that keeps each slot of a node."""
        return policies.find_tiers(slots, self.tier_ends)

    def run(self) -> Result:
        """Run all epochs."""
        scenario = self._scenario
        epochs = scenario.training.epochs
        ends = np.empty(epochs, np.int64)
        moved = np.empty((epochs, len(SOURCES)))
        tiers_mb, computing = [], np.zeros(epochs, np.int64)
        for epoch in range(epochs):
            self.moved.clear()
            self.tier_bytes[:] = 0
            computing[epoch] = self._run_epoch(epoch)
            ends[epoch] = self.queue.now_ns
            moved[epoch] = [self.moved[source] / BYTES for source in SOURCES]
            tiers_mb.append((self.tier_bytes / BYTES).tolist())
        took = np.diff(ends, prepend=0)
        notes = {"tiers_mb": tiers_mb, "events": self.queue.made}
        if self._spare != contention.ALL:
            notes["network"] = self._spare._asdict()
        stall = (took - computing) / _ns
        return Result(
            scenario.name, self._policy, "events", float(ends[-1]) / _ns, 0.0, took / _ns, stall,
            moved, notes,
        )  # fmt: skip

    def _run_epoch(self, epoch: int) -> int:
        """Run an epoch; return the time that the slowest nodes of its steps compute."""
        self._step, self._computing_ns = 0, 0
        order = self._order(epoch)
        for rank in self.ranks:
            rank.begin_epoch(
                Session(
                    self.source, order, self._steps, rank.rank, readahead_bytes=self.window_bytes
                )
            )
        while self.queue.step():
            pass
        assert self._step == len(self._steps), "ranks wait, and nothing happens any more"
        return self._computing_ns

    def begin_step(self, rank: EventRank) -> None:
        """Have a rank process the step that is due, if the rank has it."""
        if rank in self._taken or (size_bytes := rank.take_step(self._step)) is None:
            return
        self._taken[rank] = size_bytes
        training = self._scenario.training
        computes_ns = math.ceil(size_bytes / (training.compute_mb_s * _bytes_per_ns))
        takes_ns = computes_ns + round(training.step_overhead_s * _ns)
        self._longest_ns = max(self._longest_ns, takes_ns)
        self.queue.add_in(takes_ns, self._end_step)

    def _end_step(self) -> None:
        """End a step of one rank; the next begins when all are done."""
        self._processed += 1
        if self._processed < len(self.ranks):
            return
        self._step += 1
        self._computing_ns += self._longest_ns
        self._processed = self._longest_ns = 0
        taken, self._taken = self._taken, {}
        for rank, size_bytes in taken.items():
            rank.free(size_bytes)
        for rank in self.ranks:
            self.begin_step(rank)
