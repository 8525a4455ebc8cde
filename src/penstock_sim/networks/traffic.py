"""Traffic between nodes, and the tree that may carry it. Pure.

A `Traffic` gives the bytes a second that nodes want from each other. A network says by which factor
all of it could grow until a link is full (`throughput`). Bandwidth is bytes/s, links have one
capacity each way, and nothing here knows packets, latency or time: for those there are simulators
of packets (BookSim, htsim, SST).

    FatTree            two levels with oversubscription
    Dragonfly, Torus   minimal, Valiant or adaptive (UGAL) routing, by a linear program: see
                       `routed_networks`

The nodes that storage is reached through are nodes too, with a bandwidth of their own.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from penstock.extent import Int

from ..devices import Floats


class Traffic(NamedTuple):
    """Flows of bytes between nodes, numbered from 0.

    source, target:  int64 (flows,), nodes; a flow from a node to itself uses no network.
    demand:          float64 (flows,), bytes/s that the flow would use at most.
    """

    source: Int
    target: Int
    demand: Floats

    @classmethod
    def exchange(cls, nodes: int, bytes_per_s: float) -> Traffic:
        """Make the traffic of peers: each node fetches `bytes_per_s`, equally from all others."""
        source, target = np.nonzero(~np.eye(nodes, dtype=bool))
        return cls(source, target, np.full(len(source), bytes_per_s / max(1, nodes - 1)))

    @classmethod
    def gather(cls, readers: Int, gateways: Int, bytes_per_s: float) -> Traffic:
        """Make the traffic to storage: each reader fetches `bytes_per_s`, equally by gateway."""
        target, source = (axis.ravel() for axis in np.meshgrid(readers, gateways, indexing="ij"))
        return cls(source, target, np.full(len(source), bytes_per_s / len(gateways)))


def find_fullest(ends: Int, demand: Floats, capacity: Floats) -> float:
    """Largest load of the links at these ends of flows, as a share of a link's capacity."""
    return float((np.bincount(ends, demand, len(capacity)) / capacity).max())


class FatTree(NamedTuple):
    """Leaf switches below a core that is never full.

    node_bytes_per_s:  float64 (nodes,), of each node's link, each way.
    leaf_nodes:        nodes n*k..n*k+k-1 are on leaf n.
    oversubscription:  bandwidth of a leaf's nodes over its links' to the core, each way.
                       Packets are assumed to be spread evenly over these links.
    """

    node_bytes_per_s: Floats
    leaf_nodes: int = 32
    oversubscription: float = 1.0

    def throughput(self, traffic: Traffic) -> float:
        """The largest factor by which all demands could grow together; infinite for none."""
        nodes = self.node_bytes_per_s
        leaves = np.bincount(np.arange(len(nodes)) // self.leaf_nodes, nodes)
        leaf = traffic.source // self.leaf_nodes, traffic.target // self.leaf_nodes
        away, crossing = traffic.source != traffic.target, leaf[0] != leaf[1]
        fullest = max(
            find_fullest(ends[used], traffic.demand[used], capacity)
            for pair, used, capacity in (
                (traffic[:2], away, nodes),
                (leaf, crossing, leaves / self.oversubscription),
            )
            for ends in pair
        )
        return math.inf if fullest == 0 else 1 / fullest
