"""Decoding in threads: they call the user's function on every sample and collate row by row.

The usual decoders release the GIL, so threads scale and nothing is pickled. A job is one step. Each
thread takes the next sample of the oldest job by advancing a shared iterator. This is atomic under
the GIL, so that a sample needs no lock and no queue. A `RowDecode` is given many rows at a time.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import queue
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from ..dataset.sample import Decode
from ..dataset.sample import takes_views as takes_views
from ..engine.threads import WakeUp, join_threads, start_threads
from ..index.table import Index
from ..meter import Span
from ..order.augmentation import derive_epoch_key
from ..plan.batch_layout import PlanSource
from ..plan.steps import StepPlan
from .collate import Arrays, Collation, Leaves, Take
from .cpu_throttle import CpuThrottle
from .explain import DecodeGain
from .global_generators import DrawWatch, States, read_states

Collate = Callable[[list[Any]], Any]


def make_raisable(error: BaseException) -> BaseException:
    """Return an exception of the user's code in a form that may be raised while iterating.

    A StopIteration would silently end the epoch: it becomes a RuntimeError, as in generators
    (PEP 479).
    """
    if not isinstance(error, StopIteration):
        return error
    what = f"decode, collate or the dataset raised {error!r}"
    raised = RuntimeError(f"{what}, which would have ended the epoch: raise another exception")
    raised.__cause__ = error
    for note in getattr(error, "__notes__", ()):
        raised.add_note(note)
    return raised


_exit_s = 5.0  # how long the interpreter's end waits for calls of the user's functions
_stops: weakref.WeakKeyDictionary[threading.Thread, Callable[[], object]] = (
    weakref.WeakKeyDictionary()
)
_exiting = threading.Event()


def end_with_interpreter(thread: threading.Thread, stop: Callable[[], object]) -> None:
    """Have a daemon thread stopped and joined when the interpreter ends.

    Python before 3.14 then unwinds daemon threads that wait for the GIL, and C++ frames below them
    (numpy's, a decoder's) turn that into an abort of the process.
    """
    _stops[thread] = stop


@atexit.register
def _end_threads() -> None:
    _exiting.set()
    ending = [(thread, stop) for thread, stop in _stops.items() if thread.is_alive()]
    for _, stop in ending:
        stop()
    deadline_s = time.monotonic() + _exit_s
    for thread, _ in ending:
        thread.join(max(0.0, deadline_s - time.monotonic()))


def _no_wait() -> None:
    pass


class DecodeJob:
    """One step on its way through the threads.

    open_step() is called at most once, by the first thread; it waits for the bytes and returns the
    samples. Then rows are decoded in any order. A job has ended if all rows are collated, or if it
    failed.

    watch:  checks that decode and collate draw from no generator that threads share.
    chunks: most threads that find work in it.
    spans:  the work of each thread for it, once it has ended.
    """

    stride = 1
    """Rows that a thread takes at a time."""

    def __init__(
        self,
        rows: int,
        open_step: Callable[[], Any],
        decode: Decode,
        collate: Collate | None,
        take: Take,
        leaves: Leaves | None = None,
        watch: DrawWatch | None = None,
    ) -> None:
        self._rows = rows
        self._open_step = open_step
        self._decode = decode
        self._collate = collate
        self._take = take
        self._leaves = leaves or Arrays()
        self._watch = watch
        self._states: States = {}  # of the process's generators, before the first row
        self._next_row: Iterator[int] = iter(range(0, rows, self.stride))
        self.chunks = -(-rows // self.stride)
        self._left = rows
        self._lock = threading.Lock()
        self._is_done = False
        self._end = WakeUp()
        self._samples: Any = None  # what open_step returned
        self._collation: Collation | None = None
        self._list: list[Any] | None = [None] * rows if collate else None
        self._error: BaseException | None = None
        self._result: Any = None
        self.spans: list[Span] = []
        if rows == 0:
            self._is_done = True

    def run(self, turn: Callable[[], None] = _no_wait) -> None:
        """Decode rows until none is left or the job has ended; called by each thread.

        turn:  called before each row; may wait.
        """
        count = 0
        # Counted from before the bytes arrive: requesting them is work too, and `turn` charges it.
        began_cpu_ns = time.thread_time_ns()
        try:
            samples = self._open_once()
            if samples is None:
                return
            began_ns = time.perf_counter_ns()
            for row in self._next_row:
                if self._is_done or _exiting.is_set():
                    return
                turn()
                self._decode_row(samples, row)
                count += min(self.stride, self._rows - row)
        except BaseException as error:
            self.fail(error)
            return
        cpu_ns = time.thread_time_ns() - began_cpu_ns
        span = Span(threading.get_ident(), began_ns, time.perf_counter_ns(), cpu_ns)
        with self._lock:
            if count:
                self.spans.append(span)
            self._left -= count
            last = self._left == 0 and not self._is_done
        if last and count:
            self._finish()

    def fail(self, error: BaseException) -> None:
        """End the job; rows not yet started are not decoded."""
        # Without the lock: destructors call this, in whatever a thread is doing.
        if not self._is_done:
            self._error = self._error or make_raisable(error)
        self._is_done = True
        self._end.send()

    @property
    def is_done(self) -> bool:
        """True if the job has ended."""
        return self._is_done

    def wait(self, timeout_s: float) -> bool:
        """Wait for the job's end. Returns False if it has not ended within the time."""
        if not self._is_done:
            self._end.wait(timeout_s)
        return self._is_done

    def result(self) -> Any:
        """Return the collated step, or raise the exception that ended the job. It must have ended.

        An exception is raised once: kept, it would be a cycle with the frames that it names.
        """
        if self._error is not None:
            error, self._error = self._error, None
            try:
                raise error
            finally:
                del error
        return self._result

    def _open_once(self) -> Any:
        """Return the samples, opened by the first caller; None to late callers, after the end."""
        with self._lock:
            if self._is_done:
                return None
            if self._samples is None:
                self._samples = self._open_step()
                if self._watch is not None:
                    self._states = read_states()
            return self._samples

    def _decode_row(self, samples: Any, row: int) -> None:
        sample = samples(row)
        doing = "decode"
        try:
            value = self._decode(sample)
            doing = "collating"
            self._put(row, value)
        except Exception as error:
            key = samples(row)["__key__"]  # decode may have changed its dict
            error.add_note(f"penstock: raised by {doing} for sample {key!r}")
            raise

    def _put(self, row: int, value: Any) -> None:
        if self._list is not None:
            self._list[row] = value
            return
        if self._collation is None:
            with self._lock:
                if self._collation is None:
                    self._collation = Collation(value, self._rows, self._take, self._leaves)
        self._collation.put(row, value)

    def _collate_rows(self) -> Any:
        if self._list is not None and self._collate is not None:
            return self._collate(self._list)
        return None if self._collation is None else self._collation.result()

    def _check_draws(self) -> None:
        if self._watch is None or self._watch.is_still(self._states):
            return
        samples, collate = self._samples, self._collate

        def make(row: int) -> Any:
            return self._decode(samples(row))

        def make_batch(rows: Sequence[int]) -> Any:
            return None if collate is None else collate(list(map(make, rows)))

        rows = range(self._rows)
        if collate is None:
            self._watch.check(self._states, rows, make, "decode")
        else:
            self._watch.check(self._states, [rows], make_batch, "decode or collate")

    def _finish(self) -> None:
        try:
            self._result = self._collate_rows()
            self._check_draws()
        except BaseException as error:
            self.fail(error)
        with self._lock:  # a late thread must find either the samples or the end
            self._samples = self._collation = self._list = None
            self._is_done = True
            self._end.send()


