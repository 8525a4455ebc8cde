"""JSONL: a JSON object on each line; a line is an extent, read directly and not parsed here.

A newline occurs in no JSON string, so that lines are found by their newlines alone, in one pass at
the speed of memory. Blank lines are no samples; the end of a line (LF or CR LF) belongs to none.
`fields` makes fields of the objects' values when a batch is read (see `json_fields`): it does not
change the index: it is saved once for all choices of fields.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ...engine.native import crc32c
from ...engine.open import read_extent
from ...engine.store import StoreFile
from ...errors import FormatError, UsageError
from ...extent import Files, Int
from .. import codecs
from ..fields import Codec, Field
from ..json_fields import (
    BROKEN,
    KINDS,
    OBJECTS,
    JsonFields,
    describe_missing,
    find_kind,
    fits_type,
    import_loads,
    load_object,
)
from ..layout import Chunked, Pieces, RowTable
from ..table import Index
from . import detection, jsonl_frames, options, shards
from .shards import Scan

SUFFIXES = (".jsonl", ".ndjson", ".jsonlines")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_WIDE_MARKS = (b"\xff\xfe", b"\xfe\xff")
_TAIL_BYTES_MAX = 16 << 20
"""Longest last line without an end that is parsed to see whether the file was cut within it."""
_LOOKED_AT = 1000
"""Number of lines at the start of the data whose values decide the kinds of fields."""
_LOOKED_AT_BYTES = 4 << 20
"""Most bytes of these lines, but for the first."""
_FIRST_LINE_BYTES_MAX = 64 << 20
_FOUND_IN_BYTES = 1 << 20
"""Bytes that are read at a time to find where a line begins."""


class FileLines(NamedTuple):
    """The lines of one file that are not blank, and their checksums."""

    offset: Int
    length: Int
    sums: tuple[int, int]


def sniff(head: bytes, name: str) -> bool:
    """True by the name, if the first line is no part of a document over several lines; or if the
    first line is an object, and the second begins one. Compressed files are looked into.
    """
    if jsonl_frames.is_compressed(head):
        head, name = jsonl_frames.peek(head), os.path.splitext(name)[0]
        if not head:
            return name.lower().endswith(SUFFIXES)
    named = name.lower().endswith(SUFFIXES)
    lines = head.removeprefix(_BYTE_ORDER_MARK).lstrip().split(b"\n", 2)
    first = lines[0].rstrip()
    if named:
        compressed = detection.find_compression(head) is not None
        return not (first == b"{" or first.startswith(b"[") or b"\0" in head or compressed)
    try:
        begins = len(lines) > 1 and lines[1].lstrip().startswith(b"{")
        return begins and isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        return False


def build(scan: Scan, extensions: Sequence[str] = ()) -> Index:
    """The index of all lines of the files, in their order."""
    files, sources = scan.list_files(extensions)
    if scan.place.kind == "folder" and not extensions:
        _refuse_others(files)
    walked = scan.parse_pieces(
        files, lambda _, source: _walk_piece(source, 0, source.size), _walk_piece, _join
    )
    field = Field("data", np.dtype(np.uint8), None)
    chunks = [lines for lines in walked if isinstance(lines, jsonl_frames.FileChunks)]
    lines = [lines for lines in walked if isinstance(lines, FileLines)]
    if chunks and lines:
        kinds = [isinstance(one, jsonl_frames.FileChunks) for one in walked]
        raise FormatError(f"only {files.path(kinds.index(True))} and others are compressed")
    if chunks:
        layout = jsonl_frames.lay_out(chunks)
        shards.check_any(files, layout.count, "lines")
        return Index("jsonl", files, (replace(field, codec=Codec("lines")),), (layout,), sources)
    table = shards.lay_out_extents([one.offset for one in lines], [one.length for one in lines])
    shards.check_any(files, table.count, "lines")
    # The lines of each file are their number and 64 bits of checksums: to hash their places would
    # take longer than to find them.
    state = hashlib.blake2b(b"jsonl", digest_size=16)
    for column in (files.names, files.ends, files.size):
        state.update(column.tobytes())
    for one in lines:
        state.update(repr((len(one.offset), one.sums)).encode())
    identity = state.hexdigest()
    return Index("jsonl", files, (field,), (table,), sources, fingerprint=identity)


def _refuse_others(files: Files) -> None:
    """Refuse others beside files that are called JSON lines: their lines would be samples, a
    copy's (`x.jsonl.bak`) a second time."""
    names = [files.name(file).lower() for file in range(len(files))]
    endings = [os.path.splitext(re.sub(r"\.(zst|gz)$", "", name))[1] for name in names]
    known = (*SUFFIXES, ".json")
    other = next((file for file, ending in enumerate(endings) if ending not in known), None)
    if other is not None and not set(SUFFIXES).isdisjoint(endings):
        raise FormatError(f"{files.root} holds {files.name(other)}, too: give extensions=")


