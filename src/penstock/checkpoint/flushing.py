"""A shard goes to storage behind training: large writes past the page cache, the GIL released.

How fast is a matter of the budget, and of the broker where there is one: checkpoints of the jobs
that share storage take their turns there, see `TransferPermit`. Both may change meanwhile.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Protocol, Self

import numpy as np

from ..budget import Budget
from ..engine import storage_errors, write_all
from ..errors import StorageError, UsageError
from ..sharing import TransferPermit
from .array_leaves import Memory
from .fault_points import reached
from .manifest import Piece, Shard, damaged, ending

_PAGE = 4096
_AGAIN = "save again: nothing was committed"
_TURN_MAX = 32 << 20
"""Bytes of a write: the kernel cuts it into what the device takes, all of it under way at once."""
_TURN_MIN = 1 << 20
_TURN_S = 0.1
"""How much of a rate one write takes."""

_libc = ctypes.CDLL(None, use_errno=True)


class ShardSource(Protocol):
    """The bytes of a shard, opened to be read; by one thread."""

    @property
    def bytes(self) -> int:
        """How many there are."""

    def read(self, into: Memory, at: int) -> int:
        """Fill memory with the bytes from `at` on; how many there were: fewer only at the end."""


class Flush:
    """Writes of one shard, once, in turns. `adopt` and `stop` may come from another thread
    meanwhile. Whoever made it closes it.

    shared:  the storage is used by others, so that a broker is asked, where there is one.
    """

    def __init__(self, budget: Budget, *, shared: bool = True) -> None:
        self._budget = budget
        self._shared = shared
        self._rate = budget.bytes_per_s
        self._due_s = 0.0  # when what was written so far should have taken until
        self._stopped = False
        self._changed = threading.Condition()
        self._window: TransferPermit | None = None

    def adopt(self, budget: Budget) -> None:
        """Another rate, from the next turn on."""
        with self._changed:
            self._rate = budget.bytes_per_s
            self._due_s = 0.0  # what was owed at the old rate is not waited for
            self._changed.notify_all()

    def stop(self) -> None:
        """Writing ends soon, with ECANCELED; unless the system is in a call that does not end."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self.close()

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped

    def check(self) -> None:
        """StorageError, ECANCELED, after `stop`."""
        if self._stopped:
            failed = StorageError("the save was abandoned: nothing was committed")
            failed.errno = errno.ECANCELED
            raise failed

    def close(self) -> None:
        """The broker is told that it is over. May be called again."""
        if self._window is not None:
            self._window.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def turn(self, left_bytes: int) -> int:
        """How many bytes of those that are left may be written next, once they may: whole MiB, or
        all that is left. Raises as `check` does."""
        reached("wait for a turn to write")
        length = self._paced(left_bytes)
        with self._changed:
            self.check()
            if self._window is None and self._shared:
                self._window = TransferPermit(left_bytes)
        if self._window is not None:
            self._window.wait(length)
        self.check()
        return length

    def _paced(self, left_bytes: int) -> int:
        with self._changed:
            while True:
                self.check()
                if self._rate is None:
                    return min(left_bytes, _TURN_MAX)
                now_s = time.monotonic()
                self._due_s = max(self._due_s, now_s - _TURN_S)
                if self._due_s <= now_s:
                    asked = int(self._rate * _TURN_S) // _TURN_MIN * _TURN_MIN
                    length = min(left_bytes, max(_TURN_MIN, min(asked, _TURN_MAX)))
                    self._due_s += length / self._rate
                    return length
                self._changed.wait(min(self._due_s - now_s, threading.TIMEOUT_MAX))

    def write(
        self, path: str, data: Memory, pieces: Sequence[Piece], *, sync: bool = True
    ) -> Shard:
        """Make a file of `data`, on the device when this returns; its name in the folder is not.

        data:    page-aligned; the pieces, each with its zeros behind it, and nothing else.
        pieces:  as `lay_out_pieces` gives them.

        StorageError where the system refuses; then, and after `stop`, the file may be there in
        part.
        """
        if len(data) != sum(piece.padded for piece in pieces):
            raise UsageError(f"{path}: {len(data):,} bytes are not what the pieces take")
        with storage_errors(path, _AGAIN), ExitStack() as files:
            reached(f"create {path}")
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            file = os.open(path, flags, 0o666)
            files.callback(os.close, file)
            reached(f"reserve {path}")
            _reserve(file, len(data))
            there = self._write(path, file, data)
            end, crc = ending(pieces, len(data))
            reached(f"end {path}")
            write_all(file, data[there:].tobytes() + end, there)
            reached(f"sync {path}")
            if sync:
                os.fdatasync(file)
            reached(f"synced {path}")
        return Shard(os.path.basename(path), len(data) + len(end), crc)

    def copy(self, path: str, source: ShardSource) -> None:
        """Make a file of what a source has, on the device when this returns; its name in the folder
        is not. What was there under the name is gone.

        StorageError as `write`; what the source raises, too.
        """
        with ExitStack() as files:
            with storage_errors(path, _AGAIN):
                reached(f"create {path}")
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
                file = os.open(path, flags, 0o666)
                files.callback(os.close, file)
                reached(f"write {path}")
                _reserve(file, source.bytes)
                direct = -1 if self._budget.direct == "off" else _direct(path)
                if direct >= 0:
                    files.callback(os.close, direct)
            self._copy(path, source, file, direct)
            with storage_errors(path, _AGAIN):
                reached(f"sync {path}")
                os.fdatasync(file)
                reached(f"synced {path}")

    def _copy(self, path: str, source: ShardSource, file: int, direct: int) -> None:
        size, at = source.bytes, 0
        memory = np.frombuffer(mmap.mmap(-1, min(size, _TURN_MAX) or 1), np.uint8)
        while at < size:
            with storage_errors(path, _AGAIN):
                part = memory[: self.turn(size - at)]
            if source.read(part, at) < len(part):
                raise damaged(path, "what it is copied from became shorter")
            with storage_errors(path, _AGAIN):
                whole = len(part) // _PAGE * _PAGE if direct >= 0 else 0
                try:
                    write_all(direct, part[:whole].data, at)
                except OSError as error:
                    if error.errno != errno.EINVAL:
                        raise
                    direct, whole = -1, 0
                write_all(file, part[whole:].data, at + whole)
            at += len(part)

    def _write(self, path: str, file: int, data: Memory) -> int:
        """Write the data, or all of it but the last part of a page; how much is there then."""
        whole = len(data) // _PAGE * _PAGE
        direct = -1 if self._budget.direct == "off" or not whole else _direct(path)
        if direct >= 0:
            try:
                self._write_turns(path, direct, data[:whole])
                return whole
            except OSError as error:
                if error.errno != errno.EINVAL:  # some refuse only when it comes to writing
                    raise
            finally:
                os.close(direct)
        if self._budget.direct == "required" and whole:
            raise UsageError(
                f"Budget.direct is 'required' but the file system of {path} refuses it: use 'auto'"
            )
        self._write_turns(path, file, data)
        return len(data)

    def _write_turns(self, path: str, file: int, data: Memory) -> None:
        at = 0
        while at < len(data):
            end = at + self.turn(len(data) - at)
            reached(f"write {path} from byte {at:,} on")
            write_all(file, data[at:end].data, at)
            at = end


def _direct(path: str) -> int:
    """A descriptor past the page cache, or -1 where the file system has no such thing."""
    try:
        return os.open(path, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return -1


def _reserve(file: int, size: int) -> None:
    """Room for so much, so that a full disk is known before anything is written. Not by
    os.posix_fallocate, which writes everything where a file system knows no such call."""
    end = ctypes.c_int64(size)
    if size and _libc.fallocate(file, 0, ctypes.c_int64(0), end) != 0:
        code = ctypes.get_errno()
        if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise OSError(code, os.strerror(code))


def lay_out_pieces(pieces: Sequence[Piece], checksums: Sequence[int]) -> list[Piece]:
    """The pieces one after the other, as they will lie in their file, with their checksums."""
    placed, at = [], 0
    for piece, crc in zip(pieces, checksums, strict=True):
        placed.append(piece._replace(offset=at, crc32c=crc))
        at += piece.padded
    return placed
