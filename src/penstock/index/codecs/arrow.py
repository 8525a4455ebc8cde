"""Columns of Arrow record batches: compressed buffers, and bits.

A compressed chunk holds the buffers of one column of one batch. These are validity, if there are
nulls (of the column, or of structs around it), offsets if lengths vary, and data. Options:
`compression` ("lz4", "zstd" or ""), `kind` ("fixed", "varied", "bits"), `dtype`, `shape`, and
`width` of an offset.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import limits
from .decompression import compute_expansion_max
from .registry import CompressedChunk, Decoded, Packed, missing_library


@cache
def _load_codec(compression: str) -> Any:
    try:
        import pyarrow
    except ModuleNotFoundError:
        raise missing_library("pyarrow", "arrow", "compressed Arrow data") from None
    return pyarrow.Codec(compression)


def decompress_buffer(
    compression: str, data: bytes | memoryview, expected: int
) -> bytes | memoryview:
    """Decompress a buffer; ValueError if its bytes are damaged.

    expected:  roughly the number of bytes to expect; a far larger size counts as damage. 0:
               unknown.
    """
    if not compression or not len(data):
        return data
    if len(data) < 8:
        raise ValueError(f"a compressed buffer has only {len(data)} bytes, and its size takes 8")
    size = int.from_bytes(data[:8], "little", signed=True)
    if size == -1:
        return bytes(data[8:])  # not a view: decoded data outlives the compressed chunk
    most = 2 * expected + 4096 if expected else limits.decoded_chunk_bytes_max
    most = min(most, compute_expansion_max(compression, len(data)))
    if not 0 <= size <= min(most, limits.decoded_chunk_bytes_max):
        raise ValueError(f"a buffer claims to decode to {size:,} bytes")
    try:
        plain = memoryview(_load_codec(compression).decompress(data[8:], size))
    except (OSError, MemoryError) as error:
        raise ValueError(str(error)) from None
    if len(plain) != size:
        raise ValueError(f"a buffer decodes to {len(plain):,} bytes, but announces {size:,}")
    return plain


def decode(options: Mapping[str, Any], compressed: CompressedChunk) -> Decoded:
    """Decode the rows of a compressed chunk."""
    pieces, rows = compressed.pieces(), compressed.samples
    compression, kind = options["compression"], options["kind"]
    dtype = np.dtype(options["dtype"])
    if kind == "bits":
        size = -(-rows // 8)
        data = _read_array(compression, pieces[-1], size)
        flags: npt.NDArray[np.bool_] = np.unpackbits(data, bitorder="little")[:rows].view(np.bool_)
        return flags
    if kind == "fixed":
        shape = tuple(options["shape"])
        size = rows * dtype.itemsize * math.prod(shape)
        values: npt.NDArray[Any] = _read_array(compression, pieces[-1], size).view(dtype)
        return values.reshape(rows, *shape)
    width = int(options["width"])
    *masks, offsets, elements = pieces
    ends = _read_array(compression, offsets, (rows + 1) * width).view(f"<i{width}").astype(np.int64)
    start, end = ends[:-1], ends[1:].copy()
    if int(ends[0]) < 0 or (end < start).any():
        raise ValueError("the offsets are not ascending")
    for mask in masks:
        bits = np.unpackbits(_read_array(compression, mask, -(-rows // 8)), bitorder="little")
        end = np.where(bits[:rows] == 0, start, end)
    size = int(ends[-1])
    if size > limits.decoded_chunk_bytes_max // dtype.itemsize:
        raise ValueError(f"the values claim {size:,} elements")
    data = _read_array(compression, elements, size * dtype.itemsize)
    return Packed(data.data, start * dtype.itemsize, end * dtype.itemsize)


def _read_array(compression: str, data: memoryview, size: int) -> npt.NDArray[np.uint8]:
    """Decompress the first `size` bytes of a buffer; ValueError if there are fewer."""
    plain = decompress_buffer(compression, data, size)
    if len(plain) < size:
        raise ValueError(f"a buffer has {len(plain):,} bytes, but {size:,} are needed")
    return np.frombuffer(plain, np.uint8, size) if size else np.empty(0, np.uint8)
