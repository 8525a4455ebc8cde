"""Timed reads: a few reads of a dataset's own files, through an engine.

Three measurements, each of about `_share_s`: single reads of a sample, reads with many in flight,
and large reads. A read that has started is waited for, so that on a slow storage measuring takes as
long as a few reads. Data in the page cache is read as fast as training will read it.
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
from .protocol import Buffer, Engine
from .threads import ThreadPool

_share_s = 0.06
_single_most = 32
_poll_ns = 100_000_000
_in_flight = 4  # tickets
_per_ticket = 32
_ticket_bytes = 16 << 20
_copied_bytes = 32 << 20


class ProbeResult(NamedTuple):
    """Speed of a storage.

    latency_ns:   of one read.
    reads_per_s:  with many in flight, measured over `reads` reads of `read_bytes` bytes.
    bytes_per_s:  of large reads, measured over `large_bytes`.
    """

    latency_ns: float
    reads_per_s: float
    bytes_per_s: float
    took_s: float
    reads: int = 0
    read_bytes: int = 0
    large_bytes: int = 0


Fault = Callable[[Extents, int, int], PenstockError]
"""Function from extents, row and errno (0: cut short) to the error of a failed read."""


def time_reads(
    engine: Engine,
    small: Extents,
    large: Extents,
    fault: Fault,
    queue: int = 1,
    ready: Callable[[Extents], Extents] = lambda extents: extents,
) -> ProbeResult:
    """Measure reads of these extents; they should not have been read lately.

    queue:  reads that the engine keeps in flight at least; slow storage gets no more at a time.
    ready:  called with the small, and then with the large extents, before they are read; returns
            the extents to read.
    """
    start_s = time.perf_counter()
    small = ready(small)
    count = len(small.file)
    singles = min(_single_most, max(1, count // 2))
    latencies = [seconds for seconds, _ in _read(engine, small, fault, 0, singles, 1, 1)]
    latency_s = float(np.median(latencies))
    per_ticket = _per_ticket if latency_s < 0.002 else max(8, -(-queue // _in_flight))
    rate = _measure(engine, small, fault, singles if count > 1 else 0, per_ticket)
    bandwidth = _measure(engine, ready(large), fault, 0, 1)
    return ProbeResult(
        latency_s * 1e9,
        rate.reads / rate.took_s,
        bandwidth.read_bytes / bandwidth.took_s,
        time.perf_counter() - start_s,
        rate.reads,
        rate.read_bytes,
        bandwidth.read_bytes,
    )


def measure_copying(threads: int = 1) -> float:
    """Measure the bytes a second that several threads together copy in memory; takes 0.1 s, and
    64 MiB for each thread."""

    def copy(start: threading.Barrier) -> tuple[int, float, float]:
        source = np.ones(_copied_bytes, np.uint8)
        target = np.empty_like(source)
        target[:] = source  # memory that was never written is slower
        start.wait()
        start_s, copied_bytes = time.perf_counter(), 0
        while (now_s := time.perf_counter()) - start_s < _share_s or not copied_bytes:
            target[:] = source
            copied_bytes += len(source)
        return copied_bytes, start_s, now_s

    barrier = threading.Barrier(threads)
    with ThreadPool(threads) as pool:
        try:
            futures = [pool.submit(copy, barrier) for _ in range(threads)]
        except BaseException:  # started threads wait for the others
            barrier.abort()
            raise
        copied, starts_s, ends_s = zip(*(future.result() for future in futures), strict=True)
    return float(sum(copied) / (max(ends_s) - min(starts_s)))


class _Rate(NamedTuple):
    reads: int
    read_bytes: int
    took_s: float


def _measure(engine: Engine, extents: Extents, fault: Fault, first: int, per_ticket: int) -> _Rate:
    """Measure with several tickets in flight, until the last one is reported."""
    reads = read_bytes = 0
    tickets = _read(engine, extents, fault, first, len(extents.file), per_ticket, _in_flight)
    start_s = time.perf_counter()
    for _, rows in tickets:
        reads += rows.stop - rows.start
        read_bytes += int(extents.length[rows].sum())
    return _Rate(reads, read_bytes, max(1e-9, time.perf_counter() - start_s))


def _read(
    engine: Engine,
    extents: Extents,
    fault: Fault,
    first: int,
    last: int,
    per_ticket: int,
    in_flight: int,
) -> Iterator[tuple[float, slice]]:
    """Read the extents in tickets until the share of time is up, at least one ticket. Yields the
    seconds that a ticket took, and its rows."""
    longest = int(extents.length.max())
    per_ticket = max(1, min(per_ticket, last - first, _ticket_bytes // max(1, longest)))
    # Memory that was never written is slower: it is touched before the clock runs.
    tickets = min(in_flight, -(-(last - first) // per_ticket))
    free = [np.ones(per_ticket * longest, np.uint8) for _ in range(tickets)]
    return _run_tickets(engine, extents, fault, first, last, per_ticket, free)


def _run_tickets(
    engine: Engine,
    extents: Extents,
    fault: Fault,
    first: int,
    last: int,
    per_ticket: int,
    free: list[Buffer],
) -> Iterator[tuple[float, slice]]:
    waiting: dict[int, tuple[float, slice, Buffer]] = {}
    end_s = time.perf_counter() + _share_s
    is_first = True
    while first < last or waiting:
        now_s = time.perf_counter()
        while first < last and free and (now_s < end_s or is_first):
            rows = slice(first, min(last, first + per_ticket))
            buffer, is_first, first = free.pop(), False, rows.stop
            ticket = engine.submit(_build_requests(extents, rows), [buffer])
            waiting[ticket] = (time.perf_counter(), rows, buffer)
        if now_s >= end_s:
            first = last
        for ticket, failures in engine.poll(_poll_ns):
            submitted_s, rows, buffer = waiting.pop(ticket)
            free.append(buffer)
            for failure in failures:
                raise fault(extents, rows.start + failure.extent, failure.errno)
            yield time.perf_counter() - submitted_s, rows


def _build_requests(extents: Extents, rows: slice) -> Requests:
    length = extents.length[rows]
    count = len(length)
    return Requests(
        extents.file[rows],
        extents.offset[rows],
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
