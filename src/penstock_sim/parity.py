"""The published simulator of clairvoyant prefetching, reproduced with its faults.

numpy's legacy generator gives ids and sizes, as there; the core goes through the accesses one by
one (cpp/sim/parity.hpp). docs/simulator/models.md lists the rules and which of them are faults; the
model without them is `fluid_model`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from penstock.errors import UsageError

from ._kernels import run_parity
from .closed_forms import Floats
from .policies import require_memory, require_second_tier
from .scenario import EpochSampling, IdealSpec, Result, Scenario

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Stream:
    """Samples that a run reads.

    ids:     int64 (steps of all epochs, global batch).
    sizes:   float64 (samples,), in MB.
    random:  the generator, after both have been drawn.
    """

    ids: Ints
    sizes: Floats
    random: np.random.RandomState


@dataclass(frozen=True, slots=True)
class _HeldSamples:
    """Samples that a node holds before the start, or from some time on."""

    kind: int
    samples: Ints
    since: Floats | float = 0.0


@dataclass(frozen=True, slots=True)
class _Rule:
    """A policy in the terms of the core.

    ring:     True if a staging buffer is filled ahead: from other nodes (`remote`), from `storage`.
    bound:    True if the contents of the staging buffer are there at once.
    stall:    seconds before the start.
    held:     samples that each node holds.
    logs:     for each node, the times of reads of shared storage before the start.
    lists:    for each node, the samples that its class prefetchers read.
    ids:      samples that are read instead of the stream's, or None.
    """

    ring: bool = True
    remote: bool = False
    storage: bool = False
    bound: bool = False
    stall: float = 0.0
    held: Sequence[_HeldSamples] = ()
    logs: Sequence[Floats] = ()
    lists: Sequence[Ints] = ()
    ids: Ints | None = None


class _Cluster:
    """The scenario's rates, as the published simulator uses them.

    storage:  of each client.
    classes:  of all threads of a class together: fault 2.
    staging:  of one thread.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        system, nodes = scenario.system, scenario.training.nodes
        self.storage = system.storage.shares(nodes)
        self.classes = np.array([tier.rate_mb_s for tier in system.tiers])
        self.staging = system.staging.rate_mb_s / system.staging.threads

    def reads(self, sizes: Floats, rate: float) -> Floats:
        """Seconds of reads of these sizes: fetching, then decoding or storing."""
        write = np.maximum(sizes / self.scenario.training.preprocess_mb_s, sizes / self.staging)
        seconds: Floats = write + sizes / rate
        return seconds

    def remote_rate(self, kind: int) -> float:
        return min(self.scenario.system.network_mb_s, float(self.classes[kind]))

    def end_times(
        self, kind: int, samples: Ints, sizes: Floats, rate: float, start: float = 0.0
    ) -> Floats:
        """Time at which each read ends, if a class's threads take turns from `start` on."""
        threads = self.scenario.system.tiers[kind].threads
        seconds = self.reads(sizes[samples], rate)
        seconds[:threads] += start
        for thread in range(threads):
            seconds[thread::threads] = np.cumsum(seconds[thread::threads])
        return seconds


def draw_stream(scenario: Scenario) -> Stream:
    """Draw the published stream: permutations first, then sizes, all from one generator."""
    data, training = scenario.data, scenario.training
    random = np.random.RandomState(training.seed)
    used = scenario.steps * training.global_batch
    ids = np.empty((training.epochs, used), np.int64)
    for epoch in range(training.epochs):
        ids[epoch] = random.permutation(data.samples)[:used]
    if data.sigma_mb == 0:
        sizes = np.full(data.samples, data.mean_mb)
    else:
        sizes = data.mean_mb + data.sigma_mb * random.standard_normal(data.samples)
        for sample in np.flatnonzero(sizes < 0).tolist():
            size = -1.0
            while size < 0:
                size = data.mean_mb + data.sigma_mb * random.standard_normal()
            sizes[sample] = size
    return Stream(ids.reshape(-1, training.global_batch), sizes, random)


