"""Zarr arrays and groups, versions 2 and 3, in folders: an array is a field.

The first axis counts the samples. Chunks and shards without compression are read in place;
compressed ones are decoded by numcodecs.

Options:

    dataset   path of the one array that is read, a field "data"; not for a folder that is one.
    fields    {field: path of an array}; by default all arrays of the group at the top: they must
              have equal first axes.
    label     path of an array of integers with the labels; by default "label",
              "labels" or "y" in the group, where it has one axis of integers; "" for none.
    sample    "file": each group or array in the folder is a sample, and an array is its field; or
              windows are cut within each.
    window    and the other options of `windowing`; axes have the names of `dimension_names`, or of
              xarray's `_ARRAY_DIMENSIONS`. By default all arrays that have one of the window's
              axes, but coordinates.
    fill      True: chunks that do not exist hold the fill value; by default they are an error,
              because a lost file would read as zeros.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ... import limits
from ...engine.native import crc32c
from ...engine.store import Progress, Store, StoreFile
from ...errors import FormatError, MissingError, UsageError
from ...extent import Files, Int, Names, joined, unseen
from ..codecs import chunked_arrays as codec
from ..codecs.registry import CompressedChunk
from ..fields import Codec, Field
from ..layout import Layout
from ..table import Index
from . import options
from .chunk_grid import (
    ChunkGrid,
    chain_variants,
    check_shape,
    choose_label,
    count_cells,
    group_chunks,
    lay_out_verbatim,
)
from .shards import Scan
from .windowing import (
    ArrayNotes,
    ArrayPart,
    Coordinate,
    WindowRequest,
    build_index,
    encode_fill,
    is_coordinate,
    name_axes,
)

_META = ("zarr.json", ".zarray", ".zgroup")
_ABSENT = (1 << 64) - 1
_MALFORMED = (LookupError, TypeError, ValueError, AttributeError, RecursionError, SyntaxError)
"""Errors of metadata that are not as they should be; numpy parses types as Python."""
# fmt: off
_TYPES = {
    "bool": "|b1", "int8": "|i1", "uint8": "|u1", "int16": "<i2", "uint16": "<u2", "int32": "<i4",
    "uint32": "<u4", "int64": "<i8", "uint64": "<u8", "float16": "<f2", "float32": "<f4",
    "float64": "<f8", "complex64": "<c8", "complex128": "<c16",
}
# fmt: on


def is_array_or_group(store: Store) -> bool:
    """True if a folder is an array or a group."""
    return not store.probe(unseen(store.root, list(_META)))[1].all()


@dataclass
class ZarrArray:
    """Metadata of an array.

    chunk:   shape of the part in one file, a shard or a chunk; `inner`: of a shard's chunks.
    order:   the axes in the order in which a chunk stores them.
    codecs:  for numcodecs, in the order of encoding.
    first:   True if a shard's index is at its start.
    """

    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    dtype: np.dtype[Any]
    order: tuple[int, ...]
    codecs: list[dict[str, Any]]
    separator: str
    prefix: str
    fill: Any = 0
    inner: tuple[int, ...] | None = None
    first: bool = False
    name: str = ""
    meta: str = ""
    where: str = ""

    @property
    def plain(self) -> bool:
        """True if chunks are verbatim."""
        return not self.codecs and self.order == tuple(range(len(self.shape)))

    @property
    def fill_bytes(self) -> str:
        """The fill value in hexadecimal."""
        return np.array(self.fill or 0, self.dtype).tobytes().hex()

    @property
    def codec_options(self) -> dict[str, Any]:
        return {
            "dtype": self.dtype.str,
            "shape": list(self.shape[1:]),
            "chunk": list(self.inner or self.chunk),
            "order": list(self.order),
            "codecs": self.codecs,
            "fill": self.fill_bytes,
        }


def build(
    scan: Scan,
    dataset: str | None = None,
    fields: Mapping[str, str] | None = None,
    label: str | None = None,
    fill: bool = False,
    sample: str | None = None,
    **windows: Any,
) -> Index:
    """The index of the rows of one array, or of several side by side; of groups; or of windows."""
    asked = {"data": dataset} if dataset is not None else fields
    if windows:
        return _index_windows(scan, asked, fill, WindowRequest(**windows, sample=sample))
    if sample == "file":
        return _index_groups(scan, asked, label, fill)
    named = _list_group(scan.store) if asked is None else asked
    arrays = {name: _read_array(scan.store, path) for name, path in named.items()}
    if label is None and asked is None and len(arrays) > 1:
        label = choose_label({name for name, array in arrays.items() if _is_label(array)})
    labels_of = None if not label else _read_array(scan.store, label)
    arrays = {name: array for name, array in arrays.items() if array.name != label}
    if not arrays:
        raise FormatError(f"{scan.store.root} holds no array beside the labels")
    everything = {**arrays, **({label: labels_of} if label and labels_of else {})}
    counts = {name: array.shape[0] for name, array in everything.items()}
    if len(set(counts.values())) > 1:
        raise FormatError(f"{scan.store.root}: rows differ ({counts}): give fields=")
    files, grids = _locate_arrays(scan, arrays.values(), fill)
    array_fields: list[Field] = []
    layouts: list[Layout] = []
    for (name, array), grid in zip(arrays.items(), grids, strict=True):
        layout = None
        if array.plain and (grid.length >= 0).all():
            layout = lay_out_verbatim(grid, len(files))
        made = Codec("zarr", array.codec_options) if layout is None else None
        array_fields.append(Field(name, array.dtype, array.shape[1:], made))
        layouts.append(group_chunks(grid) if layout is None else layout)
    metas = {array.meta for array in everything.values()}
    sources = joined(files, scan.store.stat(sorted(metas)))
    labels = None
    if labels_of is not None:
        labels, label_files = _read_labels(scan.store, labels_of, fill, scan.progress)
        sources = joined(sources, label_files)
    if fill:
        names = {array.name for array in arrays.values()}
        sources = joined(scan.store.folders(sorted(names)), sources)
    return Index("zarr", files, tuple(array_fields), tuple(layouts), sources, label_column=labels)


def _index_windows(
    scan: Scan, asked: Mapping[str, str] | None, fill: bool, request: WindowRequest
) -> Index:
    """Make the index of the windows of arrays, at the top or in each group."""
    store, is_by_group = scan.store, request.is_by_file
    if is_by_group:
        _, metas, columns = _list_columns(store, asked)
    else:
        named, metas = _list_group(store) if asked is None else asked, set()
        columns = {name: [_read_array(store, path)] for name, path in named.items()}
    axes = {name: _read_axes(store, arrays[0]) for name, arrays in columns.items()}
    if asked is None:
        columns = {
            name: arrays
            for name, arrays in columns.items()
            if not is_coordinate(name, axes[name]) and set(axes[name]) & set(request.window)
        } or columns
    every = [array for arrays in columns.values() for array in arrays]
    files, grids = _locate_arrays(scan, every, fill)
    parts: dict[str, list[ArrayPart]] = {}
    codecs: dict[str, Codec] = {}
    for name, arrays in columns.items():
        chain, grids = grids[: len(arrays)], grids[len(arrays) :]
        parts[name] = [
            ArrayPart(one.where, one.shape, _read_axes(store, one), one.dtype, one.fill_bytes, grid)
            for one, grid in zip(arrays, chain, strict=True)
        ]
        rows = [_add_axis(one, len(arrays)) for one in arrays] if is_by_group else arrays
        made = [one.codec_options | {"shape": list((one.inner or one.chunk)[1:])} for one in rows]
        counts = [len(grid.offset) for grid in chain]
        codecs[name] = Codec("zarr", chain_variants(made, counts) if is_by_group else made[0])
    named_by = metas | {array.meta for array in every}
    named_by |= {f"{meta.removesuffix('.zarray')}.zattrs" for meta in named_by if "zarray" in meta}
    present = store.probe(unseen(store.root, sorted(named_by)))[1] == 0
    read = [name for name, is_here in zip(sorted(named_by), present, strict=True) if is_here]
    sources = joined(files, store.stat(read))
    if fill:
        folders = store.folders(sorted({array.name for array in every}))
        sources = joined(folders, sources)
    if is_by_group:
        sources = joined(store.folders([""]), sources)
    return build_index("zarr", files, sources, parts, codecs, request)


def _read_axes(store: Store, array: ZarrArray) -> tuple[str, ...]:
    """Read the names of an array's axes."""
    document = _read_json(store, array.meta)
    names = document.get("dimension_names")
    if names is None:
        names = _read_attributes(store, array.meta).get("_ARRAY_DIMENSIONS")
    is_list = isinstance(names, list) and all(isinstance(one, str | None) for one in names)
    axes = name_axes(names if is_list else None, len(array.shape))
    if len(set(axes)) < len(axes):
        raise FormatError(f"{array.where} has two axes of one name ({', '.join(axes)}): rename one")
    return axes


