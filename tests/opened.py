"""The openings of files, by whomever, as the kernel tells them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Self

_libc = ctypes.CDLL(None, use_errno=True)
_in_open = 0x20


class Opened:
    """Watches files: each call says whether any of them was opened since the last one."""

    def __init__(self, paths: Iterable[str | Path]) -> None:
        self._fd = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        for path in paths:
            if _libc.inotify_add_watch(self._fd, os.fsencode(path), _in_open) < 0:
                raise OSError(ctypes.get_errno(), "inotify_add_watch", str(path))

    def __call__(self) -> bool:
        try:
            return bool(os.read(self._fd, 1 << 16))
        except BlockingIOError:
            return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
