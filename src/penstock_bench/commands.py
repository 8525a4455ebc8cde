"""Commands that the benchmark adds to `penstock`; pyproject.toml names them as entry points."""

from __future__ import annotations

from penstock.cli import AddedCommand

bench = AddedCommand(
    heading="Before a run",
    summary="DLIO and MLPerf Storage workloads, any loader, one report.",
    module="penstock_bench.cli.bench",
    extra="bench",
)
trace = AddedCommand(
    heading="During and after",
    summary="Record what a job reads, take it from logs, or look at it.",
    module="penstock_bench.cli.trace",
    extra="bench",
)
