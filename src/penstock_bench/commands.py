"""Commands that the benchmark adds to `penstock`; pyproject.toml names them as entry points."""

from __future__ import annotations

from penstock.cli import LazyCommand

bench = LazyCommand(
    heading="Before a run",
    summary="DLIO and MLPerf Storage workloads, any loader, one report.",
    module="penstock_bench.cli.bench",
    extra="bench",
)
trace = LazyCommand(
    heading="During and after",
    summary="Record what a job reads, take it from logs, or look at it.",
    module="penstock_bench.cli.trace",
    extra="bench",
)
