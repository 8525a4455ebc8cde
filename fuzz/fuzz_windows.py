"""Windows of arrays in Zarr and .npy, with any options: the options, then the files.

What is read of a window has to be what numpy takes out of the same array, read whole.
"""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from fuzz.fuzz_zarr import meta
from fuzz.memory import ROOT, MemoryStore, examine, joined_parts, parted, read_samples
from penstock.errors import PenstockError
from penstock.index.formats import FORMATS, Location
from penstock.index.layout import Boxes, Windows
from penstock.index.windows import WindowGrid

NAMES = ["options", "a.npy", "b.npy", "zarr.json", "x/zarr.json", "y/zarr.json", "y/c/0"]
_OPTIONS = ("window", "stride", "target", "halo", "drop", "fields", "dataset", "fill", "label")
NAMES += [f"x/c/{row}/{column}" for row, column in itertools.product((0, 1, 2), (0, 1))]
TOKENS = (
    *(b'"window"', b'"stride"', b'"target"', b'"halo"', b'"drop"', b'"pad"', b'"partial"'),
    *(b'"t"', b'"l"', b'"0"', b'"1"', b'"dimension_names"', b'"_ARRAY_DIMENSIONS"'),
)
Array = npt.NDArray[Any]


def seeds() -> list[bytes]:
    """Windows of rows and of chunks, padded, with targets, and of an array of fewer axes."""
    codecs = [{"name": "bytes", "configuration": {"endian": "little"}}]
    rows = []
    for first in (0, 8):
        out = io.BytesIO()
        np.lib.format.write_array(out, np.arange(first, first + 8, dtype="i2").reshape(4, 2))
        rows.append(out.getvalue())
    group = json.dumps({"zarr_format": 3, "node_type": "group"}).encode()
    x, y = (json.loads(meta([5, 3][:axes], [2, 2][:axes], "uint8", codecs)) for axes in (2, 1))
    x["dimension_names"], y["attributes"] = ["t", "l"], {"_ARRAY_DIMENSIONS": ["t"]}
    y["chunk_grid"]["configuration"]["chunk_shape"] = [5]
    chunks = [bytes(range(4 * number + 1, 4 * number + 5)) for number in range(6)]
    zarr = [b"", b"", group, json.dumps(x).encode(), json.dumps(y).encode(), b"abcde", *chunks]
    given: list[tuple[dict[str, Any], list[bytes]]] = [
        ({"window": {"0": 3}, "stride": {"0": 2}}, rows),
        ({"window": {"0": 3, "1": 1}, "target": {"0": [3, 5]}, "drop": "pad"}, rows),
        ({"window": {"t": 2}, "target": {"t": [-1, 3]}}, zarr),
        ({"window": {"t": 2, "l": 2}, "stride": {"t": 1}, "halo": {"t": 1, "l": 2}}, zarr),
        ({"window": {"t": 3, "l": 2}, "drop": "pad", "fill": True}, zarr),
    ]
    return [joined_parts(json.dumps(options).encode(), *files) for options, files in given]


