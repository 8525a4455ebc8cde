"""Floor of the JPEG row: bare threads over bytes in memory, decoding into recycled batches."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks.baselines.jpeg_decode import SIDE, decode_jpeg
from benchmarks.baselines.serve import Epochs, serve

RING = 4
PART = 16
"""Rows a thread fills at a time: few hand-offs, and no thread waits long at the end."""


def make(options: argparse.Namespace) -> tuple[Epochs, dict[str, str]]:
    """One pool of threads and one ring of batches for all epochs."""
    images = [path.read_bytes() for path in sorted(Path(options.path).glob("*.jpg"))]
    pool = ThreadPoolExecutor(options.workers)
    ring = [np.ones((options.batch, SIDE, SIDE, 3), np.uint8) for _ in range(RING)]
    random = np.random.default_rng(options.seed)

    def fill(rows: np.ndarray, chosen: np.ndarray) -> None:
        for row, index in zip(rows, chosen, strict=True):
            row[:] = decode_jpeg(images[index])

    def begin(turn: int, chosen: np.ndarray) -> tuple[np.ndarray, list[Future[None]]]:
        batch = ring[turn % RING][: len(chosen)]
        parts = range(0, len(chosen), PART)
        return batch, [
            pool.submit(fill, batch[at : at + PART], chosen[at : at + PART]) for at in parts
        ]

    def epochs() -> Iterator[np.ndarray]:
        order = random.permutation(len(images))
        chosen = [order[at : at + options.batch] for at in range(0, len(order), options.batch)]
        begun = [begin(turn, part) for turn, part in enumerate(chosen[:RING])]
        for turn in range(len(chosen)):
            batch, parts = begun[turn]
            for part in parts:
                part.result()
            yield batch.reshape(len(batch), -1)
            # The consumer is done with this batch's buffer; only now may it be filled again.
            if turn + RING < len(chosen):
                begun.append(begin(turn + RING, chosen[turn + RING]))

    return epochs, {}


if __name__ == "__main__":
    serve(make)
