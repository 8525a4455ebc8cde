"""Places of samples in compressed chunks, which are read and decoded as a whole.

Packets    which bytes of a chunk are which frame, of films and sound.
Chunked    samples inside compressed chunks.
Windowed   samples that have something of several chunks each.
Windows    those of an array in chunks.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core
from ..extent import Extents, Files, Int
from .codecs.registry import CompressedChunk, PacketColumns
from .extent_tables import Pieces, RowTable
from .fields import Codec
from .windows import Columns, Description, WindowGrid, count_strides, take_column

Array = npt.NDArray[Any]
Decoded = tuple[int, Array, Int, Int]
"""A decoded chunk: its number and values, and windows that meet it: their places, and rows."""


@dataclass(frozen=True, slots=True, eq=False)
class Packets:
    """Packets of films and of sound, in the sequence of decoding, and the chunks of them.

    size:    uint32 (packets,), bytes.
    shift:   int16 (packets,), a frame's place in the sequence shown, less its packet's number; or
             (0,) where all are 0.
    begin, end:  int64 (chunks,), the packets of each chunk; chunks may share some.
    place:   int64 (chunks,), place of the chunk's first frame, or sample, in what its packets
             decode to: from the first packet's on, in the sequence shown.
    frames:  int64 (chunks,), frames or samples of each.
    config:  uint32 (chunks,) or (1,), number of what its decoder is given, among the codec's.
    """

    size: npt.NDArray[np.uint32]
    shift: npt.NDArray[np.int16]
    begin: Int
    end: Int
    place: Int
    frames: Int
    config: npt.NDArray[np.uint32]

    def list_packets(self, chunks: Int) -> PacketColumns:
        """List the packets of chunks."""
        counts = self.end[chunks] - self.begin[chunks]
        bounds = np.append(0, np.cumsum(counts))
        inside = np.arange(bounds[-1]) - np.repeat(bounds[:-1], counts)
        at = inside + np.repeat(self.begin[chunks], counts)
        rows = inside - np.repeat(self.place[chunks], counts)
        if len(self.shift):
            rows += self.shift[at]
        config = self.config[chunks if len(self.config) > 1 else np.zeros_like(chunks)]
        return PacketColumns(bounds, self.size[at].astype(np.int64), rows, config.astype(np.int64))

    def describe(self, chunk: int) -> dict[str, Any]:
        """Describe the inside of a chunk for its codec: its packets, its place and frames."""
        inside = {"place": int(self.place[chunk]), "frames": int(self.frames[chunk])}
        return inside | {"packets": self.list_packets(np.array([chunk]))}

    def sections(self, prefix: str) -> Columns:
        return {f"{prefix}.packets.{name}": getattr(self, name) for name in _PACKETS}

    @classmethod
    def rebuild(cls, prefix: str, sections: Mapping[str, npt.NDArray[Any]]) -> Packets | None:
        """Rebuild what was saved; None if nothing was."""
        if f"{prefix}.packets.size" not in sections:
            return None
        columns = (
            take_column(sections, f"{prefix}.packets.{name}", dtype)
            for name, dtype in _PACKETS.items()
        )
        return cls(*columns)

    def find_flaw(self, chunks: int) -> str | None:
        columns = self.begin, self.end, self.place, self.frames
        if any(len(column) != chunks for column in columns):
            return "there are not as many groups of packets as of bytes"
        if len(self.shift) not in (0, len(self.size)) or len(self.config) not in (1, chunks):
            return "columns of packets differ in length"
        if (self.begin < 0).any() or (self.begin >= self.end).any() or (self.frames < 1).any():
            return "groups have no packets, or no frames"
        return "groups have packets that are none" if (self.end > len(self.size)).any() else None


_PACKETS = {
    "size": np.uint32,
    "shift": np.int16,
    "begin": np.int64,
    "end": np.int64,
    "place": np.int64,
    "frames": np.int64,
    "config": np.uint32,
}


@dataclass(frozen=True, slots=True, eq=False)
class Chunked:
    """Samples that are decoded from compressed chunks, of one or several pieces each.

    first:   int64 (chunks + 1,), chunk c decodes to the samples first[c]:first[c+1].
    chunks:  layout of the compressed chunks.
    packets: of the chunks of films and sound.
    """

    first: Int
    chunks: RowTable | Pieces
    packets: Packets | None = field(default=None, kw_only=True)

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
        return {} if self.packets is None else self.packets.describe(chunk)

    def cut_chunks(
        self, chunks: Int, bounds: Int, buffer: npt.NDArray[np.uint8]
    ) -> list[CompressedChunk]:
        """Cut compressed chunks from a buffer: int64 (chunks + 1,) bounds of their bytes."""
        extents, pieces = self.pieces(chunks)
        counts = np.ones(len(chunks), np.int64) if pieces is None else pieces
        lengths = np.split(extents.length, np.cumsum(counts)[:-1])
        rows, edges = self.count_rows(chunks).tolist(), itertools.pairwise(bounds.tolist())
        return [
            CompressedChunk(
                chunk, buffer[low:high].data, length.tolist(), row, self.describe_inside(chunk)
            )
            for chunk, (low, high), length, row in zip(
                chunks.tolist(), edges, lengths, rows, strict=True
            )
        ]

    def described(self) -> Description:
        return {"record_bytes": None, "chunks": self.chunks.described()}

    def sections(self, prefix: str, files: Files) -> Columns:
        columns = {f"{prefix}.chunks.first": self.first} | self.chunks.sections(prefix, files)
        return columns if self.packets is None else columns | self.packets.sections(prefix)

    def flaw(self, files: Files) -> str | None:
        if len(self.first) != self.chunks.count + 1 or self.first[0] != 0:
            return "the compressed chunks' first samples do not match the chunks"
        if (np.diff(self.first) <= 0).any():
            return "the compressed chunks' first samples are not in order"
        return self._find_flaw_of_chunks(files)

    def _find_flaw_of_chunks(self, files: Files) -> str | None:
        flaw = None if self.packets is None else self.packets.find_flaw(self.chunks.count)
        return flaw or self.chunks.flaw(files)


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

    def list_parts(self, chunks: Int) -> list[tuple[Windowed, Codec | None, Int, Int]]:
        """List layouts and codecs, None if it is the field's, of chunks in ascending order: with
        the places of theirs in `chunks`, and their numbers there."""
        return [(self, None, np.arange(len(chunks)), chunks)] if len(chunks) else []

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
    def overlap(self, chunk: int, places: Int) -> Iterator[tuple[Any, Any]]:
        """Yield what windows have of a chunk: the place in the window, and the one in the chunk."""

    def copy_overlaps(self, decoded: Sequence[Decoded], windows: Array, threads: int = 1) -> None:
        """Copy what windows have of decoded chunks to rows of an array."""
        for chunk, values, places, rows in decoded:
            for row, (into, taken) in zip(rows, self.overlap(chunk, places), strict=True):
                windows[row][into] = values[taken]

    def find_frames(self, windows: Int, chunks: Int) -> tuple[Int, Int, Int]:
        """Find the frames that windows have of groups of pictures, one each: the pair's number, the
        place in the window, and the row of the group; these ascend in each pair."""
        raise NotImplementedError

    def find_chunks(self, samples: Int) -> tuple[Int, Int]:
        """Find the first chunk that each window meets; and return the windows' numbers."""
        pair, chunk = self.find_pairs(samples)
        return chunk[np.searchsorted(pair, np.arange(len(samples)))], samples


