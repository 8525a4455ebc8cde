"""Random numbers of a sample, by seed, epoch and sample alone. Pure."""

from __future__ import annotations

from functools import lru_cache
from typing import SupportsIndex

import numpy as np

from ..arguments import check_whole
from .keys import WORD, mix64
from .order import Order


def rng(seed: int, epoch: int, sample: SupportsIndex) -> np.random.Generator:
    """Make a generator for the augmentation of one sample in one epoch.

    It depends on no rank, worker or step: any process that handles the sample, after any
    interruption, draws the same numbers.

        def decode(sample):
            random = penstock.rng(seed, sample["__epoch__"], sample["__id__"])

    seed, epoch, sample:  0..2^64-1; seed and epoch as the loader has them, the sample's number.

    Samples of one epoch always have different streams. Streams of different epochs or seeds differ
    except with a probability of 2^-64. None is related to the order of samples. The stream of
    random bits (`.bit_generator.random_raw()`) is stable in all versions and on all machines:
    Philox-4x64-10 from counter 0, under the key (hash of purpose, seed and epoch; sample). The
    generator's methods are numpy's, and a new version of numpy may change a method's numbers (NEP
    19). A call takes about 20 us. Raises UsageError if an argument is not such an integer.
    """
    seed, epoch, sample = (
        check_whole(f"rng: {name}", value, 0, WORD)
        for name, value in (("seed", seed), ("epoch", epoch), ("sample", sample))
    )
    key = np.array([derive_epoch_key(seed, epoch), sample], np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


def derive_sample_seed(seed: int, epoch: int, sample: int) -> int:
    """Derive the 64-bit seed of other generators for one sample in one epoch."""
    return mix64(derive_epoch_key(seed, epoch) ^ mix64(sample & WORD))


@lru_cache(maxsize=64)
def derive_epoch_key(seed: int, epoch: int) -> int:
    """Derive the key of an epoch's random numbers; the sample is the other word of Philox's key."""
    return Order(1, seed, epoch, purpose="augmentation").key()
