"""Commands whose modules are imported when they are called, by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class LazyCommand(NamedTuple):
    """A command as the help of its group shows it.

    heading:  section of the help.
    summary:  first paragraph of the command's own help.
    module:   dotted module with the command: its function of the command's name, or its `app`.
    extra:    extra of penstock with the packages of the command line and of the module.
    """

    heading: str
    summary: str
    module: str
    extra: str = "cli"


def find_added_commands() -> dict[str, LazyCommand]:
    """Find the commands of applications: entry points in the group `penstock.commands`."""
    import importlib.metadata  # 30 ms

    points = importlib.metadata.entry_points(group="penstock.commands")
    return {point.name: point.load() for point in points}


def explain_missing(package: str | None, arguments: Sequence[str]) -> str:
    """Describe how to install a package that a command line needs."""
    added = find_added_commands().get(arguments[0]) if arguments else None
    extra = added.extra if added else "cli"
    return f"penstock: the command line needs {package}: pip install 'penstock[{extra}]'"
