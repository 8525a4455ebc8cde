"""Network models: the rate that each flow of a traffic gets. Pure.

A `Traffic` gives the bytes a second that nodes want from each other; a `Network` computes the rate
of each flow. Bandwidth is bytes/s, links have one capacity each way, and nothing here knows
packets, latency or time: for those there are simulators of packets (BookSim, htsim, SST).

    Ideal              the nodes' own links alone
    FatTree            two levels with oversubscription; the default of a simulation
    Dragonfly, Torus   minimal, Valiant or adaptive (UGAL) routing, by a linear program: in `routed`

The two here share links max-min fairly, as long-lived flows of one transport do.

The nodes that storage is reached through are nodes too, with a bandwidth of their own:
`Traffic.gather` is many nodes reading through them, `Traffic.exchange` peers among themselves.

Source of max-min fairness and of progressive filling: Bertsekas and Gallager, Data Networks, 2nd
ed., section 6.5.2.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..errors import UsageError
from ..extent import Int
from .arguments import Bandwidth, Float, check_capacities, check_whole


@dataclass(frozen=True, eq=False, slots=True)
class Traffic:
    """Flows of bytes between nodes.

    source, target:  int64 (flows,), nodes; a flow from a node to itself uses no network.
    demand:          float64 (flows,), bytes/s that the flow would use at most.
    """

    source: Int
    target: Int
    demand: Float

    def __post_init__(self) -> None:
        demand = np.asarray(self.demand, np.float64)
        for name in ("source", "target"):
            nodes = np.asarray(getattr(self, name))
            if nodes.ndim != 1 or (nodes.size and nodes.dtype.kind not in "iu"):
                raise UsageError(f"Traffic.{name} is {nodes!r}: give a node for each flow")
            if nodes.min(initial=0) < 0:
                raise UsageError(f"Traffic.{name} has {nodes.min()}: nodes count from 0")
            object.__setattr__(self, name, nodes.astype(np.int64))
        if not self.source.shape == self.target.shape == demand.shape:
            raise UsageError(
                f"Traffic has {len(self.source)} sources, {len(self.target)} targets and demands "
                f"of shape {demand.shape}: give one of each for every flow"
            )
        if not np.isfinite(demand).all() or demand.min(initial=0) < 0:
            raise UsageError("Traffic.demand has values that are no finite bytes/s from 0 on")
        object.__setattr__(self, "demand", demand)

    def check(self, nodes: int) -> None:
        """Raise UsageError if the traffic names a node that a network of `nodes` has not."""
        for name, ends in (("source", self.source), ("target", self.target)):
            if ends.max(initial=0) >= nodes:
                raise UsageError(
                    f"Traffic.{name} has node {ends.max()}, and the network has {nodes}: use "
                    f"0..{nodes - 1}"
                )

    @classmethod
    def of_matrix(cls, matrix: npt.ArrayLike) -> Traffic:
        """Make the flows of a matrix of bytes/s, source by target, for its entries above 0."""
        demands = np.asarray(matrix, np.float64)
        if demands.ndim != 2 or demands.shape[0] != demands.shape[1]:
            raise UsageError(f"matrix has the shape {demands.shape}: give nodes x nodes")
        source, target = np.nonzero(demands)
        return cls(source, target, demands[source, target])

    @classmethod
    def exchange(cls, nodes: int, bytes_per_s: float) -> Traffic:
        """Make the traffic of peers: each node fetches `bytes_per_s`, equally from all others."""
        source, target = np.nonzero(~np.eye(nodes, dtype=bool))
        return cls(source, target, np.full(len(source), bytes_per_s / max(1, nodes - 1)))

    @classmethod
    def gather(cls, readers: npt.ArrayLike, gateways: npt.ArrayLike, bytes_per_s: float) -> Traffic:
        """Make the traffic to storage: each reader fetches `bytes_per_s`, equally by gateway."""
        targets, sources = np.asarray(readers).reshape(-1), np.asarray(gateways).reshape(-1)
        if not sources.size:
            raise UsageError("gateways are none: name the nodes that storage is reached through")
        grid = np.meshgrid(targets, sources, indexing="ij")
        target, source = (axis.reshape(-1) for axis in grid)
        return cls(source, target, np.full(len(source), bytes_per_s / len(sources)))


class Network(Protocol):
    """A network that carries traffic between its nodes."""

    @property
    def nodes(self) -> int:
        """Number of nodes; they count from 0."""
        ...

    def rates(self, traffic: Traffic) -> Float:
        """Compute the bytes/s of each flow, float64 (flows,).

        A flow gets at most its demand, and no link carries more than its capacity. Raises
        UsageError if the traffic names nodes that do not exist.
        """
        ...

    def throughput(self, traffic: Traffic) -> float:
        """The largest factor by which all demands could grow together; infinite for none."""
        ...


@dataclass(frozen=True, eq=False)
class Ideal:
    """A network that nothing limits but the nodes' own links. Max-min fair.

    node_bytes_per_s:  of each node's link, each way; one for all or one a node.
    """

    nodes: int
    node_bytes_per_s: Bandwidth

    def __post_init__(self) -> None:
        check_whole("nodes", self.nodes)
        check_capacities("node_bytes_per_s", self.node_bytes_per_s, self.nodes)

    def rates(self, traffic: Traffic) -> Float:
        """See `Network`."""
        traffic.check(self.nodes)
        return divide_fairly(*self._crossed(traffic), traffic.demand)

    def throughput(self, traffic: Traffic) -> float:
        """See `Network`."""
        traffic.check(self.nodes)
        crossed, capacity = self._crossed(traffic)
        demand = np.broadcast_to(traffic.demand[:, None], crossed.shape)[crossed >= 0]
        fullest = (np.bincount(crossed[crossed >= 0], demand, len(capacity)) / capacity).max()
        return math.inf if fullest == 0 else float(1 / fullest)

    def _crossed(self, traffic: Traffic) -> tuple[Int, Float]:
        """Return the links that each flow crosses, and the links' capacities."""
        capacity = check_capacities("node_bytes_per_s", self.node_bytes_per_s, self.nodes)
        away = traffic.source != traffic.target
        links = np.stack([traffic.source, self.nodes + traffic.target], axis=1)
        return np.where(away[:, None], links, -1), np.tile(capacity, 2)


