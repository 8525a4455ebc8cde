"""The loader folder."""

from __future__ import annotations

from .auto_shuffle import AutoShuffle, choose_shuffle, describe_choice, record_choice
from .batch import Batch, Ragged, choose_gap, choose_readahead
from .batch_reader import BatchReader
from .batch_tasks import BatchTask, EpochTasks, OrderTasks, SamplerTasks, identify_data
from .dataset import Dataset, locate_data, open, sidecar_paths
from .decode import Decode
from .explain import Explanation, Setup, explain_run
from .loader import Loader
from .metrics import Endpoint, serve, serve_if_configured, trace
from .mixing import mix
from .sampler import StepSampler
from .worker_epoch import WorkerEpoch
from .worker_processes import WorkerProcesses
from .workers import InlineWorkers, Workers, WorkerThreads

__all__ = [
    "AutoShuffle",
    "Batch",
    "BatchReader",
    "BatchTask",
    "Dataset",
    "Decode",
    "Endpoint",
    "EpochTasks",
    "Explanation",
    "InlineWorkers",
    "Loader",
    "OrderTasks",
    "Ragged",
    "SamplerTasks",
    "Setup",
    "StepSampler",
    "WorkerEpoch",
    "WorkerProcesses",
    "WorkerThreads",
    "Workers",
    "choose_gap",
    "choose_readahead",
    "choose_shuffle",
    "describe_choice",
    "explain_run",
    "identify_data",
    "locate_data",
    "mix",
    "open",
    "record_choice",
    "serve",
    "serve_if_configured",
    "sidecar_paths",
    "trace",
]
