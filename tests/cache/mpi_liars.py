"""Rank 1 lies to the peer of rank 0 in every way: mpiexec -n 2 python mpi_liars.py"""

from __future__ import annotations

import sys
import time

import numpy as np
from mpi4py import MPI

from penstock import limits
from penstock.cache.mpi import MPIPeer, make_communicator
from penstock.cache.peer import Reason
from penstock.cache.peer_protocol import ANSWER, ASK, LEFT, PIECE, REFUSAL, PeerJob
from penstock.testing.peer import Fetching, answer_all, drive, requested

job = PeerJob("job")
two = np.array([1, 2], "<u8").tobytes() + np.array([3, 4], "<i8").tobytes()
negative = np.array([1, 2], "<u8").tobytes() + np.array([3, -4], "<i8").tobytes()

requests = [
    ("malformed", b""),
    ("malformed", b"1"),
    ("malformed", b"HTTP" + job.header(ASK, 2)[4:] + two),
    ("version", job.header(ASK, 2)[:4] + b"\x09" + job.header(ASK, 2)[5:] + two),
    ("job", PeerJob("another").header(ASK, 2) + two),
    ("malformed", job.header(ASK, 2) + two[:-1]),
    ("malformed", job.header(ASK, 2, start=1) + two),
    ("malformed", job.header(ASK, 2) + negative),
    ("malformed", job.header(PIECE)),
    ("malformed", job.header(LEFT)),
    ("malformed", job.header(77)),
    ("malformed", job.header(ANSWER, 2, ticket=1 << 60)),
    ("malformed", job.header(REFUSAL, ticket=1 << 60)),
    ("oversized", job.header(ASK, limits.peer_keys_max + 1)),
    ("oversized", job.header(ASK, 1) + bytes(2 * limits.MIB)),
]
"""The messages that nobody may send, each after the name that it is counted as."""

Answer = list[tuple[int, bytes]]
answers: list[tuple[Reason, Answer]] = [
    (Reason.REFUSED, [(0, job.header(REFUSAL))]),
    (Reason.DAMAGED, [(0, job.header(ANSWER, 3, start=10))]),  # it was asked for two keys
    (Reason.DAMAGED, [(0, job.header(ANSWER, 2, start=9))]),  # of ten bytes
    (Reason.DAMAGED, [(0, job.header(ANSWER, 2, start=10) + b"\xff")]),  # no such key is refused
    (Reason.DAMAGED, [(0, job.header(ANSWER, 2, start=10) + b"\0\0")]),
    (Reason.DAMAGED, [(0, job.header(ANSWER, 2, start=10)), (1, bytes(11))]),
    (Reason.DAMAGED, [(0, job.header(ANSWER, 2, start=10)), (1, bytes(2 * limits.MIB))]),
    (Reason.DAMAGED, [(0, job.header(ANSWER, 2, start=10)), (1, b"")]),
    (Reason.DAMAGED, [(0, job.header(ANSWER, 2, start=10))] * 2),
    (Reason.TIMEOUT, [(1, bytes(10))]),  # bytes without an answer
    (Reason.TIMEOUT, [(0, job.header(ANSWER, 2, start=10)), (1, bytes(4))]),
]
"""Answers to a fetch of ten bytes, and what becomes of it; tags count from that of the fetch."""


def attacked(ranks: MPI.Comm) -> None:
    peer = MPIPeer(ranks, "job", timeout_s=0.5)
    for why, _ in requests:
        before = peer.counters()
        MPI.COMM_WORLD.barrier()
        deadline = time.monotonic() + 30
        while peer.counters() == before:
            assert time.monotonic() < deadline, why
            assert peer.step(1_000_000) == ([], [])
        assert peer.counters() == {**before, why: before[why] + 1}
    for reason, _ in answers:
        fetching = Fetching([4, 6])
        ticket = fetching.submit(peer)
        MPI.COMM_WORLD.bcast(ticket, 0)
        done = drive([peer], [ticket])[ticket]
        assert done.reason is reason, (done, reason)
        if reason is not Reason.TIMEOUT:
            fetching.assert_failed(done, reason)
    MPI.COMM_WORLD.barrier()
    for request in requested([peer], 1):  # it still serves
        answer_all(peer, request)
    while not peer.counters()["gone"]:
        peer.step(1_000_000)
    peer.close()


def lying(ranks: MPI.Comm) -> None:
    sent = []
    for _, message in requests:
        MPI.COMM_WORLD.barrier()
        sent.append((ranks.Isend([message, MPI.BYTE], 0, 0), message))
    for _, answer in answers:
        ticket = MPI.COMM_WORLD.bcast(None, 0)
        for tag, message in answer:
            tag += ticket if tag else 0
            if tag == 0:
                message = message[:16] + ticket.to_bytes(8, "little") + message[24:]
            sent.append((ranks.Isend([message, MPI.BYTE], 0, tag), message))
    MPI.COMM_WORLD.barrier()
    while ranks.Iprobe(0, MPI.ANY_TAG):  # requests and refusals
        ranks.Recv([bytearray(1 << 20), MPI.BYTE], 0, MPI.ANY_TAG)
    peer = MPIPeer(ranks, "job")
    fetching = Fetching([5, limits.MIB], node=0)
    ticket = fetching.submit(peer)
    fetching.assert_done(drive([peer], [ticket])[ticket])
    peer.close()
    MPI.Request.Waitall([each for each, _ in sent])


def main() -> None:
    ranks = make_communicator(MPI.COMM_WORLD.rank)
    (lying if ranks.Get_rank() else attacked)(ranks)


if __name__ == "__main__":
    sys.exit(main())
