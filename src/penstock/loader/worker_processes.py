"""Worker processes: they make whole batches and hand them back through nameless shared memory.

Theory of operation. Each worker has one socket to its parent. A task travels as a small message
that names a slot, a piece of memory without a name (memfd) that both have mapped. The worker
pickles the result into the slot, large arrays beside the pickle, and answers with a message of a
few bytes. A slot that is too small gets new memory from the worker: its descriptor follows the
answer, and both close it once they have mapped it, so that slots keep none. A worker thus never
waits for its parent to read, and no circle of waiting can arise. The parent gives out arrays in the
slot; when the last of them is gone, the slot is used again.
A worker reads all messages before it starts a task, so that a drop or a stop overtakes the tasks
that wait. It ends when its parent ends, for any cause. Nothing of this has a name in any file
system, so that nothing is left behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import itertools
import mmap
import multiprocessing
import os
import pickle
import select
import signal
import struct
import threading
import time
import traceback
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .. import limits
from ..engine.threads import build_refusal, start_threads
from ..errors import LimitError, UsageError, WorkerError
from .decode import make_raisable
from .workers import (
    Opening,
    TimedFetch,
    WorkerTime,
    check_process,
    make_timeout_error,
    open_fetch,
)

Reduce = Callable[[Any], Any]
"""Reduce a part of a result, as `pickle.Pickler.reducer_override` does: NotImplemented for most."""

_stop_s = 0.5
_mmap_threshold, _trim_threshold = -3, -1  # options of mallopt
_kept_bytes = 256 << 20  # of freed memory that a worker keeps
_retire_tasks = 16  # of a worker, after which slots that none of them needed are given up


class WorkerProcesses:
    """Workers in processes. They are started once and live until `close`, the end of this object
    or the end of the parent.

    A worker that ends by itself makes `result` raise WorkerError with its pid; all workers
    are then ended. `close` lets a worker go on with its task for half a second and then kills it.
    """

    def __init__(
        self,
        opening: Opening,
        workers: int,
        *,
        context: BaseContext | None = None,
        reduce: Reduce | None = None,
    ) -> None:
        self.pid = os.getpid()
        self._lock = threading.RLock()
        self._tickets = 0
        self._ready: dict[int, tuple[_Worker, _Slot, _Reply]] = {}
        self._drops: deque[int] = deque()  # requested by destructors, which must not wait
        self._dropped: set[int] = set()  # answers to be ignored
        self._workers: list[_Worker] = []
        self._is_closing = False
        self._finalizer = weakref.finalize(self, _stop, self._workers, self.pid)
        context = context or multiprocessing.get_context()
        try:
            for number in range(workers):
                self._workers.append(_Worker(context, opening, number, reduce))
        except BaseException:
            self.close()
            raise

    @property
    def closed(self) -> bool:
        return self._is_closing or not self._finalizer.alive

    @property
    def pids(self) -> list[int]:
        return [worker.process.pid or 0 for worker in self._workers]

    def submit(self, task: Any) -> int:
        with self._guard():
            worker = min(self._workers, key=lambda worker: len(worker.tasks))
            ticket = self._tickets
            try:
                worker.send(ticket, task)
            except ConnectionError:
                raise self._make_end_error([worker]) from None
            self._tickets += 1
            return ticket

    def result(self, ticket: int, timeout_s: float | None = None) -> tuple[Any, WorkerTime]:
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self._guard():
            while ticket not in self._ready:
                left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
                if not self._receive(left_s):
                    raise make_timeout_error(timeout_s)
            worker, slot, reply = self._ready.pop(ticket)
            worker.ready -= 1
            result = worker.unpack(slot, reply)
        if isinstance(result, _Failure):
            raise result.exception()
        return result, reply.spent

    def drop(self, ticket: int) -> None:
        self._drops.append(ticket)

    def counters(self) -> dict[str, int]:
        """Return the kernel's counters, without memory maps and rings; none after `close`."""
        totals: Counter[str] = Counter()
        for pid in () if self.closed or self.pid != os.getpid() else self.pids:
            with contextlib.suppress(OSError):  # it has just ended
                lines = Path(f"/proc/{pid}/io").read_text().splitlines()
                counts = dict(line.split(": ") for line in lines)
                totals.update(bytes=int(counts["rchar"]), runs=int(counts["syscr"]))
        return dict(totals)

    def close(self) -> None:
        if self.pid != os.getpid():
            self._finalizer()
            return
        self._is_closing = True
        has_turn = self._lock.acquire(timeout=_stop_s)
        if not has_turn:  # another thread waits for a result: it will find that all have ended
            for worker in list(self._workers):
                worker.process.kill()
        with self._lock:
            self._finalizer()
            self._ready.clear()
        if has_turn:
            self._lock.release()

    @contextlib.contextmanager
    def _guard(self) -> Iterator[None]:
        """Close the workers after any exception: it may have left half a message in a socket."""
        check_process(self.pid)
        with self._lock:
            if self.closed:
                raise UsageError("the workers were closed: begin another epoch")
            try:
                self._drop_tasks()
                yield
            except BaseException as error:
                is_closing = self._is_closing  # by another thread
                self.close()
                if is_closing and isinstance(error, Exception):
                    raise UsageError("the workers were closed: begin another epoch") from None
                raise

    def _drop_tasks(self) -> None:
        """Drop the tasks whose results nobody waits for, here and in the workers."""
        while self._drops:
            ticket = self._drops.popleft()
            if ticket in self._ready:
                worker, slot, _ = self._ready.pop(ticket)
                worker.ready -= 1
                worker.free.append(slot)
            for worker in self._workers:
                if ticket in worker.tasks:
                    self._dropped.add(ticket)
                    # For later tasks: a worker does one after the other.
                    worker.free.append(worker.tasks[ticket])
                    with contextlib.suppress(
                        ConnectionError
                    ):  # the worker's end is noticed elsewhere
                        worker.connection.send((ticket, None, None, ()))

    def _receive(self, timeout_s: float | None) -> bool:
        """Wait for answers or the end of a worker. Returns False if neither came in time."""
        events: dict[Any, _Worker] = {worker.connection: worker for worker in self._workers}
        events |= {worker.process.sentinel: worker for worker in self._workers}
        ready = wait(list(events), timeout_s)
        # The last answers of a worker that has ended are read first.
        ended = {events[event] for event in ready if not isinstance(event, Connection)}
        answers = 0
        for worker in (events[event] for event in ready if isinstance(event, Connection)):
            try:
                answer = _reply.unpack(worker.connection.recv_bytes())
                reply = _Reply._make([*answer[:5], WorkerTime(*answer[5:])])
                slot = worker.tasks.pop(reply.ticket)
                if reply.fresh:
                    slot.receive(worker.connection, reply.fresh)
            except (EOFError, ConnectionError):
                ended.add(worker)
                continue
            answers += 1
            if reply.ticket in self._dropped:
                self._dropped.remove(reply.ticket)
            else:
                self._ready[reply.ticket] = worker, slot, reply
                worker.ready += 1
        if ended and not answers:
            raise self._make_end_error(list(ended))
        return bool(ready)

    def _make_end_error(self, workers: list[_Worker]) -> WorkerError:
        for worker in workers:
            worker.process.join(_stop_s)  # its connection may end before the process does
        pids = ", ".join(str(worker.process.pid) for worker in workers)
        causes = "; ".join(sorted({_describe_exit(worker.process.exitcode) for worker in workers}))
        return WorkerError(f"DataLoader worker (pid(s) {pids}) exited unexpectedly: {causes}")


