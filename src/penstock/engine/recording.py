"""Recording penstock's own reads as traces: enabled by PENSTOCK_TRACE=run.trace alone.

Each engine writes a trace of its own, run.PID.NUMBER.trace beside the given name, so that ranks
and worker processes need not know of each other; `penstock.engine.trace_file.load` combines them.
A job that is not recorded pays one look at the environment for each engine.
"""

from __future__ import annotations

import itertools
import os
import time
import warnings
import weakref
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .. import limits
from ..budget import Budget
from ..errors import UsageError
from ..extent import Files, Int, Requests
from .protocol import Buffer, Completion, Failure, ReadingEngine, ReadMethod
from .request_queue import Purpose
from .trace_file import READ, Operations, TraceWriter

VARIABLE = "PENSTOCK_TRACE"

_numbers = itertools.count()
_pending_rows = 1 << 14
_read_ns = 20_000  # cost of a read besides its bytes, when a request's time is divided
_bytes_per_ns = 1.0


class _Read(NamedTuple):
    """Reads that are not written to the trace yet, each with its lane."""

    lane: Int
    file: Int
    offset: Int
    length: Int
    result: Int
    start_ns: Int
    duration_ns: Int


def choose_trace_path(asked: str) -> str:
    """Choose the path of the next engine's trace in this process, beside the path asked for."""
    stem, dot, suffix = asked.rpartition(".")
    if not dot or "/" in suffix:
        stem, suffix = asked, "trace"
    return f"{stem}.{os.getpid()}.{next(_numbers)}.{suffix}"


class RecordedEngine:
    """Writes each read of an engine into a trace, and changes nothing else.

    A read is a run: extents that go to storage as one. Requests are timed from submission to
    report. Their reads get parts of that time by their bytes, in as many threads of the trace as
    the engine has reads in flight (at most 64). Sums and rates are exact; the time of a single
    read is an estimate. If the trace cannot be written any more, a warning is given, and the job
    goes on.
    """

    def __init__(self, engine: ReadingEngine, files: Files, path: str) -> None:
        self._engine = engine
        self._files = files
        choice = engine.choice
        in_flight = limits.ring_entries if choice.backend == "io_uring" else 1
        lanes = min(64, choice.threads * in_flight)
        try:
            self._writer: TraceWriter | None = TraceWriter(
                path, f"penstock, {choice.backend}", "shared"
            )
        except UsageError as error:
            raise UsageError(f"{VARIABLE}: {error}") from None
        self._lanes = [self._writer.thread(os.getpid(), lane) for lane in range(lanes)]
        self._free_ns = np.zeros(lanes, np.int64)
        self._numbers = np.full(len(files), -1, np.int64)  # of files, in the trace
        self._inflight: dict[int, tuple[int, Requests]] = {}
        self._pending: list[_Read] = []
        self._rows = 0
        self._finish = weakref.finalize(
            self, _finish_trace, self._writer, self._lanes, self._pending
        )

    @property
    def choice(self) -> ReadMethod:
        """Read method of the engine."""
        return self._engine.choice

    def adopt(self, budget: Budget) -> None:
        """Pass a changed budget to the engine."""
        self._engine.adopt(budget)

    def survey(self) -> None:
        """Let the engine survey its files."""
        self._engine.survey()

    def counters(self) -> dict[str, int]:
        """Return the engine's counters."""
        return self._engine.counters()

    def submit(
        self, requests: Requests, buffers: Sequence[Buffer], purpose: Purpose = "prefetch"
    ) -> int:
        """Submit the requests, and remember the time."""
        began_ns = time.time_ns()
        ticket = self._engine.submit(requests, buffers, purpose)
        if self._writer is not None:
            self._inflight[ticket] = began_ns, requests
        return ticket

    def poll(self, timeout_ns: int) -> list[Completion]:
        """Poll the engine, and record the reads that finished."""
        done = self._engine.poll(timeout_ns)
        if done and self._writer is not None:
            ended_ns = time.time_ns()
            for ticket, failures in done:
                if ticket in self._inflight:  # recording may end in between
                    self._record(*self._inflight.pop(ticket), ended_ns, failures)
        return done

    def close(self) -> None:
        """Close the engine and finish the trace."""
        self._engine.close()
        self._inflight.clear()
        self._finish()
        self._writer = None

    def _record(
        self, began_ns: int, requests: Requests, ended_ns: int, failures: Sequence[Failure]
    ) -> None:
        first, last = requests.runs[:-1], requests.runs[1:] - 1
        offset = requests.offset[first]
        length = requests.offset[last] + requests.length[last] - offset
        result = length.copy()
        for extent, errno, got in failures:
            run = int(np.searchsorted(requests.runs, extent, side="right")) - 1
            arrived = int(requests.offset[extent] - offset[run]) + got
            result[run] = -errno if errno else min(int(result[run]), arrived)
        file = requests.file[first].astype(np.int64)
        read = length > 0
        if not read.all():
            file, offset, length, result = (
                column[read] for column in (file, offset, length, result)
            )
        if len(file) == 0:
            return
        used = np.argsort(self._free_ns, kind="stable")[: len(file)]
        begin_ns = np.clip(self._free_ns[used], began_ns, ended_ns)
        start_ns, duration_ns = _divide_time(length, begin_ns, ended_ns - begin_ns)
        self._free_ns[used] = ended_ns
        lane = used[np.arange(len(file)) % len(used)]
        file = self._number_files(file)
        self._pending.append(_Read(lane, file, offset, length, result, start_ns, duration_ns))
        self._rows += len(file)
        if self._rows >= _pending_rows:
            assert self._writer is not None
            self._rows = 0
            if not _write_pending(self._writer, self._lanes, self._pending):
                self._writer = None
                self._inflight.clear()

    def _number_files(self, file: Int) -> Int:
        """Return the files' numbers in the trace; a file gets one at its first read."""
        assert self._writer is not None
        for number in np.unique(file[self._numbers[file] < 0]).tolist():
            path = self._files.path(number)
            path = path if "://" in path else os.path.abspath(path)
            self._numbers[number] = self._writer.file(path, max(0, int(self._files.size[number])))
        named: Int = self._numbers[file]
        return named


