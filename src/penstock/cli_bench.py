"""`penstock bench`: DLIO's workloads, with any loader."""

from __future__ import annotations

import typer

from .cli_generate import generate

app = typer.Typer(
    help="DLIO and MLPerf Storage workloads: generate data, run, compare.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
app.command()(generate)
