"""`penstock bench`: DLIO's workloads, with any loader."""

from __future__ import annotations

import sys

import typer

from . import exits
from .cli_run import run

app = typer.Typer(
    help="DLIO and MLPerf Storage workloads: generate data, run, compare.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    add_completion=False,
)
app.command()(run)


@app.callback()
def _commands() -> None:
    """DLIO and MLPerf Storage workloads: generate data, run, compare."""


def main() -> None:
    """Run `penstock bench ...` and exit."""
    exits.run(lambda: app(sys.argv[2:], prog_name="penstock bench"))
