"""Layouts: the place of each sample of one field. Kinds have one interface.

    Fixed     records of one size: arithmetic, no memory.
    RowTable  one extent a sample.
    Pieces    several extents a sample, laid end to end.
    Boxes     the same by arithmetic: windows of an array (see `windows`).
    Chunked   samples inside compressed chunks, to be decoded first.
    Windowed  samples that meet several chunks each: windows of an array, or clips (see `clips`).

A *unit* is read as a whole: a sample, or a compressed chunk of many samples. All layouts give the
bytes and the extents of units. Only for `Chunked` and `Windowed` are units not the samples.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import limits
from ..extent import Extents, FileIds, Files, Int
from .windows import Boxes as Boxes
from .windows import Columns, Description, FileGrids, WindowGrid, count_strides, take_column


@functools.lru_cache(maxsize=8)
def _make_block(value: int, dtype: str) -> npt.NDArray[Any]:
    block = np.full(limits.window_samples_max, value, dtype)
    block.flags.writeable = False
    return block


def _repeat_value(value: int, dtype: str, count: int) -> npt.NDArray[Any]:
    """Repeat one value: a read-only view, because fresh pages cost more than all arithmetic."""
    if count > limits.window_samples_max:
        return np.full(count, value, dtype)
    return _make_block(value, dtype)[:count]


@dataclass(frozen=True, slots=True, eq=False)
class Fixed:
    """Records of one size, at equal distances in each file.

    first:  int64 (files + 1,), number of each file's first sample; the last is the count.
    base:   int64 (files,), byte at which each file's first record starts.
    stride_bytes:  from the start of a record to the next; by default `record_bytes`, so
            that they are back to back; less if neighbours share bytes.
    even:   samples of each file if all have the same number, except a shorter last one; else 0.
    """

    first: Int
    base: Int
    record_bytes: int
    stride_bytes: int = 0
    even: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        if not self.stride_bytes:
            object.__setattr__(self, "stride_bytes", self.record_bytes)
        counts = np.diff(self.first)
        if len(counts) and (counts[:-1] == counts[0]).all() and counts[-1] <= counts[0]:
            object.__setattr__(self, "even", int(counts[0]))

    @property
    def row_bytes(self) -> int:
        return self.record_bytes

    @property
    def count(self) -> int:
        return int(self.first[-1])

    @property
    def total_bytes(self) -> int:
        return self.count * self.record_bytes

    def extents(self, samples: Int) -> Extents:
        lengths = self.lengths(samples)
        if len(self.base) == 1:
            offset = samples * np.int64(self.stride_bytes)
            if self.base[0]:
                offset += self.base[0]
            return Extents(_repeat_value(0, "u4", len(samples)), offset, lengths)
        file = self.file_of(samples)
        offset = samples - self.first.take(file)
        offset *= self.stride_bytes
        offset += self.base.take(file)
        return Extents(file.astype(np.uint32), offset, lengths)

    def lengths(self, samples: Int) -> Int:
        return _repeat_value(self.record_bytes, "i8", len(samples))

    def file_of(self, samples: Int) -> npt.NDArray[np.intp]:
        if self.even:  # shards are mostly of one size, and dividing is faster than searching
            return samples // self.even
        return np.searchsorted(self.first, samples, side="right") - 1

    def pieces(self, samples: Int) -> tuple[Extents, Int | None]:
        return self.extents(samples), None

    def described(self) -> Description:
        return {"record_bytes": self.record_bytes, "stride_bytes": self.stride_bytes}

    def sections(self, prefix: str, _: Files) -> Columns:
        return {f"{prefix}.first": self.first, f"{prefix}.base": self.base}

    def flaw(self, files: Files) -> str | None:
        if len(self.first) != len(files) + 1 or len(self.base) != len(files) or self.first[0] != 0:
            return "the files' first samples do not match the files"
        counts = np.diff(self.first)
        if self.record_bytes <= 0 or self.stride_bytes <= 0:
            return "records have no size"
        if (counts < 0).any() or (self.base < 0).any():
            return "the files' first samples are not in order"
        # In a file of room r, records start at 0, stride, ... up to r - record_bytes.
        records_max = (files.size - self.base - self.record_bytes) // self.stride_bytes + 1
        if (counts > np.maximum(records_max, 0)).any():
            return "records lie beyond the end of their file"
        return None


@dataclass(frozen=True, slots=True, eq=False)
class RowTable:
    """Table with one row a sample. `file` None: the sample's own number; `offset` None: 0.

    row_bytes:  the length of all samples, if it is one and above 0.
    only_file:  the file of all samples, if it is one.
    """

    file: FileIds | None
    offset: Int | None
    length: Int
    row_bytes: int | None = field(init=False, default=None)
    only_file: int | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        first = int(self.length[0]) if len(self.length) else 0
        if first > 0 and _has_one_value(self.length):
            object.__setattr__(self, "row_bytes", first)
        if self.file is not None and len(self.file) and _has_one_value(self.file):
            object.__setattr__(self, "only_file", int(self.file[0]))

    @property
    def count(self) -> int:
        return len(self.length)

    @property
    def total_bytes(self) -> int:
        return int(self.length.sum())

    def extents(self, samples: Int) -> Extents:
        if self.file is None:
            file = samples.astype(np.uint32)
        elif self.only_file is not None:
            file = _repeat_value(self.only_file, "u4", len(samples))
        else:
            file = self.file.take(samples)
        if self.offset is None:
            offset = _repeat_value(0, "i8", len(samples))
        else:
            offset = self.offset.take(samples)
        return Extents(file, offset, self.lengths(samples))

    def lengths(self, samples: Int) -> Int:
        if self.row_bytes is not None:
            return _repeat_value(self.row_bytes, "i8", len(samples))
        return self.length.take(samples)

    def pieces(self, samples: Int) -> tuple[Extents, Int | None]:
        return self.extents(samples), None

    def described(self) -> Description:
        return {"record_bytes": None}

    def sections(self, prefix: str, files: Files) -> Columns:
        columns: Columns = {}
        if self.file is not None:
            columns[f"{prefix}.file"] = self.file if self.only_file is None else self.file[:1]
        if self.offset is not None:
            columns[f"{prefix}.offset"] = self.offset
        if self.length is not files.size:
            columns[f"{prefix}.length"] = self.length
        return columns

    def flaw(self, files: Files) -> str | None:
        count = len(self.length)
        if self.file is None and count != len(files):
            return "there are not as many files as samples"
        if any(column is not None and len(column) != count for column in (self.file, self.offset)):
            return "columns differ in length"
        return _find_outside(self.file, self.offset, self.length, files)


_PIECES = {"first": np.int64, "file": np.uint32, "offset": np.int64, "length": np.int64}


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Samples of several extents, laid end to end.

    first:  int64 (samples + 1,), sample i has the extents first[i]:first[i+1]; an empty one has
            none.
    file, offset, length:  of each extent.
    """

    first: Int
    file: FileIds
    offset: Int
    length: Int
    ends: Int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ends", np.cumsum(np.append(0, self.length), dtype=np.int64))

    @property
    def row_bytes(self) -> int | None:
        if self._first_flaw():
            return None  # a damaged index, which is not used
        lengths = self.lengths(np.arange(self.count))
        first = int(lengths[0]) if len(lengths) else 0
        return first if first and bool((lengths == first).all()) else None

    @property
    def count(self) -> int:
        return len(self.first) - 1

    @property
    def total_bytes(self) -> int:
        return int(self.ends[-1])

    def pieces(self, samples: Int) -> tuple[Extents, Int | None]:
        start = self.first.take(samples)
        counts = self.first.take(samples + 1) - start
        ends = np.cumsum(counts)
        at = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(start - ends + counts, counts)
        extents = Extents(self.file.take(at), self.offset.take(at), self.length.take(at))
        return extents, counts

    def lengths(self, samples: Int) -> Int:
        ends = self.ends
        return ends.take(self.first.take(samples + 1)) - ends.take(self.first.take(samples))

    def described(self) -> Description:
        return {"record_bytes": None, "pieces": True}

    def sections(self, prefix: str, _: Files) -> Columns:
        return {f"{prefix}.{name}": getattr(self, name) for name in _PIECES}

    def _first_flaw(self) -> str | None:
        if not len(self.first) or self.first[0] != 0 or self.first[-1] != len(self.length):
            return "the samples' first pieces do not match the pieces"
        if (np.diff(self.first) < 0).any():
            return "the samples' first pieces are not in order"
        return None

    def flaw(self, files: Files) -> str | None:
        flaw = self._first_flaw()
        if flaw is not None:
            return flaw
        if not len(self.file) == len(self.offset) == len(self.length):
            return "columns differ in length"
        return _find_outside(self.file, self.offset, self.length, files)


