"""Tokens in files, as windows or documents: flat files (nanoGPT, llm.c), and Megatron's.

window:        tokens of a sample less one: sample k of a file has the tokens from k * window to
               (k + 1) * window, both included, so that inputs and targets, shifted by one, can be
               cut from it. Neighbours share one token. Tokens at the end that do not fill a window
               are left out. `penstock.pack(join=True)` makes such rows of documents, over the ends
               of files, and leaves nothing out.

Flat files have tokens back to back:

eos:           in place of `window`, the token that ends a document: a sample is a document, with
               its end token. What follows the last one of a file is a document, too. Files are read
               once for it, when the index is made.
dtype:         type of a token; uint16 by default. Files of llm.c state it themselves.
header_bytes:  bytes to skip at the start of each file; 1024 for llm.c.

Megatron has tokens in .bin, and the places of documents in .idx. Open either file, their common
prefix, or several of them (a pattern, a list). Sequences are in the order of .idx. A document, of
all its sequences, is a sample, of the dtype of the tokens; windows go over documents in their
order: as Megatron's sequences of this length, before shuffling. The types that forks number
differently are told apart by the size of .bin.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...engine.store import Store, StoreFile
from ...errors import FormatError, UsageError
from ...extent import Files, Int, joined, unseen
from ..fields import Field
from ..layout import Fixed, Layout
from ..table import Index
from . import options
from .shards import Scan, lay_out_extents, lay_out_pieces, list_names, number_first

_LLMC_BYTES = 1024
_LLMC = {struct.pack("<ii", 20240520, 1): "<u2", struct.pack("<ii", 20240801, 1): "<u4"}
_COUNT_MAX = 1 << 40
_SCANNED_BYTES = 1 << 23  # at a time, for end tokens: a multiple of each token's size


class TokenRuns(NamedTuple):
    """Tokens of one file that follow each other: int64 arrays of their first bytes and counts."""

    offset: Int
    tokens: Int


def normalize_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in canonical form."""
    return options.normalize(given, window=options.whole(1, _COUNT_MAX))


