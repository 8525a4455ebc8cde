"""A cluster in one thread and in virtual time, which runs the shipped session of the cache, the
shipped reader of steps, the shipped protocol of checkpoints, and the shipped broker with its
clients.

`run_scenario` drives one `penstock.plan.CacheSession` a rank over modelled memory, disks, storage
and a network, with faults that a seed draws, and watches what it does. `python -m
tests.virtual SEED` replays a seed.

`run_job_scenario` drives on top of that what a rank of a training job does
(`penstock.loader.StepReader` and `TicketRouter`, `penstock.plan.Session`, `Steps` and `Cursor`),
for attempts of worlds of any size that go on from each other's states; `python -m
tests.virtual job SEED` replays a seed.

`run_checkpoint_scenario` drives `penstock.checkpoint` over modelled storage, for
the ranks of jobs that follow each other or write at once, over modelled files and objects; `python
-m tests.virtual checkpoint SEED` replays a seed.

`run_broker_scenario` drives brokers, the loaders that they lease to, and transfers
(`penstock.sharing`), over modelled connections; `python -m tests.virtual broker SEED`
replays a seed.

The folder must not use a clock, a thread, a file or a socket: a run depends on its scenario alone.
"""

from __future__ import annotations

from tests.virtual.broker_cluster import BrokerResult, run_broker_scenario
from tests.virtual.broker_process import SharingParts
from tests.virtual.broker_scenario import (
    BrokerFault,
    BrokerFaultKind,
    BrokerJob,
    BrokerScenario,
    draw_broker_scenario,
)
from tests.virtual.checkpoint_cluster import CheckpointResult, run_checkpoint_scenario
from tests.virtual.checkpoint_scenario import (
    CheckpointFault,
    CheckpointFaultKind,
    CheckpointJob,
    CheckpointScenario,
    draw_checkpoint_scenario,
)
from tests.virtual.checkpoint_storage import VirtualBucket, VirtualFiles
from tests.virtual.cluster import RunResult, run_scenario
from tests.virtual.job_cluster import JobParts, JobResult, run_job_scenario
from tests.virtual.job_scenario import JobScenario, draw_job_scenario
from tests.virtual.node import ScenarioError
from tests.virtual.scenario import Fault, FaultKind, VirtualScenario, draw_scenario
from tests.virtual.search import minimise

__all__ = [
    "BrokerFault",
    "BrokerFaultKind",
    "BrokerJob",
    "BrokerResult",
    "BrokerScenario",
    "CheckpointFault",
    "CheckpointFaultKind",
    "CheckpointJob",
    "CheckpointResult",
    "CheckpointScenario",
    "Fault",
    "FaultKind",
    "JobParts",
    "JobResult",
    "JobScenario",
    "RunResult",
    "ScenarioError",
    "SharingParts",
    "VirtualBucket",
    "VirtualFiles",
    "VirtualScenario",
    "draw_broker_scenario",
    "draw_checkpoint_scenario",
    "draw_job_scenario",
    "draw_scenario",
    "minimise",
    "run_broker_scenario",
    "run_checkpoint_scenario",
    "run_job_scenario",
    "run_scenario",
]