def _read_attributes(store: Store, meta: str) -> dict[str, Any]:
    """Read the attributes of an array or a group, by the name of its metadata."""
    folder, _, name = meta.rpartition("/")
    beside = f"{folder}/.zattrs".lstrip("/")
    if name == "zarr.json":
        attributes = _read_json(store, meta).get("attributes")
    elif store.probe(unseen(store.root, [beside]))[1].any():
        return {}
    else:
        attributes = _read_json(store, beside)
    return attributes if isinstance(attributes, dict) else {}


def note_arrays(store: Store) -> tuple[dict[str, ArrayNotes], dict[str, Any]]:
    """Note the arrays of a group, or the one at the top, and the attributes of the group."""
    notes = {}
    listed = _list_group(store, scalars=True)
    for name, path in listed.items():
        meta, value = f"{path}/zarr.json".lstrip("/"), None
        if store.probe(unseen(store.root, [meta]))[1].any():
            meta = f"{path}/.zarray".lstrip("/")
        document = _read_json(store, meta)
        if document.get("shape") == []:
            array, value = _read_scalar(store, path, meta, document)
        else:
            array = _read_array(store, path)
        attributes = _read_attributes(store, meta)
        if meta.endswith(".zarray"):  # whose fill value xarray takes for missing values
            attributes.pop("_ARRAY_DIMENSIONS", None)
            if array.fill is not None and array.dtype.kind in "biuf":
                attributes["_FillValue"] = encode_fill(array.dtype, array.fill)
        axes = () if value is not None else _read_axes(store, array)
        notes[name] = ArrayNotes(path, axes, attributes, value)
    if listed.get("data") == "":
        return notes, {}
    is_new = not store.probe(unseen(store.root, ["zarr.json"]))[1].any()
    groups = store.match("*/zarr.json" if is_new else "*/.zgroup")
    for meta in (one for one in groups if one.split("/")[0] not in listed):
        raise FormatError(f"{store.root} has a group {meta.split('/')[0]!r}: convert it by itself")
    return notes, _read_attributes(store, "zarr.json" if is_new else ".zgroup")


