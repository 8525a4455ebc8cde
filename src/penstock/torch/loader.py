"""PyTorch's DataLoader, driven by penstock: the same arguments, an exact order, exact resume.

    from penstock.torch import DataLoader

It takes a penstock dataset, which penstock also reads, or any map-style torch dataset. Then it
takes over order, ranks, workers and state, and the dataset does its own reading.
"""

from __future__ import annotations

import contextlib
import operator
import os
import random
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from typing import Any, Literal, Protocol, cast, get_args

import numpy as np
import torch.multiprocessing
import torch.utils.data
from torch.utils.data import BatchSampler, IterableDataset, Sampler, default_collate
from torch.utils.data import default_convert as convert
from torch.utils.data._utils import worker as torch_worker

import torch

from ..budget import Budget
from ..cache import Cache
from ..errors import LimitError, UsageError
from ..loader import (
    AutoShuffle,
    Batch,
    BatchReader,
    BatchTask,
    Dataset,
    Decode,
    EpochIterator,
    EpochTasks,
    Explanation,
    InlineWorkers,
    Loader,
    OrderTasks,
    SamplerTasks,
    Setup,
    StepSampler,
    WorkerProcesses,
    Workers,
    WorkerSource,
    WorkerThreads,
    explain_run,
    identify_data,
    serve_if_configured,
)
from ..meter import Counters, Meter
from ..order import Order, Shuffle
from ..plan import Assignment
from ..sharing import LeasedBudget
from ..topology import detect
from .device_dataset import DeviceDataset, DeviceRequest, space_positions
from .tensors import Tensors, as_tensors, can_pin, pin, reduce_tensor

__all__ = ["DataLoader", "DeviceLoader"]

_frozen = ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers")


