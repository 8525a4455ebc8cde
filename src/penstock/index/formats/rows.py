"""Samples that are rows of columns: the sizes of the variable columns first, then all values.

Two containers write their samples so. Only unknown values are read: nothing at all if one column
varies, the sizes if several do, and the label if there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...engine.store import StoreFile
from ...extent import Files, Int
from ..layout import Fixed, RowTable
from .shards import number_first

_SLAB_BYTES = 8 << 20
"""Maximum number of bytes of one read."""

_SMALL_BYTES = 64 << 10
"""Samples smaller than this on average are read whole: cheaper than many small reads."""

_SIZE_BYTES = 4

Bytes = npt.NDArray[np.uint8]
Fetch = Callable[[Int, int], Bytes]


class ShardRows(NamedTuple):
    """Places of the values of the samples of one file.

    offset, length:  int64 (columns, samples).
    values:          uint8 (samples, width) of the column that was asked for, or None.
    """

    offset: npt.NDArray[np.int64]
    length: npt.NDArray[np.int64]
    values: Bytes | None


def read_table(source: StoreFile, samples: int) -> Int:
    """Read the table that a shard begins with: a count, and samples + 1 offsets as u32."""
    head_bytes = 4 * (samples + 2)
    if head_bytes > source.size:
        raise source.flaw(0, f"the table of {samples:,} samples is larger than the file")
    head = np.frombuffer(source.read(0, head_bytes), "<u4")
    if len(head) != samples + 2 or head[0] != samples:
        announced = int(head[0]) if len(head) else 0
        raise source.flaw(0, f"{announced:,} samples, and index.json says {samples:,}: fetch again")
    return head[1:].astype(np.int64)


def check_table(source: StoreFile, edges: Int) -> None:
    """Check that offsets ascend from behind the table to the end of the file (FormatError)."""
    head_bytes = 4 * (len(edges) + 1)
    back = np.flatnonzero(np.diff(edges) < 0)
    if len(back):
        raise source.flaw(
            int(4 * (back[0] + 2)),
            f"sample {int(back[0]):,} ends before it begins"
            + (" (shards above 4 GiB cannot be written right)" if source.size >= 1 << 32 else ""),
        )
    if edges[0] < head_bytes:
        raise source.flaw(4, f"samples begin at {edges[0]:,}, within the table before them")
    if edges[-1] != source.size:
        raise source.flaw(head_bytes - 4, f"samples end at {edges[-1]:,}, not where the file ends")


def parse_rows(
    source: StoreFile,
    edges: Int,
    sizes: Sequence[int | None],
    wanted: int | None = None,
    width: int = 0,
) -> ShardRows:
    """Find the values' places in one file; FormatError if sizes do not add up to a sample.

    edges:   where each sample begins, ascending, and where the last ends; within the file.
    sizes:   bytes of each column, None if they vary.
    wanted:  a column of `width` bytes that is read.
    """
    count = len(edges) - 1
    length = np.empty((len(sizes), count), np.int64)
    varies = [column for column, size in enumerate(sizes) if size is None]
    for column, size in enumerate(sizes):
        length[column] = size or 0
    head_bytes = _SIZE_BYTES * len(varies)
    left = np.diff(edges) - head_bytes - length.sum(axis=0)
    _refuse(source, edges, left < 0, "it is shorter than its columns of fixed size")
    if not varies:
        _refuse(source, edges, left > 0, "it is longer than its columns")
    if len(varies) == 1:
        length[varies[0]] = left
        _check_ends(source, edges, left)
    offset = np.empty_like(length)
    values = np.empty((count, width), np.uint8) if wanted is not None else None
    hops = len(varies) > 1 or wanted is not None
    for first, last in _divide_slabs(edges) if hops else [(0, count)]:
        part, start = slice(first, last), edges[first:last]
        fetch = _make_fetch(source, edges[first : last + 1]) if hops else None
        if len(varies) > 1:
            assert fetch is not None
            heads = fetch(start, head_bytes).view("<u4").astype(np.int64)
            _refuse(
                source,
                edges[first : last + 1],
                heads.sum(axis=1) != left[part],
                "the sizes of its columns do not add up to its own",
            )
            length[varies, part] = heads.T
        offset[:, part] = start + head_bytes
        offset[1:, part] += np.cumsum(length[:-1, part], axis=0)
        if wanted is not None:
            assert fetch is not None
            assert values is not None
            _refuse(
                source,
                edges[first : last + 1],
                length[wanted, part] != width,
                f"its label does not have {width} bytes",
            )
            values[part] = fetch(offset[wanted, part], width)
    return ShardRows(offset, length, values)


def make_layouts(
    files: Files,
    shard_rows: Sequence[ShardRows],
    sizes: Sequence[int | None],
    chosen: Sequence[int],
) -> list[Fixed | RowTable]:
    """Make the layouts of the chosen columns: arithmetic if all columns are of fixed size."""
    first = number_first([rows.offset.shape[1] for rows in shard_rows])
    file = np.repeat(np.arange(len(files), dtype=np.uint32), np.diff(first))
    stride = sum(size or 0 for size in sizes)
    layouts: list[Fixed | RowTable] = []
    for column in chosen:
        size = sizes[column]
        if None not in sizes and size and _is_even(shard_rows, column, stride):
            starts = [int(rows.offset[column, 0]) if rows.offset.size else 0 for rows in shard_rows]
            layouts.append(Fixed(first, np.array(starts, np.int64), size, stride))
            continue
        offset = np.concatenate([rows.offset[column] for rows in shard_rows])
        layouts.append(
            RowTable(file, offset, np.concatenate([rows.length[column] for rows in shard_rows]))
        )
    return layouts


def _is_even(shard_rows: Sequence[ShardRows], column: int, stride: int) -> bool:
    return all(bool((np.diff(rows.offset[column]) == stride).all()) for rows in shard_rows)


def _refuse(source: StoreFile, edges: Int, wrong: npt.NDArray[np.bool_], why: str) -> None:
    for sample in np.flatnonzero(wrong)[:1]:
        raise source.flaw(int(edges[sample]), f"the sample here is damaged: {why}")


def _check_ends(source: StoreFile, edges: Int, left: Int) -> None:
    """Compare the only varying column's size with the known one, in the first and last sample."""
    for sample in {0, len(left) - 1} if len(left) else ():
        head = _read_exactly(source, int(edges[sample]), _SIZE_BYTES).view("<u4")
        wrong = np.arange(len(left)) == (sample if int(head[0]) != left[sample] else -1)
        _refuse(source, edges, wrong, "the size of its column does not add up to its own")


def _divide_slabs(edges: Int) -> list[tuple[int, int]]:
    """Divide samples into groups of at most _SLAB_BYTES, or of one."""
    count = len(edges) - 1
    slabs = []
    first = 0
    while first < count:
        last = int(np.searchsorted(edges, edges[first] + _SLAB_BYTES, side="right")) - 1
        last = min(max(last, first + 1), count)
        slabs.append((first, last))
        first = last
    return slabs


def _make_fetch(source: StoreFile, edges: Int) -> Fetch:
    """Make a function that reads a few bytes at many offsets within a slab of samples."""
    start, end = int(edges[0]), int(edges[-1])
    if end - start > _SMALL_BYTES * (len(edges) - 1):
        return lambda offset, width: np.stack(
            [_read_exactly(source, at, width) for at in offset.tolist()]
        )
    slab = _read_exactly(source, start, end - start)
    return lambda offset, width: slab[(offset - start)[:, None] + np.arange(width)]


def _read_exactly(source: StoreFile, offset: int, length: int) -> Bytes:
    data = source.read(offset, length)
    if len(data) != length:
        raise source.flaw(offset, f"{length:,} bytes are announced, {len(data):,} are here")
    return np.frombuffer(data, np.uint8)
