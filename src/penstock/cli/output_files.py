"""Files that commands write: checked before the work, and whole or absent after it."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from ..errors import UsageError
from . import console

_WRITTEN = {"--html", "--json", "--csv", "--write"}
"""Options for files that commands write."""


def repeat_command() -> str:
    """Command line that repeats this, without the files that it writes."""
    words, is_path = ["penstock"], False
    for word in sys.argv[1:]:
        if not is_path and word.partition("=")[0] not in _WRITTEN:
            words.append(word)
        is_path = not is_path and word in _WRITTEN
    return shlex.join(words)


_STANDARD_OUTPUT = Path("-")


def check_writable(*targets: Path | None) -> None:
    """Raise UsageError, before any work, for paths that no file can have."""
    for target in targets:
        if target is not None and not target.absolute().parent.is_dir():
            raise UsageError(f"cannot write {target}: there is no folder {target.parent}")
        if target is not None and target.is_dir():
            raise UsageError(f"cannot write {target}: it is a folder; give the path of a file")


@contextlib.contextmanager
def results_alone(path: Path | None) -> Iterator[None]:
    """Keep all else from standard output while a command runs whose results go there.

    path:  of `write_results`.
    """
    if path != _STANDARD_OUTPUT:
        check_writable(path)
    before, console.out.stderr = console.out.stderr, path == _STANDARD_OUTPUT
    try:
        yield
    finally:
        console.out.stderr = before


@contextlib.contextmanager
def replace_file(path: Path) -> Iterator[IO[str]]:
    """Yield a file that replaces the one at the path when all of it has been written."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        try:
            temporary.unlink(missing_ok=True)
            with temporary.open("x", encoding="utf-8", newline="") as file:
                yield file
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


def write_page(path: Path, text: str) -> None:
    """Write a page, and say where it is."""
    write_text(path, text)
    console.show(f"page: {console.escape(str(path))}")


def write_results(path: Path | None, values: object) -> None:
    """Write values as JSON where a path is given, and say where; "-" is standard output."""
    if path is None:
        return
    text = json.dumps(values, indent=1) + "\n"
    if path == _STANDARD_OUTPUT:
        sys.stdout.write(text)
    else:
        write_text(path, text)
        console.show(f"results: {console.escape(str(path))}")


def write_text(path: Path, text: str) -> None:
    """Write all of the text, or leave the file as it was."""
    with replace_file(path) as file:
        file.write(text)
