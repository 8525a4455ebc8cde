"""Windows of arrays: boxes of one shape, each a function of its number.

No table of windows is made: of 10^9 of them an index is as small as of one. `Boxes` are those of an
array that is stored as it is; those of an array in chunks are `layout.Windows`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..extent import Extents, Files, Int

Columns = dict[str, npt.NDArray[Any]]
Description = dict[str, Any]
"""Description of a layout in the header of a saved index, beside its columns."""


FILE_AXIS = "file"
"""The first axis of windows that are cut within each of several files: the file's number."""


@dataclass(frozen=True, slots=True, eq=False)
class FileGrids:
    """Windows that are cut within each of several files, a row a file.

    first:  int64 (files + 1,), number of each file's first window.
    shape, steps, every:  int64 (files, axes), as `WindowGrid` has them. The first axis is
            `FILE_AXIS`, along which a file has one place.
    begin:  int64 (files,), where the first window starts along the second axis, with a `pace`.
    """

    first: Int
    shape: Int
    steps: Int
    every: Int
    begin: Int | None = None

    def sections(self, prefix: str) -> Columns:
        grids = np.stack([self.shape, self.steps, self.every]).reshape(-1)
        begin = {} if self.begin is None else {f"{prefix}.begin": self.begin}
        return {f"{prefix}.windows": self.first, f"{prefix}.grids": grids, **begin}

    @classmethod
    def rebuild(cls, prefix: str, sections: Mapping[str, npt.NDArray[Any]]) -> FileGrids | None:
        """Rebuild what was saved; None if nothing was."""
        if f"{prefix}.grids" not in sections:
            return None
        first = take_column(sections, f"{prefix}.windows", np.int64)
        grids = take_column(sections, f"{prefix}.grids", np.int64)
        begin = None
        if f"{prefix}.begin" in sections:
            begin = take_column(sections, f"{prefix}.begin", np.int64)
        shape, steps, every = grids.reshape(3, len(first) - 1, -1)
        return cls(first, shape, steps, every, begin)


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
    files:   of arrays of one file each, of which `shape`, `steps` and `every` have the most.
    pace:    elements from a window to the next along the second axis, which need not be whole: a
             window starts at the nearest one; 0: `stride` says it.
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
    files: FileGrids | None = None
    pace: float = 0.0

    @property
    def room(self) -> tuple[int, ...] | None:
        """The most elements of a box that lie in the array; None where files differ in that."""
        if self.files is None or not self.fill:
            return tuple(map(min, self.size, self.shape))
        rooms = self.find_rooms(np.flatnonzero(np.diff(self.files.first)))
        return tuple(rooms[0].tolist()) if (rooms == rooms[0]).all() else None

    def find_rooms(self, files: Int) -> Int:
        """Return the most elements of a box that lie in the arrays of these files."""
        assert self.files is not None
        return np.minimum(self.files.shape[files], self.size)

    def find_files(self, windows: Int) -> Int:
        """Return the numbers of the files that windows are of."""
        assert self.files is not None
        files: Int = np.searchsorted(self.files.first, windows, side="right") - 1
        return files

    def find_shapes(self, windows: Int) -> Int:
        """Return the shapes of the arrays of windows, or the one of all."""
        if self.files is None:
            return np.array(self.shape, np.int64)
        return self.files.shape[self.find_files(windows)]

    def find_origins(self, windows: Int) -> Int:
        """Return where windows start, int64 (windows, axes)."""
        if self.files is not None:
            file = self.find_files(windows)
            inside = (windows - self.files.first[file])[:, None] // self.files.every[file]
            origins = inside % self.files.steps[file] * np.array(self.stride, np.int64)
            origins += self.start
            origins[:, 0] = file
            if self.files.begin is not None:
                passed = (windows - self.files.first[file]) * self.pace
                origins[:, 1] = self.files.begin[file] + np.floor(passed + 0.5).astype(np.int64)
            return origins
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
        if not self.fill:
            return origins
        shapes = self.find_shapes(windows)
        moved: Int = np.clip(origins, 0, shapes - np.minimum(shapes, self.size))
        return moved

    def pad(self, windows: Int, rows: Any, is_moved: bool) -> npt.NDArray[Any]:
        """Return windows with the fill value where they lie beyond the array.

        is_moved:  rows are boxes of `room` at `find_read_origins`; else windows at their places.
        """
        origins, shapes = self.find_origins(windows), self.find_shapes(windows)
        if not isinstance(rows, np.ndarray):  # of different rooms: each into a window's corner
            boxes, rows = rows, np.empty((len(rows), *self.size), rows.values.dtype)
            for row, room in enumerate(np.minimum(shapes, self.size).tolist()):
                rows[row][tuple(map(slice, room))] = boxes[row].reshape(room)
        low = np.maximum(-origins, 0)
        high = np.maximum(np.minimum(shapes - origins, self.size), low)
        beyond = np.flatnonzero(((low > 0) | (high < self.size)).any(axis=1))
        filled: npt.NDArray[Any] = rows
        if not len(beyond):
            return filled
        moved = origins - self.find_read_origins(windows) if is_moved else np.zeros_like(origins)
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

    def sections(self, prefix: str) -> Columns:
        return {} if self.files is None else self.files.sections(prefix)

    def described(self) -> Description:
        axes = {name: getattr(self, name) for name in (*_AXES, "count", "axes")}
        pace = {"pace": self.pace} if self.pace else {}
        return axes | ({"fill": self.fill} if self.fill else {}) | pace

    @classmethod
    def rebuild(cls, described: Mapping[str, Any], files: FileGrids | None = None) -> WindowGrid:
        axes = {name: tuple(map(int, described[name])) for name in _AXES}
        names = tuple(map(str, described.get("axes", ())))
        fill = bytes.fromhex(described.get("fill", "")).hex()
        count, pace = int(described["count"]), float(described.get("pace", 0))
        return cls(**axes, count=count, axes=names, fill=fill, files=files, pace=pace)

    def find_flaw(self) -> str | None:
        columns = [getattr(self, name) for name in _AXES]
        if self.count < 1 or not self.shape or len(set(map(len, columns))) > 1:
            return "windows have no axes"
        shape, size, start, stride, steps, every = (np.array([one], object) for one in columns)
        counts = np.array([self.count])
        if (files := self.files) is not None:
            counts, of_files = np.diff(files.first), (files.shape, files.steps, files.every)
            if files.first[0] != 0 or (counts < 0).any() or files.first[-1] != self.count:
                return "the files' first windows are not in order"
            if any(one.shape != (len(counts), len(self.shape)) for one in of_files):
                return "windows of files have other axes"
            is_one = (self.size[0], self.start[0], self.stride[0]) == (1, 0, 1)
            if not is_one or (files.shape < 1).any() or (files.shape[:, 0] != len(counts)).any():
                return "windows of files are not of one file each"
            if files.begin is not None and (
                len(files.begin) != len(counts)
                or (np.abs(files.begin) > _REACH).any()
                or not (self.fill and 0 < self.pace * max(1, counts.max()) < _REACH)
            ):
                return "windows of files begin nowhere"
            shape, steps, every = (one[counts > 0].astype(object) for one in of_files)
            counts = counts[counts > 0]
        least = min(one.min() for one in (size, stride, steps, every))
        if least < 1 or (start <= -size).any() or (every * steps > counts[:, None]).any():
            return "windows have no size, or more places than numbers"
        ends = start + (steps - 1) * stride + size
        if max(one.max() for one in (shape, stride, ends, ends - 2 * start)) >= 1 << 63:
            return "a window lies beyond any array"
        if not self.fill and ((start < 0).any() or (ends > shape).any()):
            return "a window reaches beyond its array"
        return None


