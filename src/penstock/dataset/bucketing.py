"""Batches by tokens: `batch_tokens` of a loader, for models that do not pack."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ..arguments import check_fields, function, whole
from ..errors import UsageError
from ..order.buckets import BucketRule, SizeRule
from ..order.order import Ordering
from ..order.packed_order import PackedOrder, choose_window
from .dataset import Dataset
from .lengths import build_unmeasured_error
from .packing import refuse_steps

_sampled = 1 << 16  # samples whose mean length decides about the window


@dataclass(frozen=True)
class Buckets:
    """Options of batches by tokens: `Loader(..., batch_tokens=Buckets(...))`.

    tokens:    most tokens of a rank's batch, padding to its longest sample included.
    multiple:  tokens that lengths are padded to a multiple of, as `penstock.pad(multiple=...)`.
    cost:      instead of tokens, a function of an int64 array of lengths (rounded up so) that
               returns the room that each takes; it does not fall as lengths grow, and takes any
               length. A batch then takes at most `tokens` of that.
    window:    samples among which near lengths are looked for; by default the power of two, 4,096
               to 1,048,576, that gives at least 512 batches.
    """

    tokens: float
    multiple: int = 1
    cost: SizeRule | None = field(
        default=None, metadata=function("a function of an array of lengths")
    )
    window: int | None = field(default=None, metadata=whole())

    def __post_init__(self) -> None:
        check_fields(self, "")
        BucketRule(self.tokens, self.window or 1, self.multiple, self.cost)


def check_batch_tokens(has_size: bool, has_cache: bool, is_auto: bool) -> None:
    """Refuse what does not go with batches by tokens."""
    if has_size:
        raise UsageError("batch_tokens excludes batch_size and global_batch_size: choose one")
    if has_cache or is_auto:
        given = "cache" if has_cache else 'shuffle="auto"'
        raise UsageError(f"batch_tokens does not go with {given}: leave it out, and name a shuffle")


def bucket_orders(
    dataset: Dataset, batch_tokens: float | Buckets, make_order: Callable[[Dataset], Ordering]
) -> Callable[[Dataset], Ordering]:
    """Wrap `make_order` so that it makes orders of batches of samples of similar length.

    UsageError if the lengths of samples are not known.
    """
    options = batch_tokens if isinstance(batch_tokens, Buckets) else Buckets(batch_tokens)
    if dataset.rows is not None:
        raise UsageError("batch_tokens does not go with packed rows: batch_size counts rows")
    refuse_steps(dataset, "of batch_tokens has no fixed number of samples")
    lengths_of = dataset.find_id_lengths()
    if lengths_of is None:
        raise build_unmeasured_error(dataset.path)
    count = len(dataset)
    numbers = np.linspace(0, count - 1, min(count, _sampled)).astype(np.uint64)
    rule = BucketRule(options.tokens, 1, options.multiple, options.cost)
    sizes = rule.measure(lengths_of(dataset.ids(numbers)))
    window = options.window or choose_window(rule.tokens, max(float(sizes.mean()), 1e-9))
    measured = _identify_lengths(dataset)
    rule = BucketRule(options.tokens, window, options.multiple, options.cost, measured)
    return lambda view: PackedOrder(make_order(view), rule, lengths_of)


def _identify_lengths(dataset: Dataset) -> str:
    """Return the identity of the lengths that were measured; "" if the data itself has them."""
    saved = [part.load_lengths() for part in dataset.parts]
    checksums = [None if lengths is None else lengths.checksum for lengths in saved]
    if all(lengths is None for lengths in saved):
        return ""
    return ":" + hashlib.blake2b(repr(checksums).encode(), digest_size=8).hexdigest()
