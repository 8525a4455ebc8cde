"""Chunks of LitData: a folder with index.json, and files of samples, whose leaves are fields.

Leaves are named by their keys, with dots between nested ones, or numbered. A sample that is one
leaf is "data". Integers, floats and arrays of one axis have their dtype. All other leaves (JPEG,
text, arrays with a header, pickles) are the bytes as stored, not decoded.

fields, label:  see `penstock.index.formats.options`.
block_size:     for chunks of tokens: read them as LitData's TokensLoader does, in blocks of this
                many tokens from the start of each chunk; by default a document is a sample.

The content of a chunk shows its kind; the configuration does not count. Kinds are samples one after
the other, an Arrow table (of plain dicts), and either of them compressed: as a whole, by frames of
samples, or by sample. All chunks have to be of one kind. Labels of compressed samples are a field.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...engine.store import Store, StoreFile
from ...errors import FormatError, UsageError
from ...extent import Files, Int
from ..fields import Codec, Field
from ..layout import Chunked, Fixed, Layout, RowTable
from ..table import Index
from . import arrow, options, row_shards
from .row_shards import Manifest
from .shards import Columns, Scan, lay_out_extents, number_first

_CHUNK = re.compile(r"chunk-\d+-\d+.*\.bin")
_ZSTD = b"\x28\xb5\x2f\xfd"
_FRAMED = b"LDFZ01\0\0"
_ARROW = b"LDARW01\0"
_TAIL_BYTES = 4 + len(_ARROW)
_FRAME_HEAD = 24
_FRAME = np.dtype(
    [("first", "<u4"), ("items", "<u4"), ("offset", "<u8"), ("stored", "<u4"), ("plain", "<u4")]
)

_SCALARS = {"int": "<i8", "float": "<f8", "bool": "?"}
_NUMPY = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16", "?"]
_TORCH = {
    **dict.fromkeys((0, 1), "f4"),
    **dict.fromkeys((2, 3), "f8"),
    **dict.fromkeys((4, 5), "c8"),
    **dict.fromkeys((6, 7), "c16"),
    **dict.fromkeys((8, 9), "f2"),
    **dict(enumerate(("u1", "i1", "i2", "i2", "i4", "i4", "i8", "i8", "?", "u2"), 11)),
}


class _LitChunk(NamedTuple):
    """Number of samples of a chunk, and of tokens if index.json says it."""

    samples: int
    tokens: int | None


class _LitData(NamedTuple):
    """The list, its files, and what it says of each."""

    manifest: Manifest
    files: Files
    chunks: Sequence[_LitChunk]


class _Body(NamedTuple):
    """Kind and places of a chunk's content.

    kind:    plain, arrow, frames, sample or whole.
    edges:   plain and sample: where each sample begins and the last ends; whole: where the chunk
             begins and ends; arrow: where the table begins and ends.
    frames:  frames: int64 (n, 3), the start, bytes and samples of each.
    """

    kind: str
    edges: Int
    frames: Int | None = None


class _Leaf(NamedTuple):
    """A leaf: its name, the dtype of its elements, and True if it is a single element."""

    name: str
    dtype: np.dtype[Any]
    scalar: bool


def normalize_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in canonical form."""
    block_size = options.whole(1, 1 << 40)
    return options.normalize(
        given, fields=options.FIELDS, label=options.LABEL, block_size=block_size
    )


def is_dataset(store: Store) -> bool:
    """True if the root has the index of such chunks, or is above some."""
    named = row_shards.is_manifest(store, b'"chunks"', b'"chunk_bytes"')
    return named or row_shards.has_shards(store, _CHUNK)


