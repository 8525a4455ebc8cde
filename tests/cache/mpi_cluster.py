"""Ranks share a cache, as on two hosts: mpiexec -n 4 python mpi_cluster.py PATH PEERS LEVEL END

PEERS is Cache.peers, LEVEL the threads that MPI is begun with; END is whether loaders are closed,
or just left, or rank 1 stops in the first epoch. Says what came of it, as a line of JSON.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import time

import mpi4py
import numpy as np

path, peers, level, end = sys.argv[1:]
mpi4py.rc.thread_level = level

from mpi4py import MPI  # noqa: E402

import penstock  # noqa: E402

if end == "stop":
    penstock.limits.peer_timeout_s = 1.0
    penstock.limits.busy_cache_block_s = 1.0  # of what it was reading for its own host


def main() -> None:
    ranks = MPI.COMM_WORLD
    data = np.load(path, mmap_mode="r")
    cache = penstock.Cache(
        ram_bytes=64 << 20,
        cache_block_bytes=16 << 10,
        host=str(ranks.rank % 2),
        listen="127.0.0.1",
        peers=peers,
    )
    dataset = penstock.open(path, index="memory")
    loader = penstock.Loader(dataset, 50, seed=1, cache=cache, assignment="strided")
    if end == "stop":
        stopped(loader, data)
        loader.close()
        return
    read = []
    for _ in range(2):
        try:
            batches = iter(loader).begin()
        except penstock.errors.UsageError as error:
            said = ranks.gather(str(error))
            if ranks.rank == 0:
                print(json.dumps({"errors": said}))
            return
        ids = []
        for batch in batches:
            assert (batch["data"] == data[batch.ids]).all()
            ids += batch.ids.tolist()
        everybody = ranks.allgather(ids)
        assert sorted(itertools.chain(*everybody)) == list(range(len(data)))
        read.append(ranks.allreduce(loader.stats()["bytes"]))
    stats = ranks.gather(loader.stats())
    if ranks.rank == 0:
        assert stats is not None
        found = {"read": read, "by_mpi": ["peer_broken" in each for each in stats]}
        print(json.dumps(found | {"peer_bytes": sum(each["peer_bytes"] for each in stats)}))
    if end == "close":
        loader.close()


def stopped(loader: penstock.Loader, data: np.ndarray) -> None:
    """Rank 1 is stopped until all others have read their epoch; then it reads its own."""
    ranks = MPI.COMM_WORLD
    pid = ranks.bcast(os.getpid(), 1)
    waited_s = 0.0
    batches = iter(loader).begin()
    ranks.barrier()  # all have begun
    if ranks.rank == 1:
        os.kill(pid, signal.SIGSTOP)
    while True:
        since = time.monotonic()
        batch = next(batches, None)
        waited_s = max(waited_s, time.monotonic() - since)
        if batch is None:
            break
        assert (batch["data"] == data[batch.ids]).all()
    if ranks.rank == 0:
        for other in range(2, ranks.size):
            ranks.recv(source=other)
        os.kill(pid, signal.SIGCONT)
    elif ranks.rank > 1:
        ranks.send("done", 0)
    found = ranks.gather([waited_s, loader.stats().get("fetches_timeout", 0)])
    if ranks.rank == 0:
        print(json.dumps({"found": found}))


if __name__ == "__main__":
    main()
