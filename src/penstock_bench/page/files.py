"""Files that commands write, and the results alone on standard output."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from penstock.cli import console
from penstock.errors import UsageError


def repeat_command() -> str:
    """Return the command line that repeats this one, without what it writes and prints."""
    words, is_path = ["penstock"], False
    for word in sys.argv[1:]:
        if not is_path and word not in ("--output", "-o", "--json"):
            words += [] if word.startswith(("--output=", "-o")) else [word]
        is_path = not is_path and word in ("--output", "-o")
    return shlex.join(words)


def sort_outputs(outputs: Sequence[Path] | None, *endings: str) -> list[Path | None]:
    """Return the path of each ending that --output gives, after a check that it can be written."""
    paths: dict[str, Path] = {}
    for path in outputs or ():
        if path.suffix not in endings or path.suffix in paths:
            wanted = " and ".join(f"one file {ending}" for ending in endings)
            raise UsageError(f"--output is {', '.join(map(str, outputs or ()))}: give {wanted}")
        paths[path.suffix] = path
    console.check_writable(*paths.values())
    return [paths.get(ending) for ending in endings]


@contextmanager
def results_alone(as_json: bool) -> Iterator[None]:
    """Keep all other output from standard output if `write_results` prints there."""
    before, console.out.stderr = console.out.stderr, as_json
    try:
        yield
    finally:
        console.out.stderr = before


def write_page(path: Path, text: str) -> None:
    """Write a page, and show its path."""
    console.write_text(path, text)
    console.show(f"page: {console.escape(str(path))}")
