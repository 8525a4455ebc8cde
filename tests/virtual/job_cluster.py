"""Training jobs in the virtual cluster: attempts of worlds of any size, which go on from states.

Ranks take the steps of an epoch together, as ranks that exchange gradients do, and keep a state now
and then. An attempt ends with the job, or by a fault: a rank that is killed, storage that fails, a
sample that a checksum refuses. The next one, of other ranks on other hosts, goes on from the last
state. Ranks also leave an epoch and go back within an attempt, while reads are under way.

What is watched, besides what every rank watches: each global batch has the samples of its positions
in the order of the epoch, each once, in whichever attempt; after a state the step comes that
follows it; states of one place are equal on all ranks and in all worlds; in the end every epoch had
every sample once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from penstock.errors import PenstockError
from penstock.extent import Extents
from penstock.index import Field, Layout, RowTable
from penstock.loader.step_reader import StepReader, TicketRouter
from penstock.order import Order
from penstock.plan import Cursor, Ids, Locality, Session, StepPlan, Steps
from penstock.plan.cursor import Identity
from tests.virtual.cluster import VirtualCluster
from tests.virtual.job_rank import JobRank
from tests.virtual.job_scenario import JobScenario
from tests.virtual.node import ScenarioError, VirtualData, VirtualDisk, pad_bytes, require
from tests.virtual.rank import VirtualRank

_events_max = 200_000
"""Most events of an attempt; more are a loop that does not end."""


class JobParts(NamedTuple):
    """Shipped classes that a job drives, besides the cache's session."""

    steps: Any = Steps
    session: Any = Session
    cursor: Any = Cursor
    reader: Any = StepReader
    router: Any = TicketRouter


@dataclass(frozen=True, slots=True)
class JobResult:
    """Counts of a run: its virtual time, attempts, steps that were taken, and faults."""

    virtual_ns: int
    attempts: int
    steps: int
    failures: int


class JobSource:
    """Samples addressed by key, as `penstock.cache.key_index.Addressed` has them."""

    def __init__(self, data: VirtualData) -> None:
        count = len(data.fields)
        keys = np.arange(len(data.lengths)).reshape(-1, count)
        nowhere = np.zeros(len(keys), np.uint32)
        rows = [RowTable(nowhere, own, data.lengths[own]) for own in keys.T]
        self.fields = tuple(Field(f"field {k}", np.dtype(np.uint8), None) for k in range(count))
        self.layouts: tuple[Layout, ...] = tuple(rows)
        self.row_bytes = tuple(table.row_bytes for table in rows)
        self.mean_bytes = float(data.lengths.sum() / len(keys))
        self.files = self
        self._rows = rows

    def labels(self, samples: Ids) -> None:
        return None

    def units(self, units: Ids, field: int) -> tuple[Extents, None]:
        return self._rows[field].extents(units.view(np.int64)), None

    def where(self, sample: int, field: int) -> str:
        """Name the place of a sample."""
        return f"key {sample * len(self.fields) + field}"

    def path(self, file: int) -> str:
        """Name a file."""
        return f"file {file}"


@dataclass
class JobRecord:
    """Record of a job, kept from attempt to attempt.

    state:    the last one, from which the next attempt goes on.
    next:     epoch and step that follow it.
    batches:  samples of each global batch that was taken, by epoch and step.
    disks:    those of the last attempt, by the shape of its cluster.
    """

    state: dict[str, Any] | None = None
    next: tuple[int, int] = (0, 0)
    states: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)
    batches: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    disks: tuple[object, list[VirtualDisk]] = (None, [])
    steps: int = 0

    def note_state(self, place: tuple[int, int], state: dict[str, Any]) -> None:
        """Note the state after a step; those of all ranks, and of all attempts, are equal."""
        known = self.states.setdefault(place, state)
        require(state == known, f"the state after {place} is {state}, and was {known}")


