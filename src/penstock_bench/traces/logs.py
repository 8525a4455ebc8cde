"""Import of logs of any kind as traces, and filters of a job's files.

Reads listed in tables, as traces: Darshan's DXT as text, and CSV.

    darshan-dxt-parser job.darshan > job.dxt

CSV has a line of column names: pid, time, op, path, offset, length, duration, in any order, times
in seconds; op is read, open, stat or close (write is left out); empty offsets and lengths are 0.
With a column `thread` it says who read. Otherwise, as with DXT, only processes are known, and
operations that overlap are given to as many threads as that takes.

All rows are held in memory until they are in order: 100 bytes each.
"""

from __future__ import annotations

import contextlib
import csv
import heapq
import os
import re
import stat
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO

import numpy as np

from penstock.arguments import suggest_path
from penstock.errors import FormatError, MissingError, UsageError

from . import strace as trace_strace
from . import trace_file as traces
from .trace_file import CLOSE, OPEN, READ, STAT, Operations, TraceWriter

# -- Darshan and CSV -------------------------------------------------------------------------------

_OPS = {"read": READ, "open": OPEN, "stat": STAT, "close": CLOSE}
_SECONDS = re.compile(r"(\d*)(?:\.(\d*))?")
_DXT_NS = 100_000  # the last digit of its times
_NEEDED = ("pid", "time", "op", "path", "offset", "length", "duration")


class _LogTable:
    """Rows of a log in any order, by process."""

    def __init__(self, name: str, writer: TraceWriter, keep: Callable[[str], bool]) -> None:
        self.line = 0
        self._name = name
        self._writer = writer
        self._keep = keep
        self._files: dict[str, int | None] = {}
        self._columns: dict[tuple[int, int], list[array[int]]] = {}
        self.writes = 0  # operations that are left out

    def wrong(self, what: str) -> FormatError:
        return FormatError(f"{self._name}, line {self.line:,}: {what}")

    def number(self, name: str, text: str, least: int = 0) -> int:
        try:
            value = int(text or "0")
        except ValueError:
            raise self.wrong(f"{name} is {text!r}: a whole number belongs there") from None
        if not least <= value < 1 << 62:
            raise self.wrong(f"{name} is {value}: use {least} or above")
        return value

    def time_ns(self, name: str, text: str) -> int:
        """Read seconds as nanoseconds, exactly."""
        match = _SECONDS.fullmatch(text)
        if match is None or not text or len(match[1]) > 10 or text == ".":
            raise self.wrong(f"{name} is {text!r}: seconds from 0 on belong there")
        return int(match[1] or 0) * 10**9 + int((match[2] or "").ljust(9, "0")[:9])

    def add(
        self, who: tuple[int, int], kind: int, path: str, row: tuple[int, int, int, int]
    ) -> None:
        """Add an operation. row: offset, length, start_ns, end_ns."""
        if path not in self._files:
            self._files[path] = self._writer.file(path) if self._keep(path) else None
        file = self._files[path]
        if file is None:
            return
        offset, length, start_ns, end_ns = row
        if offset + length >= 1 << 62:
            raise self.wrong(f"{offset} + {length} bytes is no place in a file")
        if end_ns < start_ns:
            raise self.wrong(f"it ends {start_ns - end_ns} ns before it begins")
        columns = self._columns.setdefault(who, [array("q") for _ in range(6)])
        for column, value in zip(columns, (kind, file, *row), strict=True):
            column.append(value)
        if kind == READ:
            self._writer.file(path, offset + length)

    def finish(self, tolerance_ns: int) -> None:
        """Give everything to the writer, in order. Spans that overlap by no more than the tolerance
        follow each other."""
        for (process, thread), columns in self._columns.items():
            kind, file, offset, length, start_ns, end_ns = (
                np.frombuffer(column, np.int64) for column in columns
            )
            order = np.argsort(start_ns, kind="stable")
            ends = np.maximum(start_ns, end_ns - tolerance_ns)[order].tolist()
            lane = np.array(assign_lanes(list(zip(start_ns[order].tolist(), ends, strict=True))))
            for lane_number in range(int(lane.max()) + 1):
                rows = order[lane == lane_number]
                self._writer.extend(
                    self._writer.thread(process, thread, new=True),
                    Operations(
                        kind[rows].astype(np.uint8),
                        file[rows].astype(np.uint32),
                        offset[rows],
                        length[rows],
                        np.where(kind[rows] == READ, length[rows], 0),
                        start_ns[rows],
                        (end_ns - start_ns)[rows],
                    ),
                )
        if self.writes:
            self._writer.notes.append(f"{self.writes:,} writes were left out")


