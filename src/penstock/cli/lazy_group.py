"""Groups of commands whose modules are imported when a command is called."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

try:
    import typer
except ModuleNotFoundError as missing:
    extra = "bench" if sys.argv[1:2] == ["bench"] else "cli"
    raise SystemExit(
        f"penstock: the command line needs {missing.name}: pip install 'penstock[{extra}]'"
    ) from None

from typer.core import TyperCommand, TyperGroup


class Entry(NamedTuple):
    """Command that is not imported yet.

    place:    `module:name` below penstock.cli, of a function or of a typer app.
    summary:  first paragraph of its help, for the help of the group.
    """

    place: str
    summary: str


class LazyGroup(TyperGroup):
    """Group that imports a command's module when the command, or its help, is asked for.

    Its own help shows the summaries, so that it appears without the packages of any command.
    """

    entries: ClassVar[Mapping[str, Entry]]

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, entry in self.entries.items():
            self.add_command(TyperCommand(name, help=entry.summary))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that the first argument names; it replaces its summary."""
        if args and args[0] in self.entries:
            self.add_command(load_command(args[0], self.entries[args[0]]), args[0])
        return super().resolve_command(ctx, args)


def make_app(group: type[LazyGroup], help: str) -> typer.Typer:
    """Make the typer app of a lazy group."""
    app = typer.Typer(
        cls=group,
        help=help,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        add_completion=False,
    )
    app.callback()(_keep_group)
    return app


def _keep_group() -> None:
    """Tell typer that an app without commands of its own is a group."""


def load_command(name: str, entry: Entry) -> Any:
    """Import the module of a command and make the command."""
    module, _, attribute = entry.place.partition(":")
    loaded = getattr(importlib.import_module(f".{module}", __package__), attribute)
    if isinstance(loaded, typer.Typer):
        return typer.main.get_group(loaded)
    holder = typer.Typer(add_completion=False, rich_markup_mode="rich")
    holder.command(name)(loaded)
    return typer.main.get_command(holder)
