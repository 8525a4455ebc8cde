"""Decompression into a bounded number of bytes: a few bytes of a file can make gigabytes.

Each method stops one byte beyond the bound, so that time and memory are in proportion to what a
caller expects, whatever the bytes are.
"""

from __future__ import annotations

import bz2
import lzma
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import limits
from ..._core import walk_jsonl
from ...errors import import_library
from .registry import CompressedChunk, Decoded, Packed

_zlib: Any = zlib
with suppress(ModuleNotFoundError):
    _zlib = import_module("isal.isal_zlib")  # twice as fast

METHODS = frozenset(["bz2", "gzip", "lzma", "zlib", "zstd"])

_block_bytes = 128 * 1024  # most that a block of Zstandard decodes to; it takes four bytes or more
_step_bytes = 1 << 20
_usual_expansion = 64  # what makes more is looked through first: it may be a few bytes that lie
_dictionary_bytes = 80 << 20  # what xz -9 needs, besides the data


def decompress(
    method: str, data: memoryview, size_max: int, settings: Mapping[str, Any] | None = None
) -> bytes:
    """Decompress all of the data; ValueError if that is damaged, or of more than `size_max` bytes.

    settings:  of lzma, `format` and `filters`, as the module lzma takes them.
    """
    if method == "zstd":
        return _decompress_frame(data, size_max)
    streams: dict[str, Callable[[], Any]] = {
        "bz2": bz2.BZ2Decompressor,
        "deflate": partial(_zlib.decompressobj, -zlib.MAX_WBITS),
        "gzip": partial(_zlib.decompressobj, 31),
        "lzma": partial(_make_lzma, size_max, settings or {}),
        "zlib": _zlib.decompressobj,
    }
    whole = b""
    rest: bytes | memoryview = data
    while True:
        try:
            stream = streams[method]()
            plain: bytes = stream.decompress(rest, size_max + 1 - len(whole))
        except (zlib.error, _zlib.error, OSError, EOFError, lzma.LZMAError) as error:
            if whole and method in ("bz2", "lzma"):
                return whole  # other bytes behind a stream are no damage to the libraries
            raise ValueError(f"{method}: {error}") from None
        whole = whole + plain if whole else plain  # nearly always the only one, which is not copied
        if len(whole) > size_max:
            raise ValueError(f"{method} makes more than the {size_max:,} bytes that are expected")
        if not stream.eof:
            raise ValueError(f"the bytes compressed by {method} are truncated")
        behind: bytes = stream.unused_data
        rest = behind.lstrip(b"\0") if method == "gzip" else behind
        if not rest or method == "zlib":
            return whole


