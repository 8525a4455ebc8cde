"""Arguments of the loaders, checked as torch checks its own, with its types of exceptions; and the
samplers that are attributes of loaders, as torch has them.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterator, Mapping
from multiprocessing.context import BaseContext
from typing import Any, Literal, NoReturn, cast, get_args

import torch.multiprocessing
from torch.utils.data import IterableDataset, Sampler, SequentialSampler

import torch

from ..arguments import check_choice, check_function, check_kind
from ..dataset.dataset import Dataset
from ..errors import UsageError
from ..loader.sampler import StepSampler
from ..order.order import Shuffle
from ..order.selection import Selection


def check_integer(name: str, value: Any) -> int:
    try:
        return int(operator.index(value))
    except TypeError:
        raise TypeError(f"{name} is {value!r}: use an integer") from None


def warn_ignored(**arguments: Any) -> None:
    names = [name for name, value in arguments.items() if value is not None]
    if names:
        warnings.warn(
            f"no effect of {', '.join(names)}: there are no worker processes, decode runs in "
            "threads; use workers='processes'",
            stacklevel=3,
        )


def _refuse(error: type[Exception], faults: Mapping[str, Any]) -> None:
    """Raise the error with the first text whose value is true."""
    for text, is_fault in faults.items():
        if is_fault:
            raise error(text)


def check_kinds(
    dataset: Any,
    sampler: Any,
    batch_sampler: Any,
    collate_fn: Any,
    worker_init_fn: Any,
    generator: Any,
) -> None:
    """Check what torch would notice at the first batch, or not at all."""
    drawn = {"sampler": sampler, "batch_sampler": batch_sampler}
    is_drawn = sampler is not None or batch_sampler is not None
    shown, given = _show(dataset), "give what penstock.open() returns"
    faults = {
        "use torch.utils.data.DataLoader for it: dataset is an IterableDataset": isinstance(
            dataset, IterableDataset
        ),
        f"dataset is {shown}: {given}, or define __getitem__ and __len__": not callable(
            getattr(dataset, "__getitem__", None)
        ),
        f"dataset is {shown}: define __len__, or give a sampler": not (
            is_drawn or hasattr(dataset, "__len__")
        ),
    }
    for name, value in drawn.items():
        is_iterable = hasattr(value, "__iter__") or hasattr(value, "__getitem__")
        text = f"{name} is {_show(value)}: give an iterable of sample numbers, or of lists of them"
        faults[text] = value is not None and not is_iterable
    _refuse(UsageError, faults)
    check_function("collate_fn", collate_fn, "a function")
    check_function("worker_init_fn", worker_init_fn, "a function")
    if generator is not None:
        check_kind("generator", generator, torch.Generator, "a torch.Generator, or seed=")


def _show(value: Any) -> str:
    """Return a value as messages name it: itself if it is short, else its type."""
    text = repr(value) if isinstance(value, int | float | str | bytes | None) else ""
    return text if 0 < len(text) <= 40 else f"a {type(value).__name__}"


def check_values(
    workers: int,
    timeout: float,
    factor: int | None,
    persistent: bool,
    shuffle: bool,
    sampler: Any,
    batch_sampler: Any,
    batch_size: int | None,
    drop_last: bool,
) -> None:
    """Raise ValueError, as torch does, for numbers and combinations that it refuses."""
    number = 0 if factor is None else check_integer("prefetch_factor", factor)
    is_sampled, is_batched = sampler is not None, batch_sampler is not None
    others = batch_size != 1 or shuffle or is_sampled or drop_last
    is_single = not is_batched and batch_size is None
    faults = {
        f"num_workers is {workers}: use 0 (no workers) or more": workers < 0,
        f"timeout is {timeout}: use seconds, or 0 to wait for ever": not timeout >= 0,
        "prefetch_factor needs num_workers > 0": factor is not None and not workers,
        f"prefetch_factor is {factor}: use 0 or more": number < 0,
        "persistent_workers=True needs num_workers > 0": persistent and not workers,
        "sampler and shuffle=True are both given: choose one": is_sampled and shuffle,
        "batch_sampler excludes batch_size, shuffle, sampler and drop_last: leave them out": (
            is_batched and others
        ),
        "batch_size=None gives single samples: leave out drop_last": is_single and drop_last,
    }
    _refuse(ValueError, faults)


def check_ours(
    dataset: Any,
    decode: Any,
    workers: str,
    sampler: Any,
    batch_sampler: Any,
    batch_size: int | None,
    global_batch_size: int | None,
) -> None:
    check_choice("workers", workers, ("auto", "threads", "processes"))
    is_sized = batch_size != 1 or sampler is not None or batch_sampler is not None
    faults = {
        f"decode is for penstock datasets: {type(dataset).__name__} decodes in __getitem__": (
            decode is not None and not isinstance(dataset, Dataset)
        ),
        "global_batch_size excludes batch_size, sampler and batch_sampler: choose one": (
            global_batch_size is not None and is_sized
        ),
    }
    _refuse(UsageError, faults)


def refuse_read_ahead(cache: Any, assignment: Any, batch_tokens: Any) -> None:
    """Refuse what a loader that reads ahead by itself takes, for one that does not."""
    if cache is not None or assignment != "strided" or batch_tokens is not None:
        what = "cache, assignment, batch_tokens are for penstock datasets"
        raise UsageError(f"{what} without sampler or processes")


def choose_context(context: Any, workers: int) -> Any:
    if context is None:
        return None
    if workers == 0:
        raise ValueError("multiprocessing_context starts workers: it needs num_workers > 0")
    if isinstance(context, str):
        return torch.multiprocessing.get_context(context)
    if not isinstance(context, BaseContext):
        kind = type(context).__name__
        raise TypeError(f"multiprocessing_context is a {kind}: give a start method's name")
    return context


def choose_workers(
    workers: str, count: int, reads_ahead: bool, foreign: bool
) -> Literal["engine", "inline", "threads", "processes"]:
    """Choose what makes the batches: this process's engine with decode threads, or workers."""
    if reads_ahead and workers != "processes":
        return "engine"
    if count == 0:
        return "inline"
    if workers == "processes" or (workers == "auto" and foreign):
        return "processes"
    return "threads"


