"""A shard goes to storage behind training: large writes past the page cache, the GIL released.

The core writes; the rate may change while it does. What Python does for a shard is a few
calls, however large it is.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import ExitStack

from .. import _core
from ..budget import Budget
from ..errors import UsageError
from ..writers import storing
from .boundaries import reached
from .leaves import Memory
from .manifest import Piece, Shard, ending

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
        pieces:  as `laid_out` gives them.

        StorageError where the system refuses; then, and after `stop`, the file may be there in
        part.
        """
        if len(data) != sum(piece.padded for piece in pieces):
            raise UsageError(f"{path}: {len(data):,} bytes are not what the pieces take")
        with storing(path, _AGAIN), ExitStack() as files:
            reached(f"create {path}")
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            file = os.open(path, flags, 0o666)
            files.callback(os.close, file)
            reached(f"write {path}")
            there = self._write(path, file, data)
            end, crc = ending(pieces, len(data))
            reached(f"end {path}")
            _write_all(file, data[there:].tobytes() + end, there)
            reached(f"sync {path}")
            if sync:
                os.fdatasync(file)
            reached(f"synced {path}")
        return Shard(os.path.basename(path), len(data) + len(end), crc)

    def _write(self, path: str, file: int, data: Memory) -> int:
        """Write the data, or all of it but the last part of a page; how much is there then."""
        whole = len(data) // _PAGE * _PAGE
        direct = -1 if self._budget.direct == "off" or not whole else _direct(path)
        if direct >= 0:
            try:
                code = self._core.run(direct, data[:whole])
            finally:
                os.close(direct)
            if code == 0:
                return whole
            if code != errno.EINVAL:  # some refuse only when it comes to writing
                raise OSError(code, os.strerror(code))
        if self._budget.direct == "required" and whole:
            raise UsageError(
                f"Budget.direct is 'required' but the file system of {path} refuses it: use 'auto'"
            )
        if code := self._core.run(file, data):
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


def laid_out(pieces: Sequence[Piece], checksums: Sequence[int]) -> list[Piece]:
    """The pieces one after the other, as they will lie in their file, with their checksums."""
    placed, at = [], 0
    for piece, crc in zip(pieces, checksums, strict=True):
        placed.append(piece._replace(offset=at, crc32c=crc))
        at += piece.padded
    return placed
