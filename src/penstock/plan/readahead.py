"""Read-ahead: the session, one rank's walk through one epoch, as a pure state machine.

The session decides which reads to request next and which step may be handed over. It reads nothing,
waits for nothing and knows no clock. The loader drives it over the real engine; a simulator may
drive it over a modelled one.

Theory of operation. A step goes through

    planned -> requested -> handed

`admit()` moves the next steps from planned to requested, in order, while the budget allows, and
yields them group by group; the driver submits their requests. `record_arrival(step)` records that a
step's own requests have completed. A step is in place when it and all steps before it have arrived
(`step < reached`): a merged read belongs to the earliest step that wants it, so a step may depend
on earlier ones, never on later ones. `hand_over()` takes the head, once it is in place.

Invariants: steps are handed in order, each once; the bytes requested and not yet handed stay within
`readahead_bytes` (one group is always admitted, or nothing would move, and a group larger than that
is one step); until the first hand-overs only few steps are admitted, and a large one alone, so that
the first batch does not wait for memory and bandwidth that later ones need. What was planned for a
larger budget is planned again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from .. import limits
from ..extent import Int
from ..order.order import Ordering
from .batch_layout import Ids, PlanSource
from .chunk_plan import ChunkPlan
from .steps import Group, StepPlan, Steps, plan_steps


class Session:
    """The walk of `rank` through the steps from `first_step` on.

    gap_bytes: see `plan_steps`; None if reads are not worth merging.
    row_bytes: mean bytes of a row of a batch; by default a sample's.
    memory:    of decoded chunks of windows, and what is in it; without it each step reads and
               decodes all that it needs.
    """

    def __init__(
        self,
        index: PlanSource,
        order: Ordering,
        steps: Steps,
        rank: int,
        *,
        first_step: int = 0,
        readahead_bytes: int = limits.readahead_bytes_default,
        readahead_steps: int = limits.readahead_steps_max,
        gap_bytes: int | None = None,
        row_bytes: float | None = None,
        memory: tuple[int, dict[int, list[int]]] | None = None,
    ) -> None:
        self._row_bytes = index.mean_bytes if row_bytes is None else row_bytes
        self._index = index
        self._order = order
        self._steps = steps
        self._rank = rank
        self.readahead_bytes = readahead_bytes
        self._readahead_steps = readahead_steps
        self._gap_bytes = gap_bytes
        self._next_planned = first_step
        self._window = 1
        self._planned: deque[Group] = deque()
        self.requested: deque[StepPlan] = deque()
        """Steps that were admitted and not handed over."""
        self._arrived: set[int] = set()  # from `reached` on
        self.reached = first_step
        """First step that is not in place; every step below it is in place or handed over."""
        self._requested_bytes = 0
        self._handed = 0
        self._chunk_plan: ChunkPlan | None = None
        if memory is not None:
            self._chunk_plan = ChunkPlan(
                index.fields, index.layouts, self._list_samples, first_step, len(steps), *memory
            )

    def adopt(self, decoded_bytes: int) -> None:
        """Adopt other memory for decoded chunks."""
        if self._chunk_plan is not None:
            self._chunk_plan.adopt(decoded_bytes)

    def estimate_decodes(self, steps_max: int, chunks: float) -> float:
        """Estimate the decodes of each of so many chunks of windows in an epoch, by those that the
        second half of the first steps decodes once more."""
        assert self._chunk_plan is not None
        planned, again = min(steps_max, len(self._steps)), 0
        decoded: set[tuple[int, int]] = set()
        for step in range(planned):
            for work in self._chunk_plan.decide(step).values():
                reads = {(work.array, chunk) for chunk in work.reads}
                again += len(reads & decoded) if step >= planned // 2 else 0
                decoded |= reads
        return 1 + again / (planned - planned // 2) * len(self._steps) / chunks

    def _list_samples(self, first: int, last: int) -> tuple[Ids, Int]:
        positions, bounds, _ = self._steps.positions(first, last, self._rank, self._order)
        return self._order.rows(positions)[0], bounds

    @property
    def finished(self) -> bool:
        """True if every step has been handed over."""
        return not self.requested and not self._planned and not self._has_step(self._next_planned)

    @property
    def head(self) -> StepPlan:
        """The step to be handed over next. Valid only between `admit` and `finished`."""
        return self.requested[0]

    def admit(self, has_memory: Callable[[Group], bool] = lambda _: True) -> Iterator[Group]:
        """Admit and yield the groups that fit the budget, to be submitted in order.

        has_memory:  predicate of a group whose steps may be requested besides what is held now;
                     asked before each group but the one that is always admitted.
        """
        requested = self.requested
        while True:
            if not self._planned:
                self._plan(self._next_planned, self._window_steps())
                if not self._planned:
                    break
            group = self._planned[0]
            if group.bytes > self.readahead_bytes and len(group.steps) > 1:
                # It was planned for a larger budget, or its samples are larger than the mean.
                self._plan(group.steps[0].step, len(group.steps) // 2)
                continue
            if requested:
                steps = len(requested) + len(group.steps)
                if not (
                    self._requested_bytes + group.bytes <= self.readahead_bytes
                    and steps <= self._readahead_steps
                    and steps <= 2 * self._handed + (1 if group.bytes > limits.alone_bytes else 2)
                    and has_memory(group)
                ):
                    break
            self._planned.popleft()
            requested.extend(group.steps)
            self._requested_bytes += group.bytes
            yield group

    def record_arrival(self, step: int) -> None:
        """Record that the requests of a step have completed."""
        self._arrived.add(step)
        while self.reached in self._arrived:
            self._arrived.remove(self.reached)
            self.reached += 1

    def hand_over(self) -> StepPlan:
        """Take the head, once it is in place."""
        head = self.requested.popleft()
        assert head.step < self.reached, "the head is not in place"
        self._requested_bytes -= head.layout.bytes
        self._handed += 1
        if self._chunk_plan is not None:
            self._chunk_plan.forget(head.step)
        return head

    def _has_step(self, step: int) -> bool:
        self._steps = self._steps.extend(step + 1)
        return step < len(self._steps)

    def _plan(self, first: int, count: int) -> None:
        """Plan steps from `first` on, in place of all that is planned."""
        try:
            self._steps = self._steps.extend(first + count)
        except Exception:  # of rows beyond the first step, perhaps: the steps before these come
            count = 1
            self._steps = self._steps.extend(first + 1)
        last = min(len(self._steps), first + count)
        if first < last:
            groups = plan_steps(
                self._index,
                self._order,
                self._steps,
                self._rank,
                first,
                last,
                self._gap_bytes,
                self._chunk_plan,
            )
            self._planned = deque(groups)
            self._next_planned = last

    def _window_steps(self) -> int:
        """Choose the number of steps in the next window.

        They are few at first, then as many as numpy needs to be cheap. Merged windows also have to
        fit into the read-ahead twice, so that they overlap.
        """
        bound = self._steps.window(self._rank)
        if self._gap_bytes is not None:
            rows = max(1, self._steps.rows(0, self._rank))
            step_bytes = max(1, int(self._row_bytes * rows))
            bound = max(
                1, min(bound, self._readahead_steps // 2, self.readahead_bytes // 2 // step_bytes)
            )
        window = min(self._window, bound)
        self._window = min(2 * window, limits.window_steps_max)
        return window
