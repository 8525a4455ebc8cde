"""The quality of a shuffle, and the evenness with which labels are dealt.

The quality is one number, from the maximum mean discrepancy (MMD) with the Mallows kernel.

Two epochs rank the same samples differently. The kernel of two rankings of n samples is
exp(-5 d), where d is the share of the n(n-1)/2 pairs that they order differently. Its mean over
independent epochs of a perfect shuffle has a closed form. The excess of a shuffle's mean over that
is its squared MMD from perfect. `shuffle_quality` is 1 minus the MMD, scaled so that a sequence
that never changes has MMD 1: 1.0 for a perfect shuffle, 0.0 for none.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .. import limits
from ..arguments import check_kind
from .order import Order

_lambda = 5.0


def shuffle_quality(order: Order) -> float:
    """Estimate a quality: 1.0 if epochs are independent and uniform, 0.0 if they never change.

    The estimate is from `limits.shuffle_pairs` pairs of consecutive epochs (0 and 1, 1 and 2, ...).
    It is on all samples if they are few, else on 8 runs of 128 neighbours. The kernel then sees
    neighbours in storage that stay near each other in every epoch: the price of blocks. An
    order that keeps such runs together, wherever it puts them, has about 0.88. A perfect shuffle
    gets between about 0.98 and 1. The same order gives the same number.
    """
    check_kind("order", order, Order, "a penstock.Order")
    sampled = _choose_runs(order.count)
    count = len(sampled)
    if count < 2:
        return 1.0
    ranks = np.empty((limits.shuffle_pairs + 1, count), np.int64)
    for epoch, row in enumerate(ranks):
        row[np.argsort(order.at_epoch(epoch).positions(sampled))] = np.arange(count)
    # The second ranking in the sequence of the first: its inversions are the discordant pairs.
    second = np.take_along_axis(ranks[1:], np.argsort(ranks[:-1], axis=1), axis=1)
    share = count_inversions(second) / (count * (count - 1) / 2)
    measured = float(np.exp(-_lambda * share).mean())
    perfect = expected_kernel(count)
    return 1.0 - math.sqrt(max(0.0, (measured - perfect) / (1.0 - perfect)))


def expected_kernel(count: int, strength: float = _lambda) -> float:
    """The mean of the kernel exp(-strength d) over all rankings of `count` samples."""
    pairs = count * (count - 1) / 2
    j = np.arange(1, count + 1)
    terms = np.expm1(-strength * j / pairs) / (j * math.expm1(-strength / pairs))
    return float(np.exp(np.log(terms).sum()))


def count_inversions(rankings: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Count the pairs out of order in each row, a permutation of 0..n-1. O(n log n) for a row.

    The count goes bit by bit from the highest. A pair out of order first differs in one bit that
    the left one has and the right one does not. Splitting by that bit leaves the groups of equal
    higher bits.
    """
    rows, count = rankings.shape
    bits = max(1, (count - 1).bit_length())
    padding = np.broadcast_to(np.arange(count, 1 << bits), (rows, (1 << bits) - count))
    values = np.concatenate([rankings, padding], axis=1)  # in order, at the end: none out of order
    inversions = np.zeros(rows, np.int64)
    for bit in range(bits - 1, -1, -1):
        group = values.reshape(rows, -1, 2 << bit)
        high = (group >> bit & 1).astype(bool)
        inversions += (np.cumsum(high, axis=2) * ~high).sum(axis=(1, 2))
        low_half, high_half = (group[side].reshape(*group.shape[:2], -1) for side in (~high, high))
        values = np.concatenate([low_half, high_half], axis=2).reshape(rows, -1)
    return inversions


def _choose_runs(count: int) -> npt.NDArray[np.uint64]:
    """Return runs of neighbours, spread evenly over the samples; all samples if they are few."""
    runs, length = limits.shuffle_runs, limits.shuffle_run_samples
    if count <= runs * length:
        return np.arange(count, dtype=np.uint64)
    starts = [(count - length) * run // (runs - 1) for run in range(runs)]
    return np.concatenate([np.arange(start, start + length, dtype=np.uint64) for start in starts])


class LabelMix(NamedTuple):
    """Distance of each owner's labels from a random deal.

    spread:   float64 (owners,), the chi-square statistic of the owner's counts by label, divided by
              the statistic's mean under random dealing: about 1 for chance, above 1 for labels that
              come in clumps.
    p_value:  float64 (owners,), the probability that chance gives as much or more. With many
              owners the least of them is small by chance too: compare it with 1 / owners.
    """

    spread: npt.NDArray[np.float64]
    p_value: npt.NDArray[np.float64]


def label_mix(labels: npt.NDArray[np.integer], owners: npt.NDArray[np.integer]) -> LabelMix:
    """Compare the labels that owners (ranks or nodes) process with a random deal.

    labels, owners:  of each sample; samples without an owner (-1) belong to the rest.

    Nodes that keep single samples get such a mix. Nodes that keep large cache blocks of data sorted
    by label do not. Code that looks at one rank's samples alone (batch normalisation that is not
    synchronised) then sees fewer labels: shuffle the data when it is written, or use smaller cache
    blocks.

    Random dealing is drawing without replacement, for which the statistic's mean is exact. The
    chi-square distribution is a good approximation if an owner has 5 samples or more of most
    labels. An owner of no sample or of all, and data of one label, have spread 1 and p-value 1.
    """
    total = len(labels)
    _, label = np.unique(labels, return_inverse=True)
    owned = np.asarray(owners) >= 0
    width = int(label.max(initial=0)) + 1
    nodes = int(np.max(owners, initial=-1)) + 1
    bins = owners[owned].astype(np.int64) * width + label[owned]
    counts = np.bincount(bins, minlength=nodes * width).reshape(nodes, width)
    own = counts.sum(axis=1, keepdims=True)
    expected = own * (np.bincount(label, minlength=width) / max(1, total))
    spread, p_value = np.ones(nodes), np.ones(nodes)
    partial = (own[:, 0] > 0) & (own[:, 0] < total)
    degrees = width - 1
    if degrees and partial.any():
        mean = degrees * (total - own[partial, 0]) / (total - 1)
        deviation = (counts[partial] - expected[partial]) ** 2 / expected[partial]
        spread[partial] = deviation.sum(axis=1) / mean
        p_value[partial] = _chi_square_tail(spread[partial] * degrees, degrees)
    return LabelMix(spread, p_value)


def _chi_square_tail(statistic: npt.NDArray[np.float64], degrees: int) -> npt.NDArray[np.float64]:
    """The probability of at least so much: Q(degrees / 2, statistic / 2).

    Q is the incomplete gamma function, from Q(1/2) or Q(1) upwards by
    Q(a + 1, y) = Q(a, y) + y^a exp(-y) / Gamma(a + 1).
    """
    y = np.maximum(statistic / 2, 1e-300)[:, None]
    least = 0.5 if degrees % 2 else 1.0
    first = [math.erfc(math.sqrt(half)) if degrees % 2 else math.exp(-half) for half in y[:, 0]]
    a = np.arange(least, degrees / 2)
    scale = np.array([math.lgamma(exponent + 1) for exponent in a])
    tail: npt.NDArray[np.float64] = first + np.exp(a * np.log(y) - y - scale).sum(axis=1)
    return np.minimum(1.0, tail)
