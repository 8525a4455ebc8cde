"""Plans: which rank processes which samples of a step, and which bytes that takes. All pure.

`Steps` divides the positions of an epoch among steps and ranks: by place, with `Locality` by the
nodes that keep the samples, or with `CostBalance` by what they cost. `plan_samples` turns samples
into a `StepPlan`: reads with their destinations. `Session` is one rank's walk through an epoch,
`Cursor` its resumable position. `Placement` says which node keeps which cache block, and `Soonest`
which replicas are worth keeping. `CacheSession` decides what a rank does with its node's cache; its
actions are in `cache_actions`.

The folder must not open files, wait, read a clock or know an engine: the loader and the cache do
what a plan says.
"""

from __future__ import annotations

from . import cache_actions
from .assignment import Locality, assign_nodes
from .balance import CostBalance
from .batch_layout import BatchLayout, FieldChunks, FieldRows, Ids, PlanSource, place_pieces
from .block_layout import BlockLayout, Keys
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
from .cache_session import CacheSession
from .cursor import Cursor, Identity
from .piece_source import check_tokens
from .placement import Placement
from .replica_policy import Soonest, Uses
from .sample_cost import CostRule, LengthCost, cost_by_width, fit_cost
from .session import Session
from .steps import Assignment, Group, StepPlan, StepRows, Steps, plan_samples

__all__ = [
    "Assignment",
    "BatchLayout",
    "BlockLayout",
    "CacheBlockChoice",
    "CacheSession",
    "CostBalance",
    "CostRule",
    "Cursor",
    "FieldChunks",
    "FieldRows",
    "Group",
    "Identity",
    "Ids",
    "Keys",
    "LengthCost",
    "Locality",
    "Placement",
    "PlanSource",
    "Session",
    "Soonest",
    "StepPlan",
    "StepRows",
    "Steps",
    "Uses",
    "assign_nodes",
    "cache_actions",
    "check_tokens",
    "choose_cache_block",
    "cost_by_width",
    "count_cache_blocks",
    "count_fitting",
    "fit_cost",
    "measure_cache_blocks",
    "place_pieces",
    "plan_samples",
    "required_bytes",
    "sample_key_lengths",
    "samples_per_block",
]
