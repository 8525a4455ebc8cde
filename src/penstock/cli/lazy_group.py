"""Groups of commands whose modules are imported when a command is called."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

try:
    import typer
except ModuleNotFoundError as missing:
    extra = "bench" if sys.argv[1:2] == ["bench"] else "cli"
    raise SystemExit(
        f"penstock: the command line needs {missing.name}: pip install 'penstock[{extra}]'"
    ) from None

from typer.core import TyperCommand, TyperGroup

from .. import __version__


class LazyGroup(TyperGroup):
    """Group that imports a command's module when the command, or its help, is asked for.

    summaries:  first paragraph of the help of each command. The help of the group shows them, so
                that it appears without the packages of any command.
    """

    summaries: ClassVar[Mapping[str, str]]

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, summary in self.summaries.items():
            self.add_command(TyperCommand(name, help=summary))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Find a command; completion asks for its options, so that it replaces its summary."""
        if ctx.resilient_parsing and cmd_name in self.summaries:
            self.add_command(load_command(cmd_name), cmd_name)
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that the first argument names; it replaces its summary."""
        if args and args[0] in self.summaries:
            self.add_command(load_command(args[0]), args[0])
        return super().resolve_command(ctx, args)


def make_app(help: str, summaries: Mapping[str, str], *, completion: bool = False) -> typer.Typer:
    """Make the typer app of a lazy group of these commands.

    completion:  it has --install-completion and --show-completion, for bash, zsh and fish.
    """
    app = typer.Typer(
        cls=type("LazyCommands", (LazyGroup,), {"summaries": summaries}),
        help=help,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        add_completion=completion,
    )
    app.callback()(_begin)
    return app


def _show_version(asked: bool) -> None:
    if asked:
        print(f"penstock {__version__}")
        raise typer.Exit


def _begin(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Tell typer that an app without commands of its own is a group."""


def load_command(name: str) -> Any:
    """Import the module of a command and make the command: its `app`, or its function by name."""
    module = importlib.import_module(f".{name}", __package__)
    if hasattr(module, "app"):
        return typer.main.get_group(module.app)
    holder = typer.Typer(add_completion=False, rich_markup_mode="rich")
    holder.command(name)(getattr(module, name))
    return typer.main.get_command(holder)
