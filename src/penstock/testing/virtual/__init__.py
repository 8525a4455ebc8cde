"""A cluster in one thread and in virtual time, which runs the shipped session of the cache, and the
shipped protocol of checkpoints.

`run_scenario` drives one `penstock.plan.CacheSession` a rank over modelled memory, disks, storage
and a network, with faults that a seed draws, and watches what it does. `python -m
penstock.testing.virtual SEED` replays a seed.

`run_checkpoint_scenario` drives the protocol of checkpoints, `penstock.checkpoint.protocol`, for
the ranks of jobs that follow each other or write at once, over modelled files and objects; `python
-m penstock.testing.virtual checkpoint SEED` replays a seed.

The folder must not use a clock, a thread, a file or a socket: a run depends on its scenario alone.
"""

from __future__ import annotations

from .checkpoint_cluster import CheckpointResult, run_checkpoint_scenario
from .checkpoint_scenario import (
    CheckpointFault,
    CheckpointFaultKind,
    CheckpointJob,
    CheckpointScenario,
    draw_checkpoint_scenario,
)
from .checkpoint_search import minimise_checkpoint
from .checkpoint_storage import VirtualBucket, VirtualFiles
from .cluster import RunResult, run_scenario
from .node import ScenarioError
from .scenario import Fault, FaultKind, VirtualScenario, draw_scenario, minimise

__all__ = [
    "CheckpointFault",
    "CheckpointFaultKind",
    "CheckpointJob",
    "CheckpointResult",
    "CheckpointScenario",
    "Fault",
    "FaultKind",
    "RunResult",
    "ScenarioError",
    "VirtualBucket",
    "VirtualFiles",
    "VirtualScenario",
    "draw_checkpoint_scenario",
    "draw_scenario",
    "minimise",
    "minimise_checkpoint",
    "run_checkpoint_scenario",
    "run_scenario",
]
