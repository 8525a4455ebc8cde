"""Shuffling: the choice between exact and blocked order, the quality of a shuffle, and arrays.

Choice. In the model each read costs a fixed time besides its bytes at `bytes_per_s`. The fixed time
comes from reads of one sample, `requests` of which are served at a time. It is as if every read
fetched some more bytes, the overhead: reads of L bytes give L / (L + overhead) of the bandwidth. In
a blocked order the samples of a group of blocks come within one window of read-ahead, and
neighbours are read together.

Quality. It is one number, from the maximum mean discrepancy (MMD) with the Mallows kernel. Two
epochs rank the same samples differently. The kernel of two rankings of n samples is exp(-5 d),
where d is the share of the n(n-1)/2 pairs that they order differently. Its mean over independent
epochs of a perfect shuffle has a closed form. The excess of a shuffle's mean over that is its
squared MMD from perfect. `shuffle_quality` is 1 minus the MMD, scaled so that a sequence that never
changes has MMD 1: 1.0 for a perfect shuffle, 0.0 for none.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import _core, limits
from ..arguments import check_kind, check_whole
from ..errors import UsageError
from .order import Order, Shuffle

_enough = 0.9
"""Part of the bandwidth of large reads from which random reads are fast enough."""
_gain_min = 1.5
"""Least speed-up of reading for which blocks are chosen, because they make the order worse."""


@dataclass(frozen=True, slots=True)
class ReadCost:
    """Cost of reading from a storage, as measured.

    latency_ns:   time of one read of a sample, alone.
    bytes_per_s:  bandwidth of large reads, several in flight.
    requests:     reads that the storage serves at a time: (reads of a sample a second, with many
                  in flight) * latency.
    """

    latency_ns: float
    bytes_per_s: float
    requests: float

    def overhead_bytes(self, size: float) -> float:
        """Cost of each read besides its bytes, in bytes; `size` is the measured reads' size."""
        read_s = max(1.0, self.latency_ns) * 1e-9 / self.requests
        return max(0.0, read_s * self.bytes_per_s - size)


@dataclass(frozen=True, slots=True)
class Blocking:
    """Chosen `shuffle`, `block` and `group` of an `Order`, and the reason.

    reached:  part of the bandwidth of large reads that the order is expected to get.
    """

    shuffle: Shuffle
    block: int
    group: int
    reached: float
    reason: str


