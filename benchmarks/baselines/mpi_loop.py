"""Messages of 1 MiB by bare MPI Get: rank 0 gets them out of the memory of rank 1, many in flight.

Started by mpiexec -n 2. The window is one that MPI has allocated, which is the fastest there is:
ranks of one host share its memory, and rank 1 has nothing to do. Nothing is checked.
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

    def epochs() -> Iterator[np.ndarray]:
        window.Lock(1, MPI.LOCK_SHARED)
        for first in range(0, options.count, options.batch):
            rows = np.empty((options.batch, MESSAGE_BYTES), np.uint8)
            gets = [
                window.Rget(row, 1, (at % SOURCE_MESSAGES * MESSAGE_BYTES, MESSAGE_BYTES, MPI.BYTE))
                for at, row in enumerate(rows, first)
            ]
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