def normalize_flat_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of flat files in canonical form."""
    if ("window" in given) == ("eos" in given):
        raise UsageError("flat tokens need either window= or eos=: see `penstock formats`")
    return options.normalize(
        given,
        window=options.whole(1, _COUNT_MAX),
        eos=options.whole(0, (1 << 63) - 1),
        dtype=_normalize_dtype,
        header_bytes=options.whole(0, _COUNT_MAX),
        extensions=options.EXTENSIONS,
    )


def _normalize_dtype(name: str, value: Any) -> str:
    try:
        dtype = np.dtype(value)
    except (TypeError, ValueError):
        dtype = np.dtype(object)
    if dtype.kind not in "iuf" or dtype.itemsize > 8:
        raise UsageError(f"{name} is {value!r}: tokens are such as 'uint16'")
    return str(dtype.str)


def build(
    scan: Scan,
    window: int | None = None,
    eos: int | None = None,
    dtype: str | None = None,
    header_bytes: int | None = None,
    extensions: Sequence[str] = (),
) -> Index:
    """The index of all windows or documents, file after file; none spans two files."""
    files, sources = scan.list_files(extensions)
    runs = scan.parse(files, lambda _, source: _parse_flat(source, dtype, header_bytes))
    kind = _find_one_dtype(files, [kind for kind, _ in runs])
    if eos is None:
        field, layout = _lay_out_windows(files, [run for _, run in runs], kind, window or 0)
        return Index("tokens", files, (field,), (layout,), sources)
    starts = [int(run.offset[0]) for _, run in runs]
    ends = scan.store.parse(files, lambda file, source: _find_ends(source, starts[file], kind, eos))
    edges = [np.append(start, end) for start, end in zip(starts, ends, strict=True)]
    table = lay_out_extents([edge[:-1] for edge in edges], [np.diff(edge) for edge in edges])
    return Index("tokens", files, (Field("tokens", kind, None),), (table,), sources)


def _find_one_dtype(files: Files, dtypes: Sequence[np.dtype[Any]]) -> np.dtype[Any]:
    for file, dtype in enumerate(dtypes):
        if dtype != dtypes[0]:
            raise FormatError(f"{files.path(file)} is {dtype}, and {files.path(0)} {dtypes[0]}")
    return dtypes[0]


def _find_ends(source: StoreFile, start: int, kind: np.dtype[Any], eos: int) -> Int:
    """Find the byte after each document of a file."""
    if kind.kind not in "iu" or eos > np.iinfo(kind).max:
        raise UsageError(f"eos is {eos}, which no token of {kind} is: give the token's number")
    ends = [np.empty(0, np.int64)]
    for first in range(start, source.size, _SCANNED_BYTES):
        data = source.read(first, min(_SCANNED_BYTES, source.size - first))
        after_eos = np.flatnonzero(np.frombuffer(data, kind) == eos) + 1
        ends.append(first + after_eos * kind.itemsize)
    document_ends = np.concatenate(ends)
    if source.size > start and (not len(document_ends) or document_ends[-1] < source.size):
        document_ends = np.append(document_ends, source.size)
    return document_ends


def _parse_flat(
    source: StoreFile, dtype: str | None, header_bytes: int | None
) -> tuple[np.dtype[Any], TokenRuns]:
    head = source.read(0, _LLMC_BYTES)
    announced = -1
    if header_bytes is None and head[:8] in _LLMC:
        announced = int.from_bytes(head[8:12], "little", signed=True)
        kind, start = np.dtype(_LLMC[head[:8]]), _LLMC_BYTES
    else:
        kind, start = np.dtype(dtype or "<u2"), header_bytes or 0
    size = source.size - start
    if size < 0 or size % kind.itemsize:
        raise FormatError(f"{source.path}: {size:,} bytes are no whole {kind}: give dtype=")
    count = size // kind.itemsize
    if announced not in (-1, count):
        raise source.flaw(8, f"the header says {announced:,} tokens, but {count:,} follow")
    return kind, TokenRuns(np.array([start], np.int64), np.array([count], np.int64))


# -- windows ---------------------------------------------------------------------------------------


def _lay_out_windows(
    files: Files, runs: Sequence[TokenRuns], dtype: np.dtype[Any], window: int
) -> tuple[Field, Layout]:
    """Lay out the windows of each file's tokens, in one or several runs."""
    joined = [_join_runs(run, dtype.itemsize) for run in runs]
    counts = [max(0, int(run.tokens.sum()) - 1) // window for run in joined]
    first = number_first(counts)
    if not first[-1]:
        raise FormatError(f"{files.path(0)} and others have no window of {window:,}: shorten it")
    field = Field("tokens", dtype, (window + 1,))
    if all(len(run.tokens) <= 1 for run in joined):
        base = np.array([run.offset.max(initial=0) for run in joined], np.int64)
        return field, Fixed(first, base, (window + 1) * dtype.itemsize, window * dtype.itemsize)
    cut = [
        _cut_windows(run, count, window, dtype.itemsize)
        for run, count in zip(joined, counts, strict=True)
    ]
    pieces, offsets, lengths = zip(*cut, strict=True)
    return field, lay_out_pieces(np.concatenate(pieces), offsets, lengths)


def _join_runs(runs: TokenRuns, itemsize: int) -> TokenRuns:
    """Join adjacent runs of tokens, and drop empty ones."""
    filled = runs.tokens > 0
    offset, tokens = runs.offset[filled], runs.tokens[filled]
    if not len(offset):
        return TokenRuns(offset, tokens)
    apart = offset[1:] != offset[:-1] + tokens[:-1] * itemsize
    starts = np.concatenate([[0], np.flatnonzero(apart) + 1])
    return TokenRuns(offset[starts], np.add.reduceat(tokens, starts))


def _cut_windows(runs: TokenRuns, count: int, window: int, itemsize: int) -> tuple[Int, Int, Int]:
    """Cut windows in pieces: their number for each window, and each piece's place and bytes."""
    edges = np.concatenate([[0], np.cumsum(runs.tokens)])
    begin = np.arange(count, dtype=np.int64) * window
    end = begin + window + 1
    low = np.searchsorted(edges, begin, side="right") - 1
    high = np.searchsorted(edges, end, side="left")
    pieces = high - low
    sample = np.repeat(np.arange(count), pieces)
    inside = np.arange(len(sample)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    run = low[sample] + inside
    start = np.maximum(begin[sample], edges[run])
    stop = np.minimum(end[sample], edges[run + 1])
    offset = runs.offset[run] + (start - edges[run]) * itemsize
    return pieces, offset, (stop - start) * itemsize


# -- Megatron --------------------------------------------------------------------------------------

_MAGIC = b"MMIDIDX\0\0"
_OLD = b"TNTIDX"
_HEAD = struct.Struct("<9sQBQQ")  # magic, version, type, sequences, documents and one more
_DTYPES = (
    *((), ("u1",), ("i1",), ("<i2",), ("<i4",), ("<i8",)),
    *(("<f8", "<f4"), ("<f4", "<f8"), ("<u2",), ("?", "<u4")),
)
"""Types of tokens by their number, those of several forks."""


class _MegatronTokens(NamedTuple):
    """Content of one .idx.

    runs:       the tokens of each sequence.
    documents:  first sequence of each document, and the number of sequences at the end.
    """

    dtype: np.dtype[Any]
    runs: TokenRuns
    documents: Int


def has_idx_beside(store: Store, name: str) -> bool:
    """True if a .bin, or the manifest of a tokenization, has its .idx beside it."""
    other = f"{_strip_suffix(name)}.idx"
    there = not store.probe(unseen(store.root, [other]))[1].any()
    return there and store.read(other, 0, len(_MAGIC)).startswith((_MAGIC, _OLD))


def build_megatron(scan: Scan, window: int | None = None) -> Index:
    """The index of all documents or windows, file after file."""
    folders = None
    if scan.place.kind == "file":
        names = [scan.place.name]
    elif scan.place.kind == "pattern":
        names = list_names(scan.store, scan.place)
        folders = scan.store.folders(sorted({"", *(os.path.dirname(name) for name in names)}))
    else:
        listing = scan.choose_split(scan.list_folder(()), samples=False)
        names, folders = [*map(listing.files.name, range(len(listing.files)))], listing.folders
    prefixes = list(dict.fromkeys(_strip_suffix(name) for name in names))
    lists = scan.store.stat([f"{prefix}.idx" for prefix in prefixes])
    files = scan.store.stat([f"{prefix}.bin" for prefix in prefixes])

    def parse(number: int, source: StoreFile) -> _MegatronTokens:
        return _parse_idx(source, files.path(number), int(files.size[number]))

    contents = scan.parse(lists, parse)
    dtype = _find_one_dtype(files, [content.dtype for content in contents])
    if window is None:
        field, layout = Field("tokens", dtype, None), _lay_out_documents(contents, dtype.itemsize)
        if not layout.count:
            raise FormatError(f"{files.path(0)} holds no documents")
    else:
        field, layout = _lay_out_windows(files, [parsed.runs for parsed in contents], dtype, window)
    sources = joined(lists, files)
    if folders is not None:  # files could be added
        sources = joined(folders, sources)
    return Index("megatron", files, (field,), (layout,), sources)


def _strip_suffix(name: str) -> str:
    return name.removesuffix(".bin").removesuffix(".idx").removesuffix(".manifest.json")


def _parse_idx(source: StoreFile, path: str, size: int) -> _MegatronTokens:
    """Parse an .idx, and compare it with the size of its .bin."""
    head = source.read(0, _HEAD.size)
    if head.startswith(_OLD):
        raise FormatError(f"{source.path} is of TNTIDX: write it anew by preprocess_data.py")
    if not head.startswith(_MAGIC) or len(head) < _HEAD.size:
        raise FormatError(f"{source.path} is not an .idx of Megatron: it starts with {head[:9]!r}")
    _, version, code, sequences, entries = _HEAD.unpack(head)
    if version != 1 or not 0 < code < len(_DTYPES):
        raise source.flaw(9, f"version {version}, type {code}: use version 1, types 1 to 9")
    expected = _HEAD.size + 12 * sequences + 8 * entries
    data = b""
    if source.size in (expected, expected + sequences):  # with or without modes
        data = source.read(_HEAD.size, expected - _HEAD.size)
    if len(data) != expected - _HEAD.size:
        raise source.flaw(18, f"{expected:,} bytes are announced: truncated or damaged")
    counts = np.frombuffer(data, "<i4", sequences).astype(np.int64)
    offset = np.frombuffer(data, "<i8", sequences, 4 * sequences).astype(np.int64)
    documents = np.frombuffer(data, "<i8", entries, 12 * sequences).astype(np.int64)
    for row in np.flatnonzero((counts < 0) | (offset < 0))[:1].tolist():
        what, at = ("tokens", 4 * row) if counts[row] < 0 else ("pointer", 4 * sequences + 8 * row)
        raise source.flaw(_HEAD.size + at, f"sequence {row:,}: {what} is negative")
    start = _HEAD.size + 12 * sequences
    if not len(documents) or documents[0] != 0 or documents[-1] != sequences:
        raise source.flaw(start, f"documents do not cover 0 to {sequences:,}: damaged")
    for row in np.flatnonzero(np.diff(documents) < 0)[:1].tolist():
        raise source.flaw(start + 8 * row + 8, f"document {row:,} ends before it begins")
    dtype = _find_dtype(source, path, size, code, counts, offset)
    return _MegatronTokens(dtype, TokenRuns(offset, counts), documents)


def _find_dtype(
    source: StoreFile, path: str, size: int, code: int, counts: Int, offset: Int
) -> np.dtype[Any]:
    """Find the type of tokens with which the sequences fill the .bin."""
    reasons = []
    for dtype in map(np.dtype, _DTYPES[code]):
        length = counts * dtype.itemsize
        # A pointer may be as large as can be written: compare before adding.
        for row in np.flatnonzero(offset > size - length)[:1].tolist():
            reasons.append(f"{dtype}: sequence {row:,} at {offset[row]:,}, {length[row]:,} bytes")
            break
        else:
            end = int((offset + length).max(initial=0))
            if end == size:
                begin, stop = offset, offset + length
                if (begin[1:] < stop[:-1]).any():
                    order = np.lexsort((length, offset))
                    begin, stop = begin[order], stop[order]
                if (begin[1:] < stop[:-1]).any():
                    raise source.flaw(_HEAD.size, f"two sequences overlap in {path}: damaged")
                return dtype
            reasons.append(f"{dtype}: they end at {end:,}")
    raise source.flaw(17, f"type {code} does not fit {path} ({'; '.join(reasons)})")


def _lay_out_documents(contents: list[_MegatronTokens], itemsize: int) -> Layout:
    """Lay out each document with all its sequences: one extent each if they are adjacent."""
    offsets, lengths = [], []
    for _, runs, documents in contents:
        apart = runs.offset[1:] != runs.offset[:-1] + runs.tokens[:-1] * itemsize
        inner = np.ones(len(runs.offset) + 1, np.bool_)
        inner[documents] = False  # between two documents it does not matter
        if (apart & inner[1:-1]).any():
            break
        ends = np.append(0, np.cumsum(runs.tokens))
        first, last = documents[:-1], documents[1:]
        offsets.append(np.where(first < last, np.append(runs.offset, 0)[first], 0))
        lengths.append((ends[last] - ends[first]) * itemsize)
    else:
        return lay_out_extents(offsets, lengths)
    counts = np.concatenate([np.diff(content.documents) for content in contents])
    lengths = [content.runs.tokens * itemsize for content in contents]
    return lay_out_pieces(counts, [content.runs.offset for content in contents], lengths)
