"""penstock.torch.DataLoader beside torch's own, on ordinary torch datasets.

    python -m benchmarks.foreign [--pairs 5] [--only rows,decode]

Both loaders walk the same dataset in turn, in one process, with persistent workers that are warm;
the floor is the bare loop that indexes and collates. A ratio is taken pair by pair, of samples a
second; the column "cpu us" is processor time a sample, of the calling process and the workers
together. Rows named "first batch" are the seconds until a new loader with two workers has given
one, the start of the workers included. The record is benchmarks/results/foreign.json.
"""

from __future__ import annotations

import argparse
import hashlib
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset, TensorDataset, default_collate

import torch
from penstock.torch import DataLoader

from .pairing import bootstrap_interval, count_turns
from .record import Record, Row

SEED = 3
ROW_S = 2.5
"""Seconds for the turns of a row; there are 30 rows."""


class Items(Dataset[Any]):
    """Items that a function makes of their numbers."""

    def __init__(self, count: int, make: Callable[[int], Any]) -> None:
        self.count = count
        self.make = make

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> Any:
        return self.make(i)


def make_numpy(count: int) -> Dataset[Any]:
    rows = np.random.default_rng(SEED).integers(0, 256, (1000, 4096), np.uint8)
    return Items(count, lambda i: rows[i % 1000])


def make_decoding(count: int) -> Dataset[Any]:
    """Make a dataset whose items take a millisecond of a processor."""
    block = bytes(1 << 16)
    began_ns = time.thread_time_ns()
    for _ in range(20):
        hashlib.sha256(block).digest()
    rounds = max(1, round(20e6 / (time.thread_time_ns() - began_ns)))

    def decode(i: int) -> Any:
        for _ in range(rounds):
            hashlib.sha256(block).digest()
        return np.full(16, i, np.float32)

    return Items(count, decode)


def make_dicts(count: int) -> Dataset[Any]:
    rows = torch.rand(1000, 64)
    return Items(count, lambda i: {"x": rows[i % 1000], "label": i % 10, "name": f"sample {i}"})


def make_large(count: int) -> Dataset[Any]:
    return Items(count, lambda i: torch.full((1 << 18,), float(i)))


def make_rows(count: int) -> Dataset[Any]:
    return TensorDataset(torch.rand(count, 8), torch.arange(count))


class Work(NamedTuple):
    """A dataset, and the size of its batches."""

    make: Callable[[int], Dataset[Any]]
    count: int
    batch_size: int


WORK = {
    "rows": Work(make_rows, 12_000, 64),
    "numpy4k": Work(make_numpy, 12_000, 64),
    "dicts": Work(make_dicts, 12_000, 64),
    "decode": Work(make_decoding, 200, 8),
    "large": Work(make_large, 256, 8),
}


class Walk(NamedTuple):
    """Time of an epoch: on the clock, and on processors."""

    seconds: float
    cpu_seconds: float


def read_cpu_s(pids: list[int]) -> float:
    """Read the processor time so far of this process and of workers."""
    spent_ns = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            spent_ns += int((task / "schedstat").read_text().split()[0])
    return time.process_time() + spent_ns * 1e-9


def list_pids(loader: Any) -> list[int]:
    """List the workers of either loader, which have been started."""
    if not loader.num_workers:
        return []
    if isinstance(loader, DataLoader):
        return loader._workers.pids  # type: ignore[union-attr]
    return [worker.pid for worker in loader._iterator._workers]


def walk(batches: Any, pids: list[int]) -> Walk:
    cpu_s, began_s = read_cpu_s(pids), time.perf_counter()
    for _ in batches:
        pass
    return Walk(time.perf_counter() - began_s, read_cpu_s(pids) - cpu_s)


def walk_bare(dataset: Any, batch_size: int) -> Walk:
    count = len(dataset)
    starts = range(0, count, batch_size)
    return walk(
        (
            default_collate([dataset[i] for i in range(at, min(count, at + batch_size))])
            for at in starts
        ),
        [],
    )