@dataclass(frozen=True, slots=True, eq=False)
class Chunked:
    """Samples that are decoded from compressed chunks, of one or several pieces each.

    first:   int64 (chunks + 1,), chunk c decodes to the samples first[c]:first[c+1].
    chunks:  layout of the compressed chunks.
    """

    first: Int
    chunks: RowTable | Pieces

    @property
    def row_bytes(self) -> None:
        return None

    @property
    def count(self) -> int:
        return int(self.first[-1])

    @property
    def total_bytes(self) -> int:
        return self.chunks.total_bytes

    def pieces(self, chunks: Int) -> tuple[Extents, Int | None]:
        """Return the extents of compressed chunks, the units of this layout."""
        return self.chunks.pieces(chunks)

    def lengths(self, chunks: Int) -> Int:
        """Return the bytes of compressed chunks."""
        return self.chunks.lengths(chunks)

    @property
    def chunk_samples(self) -> Int:
        """Samples of each compressed chunk."""
        return np.diff(self.first)

    def count_rows(self, chunks: Int) -> Int:
        """Rows that compressed chunks decode to."""
        rows: Int = self.first.take(chunks + 1) - self.first.take(chunks)
        return rows

    def find_chunks(self, samples: Int) -> tuple[Int, Int]:
        """Find the compressed chunk of each sample, and its row in it."""
        chunk = np.searchsorted(self.first, samples, side="right") - 1
        return chunk, samples - self.first.take(chunk)

    def describe_inside(self, chunk: int) -> Mapping[str, Any]:
        """Describe the inside of a compressed chunk, for codecs that have to know of it."""
        return {}

    def described(self) -> Description:
        return {"record_bytes": None, "chunks": self.chunks.described()}

    def sections(self, prefix: str, files: Files) -> Columns:
        return {f"{prefix}.chunks.first": self.first} | self.chunks.sections(prefix, files)

    def flaw(self, files: Files) -> str | None:
        if len(self.first) != self.chunks.count + 1 or self.first[0] != 0:
            return "the compressed chunks' first samples do not match the chunks"
        if (np.diff(self.first) <= 0).any():
            return "the compressed chunks' first samples are not in order"
        return self.chunks.flaw(files)


