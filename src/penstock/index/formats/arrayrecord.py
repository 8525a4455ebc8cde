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

from ...engine.store import StoreFile
from ...errors import FormatError
from ...extent import Int
from ..fields import Field
from ..table import Index
from .shards import Scan, check_any, lay_out_pieces, number_first

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


def build(scan: Scan) -> Index:
    """The index of all records, file after file."""
    files, sources = scan.list_files()
    records = scan.parse(files, lambda _, source: _read_records(source))
    check_any(files, sum(len(begin) for begin, _ in records), "records")
    pieces = [_cut_pieces(begin, length) for begin, length in records]
    counts, offsets, lengths = zip(*pieces, strict=True)
    layout = lay_out_pieces(np.concatenate(counts), offsets, lengths)
    field = Field("data", np.dtype(np.uint8), None)
    return Index("arrayrecord", files, (field,), (layout,), sources)


def _read_records(source: StoreFile) -> tuple[Int, Int]:
    """Read the start of each record's chunk, and the bytes of each record."""
    try:
        footer_at = _find_footer(source)
        sizes, values = _parse_simple(_read_chunk(source, footer_at))
        ends = np.cumsum(sizes)
        number, tag, value = _decode_fields(values[int(ends[0]) :], ends[1:] - ends[0])
        count = len(sizes) - 1
        begin, length, records = (np.zeros(count, np.int64) for _ in range(3))
        for column, wanted in ((begin, 8), (length, 16), (records, 24)):
            column[number[tag == wanted]] = value[tag == wanted]
        for row in np.flatnonzero(records != 1)[:1]:
            raise source.flaw(int(begin[row]), f"a chunk of {records[row]:,} records: {_OPTIONS}")
        if not count:
            return begin, length
        head = _read_chunk(source, int(begin[0]), 1)
    except (ValueError, IndexError, OverflowError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{source.path} is no ArrayRecord file: {error}: {_OPTIONS}") from None
    if head.kind != b"r" or head.data[:1] != b"\0":
        raise source.flaw(int(begin[0]), f"records are compressed or transposed: {_OPTIONS}")
    if (begin < 0).any() or (length < 0).any() or int(length.max()) >= _SIZE_MAX:
        raise source.flaw(footer_at, "the footer holds impossible numbers: the file is damaged")
    stored = 2 + _count_varint_bytes(length) + length
    # The next chunk begins at the end of this one, or where the blocks let it.
    earliest = begin + 1 + np.maximum(0, -(begin + 1) % _BLOCK - (_USABLE - 1))
    end = np.maximum(_find_end(begin, _CHUNK_HEAD + stored), earliest)
    for row in np.flatnonzero(end != np.append(begin[1:], footer_at))[:1]:
        raise source.flaw(int(begin[row]), f"record {int(row):,} ends elsewhere: {_OPTIONS}")
    return begin, length


def _find_footer(source: StoreFile) -> int:
    """Find the footer: the last block gives its place three times."""
    at = source.size - _BLOCK
    if source.size % _BLOCK or at < _BLOCK:
        raise ValueError("it has no whole blocks, or is cut")
    sizes, values = _parse_simple(_read_chunk(source, at))
    _, tag, value = _decode_fields(values, np.cumsum(sizes))
    footer_at = int(value[0]) if len(value) else 0
    if tag.tolist() != [8, 16] * 3 or value.tolist() != [footer_at, _MAGIC] * 3 or len(sizes) != 3:
        raise source.flaw(at, "the last block is no postscript: not closed, or truncated")
    if not 0 < footer_at < at:
        raise source.flaw(at, f"the footer is at {footer_at:,}, beyond {at:,}: the file is damaged")
    return footer_at


# -- chunks ----------------------------------------------------------------------------------------


def _read_chunk(source: StoreFile, begin: int, data_bytes: int | None = None) -> _RecordChunk:
    """Read a chunk, with all of its data or the first `data_bytes` of them."""
    head = _read_squeezed(source, begin, _CHUNK_HEAD)
    size = int.from_bytes(head[8:16], "little")
    wanted = size if data_bytes is None else min(size, data_bytes)
    whole = _read_squeezed(source, begin, _CHUNK_HEAD + wanted)
    return _RecordChunk(head[24:25], int.from_bytes(head[25:32], "little"), whole[_CHUNK_HEAD:])


def _read_squeezed(source: StoreFile, begin: int, count: int) -> bytes:
    """Read `count` bytes from a chunk's beginning on, without the headers of blocks."""
    if begin < 0 or count > source.size or int(_find_end(begin, count)) > source.size:
        raise source.flaw(begin, f"a chunk is announced here, but the file ends at {source.size:,}")
    end = int(_find_end(begin, count))
    data = source.read(begin, end - begin)
    blocks = []
    at = begin
    while at < end:
        at += _BLOCK_HEAD if at % _BLOCK == 0 else 0
        stop = min(end, (at // _BLOCK + 1) * _BLOCK)
        blocks.append(data[at - begin : stop - begin])
        at = stop
    squeezed = b"".join(blocks)
    if len(squeezed) != count:
        raise source.flaw(begin, "the file ends within this chunk")
    return squeezed


def _parse_simple(chunk: _RecordChunk) -> tuple[Int, bytes]:
    """Return the sizes of a simple chunk's records, and the records end to end."""
    if chunk.kind != b"r" or chunk.data[:1] != b"\0":
        raise ValueError("transposed" if chunk.kind == b"t" else "compressed, or damaged")
    data = np.frombuffer(chunk.data, np.uint8)[1:]
    size_bytes = _decode_varints(data[:10], 1)
    width = int(_count_varint_bytes(size_bytes)[0])
    edge = width + int(size_bytes[0])
    sizes = _decode_varints(data[width:edge])
    if len(sizes) != chunk.records or (sizes < 0).any() or (sizes > len(data)).any():
        raise ValueError(f"{len(sizes):,} sizes for {chunk.records:,} records")
    if not width <= edge <= len(data) or int(sizes.sum()) != len(data) - edge:
        raise ValueError("the sizes of a chunk's records do not add up")
    return sizes, data[edge:].tobytes()


# -- varints ---------------------------------------------------------------------------------------


def _decode_varints(data: npt.NDArray[np.uint8], most: int | None = None) -> Int:
    """Decode all varints of some bytes, or the first `most`; bit 63 makes a number negative."""
    ends = np.flatnonzero(data < 128)[:most]
    if most is None and len(data) != (int(ends[-1]) + 1 if len(ends) else 0):
        raise ValueError("a number is truncated")
    starts = np.append(0, ends[:-1] + 1)[: len(ends)]
    width = ends - starts + 1
    longest = int(width.max(initial=0))
    if longest > 10:
        raise ValueError("a number has more than ten bytes")
    values = np.zeros(len(ends), np.uint64)
    for place in range(longest):
        longer = width > place
        bits = data[starts[longer] + place].astype(np.uint64) & np.uint64(127)
        values[longer] |= bits << np.uint64(7 * place)
    return values.view(np.int64)


def _count_varint_bytes(values: Int) -> Int:
    """Count the bytes of the varints of these numbers (from 0 on)."""
    widths = np.ones(len(values), np.int64)
    for place in range(1, 9):
        widths += values >> (7 * place) > 0
    return widths


def _decode_fields(values: bytes, ends: Int) -> tuple[npt.NDArray[np.intp], Int, npt.NDArray[Any]]:
    """Decode the fields of messages that end at `ends` and hold numbers only.

    Returns for each field the number of its message, its tag and its value.
    """
    data = np.frombuffer(values, np.uint8)
    numbers = _decode_varints(data)
    places = np.flatnonzero(data < 128)
    if len(numbers) % 2:
        raise ValueError("a message is truncated")
    return np.searchsorted(ends, places[1::2], side="right"), numbers[::2], numbers[1::2]


# -- places ----------------------------------------------------------------------------------------


def _find_end(begin: Any, count: Any) -> Any:
    """Return the end of `count` bytes from `begin` on, with the headers of blocks between them."""
    return begin + count + _BLOCK_HEAD * ((count + (begin + _USABLE - 1) % _BLOCK) // _USABLE)


def _cut_pieces(begin: Int, length: Int) -> tuple[Int, Int, Int]:
    """Cut the records of a file in pieces: their number; and each piece's offset and length."""
    ahead = _CHUNK_HEAD + 2 + _count_varint_bytes(length)
    start = _find_end(begin, ahead + 1) - 1
    stop = _find_end(begin, ahead + length)
    low = start // _BLOCK
    count = np.where(length > 0, (stop - 1) // _BLOCK - low + 1, 0)
    record = np.repeat(np.arange(len(begin)), count)
    nth = np.arange(len(record)) - number_first(count)[record]
    block = (low[record] + nth) * _BLOCK
    offset = np.where(nth == 0, start[record], block + _BLOCK_HEAD)
    return count, offset, np.minimum(stop[record], block + _BLOCK) - offset
