"""Rows out of the chunks of an HDF5 dataset, whatever its filters.

A compressed chunk consists of all grid chunks that the same rows lie in, in the order of the grid.
A piece of no bytes is an absent chunk, which holds the fill value. Options: `variants`, how the
chunks of a file are stored (`dtype`, `shape` of a row, `chunk`, `filters` as HDF5 has them, `fill`
in hexadecimal), each used from the compressed chunk in `since` on; `masks`, the filters that chunks
were written without, by compressed chunk and piece.

Deflate, shuffle and fletcher32 are undone here, by several threads at once. For other filters the
chunks are written into a file in memory, and HDF5 reads them from it.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import limits
from .chunks import paste_chunks
from .decompression import decompress
from .registry import CompressedChunk, Decoded, missing_library

_DEFLATE, _SHUFFLE, _FLETCHER32 = 1, 2, 3
_SPARE = 64
"""Bytes that the filters before deflate may have added."""


def decode(options: Mapping[str, Any], compressed: CompressedChunk) -> Decoded:
    """Decode the rows of a compressed chunk."""
    variant = options["variants"][bisect.bisect_right(options["since"], compressed.number) - 1]
    masks = {piece: mask for number, piece, mask in options["masks"] if number == compressed.number}
    dtype, row = np.dtype(variant["dtype"]), tuple(variant["shape"])
    chunk = tuple(variant["chunk"])
    if compressed.samples * math.prod(row) * dtype.itemsize > limits.decoded_chunk_bytes_max:
        raise ValueError(f"{compressed.samples:,} rows of {row} {dtype} in one compressed chunk")
    filters = variant["filters"]
    if all(each[0] in (_DEFLATE, _SHUFFLE, _FLETCHER32) for each in filters):
        parts = [
            _undo_filters(piece, filters, masks.get(number, 0), dtype, chunk)
            if len(piece)
            else None
            for number, piece in enumerate(compressed.pieces())
        ]
        fill = np.frombuffer(bytes.fromhex(variant["fill"]), dtype)[0]
        return paste_chunks((compressed.samples, *row), chunk, parts, dtype, fill)
    return _decode_with_h5py(variant, compressed, masks, (compressed.samples, *row))


def _undo_filters(
    piece: memoryview,
    filters: Sequence[Sequence[Any]],
    mask: int,
    dtype: np.dtype[Any],
    chunk: tuple[int, ...],
) -> npt.NDArray[Any]:
    """Undo the filters of one chunk, from the last to the first."""
    size = math.prod(chunk) * dtype.itemsize
    if size > limits.decoded_chunk_bytes_max:
        raise ValueError(f"a chunk of {chunk} {dtype} has {size:,} bytes")
    data: bytes | memoryview = piece
    for number in reversed(range(len(filters))):
        if mask >> number & 1:
            continue
        if filters[number][0] == _DEFLATE:
            # Filters behind it in the file may have added to the data: checksums.
            data = decompress("zlib", memoryview(data), size + _SPARE)
        elif filters[number][0] == _FLETCHER32:
            data = _check_fletcher32(memoryview(data))
        else:
            stored = int(filters[number][2][0]) if filters[number][2] else dtype.itemsize
            if stored < 1 or len(data) % stored:
                raise ValueError(
                    f"{len(data):,} bytes cannot have been shuffled in elements of {stored} bytes"
                )
            data = np.frombuffer(data, np.uint8).reshape(stored, -1).T.tobytes()
    if len(data) != size:
        raise ValueError(f"a chunk has {len(data):,} bytes, but {size:,} are expected")
    return np.frombuffer(data, dtype).reshape(chunk)


def _check_fletcher32(data: memoryview) -> memoryview:
    """Check the checksum behind the data, and return these without it.

    Sums modulo 65,535 of words, where 0 is written as 65,535 unless all words are 0.
    """
    data, stored = data[:-4], bytes(data[-4:])
    words = np.frombuffer(bytes(data) + b"\0" * (len(data) % 2), ">u2").astype(np.uint64)
    weights = np.arange(len(words), 0, -1, dtype=np.uint64) % np.uint64(65_535)
    sums = [int(words.sum()), int((words * weights).sum())]
    low, high = ((total - 1) % 65_535 + 1 if words.any() else 0 for total in sums)
    expected = (high << 16 | low).to_bytes(4, "little")
    swapped = expected[1::-1] + expected[:1:-1]  # HDF5 before 1.6.3 on little-endian machines
    if stored not in (expected, swapped):
        raise ValueError("the checksum of a chunk does not match")
    return data


def _decode_with_h5py(
    variant: Mapping[str, Any],
    compressed: CompressedChunk,
    masks: Mapping[int, int],
    shape: tuple[int, ...],
) -> npt.NDArray[Any]:
    try:
        import h5py
    except ModuleNotFoundError:
        raise missing_library(
            "h5py", "hdf5", "an HDF5 filter other than deflate, shuffle and fletcher32"
        ) from None
    dtype, chunk = np.dtype(variant["dtype"]), tuple(variant["chunk"])
    fill = np.frombuffer(bytes.fromhex(variant["fill"]), dtype)[:1]
    layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    layout.set_chunk(chunk)
    layout.set_fill_value(fill.copy())
    for code, flags, values, name in variant["filters"]:
        if not h5py.h5z.filter_avail(code):
            raise missing_library("hdf5plugin", "hdf5", f"HDF5 filter {code} ({name})")
        layout.set_filter(code, flags, tuple(values))
    whole = tuple(-(-size // step) * step for size, step in zip(shape, chunk, strict=True))
    try:
        with h5py.File("chunk", "w", driver="core", backing_store=False) as file:
            space = h5py.h5s.create_simple(whole)
            kind = h5py.h5t.py_create(dtype, logical=True)
            dataset = h5py.h5d.create(file.id, b"rows", kind, space, dcpl=layout)
            grid = np.ndindex(*(size // step for size, step in zip(whole, chunk, strict=True)))
            for number, (cell, piece) in enumerate(zip(grid, compressed.pieces(), strict=True)):
                if len(piece):
                    at = tuple(c * step for c, step in zip(cell, chunk, strict=True))
                    dataset.write_direct_chunk(at, bytes(piece), masks.get(number, 0))
            del dataset  # opened again: HDF5 2.0.0 forgets the mask of the chunk written last
            rows: npt.NDArray[Any] = file["rows"][tuple(slice(size) for size in shape)]
            return rows
    except (OSError, RuntimeError, KeyError) as error:
        raise ValueError(str(error)) from None
