"""Plans: which rank processes which samples of a step, and which bytes that takes. All pure.

`Steps` divides the positions of an epoch among steps and ranks, by place or, with `Locality`, by
the nodes that keep the samples. `plan_samples` turns samples into a `StepPlan`: reads with their
destinations. `Session` is one rank's walk through an epoch, `Cursor` its resumable position.
`Placement` says which node keeps which cache block, and `Soonest` which replicas are worth keeping.

The folder must not open files, wait, read a clock or know an engine: the loader and the cache do
what a plan says.
"""

from __future__ import annotations

from .assignment import Locality, assign_nodes
from .batch_layout import BatchLayout, FieldChunks, FieldRows, Ids, place_pieces
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
from .steps import Assignment, Group, StepPlan, Steps, plan_samples

__all__ = [
    "Assignment",
    "BatchLayout",
    "CacheBlockChoice",
    "Cursor",
    "FieldChunks",
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
