"""Contention: the bandwidth that a scenario's network leaves when all nodes use it at once. Pure.

Two classes of traffic cross the network: nodes among each other, all to all, each with
`network_mb_s`; and storage to all nodes alike, at the rate that its table gives for their number.
A class has one factor, for all nodes and for the whole run: that at which the fullest link is full
(`throughput`).

1. Each class is alone in the network.
2. If a policy uses both, they are there at once, with demands times these factors. The factors are
   multiplied by the part left then: at least a half, because loads add up.

The links of the nodes themselves are the model's own (cpp/sim/fluid.hpp). It separates links to
peers from links to storage, so here a node's link carries both, and only the network between the
links is narrow.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from penstock import limits
from penstock.errors import LimitError, UsageError
from penstock.extent import Int

from . import scenario
from .networks import Dragonfly, FatTree, RoutedNetwork, Torus, Traffic
from .workload import BYTES


class RemainingBandwidth(NamedTuple):
    """Factors for each node's link to peers and for storage's rates, above 0 and at most 1."""

    peers: float = 1.0
    storage: float = 1.0


ALL = RemainingBandwidth()
"""Bandwidth that an ideal network leaves: all of it."""

_whole = 1 - 1e-9  # above which less is rounding


def find_remaining(
    described: scenario.Scenario, *, peers: bool, storage: bool
) -> RemainingBandwidth:
    """Find the bandwidth left for a policy that uses these classes of traffic.

    Raises UsageError for networks that would take too long; see `limits.network_flows_max` and the
    limits of `networks`.
    """
    system, nodes = described.system, described.training.nodes
    if isinstance(system.network, scenario.IdealSpec):
        return ALL
    from_storage = system.storage.shares(nodes)[-1]
    peers = peers and nodes > 1
    try:
        return _find_remaining(
            system.network, nodes, system.network_mb_s, float(from_storage), peers, storage
        )
    except LimitError as error:
        raise UsageError(f"{described.name}: system.network: {error}") from None


@lru_cache(maxsize=256)
def _find_remaining(
    shape: Any, nodes: int, peers_mb_s: float, storage_mb_s: float, peers: bool, storage: bool
) -> RemainingBandwidth:
    if peers and storage:
        apart = [
            _find_remaining(shape, nodes, peers_mb_s, storage_mb_s, True, False).peers,
            _find_remaining(shape, nodes, peers_mb_s, storage_mb_s, False, True).storage,
        ]
    else:
        apart = [float(peers), float(storage)]
    carrier, at, gateways = _build_network(shape, nodes, peers_mb_s + storage_mb_s, storage_mb_s)
    among = Traffic.exchange(nodes, peers_mb_s * BYTES * apart[0])
    fetched = Traffic.gather(at, gateways, storage_mb_s * BYTES * apart[1])
    traffic = Traffic(
        np.append(at[among.source], fetched.source),
        np.append(at[among.target], fetched.target),
        np.append(among.demand, fetched.demand),
    )
    factor = carrier.throughput(traffic)
    factor = 1.0 if factor > _whole else factor
    return RemainingBandwidth(
        apart[0] * factor if peers else 1.0,
        apart[1] * factor if storage else 1.0,
    )


def _build_network(
    shape: Any, nodes: int, node_mb_s: float, storage_mb_s: float
) -> tuple[FatTree | RoutedNetwork, Int, Int]:
    """Build the network; return it with the terminals of nodes and of storage."""
    if nodes * nodes > limits.network_flows_max:
        raise LimitError(
            f"{nodes} nodes exchange all to all, above limits.network_flows_max = "
            f"{limits.network_flows_max} flows: use fewer nodes, or kind ideal"
        )
    all_mb_s = nodes * storage_mb_s
    if isinstance(shape, scenario.FatTreeSpec):
        # One gateway on a leaf of its own, whose links to the core are wide enough for storage.
        gateway = -(-nodes // shape.leaf_nodes) * shape.leaf_nodes
        link = np.full(gateway + 1, node_mb_s)
        link[gateway] = all_mb_s * shape.oversubscription
        tree = FatTree(link * BYTES, shape.leaf_nodes, shape.oversubscription)
        return tree, np.arange(nodes), np.array([gateway])
    switches = shape.terminals // shape.switch_nodes
    if switches**3 > limits.network_paths_max:
        raise LimitError(
            f"{switches} switches have {switches**2} pairs, which times switches is above "
            f"limits.network_paths_max = {limits.network_paths_max}: use fewer switches, or kind "
            "fat-tree"
        )
    count = shape.gateways
    gateways = (2 * np.arange(count) + 1) * shape.terminals // (2 * count)
    link = np.full(shape.terminals, node_mb_s)
    link[gateways] = all_mb_s / count
    options: dict[str, Any] = {
        "switch_nodes": shape.switch_nodes,
        "link_bytes_per_s": shape.link_mb_s * BYTES,
        "node_bytes_per_s": link * BYTES,
        "routing": shape.routing,
        "split": shape.split,
    }
    built = (
        Torus(shape.dims, **options)
        if isinstance(shape, scenario.TorusSpec)
        else Dragonfly(shape.group_switches, shape.global_links, **options)
    )
    return built, np.setdiff1d(np.arange(shape.terminals), gateways)[:nodes], gateways