def compute_expansion_max(method: str, length: int) -> int:
    """Compute the most bytes that `length` compressed ones can make: no larger claim is true."""
    return {"lz4": 255 * length + 64, "zstd": (length // 4 + 1) * _block_bytes}[method]


def _make_lzma(size_max: int, settings: Mapping[str, Any]) -> lzma.LZMADecompressor:
    form, filters = settings.get("format", lzma.FORMAT_XZ), settings.get("filters")
    memory_max = size_max + _dictionary_bytes
    if form != lzma.FORMAT_RAW:
        return lzma.LZMADecompressor(form, memlimit=memory_max)
    if any(int(entry.get("dict_size", 0)) > memory_max for entry in filters or ()):
        raise ValueError(f"lzma asks for a dictionary of more than {memory_max:,} bytes")
    return lzma.LZMADecompressor(form, filters=filters)


@cache
def load_zstandard() -> Any:
    """Load the library of Zstandard; UsageError if it is not installed."""
    return import_library("zstandard", "zstd", "data compressed by Zstandard")


def _decompress_frame(data: memoryview, size_max: int) -> bytes:
    """Decompress the first frame of Zstandard."""
    library = load_zstandard()
    try:
        announced = library.frame_content_size(data)
        if announced > min(size_max, compute_expansion_max("zstd", len(data))):
            raise ValueError(f"a frame claims to decode to {announced:,} bytes")
        if announced >= 0:
            plain: bytes = library.ZstdDecompressor().decompress(data)
            return plain
        _check_frame_end(data, library.frame_header_size(data))
        whole = bytearray()
        with library.ZstdDecompressor().stream_reader(data) as stream:
            while piece := stream.read(min(_step_bytes, size_max + 1 - len(whole))):
                whole += piece
                if len(whole) > size_max:
                    raise ValueError(f"a frame makes more than the {size_max:,} bytes expected")
        return bytes(whole)
    except library.ZstdError as error:
        raise ValueError(str(error)) from None


def _check_frame_end(data: memoryview, at: int) -> None:
    """Check that all blocks of a frame are there: a stream does not. RFC 8878, 3.1.1."""
    last = False
    while not last and at + 3 <= len(data):
        block_bytes, last = read_block_head(data[at : at + 3])
        at += block_bytes
    if not last or at + (data[4] & 4) > len(data):
        raise ValueError("a frame of Zstandard is truncated")


def read_block_head(head: memoryview) -> tuple[int, bool]:
    """Read the head of a block of Zstandard: the bytes of head and block, and if it is the last."""
    value = int.from_bytes(head, "little")
    return 3 + (1 if value >> 1 & 3 == 1 else value >> 3), bool(value & 1)


# -- samples in frames of Zstandard and members of gzip --------------------------------------------

ZSTD, GZIP = b"\x28\xb5\x2f\xfd", b"\x1f\x8b"
AT_FILE, AT_LINE, WITHIN_LINE = 0, 1, 2
"""Number of empty pieces in front of a chunk."""


def decode_lines(options: Mapping[str, Any], compressed: CompressedChunk) -> Packed:
    """Decode the lines that start in a compressed chunk, of one or several frames, each a piece.

    Frames may end within a line: its chunk is the one in which it starts, and has the frames up to
    the line's end. Empty pieces in front say how a chunk starts: with the file (none), with a line
    (one), or within a line of the chunk before (two), whose rest is skipped. Behind its last line
    there may be others of the next chunk. Options: none.
    """
    pieces = compressed.pieces()
    begins = next(number for number, piece in enumerate([*pieces, b"-"]) if len(piece))
    texts, room = [], limits.undeclared_chunk_bytes_max
    for piece in pieces[begins:]:
        texts.append(unpack_frame(piece, room))
        room -= len(texts[-1])
    text = join_parts(texts, begins)
    start, length = find_lines(text)
    start, length = start[: compressed.samples], length[: compressed.samples]
    return Packed(memoryview(text), start, start + length)


def unpack_frame(frame: memoryview, size_max: int) -> bytes:
    """Unpack a frame or member of up to so many bytes; ValueError if it is damaged or larger."""
    if not bytes(frame[:4]).startswith((ZSTD, GZIP)):
        raise ValueError(f"no frame of Zstandard or gzip begins with {bytes(frame[:4])!r}")
    return decompress("zstd" if frame[:4] == ZSTD else "gzip", frame, size_max)


def join_parts(texts: Sequence[bytes], begins: int) -> bytes:
    """Join what frames hold, from the first line that begins there on, with a newline before it
    unless it is the file's first."""
    if begins == AT_FILE:
        return b"".join(texts)
    if begins == AT_LINE:
        return b"".join([b"\n", *texts])
    text = b"".join(texts)
    return text[text.find(b"\n") :] if b"\n" in text else b""


def find_lines(text: bytes) -> tuple[Any, Any]:
    """Find where the lines that are not blank start, and their lengths."""
    view = memoryview(text)
    columns, _ = walk_jsonl(-1, lambda at, size: bytes(view[at : at + size]), len(text))
    return np.asarray(columns["offset"]), np.asarray(columns["length"])


def _measure_leaves(compressed: CompressedChunk, leaves: int, is_whole: bool) -> int:
    """Measure what a chunk of LitData may decode to; ValueError if its samples end before it does.

    If it could be much, it is looked through in small memory: samples say their sizes.
    """
    data, samples = compressed.data, compressed.samples
    most = min(limits.undeclared_chunk_bytes_max, compute_expansion_max("zstd", len(data)))
    library = load_zstandard()
    try:
        announced = library.frame_content_size(data)
        if -1 < announced <= _step_bytes + _usual_expansion * len(data):
            return most
        with library.ZstdDecompressor().stream_reader(data) as stream:
            if is_whole:
                table = struct.unpack(f"<{samples + 2}I", stream.read(4 * (samples + 2)))
                if table[0] != samples:
                    raise ValueError(f"it holds {table[0]:,} samples, and {samples:,} are expected")
                return min(most, int(table[-1]))
            end = 0
            for _ in range(samples):
                size = sum(struct.unpack(f"<{leaves}I", stream.read(4 * leaves)))
                end += 4 * leaves + size
                while size and (piece := stream.read(min(size, _step_bytes))):
                    size -= len(piece)
            if stream.read(1):
                raise ValueError(f"samples end at byte {end:,}, and more is compressed")
            return min(most, end)
    except (library.ZstdError, struct.error) as error:
        raise ValueError(str(error)) from None


def decode_leaves(options: Mapping[str, Any], compressed: CompressedChunk) -> Decoded:
    """Decode one leaf of each sample of LitData: frames of several samples, or whole chunks.

    A compressed chunk decodes to samples back to back, each the sizes of its leaves and then the
    leaves. In a whole chunk they follow its table. Options: `leaves`, their number, `leaf`, the
    number of the wanted one, `dtype` of a leaf of one number, else None, and `whole`.
    """
    leaves, leaf = int(options["leaves"]), int(options["leaf"])
    expected = _measure_leaves(compressed, leaves, bool(options["whole"]))
    data = decompress("zstd", compressed.data, expected)
    head = struct.Struct(f"<{leaves}I")
    at = 4 * (compressed.samples + 2) if options["whole"] else 0
    start, end = np.empty(compressed.samples, np.int64), np.empty(compressed.samples, np.int64)
    for sample in range(compressed.samples):
        if at + head.size > len(data):
            raise ValueError(f"sample {sample} begins beyond the end of the decoded data")
        sizes = head.unpack_from(data, at)
        start[sample] = at + head.size + sum(sizes[:leaf])
        end[sample] = start[sample] + sizes[leaf]
        at += head.size + sum(sizes)
    if at != len(data):
        raise ValueError(f"samples end at byte {at:,} of {len(data):,} decoded bytes")
    if options["dtype"] is None:
        return Packed(memoryview(data), start, end)
    dtype = np.dtype(options["dtype"])
    if (end - start != dtype.itemsize).any():
        raise ValueError(f"a number does not have {dtype.itemsize} bytes")
    raw = np.frombuffer(data, np.uint8)
    elements: npt.NDArray[Any] = raw[start[:, None] + np.arange(dtype.itemsize)].reshape(-1)
    values: npt.NDArray[Any] = elements.view(dtype)
    return values