def _read_scalar(store: Store, path: str, meta: str, document: Any) -> tuple[ZarrArray, Any]:
    """Read an array without axes: one chunk of one element."""
    is_new = meta.endswith("zarr.json")
    try:
        grid = {"name": "regular", "configuration": {"chunk_shape": [1]}}
        single = {**document, "shape": [1], "chunks": [1], "chunk_grid": grid}
        array = (_parse_version_3 if is_new else _parse_version_2)(single)
        name = f"{path}/{'c' if is_new else '0'}"
        files, errors = store.probe(unseen(store.root, [name]))
        size = 0 if errors.any() else int(files.size[0])
        data = store.read(name, 0, size) if size else b""
        coded = CompressedChunk(0, memoryview(data), [size], 1)
        return array, np.asarray(codec.decode_zarr(array.codec_options, coded))
    except (*_MALFORMED, _UnreadTypeError) as error:
        raise FormatError(f"{store.root}/{meta} cannot be read ({error!r}): leave it out") from None


def _index_groups(
    scan: Scan, asked: Mapping[str, str] | None, label: str | None, fill: bool
) -> Index:
    """Make the index of the groups, or arrays, in a folder, each of which is a sample."""
    store = scan.store
    if label:
        raise UsageError("with sample='file' Zarr has no label=: take the array as a field")
    groups, metas, columns = _list_columns(store, asked)
    fields: list[Field] = []
    wholes: list[ZarrArray] = []
    for name, arrays in columns.items():
        first, whole = arrays[0], _add_axis(arrays[0], len(arrays))
        likeness = (first.shape, first.codec_options, first.chunk, first.order)
        for array in arrays:
            if (array.shape, array.codec_options, array.chunk, array.order) != likeness:
                what = f"{array.where} is unlike {first.where}"
                raise FormatError(f"{what}: choose others by fields=")
        wholes.append(whole)
        fields.append(Field(name, first.dtype, first.shape, Codec("zarr", whole.codec_options)))
    every = [array for arrays in columns.values() for array in arrays]
    files, grids = _locate_arrays(scan, every, fill)
    places: list[Layout] = []
    for row, whole in enumerate(wholes):
        column = grids[row * len(groups) : (row + 1) * len(groups)]
        chunks = map(np.concatenate, zip(*(one[3:] for one in column), strict=True))
        chunk, itemsize = whole.inner or whole.chunk, whole.dtype.itemsize
        joint = ChunkGrid(whole.shape, chunk, itemsize, *chunks)
        is_plain = whole.plain and bool((joint.length >= 0).all())
        verbatim = lay_out_verbatim(joint, len(files)) if is_plain else None
        if verbatim is not None:
            fields[row] = replace(fields[row], codec=None)
        places.append(group_chunks(joint) if verbatim is None else verbatim)
    read = sorted({array.meta for array in every} | metas)
    sources = joined(store.folders([""]), joined(files, store.stat(read)))
    return Index("zarr", files, (*fields,), (*places,), sources, names=Names.of(groups))


