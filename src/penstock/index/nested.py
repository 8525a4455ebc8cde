"""Rows of nested lists as byte strings: readers, caches and peers carry them like any other.

A list of texts, or of lists, has an offset for each element beside its values. The bytes of a row
are, end to end:

    two offsets of the outermost level: their difference n is the number of elements;
    for each level below: n + 1 offsets, whose differences are the lengths of its lists, and whose
        last minus first is the n of the next;
    the values of the innermost lists.

An empty or missing row has no bytes, and nothing follows a level whose n is 0. Offsets do not begin
at 0: they are as in the file, where a row is as many pieces, each read directly.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..engine.native import gather
from ..extent import Int

Bytes = npt.NDArray[np.uint8]


class NestedError(ValueError):
    """Error for a row whose bytes are no nested list."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row


def lay_out_rows(
    offsets: Sequence[Int],
    bases: Sequence[int],
    widths: Sequence[int],
    itemsize: int,
    missing: npt.NDArray[np.bool_] | None = None,
) -> tuple[Int, Int, Int]:
    """Lay out the pieces of rows: the first of each row and the end; place and length of each.

    offsets:  of each level, from the outside; ascending, and within the next level's.
    bases:    byte at which the offsets of each level start, and at which the values do.
    widths:   bytes of an offset of each level.
    missing:  rows that have no bytes.
    """
    rows = len(offsets[0]) - 1
    at = np.empty((rows, len(bases)), np.int64)
    length = np.empty_like(at)
    low, high = np.arange(rows), np.arange(1, rows + 1)
    filled = offsets[0][1:] > offsets[0][:-1]
    if missing is not None:
        filled &= ~missing
    for level, (ends, width) in enumerate(zip(offsets, widths, strict=True)):
        at[:, level] = bases[level] + low * width
        length[:, level] = np.where(filled, (high - low + 1) * width, 0)
        low, high = ends[low], ends[high]
        filled = filled & (high > low)
    at[:, -1] = bases[-1] + low * itemsize
    length[:, -1] = np.where(filled, (high - low) * itemsize, 0)
    kept = length > 0
    first = np.zeros(rows + 1, np.int64)
    np.cumsum(kept.sum(axis=1), out=first[1:])
    return first, at[kept], length[kept]


def pack_rows(
    offsets: Sequence[Int],
    widths: Sequence[int],
    values: Bytes,
    itemsize: int,
    missing: npt.NDArray[np.bool_] | None = None,
) -> tuple[Bytes, Int]:
    """Pack nested lists into the bytes of rows: these, and where each row begins and the end."""
    level_bytes = [
        ends.astype(f"<i{width}").view(np.uint8)
        for ends, width in zip(offsets, widths, strict=True)
    ]
    bases = np.cumsum([0, *map(len, level_bytes)]).tolist()
    first, at, length = lay_out_rows(offsets, bases, widths, itemsize, missing)
    ends = _sum_up(length)
    return _gather(np.concatenate([*level_bytes, values]), at, length), ends[first]


def unpack_rows(
    data: Bytes, bounds: Int, widths: Sequence[int], itemsize: int
) -> tuple[Bytes, list[Int]]:
    """Unpack the rows data[bounds[i]:bounds[i+1]]: the values, and the offsets of each level.

    Offsets count from 0. Raises NestedError for a row that is none; memory is bounded by the data.
    """
    at, end = bounds[:-1].copy(), bounds[1:]
    rows = np.flatnonzero(end > at)
    counts = np.ones(len(at), np.int64)
    offsets: list[Int] = []
    for level, width in enumerate(widths):
        room = (end[rows] - at[rows]) // width
        _refuse(rows, counts[rows] >= room, "its offsets are cut short")
        end_counts = counts[rows] + 1
        size = end_counts * width
        ends = _gather(data, at[rows], size).view(f"<i{width}").astype(np.int64)
        at[rows] += size
        last = np.cumsum(end_counts) - 1
        first = last - end_counts + 1
        inside = np.ones(len(ends), bool)
        inside[last] = False
        lengths = np.append(np.diff(ends), 0)
        wrong = (inside & (lengths < 0)) | (ends < 0)
        owner = np.repeat(rows, end_counts)
        _refuse(owner, wrong, "its offsets are not ascending")
        lengths = lengths[inside]
        counts[rows] = ends[last] - ends[first]
        if level == 0:
            _refuse(rows, counts[rows] == 0, "it has bytes and no elements")
            lengths = np.zeros(len(at), np.int64)
            lengths[rows] = counts[rows]
        offsets.append(_sum_up(lengths))
        rows = rows[counts[rows] > 0]
    wanted = np.zeros(len(at), np.int64)
    wanted[rows] = counts[rows]
    remaining_bytes = end - at
    _refuse(
        np.arange(len(at)),
        (remaining_bytes // itemsize != wanted) | (remaining_bytes % itemsize != 0),
        "its offsets do not lead to the end of its values",
    )
    return _gather(data, at, remaining_bytes), offsets


def _refuse(rows: Int, wrong: npt.NDArray[np.bool_], reason: str) -> None:
    if wrong.any():
        raise NestedError(int(rows[int(np.argmax(wrong))]), reason)


def _sum_up(lengths: Int) -> Int:
    ends = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    return ends


def _gather(data: Bytes, at: Int, lengths: Int) -> Bytes:
    """Copy ranges end to end."""
    ends = _sum_up(lengths)
    out = np.empty(int(ends[-1]), np.uint8)
    gather(np.ascontiguousarray(data), at, lengths, ends[:-1].copy(), out)
    return out
