"""Shards of MosaicML Streaming: a folder with index.json, and files of samples in columns.

Columns are fields: numbers and arrays of fixed shape with their dtype, all others (text, JPEG,
JSON, pickles, arrays of varying shape) as the bytes as stored, not decoded.

fields, label:  see `penstock.index.formats.options`.

A split is a sub-folder with an index of its own: open it. Compressed shards can be read after they
are unpacked beside the compressed files. Hashes are not checked.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ... import limits
from ...engine.store import Store, StoreFile
from ...errors import FormatError, MissingError
from ...extent import Files, unseen
from ..fields import Field
from ..table import Index
from . import column_choice, row_shards
from .row_shards import Manifest
from .shards import Columns, Scan

_NUMBERS = {
    "int": "<i8",
    **{f"int{8 * size}": f"<i{size}" for size in (1, 2, 4, 8)},
    **{f"uint{8 * size}": f"<u{size}" for size in (1, 2, 4, 8)},
    **{f"float{8 * size}": f"<f{size}" for size in (2, 4, 8)},
}
_SHARD = re.compile(r".*\.mds(\..*)?")
_VARIES = {"bytes", "str", "json", "pkl", "pil", "jpeg", "png", "str_int", "str_float"}
_UNPACK = {"zstd": "zstd -d", "gz": "gunzip -k", "br": "brotli -d", "bz2": "bunzip2 -k"}


def is_dataset(store: Store) -> bool:
    """True if the root has the index of such shards, or is above some."""
    named = row_shards.is_manifest(store, b'"shards"', b'"column_encodings"')
    return named or row_shards.has_shards(store, _SHARD)


def build(scan: Scan, fields: Columns = None, label: str | None = None) -> Index:
    """The index of all samples, shard after shard in the order of index.json."""
    manifest = Manifest.read(scan.store, "MDS shards", _SHARD)
    with manifest.parsing():
        entries = manifest.value["shards"]
        if not entries:
            raise manifest.flaw("it lists no shards: the writer did not finish")
        table = _parse_columns(manifest, entries[0])
        for number, entry in enumerate(entries):
            if _parse_columns(manifest, entry) != table:
                raise manifest.flaw(f"shard {number} has other columns than shard 0")
        counts = [manifest.check_count(entry["samples"]) for entry in entries]
        files = _list_files(scan.store, manifest, entries, scan.progress)
    names = [part.name for part, _ in table]
    integers = {part.name for part, _ in table if part.shape == () and part.dtype.kind in "iu"}
    chosen, label = column_choice.choose_columns(manifest.path, names, integers, fields, label)
    sizes = [size for _, size in table]
    wanted = None if label is None else names.index(label)
    dtype = np.dtype(np.uint8) if wanted is None else table[wanted][0].dtype

    def parse(number: int, source: StoreFile) -> row_shards.ShardRows:
        edges = row_shards.read_table(source, counts[number])
        row_shards.check_table(source, edges)
        return row_shards.parse_rows(source, edges, sizes, wanted, dtype.itemsize)

    shard_rows = scan.parse(files, parse)
    if not sum(counts):
        raise manifest.flaw("it lists no samples")
    numbers = [names.index(name) for name in chosen]
    labels = None
    if label is not None:
        values = row_shards.join_values(shard_rows, dtype)
        labels = column_choice.convert_labels(manifest.path, label, values)
    parts = tuple(table[number][0] for number in numbers)
    layouts = tuple(row_shards.make_layouts(shard_rows, sizes, numbers))
    return Index("mds", files, parts, layouts, manifest.sources(files), label_column=labels)


def _parse_columns(manifest: Manifest, entry: Mapping[str, Any]) -> list[tuple[Field, int | None]]:
    """Parse the columns of a shard, each with the bytes of its values, or None if they vary."""
    if (entry["format"], entry["version"]) != ("mds", 2):
        kind = f"{entry['format']!r} {entry['version']!r}"
        raise manifest.flaw(f"a shard is of {kind}: write it with MDSWriter")
    names = entry["column_names"]
    if set(map(type, names)) != {str} or len(set(names)) < len(names):
        raise manifest.flaw("a shard has no columns, or two columns of one name")
    columns: list[tuple[Field, int | None]] = []
    described = zip(names, entry["column_encodings"], entry["column_sizes"], strict=True)
    for name, encoding, size in described:
        part = _make_field(name, encoding)
        varies = encoding in _VARIES or encoding.startswith("ndarray")
        is_number = size is None or (type(size) is int and 0 <= size <= limits.MIB << 20)
        is_known = part.nbytes is not None or varies
        if not is_number or (is_known and (size or None) != (part.nbytes or None)):
            raise manifest.flaw(f"column {name!r} of {encoding} has a size of {size!r}")
        if part.nbytes is None and size:
            part = Field(name, np.dtype(np.uint8), (size,))
        columns.append((part, size or None))
    return columns


def _make_field(name: str, encoding: str) -> Field:
    """Make the field of a column: typed if every value has one dtype and shape."""
    kind, _, rest = encoding.partition(":")
    dtype, _, shape = rest.partition(":")
    if encoding in _NUMBERS:
        return Field(name, np.dtype(_NUMBERS[encoding]), ())
    if kind == "ndarray" and dtype in _NUMBERS and re.fullmatch(r"[0-9]+(,[0-9]+)*", shape):
        sizes = tuple(map(int, shape.split(",")))
        if 0 < math.prod(sizes) < 1 << 40:
            return Field(name, np.dtype(_NUMBERS[dtype]), sizes)
    return Field(name, np.dtype(np.uint8), None)


def _list_files(
    store: Store, manifest: Manifest, entries: Sequence[Mapping[str, Any]], progress: Any
) -> Files:
    """List the shards' files; all must be unpacked."""
    names = manifest.check_names([entry["raw_data"]["basename"] for entry in entries])
    files, errors = store.probe(unseen(store.root, names), progress)
    for number in np.flatnonzero(errors)[:1].tolist():
        packed = entries[number].get("zip_data")
        if not packed:
            store.stat([names[number]], lambda _: f"{manifest.path}: ")
            packed = {"basename": names[number]}
        (name,) = manifest.check_names([packed["basename"]])
        method = str(entries[number].get("compression")).partition(":")[0]
        command = f"{_UNPACK.get(method, 'unpack')} {unseen(store.root, [name]).path(0)}"
        raise MissingError(f"{files.path(number)} does not exist: `{command}`?")
    for number, entry in enumerate(entries):
        size = manifest.check_count(entry["raw_data"]["bytes"])
        if int(files.size[number]) != size:
            raise FormatError(f"{files.path(number)} is not of {size:,} bytes: fetch it")
    return files