class RowsJob(DecodeJob):
    """A step whose rows are decoded many at a time, by what open_step() returns."""

    stride = 8
    """Images of a chunk: some 10 ms, beside which a hand-off does not count."""

    def __init__(self, rows: int, open_step: Callable[[], RowWriter], take: Take) -> None:
        super().__init__(rows, open_step, _refuse_sample, None, take)

    def _decode_row(self, samples: Any, row: int) -> None:
        samples.decode(row, min(row + self.stride, self._rows))

    def _collate_rows(self) -> Any:
        return self._samples.result()


def _refuse_sample(sample: dict[str, Any]) -> Any:
    raise AssertionError("rows of this job are not decoded one by one")


class DecodeThreads:
    """Threads that run jobs in the order of submission.

    cores:  processor time a second that they may use together, on average; None is no limit.

    They end with `close` or with this object, and never keep the interpreter from exiting.
    """

    def __init__(self, threads: int, cores: float | None = None) -> None:
        self._queue: queue.SimpleQueue[DecodeJob | None] = queue.SimpleQueue()
        self._throttle = CpuThrottle(cores)
        self.pid = os.getpid()
        self._threads = [
            threading.Thread(
                target=_run_jobs,
                args=(self._queue, self._throttle, number),
                name=f"penstock-decode-{number}",
                daemon=True,
            )
            for number in range(threads)
        ]
        stop = functools.partial(_stop, self._queue, self._throttle, threads, self.pid)
        for thread in self._threads:
            end_with_interpreter(thread, stop)
        start_threads(self._threads, stop)
        self._finalizer = weakref.finalize(self, stop)

    def __len__(self) -> int:
        return len(self._threads)

    def adopt(self, cores: float | None) -> None:
        """Apply a limit of cores from the next row on, to waiting threads too."""
        self._throttle.adopt(cores)

    def submit(self, job: DecodeJob) -> None:
        """Queue a job. Every thread that the cores can keep busy joins it if it has rows for
        that many."""
        for _ in range(min(len(self._threads), job.chunks)):
            self._queue.put(job)

    def close(self) -> None:
        """End the threads after their current rows."""
        self._finalizer()
        if self.pid == os.getpid():
            join_threads(self._threads)


