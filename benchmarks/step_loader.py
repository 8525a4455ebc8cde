"""StepLoader beside DataLoader, of 4 KiB records, and the time of skipping 10,000 batches.

    python -m benchmarks.step_loader [--pairs 9]

The loaders walk the same epochs in turn, warm, in one process: DataLoader, StepLoader, and the
torch DataLoader that accelerate and Trainer make of a StepLoader's dataset and batch sampler, whose
iterator is torch's. accelerate's dealing is left out, since on one process it does nothing.
Skipping is what `skip_first_batches` does: a batch sampler that drops the first numbers, and the
first batch after them. The record is benchmarks/results/step_loader.json.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import BatchSampler
from torch.utils.data import DataLoader as TorchLoader

import penstock
from penstock.torch import DataLoader, StepLoader

from .record import Record, Row

RECORDS, BYTES, BATCH = 20_000, 4096, 256
SKIPPED = 10_000


class Skipping(BatchSampler):
    """The batches of a sampler without the first ones."""

    def __init__(self, batches: Any, skipped: int) -> None:
        self._batches, self._skipped = batches, skipped

    def __iter__(self) -> Iterator[list[int]]:
        for number, batch in enumerate(self._batches):
            if number >= self._skipped:
                yield batch


def walk(loader: Any) -> float:
    """Seconds of an epoch."""
    began_s = time.perf_counter()
    for _ in loader:
        pass
    return time.perf_counter() - began_s


def skip(dataset: penstock.Dataset) -> float:
    """Seconds until the first batch after those that are skipped."""
    with_ones = StepLoader(dataset, 1, shuffle=True, seed=3)
    next(iter(with_ones))  # engine and threads are there
    sampler = Skipping(with_ones.batch_sampler, SKIPPED)
    collate = with_ones.collate_fn
    skipping = TorchLoader(with_ones.dataset, batch_sampler=sampler, collate_fn=collate)
    clock = time.perf_counter()
    next(iter(skipping))
    took_s = time.perf_counter() - clock
    with_ones.close()
    return took_s


def main() -> None:
    """Print a line for each, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=9)
    pairs = parser.parse_args().pairs
    record = Record("step_loader", 3, {"records": RECORDS, "bytes": BYTES, "batch": BATCH})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "records.npy"
        np.save(path, np.random.default_rng(0).integers(0, 256, (RECORDS, BYTES), np.uint8))
        dataset = penstock.open(path)
        plain = DataLoader(dataset, BATCH, shuffle=True, seed=3)
        steps = StepLoader(dataset, BATCH, shuffle=True, seed=3)
        rebuilt: Any = TorchLoader(
            steps.dataset, batch_sampler=steps.batch_sampler, collate_fn=steps.collate_fn
        )
        loaders = {"plain": plain, "steps": steps, "rebuilt": rebuilt}
        for loader in loaders.values():
            walk(loader)
        rates: dict[str, list[float]] = {"steps": [], "rebuilt": []}
        for number in range(pairs):
            names = list(loaders) if number % 2 else list(loaders)[::-1]
            took = {name: walk(loaders[name]) for name in names}
            for name, ratios in rates.items():
                ratios.append(took["plain"] / took[name])
        skips = [skip(dataset) for _ in range(pairs)]
        plain.close()
        steps.close()
    middle_s = float(np.median(skips))
    record.raw["pairs"] = {"rates": rates, "skips_s": skips}
    for name, ratios in rates.items():
        low, middle, high = (float(value) for value in np.quantile(ratios, [0.1, 0.5, 0.9]))
        made = "" if name == "steps" else ", as a trainer rebuilds it"
        record.rows.append(
            Row(
                f"samples a second / of DataLoader{made}",
                middle,
                "",
                ratio=middle,
                target=0.9 if name == "steps" else None,
                met=middle >= 0.9 if name == "steps" else None,
                low=low,
                high=high,
                note="interval: 10 % to 90 % of the pairs",
            )
        )
    record.rows += [
        Row(f"skipping {SKIPPED:,} batches", middle_s, "s", target=0.05, met=middle_s <= 0.05),
    ]
    for row in record.rows:
        print(f"{row.name:36} {row.value:8.4f} {row.unit}", flush=True)
    print(record.write())


if __name__ == "__main__":
    main()
