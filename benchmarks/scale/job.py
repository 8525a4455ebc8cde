"""A job of 10^5 ranks over 10^12 samples, planned by the shipped code for some ranks and steps.

Each chosen rank walks some steps with the library's `Session`, as its loader would. Held against
that are functions of this module which know neither `Steps` nor `plan_steps`: the inverse of the
order says at which position each planned sample is due, and arithmetic says which rank has that
position, and which bytes of which shard the sample is. For whole steps the samples of all ranks are
collected: their positions must be those of the step, each once.
"""

from __future__ import annotations

import time
import tracemalloc
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.extent import Extents, Files, Int
from penstock.index import Field, Index
from penstock.index.layout import Fixed
from penstock.order.order import Order
from penstock.plan.readahead import Session
from penstock.plan.steps import Steps

Samples = npt.NDArray[np.uint64]

RECORD_BYTES = 512
SEED = 38


def make_index(samples: int, shards: int) -> Index:
    """The index of records of one size in so many shards, two of which differ in size, so that the
    shard of a sample is searched for."""
    counts = np.full(shards, samples // shards)
    counts[-1] += samples - counts.sum()
    if shards > 1:
        counts[:2] += 1, -1
    first = np.concatenate([[0], np.cumsum(counts)])
    names = np.frombuffer(b"".join(b"%08d.bin" % shard for shard in range(shards)), np.uint8)
    times = np.full(shards, 10**18)
    files = Files("/data", names, np.arange(1, shards + 1) * 12, counts * RECORD_BYTES, times)
    fields = (Field("data", np.dtype(np.uint8), (RECORD_BYTES,)),)
    layouts = (Fixed(first, np.zeros(shards, np.int64), RECORD_BYTES),)
    return Index("records", files, fields, layouts, files)


class JobSize(NamedTuple):
    """Size of a job.

    batch:  samples of a rank in a step.
    """

    samples: int
    shards: int
    ranks: int
    batch: int = 30

    @property
    def global_batch(self) -> int:
        """Samples of a step."""
        return self.ranks * self.batch


@dataclass(slots=True)
class JobReport:
    """Numbers of a job that was planned and checked.

    peak_bytes:  of memory, the most that the walk of one rank took.
    """

    ranks: int = 0
    rank_steps: int = 0
    samples: int = 0
    whole_steps: list[int] = field(default_factory=list)
    peak_bytes: int = 0
    seconds: float = 0.0


class JobError(AssertionError):
    """A rank planned other samples, or other bytes, than it is due."""


def simulate_job(size: JobSize, ranks: int, steps: int, whole: int) -> JobReport:
    """Walk so many random ranks through so many steps from a random one on, and collect so many
    whole steps: random ones and the last. Raises JobError."""
    started = time.perf_counter()
    chance = np.random.default_rng(SEED)
    index = make_index(size.samples, size.shards)
    order = Order(size.samples, SEED, epoch=3)
    geometry = Steps(size.samples, size.global_batch, size.ranks)
    report = JobReport(ranks)
    for rank in chance.choice(size.ranks, min(ranks, size.ranks), replace=False).tolist():
        first = int(chance.integers(0, max(1, len(geometry) - steps)))
        walk_rank(size, index, order, geometry, rank, range(first, first + steps), report)
    chosen = chance.integers(0, len(geometry) - 1, whole - 1).tolist() if whole else []
    for step in [*chosen, len(geometry) - 1][:whole]:
        for world in (size.ranks, size.ranks - 7):  # in the middle of the epoch, on fewer ranks
            check_whole_step(order, Steps(size.samples, size.global_batch, world), step)
        report.whole_steps.append(step)
    report.seconds = time.perf_counter() - started
    return report


def walk_rank(
    size: JobSize,
    index: Index,
    order: Order,
    geometry: Steps,
    rank: int,
    steps: range,
    report: JobReport,
) -> None:
    """Walk one rank through some steps as a loader does, whose reads have come at once; then check
    what it was handed."""
    tracemalloc.start()
    session = Session(index, order, geometry, rank, first_step=steps[0])
    handed = []
    for _ in steps:
        for group in session.admit():
            for planned in group.steps:
                session.record_arrival(planned.step)
        handed.append(session.hand_over())
    report.peak_bytes = max(report.peak_bytes, tracemalloc.get_traced_memory()[1])
    tracemalloc.stop()
    for step, plan in zip(steps, handed, strict=True):
        if plan.step != step:
            raise JobError(f"rank {rank} was handed step {plan.step}, not {step}")
        check_share(size, order, step, rank, plan.ids)
        requests = plan.requests
        extents = Extents(requests.file, requests.offset, requests.length)
        check_bytes(size, plan.ids, extents)
        report.samples += len(plan.ids)
        report.rank_steps += 1


def check_share(size: JobSize, order: Order, step: int, rank: int, samples: Samples) -> None:
    """Raise JobError unless these samples are those at a rank's positions of a step."""
    start = step * size.global_batch
    stop = min(size.samples, start + size.global_batch)
    due = np.arange(start + rank, stop, size.ranks, dtype=np.uint64)
    if not np.array_equal(order.positions(samples), due):
        raise JobError(f"rank {rank} planned other samples in step {step} than it is due")


def check_bytes(size: JobSize, samples: Samples, extents: Extents) -> None:
    """Raise JobError unless these extents are those of the samples, in any sequence."""
    even = size.samples // size.shards
    number = samples.astype(np.int64)
    shard = np.minimum(number // even, size.shards - 1)
    if size.shards > 1:  # the first shard has one sample more, and the second one less
        shard[number == even] = 0
    first = shard * even + (shard == 1) * (size.shards > 1)
    due = np.stack([shard, (number - first) * RECORD_BYTES])
    planned = np.stack([extents.file.astype(np.int64), extents.offset])
    if (extents.length != RECORD_BYTES).any() or not np.array_equal(
        sort_pairs(due), sort_pairs(planned)
    ):
        raise JobError(f"the reads of {len(samples)} samples are not theirs")


def sort_pairs(pairs: Int) -> Int:
    """Return the columns of two rows, sorted by both."""
    sorted_pairs: Int = pairs[:, np.lexsort(pairs[::-1])]
    return sorted_pairs


def check_whole_step(order: Order, geometry: Steps, step: int) -> None:
    """Raise JobError unless the shares of all ranks are disjoint, and together a whole step."""
    shares = [geometry.positions(step, step + 1, rank)[0] for rank in range(geometry.world_size)]
    samples = order.samples(np.concatenate(shares))
    positions = np.sort(order.positions(samples))
    start = step * geometry.global_batch
    stop = min(geometry.count, start + geometry.global_batch)
    if not np.array_equal(positions, np.arange(start, stop, dtype=np.uint64)):
        raise JobError(f"the shares of {geometry.world_size} ranks do not make up step {step}")
