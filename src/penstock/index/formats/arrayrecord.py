"""ArrayRecord files with verbatim records: written as "group_size:1,uncompressed".

A header of 24 bytes at each multiple of 64 KiB cuts records, so that a sample is one piece or
several. Their places follow from the footer, and every chunk has to end at the byte where the next
one begins. The checksums of the container, of headers and of data, are not checked.

Files written with other options are compressed, or hold several records in a chunk, and are
refused. Plain Riegeli files, without a footer, are refused too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...engine.store import Progress, Store, StoreFile
from ...errors import FormatError
from ...extent import Int
from ..fields import Field
from ..layout import Pieces
from ..table import Index
from .shards import Location, list_files, number_first

_SIGNATURE = bytes.fromhex("83af70d10d884a3f")
_BLOCK = 1 << 16
_BLOCK_HEAD = 24
_USABLE = _BLOCK - _BLOCK_HEAD
_CHUNK_HEAD = 40
_MAGIC = 0x71930E704FDAE05E
_SIZE_MAX = 1 << 56

_OPTIONS = "write it with the options 'group_size:1,uncompressed', or anew with `penstock convert`"


class _RecordChunk(NamedTuple):
    """A chunk of few records, as it is stored.

    kind:     r simple, t transposed.
    records:  their number, according to the header.
    data:     the bytes after the header, without block headers.
    """

    kind: bytes
    records: int
    data: bytes


def build(store: Store, place: Location, progress: Progress | None = None) -> Index:
    """The index of all records, file after file."""
    files, sources = list_files(store, place, progress)
    records = store.parse(files, lambda _, source: _read_records(source), progress)
    lengths = np.concatenate([length for _, length in records])
    if not len(lengths):
        raise FormatError(f"{files.path(0)} holds no records")
    begin = np.concatenate([begin for begin, _ in records])
    owner = np.repeat(np.arange(len(records), dtype=np.uint32), [len(b) for b, _ in records])
    first, sample, offset, length = _cut_pieces(begin, lengths)
    layout = Pieces(first, owner[sample], offset, length)
    return Index(
        "arrayrecord", files, (Field("data", np.dtype(np.uint8), None),), (layout,), sources
    )


def _read_records(source: StoreFile) -> tuple[Int, Int]:
    """Read the start of each record's chunk, and the bytes of each record."""
    footer_at = _find_footer(source)
    footer = _read_chunk(source, footer_at)
    sizes, values = _parse_simple(source, footer_at, footer)
    if not len(sizes):
        raise source.flaw(footer_at, "the footer is empty")
    ends = np.cumsum(sizes)
    number, tag, value = _decode_fields(
        source, footer_at, values[int(ends[0]) :], ends[1:] - ends[0]
    )
    count = len(sizes) - 1
    begin, length, records = (np.zeros(count, np.int64) for _ in range(3))
    for column, wanted in ((begin, 8), (length, 16), (records, 24)):
        chosen = tag == wanted
        column[number[chosen]] = value[chosen]
    for row in np.flatnonzero(records != 1)[:1]:
        raise source.flaw(int(begin[row]), f"a chunk of {records[row]:,} records: {_OPTIONS}")
    if not count:
        return begin, length
    head = _read_chunk(source, int(begin[0]), 1)
    if head.kind != b"r" or head.data[:1] != b"\0":
        raise source.flaw(int(begin[0]), f"records are compressed or transposed: {_OPTIONS}")
    if (begin < 0).any() or (length < 0).any() or int(length.max()) >= _SIZE_MAX:
        raise source.flaw(footer_at, "the footer holds impossible numbers: the file is damaged")
    stored = 2 + _count_varint_bytes(length) + length
    end = np.maximum(_find_end(begin, _CHUNK_HEAD + stored), _round_to_chunk(begin + 1))
    following = np.append(begin[1:], footer_at)
    for row in np.flatnonzero(end != following)[:1]:
        raise source.flaw(int(begin[row]), f"record {int(row):,} ends elsewhere: {_OPTIONS}")
    return begin, length


def _find_footer(source: StoreFile) -> int:
    """Find the footer: the last block gives its place three times."""
    if source.size % _BLOCK or source.size < 2 * _BLOCK:
        raise FormatError(f"{source.path} is no ArrayRecord file, or cut: {_OPTIONS}")
    at = source.size - _BLOCK
    sizes, values = _parse_simple(source, at, _read_chunk(source, at))
    ends = np.cumsum(sizes)
    number, tag, value = _decode_fields(source, at, values, ends)
    offsets, magics = value[tag == 8], value[tag == 16]
    if len(sizes) != 3 or len(offsets) != 3 or len(magics) != 3 or len(number) != 6:
        raise source.flaw(at, "the last block is no postscript: not closed, or truncated")
    if (magics != _MAGIC).any() or (offsets != offsets[0]).any():
        raise source.flaw(at, "the three parts of the postscript differ: the file is damaged")
    footer_at = int(offsets[0])
    if not 0 < footer_at < at:
        raise source.flaw(at, f"the footer is at {footer_at:,}, beyond {at:,}: the file is damaged")
    return footer_at


# -- chunks ----------------------------------------------------------------------------------------


def _read_chunk(source: StoreFile, begin: int, data_bytes: int | None = None) -> _RecordChunk:
    """Read a chunk, with all of its data or the first `data_bytes` of them."""
    head = _read_squeezed(source, begin, _CHUNK_HEAD)
    size = int.from_bytes(head[8:16], "little")
    if size > source.size:
        raise source.flaw(begin, f"a chunk claims {size:,} bytes, more than the file has")
    wanted = size if data_bytes is None else min(size, data_bytes)
    whole = _read_squeezed(source, begin, _CHUNK_HEAD + wanted)
    return _RecordChunk(head[24:25], int.from_bytes(head[25:32], "little"), whole[_CHUNK_HEAD:])


