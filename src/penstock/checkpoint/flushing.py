"""A shard goes to storage behind training: large writes past the page cache, the GIL released.

The core writes and sums; the rate may change while it does. What Python does for a shard is a few
calls, however large it is.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np

from .. import _core
from ..budget import Budget
from ..errors import UsageError
from ..writers import storing
from .boundaries import reached
from .leaves import Memory
from .manifest import Piece, Shard, ending, padded

_PAGE = 4096
_AGAIN = "save again: nothing was committed"


class Flush:
    """Writes one shard, once. `adopt` and `stop` may come from another thread meanwhile."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._core = _core.Flush(budget.bytes_per_s or 0.0)

    def adopt(self, budget: Budget) -> None:
        """Another rate, from the next write on."""
        self._core.throttle(budget.bytes_per_s or 0.0)

    def stop(self) -> None:
        """Writing ends soon, with ECANCELED."""
        self._core.stop()

    @property
    def written_bytes(self) -> int:
        return int(self._core.written_bytes)

    def write(
        self, path: str, data: Memory, pieces: Sequence[Piece], *, sync: bool = True
    ) -> Shard:
        """Make a file of `data`, on the device when this returns; its name in the folder is not.

        data:    page-aligned; the pieces, each with its zeros behind it, and nothing else.
        pieces:  in the order of `data`; their checksums are made here.

        StorageError where the system refuses; then, and after `stop`, the file may be there in
        part.
        """
        ends = np.cumsum([piece.padded for piece in pieces], dtype=np.int64)
        if len(data) != (ends[-1] if len(ends) else 0):
            raise UsageError(f"{len(data)} bytes of data do not hold pieces of {ends[-1:]}")
        sums = np.zeros(len(ends), np.uint32)
        with storing(path, _AGAIN), ExitStack() as files:
            reached(f"create {path}")
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            file = os.open(path, flags, 0o666)
            files.callback(os.close, file)
            reached(f"write {path}")
            there = self._write(path, file, data, ends, sums)
            summed = [p._replace(crc32c=int(crc)) for p, crc in zip(pieces, sums, strict=True)]
            end, crc = ending(summed, len(data))
            reached(f"end {path}")
            _write_all(file, data[there:].tobytes() + end, there)
            reached(f"sync {path}")
            if sync:
                os.fdatasync(file)
            reached(f"synced {path}")
        return Shard(os.path.basename(path), len(data) + len(end), crc)

    def _write(self, path: str, file: int, data: Memory, ends: np.ndarray, sums: np.ndarray) -> int:
        """Write the data, or all of it but the last part of a page; how much is there then."""
        whole = len(data) // _PAGE * _PAGE
        direct = -1 if self._budget.direct == "off" or not whole else _direct(path)
        if direct >= 0:
            try:
                code = self._core.run(direct, data, whole, ends, sums)
            finally:
                os.close(direct)
            if code == 0:
                return whole
            if code != errno.EINVAL:  # some refuse only when it comes to writing
                raise OSError(code, os.strerror(code))
            self._core = _core.Flush(self._budget.bytes_per_s or 0.0)
        if self._budget.direct == "required" and whole:
            raise UsageError(
                f"Budget.direct is 'required' but the file system of {path} refuses it: use 'auto'"
            )
        if code := self._core.run(file, data, len(data), ends, sums):
            raise OSError(code, os.strerror(code))
        return len(data)


def _direct(path: str) -> int:
    """A descriptor past the page cache, or -1 where the file system has no such thing."""
    try:
        return os.open(path, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return -1


def _write_all(file: int, data: bytes, at: int) -> None:
    rest = memoryview(data)
    while len(rest):
        done = os.pwrite(file, rest, at)
        rest, at = rest[done:], at + done


def laid_out(pieces: Sequence[Piece]) -> list[Piece]:
    """The pieces one after the other, as they will lie in their file."""
    placed, at = [], 0
    for piece in pieces:
        placed.append(piece._replace(offset=at))
        at += padded(piece.length)
    return placed
