"""Windows of arrays: boxes of one shape, each a function of its number.

No table of windows is made: of 10^9 of them an index is as small as of one. `Boxes` are those of an
array that is stored as it is; those of an array in chunks are `layout.Windows`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..extent import Extents, Files, Int

Columns = dict[str, npt.NDArray[Any]]
Description = dict[str, Any]
"""Description of a layout in the header of a saved index, beside its columns."""


@dataclass(frozen=True, slots=True, eq=False)
class WindowGrid:
    """Boxes of one shape in an array, along each of its axes:

    shape:   elements of the array.
    size:    elements of a box.
    start:   where the first box starts.
    stride:  elements from a box to the next.
    steps:   boxes along the axis; 1 where a box has all of it.
    every:   numbers from a box to the next along the axis: window n is at n // every % steps.
    count:   windows in all. An array without some of the axes has one box for many of them.
    axes:    their names, for people.
    fill:    the value, as hexadecimal bytes, that takes the place of elements beyond the array;
             "" where all boxes lie in it.
    """

    shape: tuple[int, ...]
    size: tuple[int, ...]
    start: tuple[int, ...]
    stride: tuple[int, ...]
    steps: tuple[int, ...]
    every: tuple[int, ...]
    count: int
    axes: tuple[str, ...] = ()
    fill: str = ""

    @property
    def room(self) -> tuple[int, ...]:
        """The most elements of a box that lie in the array."""
        return tuple(map(min, self.size, self.shape))

    def find_origins(self, windows: Int) -> Int:
        """Return where windows start, int64 (windows, axes)."""
        origins = np.empty((len(windows), len(self.shape)), np.int64)
        for axis, (every, steps) in enumerate(zip(self.every, self.steps, strict=True)):
            at = windows // every % steps if steps > 1 else 0
            origins[:, axis] = self.start[axis] + at * np.int64(self.stride[axis])
        return origins

    def name_origins(self, windows: Int) -> dict[str, Int]:
        """Return where windows start, by the names of axes."""
        return dict(zip(self.axes, self.find_origins(windows).T, strict=True))

    def find_read_origins(self, windows: Int) -> Int:
        """Return where the boxes of `room` start that are read for windows: all in the array."""
        origins = self.find_origins(windows)
        return np.clip(origins, 0, np.subtract(self.shape, self.room)) if self.fill else origins

    def pad(self, windows: Int, rows: npt.NDArray[Any], is_moved: bool) -> npt.NDArray[Any]:
        """Return windows with the fill value where they lie beyond the array.

        is_moved:  rows are boxes of `room` at `find_read_origins`; else windows at their places.
        """
        origins = self.find_origins(windows)
        low = np.maximum(-origins, 0)
        high = np.maximum(np.minimum(np.subtract(self.shape, origins), self.size), low)
        beyond = np.flatnonzero(((low > 0) | (high < self.size)).any(axis=1))
        if not len(beyond):
            return rows
        moved = origins - self.find_read_origins(windows) if is_moved else np.zeros_like(origins)
        filled = rows
        if is_moved:  # the rows are views of what was read
            filled = np.empty((len(rows), *self.size), rows.dtype)
            filled[tuple(map(slice, rows.shape))] = rows
        value = np.frombuffer(bytes.fromhex(self.fill), rows.dtype)[0]
        for row in beyond.tolist():
            window = np.full(self.size, value, rows.dtype)
            source = map(slice, low[row] + moved[row], high[row] + moved[row])
            window[tuple(map(slice, low[row], high[row]))] = rows[row][tuple(source)]
            filled[row] = window
        return filled

    def count_met(self, axis: int, chunk: int) -> float:
        """Count the chunks of this size along an axis that a box meets, on average."""
        steps = np.arange(min(self.steps[axis], 1 << 16), dtype=np.int64)
        low = self.start[axis] + steps * self.stride[axis]
        high = np.minimum(low + self.size[axis], self.shape[axis]) - 1
        return float((high // chunk - np.maximum(low, 0) // chunk + 1).mean())

    def described(self) -> Description:
        axes = {name: getattr(self, name) for name in (*_AXES, "count", "axes")}
        return axes | ({"fill": self.fill} if self.fill else {})

    @classmethod
    def rebuild(cls, described: Mapping[str, Any]) -> WindowGrid:
        axes = {name: tuple(map(int, described[name])) for name in _AXES}
        names = tuple(map(str, described.get("axes", ())))
        fill = bytes.fromhex(described.get("fill", "")).hex()
        return cls(**axes, count=int(described["count"]), axes=names, fill=fill)

    def find_flaw(self) -> str | None:
        columns = [getattr(self, name) for name in _AXES]
        if self.count < 1 or not self.shape or len(set(map(len, columns))) > 1:
            return "windows have no axes"
        for shape, size, start, stride, steps, every in zip(*columns, strict=True):
            if min(size, stride, steps, every) < 1 or start <= -size or every * steps > self.count:
                return "windows have no size, or more places than numbers"
            if max(stride, abs(start) + (steps - 1) * stride + size) >= 1 << 63:
                return "a window lies beyond any array"
            if not self.fill and (start < 0 or start + (steps - 1) * stride + size > shape):
                return "a window reaches beyond its array"
        return None


_AXES = ("shape", "size", "start", "stride", "steps", "every")


@dataclass(frozen=True, slots=True, eq=False)
class Boxes:
    """Windows of an array that is stored row after row, in one file or several.

    grid:   of the rows of all files, which make up the first axis.
    first:  int64 (files + 1,), number of each file's first row.
    base:   int64 (files,), byte at which it starts.
    """

    grid: WindowGrid
    first: Int
    base: Int
    itemsize: int

    @property
    def row_bytes(self) -> int:
        return math.prod(self.grid.room) * self.itemsize

    @property
    def count(self) -> int:
        return self.grid.count

    @property
    def total_bytes(self) -> int:
        """Bytes of the array: those of windows may be more, where they overlap."""
        return math.prod(self.grid.shape) * self.itemsize

    @property
    def mean_bytes(self) -> float:
        return float(self.row_bytes)

    def lengths(self, samples: Int) -> Int:
        return np.full(len(samples), self.row_bytes, np.int64)

    def pieces(self, samples: Int) -> tuple[Extents, Int | None]:
        origins = self.grid.find_read_origins(samples)
        rows, inside, length = _list_runs(self.grid, self.itemsize, len(self.base) > 1)
        row_bytes = math.prod(self.grid.shape[1:]) * self.itemsize
        strides = count_strides(self.grid.shape)
        row = np.add.outer(origins[:, 0], rows).reshape(-1)
        place = np.add.outer(origins[:, 1:] @ strides[1:] * self.itemsize, inside).reshape(-1)
        file = np.zeros(len(row), np.uint32)
        if len(self.base) > 1:
            file = (np.searchsorted(self.first, row, side="right") - 1).astype(np.uint32)
            row = row - self.first.take(file)
        offset = self.base.take(file) + row * np.int64(row_bytes) + place
        extents = Extents(file, offset, np.full(len(row), length, np.int64))
        return extents, None if len(rows) == 1 else np.full(len(samples), len(rows), np.int64)

    def described(self) -> Description:
        return {"record_bytes": None, "boxes": self.grid.described(), "itemsize": self.itemsize}

    def sections(self, prefix: str, _: Files) -> Columns:
        return {f"{prefix}.first": self.first, f"{prefix}.base": self.base}

    def flaw(self, files: Files) -> str | None:
        if flaw := self.grid.find_flaw():
            return flaw
        if len(self.first) != len(files) + 1 or len(self.base) != len(files) or self.first[0] != 0:
            return "the files' first rows do not match the files"
        rows, row = np.diff(self.first), math.prod(self.grid.shape[1:]) * self.itemsize
        if row < 1 or (rows < 0).any() or (self.base < 0).any() or self.first[-1] != self.rows:
            return "the files' first rows are not in order"
        if (rows > (files.size - self.base) // row).any():
            return "rows lie beyond the end of their file"
        return None

    @property
    def rows(self) -> int:
        """Rows of the array."""
        return self.grid.shape[0]


def count_strides(shape: Sequence[int]) -> Int:
    """Elements from an index along each axis to the next."""
    return np.array([math.prod(shape[axis + 1 :]) for axis in range(len(shape))], np.int64)


@functools.lru_cache(maxsize=64)
def _list_runs(grid: WindowGrid, itemsize: int, by_row: bool) -> tuple[Int, Int, int]:
    """List the runs of bytes of a box: the row of each, its place in that, and the length of all.

    by_row:  no run goes from a row to the next, where rows lie in several files.
    """
    shape, size = grid.shape, grid.room
    cut = [axis for axis in range(len(shape)) if size[axis] != shape[axis]]
    last = max(cut[-1] if cut else 0, int(by_row and len(shape) > 1))
    strides = count_strides(shape)
    rows, inside = np.zeros(1, np.int64), np.zeros(1, np.int64)
    for axis in range(last):
        index = np.arange(size[axis], dtype=np.int64)
        if axis == 0:
            rows, inside = index, np.zeros(len(index), np.int64)
        else:
            rows = np.repeat(rows, len(index))
            inside = np.add.outer(inside, index * strides[axis] * itemsize).reshape(-1)
    length = size[last] * int(strides[last]) * itemsize
    if by_row and len(shape) == 1:
        rows = np.arange(size[0], dtype=np.int64)
        return rows, np.zeros(len(rows), np.int64), itemsize
    return rows, inside, length
