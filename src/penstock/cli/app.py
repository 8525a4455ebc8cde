"""`penstock index | inspect | doctor | formats | convert | simulate | plan | broker | top |
bench | trace | checkpoint`.

Results go to standard output, messages to standard error. An error that penstock foresees is one
message and exit code 1; Ctrl-C is exit code 130 and leaves nothing half-written.
"""

from __future__ import annotations

from typing import ClassVar

from . import exit_codes
from .lazy_group import Entry, LazyGroup, make_app


class _TopCommands(LazyGroup):
    """Commands and groups of `penstock`."""

    entries: ClassVar = {
        "index": Entry(
            "index:index",
            "Find the samples of a data set and save where they are, beside the data.",
        ),
        "inspect": Entry(
            "inspect:inspect",
            "Show what a data set is: samples, sizes, labels, the state of its "
            "index. Writes nothing.",
        ),
        "formats": Entry(
            "formats:formats",
            "List the formats that are read, and the options that each takes.",
        ),
        "convert": Entry(
            "convert:convert",
            "Write a data set as tar (WebDataset), TFRecord, records or LMDB, and verify it.",
        ),
        "simulate": Entry(
            "simulate:simulate",
            "Simulate policies of caching and prefetching on a cluster that is described.",
        ),
        "plan": Entry(
            "plan:plan",
            "Find the cheapest cluster whose epochs are short enough: nodes, caches and storage.",
        ),
        "schedule": Entry(
            "schedule:schedule", "Plan when jobs transfer through a storage that they share."
        ),
        "doctor": Entry(
            "doctor:doctor",
            "Say what will be slow, and why: storage, memory, cores, limits, "
            "settings. Writes nothing.",
        ),
        "broker": Entry(
            "broker:broker",
            "Share this host's cores and storage bandwidth among the jobs on it.",
        ),
        "top": Entry(
            "top:top",
            "Show the jobs that share this host: what each holds, brings, and waits for.",
        ),
        "bench": Entry("bench:app", "DLIO and MLPerf Storage workloads, any loader, one report."),
        "trace": Entry("trace:app", "Record what a job reads, take it from logs, or look at it."),
        "checkpoint": Entry(
            "checkpoint:app",
            "Checkpoints: list them, verify them, remove old ones; how often to save one.",
        ),
    }


app = make_app(_TopCommands, "Training data from storage to accelerators: look at data, index it.")


def main() -> None:
    """Run the command line and exit."""
    exit_codes.run_and_exit(app)


if __name__ == "__main__":
    main()
