"""`penstock bench`: DLIO's workloads, with any loader."""

from __future__ import annotations

from penstock.cli import LazyCommand, complete_names, make_app

_SUMMARIES = {
    "list": "List the workloads that come along: what each reads, and how long a run takes at "
    "least.",
    "generate": "Write the data of a workload, or what is missing of it.",
    "run": "Run a workload of DLIO or MLPerf Storage, with one loader or several, and say what is "
    "slow.",
    "compare": "Compare results: each figure, its ratio to the first, and whether that is more "
    "than noise.",
    "replay": "Do a recorded job's reads again: here, elsewhere, faster, and by penstock.",
}

app = make_app(
    """DLIO and MLPerf Storage workloads, any loader, one report.

    Examples:

      penstock bench list

      penstock bench run default --generate ++workload.train.epochs=2

      penstock bench compare monday/record.json friday/record.json
    """,
    {
        name: LazyCommand("Commands", summary, f"penstock_bench.cli.{name}", "bench")
        for name, summary in _SUMMARIES.items()
    },
)


def complete_workload(incomplete: str) -> list[str]:
    """Names of workloads."""
    from ..workload import preset_names

    return complete_names(preset_names(), incomplete)


def complete_loader(incomplete: str) -> list[str]:
    """Names of loaders."""
    from ..contenders import PACKAGES

    return complete_names(PACKAGES, incomplete)
