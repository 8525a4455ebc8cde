"""Files that commands write: pages, and results as JSON."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.cli import console

_WRITTEN = {"--html", "--json", "--csv", "--write"}
"""Options for files that commands write."""
_STANDARD_OUTPUT = Path("-")


def repeat_command() -> str:
    """Return the command line that repeats this one, without the files that it writes."""
    words, is_path = ["penstock"], False
    for word in sys.argv[1:]:
        if not is_path and word.partition("=")[0] not in _WRITTEN:
            words.append(word)
        is_path = not is_path and word in _WRITTEN
    return shlex.join(words)


@contextmanager
def results_alone(path: Path | None) -> Iterator[None]:
    """Keep all other output from standard output if `write_results` writes to it."""
    if path != _STANDARD_OUTPUT:
        console.check_writable(path)
    before, console.out.stderr = console.out.stderr, path == _STANDARD_OUTPUT
    try:
        yield
    finally:
        console.out.stderr = before


def write_page(path: Path, text: str) -> None:
    """Write a page, and show its path."""
    console.write_text(path, text)
    console.show(f"page: {console.escape(str(path))}")


def write_results(path: Path | None, values: object) -> None:
    """Write values as JSON to a path, and show it; "-" is standard output."""
    if path is None:
        return
    text = json.dumps(values, indent=1) + "\n"
    if path == _STANDARD_OUTPUT:
        sys.stdout.write(text)
    else:
        console.write_text(path, text)
        console.show(f"results: {console.escape(str(path))}")
