"""Loaders: they turn a dataset and an order into batches, and hand these to the training loop.

A `Loader` iterates over a `Dataset`: one walk is an epoch, and gives one `Batch` a step. A field
of a batch is an array or `Ragged`. A `StepSampler` says which samples a rank has in each
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
    from .balancing import Balanced as Balanced
    from .balancing import LengthCost as LengthCost
    from .balancing import fit_cost as fit_cost
    from .batch import Batch as Batch
    from .collate import pad as pad
    from .decode import RowDecode as RowDecode
    from .decode import takes_views as takes_views
    from .loader import Loader as Loader
    from .metrics import serve as serve
    from .metrics import trace as trace
else:
    __all__, __getattr__ = hand_out(
        __name__,
        {
            "balancing": "Balanced LengthCost fit_cost",
            "batch": "Batch",
            "collate": "pad",
            "decode": "RowDecode takes_views",
            "loader": "Loader",
            "metrics": "serve trace",
        },
    )
