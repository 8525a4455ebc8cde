"""The iterator of an epoch, of any loader: takes batches from a source and keeps position and
counters."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from ..budget import Budget
from ..errors import UsageError
from ..meter import Meter
from .batch_tasks import EpochTasks


class ReadyBatch(NamedTuple):
    """A batch that is ready, and the times of waiting for it.

    ready_ns:             time at which it was ready.
    bytes_ns, decode_ns:  parts of the time until then: waiting for bytes, and for decoding.
    """

    batch: Any
    step: int
    samples: int
    ready_ns: int
    bytes_ns: int
    decode_ns: int


class BatchSource(Protocol):
    """Source of the batches of one epoch, in order: an engine of this process, or workers."""

    @property
    def closed(self) -> bool:
        """True if it was closed, or closed itself, before its last batch was taken."""
        ...

    def take(self, asked_ns: int, meanwhile: Callable[[], None]) -> ReadyBatch | None:
        """Wait for the next batch and return it; return None after the last.

        asked_ns:   time at which the user asked for it.
        meanwhile:  called now and then while waiting.

        Raises the exceptions of storage, workers and the user's functions. Then comes `skip`.
        """
        ...

    def skip(self) -> None:
        """Skip the batch that `take` failed to give, so that the next call gives the one after.

        Closes the source if it cannot go on.
        """
        ...

    def adopt(self, budget: Budget) -> None:
        """Adopt another budget, from now on."""
        ...

    def close(self) -> None:
        """Drop the batches that were not taken."""
        ...


class EpochIterator:
    """Iterator over the batches of an epoch. It goes on unchanged when another epoch is begun.

    tasks:          keep the position of the run.
    follow_broker:  takes over a changed lease; called once a step, and while the user waits.
    finish:         makes of a batch what the user gets.
    at_end:         called once, after the last batch, if nothing was interrupted.

    After an exception the next call gives the next batch, as in torch. After an interrupt, whose
    batch may be lost, the iterator ends; other iterators of the loader, whose reads may be lost,
    raise UsageError: no epoch is cut short without an error.
    """

    def __init__(
        self,
        source: BatchSource,
        tasks: EpochTasks,
        meter: Meter,
        epoch: int,
        *,
        follow_broker: Callable[[], None],
        finish: Callable[[Any], Any] | None = None,
        at_end: Callable[[], None] | None = None,
    ) -> None:
        self._source = source
        self._tasks = tasks
        self._meter = meter
        self._epoch = epoch
        self._follow_broker = follow_broker
        self._finish = finish
        self._at_end = at_end
        self._closed = False

    def __len__(self) -> int:
        """Batches of an epoch."""
        return len(self._tasks)

    def __iter__(self) -> EpochIterator:
        return self

    def __next__(self) -> Any:
        asked_ns = time.perf_counter_ns()
        meter = self._meter
        meter.count_request(asked_ns)
        if self._closed:
            raise StopIteration
        self._follow_broker()
        try:
            ready = self._source.take(asked_ns, self._follow_broker)
        except Exception:
            self._source.skip()
            if self._source.closed:
                self.close()
            meter.count_failure(time.perf_counter_ns())
            raise
        except BaseException:
            self.close()
            raise
        if ready is None:
            was_closed, is_cut = self._closed, self._source.closed
            if not is_cut:
                self._end()
            self.close()
            if is_cut and not was_closed:
                raise UsageError(
                    f"the rest of epoch {self._epoch} was dropped: another iterator of this loader "
                    "was interrupted, or its reads failed. Begin an epoch again, or go on from a "
                    "state that was saved"
                )
            raise StopIteration
        batch, step, samples, ready_ns, bytes_ns, decode_ns = ready
        self._tasks.record_step(self._epoch, step + 1)
        if meter.timeline is not None:
            meter.timeline.record_batch(self._epoch, step, asked_ns, ready_ns, bytes_ns, decode_ns)
        now_ns = time.perf_counter_ns()
        meter.count_batch(asked_ns, ready_ns, now_ns, samples, bytes_ns, decode_ns)
        return batch if self._finish is None else self._finish(batch)

    def __del__(self) -> None:
        if hasattr(self, "_source"):  # else an interrupt came while it was made
            self.close()

    def adopt(self, budget: Budget) -> None:
        """Adopt another budget, from now on."""
        self._source.adopt(budget)

    def close(self) -> None:
        """Stop here; batches that were not handed over are dropped."""
        self._closed = True
        self._source.close()

    def _end(self) -> None:
        self._tasks.end_epoch(self._epoch)
        if self._at_end is not None:
            self._at_end()
