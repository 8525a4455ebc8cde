"""Chunks of LitData: a folder with index.json, and files of samples, whose leaves are fields.

Leaves are named by their keys, with dots between nested ones, or numbered; a sample that is one
leaf is "data". Integers, floats and arrays of one axis have their dtype; all other leaves (JPEG,
text, arrays with a header, pickles) are the bytes that they are stored as. Nothing is decoded.

fields, label:  see `penstock.formats.choice`.
block_size:     for chunks of tokens: read them as LitData's TokensLoader does, in blocks of this
                many tokens from the start of each chunk; by default a document is a sample.

What a chunk is its content shows, not the configuration. Chunks that hold Arrow tables or were
compressed are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import FormatError, UsageError
from ..extent import Files, Int
from ..index import Field, Index
from ..layout import Fixed, Layout, Table
from . import choice, rows, tokens
from .manifests import Manifest, has_shards, is_manifest
from .shards import counted

if TYPE_CHECKING:
    from ..store import Progress, Source, Store
    from . import Place

_CHUNK = re.compile(r"chunk-\d+-\d+.*\.bin")
_ZSTD = b"\x28\xb5\x2f\xfd"
_FRAMED = b"LDFZ01\0\0"
_ARROW = b"LDARW01\0"

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


class _Chunk(NamedTuple):
    name: str
    samples: int
    tokens: int | None


class _Leaf(NamedTuple):
    """A leaf: its name, the dtype of its elements, and whether it is one of them."""

    name: str
    dtype: np.dtype[Any]
    scalar: bool


def canonical(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options in their one spelling."""
    found = choice.canonical(options)
    if "block_size" in options:
        found["block_size"] = tokens.count_of("block_size", options["block_size"])
    return found


def folder(store: Store) -> bool:
    """Whether the root has the index of such chunks, or lies above some."""
    return is_manifest(store, b'"chunks"', b'"chunk_bytes"') or has_shards(store, _CHUNK)


def build(
    store: Store,
    place: Place,
    progress: Progress | None = None,
    *,
    fields: Sequence[str] | None = None,
    label: str | None = None,
    block_size: int | None = None,
) -> Index:
    """The index of all samples, chunk after chunk in the order of index.json."""
    manifest = Manifest.read(store, "LitData chunks", _CHUNK)
    chunks = _chunks(manifest)
    config = manifest.value.get("config")
    if not isinstance(config, dict):
        raise manifest.flaw("it has no 'config'")
    if config.get("encryption"):
        raise manifest.flaw("the chunks are encrypted: write them without, or `penstock convert`")
    leaves = _leaves(manifest, config)
    manifest.check_inside([chunk.name for chunk in chunks])
    files = store.stat([chunk.name for chunk in chunks], lambda _: f"{manifest.path}: ", progress)
    sources = manifest.sources(files)
    if config.get("item_loader") == "TokensLoader":
        if len(leaves) != 1:
            raise manifest.flaw(f"tokens are one leaf, and it has {len(leaves)}")
        part, layout = _tokens(store, manifest, files, chunks, leaves[0].dtype, block_size)
        return Index("litdata", files, (part,), (layout,), sources)
    if block_size is not None:
        raise UsageError(f"{manifest.path}: block_size= is for chunks of tokens, and these are not")
    names = [leaf.name for leaf in leaves]
    integers = {leaf.name for leaf in leaves if leaf.scalar and leaf.dtype.kind == "i"}
    chosen, label = choice.chosen(manifest.path, names, integers, fields, label)
    wanted = None if label is None else names.index(label)
    width = 0 if wanted is None else leaves[wanted].dtype.itemsize

    def parse(number: int, source: Source) -> rows.Rows:
        edges = _edges(source, chunks[number])
        return rows.parse_rows(source, edges, [None] * len(leaves), wanted, width)

    found = store.parse(files, parse, progress)
    if not sum(each.offset.shape[1] for each in found):
        raise manifest.flaw("it lists no samples")
    numbers = [names.index(name) for name in chosen]
    placed = rows.layouts(files, found, [None] * len(leaves), numbers)
    labels: Int | None = None
    if label is not None:
        values = [np.ascontiguousarray(each.values).view("<i8").reshape(-1) for each in found]
        labels = np.concatenate(values)
    return Index(
        format="litdata",
        files=files,
        fields=tuple(
            _field(manifest, leaves[number], layout)
            for number, layout in zip(numbers, placed, strict=True)
        ),
        layouts=tuple(placed),
        sources=sources,
        label_column=labels,
    )