class Windowed(Chunked, ABC):
    """Samples of one shape that have something of several compressed chunks each."""

    __slots__ = ()

    @property
    @abstractmethod
    def window_shape(self) -> tuple[int, ...]:
        """Shape of a sample."""

    @property
    @abstractmethod
    def chunk_elements(self) -> int:
        """Most elements of a chunk."""

    @property
    @abstractmethod
    def mean_bytes(self) -> float:
        """Bytes of the chunks that a window meets, on average."""

    @property
    def chunk_samples(self) -> Int:
        """Windows of each chunk, about as many in all as there are."""
        cells = self.chunks.count
        return np.full(cells, max(1, self.count // cells), np.int64)

    @abstractmethod
    def find_shape(self, chunk: int) -> tuple[int, ...]:
        """Return the shape of a chunk, without its first axis."""

    @abstractmethod
    def count_neighbours(self, elements: int) -> int:
        """Count the windows in a row that lie in a part of the data of about so many elements:
        blocks of them decode few chunks but their own."""

    @abstractmethod
    def find_places(self, windows: Int) -> Int:
        """Return where windows are, a row each; `overlap` takes such rows."""

    @abstractmethod
    def name_origins(self, windows: Int) -> dict[str, Int]:
        """Return where windows start, by the names of axes."""

    @abstractmethod
    def find_pairs(self, samples: Int) -> tuple[Int, Int]:
        """Find the chunks that windows meet: the place of each window in `samples`, and a chunk;
        in this order."""

    @abstractmethod
    def measure_pieces(self, samples: Int, chunks: Int) -> Int:
        """Count the elements that windows have of chunks that they meet."""

    @abstractmethod
    def list_rows(self, chunk: int, windows: Int) -> Int | None:
        """List the rows of a chunk that windows need; None if all are decoded at once."""

    @abstractmethod
    def overlap(self, chunk: int, places: Int, rows: Int | None) -> Iterator[tuple[Any, Any]]:
        """Yield what windows have of a chunk: the place in the window, and the one in the chunk.

        rows:  the rows of the chunk that were decoded, if not all.
        """

    def gather(
        self, chunk: int, decoded: npt.NDArray[Any], places: Int, rows: Int | None, windows: Any
    ) -> None:
        """Copy a decoded chunk into the windows that meet it, given as one array each."""
        pairs = self.overlap(chunk, places, rows)
        for window, (into, taken) in zip(windows, pairs, strict=True):
            window[into] = decoded[taken]

    def find_chunks(self, samples: Int) -> tuple[Int, Int]:
        """Find the first chunk that each window meets; and return the windows' numbers."""
        pair, chunk = self.find_pairs(samples)
        return chunk[np.searchsorted(pair, np.arange(len(samples)))], samples


@dataclass(frozen=True, slots=True, eq=False)
class Windows(Windowed):
    """Windows of an array in chunks, each of which is decoded by itself.

    first:   int64, number of the first row of each row of chunks; the last is the number of rows.
    chunks:  RowTable of the chunks, in C order of the array, or of one array after the other.
    grid:    of the windows.
    chunk:   shape of a chunk; its first axis is the most that a row of chunks has. Where each file
             has an array of its own, the most of all, and `in_files` has them: int64 (files, axes).
    cells:   chunks along each axis, in each of the files.
    base:    number of the first chunk of each file, and the end.
    """

    grid: WindowGrid
    chunk: tuple[int, ...]
    in_files: Int | None = None
    cells: Int = field(init=False)
    base: Int = field(init=False)

    def __post_init__(self) -> None:
        if self.grid.files is not None and self.in_files is not None:
            cells = -(-self.grid.files.shape // np.maximum(self.in_files, 1))
            cells[:, 0] = 1
        else:
            cells = -(-np.array(self.grid.shape, "i8") // np.maximum(np.array(self.chunk, "i8"), 1))
            cells[0] = len(self.first) - 1
        object.__setattr__(self, "cells", cells)
        counts = cells.reshape(-1, len(self.grid.shape)).prod(axis=1)
        object.__setattr__(self, "base", np.append(0, np.cumsum(counts)))

    @property
    def count(self) -> int:
        return self.grid.count

    def _take_cells(self, files: Int) -> tuple[Int, Int, Any]:
        """Take the shape of a chunk, the chunks along each axis, and the number of the first one,
        in the files of windows, or in all."""
        if self.in_files is None:
            return np.array(self.chunk), self.cells, 0
        return self.in_files[files], self.cells[files], self.base[files]

    def find_shape(self, chunk: int) -> tuple[int, ...]:
        if self.in_files is None:
            return self.chunk[1:]
        file = np.searchsorted(self.base, chunk, side="right") - 1
        return tuple(self.in_files[file, 1:].tolist())

    @property
    def window_shape(self) -> tuple[int, ...]:
        return self.grid.size

    @property
    def chunk_elements(self) -> int:
        return math.prod(self.chunk)

    @property
    def mean_bytes(self) -> float:
        pairs = zip(self.grid.size, self.chunk, strict=True)
        met = math.prod((size - 1) / step + 1 for size, step in pairs)
        return met * self.chunks.total_bytes / max(1, self.chunks.count)

    def count_neighbours(self, elements: int) -> int:
        grid, windows = self.grid, 1
        extent = list(grid.size)
        for axis in reversed(range(len(extent))):
            rest = math.prod(extent) // extent[axis]
            room = max(elements // rest - grid.size[axis], 0) // grid.stride[axis] + 1
            taken = min(grid.steps[axis], room)
            windows *= taken
            extent[axis] += (taken - 1) * grid.stride[axis]
            if taken < grid.steps[axis]:
                break
        return windows

    def count_rows(self, chunks: Int) -> Int:
        if self.in_files is not None:
            return np.ones(len(chunks), np.int64)
        rows: Int = np.diff(self.first).take(chunks // math.prod(self.cells[1:].tolist()))
        return rows

    def find_places(self, windows: Int) -> Int:
        return self.grid.find_origins(windows)

    def name_origins(self, windows: Int) -> dict[str, Int]:
        return self.grid.name_origins(windows)

    def list_rows(self, chunk: int, windows: Int) -> None:
        return None

    def find_pairs(self, samples: Int) -> tuple[Int, Int]:
        origins, shapes = self.grid.find_origins(samples), self.grid.find_shapes(samples)
        sizes, cells, base = self._take_cells(origins[:, 0])
        chunk = np.zeros((len(samples), 1), np.int64) + np.reshape(base, (-1, 1))
        steps = count_strides(cells)
        is_met = np.ones((len(samples), 1), bool)
        for axis, size in enumerate(self.grid.size):
            if axis == 0 and self.in_files is not None:
                continue
            low, high = origins[:, axis], origins[:, axis] + (size - 1)
            if self.grid.fill:  # one beyond the array meets the chunk that is nearest
                low, high = (np.clip(end, 0, shapes[..., axis] - 1) for end in (low, high))
            if axis == 0:
                low = np.searchsorted(self.first, low, side="right") - 1
                high = np.searchsorted(self.first, high, side="right") - 1
            else:
                low, high = low // sizes[..., axis], high // sizes[..., axis]
            along = np.arange(int((high - low).max(initial=0)) + 1)
            at = np.add.outer(low, along)
            inside = at <= high[:, None]
            shape = len(samples), chunk.shape[1] * len(along)
            at = at * steps[..., axis, None]
            chunk = (chunk[:, :, None] + at[:, None, :]).reshape(shape)
            is_met = (is_met[:, :, None] & inside[:, None, :]).reshape(shape)
        return np.nonzero(is_met)[0], chunk[is_met]

    def find_box(self, chunk: int) -> tuple[list[int], list[int]]:
        """Return the index in the array at which a chunk starts, and that behind its end."""
        shape, step, row, rest = list(self.grid.shape), list(self.chunk), 0, int(chunk)
        if self.grid.files is not None and self.in_files is not None:
            row = int(np.searchsorted(self.base, chunk, side="right")) - 1
            shape, step = self.grid.files.shape[row].tolist(), self.in_files[row].tolist()
            rest -= int(self.base[row])
        start, end = [], []
        for size, width in zip(shape[:0:-1], step[:0:-1], strict=True):
            rest, cell = divmod(rest, -(-size // width))
            start.append(cell * width)
            end.append(min(start[-1] + width, size))
        rows = self.first[row + rest : row + rest + 2].tolist()
        return [rows[0], *reversed(start)], [rows[1], *reversed(end)]

    def described(self) -> Description:
        mine = {"windows": self.grid.described(), "chunk": self.chunk}
        return {"record_bytes": None, "chunks": self.chunks.described(), **mine}

    def sections(self, prefix: str, files: Files) -> Columns:
        columns = Chunked.sections(self, prefix, files) | self.grid.sections(prefix)
        if self.in_files is not None:
            columns[f"{prefix}.in_files"] = self.in_files.reshape(-1)
        return columns

    def flaw(self, files: Files) -> str | None:
        if flaw := self.grid.find_flaw():
            return flaw
        if len(self.chunk) != len(self.grid.shape) or min(self.chunk) < 1:
            return "chunks have another number of axes than windows"
        if self.in_files is not None and (self.in_files < 1).any():
            return "chunks of files have no size"
        rows = np.diff(self.first)
        if len(rows) < 1 or self.first[0] != 0 or self.first[-1] != self.grid.shape[0]:
            return "the rows of chunks do not make up the array"
        if (rows <= 0).any() or (rows > self.chunk[0]).any():
            return "the rows of chunks are not in order"
        cells = self.cells.reshape(-1, len(self.chunk)).astype(float).prod(axis=1).sum()
        if not isinstance(self.chunks, RowTable) or self.chunks.count != cells:
            return "the chunks do not make up the array"
        return self.chunks.flaw(files)

    def measure_pieces(self, samples: Int, chunks: Int) -> Int:
        low, elements = self.grid.find_origins(samples), np.ones(len(samples), np.int64)
        shapes, (sizes, cells, base) = self.grid.find_shapes(samples), self._take_cells(low[:, 0])
        place = chunks - base
        steps = count_strides(cells)
        for axis, size in enumerate(self.grid.size):
            cell = place // steps[..., axis] % cells[..., axis]
            if axis:
                start = cell * sizes[..., axis]
                end = np.minimum(start + sizes[..., axis], shapes[..., axis])
            elif self.in_files is not None:
                continue
            else:
                start, end = self.first.take(cell), self.first.take(cell + 1)
            high = np.minimum(low[:, axis] + size, end)
            elements *= np.maximum(high - np.maximum(low[:, axis], start), 0)
        return elements

    def overlap(self, chunk: int, places: Int, rows: Int | None) -> Iterator[tuple[Any, Any]]:
        box = list(zip(self.grid.size, *self.find_box(chunk), strict=True))
        for origin in places.tolist():
            into, taken = [], []
            for low, (size, begin, end) in zip(origin, box, strict=True):
                first = max(low, begin)
                last = max(first, min(low + size, end))
                into.append(slice(first - low, last - low))
                taken.append(slice(first - begin, last - begin))
            yield tuple(into), tuple(taken)


def _find_outside(
    file: FileIds | None, offset: Int | None, length: Int, files: Files
) -> str | None:
    """Find extents outside their files: a message, or None."""
    if file is not None and len(file) and int(file.max()) >= len(files):
        return "a sample lies in a file that does not exist"
    size = files.size if file is None else files.size[file]
    start = np.zeros(1, np.int64) if offset is None else offset
    if (start < 0).any() or (length < 0).any() or (start > size - length).any():
        return "a sample lies beyond the end of its file"
    return None


Layout = Fixed | RowTable | Pieces | Boxes | Chunked


def rebuild_layout(
    described: Mapping[str, Any],
    prefix: str,
    sections: Mapping[str, npt.NDArray[Any]],
    files: Files,
    same: Layout | None = None,
) -> Layout:
    """Rebuild the layout of a saved index; builtin errors if it does not fit.

    same:  layout of another field, of windows of the same chunks.
    """
    get = functools.partial(take_column, sections)
    if isinstance(same, Windows):
        grid = WindowGrid.rebuild(described["windows"], same.grid.files)
        chunk = tuple(map(int, described["chunk"]))
        return Windows(same.first, same.chunks, grid, chunk, same.in_files)
    own = FileGrids.rebuild(prefix, sections)
    if described.get("chunks") is not None:
        chunks = rebuild_layout(described["chunks"], prefix, sections, files)
        assert isinstance(chunks, RowTable | Pieces)
        first = get(f"{prefix}.chunks.first", np.int64)
        if "clips" in described or "films" in described:
            from . import clips

            if "films" in described:
                return clips.Films.rebuild(prefix, sections, Chunked(first, chunks))
            return clips.Clips.rebuild(described, prefix, sections, Chunked(first, chunks))
        if (windows := described.get("windows")) is None:
            return Chunked(first, chunks)
        chunk, in_files = tuple(map(int, described["chunk"])), None
        if own is not None:
            in_files = get(f"{prefix}.in_files", np.int64).reshape(own.shape.shape)
        return Windows(first, chunks, WindowGrid.rebuild(windows, own), chunk, in_files)
    if (boxes := described.get("boxes")) is not None:
        first, base = get(f"{prefix}.first", np.int64), get(f"{prefix}.base", np.int64)
        return Boxes(WindowGrid.rebuild(boxes, own), first, base, int(described["itemsize"]))
    if described["record_bytes"] is not None:
        first, base = get(f"{prefix}.first", np.int64), get(f"{prefix}.base", np.int64)
        stride_bytes = int(described.get("stride_bytes", 0))
        return Fixed(first, base, int(described["record_bytes"]), stride_bytes)
    if described.get("pieces"):
        return Pieces(*(get(f"{prefix}.{name}", dtype) for name, dtype in _PIECES.items()))
    has = sections.__contains__
    file = get(f"{prefix}.file", np.uint32) if has(f"{prefix}.file") else None
    length = get(f"{prefix}.length", np.int64) if has(f"{prefix}.length") else files.size
    if file is not None and len(file) == 1:  # that of all samples: it takes no memory for each
        file = np.broadcast_to(file, len(length))
    return RowTable(
        file, get(f"{prefix}.offset", np.int64) if has(f"{prefix}.offset") else None, length
    )


def _has_one_value(column: npt.NDArray[Any]) -> bool:
    """True if all values of a column, of one at least, are equal. Columns of many samples may be
    mapped from a file: of those that differ only the start is read."""
    if column.strides == (0,) or column[0] != column[-1]:
        return bool(column[0] == column[-1])
    starts = range(0, len(column), 1 << 16)
    return all(bool((column[at : at + (1 << 16)] == column[0]).all()) for at in starts)
