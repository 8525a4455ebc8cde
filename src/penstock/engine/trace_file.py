"""Traces: the reads of a job, with the place and time of every operation, in a file of their own.

A trace holds *operations* by *thread*. A thread performs one operation after the other: it is a
thread of the job, or, if the job's threads are not known, one of the fewest threads that explain
the overlaps. The time between two operations of a thread, its think time, is the time that the
job spent on the data it had read. A trace can therefore be replayed (`penstock_bench.replay`).

The file, all numbers little-endian:

    prelude     8 bytes magic, uint32 version
    blocks      each up to BLOCK operations of one thread, compressed by zlib: the columns of
                `Operations` one after the other, in each the first bytes of all numbers, then
                their second bytes, and so on; start_ns counts nanoseconds since 1970 and is
                stored as differences, from the block's first
    directory   JSON, compressed by zlib: source, timing, notes, threads [process, thread],
                names and sizes of the files, and of each block [thread, operations, first start,
                last end, offset, bytes, crc32]
    end         uint64 offset of the directory, uint64 its bytes, uint64 its bytes as JSON,
                uint32 crc32 of it, 8 bytes magic

Blocks are written while the job runs and read one by one, so a trace of any length takes as much
memory as its threads have blocks. Anything that is not exactly as it was written is a
FormatError.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import json
import mmap
import os
import struct
import threading
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from ..arguments import suggest_path
from ..errors import FormatError, MissingError, UsageError
from ..extent import FileIds, Int, Names

READ, OPEN, OPEN_DIRECT, STAT, CLOSE, MAP = range(6)
"""Kinds of operations. OPEN_DIRECT is an open with O_DIRECT. MAP is a memory map, whose reads are
not seen."""
KINDS = ("read", "open", "open_direct", "stat", "close", "map")

BLOCK = 4096
"""Most operations of a block: 0.2 MB in memory while it is used."""

MAGIC = b"\x93PENTRC\n"
_END_MAGIC = b"\x93PENTND\n"
_VERSION = 1
_PRELUDE = struct.Struct("<8sI")
_END = struct.Struct("<QQQI8s")
_LEVEL = 1  # of compression: 3 times as fast as the usual 6, and 10 % larger
_BYTES = 1 + 4 + 5 * 8  # of an operation, before compression
_LATEST_NS = 1 << 62
_DTYPES: dict[str, np.dtype[Any]] = {"kind": np.dtype(np.uint8), "file": np.dtype(np.uint32)}

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


def concatenate_operations(parts: Sequence[Operations]) -> Operations:
    """Concatenate operations."""
    if not parts:
        return build_operations([])
    return Operations(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


class Thread(NamedTuple):
    """Identity of a thread: the process and thread numbers that the system gave."""

    process: int
    thread: int


class TraceBlock(NamedTuple):
    """Place of consecutive operations of a thread. Times are since 1970 in a file, else since the
    trace began."""

    thread: int
    rows: int
    first_ns: int
    end_ns: int
    place: int
    bytes: int
    crc: int


class _TracePart(NamedTuple):
    """One file of a trace: its bytes, and the numbers that its files have in the trace."""

    path: str
    data: memoryview
    files: FileIds


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """The operations of a job, on disk; created by `load`.

    source:     where the trace came from, in words.
    timing:     precision of the times.
    notes:      what was left out or not seen, in words.
    began_ns:   time at which its first operation began, since 1970.
    names:      paths of the files, or their URLs.
    sizes:      int64, bytes of each file when recorded, as far as known; no less than was read.
    """

    source: str
    timing: Timing
    notes: tuple[str, ...]
    began_ns: int
    threads: tuple[Thread, ...]
    names: Names
    sizes: Int
    blocks: tuple[TraceBlock, ...]
    _parts: tuple[_TracePart, ...]
    _part_of: tuple[int, ...]  # of each block
    _of_thread: tuple[tuple[int, ...], ...]  # numbers of its blocks

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
        for number in self._of_thread[thread]:
            yield self._read(number)

    def in_order(self) -> Iterator[tuple[FileIds, Operations]]:
        """Yield all operations in the order in which they began, some at a time, with the thread of
        each."""
        pending: list[tuple[FileIds, Operations]] = []
        rows, enough = 0, 4 * BLOCK
        queue = sorted(range(len(self.blocks)), key=lambda i: self.blocks[i].first_ns)
        for number in queue:
            block = self.blocks[number]
            if rows >= enough:
                done, pending = _split_at(pending, block.first_ns)
                rows = sum(len(threads) for threads, _ in pending)
                enough = max(4 * BLOCK, 2 * rows)
                if len(done[0]):
                    yield done
            pending.append((np.full(block.rows, block.thread, np.uint32), self._read(number)))
            rows += block.rows
        if pending:
            yield _split_at(pending, _LATEST_NS)[0]

    def _read(self, number: int) -> Operations:
        part = self._parts[self._part_of[number]]
        block = self.blocks[number]
        try:
            decoded = _decode_block(part.data[block.place : block.place + block.bytes], block)
        except ValueError as error:
            raise _damage_error(part.path, f"the block at byte {block.place:,}: {error}") from None
        start = decoded.start_ns - self.began_ns
        if int(decoded.file.max()) >= len(part.files):
            raise _damage_error(
                part.path,
                f"the block at byte {block.place:,}: it names a file that the trace does not have",
            )
        if start[0] != block.first_ns or start[-1] + decoded.duration_ns[-1] != block.end_ns:
            raise _damage_error(
                part.path,
                f"the block at byte {block.place:,}: its times differ from those of the directory",
            )
        return decoded._replace(file=part.files[decoded.file], start_ns=start)


def _split_at(
    pending: list[tuple[FileIds, Operations]], until_ns: int
) -> tuple[tuple[FileIds, Operations], list[tuple[FileIds, Operations]]]:
    """Split operations into those that begin before a time, in order, and the rest."""
    threads = np.concatenate([threads for threads, _ in pending])
    rows = concatenate_operations([part for _, part in pending])
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

    def follow(self, first_ns: int, last_ns: int, count: int) -> None:
        """Note that operations follow; UsageError if they begin before the ones that are there."""
        if first_ns < self.last_ns:
            raise UsageError(
                f"operations of a thread go back in time, by {self.last_ns - first_ns} ns: give"
                " them in the order in which they began"
            )
        self.last_ns = last_ns
        self.count += count


class TraceWriter:
    """Writes a trace while its operations come; in a `with` statement, the file appears when
    complete.

    Until then it is PATH.partial, which is removed if an error is raised. Times are nanoseconds
    since 1970. Any thread may call it.
    """

    def __init__(self, path: str, source: str, timing: Timing = "exact") -> None:
        self.path = path
        self.source = source
        self.timing: Timing = timing
        self.notes: list[str] = []
        self.count = 0
        self._partial = f"{path}.partial"
        self._lock = threading.Lock()
        self._threads: list[Thread] = []
        self._known: dict[Thread, int] = {}  # the last of such numbers
        self._files: dict[bytes, int] = {}
        self._sizes: list[int] = []
        self._pending: list[_Pending] = []  # by thread
        self._blocks: list[TraceBlock] = []
        self._pid = os.getpid()
        self._closed = False
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._partial)  # of a run that was killed
            self._out = open(self._partial, "xb")  # noqa: SIM115
        except OSError as error:
            raise UsageError(f"cannot write a trace to {path}: {error.strerror}") from None
        self._place = self._out.write(_PRELUDE.pack(MAGIC, _VERSION))

    def thread(self, process: int, thread: int, *, new: bool = False) -> int:
        """Return the number of a thread in this trace, the same each time. new: it is another
        thread, to which the system gave the same number."""
        with self._lock:
            who = Thread(process, thread)
            if new or who not in self._known:
                self._known[who] = len(self._threads)
                self._threads.append(who)
                self._pending.append(_Pending())
            return self._known[who]

    def file(self, name: str | bytes, size: int = 0) -> int:
        """Return the number of a file in this trace, the same each time. size: if known."""
        with self._lock:
            number = self._files.setdefault(os.fsencode(name), len(self._files))
            if number == len(self._sizes):
                self._sizes.append(0)
            self._sizes[number] = max(self._sizes[number], size)
            return number

    def names(self) -> Iterator[tuple[int, str]]:
        """Yield the numbers and names of the files so far."""
        for name, number in list(self._files.items()):
            yield number, os.fsdecode(name)

    def add(self, thread: int, *row: int) -> None:
        """Add one operation, as in `Operations`; those of a thread come in order.

        An operation that overlaps the next one of its thread is cut there. UsageError if it begins
        before the previous one, or has values that are impossible.
        """
        kind, file, offset, length, result, start_ns, duration_ns = row
        with self._lock:
            if not (
                0 <= kind < len(KINDS)
                and 0 <= file < len(self._sizes)
                and 0 <= offset <= offset + length < _LATEST_NS
                and result <= length
                and 0 <= start_ns <= start_ns + duration_ns < _LATEST_NS
            ):
                raise UsageError(
                    f"an operation of a trace has impossible values: {dict(_name_values(row))}"
                )
            pending = self._pending[thread]
            pending.follow(start_ns, start_ns, 1)
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
        with self._lock:
            if not _is_possible(added) or int(added.file.max()) >= len(self._sizes):
                raise UsageError("operations of a trace have impossible values")
            if count > 1 and int(np.diff(added.start_ns).min()) < 0:
                raise UsageError("operations of a thread go back in time: give them in order")
            pending = self._pending[thread]
            pending.follow(int(added.start_ns[0]), int(added.start_ns[-1]), count)
            pending.parts += [build_operations(pending.rows), added]
            pending.rows.clear()
            self._count(thread, count)

    def _count(self, thread: int, count: int) -> None:
        self.count += count
        if self._pending[thread].count > BLOCK:
            self._flush(thread)

    def close(self) -> None:
        """Finish the file; nothing can be added afterwards. May be called again."""
        with self._lock:
            if self._closed or os.getpid() != self._pid:
                return  # a forked child has no part in it
            self._closed = True
            try:
                self._finish()
                os.replace(self._partial, self.path)
            except OSError as error:
                self._remove()
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
        if not self._closed and os.getpid() == self._pid:
            self._closed = True
            self._remove()

    def _remove(self) -> None:
        with contextlib.suppress(OSError):
            self._out.close()
        with contextlib.suppress(OSError):
            os.unlink(self._partial)

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
            data = _encode_block(block)
            times = int(block.start_ns[0]), int(block.start_ns[-1] + block.duration_ns[-1])
            self._blocks.append(
                TraceBlock(
                    thread, len(block.kind), *times, self._place, len(data), zlib.crc32(data)
                )
            )
            self._place += self._out.write(data)
        pending.rows.clear()
        pending.parts = [rows.at(slice(place, None))]
        pending.count = count - place

    def _finish(self) -> None:
        for thread in range(len(self._pending)):
            self._flush(thread, everything=True)
        names = [os.fsdecode(name) for name in self._files]
        directory = {
            "source": self.source,
            "timing": self.timing,
            "notes": self.notes,
            "threads": self._threads,
            "names": names,
            "sizes": self._sizes,
            "blocks": self._blocks,
        }
        text = json.dumps(directory, separators=(",", ":")).encode()
        data = zlib.compress(text, 6)
        end = _END.pack(self._place, len(data), len(text), zlib.crc32(data), _END_MAGIC)
        self._out.write(data + end)
        self._out.close()


def _name_values(row: Sequence[int]) -> Iterator[tuple[str, int]]:
    return zip(Operations._fields, row, strict=True)


def _encode_block(block: Operations) -> bytes:
    start = np.diff(block.start_ns, prepend=0)
    columns = block._replace(start_ns=start)
    return zlib.compress(
        b"".join(
            np.ascontiguousarray(column).view(np.uint8).reshape(len(column), -1).T.tobytes()
            for column in columns
        ),
        _LEVEL,
    )


def _decode_block(data: memoryview, block: TraceBlock) -> Operations:
    """Decode a block's bytes; ValueError if they do not belong to it."""
    if zlib.crc32(data) != block.crc:
        raise ValueError("its checksum does not match")
    expected = block.rows * _BYTES
    try:
        text = zlib.decompressobj().decompress(data, expected + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if len(text) != expected:
        raise ValueError(f"{block.rows} operations have {expected} bytes")
    flat = np.frombuffer(text, np.uint8)
    columns: list[npt.NDArray[Any]] = []
    place = 0
    for name in Operations._fields:
        dtype = _DTYPES.get(name, np.dtype(np.int64))
        size = dtype.itemsize * block.rows
        part = flat[place : place + size].reshape(dtype.itemsize, block.rows)
        columns.append(np.ascontiguousarray(part.T).reshape(-1).view(dtype))
        place += size
    decoded = Operations(*columns)
    decoded = decoded._replace(start_ns=np.cumsum(decoded.start_ns))
    end_ns = decoded.start_ns + decoded.duration_ns
    if not _is_possible(decoded) or np.any(end_ns[:-1] > decoded.start_ns[1:]):
        raise ValueError("it holds impossible operations")
    return decoded


def _is_possible(rows: Operations) -> bool:
    """True if each of the operations is possible on its own."""
    offset, length, start_ns, duration_ns = rows.offset, rows.length, *rows[5:]
    return bool(
        np.all(rows.kind < len(KINDS))
        and np.all((offset >= 0) & (length >= 0) & (rows.result <= length))
        and np.all((start_ns >= 0) & (duration_ns >= 0))
        and np.all((offset < _LATEST_NS - length) & (start_ns < _LATEST_NS - duration_ns))
    )


# -- reading ---------------------------------------------------------------------------------------


def is_trace(path: str) -> bool:
    """True if a file begins like a trace. MissingError or UsageError if it cannot be read."""
    with _open_trace(path) as file:
        return bool(file.read(len(MAGIC)) == MAGIC)


def load(*paths: str) -> Trace:
    """Open the trace in a file, or the traces in several files, such as those of a job's ranks, as
    one.

    MissingError if a file does not exist, UsageError if it may not be read, FormatError if it is no
    trace, was cut or altered. Blocks are checked when they are read.
    """
    if not paths:
        raise UsageError("no trace was named: give the path of one")
    parts: list[_TracePart] = []
    threads: list[Thread] = []
    blocks: list[tuple[int, TraceBlock]] = []
    numbers: dict[str, int] = {}
    sizes: list[int] = []
    texts: dict[str, list[str]] = {"source": [], "timing": [], "notes": []}
    for path in paths:
        data, directory = _read_directory(path)
        files = np.array(
            [numbers.setdefault(name, len(numbers)) for name in directory["names"]], np.uint32
        )
        sizes += [0] * (len(numbers) - len(sizes))
        for number, size in zip(files.tolist(), directory["sizes"], strict=True):
            sizes[number] = max(sizes[number], size)
        blocks += [
            (len(parts), TraceBlock(row[0] + len(threads), *row[1:])) for row in directory["blocks"]
        ]
        threads += [Thread(*pair) for pair in directory["threads"]]
        parts.append(_TracePart(path, data, files))
        texts["source"].append(directory["source"])
        texts["timing"].append(directory["timing"])
        texts["notes"] += directory["notes"]
    blocks.sort(key=lambda entry: entry[1].first_ns)
    began_ns = blocks[0][1].first_ns if blocks else 0
    of_thread: list[list[int]] = [[] for _ in threads]
    for number, (_, block) in enumerate(blocks):
        of_thread[block.thread].append(number)
    return Trace(
        source="; ".join(dict.fromkeys(texts["source"])),
        timing="shared" if "shared" in texts["timing"] else "exact",
        notes=tuple(dict.fromkeys(texts["notes"])),
        began_ns=began_ns,
        threads=tuple(threads),
        names=Names.of(list(numbers)),
        sizes=np.array(sizes, np.int64),
        blocks=tuple(
            block._replace(first_ns=block.first_ns - began_ns, end_ns=block.end_ns - began_ns)
            for _, block in blocks
        ),
        _parts=tuple(parts),
        _part_of=tuple(part for part, _ in blocks),
        _of_thread=tuple(map(tuple, of_thread)),
    )


@contextlib.contextmanager
def _open_trace(path: str) -> Iterator[Any]:
    try:
        with open(path, "rb") as file:
            yield file
    except FileNotFoundError:
        raise MissingError(f"{path} does not exist{suggest_path(path)}: check the path") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None


def _damage_error(path: str, what: str) -> FormatError:
    return FormatError(f"{path}: {what}: the trace was cut or altered; record it again")


def _read_directory(path: str) -> tuple[memoryview, dict[str, Any]]:
    """Return the bytes of a trace, and its directory, with all values checked for type and
    range."""
    with _open_trace(path) as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(_PRELUDE.size)
        if head[: len(MAGIC)] != MAGIC[: len(head)] or not head:
            raise FormatError(
                f"{path} is no trace of penstock: it begins with {head[:8]!r}; `penstock trace "
                "import` makes traces of logs"
            )
        if size < _PRELUDE.size + _END.size:
            raise _damage_error(path, f"{size} bytes are less than a trace has")
        data = memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))
    version = _PRELUDE.unpack(head)[1]
    if version != _VERSION:
        raise FormatError(
            f"{path}: version {version} of traces, and this penstock reads {_VERSION}: record it"
            " again, or upgrade"
        )
    place, length, raw, crc, magic = _END.unpack(data[-_END.size :])
    if magic != _END_MAGIC or place < _PRELUDE.size or place + length + _END.size != size:
        raise _damage_error(path, "its end is missing")
    packed = data[place : place + length]
    if zlib.crc32(packed) != crc:
        raise _damage_error(path, "the checksum of its directory does not match")
    try:
        text = zlib.decompressobj().decompress(packed, raw + 1)
        if len(text) != raw:
            raise ValueError(f"{raw:,} bytes")
        directory = json.loads(text)
        _check_directory(directory, place)
    except (zlib.error, ValueError, TypeError, KeyError, RecursionError) as error:
        raise _damage_error(path, f"its directory is malformed ({error})") from None
    return data, directory


