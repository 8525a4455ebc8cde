"""Contender: records that lie in the RAM tier, one a slot, gathered in random order, one thread.

The floors' order and buffers: permutations made before the clock starts, four recycled batches that
begin where a page does.
"""

from __future__ import annotations

import argparse
import itertools
import mmap
import os
from collections.abc import Iterator

import numpy as np

from benchmarks.baselines.serve import Epochs, Rows, serve
from penstock.cache.shared_memory import RamTier

CHUNK = 4096  # slots filled in one go


def filled(path: str, record_bytes: int) -> RamTier:
    """A tier that holds a file of records."""
    slots = os.path.getsize(path) // record_bytes
    tier = RamTier.create(slots, slots * record_bytes, b"of the benchmark", alignment=1)
    with open(path, "rb", buffering=0) as file:
        for first in range(0, slots, CHUNK):
            mine = np.arange(first, min(first + CHUNK, slots))
            lengths = np.full(len(mine), record_bytes)
            tier.claim(mine)
            at = tier.allocate(lengths)
            place = tier.data[at[0] : at[0] + len(mine) * record_bytes]
            if file.readinto(place) != len(place):
                raise OSError(f"{path} was read short")
            tier.publish(mine, at, lengths)
    return tier


def make(options: argparse.Namespace) -> tuple[Epochs, dict[str, str]]:
    size, batch = options.record_bytes, options.batch
    tier = filled(options.path, size)
    random = np.random.default_rng(options.seed)
    orders = itertools.cycle([random.permutation(tier.slots) for _ in range(4)])
    blocks = [np.frombuffer(mmap.mmap(-1, batch * size), np.uint8) for _ in range(4)]
    for block in blocks:
        block[:] = 1  # touched before the clock starts
    ring = itertools.cycle(blocks)
    targets, lengths = np.arange(batch) * size, np.full(batch, size)

    def epoch() -> Iterator[Rows]:
        order = next(orders)
        for first in range(0, len(order), batch):
            slots, out = order[first : first + batch], next(ring)
            count = len(slots)
            tier.gather(tier.offsets(slots), lengths[:count], out, targets[:count])
            yield out[: count * size].reshape(count, size)

    return epoch, {"data": "shared memory"}


if __name__ == "__main__":
    serve(make)
