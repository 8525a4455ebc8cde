"""Layouts of arrays in chunks: a sample is a row along the first axis.

Chunks form a grid over the array and are stored full size, at the edges too. If they are verbatim,
a row is one extent if the chunks span all other axes, and a few pieces if they span all but one.
Else all chunks that share the same rows are read and put together: they are the pieces of one
compressed chunk.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...errors import FormatError, UsageError
from ...extent import FileIds, Files, Int
from ..fields import Field
from ..layout import Chunked, Fixed, Layout, Pieces, RowTable
from .shards import lay_out_extents, lay_out_pieces, number_first

_LABELS = ("label", "labels", "y")
CELLS_MAX = 1 << 24
"""Maximum number of chunks of an array."""
_PIECES_MAX = 64
_PIECE_BYTES_MIN = 256
"""Minimum size of a piece. Rows of more or smaller pieces are cheaper to read as whole chunks."""


def choose_label(names: Collection[str]) -> str | None:
    """Choose the label by default among the arrays of integers of one axis."""
    return next((name for name in _LABELS if name in names), None)


class ChunkGrid(NamedTuple):
    """The chunks of an array, in C order of the grid.

    shape, chunk:  of the array and of a chunk.
    file, offset, length:  of each chunk; length -1: it is absent.
    """

    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    itemsize: int
    file: FileIds
    offset: Int
    length: Int

    @classmethod
    def absent(cls, shape: tuple[int, ...], chunk: tuple[int, ...], itemsize: int) -> ChunkGrid:
        """Make the grid of an array whose chunks are all absent, to be filled in."""
        total = math.prod(count_cells(shape, chunk))
        file, offset = np.zeros(total, np.uint32), np.zeros(total, np.int64)
        return cls(shape, chunk, itemsize, file, offset, np.full(total, -1, np.int64))

    @property
    def cells(self) -> tuple[int, ...]:
        """Chunks along each axis."""
        return count_cells(self.shape, self.chunk)

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a verbatim chunk."""
        return math.prod(self.chunk) * self.itemsize


