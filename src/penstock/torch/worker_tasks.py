"""Reading of a batch inside a worker, in a thread or a process.

Where one thread of a process makes the samples, the generators of `random`, numpy and torch are
seeded for each: docs/decisions/0024-random-numbers.md
"""

from __future__ import annotations

import functools
import itertools
import operator
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from torch.utils.data import default_collate
from torch.utils.data._utils import worker as torch_worker

import torch

from ..budget import Budget
from ..dataset.dataset import Dataset
from ..dataset.sample import Decode, can_take_views
from ..loader.batch import Batch, BatchReader
from ..loader.decode import RowDecode, takes_views
from ..loader.global_generators import DrawWatch, is_same, read_states, write_states
from ..loader.workers import BatchTask
from ..order.augmentation import derive_sample_seed
from .tensors import Tensors, finish_batch


class TaskReader(Protocol):
    """Reader that turns tasks into batches."""

    @property
    def dataset(self) -> Any: ...
    def open(self, seeds: SampleSeeds) -> Callable[[BatchTask], Any]: ...


@dataclass(frozen=True)
class FetchItems:
    """Reader that asks a torch dataset for its items."""

    dataset: Any
    collate: Callable[[Any], Any]
    batched: bool

    def open(self, seeds: SampleSeeds) -> Callable[[BatchTask], Any]:
        fetch = functools.partial(self._fetch, seeds)
        return lambda task: seeds.make_batch(task, fetch)

    def _fetch(self, seeds: SampleSeeds, task: BatchTask) -> Any:
        is_ours = isinstance(task.ids, np.ndarray)  # and so a sample comes once an epoch
        ids = task.ids.tolist() if is_ours else task.ids
        dataset = self.dataset
        if seeds.is_idle and self.batched and not getattr(dataset, "__getitems__", None):
            items: Any = [dataset[i] for i in ids]  # half the time of calling __getitem__
        else:
            items = self._fetch_seeded(seeds, task, ids, is_ours)
        if self.collate is default_collate:
            return _collate_privately(items)
        return seeds.call((task.key, task.epoch, -1), self.collate, items)

    def _fetch_seeded(self, seeds: SampleSeeds, task: BatchTask, ids: Any, is_ours: bool) -> Any:
        read = functools.partial(operator.getitem, self.dataset)
        if not self.batched:
            one = ids[0] if is_ours else ids
            place = (seeds.seed, task.epoch, one) if is_ours else (task.key, task.epoch, 0)
            return seeds.call(place, read, one)
        if getattr(self.dataset, "__getitems__", None):
            return seeds.call((task.key, task.epoch, -1), self.dataset.__getitems__, ids)
        if is_ours:
            return [seeds.call((seeds.seed, task.epoch, i), read, i) for i in ids]
        places = ((task.key, task.epoch, row) for row in itertools.count())
        return [seeds.call(place, read, i) for i, place in zip(ids, places, strict=False)]


@dataclass(frozen=True)
class ReadSamples:
    """Reader of the samples of a penstock dataset."""

    dataset: Dataset
    decode: Decode | None
    collate: Callable[[list[Any]], Any] | None
    budget: Budget

    def open(self, seeds: SampleSeeds) -> Callable[[BatchTask], Any]:
        decode, collate = self.dataset.compose_decode(self.decode), self.collate
        whole = 0, 0, 0

        def decode_seeded(sample: Any) -> Any:
            assert decode is not None
            return seeds.call(sample.stream, decode, sample)

        if decode is not None and can_take_views(decode):
            takes_views(decode_seeded)

        def collate_seeded(samples: list[Any]) -> Any:
            assert collate is not None
            return seeds.call(whole, collate, samples)

        # A RowDecode draws from the samples' streams alone.
        is_rows = isinstance(decode, RowDecode) and collate is None
        reader = BatchReader(
            self.dataset.index,
            decode=decode if is_rows else decode and decode_seeded,
            collate=collate and collate_seeded,
            leaves=Tensors(),
            budget=self.budget,
            path=self.dataset.path if self.dataset.kind is None else None,
        )

        def read(task: BatchTask) -> Any:
            nonlocal whole
            is_ours = isinstance(task.ids, np.ndarray)
            whole = task.key, task.epoch, -1
            batch = reader.read(
                self._check_numbers(task.ids),
                epoch=task.epoch,
                step=task.step,
                repeats=task.repeats,
                marks=task.marks,
                seed=seeds.seed if is_ours else task.key,
                by_row=not is_ours,
            )
            raw = decode is None
            return finish_batch(batch, raw) if isinstance(batch, Batch) else batch

        return lambda task: seeds.make_batch(task, read)

    def _check_numbers(self, samples: Any) -> np.ndarray[Any, np.dtype[np.uint64]]:
        if isinstance(samples, np.ndarray):
            return samples  # from our own order
        numbers = samples if isinstance(samples, Sequence) else [samples]
        ids = [operator.index(i) for i in numbers]
        count = len(self.dataset)
        for i in ids:
            if not -count <= i < count:
                raise IndexError(f"the sampler gave sample {i}: there are {count:,}")
        return self.dataset.ids(np.array([i % count for i in ids], np.uint64))


