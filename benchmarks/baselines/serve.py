"""The conversation every contender holds with the driver, one JSON object a line.

start    -> {"ready": {...}} or {"error": "..."}
verify   -> {"samples": n, "sum": s}                  one untimed epoch over every byte
epoch K  -> {"samples": n, "touch": t, "seconds": x}  K timed epochs, one byte of each sample

A contender that waits for a line sleeps in a read, so that it costs the others nothing.
The floors speak the same lines from floors/protocol.hpp.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.uint8]
Epochs = Callable[[], Iterable[Rows]]
"""Starts one epoch; each item is a batch of equally long samples, one a row."""

WORD = 1 << 64


def first_bytes(rows: Rows) -> int:
    """The sum of one byte per sample: the touch of a timed epoch."""
    return int(np.add.reduce(rows[:, 0], dtype=np.uint64))


def all_words(rows: Rows) -> int:
    """The wrapping sum of all 64-bit words: what a verifying epoch compares."""
    return int(np.add.reduce(rows.view(np.uint64), axis=None))


def run_epoch(batches: Iterable[Rows], touch: Callable[[Rows], int]) -> tuple[int, int]:
    """Samples seen and their sum."""
    samples = total = 0
    for rows in batches:
        samples += len(rows)
        total += touch(rows)
    return samples, total % WORD


def answer(epochs: Epochs, line: str) -> dict[str, float]:
    """Carries out one line from the driver."""
    if line == "verify":
        samples, total = run_epoch(epochs(), all_words)
        return {"samples": samples, "sum": total}
    samples = total = 0
    start = time.perf_counter()
    for _ in range(int(line.split()[1])):
        part, touched = run_epoch(epochs(), first_bytes)
        samples += part
        total += touched
    return {"samples": samples, "touch": total % WORD, "seconds": time.perf_counter() - start}


def serve(make: Callable[[argparse.Namespace], tuple[Epochs, dict[str, str]]]) -> None:
    """Builds a contender from the command line, then answers until standard input closes.

    `make` returns the epoch function and what is worth recording (versions, active paths).
    """
    # Libraries print; the protocol keeps the real standard output for itself.
    protocol = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        epochs, about = make(arguments())
        print(json.dumps({"ready": about}), file=protocol)
        for line in lines():
            print(json.dumps(answer(epochs, line)), file=protocol)
    except Exception as error:
        traceback.print_exc()
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=protocol)
        sys.exit(1)


def arguments() -> argparse.Namespace:
    """The options any contender may be given; each uses those that concern it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--path", required=True)
    parser.add_argument("--record-bytes", type=int, default=0)
    parser.add_argument("--fetch-bytes", type=int, default=1 << 20)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--count", type=int, default=0, help="samples, for those who cannot ask")
    parser.add_argument("--requests", type=int, help="in flight; by default the contender's own")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", default="records", help="of data; each has its own")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--ahead", type=int, default=2, help="batches prefetched (per worker)")
    parser.add_argument("--direct", choices=("required", "auto", "off"), default="auto")
    return parser.parse_args()


def lines() -> Iterator[str]:
    """Lines of standard input; not buffered, so that a forked worker inherits none of them."""
    with os.fdopen(os.dup(0), "rb", buffering=0) as stream:
        for line in stream:
            yield line.decode().strip()
