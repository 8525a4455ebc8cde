"""Recording penstock's own reads as traces: enabled by PENSTOCK_TRACE=run.trace alone.

Each engine writes files run.PID.NUMBER.trace beside the given name, so that ranks and worker
processes need not know of each other; `penstock_bench.traces.trace_file.load` combines them. Every
FLUSH_READS reads are a complete file: a process that is killed loses only the reads after its last
one. A job that is not recorded pays one look at the environment for each engine.

A trace is a Parquet file with a row for each operation (COLUMNS): the number of its thread, its
kind (0: a read), the number of its file, offset, length, result (bytes, or -errno), start and end
in nanoseconds since 1970. A row group has up to BLOCK operations of one thread in their order, so
its statistics say which thread and what time it covers. The key "penstock" of the file's metadata
is JSON: source, timing, notes, recording, threads [process, thread], names and sizes of the files.
Four bytes before Parquet's footer, where readers of Parquet do not look, are the CRC-32 of all
other bytes: pyarrow may abort the process on a damaged file, so it is given none.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import time
import warnings
import weakref
import zlib
from collections.abc import Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from .. import limits
from ..errors import UsageError, missing_library
from ..extent import Files, Int, Requests
from .protocol import Buffer, Completion, EngineWrapper, Failure, ReadingEngine
from .request_queue import Purpose

VARIABLE = "PENSTOCK_TRACE"
FLUSH_READS = 1 << 17
"""Reads of a file: 7 MB in memory until they are written."""
BLOCK = 4096
"""Most operations of a row group: 0.2 MB in memory while it is used."""
COLUMNS = ("thread", "kind", "file", "offset", "length", "result", "start_ns", "end_ns")
DIRECTORY_KEY = b"penstock"

_numbers = itertools.count()
_read_ns = 20_000  # cost of a read besides its bytes, when a request's time is divided
_bytes_per_ns = 1.0


def import_pyarrow() -> tuple[Any, Any]:
    """Import pyarrow and its Parquet; UsageError if it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise missing_library("pyarrow", "parquet", "a trace") from None
    return pyarrow, pyarrow.parquet


class TraceOutput:
    """A trace file while it is written: PATH.partial, until `finish` gives it its name.

    UsageError if it cannot be created; later failures are the system's OSErrors.
    """

    def __init__(self, path: str) -> None:
        self.path, self._partial = path, f"{path}.partial"
        arrow, parquet = import_pyarrow()
        types = ["uint32", "uint8", "uint32", *(5 * ["int64"])]
        self._schema = arrow.schema(list(zip(COLUMNS, types, strict=True)))
        self._make_table = arrow.table
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._partial)  # of a run that was killed
            self._file = open(self._partial, "xb")  # noqa: SIM115
            self._parquet = parquet.ParquetWriter(
                self._file,
                self._schema,
                compression="zstd",
                use_dictionary=False,
                write_page_checksum=True,
                column_encoding=dict.fromkeys(COLUMNS[3:], "DELTA_BINARY_PACKED"),
            )
        except OSError as error:
            raise UsageError(f"cannot write a trace to {path}: {error.strerror}") from None

    def write(self, thread: int, *columns: Any) -> None:
        """Write up to BLOCK operations of a thread; the columns are those behind the first."""
        threads = np.full(len(columns[0]), thread, np.uint32)
        self._parquet.write_table(self._make_table([threads, *columns], schema=self._schema))

    def finish(self, **directory: Any) -> None:
        """Complete the file with its directory, and give it its name."""
        text = json.dumps(directory, separators=(",", ":")).encode()
        self._parquet.add_key_value_metadata({DIRECTORY_KEY: text})
        self._parquet.close()
        self._file.close()
        add_sum(self._partial)
        os.replace(self._partial, self.path)

    def discard(self) -> None:
        """Remove the unfinished file."""
        with contextlib.suppress(OSError, ValueError):
            self._parquet.close()
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            os.unlink(self._partial)


def add_sum(path: str) -> None:
    """Put the checksum of a Parquet file before its footer."""
    with open(path, "r+b") as file:
        place, crc, footer = _sum_parts(file, 0)
        file.seek(place)
        file.write(crc.to_bytes(4, "little") + footer)


def check_sum(path: str) -> None:
    """Raise ValueError or OSError unless the file is as `add_sum` left it."""
    with open(path, "rb") as file:
        place, crc, _ = _sum_parts(file, 4)
        file.seek(place)
        if file.read(4) != crc.to_bytes(4, "little"):
            raise ValueError("its checksum does not match")


def _sum_parts(file: BinaryIO, sum_bytes: int) -> tuple[int, int, bytes]:
    """Return the end of a Parquet file's data, the CRC-32 of its data and footer, and the footer.

    sum_bytes:  between data and footer.
    """
    file.seek(-8, os.SEEK_END)
    footer_bytes = int.from_bytes(file.read(4), "little")
    end = file.seek(-8 - footer_bytes, os.SEEK_END) - sum_bytes
    footer = file.read()
    file.seek(0)
    crc = 0
    for start in range(0, end, 1 << 20):
        crc = zlib.crc32(file.read(min(1 << 20, end - start)), crc)
    return end, zlib.crc32(footer, crc), footer


