"""Names that shells complete, beside paths: of workloads, scenarios, policies, loaders and formats.

A function gives the names that begin as a word does; where there are none, bash and zsh complete
paths.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args


def complete_workload(incomplete: str) -> list[str]:
    """Names of workloads of `penstock bench`."""
    from ..bench import preset_names

    return _begin(preset_names(), incomplete)


def complete_loader(incomplete: str) -> list[str]:
    """Names of loaders that `penstock bench` knows."""
    from ..bench import PACKAGES

    return _begin(PACKAGES, incomplete)


def complete_scenario(incomplete: str) -> list[str]:
    """Names of scenarios of the simulator."""
    from ..sim import list_scenarios

    return _begin(list_scenarios(), incomplete)


def complete_policy(incomplete: str) -> list[str]:
    """Names of policies that the simulator knows."""
    from ..sim import Policy

    return _begin(get_args(Policy), incomplete)


def complete_format(incomplete: str) -> list[str]:
    """Names of formats that are read."""
    from ..index import FORMATS

    return _begin(FORMATS, incomplete)


def _begin(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
