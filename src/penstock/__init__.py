"""penstock: training data from storage to accelerators.

ds = penstock.open("/data/images")
for batch in penstock.Loader(ds, batch_size=256, seed=0):
    ...
"""

from .budget import Budget
from .cache import Cache
from .errors import (
    ChangedError,
    CollateError,
    DataError,
    ForkError,
    FormatError,
    LimitError,
    MissingError,
    PenstockError,
    SidecarError,
    StalledError,
    StateError,
    StorageError,
    UsageError,
    WorkerError,
)
from .index import Index
from .loader import Batch, Dataset, Loader, Ragged, mix, open
from .order import Order, rng, shuffle, shuffle_quality

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "Budget",
    "Cache",
    "ChangedError",
    "CollateError",
    "DataError",
    "Dataset",
    "ForkError",
    "FormatError",
    "Index",
    "LimitError",
    "Loader",
    "MissingError",
    "Order",
    "PenstockError",
    "Ragged",
    "SidecarError",
    "StalledError",
    "StateError",
    "StorageError",
    "UsageError",
    "WorkerError",
    "mix",
    "open",
    "rng",
    "shuffle",
    "shuffle_quality",
]
