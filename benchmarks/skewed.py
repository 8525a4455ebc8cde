"""Samples of which some take long to decode, beside torch and a pool whose fast samples overtake.

    python -m benchmarks.skewed [--pairs 5]

Decoding takes 2 ms of a processor in the mean, by four distributions. Between two batches of 16 a
step is slept that two cores can just keep supplied; an epoch is 48 steps. All use two cores: a
`Loader` in exact order; torch's DataLoader with two workers, in order and with `in_order=False`,
each at the better of two depths of prefetch; and two threads that hand over whatever is ready
first, as MinatoLoader does (arXiv 2509.10712), eight batches ahead. Contenders take turns. The
floor of a row is the contender that it names; the ratio is that of samples a second. Shares are of
the time of the steps alone, which no loader can pass. The record is benchmarks/results/skewed.json.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset

import penstock

from .pairing import bootstrap_interval, count_turns
from .record import Record, Row, table

SEED = 5
BATCH, STEPS, CORES = 16, 48, 2
COUNT = BATCH * STEPS
MEAN_S = 2e-3
STEP_S = 1.15 * BATCH * MEAN_S / CORES
AHEAD = 8
"""Batches that the pool decodes ahead, and the larger number for torch's workers."""

RANDOM = np.random.default_rng(SEED)
COSTS: dict[str, np.ndarray] = {
    "all alike": np.ones(COUNT),
    "lognormal, sigma 1": RANDOM.lognormal(-0.5, 1.0, COUNT),
    "one in 10 takes 11 times as long": np.where(RANDOM.random(COUNT) < 0.1, 5.5, 0.5),
    "one in 100 takes 100 times as long": np.where(RANDOM.random(COUNT) < 0.01, 50.0, 0.5),
}
"""Cost of each sample, of 1 in the mean before chance."""


def make_work(costs: np.ndarray) -> Callable[[int], np.ndarray]:
    """Make the function that decodes a sample: it takes a processor, and no lock of Python's."""
    block = bytes(1 << 16)
    began_ns = time.thread_time_ns()
    for _ in range(50):
        hashlib.sha256(block).digest()
    rounds = 50 * MEAN_S * 1e9 / (time.thread_time_ns() - began_ns)
    turns = np.maximum(1, np.round(costs / costs.mean() * rounds)).astype(int).tolist()

    def decode(sample: int) -> np.ndarray:
        for _ in range(turns[sample]):
            hashlib.sha256(block).digest()
        return np.full(64, sample, np.float32)

    return decode


class Samples(Dataset[Any]):
    """A torch dataset of decoded samples."""

    def __init__(self, decode: Callable[[int], np.ndarray]) -> None:
        self._decode = decode

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, sample: int) -> np.ndarray:
        return self._decode(sample)


def overtake(decode: Callable[[int], np.ndarray]) -> Iterator[np.ndarray]:
    """Yield batches of the samples that are ready first."""
    samples = iter(np.random.default_rng(SEED).permutation(COUNT).tolist())
    ready: list[np.ndarray] = []
    with ThreadPoolExecutor(CORES) as pool:
        running: set[Future[np.ndarray]] = set()
        for sample in samples:
            running.add(pool.submit(decode, sample))
            while len(running) + len(ready) >= AHEAD * BATCH:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                ready += [one.result() for one in done]
                while len(ready) >= BATCH:
                    yield np.stack(ready[:BATCH])
                    del ready[:BATCH]
        ready += [one.result() for one in running]
        for at in range(0, len(ready), BATCH):
            yield np.stack(ready[at : at + BATCH])


def walk(batches: Iterable[Any]) -> float:
    """Seconds of an epoch with its steps, from the first batch on."""
    seen, began_s = 0, 0.0
    for _ in batches:
        began_s = began_s or time.perf_counter()
        seen += 1
        time.sleep(STEP_S)
    assert seen == STEPS
    return time.perf_counter() - began_s


def choose_torch(dataset: Dataset[Any], in_order: bool) -> tuple[TorchLoader[Any], int]:
    """Start torch's loader at the better of two depths."""
    tried = []
    for depth in (2, AHEAD):
        loader = TorchLoader(
            dataset, BATCH, shuffle=True, num_workers=CORES, prefetch_factor=depth,
            persistent_workers=True, in_order=in_order,
        )  # fmt: skip
        walk(loader)
        tried.append((walk(loader), depth, loader))
    (_, depth, best), (*_, other) = sorted(tried, key=lambda one: one[0])
    del other
    return best, depth


def measure(record: Record, name: str, data: penstock.Dataset, pairs: int) -> None:
    """Add the rows of a distribution."""
    decode = make_work(COSTS[name])
    samples = Samples(decode)
    ordered, depth = choose_torch(samples, True)
    free, free_depth = choose_torch(samples, False)
    ours = penstock.Loader(
        data,
        BATCH,
        seed=SEED,
        decode=lambda sample: decode(int(sample["data"])),
        decode_threads=CORES,
    )
    walks: dict[str, Callable[[], float]] = {
        "penstock": lambda: walk(ours),
        f"torch, in order, {depth} ahead": lambda: walk(ordered),
        f"torch, in_order=False, {free_depth} ahead": lambda: walk(free),
        "a pool whose fast samples overtake": lambda: walk(overtake(decode)),
    }
    taken: dict[str, list[float]] = {one: [] for one in walks}

    def list_ratios() -> list[list[float]]:
        own = taken["penstock"]
        return [[b / a for a, b in zip(own, taken[one], strict=True)] for one in list(walks)[1:]]

    walk(ours)
    for turn in count_turns(pairs, list_ratios):
        for one in list(walks) if turn % 2 else list(walks)[::-1]:
            taken[one].append(walks[one]())
    ours.close()
    record.raw[name] = {"seconds": taken}
    alone_s = STEPS * STEP_S
    shares = {one: alone_s / float(np.median(seconds)) for one, seconds in taken.items()}
    for (other, seconds), ratios in zip(list(taken.items())[1:], list_ratios(), strict=True):
        low, high = bootstrap_interval(ratios, SEED)
        target = 1.0 if other.startswith("torch, in order") else 0.95 if "pool" in other else None
        ratio = float(np.median(ratios))
        record.rows.append(
            Row(
                f"{name}: exact order / {other}",
                COUNT / float(np.median(taken["penstock"])),
                "samples/s",
                floor=COUNT / float(np.median(seconds)),
                ratio=ratio,
                target=target,
                met=None if target is None else ratio >= target,
                low=low,
                high=high,
                note=f"share of the steps' time: {shares['penstock']:.2f} and {shares[other]:.2f}",
            )
        )


def main() -> None:
    """Print the rows, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    pairs = parser.parse_args().pairs
    warnings.simplefilter("ignore")
    record = Record("skewed", SEED, {"batch": BATCH, "steps": STEPS, "mean_ms": MEAN_S * 1e3})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "samples.npy"
        np.save(path, np.arange(COUNT))
        data = penstock.open(path, index="memory")
        for name in COSTS:
            before = len(record.rows)
            measure(record, name, data, pairs)
            print(table(record.rows[before:]), flush=True)
    print(record.write())


if __name__ == "__main__":
    main()
