"""Coordinates: the values along the axes of windows, such as times and latitudes, by name."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..engine.open import open_store
from ..errors import FormatError
from ..index.formats import hdf5, zarr
from ..index.formats.sandbox import Sandbox
from ..index.formats.windowing import Coordinate
from ..index.layout import Boxes, Windows
from ..index.table import Index
from ..index.windows import FILE_AXIS, WindowGrid


def read_coordinates(index: Index) -> dict[str, Any]:
    """Read the coordinates of the axes of windows, in as far as all files have them: an array over
    all files, or where windows are cut by file one for each.

    FormatError if one is not of the length of its axis, not finite, or not in one unit.
    """
    grids = [one.grid for one in index.layouts if isinstance(one, Boxes | Windows)]
    axes = {axis: grid for grid in reversed(grids) for axis in grid.axes if axis != FILE_AXIS}
    found: list[dict[str, Coordinate]] = [{}]
    if index.format == "zarr":
        is_by_group = any(grid.files is not None for grid in grids)
        found = zarr.read_coordinates(open_store(index.files.root), is_by_group, axes.keys())
    elif index.format == "hdf5":
        store = open_store(index.files.root)
        with Sandbox("the HDF5 library") as apart:
            found = store.parse(
                index.files, lambda _, file: apart.call(file, hdf5.read_coordinates, [*axes])
            )
    named = {axis: grid for axis, grid in axes.items() if all(axis in one for one in found)}
    return {axis: _join([one[axis] for one in found], axis, grid) for axis, grid in named.items()}


def _join(parts: list[Coordinate], axis: str, grid: WindowGrid) -> Any:
    """Join the values of several files: along the first axis they go on, along others repeat."""
    first, values, at = parts[0], [part.decode() for part in parts], grid.axes.index(axis)
    is_by_file, lengths = grid.files is not None, [grid.shape[at]] * len(parts)
    for part, decoded in zip(parts, values, strict=True):
        if decoded.dtype.kind != "M" and part.units != first.units:
            what = f"{part.where} is in {part.units!r}, and {first.where} in {first.units!r}"
            raise FormatError(f"{what}: write all in one unit")
        if not (is_by_file or at == 0 or np.array_equal(decoded, values[0])):
            what = f"{part.where} has other values than {first.where}"
            raise FormatError(f"{what}: open files of one grid, or give sample='file'")
    if grid.files is not None:
        lengths = grid.files.shape[:, at].tolist()
    elif at == 0:
        values = [np.concatenate(values)]
    for part, decoded, length in zip(parts, values, lengths, strict=False):
        if len(decoded) != length:
            what = f"{part.where} has {len(decoded):,} values, and the axis {length:,} elements"
            raise FormatError(f"{what}: write one for each")
    return values if is_by_file else values[0]
