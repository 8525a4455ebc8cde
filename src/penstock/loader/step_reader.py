"""The reader of an epoch's steps: a session of the plan, driven over the engine of a loader."""

from __future__ import annotations

import operator
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from ..budget import Budget
from ..dataset.fields import build_fields
from ..dataset.kept_chunks import KeptChunks, MissingPieceError
from ..dataset.sample import FieldReader, describe_failure
from ..engine import threads
from ..engine.native import Arena
from ..engine.protocol import Buffer, Engine, Failure, ReadingEngine
from ..engine.request_queue import Purpose
from ..errors import ForkError, PenstockError, UsageError
from ..extent import Requests
from ..index.table import Index
from ..meter import Meter, Requested
from ..plan.readahead import Session
from ..plan.steps import Group, StepPlan
from .workers import make_timeout_error

_count_step_bytes = operator.attrgetter("layout.bytes")
Submit = Callable[[Requests, Sequence[Buffer], Purpose], int]
"""Hand requests to an engine and return their ticket: `Engine.submit`, or one that knows more."""


@dataclass(frozen=True, slots=True)
class ReadResources:
    """Resources of a loader that outlive its epochs, shared by the iterators of all of them."""

    index: Index
    engine: ReadingEngine
    router: TicketRouter
    arena: Arena
    meter: Meter


class StepReader:
    """Reader of the steps of one epoch, in order, ahead of the one that is asked for.

    The session says which extents to read; the reader submits them and waits for them. Steps may
    be waited for in several threads.

    timeout_s:  most time that a wait with `on_wait` may last; None is for ever.
    kept:       what is kept of decoded chunks, if the session plans that.
    """

    def __init__(
        self,
        resources: ReadResources,
        session: Session,
        epoch: int,
        submit: Submit,
        timeout_s: float | None = None,
        kept: KeptChunks | None = None,
    ) -> None:
        self.resources = resources
        self._kept = kept
        self._again: FieldReader | None = None
        self.session = session
        self.epoch = epoch
        self._submit = submit
        self._timeout_s = timeout_s
        self._deadline_s: float | None = None  # of the batch that the user waits for
        self._asked = -1  # the step that the user asked for last
        self._buffers: dict[int, Buffer] = {}  # by step: requested and not handed over
        self._faults: dict[int, PenstockError] = {}  # by step: raised when its turn comes
        self.reserved_bytes = 0  # not to be used for reading ahead: decoding will need them
        self._plan_fault: Exception | None = None  # of the step after those requested
        self.closed = False
        """True if nothing more will come."""
        self._pid, self._forks = os.getpid(), threads.forks
        self._reference = weakref.ref(self)
        resources.router.add(self)

    def ask(self) -> StepPlan | None:
        """Return the step that the user asks for now, None after the last. Raises ForkError."""
        if self._forks != threads.forks:
            raise make_fork_error(self._pid)
        requested = self.session.requested
        if self._plan_fault is not None and not requested:
            fault, self._plan_fault = self._plan_fault, None
            self.close()
            raise fault
        if self.closed or (not requested and self.session.finished):
            return None
        if self._timeout_s is not None:
            self._deadline_s = time.monotonic() + self._timeout_s
        head = requested[0]
        self._asked = head.step
        return head

    def advance(self) -> list[StepPlan]:
        """Submit the steps that the session admits, and return them."""
        resources, session = self.resources, self.session
        router, arena, timeline = resources.router, resources.arena, resources.meter.timeline
        admitted: list[StepPlan] = []

        def has_memory(group: Group) -> bool:
            sizes = list(map(_count_step_bytes, group.steps))
            return arena.has_room(sizes, self.reserved_bytes)

        with router.lock:
            groups = session.admit(has_memory)
            while self._plan_fault is None:
                try:
                    group = next(groups, None)
                except Exception as fault:  # raised when the steps before it are handed over
                    self._plan_fault = fault
                    break
                if group is None:
                    break
                buffers = list(map(arena.take, map(_count_step_bytes, group.steps)))
                for number, planned in enumerate(group.steps):
                    is_urgent = planned is session.requested[0]  # the user waits for it now
                    purpose: Purpose = "demand" if is_urgent else "prefetch"
                    # An engine holds the buffers of a ticket until its end. The buffers of earlier
                    # steps, which this one does not write to, may be the user's by then.
                    ticket = self._submit(planned.requests, buffers[number:], purpose)
                    router.tickets[ticket] = self._reference, (planned, group)
                    self._buffers[planned.step] = buffers[number]
                    if timeline is not None:
                        runs = len(planned.requests.runs) - 1
                        what = Requested(ticket, planned.layout.bytes, runs)
                        timeline.record_request(self.epoch, planned.step, what)
                admitted.extend(group.steps)
        return admitted

    def wait(self, planned: StepPlan, on_wait: Callable[[], object] | None = None) -> Buffer:
        """Wait until a step is in its buffer, and return the buffer.

        on_wait:  called now and then while the user waits.

        Raises the error that kept its bytes from arriving.
        """
        step = planned.step
        if self.session.reached <= step:

            def has_arrived() -> bool:
                return self.closed or self.session.reached > step

            self.resources.router.wait(has_arrived)
            while not has_arrived():
                if on_wait is not None:
                    on_wait()
                    self.check_deadline()
                self.resources.router.wait(has_arrived)
        if step in self._faults:
            raise self._faults[step]
        if self.closed:
            raise UsageError("the iterator was closed")
        return self._buffers[step]

    def turn(self, planned: StepPlan) -> AbstractContextManager[None]:
        """Return the turn in which a step waits for its bytes and is built."""
        return nullcontext() if self._kept is None else self._kept.turn(planned)

    def build(
        self,
        planned: StepPlan,
        buffer: Buffer,
        take: Callable[[int], Buffer] | None = None,
    ) -> dict[str, Any]:
        """Build the fields of a step that is in its buffer.

        take:  takes memory of a size, for windows.
        """
        index = self.resources.index
        try:
            return build_fields(index, planned, buffer, self._kept, take)
        except MissingPieceError:
            pass
        if self._again is None:
            self._again = FieldReader(index, Budget(decoded_bytes=0))
        planned, buffer = self._again.read_step(
            planned.ids, step=planned.step, repeats=planned.repeats, marks=planned.marks
        )
        return build_fields(index, planned, buffer)

    def check_deadline(self) -> None:
        """Raise the error of a batch that has not come in time, if that time has passed."""
        if self._deadline_s is not None and time.monotonic() > self._deadline_s:
            raise make_timeout_error(self._timeout_s)

    def hand_over(self) -> None:
        """Give up the head, after its arrival."""
        resources = self.resources
        with resources.router.lock:
            head = self.session.hand_over()
            resources.arena.hand_over(self._buffers.pop(head.step))
        # An error refers to this reader by its traceback: only the collector would end the loader.
        self._faults.pop(head.step, None)

    def skip(self) -> bool:
        """Give up the step that was asked for last, whose bytes or samples failed.

        Returns False if there is nothing to give up: it was handed over already; or it has not even
        arrived, so that the reader cannot go on and is closed.
        """
        if self.closed:
            return False
        if self._forks != threads.forks:  # the thread that holds the lock may not exist here
            self.close()
            return False
        with self.resources.router.lock:
            if self.session.finished or self.session.head.step != self._asked:
                return False
            if self.closed or self.session.reached <= self._asked:
                self.close()
                return False
        self.hand_over()
        return True

    def report(self, key: tuple[StepPlan, Group], failures: Sequence[Failure]) -> None:
        """Record that the requests of a step have completed; called by the router."""
        planned, group = key
        for failure in failures:
            step, fault = describe_failure(self.resources.index, planned, group, failure)
            self._faults.setdefault(step, fault)
        self.session.record_arrival(planned.step)
        if (timeline := self.resources.meter.timeline) is not None:
            timeline.record_arrival(self.epoch, planned.step)

    def close(self) -> None:
        """Stop here. The engine finishes the reads in flight, and their bytes are dropped."""
        # Without the lock: destructors call this, in whatever a thread is doing.
        self.closed = True
        if self._kept is not None:
            self._kept.closed = True
        self._buffers.clear()
        self._faults.clear()
        if self._again is not None:
            self._again.close()


