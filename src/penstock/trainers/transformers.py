"""transformers' Trainer, and what is built on it (TRL): training with the batches of a loader."""

from __future__ import annotations

from typing import Any

from ..errors import UsageError
from ..torch.step_loader import StepLoader


def attach(trainer: Any, loader: StepLoader) -> None:
    """Let a trainer train with the batches of `loader`, in their exact sequence.

    To be called before `train()`. The trainer resumes by its own count of steps
    (`train(resume_from_checkpoint=)`): it seeks, reads nothing again, and gives what `decode` made.
    The batch size is the loader's; `per_device_train_batch_size` and `dataloader_*` have no effect,
    but the first is what the trainer reports. Raises UsageError if it differs, or for another
    loader or setting.
    """
    if not isinstance(loader, StepLoader):
        raise UsageError(f"loader is a {type(loader).__name__}: give a penstock.torch.StepLoader")
    reported = trainer.args.per_device_train_batch_size
    size = loader.loader.batch_size
    if size is not None and reported != size:
        raise UsageError(f"per_device_train_batch_size is {reported}: make it the loader's {size}")
    if trainer.args.ignore_data_skip:
        raise UsageError("ignore_data_skip=True repeats samples after a resume: leave it out")
    trainer.get_train_dataloader = lambda: trainer.accelerator.prepare(loader)
