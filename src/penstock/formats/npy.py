"""One array in numpy's own file format; its first axis counts the samples.

The header is parsed here rather than by numpy, whose reader wants an open file. The format is
described in `numpy.lib.format`: magic, version, length of the header, a Python literal, the data.
"""

from __future__ import annotations

import ast
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import limits
from ..errors import FormatError
from ..index import Field, Index
from ..layout import Fixed

if TYPE_CHECKING:
    from ..store import Store

MAGIC = b"\x93NUMPY"

# What evaluating a hostile literal, and taking it for a header, may raise.
_MALFORMED = (
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)


class Header(NamedTuple):
    """What a header says. `data_offset` is where the first sample starts."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    data_offset: int


def sniff(head: bytes, _: str) -> bool:
    """Whether a file is one."""
    return head.startswith(MAGIC)


def build(store: Store, name: str) -> Index:
    """The index of one array's rows."""
    files = store.stat([name])
    path = files.path(0)
    header = parse(path, store.read(name, 0, 12 + limits.header_bytes_max))
    part = _field(path, header)
    assert part.nbytes is not None
    count, size = header.shape[0], int(files.size[0])
    if count * part.nbytes > size - header.data_offset:
        raise FormatError(
            f"{path}: the header says {count:,} samples of {part.nbytes:,} bytes, and "
            f"{max(0, size - header.data_offset):,} bytes follow it: the file is truncated, "
            f"save it again"
        )
    first, base = np.array([0, count], np.int64), np.array([header.data_offset], np.int64)
    return Index(
        format="npy",
        files=files,
        fields=(part,),
        layouts=(Fixed(first, base, part.nbytes),),
        sources=files,
    )


def parse(path: str, head: bytes) -> Header:
    """The header, or FormatError. `head` holds the first bytes of the file, the whole header."""
    if not head.startswith(MAGIC) or len(head) < 10:
        raise FormatError(f"{path} is not an .npy file: it starts with {head[:8]!r}")
    major, minor = head[6:8]
    if major not in (1, 2, 3) or minor != 0:
        raise FormatError(
            f"{path}: .npy version {major}.{minor}, and penstock reads 1.0, 2.0, 3.0: save it again"
        )
    start = 10 if major == 1 else 12
    length = int.from_bytes(head[8:start], "little")
    if length > limits.header_bytes_max or len(head) < start + length:
        raise FormatError(
            f"{path}: the header of {length:,} bytes is cut off or longer than any: save it again"
        )
    text = head[start : start + length]
    try:
        literal = ast.literal_eval(text.decode("utf-8" if major == 3 else "latin1"))
        dtype = np.lib.format.descr_to_dtype(literal["descr"])
        fortran, shape = literal["fortran_order"], literal["shape"]
        if len(literal) != 3:
            raise KeyError(literal.keys())
    except _MALFORMED:
        raise _malformed(path, text) from None
    if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
        raise _malformed(path, text)
    if fortran is not False:
        if fortran is not True:
            raise _malformed(path, text)
        if len(shape) > 1:
            raise FormatError(
                f"{path}: Fortran order, in which a sample's bytes are scattered over the file: "
                f"save numpy.ascontiguousarray(array)"
            )
    return Header(dtype, shape, start + length)


def _malformed(path: str, text: bytes) -> FormatError:
    return FormatError(f"{path}: the .npy header is damaged ({text[:60]!r}): save the array again")


def _field(path: str, header: Header) -> Field:
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
    part = Field("data", dtype, shape[1:])
    if not shape[0] or not part.nbytes:
        raise FormatError(f"{path} holds no samples: its shape is {shape} of {dtype}")
    if math.prod(shape) >= limits.order_count_max:
        raise FormatError(
            f"{path}: the shape {shape} is larger than any file: save the array again"
        )
    return part