class DataLoader:
    """Batches of a dataset, as torch.utils.data.DataLoader gives them, on any number of ranks.

    The arguments of torch keep their order, defaults and errors. What differs:

    - Ranks share each epoch by themselves, as with DistributedSampler: equal numbers of steps and
      samples, padded from the head of the epoch unless `drop_last`. No sampler is needed. Epochs
      count up by themselves; `set_epoch` (also of `sampler`) names one.
    - `state_dict` and `load_state_dict` continue a run exactly, at any step, on any number of
      workers, and on any number of ranks if the global batch is the same.
    - The order with `shuffle=True` depends on `seed` and the epoch alone. No global random state
      is read or changed in this process. `seed=None` is the seed that `generator` was given (its
      state is not used up), and 0 without a generator. Where there are several ranks, a generator
      may differ between them, so that `shuffle=True` then asks for `seed`.
    - Before each batch a worker process seeds `random`, numpy and torch from (seed, epoch, step,
      rank): random augmentation does not depend on the number of workers, and is resumed too.
    - Workers are started once and serve all epochs and iterators, with `persistent_workers` or
      without: what is changed on the dataset afterwards reaches them after `close`.
    - Iterators are independent of each other. Batches always come `in_order`. After an exception
      of the dataset the iterator can go on with the next batch, as in torch; a state taken before
      that resumes at the batch that failed.
    - Fewer samples than ranks, or than one batch with `drop_last`, are an error, not an empty
      epoch.

    dataset:      a map-style dataset of torch's kind; or what `penstock.open` returns, of which
                  `decode` turns each sample (a dict of bytes-like fields, "__key__", "__id__",
                  "__epoch__" and, where known, "label"; see `penstock.rng`) into what is collated.
                  Without `decode` and `collate_fn` a batch is a dict of tensors: each field
                  (B, length) of uint8 or (B, *shape) of its dtype, or `Ragged`; "label" int64 (B,)
                  where known; "__id__" int64 (B,), the samples' numbers; "__valid__" bool (B,),
                  False for samples that pad the last step.
    shuffle:      True is "exact" and False "none"; "blocked" and "auto" as in `penstock.Loader`.
    num_workers:  worker processes; for a penstock dataset, threads that decode (0: one a core).
    workers:      "auto", "threads" or "processes"; processes read and decode whole batches.
    sampler, batch_sampler:  decide the samples in place of the order, and are not divided among
                  ranks: give a DistributedSampler. State then counts steps, and resuming skips
                  them, which is exact if the sampler repeats its sequence after `set_epoch`. Where
                  it exists it is called for every epoch, and an epoch set on the sampler itself is
                  followed. A RandomSampler has none, and is not resumed exactly.
    timeout:      seconds until a batch of the workers is given up: RuntimeError.
    rank, world_size, global_batch_size, assignment, cache, budget: see `penstock.Loader`.

    A dataset that is not penstock's is identified in the state by its `fingerprint`, if it has that
    attribute, else by the name of its type and its length: other content is then not noticed.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | str | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int | None = None,
        decode: Decode | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        global_batch_size: int | None = None,
        workers: Literal["auto", "threads", "processes"] = "auto",
        assignment: Assignment = "strided",
        cache: Cache | None = None,
        budget: Budget | None = None,
    ) -> None:
        num_workers = _check_integer("num_workers", num_workers)
        _check_numbers(num_workers, timeout, prefetch_factor, persistent_workers)
        _check_iterable(dataset, shuffle, sampler, batch_sampler)
        kind = _parse_shuffle(shuffle, dataset)
        shuffle = kind != "none"
        _check_samplers(shuffle, sampler, batch_sampler, batch_size, drop_last)
        _check_ours(dataset, decode, workers, sampler, batch_sampler, batch_size, global_batch_size)
        self.dataset = dataset
        self.num_workers = num_workers
        self.prefetch_factor = 2 if num_workers and prefetch_factor is None else prefetch_factor
        self.pin_memory = pin_memory
        self.pin_memory_device = pin_memory_device
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.multiprocessing_context = _choose_context(multiprocessing_context, num_workers)
        self.in_order = in_order
        self.generator = generator
        self.persistent_workers = persistent_workers
        self.drop_last = drop_last
        self.decode = decode
        self._requested_seed = seed
        self.seed = _choose_seed(seed, generator)
        self._shuffle = shuffle
        foreign = not isinstance(dataset, Dataset)
        reads_ahead = not foreign and sampler is None and batch_sampler is None
        self._kind = _choose_workers(workers, num_workers, reads_ahead, foreign)
        if self._kind == "engine" and num_workers:
            _warn_ignored(
                worker_init_fn=worker_init_fn,
                multiprocessing_context=multiprocessing_context,
                prefetch_factor=prefetch_factor,
            )
        if (cache is not None or assignment != "strided") and self._kind != "engine":
            raise UsageError(
                "cache and assignment are for penstock datasets that are read ahead: leave out "
                "sampler, batch_sampler and workers='processes'"
            )
        self._budget = budget or Budget()
        self._cache = cache
        self._assignment: Assignment = assignment
        self._loader: Loader | None = None
        self._workers: Workers | None = None

        self._batched = batch_size is not None or batch_sampler is not None
        self._user_collate = collate_fn
        self.collate_fn = collate_fn or (default_collate if self._batched else convert)
        chosen = batch_sampler if batch_sampler is not None else sampler
        place = (rank, world_size)
        self._epochs: EpochTasks
        if chosen is None:
            step_sampler = _make_sampler(
                dataset,
                self.seed,
                kind,
                batch_size,
                global_batch_size,
                drop_last,
                place,
                self._budget,
                assignment,
            )
            self._epochs, sampler = OrderTasks(step_sampler), EpochSampler(step_sampler)
        else:
            steps = chosen
            if batch_sampler is None and batch_size is not None:
                steps = BatchSampler(chosen, batch_size, drop_last)
            self._epochs = SamplerTasks(dataset, chosen, steps, self.seed, place)
            if sampler is None:  # as in torch, where it has no effect either
                sampler = torch.utils.data.SequentialSampler(dataset)
        if batch_sampler is not None or global_batch_size is not None:
            batch_size = None  # as in torch: it does not tell the size of a batch
        elif batch_size is not None:
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        self.batch_size = batch_size
        self._loader = self._make_loader() if self._kind == "engine" else None
        self.meter = Meter() if self._loader is None else self._loader.meter
        self._leased_budget: LeasedBudget | None = None
        self._iterators: weakref.WeakSet[EpochIterator] = weakref.WeakSet()
        self._initialized = True

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _frozen and getattr(self, "_initialized", False):
            raise ValueError(
                f"{name} is fixed when a {type(self).__name__} is made: make another loader"
            )
        super().__setattr__(name, value)

    # -- for the trainer -----------------------------------------------------------------

    def __len__(self) -> int:
        """Batches of an epoch, the same on every rank."""
        self._check_seed()
        return len(self._epochs)

    def __iter__(self) -> Iterator[Any]:
        """Begin an epoch. An iterator that was begun before goes on unchanged until dropped."""
        assert self.timeout == 0 or self.num_workers > 0, "timeout needs num_workers > 0"
        self._check_seed()
        if self.pin_memory and not can_pin():
            warnings.warn(
                "pin_memory=True has no effect: torch finds no accelerator to pin memory for",
                stacklevel=2,
            )
        if self._loader is not None:
            return self._loader.begin_epoch(self._finish, float(self.timeout) or None)
        workers = self._start_workers()  # before the epoch is begun: this may fail
        serve_if_configured(self)
        return self._begin_epoch(workers, *self._epochs.begin())

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next `iter()`. Without it epochs count up by themselves."""
        self._epochs.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the run: a few JSON-able values, the same on every rank, O(1).

        Counts the batches that were handed over. May be taken at any time.
        """
        self._check_seed()
        return self._epochs.cursor.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the next `iter()` at the position of `state`; {} changes nothing.

        Raises StateError if the state is of other data, another seed, order or global batch.
        """
        self._check_seed()
        self._epochs.restore(state)

    def stats(self) -> dict[str, Any]:
        """Answer "how is my data read, and how much so far?" See `Loader.stats`.

        {} if workers load the samples, because no engine of this process reads then.
        """
        return {} if self._loader is None else self._loader.stats()

    def counters(self) -> Counters:
        """Answer "how much time and work went where between two moments?" See `Loader.counters`."""
        if self._loader is not None:
            return self._loader.counters()
        reading = {} if self._workers is None else self._workers.counters()
        return self.meter.counters(time.perf_counter_ns(), reading)

    def explain(self, since: Explanation | None = None) -> Explanation:
        """Answer "why is this run not faster, and what would help?" See `Loader.explain`.

        If workers load whole batches, their time on processors counts as decode, and their waiting
        for anything else as storage.
        """
        if self._loader is not None:
            return self._loader.explain(since)
        cores = len(os.sched_getaffinity(0))
        setup = Setup(
            backend="workers",
            decode_threads=self.num_workers,
            cores=cores,
            ahead=self.num_workers > 0,
        )
        return explain_run(self.counters(), setup, since)

    def run_record(self) -> dict[str, Any]:
        """Answer "how would this run do elsewhere?" for a simulation; see `Loader.run_record`."""
        if self._loader is None:
            raise UsageError(
                "workers that load samples by themselves leave no record: use a Loader"
            )
        return self._loader.run_record()

    def drawn(self) -> list[int]:
        """Count the samples drawn from each dataset of a mixture; see `Loader.drawn`."""
        if not isinstance(self._epochs, OrderTasks):
            raise UsageError("the sampler decides what is drawn: ask it")
        return self._epochs.step_sampler.drawn()

    def close(self) -> None:
        """End all workers and threads; the loader may be iterated again, which starts new ones."""
        if self._loader is not None:
            self._loader.close()
        if self._workers is not None:
            self._workers.close()
            self._workers = None
        if self._leased_budget is not None:
            self._leased_budget.leave()
            self._leased_budget = None

    def __repr__(self) -> str:
        return (
            f"DataLoader({self.dataset!r}, batch_size={self.batch_size}, shuffle={self._shuffle}, "
            f"num_workers={self.num_workers} ({self._kind}), seed={self.seed})"
        )

    # -- how batches are made ------------------------------------------------------------------

    def _make_loader(self) -> Loader:
        """Make the loader that reads ahead and decodes in threads of this process."""
        assert isinstance(self._epochs, OrderTasks)
        decode, collate = self._choose_decode()
        loader = Loader(
            self.dataset,
            decode=decode,
            collate=collate,
            decode_threads=self.num_workers or None,
            assignment=self._assignment,
            cache=self._cache,
            budget=self._budget,
        )
        loader.follow(self._epochs.step_sampler, Tensors())
        return loader

    def _choose_decode(self) -> tuple[Decode | None, Callable[[list[Any]], Any] | None]:
        """Return `decode` and `collate` in the form that the reading side takes."""
        if not self._batched:
            single = self._user_collate or as_tensors
            return self.decode or _return_sample, _Single(single)
        if self.decode is None and self._user_collate is not None:
            return _return_sample, self._user_collate
        return self.decode, self._user_collate

    def _start_workers(self) -> Workers:
        """Return the workers, started if they are not running; they live as long as this loader."""
        stale = isinstance(self._workers, WorkerProcesses) and (
            self._workers.closed or self._workers.pid != os.getpid()
        )
        if self._workers is None or stale:
            opening = self._make_opening()
            if self._kind == "processes":
                self._workers = WorkerProcesses(
                    opening,
                    self.num_workers,
                    context=self.multiprocessing_context or torch.multiprocessing.get_context(),
                    reduce=reduce_tensor,
                )
            elif self._kind == "threads":
                self._workers = WorkerThreads(opening, self.num_workers)
            else:
                self._workers = InlineWorkers(opening)
        return self._workers

    def _make_opening(self) -> _Opening:
        reading: _TaskReader
        if isinstance(self.dataset, Dataset):
            decode, collate = self._choose_decode()
            budget = _divide_budget(self._budget, max(1, self.num_workers))
            reading = _ReadSamples(self.dataset, decode, collate, budget)
        else:
            reading = _FetchItems(self.dataset, self.collate_fn, self._batched)
        return _Opening(
            reading,
            self.num_workers,
            self._kind == "processes",
            Order(1, self.seed, purpose="augmentation").key() >> 1,
            self.worker_init_fn if self.num_workers else None,
        )

    def _begin_epoch(self, workers: Workers, epoch: int, first: int) -> EpochIterator:
        self.meter.began(time.perf_counter_ns())
        if self._leased_budget is None:
            place = detect(None, None, os.environ, sys.modules)
            self._leased_budget = LeasedBudget(
                self.counters, type(self.dataset).__name__, place, self._budget
            )
        source = WorkerSource(
            self._epochs.tasks(epoch, first),
            workers,
            self.meter,
            self._leased_budget.budget(),
            first,
            ahead=self.num_workers * (self.prefetch_factor or 1),
            timeout_s=float(self.timeout) or None,
            batched=self._batched,
        )
        iterator = EpochIterator(
            source,
            self._epochs,
            self.meter,
            epoch,
            follow_broker=self._follow_broker,
            finish=self._finish,
        )
        self._iterators.add(iterator)
        return iterator

    def _follow_broker(self) -> None:
        if self._leased_budget is not None and self._leased_budget.changed():
            for iterator in self._iterators:
                iterator.adopt(self._leased_budget.budget())

    def _check_seed(self) -> None:
        """Check the seed: ranks that shuffle differently would read samples twice, or never."""
        if self.generator is None or self._requested_seed is not None or not self._shuffle:
            return
        if not isinstance(self._epochs, OrderTasks):
            return
        ranks = self._epochs.step_sampler.place.world_size
        if ranks > 1:
            raise UsageError(
                f"generator is given and {ranks} ranks shuffle: "
                "their generators may differ, so pass the same seed= on all ranks"
            )

    def _finish(self, batch: Any) -> Any:
        if isinstance(batch, Batch):
            batch = as_tensors(batch)
        return pin(batch) if self.pin_memory and can_pin() else batch


