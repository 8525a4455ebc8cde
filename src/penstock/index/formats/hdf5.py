"""HDF5 files: a dataset is a field, its first axis counts the samples. Needs h5py.

Datasets that are contiguous, or in chunks without filters, are read in place; others, with
filters (gzip and others) are read chunk by chunk and decoded.

Options:

    dataset   path of the one dataset that is read, a field "data".
    fields    {field: path of a dataset}; by default all datasets of the root group: they must
              have equal first axes.
    label     path of a dataset of integers with the labels; by default "label", "labels" or "y"
              in the root group, where it has one axis of integers; "" for none.
    fill      True: chunks that were never written hold the fill value; else they are an error.
    sample    "file": each file is a sample, and a dataset as a whole is its field; "row": the first
              axis counts the samples. Of several files which one is meant has to be said, unless
              each has one row, or labels say it by being as many as rows.
    window    and the other options of `windowing`; axes have the names of the dimension scales, as
              in NetCDF-4, or of the labels. By default all datasets that have one of the window's
              axes, but coordinates. The first axis goes on from file to file, unless sample="file".
    isolate   False: h5py is called in this process. By default another process is started for it,
              which takes half a second once, because damaged files can crash h5py's C library. A
              crash is an error then. The saved index is the same.

Chunks are decoded without HDF5 if their filters are gzip and shuffle. Chunks with other filters are
handed to h5py in this process, inside a file made for them: HDF5 sees only the content of chunks.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...engine.store import StoreFile
from ...errors import FormatError, PenstockError, UsageError, missing_library
from ...extent import Files, Int, Names
from ..fields import Codec, Field
from ..layout import Chunked, Fixed, Layout
from ..table import Index
from . import options
from .chunk_grid import (
    ChunkGrid,
    chain_layouts,
    chain_variants,
    check_reading,
    check_shape,
    choose_label,
    group_chunks,
    lay_out_verbatim,
    lay_out_whole,
)
from .sandbox import BlockFile, Sandbox
from .shards import Scan, number_first
from .windowing import (
    ArrayNotes,
    ArrayPart,
    Coordinate,
    CoordinateSpan,
    WindowRequest,
    build_index,
    check_spans,
    encode_fill,
    is_coordinate,
    measure_span,
    name_axes,
)

_EXTENSIONS = (".h5", ".hdf5", ".hdf", ".he5", ".nc", ".h5ad")
_LINKS_MAX = 16
_INFLATED_MAX = 1100
"""Maximum ratio of compression: no filter in use packs better. It bounds the labels' size."""