def _list_columns(
    store: Store, asked: Mapping[str, str] | None
) -> tuple[list[str], set[str], dict[str, list[ZarrArray]]]:
    """List the groups, or arrays, in a folder, their metadata, and each array in all of them."""
    groups, metas = _list_groups(store)
    columns: dict[str, list[ZarrArray]] = {}
    for group in groups:
        named = _list_group(store, f"{group}/") if asked is None else asked
        for name, path in named.items():
            columns.setdefault(name, []).append(_read_array(store, f"{group}/{path}"))
    if not columns:
        raise FormatError(f"{store.root} holds no Zarr groups, of which each is a sample: check it")
    for name, arrays in columns.items():
        if len(arrays) != len(groups):
            have = f"{len(arrays):,} of {len(groups):,} groups have {name!r}"
            raise FormatError(f"{store.root}: {have}: choose others by fields=")
    return groups, metas, columns


def _list_groups(store: Store) -> tuple[list[str], set[str]]:
    """List the groups, or arrays, in a folder, and their metadata."""
    metas = {name for meta in _META for name in store.match(f"*/{meta}")}
    return sorted({meta.split("/")[0] for meta in metas}), metas


def _add_axis(array: ZarrArray, count: int) -> ZarrArray:
    """Return an array that has so many of these along an axis in front, each in its own chunks."""
    return replace(
        array,
        shape=(count, *array.shape),
        chunk=(1, *array.chunk),
        order=(0, *(axis + 1 for axis in array.order)),
        inner=array.inner and (1, *array.inner),
    )


# -- metadata --------------------------------------------------------------------------------------


