"""Replay of a job's reads by penstock: their cost if penstock had known the sequence.

The reads come from the trace, in the order in which the job started them. They are asked for some
at a time and as far ahead as the budget allows, near neighbours merged, and many in flight. A
thread of the job gets what it read when that has arrived, and works on it for as long as it did;
opens, stats and closes are left out: penstock does none for each read. The threads are
reckoned rather than run: their clocks go on by what they did, and wait for what has not arrived.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock import limits
from penstock.budget import Budget
from penstock.engine import Arena, ReadingEngine, open_engine
from penstock.extent import Extents, FileIds, Int, Placed, merge, separate

from .replay import Progress, ignore_progress, make_table
from .trace_file import READ, Operations, Trace

_window_reads = 4096
_window_bytes = 4 << 20
_poll_ns = 100_000_000
"""Time within which Ctrl-C is noticed."""


@dataclass
class Merged:
    """Result of a job's reads by penstock.

    seconds:   until the last thread had done what it did with what it read.
    waited_s:  for data, of all threads together.
    reads, bytes:  that were asked for, and gave something in the job.
    runs:      reads that storage saw.
    run_bytes: that storage was asked for, with the gaps between merged reads.
    failed:    reads that did not arrive whole.
    how:       the backend, and how many threads it had.
    """

    seconds: float = 0.0
    waited_s: float = 0.0
    reads: int = 0
    bytes: int = 0
    runs: int = 0
    run_bytes: int = 0
    failed: int = 0
    how: str = ""


class _ReadWindow(NamedTuple):
    """Some reads. threads: those that read here; first_ns: time that each computes before its first
    read of the window; all_ns: before all of them."""

    extents: Extents
    threads: FileIds
    first_ns: Int
    all_ns: Int


def replay_merged(
    trace: Trace,
    paths: Sequence[str],
    *,
    speed: float | None = 1.0,
    budget: Budget | None = None,
    progress: Progress = ignore_progress,
) -> Merged:
    """Read what a trace's reads gave through an engine of penstock's.

    paths:  where its files are here, by number.
    speed:  by which the times between operations are divided; None drops them.
    """
    budget = budget or Budget()
    reads, size = 0, 0
    wanted = np.zeros(len(paths), np.bool_)
    for _, rows in trace.in_order():
        some = rows.at(_mask_giving(rows))
        wanted[some.file] = True
        reads += len(some.kind)
        size += int(some.result.sum())
    numbers = np.cumsum(wanted) - 1
    files = make_table([paths[file] for file in np.flatnonzero(wanted).tolist()])
    engine = open_engine(files, budget, size / max(1, reads))
    try:
        return _MergedReplay(trace, engine, numbers.astype(np.uint32), speed, budget).run(progress)
    finally:
        engine.close()


def _mask_giving(rows: Operations) -> npt.NDArray[np.bool_]:
    """The mask of reads that gave bytes."""
    gave: npt.NDArray[np.bool_] = (rows.kind == READ) & (rows.result > 0)
    return gave


class _MergedReplay:
    def __init__(
        self,
        trace: Trace,
        engine: ReadingEngine,
        numbers: FileIds,
        speed: float | None,
        budget: Budget,
    ) -> None:
        self._trace = trace
        self._engine = engine
        self._numbers = numbers  # of the trace's files, in the engine
        self._speed = speed
        self._arena = Arena(2 * budget.readahead_bytes)
        self._room = budget.readahead_bytes
        if engine.choice.cached:  # as loaders do: more would only fill the processor's caches
            self._room = min(self._room, limits.readahead_cached_bytes_max)
        self._clocks_ns = np.zeros(len(trace.threads), np.int64)  # of threads, since the start
        self._inflight: deque[tuple[int, _ReadWindow, int]] = deque()  # ticket, window, bytes
        self._used: deque[tuple[int, int]] = deque()  # when its last read is used, bytes
        self._arrived: set[int] = set()
        self._done = Merged()

    def run(self, progress: Progress) -> Merged:
        """Read all windows."""
        windows = _divide_reads(self._trace, self._speed)
        window = next(windows, None)
        began_ns = time.monotonic_ns()
        while window is not None or self._inflight:
            now_ns = time.monotonic_ns() - began_ns
            while self._used and self._used[0][0] <= now_ns:
                self._room += self._used.popleft()[1]
            while window is not None and self._fits(window):
                self._submit(window)
                window = next(windows, None)
            wake_ns = self._used[0][0] - now_ns if self._used else _poll_ns
            if self._inflight:
                reports = self._engine.poll(min(_poll_ns, max(0, wake_ns)))
            else:
                reports = []
                time.sleep(max(0, min(_poll_ns, wake_ns)) * 1e-9)
            for ticket, failures in reports:
                self._arrived.add(ticket)
                self._done.failed += len(failures)
            self._hand_over(time.monotonic_ns() - began_ns)
            progress(self._done.reads, self._trace.count)
        self._done.seconds = int(self._clocks_ns.max(initial=0)) * 1e-9
        choice = self._engine.choice
        self._done.how = f"{choice.backend}, {choice.threads} threads"
        return self._done

    def _fits(self, window: _ReadWindow) -> bool:
        alone = not self._inflight and not self._used
        return alone or int(window.extents.length.sum()) <= self._room

    def _submit(self, window: _ReadWindow) -> None:
        file, offset, length = window.extents
        file = self._numbers[file]
        count, size = len(file), int(length.sum())
        one_part = np.zeros(count, np.uint32)
        placed = Placed(file, offset, length, one_part, np.cumsum(length) - length)
        choice = self._engine.choice
        if choice.backend == "mmap":  # where nothing is gained by merging
            (requests,) = separate(placed, np.array([0, count], np.int64))
        else:
            (requests,) = merge(placed, 1, choice.gap_bytes)
        ticket = self._engine.submit(requests, [self._arena.take(size)])
        self._inflight.append((ticket, window, size))
        self._room -= size
        ends = requests.offset + requests.length
        spans = ends[requests.runs[1:] - 1] - requests.offset[requests.runs[:-1]]
        self._done.runs += len(spans)
        self._done.run_bytes += int(spans.sum())

    def _hand_over(self, now_ns: int) -> None:
        """Give arrived reads to their threads, in order: their clocks advance."""
        while self._inflight and self._inflight[0][0] in self._arrived:
            ticket, window, size = self._inflight.popleft()
            self._arrived.discard(ticket)
            wanted_ns = self._clocks_ns[window.threads] + window.first_ns
            self._done.waited_s += int(np.maximum(now_ns - wanted_ns, 0).sum()) * 1e-9
            used_ns = np.maximum(wanted_ns, now_ns) + window.all_ns - window.first_ns
            self._clocks_ns[window.threads] = used_ns
            self._used.append((int(used_ns.max()), size))
            self._done.reads += len(window.extents.file)
            self._done.bytes += size


def _divide_reads(trace: Trace, speed: float | None) -> Iterator[_ReadWindow]:
    """The reads in the order in which they began, some at a time."""
    ended_ns = np.zeros(len(trace.threads), np.int64)
    owed_ns = np.zeros(len(trace.threads), np.int64)  # done since a thread's last read
    for threads, rows in trace.in_order():
        think_ns = np.zeros(len(threads), np.int64)
        order = np.argsort(threads, kind="stable")
        who = threads[order]
        ends_ns = (rows.start_ns + rows.duration_ns)[order]
        before_ns = np.concatenate([[0], ends_ns[:-1]])
        firsts = np.flatnonzero(np.diff(who, prepend=-1))
        before_ns[firsts] = ended_ns[who[firsts]]
        lasts = np.append(firsts[1:], len(who)) - 1
        ended_ns[who[lasts]] = ends_ns[lasts]
        if speed is not None:
            think_ns[order] = np.maximum(rows.start_ns[order] - before_ns, 0) / speed
        reads = _mask_giving(rows)
        size = np.cumsum(np.where(reads, rows.result, 0))
        number = np.cumsum(reads)
        begin = 0
        while begin < len(threads):
            base = (size[begin - 1], number[begin - 1]) if begin else (0, 0)
            end = (
                begin
                + 1
                + min(
                    int(np.searchsorted(size[begin + 1 :], base[0] + _window_bytes, "right")),
                    int(np.searchsorted(number[begin + 1 :], base[1] + _window_reads, "right")),
                )
            )
            span = slice(begin, end)
            begin = end
            window = _make_window(
                rows.at(span), threads[span], think_ns[span], reads[span], owed_ns
            )
            if window is not None:
                yield window


def _make_window(
    rows: Operations, threads: FileIds, think_ns: Int, reads: npt.NDArray[np.bool_], owed_ns: Int
) -> _ReadWindow | None:
    """The reads among some operations; None where there are none. What a thread did after its last
    read it owes to the next."""
    order = np.argsort(threads, kind="stable")
    who, starts, thread = np.unique(threads[order], return_index=True, return_inverse=True)
    done_ns = np.cumsum(think_ns[order])
    done_ns -= (done_ns[starts] - think_ns[order][starts])[thread]  # of each thread by itself
    done_ns += owed_ns[who][thread]
    owed_ns[who] = done_ns[np.append(starts[1:], len(order)) - 1]
    places = np.flatnonzero(reads[order])
    if len(places) == 0:
        return None
    _, first = np.unique(thread[places], return_index=True)
    last = np.append(first[1:], len(places)) - 1
    readers = who[thread[places[first]]]
    all_ns = done_ns[places[last]]
    owed_ns[readers] -= all_ns
    wanted = rows.at(reads)
    extents = Extents(wanted.file, wanted.offset, wanted.result)
    return _ReadWindow(extents, readers, done_ns[places[first]], all_ns)
