"""Samples out of frames of Zstandard and members of gzip: lines of text, and LitData's leaves."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import limits
from ..._core import walk_jsonl
from .decompression import decompress
from .registry import CompressedChunk, Decoded, Packed

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


def decode_leaves(options: Mapping[str, Any], compressed: CompressedChunk) -> Decoded:
    """Decode one leaf of each sample of LitData: frames of several samples, or whole chunks.

    A compressed chunk decodes to samples back to back, each the sizes of its leaves and then the
    leaves. In a whole chunk they follow its table. Options: `leaves`, their number, `leaf`, the
    number of the wanted one, `dtype` of a leaf of one number, else None, and `whole`.
    """
    data = decompress("zstd", compressed.data, limits.undeclared_chunk_bytes_max)
    leaves, leaf = int(options["leaves"]), int(options["leaf"])
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
