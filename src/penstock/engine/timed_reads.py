"""Probe of a storage: a few timed reads of a dataset's own files, through an engine.

Three measurements, each of about `_share_s`: single reads of a sample, such reads with many in
flight, and large reads. A read that has begun is waited for, so that on a slow storage probing
takes as long as a few reads. Data in the page cache is read as fast as training will read it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from .. import limits
from ..errors import PenstockError
from ..extent import Extents, Requests
from .protocol import Buffer, Completion, Engine
from .threads import ThreadPool

_share_s = 0.06
_single_most = 32
_poll_ns = 100_000_000
_in_flight = 4  # tickets
_per_ticket = 32
_ticket_bytes = 16 << 20
_copied_bytes = 32 << 20


class ProbeResult(NamedTuple):
    """Result of a probe. latency_ns: of one read; reads_per_s: with many in flight; bytes_per_s: of
    large reads.

    reads, read_bytes:   of how many reads, and of how many bytes in them, the rate is.
    large_bytes:         of how many bytes the bandwidth is.
    """

    latency_ns: float
    reads_per_s: float
    bytes_per_s: float
    took_s: float
    reads: int = 0
    read_bytes: int = 0
    large_bytes: int = 0


def time_reads(
    engine: Engine,
    small: Extents,
    large: Extents,
    fault: Callable[[Extents, int, int], PenstockError],
    queue: int = 1,
    ready: Callable[[Extents], Extents] = lambda extents: extents,
) -> ProbeResult:
    """Measure reads of these extents, which should not have been read lately.

    fault:  builds the error of a read that failed, from extents, row and errno (0: cut short).
    queue:  reads that the engine keeps in flight at least; on slow storage no more than that are
            submitted at a time.
    ready:  called with the small, and then with the large extents, before they are read; returns
            the extents to read.
    """
    began = time.perf_counter()
    reading = _TimedReads(engine, fault)
    small = ready(small)
    singles = min(_single_most, max(1, len(small.file) // 2))
    alone = [seconds for seconds, _ in reading.read(small, 0, singles, 1, 1)]
    latency_s = float(np.median(alone))
    per_ticket = _per_ticket if latency_s < 0.002 else max(8, -(-queue // _in_flight))
    rate = reading.measure(small, singles if len(small.file) > 1 else 0, per_ticket)
    bandwidth = reading.measure(ready(large), 0, 1)
    took_s = time.perf_counter() - began
    return ProbeResult(
        latency_s * 1e9,
        rate.reads / rate.took_s,
        bandwidth.read_bytes / bandwidth.took_s,
        took_s,
        rate.reads,
        rate.read_bytes,
        bandwidth.read_bytes,
    )


def measure_copying(threads: int = 1) -> float:
    """Measure the bytes a second that `threads` threads together copy in memory; takes 0.1 s, and
    64 MiB for each."""

    def copied(start: threading.Barrier) -> tuple[int, float, float]:
        source = np.ones(_copied_bytes, np.uint8)
        target = np.empty_like(source)
        target[:] = source  # memory that was never written is slower
        start.wait()
        began, copied = time.perf_counter(), 0
        while (now := time.perf_counter()) - began < _share_s or not copied:
            target[:] = source
            copied += len(source)
        return copied, began, now

    barrier = threading.Barrier(threads)
    with ThreadPool(threads) as pool:
        try:
            futures = [pool.submit(copied, barrier) for _ in range(threads)]
        except BaseException:  # those that were begun wait for the others
            barrier.abort()
            raise
        parts = [future.result() for future in futures]
    took_s = max(ended for _, _, ended in parts) - min(began for _, began, _ in parts)
    return sum(copied_bytes for copied_bytes, _, _ in parts) / took_s


class _Rate(NamedTuple):
    reads: int
    read_bytes: int
    took_s: float


class _TimedReads:
    def __init__(self, engine: Engine, fault: Callable[[Extents, int, int], PenstockError]) -> None:
        self._engine = engine
        self._fault = fault

    def measure(self, extents: Extents, first: int, per_ticket: int) -> _Rate:
        """Measure with several tickets in flight, until the last one is reported."""
        reads = read_bytes = 0
        tickets = self.read(extents, first, len(extents.file), per_ticket, _in_flight)
        began = time.perf_counter()
        for _, (a, b) in tickets:
            reads += b - a
            read_bytes += int(extents.length[a:b].sum())
        took_s = max(1e-9, time.perf_counter() - began)
        return _Rate(reads, read_bytes, took_s)

    def read(
        self, extents: Extents, first: int, last: int, per_ticket: int, in_flight: int
    ) -> Iterator[tuple[float, tuple[int, int]]]:
        """Read the extents in tickets until the share of time is up, at least one ticket. Yields
        the seconds that each took, and the range of its extents."""
        most = int(extents.length.max())
        per_ticket = max(1, min(per_ticket, last - first, _ticket_bytes // max(1, most)))
        # Memory that was never written is slower: it is touched before the clock runs.
        tickets = min(in_flight, -(-(last - first) // per_ticket))
        free = [np.ones(per_ticket * most, np.uint8) for _ in range(tickets)]
        return self._read(extents, first, last, per_ticket, free)

    def _read(
        self, extents: Extents, first: int, last: int, per_ticket: int, free: list[Buffer]
    ) -> Iterator[tuple[float, tuple[int, int]]]:
        waiting: dict[int, tuple[float, int, int]] = {}
        used: dict[int, Buffer] = {}
        until = time.perf_counter() + _share_s
        while first < last or waiting:
            now = time.perf_counter()
            while first < last and free and (now < until or not (waiting or used)):
                end = min(last, first + per_ticket)
                buffer = free.pop()
                ticket = self._engine.submit(_build_requests(extents, first, end), [buffer])
                waiting[ticket] = (time.perf_counter(), first, end)
                used[ticket] = buffer
                first = end
            if now >= until:
                first = last
            for done in self._engine.poll(_poll_ns):
                started, a, b = waiting.pop(done.ticket)
                free.append(used.pop(done.ticket))
                self._check(extents, a, done)
                yield time.perf_counter() - started, (a, b)

    def _check(self, extents: Extents, first: int, done: Completion) -> None:
        for failure in done.failures:
            raise self._fault(extents, first + failure.extent, failure.errno)


def _build_requests(extents: Extents, first: int, last: int) -> Requests:
    count = last - first
    length = extents.length[first:last]
    return Requests(
        extents.file[first:last],
        extents.offset[first:last],
        length,
        np.zeros(count, np.uint32),
        np.cumsum(length) - length,
        np.arange(count + 1, dtype=np.int64),
    )


def draw_large_extents(
    sizes: np.ndarray[tuple[int], np.dtype[np.int64]], seed: int, most: int = limits.run_bytes_max
) -> Extents:
    """Draw up to 64 reads of `most` bytes, or of whole smaller files, at places derived from the
    seed."""
    draw = np.random.Generator(np.random.Philox(key=seed))
    ends = np.cumsum(sizes)
    file = np.searchsorted(ends, draw.integers(0, ends[-1], 64), side="right")
    length = np.minimum(sizes[file], most)
    room = (sizes[file] - length) // 4096 + 1
    offset = (draw.random(64) * room).astype(np.int64) * 4096
    return Extents(file.astype(np.uint32), offset, length)
