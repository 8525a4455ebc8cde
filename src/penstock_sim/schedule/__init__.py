"""Schedules of storage that several share: plans made before, and rules for the moment. Pure.

    sharers                              schedule                       modules
    jobs that compute, then transfer     `plan_periodic`, online rules  persched periodic
    readers that ask targets, unordered  `stagger`                      slots
    tasks that follow each other         `two_tasks`, `list_schedule`   slots

Each comes with the bound that no schedule can be below. If the bound is not always reached, the
docstring says so. Requests that wait for one engine are another matter (`engine.request_queue`).
The folder knows no clock, no network and no broker: its functions compute.
"""

from __future__ import annotations

from .periodic import (
    RULES,
    Objective,
    PeriodicJob,
    Rule,
    ScheduleOutcome,
    fluid_bounds,
    simulate,
)
from .persched import Pattern, TransferStretch, plan_periodic
from .slots import SHARED, list_schedule, lower_bound, stagger, two_task_bound, two_tasks

__all__ = [
    "RULES",
    "SHARED",
    "Objective",
    "Pattern",
    "PeriodicJob",
    "Rule",
    "ScheduleOutcome",
    "TransferStretch",
    "fluid_bounds",
    "list_schedule",
    "lower_bound",
    "plan_periodic",
    "simulate",
    "stagger",
    "two_task_bound",
    "two_tasks",
]