@dataclass
class Hdf5Part:
    """One dataset of one file; `variant` and `masks` as in `penstock.index.codecs`.

    grid, axes, fill:  where windows are cut: the chunks, the names of the axes, and the fill value
                       in hexadecimal.
    """

    field: Field
    layout: Layout
    variant: dict[str, Any] | None = None
    masks: Sequence[tuple[int, int, int]] = ()
    grid: ChunkGrid | None = None
    axes: tuple[str, ...] = ()
    fill: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a sample."""
        return self.field.shape or ()


@dataclass
class Hdf5Content:
    """Datasets and labels of one file; and what coordinates windows go along."""

    parts: dict[str, Hdf5Part]
    labels: Int | None
    spans: Mapping[str, CoordinateSpan]


def build(
    scan: Scan,
    dataset: str | None = None,
    fields: Mapping[str, str] | None = None,
    label: str | None = None,
    fill: bool = False,
    isolate: bool = True,
    sample: str | None = None,
    **windows: Any,
) -> Index:
    """The index of all rows, file after file; of the files; or of the windows of all rows."""
    if importlib.util.find_spec("h5py") is None:
        raise missing_library("h5py", "hdf5", f"indexing {scan.place.path}")
    extensions = _EXTENSIONS if scan.place.kind == "folder" else ()
    files, sources = scan.list_files(extensions)
    asked = {"data": dataset} if dataset is not None else fields

    with Sandbox("the HDF5 library") as apart:

        def parse(_: int, source: StoreFile) -> Hdf5Content:
            whole, cut = sample == "file", list(windows["window"]) if windows else None
            if isolate:
                return apart.call(source, _parse_file, asked, label, fill, whole, cut)
            return _parse_file(source, asked, label, fill, whole, cut)

        contents = scan.parse(files, parse)
    labels = [content.labels for content in contents if content.labels is not None]
    for number, content in enumerate(contents):
        if content.parts.keys() != contents[0].parts.keys() or len(labels) not in (
            0,
            len(contents),
        ):
            raise FormatError(f"{files.path(number)} holds other datasets than {files.path(0)}")
    if windows:
        parts = {name: [one.parts[name] for one in contents] for name in contents[0].parts}
        is_one = sample != "file"  # one array, to which each file adds
        for axis in {part[0].axes[0] for part in parts.values() if is_one}:
            spans = [content.spans[axis] for content in contents if axis in content.spans]
            if len(spans) not in (0, len(files)):
                what = f"{len(spans):,} of {len(files):,} files have the coordinate {axis!r}"
                raise FormatError(f"{files.path(0)}: {what}: write it into all, or into none")
            check_spans(axis, [files.path(number) for number in range(len(spans))], spans)
        return _cut_parts(files, sources, parts, WindowRequest(**windows, sample=sample))
    joined = [
        _join_parts(name, [content.parts[name] for content in contents], files)
        for name in contents[0].parts
    ]
    if sample != "file":
        shapes = {
            name: [(one.parts[name].layout.count, *one.parts[name].shape) for one in contents]
            for name in contents[0].parts
        }
        check_reading(files, sample or ("row" if labels else None), shapes)
    joined_fields, layouts = zip(*joined, strict=True)
    label_column = np.concatenate(labels) if labels else None
    names = Names(files.names, files.ends) if sample == "file" else None
    return Index("hdf5", files, joined_fields, layouts, sources, None, label_column, names)


def _join_parts(name: str, parts: list[Hdf5Part], files: Files) -> tuple[Field, Layout]:
    """Join a field's parts of several files."""
    first = replace(parts[0].field, name=name)
    layouts = [part.layout for part in parts]
    singles = [layout for layout in layouts if isinstance(layout, Fixed) and layout.count == 1]
    if len({part.shape for part in parts}) > 1 and len(singles) == len(parts):
        offsets = [int(layout.base[0]) for layout in singles]
        if len({part.field.dtype for part in parts}) == 1:
            shapes = [part.shape for part in parts]
            return lay_out_whole(files, name, first.dtype, shapes, offsets)
    for number, part in enumerate(parts):
        if (part.field.dtype, part.field.shape) != (first.dtype, first.shape):
            raise FormatError(f"{files.path(number)}: {name!r} is unlike that of {files.path(0)}")
    layout = chain_layouts(layouts)
    if layout is None:
        raise FormatError(f"{files.path(0)}: {name!r} is decoded in some files, not in others")
    if not isinstance(layout, Chunked):
        return first, layout
    counts = [part.layout.chunks.count for part in parts if isinstance(part.layout, Chunked)]
    return replace(first, codec=Codec("hdf5", _chain_variants(parts, counts))), layout


def _chain_variants(parts: Sequence[Hdf5Part], counts: Sequence[int]) -> dict[str, Any]:
    """Return the options of the codec of several files, of so many compressed chunks each."""
    masks: list[list[int]] = []
    for part, before in zip(parts, number_first(counts).tolist(), strict=False):
        masks += [[before + number, piece, mask] for number, piece, mask in part.masks]
    return chain_variants([part.variant for part in parts], counts) | {"masks": masks}


def _cut_parts(
    files: Files, sources: Files, parts: Mapping[str, list[Hdf5Part]], request: WindowRequest
) -> Index:
    """Cut datasets into windows."""
    arrays: dict[str, list[ArrayPart]] = {name: [] for name in parts}
    codecs: dict[str, Codec] = {}
    for name, chain in parts.items():
        for number, part in enumerate(chain):
            where = f"{files.path(number)}, dataset {name!r}"
            shape = part.shape if request.is_by_file else (part.layout.count, *part.shape)
            if part.grid is not None:
                values: Any = part.grid._replace(file=part.grid.file + np.uint32(number))
            else:
                assert isinstance(part.layout, Fixed)
                values = int(part.layout.base[0])
            dtype = part.field.dtype
            arrays[name].append(ArrayPart(where, shape, part.axes, dtype, part.fill, values))
        counts = [0 if part.grid is None else len(part.grid.offset) for part in chain]
        codecs[name] = Codec("hdf5", _chain_variants(chain, counts))
    return build_index("hdf5", files, sources, arrays, codecs, request)


