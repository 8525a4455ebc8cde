"""Places of samples as they are stored: by arithmetic, in one extent each, or in several."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import limits
from ..extent import Extents, FileIds, Files, Int
from .windows import Columns, Description


@functools.lru_cache(maxsize=8)
def _make_block(value: int, dtype: str) -> npt.NDArray[Any]:
    block = np.full(limits.window_samples_max, value, dtype)
    block.flags.writeable = False
    return block


def _repeat_value(value: int, dtype: str, count: int) -> npt.NDArray[Any]:
    """Repeat one value: a read-only view, because fresh pages cost more than all arithmetic."""
    if count > limits.window_samples_max:
        return np.full(count, value, dtype)
    return _make_block(value, dtype)[:count]


@dataclass(frozen=True, slots=True, eq=False)
class Fixed:
    """Records of one size, at equal distances in each file.

    first:  int64 (files + 1,), number of each file's first sample; the last is the count.
    base:   int64 (files,), byte at which each file's first record starts.
    stride_bytes:  from the start of a record to the next; by default `record_bytes`, so
            that they are back to back; less if neighbours share bytes.
    even:   samples of each file if all have the same number, except a shorter last one; else 0.
    """

    first: Int
    base: Int
    record_bytes: int
    stride_bytes: int = 0
    even: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        if not self.stride_bytes:
            object.__setattr__(self, "stride_bytes", self.record_bytes)
        counts = np.diff(self.first)
        if len(counts) and (counts[:-1] == counts[0]).all() and counts[-1] <= counts[0]:
            object.__setattr__(self, "even", int(counts[0]))

    @property
    def row_bytes(self) -> int:
        return self.record_bytes

    @property
    def count(self) -> int:
        return int(self.first[-1])

    @property
    def total_bytes(self) -> int:
        return self.count * self.record_bytes

    def extents(self, samples: Int) -> Extents:
        lengths = self.lengths(samples)
        if len(self.base) == 1:
            offset = samples * np.int64(self.stride_bytes)
            if self.base[0]:
                offset += self.base[0]
            return Extents(_repeat_value(0, "u4", len(samples)), offset, lengths)
        file = self.file_of(samples)
        offset = samples - self.first.take(file)
        offset *= self.stride_bytes
        offset += self.base.take(file)
        return Extents(file.astype(np.uint32), offset, lengths)

    def lengths(self, samples: Int) -> Int:
        return _repeat_value(self.record_bytes, "i8", len(samples))

    def file_of(self, samples: Int) -> npt.NDArray[np.intp]:
        if self.even:  # shards are mostly of one size, and dividing is faster than searching
            return samples // self.even
        return np.searchsorted(self.first, samples, side="right") - 1

    def pieces(self, samples: Int) -> tuple[Extents, Int | None]:
        return self.extents(samples), None

    def described(self) -> Description:
        return {"record_bytes": self.record_bytes, "stride_bytes": self.stride_bytes}

    def sections(self, prefix: str, _: Files) -> Columns:
        return {f"{prefix}.first": self.first, f"{prefix}.base": self.base}

    def flaw(self, files: Files) -> str | None:
        if len(self.first) != len(files) + 1 or len(self.base) != len(files) or self.first[0] != 0:
            return "the files' first samples do not match the files"
        counts = np.diff(self.first)
        if self.record_bytes <= 0 or self.stride_bytes <= 0:
            return "records have no size"
        if (counts < 0).any() or (self.base < 0).any():
            return "the files' first samples are not in order"
        # In a file of room r, records start at 0, stride, ... up to r - record_bytes.
        records_max = (files.size - self.base - self.record_bytes) // self.stride_bytes + 1
        if (counts > np.maximum(records_max, 0)).any():
            return "records lie beyond the end of their file"
        return None


@dataclass(frozen=True, slots=True, eq=False)
class RowTable:
    """Table with one row a sample. `file` None: the sample's own number; `offset` None: 0.

    row_bytes:  the length of all samples, if it is one and above 0.
    only_file:  the file of all samples, if it is one.
    """

    file: FileIds | None
    offset: Int | None
    length: Int
    row_bytes: int | None = field(init=False, default=None)
    only_file: int | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        first = int(self.length[0]) if len(self.length) else 0
        if first > 0 and _has_one_value(self.length):
            object.__setattr__(self, "row_bytes", first)
        if self.file is not None and len(self.file) and _has_one_value(self.file):
            object.__setattr__(self, "only_file", int(self.file[0]))

    @property
    def count(self) -> int:
        return len(self.length)

    @property
    def total_bytes(self) -> int:
        return int(self.length.sum())

    def extents(self, samples: Int) -> Extents:
        if self.file is None:
            file = samples.astype(np.uint32)
        elif self.only_file is not None:
            file = _repeat_value(self.only_file, "u4", len(samples))
        else:
            file = self.file.take(samples)
        if self.offset is None:
            offset = _repeat_value(0, "i8", len(samples))
        else:
            offset = self.offset.take(samples)
        return Extents(file, offset, self.lengths(samples))

    def lengths(self, samples: Int) -> Int:
        if self.row_bytes is not None:
            return _repeat_value(self.row_bytes, "i8", len(samples))
        return self.length.take(samples)

    def pieces(self, samples: Int) -> tuple[Extents, Int | None]:
        return self.extents(samples), None

    def described(self) -> Description:
        return {"record_bytes": None}

    def sections(self, prefix: str, files: Files) -> Columns:
        columns: Columns = {}
        if self.file is not None:
            columns[f"{prefix}.file"] = self.file if self.only_file is None else self.file[:1]
        if self.offset is not None:
            columns[f"{prefix}.offset"] = self.offset
        if self.length is not files.size:
            columns[f"{prefix}.length"] = self.length
        return columns

    def flaw(self, files: Files) -> str | None:
        count = len(self.length)
        if self.file is None and count != len(files):
            return "there are not as many files as samples"
        if any(column is not None and len(column) != count for column in (self.file, self.offset)):
            return "columns differ in length"
        return _find_outside(self.file, self.offset, self.length, files)


PIECES = {"first": np.int64, "file": np.uint32, "offset": np.int64, "length": np.int64}


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Samples of several extents, laid end to end.

    first:  int64 (samples + 1,), sample i has the extents first[i]:first[i+1]; an empty one has
            none.
    file, offset, length:  of each extent.
    """

    first: Int
    file: FileIds
    offset: Int
    length: Int
    ends: Int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ends", np.cumsum(np.append(0, self.length), dtype=np.int64))

    @property
    def row_bytes(self) -> int | None:
        if self._first_flaw():
            return None  # a damaged index, which is not used
        lengths = self.lengths(np.arange(self.count))
        first = int(lengths[0]) if len(lengths) else 0
        return first if first and bool((lengths == first).all()) else None

    @property
    def count(self) -> int:
        return len(self.first) - 1

    @property
    def total_bytes(self) -> int:
        return int(self.ends[-1])

    def pieces(self, samples: Int) -> tuple[Extents, Int | None]:
        start = self.first.take(samples)
        counts = self.first.take(samples + 1) - start
        ends = np.cumsum(counts)
        at = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(start - ends + counts, counts)
        extents = Extents(self.file.take(at), self.offset.take(at), self.length.take(at))
        return extents, counts

    def lengths(self, samples: Int) -> Int:
        ends = self.ends
        return ends.take(self.first.take(samples + 1)) - ends.take(self.first.take(samples))

    def described(self) -> Description:
        return {"record_bytes": None, "pieces": True}

    def sections(self, prefix: str, _: Files) -> Columns:
        return {f"{prefix}.{name}": getattr(self, name) for name in PIECES}

    def _first_flaw(self) -> str | None:
        if not len(self.first) or self.first[0] != 0 or self.first[-1] != len(self.length):
            return "the samples' first pieces do not match the pieces"
        if (np.diff(self.first) < 0).any():
            return "the samples' first pieces are not in order"
        return None

    def flaw(self, files: Files) -> str | None:
        flaw = self._first_flaw()
        if flaw is not None:
            return flaw
        if not len(self.file) == len(self.offset) == len(self.length):
            return "columns differ in length"
        return _find_outside(self.file, self.offset, self.length, files)


def _find_outside(
    file: FileIds | None, offset: Int | None, length: Int, files: Files
) -> str | None:
    """Find extents outside their files: a message, or None."""
    if file is not None and len(file) and int(file.max()) >= len(files):
        return "a sample lies in a file that does not exist"
    size = files.size if file is None else files.size[file]
    start = np.zeros(1, np.int64) if offset is None else offset
    if (start < 0).any() or (length < 0).any() or (start > size - length).any():
        return "a sample lies beyond the end of its file"
    return None


def _has_one_value(column: npt.NDArray[Any]) -> bool:
    """True if all values of a column, of one at least, are equal. Columns of many samples may be
    mapped from a file: of those that differ only the start is read."""
    if column.strides == (0,) or column[0] != column[-1]:
        return bool(column[0] == column[-1])
    starts = range(0, len(column), 1 << 16)
    return all(bool((column[at : at + (1 << 16)] == column[0]).all()) for at in starts)
