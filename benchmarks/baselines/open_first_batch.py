"""Time from open to the first batch, and memory added: reader path record_bytes."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

BATCH = 256


def rss_mb() -> float:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def with_penstock(path: str, record_bytes: int) -> object:
    """Through the public interface."""
    import penstock

    loader = penstock.Loader(
        penstock.open(path, record_bytes=record_bytes), batch_size=BATCH, seed=0
    )
    return next(iter(loader))


def bare(path: str, record_bytes: int) -> object:
    """A batch of random records, and no promise about the rest of the epoch."""
    count = os.stat(path).st_size // record_bytes
    batch = np.empty((BATCH, record_bytes), np.uint8)
    file = os.open(path, os.O_RDONLY)
    for row, index in enumerate(np.random.default_rng(0).integers(count, size=BATCH)):
        os.preadv(file, [batch[row]], int(index) * record_bytes)
    return batch


READERS: dict[str, Callable[[str, int], object]] = {"penstock": with_penstock, "bare": bare}


def main() -> None:
    reader, path, record_bytes = sys.argv[1:]
    before = rss_mb()
    if reader == "penstock":  # importing costs memory, which counts, and time, which does not
        penstock = importlib.import_module("penstock")
        for late in ("open", "Loader"):  # their modules are imported when they are named
            getattr(penstock, late)
    start = time.perf_counter()
    batch = READERS[reader](path, int(record_bytes))
    passed = time.perf_counter() - start
    print(json.dumps({"first_batch_s": passed, "rss_mb": rss_mb() - before}))
    del batch


if __name__ == "__main__":
    main()
