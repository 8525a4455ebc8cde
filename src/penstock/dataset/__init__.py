"""Datasets: samples by number, opened from storage, selected, weighed, mixed or packed.

`open` returns a `Dataset` of a file, a folder or a URL. `select`, `split` and `weigh` return one of
some of its samples; `mix`, `pack` and `curriculum` make one of several datasets, of rows of
documents, or of stages. A dataset locates samples and makes orders of them; it reads one sample at
a time. Loaders read batches.
"""

from __future__ import annotations

from .bucketing import Buckets, bucket_orders, check_batch_tokens
from .curricula import curriculum
from .dataset import Dataset, list_saved_paths, locate_data, open, sidecar_paths
from .fields import Ragged, build_fields, open_samples
from .lengths import choose_saved_path, measure_lengths
from .mixing import mix
from .packing import PackedDataset, pack
from .reading import FieldReader, choose_gap, describe_failure, share_memory
from .row_counting import EpochRows, RowTablePlace
from .sample import Decode, LoadedSample, can_take_views, takes_views
from .saved_weights import load_weights, save_weights
from .weighing import WeightsOf

__all__ = [
    "Buckets",
    "Dataset",
    "Decode",
    "EpochRows",
    "FieldReader",
    "LoadedSample",
    "PackedDataset",
    "Ragged",
    "RowTablePlace",
    "WeightsOf",
    "bucket_orders",
    "build_fields",
    "can_take_views",
    "check_batch_tokens",
    "choose_gap",
    "choose_saved_path",
    "curriculum",
    "describe_failure",
    "list_saved_paths",
    "load_weights",
    "locate_data",
    "measure_lengths",
    "mix",
    "open",
    "open_samples",
    "pack",
    "save_weights",
    "share_memory",
    "sidecar_paths",
    "takes_views",
]
