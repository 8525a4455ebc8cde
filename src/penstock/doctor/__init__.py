"""The doctor folder."""

from __future__ import annotations

from .doctor import Examination, PlannedJob, examine, examine_folder, is_empty
from .roofline import (
    DataProfile,
    Demand,
    Resource,
    Roofline,
    RunCounts,
    Supply,
    computing_supply,
    estimate_roofline,
    judge_run,
    staging_supply,
)

__all__ = [
    "DataProfile",
    "Demand",
    "Examination",
    "PlannedJob",
    "Resource",
    "Roofline",
    "RunCounts",
    "Supply",
    "computing_supply",
    "estimate_roofline",
    "examine",
    "examine_folder",
    "is_empty",
    "judge_run",
    "staging_supply",
]
