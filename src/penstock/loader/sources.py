"""Sources of an epoch's batches: this process's engine, or workers that load whole batches.

`ArraySource` and `DecodeSource` drive a `StepReader`. `ArraySource` builds each batch when it is
asked for. In `DecodeSource` each of the next steps is a job for the decode threads. They wait for
its bytes themselves, so that decoding goes on while the user computes. Lines that are parsed to
fields are such jobs, too. `WorkerSource` takes the results of workers in the order of their tasks.
"""

from __future__ import annotations

import itertools
import operator
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ..budget import Budget
from ..dataset.sample import Decode, can_take_views, kept_decoded_bytes, open_samples
from ..engine.native import Arena
from ..engine.protocol import Buffer
from ..errors import CollateError, UsageError
from ..index.layout import Windowed
from ..index.table import Index
from ..meter import Meter, divide_wait
from ..plan.steps import StepPlan
from .batch import Batch, choose_readahead, mark_batch
from .collate import Collation, Leaves, Pad, Take
from .cpu_throttle import CpuThrottle
from .decode import (
    Collate,
    DecodedCounts,
    DecodeJob,
    DecodeThreads,
    LoadedStep,
    RowReader,
    RowsJob,
    RowWriter,
    make_raisable,
)
from .epoch import ReadyBatch
from .global_generators import DrawWatch
from .step_reader import StepReader, poll_ns
from .workers import BatchTask, Workers

_decode_ahead_steps, _decode_ahead_steps_max = 3, 48
"""Steps decoded, or being so, beyond the one the user has, if they fit: at first, and at most."""


class ArraySource:
    """Source of batches of arrays, as they were read.

    step_bytes:  mean bytes of a step of this rank.
    """

    def __init__(self, reader: StepReader, step_bytes: float) -> None:
        self._reader = reader
        self._step_bytes = step_bytes
        self._coded = any(field.codec is not None for field in reader.resources.index.fields)
        self.start = reader.advance

    @property
    def closed(self) -> bool:
        return self._reader.closed

    def take(self, asked_ns: int, on_wait: Callable[[], object]) -> ReadyBatch | None:
        reader = self._reader
        head = reader.ask()
        if head is None:
            return None
        buffer = reader.wait(head, on_wait)
        arrived_ns = time.perf_counter_ns()
        fields = reader.build(head, buffer)
        reader.hand_over()
        batch = Batch(
            fields, ids=head.ids, step=head.step, epoch=reader.epoch, repeats=head.repeats
        )
        ready_ns = time.perf_counter_ns()
        reader.advance()
        decode_ns = ready_ns - arrived_ns if self._coded else 0
        return batch, head.step, len(head.ids), ready_ns, arrived_ns - asked_ns, decode_ns

    def skip(self) -> None:
        if self._reader.skip():
            self._reader.advance()

    def adopt(self, budget: Budget) -> None:
        session = self._reader.session
        session.readahead_bytes = _choose_readahead(self._reader, budget, self._step_bytes)
        session.adopt(kept_decoded_bytes(budget))

    def close(self) -> None:
        self._reader.close()


