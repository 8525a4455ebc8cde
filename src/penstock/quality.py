"""How good a shuffle is, as one number: the maximum mean discrepancy (MMD) with the Mallows kernel.

Two epochs rank the same samples differently. The kernel of two rankings of n samples is
exp(-5 d), where d is the share of the n(n-1)/2 pairs that they order differently. Its mean over
independent epochs of a perfect shuffle has a closed form; what a shuffle has above that is its
squared MMD from perfect. `shuffle_quality` is 1 less the MMD, where 1 is the MMD of a sequence that
never changes: 1.0 for a perfect shuffle, 0.0 for none.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from . import limits
from .order import Order

_lambda = 5.0


def shuffle_quality(order: Order) -> float:
    """1.0 for an order whose epochs are independent and uniform, 0.0 for one that never changes.

    Estimated from `limits.shuffle_pairs` pairs of consecutive epochs (0 and 1, 1 and 2, ...), on
    all samples where they are few, else on 8 runs of 128 neighbours: the kernel then sees
    neighbours in storage that stay near each other in every epoch, which is what blocks cost. An
    order that keeps such runs together, wherever it puts them, has about 0.88. A perfect shuffle
    is found between about 0.98 and 1. The same order gives the same number.
    """
    sampled = _sampled(order.count)
    count = len(sampled)
    if count < 2:
        return 1.0
    ranks = np.empty((limits.shuffle_pairs + 1, count), np.int64)
    for epoch, row in enumerate(ranks):
        row[np.argsort(order.at_epoch(epoch).positions(sampled))] = np.arange(count)
    # The second ranking in the sequence of the first: its inversions are the discordant pairs.
    second = np.take_along_axis(ranks[1:], np.argsort(ranks[:-1], axis=1), axis=1)
    share = inversions(second) / (count * (count - 1) / 2)
    found = float(np.exp(-_lambda * share).mean())
    perfect = expected_kernel(count)
    return 1.0 - math.sqrt(max(0.0, (found - perfect) / (1.0 - perfect)))


def expected_kernel(count: int, strength: float = _lambda) -> float:
    """The mean of the kernel exp(-strength d) over all rankings of `count` samples."""
    pairs = count * (count - 1) / 2
    j = np.arange(1, count + 1)
    terms = np.expm1(-strength * j / pairs) / (j * math.expm1(-strength / pairs))
    return float(np.exp(np.log(terms).sum()))


def inversions(rankings: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Pairs out of order in each row, a permutation of 0..n-1. O(n log n) for a row.

    Bit by bit from the highest: a pair out of order first differs in one bit, the left one has
    it and the right one does not. Splitting by that bit leaves the groups of equal higher bits.
    """
    rows, count = rankings.shape
    bits = max(1, (count - 1).bit_length())
    padding = np.broadcast_to(np.arange(count, 1 << bits), (rows, (1 << bits) - count))
    values = np.concatenate([rankings, padding], axis=1)  # in order, at the end: none out of order
    found = np.zeros(rows, np.int64)
    for bit in range(bits - 1, -1, -1):
        group = values.reshape(rows, -1, 2 << bit)
        high = (group >> bit & 1).astype(bool)
        found += (np.cumsum(high, axis=2) * ~high).sum(axis=(1, 2))
        low_half, high_half = (group[side].reshape(*group.shape[:2], -1) for side in (~high, high))
        values = np.concatenate([low_half, high_half], axis=2).reshape(rows, -1)
    return found


def _sampled(count: int) -> npt.NDArray[np.uint64]:
    """Runs of neighbours, spread evenly over the samples; all samples where there are few."""
    runs, held = limits.shuffle_runs, limits.shuffle_run_samples
    if count <= runs * held:
        return np.arange(count, dtype=np.uint64)
    starts = [(count - held) * run // (runs - 1) for run in range(runs)]
    return np.concatenate([np.arange(start, start + held, dtype=np.uint64) for start in starts])
