"""Doubles of trainers that cannot be installed beside this torch: they call what those call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


class ComposerTrainer:
    """Trainer of Composer 0.32.1, as far as it touches its loader.

    core/data_spec.py takes the number of samples from `dataset` and core/state.py the state, both
    from torch's DataLoader alone; trainer/trainer.py does not read earlier batches again if the
    state was loaded.
    """

    def __init__(self, train_dataloader: Any, saved: dict[str, Any] | None = None) -> None:
        assert isinstance(train_dataloader, torch.utils.data.DataLoader)
        self.loader = train_dataloader
        self.num_samples = len(train_dataloader.dataset)
        self.time = {"epoch": 0, "batch_in_epoch": 0, "sample_in_epoch": 0}
        self.batches: list[Any] = []
        self.resumption: dict[str, bool] = {}
        if saved is not None:
            self.time = dict(saved["timestamp"])
            if hasattr(self.loader.dataset, "load_state_dict"):
                self.loader.dataset.load_state_dict(saved["dataset_state"])
                self.resumption["train"] = True

    def fit(self, count: int) -> None:
        """Train on a number of batches, as max_duration does."""
        if "train" not in self.resumption:  # earlier epochs are begun, to move their sampler
            for _ in range(self.time["epoch"]):
                next(iter(self.loader))
        while len(self.batches) < count:
            skipped = 0 if "train" in self.resumption else self.time["batch_in_epoch"]
            for number, batch in enumerate(self.loader):
                if number < skipped:
                    continue
                self.batches.append(batch)
                self.time["batch_in_epoch"] += 1
                self.time["sample_in_epoch"] += len(batch["x"])
                if len(self.batches) == count:
                    return
            epoch = self.time["epoch"] + 1
            self.time = {"epoch": epoch, "batch_in_epoch": 0, "sample_in_epoch": 0}

    def save(self) -> dict[str, Any]:
        dataset = self.loader.dataset
        state = dataset.state_dict(self.time["sample_in_epoch"], True)
        return {"timestamp": dict(self.time), "dataset_state": state}


class MegatronTraining:
    """Training of Megatron-LM core_r0.16 with --dataloader-type external.

    training/training.py wraps what the provider returns, calls next() on it, and never iter();
    training/checkpointing.py saves its state, which nothing restores.
    """

    def __init__(self, provide: Callable[[], Any], wrap: Callable[[Any], Any]) -> None:
        self.data_iterator = wrap(provide())

    def train(self, count: int) -> list[Any]:
        return [next(self.data_iterator) for _ in range(count)]

    def save(self, dataloader_save: Path, iteration: int, dp_rank: int = 0) -> None:
        assert hasattr(self.data_iterator.iterable, "save_state")
        state = self.data_iterator.iterable.save_state()
        place = dataloader_save / f"iter_{iteration:07d}" / "mp_rank_00"
        place.mkdir(parents=True, exist_ok=True)
        file = place / f"train_dataloader_dprank{dp_rank:03d}.pt"
        torch.save({"dataloader_state_dict": state}, file)