_REACH = 1 << 50
_AXES = ("shape", "size", "start", "stride", "steps", "every")


@dataclass(frozen=True, slots=True, eq=False)
class Boxes:
    """Windows of an array that is stored row after row, in one file or several.

    grid:   of the rows of all files, which make up the first axis; or of each file.
    first:  int64 (files + 1,), number of each file's first row.
    base:   int64 (files,), byte at which it starts.
    """

    grid: WindowGrid
    first: Int
    base: Int
    itemsize: int

    @property
    def row_bytes(self) -> int | None:
        room = self.grid.room
        return None if room is None else math.prod(room) * self.itemsize

    @property
    def count(self) -> int:
        return self.grid.count

    @property
    def total_bytes(self) -> int:
        """Bytes of the array: those of windows may be more, where they overlap."""
        if self.grid.files is not None:
            return int(self.grid.files.shape[:, 1:].prod(axis=1).sum()) * self.itemsize
        return math.prod(self.grid.shape) * self.itemsize

    @property
    def mean_bytes(self) -> float:
        return float(self.row_bytes or math.prod(self.grid.size) * self.itemsize)

    def lengths(self, samples: Int) -> Int:
        if (row_bytes := self.row_bytes) is not None:
            return np.full(len(samples), row_bytes, np.int64)
        rooms = self.grid.find_rooms(self.grid.find_files(samples))
        lengths: Int = rooms.prod(axis=1) * self.itemsize
        return lengths

    def pieces(self, samples: Int) -> tuple[Extents, Int | None]:
        grid, lead = self.grid, int(self.grid.files is not None)
        origins = grid.find_read_origins(samples)
        shapes = grid.find_shapes(samples)[..., lead:]
        strides = count_strides(shapes) * self.itemsize
        start = (origins[:, lead:] * strides).sum(axis=1) if lead else origins @ strides
        rooms, groups = np.array([grid.room or grid.size]), [np.arange(len(samples))]
        if grid.room is None and len(samples):
            every = grid.find_rooms(origins[:, 0])
            rooms, group = np.unique(every, axis=0, return_inverse=True)
            groups = [np.flatnonzero(group.reshape(-1) == one) for one in range(len(rooms))]
        runs, counts = [], np.ones(len(samples), np.int64)
        for at, room in zip(groups, rooms[:, lead:].tolist(), strict=True):
            own = at if lead else None
            last = int(np.flatnonzero((shapes[own] != room).any(axis=0)).max(initial=0))
            if len(self.base) > 1 and not lead:  # no run goes from a row to the next
                last = max(last, 1)
            index = np.indices(room[:last]).reshape(last, math.prod(room[:last]))
            counts[at] = index.shape[1]
            place = (start[at, None] + strides[own][:, :last] @ index).reshape(-1)
            length = np.full(len(place), math.prod(room[last:]) * self.itemsize)
            runs.append((np.repeat(at, index.shape[1]), place, length))
        row, place, length = runs[0]
        if len(runs) > 1:
            columns = [np.concatenate(column) for column in zip(*runs, strict=True)]
            row, place, length = (
                column[np.argsort(columns[0], kind="stable")] for column in columns
            )
        file = origins[row, 0] if lead else np.zeros(len(row), np.int64)
        if len(self.base) > 1 and not lead:
            row_bytes = math.prod(grid.shape[1:]) * self.itemsize
            file = np.searchsorted(self.first, place // row_bytes, side="right") - 1
            place -= self.first.take(file) * row_bytes
        place += self.base.take(file)
        extents = Extents(file.astype(np.uint32), place, length)
        return extents, None if len(row) == len(samples) else counts

    def described(self) -> Description:
        return {"record_bytes": None, "boxes": self.grid.described(), "itemsize": self.itemsize}

    def sections(self, prefix: str, _: Files) -> Columns:
        own = {f"{prefix}.first": self.first, f"{prefix}.base": self.base}
        return own | self.grid.sections(prefix)

    def flaw(self, files: Files) -> str | None:
        if flaw := self.grid.find_flaw():
            return flaw
        if (own := self.grid.files) is not None:
            if not len(own.shape) == len(self.base) == len(files) or (self.base < 0).any():
                return "there are not as many arrays as files"
            ends = self.base + own.shape[:, 1:].astype(float).prod(axis=1) * self.itemsize
            return "an array lies beyond the end of its file" if (ends > files.size).any() else None
        if len(self.first) != len(files) + 1 or len(self.base) != len(files) or self.first[0] != 0:
            return "the files' first rows do not match the files"
        rows, row = np.diff(self.first), math.prod(self.grid.shape[1:]) * self.itemsize
        is_whole = self.first[-1] == self.grid.shape[0]
        if row < 1 or (rows < 0).any() or (self.base < 0).any() or not is_whole:
            return "the files' first rows are not in order"
        if (rows > (files.size - self.base) // row).any():
            return "rows lie beyond the end of their file"
        return None


def count_strides(shape: npt.ArrayLike) -> Int:
    """Elements from an index along each axis to the next; for each row of several shapes."""
    sizes = np.asarray(shape, np.int64)
    strides = np.ones_like(sizes)
    strides[..., :-1] = np.cumprod(sizes[..., :0:-1], axis=-1)[..., ::-1]
    return strides


def take_column(sections: Mapping[str, npt.NDArray[Any]], key: str, dtype: Any) -> npt.NDArray[Any]:
    """Take a section of a saved index; ValueError unless it has this type."""
    values = sections[key]
    if values.dtype != dtype:
        raise ValueError(f"section {key!r} is {values.dtype}")
    return values
