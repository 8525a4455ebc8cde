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

from . import shuffle_array
from .buckets import BucketRule, SizeRule
from .curriculum import Curriculum, StageUnit
from .keys import TABLE_COUNT_MAX, Words, derive_cipher_key, hash_words
from .mixture import Mixture, MixtureRecipe, Unit, Weights, divide_slots
from .order import (
    Marks,
    Order,
    Ordering,
    Shuffle,
    check_words,
    key_state,
    list_instruction_sets,
    parse_shuffle,
)
from .packing import (
    JoinedDocuments,
    JoinedOrder,
    LongDocuments,
    PackedOrder,
    PackingRule,
    ReadLengths,
    RowOrdering,
    RowPieces,
    choose_window,
    count_joined_rows,
)
from .quality import label_mix, shuffle_quality
from .random_numbers import derive_epoch_key, derive_sample_seed, rng
from .row_counts import RowCounter, RowCounts
from .selection import (
    Bitmap,
    JointBitmap,
    Selection,
    Subset,
    allot_words,
    find_base,
    map_numbers,
    set_bits,
)
from .shuffle_array import shuffle
from .shuffle_blocks import Blocking, ReadCost, choose_blocks, choose_chunk_blocks, window_samples
from .token_rows import PlacedPieces, ignored_label, lay_out_tokens, place_pieces
from .weighted import WeightedOrder, WeightTable, round_weights

__all__ = [
    "TABLE_COUNT_MAX",
    "Bitmap",
    "Blocking",
    "BucketRule",
    "Curriculum",
    "JoinedDocuments",
    "JoinedOrder",
    "JointBitmap",
    "LongDocuments",
    "Marks",
    "Mixture",
    "MixtureRecipe",
    "Order",
    "Ordering",
    "PackedOrder",
    "PackingRule",
    "PlacedPieces",
    "ReadCost",
    "ReadLengths",
    "RowCounter",
    "RowCounts",
    "RowOrdering",
    "RowPieces",
    "Selection",
    "Shuffle",
    "SizeRule",
    "StageUnit",
    "Subset",
    "Unit",
    "WeightTable",
    "WeightedOrder",
    "Weights",
    "Words",
    "allot_words",
    "check_words",
    "choose_blocks",
    "choose_chunk_blocks",
    "choose_window",
    "count_joined_rows",
    "derive_cipher_key",
    "derive_epoch_key",
    "derive_sample_seed",
    "divide_slots",
    "find_base",
    "hash_words",
    "ignored_label",
    "key_state",
    "label_mix",
    "lay_out_tokens",
    "list_instruction_sets",
    "map_numbers",
    "parse_shuffle",
    "place_pieces",
    "rng",
    "round_weights",
    "set_bits",
    "shuffle",
    "shuffle_array",
    "shuffle_quality",
    "window_samples",
]
