"""A rank of a job that reads one data set for several epochs: penstock with a shared cache, or
torch's DataLoader with its DistributedSampler.

Each pass is the next epoch. --step-ms is how long a step computes, in which the process sleeps. The
bytes of batches and the time spent waiting for them are added to the answers.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.baselines.read_loop import Batches, Opener, serve

Rows = NDArray[np.uint8]


class Stepping:
    """Epochs with a computation after each batch, and what the loader counted."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._steps = self._stall_ns = 0

    def __call__(self) -> Iterator[Rows]:
        for rows in self.batches():
            self._steps += 1
            yield rows
            if self._step_s:
                time.sleep(self._step_s)

    def batches(self) -> Iterator[Rows]:
        raise NotImplementedError

    def counts(self) -> dict[str, int]:
        """Totals since the start, of the loader's own."""
        return {}

    def stats(self) -> dict[str, int]:
        return {"steps": self._steps} | self.counts()


class Penstock(Stepping):
    """A loader over the cache of all ranks."""

    def __init__(self, options: argparse.Namespace, path: str) -> None:
        import penstock

        super().__init__(options.step_ms / 1e3)
        cache = penstock.Cache(
            ram_bytes=options.cache_bytes,
            cache_block_bytes=options.cache_block_bytes or None,
            host=str(options.rank // options.ranks),
            listen="127.0.0.1",
            gather=options.gather,
        )
        self.loader = penstock.Loader(
            penstock.open(path, record_bytes=options.record_bytes, index="memory"),
            options.batch,
            seed=options.seed,
            rank=options.rank,
            world_size=options.world,
            assignment=options.assignment,
            cache=cache if options.cache_bytes else None,
        )
        self.loader._open_resources()  # joins the others: part of the start, as importing is

    def batches(self) -> Iterator[Rows]:
        for batch in self.loader:
            yield batch["data"]

    def counts(self) -> dict[str, int]:
        stats = self.loader.stats()
        return {name: value for name, value in stats.items() if type(value) is int}

    def close(self) -> None:
        self.loader.close()


class Torch(Stepping):
    """A DataLoader with --workers processes and a sampler for this rank."""

    def __init__(self, options: argparse.Namespace, path: str) -> None:
        import torch
        from benchmarks.baselines import torch_dataset

        super().__init__(options.step_ms / 1e3)
        data = torch_dataset.Records(path, options.record_bytes)
        self._sampler = torch.utils.data.DistributedSampler(
            data, options.world, options.rank, shuffle=True, seed=options.seed
        )
        extra: dict[str, Any] = {}
        if options.workers:
            extra = {"persistent_workers": True, "prefetch_factor": 2}
        self._loader = torch.utils.data.DataLoader(
            data, options.batch, sampler=self._sampler, num_workers=options.workers, **extra
        )
        self._rows = torch_dataset.rows
        self._epoch = 0
        if options.workers:
            self._ready = iter(self._loader)  # starts the workers

    def batches(self) -> Iterator[Rows]:
        self._sampler.set_epoch(self._epoch)
        self._epoch += 1
        batches = iter(self._loader)
        while True:
            start = time.perf_counter_ns()
            batch = next(batches, None)
            self._stall_ns += time.perf_counter_ns() - start
            if batch is None:
                return
            yield self._rows(batch)

    def counts(self) -> dict[str, int]:
        return {"stall_ns": self._stall_ns}

    def close(self) -> None:
        """Workers end with this process."""


def make(options: argparse.Namespace) -> Opener:
    @contextmanager
    def opened(path: str) -> Iterator[Batches]:
        rank = {"penstock": Penstock, "torch": Torch}[options.loader](options, path)
        try:
            yield rank
        finally:
            rank.close()

    return opened


def parser_of() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--loader", choices=("penstock", "torch"), required=True)
    parser.add_argument("--record-bytes", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--step-ms", type=float, default=0.0)
    parser.add_argument("--ranks", type=int, default=1, help="on a host")
    parser.add_argument("--cache-bytes", type=int, default=0, help="of a host")
    parser.add_argument("--cache-block-bytes", type=int, default=0)
    parser.add_argument("--assignment", default="local")
    parser.add_argument("--workers", type=int, default=0)
    return parser


if __name__ == "__main__":
    serve(make, parser_of())