def _read_json(store: Store, name: str) -> Any:
    data = store.read(name, 0, 16 * limits.header_bytes_max)
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{store.root}/{name} is not JSON ({error}): it is truncated") from None
    if not isinstance(document, dict):
        raise FormatError(f"{store.root}/{name} is not a JSON object: write the array again")
    return document


def _list_group(store: Store, at: str = "", scalars: bool = False) -> dict[str, str]:
    """List the arrays right below the top, or the top itself; without axes only if `scalars`."""
    errors = store.probe(unseen(store.root, [f"{at}{meta}" for meta in _META]))[1]

    def is_array(name: str) -> bool:
        return bool(_read_json(store, name).get("node_type") == "array")

    if not errors[1] or (not errors[0] and is_array(f"{at}zarr.json")):
        return {"data": ""}
    metas = store.match(f"{at}*/.zarray" if errors[0] else f"{at}*/zarr.json")
    names = sorted(meta.removeprefix(at).split("/")[0] for meta in metas)
    if not errors[0]:
        names = [name for name in names if is_array(f"{at}{name}/zarr.json")]
    meta = ".zarray" if errors[0] else "zarr.json"
    if not scalars:  # of xarray, such as spatial_ref
        axes = {name: _read_json(store, f"{at}{name}/{meta}").get("shape") for name in names}
        names = [name for name in names if axes[name] != []] or names
    if not names:
        what = f"{store.root}/{at}".rstrip("/") + " holds no arrays at its top"
        raise FormatError(f"{what}: give fields=, or sample='file' if each group is a sample")
    return {name: name for name in names}


def _read_array(store: Store, path: str) -> ZarrArray:
    """Read and check the metadata of an array."""
    name = path.strip("/")
    if {"..", "."} & set(name.split("/")):
        raise UsageError(f"{path!r} is not the path of an array: paths lead down from the top")
    at = f"{name}/" if name else ""
    names = [f"{at}zarr.json", f"{at}.zarray"]
    errors = store.probe(unseen(store.root, names))[1]
    if errors.all():
        raise MissingError(f"{store.root} has no array {path!r}")
    meta = names[int(np.argmin(errors))]
    where = f"{store.root}/{meta}"
    document = _read_json(store, meta)
    try:
        array = (_parse_version_2 if errors[0] else _parse_version_3)(document)
        array.name, array.meta, array.where = name, meta, where
        for config in array.codecs:
            codec.check_codec(config)
        _ = array.codec_options
    except _UnreadTypeError as error:
        remedy = "write numbers, or bytes of one length; of dates, .view('int64')"
        raise FormatError(f"{where} is of type {error}, which is not read: {remedy}") from None
    except _MALFORMED as error:
        raise FormatError(f"{where} is malformed ({error!r}): write the array again") from None
    except OverflowError:
        raise FormatError(f"{where}: the fill value is {array.fill!r}") from None
    check_shape(where, array.shape, array.chunk, array.dtype.itemsize)
    if array.inner is not None:
        check_shape(where, array.shape, array.inner, array.dtype.itemsize)
        if any(size % step for size, step in zip(array.chunk, array.inner, strict=True)):
            steps = f"{array.chunk} do not hold whole chunks {array.inner}"
            raise FormatError(f"{where}: shards of {steps}")
    return array


def _parse_version_2(document: Any) -> ZarrArray:
    shape = _check_sizes(document["shape"])
    if document["zarr_format"] != 2:
        raise ValueError(f"version {document['zarr_format']!r}")
    order = tuple(range(len(shape)))
    codecs = [*(document.get("filters") or []), *filter(None, [document.get("compressor")])]
    return ZarrArray(
        shape,
        _check_sizes(document["chunks"]),
        _find_type(document["dtype"]),
        order if document.get("order", "C") == "C" else order[::-1],
        [{**config, "id": str(config["id"])} for config in codecs],
        _check_separator(document.get("dimension_separator", ".")),
        "",
        document.get("fill_value"),
    )