class DeviceLoader:
    """The batches of `DataLoader`, of a data set that lies in the memory of a device.

    The first `iter()` reads all samples once, through the engine, in the order of storage; from
    then on batches are gathered on the device, and nothing is read, decoded, copied or waited for.
    Order, steps, ranks, padding, epochs and state are those of `DataLoader` with the same
    arguments, and so are the batches, bit for bit, with their tensors on the device: a state of
    one continues in the other. Every rank keeps all samples, since each epoch deals them anew.

    dataset:      what `penstock.open` returns; no mixture.
    device:       "cuda", "cuda:1", "cpu", ...; by default torch's current one.
    num_workers:  threads that decode while the data is read (0: one a core).
    decode:       as for `DataLoader`, but called once for each sample, with "__epoch__" 0: random
                  augmentation belongs behind the loader, on the batches.

    On a GPU with Triton installed samples are found by the GPU itself (`penstock.torch.take`), else
    by their numbers. Rows that differ in length lie one after the other, twice while they are read.
    Raises UsageError, and LimitError where the device has no room.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int = 1,
        shuffle: bool | str | None = None,
        num_workers: int = 0,
        drop_last: bool = False,
        *,
        device: torch.device | str | None = None,
        seed: int = 0,
        decode: Decode | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        global_batch_size: int | None = None,
        budget: Budget | None = None,
    ) -> None:
        if not isinstance(dataset, Dataset):
            raise UsageError(
                f"dataset is a {type(dataset).__name__}: give what penstock.open() returns"
            )
        kind = _parse_shuffle(shuffle, dataset)
        if kind == "auto" or not isinstance(dataset.order(seed, shuffle=kind), Order):
            raise UsageError(
                "a DeviceLoader takes one data set and shuffle=True, False, 'exact', 'blocked' or "
                "'none': 'auto' asks how fast storage is, and a mixture keeps no epoch"
            )
        self.dataset = dataset
        self.device = torch.empty(0, device=device).device
        self.drop_last = drop_last
        self._threads, self._decode, self._budget = num_workers, decode, budget
        self._step_sampler = _make_sampler(
            dataset,
            seed,
            kind,
            batch_size,
            global_batch_size,
            drop_last,
            (rank, world_size),
            budget or Budget(),
            "strided",
        )
        self.sampler = EpochSampler(self._step_sampler)
        self._resident: DeviceDataset | None = None

    def __len__(self) -> int:
        """Batches of an epoch, the same on every rank."""
        return len(self._step_sampler)

    def __iter__(self) -> Iterator[Any]:
        """Begin an epoch. An iterator that was begun before goes on unchanged until dropped."""
        resident = self.load()
        return self._batches(resident, *self._step_sampler.begin())

    def load(self) -> DeviceDataset:
        """Read the data now, unless that has been done."""
        if self._resident is None:
            self._check_room()
            resident = DeviceDataset(len(self.dataset), self.device)
            rows = max(1, int(_loading_bytes / max(1.0, self.dataset.index.mean_bytes)))
            loader = Loader(
                self.dataset,
                decode=self._decode,
                decode_threads=self._threads or None,
                budget=self._budget,
            )
            loader.follow(
                StepSampler(
                    self.dataset.fingerprint,
                    self.dataset.order(0, shuffle="none"),
                    batch_size=min(rows, len(self.dataset)),
                    global_batch_size=None,
                    drop_last=False,
                    pad=False,
                    rank=0,
                    world_size=1,
                ),
                Tensors(),
            )
            with contextlib.closing(loader):
                for batch in loader:
                    resident.add(_drop_marks(batch))
            self._resident = resident
        return self._resident

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next `iter()`. Without it epochs count up by themselves."""
        self._step_sampler.cursor.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the run, as `DataLoader` does; either loader continues from it."""
        return self._step_sampler.cursor.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the next `iter()` at the position of `state`; {} changes nothing."""
        self._step_sampler.restore(state)

    def close(self) -> None:
        """Give the memory back; iterating again reads the data again."""
        self._resident = None

    def _batches(self, resident: DeviceDataset, epoch: int, first: int) -> Iterator[Any]:
        step_sampler = self._step_sampler
        steps, place = step_sampler.steps, step_sampler.place
        order = step_sampler.order.at_epoch(epoch)
        exact = order if isinstance(order, Order) and order.shuffle == "exact" else None
        for share in step_sampler.iterate_shares(epoch, first):
            positions = None
            if share.step < steps.full:
                positions = space_positions(
                    share.step, place.rank, place.world_size, steps.global_batch
                )
            request = DeviceRequest(share.ids, positions if exact else None, exact, self.device)
            batch = resident.batch(request)
            if self._decode is None:
                valid = torch.arange(len(share.ids)) < len(share.ids) - share.repeats
                batch |= {"__id__": request.ids, "__valid__": valid.to(self.device)}
            step_sampler.cursor.moved(epoch, share.step + 1)
            yield batch

    def _check_room(self) -> None:
        if self.device.type != "cuda" or self._decode is not None:
            return
        free, needed = torch.cuda.mem_get_info(self.device)[0], self.dataset.index.total_bytes
        if needed > free:
            raise LimitError(
                f"the data set has {needed:,} bytes and {self.device} {free:,} that are free: use "
                "DataLoader, which reads as it goes"
            )