def _walk_frames(source: StoreFile) -> jsonl_frames.FileChunks:
    """Find the lines of a compressed file."""
    chunks = jsonl_frames.ChunkBuilder(source).build()
    _check_head(source, chunks.head)
    _refuse_list(source, chunks.head, int(chunks.counts.sum()))
    if len(chunks.offset):
        name = f"line {int(chunks.counts.sum()):,}"
        _check_end(source, int(chunks.offset[-1]), name, chunks.tail)
    return chunks


def _walk_piece(source: StoreFile, start: int, stop: int) -> FileLines | jsonl_frames.FileChunks:
    """Find the lines that begin within [start, stop) of a file; in a compressed one, the first
    piece has them all."""
    head = source.read(0, 64)
    is_compressed = jsonl_frames.is_compressed(head)
    if not start:
        if is_compressed:
            return _walk_frames(source)
        detection.refuse_compressed(source, "JSONL file")
        _check_head(source, head)
    first = stop if is_compressed else _find_line(source, start, stop)
    end = _find_line(source, stop, source.size) if first < stop else first
    columns = source.cut(first, end).walk("jsonl")
    lines = _sum_up(columns["offset"] + first, columns["length"])
    if not start and end == source.size:
        _refuse_list(source, head, len(lines.offset))
    if len(lines.offset):
        offset, length = int(lines.offset[-1]), int(lines.length[-1])
        if offset + length == source.size and length <= _TAIL_BYTES_MAX:
            name = "the last line" if start else f"line {len(lines.offset):,}"
            _check_end(source, offset, name, source.read(offset, length))
    return lines


def _find_line(source: StoreFile, place: int, stop: int) -> int:
    """Find where the first line begins that does so in [place, stop), else `stop`. A line that
    begins with a byte order mark is no beginning, as the mark would be taken for one of the
    file."""
    at = place - 1
    while 0 <= at < stop - 1:
        block = source.read(at, min(_FOUND_IN_BYTES, stop - 1 - at))
        newline = block.find(b"\n")
        at += newline + 1 if newline >= 0 else len(block)
        if newline >= 0 and source.read(at, 3) != _BYTE_ORDER_MARK:
            return at
        if not block:
            break
    return stop if place else 0


def _join(pieces: list[FileLines | jsonl_frames.FileChunks]) -> FileLines | jsonl_frames.FileChunks:
    """Join the lines of a file's pieces."""
    if isinstance(pieces[0], jsonl_frames.FileChunks):
        return pieces[0]
    lines = [piece for piece in pieces if isinstance(piece, FileLines)]
    offset, length = (np.concatenate(columns) for columns in list(zip(*lines, strict=True))[:2])
    return _sum_up(offset, length)


def _sum_up(offset: Int, length: Int) -> FileLines:
    return FileLines(offset, length, (crc32c(offset), crc32c(length)))


