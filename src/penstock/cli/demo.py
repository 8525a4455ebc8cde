"""`penstock demo`: what penstock promises, shown on data made for it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import console
from .commands import show_demo, show_race
from .console import explain_interrupt
from .options import setting


@explain_interrupt("the data were removed, unless --folder keeps them: name another folder then")
def demo(
    path: Annotated[
        str | None, typer.Argument(help="A folder of your images: race over them instead.")
    ] = None,
    folder: Path | None = setting(
        None, "Empty or new folder for the data, which is kept; else none is kept."
    ),
) -> None:
    """Show what penstock does: an exact shuffle, kill -9 and an exact resume, a race.

    Draws 2,400 small images and 105 MB of records, trains on them in numpy, and takes about ten
    seconds on two cores. Needs no other package and no compiler. Exit code 1 if a promise fails.
    With PATH it only races over your files, and writes nothing.

    Examples:

      penstock demo

      penstock demo --folder /data/penstock-demo

      penstock demo ~/pictures
    """
    if path is not None:
        show_race(path, console.show_line)
    elif not show_demo(folder, console.show_line):
        raise typer.Exit(1)
