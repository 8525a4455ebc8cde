"""Columns of Parquet row groups, by pyarrow.

A compressed chunk is the column chunk of one row group. Options: `column` (its path), `dtype` and
`shape` (None: byte strings), `nulls`, and `forms`, how the chunks are stored, each from the chunk
in `since` on: `physical` (the number of the type), `length` (of `FIXED`), `optional` (of each
level of nesting: 0 no, 1 it may be null, 2 it is repeated), `compression` (its number), `old` (see
`_make_footer`). Of lists also `lists` (levels that are repeated), `element` (shape of one) and
`values` (of each chunk). No chunk has more than `claimed` bytes of pages, uncompressed, as the file
says.

pyarrow gets the pages of the chunk, and a footer made here. It does not get the footer of the file,
with its statistics, annotations and other columns. Damage to pages is an error that pyarrow raises.
It allocates what the headers of pages say, so these are read here first.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import limits
from ...errors import missing_library
from ..nested import pack_rows
from .registry import CompressedChunk, Decoded, NullRow, Packed
from .thrift import I32, I64, INT, LIST, STRING, STRUCT, ThriftReader, pack_struct

BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE, BINARY, FIXED = range(8)
MAGIC = b"PAR1"
OFFSET_BYTES = 4
"""Bytes of an offset of nested lists as they are handed over."""
_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3
_PAGE = {1: INT, 2: INT, 3: INT, 5: {1: INT, 2: INT}, 8: {1: INT, 4: INT}}
"""Shape of a page's header: kind, bytes without and with compression, and of pages of data the
number and encoding of values."""
_PLAIN, _DELTA_LENGTH = 0, 6
"""Encodings of byte strings that take as many bytes as these; others may repeat long ones."""
_BY_DICTIONARY = (2, 8)
_UNCOMPRESSED = 0


def load_pyarrow() -> Any:
    """Import pyarrow with its Parquet part; UsageError if it is not installed."""
    try:
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise missing_library("pyarrow", "parquet", "Parquet") from None
    return pyarrow


def decode(options: Mapping[str, Any], compressed: CompressedChunk) -> Decoded:
    """Decode the rows of a compressed chunk."""
    pa = load_pyarrow()
    form = options["forms"][bisect.bisect_right(options["since"], compressed.number) - 1]
    values = compressed.samples
    if options.get("lists"):
        values = options["values"][compressed.number]
    footer = _make_footer(form, len(compressed.data), compressed.samples, values)
    size = len(footer).to_bytes(4, "little")
    data = b"".join([MAGIC, compressed.data, footer, size, MAGIC])
    try:
        is_list = bool(options.get("lists"))
        rows_at_once = _check_pages(data, compressed, form, options["claimed"], values)
        if form["physical"] == INT96:
            _check_times(data)
        if is_list and rows_at_once < compressed.samples:
            raise ValueError("its values may take too many bytes: write smaller row groups")
        with pa.parquet.ParquetFile(pa.BufferReader(data), page_checksum_verification=True) as file:
            if rows_at_once >= compressed.samples:
                arrays = file.read_row_group(0, use_threads=False).column(0).chunks
            else:
                _check_repeats(data, "a" + ".a" * (len(form["optional"]) - 1))
                arrays, total = [], 0
                for batch in file.iter_batches(rows_at_once, row_groups=[0], use_threads=False):
                    arrays.append(batch.column(0))
                    total += batch.nbytes
                    _check_size(total)
        return _take_lists(arrays, options) if is_list else _take_rows(arrays, options)
    except (OSError, pa.ArrowException, IndexError, KeyError, MemoryError) as error:
        raise ValueError(str(error)) from None


def _check_pages(
    data: bytes, compressed: CompressedChunk, form: Mapping[str, Any], claimed: int, expected: int
) -> int:
    """Return the number of rows that may be decoded at once; all of them, as a rule.

    Raises ValueError if the pages claim far more bytes than the footer does: writers differ in what
    they count. Byte strings may grow when they are decoded, a long one of a dictionary to as many
    as there are rows. Single numbers that are not compressed take what the rows take, whatever
    headers say: reading these would cost a third of the decoding.

    expected:  number of values: of lists, each counts.
    """
    physical = form["physical"]
    is_plain = physical != BINARY and form["compression"] == _UNCOMPRESSED
    if is_plain and expected == compressed.samples:
        return compressed.samples
    reader = ThriftReader(data)
    reader.at, end = len(MAGIC), len(MAGIC) + len(compressed.data)
    remaining = expected
    total = grown = longest = dictionary = 0
    while remaining > 0 and reader.at < end:
        page = reader.struct(_PAGE)
        kind, size, stored = page[1], page[2], page[3]
        if size < 0 or not 0 <= stored <= end - reader.at:
            raise ValueError(f"a page claims {stored:,} bytes, and {size:,} uncompressed")
        reader.at += stored
        total += size
        if kind == _DICTIONARY:
            dictionary = size
        elif kind in (_DATA, _DATA_V2):
            head = page[5 if kind == _DATA else 8]
            values, encoding = head[1], head[2 if kind == _DATA else 4]
            if values < 0 or (values > remaining and expected > compressed.samples):
                raise ValueError(f"a page claims {values:,} values of {remaining:,}")
            if encoding in (_PLAIN, _DELTA_LENGTH):
                grown += size
            else:
                value_max = dictionary if encoding in _BY_DICTIONARY else size
                longest, grown = max(longest, value_max), grown + value_max * min(values, remaining)
            remaining -= values
    if total > min(2 * claimed + limits.MIB, limits.decoded_chunk_bytes_max):
        raise ValueError(f"its pages claim {total:,} bytes where the footer says {claimed:,}")
    if physical != BINARY or grown <= limits.decoded_chunk_bytes_max:
        return compressed.samples
    return max(1, limits.decoded_chunk_bytes_max // (4 * longest))


def _check_times(data: bytes) -> None:
    """Raise ValueError if a time is beyond 64 bits of nanoseconds: pyarrow would wrap it."""
    pa = load_pyarrow()
    source = pa.BufferReader(data)
    with pa.parquet.ParquetFile(source, coerce_int96_timestamp_unit="us") as file:
        (column,) = file.read_row_group(0, use_threads=False).columns
    for array in column.chunks:
        while not pa.types.is_temporal(array.type):
            array = array.flatten()[0] if pa.types.is_struct(array.type) else array.flatten()
        times = array.view(pa.int64()).drop_null().to_numpy()
        if (abs(times.astype(np.float64)) > (1 << 63) / 1000 - 1).any():
            raise ValueError("a time (INT96) is not of 1678 to 2261: write TIMESTAMP")


def _check_repeats(data: bytes, name: str) -> None:
    """Raise ValueError if strings that a dictionary repeats take more than a chunk may.

    They are counted, not made. Other encodings that repeat are left to the one who reads them.
    """
    pa = load_pyarrow()
    try:
        with pa.parquet.ParquetFile(pa.BufferReader(data), read_dictionary=[name]) as file:
            arrays = file.read_row_group(0, use_threads=False).column(0).chunks
    except (OSError, pa.ArrowException):
        return
    total = 0
    for array in arrays:
        while pa.types.is_struct(array.type):
            (array,) = array.flatten()
        if pa.types.is_dictionary(array.type):
            words = array.dictionary
            offsets = np.frombuffer(words.buffers()[1], "<i4", len(words) + 1, words.offset * 4)
            lengths = np.diff(offsets).astype(np.int64)
            total += int(lengths[np.asarray(array.indices.drop_null())].sum())
    _check_size(total)


def _check_size(total: int) -> None:
    if total > limits.decoded_chunk_bytes_max:
        raise ValueError(f"its values take {total:,} bytes and more: write smaller row groups")


def _make_footer(form: Mapping[str, Any], size: int, rows: int, values: int) -> bytes:
    """Make the footer of a file that has nothing but this chunk, at byte 4.

    `old` in the form: before Arrow 2.0, writers compressed pages of the second kind although these
    say "not compressed". The writer's name in the footer tells pyarrow so.
    """
    repetition, physical, name = form["optional"], form["physical"], (4, STRING, b"a")
    root = pack_struct([(4, STRING, b"root"), (5, I32, 1)])
    levels = [pack_struct([(3, I32, level), name, (5, I32, 1)]) for level in repetition[:-1]]
    length = [(2, I32, form["length"])] if physical == FIXED else []
    leaf = pack_struct([(1, I32, physical), *length, (3, I32, repetition[-1]), name])
    schema = [root, *levels, leaf]
    path = (STRING, [b"a"] * len(repetition))
    head = [
        (1, I32, physical),
        (2, LIST, (I32, [0])),
        (3, LIST, path),
        (4, I32, form["compression"]),
    ]
    sizes = [(5, I64, values), (6, I64, size), (7, I64, size), (9, I64, len(MAGIC))]
    column = pack_struct([*head, *sizes])
    chunk = pack_struct([(2, I64, len(MAGIC)), (3, STRUCT, column)])
    group = pack_struct([(1, LIST, (STRUCT, [chunk])), (2, I64, size), (3, I64, rows)])
    maker = [(6, STRING, b"parquet-cpp version 1.5.1")] if form["old"] else []
    head = [(1, I32, 2), (2, LIST, (STRUCT, schema)), (3, I64, rows), (4, LIST, (STRUCT, [group]))]
    return pack_struct([*head, *maker])


def _take_rows(arrow_arrays: list[Any], options: Mapping[str, Any]) -> Decoded:
    """Take the rows from Arrow arrays of numbers, strings, or structs of nothing but the column."""
    pa = load_pyarrow()
    shape = options["shape"]
    columns: list[Any] = []
    for array in arrow_arrays:
        while pa.types.is_struct(array.type):
            (array,) = array.flatten()
        if array.null_count and (options["nulls"] == "error" or shape is not None):
            row = sum(len(done) for done in columns) + int(np.argmax(np.asarray(array.is_null())))
            raise NullRow(row, f"a value of column {options['column']!r} is null: fill it")
        columns.append(array)
    if shape is None:
        return _pack_strings(columns)
    dtype = np.dtype(options["dtype"])
    arrays = [_take_numbers(column, dtype, tuple(shape)) for column in columns]
    return (
        arrays[0] if len(arrays) == 1 else np.concatenate([np.empty((0, *shape), dtype), *arrays])
    )


def _take_lists(arrow_arrays: list[Any], options: Mapping[str, Any]) -> Packed:
    """Take rows of lists from Arrow arrays of lists, and structs of nothing but the column."""
    dtype, width = np.dtype(options["dtype"]), OFFSET_BYTES
    shape = tuple(options["element"])
    element_bytes = dtype.itemsize * math.prod(shape)
    packed: list[npt.NDArray[np.uint8]] = []
    bounds = [np.zeros(1, np.int64)]
    before = 0
    for array in filter(len, arrow_arrays):
        offsets, missing, leaf = _take_levels(array, options, before)
        before += len(array)
        if _is_text(leaf):
            texts = _pack_strings([leaf])
            offsets.append(np.append(texts.start, texts.end[-1:] if len(texts) else 0))
            values = np.frombuffer(texts.values, np.uint8)
        else:
            numbers = np.ascontiguousarray(_take_numbers(leaf, dtype, shape))
            values = numbers.reshape(-1).view(np.uint8)
        if len(offsets) > 1:
            data, edges = pack_rows(offsets, [width] * len(offsets), values, element_bytes, missing)
        else:
            (ends,) = offsets
            data = values[int(ends[0]) * element_bytes : int(ends[-1]) * element_bytes]
            edges = (ends - ends[0]) * element_bytes
        packed.append(data)
        bounds.append(edges[1:] + bounds[-1][-1])
    ends = np.concatenate(bounds)
    whole = packed[0] if len(packed) == 1 else np.concatenate([np.empty(0, np.uint8), *packed])
    return Packed(whole.data, ends[:-1], ends[1:])


def _take_levels(
    array: Any, options: Mapping[str, Any], before: int
) -> tuple[list[npt.NDArray[np.int64]], npt.NDArray[np.bool_], Any]:
    """Return the offsets of each level of lists, which rows are null, and the innermost values.

    before:  rows of the chunk before these, for messages.
    """
    pa = load_pyarrow()
    missing = np.zeros(len(array), np.bool_)
    offsets: list[npt.NDArray[np.int64]] = []
    while pa.types.is_struct(array.type) or pa.types.is_list(array.type):
        if pa.types.is_struct(array.type):
            (array,) = array.flatten()
            continue
        _refuse_null(array, options, offsets, before)
        if array.null_count and not offsets:
            missing = np.asarray(array.is_null())
        offsets.append(np.asarray(array.offsets).astype(np.int64))
        array = array.values
    _refuse_null(array, options, offsets, before, can_be_empty=_is_text(array))
    return offsets, missing, array


def _is_text(array: Any) -> bool:
    pa = load_pyarrow()
    return bool(pa.types.is_binary(array.type) or pa.types.is_string(array.type))


def _refuse_null(
    array: Any,
    options: Mapping[str, Any],
    offsets: Sequence[npt.NDArray[np.int64]],
    before: int,
    can_be_empty: bool = True,
) -> None:
    if array.null_count and (options["nulls"] == "error" or not can_be_empty):
        remedy = "fill it, or make such empty with nulls='empty'" if can_be_empty else "fill it"
        row = int(np.argmax(np.asarray(array.is_null())))
        for level in reversed(offsets):
            row = int(np.searchsorted(level, row, side="right")) - 1
        where = "inside of a list " if len(offsets) else ""
        text = f"a value {where}of column {options['column']!r} is null: {remedy}"
        raise NullRow(before + row, text)


def _take_numbers(array: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    pa = load_pyarrow()
    if pa.types.is_fixed_size_binary(array.type):
        width = array.type.byte_width
        raw = np.frombuffer(array.buffers()[-1], np.uint8, len(array) * width, array.offset * width)
        return raw.view(dtype).reshape(len(array), *shape)
    if pa.types.is_temporal(array.type):  # of INT96
        array = array.view(pa.int64())
    values = np.asarray(array.to_numpy(zero_copy_only=False))
    if values.dtype == dtype:
        return values
    if values.dtype.kind != "i" or dtype.kind not in "iu" or dtype.itemsize > values.itemsize:
        raise ValueError(f"the values are {values.dtype}, but {dtype} is expected")
    return values.astype(dtype)


def _pack_strings(arrays: list[Any]) -> Packed:
    """Pack byte strings into one buffer; pyarrow makes several arrays of 2 GiB and more."""
    data: list[Any] = [memoryview(b"")]
    starts, ends = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    total = 0
    for array in filter(len, arrays):
        _, offsets, values = array.buffers()
        at = np.frombuffer(offsets, "<i4", len(array) + 1, array.offset * 4).astype(np.int64)
        end = at[1:].copy()
        if array.null_count:
            gone = np.asarray(array.is_null())
            end[gone] = at[:-1][gone]
        starts.append(at[:-1] + total)
        ends.append(end + total)
        if values is not None:
            data.append(memoryview(values))
            total += len(values)
        if total > limits.decoded_chunk_bytes_max:
            raise ValueError(f"the values claim {total:,} bytes")
    whole = data[-1] if len(data) <= 2 else memoryview(b"".join(data))
    return Packed(whole, np.concatenate(starts), np.concatenate(ends))