def build(
    scan: Scan, fields: Columns = None, label: str | None = None, block_size: int | None = None
) -> Index:
    """The index of all samples, chunk after chunk in the order of index.json."""
    manifest = Manifest.read(scan.store, "LitData chunks", _CHUNK)
    with manifest.parsing():
        entries, config = manifest.value["chunks"], manifest.value["config"]
        if not entries:
            raise manifest.flaw("it lists no chunks: the writer did not finish")
        if config.get("encryption"):
            raise manifest.flaw("the chunks are encrypted: write them without")
        leaves = _list_leaves(config)
        names = manifest.check_names([entry["filename"] for entry in entries])
        chunks = []
        for entry in entries:
            dim = entry.get("dim")
            tokens = None if dim is None else manifest.check_count(dim)
            chunks.append(_LitChunk(manifest.check_count(entry["chunk_size"]), tokens))
    files = scan.store.stat(names, lambda _: f"{manifest.path}: ", scan.progress)
    sources = manifest.sources(files)
    data = _LitData(manifest, files, chunks)
    if config.get("item_loader") == "TokensLoader":
        if len(leaves) != 1:
            raise manifest.flaw(f"tokens are one leaf, and it has {len(leaves)}")
        field, layout = _lay_out_tokens(data, leaves[0].dtype, block_size)
        return Index("litdata", files, (field,), (layout,), sources)
    if block_size is not None:
        raise UsageError(f"{manifest.path}: block_size= is for chunks of tokens, and these are not")
    bodies = scan.parse(files, lambda number, source: _parse_body(source, chunks[number]))
    kind = bodies[0].kind
    for name, body in zip(names, bodies, strict=True):
        if body.kind != kind:
            raise manifest.flaw(f"{name} is {body.kind!r}, others {kind!r}")
    if kind == "arrow":
        return _index_tables(data, bodies, fields, label)
    if not sum(chunk.samples for chunk in chunks):
        raise manifest.flaw("it lists no samples")
    known = [leaf.name for leaf in leaves]
    scalars = {leaf.name for leaf in leaves if leaf.scalar and leaf.dtype.kind == "i"}
    if kind != "plain" and label and label in scalars:
        raise UsageError(f"{manifest.path}: {label!r} is compressed: take it as a field")
    integers = scalars if kind == "plain" else set()
    chosen, label = options.choose_columns(manifest.path, known, integers, fields, label)
    numbers = [known.index(name) for name in chosen]
    if kind != "plain":
        chunked = _lay_out_chunks(chunks, bodies)
        settings = {"leaves": len(leaves), "whole": kind == "whole"}
        decoded = []
        for number in numbers:
            name, dtype, scalar = leaves[number]
            described = {**settings, "leaf": number, "dtype": dtype.str if scalar else None}
            decoded.append(Field(name, dtype, () if scalar else None, Codec("litdata", described)))
        return Index("litdata", files, tuple(decoded), (chunked,) * len(decoded), sources)
    wanted = None if label is None else known.index(label)
    sizes = [None] * len(leaves)

    def parse(number: int, source: StoreFile) -> row_shards.ShardRows:
        width = 0 if wanted is None else leaves[wanted].dtype.itemsize
        return row_shards.parse_rows(source, bodies[number].edges, sizes, wanted, width)

    shard_rows = scan.parse(files, parse)
    layouts = row_shards.make_layouts(shard_rows, sizes, numbers)
    leaf_fields = tuple(
        _make_field(manifest, leaves[number], layout)
        for number, layout in zip(numbers, layouts, strict=True)
    )
    labels = None if label is None else row_shards.join_values(shard_rows, "<i8")
    return Index("litdata", files, leaf_fields, tuple(layouts), sources, label_column=labels)


