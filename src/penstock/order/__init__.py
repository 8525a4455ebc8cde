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
    from .mixture import Mixture as Mixture
    from .order import Order as Order
    from .order import Shuffle as Shuffle
    from .packed_order import PackedOrder as PackedOrder
    from .quality import label_mix as label_mix
    from .quality import shuffle_quality as shuffle_quality
    from .sample_seeds import rng as rng
    from .selection import Selection as Selection
    from .shuffle_array import shuffle as shuffle
    from .weighted import WeightedOrder as WeightedOrder
    from .weighted import WeightTable as WeightTable
else:
    __all__, __getattr__ = hand_out(
        __name__,
        {
            "mixture": "Mixture",
            "order": "Order Shuffle",
            "packed_order": "PackedOrder",
            "quality": "label_mix shuffle_quality",
            "sample_seeds": "rng",
            "selection": "Selection",
            "shuffle_array": "shuffle",
            "weighted": "WeightTable WeightedOrder",
        },
    )