def choose_seed(seed: int | None, generator: torch.Generator | None) -> int:
    if seed is not None:
        return seed
    return 0 if generator is None else generator.initial_seed() % 2**64


def parse_shuffle(shuffle: bool | str | None, dataset: Any) -> Shuffle | Literal["auto"]:
    if not isinstance(shuffle, str):
        return "exact" if shuffle else "none"
    if shuffle == "auto" and isinstance(dataset, Dataset):
        return "auto"
    more = ", True, False, or 'auto' for penstock datasets"
    return cast(Shuffle, check_choice("shuffle", shuffle, get_args(Shuffle), more))


def refuse_rebuilding(samples: Any) -> NoReturn:
    """Placeholder for the `collate_fn` of a loader that collates elsewhere.

    Raises UsageError: its caller made a torch DataLoader of our attributes: samples would be raw,
    or in another order.
    """
    what = "a DataLoader was rebuilt without its order and state"
    raise UsageError(f"{what}: give penstock.torch.StepLoader, without prepare_data_loader")


class EpochSampler(Sampler[int]):
    """Samples of this rank in the current epoch, as `dataset[i]` takes them; `loader.sampler`
    unless the user gave one."""

    def __init__(self, step_sampler: StepSampler) -> None:
        self._step_sampler = step_sampler

    def __len__(self) -> int:
        return self._step_sampler.rank_samples

    def __iter__(self) -> Iterator[int]:
        order = self._step_sampler.order
        for share in self._step_sampler.tasks(self._step_sampler.cursor.epoch):
            numbers = order.numbers(share.ids) if isinstance(order, Selection) else share.ids
            yield from numbers.tolist()

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the loader starts next."""
        self._step_sampler.cursor.set_epoch(epoch)


class UnshuffledSampler(EpochSampler, SequentialSampler):
    """An `EpochSampler` of one order for all epochs. Trainers know that by torch's class: Lightning
    leaves such a loader alone under `overfit_batches`."""

    def __init__(self, step_sampler: StepSampler, dataset: Any) -> None:
        super().__init__(step_sampler)
        self.data_source = dataset
