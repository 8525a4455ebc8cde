"""`penstock formats`: the formats that are read, and their options."""

from __future__ import annotations

from ..index.formats.registry import FORMATS
from . import console
from .console import explain_interrupt
from .options import AsJson


@explain_interrupt()
def formats(as_json: AsJson = False) -> None:
    """List the formats that are read, and the options that each takes.

    Options are keyword arguments of [bold]penstock.open[/], and --option NAME=VALUE here.

    Examples:

      penstock formats

      penstock inspect /data/shards --option label=class
    """
    if as_json:
        rows = [
            {
                "name": entry.name,
                "summary": entry.summary,
                "kinds": list(entry.kinds),
                "options": list(entry.options),
                "detected": entry.detected,
            }
            for entry in FORMATS.values()
        ]
        console.print_json(rows)
        return
    table = console.make_table("format", "what", "where", "options")
    for entry in FORMATS.values():
        options = ", ".join(entry.options) or "-"
        table.add_row(entry.name, entry.summary, ", ".join(entry.kinds), options)
    console.out.print(table)
