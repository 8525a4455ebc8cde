"""LitData over the same objects, without its own format: StreamingRawDataset, nothing kept."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from importlib.metadata import version

import numpy as np
from litdata import StreamingRawDataset
from litdata.streaming import downloader

import torch
from benchmarks.baselines.serve import Epochs, serve


def make(options: argparse.Namespace) -> tuple[Epochs, dict[str, str]]:
    """Random access through torch's loader, whose workers ask for whole batches."""
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # the server is on the loopback
    cache = tempfile.mkdtemp(prefix="penstock-litdata-")
    data = StreamingRawDataset(options.path, cache_dir=cache)
    torch.manual_seed(options.seed)
    extra = {"persistent_workers": True, "prefetch_factor": options.ahead}
    loader = torch.utils.data.DataLoader(
        data,
        batch_size=options.batch,
        shuffle=True,
        num_workers=options.workers,
        collate_fn=stacked,
        **(extra if options.workers else {}),
    )

    def epochs() -> Iterator[np.ndarray]:
        return (batch.numpy() for batch in loader)

    return epochs, {"litdata": version("litdata")}


def stacked(samples: list[bytes]) -> torch.Tensor:
    """The samples of a batch as rows."""
    rows = np.empty((len(samples), len(samples[0])), np.uint8)
    for row, sample in zip(rows, samples, strict=True):
        row[:] = np.frombuffer(sample, np.uint8)
    return torch.from_numpy(rows)


if __name__ == "__main__":
    serve(make)
