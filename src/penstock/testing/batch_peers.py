"""Check of whether the ranks of a group have the same batch, for training loops and their tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..loader.equal_batches import compare_samples, find_ids


def same_batch(group: Any = None) -> Callable[[Any], None]:
    """Make a check to be called with each batch, on all ranks of a group of torch.distributed.

        check = penstock.testing.same_batch(mesh["tp"].get_group())
        for batch in loader:
            check(batch)

    group:  ranks that have to get equal batches, such as the peers of tensor parallelism; None: all
            of the process group. Or a function that takes a text and returns all ranks' texts.

    The check raises UsageError on all ranks if the numbers of samples (`ids`, "__id__") differ: it
    says at which batch, on which ranks, and which sample is the first that differs. Each check
    takes a message; `check_peers` of the loaders checks every n-th step.
    """
    gather = group if callable(group) else _make_gather(group)
    ranks = None if callable(group) else _list_ranks(group)
    count = 0

    def check(batch: Any) -> None:
        nonlocal count
        compare_samples(gather, ranks, f"batch {count}", find_ids(batch))
        count += 1

    return check


def _make_gather(group: Any) -> Callable[[str], list[str]]:
    import torch.distributed as dist

    def gather(text: str) -> list[str]:
        texts: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(texts, text, group=group)
        return texts

    return gather


def _list_ranks(group: Any) -> list[int]:
    import torch.distributed as dist

    ranks: list[int] = dist.get_process_group_ranks(group)
    return ranks
