"""One scenario for every trainer: three epochs of 16 steps, the last of which is ragged.

Samples are their own numbers, so that the model sees which it is given. A trainer runs in this
process, or on two ranks by gloo; either way the batches that its model gets are compared with those
that `penstock.torch.DataLoader` alone gives.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

import penstock

COUNT, GLOBAL, STEPS, EPOCHS = 125, 8, 16, 3
RANKS = int(os.environ.get("WORLD_SIZE", "1"))

Numbers = list[int]


def make_data(folder: Path) -> Path:
    path = folder / "rows.npy"
    if not path.exists():
        np.save(path, np.arange(COUNT, dtype=np.int64)[:, None])
    return path


def take_number(sample: dict[str, Any]) -> dict[str, Any]:
    """Decode: the number as an input of the model, and as its label."""
    value = np.float32(sample["data"][0])
    return {"x": np.array([value]), "labels": np.array([value])}


def make_loader(kind: type[Any], folder: Path, weights: Any = None, **options: Any) -> Any:
    """Make a loader of a kind; the batch size is that of one of the ranks there are."""
    data = penstock.open(make_data(folder))
    data = data if weights is None else data.weigh(weights)
    size = {} if "global_batch_size" in options else {"batch_size": GLOBAL // RANKS}
    return kind(data, **size | {"shuffle": True, "seed": 3, "decode": take_number} | options)


def list_expected(folder: Path, **options: Any) -> list[list[Numbers]]:
    """List the batches of this rank, by epoch, as penstock alone gives them."""
    from penstock.torch import DataLoader

    loader = make_loader(DataLoader, folder, **options)
    return [[read_numbers(batch["x"]) for batch in loader] for _ in range(EPOCHS)]


def read_numbers(column: Any) -> Numbers:
    return [int(value) for value in np.asarray(column.detach().cpu()).ravel().tolist()]


def list_rest(epochs: list[list[Numbers]], done: int) -> list[Numbers]:
    """List the batches after so many of the run."""
    return [batch for epoch in epochs for batch in epoch][done:]


def list_stops() -> list[int]:
    """List the steps of the run after which it is interrupted: all, or a few on several ranks."""
    last = EPOCHS * STEPS
    return [*range(1, last)] if RANKS == 1 else [1, STEPS, 25]
