"""penstock: training data from storage to accelerators.

ds = penstock.open("/data/images")
for batch in penstock.Loader(ds, batch_size=256, seed=0):
    ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .lazy_exports import find_platform_fault, hand_out

if _fault := find_platform_fault():
    raise ImportError(_fault)

if TYPE_CHECKING:
    from . import checkpoint as checkpoint
    from . import convert as convert
    from . import dataset as dataset
    from . import errors as errors
    from . import images as images
    from . import limits as limits
    from . import loader as loader
    from . import order as order
    from . import sharing as sharing
    from . import tasks as tasks
    from . import testing as testing
    from . import torch as torch
    from .budget import Budget as Budget
    from .cache import Cache as Cache
    from .dataset import Buckets as Buckets
    from .dataset import Dataset as Dataset
    from .dataset import Ragged as Ragged
    from .dataset import curriculum as curriculum
    from .dataset import join as join
    from .dataset import mix as mix
    from .dataset import open as open
    from .dataset import pack as pack
    from .errors import PenstockError as PenstockError
    from .index import Index as Index
    from .loader import Balanced as Balanced
    from .loader import Batch as Batch
    from .loader import Loader as Loader
    from .loader import pad as pad
    from .order import Order as Order
    from .order import rng as rng
    from .ranks import Place as Place
    from .trainers import composer as composer
    from .trainers import grain as grain
    from .trainers import jax as jax
    from .trainers import keras as keras
    from .trainers import lightning as lightning
    from .trainers import megatron as megatron
    from .trainers import ray as ray
    from .trainers import torchdata as torchdata
    from .trainers import torchtitan as torchtitan
    from .trainers import transformers as transformers
else:
    __all__, __getattr__ = hand_out(
        __name__,
        {
            "budget": "Budget",
            "cache": "Cache",
            "errors": "PenstockError",
            "index": "Index",
            "dataset": "Buckets Dataset Ragged curriculum join mix open pack",
            "loader": "Balanced Batch Loader pad",
            "order": "Order rng",
            "ranks": "Place",
        },
        folders="checkpoint convert dataset errors images limits loader order sharing tasks "
        "testing torch trainers.composer trainers.grain trainers.jax trainers.keras "
        "trainers.lightning trainers.megatron trainers.ray trainers.torchdata trainers.torchtitan "
        "trainers.transformers",
    )

__version__ = "0.1.0"
