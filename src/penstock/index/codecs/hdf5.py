"""Rows out of the chunks of an HDF5 dataset, whatever its filters.

A compressed chunk consists of all grid chunks of the same rows, in the order of the grid.
A piece of no bytes is an absent chunk: all fill values. Options: `variants`, how the
chunks of a file are stored (`dtype`, `shape` of a row, `chunk`, `filters` as HDF5 has them, `fill`
in hexadecimal), each used from the compressed chunk in `since` on; `masks`, the filters that chunks
were written without, by compressed chunk and piece.

Deflate, shuffle and fletcher32 are undone here, by several threads at once. For other filters the
chunks are written into a file in memory, and HDF5 reads them from it. Before that, the size that
each would allocate is compared with the chunk's. Rarer filters are trusted, and in a frame of
Blosc2 what follows its first chunk.
"""

from __future__ import annotations

import bisect
import contextlib
import importlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import limits
from ...errors import UsageError
from .decompression import decompress
from .registry import CompressedChunk, Decoded, missing_library
from .zarr import paste_chunks, read_claimed_bytes

_DEFLATE, _SHUFFLE, _FLETCHER32, _SZIP = 1, 2, 3, 4
_BZIP2, _LZF, _BLOSC, _LZ4, _BITSHUFFLE, _ZSTD = 307, 32000, 32001, 32004, 32008, 32015
_ZFP, _BLOSC2 = 32013, 32026
_SIZED = {_SHUFFLE, _FLETCHER32, 5, 6}
"""Filters whose output has the size that the dataset says; 5 and 6 are nbit and scale-offset."""
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
    data, left = _undo_last_filters(piece, filters, mask, size, dtype.itemsize)
    assert left == (1 << len(filters)) - 1
    return np.frombuffer(data, dtype).reshape(chunk)


def _undo_last_filters(
    piece: memoryview, filters: Sequence[Sequence[Any]], mask: int, size: int, itemsize: int
) -> tuple[bytes | memoryview, int]:
    """Undo the last filters of a chunk of `size` bytes as far as they are known here.

    Returns the data, and the mask of filters that need not be undone any more. ValueError if those
    left would make far more than `size` bytes, as far as the data tell.
    """
    if size > limits.decoded_chunk_bytes_max:
        raise ValueError(f"a chunk has {size:,} bytes")
    data: bytes | memoryview = piece
    for number in reversed(range(len(filters))):
        if mask >> number & 1:
            continue
        code, _, values, *_ = filters[number]
        if code in (_DEFLATE, _BZIP2):
            # Filters behind it in the file may have added to the data: checksums.
            method = "zlib" if code == _DEFLATE else "bz2"
            data = decompress(method, memoryview(data), size + _SPARE)
        elif code == _FLETCHER32:
            data = _check_fletcher32(memoryview(data))
        elif code == _SHUFFLE:
            stored = int(values[0]) if values else itemsize
            if stored < 1:
                raise ValueError(f"a chunk cannot have been shuffled in elements of {stored} bytes")
            end = len(data) - len(data) % stored  # HDF5 leaves the rest where it is
            columns = np.frombuffer(data, np.uint8, end).reshape(stored, -1)
            data = columns.T.tobytes() + bytes(data[end:])
        else:
            _check_claim(code, values, memoryview(data), size)
            inner = [each[0] for n, each in enumerate(filters[:number]) if not mask >> n & 1]
            if code not in _SIZED and not _SIZED.issuperset(inner):
                raise ValueError(f"a chunk is compressed several times, by {[*inner, code]}")
            return data, mask
        mask |= 1 << number
    if len(data) != size:
        raise ValueError(f"a chunk has {len(data):,} bytes, but {size:,} are expected")
    return data, mask