def compare(name: str, work: Work, workers: int, shuffle: bool, pairs: int, record: Record) -> Row:
    """Let both loaders walk in turn."""
    dataset = work.make(work.count)
    options: dict[str, Any] = {
        "batch_size": work.batch_size,
        "shuffle": shuffle,
        "num_workers": workers,
        "persistent_workers": workers > 0,
    }
    theirs, ours = TorchLoader(dataset, **options), DataLoader(dataset, **options)
    for loader in (theirs, ours):
        next(iter(loader))
        for _ in loader:
            pass
    taken: dict[str, list[Walk]] = {"torch": [], "penstock": [], "bare": []}

    def list_ratios() -> list[list[float]]:
        both = zip(taken["torch"], taken["penstock"], strict=True)
        return [[theirs.seconds / ours.seconds for theirs, ours in both]]

    for turn in count_turns(pairs, list_ratios, ROW_S):
        order = [("penstock", ours), ("torch", theirs)]
        for label, loader in order if turn % 2 else order[::-1]:
            taken[label].append(walk(loader, list_pids(loader)))
        taken["bare"].append(walk_bare(dataset, work.batch_size))
    ours.close()
    label = f"{name}, {workers} workers, {'shuffled' if shuffle else 'in order'}"
    record.raw[label] = taken
    ratios = [t.seconds / p.seconds for t, p in zip(taken["torch"], taken["penstock"], strict=True)]
    spent = [
        t.cpu_seconds / p.cpu_seconds
        for t, p in zip(taken["torch"], taken["penstock"], strict=True)
    ]
    bare = [b.seconds / p.seconds for b, p in zip(taken["bare"], taken["penstock"], strict=True)]
    low, high = bootstrap_interval(ratios, SEED)
    ratio = float(np.median(ratios))

    def rate(walks: list[Walk]) -> float:
        return work.count / float(np.median([one.seconds for one in walks]))

    def cpu_us(walks: list[Walk]) -> float:
        return 1e6 * float(np.median([one.cpu_seconds for one in walks])) / work.count

    return Row(
        label,
        rate(taken["penstock"]),
        "1/s",
        floor=rate(taken["torch"]),
        ratio=ratio,
        target=1.0,
        met=ratio >= 1.0,
        low=low,
        high=high,
        cpu_us_per_sample=cpu_us(taken["penstock"]),
        floor_cpu_us_per_sample=cpu_us(taken["torch"]),
        note=f"by processor time {np.median(spent):.2f}; of the bare loop {np.median(bare):.2f}",
    )


def time_first_batch(make: Any, dataset: Any) -> float:
    began_s = time.perf_counter()
    loader = make(dataset, batch_size=64, num_workers=2)
    batches = iter(loader)
    next(batches)
    took_s = time.perf_counter() - began_s
    if isinstance(loader, DataLoader):
        loader.close()
    return took_s


def start(pairs: int, record: Record) -> Row:
    """Time the first batch of new loaders."""
    dataset = make_rows(20_000)
    taken = [
        (time_first_batch(DataLoader, dataset), time_first_batch(TorchLoader, dataset))
        for _ in range(pairs)
    ]
    record.raw["first batch"] = {"seconds": taken}
    ratios = [theirs / ours for ours, theirs in taken]
    low, high = bootstrap_interval(ratios, SEED)
    ours_s, theirs_s = np.median(taken, axis=0)
    ratio = float(np.median(ratios))
    return Row(
        "first batch, 2 workers",
        float(ours_s),
        "s",
        floor=float(theirs_s),
        ratio=ratio,
        target=1.0,
        met=ratio >= 1.0,
        low=low,
        high=high,
        note="the start of the workers included",
    )


def main() -> None:
    """Print a line for each row, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--only", default=",".join(WORK), help="some of " + ", ".join(WORK))
    parser.add_argument("--workers", default="0,2,4")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # torch warns of more workers than cores
    chosen = {name: WORK[name] for name in arguments.only.split(",")}
    sizes = {name: (work.count, work.batch_size) for name, work in chosen.items()}
    record = Record("foreign", SEED, {"pairs": arguments.pairs, "samples, batch": sizes})
    for name, work in chosen.items():
        for workers in map(int, arguments.workers.split(",")):
            for shuffle in (False, True):
                row = compare(name, work, workers, shuffle, arguments.pairs, record)
                record.rows.append(row)
                print(f"{row.name:36} {row.ratio:6.2f} [{row.low:.2f}, {row.high:.2f}] {row.note}")
    record.rows.append(start(arguments.pairs, record))
    print(f"{record.rows[-1].name:36} {record.rows[-1].ratio:6.2f}")
    if len(chosen) == len(WORK):
        print(record.write())


if __name__ == "__main__":
    main()
