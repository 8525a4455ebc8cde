"""`penstock bench`: DLIO's workloads, with any loader."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable

try:
    import typer
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"penstock: the command line needs {missing.name}: pip install 'penstock[bench]'"
    ) from None

from . import exit_codes

COMMANDS = {
    "generate": "generate",
    "run": "run",
    "compare": "compare",
    "replay": "replay",
}
"""The commands, and the modules that they are in."""

_HELP = "DLIO and MLPerf Storage workloads, any loader, one report."


def app(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """The command line of these commands; of others nothing is imported."""
    made = typer.Typer(
        help=_HELP,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        add_completion=False,
    )
    made.callback()(_bench)
    for name in names:
        module = importlib.import_module(f".{COMMANDS[name]}", __package__)
        made.command(name)(getattr(module, name))
    return made


def _bench() -> None:
    """DLIO and MLPerf Storage workloads, any loader, one report."""


def main() -> None:
    """Run `penstock bench ...` and exit."""
    asked = [name for name in sys.argv[2:3] if name in COMMANDS]
    exit_codes.run(lambda: app(asked or COMMANDS)(sys.argv[2:], prog_name="penstock bench"))
