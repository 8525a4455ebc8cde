"""Windows of arrays: which boxes the options `window`, `stride` and `target` ask of which axes.

    window   {axis: elements}: a sample is a box of so many elements along these axes, and all of
             the others. An axis has the name that the file gives it; where it gives none, a number.
    stride   {axis: elements} from a window to the next; by default the window's own.
    target   {axis: (first, end)}: a second box, a field "<name>_target", from `first` to `end`
             elements behind the start of the window: (12, 18) follows a window of 12.

Only whole windows are samples: what is left at the end of an axis is in none. An array that has
some of the axes alone, such as a mask of places, is cut along those, and repeats along the others.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ... import limits
from ...errors import FormatError, UsageError
from ...extent import Int
from ..fields import Codec, Field
from ..layout import Boxes, Layout, RowTable, Windows
from ..windows import WindowGrid
from .chunk_grid import ChunkGrid

Sizes = Mapping[str, int] | None
Targets = Mapping[str, Sequence[int]] | None


class WindowRequest(NamedTuple):
    """Windows that were asked for; see the module."""

    window: Mapping[str, int]
    stride: Sizes = None
    target: Targets = None


class NamedArray(NamedTuple):
    """An array as windows see it.

    where:  its place, for messages.
    axes:   name of each axis, or its number.
    """

    where: str
    shape: tuple[int, ...]
    axes: tuple[str, ...]


class WindowField(NamedTuple):
    """A field of windows: the array that it is of, and its boxes."""

    name: str
    array: str
    grid: WindowGrid


def name_axes(names: Sequence[str | None] | None, axes: int) -> tuple[str, ...]:
    """Name the axes of an array: those without a name of their own by number."""
    given = [None] * axes if names is None or len(names) != axes else names
    return tuple(name or str(axis) for axis, name in enumerate(given))


def is_coordinate(name: str, axes: Sequence[str]) -> bool:
    """True if an array has the values along the axis of its name, as the CF conventions say."""
    return tuple(axes) == (name.split("/")[-1],)


class CoordinateSpan(NamedTuple):
    """Values of a coordinate in one file: the first, the last, and the step if there is one."""

    first: float
    last: float
    step: float | None


_TIME_UNITS = re.compile(
    r"(second|minute|hour|day)s? since (\d+-\d+-\d+)(?:[T ](\d+:\d+(?::\d+)?))?"
)
_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}


def measure_span(where: str, values: npt.NDArray[Any], units: str = "") -> CoordinateSpan:
    """Measure a coordinate; FormatError unless it is finite, and rises or falls all along.

    units:  of the CF conventions: times since different dates are compared in seconds.
    """
    places = np.asarray(values, np.float64)
    if parsed := _TIME_UNITS.match(units):
        unit, day, hour = parsed.groups()
        with contextlib.suppress(ValueError):  # not a day of this calendar: as it is
            year, month, date = day.split("-")
            clock = ":".join(number.zfill(2) for number in (hour or "0:0").split(":"))
            text = f"{year:0>4}-{month:0>2}-{date:0>2}T{clock}"
            since = np.datetime64(text, "s").astype(np.int64)
            places = places * _SECONDS[unit] + float(since)
    for at in np.flatnonzero(~np.isfinite(places))[:1].tolist():
        raise FormatError(f"{where} is {values[at]} at {at:,}: a coordinate has a value everywhere")
    steps = np.diff(places)
    wrong = np.flatnonzero(np.sign(steps) != np.sign(steps[:1]))[:1].tolist()
    if wrong or not np.all(steps):
        at = (wrong or np.flatnonzero(steps == 0).tolist())[0]
        what = f"{where} goes from {values[at]} to {values[at + 1]} at {at:,}"
        raise FormatError(f"{what}, and another way before: sort it, and drop doubles")
    is_even = len(steps) and np.allclose(steps, steps[0], rtol=1e-4, atol=0)
    return CoordinateSpan(float(places[0]), float(places[-1]), float(steps[0]) if is_even else None)


def check_spans(axis: str, paths: Sequence[str], spans: Sequence[CoordinateSpan]) -> None:
    """Check that a coordinate goes on from file to file; FormatError at an overlap or a gap."""
    pairs = itertools.pairwise(zip(paths, spans, strict=True))
    for (path, span), (next_path, following) in pairs:
        step = span.step or following.step
        forward = (step or (spans[-1].first - spans[0].first) or 1) > 0
        between = following.first - span.last
        if (between > 0) != forward:
            what = f"{axis!r} of {next_path} does not go on behind that of {path}"
            raise FormatError(f"{what}: name the files in its sequence, each once")
        if step is not None and abs(between - step) > abs(step) / 100:
            what = f"{axis!r} has a gap between {path} and {next_path}: {between:g}, not {step:g}"
            raise FormatError(f"{what}: open the files of each side by themselves")


def cut_windows(arrays: Mapping[str, NamedArray], request: WindowRequest) -> list[WindowField]:
    """Cut arrays into windows: the fields, of equally many windows each.

    Windows are numbered in C order of the axes, as the array has them that has most of them.

    UsageError if an axis does not exist, or is shorter than a window with its target; FormatError
    if two arrays disagree about its length.
    """
    lengths: dict[str, tuple[int, str]] = {}
    for array in sorted(arrays.values(), key=lambda one: -len({*one.axes} & {*request.window})):
        for axis, size in zip(array.axes, array.shape, strict=True):
            known, where = lengths.setdefault(axis, (size, array.where))
            if axis in request.window and known != size:
                what = f"{array.where} has {size:,} elements along {axis!r}, and {where} {known:,}"
                raise FormatError(f"{what}: choose arrays of one grid by fields=")
    named = ", ".join(f"{axis!r} ({size:,})" for axis, (size, _) in lengths.items())
    stride, target = request.stride or {}, request.target or {}
    for option, given in (("window", request.window), ("stride", stride), ("target", target)):
        for axis in given:
            if axis not in lengths:
                raise UsageError(f"{option}: no array has an axis {axis!r}, but {named}")
            if axis not in request.window:
                raise UsageError(f"{option} has the axis {axis!r}, and window= has not: add it")
    steps: dict[str, int] = {}
    every: dict[str, int] = {}
    before = {axis: max(0, -int(target.get(axis, (0,))[0])) for axis in request.window}
    for axis in (axis for axis in lengths if axis in request.window):
        length, where = lengths[axis]
        size = request.window[axis]
        reach = before[axis] + max(size, int(target.get(axis, (0, 0))[1]))
        if reach > length:
            more = f", with its target {reach:,}" if reach > size else ""
            what = f"a window of {size:,} along {axis!r}{more}"
            raise UsageError(f"{where} has {length:,} elements, fewer than {what}: give less")
        steps[axis] = (length - reach) // stride.get(axis, size) + 1
    count = 1
    for axis in reversed(steps):
        every[axis], count = count, count * steps[axis]
    if count > limits.order_count_max:
        raise UsageError(f"there would be {count:,} windows: give larger strides")

    def lay_out(array: NamedArray, is_target: bool) -> WindowGrid:
        size, start = list(array.shape), [0] * len(array.shape)
        for number, axis in enumerate(array.axes):
            if axis in request.window:
                low, high = 0, request.window[axis]
                if is_target and axis in target:
                    low, high = target[axis]
                size[number], start[number] = high - low, before[axis] + low
        strides = [
            stride.get(axis, request.window[axis]) if axis in steps else 1 for axis in array.axes
        ]
        return WindowGrid(
            array.shape,
            tuple(size),
            tuple(start),
            tuple(strides),
            tuple(steps.get(axis, 1) for axis in array.axes),
            tuple(every.get(axis, 1) for axis in array.axes),
            count,
            array.axes,
        )

    fields = []
    for name, array in arrays.items():
        fields.append(WindowField(name, name, lay_out(array, False)))
        if set(array.axes) & set(target):  # right behind it: its chunks are decoded then
            if (behind := f"{name}_target") in arrays:
                what = f"{array.where}: its target would be {behind!r}, and an array is called so"
                raise UsageError(f"{what}: choose arrays, or other names, by fields=")
            fields.append(WindowField(behind, name, lay_out(array, True)))
    return fields


def lay_out_boxes(
    cut: WindowField, dtype: np.dtype[Any], first: Int, base: Int
) -> tuple[Field, Boxes]:
    """Lay out the windows of an array that is stored row after row; see `Boxes`."""
    field = Field(cut.name, dtype, cut.grid.size)
    return field, Boxes(cut.grid, first, base, dtype.itemsize)


def lay_out_chunks(
    cut: WindowField,
    dtype: np.dtype[Any],
    grid: ChunkGrid,
    chunks: RowTable,
    edges: Int,
    codec: Codec,
) -> tuple[Field, Layout]:
    """Lay out the windows of an array in chunks.

    chunks:  of `list_chunks`, one table for all fields of an array: each is decoded once for all.
    edges:   the first row of each row of chunks, and the end.
    codec:   of single chunks.
    """
    field = Field(cut.name, dtype, cut.grid.size, codec)
    return field, Windows(edges, chunks, cut.grid, grid.chunk)


def list_chunks(grid: ChunkGrid) -> RowTable:
    """List the chunks of an array; an absent one has no bytes."""
    length = np.maximum(grid.length, 0)
    return RowTable(grid.file, np.where(grid.length < 0, 0, grid.offset), length)


def find_edges(grid: ChunkGrid) -> Int:
    """Find the first row of each row of chunks of an array, and the end."""
    starts = np.arange(grid.cells[0] + 1, dtype=np.int64) * grid.chunk[0]
    edges: Int = np.minimum(starts, grid.shape[0])
    return edges
