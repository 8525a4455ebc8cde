"""Workers: they run a function on whole batches elsewhere, and hand back the results.

A worker opens once (`opening(number)` gives its fetch function), and turns tasks into results.
Three kinds have one interface: `InlineWorkers` work in the calling thread, `WorkerThreads` in
threads, `WorkerProcesses` in processes. A ticket names the task that a result belongs to.

A task is a step of an epoch: `StepSampler` deals those of an order of penstock, `SamplerTasks`
follows a sampler that the user gave.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import math
import os
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from .. import limits
from ..engine import threads
from ..engine.threads import WakeUp, start_threads
from ..errors import ForkError, UsageError, WorkerError
from ..order.order import Marks, Order, key_state
from ..plan.cursor import Cursor, Identity
from ..ranks.place import Place, detect
from .decode import end_with_interpreter, make_raisable

Fetch = Callable[[Any], Any]
"""Turn a task into a result."""

Opening = Callable[[int], Fetch]
"""Open a worker, once in it and with its number; must be picklable for spawned processes."""


class WorkerTime(NamedTuple):
    """Time that fetching took in the worker.

    busy_ns:   from start to end.
    cpu_ns:    part of it on a processor.
    ready_ns:  part of it ready for a processor that others had. The rest of busy_ns was waiting for
               something else, such as storage.
    """

    busy_ns: int = 0
    cpu_ns: int = 0
    ready_ns: int = 0


_long_ns = 1_000_000  # of a batch beside which a system call does not count


class TimedFetch:
    """Timed fetch, for any number of threads. Costs 1 us a batch, and 2 us more for a batch before
    which, or in which, the thread was off its processor."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._clock = _ThreadClock()

    @property
    def spent(self) -> WorkerTime:
        """Time of this thread's last result; zero if it was an exception."""
        return self._clock.spent

    def __call__(self, task: Any) -> Any:
        clock = self._clock
        if clock.waits:
            clock.ready_before_ns = clock.ready.read_ns()
        began_ns, cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        try:
            result = self._fetch(task)
        except BaseException:
            clock.spent = WorkerTime()
            raise
        cpu_ns, busy_ns = time.thread_time_ns() - cpu_ns, time.perf_counter_ns() - began_ns
        off_ns = max(0, busy_ns - cpu_ns)  # clocks differ a little
        ready_ns = 0
        clock.waits = off_ns * 8 > busy_ns or busy_ns > _long_ns
        if clock.waits:
            before_ns, clock.ready_before_ns = clock.ready_before_ns, clock.ready.read_ns()
            ready_ns = min(off_ns, clock.ready_before_ns - before_ns)
        clock.spent = WorkerTime(busy_ns, busy_ns - off_ns, ready_ns)
        return result


class _ThreadClock(threading.local):
    """Clock of the calling thread, and what was read from it last.

    waits:  whether to judge by the last batch: read the time at the beginning, too.
    """

    def __init__(self) -> None:
        self.spent = WorkerTime()
        self.waits = True
        self.ready_before_ns = 0
        self.ready = _ReadyTime()


class _ReadyTime:
    """Time that the thread which made this has been ready for a processor so far.

    The file also has its time on a processor, but may be a tick behind in that.
    """

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._forks = threads.forks
        with contextlib.suppress(OSError):  # a kernel without it
            self._descriptor = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def read_ns(self) -> int:
        if self._forks != threads.forks:  # the file is of the thread that forked
            self.__del__()
            self.__init__()  # type: ignore[misc]
        if self._descriptor is None:
            return 0
        _, ready_ns, _ = os.pread(self._descriptor, 64, 0).split()
        return int(ready_ns)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self._descriptor is not None:
            close(self._descriptor)