def _run_jobs(
    jobs: queue.SimpleQueue[DecodeJob | None], throttle: CpuThrottle, number: int
) -> None:
    while True:
        # More threads than cores would work on later steps than the one that is needed.
        throttle.wait_until_wanted(number)
        job = jobs.get()
        if job is None or _exiting.is_set():
            return
        job.run(throttle.take_turn)
        del job  # the batch must not live until the next one comes


def _stop(
    jobs: queue.SimpleQueue[DecodeJob | None], throttle: CpuThrottle, threads: int, pid: int
) -> None:
    if pid == os.getpid():
        throttle.close()
        for _ in itertools.repeat(None, threads):
            jobs.put(None)


class RowWriter(Protocol):
    """Rows of one step that are being decoded; called from several threads."""

    def decode(self, first: int, end: int) -> None:
        """Decode the rows [first, end). An exception ends the step, and names the sample."""
        ...

    def result(self) -> Any:
        """Return the batch, once all rows are decoded."""
        ...


@dataclass(frozen=True, slots=True)
class LoadedStep:
    """The rows of a step, read and not yet decoded.

    fields:  from `build_fields`; those that are kept must be copied, because they are views of the
             memory that holds all bytes of the step.
    take:    gives memory for the batch.
    count:   counts what `Loader.stats()["decoded"]` says, and returns the count so far.
    cropped: whether the bytes are those that `RowReader.crop_reads` has chosen.
    by_row:  draw random numbers by the row, not by the sample: a sample may come several times.
    """

    index: Index
    planned: StepPlan
    fields: dict[str, Any]
    epoch: int
    seed: int
    take: Take
    leaves: Leaves
    count: Callable[[str, int], int]
    cropped: bool = False
    by_row: bool = False

    def list_streams(self) -> npt.NDArray[np.uint64]:
        """List the number of each row's stream of random numbers."""
        if self.by_row:
            return np.arange(len(self.planned.ids), dtype=np.uint64)
        return np.ascontiguousarray(self.planned.ids, np.uint64)

    def derive_keys(self) -> npt.NDArray[np.uint64]:
        """Derive the key of each row's random numbers: in a mixture from the sample's pass."""
        passes = self.planned.marks.get("pass")
        if passes is None:
            key = derive_epoch_key(self.seed, self.epoch)
            return np.full(len(self.planned.ids), key, np.uint64)
        turns, rows = np.unique(passes, return_inverse=True)
        keys = [derive_epoch_key(self.seed, int(turn)) for turn in turns]
        return np.array(keys, np.uint64)[rows.reshape(-1)]


class RowReader(Protocol):
    """A `RowDecode` of one data set."""

    def crop_reads(self, index: Index, seed: int, epoch: int) -> PlanSource | None:
        """Return the data with the bytes alone that this epoch needs; None for all bytes."""
        ...

    def open_rows(self, step: LoadedStep) -> RowWriter:
        """Return the rows of a step, to be decoded in chunks."""
        ...

    def measure_gains(self, index: Index) -> Sequence[DecodeGain]:
        """Measure on some samples, in at most two seconds and once, what would make decoding
        cheaper."""
        ...


@runtime_checkable
class RowDecode(Protocol):
    """A `decode` that decodes many rows at a time."""

    def open_data(self, index: Index, path: str | None, leaves: Leaves) -> RowReader:
        """Return the decoder of this data; UsageError if it has not what is to be decoded.

        path:    of the data, if files beside it may help.
        leaves:  of the batches.
        """
        ...

    def __call__(self, sample: Any) -> Any: ...


class DecodedCounts:
    """Counts of decoded rows by kind, from several threads."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, kind: str, rows: int) -> int:
        """Count rows of a kind, and return how many there are so far."""
        with self._lock:
            self._counts[kind] += rows
            return self._counts[kind]

    def list_all(self) -> dict[str, int]:
        return dict(self._counts)
