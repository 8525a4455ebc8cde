"""The suite of peers over MPI, each node a process of its own: mpiexec -n 3 python mpi_ranks.py

Rank 0 runs pytest on this file; the others do what its `Remote` peers are told.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from penstock import limits
from penstock.cache.mpi import MPIPeer
from penstock.cache.peer import NONE, Bytes, Keys, Numbers, Part, Peer, PeerEvents
from penstock.engine.protocol import Buffer
from penstock.testing import PeerSuite

limits.peer_leave_s = 0.05  # nodes that are not led right now do not hear who leaves

ranks = MPI.COMM_WORLD
lines: list[Connection] = []
"""To the other ranks, from 1 on."""


def made(count: int, timeout_s: float) -> MPIPeer | None:
    """The peer of this rank among the first `count`; called on all ranks."""
    some = ranks.Split(0 if ranks.rank < count else MPI.UNDEFINED, ranks.rank)
    return MPIPeer(some, "job", timeout_s) if some != MPI.COMM_NULL else None


class Remote:
    """A peer in another process, with all that goes in and out."""

    def __init__(self, line: Connection, node: int) -> None:
        self.node = node
        self._line = line
        self._buffers: dict[int, Sequence[Buffer]] = {}

    def _call(self, name: str, *values: Any) -> Any:
        self._line.send((name, values))
        result = self._line.recv()
        if isinstance(result, Exception):
            raise result
        return result

    def submit(
        self,
        node: int,
        keys: Keys,
        lengths: Bytes,
        targets: Bytes,
        buffers: Sequence[Buffer],
        numbers: Numbers,
    ) -> int:
        ticket: int = self._call("submit", node, keys, lengths, targets, buffers, numbers)
        self._buffers[ticket] = buffers
        return ticket

    def step(self, timeout_ns: int, also: Sequence[int] = ()) -> PeerEvents:
        assert not also, "descriptors are of one process"
        events, buffers = self._call("step", timeout_ns)
        for ticket, filled in buffers.items():
            for buffer, data in zip(self._buffers.pop(ticket), filled, strict=True):
                buffer[:] = data
        return events

    def answer(self, request: int, parts: Sequence[Part], refused: Numbers = NONE) -> None:
        sent = [each if isinstance(each, np.ndarray) else bytes(each) for each in parts]
        strides = [each.strides if isinstance(each, np.ndarray) else (1,) for each in sent]
        self._call("answer", request, sent, strides, refused)

    def counters(self) -> dict[str, int]:
        found: dict[str, int] = self._call("counters")
        return found

    def close(self) -> None:
        self._call("close")


class Led:
    """This process's end of a `Remote`."""

    def __init__(self) -> None:
        self._peer: Any = None
        self._buffers: dict[int, Sequence[Buffer]] = {}

    def make(self, count: int, timeout_s: float) -> None:
        self._peer = made(count, timeout_s)

    def submit(self, *fetch: Any) -> int:
        ticket: int = self._peer.submit(*fetch)
        self._buffers[ticket] = fetch[-2]
        return ticket

    def step(self, timeout_ns: int) -> tuple[PeerEvents, dict[int, Sequence[Buffer]]]:
        events = self._peer.step(timeout_ns)
        return events, {each[0]: self._buffers.pop(each[0]) for each in events.completions}

    def answer(self, request: int, parts: list[Any], strides: list[Any], refused: Numbers) -> None:
        spread = [
            np.repeat(part, stride[0])[:: stride[0]] if stride != (1,) else part
            for part, stride in zip(parts, strides, strict=True)
        ]
        self._peer.answer(request, spread, refused)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._peer, name)


class TestMPIPeer(PeerSuite):
    def make(self, count: int, timeout_s: float) -> list[Peer]:
        for line in lines:
            line.send(("make", (count, timeout_s)))
        peer = made(count, timeout_s)
        assert [line.recv() for line in lines] == [None] * len(lines)
        assert peer is not None
        return [peer, *(Remote(line, 1 + at) for at, line in enumerate(lines[: count - 1]))]


def lead(address: str) -> None:
    """Do what rank 0 says."""
    led = Led()
    with Client(address) as line:
        line.send(ranks.rank)
        while (told := line.recv()) is not None:
            name, values = told
            try:
                line.send(getattr(led, name)(*values))
            except Exception as error:
                line.send(error)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        address = ranks.bcast(os.path.join(folder, "rank0"))
        if ranks.rank:
            ranks.barrier()
            lead(address)
            return 0
        with Listener(address) as listener:
            ranks.barrier()
            called = [listener.accept() for _ in range(ranks.size - 1)]
            lines.extend(sorted(called, key=lambda line: int(line.recv())))
            sys.modules["tests.cache.mpi_ranks"] = sys.modules["__main__"]  # as pytest imports it
            code = pytest.main([__file__, "-q", "-p", "no:cacheprovider", *sys.argv[1:]])
            for line in lines:
                line.send(None)
        return int(code)


if __name__ == "__main__":
    sys.exit(main())
