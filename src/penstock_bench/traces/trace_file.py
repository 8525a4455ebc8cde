"""Traces: the reads of a job, with the place and time of every operation, as Parquet files.

A trace holds *operations* by *thread*. A thread performs one operation after the other: it is a
thread of the job, or, if the job's threads are not known, one of the fewest threads that explain
the overlaps. The time between two operations of a thread, its think time, is the time that the
job spent on the data it had read. A trace can therefore be replayed (`penstock bench replay`).

The format is in `penstock.engine.recording`, which writes penstock's own reads. Times in a file are
nanoseconds since 1970. Pages have checksums for damage while the trace is read.

Row groups are read one by one, so a trace of any length takes as much memory as its threads have
blocks. A Parquet file is readable once it is complete: a recording that a kill must not lose is a
series of files with one name of the recording, and `load` combines them.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from penstock.arguments import suggest_path
from penstock.engine import recording as trace_output
from penstock.errors import FormatError, MissingError, UsageError
from penstock.extent import FileIds, Int, Names

READ, OPEN, OPEN_DIRECT, STAT, CLOSE, MAP = range(6)
"""Kinds of operations. OPEN_DIRECT is an open with O_DIRECT. MAP is a memory map, whose reads are
not seen."""
KINDS = ("read", "open", "open_direct", "stat", "close", "map")

_MAGIC = b"PAR1"
BLOCK = trace_output.BLOCK
_START, _END = trace_output.COLUMNS.index("start_ns"), trace_output.COLUMNS.index("end_ns")
_LATEST_NS = 1 << 62

Timing = Literal["exact", "shared"]
"""Precision of a trace's times. exact: each operation was timed. shared: operations were timed
together, by request; each gets its part of that time."""


class Operations(NamedTuple):
    """n operations of one thread, in the order in which they were done.

    kind:         uint8, one of KINDS.
    file:         uint32, number of the file in the trace.
    offset:       int64, of reads and maps; 0 of others.
    length:       int64, bytes asked for, of reads and maps; 0 of others.
    result:       int64, bytes that a read gave; 0 of others; -errno of what failed.
    start_ns:     int64, since the trace began; ascending.
    duration_ns:  int64; an operation ends before the next begins.
    """

    kind: npt.NDArray[np.uint8]
    file: FileIds
    offset: Int
    length: Int
    result: Int
    start_ns: Int
    duration_ns: Int

    def at(self, which: Any) -> Operations:
        """Select operations by a mask, slice or array of numbers."""
        return Operations(*(column[which] for column in self))


def build_operations(rows: Sequence[Sequence[int]]) -> Operations:
    """Turn rows into columns."""
    table = np.array(rows, np.int64).reshape(len(rows), len(Operations._fields))
    return Operations(
        table[:, 0].astype(np.uint8),
        table[:, 1].astype(np.uint32),
        *(np.ascontiguousarray(table[:, i]) for i in range(2, 7)),
    )


def concatenate_operations(tables: Sequence[Operations]) -> Operations:
    """Concatenate operations."""
    if not tables:
        return build_operations([])
    return Operations(*(np.concatenate(columns) for columns in zip(*tables, strict=True)))


class Thread(NamedTuple):
    """Identity of a thread: the process and thread numbers that the system gave."""

    process: int
    thread: int


class TraceBlock(NamedTuple):
    """A row group: consecutive operations of a thread. Times are since the trace began."""

    thread: int
    rows: int
    first_ns: int
    end_ns: int
    file: int
    number: int


class _TraceFile:
    """One file of a trace, open for reading. Any thread may read."""

    def __init__(self, path: str) -> None:
        _, parquet = trace_output.import_pyarrow()
        if not is_trace(path):
            raise FormatError(f"{path} is no trace: `penstock trace import` makes traces of logs")
        self.path = path
        self.files: FileIds = np.zeros(0, np.uint32)  # numbers of its files in the whole trace
        self._lock = threading.Lock()
        with self._report_damage():
            trace_output.check_sum(path)
            self._parquet = parquet.ParquetFile(
                path, memory_map=True, page_checksum_verification=True
            )
            metadata = self._parquet.metadata
            if tuple(self._parquet.schema_arrow.names) != trace_output.COLUMNS:
                raise ValueError(f"its columns are {self._parquet.schema_arrow.names}")
            self.directory = json.loads((metadata.metadata or {})[trace_output.DIRECTORY_KEY])
            _check_directory(self.directory)
            self.spans = [self._read_span(number) for number in range(metadata.num_row_groups)]

    def _read_span(self, number: int) -> tuple[int, int, int, int]:
        """Return thread, rows, first start and last end of a row group."""
        group = self._parquet.metadata.row_group(number)
        thread, start, end = (group.column(i).statistics for i in (0, _START, _END))
        if not (1 <= group.num_rows <= BLOCK and group.total_byte_size <= 128 * BLOCK):
            raise ValueError(f"row group {number} has {group.num_rows} rows")
        if not 0 <= thread.min == thread.max < len(self.directory["threads"]):
            raise ValueError(f"row group {number} is of no thread")
        return thread.min, group.num_rows, start.min, end.max

    def read(self, number: int, began_ns: int) -> Operations:
        """Read a row group. FormatError if it is damaged, or differs from its statistics."""
        with self._report_damage():
            with self._lock:
                table = self._parquet.read_row_group(number, use_threads=False)
            columns = [column.to_numpy() for column in table.columns]
            thread, start_ns, end_ns = columns[0], columns[_START] - began_ns, columns[_END]
            rows = Operations(*[*columns[1:_START], start_ns, end_ns - began_ns - start_ns])
            span = self.spans[number]
            if (int(thread[0]), len(thread), start_ns[0] + began_ns, end_ns[-1]) != span:
                raise ValueError(f"row group {number} differs from its statistics")
            if not np.all(_are_possible(rows, len(self.files))):
                raise ValueError(f"row group {number} holds impossible operations")
            if np.any(end_ns[:-1] - began_ns > start_ns[1:]):
                raise ValueError(f"operations of row group {number} overlap")
            return rows._replace(file=self.files[rows.file])

    @contextlib.contextmanager
    def _report_damage(self) -> Iterator[None]:
        """Raise errors of pyarrow and of values as a FormatError that names the file."""
        try:
            yield
        except FileNotFoundError:
            raise
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            reason = str(error).partition("\n")[0]
            raise FormatError(f"{self.path}: the trace was cut or altered ({reason:.60})") from None


def _check_directory(directory: Any) -> None:
    """Raise ValueError, TypeError or KeyError unless the values have their types."""
    names, sizes, threads = directory["names"], directory["sizes"], directory["threads"]
    texts = [directory["source"], directory["recording"], *directory["notes"], *names]
    numbers = [*sizes, *(number for thread in threads for number in Thread(*thread))]
    if not (
        directory["timing"] in get_args(Timing)
        and len(names) == len(sizes)
        and all(isinstance(text, str) for text in texts)
        and all(type(number) is int and abs(number) < _LATEST_NS for number in numbers)
        and min(sizes, default=0) >= 0
    ):
        raise ValueError("its directory is malformed")


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """The operations of a job, on disk; created by `load`.

    source:     where the trace came from, in words.
    timing:     precision of the times.
    notes:      what was left out or not seen, in words.
    began_ns:   time at which its first operation began, since 1970.
    names:      paths of the files, or their URLs.
    sizes:      int64, known bytes of each file when recorded; no less than was read.
    """

    source: str
    timing: Timing
    notes: tuple[str, ...]
    began_ns: int
    threads: tuple[Thread, ...]
    names: Names
    sizes: Int
    blocks: tuple[TraceBlock, ...]
    _files: tuple[_TraceFile, ...]
    _of_thread: tuple[tuple[TraceBlock, ...], ...]

    @property
    def count(self) -> int:
        """Number of operations."""
        return sum(block.rows for block in self.blocks)

    @property
    def end_ns(self) -> int:
        """Time at which the last operation ended."""
        return max((block.end_ns for block in self.blocks), default=0)

    def spans(self) -> list[tuple[int, int]]:
        """Return for each thread the time at which its first operation began and its last ended."""
        spans = [(_LATEST_NS, 0)] * len(self.threads)
        for block in self.blocks:
            first, last = spans[block.thread]
            spans[block.thread] = min(first, block.first_ns), max(last, block.end_ns)
        return spans

    def of_thread(self, thread: int) -> Iterator[Operations]:
        """Yield the operations of one thread, block by block. FormatError if a block is damaged."""
        for block in self._of_thread[thread]:
            yield self._read(block)

    def in_order(self) -> Iterator[tuple[FileIds, Operations]]:
        """Yield all operations in the order in which they began, a few thousand at a time, with the
        thread of each."""
        pending: list[tuple[FileIds, Operations]] = []
        rows, enough = 0, 4 * BLOCK
        for block in self.blocks:  # by first_ns
            if rows >= enough:
                done, pending = _split_at(pending, block.first_ns)
                rows = sum(len(threads) for threads, _ in pending)
                enough = max(4 * BLOCK, 2 * rows)
                if len(done[0]):
                    yield done
            pending.append((np.full(block.rows, block.thread, np.uint32), self._read(block)))
            rows += block.rows
        if pending:
            yield _split_at(pending, _LATEST_NS)[0]

    def _read(self, block: TraceBlock) -> Operations:
        return self._files[block.file].read(block.number, self.began_ns)


def _split_at(
    pending: list[tuple[FileIds, Operations]], until_ns: int
) -> tuple[tuple[FileIds, Operations], list[tuple[FileIds, Operations]]]:
    """Split operations into those that begin before a time, in order, and the rest."""
    threads = np.concatenate([threads for threads, _ in pending])
    rows = concatenate_operations([table for _, table in pending])
    order = np.argsort(rows.start_ns, kind="stable")
    threads, rows = threads[order], rows.at(order)
    cut = int(np.searchsorted(rows.start_ns, until_ns))
    rest = [(threads[cut:], rows.at(slice(cut, None)))]
    return (threads[:cut], rows.at(slice(cut))), rest if cut < len(threads) else []


# -- writing ---------------------------------------------------------------------------------------


class _Pending:
    """Operations of a thread that are not written yet: columns, and rows after them."""

    __slots__ = ("count", "last_ns", "parts", "rows")

    def __init__(self) -> None:
        self.parts: list[Operations] = []
        self.rows: list[tuple[int, ...]] = []
        self.count = 0
        self.last_ns = 0

    def follow(self, back_ns: int, last_ns: int, count: int) -> None:
        """Note that operations follow; UsageError if one starts `back_ns` before the previous."""
        if back_ns > 0:
            raise UsageError(
                f"operations of a thread go back in time, by {back_ns} ns: give them in order"
            )
        self.last_ns = last_ns
        self.count += count


class TraceWriter:
    """Writes a trace while its operations come; in a `with` statement, the file appears when
    complete.

    Until then it is PATH.partial, which is removed if an error is raised. Times are nanoseconds
    since 1970.

    recording: name of a series of files whose threads, by number, are the same; "" is a series of
               one.
    """

    def __init__(
        self, path: str, source: str, timing: Timing = "exact", recording: str = ""
    ) -> None:
        self.path = path
        self.source = source
        self.timing: Timing = timing
        self.notes: list[str] = []
        self.count = 0
        self._recording = recording
        self._threads: list[Thread] = []
        self._known: dict[Thread, int] = {}  # the last of such numbers
        self._files: dict[bytes, int] = {}
        self._sizes: list[int] = []
        self._pending: list[_Pending] = []  # by thread
        self._closed = False
        self._output = trace_output.TraceOutput(path)

    def thread(self, process: int, thread: int, *, new: bool = False) -> int:
        """Return the number of a thread in this trace, the same each time. new: it is another
        thread, to which the system gave the same number."""
        who = Thread(process, thread)
        if new or who not in self._known:
            self._known[who] = len(self._threads)
            self._threads.append(who)
            self._pending.append(_Pending())
        return self._known[who]

    def file(self, name: str | bytes, size: int = 0) -> int:
        """Return the number of a file in this trace, the same each time. size: if known."""
        number = self._files.setdefault(os.fsencode(name), len(self._files))
        if number == len(self._sizes):
            self._sizes.append(0)
        self._sizes[number] = max(self._sizes[number], size)
        return number

    def names(self) -> Iterator[tuple[int, str]]:
        """Yield the numbers and names of the files until now."""
        for name, number in list(self._files.items()):
            yield number, os.fsdecode(name)

    def add(self, thread: int, *row: int) -> None:
        """Add one operation, as in `Operations`; a thread's operations come in order.

        An operation that overlaps the next one of its thread is cut there. UsageError if it begins
        before the previous one, or has impossible values.
        """
        kind, file, offset, _, result, start_ns, _ = row
        if not _are_possible(row, len(self._sizes)):
            values = dict(zip(Operations._fields, row, strict=True))
            raise UsageError(f"an operation of a trace has impossible values: {values}")
        pending = self._pending[thread]
        pending.follow(pending.last_ns - start_ns, start_ns, 1)
        pending.rows.append(row)
        if kind == READ and result > 0:
            self._sizes[file] = max(self._sizes[file], offset + result)
        self._count(thread, 1)

    def extend(self, thread: int, added: Operations) -> None:
        """Add several operations of a thread, each as `add` takes it; their sizes were given to
        `file`."""
        count = len(added.kind)
        if count == 0:
            return
        if not np.all(_are_possible(added, len(self._sizes))):
            raise UsageError("operations of a trace have impossible values")
        pending = self._pending[thread]
        back_ns = -int(np.diff(added.start_ns, prepend=pending.last_ns).min())
        pending.follow(back_ns, int(added.start_ns[-1]), count)
        pending.parts += [build_operations(pending.rows), added]
        pending.rows.clear()
        self._count(thread, count)

    def _count(self, thread: int, count: int) -> None:
        self.count += count
        if self._pending[thread].count > BLOCK:
            self._flush(thread)

    def close(self) -> None:
        """Finish the file; nothing can be added afterwards. May be called again."""
        if self._closed:
            return
        self._closed = True
        try:
            self._finish()
        except OSError as error:
            self._output.discard()
            raise UsageError(f"cannot write a trace to {self.path}: {error.strerror}") from None

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def discard(self) -> None:
        """Remove the unfinished file; after `close` it does nothing."""
        if not self._closed:
            self._closed = True
            self._output.discard()

    def _flush(self, thread: int, everything: bool = False) -> None:
        """Write the full blocks of a thread; an operation is cut at the start of the next."""
        pending = self._pending[thread]
        rows = concatenate_operations([*pending.parts, build_operations(pending.rows)])
        room = np.diff(rows.start_ns, append=_LATEST_NS)
        rows = rows._replace(duration_ns=np.minimum(rows.duration_ns, room))
        place, count = 0, len(rows.kind)
        while count - place > (0 if everything else BLOCK):
            block = rows.at(slice(place, place + BLOCK))
            place += len(block.kind)
            *columns, duration_ns = block
            self._output.write(thread, *columns, block.start_ns + duration_ns)
        pending.rows.clear()
        pending.parts = [rows.at(slice(place, None))]
        pending.count = count - place

    def _finish(self) -> None:
        for thread in range(len(self._pending)):
            self._flush(thread, everything=True)
        self._output.finish(
            source=self.source,
            timing=self.timing,
            notes=self.notes,
            recording=self._recording,
            threads=self._threads,
            names=[os.fsdecode(name) for name in self._files],
            sizes=self._sizes,
        )


def _are_possible(row: Sequence[Any], files: int) -> Any:
    """True for each operation that is possible without its neighbours. row: the values of one
    operation, or columns; files: number of files in the trace."""
    kind, file, offset, length, result, start_ns, duration_ns = row
    return (
        (kind >= 0)
        & (kind < len(KINDS))
        & (file >= 0)
        & (file < files)
        & (offset >= 0)
        & (length >= 0)
        & (offset < _LATEST_NS - length)
        & (result <= length)
        & (start_ns >= 0)
        & (duration_ns >= 0)
        & (start_ns < _LATEST_NS - duration_ns)
    )


# -- reading ---------------------------------------------------------------------------------------


def is_trace(path: str) -> bool:
    """True if a file begins like a trace. MissingError or UsageError if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except FileNotFoundError:
        raise MissingError(f"{path} does not exist{suggest_path(path)}: check the path") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None


