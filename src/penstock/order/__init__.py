"""Orders: functions from the positions of an epoch to samples, and back, in constant memory.

`Order` shuffles one dataset, `Mixture` draws from several by weights, and `Selection` takes either
over the samples of a `Subset`; all are an `Ordering`.
`choose_blocks` decides between exact and blocked shuffling, `shuffle_quality` measures an order,
`shuffle` moves the rows of an array, and `rng` gives each sample its random numbers.

All of it is pure arithmetic on integers. The folder must not know steps, ranks, files, bytes in
flight or time: `plan` divides positions among steps and ranks.
"""

from __future__ import annotations

from . import shuffle_array
from .bitmap import Bitmap, JointBitmap, Subset, allot_words, map_numbers, set_bits
from .keys import TABLE_COUNT_MAX, Words, derive_cipher_key, hash_words
from .mixture import Mixture, MixtureRecipe, Unit, Weights, divide_slots
from .order import Marks, Order, Ordering, Shuffle, check_words, key_state, parse_shuffle
from .quality import label_mix, shuffle_quality
from .random_numbers import derive_sample_seed, rng
from .selection import Selection, find_base
from .shuffle_array import shuffle
from .shuffle_blocks import Blocking, ReadCost, choose_blocks, choose_chunk_blocks, window_samples

__all__ = [
    "TABLE_COUNT_MAX",
    "Bitmap",
    "Blocking",
    "JointBitmap",
    "Marks",
    "Mixture",
    "MixtureRecipe",
    "Order",
    "Ordering",
    "ReadCost",
    "Selection",
    "Shuffle",
    "Subset",
    "Unit",
    "Weights",
    "Words",
    "allot_words",
    "check_words",
    "choose_blocks",
    "choose_chunk_blocks",
    "derive_cipher_key",
    "derive_sample_seed",
    "divide_slots",
    "find_base",
    "hash_words",
    "key_state",
    "label_mix",
    "map_numbers",
    "parse_shuffle",
    "rng",
    "set_bits",
    "shuffle",
    "shuffle_array",
    "shuffle_quality",
    "window_samples",
]
