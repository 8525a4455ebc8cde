"""The engine for data behind a URL: each run is one ranged request, many of them in flight.

Each thread of a pool waits for one request: of the ways to use obstore this took the least
processor time (docs/decisions). The bytes of an answer are copied once, to their destinations.
Temporary failures (a busy service, lost connections, answers that are cut short or missing) are
retried until a deadline, by `object_client.retry_until`.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from .. import limits
from ..budget import Budget
from ..extent import Files, Requests
from .object_client import Answer, Bucket, ObjectRefused, retry_until
from .object_store import open_bucket, parse_root
from .protocol import Buffer, Completion, Failure, ReadMethod, check_requests, check_usable
from .reports import ReportQueue
from .request_queue import AGING, Aging, Purpose, RateAccount
from .storage_queue import PROCESS_QUEUE
from .threads import ThreadPool, WakeUp


class RemoteEngine:
    """Reads the objects of an index; see `penstock.engine.Engine`.

    An object whose size or etag differs from `files` is reported with ESTALE, a missing one with
    ENOENT, a forbidden one with EACCES, and one that does not arrive within `deadline_s`, repeats
    included, with ETIMEDOUT.
    Threads end with `close`; the garbage collector calls it, too.
    """

    def __init__(
        self,
        files: Files,
        *,
        budget: Budget | None = None,
        deadline_s: float = limits.object_deadline_s,
        stall_s: float = limits.object_stall_s,
        aging: Aging = AGING,
    ) -> None:
        budget = budget or Budget()
        self._aging = aging
        self.files = files
        self.choice = _choose_method(budget)
        self._reports = ReportQueue()
        self._work = _SharedWork(files, deadline_s, stall_s, self._reports)
        self._work.adopt(self.choice.threads, budget.bytes_per_s)

    def submit(
        self, requests: Requests, buffers: Sequence[Buffer], purpose: Purpose = "prefetch"
    ) -> int:
        self._reports.check_usable()
        check_requests(requests, buffers, len(self.files))
        turn_ns = time.monotonic_ns() + self._aging.of(purpose)
        ticket = self._work.add(_ObjectTicket(requests, buffers), turn_ns)
        PROCESS_QUEUE.count("read", purpose, int(requests.length.sum()))
        return ticket

    def poll(self, timeout_ns: int) -> list[Completion]:
        return self._reports.poll(timeout_ns)

    def close(self) -> None:
        """Drop everything that is not in a buffer yet; requests in flight write nothing more."""
        if not self._reports.is_inherited:
            self._work.close()

    def adopt(self, budget: Budget) -> None:
        """Apply a changed budget to all requests that have not been sent."""
        self._reports.check_usable()
        self.choice = _choose_method(budget)
        self._work.adopt(self.choice.threads, budget.bytes_per_s)

    def survey(self) -> None:
        """Do nothing: there is one way to read objects."""
        self._reports.check_usable()

    def counters(self) -> dict[str, int]:
        """Return totals of finished tickets: bytes, runs, extents, tickets; and the numbers of all
        requests, and of repeats among them."""
        check_usable(self._reports.is_inherited)
        return dict(self._work.counters)

    def __del__(self) -> None:
        if hasattr(self, "_work"):
            self.close()


def _choose_method(budget: Budget) -> ReadMethod:
    requests = budget.requests or limits.object_requests_default
    return ReadMethod(
        "object",
        False,
        requests,
        dict.fromkeys(("io_uring", "mmap", "pread", "direct"), "the data is behind a URL"),
        gap_bytes=limits.object_gap_bytes,
    )


class _ObjectTicket:
    """A submission: destinations of its bytes, the number of unfinished pieces, and failures."""

    def __init__(self, requests: Requests, buffers: Sequence[Buffer]) -> None:
        self.number = 0
        self.buffers = list(buffers)
        self.file = requests.file.tolist()
        self.offset = requests.offset.tolist()
        self.length = requests.length.tolist()
        self.buffer = requests.buffer.tolist()
        self.target = requests.target.tolist()
        self.runs = requests.runs.tolist()
        self.unfinished = 0
        self.failures: dict[int, list[tuple[int, int, int]]] = {}

    def pieces(self) -> list[_ObjectPiece]:
        """Return the pieces to request: one for each run, several for a run that is too long for
        one."""
        pieces = []
        for first, last in zip(self.runs, self.runs[1:], strict=False):
            start, stop = self.offset[first], self.offset[last - 1] + self.length[last - 1]
            while start < stop:
                end = min(stop, start + limits.run_bytes_max)
                pieces.append(_ObjectPiece(self, first, last, start, end))
                start = end
        self.unfinished = len(pieces)
        return pieces

    def completion(self) -> Completion:
        """Return the report. Of an extent in several parts the first failure counts: all bytes
        before it arrived."""
        failures = []
        for extent in sorted(self.failures):
            at, code, got = min(self.failures[extent])
            failures.append(Failure(extent, code, at + got))
        return Completion(self.number, tuple(failures))


@dataclass(slots=True, eq=False)
class _ObjectPiece:
    """The bytes [start, stop) of an object, for the extents [first, last)."""

    ticket: _ObjectTicket
    first: int
    last: int
    start: int
    stop: int

    def scatter(self, data: memoryview) -> None:
        """Copy the bytes to their destinations, and note the missing ones."""
        ticket = self.ticket
        end = self.start + len(data)
        source = np.frombuffer(data, np.uint8)
        for extent in range(self.first, self.last):
            offset, length = ticket.offset[extent], ticket.length[extent]
            start, wanted = max(offset, self.start), min(offset + length, self.stop)
            stop = max(start, min(wanted, end))
            if stop > start:
                target = ticket.target[extent] + start - offset
                ticket.buffers[ticket.buffer[extent]][target : target + stop - start] = source[
                    start - self.start : stop - self.start
                ]
            if stop < wanted:
                self._note(extent, start - offset, 0, stop - start)

    def fail(self, code: int) -> None:
        """Note that none of the bytes arrived."""
        for extent in range(self.first, self.last):
            if self.ticket.length[extent]:
                at = max(self.ticket.offset[extent], self.start) - self.ticket.offset[extent]
                self._note(extent, at, code, 0)

    def _note(self, extent: int, at: int, code: int, got: int) -> None:
        self.ticket.failures.setdefault(extent, []).append((at, code, got))


class _SharedWork:
    """State that the threads share. It holds no reference to the engine, so the engine can be
    collected."""

    def __init__(
        self, files: Files, deadline_s: float, stall_s: float, reports: ReportQueue
    ) -> None:
        where = parse_root(files.root)
        self._files = files
        self._prefix = f"{where.key}/" if where.key else ""
        hub = where.bucket.startswith("hf://")  # whose listing is asked for once
        self._bucket = (open_bucket if hub else Bucket)(where.bucket, min(stall_s, deadline_s))
        self._deadline_s = deadline_s
        self._threads = ThreadPool(limits.object_requests_max, "penstock-object")
        self._reports = reports
        self._lock = lock = reports.lock  # guards all that follows
        self._copied = WakeUp()  # of who closes
        self._ended = threading.Condition(lock)  # it is closed; threads of the pool wait for this
        self._queue: list[tuple[int, int, _ObjectPiece]] = []  # heap: turn, which one, the piece
        self._queued = 0  # so far
        self._tickets: set[_ObjectTicket] = set()
        self._room = threading.Condition(lock)  # less is in flight than before; and for this
        self._bytes = 0  # in flight, gaps included
        self._active = 0
        self._copying = 0
        self._requests_max = 0
        self._account = RateAccount()
        self.counters = dict.fromkeys(
            ("bytes", "runs", "extents", "tickets", "requests", "retries"), 0
        )

    def adopt(self, requests_max: int, bytes_per_s: float | None) -> None:
        with self._lock:
            self._requests_max = requests_max
            self._account.set_rate(bytes_per_s, time.monotonic_ns())
            self._start()

    def add(self, ticket: _ObjectTicket, turn_ns: int) -> int:
        pieces = ticket.pieces()
        with self._lock:
            ticket.number = self._reports.open_ticket()
            self._tickets.add(ticket)
            for piece in pieces:
                heappush(self._queue, (turn_ns, self._queued, piece))
                self._queued += 1
            if not pieces:
                self._finish(ticket)
            self._start()
        return ticket.number

    def close(self) -> None:
        """After an interrupt it may be called again."""
        with self._lock:
            self._reports.close()
            self._queue.clear()
            self._ended.notify_all()
            self._room.notify_all()
        self._copied.wait_until(lambda: not self._copying)
        with self._lock:
            for ticket in self._tickets:
                ticket.buffers.clear()
            self._tickets.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _start(self) -> None:
        """Start threads for the pieces that wait. Call with the lock held."""
        wanted = min(self._requests_max, self._active + len(self._queue)) - self._active
        for _ in range(wanted):
            self._threads.submit(self._run)
            self._active += 1  # after it: an interrupt leaves no thread counted that is none

    def _run(self) -> None:
        """Read one piece after the other, until there are none."""
        while True:
            with self._lock:
                self._room.wait_for(self._can_go_on)
                over = self._active > self._requests_max
                # At the end of the program the interpreter waits for the threads.
                is_ending = not threading.main_thread().is_alive()
                if self._reports.is_closed or over or not self._queue or is_ending:
                    self._active -= 1
                    return
                piece = heappop(self._queue)[-1]
                size = piece.stop - piece.start
                self._bytes += size
            try:
                self._read(piece)
            except BaseException as error:  # a defect of ours: poll raises it
                self._reports.fail(error)
                with self._lock:
                    self._active -= 1
                return
            del piece  # and with it the buffers
            with self._lock:
                self._bytes -= size
                self._room.notify_all()

    def _can_go_on(self) -> bool:
        """True if there is nothing to do, or room for the bytes of the next piece."""
        if self._reports.is_closed or not self._queue or not self._bytes:
            return True
        piece = self._queue[0][-1]
        return self._bytes + piece.stop - piece.start <= limits.object_inflight_bytes

    def _read(self, piece: _ObjectPiece) -> None:
        """Read a piece into its buffers, or note its failure."""
        file = piece.ticket.file[piece.first]
        data, code = memoryview(b""), 0
        try:
            with self._lock:
                now_ns = time.monotonic_ns()
                wait_ns = self._account.find_wait_ns(now_ns)
                self._account.charge(piece.stop - piece.start, now_ns)
            if wait_ns:
                self._pause(wait_ns * 1e-9)
            data = self._fetch(file, piece.start, piece.stop)
        except ObjectRefused as error:
            code = error.code
        with self._lock:
            if self._reports.is_closed:
                return
            self._copying += 1
        try:
            if code:
                piece.fail(code)
            else:
                piece.scatter(data)
        finally:
            with self._lock:
                self._copying -= 1
                ticket = piece.ticket
                ticket.unfinished -= 1
                if not ticket.unfinished:
                    self._finish(ticket)
                if self._reports.is_closed:  # who closes waits for the copies
                    self._copied.send()

    def _fetch(self, file: int, start: int, stop: int) -> memoryview:
        """Read the bytes of a range up to the object's end; ObjectRefused if it is not as
        indexed."""
        key = self._prefix + self._files.name(file)
        size, version = int(self._files.size[file]), int(self._files.mtime_ns[file])
        stop = min(stop, size)
        asked = 0

        def ask() -> memoryview:
            nonlocal asked
            asked += 1
            if start >= stop:  # nothing is there: but is the object?
                info = self._bucket.head(key)
                answer = Answer(memoryview(b""), info.size, info.version)
            else:
                answer = self._bucket.fetch(key, start, stop)
            if (answer.size, answer.version) != (size, version):
                raise ObjectRefused(errno.ESTALE, "the object was written to")
            return answer.data

        try:
            return retry_until(ask, self._deadline_s, self._pause)
        except ObjectRefused as error:
            if error.code == errno.ERANGE:  # the object is shorter than it was
                raise ObjectRefused(errno.ESTALE, error.what) from None
            raise
        finally:
            with self._lock:
                self.counters["requests"] += asked
                self.counters["retries"] += asked - 1

    def _pause(self, seconds: float) -> bool:
        """Wait, unless the engine is closed; return True if it is open."""
        with self._lock:
            return not self._ended.wait_for(lambda: self._reports.is_closed, seconds)

    def _finish(self, ticket: _ObjectTicket) -> None:
        """Note a ticket for the next report. Call with the lock held."""
        if self._reports.is_closed:
            return
        self._tickets.discard(ticket)
        buffers, ticket.buffers = ticket.buffers, []
        completion = ticket.completion()
        lost = {
            failure.extent: ticket.length[failure.extent] - failure.got
            for failure in completion.failures
        }
        self.counters["bytes"] += sum(ticket.length) - sum(lost.values())
        self.counters["runs"] += len(ticket.runs) - 1
        self.counters["extents"] += len(ticket.length)
        self.counters["tickets"] += 1
        self._reports.report(completion, buffers)