def _parse_version_3(document: Any) -> ZarrArray:
    if document["zarr_format"] != 3 or document["node_type"] != "array":
        raise ValueError("not an array of version 3: name an array in it with fields=")
    if document["chunk_grid"]["name"] != "regular" or document.get("storage_transformers"):
        raise ValueError("only regular chunks without transformers are read")
    shape, key = _check_sizes(document["shape"]), document["chunk_key_encoding"]
    default = key["name"] == "default"
    separator = key.get("configuration", {}).get("separator", "/" if default else ".")
    array = ZarrArray(
        shape,
        _check_sizes(document["chunk_grid"]["configuration"]["chunk_shape"]),
        _find_type(document["data_type"], _TYPES),
        tuple(range(len(shape))),
        [],
        _check_separator(separator),
        "c" if default else "",
        document.get("fill_value"),
    )
    codecs = document["codecs"]
    if codecs[0]["name"] == "sharding_indexed" and len(codecs) == 1:
        settings = codecs[0]["configuration"]
        index = [(one["name"], one.get("configuration")) for one in settings["index_codecs"]]
        endian = (index[0][1] or {}).get("endian", "little")
        if [name for name, _ in index] != ["bytes", "crc32c"] or endian != "little":
            raise ValueError(f"shards with an index of {index} are not read")
        array.inner = _check_sizes(settings["chunk_shape"])
        array.first = settings.get("index_location", "end") == "start"
        codecs = settings["codecs"]
    packed = False
    for one in codecs:
        name, settings = one["name"], dict(one.get("configuration") or {})
        if name == "transpose" and not packed:
            order = settings["order"]
            order = order if isinstance(order, list) else list(range(len(shape)))[::-1]
            if sorted(order) != list(range(len(shape))):
                raise ValueError(f"order {order}")
            array.order = tuple(array.order[axis] for axis in order)
        elif name == "bytes" and not packed:
            packed = True
            if settings.get("endian") == "big":
                array.dtype = array.dtype.newbyteorder(">")
        elif packed and name in ("gzip", "zstd", "blosc", "crc32c"):
            array.codecs.append({"id": name})  # the bytes hold everything that decoding needs
        elif packed and name.startswith("numcodecs."):
            array.codecs.append({**settings, "id": name.removeprefix("numcodecs.")})
        else:
            raise ValueError(f"codec {name!r} is not read: write it without")
    if not packed:
        raise ValueError("the codecs do not end in bytes")
    return array


class _UnreadTypeError(Exception):
    """A type of values that is not read."""


def _find_type(given: Any, named: Mapping[str, str] | None = None) -> np.dtype[Any]:
    """Return the dtype of a type.

    named:  of version 3, types by their names; in version 2 numpy names them.
    """
    name: Any = given
    settings: Any = {}
    if isinstance(given, Mapping):
        name, settings = given["name"], given.get("configuration") or {}
    if named is not None and name == "null_terminated_bytes":
        return np.dtype(f"S{_check_sizes([settings['length_bytes']])[0]}")
    if not isinstance(name, str):
        raise _UnreadTypeError("a structure")
    if named is not None and name not in named:
        raise _UnreadTypeError(name)
    dtype = np.dtype(name if named is None else named[name])
    if dtype.hasobject or dtype.kind not in "iufcbS" or not dtype.itemsize:
        raise _UnreadTypeError(str(dtype))
    return dtype


def _check_sizes(values: Any) -> tuple[int, ...]:
    if not isinstance(values, list) or not all(type(n) is int and n >= 0 for n in values):
        raise ValueError(f"sizes {values!r}")
    return tuple(values)


def _check_separator(text: Any) -> str:
    if text not in (".", "/"):
        raise ValueError(f"separator {text!r}")
    return str(text)


# -- chunks ----------------------------------------------------------------------------------------