def choose_blocks(
    count: int,
    mean_bytes: float,
    measured: ReadCost,
    *,
    window_samples: int,
    world_size: int = 1,
    gap_bytes: int | None = limits.gap_bytes_default,
) -> Blocking:
    """Choose the exact order if random reads reach 90 % of the bandwidth of large reads.

    Otherwise choose the smallest block, a power of two, that reaches it, and as many blocks to
    a group as a window of read-ahead holds.

    window_samples:  samples of all ranks that one window of read-ahead covers.
    gap_bytes:       see `penstock.plan.steps.plan_steps`; None without merging.
    """
    size = max(1.0, mean_bytes)
    overhead = measured.overhead_bytes(size)

    def reach(samples: int) -> float:
        return samples * size / (samples * size + overhead)

    exact = reach(1)

    def keep_exact(reason: str) -> Blocking:
        return Blocking("exact", 1, 1, exact, reason)

    if exact >= _enough:
        return keep_exact(f"random reads reach {exact:.0%} of what large reads give")
    short = f"random reads reach {exact:.0%} of what large reads give, but "
    if gap_bytes is None:
        return keep_exact(short + "reads of neighbours are not merged here")
    # A block is dealt to all ranks. Each reads over the others' samples where these are few.
    if 4 * (world_size - 1) * size > gap_bytes:
        return keep_exact(
            short + f"each of {world_size} ranks would read its part of a block bit by bit"
        )
    one_read = min(limits.run_extents_max, int(limits.run_bytes_max // size))
    most = max(1, min(one_read * world_size, window_samples, count))
    block = 1
    while 2 * block <= most and reach(block) < _enough:
        block *= 2
    reached = reach(block) / world_size  # a rank reads what the others want as well
    if reached < _gain_min * exact:
        return keep_exact(short + f"blocks would reach no more than {reached:.0%}")
    group = max(1, min(window_samples, count) // block)
    group = 1 << (group.bit_length() - 1)  # a coarse value: measuring again gives the same
    reason = f"random reads reach {exact:.0%} of what large reads give, blocks {reached:.0%}"
    return Blocking("blocked", block, group, reached, reason)


def window_samples(mean_bytes: float, rows: int, world_size: int, readahead_bytes: int) -> int:
    """Samples of all ranks in half a window of merged reads (see `penstock.plan`).

    It is half a window, so that most groups fall into one window.
    """
    rank_samples = min(
        int(readahead_bytes // 2 / max(1.0, mean_bytes)),
        limits.readahead_steps_max // 2 * rows,
        limits.window_samples_max,
    )
    return max(1, rank_samples * world_size // 2)


def choose_chunk_blocks(count: int, chunk_samples: int, global_batch: int) -> Blocking:
    """Choose blocks for samples that are stored in compressed chunks of `chunk_samples` samples.

    Each step reads each of its chunks once, so a group is as many blocks as a step holds. Nothing
    has to be measured.
    """
    if chunk_samples == 1:
        return Blocking("exact", 1, 1, 1.0, "no two samples are decoded together")
    block = min(chunk_samples, count)
    group = max(1, min(global_batch, count) // block)
    reason = f"{chunk_samples} samples are decoded together, so they are blocks"
    return Blocking("blocked", block, group, 1.0, reason)


# -- quality ---------------------------------------------------------------------------------------

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
    sizes = counts.sum(axis=1, keepdims=True)
    expected = sizes * (np.bincount(label, minlength=width) / max(1, total))
    spread, p_value = np.ones(nodes), np.ones(nodes)
    partial = (sizes[:, 0] > 0) & (sizes[:, 0] < total)
    degrees = width - 1
    if degrees and partial.any():
        mean = degrees * (total - sizes[partial, 0]) / (total - 1)
        deviation = (counts[partial] - expected[partial]) ** 2 / expected[partial]
        spread[partial] = deviation.sum(axis=1) / mean
        p_value[partial] = _chi_square_tail(spread[partial] * degrees, degrees)
    return LabelMix(spread, p_value)


def _chi_square_tail(statistic: npt.NDArray[np.float64], degrees: int) -> npt.NDArray[np.float64]:
    """The probability of at least so much: Q(degrees / 2, statistic / 2).

    Q is the incomplete gamma function, from Q(1/2) or Q(1) upwards by
    Q(a + 1, y) = Q(a, y) + y^a exp(-y) / Gamma(a + 1).
    """
    y = np.maximum(statistic / 2, 1e-300)[:, None]  # its logarithm is taken
    least = 0.5 if degrees % 2 else 1.0
    first = [math.erfc(math.sqrt(half)) if degrees % 2 else math.exp(-half) for half in y[:, 0]]
    a = np.arange(least, degrees / 2)
    scale = np.array([math.lgamma(exponent + 1) for exponent in a])
    tail: npt.NDArray[np.float64] = first + np.exp(a * np.log(y) - y - scale).sum(axis=1)
    return np.minimum(1.0, tail)


# -- arrays ----------------------------------------------------------------------------------------


def shuffle(
    array: npt.ArrayLike,
    seed: int,
    epoch: int = 0,
    *,
    out: npt.NDArray[Any] | None = None,
    threads: int | None = None,
) -> npt.NDArray[Any]:
    """Shuffle the rows of an array: return array[Order(len(array), seed, epoch).run(0, n)].

    The values are the same on any number of threads, and from `penstock.torch.gpu`. Rows run along
    the first axis, of any shape and dtype. `penstock.Order.positions` finds a row again.

    out:      array that receives the result, of the same shape and dtype, C-contiguous. `array`
              itself is shuffled in place, by way of a copy. Other overlaps give the right result
              too. By default a new array is made.
    threads:  by default one for each core that this process may use.

    Large arrays of rows up to 16 bytes take two passes and two bytes of scratch a row (four from
    2^28 rows on), others one pass. An array that is not C-contiguous is copied first. Raises
    UsageError.
    """
    source = np.asarray(array)
    if source.ndim == 0:
        raise UsageError("array has no axis to shuffle along: give one of at least one dimension")
    if out is None:
        out = np.empty(source.shape, source.dtype)
    _check_out(out, source)
    count = len(source)
    order = Order(max(1, count), seed, epoch)  # its checks hold for empty arrays too
    thread_count = _check_threads(threads)
    if source.size == 0 or source.dtype.itemsize == 0:
        return out
    if source.dtype.hasobject:
        out[...] = source[order.run(0, count)]  # references are counted, not copied as bytes
        return out
    rows = np.ascontiguousarray(source)
    in_place = rows.ctypes.data == out.ctypes.data
    if not in_place and np.may_share_memory(rows, out):
        rows = rows.copy()
    assert isinstance(order._map, _core.Permutation)
    row_bytes = rows.nbytes // count
    _core.shuffle_rows(order._map, _view_bytes(rows), _view_bytes(out), row_bytes, thread_count)
    return out


def _view_bytes(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """View a contiguous array's memory as bytes."""
    return array.reshape(-1).view(np.uint8)


def _check_out(out: Any, array: npt.NDArray[Any]) -> None:
    if not isinstance(out, np.ndarray):
        raise UsageError(f"out is a {type(out).__name__}: give a numpy array")
    if out.shape != array.shape or out.dtype != array.dtype:
        what = f"out is {out.dtype} {out.shape} and the array {array.dtype} {array.shape}"
        raise UsageError(f"{what}: give the same shape and dtype")
    if not out.flags.c_contiguous or not out.flags.writeable:
        raise UsageError("out is not contiguous, or read-only: give a writable C-contiguous array")


def _check_threads(threads: int | None) -> int:
    if threads is None:
        return min(limits.threads_max, len(os.sched_getaffinity(0)))
    return check_whole("threads", threads, 1, limits.threads_max)