_loading_bytes = 16 << 20
"""Bytes of samples that are read in one step of loading."""


def _drop_marks(batch: Any) -> Any:
    """Return a batch without the columns that say which samples it holds."""
    if not isinstance(batch, Batch):
        return batch
    return {name: part for name, part in as_tensors(batch).items() if name not in _mark_names}


_mark_names = {"__id__", "__valid__"}


class EpochSampler(Sampler[int]):
    """Samples of this rank in the current epoch; `loader.sampler` unless the user gave one."""

    def __init__(self, step_sampler: StepSampler) -> None:
        self._step_sampler = step_sampler

    def __len__(self) -> int:
        return self._step_sampler.rank_samples

    def __iter__(self) -> Iterator[int]:
        for share in self._step_sampler.iterate_shares(self._step_sampler.cursor.epoch):
            yield from share.ids.tolist()

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next `iter()` of the loader."""
        self._step_sampler.cursor.set_epoch(epoch)


# -- inside workers -------------------------------------------------------------------------------


class _TaskReader(Protocol):
    """Reader that turns tasks into batches."""

    @property
    def dataset(self) -> Any: ...
    def open(self) -> Callable[[BatchTask], Any]: ...


@dataclass(frozen=True)
class _FetchItems:
    """Reader that asks a torch dataset for its items."""

    dataset: Any
    collate: Callable[[Any], Any]
    batched: bool

    def open(self) -> Callable[[BatchTask], Any]:
        return self._fetch

    def _fetch(self, task: BatchTask) -> Any:
        ids = task.ids.tolist() if isinstance(task.ids, np.ndarray) else task.ids
        if not self.batched:
            items = self.dataset[ids[0] if isinstance(task.ids, np.ndarray) else ids]
        elif getattr(self.dataset, "__getitems__", None):
            items = self.dataset.__getitems__(ids)
        else:
            items = [self.dataset[i] for i in ids]
        if self.collate is default_collate:
            with _hide_worker_info():
                return default_collate(items)
        return self.collate(items)


@dataclass(frozen=True)
class _ReadSamples:
    """Reader of the samples of a penstock dataset."""

    dataset: Dataset
    decode: Decode | None
    collate: Callable[[list[Any]], Any] | None
    budget: Budget

    def open(self) -> Callable[[BatchTask], Any]:
        reader = BatchReader(
            self.dataset,
            decode=self.decode,
            collate=self.collate,
            leaves=Tensors(),
            budget=self.budget,
        )

        def read(task: BatchTask) -> Any:
            ids = self._check_numbers(task.ids)
            batch = reader.read(
                ids, epoch=task.epoch, step=task.step, repeats=task.repeats, marks=task.marks
            )
            return as_tensors(batch) if isinstance(batch, Batch) else batch

        return read

    def _check_numbers(self, samples: Any) -> np.ndarray[Any, np.dtype[np.uint64]]:
        if isinstance(samples, np.ndarray):
            return samples  # from our own order
        numbers = samples if isinstance(samples, Sequence) else [samples]
        ids = [operator.index(i) for i in numbers]
        count = len(self.dataset)
        for i in ids:
            if not -count <= i < count:
                raise IndexError(f"the sampler gave sample {i}: there are {count:,}")
        return np.array([i % count for i in ids], np.uint64)


@dataclass(frozen=True)
class _Opening:
    """Opening of a worker, in its own thread or process."""

    reading: _TaskReader
    workers: int
    process: bool
    seed: int
    init: Callable[[int], None] | None

    def __call__(self, number: int) -> Callable[[BatchTask], Any]:
        if self.process:
            torch.set_num_threads(1)
            _seed_all(self.seed + number)
            torch_worker._worker_info = torch_worker.WorkerInfo(
                id=number,
                num_workers=self.workers,
                seed=self.seed + number,
                dataset=self.reading.dataset,
            )
        if self.init is not None:
            self.init(number)
        fetch = self.reading.open()
        if not self.process:
            return fetch  # the random state of this process is the user's

        def seeded(task: BatchTask) -> Any:
            _seed_all(task.key)
            return fetch(task)

        return seeded


def _seed_all(key: int) -> None:
    """Seed the generators that per-sample code draws from."""
    random.seed(key)
    np.random.seed([key & 0xFFFFFFFF, key >> 32])  # noqa: NPY002 (what users draw from)
    torch.default_generator.manual_seed(key)  # torch.manual_seed would grow CUDA's list of calls


@contextlib.contextmanager
def _hide_worker_info() -> Iterator[None]:
    """Hide that this is a worker from default_collate.

    In a worker it would stack into shared memory of torch's own; ours is recycled.
    """
    info, torch_worker._worker_info = torch_worker._worker_info, None
    try:
        yield
    finally:
        torch_worker._worker_info = info


class _Single:
    """Collation of one sample by itself, for `batch_size=None`."""

    def __init__(self, convert: Callable[[Any], Any]) -> None:
        self._convert = convert

    def __call__(self, samples: list[Any]) -> Any:
        return self._convert(samples[0])


def _return_sample(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


def _divide_budget(budget: Budget, workers: int) -> Budget:
    """Return the share of one worker in a budget."""
    threads, rate = budget.threads, budget.bytes_per_s
    return budget.replace(
        threads=None if threads is None else max(1, threads // workers),
        bytes_per_s=None if rate is None else rate / workers,
        readahead_bytes=max(1, budget.readahead_bytes // workers),
    )


# -- arguments -------------------------------------------------------------------------------------


def _check_integer(name: str, value: Any) -> int:
    try:
        return int(operator.index(value))
    except TypeError:
        raise TypeError(f"{name} is {value!r}: use an integer") from None


def _warn_ignored(**arguments: Any) -> None:
    names = [name for name, value in arguments.items() if value is not None]
    if names:
        warnings.warn(
            f"no effect of {', '.join(names)}: there are no worker processes, decode runs in "
            "threads; use workers='processes'",
            stacklevel=3,
        )


def _check_numbers(workers: int, timeout: float, factor: int | None, persistent: bool) -> None:
    if workers < 0:
        raise ValueError(f"num_workers is {workers}: use 0 (no workers) or more")
    if timeout < 0:
        raise ValueError(f"timeout is {timeout}: use seconds, or 0 to wait for ever")
    if factor is not None and workers == 0:
        raise ValueError("prefetch_factor counts batches of each worker: it needs num_workers > 0")
    if factor is not None and factor < 0:
        raise ValueError(f"prefetch_factor is {factor}: use 0 or more")
    if persistent and workers == 0:
        raise ValueError("persistent_workers=True needs num_workers > 0")


def _check_iterable(dataset: Any, shuffle: Any, sampler: Any, batch_sampler: Any) -> None:
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


def _check_samplers(
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


def _check_ours(
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


def _choose_context(context: Any, workers: int) -> Any:
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


def _choose_workers(
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


def _choose_seed(seed: int | None, generator: torch.Generator | None) -> int:
    if seed is not None:
        return seed
    return 0 if generator is None else generator.initial_seed() % 2**64


def _make_sampler(
    dataset: Any,
    seed: int,
    shuffle: Shuffle | Literal["auto"],
    batch_size: int | None,
    global_batch_size: int | None,
    drop_last: bool,
    place: tuple[int | None, int | None],
    budget: Budget,
    assignment: Assignment,
) -> StepSampler:
    count = len(dataset)
    if count == 0:
        raise UsageError(f"{type(dataset).__name__} is empty: there is nothing to load")
    size = 1 if batch_size is None else batch_size  # without batches a step is one sample
    choice = AutoShuffle(dataset, seed, budget) if shuffle == "auto" else None
    kind: Shuffle = "exact" if shuffle == "auto" else shuffle
    ours = isinstance(dataset, Dataset)
    return StepSampler(
        identify_data(dataset),
        dataset.order(seed, shuffle=kind) if ours else Order(count, seed, shuffle=kind),
        batch_size=None if global_batch_size is not None else size,
        global_batch_size=global_batch_size,
        drop_last=drop_last,
        pad=not drop_last,
        rank=place[0],
        world_size=place[1],
        choice=choice,
        assignment=assignment,
    )


def _parse_shuffle(shuffle: bool | str | None, dataset: Any) -> Shuffle | Literal["auto"]:
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
