"""Composer: a loader whose state Composer keeps in its own checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch.utils.data

from ..loader.epoch import EpochLoader, check_loader


class ComposerBatches(torch.utils.data.IterableDataset[Any]):
    """Batches of a loader, as the dataset that Composer asks for state and size."""

    def __init__(self, loader: EpochLoader) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def __len__(self) -> int:
        """Number of samples, for Composer."""
        return len(getattr(self.loader, "dataset", self.loader))

    def state_dict(self, num_samples: int, from_beginning: bool) -> dict[str, Any]:
        """Return the position of the run.

        num_samples:     samples of Composer's epoch so far. After the last batch the loader is at
                         the next epoch already; they are not 0 yet.
        from_beginning:  without effect: the position says where the epoch began.
        """
        state = self.loader.state_dict()
        if num_samples and not state["step"]:
            state |= {"epoch": state["epoch"] - 1, "step": len(self.loader)}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the position of `state`; the rest of an epoch may be empty."""
        self.loader.load_state_dict(state)


class ComposerLoader(torch.utils.data.DataLoader[Any]):
    """Batches of a loader as a DataLoader of torch, of which alone Composer keeps the state."""

    def __init__(self, loader: EpochLoader) -> None:
        super().__init__(ComposerBatches(loader), batch_size=None, collate_fn=_keep)
        self.loader = loader

    def __len__(self) -> int:
        """Batches of an epoch."""
        return len(self.loader)


def wrap(loader: Any) -> ComposerLoader:
    """Return a loader for `composer.Trainer(train_dataloader=)` or `composer.DataSpec`.

    Ranks share each epoch by themselves. A resumed run goes on at the batch, without reading what
    came before. Raises UsageError if `loader` is none of penstock's.
    """
    return ComposerLoader(check_loader("penstock.composer.wrap", loader))


def _keep(batch: Any) -> Any:
    return batch
