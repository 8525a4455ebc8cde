"""Zarr arrays and groups, versions 2 and 3, in folders: an array is a field.

The first axis counts the samples. Chunks and shards without compression are read in place;
compressed ones are decoded by numcodecs.

Options:

    dataset   path of the one array that is read, a field "data"; not for a folder that is one.
    fields    {field: path of an array}; by default all arrays of the group at the top: they must
              have equal first axes.
    label     path of an array of integers with the labels; by default "label",
              "labels" or "y" in the group, where it has one axis of integers; "" for none.
    fill      True: chunks that do not exist hold the fill value; by default they are an error,
              because a lost file would read as zeros.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import limits
from ...engine.native import crc32c
from ...engine.store import Progress, Store, StoreFile
from ...errors import FormatError, MissingError, UsageError
from ...extent import Files, Int, joined, unseen
from ..codecs import zarr as codec
from ..codecs.registry import CompressedChunk
from ..fields import Codec, Field
from ..layout import Layout
from ..table import Index
from . import column_choice
from .chunk_grid import ChunkGrid, check_shape, count_cells, group_chunks, lay_out_verbatim
from .shards import Location

_META = ("zarr.json", ".zarray", ".zgroup")
_LABELS = ("label", "labels", "y")
_ABSENT = (1 << 64) - 1
_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError)
_MALFORMED_TYPE = (TypeError, ValueError, SyntaxError)  # numpy parses them as Python
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

    name: str
    where: str
    meta: str
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

    @property
    def plain(self) -> bool:
        """True if chunks are verbatim."""
        return not self.codecs and self.order == tuple(range(len(self.shape)))


def build(
    store: Store,
    place: Location,
    progress: Progress | None,
    *,
    dataset: str | None = None,
    fields: Mapping[str, str] | None = None,
    label: str | None = None,
    fill: bool = False,
) -> Index:
    """The index of the rows of one array, or of several side by side."""
    asked = {"data": dataset} if dataset is not None else fields
    arrays: dict[str, ZarrArray] = {}
    for name, path in (_list_group(store) if asked is None else asked).items():
        arrays[name] = _read_array(store, path)
    if label is None and asked is None:
        known = (n for n in _LABELS if n in arrays and _is_label(arrays[n]) and len(arrays) > 1)
        label = next(known, None)
    label = label or None
    labels_of = None if label is None else _read_array(store, label)
    arrays = {name: each for name, each in arrays.items() if each.name != label}
    if not arrays:
        raise FormatError(f"{store.root} holds no array beside the labels")
    counts = {name: each.shape[0] for name, each in arrays.items()}
    if labels_of is not None:
        counts[str(label)] = labels_of.shape[0]
    if len(set(counts.values())) > 1:
        raise FormatError(f"{store.root}: rows differ ({counts}): give fields={{field: array}}")
    tables = [_list_chunk_files(store, array, fill, progress) for array in arrays.values()]
    files = tables[0][0]
    for table, _ in tables[1:]:
        files = joined(files, table)
    array_fields: list[Field] = []
    layouts: list[Layout] = []
    start = 0
    for (name, each), (table, number) in zip(arrays.items(), tables, strict=True):
        grid = _locate_chunks(store, each, table, number, fill, progress)
        grid = grid._replace(file=(grid.file + np.uint32(start)).astype(np.uint32))
        field, layout = _make_field(name, each, grid, len(files))
        array_fields.append(field)
        layouts.append(layout)
        start += len(table)
    metas = [each.meta for each in [*arrays.values(), *([labels_of] if labels_of else [])]]
    sources = joined(files, store.stat(sorted(set(metas))))
    labels = None
    if labels_of is not None:
        labels, held = _read_labels(store, labels_of, fill, progress)
        sources = joined(sources, held)
    if fill:
        names = {each.name for each in arrays.values()}
        sources = joined(store.folders(sorted(names)), sources)
    return Index(
        format="zarr",
        files=files,
        fields=tuple(array_fields),
        layouts=tuple(layouts),
        sources=sources,
        label_column=labels,
    )


def _make_field(name: str, array: ZarrArray, grid: ChunkGrid, files: int) -> tuple[Field, Layout]:
    if array.plain and (grid.length >= 0).all():
        layout = lay_out_verbatim(grid, files)
        if layout is not None:
            return Field(name, array.dtype, array.shape[1:]), layout
    return Field(name, array.dtype, array.shape[1:], _make_codec(array)), group_chunks(grid)


def _make_codec(array: ZarrArray) -> Codec:
    return Codec(
        "zarr",
        {
            "dtype": array.dtype.str,
            "shape": list(array.shape[1:]),
            "chunk": list(array.inner or array.chunk),
            "order": list(array.order),
            "codecs": array.codecs,
            "fill": _encode_fill(array).hex(),
        },
    )


def _encode_fill(array: ZarrArray) -> bytes:
    try:
        return np.array(array.fill or 0, array.dtype).tobytes()
    except (TypeError, ValueError, OverflowError):
        raise FormatError(f"{array.where}: the fill value is {array.fill!r}") from None


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


def _list_group(store: Store) -> dict[str, str]:
    """List the arrays right below the top, or the top itself."""
    errors = store.probe(unseen(store.root, list(_META)))[1]
    if not errors[1] or (
        not errors[0] and _read_json(store, "zarr.json").get("node_type") == "array"
    ):
        return {"data": ""}
    pattern = "*/zarr.json" if not errors[0] else "*/.zarray"
    names = sorted(name.split("/")[0] for name in store.match(pattern))
    if not errors[0]:
        names = [
            n for n in names if _read_json(store, f"{n}/zarr.json").get("node_type") == "array"
        ]
    if not names:
        raise FormatError(f"{store.root} holds no arrays at its top: name some with fields=")
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
        array = (_parse_version_3 if not errors[0] else _parse_version_2)(
            name, where, meta, document
        )
    except _MALFORMED as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{where} is malformed ({error!r}): write the array again") from None
    for config in array.codecs:
        try:
            codec.check_codec(config)
        except _MALFORMED_TYPE as error:
            raise FormatError(f"{where}: {error}: write it with another one") from None
    chunk = array.chunk
    check_shape(where, array.shape, chunk, array.dtype.itemsize)
    if array.inner is not None:
        check_shape(where, array.shape, array.inner, array.dtype.itemsize)
        if any(size % step for size, step in zip(chunk, array.inner, strict=True)):
            raise FormatError(f"{where}: shards of {chunk} do not hold whole chunks {array.inner}")
    return array


def _check_type(where: str, text: Any) -> np.dtype[Any]:
    if not isinstance(text, str):
        raise FormatError(f"{where} is of type {text!r}: write one array for each member")
    try:
        dtype = np.dtype(text)
    except _MALFORMED_TYPE as error:
        raise FormatError(f"{where} is of type {text!r} ({error}): write it again") from None
    if dtype.hasobject or dtype.kind not in "iufcbS" or not dtype.itemsize:
        raise FormatError(f"{where} is of type {text!r}, which has no fixed place: convert it")
    return dtype


def _parse_version_2(name: str, where: str, meta: str, document: Any) -> ZarrArray:
    shape = _check_sizes(document["shape"])
    if document["zarr_format"] != 2:
        raise FormatError(f"{where} has version {document['zarr_format']!r}, not 2: write it again")
    order = tuple(range(len(shape)))
    codecs = [*(document.get("filters") or []), *filter(None, [document.get("compressor")])]
    return ZarrArray(
        name,
        where,
        meta,
        shape,
        _check_sizes(document["chunks"]),
        _check_type(where, document["dtype"]),
        order if document.get("order", "C") == "C" else order[::-1],
        [{**each, "id": str(each["id"])} for each in codecs],
        _check_separator(document.get("dimension_separator", ".")),
        "",
        document.get("fill_value"),
    )


def _parse_version_3(name: str, where: str, meta: str, document: Any) -> ZarrArray:
    if document["zarr_format"] != 3 or document["node_type"] != "array":
        raise FormatError(f"{where} is not an array of version 3: name an array in it with fields=")
    shape = _check_sizes(document["shape"])
    if document["chunk_grid"]["name"] != "regular" or document["data_type"] not in _TYPES:
        raise FormatError(f"{where}: write regular chunks, and numbers")
    if document.get("storage_transformers"):
        raise FormatError(f"{where} has storage transformers, which are not read")
    key = document["chunk_key_encoding"]
    default = key["name"] == "default"
    separator = key.get("configuration", {}).get("separator", "/" if default else ".")
    array = ZarrArray(
        name,
        where,
        meta,
        shape,
        _check_sizes(document["chunk_grid"]["configuration"]["chunk_shape"]),
        _check_type(where, _TYPES[document["data_type"]]),
        tuple(range(len(shape))),
        [],
        _check_separator(separator),
        "c" if default else "",
        document.get("fill_value"),
    )
    codecs = document["codecs"]
    if codecs[0]["name"] == "sharding_indexed" and len(codecs) == 1:
        settings = codecs[0]["configuration"]
        index = [each["name"] for each in settings["index_codecs"]]
        if (
            index != ["bytes", "crc32c"]
            or settings["index_codecs"][0].get("configuration", {}).get("endian", "little")
            != "little"
        ):
            raise FormatError(f"{where}: shards with an index of {index} are not read")
        array.inner = _check_sizes(settings["chunk_shape"])
        array.first = settings.get("index_location", "end") == "start"
        codecs = settings["codecs"]
    _take_codecs(array, codecs)
    return array


def _take_codecs(array: ZarrArray, codecs: Sequence[Any]) -> None:
    """Add the codecs of version 3 to the array, as numcodecs names them."""
    packed = False
    for each in codecs:
        name, settings = each["name"], dict(each.get("configuration") or {})
        if name == "transpose" and not packed:
            order = settings["order"]
            order = order if isinstance(order, list) else list(range(len(array.shape)))[::-1]
            if sorted(order) != list(range(len(array.shape))):
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
            raise FormatError(f"{array.where}: codec {name!r} is not read: write it without")
    if not packed:
        raise FormatError(f"{array.where}: the codecs do not end in bytes: write it again")


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
    if not fill and store.probe(unseen(store.root, ends))[1].any():
        gone = int(np.flatnonzero(store.probe(unseen(store.root, ends))[1])[0])
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
    return MissingError(
        f"{path} does not exist: a chunk was lost, or held only the fill value, which zarr leaves "
        f"out; with fill=True absent chunks hold the fill value"
    )


def _locate_chunks(
    store: Store,
    array: ZarrArray,
    files: Files,
    number: Int,
    fill: bool,
    progress: Progress | None,
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
    files, number = _list_chunk_files(store, array, fill, progress)
    grid = _locate_chunks(store, array, files, number, fill, progress)
    layout = group_chunks(grid)
    options = _make_codec(array).options
    decoded = []
    for chunk in range(layout.chunks.count):
        extents, _ = layout.pieces(np.array([chunk]))
        file, offset, length = (int(each[0]) for each in extents)
        data = memoryview(store.read(files.name(file), offset, length) if length else b"")
        rows = int(layout.first[chunk + 1] - layout.first[chunk])
        try:
            decoded.append(codec.decode(options, CompressedChunk(chunk, data, [len(data)], rows)))
        except UsageError:
            raise
        except ValueError as error:
            raise FormatError(f"{files.path(file)}: the labels are damaged: {error}") from None
    values = np.concatenate([np.asarray(each) for each in decoded])
    return column_choice.convert_labels(array.where, array.name, values), files
