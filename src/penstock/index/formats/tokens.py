"""Flat files of tokens, back to back, as nanoGPT and llm.c write them: windows, or documents.

window:        tokens of a sample less one: sample k of a file has the tokens from k * window to
               (k + 1) * window, both included, so that inputs and targets, shifted by one, can be
               cut from it. Neighbours share one token. Tokens at the end that do not fill a window
               are left out. `penstock.pack(join=True)` makes such rows of documents, over the ends
               of files, and leaves nothing out.
eos:           in place of `window`, the token that ends a document: a sample is a document, with
               its end token. What follows the last one of a file is a document, too. Files are read
               once for it, when the index is made.
dtype:         type of a token; uint16 by default. Files of llm.c state it themselves.
header_bytes:  bytes to skip at the start of each file; 1024 for llm.c.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...arguments import check_whole
from ...engine.store import Progress, Store, StoreFile
from ...errors import FormatError, UsageError
from ...extent import Files, Int
from ..fields import Field
from ..layout import Fixed, Layout, Pieces, RowTable
from ..table import Index
from .shards import Location, list_files, number_first

_LLMC_BYTES = 1024
_LLMC = {struct.pack("<ii", 20240520, 1): "<u2", struct.pack("<ii", 20240801, 1): "<u4"}
_COUNT_MAX = 1 << 40
_SCANNED_BYTES = 1 << 23  # at a time, for end tokens: a multiple of each token's size


class TokenRun(NamedTuple):
    """Tokens of one file that follow each other: int64 arrays of their first bytes and counts."""

    offset: Int
    tokens: Int


def normalize_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in canonical form."""
    normalized = dict(options)
    if "window" in options:
        normalized["window"] = check_whole("window", options["window"], 1, _COUNT_MAX)
    return normalized


