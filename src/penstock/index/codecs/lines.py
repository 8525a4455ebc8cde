"""Lines of text out of compressed chunks: frames of Zstandard, or members of gzip.

A chunk is one or several frames, each a piece. Frames may end within a line: the chunk to which a
line belongs is the one in which it begins, and has the frames up to the line's end. Empty pieces in
front say how a chunk begins: with the file (none), with a line (one), or within a line of the chunk
before (two), the rest of which is skipped. Behind its last line there may be others, which are the
next chunk's. Options: none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ... import limits
from ..._core import walk_jsonl
from .decompression import decompress
from .registry import CompressedChunk, Packed

ZSTD, GZIP = b"\x28\xb5\x2f\xfd", b"\x1f\x8b"
AT_FILE, AT_LINE, WITHIN_LINE = 0, 1, 2
"""Number of empty pieces in front of a chunk."""


def decode(options: Mapping[str, Any], compressed: CompressedChunk) -> Packed:
    """Decode the lines that begin in a compressed chunk."""
    pieces = compressed.pieces()
    begins = next(number for number, piece in enumerate([*pieces, b"-"]) if len(piece))
    parts, room = [], limits.undeclared_chunk_bytes_max
    for piece in pieces[begins:]:
        parts.append(unpack_frame(piece, room))
        room -= len(parts[-1])
    text = join_parts(parts, begins)
    start, length = find_lines(text)
    start, length = start[: compressed.samples], length[: compressed.samples]
    return Packed(memoryview(text), start, start + length)


def unpack_frame(frame: memoryview, size_max: int) -> bytes:
    """Unpack a frame or member of up to so many bytes; ValueError if it is damaged or larger."""
    if not bytes(frame[:4]).startswith((ZSTD, GZIP)):
        raise ValueError(f"no frame of Zstandard or gzip begins with {bytes(frame[:4])!r}")
    return decompress("zstd" if frame[:4] == ZSTD else "gzip", frame, size_max)


def join_parts(parts: Sequence[bytes], begins: int) -> bytes:
    """Join what frames hold, from the first line that begins there on, with a newline before it
    unless it is the file's first."""
    if begins == AT_FILE:
        return b"".join(parts)
    if begins == AT_LINE:
        return b"".join([b"\n", *parts])
    text = b"".join(parts)
    return text[text.find(b"\n") :] if b"\n" in text else b""


def find_lines(text: bytes) -> tuple[Any, Any]:
    """Find where the lines that are not blank start, and their lengths."""
    view = memoryview(text)
    columns, _ = walk_jsonl(-1, lambda at, size: bytes(view[at : at + size]), len(text))
    return np.asarray(columns["offset"]), np.asarray(columns["length"])
