"""obstore without penstock: a pool of threads that each wait for one object and copy it."""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.metadata import version
from urllib.parse import urlsplit

import numpy as np
import obstore
from obstore.store import S3Store

from benchmarks.baselines.serve import Epochs, serve
from benchmarks.object_server import OBJECT_BYTES, key_of


def make(options: argparse.Namespace) -> tuple[Epochs, dict[str, str]]:
    """Batches in random order, two ahead."""
    store = S3Store(urlsplit(options.path).netloc, client_options={"allow_http": True})
    pool = ThreadPoolExecutor(options.workers)
    random = np.random.default_rng(options.seed)

    def fetch(row: np.ndarray, number: int) -> None:
        got = obstore.get(store, key_of(number), options={"range": (0, OBJECT_BYTES)})
        row[:] = np.frombuffer(got.bytes(), np.uint8)

    def epochs() -> Iterator[np.ndarray]:
        order = random.permutation(options.count)
        ahead: deque[tuple[np.ndarray, list[Future[None]]]] = deque()
        for first in range(0, len(order), options.batch):
            numbers = order[first : first + options.batch].tolist()
            rows = np.empty((len(numbers), OBJECT_BYTES), np.uint8)
            tasks = [
                pool.submit(fetch, row, number) for row, number in zip(rows, numbers, strict=True)
            ]
            ahead.append((rows, tasks))
            if len(ahead) > 2:
                yield finished(*ahead.popleft())
        while ahead:
            yield finished(*ahead.popleft())

    return epochs, {"obstore": version("obstore")}


def finished(rows: np.ndarray, tasks: list[Future[None]]) -> np.ndarray:
    for task in tasks:
        task.result()
    return rows


if __name__ == "__main__":
    serve(make)
