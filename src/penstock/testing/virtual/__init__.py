"""A cluster in one thread and in virtual time, which runs the shipped session of the cache.

`run_scenario` drives one `penstock.plan.CacheSession` a rank over modelled memory, disks, storage
and a network, with faults that a seed draws, and watches what it does. `python -m
penstock.testing.virtual SEED` replays a seed.

The folder must not use a clock, a thread, a file or a socket: a run depends on its scenario alone.
"""

from __future__ import annotations

from .cluster import RunResult, run_scenario
from .node import ScenarioError
from .scenario import Fault, FaultKind, VirtualScenario, draw_scenario, minimise

__all__ = [
    "Fault",
    "FaultKind",
    "RunResult",
    "ScenarioError",
    "VirtualScenario",
    "draw_scenario",
    "minimise",
    "run_scenario",
]
