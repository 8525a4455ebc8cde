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

from typing import TYPE_CHECKING

from ..lazy_exports import hand_out

if TYPE_CHECKING:
    from . import cache_actions as cache_actions
    from .assignment import Locality as Locality
    from .assignment import assign_nodes as assign_nodes
    from .batch_layout import Ids as Ids
    from .cache_blocks import count_fitting as count_fitting
    from .cache_keys import Keys as Keys
    from .cache_keys import SampleKeys as SampleKeys
    from .cache_session import CacheSession as CacheSession
    from .cursor import Cursor as Cursor
    from .placement import Placement as Placement
    from .readahead import Session as Session
    from .steps import Group as Group
    from .steps import StepPlan as StepPlan
    from .steps import Steps as Steps
else:
    __all__, __getattr__ = hand_out(
        __name__,
        {
            "assignment": "Locality assign_nodes",
            "batch_layout": "Ids",
            "cache_actions": "cache_actions",
            "cache_blocks": "count_fitting",
            "cache_keys": "Keys SampleKeys",
            "cache_session": "CacheSession",
            "cursor": "Cursor",
            "placement": "Placement",
            "readahead": "Session",
            "steps": "Group StepPlan Steps",
        },
    )