def _check_head(source: StoreFile, head: bytes) -> None:
    """Check that text begins with a line of UTF-8 (FormatError)."""
    if head.startswith(_WIDE_MARKS):
        raise source.flaw(0, "text in UTF-16 or UTF-32: convert it to UTF-8 by `iconv`")
    first, newline, _ = head.removeprefix(_BYTE_ORDER_MARK).lstrip().partition(b"\n")
    if newline and first.rstrip() in (b"{", b"["):
        raise source.flaw(0, "one JSON document over several lines: `jq -c '.[]'` it")


def _refuse_list(source: StoreFile, head: bytes, lines: int) -> None:
    """Refuse a list of objects in a single line (FormatError): its objects are the samples."""
    if lines == 1 and re.match(rb"\s*\[\s*\{", head.removeprefix(_BYTE_ORDER_MARK)):
        raise source.flaw(0, "one list in one line: write its objects as lines, by `jq -c '.[]'`")


def _check_end(source: StoreFile, offset: int, name: str, tail: bytes) -> None:
    """Check that the file was not cut within its last line, if that has no end (FormatError)."""
    if not tail or len(tail) > _TAIL_BYTES_MAX:
        return
    try:
        json.loads(tail)
    except RecursionError:
        return
    except ValueError as error:
        raise source.flaw(offset, f"{name}: the file was cut ({error})") from None


# -- fields ----------------------------------------------------------------------------------------


