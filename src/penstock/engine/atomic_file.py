"""Files that appear under their own names whole, or not at all.

An `AtomicFile` is written under a hidden name, synced, and renamed by `commit`. Nothing is left
under a final name unless `commit` gave it that name. The module is given paths and bytes, and
knows nothing of datasets or containers.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import zlib
from collections.abc import Iterator
from typing import Any

from ..errors import PenstockError, StorageError
from .request_queue import Purpose
from .storage_queue import PROCESS_QUEUE

Bytes = bytes | memoryview

_BUFFER_BYTES = 256 << 10
"""Size of a file's write buffer. Larger pieces are written without being copied into it."""


_AGAIN = "run it again: it goes on after what is finished"
_NOT_SYNCED = frozenset(
    (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
    + (errno.EBADF, errno.EISDIR, errno.EACCES, errno.EPERM)
)
"""Error codes of file systems that do not let a folder be synced."""


@contextlib.contextmanager
def storage_errors(path: str, again: str = _AGAIN) -> Iterator[None]:
    """Turn an OSError about writing `path` into a StorageError; its last words are `again`: what to
    do once the cause is gone."""
    try:
        yield
    except OSError as error:
        if isinstance(error, PenstockError):  # of data that was read
            raise
        code = error.errno or errno.EIO
        full = code in (errno.ENOSPC, errno.EDQUOT)
        remedy = "make room there" if full else "check the folder and its file system"
        failed = StorageError(
            f"{path} cannot be written: {os.strerror(code)}: {remedy}, and {again}"
        )
        failed.errno = code
        raise failed from None


def write_all(file: int, data: Bytes, at: int) -> None:
    """Write all of the data from byte `at` of the file; a short write is continued."""
    rest = memoryview(data)
    while len(rest):
        done = os.pwrite(file, rest, at)
        if not done:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rest, at = rest[done:], at + done


def sync_folder(folder: str, again: str = _AGAIN) -> None:
    """Make renames in a folder durable; `again` as in `storage_errors`.

    File systems that do not let a folder be synced are accepted; StorageError if syncing fails.
    """
    try:
        file = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(file)
        finally:
            os.close(file)
    except OSError as error:
        if error.errno not in _NOT_SYNCED:
            with storage_errors(folder, again):
                raise


class QueuedFile(io.FileIO):
    """An unbuffered file whose writes are requests of the process's queue, of one purpose. Nobody
    else may write to it, or read it, meanwhile."""

    def __init__(self, file: str | int, mode: str, purpose: Purpose) -> None:
        super().__init__(file, mode)
        self._purpose: Purpose = purpose

    def write(self, data: Any, /) -> int:
        """Write some of the data, at least a byte, when it is its turn; returns how much."""
        if not PROCESS_QUEUE.is_bounded:
            done = super().write(data) or 0
            PROCESS_QUEUE.count("write", self._purpose, done)
            return done
        with PROCESS_QUEUE.put("write", self._purpose, memoryview(data).nbytes) as turn:
            done = super().write(data) or 0
            turn.end(done)
        return done


class AtomicFile:
    """A file being written: under a hidden name, durable after `sync`, visible after `commit`.

    size, crc32:  of what `write` wrote so far.
    file:         the file under its hidden name, for libraries that write into one themselves;
                  their errors go through `storage_errors`.
    """

    def __init__(self, path: str) -> None:
        folder, name = os.path.split(path)
        self.path, self.temporary = path, os.path.join(folder, f".{name}.part")
        self.size = self.crc32 = 0
        with storage_errors(path):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.temporary)  # of a run that was killed
            raw = QueuedFile(self.temporary, "x", "convert")
            self.file = io.BufferedWriter(raw, _BUFFER_BYTES)

    def write(self, *pieces: Bytes) -> None:
        """Append the pieces."""
        with storage_errors(self.path):
            for piece in pieces:
                self.file.write(piece)
                self.crc32 = zlib.crc32(piece, self.crc32)
                self.size += len(piece)

    def sync(self) -> None:
        """Put all of the file on the device before returning. Nothing can be written afterwards."""
        with storage_errors(self.path):
            self.file.flush()
            os.fsync(self.file.fileno())
            self.file.close()

    def commit(self, *, durable: bool = True) -> None:
        """Make the whole file appear under its own name. durable: the name, too, is on the device
        when this returns; if False, the caller syncs the folder after several commits."""
        with storage_errors(self.path):
            os.replace(self.temporary, self.path)
        if durable:
            sync_folder(os.path.dirname(self.path))

    def __enter__(self) -> AtomicFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    def discard(self) -> None:
        """Remove the hidden file, if it is there; a committed file stays."""
        with contextlib.suppress(OSError):
            self.file.close()
        with contextlib.suppress(OSError):
            os.unlink(self.temporary)
