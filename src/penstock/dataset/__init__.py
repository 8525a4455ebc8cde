"""Datasets: samples by number, opened from storage, selected, weighed, mixed or packed.

`open` returns a `Dataset` of a file, a folder or a URL. `select`, `split` and `weigh` return one of
some of its samples, `join` one with more fields; `mix`, `pack` and `curriculum` make one of several
datasets, of rows of documents, or of stages: its `kind` says what differs. A dataset locates
samples and makes orders of them; it reads one sample at a time. Loaders read batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy_exports import hand_out

if TYPE_CHECKING:
    from .dataset import Dataset as Dataset
    from .dataset import open as open
    from .fields import Ragged as Ragged
    from .joining import join as join
    from .measuring import measure_lengths as measure_lengths
    from .mixing import curriculum as curriculum
    from .mixing import mix as mix
    from .packing import Buckets as Buckets
    from .packing import pack as pack
else:
    __all__, __getattr__ = hand_out(
        __name__,
        {
            "dataset": "Dataset open",
            "fields": "Ragged",
            "joining": "join",
            "measuring": "measure_lengths",
            "mixing": "curriculum mix",
            "packing": "Buckets pack",
        },
    )