def _check_claim(code: int, values: Sequence[int], data: memoryview, size: int) -> None:
    """Check the size that a filter would allocate: each tells it at the start of its data.

    Formats: H5Zszip.c, c-blosc's header, the registered filters LZ4, bitshuffle and Zstandard, and
    see below. LZF states none, and makes at most 88 times its data, less than the
    chunk.
    """
    claimed = size
    if code == _SZIP:
        claimed = int.from_bytes(data[:4], "little")
    elif code == _BLOSC:
        claimed = int.from_bytes(data[4:8], "little")
    elif code == _LZ4 or (code == _BITSHUFFLE and len(values) > 4 and values[4]):
        claimed = int.from_bytes(data[:8], "big")
    elif code == _ZSTD:
        claimed = read_claimed_bytes("zstd", bytes(data[:18]))
    elif code == _BLOSC2:
        claimed = _read_blosc2_claim(data)
    elif code == _ZFP:
        claimed = _read_zfp_claim(values)
    elif code in (_LZF, _BITSHUFFLE):
        claimed = len(data)
    if claimed > size + _SPARE:
        raise ValueError(f"filter {code} claims {claimed:,} bytes for a chunk of {size:,}")


def _read_blosc2_claim(data: memoryview) -> int:
    """Return the most bytes that a frame (README_CFRAME_FORMAT) says of itself, of one chunk, and
    of its first chunk; or of a chunk without a frame."""
    chunk = data
    claims = [0]
    if bytes(data[2:10]) == b"b2frame\0":
        chunk = data[int.from_bytes(data[11:15], "big") :]
        claims = [int.from_bytes(data[30:38], "big"), int.from_bytes(data[58:62], "big")]
    return max(*claims, int.from_bytes(chunk[4:8], "little"))


def _read_zfp_claim(values: Sequence[int]) -> int:
    """Return the bytes of the array that ZFP's header, in the filter's values, describes.

    After "zfp", a version and 2 bits of the type follow, 2 of the number of dimensions less 1, and
    48 of their lengths less 1.
    """
    words = [value.to_bytes(4, "little") for value in values[1:]]
    if words[:1] and words[0][:3] != b"zfp":  # written on a machine of the other byte order
        words = [word[::-1] for word in words]
    header = b"".join(words)
    if header[:3] != b"zfp":
        raise ValueError("the values of the ZFP filter are not a header of ZFP")
    bits = int.from_bytes(header[4:12], "little")
    dimensions = (bits >> 2 & 3) + 1
    width = 48 // dimensions
    lengths = [(bits >> 4 + width * n & (1 << width) - 1) + 1 for n in range(dimensions)]
    return math.prod(lengths) * (4, 8)[bits & 1]


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
            with contextlib.suppress(ModuleNotFoundError):
                importlib.import_module("hdf5plugin")  # registers its filters
        if not h5py.h5z.filter_avail(code):
            raise UsageError(f"HDF5 filter {code} ({name}) needs pip install hdf5plugin")
        # Bitshuffle puts three values before those that it is given, which are there already.
        layout.set_filter(code, flags, tuple(values[3 * (code == _BITSHUFFLE) :]))
    size = math.prod(chunk) * dtype.itemsize
    whole = tuple(-(-rows // step) * step for rows, step in zip(shape, chunk, strict=True))
    try:
        with h5py.File("chunk", "w", driver="core", backing_store=False) as file:
            space = h5py.h5s.create_simple(whole)
            kind = h5py.h5t.py_create(dtype, logical=True)
            dataset = h5py.h5d.create(file.id, b"rows", kind, space, dcpl=layout)
            grid = np.ndindex(*(rows // step for rows, step in zip(whole, chunk, strict=True)))
            for number, (cell, piece) in enumerate(zip(grid, compressed.pieces(), strict=True)):
                if len(piece):
                    data, mask = _undo_last_filters(
                        piece, variant["filters"], masks.get(number, 0), size, dtype.itemsize
                    )
                    at = tuple(c * step for c, step in zip(cell, chunk, strict=True))
                    dataset.write_direct_chunk(at, bytes(data), mask)
            del dataset  # opened again: HDF5 2.0.0 forgets the mask of the chunk written last
            rows: npt.NDArray[Any] = file["rows"][tuple(map(slice, shape))]
            return rows
    except (OSError, RuntimeError, KeyError) as error:
        raise ValueError(str(error)) from None