class Workers(Protocol):
    """Workers that turn tasks into results. Tickets count up from 0."""

    def submit(self, task: Any) -> int:
        """Queue a task, and return its ticket."""
        ...

    def result(self, ticket: int, timeout_s: float | None = None) -> tuple[Any, WorkerTime]:
        """Wait for a task. Returns its result and its time, once, or raises the fetch's error."""
        ...

    def drop(self, ticket: int) -> None:
        """Drop a result that nobody will ask for."""
        ...

    def counters(self) -> dict[str, int]:
        """Return the known counters of their reading: bytes and runs (read operations), or none."""
        return {}

    def close(self) -> None:
        """End the workers; queued tasks are dropped."""
        ...


# -- in the calling thread -------------------------------------------------------------------------


class InlineWorkers(Workers):
    """Workers in the calling thread: a task is done when its result is asked for. Threads take
    turns, as they would with one worker."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._fetch: TimedFetch | None = None
        self._tasks: dict[int, Any] = {}
        self._tickets = itertools.count()
        self._turn = threads.make_turn()

    def submit(self, task: Any) -> int:
        ticket = next(self._tickets)
        self._tasks[ticket] = task
        return ticket

    def result(self, ticket: int, timeout_s: float | None = None) -> tuple[Any, WorkerTime]:
        del timeout_s  # nobody could interrupt the calling thread
        with self._turn:
            task = self._tasks.pop(ticket)
            try:
                fetch = self._fetch or TimedFetch(self._opening(0))
                self._fetch = fetch
                return fetch(task), fetch.spent
            except StopIteration as error:
                raise make_raisable(error) from error

    def drop(self, ticket: int) -> None:
        self._tasks.pop(ticket, None)

    def close(self) -> None:
        self._tasks.clear()
        self._fetch = None


# -- in threads ------------------------------------------------------------------------------------


class WorkerThreads(Workers):
    """Workers in threads of this process. They never keep the interpreter from exiting."""

    def __init__(self, opening: Opening, workers: int) -> None:
        self._queue = _TaskQueue()
        self._tickets = itertools.count()
        stop = functools.partial(self._queue.stop, workers)
        started = [
            threading.Thread(
                target=_work_in_thread,
                args=(self._queue, opening, number),
                name=f"penstock-worker-{number}",
                daemon=True,
            )
            for number in range(workers)
        ]
        for thread in started:
            end_with_interpreter(thread, stop)
        start_threads(started, stop)
        self._finalizer = weakref.finalize(self, stop)

    def submit(self, task: Any) -> int:
        check_process(self._queue.pid)
        if not self._finalizer.alive:
            raise UsageError("the workers were closed: begin another epoch")
        ticket = next(self._tickets)
        self._queue.waiting.put((ticket, task))
        return ticket

    def result(self, ticket: int, timeout_s: float | None = None) -> tuple[Any, WorkerTime]:
        check_process(self._queue.pid)
        tasks = self._queue

        def is_over() -> bool:
            return ticket in tasks.results or not self._finalizer.alive

        if not tasks.news.wait_until(is_over, math.inf if timeout_s is None else timeout_s):
            raise make_timeout_error(timeout_s)
        with tasks.lock:
            if ticket not in tasks.results:
                raise UsageError("the workers were closed: begin another epoch")
            result, spent = tasks.results.pop(ticket)
        if isinstance(result, _Raised):
            try:
                raise result.error
            finally:
                del result  # or it would be a cycle: the exception names this frame
        return result, spent

    def drop(self, ticket: int) -> None:
        with self._queue.lock:
            if self._queue.results.pop(ticket, None) is None:
                self._queue.dropped.add(ticket)

    def close(self) -> None:
        self._finalizer()


class _Raised(NamedTuple):
    """Exception of a fetch, in place of its result."""

    error: BaseException


class _TaskQueue:
    """Exchange of tasks and results among threads; it does not refer to the threads' owner."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.waiting: queue.SimpleQueue[tuple[int, Any] | None] = queue.SimpleQueue()
        self.results: dict[int, tuple[Any, WorkerTime]] = {}
        self.dropped: set[int] = set()
        self.lock = threading.Lock()
        self.news = WakeUp()  # of who waits for a result

    def stop(self, workers: int) -> None:
        if self.pid != os.getpid():
            return
        with contextlib.suppress(queue.Empty):
            while True:
                self.waiting.get_nowait()
        for _ in range(workers):
            self.waiting.put(None)
        self.news.send()


