"""Simulation of one policy in one scenario, by either model."""

from __future__ import annotations

from typing import Literal, get_args

from penstock.arguments import check_choice, check_function, check_kind
from penstock.errors import UsageError

from . import fluid_model, parity
from .events import model as event_model
from .importance import Value, fedcase
from .scenario import ImportanceSampling, Result, Scenario

Model = Literal["corrected", "parity", "events"]
"""Model of the simulation."""


def simulate(
    scenario: Scenario, policy: str, model: Model = "corrected", *, value: Value | None = None
) -> Result:
    """Simulate one policy in one scenario. Raises UsageError, with the reason, if it cannot run.

    value: worth of samples, if `sampling` draws them by it; by default FedCaSe's.
    """
    check_kind("scenario", scenario, Scenario, "what penstock_sim.load_scenario returns")
    check_kind("policy", policy, str, "the name of one")
    check_function("value", value, "a penstock_sim.Value")
    if value is not None and not isinstance(scenario.sampling, ImportanceSampling):
        raise UsageError(
            f"value is given, and {scenario.name} draws nothing by it: give sampling.kind "
            "importance"
        )
    check_choice("model", model, get_args(Model))
    if model == "parity":
        return parity.simulate(scenario, policy)
    if model == "events":
        return event_model.simulate(scenario, policy)
    return fluid_model.simulate(scenario, policy, value or fedcase)
