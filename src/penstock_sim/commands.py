"""Commands that the simulator adds to `penstock`; pyproject.toml names them as entry points."""

from __future__ import annotations

from penstock.cli import LazyCommand

simulate = LazyCommand(
    heading="Before a run",
    summary="Simulate policies of caching and prefetching on a cluster that is described.",
    module="penstock_sim.cli.simulate",
    extra="sim",
)
plan = LazyCommand(
    heading="Before a run",
    summary="Find the cheapest cluster whose epochs are short enough: nodes, caches and storage.",
    module="penstock_sim.cli.plan",
    extra="sim",
)
schedule = LazyCommand(
    heading="Before a run",
    summary="Plan when jobs transfer through a storage that they share.",
    module="penstock_sim.cli.schedule",
    extra="sim",
)
