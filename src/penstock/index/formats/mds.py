"""Shards of MosaicML Streaming: a folder with index.json, and files of samples in columns.

Columns are fields: numbers and arrays of fixed shape with their dtype, all others (text, JPEG,
JSON, pickles, arrays of varying shape) as the bytes as stored, not decoded.

fields, label:  see `penstock.index.formats.column_choice`.

A split is a sub-folder with an index of its own: open it. Compressed shards can be read after they
are unpacked beside the compressed files. Hashes are not checked.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ... import limits
from ...engine.store import Progress, Store, StoreFile
from ...errors import FormatError, MissingError
from ...extent import Files, Int, unseen
from ..fields import Field
from ..table import Index
from . import column_choice, rows
from .manifests import Manifest, has_shards, is_manifest
from .shards import Location

_NUMBERS = {
    "int": "<i8",
    **{f"int{8 * size}": f"<i{size}" for size in (1, 2, 4, 8)},
    **{f"uint{8 * size}": f"<u{size}" for size in (1, 2, 4, 8)},
    **{f"float{8 * size}": f"<f{size}" for size in (2, 4, 8)},
}
_SHARD = re.compile(r".*\.mds(\..*)?")
_VARIES = {"bytes", "str", "json", "pkl", "pil", "jpeg", "png", "str_int", "str_float"}
_UNPACK = {"zstd": "zstd -d", "gz": "gunzip -k", "br": "brotli -d", "bz2": "bunzip2 -k"}


class _MdsShard(NamedTuple):
    """Entry of one shard in index.json."""

    name: str
    packed: str | None
    compression: str
    samples: int
    size: int


class _MdsColumn(NamedTuple):
    """A column and the bytes of its values; `size` None: they vary."""

    part: Field
    size: int | None


def is_dataset(store: Store) -> bool:
    """True if the root has the index of such shards, or is above some."""
    return is_manifest(store, b'"shards"', b'"column_encodings"') or has_shards(store, _SHARD)


def build(
    store: Store,
    place: Location,
    progress: Progress | None = None,
    *,
    fields: Sequence[str] | None = None,
    label: str | None = None,
) -> Index:
    """The index of all samples, shard after shard in the order of index.json."""
    manifest = Manifest.read(store, "MDS shards", _SHARD)
    entries = manifest.list_of(manifest.value, "shards")
    if not entries:
        raise manifest.flaw("it lists no shards: the writer did not finish")
    table = _parse_columns(manifest, entries[0], 0)
    shards = []
    for number, entry in enumerate(entries):
        if number and _parse_columns(manifest, entry, number) != table:
            raise manifest.flaw(f"shard {number} has other columns than shard 0")
        shards.append(_parse_shard(manifest, entry, number))
    files = _list_files(store, manifest, shards, progress)
    names = [column.part.name for column in table]
    integers = {c.part.name for c in table if c.part.shape == () and c.part.dtype.kind in "iu"}
    chosen, label = column_choice.choose_columns(manifest.path, names, integers, fields, label)
    sizes = [column.size for column in table]
    wanted = None if label is None else names.index(label)
    width = 0 if wanted is None else table[wanted].part.dtype.itemsize

    def parse(number: int, source: StoreFile) -> rows.ShardRows:
        return rows.parse_rows(
            source, _read_edges(source, shards[number].samples), sizes, wanted, width
        )

    shard_rows = store.parse(files, parse, progress)
    if not sum(rows.offset.shape[1] for rows in shard_rows):
        raise manifest.flaw("it lists no samples")
    numbers = [names.index(name) for name in chosen]
    labels: Int | None = None
    if wanted is not None and label is not None:
        dtype = table[wanted].part.dtype
        values = [np.ascontiguousarray(each.values).view(dtype).reshape(-1) for each in shard_rows]
        labels = column_choice.convert_labels(manifest.path, label, np.concatenate(values))
    return Index(
        format="mds",
        files=files,
        fields=tuple(table[number].part for number in numbers),
        layouts=tuple(rows.make_layouts(files, shard_rows, sizes, numbers)),
        sources=manifest.sources(files),
        label_column=labels,
    )


def _parse_columns(manifest: Manifest, entry: Mapping[str, Any], number: int) -> list[_MdsColumn]:
    """Parse the columns of a shard; none is decoded to more than numbers."""
    where = f"shard {number}"
    version, kind = entry.get("version"), entry.get("format")
    if version != 2 or kind != "mds":
        raise manifest.flaw(f"{where} is of {kind!r} {version!r}: write it with MDSWriter")
    names = manifest.list_of(entry, "column_names", where)
    encodings = manifest.list_of(entry, "column_encodings", where)
    sizes = manifest.list_of(entry, "column_sizes", where)
    if not names or not len(names) == len(encodings) == len(sizes):
        raise manifest.flaw(f"{where}: columns, encodings and sizes are not as many")
    if not all(isinstance(text, str) for text in (*names, *encodings)):
        raise manifest.flaw(f"{where} has columns whose names or encodings are not text")
    if len(set(names)) < len(names):
        raise manifest.flaw(f"{where} has two columns of one name")
    columns = []
    for name, encoding, size in zip(names, encodings, sizes, strict=True):
        part = _make_field(name, encoding)
        own = part.nbytes
        if size is not None and (type(size) is not int or size < 0 or size > limits.MIB << 20):
            raise manifest.flaw(f"{where}: column {name!r} has a size of {size!r}")
        if own is not None and (size or None) != (own or None):
            raise manifest.flaw(f"{where}: column {name!r} of {encoding} has {size} bytes")
        if own is None and size and (encoding in _VARIES or encoding.startswith("ndarray")):
            raise manifest.flaw(f"{where}: column {name!r} of {encoding} has a size of {size}")
        if own is None and size:
            part = Field(name, np.dtype(np.uint8), (size,))
        columns.append(_MdsColumn(part, size or None))
    return columns


def _make_field(name: str, encoding: str) -> Field:
    """Make the field of a column: typed if every value has one dtype and shape."""
    if encoding in _NUMBERS:
        return Field(name, np.dtype(_NUMBERS[encoding]), ())
    kind, _, rest = encoding.partition(":")
    dtype, _, shape = rest.partition(":")
    if kind == "ndarray" and dtype in _NUMBERS and shape:
        try:
            sizes = tuple(int(size) for size in shape.split(","))
        except ValueError:
            sizes = ()
        if sizes and all(size > 0 for size in sizes) and math.prod(sizes) < 1 << 40:
            return Field(name, np.dtype(_NUMBERS[dtype]), sizes)
    return Field(name, np.dtype(np.uint8), None)


def _parse_shard(manifest: Manifest, entry: Mapping[str, Any], number: int) -> _MdsShard:
    where = f"shard {number}"
    raw, packed = entry.get("raw_data"), entry.get("zip_data")
    if not isinstance(raw, dict) or not (packed is None or isinstance(packed, dict)):
        raise manifest.flaw(f"{where} does not name its file (raw_data)")
    return _MdsShard(
        manifest.name_of(raw, "basename", where),
        manifest.name_of(packed, "basename", where) if packed else None,
        str(entry.get("compression") or ""),
        manifest.count_of(entry, "samples", where),
        manifest.count_of(raw, "bytes", where),
    )


def _list_files(
    store: Store, manifest: Manifest, shards: Sequence[_MdsShard], progress: Progress | None
) -> Files:
    """List the shards' files; all must be unpacked."""
    names = [shard.name for shard in shards]
    manifest.check_inside(names)
    files, errors = store.probe(unseen(store.root, names), progress)
    for number in np.flatnonzero(errors)[:1]:
        shard = shards[int(number)]
        if shard.packed is None:
            store.stat([shard.name], lambda _: f"{manifest.path}: ")
        packed = unseen(store.root, [shard.packed or shard.name]).path(0)
        command = _UNPACK.get(shard.compression.partition(":")[0], "unpack")
        raise MissingError(f"{files.path(int(number))} does not exist: `{command} {packed}`?")
    for number, shard in enumerate(shards):
        if int(files.size[number]) != shard.size:
            raise FormatError(f"{files.path(number)} is not of {shard.size:,} bytes: fetch it")
    return files


def _read_edges(source: StoreFile, samples: int) -> Int:
    """Read where each sample of a shard begins, and where the last ends."""
    edges = rows.read_table(source, samples)
    rows.check_table(source, edges)
    return edges
