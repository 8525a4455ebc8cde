"""Summary of a trace: bytes, repeated reads, sizes, rate over time, and order.

Pure but for the trace: read once, block by block. Memory: what was read, as ranges that
do not touch; the reads that passes over the data are looked for in; a number for each file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from penstock.extent import FileIds, Int

from .trace_file import KINDS, READ, Operations, Trace

BINS = 60
"""Bins of the rate over time."""

_looked_at_max = 1 << 22
_ranges_min = 1 << 20

Order = Literal["storage", "partly", "shuffled"]


_RATIO = math.log(1.01)
_BINS = 4400  # up to 2^63 ns


class Latencies:
    """Times in nanoseconds: how many, their sum and largest exactly, percentiles within 1 %."""

    def __init__(self) -> None:
        self.count = 0
        self.sum_ns = 0
        self.max_ns = 0
        self._bins: npt.NDArray[np.int64] = np.zeros(_BINS, np.int64)

    def add(self, times_ns: Int) -> None:
        """Add some times; those below 0 count as 0."""
        if len(times_ns) == 0:
            return
        times_ns = np.maximum(times_ns, 0)
        self.count += len(times_ns)
        self.sum_ns += int(times_ns.sum())
        self.max_ns = max(self.max_ns, int(times_ns.max()))
        # Bin 0 is below 1 ns; bin i from 1.01^(i-1) on.
        bins = (np.log(np.maximum(times_ns, 1)) / _RATIO).astype(np.int64) + (times_ns > 0)
        self._bins += np.bincount(bins, minlength=_BINS)

    def join(self, other: Latencies) -> None:
        """Add the times of another."""
        self.count += other.count
        self.sum_ns += other.sum_ns
        self.max_ns = max(self.max_ns, other.max_ns)
        self._bins += other._bins

    def percentile_s(self, percent: float) -> float:
        """Seconds that this percentage of the times does not exceed; 0 if there are none."""
        if self.count == 0:
            return 0.0
        rank = max(1, math.ceil(self.count * percent / 100))
        bin = int(np.searchsorted(np.cumsum(self._bins), rank))
        middle = 0.0 if bin == 0 else math.exp((bin - 0.5) * _RATIO)
        return min(middle, self.max_ns) * 1e-9

    def share_within(self, limit_s: float) -> float:
        """About the share of times within a limit; 1 if there are none."""
        if self.count == 0:
            return 1.0
        last = int(math.log(max(1.0, limit_s * 1e9)) / _RATIO) + 1
        return float(self._bins[: last + 1].sum() / self.count)

    def values(self) -> dict[str, float]:
        """Figures for reports, in seconds."""
        return {
            "count": self.count,
            "sum_s": self.sum_ns * 1e-9,
            "p50_s": self.percentile_s(50),
            "p95_s": self.percentile_s(95),
            "p99_s": self.percentile_s(99),
            "max_s": self.max_ns * 1e-9,
        }


@dataclass(frozen=True, slots=True)
class Passes:
    """Passes of a job over its data, as training makes them.

    count:       reads for each place that was read: how many passes those are.
    whole:       part of the reads that belong to the pass that their time says: 1 where each pass
                 ends before the next begins.
    order:       of the places within the first pass: as in storage, shuffled, or in between.
    reshuffled:  whether the second pass had another order; None where there was none.
    reads:       that this was seen in: the first ones.
    """

    count: float
    whole: float
    order: Order
    reshuffled: bool | None
    reads: int

    @property
    def epochs(self) -> bool:
        """True if these are epochs: more than one pass, one after the other."""
        return self.count >= 1.5 and self.whole >= 0.9

    @property
    def said(self) -> str:
        """The passes in words."""
        order = {
            "storage": "in the order of storage",
            "partly": "partly shuffled",
            "shuffled": "shuffled",
        }[self.order]
        if not self.epochs:
            return f"one pass, {order}" if self.count < 1.5 else "read again, but not by epochs"
        again = {True: ", each in another order", False: ", each in the same order", None: ""}
        return f"{self.count:.1f} epochs, {order}{again[self.reshuffled]}"


@dataclass
class Summary:
    """Figures of a trace; sizes in bytes, times in seconds.

    counts:        operations of each kind.
    failed:        of them, that failed in the job.
    bytes:         that reads gave; asked_bytes: that they asked for.
    unique_bytes:  of these, different ones.
    sequential:    of the reads that gave something, the part that began where the one before of
                   the same thread ended, in the same file.
    sizes:         reads by what they gave: sizes[i] from 2^(i-1) bytes on (0: nothing).
    rate:          bytes of each BINS-th part of the time, when their reads ended.
    file_reads, file_bytes:  of each file, by number.
    busy_s:        in operations, of all threads together.
    took:          how long reads took.
    """

    seconds: float = 0.0
    threads: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    failed: int = 0
    bytes: int = 0
    asked_bytes: int = 0
    unique_bytes: int = 0
    sequential: float = 0.0
    sizes: Int = field(default_factory=lambda: np.zeros(64, np.int64))
    rate: Int = field(default_factory=lambda: np.zeros(BINS, np.int64))
    file_reads: Int = field(default_factory=lambda: np.zeros(0, np.int64))
    file_bytes: Int = field(default_factory=lambda: np.zeros(0, np.int64))
    busy_s: float = 0.0
    took: Latencies = field(default_factory=Latencies)
    passes: Passes | None = None

    @property
    def reread(self) -> float:
        """The times that each byte was read; 0 where none was."""
        return self.bytes / self.unique_bytes if self.unique_bytes else 0.0

    def values(self) -> dict[str, Any]:
        """The figures as values of JSON."""
        read = self.file_reads[self.file_reads > 0]
        return {
            "seconds": self.seconds,
            "threads": self.threads,
            "operations": self.counts,
            "failed": self.failed,
            "bytes": self.bytes,
            "asked_bytes": self.asked_bytes,
            "unique_bytes": self.unique_bytes,
            "reread": self.reread,
            "sequential": self.sequential,
            "files_read": len(read),
            "reads_per_file": {
                "min": int(read.min()) if len(read) else 0,
                "median": float(np.median(read)) if len(read) else 0,
                "max": int(read.max()) if len(read) else 0,
            },
            "reads_by_size": {
                str(1 << max(0, i - 1) if i else 0): int(n) for i, n in enumerate(self.sizes) if n
            },
            "bytes_over_time": self.rate.tolist(),
            "busy_s": self.busy_s,
            "read_s": self.took.values(),
            "passes": None
            if self.passes is None
            else asdict(self.passes) | {"epochs": self.passes.epochs},
        }


def summarise(
    trace: Trace, progress: Callable[[int, int], object] = lambda done, total: None
) -> Summary:
    """Summarise all operations of a trace, read once. FormatError if it is damaged."""
    files = len(trace.names)
    summary = Summary(seconds=trace.end_ns * 1e-9, threads=len(trace.threads))
    summary.file_reads, summary.file_bytes = np.zeros(files, np.int64), np.zeros(files, np.int64)
    kinds = np.zeros(len(KINDS), np.int64)
    ranges = _Ranges()
    follows = _Follows(len(trace.threads))
    first: list[tuple[FileIds, Int]] = []
    done = looked_at = reads = 0
    for threads, rows in trace.in_order():
        kinds += np.bincount(rows.kind, minlength=len(KINDS))
        summary.failed += int(np.count_nonzero(rows.result < 0))
        summary.busy_s += int(rows.duration_ns.sum()) * 1e-9
        _count(summary, rows.at((rows.kind == READ) & (rows.result >= 0)), trace.end_ns)
        gave = (rows.kind == READ) & (rows.result > 0)
        read, who = rows.at(gave), threads[gave]
        reads += len(who)
        follows.add(who, read)
        ranges.add(read)
        if looked_at < _looked_at_max:
            first.append((read.file, read.offset))
            looked_at += len(who)
        done += len(threads)
        progress(done, trace.count)
    summary.counts = {name: int(n) for name, n in zip(KINDS, kinds, strict=True)}
    summary.unique_bytes = ranges.bytes()
    summary.sequential = follows.count / reads if reads else 0.0
    if looked_at:
        names = [trace.names[i] for i in range(files)]
        file = np.concatenate([pair[0] for pair in first])
        offset = np.concatenate([pair[1] for pair in first])
        summary.passes = passes(file, offset, rank_names(names))
    return summary


def _count(summary: Summary, read: Operations, end_ns: int) -> None:
    summary.bytes += int(read.result.sum())
    summary.asked_bytes += int(read.length.sum())
    summary.took.add(read.duration_ns)
    bits = np.frexp(read.result.astype(np.float64))[1]  # exact below 2^53
    summary.sizes += np.bincount(bits, minlength=64)
    ends_ns = read.start_ns + read.duration_ns
    bins = np.minimum(ends_ns * (BINS / max(1, end_ns)), BINS - 1).astype(np.int64)
    summary.rate += np.bincount(bins, read.result, BINS).astype(np.int64)
    files = len(summary.file_reads)
    summary.file_reads += np.bincount(read.file, minlength=files)
    summary.file_bytes += np.bincount(read.file, read.result, files).astype(np.int64)


class _Follows:
    """Counts reads that go on where the read before of the same thread ended."""

    def __init__(self, threads: int) -> None:
        self.count = 0
        self._file = np.full(threads, -1, np.int64)
        self._end = np.zeros(threads, np.int64)

    def add(self, threads: FileIds, read: Operations) -> None:
        if len(threads) == 0:
            return
        order = np.argsort(threads, kind="stable")
        who, file, offset = threads[order], read.file[order].astype(np.int64), read.offset[order]
        end = offset + read.result[order]
        starts = np.flatnonzero(np.diff(who.astype(np.int64), prepend=-1))
        before, before_end = np.roll(file, 1), np.roll(end, 1)
        before[starts], before_end[starts] = self._file[who[starts]], self._end[who[starts]]
        self.count += int(np.count_nonzero((file == before) & (offset == before_end)))
        lasts = np.append(starts[1:], len(who)) - 1
        self._file[who[lasts]], self._end[who[lasts]] = file[lasts], end[lasts]


class _Ranges:
    """Byte ranges that were read, joined where they touch."""

    def __init__(self) -> None:
        self._joined = (np.zeros(0, np.int64),) * 3  # file, first, end: ascending, apart
        self._pending: list[tuple[Int, Int, Int]] = []
        self._rows = 0

    def add(self, read: Operations) -> None:
        self._pending.append((read.file.astype(np.int64), read.offset, read.offset + read.result))
        self._rows += len(read.file)
        if self._rows >= max(_ranges_min, len(self._joined[0])):
            self._join()

    def bytes(self) -> int:
        self._join()
        return int((self._joined[2] - self._joined[1]).sum())

    def _join(self) -> None:
        file, first, end = (
            np.concatenate(column) for column in zip(self._joined, *self._pending, strict=True)
        )
        self._pending, self._rows = [], 0
        if len(file) == 0:
            return
        order = np.lexsort((first, file))
        file, first, end = file[order], first[order], end[order]
        new = np.diff(file, prepend=-1) != 0
        # The furthest end so far within each file: of ranks, which cannot overflow.
        count = len(file)
        values, rank = np.unique(end, return_inverse=True)
        lift = np.cumsum(new) * count
        reach = values[np.maximum.accumulate(lift + rank) - lift]
        new[1:] |= first[1:] > reach[:-1]
        starts = np.flatnonzero(new)
        ends = reach[np.append(starts[1:], count) - 1]
        self._joined = (file[starts], first[starts], ends)


def rank_names(names: list[str]) -> Int:
    """The rank of each file by name, in natural order: 2 before 10."""

    def counted(number: int) -> list[tuple[int, str]]:
        tokens = re.split(r"(\d+)", names[number])
        return [(int(token), "") if token.isdecimal() else (-1, token) for token in tokens]

    places = np.zeros(len(names), np.int64)
    places[sorted(range(len(names)), key=counted)] = np.arange(len(names))
    return places


def passes(file: FileIds, offset: Int, places: Int) -> Passes:
    """Find the passes of reads, in the order of time, over their data.

    places: of files in storage.
    """
    count = len(file)
    order = np.lexsort((np.arange(count), offset, places[file]))
    new = np.ones(count, np.bool_)
    new[1:] = (file[order[1:]] != file[order[:-1]]) | (offset[order[1:]] != offset[order[:-1]])
    rank = np.cumsum(new) - 1  # of the place that is read, in storage; by sorted read
    nth = np.arange(count) - np.flatnonzero(new)[rank]  # how often it had been read before
    units = int(rank[-1]) + 1
    # What is read ahead, and by several threads, goes a little over the end of a pass.
    whole = float(np.mean(np.abs(order + 0.5 - (nth + 0.5) * units) <= 0.52 * units))
    first = rank[np.argsort(np.where(nth == 0, order, count), kind="stable")][:units]
    second = rank[np.argsort(np.where(nth == 1, order, count), kind="stable")]
    second = second[: int(np.count_nonzero(nth == 1))]
    reshuffled: bool | None = None
    if len(second) >= 8 and len(second) > units // 2:
        where = np.empty(units, np.int64)
        where[first] = np.arange(units)
        reshuffled = bool(abs(_correlation(where[second])) < 0.5)
    return Passes(count / units, whole, _classify_order(first), reshuffled, count)


def _classify_order(ranks: npt.NDArray[np.intp]) -> Order:
    """Classify the order in which places in storage were read."""
    if len(ranks) < 8:
        return "storage" if np.all(np.diff(ranks) > 0) else "partly"
    near = float(np.mean(np.abs(np.diff(ranks)) <= 1))
    along = _correlation(ranks)
    if along > 0.95 or near > 0.95:
        return "storage"
    return "shuffled" if abs(along) < 0.5 and near < 0.5 else "partly"


def _correlation(ranks: npt.NDArray[Any]) -> float:
    """Correlation of numbers with their positions: 1 if they ascend, 0 if they have no order."""
    if len(ranks) < 2:
        return 1.0
    return float(np.corrcoef(ranks, np.arange(len(ranks)))[0, 1])
