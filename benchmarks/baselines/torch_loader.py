"""torch.utils.data.DataLoader over a map-style dataset with `__getitem__`, its own shuffle."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator

import numpy as np

import torch
from benchmarks.baselines import torch_dataset
from benchmarks.baselines.serve import Epochs, serve


def dataset(options: argparse.Namespace) -> torch.utils.data.Dataset[torch.Tensor]:
    """The dataset of the row's kind."""
    if options.kind == "records":
        return torch_dataset.Records(options.path, options.record_bytes)
    if options.kind == "tokens":
        return torch_dataset.Tokens(options.path, options.record_bytes // 2)
    if options.kind == "files":
        return torch_dataset.Files(options.path)
    return torch_dataset.Images(options.path)


def make(options: argparse.Namespace) -> tuple[Epochs, dict[str, str]]:
    """The loader with its defaults, workers kept between epochs."""
    # Read-only buffers are fine here: collating copies them.
    warnings.filterwarnings("ignore", message="The given (buffer|NumPy array) is not writable")
    return loader_epochs(options, dataset(options)), {"torch": torch.__version__}


def loader_epochs(
    options: argparse.Namespace, data: torch.utils.data.Dataset[torch.Tensor], **extra: object
) -> Epochs:
    """Epochs of a DataLoader over `data`."""
    if options.workers:
        extra |= {"persistent_workers": True, "prefetch_factor": options.ahead}
    generator = torch.Generator().manual_seed(options.seed)
    loader = torch.utils.data.DataLoader(
        data,
        batch_size=options.batch,
        shuffle=True,
        num_workers=options.workers,
        generator=generator,
        **extra,
    )

    def epochs() -> Iterator[np.ndarray]:
        return map(torch_dataset.rows, loader)

    return epochs


if __name__ == "__main__":
    serve(make)