def make_fork_error(pid: int) -> ForkError:
    """Return the error for a loader that was used in another process before a fork."""
    return ForkError(
        f"this loader was used in process {pid} and then forked: its threads do not "
        "exist here. Create the loader in the child, or start processes by 'spawn'"
    )


poll_ns = 100_000_000
"""Time in which Ctrl-C, a passed deadline or a changed lease is noticed while storage is read."""


_nobody: tuple[Callable[[], StepReader | None], Any] = (lambda: None, None)


class TicketRouter:
    """Router of one engine's reports to the readers that wait for them.

    A reader is held weakly: no report keeps one alive. It is called with the lock held: `report`
    with the key of each of its tickets, `close` where reports may have been lost.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.lock = threading.Lock()
        self._turn = threading.Lock()
        self._sleepers: list[threading.Lock] = []
        self.tickets: dict[int, tuple[weakref.ref[StepReader], Any]] = {}
        """Reader and key of each expected report; added with the lock held since `submit`."""
        self._readers: weakref.WeakSet[StepReader] = weakref.WeakSet()

    @property
    def is_idle(self) -> bool:
        """True if no report is expected."""
        return not self.tickets

    def add(self, reader: StepReader) -> None:
        """Add a reader that will expect tickets."""
        with self.lock:
            self._readers.add(reader)

    def wait(self, has_arrived: Callable[[], bool]) -> None:
        """Wait a while for reports, unless `has_arrived()`; it is called with the lock held.

        Raises the exceptions of the engine. Then, and after an interrupt, reports may be lost, and
        every reader is closed.
        """
        sleeper = None
        with self.lock:
            if has_arrived():
                return
            if self._turn.locked():
                sleeper = threading.Lock()
                sleeper.acquire()
                self._sleepers.append(sleeper)
        if sleeper is not None:
            sleeper.acquire(timeout=poll_ns * 1e-9)
            return
        try:
            with self._turn:
                self._poll(has_arrived)
        finally:
            with self.lock:
                sleepers, self._sleepers = self._sleepers, []
            for sleeper in sleepers:
                sleeper.release()

    def _poll(self, has_arrived: Callable[[], bool]) -> None:
        with self.lock:
            if has_arrived():  # another thread has polled since
                return
        try:
            completions = self._engine.poll(poll_ns)
            with self.lock:
                for ticket, failures in completions:
                    # Tickets from before an interrupt belong to nobody.
                    find_reader, key = self.tickets.pop(ticket, _nobody)
                    if (reader := find_reader()) is not None:
                        reader.report(key, failures)
        except BaseException:
            with self.lock:
                self.tickets.clear()
                for reader in list(self._readers):
                    reader.close()
            raise