def read_dxt(
    name: str, lines: Iterable[str], writer: TraceWriter, keep: Callable[[str], bool]
) -> None:
    """Read darshan-dxt-parser's text. FormatError for lines that it does not write."""
    table = _LogTable(name, writer, keep)
    began_ns, path, said_reads, found_reads = 0, None, 0, 0
    for line in lines:
        table.line += 1
        words = line.split()
        if line.startswith("#"):
            key, _, value = line[1:].partition(":")
            match key.strip():
                case "start_time":
                    began_ns = table.time_ns("start_time", value.strip())
                case "DXT, file_id":
                    path = value.partition("file_name:")[2].strip()
                case "DXT, write_count":
                    said_reads += table.number("read_count", value.rpartition(":")[2].strip())
            continue
        if not words:
            continue
        if words[0] != "X_POSIX":
            if words[0] != "X_MPIIO":
                raise table.wrong(
                    f"{words[0]!r} is no module of DXT: use darshan-dxt-parser's text"
                )
            said_reads -= words[2:3] == ["read"]  # the same again, as it was asked for
            continue
        if len(words) < 8 or words[2] not in ("read", "write"):
            raise table.wrong(
                f"{line.strip()[:80]!r} is cut: module, rank, wt/rd, segment, offset, length, start"
                " and end belong there"
            )
        if path is None:
            raise table.wrong(
                "reads come before the name of a file: the head of the log is missing"
            )
        if words[2] == "write":
            table.writes += 1
            continue
        found_reads += 1
        start_ns, end_ns = (table.time_ns("time", text) for text in words[6:8])
        offset, length = (table.number("offset or length", text) for text in words[4:6])
        rank = table.number("rank", words[1], -1)
        times = began_ns + start_ns, began_ns + end_ns
        table.add((rank, 0), READ, path, (offset, length, *times))
    if found_reads < said_reads:
        raise FormatError(
            f"{name}: {found_reads:,} reads, and its heads say {said_reads:,}: the log was cut;"
            " write it again"
        )
    table.finish(_DXT_NS)


def read_csv(
    name: str, lines: Iterable[str], writer: TraceWriter, keep: Callable[[str], bool]
) -> None:
    """Read the operations of a CSV file. FormatError for impossible rows."""
    table = _LogTable(name, writer, keep)
    rows = csv.DictReader(lines)
    try:
        heads = [head.strip().lower() for head in rows.fieldnames or ()]
        rows.fieldnames = heads
        if missing := [column for column in _NEEDED if column not in heads]:
            raise FormatError(
                f"{name}: the first line has no {', '.join(missing)}: name the columns"
                f" {', '.join(_NEEDED)}"
            )
        for row in rows:
            table.line = rows.line_num
            if None in row or None in row.values():
                count = (
                    sum(value is not None for value in row.values()) + len(row.get(None, [0])) - 1
                )
                raise table.wrong(f"{count} values for {len(heads)} columns: was it cut?")
            _add_row(table, {head: value.strip() for head, value in row.items()})
    except csv.Error as error:
        raise FormatError(f"{name}, line {rows.line_num:,}: {error}: it is no CSV") from None
    table.finish(0)


def _add_row(table: _LogTable, row: dict[str, str]) -> None:
    op = row["op"].lower()
    if op == "write":
        table.writes += 1
        return
    if op not in _OPS:
        raise table.wrong(f"op is {row['op']!r}: use {', '.join(_OPS)}")
    if not row["path"]:
        raise table.wrong("path is empty: name the file")
    process, thread, offset, length = (
        table.number(name, row.get(name, "0")) for name in ("pid", "thread", "offset", "length")
    )
    start_ns, took_ns = (table.time_ns(name, row[name]) for name in ("time", "duration"))
    place = (offset, length) if op == "read" else (0, 0)
    table.add((process, thread), _OPS[op], row["path"], (*place, start_ns, start_ns + took_ns))


def assign_lanes(spans: Sequence[tuple[int, int]]) -> list[int]:
    """Assign a lane to each of some spans of time, given in the order in which they begin: as few
    lanes as the most spans that overlap, with no two overlapping spans in one lane."""
    lane_of: list[int] = []
    busy: list[tuple[int, int]] = []  # until, lane
    for first, last in spans:
        if busy and busy[0][0] <= first:
            lane = heapq.heappop(busy)[1]
        else:
            lane = len(busy)
        heapq.heappush(busy, (last, lane))
        lane_of.append(lane)
    return lane_of


# -- logs of any kind ------------------------------------------------------------------------------

Keep = Callable[[str], bool]
Seen = Callable[[int, int], object]
"""Receives the bytes of a log that were read, and its bytes in all."""

