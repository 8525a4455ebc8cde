"""A rank of a virtual training job: it drives the shipped reader of steps over a virtual cluster.

The rank is the loader of its process, and the training loop. `penstock.loader.StepReader` asks for
the steps that `penstock.plan.Session` admits, and a `TicketRouter` brings it the reports of the
cache; the cursor says where the rank is. Nothing of them waits: the rank calls them when something
has come.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.engine import Arena, Completion, Failure, Purpose
from penstock.errors import PenstockError
from penstock.extent import Requests
from penstock.loader.step_reader import ReadResources
from penstock.meter import Meter
from penstock.order import Order
from penstock.plan import StepPlan, cache_actions
from penstock.plan.batch_layout import FieldRows
from tests.virtual.node import Buffer, require
from tests.virtual.rank import SubmittedStep, VirtualRank

if TYPE_CHECKING:
    from tests.virtual.job_cluster import AttemptCluster


class _ReportQueue:
    """The engine as a router sees it: it gives the reports that have come."""

    def __init__(self) -> None:
        self._reports: list[Completion] = []

    def put(self, report: Completion) -> None:
        self._reports.append(report)

    def poll(self, timeout_ns: int) -> list[Completion]:
        """Give all reports, and wait for none."""
        reports, self._reports = self._reports, []
        return reports


class JobRank(VirtualRank):
    """A rank of an attempt."""

    _cluster: AttemptCluster

    def __init__(self, cluster: AttemptCluster, rank: int, first_step: int, kill_at: int) -> None:
        super().__init__(cluster, rank, first_step, kill_at)
        job, parts = cluster.job, cluster.parts
        self._readahead_bytes = self._readahead_bytes_max = cluster.readahead_bytes
        self.cursor: Any = parts.cursor(cluster.identity, len(cluster.steps))
        if cluster.record.state is not None:
            self.cursor.restore(cluster.record.state, len(cluster.scenario.nodes))
        self._engine = _ReportQueue()
        self._router: Any = parts.router(self._engine)
        self._arena = Arena(4 * cluster.readahead_bytes)
        resources: Any = (cluster.source, self._engine, self._router, self._arena, Meter())
        self._resources = ReadResources(*resources)
        self._reader: Any = None
        self._held: dict[int, int] = {}  # bytes of the steps that were asked for, by step
        self._batch: tuple[Buffer, bytes] | None = None  # that is trained on, and its bytes
        self.is_finished = self.cursor.peek()[0] >= job.epochs

    @property
    def is_done(self) -> bool:
        """True if all epochs have ended."""
        return self.is_finished and not self.steps

    def begin_steps(self) -> None:
        """Go on at the next turn."""
        self.post("walk", 0, self._walk)

    # -- the training loop ---------------------------------------------------------------------

    def _walk(self) -> None:
        """Ask for steps, and take the next one if it is there and the other ranks are as far."""
        while not (self.is_finished or self._batch or self._cluster.is_over):
            if self._reader is None:
                self._open_epoch()
            self._ask_ahead()
            head = self._reader.ask()
            if head is None:
                self._leave_epoch()
                self.is_finished = self.cursor.peek()[0] >= self._cluster.job.epochs
                continue
            has_come = self._reader.session.reached > head.step
            if not has_come or not self._cluster.may_take(self.rank):
                return
            try:
                buffer = self._reader.wait(head)
            except PenstockError as error:
                self._cluster.end_attempt(f"rank {self.rank}: {error}")
                return
            self._take(head, buffer)

    def _open_epoch(self) -> None:
        cluster, scenario = self._cluster, self._cluster.scenario
        self._epoch, step = self.cursor.begin()
        session = cluster.parts.session(
            cluster.source,
            Order(scenario.samples, scenario.seed, self._epoch),
            cluster.steps,
            self.rank,
            first_step=step,
            readahead_bytes=self._readahead_bytes,
            readahead_steps=scenario.ahead,
        )
        self._reader = cluster.parts.reader(self._resources, session, self._epoch, self._submit)

    def _ask_ahead(self) -> None:
        """Take the reports that have come, and ask for the steps that the session admits. Check the
        bytes that are held for them."""
        self._router.wait(lambda: False)
        for plan in self._reader.advance():
            self._held[plan.step] = plan.layout.bytes
        held_bytes = sum(self._held.values())
        is_bounded = held_bytes <= self._readahead_bytes_max or len(self._held) == 1
        require(is_bounded, f"{held_bytes} bytes are read ahead")
        require(len(self._held) <= self._cluster.scenario.ahead, "too many steps are read ahead")

    def _leave_epoch(self) -> None:
        self._reader.close()
        self._reader = None
        self._held.clear()

    def _take(self, head: StepPlan, buffer: Buffer) -> None:
        """Take a step, and train on it."""
        cluster = self._cluster
        self.say(f"takes step {head.step} of epoch {self._epoch}: {head.ids.tolist()}")
        is_whole = self._check_batch(head, buffer)
        self._reader.hand_over()
        del self._held[head.step]
        self.cursor.move(self._epoch, head.step + 1)
        if not is_whole:
            cluster.end_attempt(f"rank {self.rank}: a sample fails its checksum")
            return
        state = json.loads(json.dumps(self.cursor.state()))
        self._batch = buffer, buffer.tobytes()
        cluster.note_taken(self.rank, self._epoch, head, state)
        train_ns = int(cluster.job.train_ns * self._draw.expovariate(1))
        self._queue.add_in(train_ns, lambda: self.post("train", head.step, self._end_training))

    def _end_training(self) -> None:
        if self._batch is not None:  # else the rank has gone back meanwhile
            buffer, before = self._batch
            require(buffer.tobytes() == before, "a batch is written to while it is trained on")
        self._batch = None
        self._walk()

    def _check_batch(self, head: StepPlan, buffer: Buffer) -> bool:
        """Check the bytes of a batch; False if the container's checksum refuses a sample."""
        cluster, fields = self._cluster, self._cluster.scenario.fields
        where = f"step {head.step} of epoch {self._epoch}: "
        is_whole = True
        for number, places in enumerate(head.layout.fields):
            assert isinstance(places, FieldRows)
            for row, sample in enumerate(head.ids.tolist()):
                width = places.row_bytes
                if places.bounds is None:
                    first, end = row * width, (row + 1) * width
                else:
                    first, end = places.bounds[row : row + 2].tolist()
                key = sample * fields + number
                found = buffer[places.base + first : places.base + end]
                cluster.check_bytes(key, found.tobytes(), where)
                is_whole &= cluster.data.is_whole(key, np.ascontiguousarray(found))
        return is_whole

    def reload(self, state: dict[str, Any] | None) -> None:
        """Leave the epoch, and go on from a state; from the start if there is none yet. What was
        asked for is still under way."""
        self.say("goes back to the last state")
        if self._reader is not None:
            self._leave_epoch()
        if state is None:
            self.cursor.set_epoch(0)
        else:
            self.cursor.restore(state, len(self._cluster.scenario.nodes))
        self._batch, self.is_finished = None, False
        self.begin_steps()

    # -- the engine ----------------------------------------------------------------------------

    def _submit(self, requests: Requests, buffers: Sequence[Buffer], purpose: Purpose) -> int:
        """Ask the cache for a step."""
        for buffer in buffers:
            buffer[:] = 0xEE
        uses = self._draw.random() < 0.9 and self._cluster.scenario.replicas > 0
        ticket, self._tickets = self._tickets, self._tickets + 1
        step = SubmittedStep(ticket, requests, list(buffers), self._queue.now_ns, uses)
        self.steps[ticket] = step
        self.post("request", ticket, partial(self._request, ticket, step))
        return ticket

    def report(self, action: cache_actions.ReportStep) -> None:
        require(action.ticket in self.steps, f"step {action.ticket} is reported twice")
        step = self.steps.pop(action.ticket)
        self._check_failures(step, action.failures)
        self._check_bytes(step, {failure.row for failure in action.failures})
        self._cluster.delivered += len(step.requests.offset)
        failures = tuple(Failure(*failure) for failure in action.failures)
        self._engine.put(Completion(action.ticket, failures))
        self.begin_steps()

    def adopt(self, budget_bytes: int) -> None:
        """Change the budget of the cache and of reading ahead."""
        super().adopt(budget_bytes)
        self._readahead_bytes = budget_bytes
        self._readahead_bytes_max = max(self._readahead_bytes_max, budget_bytes)
        if self._reader is not None:
            self._reader.session.readahead_bytes = budget_bytes

    def check_end(self) -> None:
        """Check what `VirtualRank.check_end` does, and that no memory of batches is left."""
        super().check_end()
        self._router.wait(lambda: False)
        require(self._router.is_idle, "a report is expected in the end")
        require(self._arena.lent_bytes == 0, "memory of batches is not freed in the end")
