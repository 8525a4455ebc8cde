"""The plan folder."""

from __future__ import annotations

from .assignment import Locality, seat
from .cache_blocks import (
    LotChoice,
    choose_lot,
    key_lengths,
    lot_statistics,
    lots_fitting,
    lots_in,
    room_for,
    samples_in,
)
from .cursor import Cursor, Identity
from .placement import Placement
from .replica_policy import Soonest, Uses
from .rotation import beginning
from .session import Session
from .steps import Assignment, Group, Ids, Rows, StepPlan, Steps, pieced, plan_samples

__all__ = [
    "Assignment",
    "Cursor",
    "Group",
    "Identity",
    "Ids",
    "Locality",
    "LotChoice",
    "Placement",
    "Rows",
    "Session",
    "Soonest",
    "StepPlan",
    "Steps",
    "Uses",
    "beginning",
    "choose_lot",
    "key_lengths",
    "lot_statistics",
    "lots_fitting",
    "lots_in",
    "pieced",
    "plan_samples",
    "room_for",
    "samples_in",
    "seat",
]