_ELSEWHERE = re.compile(
    r"/(?:dev|proc|sys|etc|usr|bin|sbin|lib\w*|boot|run|opt/conda|opt/intel)(?:/|$)"
    r"|.*/(?:__pycache__|site-packages|dist-packages|lib/python\d[^/]*|\.git)(?:/|$)"
    r"|.*(?:\.py|\.pyc|\.so(?:\.[\d.]+)?|/ld\.so\.cache|/pyvenv\.cfg)$"
)


def is_job_data(path: str) -> bool:
    """True if a path is likely data, and not of the system, the interpreter or its packages."""
    return _ELSEWHERE.match(path) is None and path not in ("", "/")


def filter_below(folders: Sequence[str]) -> Keep:
    """The filter of paths that are one of these folders, or below."""
    roots = [folder if "://" in folder else os.path.abspath(folder) for folder in folders]
    return lambda path: any(
        path == root or path.startswith(root.rstrip("/") + "/") for root in roots
    )


def keep_everything(path: str) -> bool:
    """Keep any path."""
    return True


def add_log(
    path: str, writer: traces.TraceWriter, keep: Keep, seen: Seen = lambda done, total: None
) -> None:
    """Add a log to a trace. Its first lines show its kind: a trace, strace's, DXT, or CSV.
    MissingError and UsageError if it cannot be read, FormatError if it is of another kind, cut or
    altered."""
    if traces.is_trace(path):
        _copy(traces.load(path), writer, keep)
        return
    with _open_text(path) as file:
        head = file.read(1 << 14)
        lines = head.splitlines()
        if not head.strip():
            raise FormatError(f"{path} is empty: give the log of a job")
        if "\0" in head:
            raise FormatError(
                f"{path} is no text and no trace: give strace's log, what darshan-dxt-parser"
                " prints (of a .darshan file), or CSV"
            )
        file.seek(0)
        text = _report_lines(file, seen)
        if any(line.startswith(("# darshan log version", "# DXT")) for line in lines):
            read_dxt(path, text, writer, keep)
        elif {"time", "path"} <= {word.strip().lower() for word in lines[0].split(",")}:
            read_csv(path, text, writer, keep)
        else:
            trace_strace.StraceLog(path, writer, keep).take(text)


def import_logs(
    paths: Sequence[str],
    target: str,
    keep: Keep,
    *,
    seen: Seen = lambda done, total: None,
    command: str | None = None,
) -> traces.Trace:
    """Make a trace of one or more logs. command: that wrote them just now, on this machine, so that
    files have their sizes of then. UsageError if no operation was wanted."""
    names = ", ".join(os.path.basename(path) for path in paths[:3])
    names += ", ..." if len(paths) > 3 else ""
    with traces.TraceWriter(target, command or names) as writer:
        for path in paths:
            add_log(path, writer, keep, seen)
        if command is not None:
            for _, name in writer.names():
                with contextlib.suppress(OSError):
                    status = os.stat(name)
                    if stat.S_ISREG(status.st_mode):
                        writer.file(name, status.st_size)
        if writer.count == 0:
            raise UsageError(
                f"{command or names}: no operations on files that were wanted: give --under FOLDER"
                " of the data, or --all"
            )
    return traces.load(target)


def _copy(trace: traces.Trace, writer: traces.TraceWriter, keep: Keep) -> None:
    names = [trace.names[i] for i in range(len(trace.names))]
    numbers = np.array(
        [
            writer.file(name, int(size)) if keep(name) else -1
            for name, size in zip(names, trace.sizes, strict=True)
        ],
        np.int64,
    )
    writer.source, writer.notes = trace.source, [*writer.notes, *trace.notes]
    if trace.timing == "shared":
        writer.timing = "shared"
    for number, thread in enumerate(trace.threads):
        target: int | None = None
        for rows in trace.of_thread(number):
            wanted = rows.at(numbers[rows.file] >= 0)
            if len(wanted.kind):
                wanted = wanted._replace(
                    file=numbers[wanted.file].astype(np.uint32),
                    start_ns=wanted.start_ns + trace.began_ns,
                )
                if target is None:
                    target = writer.thread(*thread, new=True)
                writer.extend(target, wanted)


def _report_lines(file: IO[str], seen: Seen) -> Iterator[str]:
    total, done, told = os.fstat(file.fileno()).st_size, 0, 0
    for line in file:
        yield line
        done += len(line)
        if done - told >= 1 << 20:
            told = done
            seen(done, total)


@contextlib.contextmanager
def _open_text(path: str) -> Iterator[IO[str]]:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            yield file
    except FileNotFoundError:
        raise MissingError(f"{path} does not exist{suggest_path(path)}: check the path") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