def _check_directory(directory: Any, end: int) -> None:
    """Raise ValueError, TypeError or KeyError unless the directory is well-formed and every block
    lies in the file."""
    names, sizes = directory["names"], directory["sizes"]
    threads = len(directory["threads"])
    texts = [directory["source"], directory["timing"], *directory["notes"], *names]
    if not all(isinstance(text, str) for text in texts) or len(names) != len(sizes):
        raise ValueError("names")
    if directory["timing"] not in get_args(Timing):
        raise ValueError("timing")
    pairs = [number for pair in directory["threads"] for number in Thread(*pair)]
    rows = [TraceBlock(*row) for row in directory["blocks"]]
    for number in itertools.chain(pairs, sizes, *rows):
        if type(number) is not int or abs(number) >= _LATEST_NS:
            raise ValueError("numbers")
    last_ns = [0] * threads
    for row in rows:
        if not (0 <= row.thread < threads and 1 <= row.rows <= BLOCK):
            raise ValueError("threads of blocks")
        if row.place < _PRELUDE.size or row.bytes < 0 or row.place + row.bytes > end:
            raise ValueError("places of blocks")
        if not last_ns[row.thread] <= row.first_ns <= row.end_ns:
            raise ValueError("times of blocks")
        last_ns[row.thread] = row.end_ns
    if any(size < 0 for size in sizes):
        raise ValueError("sizes")


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