LayOut = Callable[[Index, StepPlan, Buffer, Callable[[int], Buffer]], dict[str, Any]]
"""Make the fields of a step of packed rows of its bytes, in memory that a function gives."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """The user's functions, and the threads that call them.

    decode:  None if lines are only parsed to fields: a job is then a whole step.
    sample:  a sample of the data, for the structure of a batch without any; called if needed.
    seed:    of the samples' random numbers.
    rows:    decoder of many rows at a time, in place of `decode`.
    cropped: whether it has chosen which bytes are read.
    counts:  rows that it has decoded.
    watch:   refuses draws from generators that threads share.
    lay_out: makes the batch of a step of packed rows; None for samples.
    """

    decode: Decode | None
    collate: Collate | None
    leaves: Leaves
    threads: DecodeThreads
    rank: int
    sample: Callable[[], dict[str, Any]]
    seed: int
    rows: RowReader | None
    cropped: bool
    counts: DecodedCounts
    watch: DrawWatch
    lay_out: LayOut | None = None


class DecodeSource:
    """Source of batches of decoded samples.

    Decoded batches and the bytes read ahead share the memory of the budget. The decoded size of a
    step is unknown until the first is decoded, so that one has no successor until then; afterwards
    every queued job counts as the largest so far.

    step_bytes:  mean bytes of a step of this rank.
    """

    def __init__(self, reader: StepReader, step_bytes: float, decoding: Decoding) -> None:
        self._reader = reader
        self._step_bytes = step_bytes
        self._decoding = decoding
        self._admitted: deque[StepPlan] = deque()  # requested, and no job yet
        # Of the head and the next steps.
        self._jobs: deque[tuple[StepPlan, DecodeJob, _JobMemory]] = deque()
        # By step: times at which its job began to wait for its bytes, and had them.
        self._open_times: dict[int, tuple[int, int]] = {}
        self._job_bytes = 0  # most bytes that a job has taken
        self._is_measured = False  # whether a job has ended
        self._ahead_steps = _decode_ahead_steps
        self._readahead_bytes = reader.session.readahead_bytes

    @property
    def closed(self) -> bool:
        return self._reader.closed

    def take(self, asked_ns: int, on_wait: Callable[[], object]) -> ReadyBatch | None:
        reader, meter = self._reader, self._reader.resources.meter
        if reader.ask() is None:
            return None
        planned, job, memory = self._jobs[0]
        is_late = not job.is_done
        while not job.wait(poll_ns * 1e-9):
            on_wait()
            reader.check_deadline()  # Ctrl-C is noticed here too
            if self._deepen():
                self.start()
        if is_late:
            self._deepen()
        batch = job.result()
        if len(planned.ids) == 0 and self._decoding.decode is not None:
            batch = self._make_empty_batch(self._decoding.decode, planned, memory.take)
        reader.wait(planned, on_wait)  # a job without rows may end before its (empty) requests
        self._jobs.popleft()
        reader.hand_over()
        memory.hand_over()
        self._job_bytes, self._is_measured = max(self._job_bytes, memory.bytes), True
        ready_ns = time.perf_counter_ns()
        opening_ns, arrived_ns = self._open_times.pop(planned.step, (asked_ns, asked_ns))
        waited = divide_wait(asked_ns, ready_ns, opening_ns, arrived_ns, job.spans)
        meter.count_decoding(job.spans)
        if meter.timeline is not None:
            meter.timeline.record_decoding(reader.epoch, planned.step, job.spans)
        self.start()
        batch = mark_batch(batch, planned, reader.epoch)
        return batch, planned.step, len(planned.row_ids), ready_ns, *waited

    def skip(self) -> None:
        if self._reader.skip():
            self._jobs.popleft()
            self.start()

    def adopt(self, budget: Budget) -> None:
        self._readahead_bytes = _choose_readahead(self._reader, budget, self._step_bytes)
        self._reader.session.adopt(kept_decoded_bytes(budget))

    def close(self) -> None:
        self._reader.close()
        for _, job, _ in tuple(self._jobs):  # a thread that takes a batch may remove its job now
            job.fail(UsageError("the iterator was closed"))
        self._jobs.clear()
        self._admitted.clear()
        self._open_times.clear()

    def start(self) -> None:
        """Submit the steps that the session admits, and queue the next ones for decoding."""
        reader, arena = self._reader, self._reader.resources.arena
        # Jobs have half of the memory if they can use it, and the first as much as it needs.
        share = min(self._ahead_steps * self._job_bytes, max(arena.bytes_max // 2, self._job_bytes))
        ahead = max(arena.bytes_max // 4, arena.bytes_max - share)
        reader.session.readahead_bytes = min(self._readahead_bytes, ahead)
        # The first job is the step beyond the budget.
        reader.reserved_bytes = self._count_reserved() - (self._job_bytes if self._jobs else 0)
        self._admitted.extend(reader.advance())
        while self._admitted and len(self._jobs) < self._ahead_steps:
            fits = self._is_measured and arena.has_room([self._job_bytes], self._count_reserved())
            if self._jobs and not fits:
                break
            self._queue_job(self._admitted.popleft())

    def _deepen(self) -> bool:
        """Decode further ahead from now on if the threads ran out of steps while the first one was
        waited for: some samples take much longer than others. Returns whether it is so."""
        has_idled = all(job.is_done for _, job, _ in itertools.islice(self._jobs, 1, None))
        if len(self._jobs) < self._ahead_steps or not has_idled:
            return False
        self._ahead_steps = min(2 * self._ahead_steps, _decode_ahead_steps_max)
        return True

    def _count_reserved(self) -> int:
        """Count the bytes that jobs will take, or have taken elsewhere than in the arena."""
        return sum(max(0, self._job_bytes - memory.lent_bytes) for _, _, memory in self._jobs)

    def _queue_job(self, planned: StepPlan) -> None:
        # An abandoned iterator must not live on in the queue.
        reader, open_times = weakref.ref(self._reader), self._open_times
        decoding, seed = self._decoding, self._decoding.seed
        memory = _JobMemory(self._reader.resources.arena)

        def open_step() -> Any:
            alive = reader()
            if alive is None:
                raise UsageError("the iterator was closed")
            opening_ns = time.perf_counter_ns()
            index = alive.resources.index
            with alive.turn(planned):
                buffer = alive.wait(planned)
                open_times[planned.step] = opening_ns, time.perf_counter_ns()
                if decoding.lay_out is not None:
                    rows = decoding.lay_out(index, planned, buffer, memory.take)
                    return lambda _: rows
                fields = alive.build(planned, buffer, memory.take)
            memory.bytes += sum(
                _count_bytes(fields[made.name])
                for field, layout in zip(index.fields, index.layouts, strict=True)
                if (field.codec and not isinstance(layout, Windowed))  # which `take` has counted
                or (field.as_dtype is not None or field.parser or field.text)
                for made in field.made
            )
            decode = decoding.decode
            if decode is None:
                return lambda _: fields
            if decoding.rows is not None:
                return _open_rows(decoding.rows, alive, decoding, planned, fields, memory.take)
            return open_samples(
                index, planned, fields, alive.epoch, seed, as_views=can_take_views(decode)
            )

        rows = len(planned.ids)
        job: DecodeJob
        if decoding.decode is None:
            job = DecodeJob(1, open_step, dict, operator.itemgetter(0), memory.take)
        elif decoding.rows is not None:
            job = RowsJob(rows, open_step, memory.take)
        else:
            job = DecodeJob(
                rows,
                open_step,
                decoding.decode,
                decoding.collate,
                memory.take,
                decoding.leaves,
                decoding.watch,
            )
        decoding.threads.submit(job)
        self._jobs.append((planned, job, memory))

    def _make_empty_batch(self, decode: Decode, planned: StepPlan, take: Take) -> Any:
        """Make a batch of no samples, in the structure that a sample of the data has."""
        decoding = self._decoding
        if decoding.rows is not None:
            fields = self._reader.build(planned, self._reader.wait(planned))
            rows = _open_rows(decoding.rows, self._reader, decoding, planned, fields, take)
            return rows.result()
        if decoding.collate is not None and not isinstance(decoding.collate, Pad):
            try:
                return decoding.collate([])
            except Exception as error:
                what = f"rank {decoding.rank} has no sample in the last step: collate([]) failed"
                raise CollateError(f"{what} ({error!r}): use pad=True or drop_last=True") from error
        try:
            sample = decoding.sample()
            sample["__id__"], sample["__epoch__"] = 0, self._reader.epoch
            first = decode(sample)
        except Exception as error:
            raise make_raisable(error) from None
        if isinstance(decoding.collate, Pad):
            return decoding.collate.collate_none(first)
        return Collation(first, 0, self._reader.resources.arena.take, decoding.leaves).result()


def _open_rows(
    rows: RowReader,
    reader: StepReader,
    decoding: Decoding,
    planned: StepPlan,
    fields: dict[str, Any],
    take: Take,
) -> RowWriter:
    index, count = reader.resources.index, decoding.counts.add
    step = LoadedStep(
        index,
        planned,
        fields,
        reader.epoch,
        decoding.seed,
        take,
        decoding.leaves,
        count,
        decoding.cropped,
    )
    return rows.open_rows(step)


def _count_bytes(column: Any) -> int:
    """Count the bytes of a column, of Python objects without what these refer to."""
    return sum(map(sys.getsizeof, column)) if isinstance(column, list) else int(column.nbytes)


class _JobMemory:
    """Memory that one job takes for its batch.

    bytes:       of all, also of decompressed fields, not lent by the arena.
    lent_bytes:  those that the arena has lent.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._blocks: list[Buffer] = []
        self.bytes = self.lent_bytes = 0

    def take(self, size_bytes: int) -> Buffer:
        block = self._arena.take(size_bytes)
        self._blocks.append(block)
        self.lent_bytes += size_bytes
        self.bytes += size_bytes
        return block

    def hand_over(self) -> None:
        """Count the memory as the user's, who has the batch now."""
        while self._blocks:
            self._arena.hand_over(self._blocks.pop())


