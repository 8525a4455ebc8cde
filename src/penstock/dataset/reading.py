"""Reading of given samples: one step at a time, with an engine for this reader alone."""

from __future__ import annotations

import errno
from typing import Any

import numpy as np

from .. import limits
from ..budget import Budget
from ..engine.native import Arena
from ..engine.open import open_engine
from ..engine.protocol import Buffer, Failure, ReadingEngine, ReadMethod
from ..engine.store import build_changed_error, build_storage_error
from ..errors import PenstockError
from ..index import codecs
from ..index.table import Index
from ..order.order import Marks
from ..plan.batch_layout import Ids, PlanSource
from ..plan.steps import Group, StepPlan, plan_samples
from .fields import build_fields

_poll_ns = 100_000_000


class FieldReader:
    """Reader of the fields of given samples. Engine and memory are taken at the first step."""

    def __init__(self, index: Index, budget: Budget | None = None) -> None:
        self.index = index
        self.arena = Arena(0)
        self._budget = budget or Budget()
        self._engine: ReadingEngine | None = None

    def read(self, ids: Ids) -> dict[str, Any]:
        """Return the fields of these samples, in this order."""
        planned, buffer = self.read_step(ids)
        return build_fields(self.index, planned, buffer)

    def read_step(
        self,
        ids: Ids,
        *,
        step: int = 0,
        repeats: int = 0,
        marks: Marks | None = None,
        source: PlanSource | None = None,
    ) -> tuple[StepPlan, Buffer]:
        """Read these samples. Return the plan that locates their fields, and the bytes.

        source:  plans the reads, in place of the index.
        """
        index, engine = self.index, self._open_engine()
        bounds = np.array([0, len(ids)], np.int64)
        gap_bytes = choose_gap(index, engine.choice)
        (group,) = plan_samples(source or index, ids, bounds, step, gap_bytes, repeats, marks)
        (planned,) = group.steps
        buffer = self.arena.take(planned.layout.bytes)
        ticket = engine.submit(planned.requests, [buffer], "demand")
        failures = None
        while failures is None:  # reports of interrupted reads are ignored
            failures = dict(engine.poll(_poll_ns)).get(ticket)
        if failures:
            raise describe_failure(index, planned, group, failures[0])[1]
        return planned, buffer

    def close(self) -> None:
        """End the engine's threads; the next step starts them again."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _open_engine(self) -> ReadingEngine:
        if self._engine is None:
            share_memory(self.arena, self.index, self._budget)
            self._engine = open_engine(self.index.files, self._budget, self.index.mean_bytes)
        return self._engine


def choose_gap(index: Index, choice: ReadMethod) -> int | None:
    """Return the bytes that may be between two extents that are read together.

    None merges nothing: extents of a memory map cost the same in any sequence, and a
    file that holds one sample has no neighbours.
    """
    alone = len(index.files) >= index.count * len(index.fields)
    return None if choice.backend == "mmap" or alone else choice.gap_bytes


def share_memory(arena: Arena, index: Index, budget: Budget, engine_bytes: int = 0) -> None:
    """Divide the memory of a budget: half of it may keep decoded chunks, where there are such.

    engine_bytes:  of the budget, for buffers of the engine's own.
    """
    coded = any(field.codec is not None for field in index.fields)
    kept = min(limits.decoded_chunks_bytes_max, budget.readahead_bytes // 2) if coded else 0
    arena.limit(budget.readahead_bytes - kept - engine_bytes)
    if coded:
        codecs.RECENT.share(arena, kept)


def describe_failure(
    index: Index, planned: StepPlan, group: Group, failure: Failure
) -> tuple[int, PenstockError]:
    """Return the step whose bytes are missing, and the error that names sample and cause."""
    extent, code, got = failure
    requests = planned.requests
    owner = group.steps[planned.step - group.steps[0].step + int(requests.buffer[extent])]
    target = int(requests.target[extent])
    row, field = owner.layout.find(target)
    sample = int(owner.ids[row])
    where = f"step {owner.step}, sample {sample:,}: {index.where(sample, field)}"
    path = index.files.path(int(requests.file[extent]))
    if code == errno.ESTALE:
        return owner.step, build_changed_error(
            where, f"{path} is of another size or modification time"
        )
    if code == 0:
        wanted = int(requests.length[extent])
        return owner.step, build_changed_error(
            where, f"{path} was cut short: {got:,} of {wanted:,} bytes read"
        )
    return owner.step, build_storage_error(code, path, f" ({where})")
