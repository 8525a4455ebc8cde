"""The loader folder."""

from __future__ import annotations

from .auto_shuffle import AutoShuffle, decide, record_of, told
from .batch import Batch, Ragged, gap_for, readahead_for
from .batch_reader import BatchReader
from .batch_tasks import Epochs, Ordered, Sampled, Task, fingerprint_of
from .dataset import Dataset, locate, open, sidecar_paths
from .decode import Decode
from .explain import Explanation, Setup, explain_run
from .loader import Loader
from .metrics import serve_if_asked
from .mixing import mix
from .sampler import Course
from .worker_epoch import Walk
from .worker_processes import WorkerProcesses
from .workers import Inline, Workers, WorkerThreads

__all__ = [
    "AutoShuffle",
    "Batch",
    "BatchReader",
    "Course",
    "Dataset",
    "Decode",
    "Epochs",
    "Explanation",
    "Inline",
    "Loader",
    "Ordered",
    "Ragged",
    "Sampled",
    "Setup",
    "Task",
    "Walk",
    "WorkerProcesses",
    "WorkerThreads",
    "Workers",
    "decide",
    "explain_run",
    "fingerprint_of",
    "gap_for",
    "locate",
    "mix",
    "open",
    "readahead_for",
    "record_of",
    "serve_if_asked",
    "sidecar_paths",
    "told",
]
