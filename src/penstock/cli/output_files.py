"""Files that commands write: checked before the work, and whole or absent after it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from ..errors import UsageError


def check_writable(*targets: Path | None) -> None:
    """Raise UsageError, before any work, for paths that no file can have."""
    for target in targets:
        if target is not None and not target.absolute().parent.is_dir():
            raise UsageError(f"cannot write {target}: there is no folder {target.parent}")
        if target is not None and target.is_dir():
            raise UsageError(f"cannot write {target}: it is a folder; give the path of a file")


@contextlib.contextmanager
def replace_file(path: Path) -> Iterator[IO[str]]:
    """Yield a file that replaces the one at the path when all of it has been written."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        try:
            with temporary.open("w", encoding="utf-8", newline="") as file:
                yield file
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


def write_text(path: Path, text: str) -> None:
    """Write all of the text, or leave the file as it was."""
    with replace_file(path) as file:
        file.write(text)
