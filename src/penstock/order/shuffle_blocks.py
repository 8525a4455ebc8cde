"""The choice between exact and blocked order, by the cost of random reads on a storage. Pure.

In the model each read costs a fixed time besides its bytes at `bytes_per_s`. The fixed time comes
from reads of one sample, `requests` of which are served at a time. It is as if every read fetched
some more bytes, the overhead: reads of L bytes give L / (L + overhead) of the bandwidth. In a
blocked order the samples of a group of blocks come within one window of read-ahead, and neighbours
are read together.
"""

from __future__ import annotations

from dataclasses import dataclass

from .. import limits
from .order import Shuffle

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
    own = min(
        int(readahead_bytes // 2 / max(1.0, mean_bytes)),
        limits.readahead_steps_max // 2 * rows,
        limits.window_samples_max,
    )
    return max(1, own * world_size // 2)


def choose_chunk_blocks(count: int, chunk_samples: int, global_batch: int) -> Blocking:
    """Choose blocks for samples that are stored in compressed chunks of `chunk_samples` samples.

    Each step reads each of its chunks once, so a group is as many blocks as a step holds. Nothing
    has to be measured.
    """
    block = min(chunk_samples, count)
    group = max(1, min(global_batch, count) // block)
    reason = f"{chunk_samples} samples are decoded together, so they are blocks"
    return Blocking("blocked", block, group, 1.0, reason)
