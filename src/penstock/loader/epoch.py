"""An epoch as the user walks through it: an iterator over the batches of a source.

A source's batches may move to a device on their way. The next one starts to move before one is
handed over:

    take:  hand over batch k  ->  ask for batch k+1  ->  start to move it  ->  return batch k

Everything happens in the thread that asks, inside `take`: no other thread uses the device at a
moment that does not suit the user. Batch k counts as handed over when it is handed over, so that a
state never counts the batch ahead; an error of batch k+1 is raised at its turn.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter
from threading import Thread, current_thread
from types import FrameType
from typing import Any, NamedTuple, NoReturn, Protocol, runtime_checkable

from ..budget import Budget
from ..engine.threads import make_turn as make_turn
from ..errors import UsageError
from ..meter import Counters, Meter
from .workers import EpochTasks

ReadyBatch = tuple[Any, int, int, int, int, int]
"""A batch, its step, its number of samples, the time at which it was ready, and the parts of the
time until then: waiting for bytes, and for decoding. Times in ns."""


@runtime_checkable
class EpochLoader(Protocol):
    """A loader of penstock: `Loader`, `torch.DataLoader`, `torch.DeviceLoader`, `jax.Loader`."""

    def __iter__(self) -> Iterator[Any]: ...

    def __len__(self) -> int: ...

    def set_epoch(self, epoch: int) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


def check_loader(taker: str, loader: Any) -> EpochLoader:
    """Return the loader that `taker` was given. Raises UsageError if it is none of penstock's."""
    if isinstance(loader, type) or not isinstance(loader, EpochLoader):
        given = loader.__name__ if isinstance(loader, type) else f"a {type(loader).__name__}"
        raise UsageError(f"{taker} was given {given}: give a Loader or a DataLoader of penstock")
    return loader


class BatchSource(Protocol):
    """Source of the batches of one epoch, in order: an engine of this process, or workers."""

    @property
    def closed(self) -> bool:
        """True if the source was closed before its last batch was taken."""
        ...

    def take(self, asked_ns: int, on_wait: Callable[[], object]) -> ReadyBatch | None:
        """Wait for the next batch and return it; return None after the last.

        asked_ns:  time at which the user asked for it.
        on_wait:   called now and then while waiting.

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
    """An epoch that was started, and the source of its batches.

    at_end:  called once, after the last batch, if nothing was interrupted.
    """

    epoch: int
    source: BatchSource
    at_end: Callable[[], None] | None = None


def _restore_under_lightning(tasks: EpochTasks) -> None:
    """Move to the position that Lightning read from its checkpoint and did not hand to its loaders:
    it forgets to, once a model has read `trainer.estimated_stepping_batches`."""
    if not {"pytorch_lightning", "lightning.pytorch"} & sys.modules.keys():
        return
    frame: FrameType | None = sys._getframe(1)
    while frame and not frame.f_globals.get("__name__", "").endswith(".loops.fit_loop"):
        frame = frame.f_back
    loop: Any = frame and frame.f_locals.get("self")
    loaders = getattr(getattr(loop, "_combined_loader", None), "flattened", ())
    if not any(getattr(loader, "_epochs", None) is tasks for loader in loaders):
        return  # of validation, or a loader of the user's
    position = tasks.cursor.state()
    order_of = itemgetter("fingerprint", "order", "seed", "global_batch")
    place_of = itemgetter("epoch", "step")
    for state in getattr(loop, "_combined_loader_states_to_load", ()):
        fits = isinstance(state, Mapping) and position.keys() <= state.keys()
        if fits and order_of(state) == order_of(position) and place_of(state) > place_of(position):
            tasks.restore(state)
            return


class SharedIterator:
    """Iterator over batches that several threads may share, as `EpochIterator`."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches
        self._turn = make_turn()
        self._told: set[Thread] | None = None  # threads that know of an error, if it is the last
        self._closed = False

    def __iter__(self) -> SharedIterator:
        return self

    def __next__(self) -> Any:
        with self._turn:
            if self._closed:
                raise StopIteration
            try:
                batch = next(self._batches)
            except StopIteration:
                _tell(self._told, "the epoch")
                raise
            except BaseException as error:
                if self._closed and isinstance(error, Exception):  # meanwhile, by another thread
                    raise StopIteration from None
                self._told = {current_thread()}
                raise
            self._told = None
            return batch

    def close(self) -> None:
        """Stop here."""
        self._closed = True


