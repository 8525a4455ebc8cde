"""The terminal and the files that commands write.

Results go to standard output (`out`), messages and progress to standard error (`err`). A file is
checked before the work, and whole or absent after it.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import rich.box
import rich.console
import rich.markup
import rich.progress
import rich.table
import rich.text

from ..errors import UsageError
from .quantities import duration, number
from .quantities import format_bytes as format_bytes

out = rich.console.Console(highlight=False, soft_wrap=True, emoji=False)
err = rich.console.Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)

_QUIET_S = 2.0
"""Time after which progress is shown."""
_UPDATE_S = 0.05
"""Shortest time between two updates of a bar."""
_PACE_COLUMNS = 52
"""Columns of a spinner and a pace; the description, and a bar if it fits, take the rest."""
_BAR_COLUMNS = 21

GOES_ON = "what is finished is kept, and the same command goes on after it"
_STARTS_AGAIN = "nothing was written, and the same command starts again"


@contextmanager
def explain_interrupt(state: str = _STARTS_AGAIN) -> Iterator[None]:
    """Say what a command has left if Ctrl-C stops it; also a decorator of commands."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"penstock: stopped: {state}", file=sys.stderr)
        raise


# -- progress and messages -------------------------------------------------------------------------


class _Pace(rich.progress.ProgressColumn):
    """The number done, the rate, and the time left, or the time so far if the total is unknown."""

    def __init__(self, of: str) -> None:
        super().__init__(rich.table.Column(no_wrap=True))
        self._of = of

    def render(self, task: rich.progress.Task) -> rich.text.Text:
        """Describe a task; "bytes" are shown in the largest fitting unit."""
        is_bytes = self._of == "bytes"

        def count(value: float) -> str:
            return format_bytes(value) if is_bytes else f"{value:,.0f}"

        done = count(task.completed)
        if task.total is not None:
            done += f" of {count(task.total)}"
        phrases = [done if is_bytes else f"{done} {self._of}"]
        if speed := task.finished_speed or task.speed:
            phrases.append(f"{format_bytes(speed) if is_bytes else number(speed)}/s")
        if task.time_remaining is not None:
            phrases.append(f"{duration(task.time_remaining)} left")
        else:
            phrases.append(duration(task.elapsed or 0.0))
        return rich.text.Text(", ".join(phrases))


@contextmanager
def show_progress(what: str, of: str = "files") -> Iterator[Callable[..., None]]:
    """Yield a callback of the number done, and of all if known; shown from two seconds on.
    Warnings are printed as messages, without the line of code that they come from."""
    room = err.width - _PACE_COLUMNS
    columns: list[rich.progress.ProgressColumn] = [
        rich.progress.SpinnerColumn(),
        rich.progress.TextColumn("{task.description}"),
        _Pace(of),
    ]
    if room > 2 * _BAR_COLUMNS:
        room -= _BAR_COLUMNS
        columns.insert(2, rich.progress.BarColumn(_BAR_COLUMNS - 1))
    bar = rich.progress.Progress(*columns, console=err, transient=True, disable=not err.is_terminal)
    description = what if len(what) <= room else f"{what[: max(0, room - 1)]}…"
    task = bar.add_task(rich.markup.escape(description), total=None)
    started = time.monotonic()
    updated = 0.0

    def update(done: int, total: int | None = None) -> None:
        nonlocal updated
        now = time.monotonic()
        if done != total and now - updated < _UPDATE_S:
            return
        updated = now
        bar.update(task, completed=done, total=total)
        if not bar.live.is_started and now - started > _QUIET_S:
            bar.start()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        try:
            yield update
        finally:
            bar.stop()
            for warning in caught:
                say(f"warning: {warning.message}")


def say(text: str) -> None:
    """Print a message to standard error."""
    err.print(f"penstock: {text}", markup=False)


# -- results ---------------------------------------------------------------------------------------


def show(text: str) -> None:
    """Print results in rich's markup, wrapped to a terminal; foreign text goes through `escape`."""
    out.print(text, soft_wrap=not (out.is_terminal or "COLUMNS" in os.environ))


def show_line(line: str) -> None:
    """Print a line of foreign text; one that starts with "# " is a heading."""
    text = escape(line.removeprefix("# "))
    show(text if text == escape(line) else f"\n[bold]{text}[/]")


def print_json(values: object) -> None:
    """Print the results as one JSON value."""
    sys.stdout.write(json.dumps(values, indent=2, allow_nan=False) + "\n")


def make_table(*headings: str, right: Sequence[str] = (), title: str = "") -> rich.table.Table:
    """Make a table without rows, in rich's markup; the columns `right` are aligned at the right."""
    table = rich.table.Table(
        box=rich.box.SIMPLE_HEAD, pad_edge=False, title=title or None, title_justify="left"
    )
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left", overflow="fold")
    return table


WIDE = 124
"""Columns of text of a table that leaves nothing out."""


def print_wide(table: rich.table.Table) -> None:
    """Print a table; if standard output is no terminal, its lines are whole."""
    wide = rich.console.Console(width=WIDE, highlight=False, emoji=False, stderr=out.stderr)
    (out if out.is_terminal else wide).print(table)


def draw_bar(count: int, most: int, columns: int) -> str:
    """Draw a bar of at most `columns` characters, in proportion to the highest count."""
    return "█" * round(columns * count / max(1, most)) or ("▏" if count else "")


def escape(text: str) -> str:
    """Escape foreign text, such as names of files, so that it is printed as it is."""
    return rich.markup.escape(text.encode("utf-8", "backslashreplace").decode())


# -- files -----------------------------------------------------------------------------------------


def check_writable(*paths: Path | None) -> None:
    """Raise UsageError, before any work, for paths that no file can have."""
    for path in paths:
        if path is not None and not path.absolute().parent.is_dir():
            raise UsageError(f"cannot write {path}: there is no folder {path.parent}")
        if path is not None and path.is_dir():
            raise UsageError(f"cannot write {path}: it is a folder; give the path of a file")


@contextmanager
def replace_file(path: Path) -> Iterator[IO[str]]:
    """Yield a file that replaces the file at the path once it is complete."""
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


def write_text(path: Path, text: str) -> None:
    """Write all of the text, or leave the file as it was."""
    with replace_file(path) as file:
        file.write(text)
