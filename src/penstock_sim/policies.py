"""Policies: which bytes each node takes from where, step by step. Pure.

A policy decides which node keeps which samples (`Caches`), which node processes them and which are
read ahead. One function makes flows of bytes of these decisions (`trace_flows`) for all policies
except NoPFS, whose nodes each keep samples of their own choice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.errors import UsageError
from penstock.plan import Placement, assign_nodes, count_fitting

from .closed_forms import Floats
from .scenario import Scenario, TierSpec
from .workload import BYTES, Ints, Nodes, SimulatedWorkload, Window


@dataclass(frozen=True)
class NodeTraffic:
    """Bytes by step and node, int64 (steps, nodes) each; tiers (tiers, steps, nodes).

    need:      bytes that a node processes.
    ring:      bytes that it reads from storage when the step is staged.
    demand:    bytes that it reads from storage only when the step begins.
    ahead:     bytes that it reads from storage to keep, by the step that first needs them.
    tiers:     bytes read from each of its tiers, for itself and for others.
    sent, received:  bytes over its link.
    own:       bytes that all nodes process from tiers of their own, int64 (steps,).
    setup:     True if the first row happens before training, and nothing overtakes it.
    staged:    True if steps are staged ahead; otherwise a step is read when the one before is done,
               by one thread, and decoded when it is read.
    known:     True if steps are known beforehand; otherwise each is read when it begins.
    by_epoch:  True if nothing of an epoch is read before the one before is over, as by penstock's
               loader. Without a setup.
    """

    need: Ints
    ring: Ints
    demand: Ints
    ahead: Ints
    tiers: Ints
    sent: Ints
    received: Ints
    own: Ints
    setup: bool = False
    staged: bool = True
    known: bool = True
    by_epoch: bool = False

    @classmethod
    def empty(cls, scenario: Scenario, **how: bool) -> NodeTraffic:
        """Make traffic of no bytes, with rows for all steps."""
        steps = scenario.steps * scenario.training.epochs + how.get("setup", False)
        shape = (steps, scenario.training.nodes)
        need, ring, demand, ahead, sent, received = np.zeros((6, *shape), np.int64)
        tiers = np.zeros((len(scenario.system.tiers), *shape), np.int64)
        local = np.zeros(steps, np.int64)
        return cls(need, ring, demand, ahead, tiers, sent, received, local, **how)


@dataclass(frozen=True)
class Caches:
    """The owner of each sample, int32 (samples,), -1 for none, and its tier, int8 (samples,).

    cache_block:  number of neighbouring samples that are read together, by one owner.
    preloaded:    True if caches are filled before the run; otherwise a cache block is read when one
                  of its samples is first needed.
    """

    owner: Nodes
    tier: npt.NDArray[np.int8]
    cache_block: int = 1
    preloaded: bool = False

    @classmethod
    def none(cls, samples: int) -> Caches:
        return cls(np.full(samples, -1, np.int32), np.zeros(samples, np.int8))


Replace = Callable[[Window, Nodes], Ints]
"""Function of a policy that changes the order: the samples read instead of the window's, given the
node that processes each."""


def _add_sizes(
    into: Ints, first: int, node: Nodes, size: Ints, where: npt.NDArray[np.bool_] | None = None
) -> None:
    """Add sizes of samples, all or those in `where`, to cells of (step, node).

    into:        int64 (steps, nodes), of which the window begins at the row `first`.
    node, size:  int64 (steps of the window, global batch).
    """
    steps, nodes = len(size), into.shape[1]
    cells = np.arange(steps)[:, None] * nodes + node
    if where is not None:
        cells, size = cells[where], size[where]
    sums = np.bincount(cells.reshape(-1), size.reshape(-1), steps * nodes)
    into[first : first + steps] += sums.astype(np.int64).reshape(steps, nodes)


def trace_flows(
    workload: SimulatedWorkload,
    caches: Caches,
    *,
    local: bool = False,
    staged: bool = True,
    by_epoch: bool = False,
    ahead: bool = True,
    replace: Replace | None = None,
) -> NodeTraffic:
    """Trace the flows of a policy in which a sample has one owner at most.

    The node that processes a sample takes it from its own tiers, or asks its owner, or reads
    storage if there is none. The owner reads a sample that it has not got yet, once, with its whole
    cache block, and keeps it. A disk gives whole cache blocks again, memory single samples.

    local:    True if samples are processed on the nodes that keep them, as far as capacity allows;
              else strided.
    ahead:    True if samples without an owner are read when the step is staged, not when it begins.
    """
    scenario = workload.scenario
    nodes = scenario.training.nodes
    setup = caches.preloaded
    traffic = NodeTraffic.empty(scenario, setup=setup, staged=staged, by_epoch=by_epoch)
    cache_blocks = _FilledBlocks(workload, caches)
    if setup:
        kept = caches.owner >= 0
        traffic.ring[0] = np.bincount(caches.owner[kept], workload.sizes[kept], nodes)
    capacities = np.full(nodes, scenario.batch, np.int64)
    for window in workload.windows():
        node = np.broadcast_to(workload.strided, window.samples.shape)
        samples = window.samples if replace is None else replace(window, node)
        owner = caches.owner[samples]
        if local:
            node = assign_nodes(owner, capacities)
        first, size = window.step + setup, workload.sizes[samples]
        kept = owner >= 0
        new = cache_blocks.read(samples, kept)
        _add_sizes(traffic.need, first, node, size)
        _add_sizes(traffic.ring if ahead else traffic.demand, first, node, size, ~kept)
        if not kept.any():
            continue
        away = kept & (owner != node)
        _add_sizes(traffic.ring, first, owner, new, new > 0)
        _add_sizes(traffic.sent, first, owner, size, away)
        _add_sizes(traffic.received, first, node, size, away)
        had = kept & (new == 0)
        traffic.own[first : first + len(size)] = np.where(had & ~away, size, 0).sum(axis=1)
        tier_of = caches.tier[samples]
        if caches.cache_block > 1:
            blocks = cache_blocks.read_again(samples, node, new, had & (tier_of > 0))
            size = np.where(tier_of > 0, blocks, size)
        for number, tier in enumerate(traffic.tiers):
            _add_sizes(tier, first, owner, size, had & (tier_of == number))
    return traffic


class _FilledBlocks:
    """Record of the cache blocks that caches have been filled with.

    bytes:    int64 (cache blocks,), their sizes.
    present:  bool (cache blocks,), True for those that have been read.
    """

    def __init__(self, workload: SimulatedWorkload, caches: Caches) -> None:
        self.cache_block = caches.cache_block
        starts = np.arange(0, len(workload.sizes), self.cache_block)
        self.bytes: Ints = np.add.reduceat(workload.sizes, starts)
        self.present = np.full(len(starts), caches.preloaded)
        self._seen = np.empty_like(self.bytes)  # scratch, of each cache block

    def read(self, samples: Ints, kept: npt.NDArray[np.bool_]) -> Ints:
        """Read the cache blocks of these samples that are not in caches yet.

        Returns the bytes that each sample brings in, in the shape of samples: the whole cache block
        for its first sample, nothing for the others.
        """
        read_bytes = np.zeros(samples.shape, np.int64)
        cache_blocks = samples // self.cache_block
        new = np.flatnonzero(kept & ~self.present[cache_blocks])
        wanted = cache_blocks.reshape(-1)[new]
        self._seen[wanted[::-1]] = new[::-1]  # backwards, so that the first one stays
        first = self._seen[wanted] == new
        read_bytes.reshape(-1)[new[first]] = self.bytes[wanted[first]]
        self.present[wanted] = True
        return read_bytes

    def read_again(self, samples: Ints, node: Nodes, new: Ints, had: npt.NDArray[np.bool_]) -> Ints:
        """Read cache blocks that are there, for these of the samples.

        Returns the bytes that each sample takes, in the shape of samples. A disk is read by whole
        cache blocks: once for all samples of a step on one node, and not in the step that brings
        the cache block in.
        """
        read_bytes = np.zeros(samples.shape, np.int64)
        cache_blocks = samples // self.cache_block
        step = np.arange(len(samples))[:, None] * len(self.bytes) + cache_blocks
        rows = np.flatnonzero(had & ~np.isin(step, step[new > 0]))
        by_node = step.reshape(-1)[rows] * (int(node.max()) + 1) + node.reshape(-1)[rows]
        first = rows[np.unique(by_node, return_index=True)[1]]
        read_bytes.reshape(-1)[first] = self.bytes[cache_blocks.reshape(-1)[first]]
        return read_bytes


# -- the policies ------------------------------------------------------------------------------


def naive(workload: SimulatedWorkload) -> NodeTraffic:
    return trace_flows(workload, Caches.none(len(workload.sizes)), staged=False)


def staging(workload: SimulatedWorkload) -> NodeTraffic:
    return trace_flows(workload, Caches.none(len(workload.sizes)))


def place_cache_blocks(workload: SimulatedWorkload) -> tuple[Placement, list[int]]:
    """penstock's own placement, and how many cache blocks each tier takes."""
    scenario, sizes = workload.scenario, workload.sizes
    cache_block = scenario.data.cache_block
    total, mean, deviation = int(sizes.sum()), float(sizes.mean()), float(sizes.std())
    count = -(-len(sizes) // cache_block)
    rooms = [tier.capacity_mb * BYTES for tier in scenario.system.tiers]
    cache_blocks = [
        count
        if room >= total
        else min(count, count_fitting(room, mean * cache_block, deviation * cache_block**0.5))
        for room in rooms
    ]
    nodes = scenario.training.nodes
    placement = Placement(
        len(sizes),
        (cache_blocks[0],) * nodes,
        (sum(cache_blocks[1:]),) * nodes,
        seed=scenario.training.seed,
        cache_block=cache_block,
    )
    block_bytes = np.add.reduceat(sizes, np.arange(0, len(sizes), cache_block))
    return placement.deal_bytes(lambda some: block_bytes[some]), cache_blocks


def _place_samples(workload: SimulatedWorkload) -> Caches:
    placement, cache_blocks = place_cache_blocks(workload)
    owner, slot = placement.place(placement.cache_blocks_at(np.arange(len(workload.sizes))))
    tier = find_tiers(slot, np.cumsum(cache_blocks))
    return Caches(owner, tier.astype(np.int8), placement.cache_block)


def find_tiers(slots: Ints, ends: Ints) -> Ints:
    """Find the tier that keeps each slot of a node, if tiers end at these slots."""
    tiers: Ints = np.minimum(np.searchsorted(ends, slots, side="right"), len(ends) - 1)
    return tiers


def penstock(workload: SimulatedWorkload) -> NodeTraffic:
    return trace_flows(workload, _place_samples(workload), by_epoch=True)


def penstock_local(workload: SimulatedWorkload) -> NodeTraffic:
    return trace_flows(workload, _place_samples(workload), local=True, by_epoch=True)


def _keep_shards(workload: SimulatedWorkload, tier: int) -> Caches:
    """Keep a run of neighbouring ids on each node, as many as fit, up to its share."""
    scenario, samples = workload.scenario, len(workload.sizes)
    nodes, width = scenario.training.nodes, samples // scenario.training.nodes
    owner = np.full(samples, -1, np.int32)
    for node in range(nodes):
        last = samples if node == nodes - 1 else (node + 1) * width
        owner[_select_fitting(workload, node * width, last, tier)] = node
    return Caches(owner, np.full(samples, tier, np.int8), preloaded=True)


def _select_fitting(workload: SimulatedWorkload, first: int, last: int, tier: int) -> slice:
    room = workload.scenario.system.tiers[tier].capacity_mb * BYTES
    filled = np.cumsum(workload.sizes[first:last])
    return slice(first, first + int(np.searchsorted(filled, room, side="right")))


def deepio(workload: SimulatedWorkload) -> NodeTraffic:
    return trace_flows(workload, _keep_shards(workload, 0), ahead=False)


def deepio_opportunistic(workload: SimulatedWorkload) -> NodeTraffic:
    """Trace nodes that take any cached sample instead of the one that is due.

    It is one of their own with probability 1/nodes, else one of any other node.
    """
    caches = _keep_shards(workload, 0)
    nodes = workload.scenario.training.nodes
    kept = np.flatnonzero(caches.owner >= 0)
    starts = np.searchsorted(caches.owner[kept], np.arange(nodes + 1))
    if (np.diff(starts) == 0).any():
        raise UsageError(
            f"deepio_opportunistic cannot run in {workload.scenario.name}: a node's memory holds "
            "no sample; give tiers[0] more capacity"
        )

    def replace(window: Window, node: Nodes) -> Ints:
        random = workload.random(1, window.step)
        # Of all nodes alike: its own with probability 1/nodes.
        source = random.integers(0, nodes, node.shape)
        return kept[random.integers(starts[source], starts[source + 1])]

    return trace_flows(workload, caches, replace=replace)


def parallel_staging(workload: SimulatedWorkload) -> NodeTraffic:
    """Trace nodes that keep their shard and the following ids of others, as many as fit.

    A node reads nothing else. The shard comes from storage, the others from the nodes that have
    them.
    """
    scenario, samples = workload.scenario, len(workload.sizes)
    room = require_second_tier(scenario, "parallel_staging").capacity_mb * BYTES
    nodes, width = scenario.training.nodes, samples // scenario.training.nodes
    traffic = NodeTraffic.empty(scenario, setup=True)
    ends = np.concatenate([[0], np.cumsum(np.tile(workload.sizes, 2))])
    starts = np.arange(nodes) * width
    stops = np.minimum(
        np.searchsorted(ends, ends[starts] + room, side="right") - 1, starts + samples
    )
    shard_ends = np.minimum(stops, np.append(starts[1:], samples))
    if (stops == starts).any():
        raise UsageError(
            f"parallel_staging cannot run in {scenario.name}: tiers[1] of a node holds no "
            "sample; give it more capacity"
        )
    traffic.ring[0] = ends[shard_ends] - ends[starts]
    traffic.received[0] = ends[stops] - ends[shard_ends]
    borders = np.append(starts, samples)
    for shift in (0, samples):  # ids that follow the last one are the first again
        for first, last in zip(shard_ends, stops, strict=True):
            low = np.maximum(first, borders[:-1] + shift)
            high = np.minimum(last, borders[1:] + shift)
            traffic.sent[0] += np.where(high > low, ends[high] - ends[np.minimum(low, high)], 0)
    traffic.tiers[1, 0] = traffic.sent[0]
    for window in workload.windows():
        node = np.broadcast_to(workload.strided, window.samples.shape)
        random = workload.random(1, window.step)
        drawn = random.integers(starts[node], stops[node]) % samples
        for sums in (traffic.need, traffic.tiers[1]):
            _add_sizes(sums, window.step + 1, node, workload.sizes[drawn])
    traffic.own[1:] = traffic.tiers[1, 1:].sum(axis=1)
    return traffic


def require_second_tier(scenario: Scenario, policy: str) -> TierSpec:
    """The second tier of each node. Raises UsageError if there is none."""
    if len(scenario.system.tiers) < 2:
        raise UsageError(
            f"{policy} cannot run in {scenario.name}: it keeps samples in the second tier, and "
            "there is one; add a tier, or leave the policy out"
        )
    return scenario.system.tiers[1]


def require_memory(scenario: Scenario, sizes_mb: Floats, policy: str) -> None:
    """Raise UsageError unless the first tiers of all nodes hold all samples."""
    total = float(sizes_mb.sum())
    room = scenario.training.nodes * scenario.system.tiers[0].capacity_mb
    if total > room:
        raise UsageError(
            f"{policy} cannot run in {scenario.name}: it keeps all data in memory, and tiers[0] of "
            f"all nodes holds {room:,.0f} MB of {total:,.0f} MB; use more nodes, or leave it out"
        )


def lbann_dynamic(workload: SimulatedWorkload) -> NodeTraffic:
    """Keep each sample on the node that reads it first, up to an equal share of all samples."""
    require_memory(workload.scenario, workload.sizes / BYTES, "lbann_dynamic")
    caches = Caches.none(len(workload.sizes))
    nodes = workload.scenario.training.nodes
    room = np.full(nodes, -(-len(workload.sizes) // nodes))
    for window in workload.windows():
        node = np.broadcast_to(workload.strided, window.samples.shape).reshape(-1)
        samples = window.samples.reshape(-1)
        new = np.flatnonzero(caches.owner[samples] < 0)
        if not len(new):
            continue
        by_node = new[np.argsort(node[new], kind="stable")]
        counts = np.bincount(node[new], minlength=nodes)
        turn = np.arange(len(new)) - np.repeat(np.cumsum(counts) - counts, counts)
        taken = by_node[turn < np.repeat(room, counts)]
        caches.owner[samples[taken]] = node[taken]
        room -= np.minimum(room, counts)
    return trace_flows(workload, caches)


def lbann_preloading(workload: SimulatedWorkload) -> NodeTraffic:
    require_memory(workload.scenario, workload.sizes / BYTES, "lbann_preloading")
    return trace_flows(workload, _keep_shards(workload, 0))


def locality_aware(workload: SimulatedWorkload) -> NodeTraffic:
    require_second_tier(workload.scenario, "locality_aware")
    return trace_flows(workload, _keep_shards(workload, 1), local=True)
