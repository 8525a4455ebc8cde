"""Extents and requests: arrays that say which bytes, and where they go.

An extent is `(file, offset, length)`. Requests are extents with a destination, grouped into
runs; a run is read by one operation. All functions are pure and vectorised.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from . import limits

Int = npt.NDArray[np.int64]
FileIds = npt.NDArray[np.uint32]


class Extents(NamedTuple):
    """n byte ranges. `file` uint32, `offset` and `length` int64, each of shape (n,)."""

    file: FileIds
    offset: Int
    length: Int


class Requests(NamedTuple):
    """n extents with destinations, in m runs.

    file, offset, length: the extents, as in `Extents`.
    buffer:  uint32 (n,), which of the buffers given to `submit` receives the bytes.
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


@dataclass(frozen=True, slots=True, eq=False)
class Files:
    """A table of files: relative paths in one blob, so that a million of them cost no objects.

    root:      folder that the paths are relative to.
    names:     uint8, all paths joined without separators (file-system encoding).
    ends:      int64 (n,), path i is names[ends[i-1]:ends[i]].
    size:      int64 (n,), bytes when indexed.
    mtime_ns:  int64 (n,), modification time when indexed.
    """

    root: str
    names: npt.NDArray[np.uint8]
    ends: Int
    size: Int
    mtime_ns: Int

    def __len__(self) -> int:
        return len(self.ends)

    def name(self, file: int) -> str:
        """The path of a file, relative to the root."""
        start = int(self.ends[file - 1]) if file else 0
        return os.fsdecode(self.names[start : int(self.ends[file])].tobytes())

    def path(self, file: int) -> str:
        """The path of a file, with the root."""
        return os.path.join(self.root, self.name(file))

    @classmethod
    def of(cls, root: str, names: Sequence[str], size: Int, mtime_ns: Int) -> Files:
        """The table of the given relative paths."""
        encoded = [os.fsencode(name) for name in names]
        ends = np.cumsum([len(name) for name in encoded], dtype=np.int64)
        return cls(root, np.frombuffer(b"".join(encoded), np.uint8), ends, size, mtime_ns)
