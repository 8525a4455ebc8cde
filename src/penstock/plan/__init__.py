"""The plan folder."""

from __future__ import annotations

from .assignment import Locality, assign_nodes
from .cache_blocks import (
    CacheBlockChoice,
    choose_cache_block,
    count_cache_blocks,
    count_fitting,
    measure_cache_blocks,
    required_bytes,
    sample_key_lengths,
    samples_per_block,
)
from .cursor import Cursor, Identity
from .placement import Placement
from .replica_policy import Soonest, Uses
from .rotation import rotation_start
from .session import Session
from .steps import Assignment, FieldRows, Group, Ids, StepPlan, Steps, place_pieces, plan_samples

__all__ = [
    "Assignment",
    "CacheBlockChoice",
    "Cursor",
    "FieldRows",
    "Group",
    "Identity",
    "Ids",
    "Locality",
    "Placement",
    "Session",
    "Soonest",
    "StepPlan",
    "Steps",
    "Uses",
    "assign_nodes",
    "choose_cache_block",
    "count_cache_blocks",
    "count_fitting",
    "measure_cache_blocks",
    "place_pieces",
    "plan_samples",
    "required_bytes",
    "rotation_start",
    "sample_key_lengths",
    "samples_per_block",
]
