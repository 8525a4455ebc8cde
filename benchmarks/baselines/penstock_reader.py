"""penstock's loader over the same file, with one of its ideas switched off where asked.

The epoch holds the samples of --ids and no others, so that nothing is read ahead in vain.
`contiguous` deals each global batch to the ranks in stretches instead of one by one.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

import penstock
from benchmarks.baselines.read_loop import Batches, Opener, Rows, serve
from penstock import Budget, Loader
from penstock.engine.native import Arena
from penstock.index.layout import RowTable
from penstock.loader import loader


def part(dataset: penstock.Dataset, ids: NDArray[np.int64]) -> penstock.Dataset:
    """The dataset of these samples alone."""
    layout = RowTable(*dataset.index.extents(ids))
    return penstock.Dataset(dataset.path, replace(dataset.index, layouts=(layout,)))


def make(options: argparse.Namespace) -> Opener:
    budget = Budget(
        threads=options.threads or None,
        readahead_bytes=options.readahead_bytes,
        mmap=options.mmap,
        pread=options.pread,
        io_uring=options.io_uring,
        direct=options.direct,
    )
    ids = np.load(options.ids)
    if options.gap >= -1:
        gap_bytes = None if options.gap < 0 else options.gap
        assert hasattr(loader, "choose_gap"), "merging would not be switched off"
        loader.choose_gap = lambda index, choice: gap_bytes

    arena = Arena(2 * budget.readahead_bytes)  # outlives a pass: fresh memory would be timed

    def batches(dataset: penstock.Dataset) -> Iterator[Rows]:
        with Loader(
            dataset,
            options.batch,
            shuffle="exact" if options.order == "exact" else "none",
            seed=options.seed,
            rank=options.rank,
            world_size=options.world,
            budget=budget,
            assignment="contiguous" if options.order == "contiguous" else "strided",
        ) as made:
            made._arena = arena
            for batch in made:
                yield batch["data"]

    def walked(path: str) -> Iterator[Rows]:
        yield from batches(part(penstock.open(path, index="memory"), ids))

    @contextmanager
    def opened(path: str) -> Iterator[Batches]:
        if options.walk:
            yield lambda: walked(path)
        else:
            dataset = part(penstock.open(path), ids)
            yield lambda: batches(dataset)

    return opened


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ids", required=True, help="sample numbers of the epoch (.npy)")
    parser.add_argument("--order", choices=("exact", "none", "contiguous"), default="exact")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--readahead-bytes", type=int, default=Budget().readahead_bytes)
    parser.add_argument("--gap", type=int, default=-2, help="bytes; -1: no merging; -2: default")
    parser.add_argument("--walk", type=int, default=0, help="look for the values in each pass")
    for path in ("mmap", "pread", "io_uring", "direct"):
        parser.add_argument("--" + path.replace("_", "-"), default="auto")
    serve(make, parser)