def one(data: bytes) -> None:
    """Open the files with the options, and hold some windows against slices."""
    contents = {name: part for name, part in parted(data, NAMES).items() if part}
    try:
        options = json.loads(contents.pop("options", b""))
    except (ValueError, RecursionError):
        return
    if not isinstance(options, dict) or options.get("window") is None:
        return
    options = {name: value for name, value in options.items() if name in _OPTIONS}
    format = "npy" if {"a.npy", "b.npy"} & set(contents) else "zarr"
    if format == "npy":
        options = {name: options[name] for name in options if name in _OPTIONS[:5]}
    index = examine(format, contents, options)
    if index is None or index.count > 1 << 20:
        return
    store = MemoryStore(contents)
    options = dict(FORMATS[format].canonical(options))
    grids = {}
    for field, layout in zip(index.fields, index.layouts, strict=True):
        assert isinstance(layout, Boxes | Windows)
        grids[field.name] = layout.grid
    names = [name for name in grids if name.removesuffix("_target") not in {*grids} - {name}]
    order = sorted((grids[name] for name in names), key=lambda grid: -len(_cut(grid, options)))
    steps: dict[str, range] = {}
    for grid in order:
        for axis, length in zip(grid.axes, grid.shape, strict=True):
            if axis in options["window"]:
                steps.setdefault(axis, _list_starts(options, axis, length))
    sizes = [len(starts) for starts in steps.values()]
    assert index.count == int(np.prod(sizes, dtype=object))
    wholes = {name: _read_whole(format, store, name, options) for name in names}
    for sample in sorted({0, index.count // 2, index.count - 1}):
        fields = read_samples(store, index, [sample])
        if fields is None:
            continue
        at = [int(place) for place in np.unravel_index(sample, sizes)]
        starts = {axis: steps[axis][place] for axis, place in zip(steps, at, strict=True)}
        for name, grid in grids.items():
            whole = wholes[name if name in wholes else name.removesuffix("_target")]
            if whole is not None:
                window = _take(whole, grid, starts, options, name not in wholes)
                assert fields[name][0].tobytes() == window.tobytes(), (name, sample, starts)


def _cut(grid: WindowGrid, options: Mapping[str, Any]) -> set[str]:
    return {*grid.axes} & {*options["window"]}


def _list_starts(options: Mapping[str, Any], axis: str, length: int) -> range:
    """Where windows start along an axis."""
    low, high = options.get("target", {}).get(axis, (0, 0))
    before, reach = max(0, -low), max(options["window"][axis], high)
    step = options.get("stride", {}).get(axis, options["window"][axis])
    if options.get("drop") != "pad":
        return range(before, length - reach + 1, step)
    every = range(before, length, step)
    whole = sum(1 for start in every if start + reach < length)
    return every[: whole + 1]


def _read_whole(
    format: str, store: MemoryStore, name: str, options: Mapping[str, Any]
) -> Array | None:
    """An array as it is read row by row, without windows; None if it is refused or large."""
    entry = FORMATS[format]
    more = {} if format == "npy" else {"fields": {name: name}, "fill": options.get("fill", False)}
    if isinstance(options.get("fields"), dict):
        more["fields"] = {name: options["fields"][name]}
    if "dataset" in options:
        more = {"dataset": options["dataset"], "fill": more["fill"]}
    try:
        place = Location("folder", "", ROOT)
        index = entry.build(store, place, None, **entry.canonical({**more, "sample": "row"}))
    except PenstockError:
        return None
    if index.count > 4096:
        return None
    fields = read_samples(store, index, range(index.count))
    return None if fields is None else np.asarray(fields[name])


def _take(
    whole: Array,
    grid: WindowGrid,
    starts: Mapping[str, int],
    options: Mapping[str, Any],
    is_target: bool,
) -> Array:
    """A window, from the fill value where it leaves the array."""
    places = []
    for axis, length in zip(grid.axes, whole.shape, strict=True):
        low, high = 0, length
        if axis in starts:
            size, halo = options["window"][axis], options.get("halo", {}).get(axis, 0)
            low, high = -halo, size + halo
            if is_target:
                low, high = options["target"].get(axis, (0, size))
            low, high = low + starts[axis], high + starts[axis]
        places.append(np.arange(low, high))
    fill = bytes.fromhex(grid.fill) or bytes(whole.dtype.itemsize)
    value = np.frombuffer(fill, whole.dtype)[0]
    window = np.full([len(along) for along in places], value, whole.dtype)
    inside = [
        (along >= 0) & (along < length) for along, length in zip(places, whole.shape, strict=True)
    ]
    taken = [along[is_in] for along, is_in in zip(places, inside, strict=True)]
    window[np.ix_(*inside)] = whole[np.ix_(*taken)]
    return window
