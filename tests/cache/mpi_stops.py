"""Rank 0 fetches from rank 1, which it stops again and again: mpiexec -n 2 python mpi_stops.py

Each fetch is reported in time, whole or failed, and no buffer is written to after its report.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np
from mpi4py import MPI

from penstock import limits
from penstock.cache.mpi import MPIPeer, make_communicator
from penstock.cache.peer import PeerCompletion, Reason
from penstock.testing.peer import Fetching, answer_all, drive

TIMEOUT_S = 0.3
ROUNDS = 10
SHAPES = ([limits.MIB], [4096] * 256, [200_000, 7, 3 * limits.MIB])


def own(peer: MPIPeer) -> None:
    """Answer until nobody asks any more."""
    while not peer.counters()["gone"]:
        for request in peer.step(1_000_000_000).requests:
            answer_all(peer, request)


def ask(peer: MPIPeer, owner: int) -> None:
    random = np.random.default_rng(5)
    for number in range(ROUNDS):
        fetchings = [Fetching(SHAPES[i % 3], seed=100 * number + i) for i in range(30)]
        tickets = {each.submit(peer): each for each in fetchings}
        reported: list[PeerCompletion] = []
        stop_after = int(random.integers(0, 20))
        while len(reported) < stop_after:
            reported += peer.step(1_000_000_000).completions
        for _ in range(int(random.integers(0, 50))):
            reported += peer.step(0).completions
        os.kill(owner, signal.SIGSTOP)
        stopped = time.monotonic()
        while len(reported) < len(tickets):
            reported += peer.step(1_000_000_000).completions
        took_s = time.monotonic() - stopped
        assert took_s < 20 * TIMEOUT_S, took_s
        for completion in reported:
            if completion.reason is None:
                tickets[completion.ticket].assert_done(completion)
            else:
                assert completion.reason is Reason.TIMEOUT
        for each in fetchings:
            each.buffers[0][:] = 0xAB
        os.kill(owner, signal.SIGCONT)
        after = Fetching([5], seed=number)
        last = None
        while last is None or last.reason is not None:
            ticket = after.submit(peer)
            last = drive([peer], [ticket])[ticket]
        after.assert_done(last)
        for each in fetchings:
            assert (each.buffers[0] == 0xAB).all(), "a buffer was written to after its report"
        print(number, sum(each.reason is None for each in reported), f"{took_s:.2f} s", flush=True)


def main() -> None:
    peer = MPIPeer(make_communicator(MPI.COMM_WORLD.rank), "job", TIMEOUT_S)
    owner = MPI.COMM_WORLD.bcast(os.getpid(), 1)
    if MPI.COMM_WORLD.rank == 0:
        ask(peer, owner)
        print(peer.counters())
        assert peer.counters()["broken"] == peer.counters()["malformed"] == 0
    else:
        own(peer)
    peer.close()


if __name__ == "__main__":
    sys.exit(main())