@dataclass(frozen=True, slots=True, eq=False)
class Windows(Windowed):
    """Windows of an array in chunks, each of which is decoded by itself.

    first:   int64, number of the first row of each row of chunks; the last is the number of rows.
    chunks:  in C order of the array, or of one array after the other.
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
        if self.packets is not None:  # the last one of a file has no more than that
            return int(self.packets.frames[chunk]), *self.chunk[2:]
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

    def copy_overlaps(self, decoded: Sequence[Decoded], windows: Array, threads: int = 1) -> None:
        chunks, held, places, rows = zip(*decoded, strict=True)
        *values, out = (
            np.ascontiguousarray(one, windows.dtype).reshape(-1).view("u1")
            for one in (*held, windows)
        )
        boxes = [(*self.find_box(at), one.shape) for at, one in zip(chunks, held, strict=True)]
        edges, shape = np.cumsum([0, *map(len, rows)]), np.array(self.grid.size)
        place, row = np.concatenate(places).ravel(), np.concatenate(rows)
        box = np.array(boxes).ravel()
        _core.copy_overlaps(values, box, edges, place, row, shape, windows.itemsize, out, threads)

    def described(self) -> Description:
        mine = {"windows": self.grid.described(), "chunk": self.chunk}
        return Chunked.described(self) | mine

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
        if self.chunks.count != cells:
            return "the chunks do not make up the array"
        return self._find_flaw_of_chunks(files)

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

    def overlap(self, chunk: int, places: Int) -> Iterator[tuple[Any, Any]]:
        box = list(zip(self.grid.size, *self.find_box(chunk), strict=True))
        for origin in places.tolist():
            into, taken = [], []
            for low, (size, begin, end) in zip(origin, box, strict=True):
                first = max(low, begin)
                last = max(first, min(low + size, end))
                into.append(slice(first - low, last - low))
                taken.append(slice(first - begin, last - begin))
            yield tuple(into), tuple(taken)