class EpochIterator:
    """Iterator over the batches of an epoch. It goes on unchanged when another epoch starts.

    begin_epoch:    starts the epoch and its reads for this iterator. The first `next` (or `begin`)
                    calls it: an iterator that nobody uses costs nothing and moves nothing.
    tasks:          keep the position of the run.
    follow_broker:  takes over a changed lease, and returns the time (ns) before which it need not
                    be called again. Also called while the user waits.
    finish:         makes of a batch what the user gets.
    open_transfer:  opens the way to a device; None hands batches over where they are.

    An epoch that failed to start is started by the next call. After an exception the next call
    gives the next batch, as in torch. After an interrupt, whose batch may be lost, the iterator
    ends; other iterators of the loader, whose reads may be lost, raise UsageError: no epoch is cut
    short without an error.

    Threads may share it: each batch goes to one of them, and so does its error. The end comes to
    all; if the epoch was cut short, UsageError comes to each of the others. `close` in another
    thread is the end for all.
    """

    def __init__(
        self,
        begin_epoch: Callable[[EpochIterator], OpenEpoch],
        tasks: EpochTasks,
        meter: Meter,
        follow_broker: Callable[[], int],
        finish: Callable[[Any], Any] | None = None,
        open_transfer: Callable[[], DeviceTransfer] | None = None,
    ) -> None:
        self._begin_epoch = begin_epoch
        self._open: OpenEpoch | None = None
        self._tasks = tasks
        self._meter = meter
        self._follow_broker = follow_broker
        self._broker_ns = 0  # when to follow it again
        self._finish = finish
        self._open_transfer = open_transfer
        self._turn = make_turn()  # of the thread that takes a batch
        self._told: set[Thread] | None = None  # threads that know that the epoch was cut short
        self._closed = False

    def __len__(self) -> int:
        """Batches of an epoch."""
        return len(self._tasks)

    def __iter__(self) -> EpochIterator:
        return self

    def __next__(self) -> Any:
        with self._turn:
            asked_ns = time.perf_counter_ns()
            meter = self._meter
            if self._open is None or self._closed:
                meter.count_request(asked_ns)
                self.begin()
                if self._closed:
                    self._raise_end()
                asked_ns = time.perf_counter_ns()
            assert self._open is not None
            epoch, source, _ = self._open
            try:
                if asked_ns >= self._broker_ns:
                    self._broker_ns = self._follow_broker()
                ready = source.take(asked_ns, self._follow_broker)
            except Exception:
                if self._closed:  # meanwhile, by another thread
                    self._raise_end()
                meter.count_request(asked_ns)
                source.skip()
                if source.closed:
                    self._cut_short()
                meter.count_failure(time.perf_counter_ns())
                raise
            except BaseException:
                self._cut_short()
                raise
            if ready is None:
                meter.count_request(asked_ns)
                self._end(self._open)
                raise StopIteration
            batch, step, samples, ready_ns, bytes_ns, decode_ns = ready
            self._tasks.record_step(epoch, step + 1)
            if meter.timeline is not None:
                meter.timeline.record_batch(epoch, step, asked_ns, ready_ns, bytes_ns, decode_ns)
            now_ns = time.perf_counter_ns()
            meter.count_batch(asked_ns, ready_ns, now_ns, samples, bytes_ns, decode_ns)
            if self._closed:
                source.close()  # again: another thread closed it while this one requested more
            return batch if self._finish is None else self._finish(batch)

    def __del__(self) -> None:
        if hasattr(self, "_closed"):  # else an interrupt came while it was made
            self.close()

    def begin(self) -> EpochIterator:
        """Start the epoch now, so that it is read before the first batch is asked for.

        Returns this iterator.
        """
        with self._turn:
            if self._open is None and not self._closed:
                _restore_under_lightning(self._tasks)
                if self._open_transfer is None:
                    self._open = self._begin_epoch(self)
                else:
                    transfer = self._open_transfer()  # before the epoch starts: this may fail
                    opened = self._begin_epoch(self)
                    moving = TransferSource(opened.source, self._finish, transfer)
                    self._open, self._finish = opened._replace(source=moving), None
                if self._closed:  # meanwhile, by another thread
                    self._open.source.close()
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

    def _end(self, ended: OpenEpoch) -> None:
        """Close after the last batch; UsageError if the source was closed before it."""
        is_cut = ended.source.closed
        if is_cut and not self._closed:
            self._cut_short()
            raise _make_cut_error(f"epoch {ended.epoch}")
        if not is_cut:
            self._tasks.end_epoch(ended.epoch)
            if ended.at_end is not None:
                ended.at_end()
        self.close()

    def _cut_short(self) -> None:
        """Close before the last batch, by an error that this thread raises."""
        self._told = {current_thread()}
        self.close()

    def _raise_end(self) -> NoReturn:
        """Raise StopIteration, or once in each thread the error of an epoch that was cut short."""
        _tell(self._told, "the epoch" if self._open is None else f"epoch {self._open.epoch}")
        raise StopIteration from None


