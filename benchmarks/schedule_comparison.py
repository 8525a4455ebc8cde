"""Comparison of PerSched with the online rules for given jobs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from penstock.arguments import check_choice
from penstock.errors import LimitError, UsageError
from penstock_sim.schedule import (
    RULES,
    Objective,
    Pattern,
    PeriodicJob,
    Rule,
    ScheduleOutcome,
    fluid_bounds,
    plan_periodic,
    simulate,
)
from penstock_sim.schedule.periodic import require_jobs

_worth = 1e-3
"""Part by which a pattern must be better: it is for jobs as given, a rule follows them."""


Outcomes = tuple[tuple[Rule, ScheduleOutcome], ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Outcomes of the rules and of the pattern, and the winner.

    winner:   the pattern, or a rule.
    reason:   for it, with figures.
    rules:    each rule with its outcome.
    pattern:  None if it would be too long to be searched for.
    bounds:   that no schedule exceeds.
    """

    winner: Pattern | Rule
    reason: str
    rules: Outcomes
    pattern: Pattern | None
    bounds: ScheduleOutcome


def compare(
    jobs: Sequence[PeriodicJob],
    bandwidth: float,
    objective: Objective = "efficiency",
    rules: Sequence[Rule] = RULES,
    outcomes: Outcomes = (),
) -> Comparison:
    """Compare PerSched with online rules by one objective; between equal rules the other decides.

    Rules are simulated, patterns computed. A pattern wins where it is better than every rule by
    more than 0.1 %: a rule needs no plan, and goes on where jobs drift, come or leave. Seconds for
    ten jobs, as `plan_periodic`.

    outcomes:  of the rules, if they have been simulated for these jobs, as by the other objective.
    """
    require_jobs(jobs, bandwidth)
    check_choice("objective", objective, get_args(Objective))
    if not rules:
        raise UsageError("rules is empty: give one Rule or more")
    outcomes = outcomes or tuple((rule, simulate(jobs, bandwidth, rule)) for rule in rules)
    other: Objective = "dilation" if objective == "efficiency" else "efficiency"
    rule, best = max(
        outcomes,
        key=lambda pair: (round(pair[1].score(objective), 4), pair[1].score(other)),
    )
    text = f"{rule.name} has {_describe(best, objective)}"
    bounds = fluid_bounds(jobs, bandwidth)
    try:
        pattern = plan_periodic(jobs, bandwidth, objective=objective)
    except LimitError as error:
        return Comparison(
            rule, f"{text}; no pattern was searched for: {error}", outcomes, None, bounds
        )
    gained = pattern.outcome.score(objective) - best.score(objective)
    wins = gained > _worth * abs(best.score(objective))
    reason = f"{text}, the best pattern {_describe(pattern.outcome, objective)}"
    return Comparison(pattern if wins else rule, reason, outcomes, pattern, bounds)


def _describe(got: ScheduleOutcome, objective: Objective) -> str:
    return f"{objective} {getattr(got, objective):.4f}"
