"""Samples: read by their numbers, and opened as `decode` takes them.

A sample is a dict of fields with random numbers of its own. `FieldReader` reads the samples of one
step at a time, with an engine for itself.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from .. import limits
from ..budget import Budget
from ..engine.native import Arena
from ..engine.open import open_engine
from ..engine.protocol import Buffer, Failure, ReadingEngine, ReadMethod
from ..engine.store import build_changed_error, build_storage_error
from ..errors import PenstockError, UsageError
from ..index import codecs
from ..index.fields import Field
from ..index.table import Index
from ..order.augmentation import rng
from ..order.order import Marks
from ..plan.batch_layout import Ids, PlanSource
from ..plan.steps import Group, StepPlan, plan_samples
from .fields import Ragged, build_fields, describe_row

Decode = Callable[[dict[str, Any]], Any]

_Decoding = TypeVar("_Decoding", bound=Decode)


def takes_views(decode: _Decoding) -> _Decoding:
    """Mark a `decode` function that takes raw fields as memoryviews; for use as a decorator.

    It saves the copy into `bytes`; that counts for samples of 1 MiB and more. A view is valid while
    `decode` runs: its memory is used again.
    """
    if not callable(decode):
        raise UsageError(f"decode is {decode!r:.100}: give a function of a sample")
    decode.takes_views = True  # type: ignore[attr-defined]
    return decode


def can_take_views(decode: Decode) -> bool:
    """Return whether a function has the mark of `takes_views`."""
    return bool(getattr(decode, "takes_views", False))


class LoadedSample(dict[str, Any]):
    """One sample: its fields, "__key__", "__id__", "__epoch__" and, where known, "label".

    A field is an array if the format knows dtype and shape, else a copy in `bytes`, as
    `json.loads`, `.decode()` and every decoder take it, or a memoryview without a copy for a
    `decode` with the mark of `takes_views`.

    `sample["__rng__"]` is a `numpy.random.Generator` whose numbers depend on the loader's seed,
    the epoch and the sample, and on nothing else: `penstock.rng(seed, epoch, id)`, made in some
    20 us when it is first asked for. In a mixture the sample's pass takes the place of the
    epoch. It is no key: `in`, `keys()` and copies do not have it.
    """

    __slots__ = ("_random", "stream")

    stream: tuple[int, int, int]
    """Seed, epoch and sample that decide the random numbers; set when the sample is made."""

    def __missing__(self, name: str) -> Any:
        if name == "__rng__":
            if not hasattr(self, "_random"):
                self._random: np.random.Generator = rng(*self.stream)
            return self._random
        if name in ("__epoch__", "__id__"):  # of a sample that `Dataset.__getitem__` has read
            return self.stream[1 if name == "__epoch__" else 2]
        raise KeyError(name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_sample, (*self.stream, dict(self))


def _rebuild_sample(seed: int, epoch: int, number: int, fields: dict[str, Any]) -> LoadedSample:
    sample = LoadedSample(fields)
    sample.stream = seed, epoch, number
    return sample


def open_samples(
    index: Index,
    planned: StepPlan,
    fields: dict[str, Any],
    epoch: int,
    seed: int,
    by_row: bool = False,
    as_views: bool = False,
) -> Callable[[int], LoadedSample]:
    """Return the function that gives each sample of a step, by its row, as `decode` takes it.

    fields:  from `build_fields`.
    seed:    of the random numbers of samples (see `LoadedSample`).
    by_row:  draw them by the row, not by the sample: a sample may come several times an epoch.
    as_views:  raw bytes as memoryviews, valid while `decode` runs, and not as copies.
    """
    for name in (*planned.marks, *(() if planned.labels is None else ("label",))):
        fields.pop(name, None)
    keys = index.keys(planned.ids)
    ids: list[int] = planned.ids.tolist()
    labels = None if planned.labels is None else planned.labels.tolist()
    marks = {name: column.tolist() for name, column in planned.marks.items()}
    columns = [
        (made.name, open_column(field, made, fields[made.name], as_views))
        for field in index.fields
        for made in field.made
        if made.name in fields
    ]
    columns += [(one.name, fields[one.name].__getitem__) for one in index.attributes]
    # A mixture may draw a sample several times an epoch, and once a pass.
    passes = marks.get("pass")

    def sample(row: int) -> LoadedSample:
        number = ids[row]
        turn = epoch if passes is None else passes[row]
        loaded = LoadedSample()
        loaded.stream = seed, turn, row if by_row else number
        for name, column in columns:
            loaded[name] = column(row)
        loaded["__key__"] = keys[row]
        loaded["__id__"], loaded["__epoch__"] = number, epoch
        if labels is not None:
            loaded["label"] = labels[row]
        for name, marked in marks.items():
            loaded[name] = marked[row]
        return loaded

    return sample


def open_column(
    base: Field, made: Field, rows: npt.NDArray[Any] | Ragged, as_views: bool
) -> Callable[[int], Any]:
    """Return the function that gives the field of a row: raw bytes as bytes, else an array; a list
    of these where rows are lists of texts or of lists."""
    if base.levels:
        is_text = base.dtype == np.uint8 and not base.element
        return lambda row: _list_elements(rows[row], is_text)
    is_raw = base.shape is None and base.dtype == np.uint8 and not base.element and not base.text
    if not (is_raw if base.parser is None else base.parser.kinds.get(made.name) == "bytes"):
        return rows.__getitem__
    if isinstance(rows, Ragged):
        bounds: list[int] = rows.offsets.tolist()
        values = memoryview(rows.values)
        if as_views:
            return lambda row: values[bounds[row] : bounds[row + 1]]
        return lambda row: bytes(values[bounds[row] : bounds[row + 1]])
    length, flat = rows.shape[1], rows.reshape(-1).data
    if as_views:
        return lambda row: flat[row * length : (row + 1) * length]
    return lambda row: bytes(flat[row * length : (row + 1) * length])


def _list_elements(row: Any, is_text: bool) -> Any:
    if isinstance(row, Ragged):
        return [_list_elements(element, is_text) for element in row]
    return row.tobytes() if is_text else row


_poll_ns = 100_000_000  # Ctrl-C is noticed between polls


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

    def read_samples(self, ids: Ids) -> Callable[[int], LoadedSample]:
        """Read these samples. Return the function that gives each, as `open_samples` does."""
        planned, buffer = self.read_step(ids)
        fields = build_fields(self.index, planned, buffer)
        return open_samples(self.index, planned, fields, 0, 0)

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
        index, engine = self.index, self._engine
        if engine is None:
            share_memory(self.arena, index, self._budget)
            self._engine = engine = open_engine(index.files, self._budget, index.mean_bytes)
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


def choose_gap(index: Index, choice: ReadMethod) -> int | None:
    """Return the bytes that may be between two extents that are read together.

    None merges nothing: extents of a memory map cost the same in any sequence, and a
    file that holds one sample has no neighbours.
    """
    alone = len(index.files) >= index.count * len(index.fields)
    return None if choice.backend == "mmap" or alone else choice.gap_bytes


def share_memory(
    arena: Arena, index: Index, budget: Budget, engine_bytes: int = 0, is_planned: bool = False
) -> None:
    """Divide the memory of a budget: half of it may keep decoded chunks, where there are such,
    unless they have memory of their own.

    engine_bytes:  of the budget, for buffers of the engine's own.
    is_planned:    True if a plan decides which chunks are kept, not the process.
    """
    coded = any(field.codec is not None for field in index.fields)
    own = budget.decoded_bytes
    shared = kept_decoded_bytes(budget) if coded and own is None else 0
    arena.limit(budget.readahead_bytes - shared - engine_bytes)
    if coded and not is_planned:
        codecs.RECENT.share(arena, shared, own or 0)


def kept_decoded_bytes(budget: Budget) -> int:
    """Return the memory of a budget for chunks that stay decoded."""
    if budget.decoded_bytes is not None:
        return budget.decoded_bytes
    return min(limits.decoded_chunks_bytes_max, budget.readahead_bytes // 2)


def describe_failure(
    index: Index, planned: StepPlan, group: Group, failure: Failure
) -> tuple[int, PenstockError]:
    """Return the step whose bytes are missing, and the error that names sample and cause."""
    extent, code, got = failure
    requests = planned.requests
    owner = group.steps[planned.step - group.steps[0].step + int(requests.buffer[extent])]
    target = int(requests.target[extent])
    row, field = owner.layout.find(target)
    where = describe_row(index, owner, row, field)
    path = index.files.path(int(requests.file[extent]))
    if code in (0, errno.ESTALE):
        wanted = int(requests.length[extent])
        change = "is of another size or modification time"
        change = change if code else f"was cut short: {got:,} of {wanted:,} bytes read"
        return owner.step, build_changed_error(where, f"{path} {change}")
    return owner.step, build_storage_error(code, path, f" ({where})")
