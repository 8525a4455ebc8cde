"""Command that an application adds to `penstock`."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from typing import NamedTuple


class AddedCommand(NamedTuple):
    """Command of an application, as the help of `penstock` shows it.

    heading:  the section of the help.
    summary:  the first paragraph of the command's own help.
    module:   the dotted module that has the command: its `app`, or its function of that name.
    extra:    the extra of penstock that installs the command line and what the module imports.
    """

    heading: str
    summary: str
    module: str
    extra: str


def find_added_commands() -> dict[str, AddedCommand]:
    """Find the commands of applications, by their entry points."""
    return {
        entry.name: entry.load()
        for entry in importlib.metadata.entry_points(group="penstock.commands")
    }


def explain_missing(missing: str | None, arguments: Sequence[str]) -> str:
    """Return the sentence for a command line without a package that it needs."""
    added = find_added_commands().get(arguments[0]) if arguments else None
    extra = added.extra if added else "cli"
    return f"penstock: the command line needs {missing}: pip install 'penstock[{extra}]'"
