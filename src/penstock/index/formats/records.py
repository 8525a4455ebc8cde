"""Binary records of one size, back to back after an optional header, in one file or several.

Such a file does not describe itself, so the caller gives the geometry: `record_bytes`, or `dtype`
and `shape` of one record. One check is possible: the records have to fill each file exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...arguments import check_whole
from ...errors import FormatError, UsageError
from ..fields import Field
from ..layout import Fixed
from ..table import Index
from .shards import Scan, number_first

_REACH = 100_000
"""Maximum distance from the given size at which a size that divides is searched."""


def normalize_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in canonical form: a dtype's name, a shape's list, and the record size."""
    part = _make_field(options.get("record_bytes"), options.get("dtype"), options.get("shape"))
    header_bytes = check_whole("header_bytes", options.get("header_bytes", 0), 0)
    normalized: dict[str, Any] = {"record_bytes": part.nbytes, "header_bytes": header_bytes}
    if "dtype" in options:
        normalized |= {"dtype": part.dtype.str, "shape": list(part.shape or ())}
    if "extensions" in options:
        normalized["extensions"] = list(options["extensions"])
    return normalized


def build(
    scan: Scan,
    record_bytes: int,
    header_bytes: int,
    dtype: str | None = None,
    shape: Sequence[int] | None = None,
    extensions: Sequence[str] = (),
) -> Index:
    """The index of all records, file after file in ascending order of path bytes."""
    part = _make_field(record_bytes, dtype, shape)
    files, sources = scan.list_files(extensions)
    payload = files.size - header_bytes
    for file in np.flatnonzero((payload < 0) | (payload % record_bytes != 0))[:1].tolist():
        raise _misfit_error(files.path(file), int(files.size[file]), record_bytes, header_bytes)
    first = number_first(payload // record_bytes)
    if not first[-1]:
        raise FormatError(f"{files.path(0)} holds no records: it has no bytes after the header")
    base = np.full(len(files), header_bytes, np.int64)
    return Index("records", files, (part,), (Fixed(first, base, record_bytes),), sources)


def _make_field(record_bytes: int | None, dtype: Any, shape: Sequence[int] | None) -> Field:
    """Make the field that the options describe, or UsageError."""
    if dtype is None:
        if shape is not None:
            raise UsageError(f"shape is {shape!r} without a dtype: give dtype= as well")
        if record_bytes is None:
            raise UsageError("records need a size: give record_bytes=, or dtype= and shape=")
        return Field("data", np.dtype(np.uint8), (check_whole("record_bytes", record_bytes, 1),))
    try:
        kind = np.dtype(dtype)
    except (TypeError, ValueError):
        raise UsageError(f"dtype is {dtype!r}: numpy knows no such type") from None
    if kind.hasobject or kind.names is not None or kind.subdtype is not None or not kind.itemsize:
        raise UsageError(f"dtype is {kind}: use a number type, or record_bytes= for bytes")
    sizes = () if shape is None else tuple(shape) if isinstance(shape, Iterable) else (shape,)
    part = Field("data", kind, tuple(check_whole("shape", size, 1) for size in sizes))
    if record_bytes is not None and check_whole("record_bytes", record_bytes, 1) != part.nbytes:
        raise UsageError(f"record_bytes is {record_bytes}, not {part.nbytes}: leave it out")
    return part


def _misfit_error(path: str, size: int, record_bytes: int, header_bytes: int) -> FormatError:
    """Make the error for a file that records do not fill, with near sizes that would."""
    if size < header_bytes:
        return FormatError(
            f"{path} has {size:,} bytes, less than header_bytes={header_bytes:,}: check it"
        )
    payload = size - header_bytes
    rest = payload % record_bytes
    # The nearest divisors below and above, within a factor of two.
    smaller = range(record_bytes - 1, max(record_bytes // 2, record_bytes - _REACH, 1), -1)
    larger = range(record_bytes + 1, min(record_bytes * 2, record_bytes + _REACH, payload + 1))
    near = [next((n for n in sizes if payload % n == 0), 0) for sizes in (smaller, larger)]
    shown = " or ".join(f"{size:,}" for size in near if size)
    return FormatError(
        f"{path} has {payload:,} bytes of records, which {record_bytes:,} does not divide: "
        f"{rest:,} bytes are left over; "
        + (f"a record size that divides is {shown}; " if shown else "")
        + f"a header of {header_bytes + rest:,} bytes would fit (header_bytes=)"
    )