def simulate(scenario: Scenario, policy: str) -> Result:
    """Simulate one policy by the published simulator. Raises UsageError if it cannot run."""
    if policy not in RULES:
        raise UsageError(
            f"policy {policy!r} is not one of the published simulator: use model='corrected', or "
            f"one of {', '.join(RULES)}"
        )
    unknown = {
        "training.step_overhead_s": scenario.training.step_overhead_s > 0,
        "data.cache_block": scenario.data.cache_block > 1,
        "sampling": not isinstance(scenario.sampling, EpochSampling),
        "system.network": not isinstance(scenario.system.network, IdealSpec),
    }
    scenario.refuse_other_parts(
        unknown, "the published simulator does not support: leave it out, or use model='corrected'"
    )
    stream, cluster = draw_stream(scenario), _Cluster(scenario)
    rule = RULES[policy](cluster, stream)
    barriers, reads, megabytes = _run(cluster, stream, rule)
    epochs = scenario.training.epochs
    ends = barriers.reshape(epochs, -1)[:, -1]
    took = np.diff(ends, prepend=rule.stall)
    ids = stream.ids if rule.ids is None else rule.ids
    node_mb = stream.sizes[ids].reshape(len(ids), scenario.training.nodes, -1).sum(axis=2)
    computing = node_mb.max(axis=1).reshape(epochs, -1).sum(axis=1) / scenario.training.compute_mb_s
    staging, storage, local, remote = reads.reshape(-1, 4).sum(axis=0).tolist()
    moved = megabytes.reshape(epochs, -1, 4).sum(axis=1)[:, [1, 3, 2]]
    return Result(
        scenario.name,
        policy,
        "parity",
        float(ends[-1]),
        rule.stall,
        took,
        took - computing,
        moved,
        {"staging": staging, "storage": storage, "local": local, "remote": remote},
    )


def _run(cluster: _Cluster, stream: Stream, rule: _Rule) -> tuple[Floats, Ints, Floats]:
    training, system = cluster.scenario.training, cluster.scenario.system
    logs = list(rule.logs) or [np.empty(0)] * training.nodes
    caches = rule.held
    counts = [len(kept.samples) for kept in caches]
    outputs: tuple[Floats, Ints, Floats] = run_parity(
        nodes=training.nodes,
        batch=training.global_batch,
        compute=training.compute_mb_s,
        preprocess=training.preprocess_mb_s,
        link=system.network_mb_s,
        staging_capacity=system.staging.capacity_mb,
        staging_rate=cluster.staging,
        staging_threads=system.staging.threads,
        storage_rates=cluster.storage,
        class_rates=cluster.classes,
        class_capacities=np.array([tier.capacity_mb for tier in system.tiers], np.float64),
        class_threads=np.array([tier.threads for tier in system.tiers], np.int64),
        ring=rule.ring,
        remote=rule.remote,
        storage=rule.storage,
        immediate=rule.bound,
        start=rule.stall,
        held_node=np.repeat(np.arange(len(caches), dtype=np.int32), counts),
        held_class=np.repeat(np.array([kept.kind for kept in caches], np.int32), counts),
        held_sample=np.concatenate([np.empty(0, np.int64), *(kept.samples for kept in caches)]),
        held_since=np.concatenate(
            [np.empty(0), *(np.broadcast_to(kept.since, len(kept.samples)) for kept in caches)]
        ),
        log=np.concatenate(logs),
        log_bounds=np.cumsum([0, *map(len, logs)]),
        lists=np.concatenate([np.empty(0, np.int64), *rule.lists]).astype(np.int64),
        sizes=stream.sizes,
        samples=(stream.ids if rule.ids is None else rule.ids).reshape(-1),
    )
    return outputs


# -- the policies ------------------------------------------------------------------------------


def _bound_shard(cluster: _Cluster, node: int) -> tuple[int, int]:
    width = cluster.scenario.data.samples // cluster.scenario.training.nodes
    return node * width, (node + 1) * width


def _select_fitting(first: int, last: int, sizes: Floats, capacity: float) -> Ints:
    """Select the ids from `first` on, before `last`, that all fit into the capacity."""
    end = first + int(np.searchsorted(np.cumsum(sizes[first:last]), capacity, side="right"))
    return np.arange(first, end)


