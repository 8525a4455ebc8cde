"""Reads listed in tables, as traces: Darshan's DXT as text, and CSV.

    darshan-dxt-parser job.darshan > job.dxt

CSV has a line of column names: pid, time, op, path, offset, length, duration, in any order, times
in seconds; op is read, open, stat or close (write is left out); empty offsets and lengths are 0.
With a column `thread` it says who read. Otherwise, as with DXT, only processes are known, and
operations that overlap are given to as many threads as that takes.

All rows are held in memory until they are in order: 100 bytes each.
"""

from __future__ import annotations

import csv
import heapq
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from penstock.engine.trace_file import CLOSE, OPEN, READ, STAT, Operations, TraceWriter
from penstock.errors import FormatError

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
        self._left_out: Counter[str] = Counter()

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

    def left_out(self, what: str) -> None:
        self._left_out[what] += 1

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
        self._writer.notes += [f"{count:,} {what}" for what, count in self._left_out.items()]


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
            table.left_out("writes were left out")
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
    rows = csv.reader(lines)
    try:
        heads = [head.strip().lower() for head in next(rows, [])]
        if missing := [column for column in _NEEDED if column not in heads]:
            raise FormatError(
                f"{name}: the first line has no {', '.join(missing)}: name the columns"
                f" {', '.join(_NEEDED)}"
            )
        for row in rows:
            table.line = rows.line_num
            if not row:
                continue
            if len(row) != len(heads):
                raise table.wrong(f"{len(row)} values for {len(heads)} columns: was it cut?")
            _add_row(table, dict(zip(heads, map(str.strip, row), strict=True)))
    except csv.Error as error:
        raise FormatError(f"{name}, line {rows.line_num:,}: {error}: it is no CSV") from None
    table.finish(0)


def _add_row(table: _LogTable, row: dict[str, str]) -> None:
    op = row["op"].lower()
    if op == "write":
        table.left_out("writes were left out")
        return
    if op not in _OPS:
        raise table.wrong(f"op is {row['op']!r}: use {', '.join(_OPS)}")
    if not row["path"]:
        raise table.wrong("path is empty: name the file")
    process = table.number("pid", row["pid"])
    thread = table.number("thread", row.get("thread", "0"))
    start_ns = table.time_ns("time", row["time"])
    end_ns = start_ns + table.time_ns("duration", row["duration"])
    offset = table.number("offset", row["offset"])
    length = table.number("length", row["length"])
    place = (offset, length) if op == "read" else (0, 0)
    table.add((process, thread), _OPS[op], row["path"], (*place, start_ns, end_ns))


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
