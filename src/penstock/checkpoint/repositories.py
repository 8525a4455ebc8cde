"""The choice of a repository by path or URL."""

from __future__ import annotations

import os
import re

from ..arguments import check_path
from ..errors import UsageError
from .folder_repository import Folder
from .object_repository import Prefix
from .repository import Repository

_NEARLY_A_URL = re.compile(r"(s3|gs|az|https?):/?(?!/)")


def open_repository(path: str | os.PathLike[str], *, make: bool = False) -> Repository:
    """Open the repository at a path or URL. A folder is made if `make`; otherwise MissingError if
    it does not exist. UsageError if a slash of a URL is missing."""
    text = check_path("folder", path)
    if _NEARLY_A_URL.match(text):
        raise UsageError(f"{text}: write two slashes for a URL, or ./ before a folder's name")
    return Prefix(text) if "://" in text else Folder(text, make=make)


def resolve_path(path: str | os.PathLike[str]) -> str:
    """Return a path or URL that holds in whatever folder the process runs."""
    text = os.fspath(path)
    return text if "://" in text else os.path.abspath(text)
