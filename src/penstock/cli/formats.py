"""`penstock formats`: the formats that are read, and their options."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import rich.box
import rich.table
import typer

from ..index import FORMATS
from . import console


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
                "detected": entry.sniff is not None or entry.folder is not None,
            }
            for entry in FORMATS.values()
        ]
        sys.stdout.write(json.dumps(listed, indent=2) + "\n")
        return
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("format", "what", "where", "options"):
        table.add_column(heading, overflow="fold")
    for entry in FORMATS.values():
        table.add_row(
            entry.name, entry.summary, ", ".join(entry.kinds), ", ".join(entry.options) or "-"
        )
    console.out.print(table)
