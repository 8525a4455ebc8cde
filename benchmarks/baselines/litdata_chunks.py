"""LitData over its own chunks in a bucket; what it keeps of an epoch is removed before the next."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import litdata
import numpy as np
from litdata.streaming import downloader

from benchmarks.baselines.serve import Epochs, serve
from benchmarks.baselines.torch_dataset import rows


def make(options: argparse.Namespace) -> tuple[Epochs, dict[str, str]]:
    """Its streaming loader: chunks in random order, samples in windows."""
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # the server is on the loopback
    cache = Path(tempfile.mkdtemp(prefix="penstock-litdata-"))
    data = litdata.StreamingDataset(
        options.path, cache_dir=str(cache), shuffle=True, drop_last=False, seed=options.seed
    )
    extra = {"persistent_workers": True, "prefetch_factor": options.ahead}
    loader = litdata.StreamingDataLoader(
        data,
        batch_size=options.batch,
        num_workers=options.workers,
        **(extra if options.workers else {}),
    )

    def epochs() -> Iterator[np.ndarray]:
        for kept in cache.rglob("*.bin"):
            kept.unlink()
        return map(rows, loader)

    return epochs, {"litdata": version("litdata")}


if __name__ == "__main__":
    serve(make)
