"""The doctor folder."""

from __future__ import annotations

from .doctor import Examination, Job, examine, examine_folder, is_empty
from .roofline import (
    Counted,
    Data,
    Demand,
    Resource,
    Roofline,
    Supply,
    computing,
    estimate_roofline,
    staging,
    verdict,
)

__all__ = [
    "Counted",
    "Data",
    "Demand",
    "Examination",
    "Job",
    "Resource",
    "Roofline",
    "Supply",
    "computing",
    "estimate_roofline",
    "examine",
    "examine_folder",
    "is_empty",
    "staging",
    "verdict",
]
