"""`penstock formats`: the formats that are read, and their options."""

from __future__ import annotations

from typing import Annotated

import typer

from ..index import FORMATS
from . import console
from .interrupt import explain_interrupt


@explain_interrupt()
def formats(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list.")] = False,
) -> None:
    """List the formats that are read, and the options that each takes.

    Options are keyword arguments of [bold]penstock.open[/], and --option NAME=VALUE here.

    Examples:

      penstock formats

      penstock inspect /data/shards --option label=class
    """
    if as_json:
        listed = [
            {
                "name": entry.name,
                "summary": entry.summary,
                "kinds": list(entry.kinds),
                "options": list(entry.options),
                "detected": entry.detected,
            }
            for entry in FORMATS.values()
        ]
        console.print_json(listed)
        return
    table = console.make_table("format", "what", "where", "options")
    for entry in FORMATS.values():
        table.add_row(
            entry.name, entry.summary, ", ".join(entry.kinds), ", ".join(entry.options) or "-"
        )
    console.out.print(table)
