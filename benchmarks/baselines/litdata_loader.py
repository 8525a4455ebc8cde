"""LitData: its own chunks, its own shuffle (chunks, then windows: not an exact global shuffle)."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib.metadata import version

import litdata
import numpy as np

from benchmarks.baselines.serve import Epochs, serve
from benchmarks.baselines.torch_dataset import rows


def make(options: argparse.Namespace) -> tuple[Epochs, dict[str, str]]:
    """The streaming loader over local chunks; items are arrays."""
    data = litdata.StreamingDataset(options.path, shuffle=True, drop_last=False, seed=options.seed)
    extra = {}
    if options.workers:
        extra = {"persistent_workers": True, "prefetch_factor": options.ahead}
    loader = litdata.StreamingDataLoader(
        data, batch_size=options.batch, num_workers=options.workers, **extra
    )

    def epochs() -> Iterator[np.ndarray]:
        return map(rows, loader)

    return epochs, {"litdata": version("litdata")}


if __name__ == "__main__":
    serve(make)
