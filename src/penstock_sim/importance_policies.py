"""Policies for batches that are drawn by importance, so that nothing is known beforehand. Pure.

A step's samples are drawn when the step before is done, because its losses decide. So nodes read
them then, with all their staging threads, and compute as they arrive. Each node has a cache of its
own in its fastest tier, by one of the rules of `importance`, and reads misses from storage. `naive`
has no cache, and reads as it does elsewhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.errors import UsageError
from penstock.plan import count_fitting

from .devices import Floats
from .importance import (
    FirstSeenCache,
    RecentCache,
    SampleCache,
    Value,
    ValueCache,
    draw_batches,
    replay,
)
from .policies import NodeTraffic
from .scenario import ImportanceSampling
from .workload import BYTES, Ints, SimulatedWorkload

CACHES: dict[str, type[ValueCache] | type[RecentCache] | type[FirstSeenCache]] = {
    "by_value": ValueCache,
    "recent": RecentCache,
    "fixed": FirstSeenCache,
}


def sample_traffic(
    workload: SimulatedWorkload, sampling: ImportanceSampling, policy: str, value: Value
) -> tuple[NodeTraffic, dict[str, Any]]:
    """Trace the bytes of a policy. O(samples) for each step.

    Also returns notes: `hits`, the share of samples that needed no storage, and `effective`, see
    `importance.ReplayOutcome`.
    """
    scenario = workload.scenario
    nodes, rows = scenario.training.nodes, workload.steps
    caches = (
        [CACHES[policy](count_room(workload, policy)) for _ in range(nodes)]
        if policy in CACHES
        else []
    )
    flows = NodeTraffic.empty(scenario, staged=bool(caches), known=False)
    kept = _CountedCaches(workload, caches, flows)
    stream = draw_batches(
        scenario.data.samples,
        scenario.training.global_batch,
        lambda ids, uses: 1 / (ids + 1.0) / (uses + 1.0) ** sampling.decay,
        value=value,
        floor=sampling.floor,
        seed=scenario.training.seed,
    )
    outcome = replay(stream, {policy: kept}, batches=rows)
    return flows, {"hits": outcome.hits[policy], "effective": outcome.effective}


def count_room(workload: SimulatedWorkload, policy: str) -> int:
    """Number of samples that fit into a node's fastest tier, by the library's own rule."""
    sizes, tier = workload.sizes, workload.scenario.system.tiers[0]
    fitting = count_fitting(tier.capacity_mb * BYTES, float(sizes.mean()), float(sizes.std()))
    if fitting < 1:
        raise UsageError(
            f"{policy} cannot run in {workload.scenario.name}: a node's memory holds no sample; "
            "give tiers[0] more capacity"
        )
    return min(fitting, len(sizes))


class _CountedCaches:
    """The caches of all nodes, to which batches are dealt in turn, with counts of their bytes."""

    def __init__(self, workload: SimulatedWorkload, caches: list[Any], flows: NodeTraffic) -> None:
        self._workload = workload
        self._caches: list[SampleCache] = caches
        self._flows = flows
        self._step = 0

    def serve(self, ids: Ints, values: Floats) -> Any:
        """See `importance.SampleCache`."""
        nodes = self._workload.scenario.training.nodes
        is_hit = np.zeros(len(ids), bool)
        for node, cache in enumerate(self._caches):
            is_hit[node::nodes] = cache.serve(ids[node::nodes], values)
        size = self._workload.sizes[ids].reshape(-1, nodes)
        local = np.where(is_hit.reshape(-1, nodes), size, 0).sum(axis=0)
        need = size.sum(axis=0)
        self._flows.need[self._step] = need
        self._flows.ring[self._step] = need - local
        self._flows.tiers[0, self._step] = local
        self._flows.own[self._step] = local.sum()
        self._step += 1
        return is_hit
