"""A model of an index in two levels: a directory of shards, and pages of rows read when needed.

It is not in the library. A flat table has 20 bytes a sample in three columns, so 20 TB for 10^12
samples, and a random look-up touches three pages of it, one after the other, by page faults. Here a
row has 12 bytes in one place. Memory is the directory: 16 bytes a shard.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from penstock.extent import Extents, Int

ROW = np.dtype([("offset", "<i8"), ("length", "<u4")])
PAGE_BYTES = 4096
PAGE_ROWS = PAGE_BYTES // ROW.itemsize


class PagedRows:
    """Rows of all shards in one file of pages; each shard begins a page.

    first:  int64 (shards + 1,), number of each shard's first sample.
    pages:  int64 (shards,), number of each shard's first page.
    bytes_read:  of pages so far.
    """

    def __init__(self, path: Path, first: Int) -> None:
        self.first = first
        counts = -(-np.diff(first) // PAGE_ROWS)
        self.pages = np.cumsum(counts) - counts
        self._file = os.open(path, os.O_RDONLY)
        self.bytes_read = 0

    @classmethod
    def write(cls, path: Path, first: Int, offset: Int, length: Int) -> PagedRows:
        """Write the rows of all shards, and open them."""
        with open(path, "wb") as file:
            for begin, end in zip(first[:-1].tolist(), first[1:].tolist(), strict=True):
                padded = np.zeros((-(-(end - begin) // PAGE_ROWS), PAGE_BYTES), np.uint8)
                rows = np.zeros(len(padded) * PAGE_ROWS, ROW)
                rows["offset"][: end - begin] = offset[begin:end]
                rows["length"][: end - begin] = length[begin:end]
                padded[:, : PAGE_ROWS * ROW.itemsize] = rows.view(np.uint8).reshape(len(padded), -1)
                file.write(padded.data)
        return cls(path, first)

    @property
    def directory_bytes(self) -> int:
        """Bytes of memory that it has, whatever is looked up."""
        return int(self.first.nbytes + self.pages.nbytes)

    def extents(self, samples: Int) -> Extents:
        """Return the extents of samples: each page that has some of them is read once."""
        shard = np.searchsorted(self.first, samples, side="right") - 1
        page, row = np.divmod(samples - self.first[shard], PAGE_ROWS)
        page += self.pages[shard]
        wanted, place = np.unique(page, return_inverse=True)
        read = b"".join(os.pread(self._file, PAGE_BYTES, at * PAGE_BYTES) for at in wanted.tolist())
        self.bytes_read += len(read)
        padded = np.frombuffer(read, np.uint8).reshape(len(wanted), PAGE_BYTES)
        rows = np.ascontiguousarray(padded[:, : PAGE_ROWS * ROW.itemsize]).view(ROW)
        chosen = rows[place, row]
        return Extents(
            shard.astype(np.uint32),
            chosen["offset"].astype(np.int64),
            chosen["length"].astype(np.int64),
        )

    def close(self) -> None:
        """Close the file of pages."""
        os.close(self._file)