def normalize_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in canonical form: `fields` is a dict of the key of each field."""
    normalized = options.normalize(
        given,
        fields=_normalize_fields,
        broken=options.one_of("raise", "mask", is_kept=True),
        extensions=options.EXTENSIONS,
    )
    if "fields" not in normalized:
        for name in {"types", "defaults", "broken"} & normalized.keys():
            raise UsageError(f"{name}= is about the fields of lines: name them by fields=")
        return normalized
    names = normalized["fields"]
    for option in ("types", "defaults"):
        values = normalized.setdefault(option, {})
        if not isinstance(values, Mapping) or not set(values) <= set(names):
            raise UsageError(f"{option} is {values!r}: give a dict by field")
        normalized[option] = dict(values)
    for name, kind in normalized["types"].items():
        if kind not in KINDS:
            raise UsageError(f"types has {kind!r} for {name!r}: use one of {', '.join(KINDS)}")
    if normalized.setdefault("broken", "raise") == "mask" and BROKEN in names:
        raise UsageError(f"fields has {BROKEN!r}, which marks broken lines: rename it")
    return normalized


def _normalize_fields(name: str, value: Any) -> dict[str, str]:
    check = options.text("names, or {field: name in the object}", 1)
    fields = value
    if not isinstance(value, Mapping):
        fields = {one: one for one in options.texts("names in a list", check, 1)(name, value)}
    if any(check(name, one).startswith("__") for one in (*fields, *fields.values())):
        raise UsageError(f"{name} is {value!r}: give names, or {{field: name in the object}}")
    return options.paths(name, fields)


def attach_fields(
    index: Index,
    fields: Mapping[str, str] | None = None,
    types: Mapping[str, str] | None = None,
    defaults: Mapping[str, Any] | None = None,
    broken: str = "raise",
) -> Index:
    """Return the index of lines with the fields to make of them. Reads the first thousand lines,
    unless `types` says the kinds of all fields."""
    if fields is None:
        return index
    types, defaults = types or {}, defaults or {}
    masked = broken == "mask"
    kinds = {name: types.get(name, "") for name in fields}
    origin = "types="
    if not all(kinds.values()):
        lines = _read_first_lines(index)
        kinds = _find_kinds(index, lines, fields, types, defaults, masked)
        origin = f"the first {len(lines):,} lines of {index.files.path(0)}"
        origin += " or types=" * bool(types)
    import_loads()
    parser = JsonFields(dict(fields), kinds, dict(defaults), masked, origin=origin)
    for name, value in defaults.items():
        if not fits_type(kinds[name], value) and (value is not None or kinds[name] not in OBJECTS):
            raise UsageError(f"defaults has {value!r} for {name!r}, which is {kinds[name]!r}")
    parser.check_defaults()
    return replace(index, fields=(replace(index.fields[0], parser=parser), *index.fields[1:]))


def _find_kinds(
    index: Index,
    lines: Sequence[memoryview],
    fields: Mapping[str, str],
    types: Mapping[str, str],
    defaults: Mapping[str, Any],
    masked: bool,
) -> dict[str, str]:
    """Find the kinds that are not known by the values in the first lines that are not broken."""
    records = []
    for row, line in enumerate(lines):
        try:
            record = load_object(line)
            for name, key in fields.items():
                if record.get(key) is None and name not in defaults:
                    raise ValueError(describe_missing(name, key, record))
            records.append(record)
        except ValueError as error:
            if not masked:
                raise build_line_error(index, row, str(error)) from None
    path = index.files.path(0)
    if not records:
        raise FormatError(f"{path}: the first lines lack the fields: give types=")
    kinds = {}
    for name, key in fields.items():
        values = [record.get(key) for record in records] + [defaults.get(name)]
        values = [value for value in values if value is not None]
        if not values and name not in types:
            what = f"{path}: field {key!r} is missing or null in the first {len(records):,}"
            raise UsageError(f"{what} lines: give its type, as by types={{{name!r}: 'str'}}")
        kinds[name] = types[name] if name in types else find_kind(values)
    return kinds


def _read_first_lines(index: Index) -> list[memoryview]:
    """Read the first lines of the first file by one read; of its first chunk, if compressed."""
    layout, files = index.layouts[0], index.files
    if isinstance(layout, Chunked):
        extents, _ = layout.pieces(np.zeros(1, np.int64))
        file, offset, length = (column.tolist() for column in extents)
        path = files.path(0)
        places = zip(file, offset, length, strict=True)
        data = b"".join(read_extent(files, *place, path) for place in places)
        count = int(layout.first[1])
        chunk = codecs.CompressedChunk(0, memoryview(data), length, count)
        rows = np.arange(min(count, _LOOKED_AT))
        try:
            return list(codecs.decode_samples("lines", {}, [chunk], np.zeros_like(rows), rows))
        except ValueError as error:
            raise FormatError(f"{path}: {error}: the file is damaged, or changed now") from None
    assert isinstance(layout, RowTable)
    file, offset, length = layout.extents(np.arange(min(_LOOKED_AT, index.count)))
    ends = offset + length
    count = int(((file == file[0]) & (ends - offset[0] <= _LOOKED_AT_BYTES)).sum()) or 1
    start, size = int(offset[0]), int(ends[count - 1] - offset[0])
    path = files.path(int(file[0]))
    if size > _FIRST_LINE_BYTES_MAX:
        raise UsageError(f"{path}: the first line has {size:,} bytes: give types= of all fields")
    text = memoryview(read_extent(files, int(file[0]), start, size, path))
    return [text[offset[i] - start : ends[i] - start] for i in range(count)]


def build_line_error(index: Index, sample: int, reason: str, step: str = "") -> FormatError:
    """Build the error for a line that is not as its fields want it."""
    layout = index.layouts[0]
    if isinstance(layout, Chunked) and isinstance(layout.chunks, Pieces):
        chunk, _ = layout.find_chunks(np.array([sample]))
        pieces = layout.chunks
        first_piece = np.searchsorted(pieces.file, pieces.file[pieces.first[chunk]])
        line = sample - int(layout.first[np.searchsorted(pieces.first, first_piece)][0]) + 1
    else:
        line = int(index.key(sample).rpartition("#")[2]) + 1
    where = f"{step}sample {sample:,}: {index.where(sample)}"
    return FormatError(f"{where}: line {line:,} (blank ones not counted): {reason}")
