"""Columns of Parquet row groups, by pyarrow.

A band is the column chunk of one row group, and the footer of its file. Options: `column` (its
path), `dtype` and `shape` (None: byte strings), `group` (the number of each band's row group in
its file), `start` (where each band's chunk lies in its file), `nulls`.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import limits
from . import Band, Decoded, Packed, missing


class Parts:
    """A file of which only some bytes are there, for pyarrow to read."""

    def __init__(self, size: int, parts: list[tuple[int, memoryview]]) -> None:
        self.size, self.parts, self.at, self.closed = size, parts, 0, False

    def read(self, length: int = -1) -> bytes:
        """Bytes from the place that was sought; ValueError where they are not there."""
        length = self.size - self.at if length < 0 else min(length, self.size - self.at)
        for start, data in self.parts:
            if start <= self.at and self.at + length <= start + len(data):
                found = bytes(data[self.at - start : self.at - start + length])
                self.at += length
                return found
        raise OSError(f"{length:,} bytes at {self.at:,} lie outside of the column chunk")

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place."""
        self.at = offset + (0, self.at, self.size)[whence]
        return self.at

    def tell(self) -> int:
        """The place."""
        return self.at

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def writable(self) -> bool:
        """No."""
        return False

    def flush(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""
        self.closed = True


_footers: OrderedDict[bytes, Any] = OrderedDict()
_footers_max = 16
_lock = threading.Lock()


def footer_of(data: bytes) -> Any:
    """What a footer says; `data` ends with its length and "PAR1". The latest ones are kept."""
    with _lock:
        if data in _footers:
            _footers.move_to_end(data)
            return _footers[data]
    found = arrow().parquet.read_metadata(arrow().BufferReader(b"PAR1" + data))
    with _lock:
        _footers[data] = found
        if len(_footers) > _footers_max:
            _footers.popitem(last=False)
    return found


def arrow() -> Any:
    """pyarrow, with its Parquet part."""
    try:
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise missing("pyarrow", "arrow", "Parquet") from None
    return pyarrow


def decode(options: Mapping[str, Any], band: Band) -> Decoded:
    """The rows of a band."""
    pa = arrow()
    chunk, footer = band.pieces()
    start, group = options["start"][band.number], options["group"][band.number]
    try:
        metadata = footer_of(bytes(footer))
        most = start + len(chunk)
        file = Parts(most + len(footer), [(start, chunk), (most, footer)])
        opened = pa.parquet.ParquetFile(pa.PythonFile(file, mode="r"), metadata=metadata)
        table = opened.read_row_group(group, columns=[options["column"]], use_threads=False)
        found = table.column(0).combine_chunks()
        if isinstance(found, pa.ChunkedArray):
            found = pa.concat_arrays(found.chunks) if found.num_chunks else found.chunk(0)
        return samples(found, options)
    except (OSError, pa.ArrowException, IndexError, KeyError, MemoryError) as error:
        raise ValueError(str(error)) from None


def samples(found: Any, options: Mapping[str, Any]) -> Decoded:
    """The rows of an Arrow array: of numbers, strings, or a struct of nothing but the column."""
    pa = arrow()
    while pa.types.is_struct(found.type):
        if found.type.num_fields != 1:
            raise ValueError(f"a struct of {found.type.num_fields} parts")
        (found,) = found.flatten()
    if pa.types.is_dictionary(found.type):
        found = found.dictionary_decode()
    if found.null_count and (options["nulls"] == "error" or options["shape"] is not None):
        row = int(np.argmax(np.asarray(found.is_null())))
        raise ValueError(f"row {row} of the row group is null in {options['column']!r}")
    if options["shape"] is None:
        return _strings(found)
    dtype = np.dtype(options["dtype"])
    if options["shape"]:  # of fixed-size binary
        found = pa.concat_arrays([found])
        data = np.frombuffer(found.buffers()[-1], np.uint8, len(found) * options["shape"][0])
        return data.reshape(len(found), *options["shape"])
    if pa.types.is_temporal(found.type):
        found = found.view(pa.int64() if dtype.itemsize == 8 else pa.int32())
    values = np.asarray(found.to_numpy(zero_copy_only=False))
    if values.dtype != dtype:
        raise ValueError(f"values of {values.dtype}, {dtype} is expected")
    return values


def _strings(found: Any) -> Packed:
    pa = arrow()
    large = pa.types.is_large_binary(found.type) or pa.types.is_large_string(found.type)
    found = found.cast(pa.binary()) if not large and found.type != pa.binary() else found
    _, offsets, values = found.buffers()
    width = 8 if large else 4
    ends = np.frombuffer(offsets, f"<i{width}", len(found) + 1, found.offset * width)
    ends = ends.astype(np.int64)
    end = ends[1:].copy()
    if found.null_count:
        gone = np.asarray(found.is_null())
        end[gone] = ends[:-1][gone]
    if int(ends[-1]) > limits.decoded_band_bytes_max:
        raise ValueError(f"values of {int(ends[-1]):,} bytes")
    data = memoryview(values) if values is not None else memoryview(b"")
    return Packed(data, ends[:-1], end)
