"""Groups of commands whose modules are imported when a command is called."""

from __future__ import annotations

import importlib
import inspect
import sys
import textwrap
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from .added_command import AddedCommand, explain_missing

try:
    import rich.console
    import rich.markup
    import typer
except ModuleNotFoundError as missing:
    raise SystemExit(explain_missing(missing.name, sys.argv[1:])) from None

from typer.core import TyperCommand, TyperGroup

from .. import __version__
from ..errors import UsageError


def arrange_help(text: str) -> tuple[str, list[str]]:
    """Divide a help into its text, in rich's markup, and its examples, one a line.

    Paragraphs of the text are one line each, which the terminal's width divides; lines that are
    indented stay as they are.
    """
    told, _, examples = inspect.cleandoc(text).partition("Examples:\n")
    arranged: list[str] = []
    for paragraph in told.strip().split("\n\n"):
        if paragraph.startswith(" "):
            lines = rich.markup.escape(textwrap.dedent(paragraph)).split("\n")
            # typer strips what is common to the beginnings of lines: markup stands there.
            arranged[-1] += "".join(f"\n[not dim][/]  {line}" for line in lines)
        else:
            arranged.append(" ".join(paragraph.split("\n")))
    return "\n\n".join(arranged), [line.strip() for line in examples.split("\n") if line.strip()]


class _HelpMixin:
    """Help of a command or a group, whose flags and examples are shown our way."""

    help: str | None

    def get_params(self, ctx: Any) -> list[Any]:
        """Options and arguments; flags have no type, and those that are off need not be put off."""
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for each in parameters:
            if getattr(each, "is_flag", False):
                each.metavar = ""
                if not each.default:
                    each.secondary_opts, each.show_default = [], False
        return parameters

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show the help, and the examples at its end: the terminal wraps them, so that what is
        copied from it runs."""
        plain = self.help or ""
        self.help, examples = arrange_help(plain)
        try:
            super().format_help(ctx, formatter)  # type: ignore[misc]
        finally:
            self.help = plain
        shown = rich.console.Console(highlight=False, soft_wrap=True)
        if examples:
            shown.print("Examples:", style="bold")
        for example in examples:
            shown.print(f"  {example}", markup=False)


class HelpedCommand(_HelpMixin, TyperCommand):
    """Command whose flags and examples are shown our way."""


class HelpedGroup(_HelpMixin, TyperGroup):
    """Group whose flags and examples are shown our way."""


class LazyGroup(HelpedGroup):
    """Group that imports a command's module when the command, or its help, is asked for.

    added:  the commands by name, with the first paragraph of the help of each. The help of the
               group shows them, so that it appears without the packages of any command.
    """

    added: ClassVar[Mapping[str, AddedCommand]]

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, command in self.added.items():
            shown = HelpedCommand(name, help=command.summary, rich_help_panel=command.heading)
            self.add_command(shown)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Find a command; completion asks for its options, so that it replaces its summary."""
        if ctx.resilient_parsing and cmd_name in self.added:
            self.load(cmd_name)
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that the first argument names; it replaces its summary."""
        if args and args[0] in self.added:
            self.load(args[0])
        return super().resolve_command(ctx, args)

    def load(self, name: str) -> Any:
        """Import the module of a command and return the command, in place of its summary."""
        command = load_command(name, self.added[name])
        self.add_command(command, name)
        return command


def make_app(
    help: str,
    sections: Mapping[str, Mapping[str, str]],
    package: str,
    *,
    extra: str = "cli",
    added: Mapping[str, AddedCommand] | None = None,
    completion: bool = False,
) -> typer.Typer:
    """Make the typer app of a lazy group.

    sections:    the summaries of the group's own commands, by heading and name.
    package:     the package whose modules, one a command, have them.
    extra:       the extra that installs what these modules import.
    added:       commands of applications, shown under their headings after the group's own.
    completion:  it has --install-completion and --show-completion, for bash, zsh and fish.
    """
    commands = {
        name: AddedCommand(heading, summary, f"{package}.{name}", extra)
        for heading, summaries in sections.items()
        for name, summary in summaries.items()
    }
    headings = list(sections)
    commands |= added or {}
    ordered = sorted(commands.items(), key=lambda item: headings.index(item[1].heading))
    app = typer.Typer(
        cls=type("LazyCommands", (LazyGroup,), {"added": dict(ordered)}),
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


def load_command(name: str, command: AddedCommand) -> Any:
    """Import the module of a command and make the command: its `app`, or its function by name.

    UsageError if the module needs a package that is not installed.
    """
    try:
        module = importlib.import_module(command.module)
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0].startswith("penstock"):
            raise
        raise UsageError(
            f"penstock {name} needs {missing.name}: pip install 'penstock[{command.extra}]'"
        ) from None
    if hasattr(module, "app"):
        return typer.main.get_group(module.app)
    holder = typer.Typer(add_completion=False, rich_markup_mode="rich")
    holder.command(name, cls=HelpedCommand)(getattr(module, name))
    return typer.main.get_command(holder)