def _read_squeezed(source: StoreFile, begin: int, count: int) -> bytes:
    """Read `count` bytes from a chunk's beginning on, without the headers of blocks."""
    end = int(_find_end(np.int64(begin), np.int64(count)))
    if begin < 0 or end > source.size:
        raise source.flaw(begin, f"a chunk is announced here, but the file ends at {source.size:,}")
    data = source.read(begin, end - begin)
    if len(data) != end - begin:
        raise source.flaw(begin, "the file ends within this chunk")
    parts = []
    at = begin
    while at < end:
        at += _BLOCK_HEAD if at % _BLOCK == 0 else 0
        stop = min(end, (at // _BLOCK + 1) * _BLOCK)
        parts.append(data[at - begin : stop - begin])
        at = stop
    return b"".join(parts)


def _parse_simple(source: StoreFile, begin: int, chunk: _RecordChunk) -> tuple[Int, bytes]:
    """Return the sizes of a simple chunk's records, and the records end to end."""
    if chunk.kind != b"r" or chunk.data[:1] != b"\0":
        how = "transposed" if chunk.kind == b"t" else "compressed"
        raise source.flaw(begin, f"the file is {how}, or damaged: {_OPTIONS}")
    data = np.frombuffer(chunk.data, np.uint8)[1:]
    head = _decode_varints(source, begin, data[:10], 1)
    if not len(head):
        raise source.flaw(begin, "a chunk has no sizes: the file is damaged")
    width = int(_count_varint_bytes(head[:1])[0])
    edge = width + int(head[0])
    if int(head[0]) < 0 or edge > len(data):
        raise source.flaw(begin, f"sizes of a chunk have {head[0]:,} bytes: damaged")
    sizes = _decode_varints(source, begin, data[width:edge])
    if len(sizes) != chunk.records or (sizes < 0).any() or (sizes > len(data)).any():
        raise source.flaw(begin, f"{len(sizes):,} sizes for {chunk.records:,} records")
    if int(sizes.sum()) != len(data) - edge:
        raise source.flaw(begin, "the sizes of a chunk's records do not add up: damaged")
    return sizes, data[edge:].tobytes()


# -- varints ---------------------------------------------------------------------------------------


def _decode_varints(
    source: StoreFile, begin: int, data: npt.NDArray[np.uint8], most: int | None = None
) -> Int:
    """Decode all varints of some bytes, or the first `most`; bit 63 makes a number negative."""
    ends = np.flatnonzero(data < 128)[:most]
    if most is None and len(data) and (not len(ends) or ends[-1] != len(data) - 1):
        raise source.flaw(begin, "a number of this chunk is truncated")
    starts = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
    width = ends - starts + 1
    if len(width) and int(width.max()) > 10:
        raise source.flaw(begin, "a number of this chunk has more than ten bytes")
    values = np.zeros(len(ends), np.uint64)
    for place in range(int(width.max()) if len(width) else 0):
        held = width > place
        part = data[starts[held] + place].astype(np.uint64) & np.uint64(127)
        values[held] |= part << np.uint64(7 * place)
    return values.view(np.int64)


def _count_varint_bytes(values: Int) -> Int:
    """Count the bytes of the varints of these numbers (from 0 on)."""
    widths = np.ones(len(values), np.int64)
    for place in range(1, 9):
        widths += values >> (7 * place) > 0
    return widths


def _decode_fields(
    source: StoreFile, begin: int, values: bytes, ends: Int
) -> tuple[npt.NDArray[np.intp], Int, npt.NDArray[Any]]:
    """Decode the fields of messages that end at `ends` and hold numbers only.

    Returns for each field the number of its message, its tag and its value.
    """
    data = np.frombuffer(values, np.uint8)
    numbers = _decode_varints(source, begin, data)
    places = np.flatnonzero(data < 128)
    if len(numbers) % 2:
        raise source.flaw(begin, "a message of this chunk is truncated")
    return np.searchsorted(ends, places[1::2], side="right"), numbers[::2], numbers[1::2]


# -- places ----------------------------------------------------------------------------------------


def _find_end(begin: Any, count: Any) -> Any:
    """Return the end of `count` bytes from `begin` on, with the headers of blocks between them."""
    return begin + count + _BLOCK_HEAD * ((count + (begin + _USABLE - 1) % _BLOCK) // _USABLE)


def _round_to_chunk(place: Int) -> Int:
    """Round up to the next place at which a chunk may begin."""
    return place + np.maximum(0, -place % _BLOCK - (_USABLE - 1))


def _cut_pieces(begin: Int, length: Int) -> tuple[Int, Int, Int, Int]:
    """Cut records in pieces: each record's first piece; each piece's record, offset and length."""
    ahead = _CHUNK_HEAD + 2 + _count_varint_bytes(length)
    start = _find_end(begin, ahead + 1) - 1
    stop = _find_end(begin, ahead + length)
    low = start // _BLOCK
    count = np.where(length > 0, (stop - 1) // _BLOCK - low + 1, 0)
    first = number_first(count.tolist())
    record = np.repeat(np.arange(len(begin)), count)
    nth = np.arange(len(record)) - first[record]
    block = (low[record] + nth) * _BLOCK
    offset = np.where(nth == 0, start[record], block + _BLOCK_HEAD)
    end = np.minimum(stop[record], block + _BLOCK)
    return first, record, offset, end - offset
