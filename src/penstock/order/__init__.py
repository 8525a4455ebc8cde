"""The order folder."""

from __future__ import annotations

from . import shuffle_array
from .feistel_numpy import TABLE_COUNT_MAX, Permutation, Words
from .mixture import Mixture, Recipe, Unit, Weights, slots_of
from .order import Marks, Order, Ordering, Shuffle, shuffle_of, words_of
from .quality import shuffle_quality
from .random_numbers import rng
from .shuffle_array import shuffle
from .shuffle_blocks import Blocking, Measured, choose_bands, choose_blocks, window_samples

__all__ = [
    "TABLE_COUNT_MAX",
    "Blocking",
    "Marks",
    "Measured",
    "Mixture",
    "Order",
    "Ordering",
    "Permutation",
    "Recipe",
    "Shuffle",
    "Unit",
    "Weights",
    "Words",
    "choose_bands",
    "choose_blocks",
    "rng",
    "shuffle",
    "shuffle_array",
    "shuffle_of",
    "shuffle_quality",
    "slots_of",
    "window_samples",
    "words_of",
]
