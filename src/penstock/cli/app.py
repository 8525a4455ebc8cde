"""The `penstock` command: groups of lazy commands, their help, and exit codes.

Results go to standard output, messages to standard error. An error that penstock foresees is one
message and exit code 1; Ctrl-C is exit code 130 and leaves nothing half-written.
"""

from __future__ import annotations

import errno
import importlib
import inspect
import os
import re
import select
import sys
import textwrap
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar

from .commands import COMMANDS, LazyCommand, explain_missing

try:
    import rich.console
    import rich.markup
    import typer
except ModuleNotFoundError as missing:
    raise SystemExit(explain_missing(missing.name, sys.argv[1:])) from None

from typer.core import TyperCommand, TyperGroup

from .. import __version__
from ..errors import PenstockError
from ..lazy_exports import COMPILED, explain_import_error


def arrange_help(text: str) -> tuple[str, list[str]]:
    """Divide a help into its text, in rich's markup, and its examples, one a line.

    Each paragraph becomes one line, wrapped to the terminal's width later; indented lines stay.
    """
    body, _, examples = inspect.cleandoc(text).partition("Examples:\n")
    paragraphs: list[str] = []
    for paragraph in body.strip().split("\n\n"):
        if paragraph.startswith(" "):
            lines = rich.markup.escape(textwrap.dedent(paragraph)).split("\n")
            # typer strips the common beginning of all lines: markup protects the indent.
            paragraphs[-1] += "".join(f"\n[not dim][/]  {line}" for line in lines)
        else:
            paragraphs.append(" ".join(paragraph.split("\n")))
    return "\n\n".join(paragraphs), [line.strip() for line in examples.split("\n") if line.strip()]


def _name_value(parameter: Any) -> str:
    """Name what an option takes, where it does not itself: SECONDS, a NUMBER, a PATH or a NAME."""
    if unit := re.search(r"_(seconds|hours)$", parameter.name):
        return unit[1].upper()
    described = getattr(parameter, "type_descriptor", None)  # of typer 0.29 and later
    kind = str(described.annotation if described else parameter.type)
    names = {r"\b(int|float)\b|INT|FLOAT|Range": "NUMBER", "Path": "PATH"}
    return next((name for kinds, name in names.items() if re.search(kinds, kind)), "NAME")


class _HelpMixin:
    """Help in words of people, without types of flags, and with examples that can be copied."""

    help: str | None

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options and arguments; a flag has no type, and no --no- form if it is off."""
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
                if not parameter.default:
                    parameter.secondary_opts, parameter.show_default = [], False
            elif parameter.param_type_name == "argument":
                parameter.metavar = parameter.metavar or parameter.name.upper()
                parameter.display_type_rich = lambda **_: None  # its name says it
            else:
                parameter.metavar = parameter.metavar or _name_value(parameter)
        return parameters

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show the help, then the examples, unwrapped so that they run when copied."""
        plain = self.help or ""
        self.help, examples = arrange_help(plain)
        try:
            super().format_help(ctx, formatter)  # type: ignore[misc]
        finally:
            self.help = plain
        terminal = rich.console.Console(highlight=False, soft_wrap=True)
        if examples:
            terminal.print("Examples:", style="bold")
        for example in examples:
            terminal.print(f"  {example}", markup=False)


class HelpedCommand(_HelpMixin, TyperCommand):
    """Command with our help."""


class HelpedGroup(_HelpMixin, TyperGroup):
    """Group with our help."""


class LazyGroup(HelpedGroup):
    """Group that imports a command's module when the command, or its help, is asked for.

    Until then a command without parameters, with its summary, is in its place.
    """

    lazy: ClassVar[Mapping[str, LazyCommand]]

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, command in self.lazy.items():
            summary = HelpedCommand(name, help=command.summary, rich_help_panel=command.heading)
            self.add_command(summary)

    def list_commands(self, ctx: Any) -> list[str]:
        """List the names of all commands, in the order of the table."""
        return list(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, or its summary; completion asks for its options."""
        if ctx.resilient_parsing and cmd_name in self.lazy:
            self.load(cmd_name)
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the first argument names."""
        if args[0] in self.lazy:
            self.load(args[0])
        return super().resolve_command(ctx, args)

    def load(self, name: str) -> Any:
        """Import the module of a command; the command takes the place of its summary."""
        command = _load_command(name, self.lazy[name])
        self.add_command(command, name)
        return command


def _load_command(name: str, lazy: LazyCommand) -> Any:
    try:
        module = importlib.import_module(lazy.module)
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0].startswith("penstock"):
            raise
        raise SystemExit(explain_missing(missing.name, [name])) from None
    if hasattr(module, "app"):
        return typer.main.get_group(module.app)
    holder = typer.Typer(add_completion=False, rich_markup_mode="rich")
    holder.command(name, cls=HelpedCommand)(getattr(module, name))
    return typer.main.get_command(holder)


def make_app(
    help: str, commands: Mapping[str, LazyCommand], *, completion: bool = False
) -> typer.Typer:
    """Make the typer app of a lazy group; with `completion`, for bash, zsh and fish, too."""
    app = typer.Typer(
        cls=type("LazyCommands", (LazyGroup,), {"lazy": commands}),
        help=help,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        add_completion=completion,
    )
    app.callback()(_callback)
    return app


def complete_names(names: Iterable[str], incomplete: str) -> list[str]:
    """Return the names that start with a word, for shells; without any they complete paths."""
    return [name for name in names if name.startswith(incomplete)]


def _show_version(asked: bool) -> None:
    if asked:
        print(f"penstock {__version__}")
        raise typer.Exit


def _callback(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Make typer take an app without commands as a group."""


app = make_app(
    """Training data from storage to accelerators: exact shuffles, explicit reads, exact resume.

    Examples:

      penstock demo

      penstock inspect /data/imagenet/train

      penstock doctor /data/imagenet/train --step-seconds 0.25 --ranks 8
    """,
    COMMANDS,
    completion=True,
)


def main() -> None:
    """Run the command line and exit."""
    _prepare_output()
    output = select.poll()
    output.register(os.dup(1), 0)
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # here, where a full disk can be told
    except (PenstockError, ImportError) as error:
        if isinstance(error, ImportError) and error.name not in COMPILED:
            raise
        from . import console  # not needed if all goes well

        text = str(error)
        if isinstance(error, ImportError):
            text = explain_import_error(str(error.name), text)
        console.say(text)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)  # 128 + SIGINT
    except SystemExit as end:
        # Libraries of the output end the process, with 1, if the reader has seen enough.
        if end.code != 1 or not output.poll(0):
            raise
        _drop_output()
        sys.exit(141)  # 128 + SIGPIPE
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EPIPE):
            raise
        _drop_output()
        if error.errno == errno.EPIPE:
            sys.exit(141)
        sys.exit(f"penstock: cannot write the output: {error.strerror}: make room for it")


def _prepare_output() -> None:
    """Let any text be printed: outputs that are closed take it, and so does any encoding."""
    while os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC) <= 2:
        pass  # a file that is opened later is no output
    for name in ("stdout", "stderr"):
        stream: Any = getattr(sys, name)
        if stream is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        elif hasattr(stream, "reconfigure"):  # no notebook's, nor a text in memory
            is_utf8 = stream.encoding.lower() in ("utf-8", "utf8")
            stream.reconfigure(errors="backslashreplace" if is_utf8 else "replace")


def _drop_output() -> None:
    """Write no more: Python's end would try it again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
