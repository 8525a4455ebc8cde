"""Tokenized documents as Megatron writes them: tokens in .bin, places of documents in .idx.

Open either file, their common prefix, or several of them (a pattern, a list). Sequences are in the
order of .idx. A document, of all its sequences, is a sample, of the dtype of the tokens.

window:  makes windows of tokens samples, over documents in their order, see
         `penstock.index.formats.tokens`: as Megatron's sequences of this length, before shuffling.

The types that forks number differently are told apart by the size of .bin.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np

from ...engine.store import Progress, Store, StoreFile
from ...errors import FormatError
from ...extent import Files, Int, joined, unseen
from ..fields import Field
from ..layout import Layout, Pieces, RowTable
from ..table import Index
from . import tokens
from .shards import Location, list_names, number_first

_MAGIC = b"MMIDIDX\0\0"
_OLD = b"TNTIDX"
_HEAD_BYTES = 34
_DTYPES = {
    1: ("u1",),
    2: ("i1",),
    3: ("<i2",),
    4: ("<i4",),
    5: ("<i8",),
    6: ("<f8", "<f4"),
    7: ("<f4", "<f8"),
    8: ("<u2",),
    9: ("?", "<u4"),
}


class _MegatronTokens(NamedTuple):
    """Content of one .idx.

    offset, tokens:  of each sequence, where it begins and the number of its tokens.
    documents:       first sequence of each document, and the number of sequences at the end.
    """

    dtype: np.dtype[Any]
    offset: Int
    tokens: Int
    documents: Int


def has_idx_beside(store: Store, name: str) -> bool:
    """True if a file is a .bin with its .idx beside it."""
    if not name.endswith(".bin"):
        return False
    other = f"{_strip_suffix(name)}.idx"
    _, errors = store.probe(unseen(store.root, [other]))
    return not errors[0] and store.read(other, 0, len(_MAGIC)).startswith((_MAGIC, _OLD))


def build(
    store: Store, place: Location, progress: Progress | None = None, *, window: int | None = None
) -> Index:
    """The index of all documents or windows, file after file."""
    names = [place.name] if place.kind == "file" else list_names(store, place)
    prefixes = list(dict.fromkeys(_strip_suffix(name) for name in names))
    lists = store.stat([f"{prefix}.idx" for prefix in prefixes])
    files = store.stat([f"{prefix}.bin" for prefix in prefixes])

    def parse(number: int, source: StoreFile) -> _MegatronTokens:
        return _parse_idx(source, files.path(number), int(files.size[number]))

    contents = store.parse(lists, parse, progress)
    dtype = contents[0].dtype
    for file, each in enumerate(contents):
        if each.dtype != dtype:
            raise FormatError(f"{files.path(file)} is {each.dtype}, and {files.path(0)} {dtype}")
    if window is None:
        part, layout = _lay_out_documents(files, contents, dtype)
    else:
        stretches = [tokens.TokenRun(each.offset, each.tokens) for each in contents]
        part, layout = tokens.lay_out_windows(files, stretches, dtype, window)
    sources = joined(lists, files)
    if place.kind != "file":  # files could be added
        folders = store.folders(sorted({"", *(os.path.dirname(name) for name in names)}))
        sources = joined(folders, sources)
    return Index("megatron", files, (part,), (layout,), sources)


def _strip_suffix(name: str) -> str:
    return name.removesuffix(".bin").removesuffix(".idx")


def _parse_idx(source: StoreFile, path: str, size: int) -> _MegatronTokens:
    """Parse an .idx, and compare it with the size of its .bin."""
    head = source.read(0, _HEAD_BYTES)
    if head.startswith(_OLD):
        raise FormatError(f"{source.path} is of TNTIDX: write it anew by preprocess_data.py")
    if not head.startswith(_MAGIC) or len(head) < _HEAD_BYTES:
        raise FormatError(f"{source.path} is not an .idx of Megatron: it starts with {head[:9]!r}")
    version, code = int.from_bytes(head[9:17], "little"), head[17]
    if version != 1 or code not in _DTYPES:
        raise source.flaw(9, f"version {version}, type {code}: use version 1, types 1 to 9")
    sequences = int.from_bytes(head[18:26], "little")
    entries = int.from_bytes(head[26:34], "little")
    expected = _HEAD_BYTES + 12 * sequences + 8 * entries
    if source.size not in (expected, expected + sequences):  # with or without modes
        raise source.flaw(18, f"{expected:,} bytes are announced: truncated or damaged")
    data = source.read(_HEAD_BYTES, expected - _HEAD_BYTES)
    if len(data) != expected - _HEAD_BYTES:
        raise source.flaw(_HEAD_BYTES + len(data), "the file ends here, before its tables do")
    counts = np.frombuffer(data, "<i4", sequences).astype(np.int64)
    offset = np.frombuffer(data, "<i8", sequences, 4 * sequences).astype(np.int64)
    documents = np.frombuffer(data, "<i8", entries, 12 * sequences).astype(np.int64)
    _check_tables(source, sequences, counts, offset, documents)
    dtype = _find_dtype(source, path, size, code, counts, offset)
    return _MegatronTokens(dtype, offset, counts, documents)


def _check_tables(
    source: StoreFile, sequences: int, counts: Int, offset: Int, documents: Int
) -> None:
    for name, column, start, width in (
        ("tokens", counts, _HEAD_BYTES, 4),
        ("pointer", offset, _HEAD_BYTES + 4 * sequences, 8),
    ):
        for row in np.flatnonzero(column < 0)[:1]:
            raise source.flaw(start + width * int(row), f"sequence {row:,}: {name} is negative")
    start = _HEAD_BYTES + 12 * sequences
    if not len(documents) or documents[0] != 0 or documents[-1] != sequences:
        raise source.flaw(start, f"documents do not cover 0 to {sequences:,}: damaged")
    for row in np.flatnonzero(np.diff(documents) < 0)[:1]:
        raise source.flaw(start + 8 * int(row + 1), f"document {row:,} ends before it begins")


def _find_dtype(
    source: StoreFile, path: str, size: int, code: int, counts: Int, offset: Int
) -> np.dtype[Any]:
    """Find the type of tokens with which the sequences fill the .bin."""
    ends = []
    for name in _DTYPES[code]:
        dtype = np.dtype(name)
        length = counts * dtype.itemsize
        # A pointer may be as large as can be written: compare before adding.
        if (offset > size - length).any():
            row = int(np.argmax(offset > size - length))
            ends.append(f"{dtype}: sequence {row:,} at {offset[row]:,}, {length[row]:,} bytes")
            continue
        end = int((offset + length).max()) if len(offset) else 0
        if end != size:
            ends.append(f"{dtype}: they end at {end:,}")
            continue
        order = slice(None)
        if (offset[1:] < offset[:-1] + length[:-1]).any():
            order = np.lexsort((length, offset))  # type: ignore[assignment]
        start, stop = offset[order], (offset + length)[order]
        if (start[1:] < stop[:-1]).any():
            raise source.flaw(_HEAD_BYTES, f"two sequences overlap in {path}: damaged")
        return dtype
    raise source.flaw(17, f"type {code} does not fit {path} ({'; '.join(ends)})")


def _lay_out_documents(
    files: Files, contents: list[_MegatronTokens], dtype: np.dtype[Any]
) -> tuple[Field, Layout]:
    """Lay out each document with all its sequences: one extent each if they are adjacent."""
    part = Field("tokens", dtype, None)
    count = number_first([len(each.documents) - 1 for each in contents])
    if not count[-1]:
        raise FormatError(f"{files.path(0)} holds no documents")
    whole = all(_is_adjacent(each, dtype.itemsize) for each in contents)
    if whole:
        file = np.repeat(np.arange(len(files), dtype=np.uint32), np.diff(count))
        offset, length = [], []
        for each in contents:
            ends = np.concatenate([[0], np.cumsum(each.tokens)])
            first, last = each.documents[:-1], each.documents[1:]
            length.append((ends[last] - ends[first]) * dtype.itemsize)
            starts = np.append(each.offset, 0)
            offset.append(np.where(first < last, starts[first], 0))
        return part, RowTable(file, np.concatenate(offset), np.concatenate(length))
    held = number_first([len(each.offset) for each in contents])
    file = np.repeat(np.arange(len(files), dtype=np.uint32), np.diff(held))
    edges = [each.documents[:-1] + held[number] for number, each in enumerate(contents)]
    first = np.append(np.concatenate(edges), held[-1])
    offset_of = np.concatenate([each.offset for each in contents])
    length_of = np.concatenate([each.tokens for each in contents]) * dtype.itemsize
    return part, Pieces(first, file, offset_of, length_of)


def _is_adjacent(each: _MegatronTokens, itemsize: int) -> bool:
    """True if the sequences of every document follow each other in the file."""
    apart = each.offset[1:] != each.offset[:-1] + each.tokens[:-1] * itemsize
    inner = np.ones(len(each.offset) + 1, np.bool_)
    inner[each.documents] = False  # between two documents it does not matter
    return not bool((apart & inner[1:-1]).any())
