"""Floor of the JPEG row: bare threads over bytes in memory, decoding into recycled batches."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks.baselines.jpeg_decode import SIDE, decode_jpeg
from benchmarks.baselines.serve import Epochs, serve

RING = 4


def make(options: argparse.Namespace) -> tuple[Epochs, dict[str, str]]:
    """One pool for all epochs; a thread fills a whole batch, so hand-offs are per batch."""
    images = [path.read_bytes() for path in sorted(Path(options.path).iterdir())]
    pool = ThreadPoolExecutor(options.workers)
    ring = [np.ones((options.batch, SIDE, SIDE, 3), np.uint8) for _ in range(RING)]
    random = np.random.default_rng(options.seed)

    def fill(turn: int, chosen: np.ndarray) -> np.ndarray:
        batch = ring[turn % RING]
        for row, index in enumerate(chosen):
            batch[row] = decode_jpeg(images[index])
        return batch[: len(chosen)].reshape(len(chosen), -1)

    def epochs() -> Iterator[np.ndarray]:
        order = random.permutation(len(images))
        parts = [order[at : at + options.batch] for at in range(0, len(order), options.batch)]
        waiting = [pool.submit(fill, turn, part) for turn, part in enumerate(parts[:RING])]
        for turn in range(len(parts)):
            yield waiting[turn].result()
            # The consumer is done with this batch's buffer; only now may it be filled again.
            if turn + RING < len(parts):
                waiting.append(pool.submit(fill, turn + RING, parts[turn + RING]))

    return epochs, {}


if __name__ == "__main__":
    serve(make)