def _preload(cluster: _Cluster, stream: Stream, kind: int, shards: Sequence[Ints]) -> _Rule:
    """Fill caches from storage before the start. The stall is the last node's: fault 6."""
    rate = float(cluster.storage[-1])
    logs = [cluster.end_times(kind, shard, stream.sizes, rate) for shard in shards]
    stall = float(logs[-1].max(initial=0.0))
    return _Rule(
        remote=True, stall=stall, held=[_HeldSamples(kind, shard) for shard in shards], logs=logs
    )


def _deepio(cluster: _Cluster, stream: Stream) -> _Rule:
    nodes, samples = cluster.scenario.training.nodes, cluster.scenario.data.samples
    capacity = cluster.scenario.system.tiers[0].capacity_mb
    if stream.sizes.sum() / nodes <= capacity:
        shards = [np.arange(*_bound_shard(cluster, node)) for node in range(nodes)]
        shards[-1] = np.arange(shards[-1][0], samples)
        return _preload(cluster, stream, 0, shards)
    shards = []
    first = 0
    for _ in range(nodes):
        shards.append(_select_fitting(first, samples, stream.sizes, capacity))
        first += len(shards[-1])
    return _preload(cluster, stream, 0, shards)


def _deepio_opportunistic(cluster: _Cluster, stream: Stream) -> _Rule:
    """Draw ids among those cached, from ranges that are off by one: fault 11."""
    rule = _deepio(cluster, stream)
    first = [int(kept.samples[0]) if len(kept.samples) else 0 for kept in rule.held]
    end = [*(start - 1 for start in first[1:]), int(rule.held[-1].samples.max(initial=0))]
    if any(b <= a for a, b in zip(first, end, strict=True)):
        raise UsageError(
            f"deepio_opportunistic cannot run in {cluster.scenario.name}: a node caches fewer "
            "than three samples"
        )
    draw = _draw_alike if len({b - a for a, b in zip(first, end, strict=True)}) == 1 else _draw
    ids = draw(stream.random, first, end, stream.ids.size, cluster.scenario.batch)
    return replace(rule, ids=ids.reshape(stream.ids.shape))


def _draw(
    random: np.random.RandomState, first: list[int], end: list[int], count: int, batch: int
) -> Ints:
    """Draw `count` ids, in the sequence of a global batch of which each node has a part."""
    nodes = len(first)
    ids = []
    for place in range(count):
        node = place // batch % nodes
        if not ((nodes > 1 and random.randint(1, nodes) == 1) or node == 0):
            node -= 1
        ids.append(random.randint(first[node], end[node]))
    return np.array(ids)


def _draw_alike(
    random: np.random.RandomState, first: list[int], end: list[int], count: int, batch: int
) -> Ints:
    """Draw the same ids for ranges of one width.

    The draws then do not depend on the node of the range, and all can be drawn in one call.
    """
    nodes = len(first)
    choice = [[1, nodes]] * (nodes > 1)  # a single node has no choice and draws none
    low, high = zip(*choice, (0, end[0] - first[0]), strict=True)
    draws = random.randint([low], [high], (count, len(low)))
    node = np.arange(count) // batch % nodes
    stays = (draws[:, 0] == 1) | (node == 0)
    begins: Ints = np.array(first)[np.where(stays, node, node - 1)]
    return begins + draws[:, -1]


def _parallel_staging(cluster: _Cluster, stream: Stream) -> _Rule:
    """Copy a part of the data to each node. Copies come from lower nodes only: fault 10."""
    capacity = require_second_tier(cluster.scenario, "parallel_staging").capacity_mb
    nodes = cluster.scenario.training.nodes
    caches, logs, ends, stall = [], [], [], 0.0
    starts = [_bound_shard(cluster, node)[0] for node in range(nodes)]
    for node in range(nodes):
        shard = _select_fitting(*_bound_shard(cluster, node), stream.sizes, capacity)
        logs.append(cluster.end_times(1, shard, stream.sizes, float(cluster.storage[-1])))
        spare_mb = capacity - float(stream.sizes[shard].sum())
        copied = _select_fitting(0, starts[node], stream.sizes, spare_mb)
        stall = float(logs[-1].max(initial=0.0))
        rate = cluster.remote_rate(1)
        stall = float(cluster.end_times(1, copied, stream.sizes, rate, stall).max(initial=stall))
        caches.append(_HeldSamples(1, np.concatenate([shard, copied])))
        ends.append(int(shard.max(initial=starts[node])))
    if any(b <= a for a, b in zip(starts, ends, strict=True)):
        raise UsageError(
            f"parallel_staging cannot run in {cluster.scenario.name}: a node keeps fewer than two "
            "samples"
        )
    batch = cluster.scenario.batch
    low = np.repeat(starts, batch)[None, :]
    high = np.repeat(ends, batch)[None, :]
    ids = stream.random.randint(low, high, stream.ids.shape)
    return _Rule(stall=stall, held=caches, logs=logs, ids=ids)


