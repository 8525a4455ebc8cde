"""Writes of a shard to storage behind training: large, past the page cache, with the GIL released.

The budget sets the rate, and so does the broker if there is one: checkpoints of the jobs that share
storage take turns there, see `TransferPermit`. Both may change during a write. Each turn is then a
request of the process's queue (`engine.StorageQueue`), behind reads that a rank waits for.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing
from types import TracebackType
from typing import Protocol, Self

import numpy as np

from ..budget import Budget
from ..engine.atomic_file import storage_errors, write_all
from ..engine.storage_queue import PROCESS_QUEUE, Turn, number_file
from ..engine.threads import WakeUp
from ..errors import StorageError, UsageError
from ..own_files import open_new
from ..sharing.transfer_permit import TransferPermit
from .background import mark_done, mark_point
from .manifest import Memory, Piece, ShardEntry, build_damage_error, encode_manifest

_PAGE = 4096
_AGAIN = "save again: nothing was committed"
_TURN_MAX = 32 << 20
"""Bytes of a write, at most: the kernel cuts it into requests that the device takes, all under way
at once."""
_TURN_MIN = 1 << 20
_TURN_S = 0.1
"""Time of the rate that one write uses."""

_libc = ctypes.CDLL(None, use_errno=True)


class ShardSource(Protocol):
    """A shard that is open to be read, by one thread."""

    @property
    def bytes(self) -> int:
        """Bytes of the shard."""

    def read(self, into: Memory, at: int) -> int:
        """Fill memory with the bytes from `at` on. Returns the bytes read: fewer only at the
        end."""


class Flush:
    """The writes of one shard, once, in turns. `adopt` and `stop` may be called by another thread
    during the writes. The code that makes a flush closes it.

    shared:  True if others use the storage, so that the broker is asked, if there is one.
    """

    def __init__(self, budget: Budget, *, shared: bool = True) -> None:
        self._budget = budget
        self._shared = shared
        self._rate = budget.bytes_per_s
        self._due_s = 0.0  # when what was written so far should have taken until
        self._stopped = False
        self._lock = threading.RLock()
        self._news = WakeUp()  # of who writes
        self._permit: TransferPermit | None = None
        self._process_rate = budget.process_bytes_per_s
        self._turn: Turn | None = None
        self._is_writing = False  # from the first turn to the last

    def adopt(self, budget: Budget) -> None:
        """Change the rate, from the next turn on."""
        with self._lock:
            self._rate = budget.bytes_per_s
            self._process_rate = budget.process_bytes_per_s
            if self._is_writing:
                PROCESS_QUEUE.limit(self, self._process_rate)
            self._due_s = 0.0  # what was owed at the old rate is not waited for
        self._news.send()

    def stop(self) -> None:
        """End the writes soon, with ECANCELED; a system call that hangs is not interrupted."""
        with self._lock:
            self._stopped = True
            turn = self._turn
        self._news.send()
        if turn is not None:
            turn.give_up()
        self.close()

    @property
    def stopped(self) -> bool:
        """True once `stop` was called."""
        return self._stopped

    def check(self) -> None:
        """Raise StorageError, ECANCELED, if `stop` was called."""
        if self._stopped:
            failed = StorageError("the save was abandoned: nothing was committed")
            failed.errno = errno.ECANCELED
            raise failed

    def close(self) -> None:
        """Tell the broker that the writes are over. May be called again."""
        if self._permit is not None:
            self._permit.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def take_turns(
        self, size: int, file: int | None = None
    ) -> Generator[tuple[int, int], None, None]:
        """Divide the bytes of a write into turns [start, stop): whole MiB, or the rest. Waits until
        a turn may be written; a turn ends when the next one is asked for. Raises as `check` does.

        file:  descriptor of the file that is written, if it is one.
        """
        number = None if file is None else number_file(file)
        if self._shared:
            self._bound_process(True)
        try:
            start = 0
            while start < size:
                mark_point("wait for a turn to write")
                length = self._wait_for_rate(size - start)
                with self._lock:
                    self.check()
                    if self._permit is None and self._shared:
                        self._permit = TransferPermit(size - start)
                if self._permit is not None:
                    self._permit.wait(length)
                is_queued = self._shared and PROCESS_QUEUE.is_bounded
                turn = self._wait_in_queue(length, number, start) if is_queued else None
                written_bytes = 0
                try:
                    yield start, start + length
                    written_bytes = length
                finally:
                    if turn is None:
                        PROCESS_QUEUE.count("write", "checkpoint", written_bytes)
                    else:
                        turn.end(written_bytes)
                start += length
        finally:
            self._bound_process(False)

    def _wait_in_queue(self, length: int, file: int | None, offset: int) -> Turn:
        """Wait until it is the turn of these bytes in the process's queue."""
        turn = PROCESS_QUEUE.put("write", "checkpoint", length, file=file, offset=offset)
        with self._lock:  # `stop` either finds the turn, or is found by `check`
            self._turn = turn
        try:
            self.check()
            turn.wait()
            self.check()
        except BaseException:
            turn.end(0)
            raise
        return turn

    def _bound_process(self, is_writing: bool) -> None:
        """Bound what the process draws from storage by the budget, while bytes are written."""
        with self._lock:
            self._is_writing = is_writing
            PROCESS_QUEUE.limit(self, self._process_rate if is_writing else None)

    def _wait_for_rate(self, left_bytes: int) -> int:
        while True:
            with self._lock:
                self.check()
                process_rate = PROCESS_QUEUE.bytes_per_s if self._shared else None
                if self._rate is None:
                    return min(left_bytes, self._bound_turn(process_rate))
                now_s = time.monotonic()
                self._due_s = max(self._due_s, now_s - _TURN_S)
                if self._due_s <= now_s:
                    rate = min(self._rate, process_rate or self._rate)
                    length = min(left_bytes, self._bound_turn(rate))
                    self._due_s += length / self._rate
                    return length
                left_s = self._due_s - now_s
            self._news.wait(left_s)

    @staticmethod
    def _bound_turn(rate: float | None) -> int:
        """Return the bytes of a turn, at most: what a rate allows in a while, in whole MiB."""
        if rate is None:
            return _TURN_MAX
        asked = int(min(rate * _TURN_S, _TURN_MAX)) // _TURN_MIN * _TURN_MIN
        return max(_TURN_MIN, asked)

    def write(
        self, path: str, data: Memory, pieces: Sequence[Piece], *, sync: bool = True
    ) -> ShardEntry:
        """Make a file of `data`. The data is on the device when this returns; the file's name in
        its folder may not be.

        data:    page-aligned; the pieces, each with its zeros behind it, and nothing else.
        pieces:  as `lay_out_pieces` returns them.

        StorageError if the system refuses. After an error or `stop`, a part of the file may be
        there.
        """
        if len(data) != sum(piece.padded_bytes for piece in pieces):
            raise UsageError(f"{path}: {len(data):,} bytes of data are not the sum of its pieces")
        with storage_errors(path, _AGAIN), ExitStack() as files:
            mark_point(f"create {path}")
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC  # no link is followed
            file = os.open(path, flags, 0o666)
            files.callback(os.close, file)
            mark_point(f"reserve {path}")
            _reserve(file, len(data))
            written_bytes = self._write(path, file, data)
            end, crc = encode_manifest(pieces, len(data))
            mark_point(f"end {path}")
            write_all(file, data[written_bytes:].tobytes() + end, written_bytes)
            mark_point(f"sync {path}")
            if sync:
                os.fdatasync(file)
            mark_done(f"synced {path}")
        return ShardEntry(os.path.basename(path), len(data) + len(end), crc)

    def copy(self, path: str, source: ShardSource) -> None:
        """Make a file of the bytes of a source. The data is on the device when this returns; the
        file's name in its folder may not be. A file that had the name before is replaced.

        StorageError as in `write`, and the errors of the source.
        """
        with ExitStack() as files:
            with storage_errors(path, _AGAIN):
                mark_point(f"create {path}")
                file = open_new(path)
                files.callback(os.close, file)
                mark_point(f"write {path}")
                _reserve(file, source.bytes)
                direct = -1 if self._budget.direct == "off" else _open_direct(path)
                if direct >= 0:
                    files.callback(os.close, direct)
            self._copy(path, source, file, direct)
            with storage_errors(path, _AGAIN):
                mark_point(f"sync {path}")
                os.fdatasync(file)
                mark_done(f"synced {path}")

    def _copy(self, path: str, source: ShardSource, file: int, direct: int) -> None:
        size = source.bytes
        memory = np.frombuffer(mmap.mmap(-1, min(size, _TURN_MAX) or 1), np.uint8)
        with closing(self.take_turns(size, file)) as turns:
            for at, stop in turns:
                part = memory[: stop - at]
                if source.read(part, at) < len(part):
                    raise build_damage_error(path, "its source became shorter during the copy")
                with storage_errors(path, _AGAIN):
                    whole = len(part) // _PAGE * _PAGE if direct >= 0 else 0
                    try:
                        write_all(direct, part[:whole].data, at)
                    except OSError as error:
                        if error.errno != errno.EINVAL:
                            raise
                        direct, whole = -1, 0
                    write_all(file, part[whole:].data, at + whole)

    def _write(self, path: str, file: int, data: Memory) -> int:
        """Write the data, or all of it but the last part of a page. Returns the bytes written."""
        whole = len(data) // _PAGE * _PAGE
        direct = -1 if self._budget.direct == "off" or not whole else _open_direct(path)
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
        with closing(self.take_turns(len(data), file)) as turns:
            for at, stop in turns:
                mark_point(f"write {path} from byte {at:,} on")
                write_all(file, data[at:stop].data, at)


def _open_direct(path: str) -> int:
    """Open a descriptor that writes past the page cache; -1 if the file system refuses."""
    try:
        return os.open(path, os.O_WRONLY | os.O_DIRECT | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return -1


def _reserve(file: int, size: int) -> None:
    """Reserve the bytes of a file, so that a full disk is noticed before anything is written.
    os.posix_fallocate is not used: it writes all bytes if the file system does not know the
    call."""
    end = ctypes.c_int64(size)
    if size and _libc.fallocate(file, 0, ctypes.c_int64(0), end) != 0:
        code = ctypes.get_errno()
        if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise OSError(code, os.strerror(code))


def lay_out_pieces(pieces: Sequence[Piece], checksums: Sequence[int]) -> list[Piece]:
    """Return the pieces with their offsets in the file, one after the other, and their
    checksums."""
    placed, at = [], 0
    for piece, crc in zip(pieces, checksums, strict=True):
        placed.append(piece._replace(offset=at, crc32c=crc))
        at += piece.padded_bytes
    return placed
