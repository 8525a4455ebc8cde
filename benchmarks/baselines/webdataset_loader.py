"""WebDataset over tar shards behind HTTP: shards in random order, a buffer of samples shuffled."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib.metadata import version

import numpy as np
import webdataset

import torch
from benchmarks.baselines.litdata_raw import stacked
from benchmarks.baselines.serve import Epochs, serve


def make(options: argparse.Namespace) -> tuple[Epochs, dict[str, str]]:
    """Its usual pipeline, with curl, as its documentation has it."""
    data = webdataset.WebDataset(
        f"pipe:curl -s -f {options.path}", shardshuffle=100, seed=options.seed, empty_check=False
    )
    data = (
        data.shuffle(1000).to_tuple("bin").map(first).batched(options.batch, collation_fn=stacked)
    )
    extra = {"persistent_workers": True, "prefetch_factor": options.ahead}
    loader = webdataset.WebLoader(
        data,
        batch_size=None,
        num_workers=options.workers,
        **(extra if options.workers else {}),
    )

    def epochs() -> Iterator[np.ndarray]:
        return (batch.numpy() for batch in loader)

    return epochs, {"webdataset": version("webdataset"), "torch": torch.__version__}


def first(sample: tuple[bytes]) -> bytes:
    return sample[0]


if __name__ == "__main__":
    serve(make)
