"""A rank of a job that trains in lockstep: `cluster_rank`'s penstock, with steps that end together.

A step computes (sleeps) until --step-ms after its batch was there; then all ranks meet, as they
do to exchange gradients. Answers hold the loader's `run_record` as well.
"""

from __future__ import annotations

import argparse
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.baselines.cluster_rank import Penstock, Rows, parser_of
from benchmarks.baselines.read_loop import Batches, Opener, serve


class Meeting:
    """A point at which ranks wait for each other: rank 0 hears from all, then tells all."""

    def __init__(self, rank: int, world: int, gather: Callable[[str], list[str]]) -> None:
        self._host = rank == 0
        with socket.socket(socket.AF_UNIX) as listening:
            if self._host:
                listening.bind("")  # the kernel finds a name
                listening.listen(world)
            names = gather(listening.getsockname().hex() if self._host else "")
            if self._host:
                self._others = [listening.accept()[0] for _ in range(world - 1)]
        if not self._host:
            self._others = [socket.socket(socket.AF_UNIX)]
            self._others[0].connect(bytes.fromhex(names[0]))

    def __call__(self) -> None:
        """Return when all ranks have called."""
        for act in (self._hear, self._tell) if self._host else (self._tell, self._hear):
            act()

    def _hear(self) -> None:
        for other in self._others:
            if not other.recv(1):
                raise ConnectionError("another rank has ended")

    def _tell(self) -> None:
        for other in self._others:
            other.sendall(b".")

    def close(self) -> None:
        for other in self._others:
            other.close()


class Training(Penstock):
    """Epochs of steps that all ranks end together."""

    def __init__(self, options: argparse.Namespace, path: str) -> None:
        super().__init__(options, path)
        self._meet = Meeting(options.rank, options.world, options.gather)

    def __call__(self) -> Iterator[Rows]:
        self._meet()
        for rows in self.batches():
            end = time.monotonic() + self._step_s
            self._steps += 1
            yield rows
            time.sleep(max(0.0, end - time.monotonic()))
            self._meet()

    def stats(self) -> dict[str, Any]:
        return super().stats() | {"record": self.loader.run_record()}

    def close(self) -> None:
        self._meet.close()
        super().close()


def make(options: argparse.Namespace) -> Opener:
    @contextmanager
    def opened(path: str) -> Iterator[Batches]:
        rank = Training(options, path)
        try:
            yield rank
        finally:
            rank.close()

    return opened


if __name__ == "__main__":
    serve(make, parser_of())