def _choose_readahead(reader: StepReader, budget: Budget, step_bytes: float) -> int:
    ahead_bytes, _ = choose_readahead(reader.resources.engine.choice, budget, step_bytes)
    return min(ahead_bytes, reader.resources.arena.bytes_max)


_poll_s = 0.1  # how soon a waiting caller learns of more processors


class WorkerSource:
    """Source of the batches of `tasks`, loaded by workers, in the order of the tasks.

    ahead:    tasks that workers have beyond the batch that is asked for; 0 where they work in the
              calling thread.
    batched:  True if a task is of many samples, False if of one.

    An exception of `tasks` is raised after the batches before it, and ends the source.
    """

    def __init__(
        self,
        tasks: Iterator[BatchTask],
        workers: Workers,
        meter: Meter,
        budget: Budget,
        *,
        ahead: int,
        timeout_s: float | None,
        batched: bool,
    ) -> None:
        self._tasks, self._workers, self._meter = tasks, workers, meter
        self._ahead, self._timeout_s, self._batched = ahead, timeout_s, batched
        self._throttle = CpuThrottle(budget.cores)
        self._waiting: deque[tuple[int, BatchTask]] = deque()  # tasks that were begun, by ticket
        self._fault: Exception | None = None  # of `tasks`
        self.closed = False
        self._submit_ahead()

    def take(self, asked_ns: int, on_wait: Callable[[], object]) -> ReadyBatch | None:
        while not self._waiting and self._throttle.is_in_debt:
            self._throttle.wait(_poll_s)
            on_wait()
        self._submit_ahead()
        if not self._waiting and not self._submit():
            if self._fault is None:
                return None
            fault, self._fault, self.closed = self._fault, None, True
            try:
                raise fault
            finally:
                del fault  # its traceback holds this frame
        ticket, task = self._waiting.popleft()
        batch, spent = self._workers.result(ticket, self._timeout_s)
        self._throttle.charge(spent.cpu_ns * 1e-9)
        self._submit_ahead()
        ready_ns = time.perf_counter_ns()
        # A worker was busy with this batch; the wait is taken for the last part of that time.
        waiting_ns = min(ready_ns - asked_ns, spent.busy_ns)
        decode_ns = waiting_ns * (spent.cpu_ns + spent.ready_ns) // max(1, spent.busy_ns)
        self._meter.count_work(spent.busy_ns, spent.cpu_ns)
        samples = len(task.ids) if self._batched and hasattr(task.ids, "__len__") else 1
        return batch, task.step, samples, ready_ns, waiting_ns - decode_ns, decode_ns

    def skip(self) -> None:
        """Do nothing: the next batch is of the task after."""

    def adopt(self, budget: Budget) -> None:
        self._throttle.adopt(budget.cores)

    def close(self) -> None:
        self.closed, self._tasks = True, iter(())
        while self._waiting:
            self._workers.drop(self._waiting.popleft()[0])

    def _submit_ahead(self) -> None:
        """Submit tasks in advance; while processors are in debt, none."""
        while len(self._waiting) < self._ahead and not self._throttle.is_in_debt and self._submit():
            pass

    def _submit(self) -> bool:
        """Submit the next task; False if there is none."""
        try:
            task = next(self._tasks, None)
        except Exception as error:
            self._tasks, self._fault = iter(()), error
            return False
        if task is not None:
            self._waiting.append((self._workers.submit(task), task))
        return task is not None
