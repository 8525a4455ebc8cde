"""Megatron-LM: an endless iterator for `--dataloader-type external`, saved by Megatron."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from ..errors import UsageError
from ..loader.epoch import EpochLoader, check_loader, make_turn


class MegatronBatches:
    """Batches of all epochs of a loader, one after the other.

    Megatron calls `next` and, on one process of each data-parallel rank, `save_state`. Each batch
    has its own memory for as long as it is held: the rerun machine may replay it.
    """

    def __init__(self, loader: EpochLoader) -> None:
        self._loader = loader
        self._batches = iter(loader)
        self._turn = make_turn()

    def __iter__(self) -> MegatronBatches:
        return self

    def __next__(self) -> Any:
        with self._turn:
            batch = next(self._batches, _end)
            if batch is _end:
                self._batches = iter(self._loader)
                batch = next(self._batches)
            return batch

    def save_state(self) -> dict[str, Any]:
        """Return the position of the run, the same on all ranks."""
        return self._loader.state_dict()


def iterator(
    loader: Any, folder: str | os.PathLike[str] | None = None, iteration: int = 0
) -> MegatronBatches:
    """Return what a dataset provider hands to Megatron as its training iterator.

    loader:     made with the data-parallel rank and world size of `mpu`, without context parallel.
    folder:     `args.dataloader_save`, where Megatron saves the state of the iterator.
    iteration:  `args.iteration`, at which the run continues; 0 in a new run.

    Megatron restores nothing: this does, on any number of data-parallel ranks. Raises UsageError
    if the folder has no state of that iteration, or `loader` is none of penstock's.
    """
    checked = check_loader("penstock.megatron.iterator", loader)
    if folder is not None and iteration:
        place = Path(folder) / f"iter_{iteration:07d}"
        states = sorted(place.rglob("train_dataloader_dprank*.pt"))
        if not states:
            raise UsageError(
                f"{place} has no train_dataloader_dprank*.pt: give --dataloader-save or iteration=0"
            )
        saved = torch.load(states[0], map_location="cpu", weights_only=True)
        checked.load_state_dict(saved["dataloader_state_dict"])
    return MegatronBatches(checked)


_end = object()
