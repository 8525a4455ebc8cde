"""`penstock bench list`: the workloads that come along."""

from __future__ import annotations

from penstock.cli import AsJson, console, explain_interrupt
from penstock.cli.quantities import duration


@explain_interrupt()
def list(as_json: AsJson = False) -> None:
    """List the workloads that come along: what each reads, and how long a run takes at least.

    At least is the computation of all epochs by one rank; waiting for data comes on top. What an
    override changes, such as ++workload.train.epochs=1, changes both.

    Examples:

      penstock bench list

      penstock bench list --json | jq .[].name
    """
    from ..workload import describe_preset, preset_names

    rows = [(name, describe_preset(name), _estimate_least_s(name)) for name in preset_names()]
    if as_json:
        keys = ("name", "summary", "least_s")
        console.print_json([dict(zip(keys, row, strict=True)) for row in rows])
        return
    table = console.make_table("workload", "at least", "what", right=("at least",))
    for name, summary, least_s in rows:
        least = "" if least_s is None else duration(least_s)
        table.add_row(name, least, console.escape(summary))
    console.print_wide(table)


def _estimate_least_s(name: str) -> float | None:
    """Seconds that one rank computes; None for a workload that only saves checkpoints."""
    from ..workload import read_workload

    workload = read_workload(name, warn=lambda _: None)
    train = workload.train
    if not workload.workflow.train:
        return None
    steps = workload.steps(1) * train.epochs
    return min(steps, train.total_training_steps or steps) * train.computation_time.mean
