"""Files that appear under their own names whole, or not at all.

An `AtomicFile` is written under a hidden name, synced, and renamed by `commit`. Nothing is left
under a final name unless `commit` gave it that name. The module is given paths and bytes, and
knows nothing of datasets or containers.
"""

from __future__ import annotations

import contextlib
import errno
import os
import zlib
from collections.abc import Iterator

from ..errors import StorageError

Bytes = bytes | memoryview

_BUFFER_BYTES = 256 << 10
"""Of a file that is written; what is larger is not copied into a buffer first."""


_AGAIN = "run it again: it goes on after what is finished"
_NOT_SYNCED = frozenset(
    (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
    + (errno.EBADF, errno.EISDIR, errno.EACCES, errno.EPERM)
)
"""What file systems say that do not let a folder be synced."""


@contextlib.contextmanager
def storage_errors(path: str, again: str = _AGAIN) -> Iterator[None]:
    """Turns what the operating system says against writing `path` into a StorageError; `again` is
    what helps once the cause is gone."""
    try:
        yield
    except OSError as error:
        if isinstance(error, StorageError):
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
    """All of the data from byte `at` of a file on; short writes go on."""
    rest = memoryview(data)
    while len(rest):
        done = os.pwrite(file, rest, at)
        if not done:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rest, at = rest[done:], at + done


def sync_folder(folder: str, again: str = _AGAIN) -> None:
    """Make renames in a folder durable. Not every file system lets a folder be synced; StorageError
    where one did, and could not: `again` is what helps once the cause is gone."""
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


class AtomicFile:
    """A file on its way: written under a hidden name, durable after `sync`, seen after `commit`.

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
            self.file = open(self.temporary, "xb", buffering=_BUFFER_BYTES)  # noqa: SIM115

    def write(self, *pieces: Bytes) -> None:
        """Append."""
        with storage_errors(self.path):
            for piece in pieces:
                self.file.write(piece)
                self.crc32 = zlib.crc32(piece, self.crc32)
                self.size += len(piece)

    def sync(self) -> None:
        """All of it is on the device when this returns; nothing can be written after."""
        with storage_errors(self.path):
            self.file.flush()
            os.fsync(self.file.fileno())
            self.file.close()

    def commit(self, *, durable: bool = True) -> None:
        """The file appears under its own name, whole. durable: the name, too, is on the device when
        this returns; where not, the caller syncs the folder after several."""
        with storage_errors(self.path):
            os.replace(self.temporary, self.path)
        if durable:
            sync_folder(os.path.dirname(self.path))

    def __enter__(self) -> AtomicFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    def discard(self) -> None:
        """Leave nothing under the hidden name; what was committed stays."""
        with contextlib.suppress(OSError):
            self.file.close()
        with contextlib.suppress(OSError):
            os.unlink(self.temporary)
