"""Random numbers of a sample: they depend on seed, epoch and sample alone. Pure."""

from __future__ import annotations

import operator
from functools import lru_cache
from typing import SupportsIndex

import numpy as np

from ..errors import UsageError
from .feistel_numpy import WORD
from .order import Order


def rng(seed: int, epoch: int, sample: SupportsIndex) -> np.random.Generator:
    """A generator for the augmentation of one sample in one epoch, which knows no rank, worker or
    step: whoever processes the sample, after whatever interruption, draws the same numbers.

        def decode(sample):
            random = penstock.rng(seed, sample["__epoch__"], sample["__id__"])

    seed, epoch, sample:  0..2^64-1; seed and epoch as the loader has them, the sample's number.

    Samples of one epoch have different streams, always; those of different epochs or seeds have,
    except with a probability of 2^-64. None is related to the order of samples. What is stable, in
    all versions and on all machines, is the stream of random bits (`.bit_generator.random_raw()`):
    Philox-4x64-10 from counter 0, under the key (hash of purpose, seed and epoch; sample). What
    the generator's methods make of these bits is numpy's, which may change a method's numbers in
    a new version (NEP 19). Costs about 20 us. UsageError for what is no such integer.
    """
    try:
        number = -1 if isinstance(sample, bool | np.bool_) else operator.index(sample)
    except TypeError:
        number = -1
    if not 0 <= number <= WORD:
        raise UsageError(f"rng(sample) is {sample!r}: use an integer in 0..2^64-1")
    key = np.array([_epoch_key(seed, epoch), number], np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


@lru_cache(maxsize=64, typed=True)
def _epoch_key(seed: int, epoch: int) -> int:
    return Order(1, seed, epoch, purpose="augmentation").key()
