"""The layout of a batch: the place of each sample's fields in the step's buffer. Pure.

The fields are stored one after the other. A field's rows are its samples, end to end, in the order
of the batch; or, if it is compressed in chunks of several samples, the chunks that hold them, once.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ..errors import DataError
from ..extent import Extents, Int, Placed, interleave, make_tuples
from ..index.fields import Field
from ..index.layout import Chunked, Layout, Windowed
from ..order.packed_order import RowPieces
from .chunk_plan import FieldWork, Works

Ids = npt.NDArray[np.uint64]

# Fields of one step lie one after the other in its buffer, each at a multiple of this: the
# strictest alignment that O_DIRECT asks of a destination.
field_alignment_bytes = 4096


class StepSource(Protocol):
    """Data as the plan of a step sees it."""

    @property
    def fields(self) -> tuple[Field, ...]: ...
    @property
    def layouts(self) -> tuple[Layout, ...]: ...
    @property
    def row_bytes(self) -> tuple[int | None, ...]: ...
    def labels(self, samples: Ids, /) -> Int | None: ...
    def units(self, units: Ids, field: int, /) -> tuple[Extents, Int | None]: ...


class PlanSource(StepSource, Protocol):
    """Data as a session sees it: an `Index`, or one whose samples are cached."""

    @property
    def mean_bytes(self) -> float: ...


class FieldRows(NamedTuple):
    """Places of one field of a step's samples: row i is the i-th sample.

    base:    first byte.
    bounds:  int64 (rows+1,), row i is the elements bounds[i]:bounds[i+1] from there; None if all
             rows have `row_bytes` bytes.
    element_bytes:  bytes of an element.
    """

    base: int
    row_bytes: int
    bounds: Int | None
    rows: int
    element_bytes: int = 1

    def row_at(self, target: int) -> int | None:
        """Return the sample's row that this byte of the buffer belongs to, or None."""
        at = target - self.base
        if self.bounds is None:
            row = at // self.row_bytes if at >= 0 else self.rows
            return row if row < self.rows else None
        return _find_part(self.bounds, at // self.element_bytes)


class FieldChunks(NamedTuple):
    """Places of the compressed chunks that hold one field of a step's samples.

    base:    first byte.
    bounds:  int64 (chunks+1,), chunk i is bytes base + bounds[i]:bounds[i+1].
    number:  int64 (chunks,), numbers of the chunks, ascending.
    chunk:   int64 (samples,), the one of these chunks that holds the sample.
    row:     int64 (samples,), the place of the sample in its chunk.
    pair:    for windows, of which each meets several chunks, int64: the sample of each `chunk`,
             as its row in the step. `row` is the window's number then.
    work:    what a `ChunkPlan` decided for windows; `chunk` and `pair` are those read here then.
    """

    base: int
    bounds: Int
    number: Int
    chunk: Int
    row: Int
    pair: Int | None = None
    work: FieldWork | None = None

    def row_at(self, target: int) -> int | None:
        """Return the row of the first sample of the chunk that this byte belongs to, or None."""
        place = _find_part(self.bounds, target - self.base)
        if place is None:
            return None
        at = int(np.argmax(self.chunk == place))
        return at if self.pair is None else int(self.pair[at])


class BatchLayout(NamedTuple):
    """Places of all fields of a step's samples in the step's buffer.

    fields:  one for each field of the data.
    bytes:   size of the buffer.
    """

    fields: tuple[FieldRows | FieldChunks, ...]
    bytes: int

    def find(self, target: int) -> tuple[int, int]:
        """Return the sample, by its row, and the field that this byte of the buffer belongs to.

        Of a chunk of several samples it is the first one of the step.
        """
        return next(
            (row, number)
            for number, field in enumerate(self.fields)
            if (row := field.row_at(target)) is not None
        )


def _find_part(bounds: Int, at: int) -> int | None:
    part = int(np.searchsorted(bounds[:-1], at, side="right")) - 1
    # Parts of no bytes share their start with the next one: the last of them is as good.
    if part < 0 or (at >= bounds[part + 1] and at != bounds[part]):
        return None
    return part


def place_batches(
    index: StepSource, ids: Ids, bounds: Int, works: Works | None = None
) -> tuple[Placed, Int, list[BatchLayout]]:
    """Place every field of every sample in the buffers of the steps that `bounds` divides `ids` in.

    works:  what to read of fields of windows, by step, if not all.

    Returns the extents with destinations, in the order of samples with fields together; the start
    of each step among them, and their end; and the layout of each step.
    """
    steps = len(bounds) - 1
    base = np.zeros(steps, np.int64)  # of the next field, in each step's buffer
    placed: list[Placed] = []
    fields: list[Sequence[FieldRows | FieldChunks]] = []
    plain = True  # one extent for each field of each sample
    for number, layout in enumerate(index.layouts):
        field = (
            _place_chunks(index, number, layout, ids, bounds, base, works)
            if isinstance(layout, Chunked)
            else _place_rows(index, number, ids, bounds, base)
        )
        plain = plain and field.pieces is None and not isinstance(layout, Chunked)
        target = field.target
        if number:
            target += np.repeat(base, field.rows)
        step_of = np.repeat(np.arange(steps, dtype=np.uint32), field.rows)
        if field.pieces is not None:
            target, step_of = place_pieces(field.extents, field.pieces, target, step_of)
        placed.append(Placed(*field.extents, step_of, target))
        fields.append(field.places)
        base = base + field.bytes
        if number + 1 < len(index.fields):
            base = -(-base // field_alignment_bytes) * field_alignment_bytes
    layouts = make_tuples(BatchLayout, zip(zip(*fields, strict=True), base.tolist(), strict=True))
    if plain:
        return interleave(placed), bounds * len(placed), layouts
    by_step = _sort_by_step(placed)
    edges = np.searchsorted(by_step.part, np.arange(steps + 1))
    return by_step, edges.astype(np.int64), layouts


class _PlacedField(NamedTuple):
    """Extents of one field, and their places from its first byte in each step's buffer.

    pieces:  extents of each row; None if each has one.
    rows:    int64 (steps,), rows of each step: samples or chunks.
    target:  int64 (rows of all steps,), first byte of each row.
    bytes:   int64 (steps,).
    places:  one for each step.
    """

    extents: Extents
    pieces: Int | None
    rows: Int
    target: Int
    bytes: Int
    places: Sequence[FieldRows | FieldChunks]


def _place_rows(index: StepSource, number: int, ids: Ids, bounds: Int, base: Int) -> _PlacedField:
    """Place one field of the samples of each step, from `base` on."""
    extents, pieces = index.units(ids, number)
    rows = np.diff(bounds)
    row_bytes = index.row_bytes[number]
    if row_bytes is None:
        lengths = extents.length if pieces is None else _sum_pieces(extents.length, pieces)
        field = index.fields[number]
        # Once for all steps: rows that are handed over have their bounds in elements.
        unit = 1 if field.levels or field.shape is not None else field.element_bytes
        target, inside, sizes = _pack_rows(lengths, bounds, unit)
        ragged = zip(base.tolist(), repeat(0), inside, rows.tolist(), repeat(unit))
        places = make_tuples(FieldRows, ragged)
    else:
        row = np.arange(len(ids), dtype=np.int64) - np.repeat(bounds[:-1], rows)
        target, sizes = row * row_bytes, rows * row_bytes
        equal = zip(base.tolist(), repeat(row_bytes), repeat(None), rows.tolist(), repeat(1))
        places = make_tuples(FieldRows, equal)
    return _PlacedField(extents, pieces, rows, target, sizes, places)


def _sum_pieces(length: Int, pieces: Int) -> Int:
    """Return the bytes of rows of `pieces` extents each."""
    ends = np.zeros(len(length) + 1, np.int64)
    np.cumsum(length, out=ends[1:])
    last = np.cumsum(pieces)
    rows: Int = ends[last] - ends[last - pieces]
    return rows


def _place_chunks(
    index: StepSource,
    number: int,
    layout: Chunked,
    ids: Ids,
    bounds: Int,
    base: Int,
    works: Works | None,
) -> _PlacedField:
    """Place the chunks that each step needs of one field, each once, from `base` on."""
    samples = ids.view(np.int64)
    steps = list(itertools.pairwise(bounds.tolist()))
    shares: list[Int | None] = [None] * len(steps)
    step_works: list[FieldWork | None] = [None] * len(steps)
    if isinstance(layout, Windowed):
        row = samples
        if works is not None:
            step_works = [work[number] for work in works]
            pair, chunk, edges = _list_reads(step_works, bounds)
        else:
            pair, chunk = layout.find_pairs(samples)
            edges = list(itertools.pairwise(np.searchsorted(pair, bounds).tolist()))
        shares = [
            pair[low:high] - first for (low, high), (first, _) in zip(edges, steps, strict=True)
        ]
    else:
        (chunk, row), edges = layout.find_chunks(samples), steps
    needed = [np.unique(chunk[low:high], return_inverse=True) for low, high in edges]
    rows = np.array([len(chunks) for chunks, _ in needed], np.int64)
    units = np.concatenate([chunks for chunks, _ in needed])
    extents, pieces = index.units(units.view(np.uint64), number)
    lengths = extents.length if pieces is None else layout.lengths(units)
    target, inside, sizes = _pack_rows(lengths, np.concatenate([[0], np.cumsum(rows)]))
    places = [
        FieldChunks(start, ends, chunks, which.reshape(-1), row[first:last], share, work)
        for start, ends, (chunks, which), (first, last), share, work in zip(
            base.tolist(), inside, needed, steps, shares, step_works, strict=True
        )
    ]
    return _PlacedField(extents, pieces, rows, target, sizes, places)


def _list_reads(
    works: list[FieldWork | None], first: Int
) -> tuple[Int, Int, list[tuple[int, int]]]:
    """List the windows, by their place among those of all steps, and the chunks that steps read for
    them; and the part of each step."""
    read = [list(itertools.chain(*work.reads.values())) if work else [] for work in works]
    pair = [first[step] + use.row for step, uses in enumerate(read) for use in uses]
    chunk = [use.chunk for uses in read for use in uses]
    ends = np.cumsum([0, *map(len, read)]).tolist()
    return np.array(pair, np.int64), np.array(chunk, np.int64), list(itertools.pairwise(ends))


def _pack_rows(lengths: Int, bounds: Int, unit: int = 1) -> tuple[Int, list[Int], Int]:
    """Pack the rows of each step end to end.

    Returns the first byte of each row; for each step where its rows start, and the end, in `unit`s
    of bytes; and the bytes of each step.
    """
    ends = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    starts = ends[bounds]
    target = ends[:-1] - np.repeat(starts[:-1], np.diff(bounds))
    if unit > 1:
        ends //= unit
    edges = itertools.pairwise(bounds.tolist())
    inside = [ends[first : last + 1] - ends[first] for first, last in edges]
    return target, inside, np.diff(starts)


def _sort_by_step(placed: list[Placed]) -> Placed:
    """Sort the extents of all fields by step."""
    step = np.concatenate([field.part for field in placed])
    order = np.argsort(step, kind="stable")
    return Placed(
        np.concatenate([field.file for field in placed])[order],
        np.concatenate([field.offset for field in placed])[order],
        np.concatenate([field.length for field in placed])[order],
        step[order],
        np.concatenate([field.target for field in placed])[order],
    )


def place_pieces(
    extents: Extents, pieces: Int, target: Int, step_of: npt.NDArray[np.uint32]
) -> tuple[Int, npt.NDArray[np.uint32]]:
    """Return destination and step of each piece of rows. A row's pieces are stored end to end."""
    starts = np.cumsum(extents.length) - extents.length  # of each piece, if all lay end to end
    first = np.cumsum(pieces) - pieces
    filled = pieces > 0
    inside = starts - np.repeat(starts[first[filled]], pieces[filled])
    return np.repeat(target, pieces) + inside, np.repeat(step_of, pieces)


# -- pieces of documents ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PieceSource:
    """A `StepSource` whose samples are pieces of the documents of an index with one field."""

    fields: tuple[Field, ...]
    layouts: tuple[Layout, ...]
    _extents: Extents

    @classmethod
    def slice(cls, index: StepSource, pieces: RowPieces) -> PieceSource | None:
        """Return the source of these pieces, or None unless each is part of one extent and every
        document has the length that it was packed with; a read of it raises then."""
        field, layout = index.fields[0], index.layouts[0]
        is_made = isinstance(layout, Chunked) or field.parser is not None or field.levels
        if is_made or len(index.fields) > 1:
            return None
        (file, offset, length), several = index.units(pieces.documents, 0)
        if several is not None:
            return None
        size = field.element_bytes
        if not np.array_equal(pieces.tokens, length // size):
            return None
        cut = Extents(file, offset + pieces.start * size, pieces.length * size)
        return cls(index.fields, index.layouts, cut)

    @property
    def row_bytes(self) -> tuple[int | None, ...]:
        return (None,)

    def labels(self, _: Ids, /) -> Int | None:
        return None

    def units(self, units: Ids, field: int, /) -> tuple[Extents, Int | None]:
        at = units.view(np.int64)
        file, offset, length = self._extents
        return Extents(file.take(at), offset.take(at), length.take(at)), None


def check_tokens(pieces: RowPieces, tokens: Int) -> None:
    """Compare the tokens that each piece's document was packed with and those that it has."""
    if np.array_equal(pieces.tokens, tokens):
        return
    at = int(np.argmax(pieces.tokens != tokens))
    what = f"document {pieces.documents[at]} has {tokens[at]:,} tokens, not {pieces.tokens[at]:,}"
    raise DataError(f"{what} as given: measure lengths again with `penstock lengths --force`")
