"""Files in folders that others may write to: no link in place of a file is followed; locks.

Whoever may write to a folder can put a link under a name that penstock writes, so that the target
of the link is overwritten. Files that are written anew are `AtomicFile`s, which follow no link.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator

from .errors import UsageError


def open_own(path: str, flags: int, mode: int = 0o666, *, device: bool = False) -> int:
    """Open a file of penstock's; the system refuses as it does for `os.open`.

    device:  whether it may be a character device, such as /dev/null.

    Raises UsageError if the name leads to another file: it is a symbolic link, one of several names
    of a file, or no regular file.
    """
    try:
        file = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
        kind = "a symbolic link" if error.errno == errno.ELOOP else "no regular file"
        raise _build_foreign_error(path, kind) from None
    status = os.fstat(file)
    if device and stat.S_ISCHR(status.st_mode):
        return file
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(file)
        is_file = stat.S_ISREG(status.st_mode)
        kind = f"one of {status.st_nlink} names of a file" if is_file else "no regular file"
        raise _build_foreign_error(path, kind)
    return file


def open_new(path: str) -> int:
    """Make a file and open it to be written. A file or link that had the name before is removed."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with contextlib.suppress(FileExistsError):
        return os.open(path, flags, 0o666)
    os.unlink(path)
    return os.open(path, flags, 0o666)


@contextlib.contextmanager
def hold_lock(file: int, lock_path: str, in_use: str) -> Iterator[None]:
    """Hold the lock of an open file or folder. UsageError, `in_use`, if another process has it.

    lock_path:  name of a file that only one process can make: the lock where the file system has no
                flock, as some network file systems. A process that is killed leaves it.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(in_use) from None
    except OSError:
        try:
            lock = os.open(lock_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            raise UsageError(f"{in_use}, or remove {lock_path} if none runs") from None
        try:
            yield
        finally:
            os.close(lock)
            os.unlink(lock_path)
    else:
        yield


def check_own_folder(path: str) -> None:
    """Raise UsageError if the path of a folder that penstock made is something else now."""
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        is_link = os.path.islink(path)
        raise _build_foreign_error(path, "a symbolic link" if is_link else "no folder")


def _build_foreign_error(path: str, kind: str) -> UsageError:
    what = f"{path} is {kind}, which penstock does not make, so nothing is written to it"
    return UsageError(f"{what}: remove it, or use a folder that only this user may write to")


def check_private_folder(folder: str, what: str) -> None:
    """Raise UsageError if other users could exchange the files in the folder of `what`."""
    status = os.stat(folder)
    if status.st_uid not in (os.geteuid(), 0):
        whose = f"user {status.st_uid}, and this is user {os.geteuid()}"
        raise UsageError(f"the folder {folder} of {what} belongs to {whose}: use one of your own")
    if status.st_mode & stat.S_IWOTH:
        where = f"every user may write to the folder {folder} of {what}"
        raise UsageError(f"{where}: `chmod o-w` it, or use a folder of your own below it")
