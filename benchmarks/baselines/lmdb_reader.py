"""LMDB by the lmdb package, as training code uses it: a process maps the file and copies values.

get:   a sample of the order is looked up by key, in batches, as PyTorch datasets do.
walk:  record after record with the cursor; every world-th is this rank's, as Caffe's layer does.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb
import numpy as np

from benchmarks.baselines.read_loop import Batches, Opener, Rows, serve


def make(options: argparse.Namespace) -> Opener:
    ids = np.load(options.ids)[options.rank :: options.world]
    value_bytes, size = options.value_bytes, options.batch

    def lookup(environment: lmdb.Environment) -> Iterator[Rows]:
        for start in range(0, len(ids), size):
            part = ids[start : start + size]
            rows = np.empty((len(part), value_bytes), np.uint8)
            with environment.begin(buffers=True) as transaction:
                turns = np.argsort(part) if options.sort else range(len(part))
                for row in turns:
                    rows[row] = np.frombuffer(transaction.get(b"%08d" % part[row]), np.uint8)
            yield rows

    def walk(environment: lmdb.Environment) -> Iterator[Rows]:
        rows = np.empty((size, value_bytes), np.uint8)
        filled = 0
        with environment.begin(buffers=True) as transaction, transaction.cursor() as cursor:
            number = 0
            while cursor.next():
                if number % options.world == options.rank:
                    rows[filled] = np.frombuffer(cursor.value(), np.uint8)
                    filled += 1
                    if filled == size:
                        yield rows
                        filled = 0
                number += 1
        yield rows[:filled]

    @contextmanager
    def opened(path: str) -> Iterator[Batches]:
        environment = lmdb.open(
            path, subdir=False, readonly=True, lock=False, readahead=bool(options.readahead)
        )
        try:
            yield lambda: (walk if options.walk else lookup)(environment)
        finally:
            environment.close()

    return opened


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ids", type=Path, help="sample numbers in order (.npy)")
    parser.add_argument("--value-bytes", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--readahead", type=int, required=True)
    parser.add_argument("--sort", type=int, default=0, help="look up a batch in ascending order")
    parser.add_argument("--walk", type=int, default=0)
    serve(make, parser)
