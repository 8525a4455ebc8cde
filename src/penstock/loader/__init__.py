"""Loaders: they turn a dataset and an order into batches, and hand these to the training loop.

Nouns: a `Loader` iterates over a `Dataset`: one walk is an epoch, and gives one `Batch` a step. A
field of a batch is an array or `Ragged`. A `StepSampler` says which samples a rank has in each
step. A `BatchTask` is one step's work for `Workers`, which run in the calling thread, in threads or
in processes. `decode` is the user's function of a sample; a `RowDecode` takes many at a time. An
`Explanation` says what bounds a run.

The folder drives engine, plan, cache and leased budget, and decides nothing that these decide: not
which sample comes next, not how bytes are read, not how hosts share them. It imports no framework:
torch's tensors come in through `Leaves`, from `penstock.torch`.
"""

from __future__ import annotations

from ..dataset import takes_views
from ..plan import LengthCost, fit_cost
from .auto_shuffle import AutoShuffle, choose_shuffle, describe_choice, record_choice
from .balancing import Balanced, Balancing, balance_costs, name_assignment
from .batch import Batch, BatchReader, choose_readahead
from .batch_tasks import BatchTask, EpochTasks, SamplerTasks, identify_data
from .collate import Arrays, Leaves, Pad, pad
from .decode import LoadedStep, RowDecode, RowReader, RowWriter
from .epoch import DeviceTransfer, EpochIterator, FunctionTransfer, OpenEpoch
from .explain import DecodeGain, Explanation, Setup, explain_run
from .loader import Loader
from .metrics import Endpoint, serve, serve_if_configured, trace
from .peer_check import compare_samples, find_ids
from .reweighing import Reweighing
from .sampler import StepSampler
from .sources import InlineSource, WorkerSource
from .step_reader import ReadResources, StepReader
from .ticket_router import TicketRouter
from .worker_processes import WorkerProcesses
from .workers import InlineWorkers, Workers, WorkerThreads

__all__ = [
    "Arrays",
    "AutoShuffle",
    "Balanced",
    "Balancing",
    "Batch",
    "BatchReader",
    "BatchTask",
    "DecodeGain",
    "DeviceTransfer",
    "Endpoint",
    "EpochIterator",
    "EpochTasks",
    "Explanation",
    "FunctionTransfer",
    "InlineSource",
    "InlineWorkers",
    "Leaves",
    "LengthCost",
    "LoadedStep",
    "Loader",
    "OpenEpoch",
    "Pad",
    "ReadResources",
    "Reweighing",
    "RowDecode",
    "RowReader",
    "RowWriter",
    "SamplerTasks",
    "Setup",
    "StepReader",
    "StepSampler",
    "TicketRouter",
    "WorkerProcesses",
    "WorkerSource",
    "WorkerThreads",
    "Workers",
    "balance_costs",
    "choose_readahead",
    "choose_shuffle",
    "compare_samples",
    "describe_choice",
    "explain_run",
    "find_ids",
    "fit_cost",
    "identify_data",
    "name_assignment",
    "pad",
    "record_choice",
    "serve",
    "serve_if_configured",
    "takes_views",
    "trace",
]
