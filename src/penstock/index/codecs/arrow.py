"""Columns of Arrow record batches: compressed buffers, and bits.

A compressed chunk holds the buffers of one column of one batch. These are validity, if there are
nulls (of the column, or of structs around it), the offsets of each level of lists, and data; with a
dictionary: validity, indices, and the buffers of the dictionary. Options: `compression` ("lz4",
"zstd" or ""), `kind` ("fixed", "varied", "nested", "bits"), `dtype`, `shape`, `widths` of the
offsets of each level, `element` (shape of one); with dictionaries `indices` (their dtype) and
`entries` (values of each chunk's dictionary).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import limits
from ...errors import import_library
from ..nested import pack_rows
from .decompression import compute_expansion_max
from .registry import CompressedChunk, Decoded, Packed


@cache
def _load_codec(compression: str) -> Any:
    return import_library("pyarrow", "parquet", "compressed Arrow data").Codec(compression)


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
    if "indices" not in options:
        return _decode_column(options, pieces, rows)
    inside = 1 + len(options["widths"])
    *masks, indices = pieces[:-inside]
    compression = options["compression"]
    dtype = np.dtype(options["indices"])
    at = _read_array(compression, indices, rows * dtype.itemsize).view(dtype).astype(np.int64)
    missing = _read_missing(compression, masks, rows)
    at = np.where(missing, 0, at)
    entries = int(options["entries"][compressed.number])
    if rows and not missing.all() and not 0 <= int(at.min()) <= int(at.max()) < entries:
        raise ValueError(f"an index leads out of a dictionary of {entries:,} values")
    values = _decode_column(options, pieces[-inside:], entries)
    if not entries and (rows and isinstance(values, np.ndarray)):
        raise ValueError("its dictionary is empty")
    if isinstance(values, np.ndarray):
        taken: npt.NDArray[Any] = values[at]
        return taken
    assert isinstance(values, Packed)
    if not entries:
        return Packed(values.values, np.zeros(rows, np.int64), np.zeros(rows, np.int64))
    start = values.start[at]
    return Packed(values.values, start, np.where(missing, start, values.end[at]))


def _decode_column(options: Mapping[str, Any], pieces: list[memoryview], rows: int) -> Decoded:
    """Decode a column whose values follow its rows."""
    compression, kind = options["compression"], options["kind"]
    dtype = np.dtype(options["dtype"])
    widths = options["widths"]
    if not widths:
        shape = tuple(options["shape"])
        if kind == "bits":
            return _read_flags(compression, pieces[-1], rows)
        size = rows * dtype.itemsize * math.prod(shape)
        values: npt.NDArray[Any] = _read_array(compression, pieces[-1], size).view(dtype)
        return values.reshape(rows, *shape)
    first = len(pieces) - 1 - len(widths)
    offsets: list[npt.NDArray[np.int64]] = []
    slots = rows
    for width, piece in zip(widths, pieces[first:], strict=False):
        ends = np.zeros(1, np.int64)
        if slots:
            read = _read_array(compression, piece, (slots + 1) * width)
            ends = read.view(f"<i{width}").astype(np.int64)
        if int(ends[0]) < 0 or (np.diff(ends) < 0).any():
            raise ValueError("the offsets are not ascending")
        slots = int(ends[-1])
        if slots > limits.decoded_chunk_bytes_max // 8:
            raise ValueError(f"the values claim {slots:,} elements")
        offsets.append(ends)
    missing = _read_missing(compression, pieces[:first], rows)
    element_bytes = dtype.itemsize * math.prod(options["element"])
    if slots > limits.decoded_chunk_bytes_max // element_bytes:
        raise ValueError(f"the values claim {slots:,} elements")
    data = (
        _read_flags(compression, pieces[-1], slots).view(np.uint8)
        if dtype.kind == "b"
        else _read_array(compression, pieces[-1], slots * element_bytes)
    )
    if len(widths) > 1:
        packed, bounds = pack_rows(offsets, widths, data, element_bytes, missing)
        return Packed(packed.data, bounds[:-1], bounds[1:])
    start = offsets[0][:-1] * element_bytes
    end = np.where(missing, start, offsets[0][1:] * element_bytes)
    return Packed(data.data, start, end)


def _read_missing(compression: str, masks: list[memoryview], rows: int) -> npt.NDArray[np.bool_]:
    """Return which rows one of the masks leaves out."""
    missing = np.zeros(rows, np.bool_)
    for mask in masks:
        missing |= ~_read_flags(compression, mask, rows)
    return missing


def _read_flags(compression: str, data: memoryview, count: int) -> npt.NDArray[np.bool_]:
    bits = _read_array(compression, data, -(-count // 8))
    flags: npt.NDArray[np.bool_] = np.unpackbits(bits, bitorder="little")[:count].view(np.bool_)
    return flags


def _read_array(compression: str, data: memoryview, size: int) -> npt.NDArray[np.uint8]:
    """Decompress the first `size` bytes of a buffer; ValueError if there are fewer."""
    plain = decompress_buffer(compression, data, size)
    if len(plain) < size:
        raise ValueError(f"a buffer has {len(plain):,} bytes, but {size:,} are needed")
    return np.frombuffer(plain, np.uint8, size) if size else np.empty(0, np.uint8)
