"""Orders: functions from the positions of an epoch to samples, and back, in constant memory.

`Order` shuffles one dataset, `Mixture` draws from several by weights; both are an `Ordering`.
`choose_blocks` decides between exact and blocked shuffling, `shuffle_quality` measures an order,
`shuffle` moves the rows of an array, and `rng` gives each sample its random numbers.

All of it is pure arithmetic on integers. The folder must not know steps, ranks, files, bytes in
flight or time: `plan` divides positions among steps and ranks.
"""

from __future__ import annotations

from . import shuffle_array
from .keys import TABLE_COUNT_MAX, Words, derive_cipher_key
from .mixture import Mixture, MixtureRecipe, Unit, Weights, divide_slots
from .order import Marks, Order, Ordering, Shuffle, check_words, key_state, parse_shuffle
from .quality import label_mix, shuffle_quality
from .random_numbers import derive_sample_seed, rng
from .shuffle_array import shuffle
from .shuffle_blocks import Blocking, ReadCost, choose_blocks, choose_chunk_blocks, window_samples

__all__ = [
    "TABLE_COUNT_MAX",
    "Blocking",
    "Marks",
    "Mixture",
    "MixtureRecipe",
    "Order",
    "Ordering",
    "ReadCost",
    "Shuffle",
    "Unit",
    "Weights",
    "Words",
    "check_words",
    "choose_blocks",
    "choose_chunk_blocks",
    "derive_cipher_key",
    "derive_sample_seed",
    "divide_slots",
    "key_state",
    "label_mix",
    "parse_shuffle",
    "rng",
    "shuffle",
    "shuffle_array",
    "shuffle_quality",
    "window_samples",
]