# -- one file --------------------------------------------------------------------------------------


@contextlib.contextmanager
def _open_file(source: StoreFile) -> Iterator[Any]:
    """Open the file in h5py, and turn its errors into FormatError."""
    import h5py

    blocks = BlockFile(source)
    try:
        with h5py.File(blocks, "r") as file:
            yield file
    except PenstockError:
        raise
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, NotImplementedError) as error:
        if blocks.error is not None:
            raise blocks.error from None
        raise FormatError(f"{source.path} is no HDF5, or damaged, or in use: {error}") from None
    except (MemoryError, RecursionError, OverflowError, UnicodeError) as error:
        raise FormatError(f"{source.path} is damaged: {error!r}") from None


def _parse_file(
    source: StoreFile,
    asked: Mapping[str, str] | None,
    label: str | None,
    fill: bool,
    whole: bool,
    cut: Sequence[str] | None,
) -> Hdf5Content:
    """Parse the datasets and labels of a file.

    whole:  the file is a sample.
    cut:    axes along which windows are cut, if they are samples.
    """
    with _open_file(source) as file:
        named = asked or _list_root(source, file, whole and cut is None)
        if cut is not None:
            parts = _parse_cut(source, file, named, cut, asked is None, fill, whole)
            found = _read_coordinates(source, file, cut).items()
            spans = {axis: measure_span(one.where, one.values, one.units) for axis, one in found}
            return Hdf5Content(parts, None, spans)
        if label is None and asked is None:
            integers = [n for n in named if _is_label(file[n], whole)]
            label = choose_label(integers)
        bias = _measure_bias(file.userblock_size) if file.userblock_size else 0
        parts = {
            name: _lay_out_dataset(
                source, _find_dataset(source, file, where), where, bias, fill, whole
            )
            for name, where in named.items()
            if where != label
        }
        if not parts:
            raise FormatError(f"{source.path} holds no dataset beside the labels")
        parts = {
            name: replace(part, field=replace(part.field, name=name))
            for name, part in parts.items()
        }
        counts = {name: part.layout.count for name, part in parts.items()}
        labels = None
        if label:
            labels = _read_labels(
                source, _find_dataset(source, file, label), label, bias, fill, whole
            )
            counts[label] = len(labels)
        if len(set(counts.values())) > 1:
            what = f"{source.path}: numbers of rows differ ({counts})"
            raise FormatError(f"{what}: give sample='file', where a file is a sample, or fields=")
        return Hdf5Content(parts, labels, {})


def _parse_cut(
    source: StoreFile,
    file: Any,
    named: Mapping[str, str],
    cut: Sequence[str],
    chooses: bool,
    fill: bool,
    whole: bool,
) -> dict[str, Hdf5Part]:
    """Parse the datasets that windows are cut from.

    chooses:  leave out coordinates, and what has none of the axes.
    """
    bias = _measure_bias(file.userblock_size) if file.userblock_size else 0
    parts = {}
    for name, where in named.items():
        dataset = _find_dataset(source, file, where)
        axes = _list_axes(f"{source.path}, dataset {where!r}", dataset)
        if chooses and (is_coordinate(where, axes) or not set(axes) & set(cut)):
            continue
        part = _lay_out_dataset(source, dataset, where, bias, fill, whole, True)
        value = np.asarray(dataset.fillvalue, part.field.dtype).tobytes().hex()
        parts[name] = replace(part, field=replace(part.field, name=name), axes=axes, fill=value)
    if not parts:
        known = {where: _list_axes(where, _find_dataset(source, file, where)) for where in named}
        what = f"{source.path} has no dataset with an axis {', '.join(map(repr, cut))}"
        raise FormatError(f"{what}, but {known!r:.300}: name axes as they are")
    return parts


def read_coordinates(source: StoreFile, axes: Sequence[str]) -> dict[str, Coordinate]:
    """Read the coordinates of axes in a file, those that there are."""
    with _open_file(source) as file:
        return _read_coordinates(source, file, axes)