class AttemptCluster(VirtualCluster):
    """The cluster of one attempt."""

    ranks: list[Any]

    def __init__(
        self,
        job: JobScenario,
        number: int,
        record: JobRecord,
        parts: JobParts,
        trace: Callable[[str], None] | None,
    ) -> None:
        self.job, self.record, self.parts = job, record, parts
        scenario = job.attempts[number]
        super().__init__(scenario, trace, rank_class=JobRank)
        self.readahead_bytes, self._reload_at = job.readahead_bytes[number], job.reload_at[number]
        self.source = JobSource(self.data)
        is_local = job.assignment == "local"
        self.steps = parts.steps(
            job.samples,
            job.global_batch,
            len(scenario.nodes),
            drop_last=job.drop_last,
            pad=job.pad,
            assignment=job.assignment,
            locality=Locality(self.placement, scenario.nodes) if is_local else None,
        )
        self.identity = Identity("data", "order", scenario.seed, job.global_batch)
        self.is_over = False
        self._ended = 0  # steps that all ranks have taken
        self._taken = [0] * len(scenario.nodes)  # since the ranks went back last
        self._batches: dict[tuple[int, int], dict[int, StepPlan]] = {}
        self._next = record.next
        self._adopt_disks()

    def _adopt_disks(self) -> None:
        """Find the disks of the attempt before, if it had the same cluster."""
        scenario = self.scenario
        tiers = scenario.ram_blocks, scenario.disk_blocks, scenario.cache_block, scenario.room
        shape = scenario.nodes, tiers
        known, disks = self.record.disks
        self._has_old_disks = known == shape
        if self._has_old_disks:
            for node, disk in zip(self.nodes, disks, strict=True):
                disk.claims, node.disk = node.disk.claims, disk
        self.record.disks = shape, [node.disk for node in self.nodes]

    def _measure_steps(self) -> int:
        """Most memory that one step or request may take for its cache blocks on a disk: if each of
        its samples, or of the keys that it is asked for, lies in another cache block."""
        rows = -(-self.job.global_batch // len(self.scenario.nodes))
        blocks = max(rows, super()._measure_steps() // self._largest_bytes)
        return (blocks + 1) * self._largest_bytes

    @property
    def _largest_bytes(self) -> int:
        scenario = self.scenario
        return pad_bytes(scenario.length_max * scenario.fields * scenario.cache_block)

    def run_attempt(self) -> None:
        """Run until the job or the attempt has ended; raise ScenarioError for what is wrong."""
        self.begin()
        while not self.is_over and self.queue.step():
            require(self.queue.made < _events_max, "the attempt does not end")
        if not self.is_over:
            for life in self.ranks:
                life.check_end()
            if self.scenario.is_calm and not self._has_old_disks:
                self._check_loads()
        if self._lied:  # disks keep what storage said; whoever got a checksum's error removes them
            self.record.disks = (None, [])

    @property
    def is_finished(self) -> bool:
        """True if all ranks have taken all steps."""
        return all(life.is_done for life in self.ranks)

    def end_attempt(self, why: str) -> None:
        """End the attempt: what is under way is lost."""
        if self.trace is not None and not self.is_over:
            self.trace(f"the attempt ends: {why}")
        self.is_over = True

    def end_life(self, life: VirtualRank) -> None:
        """End a rank that is killed, and soon the others."""
        super().end_life(life)
        delay_ns = int(self.job.train_ns * self.draw.choice((0, 1, 100)))
        self.queue.add_in(delay_ns, lambda: self.end_attempt(f"rank {life.rank} was killed"))

    def _restart(self, life: VirtualRank) -> None:
        """Leave it ended: the next attempt has ranks of its own."""

    # -- steps ---------------------------------------------------------------------------------

    def may_take(self, rank: int) -> bool:
        """Tell whether all ranks have taken the steps before the next one of this rank."""
        return min(self._taken) == self._taken[rank]

    def note_taken(self, rank: int, epoch: int, plan: StepPlan, state: dict[str, Any]) -> None:
        """Note that a rank has taken a step, and its state after it."""
        place = epoch, plan.step
        batch = self._batches.setdefault(place, {})
        require(rank not in batch, f"rank {rank} takes step {plan.step} of epoch {epoch} twice")
        batch[rank] = plan
        self._taken[rank] += 1
        self.record.note_state(place, state)
        if len(batch) < len(self._taken):
            return
        require(place == self._next, f"{self._next} comes next, and {place} is taken")
        self._check_batch(place, list(self._batches.pop(place).values()))
        is_last = plan.step == len(self.steps) - 1
        self._next = (epoch + 1, 0) if is_last else (epoch, plan.step + 1)
        self.record.steps += 1
        self._ended += 1
        if self._ended % self.job.save_every == 0:
            self.record.state, self.record.next = state, self._next
        if self._ended == self._reload_at:
            self._next, self._taken = self.record.next, [0] * len(self._taken)
            for life in self.ranks:
                life.reload(self.record.state)
        for life in self.ranks:
            life.begin_steps()

    def _check_batch(self, place: tuple[int, int], plans: list[StepPlan]) -> None:
        """Check the samples of a global batch against the order of the epoch."""
        job, (epoch, step) = self.job, place
        order = Order(job.samples, self.scenario.seed, epoch)
        first = step * job.global_batch
        positions = np.arange(first, min(job.samples, first + job.global_batch))
        wanted = sorted(order.samples(positions).tolist())
        own = [plan.ids[: len(plan.ids) - plan.repeats].tolist() for plan in plans]
        taken = sorted(sample for ids in own for sample in ids)
        where = f"step {step} of epoch {epoch}"
        require(taken == wanted, f"{where} has samples {taken}, not {wanted}")
        sizes = [len(plan.ids) for plan in plans]
        spread = 0 if job.pad and step >= self.steps.full else 1
        require(max(sizes) - min(sizes) <= spread, f"{where} is dealt in parts of {sizes}")
        repeated = sorted(
            sample for plan in plans for sample in plan.ids[len(plan.ids) - plan.repeats :].tolist()
        )
        filling = sorted(order.samples(np.arange(len(repeated)) % job.samples).tolist())
        require(repeated == filling, f"{where} is filled with samples {repeated}, not {filling}")
        known = self.record.batches.setdefault(place, taken)
        require(known == taken, f"{where} has samples {taken}, and had {known}")

    def check_job(self) -> None:
        """Check that every epoch had every sample once, but for those that are dropped."""
        require(self.is_finished, "a rank waits for steps, and nothing happens any more")
        job = self.job
        count = job.samples
        if job.drop_last:
            count -= count % job.global_batch
        for epoch in range(job.epochs):
            places = [(epoch, step) for step in range(len(self.steps))]
            seen = [sample for place in places for sample in self.record.batches.get(place, [])]
            require(len(set(seen)) == len(seen) == count, f"epoch {epoch} has samples {seen}")


def run_job_scenario(
    scenario: JobScenario,
    trace: Callable[[str], None] | None = None,
    parts: JobParts = JobParts(),  # noqa: B008
) -> JobResult:
    """Run a job; raise ScenarioError if something shipped does something wrong."""
    record = JobRecord()
    virtual_ns = failures = attempts = 0
    try:
        for number in range(len(scenario.attempts)):
            cluster = AttemptCluster(scenario, number, record, parts, trace)
            cluster.run_attempt()
            attempts += 1
            virtual_ns += cluster.queue.now_ns
            failures += cluster.failures + cluster.is_over
            if not cluster.is_over:
                break
        cluster.check_job()
    except ScenarioError:
        raise
    except (PenstockError, AssertionError, LookupError, ValueError, TypeError) as error:
        raise ScenarioError(f"{type(error).__name__}: {error}") from error
    return JobResult(virtual_ns, attempts, record.steps, failures)
