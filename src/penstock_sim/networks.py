"""Networks of nodes: a tree, Dragonfly and torus, and the traffic that they carry. Pure.

A `Traffic` gives the bytes a second that nodes want from each other. A network says by which factor
all of it could grow until a link is full (`throughput`). All flows keep their proportion: the whole
traffic is slowed by one factor, so that a flow that meets no congestion waits for those that do, as
the ranks of a synchronous job do. Bandwidth is bytes/s, links have one capacity each way, and
nothing here knows packets, latency or time: for those there are simulators of packets (BookSim,
htsim, SST). The nodes that storage is reached through are nodes too, with their own bandwidth.

    FatTree            two levels with oversubscription
    Dragonfly, Torus   minimal, Valiant or adaptive (UGAL) routing, by a linear program

Sources. Dragonfly: Kim, Dally, Scott, Abts, ISCA 2008. Torus and channel loads: Dally and Towles,
Principles and Practices of Interconnection Networks, chapters 3, 5 and 9. That UGAL's throughput
can be computed by a linear program: Mollah et al., ACM TOPC 6(2), 2019. Their programs are not
public, and the one here is a reconstruction.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock import limits
from penstock.errors import LimitError
from penstock.extent import Int

from .closed_forms import Floats, import_scipy


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


# -- routed networks -------------------------------------------------------------------------------

Routing = Literal["minimal", "valiant", "ugal"]
Split = Literal["pair", "common"]


class Links(NamedTuple):
    """Directed links between switches, int64 (links,) each."""

    source: Int
    target: Int


@dataclass(frozen=True, eq=False)
class RoutedNetwork(ABC):
    """A network of switches under one of three routings.

    switch_nodes:      nodes of each switch; they count from 0, switch by switch.
    link_bytes_per_s:  of a link between switches, each way.
    node_bytes_per_s:  float64 (nodes,), of a node's link, each way.
    routing:           "minimal"; "valiant": minimal to a random switch, and minimal from there
                       (Valiant and Brebner, STOC 1981); "ugal": adaptive between the two.
    split:             how adaptive routing divides traffic: "pair", for each pair of switches by
                       itself, or "common", the same part for all: scales further.

    UGAL is taken as choosing the best division: the linear program

        minimise z    subject to    sum over pairs d (x f_minimal + (1 - x) f_valiant) <= z

    for each link, with 0 <= x <= 1 of each pair, d its demand and f the expected crossings of the
    link by its paths. 1/z is the throughput; the real algorithm sees queues and gets less.
    Needs SciPy. LimitError above `limits.network_paths_max` and `limits.network_paths_divided_max`.
    """

    _: KW_ONLY
    switch_nodes: int
    link_bytes_per_s: float
    node_bytes_per_s: Floats
    routing: Routing = "ugal"
    split: Split = "pair"

    @property
    @abstractmethod
    def switches(self) -> int:
        """Number of switches; they count from 0."""

    @property
    @abstractmethod
    def links(self) -> Links:
        """The links between switches."""

    def throughput(self, traffic: Traffic) -> float:
        """The largest factor by which all demands could grow together; infinite for none."""
        away = traffic.source != traffic.target
        fullest = max(
            find_fullest(ends[away], traffic.demand[away], self.node_bytes_per_s)
            for ends in traffic[:2]
        )
        fullest = max(fullest, self.loads(traffic).max(initial=0.0) / self.link_bytes_per_s)
        return math.inf if fullest == 0 else float(1 / fullest)

    @abstractmethod
    def _paths(self) -> tuple[Int, Int, Floats]:
        """List minimal paths by crossings of links.

        Returns for each crossing the pair (source * switches + target), the link, and the part of
        the pair's traffic that crosses it.
        """

    @abstractmethod
    def _between(self, source: Int, target: Int) -> npt.NDArray[np.bool_]:
        """Return True where Valiant routing of a pair may pass a switch: (pairs, switches)."""

    @cached_property
    def _minimal(self) -> Any:
        """Crossings of each link by each pair: sparse (pairs, links)."""
        pair, link, share = self._paths()
        shape = (self.switches**2, len(self.links.source))
        return import_scipy("sparse").csr_array((share, (pair, link)), shape=shape)

    def _detours(self, pairs: Int) -> tuple[Int, Int, Floats]:
        """List Valiant's paths of some pairs, each as two minimal paths, numbered like pairs.

        Returns the row of the pair, the minimal path, and the part of the pair's traffic on it.
        """
        source, target = np.divmod(pairs, self.switches)
        row, over = np.nonzero(self._between(source, target))
        share = 1 / np.bincount(row, minlength=len(pairs))[row]
        stages = np.stack([source[row] * self.switches + over, over * self.switches + target[row]])
        return np.tile(row, 2), stages.reshape(-1), np.tile(share, 2)

    def loads(self, traffic: Traffic) -> Floats:
        """Compute the bytes/s on each of `links` if all demands were met, as the routing divides
        them: float64 (links,)."""
        source, target = traffic.source // self.switch_nodes, traffic.target // self.switch_nodes
        wanted = (source != target) & (traffic.demand > 0)
        pairs, which = np.unique(
            source[wanted] * self.switches + target[wanted], return_inverse=True
        )
        if not len(pairs):
            return np.zeros(len(self.links.source))
        self._check(len(pairs))
        # In units in which the greatest demand is 1, as the solver's tolerances are absolute.
        demand = np.bincount(which, traffic.demand[wanted])
        unit = demand.max()
        demand = demand / unit
        minimal = self._minimal[pairs]
        loads: Floats = minimal.T @ demand
        if self.routing != "minimal":
            least = loads
            row, stage, share = self._detours(pairs)
            loads = self._minimal.T @ np.bincount(stage, share * demand[row], self.switches**2)
        if self.routing == "ugal":
            sparse = import_scipy("sparse")
            if self.split == "common":
                gain = sparse.csr_array((least - loads)[:, None])
            else:
                shape = (len(pairs), self.switches**2)
                valiant = sparse.csr_array((share, (row, stage)), shape=shape) @ self._minimal
                gain = (minimal - valiant).T.multiply(demand).tocsr()
            loads = loads + _divide_traffic(gain, loads)
        link_loads: Floats = loads * unit
        return link_loads

    def _check(self, pairs: int) -> None:
        """Raise LimitError if a network with so many pairs would take too long."""
        divided = self.routing == "ugal" and self.split == "pair"
        bound = "network_paths_divided_max" if divided else "network_paths_max"
        if pairs * self.switches > getattr(limits, bound):
            instead = 'split="common"' if divided else "a smaller network, or FatTree"
            raise LimitError(
                f"{pairs} pairs of {self.switches} switches have traffic, in all above "
                f"limits.{bound} = {getattr(limits, bound)}: use {instead}"
            )


def _divide_traffic(gain: Any, loads: Floats) -> Floats:
    """Find the best division; return the loads that it adds to Valiant's routing.

    gain:  sparse (links, parts), loads that each part of the traffic adds if it goes minimally.
    """
    sparse, optimize = import_scipy("sparse"), import_scipy("optimize")
    links, pairs = gain.shape
    highest = sparse.csr_array(np.full((links, 1), -1.0))
    solution = optimize.linprog(
        np.append(np.zeros(pairs), 1.0),
        A_ub=sparse.hstack([gain, highest]).tocsr(),
        b_ub=-loads,
        bounds=[(0, 1)] * pairs + [(0, None)],
        method="highs",
    )
    assert solution.success, solution.message  # bounded, and x = 0 is feasible
    added: Floats = gain @ np.clip(solution.x[:-1], 0, 1)
    return added


@dataclass(frozen=True, eq=False)
class Dragonfly(RoutedNetwork):
    """Groups of switches, linked all to all within a group, and by one link between any two.

    group_switches:  a, switches of a group.
    global_links:    h, links of a switch to other groups; there are a*h + 1 groups, and at least 3.

    Balanced is a = 2h = 2p, with p = `switch_nodes`. Port k of group G, on its switch k // h, goes
    to group (G + k + 1) mod groups. A minimal path has at most one link in its own group, the one
    between the groups, and one in the other group. Valiant's intermediate switch is in neither of
    the two groups; within a group it is any other switch.

    If every group sends to the next one and each switch wants p links' worth, minimal routing
    gives 1/(a p) of it, as all of a group shares one link; Valiant's (g - 2)/(2 a p) with g groups,
    as each of the other links of a group carries both what leaves and what passes; and UGAL their
    sum, as Valiant's paths never take the direct link; where links within groups do not bind.
    """

    group_switches: int
    global_links: int

    @property
    def groups(self) -> int:
        """Number of groups."""
        return self.group_switches * self.global_links + 1

    @property
    def switches(self) -> int:
        return self.groups * self.group_switches

    @property
    def links(self) -> Links:
        """Links within groups, switch by switch, then between groups, port by port."""
        a, h = self.group_switches, self.global_links
        switch = np.repeat(np.arange(self.switches), a - 1)
        other = np.arange(len(switch)) % max(1, a - 1)
        other += other >= switch % a
        local = Links(switch, switch - switch % a + other)
        group, port = np.divmod(np.arange(self.groups * a * h), a * h)
        source = group * a + port // h
        target = self._landing(group, (group + port + 1) % self.groups)
        return Links(np.concatenate([local.source, source]), np.concatenate([local.target, target]))

    def _landing(self, group: Int, other: Int) -> Int:
        """Return the switch of the other group at which the link from a group arrives."""
        port = (group - other - 1) % self.groups
        return other * self.group_switches + port // self.global_links

    def _paths(self) -> tuple[Int, Int, Floats]:
        a, h = self.group_switches, self.global_links
        pair = np.arange(self.switches**2)
        source, target = np.divmod(pair, self.switches)
        group, other = source // a, target // a
        away = group != other
        leaving = np.where(away, self._landing(other, group), target)
        landing = np.where(away, self._landing(group, other), target)
        locals_ = self.switches * (a - 1)
        port = (other - group - 1) % self.groups
        hops = [(pair[away], locals_ + (group * a * h + port)[away])]
        for start, end in ((source, leaving), (landing, target)):
            moves = start != end
            link = start * (a - 1) + end % a - (end % a > start % a)
            hops.append((pair[moves], link[moves]))
        pairs, links = (np.concatenate(columns) for columns in zip(*hops, strict=True))
        return pairs, links, np.ones(len(pairs))

    def _between(self, source: Int, target: Int) -> npt.NDArray[np.bool_]:
        switch = np.arange(self.switches)
        ends = [end[:, None] for end in (source, target)]
        group = switch // self.group_switches
        outside = np.logical_and(*[group != end // self.group_switches for end in ends])
        others = np.logical_and(*[switch != end for end in ends])
        inside = (source // self.group_switches == target // self.group_switches)[:, None]
        is_between: npt.NDArray[np.bool_] = np.where(inside, others, outside)
        return is_between


@dataclass(frozen=True, eq=False)
class Torus(RoutedNetwork):
    """Rings in each of several dimensions (a k-ary n-cube where they are equal).

    dims:  switches along each dimension; switch numbers count the last dimension fastest.

    Minimal paths go dimension by dimension, the shorter way round; where both ways are as long,
    half of the traffic takes each. A ring of two has a link for each of the two ways. Valiant's
    intermediate switch is any, the two ends included.

    Channel loads, for one unit sent by each of k^n switches (Dally and Towles, chapters 3 and 9):
    uniform traffic k/8, for odd k (k - 1/k)/8; tornado traffic, ceil(k/2) - 1 switches on in one
    dimension, ceil(k/2) - 1; Valiant's routing, whatever the permutation, twice the uniform load.
    """

    dims: tuple[int, ...]

    @property
    def switches(self) -> int:
        return math.prod(self.dims)

    @property
    def links(self) -> Links:
        """Links by switch: to the next and the previous switch along each dimension."""
        switch = np.arange(self.switches)
        at = np.unravel_index(switch, self.dims)
        targets = []
        for axis, size in enumerate(self.dims):
            for step in (1, -1):
                moved = list(at)
                moved[axis] = (at[axis] + step) % size
                targets.append(np.ravel_multi_index(moved, self.dims))
        return Links(np.repeat(switch, len(targets)), np.stack(targets, axis=1).reshape(-1))

    def _paths(self) -> tuple[Int, Int, Floats]:
        pair = np.arange(self.switches**2)
        source, target = (
            np.unravel_index(switch, self.dims) for switch in np.divmod(pair, self.switches)
        )
        triples: list[tuple[Int, Int, Floats]] = []
        for axis, size in enumerate(self.dims):
            ahead = (target[axis] - source[axis]) % size
            for way, (step, hops) in enumerate(((1, ahead), (-1, (size - ahead) % size))):
                taken = np.where(2 * hops <= size, hops, 0)
                row = np.repeat(pair, taken)
                hop = np.arange(len(row)) - np.repeat(np.cumsum(taken) - taken, taken)
                at = [target[done][row] for done in range(axis)]
                at.append((source[axis][row] + step * hop) % size)
                at += [source[later][row] for later in range(axis + 1, len(self.dims))]
                switch = np.ravel_multi_index(at, self.dims)
                share = np.where(2 * taken[row] == size, 0.5, 1.0)
                triples.append((row, switch * 2 * len(self.dims) + 2 * axis + way, share))
        pairs, links, share = (np.concatenate(columns) for columns in zip(*triples, strict=True))
        return pairs, links, share

    def _between(self, source: Int, target: Int) -> npt.NDArray[np.bool_]:
        return np.ones((len(source), self.switches), bool)
