"""A source of batches on a device, which begins to move the next one before it hands one over.

    take:  hand over batch k  ->  ask for batch k+1  ->  begin to move it  ->  return batch k

Everything happens in the thread that asks, inside `take`: there is no thread that could use the
device at a moment that does not suit the user. Batch k is recorded as given when it is given, so
that a state never counts the batch ahead; what goes wrong with batch k+1 is raised at its turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from ..budget import Budget
from ..meter import Meter
from .batch_tasks import EpochTasks
from .epoch_iterator import BatchSource, EpochIterator, OpenEpoch, ReadyBatch


class DeviceTransfer(Protocol):
    """A way to a device, of one iterator."""

    def check(self) -> None:
        """Raise UsageError if nothing may be moved now. Called before a batch is asked for."""
        ...

    def begin(self, batch: Any) -> Any:
        """Begin to move a batch and return it in motion.

        The memory of `batch` may be used for something else as soon as this returns, unless what
        is returned holds it. What is returned may be dropped at any time, in any thread.
        """
        ...

    def hand_over(self, moving: Any) -> Any:
        """Return the batch on the device; what the user does with it next finds it complete."""
        ...


class FunctionTransfer:
    """A `DeviceTransfer` by a function that starts it, and holds what it reads until it is done."""

    def __init__(self, start: Callable[[Any], Any]) -> None:
        self.begin = start

    def check(self) -> None:
        pass

    def hand_over(self, moving: Any) -> Any:
        return moving


class _Ahead(NamedTuple):
    """A batch in motion, or the error that it ended in."""

    moving: Any
    step: int
    samples: int
    error: Exception | None = None


class TransferSource:
    """Source of the batches of another source, each begun to move one `take` before its own.

    finish:  makes of a batch what is moved.
    """

    def __init__(
        self,
        source: BatchSource,
        finish: Callable[[Any], Any] | None,
        transfer: DeviceTransfer,
    ) -> None:
        self._source = source
        self._finish = finish
        self._transfer = transfer
        self._ahead: _Ahead | None = None
        self._waited = 0, 0, 0  # in this `take`: the times of `ReadyBatch`
        self._is_ended = False

    @property
    def closed(self) -> bool:
        return self._source.closed

    def take(self, asked_ns: int, meanwhile: Callable[[], None]) -> ReadyBatch | None:
        self._transfer.check()
        self._waited = asked_ns, 0, 0
        if self._ahead is None:  # the first, or the one after a batch that failed
            self._move_next(meanwhile)
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return None
        if ahead.error is not None:
            try:
                raise ahead.error
            finally:
                del ahead  # its traceback holds this frame
        batch = self._transfer.hand_over(ahead.moving)
        self._move_next(meanwhile)
        return ReadyBatch(batch, ahead.step, ahead.samples, *self._waited)

    def skip(self) -> None:
        """Do nothing: a batch that failed was skipped when it failed."""

    def adopt(self, budget: Budget) -> None:
        self._source.adopt(budget)

    def close(self) -> None:
        self._ahead, self._is_ended = None, True
        self._source.close()

    def _move_next(self, meanwhile: Callable[[], None]) -> None:
        """Ask for the next batch and begin to move it; an error is kept for its turn."""
        if self._is_ended:
            return
        try:
            ready = self._source.take(time.perf_counter_ns(), meanwhile)
        except Exception as error:
            self._source.skip()
            self._ahead = _Ahead(None, 0, 0, error)
            return
        if ready is None:
            self._is_ended = True
            return
        _, bytes_ns, decode_ns = self._waited
        self._waited = ready.ready_ns, bytes_ns + ready.bytes_ns, decode_ns + ready.decode_ns
        batch = ready.batch
        try:
            batch = batch if self._finish is None else self._finish(batch)
            self._ahead = _Ahead(self._transfer.begin(batch), ready.step, ready.samples)
        except Exception as error:
            self._ahead = _Ahead(None, ready.step, ready.samples, error)


def make_iterator(
    begin_epoch: Callable[[EpochIterator], OpenEpoch],
    tasks: EpochTasks,
    meter: Meter,
    *,
    follow_broker: Callable[[], None],
    finish: Callable[[Any], Any] | None = None,
    open_transfer: Callable[[], DeviceTransfer] | None = None,
) -> EpochIterator:
    """Return an `EpochIterator` of these arguments.

    open_transfer:  opens the way to a device when the epoch is begun; None hands batches over where
                    they are.
    """

    def begin_transfers(iterator: EpochIterator) -> OpenEpoch:
        assert open_transfer is not None
        transfer = open_transfer()  # before the epoch is begun: this may fail
        opened = begin_epoch(iterator)
        return opened._replace(source=TransferSource(opened.source, finish, transfer))

    if open_transfer is None:
        return EpochIterator(begin_epoch, tasks, meter, follow_broker=follow_broker, finish=finish)
    return EpochIterator(begin_transfers, tasks, meter, follow_broker=follow_broker)
