"""Sources of batches that this process reads itself: arrays as read, or samples decoded in threads.

Both drive a `StepReader`. `ArraySource` builds each batch when it is asked for. In `DecodeSource`
each of the next steps is a job for the decode threads. They wait for its bytes themselves, so that
decoding goes on while the user computes.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..budget import Budget
from ..errors import CollateError, UsageError
from ..meter import divide_wait
from ..plan import StepPlan
from .batch import Batch, build_fields, choose_readahead, open_samples
from .collate import Collation, Leaves
from .decode import Collate, Decode, DecodeJob, DecodeThreads, Samples, make_raisable
from .epoch_iterator import ReadyBatch
from .step_reader import StepReader
from .ticket_router import poll_ns

_decode_ahead_steps = 3  # decoded or being decoded beyond the one the user has


class ArraySource:
    """Source of batches of arrays, as they were read.

    step_bytes:  mean bytes of a step of this rank.
    """

    def __init__(self, reader: StepReader, step_bytes: float) -> None:
        self._reader = reader
        self._step_bytes = step_bytes
        self._coded = any(field.codec is not None for field in reader.resources.index.fields)
        reader.advance()

    @property
    def closed(self) -> bool:
        return self._reader.closed

    def take(self, asked_ns: int, meanwhile: Callable[[], None]) -> ReadyBatch | None:
        reader = self._reader
        head = reader.ask()
        if head is None:
            return None
        buffer = reader.wait(head, meanwhile)
        arrived_ns = time.perf_counter_ns()
        fields = build_fields(reader.resources.index, head, buffer)
        reader.hand_over()
        batch = Batch(head.ids, head.step, reader.epoch, fields, head.repeats)
        ready_ns = time.perf_counter_ns()
        reader.advance()
        decode_ns = ready_ns - arrived_ns if self._coded else 0
        waited = arrived_ns - asked_ns, decode_ns
        return ReadyBatch(batch, head.step, len(head.ids), ready_ns, *waited)

    def skip(self) -> None:
        if self._reader.skip():
            self._reader.advance()

    def adopt(self, budget: Budget) -> None:
        _adopt_readahead(self._reader, budget, self._step_bytes)

    def close(self) -> None:
        self._reader.close()


@dataclass(frozen=True, slots=True)
class Decoding:
    """The user's functions, and the threads that call them.

    sample:  a sample of the data, for the structure of a batch without any; called if needed.
    """

    decode: Decode
    collate: Collate | None
    leaves: Leaves
    threads: DecodeThreads
    rank: int
    sample: Callable[[], dict[str, Any]]


class DecodeSource:
    """Source of batches of decoded samples.

    step_bytes:  mean bytes of a step of this rank.
    """

    def __init__(self, reader: StepReader, step_bytes: float, decoding: Decoding) -> None:
        self._reader = reader
        self._step_bytes = step_bytes
        self._decoding = decoding
        self._admitted: deque[StepPlan] = deque()  # requested, and no job yet
        self._jobs: deque[tuple[StepPlan, DecodeJob]] = deque()  # of the head and the next steps
        # By step: times at which its job began to wait for its bytes, and had them.
        self._open_times: dict[int, tuple[int, int]] = {}
        self._advance()

    @property
    def closed(self) -> bool:
        return self._reader.closed

    def take(self, asked_ns: int, meanwhile: Callable[[], None]) -> ReadyBatch | None:
        reader, meter = self._reader, self._reader.resources.meter
        if reader.ask() is None:
            return None
        planned, job = self._jobs[0]
        while not job.wait(poll_ns * 1e-9):
            meanwhile()
            reader.check_deadline()  # Ctrl-C is noticed here too
        batch = job.result()
        if len(planned.ids) == 0:
            batch = self._make_empty_batch()
        reader.wait(planned, meanwhile)  # a job without rows may end before its (empty) requests
        self._jobs.popleft()
        reader.hand_over()
        ready_ns = time.perf_counter_ns()
        opening_ns, arrived_ns = self._open_times.pop(planned.step, (asked_ns, asked_ns))
        waited = divide_wait(asked_ns, ready_ns, opening_ns, arrived_ns, job.spans)
        meter.count_decoding(job.spans)
        if meter.timeline is not None:
            meter.timeline.record_decoding(reader.epoch, planned.step, job.spans)
        self._advance()
        return ReadyBatch(batch, planned.step, len(planned.ids), ready_ns, *waited)

    def skip(self) -> None:
        if self._reader.skip():
            self._jobs.popleft()
            self._advance()

    def adopt(self, budget: Budget) -> None:
        _adopt_readahead(self._reader, budget, self._step_bytes)

    def close(self) -> None:
        self._reader.close()
        for _, job in self._jobs:
            job.fail(UsageError("the iterator was closed"))
        self._jobs.clear()
        self._admitted.clear()
        self._open_times.clear()

    def _advance(self) -> None:
        """Submit the steps that the session admits, and queue the next ones for decoding."""
        self._admitted.extend(self._reader.advance())
        while self._admitted and len(self._jobs) < _decode_ahead_steps:
            planned = self._admitted.popleft()
            self._jobs.append((planned, self._queue_job(planned)))

    def _queue_job(self, planned: StepPlan) -> DecodeJob:
        # An abandoned iterator must not live on in the queue.
        reader, open_times = weakref.ref(self._reader), self._open_times

        def open_step() -> Samples:
            alive = reader()
            if alive is None:
                raise UsageError("the iterator was closed")
            opening_ns = time.perf_counter_ns()
            buffer = alive.wait(planned)
            open_times[planned.step] = opening_ns, time.perf_counter_ns()
            return open_samples(alive.resources.index, planned, buffer, alive.epoch)

        decoding = self._decoding
        job = DecodeJob(
            len(planned.ids),
            open_step,
            decoding.decode,
            decoding.collate,
            self._reader.resources.arena.take,
            decoding.leaves,
        )
        decoding.threads.submit(job)
        return job

    def _make_empty_batch(self) -> Any:
        """Make a batch of no samples, in the structure that a sample of the data has."""
        decoding = self._decoding
        if decoding.collate is not None:
            try:
                return decoding.collate([])
            except Exception as error:
                raise CollateError(
                    f"rank {decoding.rank} has no sample in the last step and collate([]) "
                    f"failed ({error!r}): use pad=True or drop_last=True, or make collate take []"
                ) from error
        try:
            sample = {**decoding.sample(), "__id__": 0, "__epoch__": self._reader.epoch}
            first = decoding.decode(sample)
        except Exception as error:
            raise make_raisable(error) from None
        return Collation(first, 0, self._reader.resources.arena.take, decoding.leaves).result()


def _adopt_readahead(reader: StepReader, budget: Budget, step_bytes: float) -> None:
    choice = reader.resources.engine.choice
    reader.session.readahead_bytes, _ = choose_readahead(choice, budget, step_bytes)