def normalize_flat_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of flat files in canonical form."""
    if ("window" in options) == ("eos" in options):
        raise UsageError("flat tokens need either window= or eos=: see `penstock formats`")
    normalized = normalize_options(options)
    if "eos" in options:
        normalized["eos"] = check_whole("eos", options["eos"], 0, (1 << 63) - 1)
    if "dtype" in options:
        try:
            dtype = np.dtype(options["dtype"])
        except (TypeError, ValueError):
            dtype = np.dtype(object)
        if dtype.kind not in "iuf" or dtype.itemsize > 8:
            raise UsageError(f"dtype is {options['dtype']!r}: tokens are such as 'uint16'")
        normalized["dtype"] = dtype.str
    if "header_bytes" in options:
        normalized["header_bytes"] = check_whole(
            "header_bytes", options["header_bytes"], 0, _COUNT_MAX
        )
    if "extensions" in options:
        normalized["extensions"] = list(options["extensions"])
    return normalized


def build(
    store: Store,
    place: Location,
    progress: Progress | None = None,
    *,
    window: int | None = None,
    eos: int | None = None,
    dtype: str | None = None,
    header_bytes: int | None = None,
    extensions: Sequence[str] = (),
) -> Index:
    """The index of all windows or documents, file after file; none spans two files."""
    files, sources = list_files(store, place, progress, extensions)
    runs = store.parse(files, lambda _, source: _parse_file(source, dtype, header_bytes), progress)
    kind = runs[0][0]
    for file, (other, _) in enumerate(runs):
        if other != kind:
            raise FormatError(f"{files.path(file)} holds {other}, and {files.path(0)} {kind}")
    if eos is not None:
        starts = [int(run.offset[0]) for _, run in runs]
        ends = store.parse(files, lambda file, source: _find_ends(source, starts[file], kind, eos))
        layout: Layout = _lay_out_documents(starts, ends, kind.itemsize)
        return Index("tokens", files, (Field("tokens", kind, None),), (layout,), sources)
    assert window is not None
    part, layout = lay_out_windows(files, [each for _, each in runs], kind, window)
    return Index("tokens", files, (part,), (layout,), sources)


def _find_ends(source: StoreFile, start: int, kind: np.dtype[Any], eos: int) -> Int:
    """Find the byte after each document of a file."""
    if kind.kind not in "iu" or eos > np.iinfo(kind).max:
        raise UsageError(f"eos is {eos}, which no token of {kind} is: give the token's number")
    ends = [np.empty(0, np.int64)]
    for first in range(start, source.size, _SCANNED_BYTES):
        data = source.read(first, min(_SCANNED_BYTES, source.size - first))
        found = np.flatnonzero(np.frombuffer(data, kind) == eos) + 1
        ends.append(first + found * kind.itemsize)
    found = np.concatenate(ends)
    if source.size > start and (not len(found) or found[-1] < source.size):
        found = np.append(found, source.size)
    return found


def _lay_out_documents(starts: Sequence[int], ends: Sequence[Int], itemsize: int) -> RowTable:
    """Lay out the documents of each file by the bytes at which they end."""
    counts = [len(each) for each in ends]
    file = np.repeat(np.arange(len(ends), dtype=np.uint32), counts)
    begins = [
        np.append(start, each[:-1])[: len(each)] for start, each in zip(starts, ends, strict=True)
    ]
    offset = np.concatenate(begins).astype(np.int64)
    return RowTable(file, offset, np.concatenate(ends) - offset)


def _parse_file(
    source: StoreFile, dtype: str | None, header_bytes: int | None
) -> tuple[np.dtype[Any], TokenRun]:
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
    return kind, TokenRun(np.array([start], np.int64), np.array([count], np.int64))


def lay_out_windows(
    files: Files, stretches: Sequence[TokenRun], dtype: np.dtype[Any], window: int
) -> tuple[Field, Layout]:
    """Lay out the windows of each file's tokens, in one or several runs."""
    joined = [_join_runs(run, dtype.itemsize) for run in stretches]
    totals = [int(each.tokens.sum()) for each in joined]
    counts = [max(0, total - 1) // window for total in totals]
    first = number_first(counts)
    if not first[-1]:
        raise FormatError(f"{files.path(0)} and others have no window of {window:,}: shorten it")
    part = Field("tokens", dtype, (window + 1,))
    if all(len(each.tokens) <= 1 for each in joined):
        base = np.array([int(each.offset[0]) if len(each.offset) else 0 for each in joined])
        record, stride = (window + 1) * dtype.itemsize, window * dtype.itemsize
        return part, Fixed(first, base.astype(np.int64), record, stride)
    cut = [
        _cut_windows(each, count, window, dtype.itemsize)
        for each, count in zip(joined, counts, strict=True)
    ]
    pieces = np.concatenate([each[0] for each in cut])
    file = np.repeat(np.arange(len(cut), dtype=np.uint32), [len(offset) for _, offset, _ in cut])
    offset = np.concatenate([each[1] for each in cut])
    return part, Pieces(
        number_first(pieces.tolist()), file, offset, np.concatenate([each[2] for each in cut])
    )


def _join_runs(runs: TokenRun, itemsize: int) -> TokenRun:
    """Join adjacent runs of tokens, and drop empty ones."""
    held = runs.tokens > 0
    offset, tokens = runs.offset[held], runs.tokens[held]
    if not len(offset):
        return TokenRun(offset, tokens)
    apart = offset[1:] != offset[:-1] + tokens[:-1] * itemsize
    starts = np.concatenate([[0], np.flatnonzero(apart) + 1])
    return TokenRun(offset[starts], np.add.reduceat(tokens, starts))


def _cut_windows(runs: TokenRun, count: int, window: int, itemsize: int) -> tuple[Int, Int, Int]:
    """Cut windows in pieces: their number for each window, and each piece's place and bytes."""
    edges = np.concatenate([[0], np.cumsum(runs.tokens)])
    begin = np.arange(count, dtype=np.int64) * window
    end = begin + window + 1
    low = np.searchsorted(edges, begin, side="right") - 1
    high = np.searchsorted(edges, end, side="left")
    pieces = high - low
    sample = np.repeat(np.arange(count), pieces)
    inside = np.arange(len(sample)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    stretch = low[sample] + inside
    start = np.maximum(begin[sample], edges[stretch])
    stop = np.minimum(end[sample], edges[stretch + 1])
    offset = runs.offset[stretch] + (start - edges[stretch]) * itemsize
    return pieces, offset, (stop - start) * itemsize
