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

from . import _core

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

    turn:  number of this reader, and of all readers. Reader r of n begins r/n of the way through
           the runs, and those before that come last: so that none queue.
    """
    merged = _core.merge_extents(*placed, parts, gap_bytes, *turn)
    columns, (edges, part_runs) = merged[:5], merged[5:]
    rows = cut(edges[part_runs])
    pairs = itertools.pairwise(part_runs.tolist())
    runs = [edges[first : last + 1] - edges[first] for first, last in pairs]
    parted = (map(column.__getitem__, rows) for column in columns)
    return make_tuples(Requests, zip(*parted, runs, strict=True))


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


def take_files(files: Files, rows: Int) -> Files:
    """Return the table of some of the files, each as often as it is named, without mirrors."""
    names = [files.name(row) for row in rows.tolist()]
    return Files.of(files.root, names, files.size[rows], files.mtime_ns[rows])


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
