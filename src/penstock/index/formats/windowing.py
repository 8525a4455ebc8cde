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
    sample   "file": windows are cut within each file, or Zarr group, whose arrays may be of any
             sizes along the axes of windows. By default, arrays of several files are one along
             their first axis.

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
from ..windows import FILE_AXIS, FileGrids, WindowGrid
from .chunk_grid import ChunkGrid
from .shards import number_first


class WindowRequest(NamedTuple):
    """Windows that were asked for; see the module."""

    window: Mapping[str, int]
    stride: Mapping[str, int] = {}
    target: Mapping[str, Sequence[int]] = {}
    halo: Mapping[str, int] = {}
    drop: str = "partial"
    axis: str | None = None
    sample: str | None = None

    @property
    def is_by_file(self) -> bool:
        return self.sample == "file"


class ArrayPart(NamedTuple):
    """An array in one file, or in a group, as windows see it.

    where:   its place, for messages.
    axes:    name of each axis, or its number.
    fill:    its fill value, as hexadecimal bytes.
    values:  the byte at which its values start, if they are stored as they are; or its chunks.
    """

    where: str
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    dtype: np.dtype[Any]
    fill: str
    values: int | ChunkGrid = 0

    @property
    def chunk(self) -> tuple[int, ...] | None:
        """The shape of a chunk, if it has chunks."""
        return self.values.chunk[-len(self.shape) :] if isinstance(self.values, ChunkGrid) else None


class WindowArray(NamedTuple):
    """An array that windows are cut from.

    shapes:  int64 (1 or parts, axes): of all parts, one after the other along the first axis; or of
             each, with `FILE_AXIS` as an axis in front.
    """

    parts: Sequence[ArrayPart]
    axes: tuple[str, ...]
    shapes: Int


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


def name_axes(names: Sequence[str | None] | None, axes: int) -> tuple[str, ...]:
    """Name the axes of an array: those without a name of their own by number."""
    given = [None] * axes if names is None or len(names) != axes else names
    return tuple(name or str(axis) for axis, name in enumerate(given))


def name_array(
    where: str, shape: tuple[int, ...], dtype: np.dtype[Any], values: int | ChunkGrid
) -> ArrayPart:
    """Return an array whose file names no axes, and has no fill value, as windows see it."""
    fill = bytes(dtype.itemsize).hex()
    return ArrayPart(where, shape, name_axes(None, len(shape)), dtype, fill, values)


def join_parts(parts: Sequence[ArrayPart], request: WindowRequest) -> WindowArray:
    """Join the parts of an array, each in a file; FormatError that names two that are not alike."""
    first, is_one = parts[0], not request.is_by_file
    if is_one and len(parts) > 1 and first.axes[0] not in request.window:
        what = f"{first.where} and {len(parts) - 1:,} more files go on along {first.axes[0]!r}"
        raise UsageError(f"{what}: give it in window=, sample='file', or open one file")
    wanted = _list_traits(first, request)
    for part in parts:
        for (trait, mine), (_, other) in zip(_list_traits(part, request), wanted, strict=True):
            if mine != other:
                what = f"{part.where} has {trait} {mine}, and {first.where} has {other}"
                raise FormatError(f"{what}: choose others by fields=")
        if not math.prod(part.shape) and not is_one:
            raise FormatError(f"{part.where} is empty: its shape is {part.shape}: leave it out")
    if is_one:
        rows = sum(part.shape[0] for part in parts)
        return WindowArray(parts, first.axes, np.array([(rows, *first.shape[1:])], np.int64))
    if FILE_AXIS in first.axes:
        what = f"{first.where} has an axis {FILE_AXIS!r}, as sample='file' adds"
        raise FormatError(f"{what}: rename it")
    shapes = np.array([(len(parts), *part.shape) for part in parts], np.int64)
    return WindowArray(parts, (FILE_AXIS, *first.axes), shapes)


def _list_traits(part: ArrayPart, request: WindowRequest) -> list[tuple[str, Any]]:
    """List what all parts of an array have alike, with words for messages."""
    traits = [("the type", part.dtype), ("the axes", part.axes), ("the fill value", part.fill)]
    if not request.is_by_file:
        rows = part.shape[1:], part.chunk and part.chunk[1:]
        return [*traits, ("rows of", rows[0]), ("rows in chunks of", rows[1])]
    sizes = zip(part.axes, part.shape, strict=True)
    whole = {axis: size for axis, size in sizes if axis not in request.window}
    chunks = ("its values in chunks:", part.chunk is not None)
    return [*traits, ("along axes that are not in window=", whole), chunks]