def _describe_exit(code: int | None) -> str:
    if code is None:
        return "it closed its connection, or the program takes its children's exit codes (SIGCHLD)"
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name
    return f"killed by {name}" + (", perhaps for lack of memory" if name == "SIGKILL" else "")


class _Worker:
    """Worker process, seen from its parent.

    tasks:   slot for the result of each ticket.
    ready:   number of results that have come and were not asked for yet.
    free:    slots for new results; filled by finalizers, from any thread.
    """

    def __init__(
        self, context: BaseContext, opening: Opening, number: int, reduce: Reduce | None
    ) -> None:
        self.connection, theirs = multiprocessing.Pipe()
        self.tasks: dict[int, _Slot] = {}
        self.ready = 0
        self.free: deque[_Slot] = deque()
        self._numbers = itertools.count()  # of slots
        self._slots: set[_Slot] = set()
        self._sent = self._spare = 0  # tasks; slots that were free before each of the last of them
        try:
            self.process: BaseProcess = context.Process(  # type: ignore[attr-defined]
                target=_run_worker,
                args=(theirs, os.getpid(), opening, number, reduce),
                name=f"penstock-worker-{number}",
                daemon=True,
            )
            with _block_interrupts():
                self.process.start()
            # A forked child that exits would end the workers of its parent. Ours end by themselves.
            getattr(multiprocessing.process, "_children", set()).discard(self.process)
        except OSError as error:
            self.connection.close()
            raise build_refusal(f"worker process {number} did not start", error) from None
        except BaseException:
            self.connection.close()
            raise
        finally:
            theirs.close()

    def send(self, ticket: int, task: Any) -> None:
        spare = self._retire_slots()
        slot = self.free.popleft() if self.free else _Slot(next(self._numbers))
        self._slots.add(slot)
        self.tasks[ticket] = slot
        self.connection.send((ticket, slot.number, task, spare))

    def _retire_slots(self) -> list[int]:
        """Retire the slots that no task has needed for a while; return their numbers."""
        self._spare, self._sent = min(self._spare, len(self.free)), self._sent + 1
        if self._sent % _retire_tasks:
            return []
        retired = [self.free.pop() for _ in range(self._spare)]
        self._slots.difference_update(retired)
        self._spare = len(self.free)
        return [slot.number for slot in retired]

    def unpack(self, slot: _Slot, reply: _Reply) -> Any:
        """Return the result in a slot. Its arrays stay there until the last of them is gone."""
        base = slot.memory[: reply.size]
        lent = len(self._slots) - len(self.free) - len(self.tasks) - self.ready
        if lent > limits.lent_slots_max:  # the user keeps batches: bound the slots
            base = base.copy()
            self.free.append(slot)
        else:
            weakref.finalize(base, self.free.append, slot).atexit = False
        table_bytes = 16 * reply.buffers
        table = base[:table_bytes].view(np.int64).reshape(-1, 2).tolist()
        memory = memoryview(base)  # type: ignore[arg-type]
        buffers = [memory[start : start + size] for start, size in table]
        return pickle.loads(memory[table_bytes : table_bytes + reply.pickled], buffers=buffers)


