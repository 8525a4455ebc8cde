"""Windows of arrays: which boxes the options `window`, `stride` and others ask of which axes.

    window   {axis: elements}: a sample is a box of so many elements along these axes, and all of
             the others. An axis has the name that the file gives it; where it gives none, a number.
    stride   {axis: elements} from a window to the next; by default the window's own.
    target   {axis: (first, end)}: a second box, a field "<name>_target", from `first` to `end`
             elements behind the start of the window: (12, 18) follows a window of 12.
    halo     {axis: elements}: so many more on both sides of the window. They do not count for
             strides and targets, and are padded at the ends of the array.
    drop     "partial": only whole windows, with their targets, are samples; what is left at the end
             of an axis is in none. "pad": one more window, that is padded, has the rest.
    axis     in place of all these: a sample is one place along this axis, without the axis.

What lies beyond an array is its fill value, or 0. A field "<axis>_valid" tells for each place of a
window along a padded axis whether the array has it, "<axis>_valid_target" where the target is at
other places. An array that has some of the axes alone, such as a mask of places, is cut along
those, and repeats along the others.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import math
import re
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ... import limits
from ...errors import FormatError, UsageError
from ...extent import Files, Int
from ..attributes import WindowMask
from ..fields import Codec, Field
from ..layout import Boxes, Layout, RowTable, Windows
from ..table import Index
from ..windows import WindowGrid
from .chunk_grid import ChunkGrid

Sizes = Mapping[str, int] | None
Targets = Mapping[str, Sequence[int]] | None


class WindowRequest(NamedTuple):
    """Windows that were asked for; see the module."""

    window: Mapping[str, int]
    stride: Mapping[str, int] = {}
    target: Mapping[str, Sequence[int]] = {}
    halo: Mapping[str, int] = {}
    drop: str = "partial"
    axis: str | None = None


class NamedArray(NamedTuple):
    """An array as windows see it.

    where:  its place, for messages.
    axes:   name of each axis, or its number.
    fill:   its fill value, as hexadecimal bytes.
    """

    where: str
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    dtype: np.dtype[Any]
    fill: str


class PlainRows(NamedTuple):
    """Rows of an array that is stored as it is; see `Boxes`."""

    first: Int
    base: Int


class ArrayChunks(NamedTuple):
    """Chunks of an array, in C order.

    table:  one for all fields of an array: each chunk is decoded once for all.
    edges:  the first row of each row of chunks, and the end.
    shape:  of a chunk.
    codec:  of single chunks.
    """

    table: RowTable
    edges: Int
    shape: tuple[int, ...]
    codec: Codec

    @classmethod
    def list(cls, grid: ChunkGrid, codec: Codec, edges: Int | None = None) -> ArrayChunks:
        """List the chunks of an array; an absent one has no bytes."""
        table = RowTable(
            grid.file, np.where(grid.length < 0, 0, grid.offset), np.maximum(grid.length, 0)
        )
        return cls(table, find_edges(grid) if edges is None else edges, grid.chunk, codec)


class ArrayNotes(NamedTuple):
    """Notes of a container on an array, beside its values: its path there, the names of its axes,
    its attributes as xarray has them in Zarr 3, and its value if it has no axes."""

    path: str
    axes: tuple[str, ...]
    attributes: dict[str, Any]
    value: npt.NDArray[Any] | None = None


def encode_fill(dtype: np.dtype[Any], fill: Any) -> Any:
    """Encode the attribute `_FillValue` as xarray does in Zarr 3, where a float is base64."""
    value = np.array(fill, dtype).reshape(-1)[0].item()
    if dtype.kind == "f":
        return base64.standard_b64encode(struct.pack("<d", value)).decode()
    return value


class WindowField(NamedTuple):
    """A field of windows: the array that it is of, and its boxes."""

    name: str
    array: str
    grid: WindowGrid


class WindowCut(NamedTuple):
    """The fields of windows, of equally many windows each; and an axis that fields lose."""

    fields: list[WindowField]
    masks: list[WindowMask]
    axis: str | None


def name_axes(names: Sequence[str | None] | None, axes: int) -> tuple[str, ...]:
    """Name the axes of an array: those without a name of their own by number."""
    given = [None] * axes if names is None or len(names) != axes else names
    return tuple(name or str(axis) for axis, name in enumerate(given))


def name_array(where: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NamedArray:
    """Return an array whose file names no axes, and has no fill value, as windows see it."""
    return NamedArray(where, shape, name_axes(None, len(shape)), dtype, bytes(dtype.itemsize).hex())


def check_chain(array: NamedArray, files: int, request: WindowRequest) -> None:
    """Check that windows go along the first axis of an array, if it goes on in more files."""
    if files > 1 and array.axes[0] not in request.window:
        what = f"{array.where} and {files - 1:,} more files go on along {array.axes[0]!r}"
        raise UsageError(f"{what}: give it in window=, or open one file")


def is_coordinate(name: str, axes: Sequence[str]) -> bool:
    """True if an array has the values along the axis of its name, as the CF conventions say."""
    return tuple(axes) == (name.split("/")[-1],)


class CoordinateSpan(NamedTuple):
    """Values of a coordinate in one file: the first, the last, and the step if there is one."""

    first: float
    last: float
    step: float | None


_TIME_UNITS = re.compile(
    r"(?a)(second|minute|hour|day)s? since (\d{1,4}-\d\d?-\d\d?)(?!\d)"
    r"(?:[T ](\d\d?:\d\d?(?::\d\d?)?))?"
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


def cut_windows(arrays: Mapping[str, NamedArray], request: WindowRequest) -> WindowCut:
    """Cut arrays into windows.

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
    window, stride, target, halo, drop, lost = request
    for option in ("window", "stride", "target", "halo"):
        for axis in getattr(request, option):
            if axis not in lengths:
                raise UsageError(f"{option}: no array has an axis {axis!r}, but {named}")
            if axis not in window:
                raise UsageError(f"{option} has the axis {axis!r}, and window= has not: add it")
    steps: dict[str, int] = {}
    every: dict[str, int] = {}
    before = {axis: max(0, -int(target.get(axis, (0,))[0])) for axis in window}
    for axis in (axis for axis in lengths if axis in window):
        length, where = lengths[axis]
        size, step = window[axis], stride.get(axis, window[axis])
        reach = before[axis] + max(size, int(target.get(axis, (0, 0))[1]))
        if (reach if drop == "partial" else before[axis] + 1) > length:
            more = f", with its target {reach:,}" if reach > size else ""
            what = f"a window of {size:,} along {axis!r}{more}"
            remedy = "give less" if drop == "pad" else "give less, or drop='pad'"
            raise UsageError(f"{where} has {length:,} elements, fewer than {what}: {remedy}")
        steps[axis] = (length - reach) // step + 1
        if drop == "pad":  # up to the first that has the last element, if one begins in the array
            steps[axis] = (
                min(max(0, -(-(length - reach) // step)), (length - before[axis] - 1) // step) + 1
            )
    count = 1
    for axis in reversed(steps):
        every[axis], count = count, count * steps[axis]
    if count > limits.order_count_max:
        raise UsageError(f"there would be {count:,} windows: give larger strides")

    def find_span(axis: str, length: int, is_target: bool) -> tuple[int, int]:
        """Return the place and the end of a box along an axis, from the start of the window."""
        if axis not in window:
            return 0, length
        if is_target:
            low, high = target.get(axis, (0, window[axis]))
            return int(low), int(high)
        return -halo.get(axis, 0), window[axis] + halo.get(axis, 0)

    def lay_out(array: NamedArray, is_target: bool) -> WindowGrid:
        pairs = list(zip(array.axes, array.shape, strict=True))
        spans = [find_span(axis, length, is_target) for axis, length in pairs]
        is_padded = any(axis in (window if drop == "pad" else halo) for axis in array.axes)
        sizes = math.prod(high - low for low, high in spans), math.prod(array.shape)
        bytes_max = max(limits.undeclared_chunk_bytes_max, sizes[1] * array.dtype.itemsize)
        if is_padded and sizes[0] * array.dtype.itemsize > bytes_max:
            what = f"{array.where}: padded windows have {sizes[0]:,} elements, and it {sizes[1]:,}"
            raise UsageError(f"{what}: give a smaller window, target or halo")
        return WindowGrid(
            array.shape,
            tuple(high - low for low, high in spans),
            tuple(
                before.get(axis, 0) + low for axis, (low, _) in zip(array.axes, spans, strict=True)
            ),
            tuple(stride.get(axis, window[axis]) if axis in steps else 1 for axis in array.axes),
            tuple(steps.get(axis, 1) for axis in array.axes),
            tuple(every.get(axis, 1) for axis in array.axes),
            count,
            array.axes,
            array.fill if is_padded and not (is_target and drop == "partial") else "",
        )

    fields = []
    for name, array in arrays.items():
        fields.append(WindowField(name, name, lay_out(array, False)))
        if set(array.axes) & set(target):  # right behind it: its chunks are decoded then
            fields.append(WindowField(f"{name}_target", name, lay_out(array, True)))
    masks = []
    for axis in (axis for axis in steps if axis in halo or drop == "pad"):
        along = NamedArray("", (lengths[axis][0],), (axis,), np.dtype(bool), "00")
        grids = [lay_out(along, False), lay_out(along, True)]
        masks.append(WindowMask.make(f"{axis}_valid", grids[0]))
        if target and drop == "pad" and grids[0].described() != grids[1].described():
            masks.append(WindowMask.make(f"{axis}_valid_target", grids[1]))
    made = [*(field.name for field in fields), *(mask.name for mask in masks)]
    for name in made:
        if made.count(name) > 1:
            what = f"two fields of {arrays[fields[0].array].where} would be {name!r}"
            raise UsageError(f"{what}: choose arrays, or other names, by fields=")
    return WindowCut(fields, masks, lost)


def build_index(
    name: str,
    files: Files,
    sources: Files,
    arrays: Mapping[str, NamedArray],
    cut: WindowCut,
    stored: Mapping[str, PlainRows | ArrayChunks],
) -> Index:
    """Build the index of the windows of arrays, which are stored so, for the format of a name."""
    fields: list[Field] = []
    layouts: list[Layout] = []
    for field_name, array, grid in cut.fields:
        dtype, rows = arrays[array].dtype, stored[array]
        pairs = zip(grid.axes, grid.size, strict=True)
        shape = tuple(size for axis, size in pairs if axis != cut.axis)
        made_shape = None if shape == grid.size and not grid.fill else shape
        if isinstance(rows, PlainRows):
            fields.append(Field(field_name, dtype, grid.room, made_shape=made_shape))
            layouts.append(Boxes(grid, rows.first, rows.base, dtype.itemsize))
        else:
            fields.append(Field(field_name, dtype, grid.size, rows.codec, made_shape=made_shape))
            layouts.append(Windows(rows.edges, rows.table, grid, rows.shape))
    masks = tuple(cut.masks)
    return Index(name, files, tuple(fields), tuple(layouts), sources, attributes=masks)


def find_edges(grid: ChunkGrid) -> Int:
    """Find the first row of each row of chunks of an array, and the end."""
    starts = np.arange(grid.cells[0] + 1, dtype=np.int64) * grid.chunk[0]
    edges: Int = np.minimum(starts, grid.shape[0])
    return edges
