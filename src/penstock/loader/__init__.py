"""Loaders: they turn a dataset and an order into batches, and hand these to the training loop.

Nouns: a `Loader` iterates over a `Dataset`: one walk is an epoch, and gives one `Batch` a step. A
field of a batch is an array or `Ragged`. A `StepSampler` says which samples a rank has in each
step. A `BatchTask` is one step's work for `Workers` that run in the calling thread, in threads or
in processes. `decode` is the user's function of a sample; a `RowDecode` takes many at a time. An
`Explanation` says what bounds a run.

The folder drives engine, plan, cache and leased budget, and decides nothing that these decide: not
which sample comes next, not how bytes are read, not how hosts share them. It imports no framework:
torch's tensors come in through `Leaves`, from `penstock.torch`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy_exports import hand_out

if TYPE_CHECKING:
    from .auto_shuffle import AutoShuffle as AutoShuffle
    from .auto_shuffle import choose_shuffle as choose_shuffle
    from .auto_shuffle import describe_choice as describe_choice
    from .auto_shuffle import record_choice as record_choice
    from .balancing import Balanced as Balanced
    from .balancing import Balancing as Balancing
    from .balancing import LengthCost as LengthCost
    from .balancing import balance_costs as balance_costs
    from .balancing import fit_cost as fit_cost
    from .balancing import name_assignment as name_assignment
    from .batch import Batch as Batch
    from .batch import BatchReader as BatchReader
    from .batch import choose_readahead as choose_readahead
    from .batch_tasks import BatchTask as BatchTask
    from .batch_tasks import EpochTasks as EpochTasks
    from .batch_tasks import SamplerTasks as SamplerTasks
    from .batch_tasks import identify_data as identify_data
    from .collate import Arrays as Arrays
    from .collate import Leaves as Leaves
    from .collate import Pad as Pad
    from .collate import pad as pad
    from .decode import LoadedStep as LoadedStep
    from .decode import RowDecode as RowDecode
    from .decode import RowReader as RowReader
    from .decode import RowWriter as RowWriter
    from .decode import takes_views as takes_views
    from .epoch import DeviceTransfer as DeviceTransfer
    from .epoch import EpochIterator as EpochIterator
    from .epoch import FunctionTransfer as FunctionTransfer
    from .epoch import OpenEpoch as OpenEpoch
    from .explain import DecodeGain as DecodeGain
    from .explain import Explanation as Explanation
    from .explain import Setup as Setup
    from .explain import explain_run as explain_run
    from .loader import Loader as Loader
    from .metrics import Endpoint as Endpoint
    from .metrics import serve as serve
    from .metrics import serve_if_configured as serve_if_configured
    from .metrics import trace as trace
    from .peer_check import compare_samples as compare_samples
    from .peer_check import find_ids as find_ids
    from .reweighing import Reweighing as Reweighing
    from .sampler import StepSampler as StepSampler
    from .sources import InlineSource as InlineSource
    from .sources import WorkerSource as WorkerSource
    from .step_reader import ReadResources as ReadResources
    from .step_reader import StepReader as StepReader
    from .step_reader import TicketRouter as TicketRouter
    from .worker_processes import WorkerProcesses as WorkerProcesses
    from .workers import InlineWorkers as InlineWorkers
    from .workers import Workers as Workers
    from .workers import WorkerThreads as WorkerThreads
else:
    __all__, __getattr__ = hand_out(
        __name__,
        {
            "auto_shuffle": "AutoShuffle choose_shuffle describe_choice record_choice",
            "balancing": "Balanced Balancing LengthCost balance_costs fit_cost name_assignment",
            "batch": "Batch BatchReader choose_readahead",
            "batch_tasks": "BatchTask EpochTasks SamplerTasks identify_data",
            "collate": "Arrays Leaves Pad pad",
            "decode": "LoadedStep RowDecode RowReader RowWriter takes_views",
            "epoch": "DeviceTransfer EpochIterator FunctionTransfer OpenEpoch",
            "explain": "DecodeGain Explanation Setup explain_run",
            "loader": "Loader",
            "metrics": "Endpoint serve serve_if_configured trace",
            "peer_check": "compare_samples find_ids",
            "reweighing": "Reweighing",
            "sampler": "StepSampler",
            "sources": "InlineSource WorkerSource",
            "step_reader": "ReadResources StepReader TicketRouter",
            "worker_processes": "WorkerProcesses",
            "workers": "InlineWorkers Workers WorkerThreads",
        },
    )