def is_coordinate(name: str, axes: Sequence[str]) -> bool:
    """True if an array has the values along the axis of its name, as the CF conventions say."""
    return tuple(axes) == (name.split("/")[-1],)


class Coordinate(NamedTuple):
    """Values along an axis, with the attributes of the CF conventions that tell what they are."""

    where: str
    values: npt.NDArray[Any]
    units: str
    calendar: str

    @classmethod
    def note(cls, where: str, values: Any, attributes: Mapping[str, Any]) -> Coordinate:
        texts = (attributes.get(name, "") for name in ("units", "calendar"))
        read = [one.decode("utf-8", "replace") if isinstance(one, bytes) else one for one in texts]
        units, calendar = (one if isinstance(one, str) else "" for one in read)
        return cls(where, values, units, calendar)

    def decode(self) -> npt.NDArray[Any]:
        """Return times of our calendar as datetime64, and other values as they are; FormatError
        unless all are finite."""
        _check_finite(self.where, self.values)
        since = _parse_units(self.units) if self.calendar in _OUR_CALENDARS else None
        if since is None or not len(self.values):
            return self.values
        places = self.values.astype(np.float64) * since[0]
        if min(places.min(), 0) + since[1] < _GREGORIAN or places.max() + since[1] >= 1 << 43:
            return self.values
        passed = np.round(places * 1e6).astype(np.int64) + since[1] * 10**6
        return passed.view("M8[us]")


_OUR_CALENDARS = ("", "standard", "gregorian", "proleptic_gregorian")
_GREGORIAN = int(np.datetime64("1582-10-15", "s").astype(np.int64))
"""The first day of our calendar; dates before are of another one, or of two."""


class CoordinateSpan(NamedTuple):
    """Values of a coordinate in one file: the first, the last, and the step if there is one."""

    first: float
    last: float
    step: float | None


_TIME_UNITS = re.compile(
    r"(?a)(second|minute|hour|day)s? since (\d{1,4}-\d\d?-\d\d?)(?!\d)"
    r"(?:[T ](\d\d?:\d\d?(?::\d\d?)?)(?:\.0*)?)? *(?:UTC|Z|\+?00?:?00)?$"
)
_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}


def _parse_units(units: str) -> tuple[int, int] | None:
    """Parse units of time of the CF conventions: seconds of a unit, and of the date since 1970."""
    if parsed := _TIME_UNITS.match(units):
        unit, day, hour = parsed.groups()
        with contextlib.suppress(ValueError):  # not a day of this calendar
            year, month, date = day.split("-")
            clock = ":".join(number.zfill(2) for number in (hour or "0:0").split(":"))
            text = f"{year:0>4}-{month:0>2}-{date:0>2}T{clock}"
            return _SECONDS[unit], int(np.datetime64(text, "s").astype(np.int64))
    return None


def _check_finite(where: str, values: npt.NDArray[Any]) -> None:
    for at in np.flatnonzero(~np.isfinite(values))[:1].tolist():
        raise FormatError(f"{where} is {values[at]} at {at:,}: a coordinate has a value everywhere")


def measure_span(where: str, values: npt.NDArray[Any], units: str = "") -> CoordinateSpan:
    """Measure a coordinate; FormatError unless it is finite, and rises or falls all along.

    units:  of the CF conventions: times since different dates are compared in seconds.
    """
    places = np.asarray(values, np.float64)
    if (since := _parse_units(units)) is not None:
        places = places * since[0] + float(since[1])
    _check_finite(where, places)
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


