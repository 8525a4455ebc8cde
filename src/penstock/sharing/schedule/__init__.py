"""Schedules of storage that several share: plans made before, and rules for the moment. Pure.

    who shares                           what                           modules
    jobs that compute, then transfer     `plan_periodic`, online rules, persched online comparison
                                         and which of them to use
    readers that ask targets, unordered  `stagger`                      colouring
    tasks that follow each other         `two_tasks`, `list_schedule`   exclusive

Each comes with the bound that no schedule can be below; where it is not always reached, the
docstring says so. Requests that wait for one engine are another matter: `penstock.engine.queue`.
"""

from __future__ import annotations

from .colouring import stagger
from .comparison import Comparison, compare
from .exclusive import SHARED, list_schedule, lower_bound, two_task_bound, two_tasks
from .jobs import Objective, Outcome, PeriodicJob, fluid_bounds
from .online import RULES, Rule, Waiting, grant, simulate
from .persched import Pattern, Stretch, plan_periodic

__all__ = [
    "RULES",
    "SHARED",
    "Comparison",
    "Objective",
    "Outcome",
    "Pattern",
    "PeriodicJob",
    "Rule",
    "Stretch",
    "Waiting",
    "compare",
    "fluid_bounds",
    "grant",
    "list_schedule",
    "lower_bound",
    "plan_periodic",
    "simulate",
    "stagger",
    "two_task_bound",
    "two_tasks",
]