def _read_coordinates(source: StoreFile, file: Any, axes: Sequence[str]) -> dict[str, Coordinate]:
    import h5py

    found = {}
    for axis in axes:
        if not isinstance(file.get(axis, getlink=True), h5py.HardLink):
            continue
        dataset = file[axis]
        if not isinstance(dataset, h5py.Dataset) or dataset.ndim != 1 or not dataset.size:
            continue
        is_empty = "This is a netCDF dimension but not" in str(dataset.attrs.get("NAME", ""))
        if is_empty or dataset.dtype.kind not in "iuf":
            continue
        at = f"{source.path}, coordinate {axis!r}"
        if dataset.size * dataset.dtype.itemsize > _INFLATED_MAX * source.size:
            raise FormatError(f"{at} claims {dataset.size:,} values: the file is damaged")
        found[axis] = Coordinate.note(at, dataset[()], dataset.attrs)
    return found


def _list_axes(at: str, dataset: Any) -> tuple[str, ...]:
    """List the names of a dataset's axes: by scales, as NetCDF-4 has them, labels, or numbers."""
    import h5py

    if dataset.ndim == 1 and h5py.h5ds.is_scale(dataset.id):
        return (str(dataset.name).split("/")[-1],)
    names = [
        str(dim[0].name).split("/")[-1] if len(dim) else str(dim.label) for dim in dataset.dims
    ]
    axes = name_axes(names, dataset.ndim)
    if len(set(axes)) < len(axes):
        raise FormatError(f"{at} has two axes of one name ({', '.join(axes)}): rename one")
    return axes


_OF_HDF5 = (
    "CLASS",
    "NAME",
    "DIMENSION_LIST",
    "REFERENCE_LIST",
    "DIMENSION_LABELS",
    "_Netcdf4Dimid",
)
"""Attributes by which HDF5 and NetCDF-4 keep dimensions, as the axes of `ArrayNotes` have them."""


def note_arrays(source: StoreFile) -> tuple[dict[str, ArrayNotes], dict[str, Any]]:
    """Note the datasets at the root, and the attributes of the file."""
    with _open_file(source) as file:
        notes = {}
        names = _list_root(source, file, True)
        for name in file.keys() - names:
            what = f"{source.path} has {name!r} at its root, a group or a link"
            raise FormatError(f"{what}: write the datasets alone into a file, and convert that")
        for name in names:
            dataset = file[name]
            if "not a netCDF variable" in str(dataset.attrs.get("NAME", "")):
                continue  # a dimension without values
            attributes = _convert_attributes(dataset)
            if "_FillValue" in attributes and dataset.dtype.kind in "biuf":
                attributes["_FillValue"] = encode_fill(dataset.dtype, attributes["_FillValue"])
            value = None if dataset.shape else np.asarray(dataset[()]).reshape(1)
            axes = _list_axes(f"{source.path}, dataset {name!r}", dataset)
            notes[name] = ArrayNotes(name, axes, attributes, value)
        return notes, _convert_attributes(file)


def _convert_attributes(node: Any) -> dict[str, Any]:
    """Convert attributes to types of JSON; references are left out."""
    attributes: dict[str, Any] = {}
    for name, value in node.attrs.items():
        numbers = np.asarray(value)
        if name in _OF_HDF5 or numbers.dtype.kind not in "biufSUO":
            continue
        values = [
            one.decode("utf-8", "replace") if isinstance(one, bytes) else one
            for one in numbers.reshape(-1).tolist()
        ]
        if all(isinstance(one, bool | int | float | str) for one in values):
            attributes[name] = values[0] if len(values) == 1 else values
    return attributes


def _is_label(dataset: Any, whole: bool) -> bool:
    """Return whether a dataset has an integer for each sample."""
    is_sized = dataset.size == 1 if whole else dataset.ndim == 1
    return is_sized and dataset.dtype.kind in "iu"


def _list_root(source: StoreFile, file: Any, whole: bool) -> dict[str, str]:
    """List the datasets of the root group."""
    import h5py

    datasets: dict[str, str] = {}
    for name in file:
        if not isinstance(file.get(name, getlink=True), h5py.HardLink):
            continue
        if isinstance(file.get(name), h5py.Dataset) and (whole or file[name].ndim):
            datasets[str(name)] = str(name)
    if not datasets:
        inside: list[str] = []
        file.visit(lambda name: inside.append(name) if len(inside) < 20 else True)
        raise FormatError(f"{source.path} has no datasets at its root: give fields= of {inside}")
    return datasets


