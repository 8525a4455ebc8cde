"""Folders of shards that an index.json lists, as MDS and LitData write them.

A shard begins with a table of where its samples begin. A sample has the sizes of its variable
columns first, then all values. Only unknown values are read: nothing at all if one column varies,
the sizes if several do, and the label if there is one.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ... import limits
from ...engine.store import Store, StoreFile
from ...errors import FormatError
from ...extent import Files, Int, joined, unseen
from ..layout import Fixed, RowTable
from .shards import check_below, check_inside, lay_out_extents, number_first

NAME = "index.json"
_HEAD_BYTES = 4096
_BYTES_MAX = 1 << 30
_LOOKED_AT = 8
_SLAB_BYTES = 8 << 20
"""Maximum number of bytes of one read."""
_SMALL_BYTES = 64 << 10
"""Samples smaller than this on average are read whole: cheaper than many small reads."""
_SIZE_BYTES = 4

Bytes = npt.NDArray[np.uint8]


# -- the list --------------------------------------------------------------------------------------


def is_manifest(store: Store, *words: bytes) -> bool:
    """True if the root has an index.json that holds these words near its beginning."""
    if store.probe(unseen(store.root, [NAME]))[1].any():
        return False
    head = store.read(NAME, 0, _HEAD_BYTES)
    return all(word in head for word in words)


def has_shards(store: Store, shard: re.Pattern[str]) -> bool:
    """True if some files below the root have names of shards."""
    return any(shard.fullmatch(os.path.basename(name)) for name in store.some(_LOOKED_AT))


@dataclass(frozen=True)
class Manifest:
    """Content of an index.json."""

    store: Store
    path: str
    files: Files
    value: Mapping[str, Any]

    @classmethod
    def read(cls, store: Store, what: str, shard: re.Pattern[str]) -> Manifest:
        """Read the index.json of the store's root; FormatError if there is none."""
        files, errors = store.probe(unseen(store.root, [NAME]))
        path = files.path(0)
        if errors[0]:
            lists = store.match(f"*/{NAME}") if has_shards(store, shard) else []
            splits = ", ".join(os.path.dirname(name) for name in lists[:_LOOKED_AT])
            place = f"one of its splits ({splits})" if splits else "the folder that has it"
            raise FormatError(f"{store.root} has no {NAME}, which {what} come with: open {place}")
        if int(files.size[0]) > _BYTES_MAX:
            raise FormatError(f"{path} has {files.size[0]:,} bytes, more than any list of files")
        try:
            value = json.loads(store.read(NAME, 0, int(files.size[0])))
        except (ValueError, RecursionError) as error:
            raise FormatError(f"{path} is no JSON ({error}): fetch it again") from None
        return cls(store, path, files, value)

    def flaw(self, message: str) -> FormatError:
        """Make the error for a flaw in the file."""
        return FormatError(f"{self.path}: {message}")

    @contextlib.contextmanager
    def parsing(self) -> Iterator[None]:
        """Turn the errors of entries that are missing, or of other types, into FormatError."""
        try:
            yield
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, FormatError):
                raise
            raise self.flaw(f"an entry is malformed ({error!r}): fetch it again") from None

    def check_count(self, count: Any) -> int:
        """Return a number that is not negative."""
        if type(count) is not int or not 0 <= count < limits.order_count_max:
            raise self.flaw(f"{count!r} is not a number from 0 on")
        return count

    def check_names(self, names: Sequence[str]) -> list[str]:
        """Return names of files below the root; no file twice, and no link out of the root."""
        checked = [check_below(f"{self.path}: ", name) for name in names]
        if len(set(checked)) < len(checked):
            twice = next(name for name in checked if checked.count(name) > 1)
            raise self.flaw(f"it names {twice!r} twice")
        check_inside(self.store, f"{self.path}: ", checked)
        return checked

    def sources(self, files: Files) -> Files:
        """Sources that must stay unchanged: the list itself, and the files."""
        return joined(self.files, files)


