"""Local assignment: samples of a global batch go to the ranks of the node that keeps them. Pure.

Which rank processes which sample of a global batch changes no global batch, so it is free to
follow the caches. The rule, for each step by itself:

    each node keeps, in the order of the batch, the first samples that it owns, up to the seats of
    its ranks; the others and those of no owner, in the order of the batch, take the seats that are
    left, node by node; within a node samples go to its ranks in turn, in the order of the batch.

Every rank works this out for the whole global batch, without messages. No assignment moves fewer
samples: each node must give away what it owns beyond its seats, and nothing else leaves its owner.

Let N nodes have b seats each and own all samples, independently of the order. A node owns
K ~ Bin(N b, 1/N) of a batch, and E[(K - b)+] = E|K - b| / 2. By de Moivre's formula for the mean
absolute deviation of a binomial (Diaconis and Zabell, Statistical Science 6, 1991), samples are
processed away from their owner with probability

    (1 - 1/N) P[K = b]  ~  0.4 / sqrt(b) sqrt(1 - 1/N).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..errors import UsageError
from ..extent import Int
from .placement import Nodes, Placement

_radix_bins = 1 << 16  # numpy sorts 16-bit keys by radix, wider ones by comparison


@dataclass(frozen=True, slots=True)
class Locality:
    """Who keeps samples, and on which nodes the ranks are: what local assignment goes by.

    nodes:  the node of each rank, a number below `placement.nodes`; in any sequence.

    The same on every rank.
    """

    placement: Placement
    nodes: tuple[int, ...]
    _nodes: Int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        nodes = np.asarray(self.nodes)
        if nodes.ndim != 1 or nodes.dtype.kind not in "iu" or not nodes.size:
            raise UsageError(f"Locality.nodes is {self.nodes!r}: give the node of each rank")
        if nodes.min() < 0 or nodes.max() >= self.placement.nodes:
            raise UsageError(
                f"Locality.nodes has {nodes.min()}..{nodes.max()}, and the placement is over "
                f"{self.placement.nodes} nodes: use 0..{self.placement.nodes - 1}"
            )
        object.__setattr__(self, "nodes", tuple(nodes.tolist()))
        object.__setattr__(self, "_nodes", nodes.astype(np.int64))

    def rows(self, samples: npt.NDArray[np.uint64], quotas: Int, rank: int) -> Int:
        """Which rows of some steps a rank has.

        samples:  (steps, held), the global batches.
        quotas:   of each rank, its samples of each step; their sum is `held`.
        Returns indices into the flat samples, ascending: int64 (steps * quotas[rank],).
        """
        node = self.nodes[rank]
        seats = self._seats(quotas)
        at = assign_nodes(self.placement.owners(samples), seats)
        own = np.flatnonzero(at == node).reshape(len(samples), seats[node])
        turns = self._turns(np.flatnonzero(self._nodes == node), quotas)
        return own[:, turns == rank].reshape(-1)

    def ranks(self, samples: npt.NDArray[np.uint64], quotas: Int) -> Nodes:
        """The rank that has each row of some steps, int32 (steps, held); see `rows`."""
        seats = self._seats(quotas)
        at = assign_nodes(self.placement.owners(samples), seats)
        dealt = self._turns(np.arange(len(self.nodes)), quotas).astype(np.int32)
        found = np.empty_like(at)
        for step, nodes in enumerate(at):
            found[step, np.argsort(_narrow(nodes, len(seats)), kind="stable")] = dealt
        return found

    def _turns(self, ranks: Int, quotas: Int) -> Int:
        """The ranks, seat by seat, node after node: those of a node in turn."""
        quota = quotas[ranks]
        rank = np.repeat(ranks, quota)
        turn = np.arange(len(rank)) - np.repeat(np.cumsum(quota) - quota, quota)
        found: Int = rank[np.lexsort((rank, turn, self._nodes[rank]))]
        return found

    def _seats(self, quotas: Int) -> Int:
        return np.bincount(self._nodes, quotas, self.placement.nodes).astype(np.int64)


def assign_nodes(owners: Nodes, seats: Int) -> Nodes:
    """The node that processes each sample of some steps.

    owners:  int32 (steps, held), who keeps each sample of a global batch; -1 for nobody.
    seats:   int64 (nodes,), how many samples of each step a node has; their sum is `held`.
    Returns int32 (steps, held), in which each node stands `seats` times a step.
    """
    steps = max(1, _radix_bins // (len(seats) + 1))
    if len(owners) <= steps:
        return _seat(owners, seats)
    parts = [_seat(owners[k : k + steps], seats) for k in range(0, len(owners), steps)]
    return np.concatenate(parts)


def _seat(owners: Nodes, seats: Int) -> Nodes:
    """The same for so few steps that their nodes can be told apart by narrow numbers."""
    steps, _ = owners.shape
    # Samples of nobody belong to a node without seats, which comes first in each step.
    width = len(seats) + 1
    bins = _narrow(
        owners + np.arange(1, 1 + steps * width, width, dtype=np.int32)[:, None], steps * width
    ).reshape(-1)
    held = np.bincount(bins, minlength=steps * width)
    places = np.tile(np.append(0, seats), steps)
    kept = np.minimum(held, places)
    runs = np.stack([kept, held - kept], axis=1).reshape(-1)
    over = np.repeat(np.tile([False, True], steps * width), runs)
    free = np.zeros(len(bins), bool)
    free[np.argsort(bins, kind="stable")[over]] = True
    found = owners.copy()
    numbers = np.tile(np.arange(-1, width - 1, dtype=np.int32), steps)
    found.reshape(-1)[free] = np.repeat(numbers, places - kept)
    return found


def _narrow(values: npt.NDArray[np.integer], bins: int) -> npt.NDArray[np.integer]:
    return values.astype(np.uint16 if bins <= _radix_bins else np.int64)


def expected_moves(seats: int, nodes: int) -> float:
    """The fraction of samples that local assignment moves away from their owner, where `nodes` own
    all samples and have `seats` each; see above. Finite data moves a little less."""
    n = seats * nodes
    if nodes == 1:
        return 0.0
    log = math.lgamma(n + 1) - math.lgamma(seats + 1) - math.lgamma(n - seats + 1)
    log += seats * -math.log(nodes) + (n - seats) * math.log1p(-1 / nodes)
    return (1 - 1 / nodes) * math.exp(log)
