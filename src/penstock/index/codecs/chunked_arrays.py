"""Rows out of the chunks of arrays: Zarr, by numcodecs, and HDF5, whatever the filters.

A compressed chunk consists of all grid chunks of the same rows, in the order of the grid. A piece
of no bytes is an absent chunk: all fill values. Options, of Zarr, or of each of `variants` of HDF5,
used from the compressed chunk in `since` on: `dtype`, `shape` of a row, `chunk`, `fill` in
hexadecimal.

Zarr: `order` (the axes in the order in which a chunk stores them), and `codecs`: the configurations
by which numcodecs knows them, in the order of encoding; "crc32c" is a checksum behind the bytes.

HDF5: `filters` as HDF5 has them; `masks`, the filters that chunks were written without, by
compressed chunk and piece. Deflate, shuffle and fletcher32 are undone here, by several threads at
once. For other filters the chunks are written into a file in memory, and HDF5 reads them from it.
Before that, the size that each would allocate is compared with the chunk's. Rarer filters are
trusted, and in a frame of Blosc2 what follows its first chunk.
"""

from __future__ import annotations

import bisect
import contextlib
import importlib
import io
import math
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import limits
from ...engine.threads import make_turn
from ...errors import UsageError, import_library
from .decompression import METHODS, decompress
from .registry import CompressedChunk, Decoded

CODECS = frozenset(
    ["adler32", "astype", "base64", "bitround", "blosc", "bz2", "crc32", "crc32c", "delta"]
    + ["fixedscaleoffset", "fletcher32", "gzip", "jenkins_lookup3", "lz4", "lzma", "packbits"]
    + ["pcodec", "quantize", "shuffle", "zfpy", "zlib", "zstd"]
)
"""Codecs that numcodecs may be asked for: a file may name any codec, and "pickle" runs code."""
ZIP_ENTRY = struct.Struct("<4s5H3I2H")  # of a zip archive, before its name
ZIP_LATE = 1 << 3  # a flag: the checksum comes behind the data
NPY_HEADER_MAX = 12 + 10_000
"""Most bytes of a header that numpy evaluates; structured types, with longer ones, are refused."""
_literals = make_turn()
"""Held while a header's literal is evaluated: CPython 3.11 counts all threads' depth in one."""
_LITERAL_TRIES = 100
_CODEC_SPARE, _FILTER_SPARE = 1 << 16, 64
"""Bytes that codecs and filters may add to what they encode: checksums, tables."""

_DEFLATE, _SHUFFLE, _FLETCHER32, _SZIP = 1, 2, 3, 4
_BZIP2, _LZF, _BLOSC, _LZ4, _BITSHUFFLE, _ZSTD = 307, 32000, 32001, 32004, 32008, 32015
_ZFP, _BLOSC2 = 32013, 32026
_SIZED = {_SHUFFLE, _FLETCHER32, 5, 6}
"""Filters whose output has the size that the dataset says; 5 and 6 are nbit and scale-offset."""


