"""Decompression into a bounded number of bytes: a few bytes of a file can make gigabytes.

Each method stops one byte beyond the bound, so that time and memory are in proportion to what a
caller expects, whatever the bytes are.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

from .registry import missing_library

METHODS = frozenset(["bz2", "gzip", "lzma", "zlib", "zstd"])

_block_bytes = 128 * 1024  # most that a block of Zstandard decodes to; it takes four bytes or more
_step_bytes = 1 << 20
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
        "gzip": partial(zlib.decompressobj, 31),
        "lzma": partial(_make_lzma, size_max, settings or {}),
        "zlib": zlib.decompressobj,
    }
    whole = b""
    rest: bytes | memoryview = data
    while True:
        try:
            stream = streams[method]()
            part: bytes = stream.decompress(rest, size_max + 1 - len(whole))
        except (zlib.error, OSError, EOFError, lzma.LZMAError) as error:
            if whole and method in ("bz2", "lzma"):
                return whole  # other bytes behind a stream are no damage to the libraries
            raise ValueError(f"{method}: {error}") from None
        whole = whole + part if whole else part  # nearly always the only one, which is not copied
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
    if any(int(each.get("dict_size", 0)) > memory_max for each in filters or ()):
        raise ValueError(f"lzma asks for a dictionary of more than {memory_max:,} bytes")
    return lzma.LZMADecompressor(form, filters=filters)


@cache
def load_zstandard() -> Any:
    """Load the library of Zstandard; UsageError if it is not installed."""
    try:
        import zstandard
    except ModuleNotFoundError:
        raise missing_library("zstandard", "zstd", "data compressed by Zstandard") from None
    return zstandard


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