@dataclass(frozen=True)
class WorkerOpening:
    """Opening of a worker, in its own thread or process.

    seed:         the first worker's.
    sample_seed:  from which the random numbers of samples are derived.
    """

    reading: TaskReader
    workers: int
    process: bool
    seed: int
    sample_seed: int
    init: Callable[[int], None] | None

    def __call__(self, number: int) -> Callable[[BatchTask], Any]:
        if self.process:
            torch.set_num_threads(1)  # processes share the cores, as torch's own workers do
            seed_all(self.seed + number)
            torch_worker._worker_info = torch_worker.WorkerInfo(
                id=number,
                num_workers=self.workers,
                seed=self.seed + number,
                dataset=self.reading.dataset,
            )
        if self.init is not None:
            self.init(number)
        is_alone = self.process or self.workers == 0
        # The random state of the calling process is the user's.
        return self.reading.open(SampleSeeds(self.sample_seed, is_alone, not self.process))


def _collate_privately(items: list[Any]) -> Any:
    """Collate, hiding from default_collate that this is a worker.

    In a worker it would stack into shared memory of torch's own; ours is recycled.
    """
    info, torch_worker._worker_info = torch_worker._worker_info, None
    try:
        return default_collate(items)
    finally:
        torch_worker._worker_info = info


class SingleCollation:
    """Collation of one sample by itself, for `batch_size=None`."""

    def __init__(self, convert: Callable[[Any], Any]) -> None:
        self._convert = convert

    def __call__(self, samples: list[Any]) -> Any:
        return self._convert(samples[0])


def return_sample(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


def divide_budget(budget: Budget, workers: int) -> Budget:
    """Return the share of one worker in a budget."""
    threads, rate, decoded = budget.threads, budget.bytes_per_s, budget.decoded_bytes
    return budget.replace(
        threads=None if threads is None else max(1, threads // workers),
        bytes_per_s=None if rate is None else rate / workers,
        readahead_bytes=max(1, budget.readahead_bytes // workers),
        decoded_bytes=None if decoded is None else decoded // workers,
    )


_Value = TypeVar("_Value")
DrawPoint = tuple[int, int, int]
"""Seed, epoch and sample; or, for samples that a sampler gives, its batch's key, epoch and row."""


class Generator(NamedTuple):
    """A global generator: how to seed it, and to read and write its whole state."""

    seed: Callable[[int], object]
    read: Callable[[], Any]
    write: Callable[[Any], object]


# ruff: disable[NPY002] (numpy's global generator is what users draw from)
_generators = {
    "random": Generator(random.seed, random.getstate, random.setstate),
    "numpy": Generator(
        lambda key: np.random.seed(key & 0xFFFFFFFF), np.random.get_state, np.random.set_state
    ),
    "torch": Generator(
        # torch.manual_seed would grow CUDA's list of calls. torch.initial_seed() fits an int64.
        lambda key: torch.default_generator.manual_seed(key & ((1 << 63) - 1)),
        torch.default_generator.get_state,
        torch.default_generator.set_state,
    ),
}
# ruff: enable[NPY002]


def seed_all(key: int) -> None:
    """Seed the generators that per-sample code draws from."""
    for generator in _generators.values():
        generator.seed(key)


class SampleSeeds:
    """Seeds of the samples that one worker makes.

    seed:      the loader's.
    is_alone:  whether no other thread of the process makes samples; else draws are refused.
    restores:  whether the process has a private state, restored after each batch.

    A generator is seeded for each sample once a batch has drawn from it; that batch is made again.
    """

    def __init__(self, seed: int, is_alone: bool, restores: bool) -> None:
        self.seed = seed
        self._is_alone = is_alone
        self._restores = restores
        self._drawn: set[str] = set()
        self._watch = DrawWatch()

    @property
    def is_idle(self) -> bool:
        """True if nothing is to be seeded for the samples of this batch."""
        return not self._drawn

    def make_batch(self, task: BatchTask, function: Callable[[BatchTask], _Value]) -> _Value:
        """Call the function that makes a batch, with the generators prepared for it.

        A process with its own state gets it back afterwards.
        """
        if self._is_alone and not self._restores:
            seed_all(task.key)
        states = read_states()
        if not self._is_alone:
            made = function(task)
            self._watch.check(states, [task], function, "decode, collate_fn or the dataset")
            return made
        fault: Exception | None = None
        try:
            batch = self._make_seeded(task, function)
            if self._watch.is_still(states):
                return batch
        except Exception as error:  # what was drawn without a seed may be why
            fault = error
        moved, repeats = self._watch.suspect(states, 1)
        if not (late := set(moved) - self._drawn) or not (repeats or fault):
            if fault is not None:
                raise fault
            return batch
        if self._restores:
            write_states(states, late)
        self._drawn |= late
        again = self._make_seeded(task, function)
        if fault is None and is_same(batch, again):
            self._drawn -= late  # it makes no difference, or another thread has drawn
        return again

    def _make_seeded(self, task: BatchTask, function: Callable[[BatchTask], _Value]) -> _Value:
        if not self._restores or self.is_idle:
            return function(task)
        used = [_generators[name] for name in self._drawn]
        states = [generator.read() for generator in used]
        try:
            return function(task)
        finally:
            for generator, state in zip(used, states, strict=True):
                generator.write(state)

    def call(self, place: DrawPoint, function: Callable[[Any], _Value], argument: Any) -> _Value:
        """Call a function that makes a sample, or a batch of samples, with its own seeds."""
        if self._drawn:
            key = derive_sample_seed(*place)
            for name in self._drawn:
                _generators[name].seed(key)
        return function(argument)
