"""Arrays of Zarr, HDF5 and NPY in other chunks: a group of Zarr 3, whole or not at all, resumable.

    read a region of whole new chunks -> compress and write each -> note the digest of the region
        -> read all of it back, compare digests -> sync -> rename

A region is a window of the source, as large as memory allows: a chunk of the source is decoded once
for each region that it meets. All is in DESTINATION.tmp until it is renamed, beside a manifest and
the digests of the regions, which are removed then.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from .. import limits
from ..arguments import check_function, check_path, check_whole
from ..dataset.dataset import open as open_dataset
from ..dataset.measuring import MeasuredChunks, Progress, measure_in_pool
from ..dataset.sample import FieldReader
from ..dataset.sources import locate_data
from ..engine.atomic_file import storage_errors, sync_folder, write_all
from ..engine.open import is_url
from ..engine.threads import ThreadPool
from ..errors import FormatError, MissingError, UsageError, import_library
from ..extent import Int
from ..index.formats import hdf5, zarr
from ..index.formats.chunk_grid import check_shape, count_cells
from ..index.formats.detection import choose_format
from ..index.formats.options import check_sizes
from ..index.formats.sandbox import Sandbox
from ..index.formats.windowing import ArrayNotes, is_coordinate
from ..index.layout import Boxes, Windows
from ..index.table import Index
from ..index.windows import WindowGrid
from .manifest import (
    MANIFEST,
    ConversionManifest,
    check_destination,
    lock_folder,
    mismatch_error,
)

_READ_BYTES = 64 * limits.MIB
_WORKERS_MAX = 4
_DIGESTS = "digests"
_COORDINATE_MAX = 1 << 20  # numbers of a chunk
_ZSTD = {"level": 3, "checksum": True}
Shape = tuple[int, ...]


class Rechunked(NamedTuple):
    """Result of a conversion: how often chunks of the source were decoded, by arrays; new chunks;
    and of the regions those that this run wrote."""

    path: str
    decoded: dict[str, float]
    chunks: int
    written: int
    regions: int


class _Array(NamedTuple):
    """An array of the source, of chunks `old`, to be written in chunks `new`."""

    name: str
    notes: ArrayNotes
    table: Index
    shape: Shape
    old: Shape
    new: Shape
    region: Shape

    def find_box(self, region: int) -> tuple[Shape, Shape]:
        """Return where a region starts, and its shape."""
        at = np.unravel_index(region, count_cells(self.shape, self.region))
        start = tuple(int(n) * size for n, size in zip(at, self.region, strict=True))
        bounds = zip(start, self.region, self.shape, strict=True)
        return start, tuple(min(size, end - first) for first, size, end in bounds)

    def read(self, reader: FieldReader, start: Shape, size: Shape) -> Any:
        """Read a box: in halves along the axis of most chunks, if these take much memory."""
        spans = zip(start, size, self.old, strict=True)
        met = [(a + n - 1) // chunk - a // chunk + 1 for a, n, chunk in spans]
        stored = self.table.total_bytes / math.prod(count_cells(self.shape, self.old))
        axis = int(np.argmax(met))
        if stored * math.prod(met) <= _READ_BYTES or met[axis] == 1:
            layout, ones = self.table.layouts[0], (1,) * len(size)
            assert isinstance(layout, Windows | Boxes)
            grid = WindowGrid(self.shape, size, start, ones, ones, ones, 1)
            field, place = replace(self.table.fields[0], shape=size), replace(layout, grid=grid)
            reader.index = replace(self.table, fields=(field,), layouts=(place,))
            return reader.read(np.zeros(1, np.uint64))[field.name][0]
        values = np.empty(size, self.table.fields[0].dtype)
        half = (start[axis] // self.old[axis] + met[axis] // 2) * self.old[axis] - start[axis]
        for low, high in ((0, half), (half, size[axis])):
            first = (*start[:axis], start[axis] + low, *start[axis + 1 :])
            piece = (*size[:axis], high - low, *size[axis + 1 :])
            values[(slice(None),) * axis + (slice(low, high),)] = self.read(reader, first, piece)
        return values

    def count_decodes(self, region: Shape) -> float:
        """Count how often a chunk of the source is decoded for regions of a shape."""
        decodes = 1.0
        for size, old, end in zip(region, self.old, self.shape, strict=True):
            start = np.arange(0, end, size)
            met = (np.minimum(start + size, end) - 1) // old - start // old + 1
            decodes *= int(met.sum()) / -(-end // old)
        return decodes


def convert_arrays(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    chunks: Mapping[str, int],
    *,
    fields: Sequence[str] | None = None,
    fill: bool = False,
    memory_bytes: int = 1 << 30,
    force: bool = False,
    progress: Progress | None = None,
) -> Rechunked:
    """Write the arrays of a Zarr, HDF5 or NPY as a group of Zarr 3 in chunks of zstd, or resume.

    chunks:        {axis: elements}, an axis by its name, or by its number where it has none. Along
                   other axes chunks stay as they are. A coordinate is one chunk.
    fields:        names of the arrays; by default all of the group.
    fill:          True: chunks that do not exist hold the fill value; else they are an error.
    memory_bytes:  for regions in memory; the more, the fewer times chunks are decoded.
    force:         start over if DESTINATION.tmp holds another conversion.
    progress:      called with the regions that are written or compared, and with twice all.

    Attributes and names of axes are kept. After an error, Ctrl-C or kill -9 the same call resumes,
    and DESTINATION is there only when all was read back and compared. UsageError if the arguments
    are impossible or DESTINATION exists; StorageError if writing fails, disk full included.
    """
    path, target = check_path("source", source), check_destination("destination", destination)
    check_function("progress", progress, "a function of numbers of regions")
    path = path if is_url(path) else os.path.abspath(path)
    if os.path.lexists(target):
        raise UsageError(f"{target} exists: choose another destination, or remove it")
    if f"{os.path.realpath(target)}/".startswith(f"{os.path.realpath(path)}/"):
        raise UsageError(f"the destination {target} is inside the source: choose another folder")
    sizes, memory = (
        check_sizes("chunks", chunks),
        check_whole("memory_bytes", memory_bytes, 1 << 26),
    )
    workers = min(_WORKERS_MAX, len(os.sched_getaffinity(0)))
    kind, noted, attributes = _note_arrays(path)
    for name in fields or ():
        if name not in noted:
            raise UsageError(f"{path} has no array {name!r}, but {', '.join(noted)}")
    chosen = {name: noted[name] for name in fields or noted}
    more: dict[str, Any] = {} if kind == "npy" else {"fill": fill}
    arrays = [
        _plan_array(path, name, notes, sizes, memory // (4 * workers), more)
        for name, notes in chosen.items()
        if notes.value is None
    ]
    lengths = {axis: n for one in arrays for axis, n in zip(one.notes.axes, one.shape, strict=True)}
    for axis, size in sizes.items():
        if size > lengths.get(axis, 0):
            has = ", ".join(f"{name!r} ({length:,})" for name, length in lengths.items())
            raise UsageError(f"chunks of {size:,} along {axis!r}: {path} has the axes {has}")
    folder = f"{target}.tmp"
    with lock_folder(folder), storage_errors(folder):
        _take_up(folder, path, arrays, {"chunks": sizes, "fields": [*chosen]}, force)
        for name, notes in chosen.items():
            if notes.value is not None:
                _write_json(folder, name, _describe_array((), (), notes.value.dtype, notes))
                _write_chunk(f"{folder}/{name}/c", notes.value)
        for array in arrays:
            dtype = array.table.fields[0].dtype
            described = _describe_array(array.shape, array.new, dtype, array.notes)
            _write_json(folder, array.name, described)
        _write_json(folder, "", {"node_type": "group", "attributes": attributes})
        written, regions = _convert(folder, arrays, workers, progress)
        os.sync()
        os.rename(folder, target)
        os.unlink(f"{target}/.{_DIGESTS}.part")
        os.unlink(f"{target}/{MANIFEST}")
        sync_folder(os.path.dirname(target))
    decoded = {one.name: one.count_decodes(one.region) for one in arrays}
    total = sum(math.prod(count_cells(one.shape, one.new)) for one in arrays)
    return Rechunked(target, decoded, total, written, regions)


def _note_arrays(path: str) -> tuple[str, dict[str, ArrayNotes], dict[str, Any]]:
    """Return the format, the notes of the arrays, and the attributes of all."""
    place, store = locate_data(path)
    kind = choose_format(store, place, None, {}).name
    if kind == "zarr":
        return kind, *zarr.note_arrays(store)
    if kind not in ("hdf5", "npy") or place.kind != "file":
        raise UsageError(f"{path} is {kind}: arrays of one Zarr, HDF5 or NPY become Zarr")
    if kind == "npy":
        shape = open_dataset(path, index="memory", sample="file").fields[0].shape or ()
        return kind, {"data": ArrayNotes("", tuple(map(str, range(len(shape)))), {})}, {}
    files = store.stat([place.name])
    with Sandbox("the HDF5 library") as apart:
        (noted,) = store.parse(files, lambda _, file: apart.call(file, hdf5.note_arrays))
    return kind, *noted


def _open_array(path: str, notes: ArrayNotes, options: Mapping[str, Any]) -> Index:
    fields: dict[str, Any] = {"fields": {notes.path: notes.path}} if notes.path else {}
    window = dict.fromkeys(notes.axes, 1)
    return open_dataset(path, index="memory", window=window, **fields, **options).index


def _plan_array(
    path: str,
    name: str,
    notes: ArrayNotes,
    sizes: Mapping[str, int],
    region_bytes: int,
    options: Mapping[str, Any],
) -> _Array:
    """Open an array, and choose its chunks and regions."""
    index = _open_array(path, notes, options)
    layout, dtype = index.layouts[0], index.fields[0].dtype
    assert isinstance(layout, Windows | Boxes)
    shape = layout.grid.shape
    old = layout.chunk if isinstance(layout, Windows) else (1,) * len(shape)
    new = tuple(min(size, _COORDINATE_MAX) for size in shape)
    if not is_coordinate(name, notes.axes):
        kept = old if isinstance(layout, Windows) else shape
        asked = [sizes.get(axis, n) for axis, n in zip(notes.axes, kept, strict=True)]
        new = tuple(map(min, asked, shape))
    check_shape(f"{path}, array {name!r}", shape, new, dtype.itemsize)
    if dtype.kind not in "biufc":
        raise UsageError(f"{path}, array {name!r} is {dtype}: choose arrays of numbers by fields=")
    array = _Array(name, notes, index, shape, old, new, new)
    while True:  # twice along the axis that saves most decodes, while memory allows it
        wider = []
        for axis, (size, chunk, end) in enumerate(zip(array.region, new, shape, strict=True)):
            twice = min(2 * size, -(-end // chunk) * chunk)
            one = (*array.region[:axis], twice, *array.region[axis + 1 :])
            if twice > size and math.prod(one) * dtype.itemsize <= region_bytes:
                wider.append(one)
        if not wider:
            return array
        array = array._replace(region=min(wider, key=array.count_decodes))


def _take_up(
    folder: str, path: str, arrays: Sequence[_Array], options: dict[str, Any], force: bool
) -> None:
    """Check that the folder holds this conversion or nothing; with force, make it so."""
    states = [hashlib.blake2b(digest_size=16) for _ in range(2)]
    for one in arrays:
        states[0].update(f"{one.name} {one.table.fingerprint}".encode())
        states[1].update(one.table.version.encode())
    data, stamp = (state.hexdigest() for state in states)
    options["regions"] = {one.name: list(one.region) for one in arrays}  # these are as memory is
    wanted = ConversionManifest({"path": path, "fingerprint": data, "stamp": stamp}, options)
    if wanted.find_present(folder, force) is not None and force:
        shutil.rmtree(folder)
        os.mkdir(folder)
    wanted.save(folder)


def _convert(
    folder: str, arrays: Sequence[_Array], workers: int, progress: Progress | None
) -> tuple[int, int]:
    """Write the regions that are missing, and compare all. Return how many were written, of all."""
    counts = [math.prod(count_cells(one.shape, one.region)) for one in arrays]
    first, count = np.cumsum([0, *counts]), sum(counts)

    def tell(done: int, _: int) -> None:
        if progress is not None:
            progress(done, 2 * count)

    def read(region: int, indexes: Sequence[Index]) -> tuple[_Array, Shape, Any]:
        which = int(np.searchsorted(first, region, side="right")) - 1
        array = arrays[which]._replace(table=indexes[which])
        start, size = array.find_box(region - int(first[which]))
        with contextlib.closing(FieldReader(array.table)) as reader:
            values = array.read(reader, start, size)
        return array, start, np.ascontiguousarray(values, values.dtype.newbyteorder("<"))

    def write(region: int, _: int) -> Int:
        array, start, values = read(region, sources)
        for at, block in _cut_chunks(values, array.new):
            number = [str((a + b) // n) for a, b, n in zip(start, at, array.new, strict=True)]
            _write_chunk("/".join([folder, array.name, "c", *number]), block)
        return _digest(values)

    def compare(region: int, _: int) -> Int:
        try:
            return _digest(read(region, written)[2])
        except FormatError:  # it was damaged while the conversion was interrupted
            return ~digests.values[region : region + 1]

    sources = [one.table for one in arrays]
    with MeasuredChunks(f"{folder}/{_DIGESTS}", {"regions": count}, count, 1) as digests:
        missing = digests.list_missing()
        pool = ThreadPool(workers, "penstock-convert")
        digests.fill(measure_in_pool(pool, write, digests, missing, workers), missing, tell)
        try:
            written = [_open_array(folder, one.notes._replace(path=one.name), {}) for one in arrays]
        except (FormatError, MissingError) as error:
            digests.forget(slice(None))
            raise mismatch_error(folder, str(error)) from None
        pool = ThreadPool(workers, "penstock-convert")
        compared = measure_in_pool(pool, compare, digests, range(count), workers)
        for done, (region, digest) in enumerate(compared, count + 1):
            if digest[0] != digests.values[region]:
                digests.forget(region)
                raise mismatch_error(folder, f"region {region:,} of {count:,} differs")
            tell(done, count)
    return len(missing), count


def _digest(values: Any) -> Int:
    data = values.reshape(-1).view(np.uint8).data
    return np.frombuffer(hashlib.blake2b(data, digest_size=8).digest(), np.int64)


def _cut_chunks(values: Any, chunk: Shape) -> Iterator[tuple[list[int], Any]]:
    """Cut a region into chunks, of full size at the edges, too; with the place of each."""
    for cell in np.ndindex(*count_cells(values.shape, chunk)):
        at = [number * size for number, size in zip(cell, chunk, strict=True)]
        block = values[tuple(slice(low, low + size) for low, size in zip(at, chunk, strict=True))]
        if block.shape != chunk:
            whole = np.zeros(chunk, values.dtype)
            whole[tuple(map(slice, block.shape))] = block
            block = whole
        yield at, block


def _write_chunk(path: str, values: Any) -> None:
    zstandard = import_library("zstandard", "zarr", "writing Zarr")
    coder = zstandard.ZstdCompressor(level=_ZSTD["level"], write_checksum=True)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb", buffering=0) as file:
        write_all(file.fileno(), coder.compress(np.ascontiguousarray(values).data), 0)


def _write_json(folder: str, name: str, document: Mapping[str, Any]) -> None:
    os.makedirs(f"{folder}/{name}", exist_ok=True)
    with open(f"{folder}/{name}/zarr.json", "w") as file:
        json.dump({"zarr_format": 3, **document}, file, indent=1)


def _describe_array(shape: Shape, chunk: Shape, dtype: Any, notes: ArrayNotes) -> dict[str, Any]:
    """Describe an array as Zarr's metadata does. Nothing is filled: all chunks are there."""
    names = [None if axis == str(number) else axis for number, axis in enumerate(notes.axes)]
    return {
        "node_type": "array",
        "shape": shape,
        "data_type": dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": {"c": [0, 0], "b": False}.get(dtype.kind, 0),
        "codecs": [
            {"name": "bytes", "configuration": {"endian": "little"}},
            {"name": "zstd", "configuration": _ZSTD},
        ],
        "attributes": notes.attributes,
        "dimension_names": names,
    }
