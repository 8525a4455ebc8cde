"""Names that shells complete for `penstock bench`: workloads and loaders."""

from __future__ import annotations

from penstock.cli import complete_names


def complete_workload(incomplete: str) -> list[str]:
    """Names of workloads."""
    from penstock_bench import preset_names

    return complete_names(preset_names(), incomplete)


def complete_loader(incomplete: str) -> list[str]:
    """Names of loaders."""
    from penstock_bench import PACKAGES

    return complete_names(PACKAGES, incomplete)