def _list_chunk_files(
    store: Store, array: ZarrArray, fill: bool, progress: Progress | None
) -> tuple[Files, Int]:
    """List the files of an array's chunks that exist, and the number in the grid of each."""
    counts = count_cells(array.shape, array.chunk)
    total = math.prod(counts)
    at = f"{array.name}/" if array.name else ""

    def names(numbers: Any) -> list[str]:
        cells = np.stack(np.unravel_index(numbers, counts), axis=1).tolist()
        head = [array.prefix] if array.prefix else []
        return [at + array.separator.join([*head, *map(str, cell)]) for cell in cells]

    ends = names(np.array([0, total - 1]))
    if not fill:  # of all that may be missing these cost two probes
        for gone in np.flatnonzero(store.probe(unseen(store.root, ends))[1])[:1].tolist():
            raise _absent_error(f"{store.root}/{ends[gone]}")
    every = names(np.arange(total))
    files, errors = store.probe(unseen(store.root, every), progress)
    if not errors.any():
        return files, np.arange(total)
    if not fill:
        raise _absent_error(files.path(int(np.argmax(errors != 0))))
    here = np.flatnonzero(errors == 0)
    if not len(here):
        raise FormatError(f"{array.where}: none of its chunks exists")
    return store.stat([every[number] for number in here.tolist()]), here


def _absent_error(path: str) -> MissingError:
    why = "a chunk was lost, or held only the fill value, which zarr leaves out"
    return MissingError(f"{path} does not exist: {why}: fill=True fills absent chunks")


def _locate_arrays(
    scan: Scan, arrays: Iterable[ZarrArray], fill: bool
) -> tuple[Files, list[ChunkGrid]]:
    """Locate the chunks of arrays in the files of all."""
    tables: list[Files] = []
    grids, start = [], 0
    for array in arrays:
        files, number = _list_chunk_files(scan.store, array, fill, scan.progress)
        grid = _locate_chunks(scan.store, array, files, number, fill, scan.progress)
        grids.append(grid._replace(file=(grid.file + np.uint32(start)).astype(np.uint32)))
        tables.append(files)
        start += len(files)
    while len(tables) > 1:
        tables = [functools.reduce(joined, tables[at : at + 2]) for at in range(0, len(tables), 2)]
    return tables[0], grids


