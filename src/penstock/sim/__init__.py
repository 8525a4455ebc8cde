"""The simulator: what a policy of caching and prefetching takes, on a cluster that is described.

    scenario = penstock.sim.load("s1")  # or a path; names() lists those that come along
    result = penstock.sim.simulate(scenario, "penstock")

Two models: "corrected", in which bandwidth that is shared is shared, and "parity", the published
simulator of clairvoyant prefetching with its faults. docs/simulator.md states both.
"""

from __future__ import annotations

from typing import Literal, get_args

from ..errors import UsageError
from . import corrected, parity
from .importance import Value, fedcase
from .results import SOURCES, Result
from .scenario import POLICIES, SAMPLED, Importance, Policy, Scenario, load, names, parse

__all__ = [
    "POLICIES",
    "SAMPLED",
    "SOURCES",
    "Model",
    "Policy",
    "Result",
    "Scenario",
    "Value",
    "load",
    "names",
    "parse",
    "simulate",
]

Model = Literal["corrected", "parity"]
"""Which simulator."""


def simulate(
    scenario: Scenario, policy: str, model: Model = "corrected", *, value: Value | None = None
) -> Result:
    """One policy in one scenario. Raises UsageError, with the reason, where it cannot run.

    value: what samples are worth, where `sampling` draws them by it; by default FedCaSe's.
    """
    if value is not None and not isinstance(scenario.sampling, Importance):
        raise UsageError(
            f"value is given, and {scenario.name} draws nothing by it: give sampling.kind "
            "importance"
        )
    if model not in get_args(Model):
        raise UsageError(f"model is {model!r}: use one of {', '.join(get_args(Model))}")
    if model == "parity":
        return parity.simulate(scenario, policy)
    return corrected.simulate(scenario, policy, value or fedcase)
