"""The terminal: what every command says, and how.

Results go to standard output (`out`), messages and progress to standard error (`err`).
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from .quantities import duration, number

try:
    import rich.box
    import rich.console
    import rich.markup
    import rich.progress
    import rich.table
    import rich.text
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"penstock: the command line needs {missing.name}: pip install 'penstock[cli]'"
    ) from None

out = rich.console.Console(highlight=False, soft_wrap=True, emoji=False)
err = rich.console.Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)

_QUIET_S = 2.0
"""Time after which progress is shown."""

_TOLD_S = 0.05
"""Shortest time between two updates of a bar."""


_PACE_COLUMNS = 52
"""Columns of text of a spinner and a pace: the rest is for what is done, and a bar if it fits."""

_BAR_COLUMNS = 21


class _Pace(rich.progress.ProgressColumn):
    """How many were seen, the rate, and the time left, or the time so far if nobody knows."""

    def __init__(self, of: str) -> None:
        super().__init__(rich.table.Column(no_wrap=True))
        self._of = of

    def render(self, task: rich.progress.Task) -> rich.text.Text:
        """Describe a task; "bytes" are shown in the largest fitting unit."""

        def count(value: float) -> str:
            return format_bytes(value) if self._of == "bytes" else f"{value:,.0f}"

        done = count(task.completed)
        if task.total is not None:
            done += f" of {count(task.total)}"
        parts = [done if self._of == "bytes" else f"{done} {self._of}"]
        if speed := task.finished_speed or task.speed:
            rate = format_bytes(speed) if self._of == "bytes" else number(speed)
            parts.append(f"{rate}/s")
        if task.time_remaining is not None:
            parts.append(f"{duration(task.time_remaining)} left")
        else:
            parts.append(duration(task.elapsed or 0.0))
        return rich.text.Text(", ".join(parts))


@contextmanager
def show_progress(what: str, of: str = "files") -> Iterator[Callable[..., None]]:
    """Yield a callback that shows, from two seconds on, how many were seen so far, and of how
    many if that is known."""
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
    shown = what if len(what) <= room else f"{what[: max(0, room - 1)]}…"
    task = bar.add_task(rich.markup.escape(shown), total=None)
    started = time.monotonic()
    said = 0.0

    def seen(done: int, total: int | None = None) -> None:
        nonlocal said
        now = time.monotonic()
        if done != total and now - said < _TOLD_S:
            return
        said = now
        bar.update(task, completed=done, total=total)
        if not bar.live.is_started and time.monotonic() - started > _QUIET_S:
            bar.start()

    try:
        yield seen
    finally:
        bar.stop()


@contextmanager
def print_warnings() -> Iterator[None]:
    """Print warnings as messages, without the line of code that they come from."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield
        finally:
            for warning in caught:
                say(f"warning: {warning.message}")


def say(text: str) -> None:
    """Print a message, beside the results."""
    err.print(f"penstock: {text}", markup=False)


def show(text: str) -> None:
    """Print a line of the results, in rich's markup: foreign text goes through `escape`."""
    out.print(text)


def print_json(values: object) -> None:
    """Print the results as one JSON value."""
    sys.stdout.write(json.dumps(values, indent=2, allow_nan=False) + "\n")


def make_table(*headings: str, right: Sequence[str] = (), title: str = "") -> rich.table.Table:
    """Make a table without rows, in rich's markup.

    right:  headings of columns of numbers, which are aligned at the right.
    """
    table = rich.table.Table(
        box=rich.box.SIMPLE_HEAD, pad_edge=False, title=title or None, title_justify="left"
    )
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left", overflow="fold")
    return table


WIDE = 124
"""Columns of text of a table that leaves nothing out."""


def print_wide(table: rich.table.Table) -> None:
    """Print a table; where standard output is no terminal, its lines are whole."""
    wide = rich.console.Console(width=WIDE, highlight=False, emoji=False, stderr=out.stderr)
    (out if out.is_terminal else wide).print(table)


def draw_bar(count: int, most: int, columns: int) -> str:
    """Bar of at most so many columns of text, in proportion to the highest count."""
    return "█" * round(columns * count / max(1, most)) or ("▏" if count else "")


def escape(text: str) -> str:
    """Escape foreign text, such as names of files, so that it is printed as it is."""
    printable = text.encode("utf-8", "backslashreplace").decode()
    return rich.markup.escape(printable)


def format_bytes(count: float) -> str:
    """Bytes in the largest fitting unit: 1.5 MiB."""
    if count < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        count /= 1024
        if count < 1024:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:,.1f} PiB"
