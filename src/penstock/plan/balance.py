"""Balanced assignment: samples of a global batch are dealt to ranks by their cost. Pure.

The rank that processes a sample changes no global batch, so assignment may follow the costs. The
rule, in each step, with n ranks:

    the samples are sorted by cost, the costliest first, equals in the order of the
    batch, and each goes to the rank whose sum is smallest so far, until that has its number.

So the first n samples go to the ranks back, and the next n forth. In lockstep every stripe of n
neighbours is dealt in this way, one to each rank. Among equal sums turns decide; they move on by
one each step, so that no rank always has the costliest. If the numbers of an epoch's last step
differ, the first ranks have one sample more.

Every rank computes this for the whole global batch, without messages: all need equal costs. Costs
are compared in steps of 1/65535 of the step's largest: 16-bit integers are sorted by radix.

With `locality`, the caches have a say: some stripes are a band, in which each node takes first
what it keeps, as by local assignment; its ranks deal what it has got. Costs within a band are near
each other, so the narrower it is, the better the balance; the wider, the more samples stay: of a
band of w stripes as many move as local assignment's formula says for w times the ranks of a node.
If a rank has m samples, bands of a share x start with x x m stripes, where costs differ most, and
double up to x m. So x = 1 is local assignment.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .. import limits
from .._core import deal_rows
from ..errors import UsageError
from ..extent import Int
from ..order.order import Ordering
from ..order.packed_order import RowOrdering
from .assignment import Locality, assign_nodes
from .batch_layout import Ids
from .placement import Nodes
from .sample_cost import CostRule, Costs, apply_cost, check_lengths, sum_costs

LengthsOf = Callable[[Ids], Int]
"""Function of samples, uint64 (n,), to the length of each: equal on every rank."""

Levels = npt.NDArray[np.uint16]

_levels = 65535  # the most that uint16 holds


@dataclass(frozen=True, slots=True)
class CostBalance:
    """Costs by which the samples of a step are dealt. Equal on every rank.

    cost:            rule of what a document of some length costs.
    lengths_of:      lengths of samples; None for orders of packed rows, which know them.
    lockstep:        number k of each rank's samples are neighbours in cost. Else a rank's samples
                     are in the order of the batch.
    locality:        owners of the samples, and nodes of the ranks; None without.
    locality_share:  width of the widest bands, as a share of a rank's samples: 0 is none.
    """

    cost: CostRule
    lengths_of: LengthsOf | None = None
    lockstep: bool = False
    locality: Locality | None = None
    locality_share: float = 0.0

    def measure(self, order: Ordering, positions: Ids) -> Costs:
        """Return the costs of the samples, or rows, at some positions of an epoch."""
        if isinstance(order, RowOrdering):
            lengths, starts = order.row_document_lengths(positions)
            return sum_costs(apply_cost(self.cost, lengths), starts)
        assert self.lengths_of is not None, "the lengths of samples are needed, unless packed"
        samples = order.samples(positions)
        return apply_cost(self.cost, check_lengths(self.lengths_of(samples), samples))

    def rows(self, order: Ordering, positions: Ids, quotas: Int, rank: int) -> Int:
        """Select the rows of some steps that a rank processes.

        positions:  (steps, rows), of the global batches.
        quotas:     of each rank, its samples of each step; their sum is `rows`.
        Returns indices into the flat positions, int64 (steps * quotas[rank],): step by step,
        ascending within each unless in lockstep.
        """
        costs = self.measure(order, positions.reshape(-1)).reshape(positions.shape)
        levels = level_costs(costs)
        turns = (positions[:, 0] // np.uint64(positions.shape[1])).astype(np.int64)
        if self.locality is None or not self.locality_share:
            rows = _take_share(deal(levels, turns, len(quotas), self.lockstep), len(quotas), rank)
        else:
            by_cost = deal(levels, turns, 1, self.lockstep)
            samples = order.samples(np.take_along_axis(positions, by_cost, axis=1))
            nodes = self._assign_bands(self.locality.owners(samples), quotas)
            node = self.locality.nodes[rank]
            ranks = np.flatnonzero(np.asarray(self.locality.nodes) == node)
            at_node = by_cost[nodes == node].reshape(len(positions), -1)
            at_levels = np.take_along_axis(levels, at_node, axis=1)
            dealt = deal(at_levels, turns, len(ranks), self.lockstep)
            within = _take_share(dealt, len(ranks), int(np.searchsorted(ranks, rank)))
            rows = np.take_along_axis(at_node, within, axis=1)
        if not self.lockstep:
            rows.sort(axis=1)
        rows += np.arange(len(positions))[:, None] * positions.shape[1]
        return rows.reshape(-1)

    def _assign_bands(self, owners: Nodes, quotas: Int) -> Nodes:
        """Return the node of each sample of sorted steps: int32 (steps, rows)."""
        assert self.locality is not None
        steps, world = len(owners), len(quotas)
        per_node = np.bincount(self.locality.nodes, minlength=self.locality.placement.nodes)
        band_nodes, done = [], 0
        for width, bands in _divide_bands(int(quotas.min()), self.locality_share):
            stop = done + bands * width * world
            some = np.ascontiguousarray(owners[:, done:stop]).reshape(steps * bands, -1)
            band_nodes.append(assign_nodes(some, width * per_node).reshape(steps, -1))
            done = stop
        if done < owners.shape[1]:  # the short stripe at the end of an epoch
            capacities = np.bincount(self.locality.nodes, quotas, len(per_node)).astype(np.int64)
            capacities -= int(quotas.min()) * per_node
            band_nodes.append(assign_nodes(np.ascontiguousarray(owners[:, done:]), capacities))
        return np.concatenate(band_nodes, axis=1)


def _divide_bands(stripes: int, share: float) -> list[tuple[int, int]]:
    """Divide stripes into bands; return the widths, and the number of bands of each in a row."""
    widest = math.ceil(share * stripes)
    width = max(1, math.ceil(share * widest))
    bands: list[tuple[int, int]] = []
    while stripes:
        width = min(width, widest, stripes)
        number = stripes // width if width == widest else 1
        bands.append((width, number))
        stripes -= width * number
        width *= 2
    return bands


def level_costs(costs: Costs) -> Levels:
    """Return the costs of steps, (steps, rows), as levels: the largest of a step is 65535."""
    most = costs.max(axis=1, initial=0.0, keepdims=True)
    levels = costs * (_levels / np.where(most > 0, most, 1.0))
    return np.minimum(levels, _levels).astype(np.uint16)


def deal(levels: Levels, turns: Int, ranks: int, in_stripes: bool) -> Int:
    """Deal the rows of steps to ranks; see the module's docstring.

    levels:  costs, (steps, rows).
    turns:   int64 (steps,), how far the ranks' turns are moved on.
    Returns int64 (steps, rows): the first row of each rank, the second of each, and so on; the
    first ranks may have one more. With one rank that is the rows, the costliest first.
    """
    dealt = np.empty(levels.shape, np.int64)
    count = levels.shape[1]
    deal_rows(levels.reshape(-1), turns, count, ranks, in_stripes, dealt.reshape(-1))
    return dealt


def _take_share(dealt: Int, ranks: int, rank: int) -> Int:
    """Return the rows of one rank, stripe by stripe, int64 (steps, its rows)."""
    return np.ascontiguousarray(dealt[:, rank::ranks])


def check_balance(global_batch: int, world_size: int) -> None:
    """Raise UsageError if the ranks cannot have equal numbers of samples."""
    if global_batch > limits.balanced_rows_max:
        what = f"assignment='balanced' deals at most {limits.balanced_rows_max:,} samples a step"
        raise UsageError(f"{what}, not {global_batch:,}: use assignment='strided'")
    if global_batch % world_size:
        below = global_batch - global_batch % world_size
        batches = f"{below or world_size} or {below + world_size} samples"
        what = f"assignment='balanced' deals equally to {world_size} ranks, and a global batch"
        raise UsageError(f"{what} has {global_batch}: use {batches}, or 'strided'")
