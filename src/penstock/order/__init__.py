"""Orders: functions from the positions of an epoch to samples, and back, in constant memory.

`Order` shuffles one dataset, `WeightedOrder` picks its samples by their weights, `Mixture` draws
from several datasets, `Selection` takes any of these over the samples of a `Subset`, and a
`Curriculum` one after the other; all are an `Ordering`.
`choose_blocks` decides between exact and blocked shuffling, `shuffle_quality` measures an order,
`shuffle` moves the rows of an array, and `rng` gives each sample its random numbers.

All of it is pure arithmetic on integers. The folder must not know steps, ranks, files, bytes in
flight or time: `plan` divides positions among steps and ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy_exports import hand_out

if TYPE_CHECKING:
    from .augmentation import rng as rng
    from .mixture import Mixture as Mixture
    from .order import Order as Order
    from .order import Shuffle as Shuffle
    from .packed_order import PackedOrder as PackedOrder
    from .selection import Selection as Selection
    from .shuffling import label_mix as label_mix
    from .shuffling import shuffle as shuffle
    from .shuffling import shuffle_quality as shuffle_quality
    from .weighted import WeightedOrder as WeightedOrder
    from .weighted import WeightTable as WeightTable
else:
    __all__, __getattr__ = hand_out(
        __name__,
        {
            "mixture": "Mixture",
            "order": "Order Shuffle",
            "packed_order": "PackedOrder",
            "augmentation": "rng",
            "selection": "Selection",
            "shuffling": "label_mix shuffle shuffle_quality",
            "weighted": "WeightTable WeightedOrder",
        },
    )
