"""Arrays in numpy's own file format; the first axis counts the samples.

One file, or several (a pattern, a list) of one dtype and row shape. A folder of such files is a
tree, where each file is a sample.

The header is parsed by `numpy.lib.format`; its documentation describes the format.
"""

from __future__ import annotations

import io
import math
from typing import Any, NamedTuple

import numpy as np

from ... import limits
from ...engine.store import StoreFile
from ...errors import FormatError
from ..fields import Field
from ..layout import Fixed
from ..table import Index
from .shards import Scan, number_first

MAGIC = b"\x93NUMPY"
_HEAD_BYTES = 12 + 10_000
"""Most bytes of a header that numpy evaluates; structured types, with longer ones, are refused."""


class NpyHeader(NamedTuple):
    """Header of an array. `data_offset` is the byte at which the first sample starts."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    data_offset: int


def build(scan: Scan) -> Index:
    """The index of the rows of one array, or of several of one row shape, file after file."""
    files, sources = scan.list_files()
    headers = scan.parse(files, lambda _, source: read_header(source, source.path))
    part = make_field(files.path(0), headers[0])
    assert part.nbytes is not None
    for file, header in enumerate(headers):
        other = make_field(files.path(file), header)
        if other != part:
            raise FormatError(f"{files.path(file)} is not of {part.dtype} {part.shape} as others")
        check_room(files.path(file), header, part.nbytes, int(files.size[file]))
    first = number_first([header.shape[0] for header in headers])
    if not first[-1]:
        raise FormatError(f"{files.path(0)} holds no samples: its shape is {headers[0].shape}")
    base = np.array([header.data_offset for header in headers], np.int64)
    return Index("npy", files, (part,), (Fixed(first, base, part.nbytes),), sources)


def check_room(what: str, header: NpyHeader, row_bytes: int, held_bytes: int) -> None:
    """Check that all rows that the header announces exist (FormatError)."""
    announced, left = header.shape[0] * row_bytes, held_bytes - header.data_offset
    if announced > left:
        raise FormatError(f"{what}: {left:,} bytes are not {announced:,}: it is truncated")


def read_header(source: StoreFile, what: str, offset: int = 0) -> NpyHeader:
    """Read the header of an array that starts at `offset`; FormatError that names `what`."""
    file = io.BytesIO(source.read(offset, _HEAD_BYTES))
    try:
        version = np.lib.format.read_magic(file)
        if version[0] not in (1, 2, 3):
            raise ValueError(f"version {version}")
        # Version 3 differs in the encoding of field names, which only structured types have.
        number = min(version[0], 2)
        read = getattr(np.lib.format, f"read_array_header_{number}_0")
        shape, is_fortran, dtype = read(file)
        if min(shape, default=0) < 0 or math.prod(shape) >= limits.order_count_max:
            raise ValueError(f"the shape {shape}")
    except Exception as error:  # whatever a damaged literal makes numpy, ast or tokenize raise
        reason = str(error).partition("\n")[0]
        raise FormatError(f"{what}: the .npy header is damaged ({reason:.80})") from None
    if is_fortran and len(shape) > 1:
        raise FormatError(f"{what}: Fortran order scatters samples: save np.ascontiguousarray")
    return NpyHeader(dtype, shape, file.tell())


def make_field(path: str, header: NpyHeader, name: str = "data") -> Field:
    """Make the field of an array's rows, or FormatError; the array may have no rows."""
    dtype, shape = header.dtype, header.shape
    if dtype.hasobject:
        raise FormatError(f"{path} holds pickled Python objects, which can run code: save numbers")
    if dtype.names is not None or dtype.subdtype is not None:
        raise FormatError(
            f"{path} holds a structured type: open it with format='records', "
            f"record_bytes={dtype.itemsize}, header_bytes={header.data_offset}"
        )
    if not shape:
        raise FormatError(f"{path} holds a single value: an array of samples has at least one axis")
    part = Field(name, dtype, shape[1:])
    if not part.nbytes:
        raise FormatError(f"{path} holds no samples: its shape is {shape} of {dtype}")
    return part