def _lay_out_tokens(
    data: _LitData, dtype: np.dtype[Any], block_size: int | None
) -> tuple[Field, Layout]:
    """Lay out documents, or blocks of `block_size` tokens from the start of each chunk."""
    manifest, files, chunks = data

    def parse(number: int, source: StoreFile) -> Int:
        body = _parse_body(source, chunks[number])
        if body.kind != "plain":
            raise FormatError(f"{source.path} is compressed, or holds no tokens ({body.kind})")
        count = (source.size - int(body.edges[0])) // dtype.itemsize
        if block_size is not None and chunks[number].tokens not in (None, count):
            announced = f"{chunks[number].tokens:,}"
            raise source.flaw(0, f"{count:,} tokens, and index.json says {announced}")
        return body.edges

    edges = manifest.store.parse(files, parse)
    if block_size is None:
        layout = lay_out_extents([one[:-1] for one in edges], [np.diff(one) for one in edges])
        _check_elements(manifest, "tokens", dtype, layout.length)
        if not layout.count:
            raise manifest.flaw("it lists no documents")
        return Field("tokens", dtype, None), layout
    base = np.array([one[0] for one in edges], np.int64)
    block_bytes = block_size * dtype.itemsize
    first = number_first(((files.size - base) // dtype.itemsize // block_size).tolist())
    if not first[-1]:
        raise manifest.flaw(f"no chunk holds {block_size:,} tokens: give a smaller block_size")
    return Field("tokens", dtype, (block_size,)), Fixed(first, base, block_bytes)


# -- leaves ----------------------------------------------------------------------------------------


def _list_leaves(config: Mapping[str, Any]) -> list[_Leaf]:
    """List the leaves of a sample, by their names, or by their numbers if they have none."""
    kinds = config["data_format"]
    if not isinstance(kinds, list) or not kinds:
        raise ValueError("the configuration needs a list 'data_format'")
    try:
        names = list(_list_names(json.loads(str(config.get("data_spec")))[1], ""))
    except (ValueError, LookupError, TypeError, RecursionError):
        names = []
    if len(names) != len(kinds) or len(set(names)) < len(names):
        names = [str(number) for number in range(len(kinds))] if len(kinds) > 1 else ["data"]
    return [_parse_leaf(name, kind) for name, kind in zip(names, kinds, strict=True)]


def _list_names(spec: Mapping[str, Any], path: str) -> list[str]:
    """List the names of the leaves below a node of the tree, in order."""
    children = spec["children_spec"]
    if not children:
        return [path or "data"]
    context = spec["context"]
    keys = json.loads(context) if isinstance(context, str) else context
    if not isinstance(keys, list) or len(keys) != len(children):
        keys = list(range(len(children)))
    return [
        name
        for key, child in zip(keys, children, strict=True)
        for name in _list_names(child, f"{path}.{key}" if path else str(key))
    ]


def _parse_leaf(name: str, kind: str) -> _Leaf:
    if kind in _SCALARS:
        return _Leaf(name, np.dtype(_SCALARS[kind]), True)
    prefix, _, code = kind.partition(":")
    known: Mapping[int, str] = {}
    if prefix == "no_header_numpy":
        known = dict(enumerate(_NUMPY))
    elif prefix == "no_header_tensor":
        known = _TORCH
    dtype = known.get(int(code)) if code.isdigit() and len(code) < 4 else None
    return _Leaf(name, np.dtype(dtype or "u1"), False)


def _make_field(manifest: Manifest, leaf: _Leaf, layout: Fixed | RowTable) -> Field:
    """Make the field of a leaf: of one element if every sample has one."""
    assert isinstance(layout, RowTable)
    if leaf.scalar:
        # Releases before 0.2 wrote numbers as text.
        whole = bool((layout.length == leaf.dtype.itemsize).all())
        return Field(leaf.name, *((leaf.dtype, ()) if whole else (np.dtype(np.uint8), None)))
    _check_elements(manifest, leaf.name, leaf.dtype, layout.length)
    return Field(leaf.name, leaf.dtype, None)


def _check_elements(manifest: Manifest, name: str, dtype: np.dtype[Any], length: Int) -> None:
    for sample in np.flatnonzero(length % dtype.itemsize)[:1]:
        raise manifest.flaw(f"sample {int(sample):,} has {name!r} of no whole {dtype}: damaged")


# -- chunks ----------------------------------------------------------------------------------------


def _parse_body(source: StoreFile, chunk: _LitChunk) -> _Body:
    """Find the kind of a chunk by its content, and parse its tables."""
    head = source.read(0, len(_FRAMED))
    if head == _FRAMED:
        return _parse_framed(source, chunk)
    if head.startswith(_ZSTD):
        return _Body("whole", np.array([0, source.size], np.int64))
    edges = row_shards.read_table(source, chunk.samples)
    head_bytes = 4 * (len(edges) + 1)
    if source.size > head_bytes and bool((edges == head_bytes).all()):
        tail = source.read(max(head_bytes, source.size - _TAIL_BYTES), _TAIL_BYTES)
        if tail[4:] == _ARROW:
            end = source.size - _TAIL_BYTES
            start = end - int.from_bytes(tail[:4], "little")
            if start < head_bytes:
                raise source.flaw(end, f"an Arrow table of {end - start:,} bytes does not fit")
            return _Body("arrow", np.array([start, end], np.int64))
    row_shards.check_table(source, edges)
    for sample in np.flatnonzero(np.diff(edges))[:1]:
        if source.read(int(edges[sample]), len(_ZSTD)) == _ZSTD:
            return _Body("sample", edges)
    return _Body("plain", edges)


def _parse_framed(source: StoreFile, chunk: _LitChunk) -> _Body:
    """Parse a chunk of frames, each of which decodes to several samples."""
    head = np.frombuffer(source.read(8, _FRAME_HEAD - 8).ljust(_FRAME_HEAD - 8, b"\0"), "<u4")
    samples, count = int(head[1]), int(head[3])
    if head[0] & 0xFFFF != 1 or samples != chunk.samples:
        what = f"frames of version {head[0] & 0xFFFF}, {samples:,} samples"
        raise source.flaw(8, f"{what}, and index.json says {chunk.samples:,}: version 1 is read")
    at = _FRAME_HEAD + 4 * (samples + 1)
    end = at + _FRAME.itemsize * count
    data = source.read(at, end - at) if end <= source.size else b""
    if len(data) != end - at:
        raise source.flaw(20, f"the tables of {count:,} frames leave the file")
    table = np.frombuffer(data, _FRAME)
    # As unsigned numbers, places beyond 2^63 are too large as well.
    if (table["offset"] > source.size).any():
        raise source.flaw(at, f"a frame begins beyond the end at {source.size:,}")
    offset, length, items, first = (
        table[name].astype(np.int64) for name in ("offset", "stored", "items", "first")
    )
    if (items <= 0).any() or (np.append(first, samples) != np.append(0, np.cumsum(items))).any():
        raise source.flaw(at, f"the frames do not hold the samples 0 to {samples:,} in turn")
    if (np.append(offset, source.size) < np.append(end, offset + length)).any():
        raise source.flaw(at, "frames overlap, or lie beyond the end of the file")
    return _Body("frames", np.array([end, source.size]), np.stack([offset, length, items], 1))


def _lay_out_chunks(chunks: Sequence[_LitChunk], bodies: Sequence[_Body]) -> Chunked:
    """Lay out the compressed chunks to decode: frames, samples or whole files."""
    tables = []
    for chunk, body in zip(chunks, bodies, strict=True):
        length = np.diff(body.edges)
        samples = np.full(len(length), 1 if body.kind == "sample" else chunk.samples)
        plain = np.stack([body.edges[:-1], length, samples], 1)
        table = plain if body.frames is None else body.frames
        tables.append(table[table[:, 2] > 0])
    extents = lay_out_extents([table[:, 0] for table in tables], [table[:, 1] for table in tables])
    return Chunked(number_first(np.concatenate(tables)[:, 2].tolist()), extents)


def _index_tables(
    data: _LitData, bodies: Sequence[_Body], fields: Columns, label: str | None
) -> Index:
    """Make the index of the rows of Arrow tables, one in each chunk."""
    manifest, files, chunks = data
    if label == "":
        raise UsageError(f"{manifest.path}: chunks of Arrow tables take no label='': name fields")

    def parse(number: int, source: StoreFile) -> arrow.ArrowContent:
        start, end = bodies[number].edges.tolist()

        def fetch(offset: int, length: int) -> bytes:
            return source.read(start + offset, max(0, min(length, end - start - offset)))

        table = StoreFile(f"{source.path} (from byte {start:,} on)", end - start, fetch, -1)
        content = arrow.parse_file(table, fields, label)
        count, announced = sum(content.rows), chunks[number].samples
        if count != announced:
            raise source.flaw(start, f"a table of {count:,} rows, in index.json {announced:,}")
        return arrow.shift_places(content, start)

    contents = manifest.store.parse(files, parse)
    return arrow.make_index("litdata", files, manifest.sources(files), contents, fields, label)
