"""Recording penstock's own reads as traces: enabled by PENSTOCK_TRACE=run.trace alone.

Each engine writes files run.PID.NUMBER.trace beside the given name, so that ranks and worker
processes need not know of each other; `penstock.engine.trace_file.load` combines them. Every
FLUSH_READS reads are a complete file: a process that is killed loses only the reads after its last
one. A job that is not recorded pays one look at the environment for each engine.
"""

from __future__ import annotations

import itertools
import os
import socket
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
from .trace_file import READ, Operations, TraceWriter, import_pyarrow

VARIABLE = "PENSTOCK_TRACE"
FLUSH_READS = 1 << 17
"""Reads of a file: 7 MB in memory until they are written."""

_numbers = itertools.count()
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
    """Choose the path of the next trace file in this process, beside the path asked for."""
    stem, dot, suffix = asked.rpartition(".")
    if not dot or "/" in suffix:
        stem, suffix = asked, "trace"
    return f"{stem}.{os.getpid()}.{next(_numbers)}.{suffix}"


class RecordedEngine:
    """Writes each read of an engine into traces, and changes nothing else.

    A read is a run: extents that go to storage as one. Requests are timed from submission to
    report. Their reads get parts of that time by their bytes, in as many threads of the trace as
    the engine has reads in flight (at most 64). Sums and rates are exact; the time of a single
    read is an estimate. If a trace cannot be written, a warning is given, and the job goes on.
    """

    def __init__(self, engine: ReadingEngine, files: Files, path: str) -> None:
        self._engine = engine
        choice = engine.choice
        in_flight = limits.ring_entries if choice.backend == "io_uring" else 1
        lanes = min(64, choice.threads * in_flight)
        self._reads = _UnwrittenReads(files, path, f"penstock, {choice.backend}", lanes)
        self._free_ns = np.zeros(lanes, np.int64)
        self._inflight: dict[int, tuple[int, Requests]] = {}
        # Runs at close, at garbage collection or at the interpreter's end.
        self._finish = weakref.finalize(self, self._reads.flush)

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
        self._inflight[ticket] = began_ns, requests
        return ticket

    def poll(self, timeout_ns: int) -> list[Completion]:
        """Poll the engine, and record the reads that finished."""
        done = self._engine.poll(timeout_ns)
        ended_ns = time.time_ns() if done else 0
        for ticket, failures in done:
            self._record(*self._inflight.pop(ticket), ended_ns, failures)
        return done

    def close(self) -> None:
        """Close the engine and write the last trace."""
        self._engine.close()
        self._inflight.clear()
        self._finish()

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
        file, offset, length, result = (column[read] for column in (file, offset, length, result))
        if len(file) == 0:
            return
        used = np.argsort(self._free_ns, kind="stable")[: len(file)]
        begin_ns = np.clip(self._free_ns[used], began_ns, ended_ns)
        start_ns, duration_ns = _divide_time(length, begin_ns, ended_ns - begin_ns)
        self._free_ns[used] = ended_ns
        lane = used[np.arange(len(file)) % len(used)]
        self._reads.add(_Read(lane, file, offset, length, result, start_ns, duration_ns))


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


class _UnwrittenReads:
    """The reads of an engine since its last trace file."""

    def __init__(self, files: Files, path: str, source: str, lanes: int) -> None:
        import_pyarrow()
        folder = os.path.dirname(path) or "."
        if not os.access(folder, os.W_OK):
            raise UsageError(f"{VARIABLE}: cannot write traces to {folder}: no such folder")
        self._files = files
        self._path = path
        self._source = source
        self._lanes = lanes
        self._pid = os.getpid()
        self._name = f"{socket.gethostname()}/{self._pid}/{time.time_ns()}"
        self._reads: list[_Read] = []
        self._count = 0
        self._is_recording = True

    def add(self, read: _Read) -> None:
        """Add reads; write a file of them once there are enough."""
        if self._is_recording:
            self._reads.append(read)
            self._count += len(read.lane)
            if self._count >= FLUSH_READS:
                self.flush()

    def flush(self) -> None:
        """Write a trace file of the reads. If that fails, warn, and record no more."""
        if not self._reads or os.getpid() != self._pid:
            return  # a forked child has no part in the parent's reads
        read = _Read(*(np.concatenate(columns) for columns in zip(*self._reads, strict=True)))
        self._reads.clear()
        self._count = 0
        path = choose_trace_path(self._path)
        try:
            with TraceWriter(path, self._source, "shared", self._name) as writer:
                self._write(writer, read)
        except (OSError, UsageError) as error:
            self._is_recording = False
            reason = getattr(error, "strerror", None) or error
            warnings.warn(f"{VARIABLE}: recording to {path} ends here: {reason}", stacklevel=2)

    def _write(self, writer: TraceWriter, read: _Read) -> None:
        threads = [writer.thread(self._pid, lane) for lane in range(self._lanes)]
        files, inverse = np.unique(read.file, return_inverse=True)
        numbers: list[int] = []
        for file in files.tolist():
            path = self._files.path(file)
            path = path if "://" in path else os.path.abspath(path)
            numbers.append(writer.file(path, max(0, int(self._files.size[file]))))
        file_numbers = np.array(numbers, np.uint32)[inverse]
        order = np.argsort(read.lane, kind="stable")
        ends = np.cumsum(np.bincount(read.lane, minlength=self._lanes))
        for thread, rows in zip(threads, np.split(order, ends[:-1]), strict=True):
            kind = np.full(len(rows), READ, np.uint8)
            columns = (column[rows] for column in read[2:])
            writer.extend(thread, Operations(kind, file_numbers[rows], *columns))
