"""A folder through FUSE (faulty.c), to read and to write, whose calls fail and hang as asked.

    with Faulty(folder) as storage:
        storage.error("fsync", errno.EIO, part="rank-0")   # of files with this in their path
        ...                                                # write below storage.path
        storage.clear()

Nothing is cached and nothing is done twice: each call of the user is one here. What stays in the
folder is what was written. Usable where `benchmarks.emulation.usable` says so.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from types import TracebackType

import numpy as np

from . import Server

# Twins of `enum operation`, `enum fault` and `struct page` in faulty.c.
OPERATIONS = (
    *("getattr", "mkdir", "rmdir", "unlink", "rename", "create", "open", "read", "write", "fsync"),
    *("fsyncdir", "fallocate", "truncate", "flock", "flush", "readdir", "statfs"),
)
FAULTS = ("none", "error", "late", "short", "hang")
_FIELDS = ("fault", "number", "pass", "times", "calls", "hits", "hanging")
_PART_BYTES = 72
_ROW = 8 * len(_FIELDS) + _PART_BYTES
EVERY = -1
HANG_S = 200  # of a test; no call is that slow
"""The longest wait for a call that hangs."""


class Faulty(Server):
    """A mount at `path` of all that is below `folder`.

    Faults are by kind of call, see `OPERATIONS`; one at a time for each kind. `part` of the path of
    the file says which calls are meant (for a rename, of its new path), a $ is where the path ends;
    the first `after` of them go well, the next `times` do not.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        page = os.memfd_create("faulty")
        try:
            os.ftruncate(page, _ROW * len(OPERATIONS))
            self._page = mmap.mmap(page, 0)
            rows = np.frombuffer(self._page, np.uint8).reshape(len(OPERATIONS), _ROW)
            self._values = rows[:, : 8 * len(_FIELDS)].view(np.int64)
            super().__init__("faulty", folder, page)
        finally:
            os.close(page)

    def error(
        self, operation: str, code: int, part: str = "", *, after: int = 0, times: int = EVERY
    ) -> None:
        """These calls do nothing, and end with an errno."""
        self._set(operation, "error", code, part, after, times)

    def late(
        self, operation: str, code: int, part: str = "", *, after: int = 0, times: int = EVERY
    ) -> None:
        """These calls are done, and still end with an errno: an answer was lost on its way."""
        self._set(operation, "late", code, part, after, times)

    def short(
        self, operation: str, size: int, part: str = "", *, after: int = 0, times: int = EVERY
    ) -> None:
        """These reads or writes do `size` bytes at most."""
        self._set(operation, "short", size, part, after, times)

    def hang(self, operation: str, part: str = "", *, after: int = 0, times: int = EVERY) -> None:
        """These calls end when `clear` is called, well, or when their process is killed."""
        self._set(operation, "hang", 0, part, after, times)

    def clear(self, *operations: str) -> None:
        """These, or all, are well from now on, and nothing of them was counted."""
        for operation in operations or OPERATIONS:
            self._set(operation, "none", 0, "", 0, 0)

    def calls(self, operation: str) -> int:
        """Since `clear`; those that the fault is for, where there is one."""
        return self._value(operation, "calls")

    def hits(self, operation: str) -> int:
        """Calls that a fault befell."""
        return self._value(operation, "hits")

    def await_hang(self, operation: str) -> None:
        """Returns once such a call hangs; TimeoutError where none does."""
        deadline = time.monotonic() + HANG_S
        while not self._value(operation, "hanging"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"no {operation} hangs")
            time.sleep(0.001)

    def _value(self, operation: str, field: str) -> int:
        return int(self._values[OPERATIONS.index(operation), _FIELDS.index(field)])

    def _name(self, number: int, part: str) -> None:
        at = number * _ROW + 8 * len(_FIELDS)
        self._page[at : at + _PART_BYTES] = struct.pack(f"{_PART_BYTES - 1}sx", part.encode())

    def _set(self, operation: str, fault: str, *asked: int | str) -> None:
        value, part, after, times = asked
        number = OPERATIONS.index(operation)
        row = self._values[number]
        row[:] = 0
        self._name(number, str(part))
        for field, each in (("number", value), ("pass", after), ("times", times)):
            row[_FIELDS.index(field)] = each
        row[0] = FAULTS.index(fault)  # the last: from here on it is in force

    def __enter__(self) -> Faulty:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
