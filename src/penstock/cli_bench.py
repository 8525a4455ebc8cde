"""`penstock bench`: the commands of the benchmark."""

from __future__ import annotations

import typer

from .cli_compare import compare
from .cli_generate import generate
from .cli_replay import replay

app = typer.Typer(
    help="DLIO and MLPerf Storage workloads, any loader, one report.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


@app.callback()
def _commands() -> None:
    """DLIO and MLPerf Storage workloads, any loader, one report."""


app.command()(generate)
app.command()(compare)
app.command()(replay)
