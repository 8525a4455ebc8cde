"""Arguments of the loaders, checked as torch checks its own, with its types of exceptions."""

from __future__ import annotations

import operator
import warnings
from multiprocessing.context import BaseContext
from typing import Any, Literal, NoReturn, cast, get_args

import torch.multiprocessing
from torch.utils.data import IterableDataset

import torch

from ..dataset.dataset import Dataset
from ..errors import UsageError
from ..order.order import Shuffle


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


def check_numbers(workers: int, timeout: float, factor: int | None, persistent: bool) -> None:
    if workers < 0:
        raise ValueError(f"num_workers is {workers}: use 0 (no workers) or more")
    if not isinstance(timeout, int | float):
        raise TypeError(f"timeout is {timeout!r}: use seconds, or 0 to wait for ever")
    if not timeout >= 0:
        raise ValueError(f"timeout is {timeout}: use seconds, or 0 to wait for ever")
    if factor is not None and workers == 0:
        raise ValueError("prefetch_factor counts batches of each worker: it needs num_workers > 0")
    if factor is not None and check_integer("prefetch_factor", factor) < 0:
        raise ValueError(f"prefetch_factor is {factor}: use 0 or more")
    if persistent and workers == 0:
        raise ValueError("persistent_workers=True needs num_workers > 0")


def check_iterable(dataset: Any, shuffle: Any, sampler: Any, batch_sampler: Any) -> None:
    if not isinstance(dataset, IterableDataset):
        return
    arguments = {"shuffle": shuffle, "sampler": sampler, "batch_sampler": batch_sampler}
    for name, value in arguments.items():
        if value not in (None, False):
            raise ValueError(
                f"{name}={value} does not go with an IterableDataset: it decides its order itself"
            )
    raise UsageError(
        f"{type(dataset).__name__} is an IterableDataset, which decides its order and state "
        "itself: use torch.utils.data.DataLoader for it, or give a dataset with __getitem__ and "
        "__len__"
    )


def check_kinds(
    dataset: Any,
    sampler: Any,
    batch_sampler: Any,
    collate_fn: Any,
    worker_init_fn: Any,
    generator: Any,
) -> None:
    """Check what torch would notice at the first batch, or not at all."""
    if not callable(getattr(dataset, "__getitem__", None)):
        raise UsageError(
            f"dataset is {_show(dataset)}: give what penstock.open() returns, or a dataset with "
            "__getitem__ and __len__"
        )
    if sampler is None and batch_sampler is None and not hasattr(dataset, "__len__"):
        raise UsageError(
            f"dataset is {_show(dataset)}, which has no length: define __len__, or give a sampler"
        )
    for name, value in (("sampler", sampler), ("batch_sampler", batch_sampler)):
        if value is not None and not hasattr(value, "__iter__") | hasattr(value, "__getitem__"):
            what = "sample numbers" if name == "sampler" else "lists of sample numbers"
            raise UsageError(f"{name} is {_show(value)}: give an iterable of {what}")
    for name, value in (("collate_fn", collate_fn), ("worker_init_fn", worker_init_fn)):
        if value is not None and not callable(value):
            raise UsageError(f"{name} is {_show(value)}: give a function")
    if generator is not None and not isinstance(generator, torch.Generator):
        raise UsageError(
            f"generator is {_show(generator)}: give a torch.Generator, or seed= with a whole number"
        )


def _show(value: Any) -> str:
    """Return a value as messages name it: itself if it is short, else its type."""
    text = repr(value) if isinstance(value, int | float | str | bytes | None) else ""
    return text if 0 < len(text) <= 40 else f"a {type(value).__name__}"


def check_samplers(
    shuffle: bool, sampler: Any, batch_sampler: Any, batch_size: int | None, drop_last: bool
) -> None:
    if sampler is not None and shuffle:
        raise ValueError("sampler and shuffle=True are both given: the sampler decides the order")
    if batch_sampler is not None:
        if batch_size != 1 or shuffle or sampler is not None or drop_last:
            raise ValueError(
                "batch_sampler decides batches alone: leave out batch_size, shuffle, sampler and "
                "drop_last"
            )
    elif batch_size is None and drop_last:
        raise ValueError(
            "batch_size=None gives single samples: drop_last has no last batch to leave out"
        )


def check_ours(
    dataset: Any,
    decode: Any,
    workers: str,
    sampler: Any,
    batch_sampler: Any,
    batch_size: int | None,
    global_batch_size: int | None,
) -> None:
    if decode is not None and not isinstance(dataset, Dataset):
        raise UsageError(
            f"decode is for penstock datasets: {type(dataset).__name__} decodes in __getitem__"
        )
    if workers not in ("auto", "threads", "processes"):
        raise UsageError(f"workers is {workers!r}: use 'auto', 'threads' or 'processes'")
    if global_batch_size is not None and (
        batch_size != 1 or sampler is not None or batch_sampler is not None
    ):
        raise UsageError(
            "global_batch_size excludes batch_size, sampler and batch_sampler: choose one"
        )


def refuse_read_ahead(cache: Any, assignment: Any, batch_tokens: Any) -> None:
    """Refuse what a loader that reads ahead by itself takes, for one that does not."""
    if cache is not None or assignment != "strided" or batch_tokens is not None:
        raise UsageError(
            "cache, assignment and batch_tokens are for penstock datasets that are read ahead: "
            "leave out sampler, batch_sampler and workers='processes'"
        )


def choose_context(context: Any, workers: int) -> Any:
    if context is None:
        return None
    if workers == 0:
        raise ValueError(
            f"multiprocessing_context starts worker processes, and num_workers is {workers}"
        )
    if isinstance(context, str):
        methods = torch.multiprocessing.get_all_start_methods()
        if context not in methods:
            raise ValueError(
                f"multiprocessing_context is {context!r}: the start methods are {methods!r}"
            )
        return torch.multiprocessing.get_context(context)
    if not isinstance(context, BaseContext):
        raise TypeError(
            f"multiprocessing_context is a {type(context).__name__}: give a start method's name or "
            "a context of multiprocessing"
        )
    return context


def choose_workers(
    workers: str, count: int, reads_ahead: bool, foreign: bool
) -> Literal["engine", "inline", "threads", "processes"]:
    """Choose what makes the batches: this process's engine with decode threads, or workers."""
    if reads_ahead and (workers != "processes" or count == 0):
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
    if shuffle not in get_args(Shuffle):
        raise UsageError(
            f"shuffle is {shuffle!r}: use True, False, 'exact', 'blocked', 'none', or, for what "
            "penstock.open() returns, 'auto'"
        )
    return cast(Shuffle, shuffle)


def refuse_rebuilding(samples: Any) -> NoReturn:
    """Placeholder for the `collate_fn` of a loader that collates elsewhere.

    Raises UsageError: its caller made a torch DataLoader of our attributes: samples would be raw,
    or in another order.
    """
    raise UsageError(
        "another loader was made of the attributes of a penstock.torch.DataLoader, without its "
        "decode, order and state: give penstock.torch.StepLoader to what rebuilds loaders "
        "(accelerate's skip_first_batches, Trainer), and leave out Ray's prepare_data_loader, "
        "which is not needed"
    )
