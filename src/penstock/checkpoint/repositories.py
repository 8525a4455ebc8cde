"""Which home a path or URL stands for."""

from __future__ import annotations

import os
import re

from ..errors import UsageError
from .folder import Folder
from .object_repository import Prefix
from .repository import Repository

_NEARLY_A_URL = re.compile(r"(s3|gs|az|https?):/?(?!/)")


def open_repository(path: str | os.PathLike[str], *, make: bool = False) -> Repository:
    """The home at a path or URL; a folder is made if `make`, else MissingError where there is
    none. UsageError where a slash of a URL is missing."""
    given = os.fspath(path)
    if _NEARLY_A_URL.match(given):
        raise UsageError(f"{given}: write two slashes for a URL, or ./ before a folder's name")
    return Prefix(given) if "://" in given else Folder(given, make=make)


def full_path(path: str | os.PathLike[str]) -> str:
    """A path or URL, wherever the process goes."""
    given = os.fspath(path)
    return given if "://" in given else os.path.abspath(given)
