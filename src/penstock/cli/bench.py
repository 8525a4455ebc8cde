"""`penstock bench`: DLIO's workloads, with any loader."""

from __future__ import annotations

from typing import ClassVar

from .lazy_group import Entry, LazyGroup, make_app


class _BenchCommands(LazyGroup):
    """Commands of `penstock bench`."""

    entries: ClassVar = {
        "generate": Entry(
            "generate:generate",
            "Write the data of a workload, or what is missing of it.",
        ),
        "run": Entry(
            "run:run",
            "Run a workload of DLIO or MLPerf Storage, with one loader or several, "
            "and say what is slow.",
        ),
        "compare": Entry(
            "compare:compare",
            "Compare results: each figure, its ratio to the first, and whether "
            "that is more than noise.",
        ),
        "replay": Entry(
            "replay:replay",
            "Do a recorded job's reads again: here, elsewhere, faster, and by penstock.",
        ),
    }


app = make_app(_BenchCommands, "DLIO and MLPerf Storage workloads, any loader, one report.")
