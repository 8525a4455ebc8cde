"""Names that shells complete for `penstock simulate` and `plan`: scenarios and policies."""

from __future__ import annotations

from typing import get_args

from penstock.cli import complete_names


def complete_scenario(incomplete: str) -> list[str]:
    """Names of scenarios."""
    from penstock_sim import list_scenarios

    return complete_names(list_scenarios(), incomplete)


def complete_policy(incomplete: str) -> list[str]:
    """Names of policies."""
    from penstock_sim import Policy

    return complete_names(get_args(Policy), incomplete)