@contextlib.contextmanager
def _block_interrupts() -> Iterator[None]:
    """Block interrupts, so that a worker that is just starting prints no traceback on Ctrl-C."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *3 * [ctypes.c_int], ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class _SharedMap:
    """Map of memory that keeps no descriptor, as Python's would before 3.13."""

    def __init__(self, descriptor: int, size: int) -> None:
        access = mmap.PROT_READ | mmap.PROT_WRITE
        address = _libc.mmap(None, size, access, mmap.MAP_SHARED, descriptor, 0)
        if address == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), "memory of a worker cannot be mapped")
        self._end = weakref.finalize(self, _libc.munmap, address, size)
        self._end.atexit = False
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (size,),
            "data": (address, False),
        }


class _Slot:
    """Memory that a worker shares with its parent and that has no name.

    descriptor:  in the worker, of memory that the parent has not been sent yet.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.memory: np.ndarray[Any, np.dtype[np.uint8]] = np.empty(0, np.uint8)
        self.descriptor: int | None = None

    def receive(self, connection: Connection, size: int) -> None:
        """Map the memory whose descriptor comes next. LimitError if the process may have no more
        descriptors: it takes two for a moment."""
        try:
            descriptor = recv_handle(connection)
        except (OSError, RuntimeError) as error:
            if isinstance(error, ConnectionError):
                raise
            what = "the memory of a worker's batch cannot be opened: the limit of open files"
            raise LimitError(f"{what} (`ulimit -n`) is reached: raise it, or close some") from None
        try:
            self.memory = np.asarray(_SharedMap(descriptor, size))
        finally:
            os.close(descriptor)

    def make_room(self, size: int) -> None:
        """Take other memory from the system unless there are so many bytes."""
        if len(self.memory) >= size:
            return
        size += size // 4  # batches differ a little
        descriptor = os.memfd_create("penstock", os.MFD_CLOEXEC)
        try:
            # Not ftruncate: lack of memory is an error here, and would be a signal later.
            os.posix_fallocate(descriptor, 0, size)
            self.memory = np.asarray(_SharedMap(descriptor, size))
        except BaseException:
            os.close(descriptor)
            raise
        self.descriptor = descriptor


class _Reply(NamedTuple):
    """Answer of a worker. `size` bytes of the slot hold a table of `buffers` extents, a pickle and
    the buffers. The slot has `fresh` bytes of new memory, whose descriptor follows, or the old."""

    ticket: int
    size: int = 0
    buffers: int = 0
    pickled: int = 0
    fresh: int = 0
    spent: WorkerTime = WorkerTime()


_reply = struct.Struct("<QQQQQQQQ")
_alignment = 64


class _Pickler(pickle.Pickler):
    """Pickler that leaves buffers out, and pickles some types by `reduce`."""

    def __init__(self, stream: io.BytesIO, buffers: list[pickle.PickleBuffer], reduce: Any) -> None:
        super().__init__(stream, 5, buffer_callback=buffers.append)
        self._reduce = reduce

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, memoryview) and value.contiguous:
            return memoryview, (pickle.PickleBuffer(value),)
        return NotImplemented if self._reduce is None else self._reduce(value)


def _pack(result: Any, slot: _Slot, ticket: int, reduce: Reduce | None) -> _Reply:
    """Write a result into a slot."""
    stream = io.BytesIO()
    buffers: list[pickle.PickleBuffer] = []
    _Pickler(stream, buffers, reduce).dump(result)
    pickled = stream.getbuffer()
    views = [buffer.raw() for buffer in buffers]
    table = np.zeros((len(views), 2), np.int64)
    end = table.nbytes + len(pickled)
    for row, view in enumerate(views):
        start = -(-end // _alignment) * _alignment
        end = start + view.nbytes
        table[row] = start, view.nbytes
    slot.make_room(end)
    memory = slot.memory
    memory[: table.nbytes] = table.reshape(-1).view(np.uint8)
    memory[table.nbytes : table.nbytes + len(pickled)] = np.frombuffer(pickled, np.uint8)
    for (start, size), view in zip(table.tolist(), views, strict=True):
        if size:
            memory[start : start + size] = np.frombuffer(view, np.uint8)
    fresh = 0 if slot.descriptor is None else len(memory)
    return _Reply(ticket, end, len(views), len(pickled), fresh)


class _Failure:
    """Exception on its way to the parent, of the same type if that can be built from a text."""

    def __init__(self, error: BaseException, number: int) -> None:
        kind = type(error)
        self.kind: type[BaseException] = RuntimeError
        with contextlib.suppress(Exception):  # a local class cannot be pickled
            pickle.dumps(kind)
            self.kind = kind
        trace = "".join(traceback.format_exception(error))
        self.text = (
            f"Caught {kind.__name__} in DataLoader worker process {number} (pid {os.getpid()}).\n"
            f"Original {trace}"
        )

    def exception(self) -> BaseException:
        text = _Verbatim(self.text) if issubclass(self.kind, KeyError) else self.text
        try:
            return self.kind(text)
        except Exception:  # the type's constructor takes other arguments
            return RuntimeError(text)


class _Verbatim(str):
    """Text that is its own repr: KeyError shows the repr, in which no traceback can be read."""

    def __repr__(self) -> str:
        return str(self)


def _stop(workers: list[_Worker], pid: int) -> None:
    """End the processes: idle ones by a message, the others by a signal."""
    if pid != os.getpid():
        return
    for worker in workers:
        with contextlib.suppress(OSError):
            os.set_blocking(worker.connection.fileno(), False)
            worker.connection.send(None)
    deadline_s = time.monotonic() + _stop_s
    running = {worker.process.sentinel for worker in workers}
    while running and (left_s := deadline_s - time.monotonic()) > 0:
        running -= set(wait(list(running), left_s))
    for worker in workers:
        if worker.process.sentinel in running:
            worker.process.kill()
        worker.process.join()
        with contextlib.suppress(ValueError):  # the program ignores SIGCHLD, or reaps all children
            worker.process.close()
        worker.connection.close()
    workers.clear()


# -- inside a worker process -----------------------------------------------------------------------


def _run_worker(
    connection: Connection, parent: int, opening: Opening, number: int, reduce: Reduce | None
) -> None:
    _end_with_parent(parent)
    _keep_freed_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its workers
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # from _without_interrupts
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    fetch = TimedFetch(open_fetch(opening, number))
    slots: dict[int, _Slot] = {}
    for ticket, slot, task in _receive_tasks(connection, slots):
        try:
            reply = _Reply(ticket)
            if slot is not None:
                reply = _pack(fetch(task), slot, ticket, reduce)._replace(spent=fetch.spent)
        except Exception as error:
            assert slot is not None
            reply = _pack(_Failure(make_raisable(error), number), slot, ticket, None)
        del task
        connection.send_bytes(_reply.pack(*reply[:-1], *reply.spent))
        if slot is not None and slot.descriptor is not None:
            send_handle(connection, slot.descriptor, parent)
            os.close(slot.descriptor)
            slot.descriptor = None


def _keep_freed_memory() -> None:
    """Have glibc use the memory of freed arrays again: it maps those of a batch of tens of MB anew
    each time, and every page is a fault. Other allocators stay as they are."""
    mallopt = getattr(_libc, "mallopt", None)
    if mallopt is not None and mallopt(_mmap_threshold, _kept_bytes):
        mallopt(_trim_threshold, _kept_bytes)


def _receive_tasks(
    connection: Connection, slots: dict[int, _Slot]
) -> Iterator[tuple[int, _Slot | None, Any]]:
    """Generate the tasks to do, in order; dropped ones come without a slot."""
    tasks: dict[int, tuple[int, Any]] = {}
    dropped: set[int] = set()
    while True:
        while not tasks or connection.poll():
            try:
                message = connection.recv()
            except (EOFError, ConnectionError):
                return
            if message is None:
                return
            ticket, number, task, retired = message
            for spare in retired:
                del slots[spare]
            if number is None:
                dropped.add(ticket)
                continue
            slots.setdefault(number, _Slot(number))
            tasks[ticket] = number, task
        ticket = next(iter(tasks))
        number, task = tasks.pop(ticket)
        if ticket in dropped:
            yield ticket, None, None
        else:
            yield ticket, slots[number], task
        dropped = {other for other in dropped if other in tasks}


def _end_with_parent(parent: int) -> None:
    """End this process as soon as the parent has ended, even during a task."""
    descriptor = None
    try:
        descriptor = os.pidfd_open(parent)
    except ProcessLookupError:
        os._exit(1)
    except OSError:  # before Linux 5.3, or forbidden
        pass

    def watch() -> None:
        if descriptor is None:
            never = threading.Event()
            with contextlib.suppress(OSError):
                while not never.wait(1.0):
                    os.kill(parent, 0)
        else:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            poll.poll()
        os._exit(1)

    start_threads([threading.Thread(target=watch, name="penstock-parent", daemon=True)])
