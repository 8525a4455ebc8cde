"""PerSched or an online rule: which is better for given jobs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import LimitError, UsageError
from .jobs import Objective, Outcome, PeriodicJob, fluid_bounds, require_jobs, require_objective
from .online import RULES, Rule, simulate
from .persched import Pattern, plan_periodic

_worth = 1e-3
"""A pattern must be better by this part: it is for jobs as they were told, and a rule follows."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was found, and what wins.

    winner:   the pattern, or a rule.
    reason:   why, with figures.
    rules:    each rule with what it gives.
    pattern:  None where it would be too long to be searched for.
    bounds:   what nothing exceeds.
    """

    winner: Pattern | Rule
    reason: str
    rules: tuple[tuple[Rule, Outcome], ...]
    pattern: Pattern | None
    bounds: Outcome


def compare(
    jobs: Sequence[PeriodicJob],
    bandwidth: float,
    objective: Objective = "efficiency",
    rules: Sequence[Rule] = RULES,
) -> Comparison:
    """PerSched held against online rules by one objective; between equal rules the other decides.

    Rules are simulated, patterns reckoned. A pattern wins where it is better than every rule by
    more than 0.1 %: a rule needs no plan, and goes on where jobs drift, come or leave. Seconds for
    ten jobs, as `plan_periodic`.
    """
    require_jobs(jobs, bandwidth)
    require_objective(objective)
    if not rules:
        raise UsageError("rules is empty: give one Rule or more")
    found = tuple((rule, simulate(jobs, bandwidth, rule)) for rule in rules)
    other: Objective = "dilation" if objective == "efficiency" else "efficiency"
    rule, best = max(
        found, key=lambda each: (round(each[1].score(objective), 4), each[1].score(other))
    )
    told = f"{rule.name} has {_told(best, objective)}"
    bounds = fluid_bounds(jobs, bandwidth)
    try:
        pattern = plan_periodic(jobs, bandwidth, objective=objective)
    except LimitError as error:
        return Comparison(
            rule, f"{told}; no pattern was searched for: {error}", found, None, bounds
        )
    gained = pattern.outcome.score(objective) - best.score(objective)
    wins = gained > _worth * abs(best.score(objective))
    reason = f"{told}, the best pattern {_told(pattern.outcome, objective)}"
    return Comparison(pattern if wins else rule, reason, found, pattern, bounds)


def _told(got: Outcome, objective: Objective) -> str:
    return f"{objective} {getattr(got, objective):.4f}"
