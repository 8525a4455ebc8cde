"""The side of a reader process in the conversation of `benchmarks/fleet.py`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.uint8]
Batches = Callable[[], Iterator[Rows]]
Opener = Callable[[str], AbstractContextManager[Batches]]
"""Opens a file; each call of what it gives is one pass over the samples of this process. Where that
has `stats()` as well, these are totals of all passes, which become part of a pass's answer."""

WORD = 1 << 64


def touched(rows: Rows) -> int:
    """The sum of the first eight bytes of each sample, as little-endian numbers."""
    heads = np.ascontiguousarray(rows[:, :8]).view(np.uint64)
    return int(np.add.reduce(heads, axis=None, dtype=np.uint64))


def read(batches: Iterator[Rows]) -> dict[str, float]:
    """One timed pass."""
    samples = total = 0
    begin = time.monotonic()
    for rows in batches:
        samples += len(rows)
        total += touched(rows)
    return {"samples": samples, "sum": total % WORD, "begin": begin, "end": time.monotonic()}


def serve(make: Callable[[argparse.Namespace], Opener], parser: argparse.ArgumentParser) -> None:
    """Answer lines until standard input closes."""
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world", type=int, required=True)
    protocol = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries print
    stream = os.fdopen(os.dup(0), "rb", buffering=0)

    def gather(text: str) -> list[str]:
        print(json.dumps({"said": text}), file=protocol)
        told: list[str] = json.loads(stream.readline())
        return told

    try:
        # What the processes of a fleet tell each other while they open goes through its owner.
        opener = make(parser.parse_args(namespace=argparse.Namespace(gather=gather)))
        print("{}", file=protocol)
        with ExitStack() as held, stream:
            for line in stream:
                word, _, path = line.decode().strip().partition(" ")
                answer: dict[str, float] = {}
                if word == "open":
                    batches = held.enter_context(opener(path))
                elif word == "read":
                    answer = read(batches())
                    if hasattr(batches, "stats"):
                        answer |= batches.stats()
                else:
                    held.close()
                print(json.dumps(answer), file=protocol)
    except Exception as error:
        traceback.print_exc()
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=protocol)
        sys.exit(1)
