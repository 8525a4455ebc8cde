"""The messages of `peer_loop` by penstock's peers: so many to a fetch as --fetch-bytes says.

Over ZeroMQ, to a process that this one starts; over MPI, to rank 1, where mpiexec -n 2 starts it.
"""

from __future__ import annotations

import argparse
import os
import select
import sys
from collections.abc import Iterator

import numpy as np

from benchmarks.baselines.peer_loop import (
    INFLIGHT,
    MESSAGE_BYTES,
    SOURCE_MESSAGES,
    other_process,
    source,
)
from benchmarks.baselines.serve import Epochs, serve
from penstock import limits
from penstock.cache.peer import Peer, PeerRequest
from penstock.cache.shared_memory import gather
from penstock.engine.native import Arena

JOB = "benchmark"
SECOND_NS = 1_000_000_000
VIEW_BYTES = 64 << 10
arena = Arena(limits.peer_answers_bytes_max)


def answer(peer: Peer, request: PeerRequest, flat: np.ndarray) -> None:
    """Each key's record: short ones in memory of their own, as a cache answers."""
    lengths = request.lengths
    offsets = (request.keys * lengths.astype(np.uint64)) % np.uint64(len(flat))
    if lengths[0] >= VIEW_BYTES:
        pairs = zip(offsets.tolist(), lengths.tolist(), strict=True)
        peer.answer(request.number, [flat[at : at + length] for at, length in pairs])
        return
    out = arena.take(int(lengths.sum()))
    gather(flat, offsets.view(np.int64), lengths, out, np.cumsum(lengths) - lengths)
    peer.answer(request.number, [out])


def owner(public: str, secret: str, asker: str, asker_public: str) -> None:
    """Answers over ZeroMQ until its input ends."""
    from penstock.cache.zeromq import KeyPair, ZeromqMember, ZeroMQPeer

    peer = ZeroMQPeer(1, JOB, KeyPair(public.encode(), secret.encode()))
    peer.meet({0: ZeromqMember(asker, asker_public.encode())})
    print(peer.address, flush=True)
    flat = source().reshape(-1)
    while not select.select([sys.stdin], [], [], 0)[0]:
        for request in peer.step(10 * SECOND_NS, [sys.stdin.fileno()]).requests:
            answer(peer, request, flat)
    peer.close()


def over_zeromq(options: argparse.Namespace) -> tuple[Epochs, dict[str, str]]:
    import zmq

    from penstock.cache.zeromq import KeyPair, ZeromqMember, ZeroMQPeer

    keys = [KeyPair.generate(), KeyPair.generate()]
    peer = ZeroMQPeer(0, JOB, keys[0])
    words = [
        keys[1].public.decode(),
        keys[1].secret.decode(),
        peer.address,
        keys[0].public.decode(),
    ]
    child, address = other_process("benchmarks.baselines.peer_fetches", "owner", *words)
    peer.meet({1: ZeromqMember(address, keys[1].public)})
    return fetching(peer, options), {"pyzmq": zmq.__version__, "owner": str(child.pid)}


def over_mpi() -> None:
    """Rank 1 answers until rank 0 leaves."""
    from mpi4py import MPI

    from penstock.cache.mpi import MPIPeer, make_communicator

    peer = MPIPeer(make_communicator(MPI.COMM_WORLD.rank), JOB)
    if peer.node == 0:
        serve(lambda options: (fetching(peer, options), {"mpi": str(MPI.get_vendor())}))
    else:
        flat = source().reshape(-1)
        while not peer.counters()["gone"]:  # nothing wakes a wait when the other leaves
            for request in peer.step(SECOND_NS // 10).requests:
                answer(peer, request, flat)
    peer.close()


def fetching(peer: Peer, options: argparse.Namespace) -> Epochs:
    """Batches in order, the next one asked for meanwhile."""
    parts = options.fetch_bytes // options.record_bytes
    messages = options.fetch_bytes // MESSAGE_BYTES
    lengths = np.full(parts, options.record_bytes, np.int64)
    # Records lie in the buffer in another order than they come in, as samples of a batch do.
    places = np.random.default_rng(2).permutation(parts)
    into = np.zeros(parts, np.int64)
    assert options.batch % messages == SOURCE_MESSAGES % messages == 0

    def epochs() -> Iterator[np.ndarray]:
        batches: dict[int, np.ndarray] = {}
        row_of: dict[int, int] = {}
        left = dict.fromkeys(range(0, options.count, options.batch), options.batch)
        sent = 0
        for first in range(0, options.count, options.batch):
            while left[first]:
                while sent < options.count and len(row_of) * messages < INFLIGHT:
                    batch, row = sent // options.batch * options.batch, sent % options.batch
                    if row == 0:
                        batches[batch] = np.empty((options.batch, MESSAGE_BYTES), np.uint8)
                    numbers = (sent // messages * parts + places).astype(np.uint64)
                    targets = row * MESSAGE_BYTES + places * options.record_bytes
                    ticket = peer.submit(
                        1, numbers, lengths, targets, [batches[batch].reshape(-1)], into
                    )
                    row_of[ticket] = batch
                    sent += messages
                for completion in peer.step(10 * SECOND_NS).completions:
                    if completion.reason is not None or len(completion.failures):
                        raise RuntimeError(f"a fetch failed: {completion}")
                    left[row_of.pop(completion.ticket)] -= messages
            yield batches.pop(first)

    return epochs


if __name__ == "__main__":
    if sys.argv[1] == "owner":
        owner(*sys.argv[2:])
        os._exit(0)
    elif sys.argv[1] == "mpi":
        del sys.argv[1]
        over_mpi()
    else:
        serve(over_zeromq)
