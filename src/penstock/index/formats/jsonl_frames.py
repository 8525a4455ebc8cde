"""Lines in compressed files: frames of Zstandard and members of gzip, joined to chunks of lines.

A file is unpacked once, when it is indexed, to count the lines of its frames; what the file says of
sizes (headers, a seek table) is not relied on. Frames are joined to chunks of some hundred KiB, see
`penstock.index.codecs.decompression`. A frame of more than `limits.line_frame_bytes_max` is
refused: every line of it would cost as much as all.
"""

from __future__ import annotations

import os
import shlex
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ... import limits
from ...engine.store import StoreFile
from ...errors import UsageError
from ...extent import Int
from ..codecs import decompression as codec
from ..codecs.decompression import load_zstandard, read_block_head
from ..layout import Chunked
from .shards import lay_out_pieces, number_first

SKIPPABLE = frozenset(bytes([low, 0x2A, 0x4D, 0x18]) for low in range(0x50, 0x60))
_WINDOW_BYTES = 8 << 20
_MEMBER_STEP_BYTES = 128 << 10


class Frame(NamedTuple):
    """A frame or member: its place in the file, and the bytes that it holds."""

    offset: int
    length: int
    plain: bytes


class FileChunks(NamedTuple):
    """The compressed chunks of lines of one file.

    counts:         lines of each chunk.
    piece_counts:   pieces of each chunk.
    offset, length: of each piece.
    head, tail:     the first bytes of the text; its last line, if that has no end.
    """

    counts: Int
    piece_counts: Int
    offset: Int
    length: Int
    head: bytes
    tail: bytes


def is_compressed(head: bytes) -> bool:
    """True if a file begins with a frame of Zstandard, or a member of gzip."""
    return head[:4] in SKIPPABLE or head.startswith((codec.ZSTD, codec.GZIP))


def peek(head: bytes) -> bytes:
    """Unpack the first bytes of a compressed file as far as they go; b"" if they do not."""
    try:
        if head.startswith(codec.GZIP):
            return zlib.decompressobj(31).decompress(head, len(head))
        at = 0
        while head[at : at + 4] in SKIPPABLE:
            at += 8 + int.from_bytes(head[at + 4 : at + 8], "little")
        library = load_zstandard()
        try:
            stream = library.ZstdDecompressor(max_window_size=1 << 27).decompressobj()
            unpacked: bytes = stream.decompress(head[at:])
            return unpacked[: len(head)]
        except library.ZstdError:
            return b""
    except (UsageError, zlib.error):
        return b""


class FileWindow:
    """Bytes of a file, read in large pieces from its start to its end."""

    def __init__(self, source: StoreFile) -> None:
        self._source, self._start, self._data = source, 0, b""

    def view(self, offset: int, length: int) -> memoryview:
        """Return the bytes of a range, fewer at the end of the file."""
        if not self._start <= offset or offset + length > self._start + len(self._data):
            self._start = offset
            self._data = self._source.read(offset, max(length, _WINDOW_BYTES))
        at = offset - self._start
        return memoryview(self._data)[at : at + length]


def lay_out(walked: list[FileChunks]) -> Chunked:
    """The layout of the lines of all files."""
    pieces = lay_out_pieces(
        np.concatenate([chunks.piece_counts for chunks in walked]),
        [chunks.offset for chunks in walked],
        [chunks.length for chunks in walked],
    )
    return Chunked(number_first(np.concatenate([chunks.counts for chunks in walked])), pieces)


class ChunkBuilder:
    """Builder of the compressed chunks of one file."""

    def __init__(self, source: StoreFile) -> None:
        self._source = source
        self._counts: list[int] = []
        self._piece_counts: list[int] = []
        self._places: list[tuple[int, int]] = []
        self._tail = b""
        # Of the chunk that is being made:
        self._begins = codec.AT_FILE
        self._frames: list[Frame] = []
        self._parts: list[bytes] = []  # of its frames, from where its lines begin
        self._bytes = 0
        self._is_full = False  # and waits for the end of its last line

    def build(self) -> FileChunks:
        """Walk the frames; FormatError if the file cannot be read at random."""
        head = b""
        for frame in filter(lambda frame: frame.plain, iterate_frames(self._source)):
            head = head or frame.plain[:64]
            self._add(frame)
        if self._frames:
            self._close()
        offset, length = np.array(self._places, np.int64).reshape(-1, 2).T
        counts, piece_counts = (np.array(n, np.int64) for n in (self._counts, self._piece_counts))
        return FileChunks(counts, piece_counts, offset.copy(), length.copy(), head, self._tail)

    def _add(self, frame: Frame) -> None:
        rest: bytes = frame.plain
        if self._is_full:
            end = rest.find(b"\n") + 1
            self._take(frame, rest[:end] if end else rest)
            if not end:
                return
            self._close()
            rest = rest[end - 1 :]
            if len(rest) == 1:
                self._begins = codec.AT_LINE
                return
            self._begins = codec.WITHIN_LINE
        self._take(frame, rest)
        self._is_full = self._bytes >= limits.line_chunk_bytes
        if self._is_full and rest.endswith(b"\n"):
            self._close()
            self._begins = codec.AT_LINE

    def _take(self, frame: Frame, text: bytes) -> None:
        self._frames.append(frame._replace(plain=b""))
        self._parts.append(text)
        self._bytes += len(text)
        if self._bytes > limits.undeclared_chunk_bytes_max:
            most = f"{limits.undeclared_chunk_bytes_max:,} bytes"
            what = f"a compressed line of more than {most}: unpack the file, or cut the line"
            raise self._source.flaw(self._frames[0].offset, what)

    def _close(self) -> None:
        """Finish the chunk; without the start of a line in it, it is left out."""
        text = b"".join([b"\n"[: self._begins == codec.AT_LINE], *self._parts])
        start, length = codec.find_lines(text)
        if len(start):
            places = [(self._frames[0].offset, 0)] * self._begins
            places += [frame[:2] for frame in self._frames]
            self._counts.append(len(start))
            self._piece_counts.append(len(places))
            self._places += places
        self._tail = b""
        if len(start) and start[-1] + length[-1] == len(text):
            self._tail = text[start[-1] :]
        self._frames, self._parts, self._bytes, self._is_full = [], [], 0, False


