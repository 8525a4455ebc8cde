"""Messages of 1 MiB by bare MPI Get: rank 0 gets them from the memory of rank 1, 32 in flight.

With --record-bytes it gets records of that size, and puts each in a place of its own. Started by
mpiexec -n 2. MPI allocates the memory of the window, which is the fastest way there is: ranks of
one host then share it, and rank 1 has nothing to do. Nothing is checked.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import numpy as np
from mpi4py import MPI

from benchmarks.baselines.peer_loop import INFLIGHT, MESSAGE_BYTES, SOURCE_MESSAGES, source
from benchmarks.baselines.serve import Epochs, serve

ranks = MPI.COMM_WORLD
window = MPI.Win.Allocate(SOURCE_MESSAGES * MESSAGE_BYTES * (ranks.rank == 1), 1, comm=ranks)


def make(options: argparse.Namespace) -> tuple[Epochs, dict[str, str]]:
    """Batches in order, each asked for at once."""
    assert options.batch <= INFLIGHT
    size = options.record_bytes or MESSAGE_BYTES
    parts = MESSAGE_BYTES // size
    places = np.random.default_rng(2).permutation(parts)

    def epochs() -> Iterator[np.ndarray]:
        window.Lock(1, MPI.LOCK_SHARED)
        for first in range(0, options.count, options.batch):
            rows = np.empty((options.batch, MESSAGE_BYTES), np.uint8)
            records = rows.reshape(-1, size)
            gets = []
            for message in range(options.batch):
                for place in (message * parts + places).tolist():
                    at = (first * parts + place) * size % (SOURCE_MESSAGES * MESSAGE_BYTES)
                    gets.append(window.Rget(records[place], 1, (at, size, MPI.BYTE)))
            MPI.Request.Waitall(gets)
            yield rows
        window.Unlock(1)

    return epochs, {"mpi": " ".join(map(str, MPI.get_vendor()))}


if __name__ == "__main__":
    if ranks.rank == 1:
        np.frombuffer(window.tomemory(), np.uint8)[:] = source().reshape(-1)
    ranks.Barrier()
    if ranks.rank == 0:
        serve(make)
    done = ranks.Ibarrier()
    while not done.Test():  # without a processor of its own
        time.sleep(0.01)
    window.Free()
