"""Local assignment: samples of a global batch go to the ranks of the node that keeps them. Pure.

The rank that processes a sample changes no global batch, so assignment may follow the caches. The
capacity of a node or rank is the number of samples of a step that it processes. The rule, for each
step:

    each node takes, in the order of the batch, the first samples that it owns, up to its capacity;
    the other samples and samples of no owner, in the order of the batch, fill the free capacity,
    node by node; within a node samples go to its ranks in turn, in the order of the batch.

Every rank computes this for the whole global batch, without messages. No assignment moves fewer
samples: each node must give away what it owns beyond its capacity, and nothing else leaves its
owner.

Let N nodes have capacity b each and own all samples, independently of the order. A node owns
K ~ Bin(N b, 1/N) of a batch, and E[(K - b)+] = E|K - b| / 2. By de Moivre's formula for the mean
absolute deviation of a binomial (Diaconis and Zabell, Statistical Science 6, 1991), samples are
processed away from their owner with probability

    (1 - 1/N) P[K = b]  ~  0.4 / sqrt(b) sqrt(1 - 1/N).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..errors import UsageError
from ..extent import Int
from .placement import Nodes, Placement

FindItems = Callable[[npt.NDArray[np.uint64]], npt.NDArray[np.uint64]]
_radix_bins = 1 << 16  # numpy sorts 16-bit keys by radix, wider ones by comparison


@dataclass(frozen=True, slots=True)
class Locality:
    """Owners of the samples, and nodes of the ranks, for local assignment. Equal on every rank.

    nodes:  node of each rank, a number below `placement.nodes`; in any sequence.
    find_items:  finds the items of samples that the placement is of; None if these are samples.
    """

    placement: Placement
    nodes: tuple[int, ...]
    find_items: FindItems | None = None
    _nodes: Int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        nodes = np.asarray(self.nodes)
        if nodes.ndim != 1 or nodes.dtype.kind not in "iu" or not nodes.size:
            raise UsageError(f"Locality.nodes is {self.nodes!r}: give the node of each rank")
        if nodes.min() < 0 or nodes.max() >= self.placement.nodes:
            what = f"Locality.nodes has {nodes.min()}..{nodes.max()}"
            raise UsageError(f"{what}: use 0..{self.placement.nodes - 1}, the placement's nodes")
        object.__setattr__(self, "nodes", tuple(nodes.tolist()))
        object.__setattr__(self, "_nodes", nodes.astype(np.int64))

    def owners(self, samples: npt.NDArray[np.uint64]) -> Nodes:
        """Return the node that keeps each sample, or the first chunk of it; -1 for none."""
        items = samples if self.find_items is None else self.find_items(samples)
        return self.placement.owners(items)

    def rows(self, samples: npt.NDArray[np.uint64], quotas: Int, rank: int) -> Int:
        """Select the rows of some steps that a rank processes.

        samples:  (steps, rows), the global batches.
        quotas:   of each rank, its samples of each step; their sum is `rows`.
        Returns indices into the flat samples, ascending: int64 (steps * quotas[rank],).
        """
        node = self.nodes[rank]
        capacities = self._sum_capacities(quotas)
        row_nodes = assign_nodes(self.owners(samples), capacities)
        node_rows = np.flatnonzero(row_nodes == node).reshape(len(samples), capacities[node])
        rank_turns = self._take_turns(np.flatnonzero(self._nodes == node), quotas)
        return node_rows[:, rank_turns == rank].reshape(-1)

    def ranks(self, samples: npt.NDArray[np.uint64], quotas: Int) -> Nodes:
        """Return the rank that has each row of some steps, int32 (steps, rows); see `rows`."""
        capacities = self._sum_capacities(quotas)
        row_nodes = assign_nodes(self.owners(samples), capacities)
        rank_turns = self._take_turns(np.arange(len(self.nodes)), quotas).astype(np.int32)
        ranks = np.empty_like(row_nodes)
        for step, nodes in enumerate(row_nodes):
            by_node = np.argsort(_narrow_integers(nodes, len(capacities)), kind="stable")
            ranks[step, by_node] = rank_turns
        return ranks

    def _take_turns(self, ranks: Int, quotas: Int) -> Int:
        """Return the rank of each row of a step, node after node: the ranks of a node in turn."""
        quota = quotas[ranks]
        rank = np.repeat(ranks, quota)
        turn = np.arange(len(rank)) - np.repeat(np.cumsum(quota) - quota, quota)
        rank_turns: Int = rank[np.lexsort((rank, turn, self._nodes[rank]))]
        return rank_turns

    def _sum_capacities(self, quotas: Int) -> Int:
        """Sum the quotas of each node's ranks, int64 (nodes,)."""
        return np.bincount(self._nodes, quotas, self.placement.nodes).astype(np.int64)


def assign_nodes(owners: Nodes, capacities: Int) -> Nodes:
    """Assign each sample of some steps to the node that processes it.

    owners:      int32 (steps, rows), the node that keeps each sample of a global batch; -1 if none.
    capacities:  int64 (nodes,), samples of each step that a node processes; their sum is `rows`.
    Returns int32 (steps, rows), in which each node occurs in a step as often as its capacity.
    """
    steps = max(1, _radix_bins // (len(capacities) + 1))
    if len(owners) <= steps:
        return _assign_narrow(owners, capacities)
    starts = range(0, len(owners), steps)
    return np.concatenate([_assign_narrow(owners[k : k + steps], capacities) for k in starts])


def _assign_narrow(owners: Nodes, capacities: Int) -> Nodes:
    """Assign samples of so few steps that 16-bit numbers tell their nodes apart."""
    steps, _ = owners.shape
    # Samples without an owner belong to a node without capacity, the first in each step.
    width = len(capacities) + 1
    bins = _narrow_integers(
        owners + np.arange(1, 1 + steps * width, width, dtype=np.int32)[:, None], steps * width
    ).reshape(-1)
    owned = np.bincount(bins, minlength=steps * width)
    places = np.tile(np.append(0, capacities), steps)
    kept = np.minimum(owned, places)
    runs = np.stack([kept, owned - kept], axis=1).reshape(-1)
    is_surplus = np.repeat(np.tile([False, True], steps * width), runs)
    is_free = np.zeros(len(bins), bool)
    is_free[np.argsort(bins, kind="stable")[is_surplus]] = True
    nodes = owners.copy()
    numbers = np.tile(np.arange(-1, width - 1, dtype=np.int32), steps)
    nodes.reshape(-1)[is_free] = np.repeat(numbers, places - kept)
    return nodes


def _narrow_integers(values: npt.NDArray[np.integer], bins: int) -> npt.NDArray[np.integer]:
    return values.astype(np.uint16 if bins <= _radix_bins else np.int64)