# -- frames ----------------------------------------------------------------------------------------


def iterate_frames(source: StoreFile) -> Iterator[Frame]:
    """Iterate over the frames and members of a file; FormatError at one that is damaged."""
    window, at = FileWindow(source), 0
    while at < source.size:
        magic = bytes(window.view(at, 4))
        if magic in SKIPPABLE:
            at += 8 + int.from_bytes(window.view(at + 4, 4), "little")
            if at > source.size:
                raise source.flaw(source.size, "a skippable frame of Zstandard is cut")
        elif magic.startswith((codec.ZSTD, codec.GZIP)):
            read = _read_zstd_frame if magic == codec.ZSTD else _read_gzip_member
            frame = read(source, window, at)
            yield frame
            at += frame.length
        elif at and not any(window.view(at, _WINDOW_BYTES)):
            at += _WINDOW_BYTES  # zeros that fill up a block of a tape or an object
        else:
            raise source.flaw(at, f"{magic!r} is the start of no frame: restore the file")


def _read_zstd_frame(source: StoreFile, window: FileWindow, at: int) -> Frame:
    """Read a frame, whose length is the sum of its blocks' (RFC 8878, 3.1.1)."""
    head = bytes(window.view(at, 18))
    flags = head[4] if len(head) > 4 else 0
    single = flags >> 5 & 1
    size_bytes = (single, 2, 4, 8)[flags >> 6]
    end = at + 5 + (1 - single) + (0, 1, 2, 4)[flags & 3] + size_bytes
    last = False
    while not last:
        block_bytes, last = read_block_head(window.view(end, 3))
        end += block_bytes
        if end > source.size:
            raise source.flaw(at, "a frame of Zstandard is cut: restore the file from a good copy")
        if end - at > limits.line_frame_bytes_max:
            raise _refuse_large(source, at, "zstd")
    end += flags & 4
    try:
        plain = codec.unpack_frame(window.view(at, end - at), limits.line_frame_bytes_max)
    except UsageError:  # its library is not installed
        raise
    except ValueError as error:
        # Frames that say their size are refused by it, others once they make more.
        if "bytes expected" in str(error) or "claims to decode" in str(error):
            raise _refuse_large(source, at, "zstd") from None
        raise source.flaw(at, f"{error}: restore the file from a good copy") from None
    return Frame(at, end - at, plain)


def _read_gzip_member(source: StoreFile, window: FileWindow, at: int) -> Frame:
    """Read a member, up to the end that its last block marks."""
    stream, texts, end = zlib.decompressobj(31), [], at
    room = limits.line_frame_bytes_max
    try:
        while not stream.eof:
            rest: bytes | memoryview = stream.unconsumed_tail
            if not rest:
                rest = window.view(end, _MEMBER_STEP_BYTES)
                end += len(rest)
            if not rest:
                raise source.flaw(at, "a member of gzip is cut: restore the file from a good copy")
            texts.append(stream.decompress(rest, room + 1))
            room -= len(texts[-1])
            if room < 0:
                raise _refuse_large(source, at, "gzip")
    except zlib.error as error:
        raise source.flaw(at, f"gzip: {error}: restore the file from a good copy") from None
    return Frame(at, end - len(stream.unused_data) - at, b"".join(texts))


def _refuse_large(source: StoreFile, at: int, program: str) -> Exception:
    """Build the error for a frame of which every line would cost as much as all."""
    name = os.path.basename(source.path)
    stem, extension = os.path.splitext(name)
    base, inner = os.path.splitext(stem)
    new = f"{base}-frames{inner}{extension}"
    unpack, pack = ("zstdcat", "zstd") if program == "zstd" else ("zcat", "gzip")
    return source.flaw(
        at,
        f"a frame or member of more than {limits.line_frame_bytes_max >> 20} MiB of lines: "
        f"`{'zstd -d' if program == 'zstd' else 'gunzip'}` the file first, or cut it into small "
        f"frames: `{unpack} {shlex.quote(name)} | split -C 256K --filter={pack} - > "
        f"{shlex.quote(new)}`",
    )
