"""torch's DataLoader over a dataset tuned by hand: `__getitems__` reads a batch into one tensor."""

from __future__ import annotations

import argparse

import torch
from benchmarks.baselines.serve import Epochs, serve
from benchmarks.baselines.torch_dataset import BatchedRecords, BatchedTokens
from benchmarks.baselines.torch_loader import loader_epochs


def as_it_is(batch: torch.Tensor) -> torch.Tensor:
    """Collates nothing: `__getitems__` has made the batch already."""
    return batch


def make(options: argparse.Namespace) -> tuple[Epochs, dict[str, str]]:
    """The tuned loader; the rest as in torch_loader."""
    data: BatchedRecords | BatchedTokens
    if options.kind == "tokens":
        data = BatchedTokens(options.path, options.record_bytes // 2)
    else:
        data = BatchedRecords(options.path, options.record_bytes)
    return loader_epochs(options, data, collate_fn=as_it_is), {"torch": torch.__version__}


if __name__ == "__main__":
    serve(make)