def load(*paths: str) -> Trace:
    """Open the trace in a file, or the traces in several files, such as those of a job's ranks, as
    one.

    MissingError if a file does not exist, UsageError if it may not be read, FormatError if it is no
    trace, was cut or was altered.
    """
    if not paths:
        raise UsageError("no trace was named")
    files: list[_TraceFile] = []
    blocks: list[TraceBlock] = []
    threads: list[Thread] = []
    known: dict[tuple[str, int], int] = {}  # threads, by recording and number in it
    numbers: dict[str, int] = {}
    sizes: list[int] = []
    for path in paths:
        file = _TraceFile(path)
        directory = file.directory
        numbers_here: list[int] = []
        for number, thread in enumerate(directory["threads"]):
            key = (directory["recording"] or f"/{len(files)}", number)
            numbers_here.append(known.setdefault(key, len(threads)))
            if numbers_here[-1] == len(threads):
                threads.append(Thread(*thread))
        file.files = np.array(
            [numbers.setdefault(name, len(numbers)) for name in directory["names"]], np.uint32
        )
        sizes += [0] * (len(numbers) - len(sizes))
        for number, size in zip(file.files.tolist(), directory["sizes"], strict=True):
            sizes[number] = max(sizes[number], size)
        blocks += [
            TraceBlock(numbers_here[thread], rows, first_ns, end_ns, len(files), number)
            for number, (thread, rows, first_ns, end_ns) in enumerate(file.spans)
        ]
        files.append(file)
    blocks.sort(key=lambda block: block.first_ns)
    began_ns = blocks[0].first_ns if blocks else 0
    blocks = [
        block._replace(first_ns=block.first_ns - began_ns, end_ns=block.end_ns - began_ns)
        for block in blocks
    ]
    of_thread: list[list[TraceBlock]] = [[] for _ in threads]
    for block in blocks:
        of_thread[block.thread].append(block)
    directories = [file.directory for file in files]
    notes = [note for directory in directories for note in directory["notes"]]
    is_shared = any(directory["timing"] == "shared" for directory in directories)
    return Trace(
        source="; ".join(dict.fromkeys(directory["source"] for directory in directories)),
        timing="shared" if is_shared else "exact",
        notes=tuple(dict.fromkeys(notes)),
        began_ns=began_ns,
        threads=tuple(threads),
        names=Names.of(list(numbers)),
        sizes=np.array(sizes, np.int64),
        blocks=tuple(blocks),
        _files=tuple(files),
        _of_thread=tuple(map(tuple, of_thread)),
    )