def count_cells(shape: Sequence[int], chunk: Sequence[int]) -> tuple[int, ...]:
    """Chunks along each axis."""
    return tuple(-(-size // step) for size, step in zip(shape, chunk, strict=True))


def check_shape(where: str, shape: Sequence[int], chunk: Sequence[int] | None, size: int) -> None:
    """Check the axes of an array of samples (FormatError). `size`: bytes of an element."""
    if not shape:
        raise FormatError(f"{where} is a single value: an array of samples has at least one axis")
    if min(shape) < 0 or math.prod(shape) * size >= 1 << 62:
        raise FormatError(f"{where} has the shape {tuple(shape)}, larger than any file: damaged")
    if not math.prod(shape) * size:
        raise FormatError(f"{where} holds no samples: its shape is {tuple(shape)}")
    try:
        np.empty((0,) * len(shape))
    except ValueError as error:
        raise FormatError(f"{where} has {len(shape)} dimensions: {error}: write fewer") from None
    if chunk is None:
        return
    if len(chunk) != len(shape) or min(chunk) < 1 or math.prod(chunk) * size >= 1 << 40:
        raise FormatError(f"{where} has chunks {tuple(chunk)} for the shape {tuple(shape)}")
    if math.prod(count_cells(shape, chunk)) > CELLS_MAX:
        raise FormatError(f"{where} has more than {CELLS_MAX:,} chunks: write larger ones")


def check_reading(files: Files, sample: str | None, shapes: Mapping[str, list[Any]]) -> None:
    """Check that it is certain what a sample is: UsageError where a file might be one.

    sample:  "row", "file", or None: a row where there is one file, or one row in each.
    shapes:  of each field, in each file.
    """
    rows = [shape[0] for shape in next(iter(shapes.values()))]
    if sample is not None or len(rows) == 1 or set(rows) == {1}:
        return
    of_file = ", ".join(f"{name} {one[0]}" for name, one in shapes.items())
    of_row = ", ".join(f"{name} {one[0][1:]}" for name, one in shapes.items())
    raise UsageError(
        f"{files.path(0)} and {len(rows) - 1:,} more: is a file a sample, or a row? Give "
        f"sample='file' ({len(rows):,} samples: {of_file}) or 'row' ({sum(rows):,}: {of_row})"
    )


def lay_out_whole(
    files: Files, name: str, dtype: Any, shapes: list[tuple[int, ...]], offsets: list[int]
) -> tuple[Field, Layout]:
    """Lay out arrays that are a sample each, one a file. Their first axes may differ."""
    first = shapes[0]
    for number, shape in enumerate(shapes):
        if shape[1:] != first[1:] or len(shape) != len(first) or not math.prod(shape):
            what = f"{files.path(number)}: {name!r} has the shape {shape}, and {first} in the first"
            raise FormatError(f"{what}: only first axes may differ; choose others by fields=")
    base = np.array(offsets, np.int64)
    if len(set(shapes)) == 1:
        field = Field(name, dtype, first)
        assert field.nbytes is not None
        return field, Fixed(np.arange(len(files) + 1), base, field.nbytes)
    lengths = np.array([math.prod(shape) for shape in shapes], np.int64) * dtype.itemsize
    return Field(name, dtype, None, element=first[1:]), RowTable(None, base, lengths)


def group_chunks(grid: ChunkGrid) -> Chunked:
    """Group the grid's chunks that share rows, to be decoded; an absent chunk has no bytes."""
    here = np.maximum(grid.length, 0)
    count = grid.cells[0]
    chunks_per_row = math.prod(grid.cells[1:])
    first = np.minimum(np.arange(count + 1, dtype=np.int64) * grid.chunk[0], grid.shape[0])
    offset = np.where(grid.length < 0, 0, grid.offset)
    starts = np.arange(count + 1, dtype=np.int64) * chunks_per_row
    return Chunked(first, Pieces(starts, grid.file, offset, here))


def lay_out_verbatim(grid: ChunkGrid, files: int) -> Layout | None:
    """Lay out rows of verbatim chunks, none absent; None if whole chunks are cheaper to read.

    files:  number of files in all.
    """
    shape, chunk, itemsize = grid.shape, grid.chunk, grid.itemsize
    uneven = [axis for axis in range(1, len(shape)) if chunk[axis] != shape[axis]]
    row = math.prod(shape[1:]) * itemsize
    stride = math.prod(chunk[1:]) * itemsize
    if math.prod(grid.cells[1:]) > 1 or (uneven and uneven[-1] > 1):
        return _lay_out_pieces(grid, uneven[-1])
    rows = np.arange(shape[0], dtype=np.int64)
    even = grid.offset[0] + np.arange(len(grid.offset)) * np.int64(grid.chunk_bytes)
    if files == 1 and (grid.offset == even).all():
        return Fixed(np.array([0, shape[0]]), grid.offset[:1], row, stride)
    chunk_rows = np.minimum(chunk[0], shape[0] - np.arange(len(grid.offset)) * chunk[0])
    if (np.diff(grid.file.astype(np.int64)) > 0).all():  # each chunk is a file
        counts, base = np.zeros(files, np.int64), np.zeros(files, np.int64)
        counts[grid.file], base[grid.file] = chunk_rows, grid.offset
        return Fixed(number_first(counts.tolist()), base, row, stride)
    chunk_of, inside = rows // chunk[0], rows % chunk[0]
    offset = grid.offset[chunk_of] + inside * stride
    return RowTable(grid.file[chunk_of], offset, np.full(len(rows), row, np.int64))


def _lay_out_pieces(grid: ChunkGrid, last: int) -> Layout | None:
    """Lay out rows of several pieces: runs along the axis `last` and those behind it."""
    shape, chunk, itemsize = grid.shape, grid.chunk, grid.itemsize
    runs = math.prod(shape[1:last]) * grid.cells[last]
    behind = math.prod(shape[last + 1 :]) * itemsize
    if runs > _PIECES_MAX or min(chunk[last], shape[last]) * behind < _PIECE_BYTES_MIN:
        return None
    strides = [math.prod(chunk[axis + 1 :]) for axis in range(len(chunk))]
    steps = [math.prod(grid.cells[axis + 1 :]) for axis in range(len(chunk))]
    # The runs of one row: the cell among those of its rows, the place in the chunk, the length.
    cell, place = np.zeros(1, np.int64), np.zeros(1, np.int64)
    for axis in range(1, last):
        index = np.arange(shape[axis], dtype=np.int64)
        cell = np.add.outer(cell, index // chunk[axis] * steps[axis]).reshape(-1)
        place = np.add.outer(place, index % chunk[axis] * strides[axis]).reshape(-1)
    index = np.arange(grid.cells[last], dtype=np.int64)
    cell = np.add.outer(cell, index * steps[last]).reshape(-1)
    place = np.repeat(place, len(index)) * itemsize
    run = np.minimum(chunk[last], shape[last] - index * chunk[last]) * behind
    length = np.tile(run, runs // len(index))
    rows = np.arange(shape[0], dtype=np.int64)
    number = np.add.outer(rows // chunk[0] * steps[0], cell).reshape(-1)
    inside = np.add.outer(rows % chunk[0] * strides[0] * itemsize, place).reshape(-1)
    return Pieces(
        np.arange(len(rows) + 1, dtype=np.int64) * runs,
        grid.file[number],
        grid.offset[number] + inside,
        np.tile(length, len(rows)),
    )


def chain_layouts(layouts: Sequence[Layout]) -> Layout | None:
    """Chain the layouts of several files, in order, each of which knows only file 0.

    None if some have compressed chunks and some do not.
    """
    if len(layouts) == 1:
        return layouts[0]
    chunked = [layout for layout in layouts if isinstance(layout, Chunked)]
    if chunked and len(chunked) == len(layouts):
        chunks = chain_layouts([layout.chunks for layout in chunked])
        assert isinstance(chunks, RowTable | Pieces)
        return Chunked(number_first(np.concatenate([one.chunk_samples for one in chunked])), chunks)
    if chunked:
        return None
    fixed = [layout for layout in layouts if isinstance(layout, Fixed)]
    sizes = {(layout.record_bytes, layout.stride_bytes) for layout in fixed}
    if len(fixed) == len(layouts) and len(sizes) == 1:
        base = np.concatenate([layout.base for layout in fixed])
        return Fixed(number_first([layout.count for layout in fixed]), base, *sizes.pop())
    units = [layout.pieces(np.arange(layout.count, dtype=np.int64)) for layout in layouts]
    offsets = [extents.offset for extents, _ in units]
    lengths = [extents.length for extents, _ in units]
    if all(counts is None for _, counts in units):
        return lay_out_extents(offsets, lengths)
    counts = [np.ones(len(e.offset), np.int64) if n is None else n for e, n in units]
    return lay_out_pieces(np.concatenate(counts), offsets, lengths)


def chain_variants(variants: Sequence[Any], counts: Sequence[int]) -> dict[str, Any]:
    """Chain the options by which the chunks of several files are decoded, of so many chunks each:
    those that differ, and the number of the chunk from which on they hold."""
    first = number_first(counts).tolist()
    new = [
        number for number, one in enumerate(variants) if not number or one != variants[number - 1]
    ]
    return {"variants": [variants[n] for n in new], "since": [first[n] for n in new]}
