"""Opening of files in folders that others may write to: no link in place of a file is followed.

Whoever may write to a folder can put a link under a name that penstock writes, so that the target
of the link is overwritten.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from ..errors import UsageError


def open_own(path: str, flags: int) -> int:
    """Open a file of penstock's. UsageError if its name leads to another file: a symbolic link, one
    of several names of a file, or no regular file."""
    try:
        file = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise _build_foreign_error(path, "a symbolic link") from None
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(file)
        is_file = stat.S_ISREG(status.st_mode)
        what = f"one of {status.st_nlink} names of a file" if is_file else "no regular file"
        raise _build_foreign_error(path, what)
    return file


def open_new(path: str) -> int:
    """Make a file and open it to be written. A file or link that had the name before is removed."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with contextlib.suppress(FileExistsError):
        return os.open(path, flags, 0o666)
    os.unlink(path)
    return os.open(path, flags, 0o666)


def check_own_folder(path: str) -> None:
    """Raise UsageError if the path of a folder that penstock made is something else now."""
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        is_link = os.path.islink(path)
        raise _build_foreign_error(path, "a symbolic link" if is_link else "no folder")


def _build_foreign_error(path: str, what: str) -> UsageError:
    return UsageError(
        f"{path} is {what}, which penstock does not make there, so nothing is written to it: remove"
        " it, or use a folder that only this user may write to"
    )