def _tell(told: set[Thread] | None, epoch: str) -> None:
    """Raise UsageError in a thread that does not know that an epoch was cut short."""
    if told is not None and current_thread() not in told:
        told.add(current_thread())
        raise _make_cut_error(epoch) from None


def _make_cut_error(epoch: str) -> UsageError:
    what = f"the rest of {epoch} was dropped by an interrupt or a failed read"
    return UsageError(f"{what}: iterate again, or load a saved state")


class OpenIterators:
    """Iterators of a loader that have begun an epoch, held weakly. They may be listed by any thread
    while another adds one; only one adds at a time."""

    def __init__(self) -> None:
        self._references: tuple[weakref.ref[Any], ...] = ()

    def __iter__(self) -> Iterator[Any]:
        alive = (reference() for reference in self._references)
        return (iterator for iterator in alive if iterator is not None)

    def add(self, iterator: Any) -> None:
        others = [reference for reference in self._references if reference() is not None]
        self._references = (*others, weakref.ref(iterator))


def record_epoch(epoch: int, walked: Counters) -> dict[str, float]:
    """Return an epoch's record as JSON values, by which simulations are calibrated.

    walked:  counters from the start of the epoch until the user found it at its end.

    storage_bytes are all bytes that this rank read from storage: for batches, for its cache and for
    other ranks. The other three are bytes of batches.
    """
    engine = walked.engine
    return {
        "epoch": epoch,
        "steps": walked.batches,
        "seconds": 1e-9 * walked.time_ns,
        "stall_s": 1e-9 * walked.stall_ns,
        "compute_s": 1e-9 * walked.compute_ns,
        "storage_bytes": engine.get("bytes", 0),
        "ram_bytes": engine.get("ram_bytes", 0),
        "disk_bytes": engine.get("disk_bytes", 0),
        "peer_bytes": engine.get("peer_bytes", 0),
    }


class DeviceTransfer(Protocol):
    """A way to a device, of one iterator."""

    def check(self) -> None:
        """Raise UsageError if nothing may be moved now. Called before a batch is asked for."""
        ...

    def begin(self, batch: Any) -> Any:
        """Start to move a batch and return it in motion.

        The memory of `batch` may be reused as soon as this returns, unless the returned value holds
        it. The returned value may be dropped at any time, in any thread.
        """
        ...

    def hand_over(self, moving: Any) -> Any:
        """Return the batch on the device, complete for whatever the user does next with it."""
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
    """Source of the batches of another source, each starting to move one `take` before its own.

    finish:  makes of a batch what is moved.
    """

    def __init__(
        self, source: BatchSource, finish: Callable[[Any], Any] | None, transfer: DeviceTransfer
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

    def take(self, asked_ns: int, on_wait: Callable[[], object]) -> ReadyBatch | None:
        self._transfer.check()
        self._waited = asked_ns, 0, 0
        if self._ahead is None:  # the first, or the one after a batch that failed
            self._move_next(on_wait)
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return None
        if ahead.error is not None:
            try:
                raise ahead.error
            finally:
                del ahead  # its traceback holds this frame
        batch = self._transfer.hand_over(ahead.moving)
        self._move_next(on_wait)
        return batch, ahead.step, ahead.samples, *self._waited

    def skip(self) -> None:
        """Do nothing: a batch that failed was skipped when it failed."""

    def adopt(self, budget: Budget) -> None:
        self._source.adopt(budget)

    def close(self) -> None:
        self._ahead, self._is_ended = None, True
        self._source.close()

    def _move_next(self, on_wait: Callable[[], object]) -> None:
        """Ask for the next batch and start to move it; an error is kept for its turn."""
        if self._is_ended:
            return
        try:
            ready = self._source.take(time.perf_counter_ns(), on_wait)
        except Exception as error:
            self._source.skip()
            self._ahead = _Ahead(None, 0, 0, error)
            return
        if ready is None:
            self._is_ended = True
            return
        batch, step, samples, ready_ns, bytes_ns, decode_ns = ready
        self._waited = ready_ns, self._waited[1] + bytes_ns, self._waited[2] + decode_ns
        try:
            batch = batch if self._finish is None else self._finish(batch)
            self._ahead = _Ahead(self._transfer.begin(batch), step, samples)
        except Exception as error:
            self._ahead = _Ahead(None, step, samples, error)