def _decode_rows(
    options: Mapping[str, Any],
    compressed: CompressedChunk,
    undo: Callable[[int, memoryview, int, np.dtype[Any]], npt.NDArray[Any]],
) -> npt.NDArray[Any]:
    """Decode each chunk of some rows, and paste them together, in the order of the grid.

    undo:  decodes a piece: gets its number, the bytes that it makes, and their dtype.
    """
    dtype, chunk = np.dtype(options["dtype"]), tuple(options["chunk"])
    shape = (compressed.samples, *options["shape"])
    size = math.prod(chunk) * dtype.itemsize
    if max(math.prod(shape) * dtype.itemsize, size) > limits.decoded_chunk_bytes_max:
        raise ValueError(f"{shape} of {dtype} in one compressed chunk, of chunks {chunk}")
    grid = tuple(-(-length // step) for length, step in zip(shape[1:], chunk[1:], strict=True))
    pieces = compressed.pieces()
    if len(pieces) != math.prod(grid) or shape[0] > chunk[0]:
        raise ValueError(f"{len(pieces)} chunks {chunk} do not make up rows {shape[1:]}")
    fill = np.frombuffer(bytes.fromhex(options["fill"]), dtype)[0]
    if shape == chunk and len(pieces[0]):  # one chunk, whole: it is not copied
        return np.ascontiguousarray(undo(0, pieces[0], size, dtype))
    rows = np.empty(shape, dtype)
    for number, (cell, piece) in enumerate(zip(np.ndindex(*grid), pieces, strict=True)):
        starts = [index * step for index, step in zip(cell, chunk[1:], strict=True)]
        where = [slice(start, start + step) for start, step in zip(starts, chunk[1:], strict=True)]
        view = rows[(slice(None), *where)]  # cut at the end of the array
        whole = undo(number, piece, size, dtype) if len(piece) else fill
        view[...] = whole[tuple(map(slice, view.shape))] if len(piece) else whole
    return rows


def _find_variant(options: Mapping[str, Any], compressed: CompressedChunk) -> Any:
    """Find the options that a compressed chunk has of several, or those of all."""
    since = options.get("since", ())
    return (
        options["variants"][bisect.bisect_right(since, compressed.number) - 1] if since else options
    )


# -- Zarr ------------------------------------------------------------------------------------------


def decode_zarr(options: Mapping[str, Any], compressed: CompressedChunk) -> Decoded:
    """Decode the rows of a compressed chunk."""
    options = _find_variant(options, compressed)
    chunk, order = options["chunk"], options["order"]

    def undo(_: int, piece: memoryview, size: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        data: Any = piece
        most = 2 * size + _CODEC_SPARE
        for config in reversed(options["codecs"]):
            view = memoryview(data).cast("B")
            claimed = read_claimed_bytes(str(config["id"]), bytes(view[:18]))
            if claimed > most:
                raise ValueError(f"{config['id']} claims {claimed:,} bytes for a chunk of {size:,}")
            if config["id"] in METHODS and not claimed:
                data = decompress(config["id"], view, most, config)
            else:
                data = _undo_codec(config, data)
        owned = data if isinstance(data, bytes) else bytes(memoryview(data).cast("B"))
        plain: npt.NDArray[Any] = np.frombuffer(owned, np.uint8)
        if len(plain) != size:
            raise ValueError(f"a chunk has {len(plain):,} bytes, but {size:,} are expected")
        stored = plain.view(dtype).reshape([chunk[axis] for axis in order])
        return stored.transpose(np.argsort(order))

    return _decode_rows(options, compressed, undo)


def _undo_codec(config: Mapping[str, Any], data: Any) -> Any:
    """Undo one codec."""
    check_codec(config)
    numcodecs = import_library("numcodecs", "zarr", "compressed Zarr data")
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


# -- NPZ -------------------------------------------------------------------------------------------


def unpack_entry(entry: memoryview, size_max: int) -> bytes:
    """Unpack an entry of a zip archive, which begins with its header; ValueError if its data do not
    match the checksum there, or are more than `size_max` bytes."""
    if len(entry) < ZIP_ENTRY.size:
        raise ValueError(f"an entry has {len(entry)} bytes")
    magic, _, flags, method, _, _, checksum, _, _, *skipped = ZIP_ENTRY.unpack_from(entry)
    if magic != b"PK\3\4" or flags & ZIP_LATE:
        raise ValueError("no entry with its checksum in front")
    packed = entry[ZIP_ENTRY.size + sum(skipped) :]
    plain = decompress("deflate", packed, size_max) if method else bytes(packed)
    if zlib.crc32(plain) != checksum:
        raise ValueError("the checksum does not match")
    return plain


def read_npy_header(file: io.BytesIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of a .npy file, and leave `file` at its data: the shape, whether the order is
    Fortran's, the dtype.

    ValueError if it is damaged, or whatever else numpy, ast or tokenize raise at a literal.
    """
    version = np.lib.format.read_magic(file)
    if version[0] not in (1, 2, 3):
        raise ValueError(f"version {version}")
    # Version 3 differs in the encoding of field names, which only structured types have.
    read = getattr(np.lib.format, f"read_array_header_{min(version[0], 2)}_0")
    start = file.tell()
    for _ in range(_LITERAL_TRIES):
        file.seek(start)
        with _literals, contextlib.suppress(SystemError):  # by threads that are not ours
            return read(file)  # type: ignore[no-any-return]
    raise ValueError("other threads evaluate literals all the time")


def decode_npz(options: Mapping[str, Any], compressed: CompressedChunk) -> Decoded:
    """Decode an entry of an archive that numpy.savez or savez_compressed wrote: an array.

    It is one sample of the shape in `options`, or of its own of "shapes"; or as many as it has
    rows, each of the shape "row".
    """
    dtype, row = np.dtype(options["dtype"]), options.get("row")
    shape = tuple(options.get("shape", ()) if row is None else (compressed.samples, *row))
    if "shapes" in options:
        shape = tuple(*options["shapes"][compressed.number :][:1])
    size = math.prod(shape) * dtype.itemsize
    if size > limits.decoded_chunk_bytes_max:
        raise ValueError(f"an array is {shape} of {dtype}")
    plain = unpack_entry(compressed.data, size + NPY_HEADER_MAX)
    file = io.BytesIO(plain)
    written, is_fortran, held = read_npy_header(file)
    if (written, held) != (shape, dtype):
        raise ValueError(f"an array is {written} of {held}, not {shape} of {dtype}")
    array = np.frombuffer(plain, dtype, math.prod(shape), file.tell())
    array = array.reshape(shape, order="F" if is_fortran else "C")
    return array[None] if row is None else array


# -- HDF5 ------------------------------------------------------------------------------------------


def decode_hdf5(options: Mapping[str, Any], compressed: CompressedChunk) -> Decoded:
    """Decode the rows of a compressed chunk."""
    variant = _find_variant(options, compressed)
    masks = {piece: mask for number, piece, mask in options["masks"] if number == compressed.number}
    filters = variant["filters"]
    if not all(code in (_DEFLATE, _SHUFFLE, _FLETCHER32) for code, *_ in filters):
        return _decode_with_h5py(variant, compressed, masks)

    def undo(number: int, piece: memoryview, size: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        mask = masks.get(number, 0)
        data, _ = _undo_last_filters(piece, filters, mask, size, dtype.itemsize)
        owned = data if isinstance(data, bytes) else bytes(data)
        return np.frombuffer(owned, dtype).reshape(variant["chunk"])

    return _decode_rows(variant, compressed, undo)


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
            data = decompress(method, memoryview(data), size + _FILTER_SPARE)
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
            inner = [entry[0] for n, entry in enumerate(filters[:number]) if not mask >> n & 1]
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
    if claimed > size + _FILTER_SPARE:
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
    variant: Mapping[str, Any], compressed: CompressedChunk, masks: Mapping[int, int]
) -> npt.NDArray[Any]:
    what = "an HDF5 filter other than deflate, shuffle and fletcher32"
    h5py = import_library("h5py", "hdf5", what)
    dtype, chunk = np.dtype(variant["dtype"]), tuple(variant["chunk"])
    shape = (compressed.samples, *variant["shape"])
    if math.prod(shape) * dtype.itemsize > limits.decoded_chunk_bytes_max:
        raise ValueError(f"{shape} of {dtype} in one compressed chunk")
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
