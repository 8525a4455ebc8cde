"""What a scenario's network leaves of the nodes' links, when all use it at once. Pure.

Two classes of traffic cross it: nodes among each other, all to all, each with `network_mb_s`; and
storage to all nodes alike, as much as its table of rates gives to so many. A class has one factor,
for all nodes and for the whole run: that at which the fullest link is full (`Network.throughput`).

1. Each class is alone in the network.
2. Where a policy uses both, they are there at once, with demands times these factors: times what is
   left then, which is at least a half, as loads add up.

The links of the nodes themselves are the model's own (cpp/sim/fluid.hpp): those to peers and those
to storage are apart there, so here a node's link carries both, and what narrows is in between.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from .. import limits
from ..errors import LimitError, UsageError
from ..extent import Int
from . import network, routed, scenario
from .devices import divide_rates
from .network import Traffic
from .workload import BYTES


class RemainingBandwidth(NamedTuple):
    """Factors, above 0 and at most 1: of each node's link to peers, and of storage's rates."""

    peers: float = 1.0
    storage: float = 1.0


ALL = RemainingBandwidth()
"""What an ideal network leaves."""

_whole = 1 - 1e-9  # above which less is rounding


def find_remaining(given: scenario.Scenario, *, peers: bool, storage: bool) -> RemainingBandwidth:
    """What is left for a policy that uses these classes of traffic. Raises UsageError for networks
    that would take too long; see `limits.network_flows_max` and those of `routed`."""
    system, nodes = given.system, given.training.nodes
    if isinstance(system.network, scenario.IdealSpec):
        return ALL
    from_storage = divide_rates(system.storage.read_mb_s, system.storage.link_mb_s, nodes)[-1]
    peers = peers and nodes > 1
    try:
        return _find_remaining(
            system.network, nodes, system.network_mb_s, float(from_storage), peers, storage
        )
    except LimitError as error:
        raise UsageError(f"{given.name}: system.network: {error}") from None


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
) -> tuple[network.Network, Int, Int]:
    """The network, at which of its terminals the nodes are, and at which storage."""
    if nodes * nodes > limits.network_flows_max:
        raise LimitError(
            f"{nodes} nodes exchange all to all, above limits.network_flows_max = "
            f"{limits.network_flows_max} flows: use fewer nodes, or kind ideal"
        )
    all_mb_s = nodes * storage_mb_s
    if isinstance(shape, scenario.FatTreeSpec):
        # One gateway on a leaf of its own, whose links to the core are wide enough for storage.
        held = -(-nodes // shape.leaf_nodes) * shape.leaf_nodes
        link = np.full(held + 1, node_mb_s)
        link[held] = all_mb_s * shape.oversubscription
        tree = network.FatTree(
            held + 1,
            link * BYTES,
            leaf_nodes=shape.leaf_nodes,
            oversubscription=shape.oversubscription,
        )
        return tree, np.arange(nodes), np.array([held])
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
        routed.Torus(shape.dims, **options)
        if isinstance(shape, scenario.TorusSpec)
        else routed.Dragonfly(shape.group_switches, shape.global_links, **options)
    )
    return built, np.setdiff1d(np.arange(shape.terminals), gateways)[:nodes], gateways