def cut_windows(
    arrays: Mapping[str, WindowArray], request: WindowRequest
) -> tuple[list[tuple[str, str, WindowGrid]], list[WindowMask], set[str | None]]:
    """Cut arrays into windows: return for each field its name, its array and its boxes; masks; and
    the axes that fields lose.

    Windows are numbered in C order of the axes, as the array has them that has most of them; file
    after file, where they are cut by file.

    UsageError if an axis does not exist, or is shorter than a window with its target, in all files;
    FormatError if two arrays disagree about its length.
    """
    lengths: dict[str, tuple[Int, Sequence[ArrayPart]]] = {}
    window, stride, target, halo, drop, lost, _ = request
    for array in sorted(arrays.values(), key=lambda one: -len({*one.axes} & {*window})):
        for axis, sizes in zip(array.axes, array.shapes.T, strict=True):
            known, parts = lengths.setdefault(axis, (sizes, array.parts))
            for at in np.flatnonzero(known != sizes)[:1].tolist() if axis in window else ():
                what = f"{array.parts[at].where} has {sizes[at]:,} elements along {axis!r}"
                what = f"{what}, and {parts[at].where} {known[at]:,}"
                raise FormatError(f"{what}: choose arrays of one grid by fields=")
    of_files = {FILE_AXIS} if request.is_by_file else set()
    axes_of_arrays = {axis: sizes for axis, (sizes, _) in lengths.items() if axis not in of_files}
    named = ", ".join(f"{axis!r} ({sizes.max():,})" for axis, sizes in axes_of_arrays.items())
    for option in ("window", "stride", "target", "halo"):
        for axis in getattr(request, option):
            if axis not in axes_of_arrays:
                raise UsageError(f"{option}: no array has an axis {axis!r}, but {named}")
            if axis not in window:
                raise UsageError(f"{option} has the axis {axis!r}, and window= has not: add it")
    steps: dict[str, Int] = {}
    every: dict[str, Int] = {}
    before = {axis: max(0, -int(target.get(axis, (0,))[0])) for axis in window}
    for axis in (axis for axis in lengths if axis in window):
        sizes, parts = lengths[axis]
        size, step = window[axis], stride.get(axis, window[axis])
        reach = before[axis] + max(size, int(target.get(axis, (0, 0))[1]))
        if (reach if drop == "partial" else before[axis] + 1) > sizes.max():
            more = f", with its target {reach:,}" if reach > size else ""
            at = int(sizes.argmax())
            what = f"{parts[at].where} has {sizes[at]:,} elements, fewer than a window of {size:,}"
            what = f"{what} along {axis!r}{more}"
            remedy = "give less" if drop == "pad" else "give less, or drop='pad'"
            raise UsageError(f"{what}: {remedy}")
        last = (sizes - reach) // step
        if drop == "pad":  # up to the first that has the last element, if one begins in the array
            begins = (sizes - before[axis] - 1) // step
            last = np.minimum(np.maximum(0, -((reach - sizes) // step)), begins)
        steps[axis] = np.maximum(last + 1, 0)
    counts = [math.prod(row) for row in zip(*(one.tolist() for one in steps.values()), strict=True)]
    if not 0 < (count := sum(counts)) <= limits.order_count_max:
        remedy = "larger strides" if count else "smaller windows, or drop='pad'"
        raise UsageError(f"there would be {count:,} windows: give {remedy}")
    first, inner = np.append(0, np.cumsum(counts, dtype=np.int64)), np.ones(len(counts), np.int64)
    for axis in reversed(steps):
        every[axis], inner = inner, inner * np.maximum(steps[axis], 1)

    def find_span(axis: str, length: int, is_target: bool) -> tuple[int, int]:
        """Return the place and the end of a box along an axis, from the start of the window."""
        if axis not in window:
            return 0, 1 if axis in of_files else length
        if is_target:
            low, high = target.get(axis, (0, window[axis]))
            return int(low), int(high)
        return -halo.get(axis, 0), window[axis] + halo.get(axis, 0)

    def lay_out(array: WindowArray, is_target: bool) -> WindowGrid:
        part, shapes, axes = array.parts[0], array.shapes, array.axes
        spans = [
            find_span(axis, n, is_target) for axis, n in zip(axes, shapes[0].tolist(), strict=True)
        ]
        is_padded = any(axis in (window if drop == "pad" else halo) for axis in axes)
        elements = int(shapes[:, len(of_files) :].prod(axis=1).max())
        sizes = math.prod(high - low for low, high in spans), elements
        bytes_max = max(limits.undeclared_chunk_bytes_max, sizes[1] * part.dtype.itemsize)
        if is_padded and sizes[0] * part.dtype.itemsize > bytes_max:
            what = f"{part.where}: padded windows have {sizes[0]:,} elements, and it {sizes[1]:,}"
            raise UsageError(f"{what}: give a smaller window, target or halo")
        one = np.ones(len(shapes), np.int64)
        columns = shapes, *(np.stack([of.get(a, one) for a in axes], 1) for of in (steps, every))
        return WindowGrid(
            tuple(shapes.max(axis=0).tolist()),
            tuple(high - low for low, high in spans),
            tuple(before.get(axis, 0) + low for axis, (low, _) in zip(axes, spans, strict=True)),
            tuple(stride.get(axis, window[axis]) if axis in steps else 1 for axis in axes),
            tuple(columns[1].max(axis=0).tolist()),
            tuple(columns[2].max(axis=0).tolist()),
            count,
            axes,
            part.fill if is_padded and not (is_target and drop == "partial") else "",
            FileGrids(first, *columns) if of_files else None,
        )

    fields = []
    for name, array in arrays.items():
        fields.append((name, name, lay_out(array, False)))
        if set(array.axes) & set(target):  # right behind it: its chunks are decoded then
            fields.append((f"{name}_target", name, lay_out(array, True)))
    masks = []
    for axis in (axis for axis in steps if axis in halo or drop == "pad"):
        part, sizes = ArrayPart("", (), (axis,), np.dtype(bool), "00"), lengths[axis][0]
        shapes = np.stack([*(np.full_like(sizes, len(sizes)) for _ in of_files), sizes], 1)
        along = WindowArray([part], (*of_files, axis), shapes)
        grids = [lay_out(along, False), lay_out(along, True)]
        masks.append(WindowMask.make(f"{axis}_valid", grids[0]))
        if target and drop == "pad" and grids[0].described() != grids[1].described():
            masks.append(WindowMask.make(f"{axis}_valid_target", grids[1]))
    made = [*(name for name, _, _ in fields), *(mask.name for mask in masks)]
    for name in made:
        if made.count(name) > 1:
            what = f"two fields of {next(iter(arrays.values())).parts[0].where} would be {name!r}"
            raise UsageError(f"{what}: choose arrays, or other names, by fields=")
    return fields, masks, {lost, *of_files}


def build_index(
    name: str,
    files: Files,
    sources: Files,
    parts: Mapping[str, Sequence[ArrayPart]],
    codecs: Mapping[str, Codec],
    request: WindowRequest,
) -> Index:
    """Build the index of the windows of arrays, each in parts, for the format of a name.

    codecs:  of the single chunks of arrays that are in chunks.
    """
    arrays = {array: join_parts(chain, request) for array, chain in parts.items()}
    cut, masks, lost = cut_windows(arrays, request)
    tables: dict[str, RowTable] = {}  # one for all fields of an array: a chunk is decoded for all
    fields: list[Field] = []
    layouts: list[Layout] = []
    for field_name, array, grid in cut:
        chain, dtype = arrays[array].parts, arrays[array].parts[0].dtype
        grids = [one.values for one in chain if isinstance(one.values, ChunkGrid)]
        pairs = zip(grid.axes, grid.size, strict=True)
        shape = tuple(size for axis, size in pairs if axis not in lost)
        made = None if shape == grid.size and not grid.fill else shape
        if not grids:
            fields.append(Field(field_name, dtype, grid.room, made_shape=made))
            first = number_first([1 if request.is_by_file else one.shape[0] for one in chain])
            base = np.array([one.values for one in chain], np.int64)
            layouts.append(Boxes(grid, first, base, dtype.itemsize))
            continue
        if array not in tables:  # an absent chunk has no bytes
            file, *bytes_of = map(np.concatenate, zip(*(one[3:] for one in grids), strict=True))
            offset, length = (np.where(bytes_of[1] < 0, 0, one) for one in bytes_of)
            tables[array] = RowTable(file, offset, length)
        fields.append(Field(field_name, dtype, grid.size, codecs[array], made_shape=made))
        chunks, in_files = np.array([one.chunk for one in chain], np.int64), None
        edges = number_first(np.concatenate([np.diff(_find_edges(one)) for one in grids]))
        if request.is_by_file:
            edges = np.arange(len(chain) + 1)
            chunks = in_files = np.insert(chunks, 0, 1, axis=1)
        chunk = tuple(chunks.max(axis=0).tolist())
        layouts.append(Windows(edges, tables[array], grid, chunk, in_files))
    return Index(name, files, (*fields,), (*layouts,), sources, attributes=tuple(masks))


def _find_edges(grid: ChunkGrid) -> Int:
    """Find the first row of each row of chunks of an array, and the end."""
    starts = np.arange(grid.cells[0] + 1, dtype=np.int64) * grid.chunk[0]
    edges: Int = np.minimum(starts, grid.shape[0])
    return edges
