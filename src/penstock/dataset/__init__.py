"""Datasets: samples by number, opened from storage, selected, weighed, mixed or packed.

`open` returns a `Dataset` of a file, a folder or a URL. `select`, `split` and `weigh` return one of
some of its samples; `mix`, `pack` and `curriculum` make one of several datasets, of rows of
documents, or of stages: its `kind` says what differs. A dataset locates samples and makes orders of
them; it reads one sample at a time. Loaders read batches.
"""

from __future__ import annotations

from .bucketing import Buckets, bucket_orders, check_batch_tokens
from .curricula import curriculum
from .dataset import Dataset, open
from .fields import Ragged, build_fields
from .measuring import measure_lengths
from .mixing import mix
from .packing import pack
from .reading import FieldReader, choose_gap, describe_failure, share_memory
from .row_counting import EpochRows, RowTablePlace
from .sample import Decode, LoadedSample, can_take_views, open_samples, takes_views
from .saved import Saved, load_weights, save_weights
from .sources import locate_data
from .weighing import WeightsOf

__all__ = [
    "Buckets",
    "Dataset",
    "Decode",
    "EpochRows",
    "FieldReader",
    "LoadedSample",
    "Ragged",
    "RowTablePlace",
    "Saved",
    "WeightsOf",
    "bucket_orders",
    "build_fields",
    "can_take_views",
    "check_batch_tokens",
    "choose_gap",
    "curriculum",
    "describe_failure",
    "load_weights",
    "locate_data",
    "measure_lengths",
    "mix",
    "open",
    "open_samples",
    "pack",
    "save_weights",
    "share_memory",
    "takes_views",
]
