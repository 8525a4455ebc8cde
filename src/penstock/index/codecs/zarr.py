"""Rows out of the chunks of a Zarr array, by numcodecs.

A compressed chunk consists of all grid chunks of the same rows, in the order of the grid.
A piece of no bytes is an absent chunk: all fill values. Options: `dtype`, `shape` of a
row, `chunk`, `order` (the axes in the order in which a chunk stores them), `fill` in hexadecimal,
and `codecs`: the configurations by which numcodecs knows them, in the order of encoding; "crc32c"
is a checksum behind the bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import limits
from .decompression import METHODS, decompress
from .registry import CompressedChunk, Decoded, missing_library

CODECS = frozenset(
    ["adler32", "astype", "base64", "bitround", "blosc", "bz2", "crc32", "crc32c", "delta"]
    + ["fixedscaleoffset", "fletcher32", "gzip", "jenkins_lookup3", "lz4", "lzma", "packbits"]
    + ["pcodec", "quantize", "shuffle", "zfpy", "zlib", "zstd"]
)
"""Codecs that numcodecs may be asked for: a file may name any codec, and "pickle" runs code."""


_SPARE = 1 << 16
"""Bytes that codecs may add to what they encode: checksums, tables."""


def decode(options: Mapping[str, Any], compressed: CompressedChunk) -> Decoded:
    """Decode the rows of a compressed chunk."""
    dtype, row = np.dtype(options["dtype"]), tuple(options["shape"])
    if compressed.samples * math.prod(row) * dtype.itemsize > limits.decoded_chunk_bytes_max:
        raise ValueError(f"{compressed.samples:,} rows of {row} {dtype} in one compressed chunk")
    parts = [
        _decode_grid_chunk(options, piece, dtype) if len(piece) else None
        for piece in compressed.pieces()
    ]
    fill = np.frombuffer(bytes.fromhex(options["fill"]), dtype)[0]
    return paste_chunks((compressed.samples, *row), tuple(options["chunk"]), parts, dtype, fill)


def _decode_grid_chunk(options: Mapping[str, Any], piece: memoryview, dtype: np.dtype[Any]) -> Any:
    """Decode one chunk of the grid."""
    chunk, order = options["chunk"], options["order"]
    data: Any = piece
    size = math.prod(chunk) * dtype.itemsize
    if size > limits.decoded_chunk_bytes_max:
        raise ValueError(f"a chunk of {chunk} {dtype} has {size:,} bytes")
    for config in reversed(options["codecs"]):
        claimed = read_claimed_bytes(str(config["id"]), bytes(memoryview(data).cast("B")[:18]))
        most = 2 * size + _SPARE
        if claimed > most:
            raise ValueError(f"{config['id']} claims {claimed:,} bytes for a chunk of {size:,}")
        if config["id"] in METHODS and not claimed:
            data = decompress(config["id"], memoryview(data).cast("B"), most, config)
        else:
            data = _undo_codec(config, data)
    plain: npt.NDArray[Any] = np.frombuffer(bytes(memoryview(data).cast("B")), np.uint8)
    if len(plain) != size:
        raise ValueError(f"a chunk has {len(plain):,} bytes, but {size:,} are expected")
    stored = plain.view(dtype).reshape([chunk[axis] for axis in order])
    return stored.transpose(np.argsort(order))


def _undo_codec(config: Mapping[str, Any], data: Any) -> Any:
    """Undo one codec."""
    check_codec(config)
    try:
        import numcodecs
    except ModuleNotFoundError:
        raise missing_library("numcodecs", "zarr", "compressed Zarr data") from None
    try:
        return numcodecs.get_codec(dict(config)).decode(data)
    except Exception as error:  # each codec has errors of its own for bytes that are damaged
        raise ValueError(f"{config.get('id')}: {error!r}") from None


def read_claimed_bytes(codec: str, head: bytes) -> int:
    """Read the size that a chunk claims to decode to: the codec would allocate it.

    0 if it states none. Formats: numcodecs' LZ4, c-blosc's header, RFC 8878 (Zstandard).
    """
    if codec == "lz4":
        return int.from_bytes(head[:4], "little")
    if codec == "blosc":
        return int.from_bytes(head[4:8], "little")
    if codec != "zstd" or len(head) < 5:
        return 0
    flags = head[4]
    width = (flags >> 5 & 1, 2, 4, 8)[flags >> 6]
    at = 5 + (not flags >> 5 & 1) + (0, 1, 2, 4)[flags & 3]
    return int.from_bytes(head[at : at + width], "little") + (256 if width == 2 else 0)


def check_codec(config: Mapping[str, Any]) -> None:
    """Check that a codec makes nothing but numbers of bytes; ValueError if not."""
    if config["id"] not in CODECS:
        raise ValueError(f"codec {config['id']!r} is not decoded")
    for name in ("dtype", "astype", "encode_dtype", "decode_dtype"):
        if np.dtype(config.get(name)).hasobject:
            raise ValueError(f"codec {config['id']!r} makes Python objects")


def paste_chunks(
    shape: tuple[int, ...],
    chunk: tuple[int, ...],
    parts: Sequence[npt.NDArray[Any] | None],
    dtype: np.dtype[Any],
    fill: Any,
) -> npt.NDArray[Any]:
    """Paste the chunks that hold the same rows together, in grid order.

    shape:  number of rows, then the shape of one row; the first axis is as long as in the
            chunks, or shorter at the end of the array.
    parts:  one decoded chunk for each cell of the grid; None for a chunk of only `fill`.
    """
    grid = tuple(-(-size // step) for size, step in zip(shape[1:], chunk[1:], strict=True))
    if len(parts) != int(np.prod(grid, dtype=np.int64)) or shape[0] > chunk[0]:
        raise ValueError(f"{len(parts)} chunks {chunk} do not make up rows {shape[1:]}")
    rows = np.empty(shape, dtype)
    for cell, part in zip(np.ndindex(*grid), parts, strict=True):
        start = tuple(c * step for c, step in zip(cell, chunk[1:], strict=True))
        ends = [
            min(at + step, size) for at, step, size in zip(start, chunk[1:], shape[1:], strict=True)
        ]
        where = tuple(slice(a, b) for a, b in zip(start, ends, strict=True))
        inner = tuple(slice(b - a) for a, b in zip(start, ends, strict=True))
        rows[(slice(None), *where)] = fill if part is None else part[(slice(shape[0]), *inner)]
    return rows
