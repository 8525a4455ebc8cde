"""Steps and plans: the samples that each rank processes, and the bytes that takes. Pure.

`Steps` deals the positions of an epoch to steps and ranks; it is equal on every rank and knows
nothing of bytes. `plan_steps` turns a window, a few steps of one rank, into requests: positions ->
samples -> extents -> destinations, sorted and merged. All of it is vectorised over the window.
"""

from __future__ import annotations

import itertools
import operator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

import numpy as np

from .. import limits
from ..arguments import check_choice
from ..errors import UsageError
from ..extent import Int, Requests, cut, make_tuples, merge, separate
from ..order.order import Marks, Ordering
from ..order.packed_order import RowOrdering, RowPieces
from ..order.packed_rows import RowCounter
from .assignment import Locality
from .balance import CostBalance, check_balance
from .batch_layout import BatchLayout, Ids, PieceSource, StepSource, place_batches
from .chunk_plan import ChunkPlan, Works

_NO_MARKS: Marks = {}
_layout_bytes = operator.attrgetter("bytes")
Assignment = Literal["strided", "contiguous", "local", "balanced"]
"""Rule by which the samples of a step are dealt to ranks."""


@dataclass(frozen=True, slots=True)
class Steps:
    """The geometry of an epoch: `count` samples in steps of `global_batch`, dealt to `world_size`.

    Step k holds the positions [k * global_batch, (k+1) * global_batch). `assignment` deals them:

    strided     a rank has every world_size-th position, as torch's DistributedSampler deals.
    contiguous  each rank has one stretch of the step, one after the other. If the order is
                storage's, each rank then reads contiguous pieces.
    local       a rank has samples that its node keeps, within equal shares, by `locality`.
    balanced    ranks have samples of about the same total cost, by `balance`.

    The rank that has a sample changes no global batch.

    The last step may be smaller. It is left out (`drop_last`), dealt so that shares differ by at
    most one (and may be empty), or filled up to equal shares from the head of the epoch (`pad`).
    Every rank has the same number of steps.

    Packed rows are counted as an epoch goes on: `count` is the number that is known, and
    `counter` knows more: see `extend`.
    """

    count: int
    global_batch: int
    world_size: int
    drop_last: bool = False
    pad: bool = False
    assignment: Assignment = "strided"
    locality: Locality | None = None
    counter: RowCounter | None = None
    balance: CostBalance | None = None

    def __post_init__(self) -> None:
        check_choice("assignment", self.assignment, get_args(Assignment))
        self._check_locality()
        if (self.balance is not None) != (self.assignment == "balanced"):
            what = f"assignment={self.assignment!r} with balance={self.balance!r:.60}"
            raise UsageError(f"{what}: costs are for assignment='balanced', which needs them")
        if self.balance is not None:
            check_balance(self.global_batch, self.world_size)
        if self.drop_last and self.pad:
            raise UsageError("drop_last=True and pad=True exclude each other: choose one")
        if self.global_batch < self.world_size:
            what = f"the global batch of {self.global_batch} is smaller than the world of"
            raise UsageError(f"{what} {self.world_size} ranks: give each rank a sample a step")
        if self.count < self.world_size:
            what = f"{self.world_size} ranks share {self.count} samples"
            raise UsageError(f"{what}: each rank needs at least one; use fewer ranks")
        if len(self) == 0:
            what = f"drop_last=True leaves no batch of {self.global_batch}: there are {self.count}"
            raise UsageError(f"{what} samples; lower batch_size or use drop_last=False")

    def _check_locality(self) -> None:
        if self.assignment != "local":
            if self.locality is not None:
                what = f"assignment={self.assignment!r} does not use locality"
                raise UsageError(f"{what}: leave it out, or use assignment='local'")
        elif self.locality is None:
            what = "assignment='local' deals to the nodes that keep samples, and no node keeps any"
            raise UsageError(f"{what}: use 'strided' or 'contiguous', or have nodes keep some")
        elif len(self.locality.nodes) != self.world_size:
            what = f"locality has nodes of {len(self.locality.nodes)} ranks, not {self.world_size}"
            raise UsageError(f"{what}: give the node of each rank")

    def __len__(self) -> int:
        if self.drop_last:
            return self.count // self.global_batch
        return -(-self.count // self.global_batch)

    def extend(self, stop: int) -> Steps:
        """Return the geometry that knows the steps before `stop`, or all if there are fewer."""
        rows = stop * self.global_batch
        if self.counter is None or rows <= self.count:
            return self
        known = self.counter.reach(rows)
        return self if known == self.count else replace(self, count=known)

    @property
    def full(self) -> int:
        """Number of steps that hold a whole global batch."""
        return self.count // self.global_batch

    def rows(self, step: int, rank: int) -> int:
        """Number of samples of one rank in one step."""
        samples = min(self.global_batch, self.count - step * self.global_batch)
        if self.pad and step >= self.full:
            return -(-samples // self.world_size)
        return (samples - rank + self.world_size - 1) // self.world_size

    def quotas(self, step: int) -> Int:
        """Number of samples of each rank in one step, int64 (world_size,)."""
        samples = min(self.global_batch, self.count - step * self.global_batch)
        if self.pad and step >= self.full:
            return np.full(self.world_size, -(-samples // self.world_size))
        return np.arange(samples + self.world_size - 1, samples - 1, -1) // self.world_size

    @property
    def deals_by_place(self) -> bool:
        """True if a rank's share does not depend on which samples the step has."""
        return self.locality is None and self.balance is None

    def window(self, rank: int) -> int:
        """Number of steps to be dealt in one pass: as many as numpy needs to be cheap."""
        samples = self.rows(0, rank) if self.deals_by_place else self.global_batch
        return max(1, min(limits.window_steps_max, limits.window_samples_max // max(1, samples)))

    def positions(
        self, first: int, last: int, rank: int, order: Ordering | None = None
    ) -> tuple[Ids, Int, int]:
        """Return the positions of one rank in the steps [first, last).

        order:  of the epoch; needed by local and balanced assignment: they depend on the samples.

        Returns the positions, the boundaries of the steps within them (last - first + 1), and the
        number of repeats at the end that fill a padded step.
        """
        whole = max(first, min(last, self.full))
        positions = self._share(first, whole, rank, order)
        rows = self.rows(0, rank) if self.full else 0
        bounds = np.arange(whole - first + 1, dtype=np.int64) * rows
        if not first <= self.full < last:
            return positions, bounds, 0
        tail = self._share(self.full, self.full + 1, rank, order)
        tail = tail[np.argsort(tail >= self.count, kind="stable")]
        repeats = int(np.count_nonzero(tail >= self.count))
        positions = np.concatenate([positions, tail % np.uint64(self.count)])
        return positions, np.append(bounds, len(positions)), repeats

    def _share(self, first: int, last: int, rank: int, order: Ordering | None) -> Ids:
        """Return the positions of one rank in steps of one size; from `count` on, repeats."""
        if first == last:
            return np.empty(0, np.uint64)
        starts = np.arange(first, last, dtype=np.uint64)[:, None] * np.uint64(self.global_batch)
        if self.deals_by_place:
            samples_count = min(self.global_batch, self.count - first * self.global_batch)
            rows = self.rows(first, rank)
            return (starts + self._deal_by_place(samples_count, rows, rank)).reshape(-1)
        assert order is not None, "the assignment depends on the samples: give the order"
        quotas = self.quotas(first)
        positions = starts + np.arange(quotas.sum(), dtype=np.uint64)
        repeated = first >= self.full and self.pad
        wrapped = positions % np.uint64(self.count) if repeated else positions
        if self.balance is not None:
            chosen = self.balance.rows(order, wrapped, quotas, rank)
        else:
            assert self.locality is not None
            chosen = self.locality.rows(order.samples(wrapped), quotas, rank)
        return positions.reshape(-1)[chosen]

    def ranks(self, positions: Int) -> Int:
        """Return the rank that has each position of an epoch, int64; -1 if it is left out.

        Not for local and balanced assignment: they depend on the samples. The repeats that fill a
        padded step are left out.
        """
        assert self.deals_by_place, "the assignment depends on the samples, not on positions"
        inside = positions % self.global_batch
        if self.assignment == "strided":
            rank = inside % self.world_size
        else:
            rank = self._find_stretch(inside, self.quotas(0))
            last = np.flatnonzero(positions >= self.full * self.global_batch)
            if len(last) and len(self) > self.full:
                rank[last] = self._find_stretch(inside[last], self.quotas(self.full))
        rank[positions >= len(self) * self.global_batch] = -1
        return rank

    @staticmethod
    def _find_stretch(inside: Int, quotas: Int) -> Int:
        """Return the rank whose stretch of a step holds each place."""
        ranks: Int = np.searchsorted(np.cumsum(quotas), inside, side="right")
        return ranks

    def _deal_by_place(self, samples: int, rows: int, rank: int) -> Ids:
        """Return the places of a rank among a step's `samples`; from `samples` on, repeats."""
        number = np.arange(rows, dtype=np.uint64)
        if self.assignment == "strided":
            return number * np.uint64(self.world_size) + np.uint64(rank)
        if rows * self.world_size > samples:  # padded, or this rank has one more than the last ones
            before = rank * rows
        else:
            before = rank * rows + samples - rows * self.world_size
        return number + np.uint64(before)


class StepPlan(NamedTuple):
    """Plan of one step of one rank.

    ids:       uint64 (rows,), the samples in the order of the batch.
    repeats:   number of rows at the end that fill a padded step and were seen before.
    labels:    int64 (rows,) or None.
    marks:     values that the order gives each row besides its sample, int64 (rows,) each.
    layout:    places of the samples in the step's buffer.
    requests:  reads to submit for this step. Their buffer numbers count the steps of its group from
               this one on, because a merged read may bring bytes for later ones.
    pack:      of packed rows: the rows, and the pieces of documents that they have. The samples are
               then the documents, one for each piece.
    """

    step: int
    ids: Ids
    repeats: int
    labels: Int | None
    marks: Marks
    layout: BatchLayout
    requests: Requests
    pack: StepRows | None = None

    @property
    def row_ids(self) -> Ids:
        """Numbers of the rows of the batch: its samples, or its packed rows."""
        return self.ids if self.pack is None else self.pack.numbers


class StepRows(NamedTuple):
    """Packed rows of one step of one rank.

    numbers:    uint64 (rows,), numbers of the rows in the epoch.
    pieces:     their pieces.
    is_sliced:  True if the step's buffer has the pieces, and not the whole documents.
    """

    numbers: Ids
    pieces: RowPieces
    is_sliced: bool


class Group(NamedTuple):
    """Steps whose buffers must exist together, because merged reads cross from one to another."""

    steps: list[StepPlan]
    bytes: int


def plan_steps(
    index: StepSource,
    order: Ordering,
    steps: Steps,
    rank: int,
    first: int,
    last: int,
    gap_bytes: int | None,
    chunk_plan: ChunkPlan | None = None,
) -> list[Group]:
    """Plan the steps [first, last) of one rank.

    With `gap_bytes` the window's extents are sorted by file and offset. Neighbours no further apart
    than that are read together, by the earliest step that needs one of them, and the window is one
    group. With None each step requests its samples in batch order and is its own group.

    Sorted, the reads of all ranks go through the same files in the same order. So rank r of N
    begins r/N of the way through them, so that the ranks do not queue at one file, or server, after
    the other. That changes no batch.
    """
    positions, bounds, repeats = steps.positions(first, last, rank, order)
    turn = rank, steps.world_size
    if isinstance(order, RowOrdering):
        pieces = order.pieces(positions)
        if not order.joins_documents:
            edges = pieces.offsets[bounds]
            repeated = int(edges[-1] - pieces.offsets[len(positions) - repeats])
            ids, marks = pieces.documents, pieces.marks
            return plan_samples(index, ids, edges, first, gap_bytes, repeated, marks, turn)
        return _plan_rows(index, positions, pieces, bounds, first, gap_bytes, repeats, turn)
    ids, marks = order.rows(positions)
    works = None if chunk_plan is None else list(map(chunk_plan.decide, range(first, last)))
    return plan_samples(index, ids, bounds, first, gap_bytes, repeats, marks, turn, works)


def _plan_rows(
    index: StepSource,
    numbers: Ids,
    pieces: RowPieces,
    bounds: Int,
    first: int,
    gap_bytes: int | None,
    repeats: int,
    turn: tuple[int, int],
) -> list[Group]:
    """Plan steps of packed rows: the reads of their pieces, or of the documents these are of."""
    source = PieceSource.slice(index, pieces)
    ids = pieces.documents if source is None else np.arange(len(pieces.start), dtype=np.uint64)
    edges = pieces.offsets[bounds]
    groups = plan_samples(source or index, ids, edges, first, gap_bytes, repeats, None, turn)

    def add_rows(step: StepPlan) -> StepPlan:
        low, high = bounds[step.step - first], bounds[step.step - first + 1]
        step_pieces = pieces.cut(int(low), int(high))
        rows = StepRows(numbers[low:high], step_pieces, source is not None)
        return step._replace(ids=step_pieces.documents, labels=None, pack=rows)

    return [Group(list(map(add_rows, group.steps)), group.bytes) for group in groups]


def cut_marks(marks: Marks, slices: list[slice]) -> list[Marks]:
    """Cut the columns of marks by step."""
    return [{name: column[rows] for name, column in marks.items()} for rows in slices]


def plan_samples(
    index: StepSource,
    ids: Ids,
    bounds: Int,
    first: int,
    gap_bytes: int | None,
    repeats: int = 0,
    marks: Marks | None = None,
    turn: tuple[int, int] = (0, 1),
    works: Works | None = None,
) -> list[Group]:
    """Plan steps from `first` on that hold these samples; see `plan_steps`.

    bounds:   start of each step in `ids`, and the end.
    repeats:  of the last step.
    marks:    of each of the samples, to be handed on.
    turn:     number of this reader, and of all readers; see `merge`.
    works:    what a `ChunkPlan` decided for each step.
    """
    count = len(bounds) - 1
    labels = index.labels(ids)
    placed, placed_bounds, layouts = place_batches(index, ids, bounds, works)
    if gap_bytes is None:
        requests = separate(placed, placed_bounds)
    else:
        requests = merge(placed, count, gap_bytes, turn)
        for number in range(1, count):
            buffers = requests[number].buffer
            buffers -= np.uint32(number)
    slices = cut(bounds)
    planned = make_tuples(
        StepPlan,
        zip(
            range(first, first + count),
            map(ids.__getitem__, slices),
            [*itertools.repeat(0, count - 1), repeats],
            itertools.repeat(None) if labels is None else map(labels.__getitem__, slices),
            cut_marks(marks, slices) if marks else itertools.repeat(_NO_MARKS),
            layouts,
            requests,
            itertools.repeat(None),
        ),
    )
    if gap_bytes is None:
        return make_tuples(Group, [([step], step.layout.bytes) for step in planned])
    return [Group(planned, sum(map(_layout_bytes, layouts)))]