def _locate_chunks(
    store: Store, array: ZarrArray, files: Files, number: Int, fill: bool, progress: Progress | None
) -> ChunkGrid:
    """Locate the chunks of an array; in shards by the index of each."""
    itemsize = array.dtype.itemsize
    outer = ChunkGrid.absent(array.shape, array.chunk, itemsize)
    if array.inner is None:
        outer.file[number] = np.arange(len(files))
        outer.length[number] = files.size
        if array.plain:
            for row in np.flatnonzero(files.size != outer.chunk_bytes)[:1]:
                raise FormatError(f"{files.path(int(row))}: a chunk is truncated")
        for row in np.flatnonzero(files.size == 0)[:1]:
            raise FormatError(f"{files.path(int(row))} is empty: write the chunk again")
        return outer
    grid = ChunkGrid.absent(array.shape, array.inner, itemsize)
    per_shard = tuple(a // b for a, b in zip(array.chunk, array.inner, strict=True))
    size = math.prod(per_shard) * 16 + 4

    def parse(row: int, source: StoreFile) -> Any:
        return _read_shard_index(source, array, size, grid.chunk_bytes if array.plain else None)

    for row in np.flatnonzero(files.size < size)[:1]:  # before tables of that size are made
        raise FormatError(f"{files.path(int(row))}: a shard's index is truncated")
    inside = np.stack(np.unravel_index(np.arange(math.prod(per_shard)), per_shard), axis=1)
    for row, entries in enumerate(store.parse(files, parse, progress)):
        start = np.array(np.unravel_index(int(number[row]), outer.cells)) * np.array(per_shard)
        cell = start + inside
        within = (cell < np.array(grid.cells)).all(axis=1)
        at = np.ravel_multi_index(tuple(cell[within].T), grid.cells)
        offset, length = entries[within].T
        grid.file[at], grid.offset[at], grid.length[at] = row, offset, length
    absent = np.flatnonzero(grid.length < 0)
    if len(absent) and not fill:
        raise FormatError(f"{array.where}: {len(absent):,} chunks are absent: give fill=True")
    return grid


def _read_shard_index(
    source: StoreFile, array: ZarrArray, size: int, chunk_bytes: int | None
) -> Any:
    """Read offset and length of each chunk in a shard; length -1: absent."""
    place = 0 if array.first else source.size - size
    data = source.read(place, size)
    table = np.frombuffer(data, "<u8", (size - 4) // 8).reshape(-1, 2)
    if crc32c(data[:-4]) != int.from_bytes(data[-4:], "little"):
        raise source.flaw(place, "the checksum of the shard's index is wrong: it is damaged")
    absent = (table == np.uint64(_ABSENT)).all(axis=1)
    low, high = (size, source.size) if array.first else (0, place)
    wide = table.astype(np.float64)  # sums of any two unsigned numbers, near enough to refuse them
    outside = (wide[:, 0] < low) | (wide.sum(axis=1) > high) | (table[:, 1] == 0)
    entries = table.astype(np.int64)
    outside |= (entries < 0).any(axis=1) | (entries.sum(axis=1) > high)
    if chunk_bytes is not None:
        outside |= table[:, 1] != chunk_bytes
    for row in np.flatnonzero(outside & ~absent)[:1]:
        raise source.flaw(place, f"the shard's index leads chunk {int(row)} outside")
    entries[absent] = 0, -1
    return entries


# -- labels ----------------------------------------------------------------------------------------


def _is_label(array: ZarrArray) -> bool:
    return len(array.shape) == 1 and array.dtype.kind in "iu"


def _read_labels(
    store: Store, array: ZarrArray, fill: bool, progress: Progress | None
) -> tuple[Int, Files]:
    """Read and decode the labels; return them and their files."""
    if not _is_label(array):
        raise UsageError(f"{array.where} is {array.dtype} of {array.shape}: labels are integers")
    values, files = _read_values(store, array, fill, progress)
    return options.convert_labels(array.where, array.name, values), files


def _read_values(
    store: Store, array: ZarrArray, fill: bool, progress: Progress | None
) -> tuple[Any, Files]:
    """Read and decode an array of one axis, and list its files."""
    files, number = _list_chunk_files(store, array, fill, progress)
    grid = _locate_chunks(store, array, files, number, fill, progress)
    layout = group_chunks(grid)
    decoded = []
    for chunk, rows in enumerate(layout.chunk_samples.tolist()):
        extents, _ = layout.pieces(np.array([chunk]))
        file, offset, length = (int(column[0]) for column in extents)
        data = memoryview(store.read(files.name(file), offset, length) if length else b"")
        coded = CompressedChunk(chunk, data, [len(data)], rows)
        try:
            decoded.append(np.asarray(codec.decode_zarr(array.codec_options, coded)))
        except UsageError:
            raise
        except ValueError as error:
            what = f"{files.path(file)}: the values of {array.name!r} are damaged"
            raise FormatError(f"{what}: {error}") from None
    return np.concatenate(decoded), files


def read_coordinates(
    store: Store, is_by_group: bool, axes: Set[str]
) -> list[dict[str, Coordinate]]:
    """Read the coordinates of axes, at the top or in each group, those that there are."""
    coordinates = []
    for at in [f"{group}/" for group in _list_groups(store)[0]] if is_by_group else [""]:
        found: dict[str, Coordinate] = {}
        for axis in axes & _list_group(store, at).keys():
            array = _read_array(store, f"{at}{axis}")
            if _read_axes(store, array) == (axis,) and array.dtype.kind in "iuf":
                values, _ = _read_values(store, array, True, None)
                attributes = _read_attributes(store, array.meta)
                found[axis] = Coordinate.note(array.where, values, attributes)
        coordinates.append(found)
    return coordinates