def _work_in_thread(tasks: _TaskQueue, opening: Opening, number: int) -> None:
    fetch = TimedFetch(open_fetch(opening, number))
    while (message := tasks.waiting.get()) is not None:
        ticket, task = message
        result: Any = None
        if ticket not in tasks.dropped:
            try:
                result = fetch(task)
            except BaseException as error:  # SystemExit too: a caller waits for this result
                result = _Raised(make_raisable(error))
        with tasks.lock:
            if ticket in tasks.dropped:
                tasks.dropped.remove(ticket)
            else:
                tasks.results[ticket] = result, fetch.spent
        tasks.news.send()
        del message, task, result  # the batch must not live until the next one comes


# -- shared by all kinds -------------------------------------------------------------------------


def open_fetch(opening: Opening, number: int) -> Fetch:
    """Return the worker's fetch function. If opening fails, every task fails with its exception."""
    try:
        return opening(number)
    except BaseException as error:
        failure = error

    def fail(task: Any) -> Any:
        raise failure

    return fail


def make_timeout_error(timeout_s: float | None) -> WorkerError:
    """Return the error for a batch that did not come in time."""
    return WorkerError(f"DataLoader timed out after {timeout_s:g} seconds")


def check_process(pid: int) -> None:
    """Raise ForkError in any process but the one that owns the workers."""
    if pid != os.getpid():
        raise ForkError(
            f"workers of process {pid} are used after a fork: make the loader in the child"
        )


class BatchTask(NamedTuple):
    """One step's work for a worker.

    ids:     sample numbers as an array, or the value that a sampler gave.
    repeats: rows at the end that only fill a padded step.
    epoch_key, rank:  from which `key` is derived.
    marks:   columns that the order gives besides samples, such as a mixture's "source".
    """

    ids: Any
    epoch: int
    step: int
    repeats: int
    epoch_key: int
    rank: int
    marks: Marks | None = None

    @property
    def key(self) -> int:
        """Seed of the random numbers that user code draws in this step."""
        return key_state(self.epoch_key, self.step, self.rank)


class EpochTasks(Protocol):
    """Source of the tasks of each epoch; it also keeps the position of the run."""

    @property
    def cursor(self) -> Cursor: ...

    @property
    def place(self) -> Place:
        """Rank and world size, and their source."""
        ...

    def __len__(self) -> int:
        """Steps of an epoch."""
        ...

    def begin(self) -> tuple[int, int]:
        """Start an epoch, and return its number and its first step."""
        ...

    def tasks(self, epoch: int, first: int) -> Iterator[BatchTask]:
        """Generate the tasks of an epoch from the step `first` on."""
        ...

    def record_step(self, epoch: int, step: int) -> None:
        """Record that all batches before this step were handed over."""
        ...

    def end_epoch(self, epoch: int) -> None:
        """Record that the epoch has no further batch."""
        ...

    @property
    def position(self) -> dict[str, Any] | None: ...
    def restore_position(self, position: Any) -> None: ...
    def set_epoch(self, epoch: int) -> None: ...
    def restore(self, state: Mapping[str, Any]) -> None: ...
    def count_steps(self, epoch: int) -> int: ...
    def state_at(self, epoch: int, step: int) -> dict[str, Any]: ...
    def set_weights(self, weights: Any, columns: Any, path: Any, gather: Any) -> None: ...
    def count_draws(self) -> list[int]: ...