def _tokens(
    store: Store,
    manifest: Manifest,
    files: Files,
    chunks: Sequence[_Chunk],
    dtype: np.dtype[Any],
    block_size: int | None,
) -> tuple[Field, Layout]:
    """Documents, or blocks of `block_size` tokens from the start of each chunk."""
    if block_size is None:
        edges = store.parse(files, lambda number, source: _edges(source, chunks[number]))
        count = counted([len(each) - 1 for each in edges])
        length = np.concatenate([np.diff(each) for each in edges])
        _check_elements(manifest, "tokens", dtype, length)
        file = np.repeat(np.arange(len(files), dtype=np.uint32), np.diff(count))
        offset = np.concatenate([each[:-1] for each in edges])
        if not count[-1]:
            raise manifest.flaw("it lists no documents")
        return Field("tokens", dtype, None), Table(file, offset, length)
    found = store.parse(
        files, lambda number, source: _blocks(source, chunks[number], dtype, block_size)
    )
    first = counted([blocks for _, blocks in found])
    if not first[-1]:
        raise manifest.flaw(f"no chunk holds {block_size:,} tokens: give a smaller block_size")
    base = np.array([base for base, _ in found], np.int64)
    return Field("tokens", dtype, (block_size,)), Fixed(first, base, block_size * dtype.itemsize)


def _chunks(manifest: Manifest) -> list[_Chunk]:
    entries = manifest.list_of(manifest.value, "chunks")
    if not entries:
        raise manifest.flaw("it lists no chunks: the writer did not finish")
    found = []
    for number, entry in enumerate(entries):
        where = f"chunk {number}"
        dim = entry.get("dim")
        found.append(
            _Chunk(
                manifest.name_of(entry, "filename", where),
                manifest.count_of(entry, "chunk_size", where),
                None if dim is None else manifest.count_of(entry, "dim", where),
            )
        )
    return found


# -- leaves ----------------------------------------------------------------------------------------


def _leaves(manifest: Manifest, config: Mapping[str, Any]) -> list[_Leaf]:
    kinds = config.get("data_format")
    if not isinstance(kinds, list) or not kinds or not all(isinstance(k, str) for k in kinds):
        raise manifest.flaw(f"the configuration has no 'data_format', but {kinds!r}")
    try:
        names = list(_names(json.loads(str(config.get("data_spec")))[1], ""))
    except (ValueError, LookupError, TypeError, RecursionError):
        names = []
    if len(names) != len(kinds) or len(set(names)) < len(names):
        names = [str(number) for number in range(len(kinds))] if len(kinds) > 1 else ["data"]
    return [_leaf(name, kind) for name, kind in zip(names, kinds, strict=True)]


def _names(spec: Mapping[str, Any], path: str) -> list[str]:
    """The names of the leaves below a node of the tree, in order."""
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
        for name in _names(child, f"{path}.{key}" if path else str(key))
    ]


def _leaf(name: str, kind: str) -> _Leaf:
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


def _field(manifest: Manifest, leaf: _Leaf, layout: Fixed | Table) -> Field:
    """A leaf as a field: of one element where every sample has one."""
    assert isinstance(layout, Table)
    if leaf.scalar:
        # Releases before 0.2 wrote numbers as text.
        whole = bool((layout.length == leaf.dtype.itemsize).all())
        return Field(leaf.name, *((leaf.dtype, ()) if whole else (np.dtype(np.uint8), None)))
    _check_elements(manifest, leaf.name, leaf.dtype, layout.length)
    return Field(leaf.name, leaf.dtype, None)


def _check_elements(manifest: Manifest, name: str, dtype: np.dtype[Any], length: Int) -> None:
    for sample in np.flatnonzero(length % dtype.itemsize)[:1]:
        raise manifest.flaw(
            f"sample {int(sample):,} has {int(length[sample]):,} bytes of {name!r}, which "
            f"{dtype} does not divide: the chunks or their configuration are damaged"
        )


# -- chunks ----------------------------------------------------------------------------------------


def _edges(source: Source, chunk: _Chunk) -> Int:
    """Where each sample of a chunk begins, and where the last ends; other chunks are refused."""
    head = source.read(0, len(_FRAMED))
    if head.startswith((_ZSTD, _FRAMED)):
        raise _packed(source)
    edges = rows.table(source, chunk.samples)
    head_bytes = 4 * (len(edges) + 1)
    if source.size > head_bytes and bool((edges == head_bytes).all()):
        tail = source.read(max(head_bytes, source.size - len(_ARROW)), len(_ARROW))
        if tail == _ARROW:
            raise FormatError(
                f"{source.path} holds an Arrow table, as LitData writes plain dicts by default: "
                f"write tuples instead, or write the data anew with `penstock convert`"
            )
    rows.check_table(source, edges)
    if len(edges) > 1:
        first = source.read(int(edges[0]), min(len(_ZSTD), int(edges[1] - edges[0])))
        if first == _ZSTD:
            raise _packed(source)
    return edges


def _packed(source: Source) -> FormatError:
    return FormatError(
        f"{source.path} is compressed (zstd), so that its samples have no place: write the data "
        f"without compression, or anew with `penstock convert`"
    )


def _blocks(
    source: Source, chunk: _Chunk, dtype: np.dtype[Any], block_size: int
) -> tuple[int, int]:
    """Where the blocks of tokens of a chunk begin, and how many there are."""
    edges = _edges(source, chunk)
    base = int(edges[0])
    held = (source.size - base) // dtype.itemsize
    if chunk.tokens is not None and chunk.tokens != held:
        raise source.flaw(
            base, f"index.json says {chunk.tokens:,} tokens, and {held:,} are here: fetch it again"
        )
    return base, held // block_size