@dataclass(frozen=True, eq=False)
class FatTree(Ideal):
    """Leaf switches below a core that is never full. Max-min fair.

    node_bytes_per_s:  of each node's link, each way; one for all or one a node.
    leaf_nodes:        nodes n*k..n*k+k-1 are on leaf n.
    oversubscription:  bandwidth of a leaf's nodes divided by that of its links to the core, each
                       way. Packets are assumed to be spread evenly over these links.
    """

    _: KW_ONLY
    leaf_nodes: int = 32
    oversubscription: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("leaf_nodes", self.leaf_nodes)
        check_capacities("oversubscription", self.oversubscription, 1)

    def _crossed(self, traffic: Traffic) -> tuple[Int, Float]:
        crossed, capacity = super()._crossed(traffic)
        leaves = np.bincount(np.arange(self.nodes) // self.leaf_nodes, capacity[: self.nodes])
        source, target = traffic.source // self.leaf_nodes, traffic.target // self.leaf_nodes
        links = 2 * self.nodes + np.stack([source, len(leaves) + target], axis=1)
        links = np.where((source != target)[:, None], links, -1)
        return (
            np.concatenate([crossed, links], axis=1),
            np.concatenate([capacity, np.tile(leaves / self.oversubscription, 2)]),
        )


def divide_fairly(crossed: Int, capacity: Float, demand: Float) -> Float:
    """Divide link capacities among flows by max-min fairness.

    No flow can get more without a loss for another flow that has no more than it.

    crossed:   int64 (flows, k), the links of each flow, -1 for none.
    capacity:  float64 (links,), bytes/s, above 0.
    demand:    float64 (flows,), bytes/s that a flow takes at most.
    Returns bytes/s, float64 (flows,).

    The method is progressive filling: all flows grow alike until the next one has its demand or the
    next link is full. Each round takes O(flows * k). There are at most as many rounds as links and
    different demands together, usually few.
    """
    rates = demand.copy()
    flows = np.flatnonzero((crossed >= 0).any(axis=1) & (demand > 0))
    left = capacity.copy()
    while len(flows):
        links = crossed[flows]
        held = np.bincount(links[links >= 0], minlength=len(left))
        share = np.divide(left, held, out=np.full(len(left), np.inf), where=held > 0)
        level = share.min()
        # A flow that wants no more than the scarcest link gives leaves more for the others.
        done = demand[flows] <= level
        if not done.any():
            full = np.append(share <= level * (1 + 1e-12), False)  # the last stands for no link
            done = full[links].any(axis=1)
            rates[flows[done]] = level
        taken = links[done]
        used = np.broadcast_to(rates[flows[done], None], taken.shape)[taken >= 0]
        left -= np.bincount(taken[taken >= 0], used, len(left))
        np.maximum(left, 0, out=left)
        flows = flows[~done]
    return rates