def _divide_time(length: Int, begin_ns: Int, room_ns: Int) -> tuple[Int, Int]:
    """Return the start and duration of each of n reads. Read i belongs to lane i % m, and the reads
    of a lane fill its time between them."""
    lanes = len(begin_ns)
    rows = -(-len(length) // lanes)
    weights = np.zeros(rows * lanes)
    weights[: len(length)] = _read_ns + length / _bytes_per_ns
    ends = np.cumsum(weights.reshape(rows, lanes), axis=0)
    ends_ns = (begin_ns + room_ns * (ends / ends[-1])).astype(np.int64)
    ends_ns = np.clip(ends_ns, begin_ns, begin_ns + room_ns)
    starts_ns = np.concatenate([begin_ns[None, :], ends_ns[:-1]]).reshape(-1)[: len(length)]
    return starts_ns, ends_ns.reshape(-1)[: len(length)] - starts_ns


def _write_pending(writer: TraceWriter, lanes: Sequence[int], pending: list[_Read]) -> bool:
    """Write the pending reads; on failure, warn, remove the trace and return False."""
    if not pending:
        return True
    read = _Read(*(np.concatenate(columns) for columns in zip(*pending, strict=True)))
    pending.clear()
    order = np.argsort(read.lane, kind="stable")
    ends = np.cumsum(np.bincount(read.lane, minlength=len(lanes)))
    try:
        for lane, rows in zip(lanes, np.split(order, ends[:-1]), strict=True):
            kind = np.full(len(rows), READ, np.uint8)
            columns = (column[rows] for column in read[2:])
            writer.extend(lane, Operations(kind, read.file[rows].astype(np.uint32), *columns))
    except OSError as error:
        writer.discard()
        warnings.warn(
            f"{VARIABLE}: recording to {writer.path} ends here: {error.strerror}", stacklevel=2
        )
        return False
    return True


def _finish_trace(writer: TraceWriter, lanes: Sequence[int], pending: list[_Read]) -> None:
    """Finish the trace when its engine ends: by close, by the garbage collector, or with the
    interpreter."""
    if not _write_pending(writer, lanes, pending):
        return
    if writer.count == 0:
        writer.discard()
        return
    try:
        writer.close()
    except UsageError as error:
        warnings.warn(f"{VARIABLE}: {error}", stacklevel=2)
