"""Arrays in numpy's own file format; the first axis counts the samples.

One file, or several (a pattern, a list) of one dtype and row shape. A folder of such files is a
tree, where each file is a sample.

The header is parsed here rather than by numpy, whose reader needs an open file. The format is
described in `numpy.lib.format`: magic, version, length of the header, a Python literal, the data.
"""

from __future__ import annotations

import ast
import math
from typing import Any, NamedTuple

import numpy as np

from ... import limits
from ...engine import Progress, Store, StoreFile
from ...errors import FormatError
from ..fields import Field
from ..layout import Fixed
from ..table import Index
from .shards import Location, list_files, number_first

MAGIC = b"\x93NUMPY"

# Errors that evaluating a hostile literal as a header may raise.
_MALFORMED = (
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)


class NpyHeader(NamedTuple):
    """Header of an array. `data_offset` is the byte at which the first sample starts."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    data_offset: int


def build(store: Store, place: Location, progress: Progress | None = None) -> Index:
    """The index of the rows of one array, or of several of one row shape, file after file."""
    files, sources = list_files(store, place, progress)
    headers = store.parse(files, lambda _, source: read_header(source, source.path), progress)
    part = make_field(files.path(0), headers[0])
    assert part.nbytes is not None
    for file, header in enumerate(headers):
        other = make_field(files.path(file), header)
        if other != part:
            raise FormatError(
                f"{files.path(file)} holds rows of {other.dtype} and shape {other.shape}, but "
                f"{files.path(0)} of {part.dtype} and {part.shape}: open them separately"
            )
        check_room(files.path(file), header, part.nbytes, int(files.size[file]))
    first = number_first([header.shape[0] for header in headers])
    if not first[-1]:
        raise FormatError(
            f"{files.path(0)} holds no samples: its shape is {headers[0].shape} of {part.dtype}"
        )
    base = np.array([header.data_offset for header in headers], np.int64)
    return Index(
        format="npy",
        files=files,
        fields=(part,),
        layouts=(Fixed(first, base, part.nbytes),),
        sources=sources,
    )


def read_header(source: StoreFile, what: str, offset: int = 0) -> NpyHeader:
    """Read the header of an array that starts at `offset`; `what` names it in messages."""
    head = source.read(offset, _GUESS_BYTES)
    more = 12 + limits.header_bytes_max
    if len(head) == _GUESS_BYTES and _find_data(head) > _GUESS_BYTES:
        head = source.read(offset, min(_find_data(head), more))
    return parse_header(what, head)


def check_room(what: str, header: NpyHeader, row_bytes: int, held_bytes: int) -> None:
    """Check that all rows that the header announces exist (FormatError)."""
    announced, left = header.shape[0] * row_bytes, held_bytes - header.data_offset
    if announced > left:
        raise FormatError(
            f"{what}: the header says {header.shape[0]:,} samples of {row_bytes:,} bytes, but "
            f"{max(0, left):,} bytes follow it: the file is truncated, save it again"
        )


_GUESS_BYTES = 4096
"""Bytes read first: headers are shorter than this, except those of structured types."""


def _find_data(head: bytes) -> int:
    """Compute where the data starts from the first bytes."""
    start = 10 if head[6] == 1 else 12
    return start + int.from_bytes(head[8:start], "little")


def parse_header(path: str, head: bytes) -> NpyHeader:
    """Parse the header, or FormatError. `head` begins at the magic and holds the whole header."""
    if not head.startswith(MAGIC) or len(head) < 10:
        raise FormatError(
            f"{path} is not an .npy file: it starts with {head[:8]!r}: leave format= out"
        )
    major, minor = head[6:8]
    if major not in (1, 2, 3) or minor != 0:
        raise FormatError(
            f"{path}: .npy version {major}.{minor}, but penstock reads 1.0, 2.0, 3.0: save it again"
        )
    start = 10 if major == 1 else 12
    length = int.from_bytes(head[8:start], "little")
    if length > limits.header_bytes_max or len(head) < start + length:
        raise FormatError(
            f"{path}: the header of {length:,} bytes is truncated, or longer than any: save it "
            f"again"
        )
    text = head[start : start + length]
    try:
        literal = ast.literal_eval(text.decode("utf-8" if major == 3 else "latin1"))
        dtype = np.lib.format.descr_to_dtype(literal["descr"])
        fortran, shape = literal["fortran_order"], literal["shape"]
        if len(literal) != 3:
            raise KeyError(literal.keys())
    except _MALFORMED:
        raise _malformed_error(path, text) from None
    if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
        raise _malformed_error(path, text)
    if fortran is not False:
        if fortran is not True:
            raise _malformed_error(path, text)
        if len(shape) > 1:
            raise FormatError(
                f"{path}: Fortran order, in which a sample's bytes are scattered over the file: "
                f"save numpy.ascontiguousarray(array)"
            )
    return NpyHeader(dtype, shape, start + length)


def _malformed_error(path: str, text: bytes) -> FormatError:
    return FormatError(f"{path}: the .npy header is damaged ({text[:60]!r}): save the array again")


def make_field(path: str, header: NpyHeader, name: str = "data") -> Field:
    """Make the field of an array's rows, or FormatError; the array may have no rows."""
    dtype, shape = header.dtype, header.shape
    if dtype.hasobject:
        raise FormatError(
            f"{path} holds pickled Python objects, which have no fixed place and can run code when "
            f"read: save an array of numbers"
        )
    if dtype.names is not None or dtype.subdtype is not None:
        raise FormatError(
            f"{path} holds the structured type {dtype}: save one array for each field, or open the "
            f"file as records (format='records', record_bytes={dtype.itemsize}, "
            f"header_bytes={header.data_offset})"
        )
    if not shape:
        raise FormatError(f"{path} holds a single value: an array of samples has at least one axis")
    part = Field(name, dtype, shape[1:])
    if not part.nbytes:
        raise FormatError(f"{path} holds no samples: its shape is {shape} of {dtype}")
    if math.prod(shape) >= limits.order_count_max:
        raise FormatError(
            f"{path}: the shape {shape} is larger than any file: save the array again"
        )
    return part
