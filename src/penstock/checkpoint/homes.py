"""Which home a path or URL stands for."""

from __future__ import annotations

import os

from .folder import Folder
from .home import Home
from .prefix import Prefix


def home_of(path: str | os.PathLike[str], *, make: bool = False) -> Home:
    """The home at a path or URL; a folder is made if `make`, else MissingError where there is
    none."""
    given = os.fspath(path)
    return Prefix(given) if "://" in given else Folder(given, make=make)


def full_path(path: str | os.PathLike[str]) -> str:
    """A path or URL, wherever the process goes."""
    given = os.fspath(path)
    return given if "://" in given else os.path.abspath(given)
