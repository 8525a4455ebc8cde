"""transformers' Trainer, and TRL's trainers on it: training with the batches of a loader."""

from __future__ import annotations

import copy
from typing import Any

from ..dataset.dataset import Dataset
from ..dataset.packing import PackedKind
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


def make_trainer(
    kind: Any, model: Any, dataset: Dataset, args: Any, *, seed: int = 0, **options: Any
) -> Any:
    """Make an SFT, DPO or reward trainer of TRL that trains with `dataset`, in the exact sequence.

        trainer = penstock.transformers.make_trainer(trl.DPOTrainer, model, pairs, args)

    dataset:  samples are what rows of TRL's own data would be: text, messages, prompt and
              completion, chosen and rejected, or tokens. TRL's code prepares the rows of a batch
              when the batch comes. Or packed rows (`penstock.pack`), for SFTTrainer.
    seed:     of the shuffle.
    options:  what the trainer takes besides, such as processing_class, peft_config, eval_dataset.

    Resumes as `attach` says. UsageError for arguments that want all data before training:
    packing (use `penstock.pack`) and precompute_ref_log_probs.
    """
    for name in ("packing", "precompute_ref_log_probs", "group_by_length"):
        if getattr(args, name, False):
            raise UsageError(f"{name}=True reads all data before training: leave it out")
    import datasets

    is_packed = isinstance(dataset.kind, PackedKind)
    row = {"input_ids": [0, 0], "labels": [0, 0]} if is_packed else _strip(dataset[0])
    first = datasets.Dataset.from_list([row])
    trainer = kind(model=model, args=args, train_dataset=first, **options)
    prepared = copy.copy(trainer.args)
    prepared.dataset_num_proc = None  # a batch is small

    def collate(rows: list[Any]) -> Any:
        table = datasets.Dataset.from_list([_strip(row) for row in rows])
        more = (False, options.get("formatting_func")) if hasattr(args, "packing") else ()
        was_quiet = datasets.are_progress_bars_disabled()
        datasets.disable_progress_bars()
        try:
            table = trainer._prepare_dataset(
                table, trainer.processing_class, prepared, *more, "train"
            )
        finally:
            if not was_quiet:
                datasets.enable_progress_bars()
        return trainer.data_collator(list(table))

    how = {} if is_packed else {"collate_fn": collate}
    size, drop_last = trainer.args.per_device_train_batch_size, trainer.args.dataloader_drop_last
    attach(trainer, StepLoader(dataset, size, shuffle=True, seed=seed, drop_last=drop_last, **how))
    if is_packed:
        _count_documents(trainer)
    return trainer


def _strip(sample: Any) -> dict[str, Any]:
    """Leave out what only loaders want to know of a sample."""
    return {name: value for name, value in sample.items() if not name.startswith("__")}


def _count_documents(trainer: Any) -> None:
    """Let an SFT trainer take packed rows, and count the tokens of all their documents: it counts
    the places of one row."""
    compute = trainer.compute_loss

    def compute_loss(model: Any, inputs: Any, *arguments: Any, **more: Any) -> Any:
        taken = {name: inputs[name] for name in ("input_ids", "labels", "position_ids")}
        before = trainer._total_train_tokens
        loss = compute(model, taken, *arguments, **more)
        if trainer._total_train_tokens != before:  # it trains
            lengths = inputs["cu_seqlens"].diff()[inputs["documents"] >= 0]
            counted = trainer.accelerator.gather_for_metrics(lengths.sum()).sum()
            trainer._total_train_tokens = before + int(counted)
            trainer._metrics["train"]["num_tokens"] = [trainer._total_train_tokens]
        return loss

    trainer.compute_loss = compute_loss
