"""Samplers: the samples of each step and rank, as `penstock.loader` deals them and torch asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Literal

from torch.utils.data import Sampler, SequentialSampler

from ..budget import Budget
from ..dataset.dataset import Dataset
from ..dataset.packing import Buckets, bucket_orders, check_batch_tokens
from ..errors import UsageError
from ..loader.auto_shuffle import AutoShuffle
from ..loader.balancing import Balanced, balance_costs, name_assignment
from ..loader.batch_tasks import identify_data
from ..loader.reweighing import Reweighing
from ..loader.sampler import StepSampler
from ..order.order import Order, Ordering, Shuffle
from ..order.selection import Selection
from ..plan.steps import Assignment
from ..ranks.place import Place

if TYPE_CHECKING:
    from ..cache.host_agreement import Cache


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


def make_sampler(
    dataset: Any,
    seed: int,
    shuffle: Shuffle | Literal["auto"],
    batch_size: int | None,
    global_batch_size: int | None,
    drop_last: bool,
    place: Place | None,
    budget: Budget,
    assignment: Assignment | Balanced,
    check_peers: int | None = None,
    cache: Cache | None = None,
    batch_tokens: float | Buckets | None = None,
) -> StepSampler:
    count = len(dataset)
    if count == 0:
        raise UsageError(f"{type(dataset).__name__} is empty: there is nothing to load")
    size = 1 if batch_size is None else batch_size  # without batches a step is one sample
    choice = AutoShuffle(dataset, seed, budget) if shuffle == "auto" else None
    kind: Shuffle = "exact" if shuffle == "auto" else shuffle
    ours = isinstance(dataset, Dataset)
    make_order: Callable[[Any], Ordering] = methodcaller("order", seed, shuffle=kind)
    if batch_tokens is not None:
        has_size = batch_size != 1 or global_batch_size is not None
        check_batch_tokens(has_size, cache is not None, shuffle == "auto")
        make_order = bucket_orders(dataset, batch_tokens, make_order)
    order = make_order(dataset) if ours else Order(count, seed, shuffle=kind)
    return StepSampler(
        identify_data(dataset),
        order,
        batch_size=None if global_batch_size is not None else size,
        global_batch_size=global_batch_size,
        drop_last=drop_last,
        pad=not drop_last,
        place=place,
        choice=choice,
        assignment=name_assignment(assignment),
        check_peers=check_peers,
        reweighing=Reweighing(dataset, make_order) if ours else None,
        row_table=dataset.rows.find_row_table() if ours and dataset.rows is not None else None,
        balancing=balance_costs(dataset, order, assignment, cache) if ours else None,
    )
