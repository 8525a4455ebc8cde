"""Extents and requests: arrays of byte ranges in files, and of their destinations.

An extent is `(file, offset, length)`. Requests are extents with a destination, grouped into
runs; a run is read by one operation. All functions are pure and vectorised.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from . import limits

T = TypeVar("T")
Int = npt.NDArray[np.int64]
FileIds = npt.NDArray[np.uint32]


class Extents(NamedTuple):
    """Byte ranges. `file` uint32, `offset` and `length` int64, each of shape (n,)."""

    file: FileIds
    offset: Int
    length: Int


class Requests(NamedTuple):
    """Extents with destinations, in runs: n extents in m runs.

    file, offset, length: the extents, as in `Extents`.
    buffer:  uint32 (n,), number of the buffer given to `submit` that receives the bytes.
    target:  int64 (n,), byte offset in that buffer.
    runs:    int64 (m+1,), run j holds the extents runs[j]:runs[j+1]; within a run all extents are
             of one file, in ascending offset and without overlap.
    """

    file: FileIds
    offset: Int
    length: Int
    buffer: FileIds
    target: Int
    runs: Int


class Placed(NamedTuple):
    """Extents with destinations, not yet grouped into runs: n extents.

    part:    uint32 (n,), the destination's buffer; with `merge` also the sequence in which the
             extents are wanted (ascending).
    target:  int64 (n,), byte offset in that buffer.
    """

    file: FileIds
    offset: Int
    length: Int
    part: FileIds
    target: Int


def interleave(placed: Sequence[Placed]) -> Placed:
    """Interleave the extents of several fields of the same samples, sample by sample."""
    if len(placed) == 1:
        return placed[0]
    return Placed(*(np.stack(columns, axis=1).reshape(-1) for columns in zip(*placed, strict=True)))


def cut(bounds: Int) -> list[slice]:
    """Return the rows bounds[k]:bounds[k+1] of each part k."""
    edges = bounds.tolist()
    return list(map(slice, edges, edges[1:]))


def make_tuples(kind: type[T], rows: Iterable[tuple[Any, ...]]) -> list[T]:
    """Make a named tuple of each row, without the Python call that its class would be."""
    return list(map(tuple.__new__, itertools.repeat(kind), rows))  # type: ignore[arg-type]


def rotation_start(reader: int, readers: int, targets: int) -> int:
    """Return the target at which a reader starts, so that none queue.

    A reader goes on in order, and from the last target to the first. If all readers go through all
    targets in that way, one target at a time, it takes max(readers, targets) turns, the fewest. If
    all started at the first target, it would take readers + targets - 1.
    """
    return reader * targets // readers


def separate(placed: Placed, bounds: Int) -> list[Requests]:
    """Make one run of each extent, in the given order; part k is extents bounds[k]:bounds[k+1].

    Each part has one buffer of its own, so buffer numbers are 0.
    """
    counts = np.diff(bounds)
    longest = int(counts.max(initial=0))
    runs = np.arange(longest + 1, dtype=np.int64)
    zeros = np.zeros(longest, np.uint32)
    rows = cut(bounds)
    # Views of the columns, cut without a Python call for each part.
    columns = (
        map(placed.file.__getitem__, rows),
        map(placed.offset.__getitem__, rows),
        map(placed.length.__getitem__, rows),
        map(zeros.__getitem__, map(slice, counts.tolist())),
        map(placed.target.__getitem__, rows),
        map(runs.__getitem__, map(slice, (counts + 1).tolist())),
    )
    return make_tuples(Requests, zip(*columns, strict=True))


def merge(
    placed: Placed, parts: int, gap_bytes: int, turn: tuple[int, int] = (0, 1)
) -> list[Requests]:
    """Sort extents by file and offset and read near neighbours together.

    Neighbours in one file with at most `gap_bytes` between them share a run, up to
    limits.run_bytes_max and limits.run_extents_max. A run belongs to the earliest part that wants
    one of its extents, so part k is complete once the requests 0..k are. Returns one `Requests`
    for each of the `parts`, its runs in ascending file and offset.

    turn:  number of this reader, and of all readers. Runs go from `rotation_start` on, and the
           runs before it come last.
    """
    if len(placed.file) == 0:
        return separate(placed, np.zeros(parts + 1, np.int64))
    count = len(placed.file)
    order = _sort_by_storage(placed)
    starts = _find_run_starts(
        placed.file[order], placed.offset[order], placed.length[order], gap_bytes
    )
    first = rotation_start(*turn, len(starts))
    wanted = placed.part[order]
    if len(starts) == count:  # nothing to merge: runs are extents
        order = order[_sort_by_part(wanted, first)]
        edges = np.arange(count + 1, dtype=np.int64)
        per_part = np.bincount(wanted, minlength=parts)
    else:
        wanted = np.minimum.reduceat(wanted, starts)
        by_part = _sort_by_part(wanted, first)
        sizes = np.diff(starts, append=count)[by_part]
        edges = np.concatenate([[0], np.cumsum(sizes)])
        # Move whole runs: each extent by as much as its run.
        order = order[np.arange(count) + np.repeat(starts[by_part] - edges[:-1], sizes)]
        per_part = np.bincount(wanted, minlength=parts)
    file, offset, length, part, target = (
        placed.file[order],
        placed.offset[order],
        placed.length[order],
        placed.part[order],
        placed.target[order],
    )
    last_runs = np.concatenate([[0], np.cumsum(per_part)])
    rows = cut(edges[last_runs])
    pairs = itertools.pairwise(last_runs.tolist())
    columns = (
        map(file.__getitem__, rows),
        map(offset.__getitem__, rows),
        map(length.__getitem__, rows),
        map(part.__getitem__, rows),
        map(target.__getitem__, rows),
        [edges[first : last + 1] - edges[first] for first, last in pairs],
    )
    return make_tuples(Requests, zip(*columns, strict=True))


def _sort_by_part(wanted: FileIds, first: int) -> npt.NDArray[np.intp]:
    """Sort runs by part; within a part from run `first` on, and those before it at the end."""
    # numpy sorts 16-bit keys many times faster.
    small = wanted.astype(np.uint16) if int(wanted.max()) < 1 << 16 else wanted
    if first == 0:
        return np.argsort(small, kind="stable")
    return (np.argsort(np.roll(small, -first), kind="stable") + first) % len(small)


def _sort_by_storage(placed: Placed) -> npt.NDArray[np.intp]:
    """Sort by ascending file and offset.

    Both are one key if they fit into 63 bits, which sorts several times faster than two keys.
    """
    file, offset = placed.file, placed.offset
    files = int(file.max())
    if files == 0:
        return np.argsort(offset)
    offset_bits = int(offset.max()).bit_length()
    if files.bit_length() + offset_bits <= 63:
        return np.argsort((file.astype(np.int64) << offset_bits) | offset)
    return np.lexsort((offset, file))


def _find_run_starts(
    file: FileIds, offset: Int, length: Int, gap_bytes: int
) -> npt.NDArray[np.intp]:
    """Find the starts of runs among sorted extents."""
    end = offset + length
    # As unsigned numbers overlaps, which cannot share a read, are the largest gaps.
    split = (offset[1:] - end[:-1]).view(np.uint64) > gap_bytes
    if file[0] != file[-1]:
        split |= file[1:] != file[:-1]
    starts = np.concatenate([[0], np.flatnonzero(split) + 1])
    if len(starts) == len(file):
        return starts
    # Cut runs that are too long, at multiples of the limits from where each began.
    sizes = np.diff(starts, append=len(file))
    nth = np.arange(len(file)) - np.repeat(starts, sizes)
    origin = np.repeat(offset[starts], sizes)
    last = (end - origin - 1) // limits.run_bytes_max
    piece = np.maximum(nth // limits.run_extents_max, last)
    split |= piece[1:] != piece[:-1]
    # An extent across such a multiple is alone: what follows it ends as far as a whole limit later.
    split |= (last > (offset - origin) // limits.run_bytes_max)[:-1]
    return np.concatenate([[0], np.flatnonzero(split) + 1])


@dataclass(frozen=True, slots=True, eq=False)
class Names:
    """A list of names in one blob, so that a million of them cost no objects.

    text:  uint8, all names joined without separators. Bytes that are no UTF-8 are kept: they come
           out as `os.fsdecode` gives them, and `os.fsencode` gives them back.
    ends:  int64 (n,), name i is text[ends[i-1]:ends[i]].
    """

    text: npt.NDArray[np.uint8]
    ends: Int

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, i: int) -> str:
        start = int(self.ends[i - 1]) if i else 0
        return os.fsdecode(self.text[start : int(self.ends[i])].tobytes())

    @classmethod
    def of(cls, names: Sequence[str | bytes]) -> Names:
        """Make the blob of these names."""
        encoded = [os.fsencode(name) for name in names]
        ends = np.cumsum([len(name) for name in encoded], dtype=np.int64)
        return cls(np.frombuffer(b"".join(encoded), np.uint8), ends)


@dataclass(frozen=True, slots=True, eq=False)
class Files:
    """A table of files: relative paths in one blob, so that a million of them cost no objects.

    root:      folder or URL that the paths are relative to.
    names:     uint8, all paths joined without separators (file-system encoding).
    ends:      int64 (n,), path i is names[ends[i-1]:ends[i]].
    size:      int64 (n,), bytes when indexed.
    mtime_ns:  int64 (n,), modification time when indexed; of objects, a number made of their etag.
    mirrors:   tables of the same files at other places, with sizes and times of theirs; size -1
               where a file is not there.
    """

    root: str
    names: npt.NDArray[np.uint8]
    ends: Int
    size: Int
    mtime_ns: Int
    mirrors: tuple[Files, ...] = ()

    def __len__(self) -> int:
        return len(self.ends)

    def name(self, file: int) -> str:
        """Return the path of a file, relative to the root."""
        start = int(self.ends[file - 1]) if file else 0
        return os.fsdecode(self.names[start : int(self.ends[file])].tobytes())

    def path(self, file: int) -> str:
        """Return the path of a file, with the root."""
        return os.path.join(self.root, self.name(file))

    @classmethod
    def of(cls, root: str, names: Sequence[str], size: Int, mtime_ns: Int) -> Files:
        """Make the table of these relative paths."""
        encoded = [os.fsencode(name) for name in names]
        ends = np.cumsum([len(name) for name in encoded], dtype=np.int64)
        return cls(root, np.frombuffer(b"".join(encoded), np.uint8), ends, size, mtime_ns)


def unseen(root: str, names: Sequence[str]) -> Files:
    """Make a table of files whose sizes and times are not known yet."""
    unknown = np.full(len(names), -1, np.int64)
    return Files.of(root, names, unknown, unknown)


def slice_files(files: Files, first: int, last: int) -> Files:
    """Return the table of the files [first, last), without mirrors."""
    start = int(files.ends[first - 1]) if first else 0
    ends = files.ends[first:last] - start
    names = files.names[start : start + (int(ends[-1]) if len(ends) else 0)]
    return Files(files.root, names, ends, files.size[first:last], files.mtime_ns[first:last])


def joined(first: Files, second: Files) -> Files:
    """Join two tables of files below the same root."""
    assert first.root == second.root
    return Files(
        first.root,
        np.concatenate([first.names, second.names]),
        np.concatenate([first.ends, second.ends + len(first.names)]),
        np.concatenate([first.size, second.size]),
        np.concatenate([first.mtime_ns, second.mtime_ns]),
    )
