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


class OpenEpoch(NamedTuple):
    """An epoch that has been begun, and the source of its batches.

    at_end:  called once, after the last batch, if nothing was interrupted.
    """

    epoch: int
    source: BatchSource
    at_end: Callable[[], None] | None = None


class EpochIterator:
    """Iterator over the batches of an epoch. It goes on unchanged when another epoch is begun.

    begin_epoch:    begins the epoch, and with it reading, for this iterator; called by the first
                    `next` (or `begin`): one that nobody uses costs nothing and moves nothing.
    tasks:          keep the position of the run.
    follow_broker:  takes over a changed lease; called once a step, and while the user waits.
    finish:         makes of a batch what the user gets.

    An epoch that could not be begun is begun by the call after that. After an exception the next
    call gives the next batch, as in torch. After an interrupt, whose batch may be lost, the
    iterator ends; other iterators of the loader, whose reads may be lost, raise UsageError: no
    epoch is cut short without an error.
    """

    def __init__(
        self,
        begin_epoch: Callable[[EpochIterator], OpenEpoch],
        tasks: EpochTasks,
        meter: Meter,
        *,
        follow_broker: Callable[[], None],
        finish: Callable[[Any], Any] | None = None,
    ) -> None:
        self._begin_epoch = begin_epoch
        self._open: OpenEpoch | None = None
        self._tasks = tasks
        self._meter = meter
        self._follow_broker = follow_broker
        self._finish = finish
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
        opened = self._open
        if opened is None:
            opened, asked_ns = self._begin(), time.perf_counter_ns()
        epoch, source, _ = opened
        self._follow_broker()
        try:
            ready = source.take(asked_ns, self._follow_broker)
        except Exception:
            source.skip()
            if source.closed:
                self.close()
            meter.count_failure(time.perf_counter_ns())
            raise
        except BaseException:
            self.close()
            raise
        if ready is None:
            was_closed, is_cut = self._closed, source.closed
            if not is_cut:
                self._end(opened)
            self.close()
            if is_cut and not was_closed:
                raise UsageError(
                    f"the rest of epoch {epoch} was dropped: another iterator of this loader "
                    "was interrupted, or its reads failed. Begin an epoch again, or go on from a "
                    "state that was saved"
                )
            raise StopIteration
        batch, step, samples, ready_ns, bytes_ns, decode_ns = ready
        self._tasks.record_step(epoch, step + 1)
        if meter.timeline is not None:
            meter.timeline.record_batch(epoch, step, asked_ns, ready_ns, bytes_ns, decode_ns)
        now_ns = time.perf_counter_ns()
        meter.count_batch(asked_ns, ready_ns, now_ns, samples, bytes_ns, decode_ns)
        return batch if self._finish is None else self._finish(batch)

    def __del__(self) -> None:
        if hasattr(self, "_closed"):  # else an interrupt came while it was made
            self.close()

    def begin(self) -> EpochIterator:
        """Begin the epoch now, so that reading goes on before the first batch is asked for.

        Returns this iterator.
        """
        if self._open is None and not self._closed:
            self._begin()
        return self

    def adopt(self, budget: Budget) -> None:
        """Adopt another budget, from now on."""
        if self._open is not None:
            self._open.source.adopt(budget)

    def close(self) -> None:
        """Stop here; batches that were not handed over are dropped."""
        self._closed = True
        if self._open is not None:
            self._open.source.close()

    def _begin(self) -> OpenEpoch:
        self._open = self._begin_epoch(self)
        return self._open

    def _end(self, ended: OpenEpoch) -> None:
        self._tasks.end_epoch(ended.epoch)
        if ended.at_end is not None:
            ended.at_end()