class _Reads(NamedTuple):
    """Reads that are not written to the trace yet, each with its lane: a thread of the trace."""

    lane: Int
    file: Int
    offset: Int
    length: Int
    result: Int
    start_ns: Int
    end_ns: Int


def choose_trace_path(asked: str) -> str:
    """Choose the path of the next trace file in this process, beside the path asked for."""
    stem, dot, suffix = asked.rpartition(".")
    if not dot or "/" in suffix:
        stem, suffix = asked, "trace"
    return f"{stem}.{os.getpid()}.{next(_numbers)}.{suffix}"


class RecordedEngine(EngineWrapper):
    """Writes each read of an engine into traces, and changes nothing else.

    A read is a run: extents that go to storage as one. Requests are timed from submission to
    report. Their reads get parts of that time by their bytes, in as many threads of the trace as
    the engine has reads in flight (at most 64). Sums and rates are exact; the time of a single
    read is an estimate. If a trace cannot be written, a warning is given, and the job goes on.
    """

    def __init__(self, engine: ReadingEngine, files: Files, path: str) -> None:
        super().__init__(engine)
        choice = engine.choice
        in_flight = limits.ring_entries if choice.backend == "io_uring" else 1
        lanes = min(64, choice.threads * in_flight)
        self._reads = _UnwrittenReads(files, path, f"penstock, {choice.backend}", lanes)
        self._free_ns = np.zeros(lanes, np.int64)
        self._inflight: dict[int, tuple[int, Requests]] = {}
        self._epoch_ns = time.time_ns() - time.monotonic_ns()  # times of a thread never go back
        # Runs at close, at garbage collection or at the interpreter's end.
        self._finish = weakref.finalize(self, self._reads.flush)

    def submit(
        self, requests: Requests, buffers: Sequence[Buffer], purpose: Purpose = "prefetch"
    ) -> int:
        """Submit the requests, and remember the time."""
        began_ns = self._epoch_ns + time.monotonic_ns()
        ticket = self._engine.submit(requests, buffers, purpose)
        self._inflight[ticket] = began_ns, requests
        return ticket

    def poll(self, timeout_ns: int) -> list[Completion]:
        """Poll the engine, and record the reads that finished."""
        done = self._engine.poll(timeout_ns)
        ended_ns = self._epoch_ns + time.monotonic_ns()
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
        start_ns, end_ns = _divide_time(length, begin_ns, ended_ns - begin_ns)
        self._free_ns[used] = ended_ns
        lane = used[np.arange(len(file)) % len(used)]
        self._reads.add(_Reads(lane, file, offset, length, result, start_ns, end_ns))


def _divide_time(length: Int, begin_ns: Int, room_ns: Int) -> tuple[Int, Int]:
    """Return the start and end of each of n reads. Read i belongs to lane i % m, and the reads
    of a lane fill its time between them."""
    lanes = len(begin_ns)
    rows = -(-len(length) // lanes)
    weights = np.zeros(rows * lanes)
    weights[: len(length)] = _read_ns + length / _bytes_per_ns
    ends = np.cumsum(weights.reshape(rows, lanes), axis=0)
    ends_ns = (begin_ns + room_ns * (ends / ends[-1])).astype(np.int64)
    ends_ns = np.clip(ends_ns, begin_ns, begin_ns + room_ns)
    starts_ns = np.concatenate([begin_ns[None, :], ends_ns[:-1]]).reshape(-1)[: len(length)]
    return starts_ns, ends_ns.reshape(-1)[: len(length)]


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
        self._reads: list[_Reads] = []
        self._count = 0
        self._is_recording = True

    def add(self, reads: _Reads) -> None:
        """Add reads; write a file of them once there are enough."""
        if self._is_recording:
            self._reads.append(reads)
            self._count += len(reads.lane)
            if self._count >= FLUSH_READS:
                self.flush()

    def flush(self) -> None:
        """Write a trace file of the reads. If that fails, warn, and record no more."""
        if not self._reads or os.getpid() != self._pid:
            return  # a forked child has no part in the parent's reads
        reads = _Reads(*(np.concatenate(columns) for columns in zip(*self._reads, strict=True)))
        self._reads.clear()
        self._count = 0
        path = choose_trace_path(self._path)
        try:
            output = TraceOutput(path)
            try:
                self._write(output, reads)
            except BaseException:
                output.discard()
                raise
        except (OSError, UsageError) as error:
            self._is_recording = False
            reason = getattr(error, "strerror", None) or error
            warnings.warn(f"{VARIABLE}: recording to {path} ends here: {reason}", stacklevel=2)

    def _write(self, output: TraceOutput, reads: _Reads) -> None:
        files, numbers = np.unique(reads.file, return_inverse=True)
        for lane in range(self._lanes):
            rows = np.flatnonzero(reads.lane == lane)
            for block in np.split(rows, range(BLOCK, len(rows), BLOCK)) if len(rows) else ():
                kind, file = np.zeros(len(block), np.uint8), numbers[block].astype(np.uint32)
                output.write(lane, kind, file, *(column[block] for column in reads[2:]))
        paths = [self._files.path(file) for file in files.tolist()]
        output.finish(
            source=self._source,
            timing="shared",
            notes=[],
            recording=self._name,
            threads=[(self._pid, lane) for lane in range(self._lanes)],
            names=[path if "://" in path else os.path.abspath(path) for path in paths],
            sizes=np.maximum(self._files.size[files], 0).tolist(),
        )