def _find_dataset(source: StoreFile, file: Any, where: str) -> Any:
    """Find the dataset at a path within the file; links that leave the file are refused."""
    import h5py

    todo = [name for name in where.split("/") if name]
    group, links = file, 0
    while todo:
        name = todo.pop(0)
        link = group.get(name, getlink=True) if isinstance(group, h5py.Group) else None
        if link is None:
            raise FormatError(f"{source.path} has no dataset {where!r}, but {list(file)[:20]}")
        if isinstance(link, h5py.SoftLink):
            links += 1
            if links > _LINKS_MAX:
                raise FormatError(f"{source.path}: {where!r} is behind too many links")
            group = file if link.path.startswith("/") else group
            todo = [name for name in link.path.split("/") if name] + todo
        elif isinstance(link, h5py.HardLink):
            group = group[name]
        else:
            raise FormatError(f"{source.path}: {where!r} links to another file: open that")
    if not isinstance(group, h5py.Dataset):
        raise FormatError(f"{source.path}: {where!r} is a group: name a dataset in it")
    return group


# -- one dataset -----------------------------------------------------------------------------------


def _lay_out_dataset(
    source: StoreFile,
    dataset: Any,
    where: str,
    bias: int,
    fill: bool,
    whole: bool,
    is_cut: bool = False,
) -> Hdf5Part:
    """Lay out the rows of a dataset; if it is one as a whole, it has an axis of one row first.

    is_cut:  windows are cut from it: its chunks are decoded one by one.
    """
    from h5py import h5d

    at = f"{source.path}, dataset {where!r}"
    dtype = _check_dtype(at, dataset)
    layout = dataset.id.get_create_plist()
    if layout.get_external_count():
        raise FormatError(f"{at} lies in other files: write it into this one (h5repack)")
    how = layout.get_layout()
    if how not in (h5d.CONTIGUOUS, h5d.CHUNKED):
        kind = "virtual, made of other datasets" if how == h5d.VIRTUAL else "inside a header"
        raise FormatError(f"{at} is {kind}: write it contiguous (h5repack -l CONTI)")
    chunk = dataset.chunks if how == h5d.CHUNKED else None
    shape = tuple(int(size) for size in dataset.shape or ())
    if whole:
        shape, chunk = (1, *shape), chunk and (1, *chunk)
    check_shape(at, shape, chunk, dtype.itemsize)
    field = Field(where, dtype, shape[1:])
    if chunk is None:
        size, offset, row = (
            dataset.id.get_storage_size(),
            dataset.id.get_offset(),
            field.nbytes or 0,
        )
        if offset is None or size != row * shape[0]:
            raise FormatError(f"{at} has {size:,} bytes for shape {shape}: it was never written")
        _check_inside(at, source, int(offset), size)
        return Hdf5Part(field, Fixed(np.array([0, shape[0]]), np.array([offset], np.int64), row))
    grid, masks = _find_chunks(at, source, dataset, shape, tuple(chunk), dtype.itemsize, bias)
    absent = np.flatnonzero(grid.length < 0)
    if len(absent) and not fill:
        raise FormatError(f"{at}: {len(absent):,} chunks were never written: give fill=True")
    filters = [layout.get_filter(number) for number in range(layout.get_nfilters())]
    if not filters and not len(absent):
        if (grid.length != grid.chunk_bytes).any():
            raise FormatError(f"{at}: a chunk is not of {grid.chunk_bytes:,} bytes: damaged")
        verbatim = None if is_cut else lay_out_verbatim(grid, 1)
        if verbatim is not None:
            return Hdf5Part(field, verbatim)
    variant = {
        "dtype": dtype.str,
        "shape": list(chunk[1:] if is_cut else shape[1:]),
        "chunk": list(chunk),
        "filters": [
            [int(code), int(flags), list(map(int, values)), _read_name(name)]
            for code, flags, values, name in filters
        ],
        "fill": np.asarray(dataset.fillvalue, dtype).tobytes().hex(),
    }
    pieces = 1 if is_cut else math.prod(grid.cells[1:])
    strange = [(cell // pieces, cell % pieces, mask) for cell, mask in masks.items()]
    return Hdf5Part(field, group_chunks(grid), variant, strange, grid if is_cut else None)


def _read_name(name: bytes | str) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)


def _check_dtype(at: str, dataset: Any) -> np.dtype[Any]:
    """Return the type of a dataset, if numpy has exactly that one; else FormatError."""
    from h5py import h5t

    dtype: np.dtype[Any] = dataset.dtype
    if dtype.hasobject:
        raise FormatError(f"{at} holds values of varying length or references: write numbers")
    if dtype.names is not None or dtype.subdtype is not None or dtype.kind not in "iufcbS":
        raise FormatError(f"{at} is of type {dtype}: write one dataset of numbers for each member")
    stored = dataset.id.get_type()
    if dtype.kind != "S" and not stored.equal(h5t.py_create(dtype, logical=True)):
        raise FormatError(f"{at} is stored as a type that numpy does not have: convert it")
    return np.dtype(dtype.str)


def _find_chunks(
    at: str,
    source: StoreFile,
    dataset: Any,
    shape: tuple[int, ...],
    chunk: tuple[int, ...],
    itemsize: int,
    bias: int,
) -> tuple[ChunkGrid, dict[int, int]]:
    """Find the chunks, and the filter masks of those that have one."""
    stored: list[tuple[tuple[int, ...], int, int, int]] = []
    dataset.id.chunk_iter(
        lambda info: stored.append(
            (info.chunk_offset, info.filter_mask, info.byte_offset, info.size)
        )
    )
    grid = ChunkGrid.absent(shape, chunk, itemsize)
    cells = grid.cells
    if not stored:
        return grid, {}
    starts = np.array([entry[0] for entry in stored], np.int64).reshape(len(stored), -1)
    starts = np.pad(starts, ((0, 0), (len(shape) - starts.shape[1], 0)))  # of a whole: one row
    places = np.array([entry[2:] for entry in stored], np.int64)
    step = np.array(chunk, np.int64)
    if (starts % step).any() or (starts < 0).any() or (starts // step >= cells).any():
        raise FormatError(f"{at}: a chunk lies outside of the array: the file is damaged")
    number = np.ravel_multi_index(tuple((starts // step).T), cells)
    if len(np.unique(number)) < len(number):
        raise FormatError(f"{at}: two chunks of one place: the file is damaged")
    places[:, 0] += bias
    low, high = places[:, 0], source.size - places[:, 1]
    for row in np.flatnonzero((low < 0) | (places[:, 1] <= 0) | (low > high))[:1]:
        _check_inside(at, source, *places[row].tolist())
    order = np.argsort(low)
    if (low[order][1:] < (low + places[:, 1])[order][:-1]).any():
        raise FormatError(f"{at}: chunks overlap each other: the file is damaged")
    grid.offset[number], grid.length[number] = places[:, 0], places[:, 1]
    return grid, {int(n): entry[1] for n, entry in zip(number, stored, strict=True) if entry[1]}


def _check_inside(at: str, source: StoreFile, offset: int, size: int) -> None:
    if offset < 0 or size <= 0 or offset > source.size - size:
        raise FormatError(f"{at} claims {size:,} bytes at byte {offset:,}: it is truncated")


def _read_labels(
    source: StoreFile, dataset: Any, where: str, bias: int, fill: bool, whole: bool
) -> Int:
    """Read the labels; chunks that are absent are an error here too."""
    from h5py import h5d

    at = f"{source.path}, dataset {where!r}"
    if not _is_label(dataset, whole):
        raise UsageError(f"{at} is {dataset.dtype} of {dataset.shape}, no axis of integers")
    if dataset.id.get_create_plist().get_layout() != h5d.COMPACT:
        _lay_out_dataset(source, dataset, where, bias, fill, whole)
    if dataset.size * dataset.dtype.itemsize > _INFLATED_MAX * source.size:
        raise FormatError(f"{at} claims {dataset.size:,} labels: the file is damaged")
    return options.convert_labels(source.path, where, np.asarray(dataset[()]).reshape(-1))


@functools.cache
def _measure_bias(userblock_bytes: int) -> int:
    """Measure the number of bytes to add to the addresses of chunks.

    Libraries before 2024 left out the user block. A small file in memory shows it.
    """
    import h5py

    memory = io.BytesIO()
    mark = np.frombuffer(b"where this lies!", np.uint8)
    with h5py.File(memory, "w", userblock_size=userblock_bytes) as file:
        dataset = file.create_dataset("x", (16,), "u1", chunks=(16,))
        dataset[:] = mark
        file.flush()
        places: list[int] = []
        dataset.id.chunk_iter(lambda info: places.append(info.byte_offset))
    return memory.getvalue().index(mark.tobytes()) - places[0]