class SamplerTasks:
    """Tasks of the samples that a sampler gives. The number of steps may differ between epochs, and
    may be unknown.

    The sampler's `set_epoch`, if it has one, is called at the start of each epoch. An epoch
    that the user has set on the sampler is followed. A state continues exactly if the sampler
    gives the same samples again for the same epoch. A RandomSampler does not: it draws from a
    generator that has moved on.

    steps:  iterable over the samples of each step, once an epoch: the sampler, or batches of it.
    place:  of this process, None detects it; only random numbers depend on it.
    """

    def __init__(
        self,
        dataset: Any,
        sampler: Any,
        steps: Any,
        seed: int,
        place: Place | None,
    ) -> None:
        self._steps = steps
        self._sampler = sampler
        self._seed = seed
        self._requested_place = place
        self._sampler_epoch = 0  # the epoch that the sampler stands in, as far as we know
        self._length = limits.order_count_max
        size = getattr(steps, "batch_size", 1)
        size = size if isinstance(size, int) else 1
        ranks = getattr(getattr(self._sampler, "sampler", self._sampler), "num_replicas", 1)
        kind = type(self._sampler)
        order = f"sampler:{kind.__qualname__}"
        identity = Identity(
            identify_data(dataset), order, seed, size * ranks, getattr(dataset, "commit", "")
        )
        self.cursor = Cursor(identity, limits.order_count_max)

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def place(self) -> Place:
        return self._requested_place or detect(None, None, os.environ, sys.modules)

    @property
    def position(self) -> dict[str, Any]:
        return self.cursor.state()

    def restore_position(self, position: Mapping[str, Any]) -> None:
        """Go on at the position of a loader in another process."""
        self.restore(position)

    def begin(self) -> tuple[int, int]:
        with contextlib.suppress(TypeError):  # a sampler without a length
            self._length = len(self._steps)
        for sampler in self._list_epoch_samplers():
            named = getattr(sampler, "epoch", None)
            if type(named) is int and named >= 0 and named != self._sampler_epoch:
                self.cursor.set_epoch(named)  # the user has set it, as is usual in torch
        return self.cursor.begin()

    def tasks(self, epoch: int, first: int) -> Iterator[BatchTask]:
        key = Order(1, self._seed, epoch, purpose="augmentation").key()
        rank = self.place.rank
        self._tell(epoch)  # here, because several epochs may be begun before the first task
        for step, ids in enumerate(self._steps):
            if step >= first:
                yield BatchTask(ids, epoch, step, 0, key, rank)

    def record_step(self, epoch: int, step: int) -> None:
        self.cursor.move(epoch, step)
        if step >= self._length:
            self.end_epoch(epoch)

    def end_epoch(self, epoch: int) -> None:
        if self.cursor.epoch == epoch:
            self.cursor.move(epoch, limits.order_count_max)

    def set_epoch(self, epoch: int) -> None:
        self.cursor.set_epoch(epoch)
        self._tell(epoch)

    def restore(self, state: Mapping[str, Any]) -> None:
        self.cursor.restore(state, 1)
        if state:
            self._tell(self.cursor.epoch)

    def count_steps(self, epoch: int) -> int:
        del epoch  # all that the sampler tells is its length now
        return len(self)

    def state_at(self, epoch: int, step: int) -> dict[str, Any]:
        return self.cursor.state() | {"epoch": epoch, "step": step}

    def set_weights(self, *_: Any) -> None:
        raise UsageError("the sampler decides what is drawn: tell it the weights")

    def count_draws(self) -> list[int]:
        raise UsageError("the sampler decides what is drawn: ask it")

    def _tell(self, epoch: int) -> None:
        for sampler in self._list_epoch_samplers():
            sampler.set_epoch(epoch)
        self._sampler_epoch = epoch

    def _list_epoch_samplers(self) -> list[Any]:
        """List the samplers that have `set_epoch`."""
        samplers = (self._sampler, getattr(self._sampler, "sampler", None))
        return [one for one in samplers if callable(getattr(one, "set_epoch", None))]


def identify_data(dataset: Any) -> str:
    """Return the data's identity for a state: its fingerprint, or a hash of type and length."""
    fingerprint = getattr(dataset, "fingerprint", None)
    if isinstance(fingerprint, str):
        return fingerprint
    kind = type(dataset)
    name = kind.__qualname__  # without its module, which may be __main__ in one program only
    with contextlib.suppress(TypeError):  # a dataset without a length, which has a sampler
        name += f":{len(dataset)}"
    return hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
