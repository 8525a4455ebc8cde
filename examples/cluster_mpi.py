"""Processes of MPI, without torch, walk through data that their hosts keep in memory:

    mpiexec -n 4 python cluster_mpi.py /shared/storage/points.npy

Nothing is told to the loader: rank and world size are those of mpiexec (Open MPI, MPICH and what
descends from it), and ranks find each other by mpi4py, over which hosts exchange samples too. With
a number behind the path, ranks of one machine behave as if they were on so many hosts. The sum
below is a training step's stand-in.
"""

import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

import penstock

path, ranks = Path(sys.argv[1]), MPI.COMM_WORLD
if ranks.rank == 0 and not path.exists():
    np.save(path, np.random.default_rng(0).integers(0, 256, (3000, 500), np.uint8))
ranks.barrier()

dataset = penstock.open(path, index="memory")
host = f"host {ranks.rank % int(sys.argv[2])}" if len(sys.argv) > 2 else None
cache = penstock.Cache(ram_bytes=256 << 20, cache_block_bytes=16 << 10, host=host)
with penstock.Loader(dataset, 50, seed=1, cache=cache, assignment="local") as loader:
    read = 0  # bytes from storage, before this epoch
    for epoch in range(2):
        mine = sum(int(batch["data"].sum()) for batch in loader)
        # Whoever is done goes on answering the other hosts: the loader stays open until all are.
        everything = ranks.allreduce(mine)
        so_far = ranks.allreduce(loader.stats()["bytes"])
        if ranks.rank == 0:
            print(f"epoch {epoch}: {so_far - read} bytes from storage, sum {everything}")
        read = so_far