def _lbann_dynamic(cluster: _Cluster, stream: Stream) -> _Rule:
    require_memory(cluster.scenario, stream.sizes, "lbann_dynamic")
    nodes, width = cluster.scenario.training.nodes, _bound_shard(cluster, 0)[1]
    caches = []
    for node in range(nodes):
        first = _select_accesses(cluster, stream, node)[:width]
        since = cluster.end_times(0, first, stream.sizes, float(cluster.storage[-1]))
        caches.append(_HeldSamples(0, first, since))
    return _Rule(remote=True, held=caches, logs=[np.asarray(kept.since) for kept in caches])


def _select_accesses(cluster: _Cluster, stream: Stream, node: int) -> Ints:
    batch = cluster.scenario.batch
    return stream.ids[:, node * batch : (node + 1) * batch].reshape(-1)


def _lbann_preloading(cluster: _Cluster, stream: Stream) -> _Rule:
    require_memory(cluster.scenario, stream.sizes, "lbann_preloading")
    nodes = range(cluster.scenario.training.nodes)
    return _preload(cluster, stream, 0, [np.arange(*_bound_shard(cluster, n)) for n in nodes])


def _locality_aware(cluster: _Cluster, stream: Stream) -> _Rule:
    """Preload the second tier. The swap inside a batch never happens: fault 3."""
    capacity = require_second_tier(cluster.scenario, "locality_aware").capacity_mb
    shards = [_bound_shard(cluster, node) for node in range(cluster.scenario.training.nodes)]
    fitting = [_select_fitting(*shard, stream.sizes, capacity) for shard in shards]
    return replace(_preload(cluster, stream, 1, fitting), storage=True)


def _nopfs(cluster: _Cluster, stream: Stream) -> _Rule:
    """Choose each node's samples by itself: the most frequent first, a class by first use.

    Groups begin with the staging buffer's capacity, although caches begin after it: fault 7.
    """
    system = cluster.scenario.system
    groups = [system.staging.capacity_mb, *(tier.capacity_mb for tier in system.tiers)]
    samples = cluster.scenario.data.samples
    lists = []
    for node in range(cluster.scenario.training.nodes):
        accesses = _select_accesses(cluster, stream, node)
        used = np.full(samples, len(accesses), np.int64)
        used[accesses[::-1]] = np.arange(len(accesses) - 1, -1, -1)
        frequency = np.bincount(accesses, minlength=samples)
        order = np.argsort(-frequency, kind="stable")
        first = 0
        classes = []
        for capacity in groups:
            filled = np.cumsum(stream.sizes[order[first:]])
            last = first + int(np.searchsorted(filled, capacity, side="right")) + 1
            classes.append(order[first:last])
            first = min(last, samples)
        classes.append(order[first:])
        lists += [ids[np.argsort(used[ids], kind="stable")] for ids in classes]
    return _Rule(storage=True, lists=lists)


RULES: dict[str, Callable[[_Cluster, Stream], _Rule]] = {
    "naive": lambda cluster, stream: _Rule(ring=False),
    "staging": lambda cluster, stream: _Rule(storage=True),
    "deepio": _deepio,
    "deepio_opportunistic": _deepio_opportunistic,
    "parallel_staging": _parallel_staging,
    "lbann_dynamic": _lbann_dynamic,
    "lbann_preloading": _lbann_preloading,
    "locality_aware": _locality_aware,
    "nopfs": _nopfs,
    "lower_bound": lambda cluster, stream: _Rule(bound=True),
}