# -- the rows of a shard ---------------------------------------------------------------------------


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
    for sample in np.flatnonzero(np.diff(edges) < 0)[:1].tolist():
        large = " (shards above 4 GiB cannot be written right)" * (source.size >= 1 << 32)
        raise source.flaw(4 * (sample + 2), f"sample {sample:,} ends before it begins{large}")
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
    length = np.repeat(np.array([[size or 0] for size in sizes], np.int64), count, axis=1)
    varies = [column for column, size in enumerate(sizes) if size is None]
    head_bytes = _SIZE_BYTES * len(varies)
    rest = np.diff(edges) - head_bytes - length.sum(axis=0)  # bytes of the columns that vary
    wrong = rest < 0 if varies else rest != 0
    _refuse(source, edges, wrong, "it is not as long as its columns")
    if len(varies) == 1:
        length[varies] = rest
        for sample in {0, count - 1} if count else ():
            head = _read_exactly(source, int(edges[sample]), _SIZE_BYTES).view("<u4")
            wrong = np.arange(count) == (sample if head[0] != rest[sample] else -1)
            _refuse(source, edges, wrong, "the size of its column does not add up to its own")
    offset = np.empty_like(length)
    values = None if wanted is None else np.empty((count, width), np.uint8)
    for first, last in _divide_slabs(edges) if len(varies) > 1 or wanted is not None else ():
        slab, start = slice(first, last), edges[first:last]
        fetch = _make_fetch(source, edges[first : last + 1])
        if len(varies) > 1:
            heads = fetch(start, head_bytes).view("<u4").astype(np.int64)
            wrong = heads.sum(axis=1) != rest[slab]
            _refuse(source, start, wrong, "the sizes of its columns do not add up to its own")
            length[varies, slab] = heads.T
        if wanted is not None and values is not None:
            wrong = length[wanted, slab] != width
            _refuse(source, start, wrong, f"its label does not have {width} bytes")
            values[slab] = fetch(start + head_bytes + length[:wanted, slab].sum(axis=0), width)
    offset[:] = edges[:-1] + head_bytes
    offset[1:] += np.cumsum(length[:-1], axis=0)
    return ShardRows(offset, length, values)


def make_layouts(
    shard_rows: Sequence[ShardRows], sizes: Sequence[int | None], chosen: Sequence[int]
) -> list[Fixed | RowTable]:
    """Make the layouts of the chosen columns: arithmetic if all columns are of fixed size."""
    first = number_first([rows.offset.shape[1] for rows in shard_rows])
    stride = sum(size or 0 for size in sizes)
    layouts: list[Fixed | RowTable] = []
    for column in chosen:
        offsets = [rows.offset[column] for rows in shard_rows]
        size = sizes[column]
        if None not in sizes and size and all((np.diff(o) == stride).all() for o in offsets):
            base = np.array([int(o[0]) if len(o) else 0 for o in offsets], np.int64)
            layouts.append(Fixed(first, base, size, stride))
        else:
            layouts.append(lay_out_extents(offsets, [rows.length[column] for rows in shard_rows]))
    return layouts


def join_values(shard_rows: Sequence[ShardRows], dtype: Any) -> npt.NDArray[Any]:
    """Join the values that were read of all files, as numbers."""
    values = [np.ascontiguousarray(rows.values).view(dtype).reshape(-1) for rows in shard_rows]
    return np.concatenate(values)


def _refuse(source: StoreFile, begins: Int, wrong: npt.NDArray[np.bool_], why: str) -> None:
    for sample in np.flatnonzero(wrong)[:1]:
        raise source.flaw(int(begins[sample]), f"the sample here is damaged: {why}")


def _divide_slabs(edges: Int) -> Iterator[tuple[int, int]]:
    """Divide samples into groups of at most _SLAB_BYTES, or of one."""
    first, count = 0, len(edges) - 1
    while first < count:
        last = int(np.searchsorted(edges, edges[first] + _SLAB_BYTES, side="right")) - 1
        last = min(max(last, first + 1), count)
        yield first, last
        first = last


def _make_fetch(source: StoreFile, edges: Int) -> Callable[[Int, int], Bytes]:
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
