"""PyTorch's DataLoader, driven by penstock: the same arguments, an exact order, exact resume.

    from penstock.torch import DataLoader

It takes a penstock dataset (penstock reads it too), or any map-style torch dataset. Then it
takes over order, ranks, workers and state, and the dataset does its own reading.
"""

from __future__ import annotations

import os
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch.multiprocessing
import torch.utils.data
from torch.utils.data import BatchSampler, default_collate
from torch.utils.data import default_convert as convert

import torch

from ..arguments import check_names
from ..budget import Budget
from ..dataset.dataset import Dataset
from ..dataset.packing import Buckets
from ..dataset.sample import Decode
from ..errors import UsageError
from ..loader.balancing import Balanced
from ..loader.batch import Batch, pick_fields
from ..loader.collate import Pad
from ..loader.decode import RowDecode, RowReader
from ..loader.epoch import DeviceTransfer, EpochIterator, OpenEpoch, OpenIterators, make_turn
from ..loader.explain import Explanation, MeasureGains, Setup, explain_run, hold_images
from ..loader.loader import Loader
from ..loader.metrics import serve_if_configured
from ..loader.sampler import PositionedLoader, StepSampler, make_step_sampler
from ..loader.sources import WorkerSource
from ..loader.worker_processes import WorkerProcesses
from ..loader.workers import EpochTasks, InlineWorkers, SamplerTasks, Workers, WorkerThreads
from ..meter import Counters, Meter
from ..order.order import Order
from ..plan.steps import Assignment
from ..ranks.place import choose_place, detect
from ..sharing.leased_budget import LeasedBudget
from .arguments import (
    EpochSampler,
    UnshuffledSampler,
    check_integer,
    check_kinds,
    check_ours,
    check_values,
    choose_context,
    choose_seed,
    choose_workers,
    parse_shuffle,
    refuse_read_ahead,
    refuse_rebuilding,
    warn_ignored,
)
from .device_copies import CopyTransfer, CudaStreams, choose_device, pin
from .tensors import TensorLoader, Tensors, as_tensors, can_pin, finish_batch, reduce_tensor
from .worker_tasks import (
    FetchItems,
    ReadSamples,
    SingleCollation,
    TaskReader,
    WorkerOpening,
    divide_budget,
    return_sample,
)

if TYPE_CHECKING:
    from ..cache.agreement import Cache
    from .image_folders import FolderReading

_frozen = (
    *("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"),
    "device",
)


class DataLoader(PositionedLoader):
    """Batches of a dataset, as torch.utils.data.DataLoader gives them, on any number of ranks.

    The arguments of torch keep their order, defaults and errors. What differs:

    - Ranks share each epoch by themselves, as with DistributedSampler: equal numbers of steps and
      samples, padded from the head of the epoch unless `drop_last`. No sampler is needed. Epochs
      count up by themselves; `set_epoch` (also of `sampler`) names one.
    - `state_dict` and `load_state_dict` continue a run exactly, at any step, on any number of
      workers, and on any number of ranks if the global batch is the same.
    - The order with `shuffle=True` depends on `seed` and the epoch alone. No global random state
      is read or changed in this process; with `num_workers=0` it is restored after a batch.
      `seed=None` is the seed that `generator` was given (its state is not used up), and 0 without a
      generator. Where there are several ranks, a generator may differ between them, so that
      `shuffle=True` then asks for `seed`.
    - `random`, numpy and torch are seeded for each item of a torch dataset from (seed, epoch,
      sample), in worker processes and with `num_workers=0`: random augmentation does not depend on
      workers, ranks or resuming. With a sampler or `__getitems__`, and for `collate_fn`, it is from
      (seed, epoch, step, rank). A generator from which no batch has drawn costs nothing; the first
      batch that draws is made twice. Seeding torch costs 5, numpy 6 and `random` 11 us an item.
      `decode` in worker processes is seeded likewise. Threads share generators: what draws there
      is a UsageError; use `sample["__rng__"]` or `workers="processes"`.
    - Workers are started once and serve all epochs and iterators, with `persistent_workers` or
      without: what is changed on the dataset afterwards reaches them after `close`.
    - Iterators are independent of each other; threads that share one get each batch once. Batches
      always come `in_order`. After an exception of the dataset the iterator can go on with the next
      batch, as in torch; a state taken before that resumes at the batch that failed.
    - Whoever makes another loader of this one's attributes (accelerate, Ray's prepare_data_loader)
      loses `decode`, order and state: the first batch of such a loader is a UsageError that names
      `StepLoader`. The attribute `collate_fn` is the function that raises it.
    - Fewer samples than ranks, or than one batch with `drop_last`, are an error, not an empty
      epoch.

    dataset:      a map-style dataset of torch's kind; or what `penstock.open` returns, of which
                  `decode` turns each sample (see `penstock.Loader`) into what is collated. A
                  batch is a `penstock.Batch`: a dict of the fields, with `ids` int64 (B,), the
                  samples' numbers, `valid` bool (B,), False for samples that pad the last step,
                  `step` and `epoch`. Without `decode` and `collate_fn` its fields are tensors,
                  (B, length) of uint8 or (B, *shape) of their dtype, or `Ragged`; and "label" int64
                  (B,) where known. Where `decode` returns no dict, or `collate_fn` makes none, the
                  batch is what collation gives. What torch datasets give stays as torch gives it.
    shuffle:      True is "exact" and False "none"; "blocked" and "auto" as in `penstock.Loader`.
    num_workers:  worker processes; for a penstock dataset, threads that decode (0: one a core).
    workers:      "auto", "threads" or "processes"; processes read and decode whole batches, and
                  with `num_workers=0` this process does.
    sampler, batch_sampler:  decide the samples in place of the order, and are not divided among
                  ranks: give a DistributedSampler. State then counts steps, and resuming skips
                  them. That is exact if the sampler repeats its sequence after `set_epoch`. Where
                  it exists it is called for every epoch, and an epoch set on the sampler itself is
                  followed. A RandomSampler has none, and is not resumed exactly.
    timeout:      seconds until a batch of the workers is given up: RuntimeError.
    device:       "cuda", "cuda:1", ...: batches are handed over on that GPU, and while you compute
                  with one, the next is copied there, from pinned memory on its own stream. All
                  tensors are on the device, ids too; strings and other values stay as they are.
                  "cpu": as without it. See docs/gpu.md, also for CUDA graphs.
    rank, world_size, place, data_axes, check_peers, global_batch_size, batch_tokens, as_tuple,
    assignment, cache, budget: see `penstock.Loader`.

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
        device: torch.device | str | int | None = None,
        seed: int | None = None,
        decode: Decode | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        place: Any = None,
        data_axes: str | Iterable[str] | None = None,
        check_peers: int | None = None,
        global_batch_size: int | None = None,
        batch_tokens: float | Buckets | None = None,
        workers: Literal["auto", "threads", "processes"] = "auto",
        as_tuple: Sequence[str] | None = None,
        assignment: Assignment | Balanced = "strided",
        cache: Cache | None = None,
        budget: Budget | None = None,
    ) -> None:
        self._keep_given(DataLoader, locals())
        num_workers = check_integer("num_workers", num_workers)
        check_kinds(dataset, sampler, batch_sampler, collate_fn, worker_init_fn, generator)
        kind = parse_shuffle(shuffle, dataset)
        shuffle = kind != "none"
        workers_given = num_workers, timeout, prefetch_factor, persistent_workers
        check_values(*workers_given, shuffle, sampler, batch_sampler, batch_size, drop_last)
        check_ours(dataset, decode, workers, sampler, batch_sampler, batch_size, global_batch_size)
        self.dataset = dataset
        self.num_workers = num_workers
        self.prefetch_factor = 2 if num_workers and prefetch_factor is None else prefetch_factor
        self.pin_memory = pin_memory
        self.pin_memory_device = pin_memory_device
        self.device = choose_device(device)
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.multiprocessing_context = choose_context(multiprocessing_context, num_workers)
        self.in_order = in_order
        self.generator = generator
        self.persistent_workers = persistent_workers
        self.drop_last = drop_last
        self.decode = decode
        self._requested_seed = seed
        self.seed = choose_seed(seed, generator)
        self._shuffle = shuffle
        foreign = not isinstance(dataset, Dataset)
        reads_ahead = not foreign and sampler is None and batch_sampler is None
        self._kind = choose_workers(workers, num_workers, reads_ahead, foreign)
        if self._kind != "engine" and not foreign and dataset.rows is not None:
            raise UsageError("packed rows take no sampler and no worker processes: leave these out")
        if self._kind == "engine" and num_workers:
            warn_ignored(
                worker_init_fn=worker_init_fn,
                multiprocessing_context=multiprocessing_context,
                prefetch_factor=prefetch_factor,
            )
        if self._kind != "engine":
            refuse_read_ahead(cache, assignment, batch_tokens)
        self._budget = budget or Budget()
        self._loader: Loader | None = None
        self._workers: Workers | None = None
        self._rows: RowReader | None = None
        self._folder: FolderReading | None = None
        self._batched = batch_size is not None or batch_sampler is not None
        if isinstance(collate_fn, Pad):
            collate_fn = collate_fn.with_leaves(Tensors())
        self._user_collate = collate_fn
        self._as_tuple = check_names("as_tuple", as_tuple)
        self.collate_fn = refuse_rebuilding
        size = 1 if batch_size is None else batch_size  # without batches a step is one sample
        is_unsized = global_batch_size is not None or (batch_tokens is not None and batch_size == 1)
        options: dict[str, Any] = {
            "batch_size": None if is_unsized else size,
            "global_batch_size": global_batch_size,
            "drop_last": drop_last,
            "pad": not drop_last,
            "place": choose_place(place, data_axes, rank, world_size),
            "budget": self._budget,
            "check_peers": check_peers,
        }
        self._epochs: EpochTasks
        if sampler is None and batch_sampler is None:
            reading = {"assignment": assignment, "cache": cache, "batch_tokens": batch_tokens}
            step_sampler = self._make_step_sampler(kind, options, reading)
            self._epochs, sampler = step_sampler, EpochSampler(step_sampler)
            if kind == "none":
                sampler = UnshuffledSampler(step_sampler, dataset)
        else:
            if check_peers is not None:
                raise UsageError("check_peers does not check a sampler's batches: leave it out")
            chosen: Any = batch_sampler if batch_sampler is not None else sampler
            steps: Any = chosen
            if batch_sampler is None and batch_size is not None:
                steps = BatchSampler(chosen, batch_size, drop_last)
            self._epochs = SamplerTasks(dataset, chosen, steps, self.seed, options["place"])
            if sampler is None:  # as in torch, where it has no effect either
                sampler = torch.utils.data.SequentialSampler(dataset)
        if self._loader is None and not foreign and isinstance(self.decode, RowDecode):
            path = dataset.path if dataset.kind is None else None
            self._rows = self.decode.open_data(dataset.index, path, Tensors())
        if batch_sampler is not None or global_batch_size is not None or batch_tokens is not None:
            batch_size = None  # as in torch: it does not tell the size of a batch
        elif batch_size is not None:
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        self.batch_size = batch_size
        self.meter = Meter() if self._loader is None else self._loader.meter
        self._leased_budget: LeasedBudget | None = None
        self._iterators = OpenIterators()
        self._turn = make_turn()  # of the thread that begins an epoch, or closes
        self._open_transfer: Callable[[], DeviceTransfer] | None = None
        if self.device is not None and self.device.type == "cuda":
            chosen_device = self.device
            self._open_transfer = lambda: CopyTransfer(CudaStreams(chosen_device))
        self._has_warned = False
        self.is_dealt = False  # by a StepLoader
        self._end_making()

    @classmethod
    def __class_getitem__(cls, batch: Any) -> types.GenericAlias:
        """Return the class as annotations name it, as torch's: `DataLoader[Tensor]`."""
        return types.GenericAlias(cls, batch)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _frozen and "_made" in vars(self):
            raise ValueError(f"{name} of a {type(self).__name__} is fixed: make another loader")
        super().__setattr__(name, value)

    # -- for the trainer -----------------------------------------------------------------

    def __len__(self) -> int:
        """Batches of an epoch, the same on every rank."""
        self._check_seed()
        return len(self._epochs)

    def __iter__(self) -> EpochIterator:
        """Return an iterator over an epoch, started by its first `next` or its `begin`.

        Until then nothing is read, no worker is started, and `set_epoch` and `load_state_dict`
        choose the epoch. Other iterators go on unchanged until dropped.
        """
        assert self.timeout == 0 or self.num_workers > 0, "timeout needs num_workers > 0"
        self._check_seed()
        states = sys.modules.get("accelerate.state")
        if states is not None and states.AcceleratorState._shared_state and not self.is_dealt:
            warnings.warn(
                "accelerate leaves this DataLoader as it is: batches are not moved, and no "
                "accumulation ends with an epoch: prepare a penstock.torch.StepLoader instead",
                stacklevel=2,
            )
        if self.pin_memory and not can_pin():
            warnings.warn(
                "pin_memory=True has no effect: torch finds no accelerator to pin memory for",
                stacklevel=2,
            )
        if self._loader is not None:
            timeout_s = float(self.timeout) or None
            return self._loader.iterate(self._finish, timeout_s, self._open_transfer)
        has_finish = isinstance(self.dataset, Dataset) or self.pin_memory or self._as_tuple
        return EpochIterator(
            self._begin_epoch,
            self._epochs,
            self.meter,
            self._follow_broker,
            self._finish if has_finish else None,
            self._open_transfer,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the run: a few JSON-able values, the same on every rank, O(1).

        Counts the batches that were handed over. May be taken at any time.
        """
        self._check_seed()
        get_state = (
            None if isinstance(self.dataset, Dataset) else getattr(self.dataset, "state_dict", None)
        )
        if callable(get_state) and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"the state of the loader is its position: what {type(self.dataset).__name__}."
                "state_dict() returns is not part of it. Save that yourself, unless items depend "
                "on their number and on random numbers alone",
                stacklevel=2,
            )
        return super().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the position of `state` with the next epoch; see `Loader`."""
        self._check_seed()
        super().load_state_dict(state)

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
        cores, data = len(os.sched_getaffinity(0)), self.dataset
        if self._folder is None and hasattr(data, "class_to_idx"):
            from .image_folders import open_image_folder

            self._folder = open_image_folder(data, self._given, DataLoader)
        measure: MeasureGains | None = None
        if self._rows is not None:
            measure = partial(self._rows.measure_gains, data.index)
        elif self._folder is not None:
            measure = self._folder.measure_gains
        setup = Setup(
            backend="workers",
            decode_threads=self.num_workers,
            cores=cores,
            ahead=self.num_workers > 0,
            images=self._rows is None and isinstance(data, Dataset) and hold_images(data.index),
            note="" if self._folder is None else self._folder.note,
        )
        return explain_run(self.counters(), setup, since, measure)

    def run_record(self) -> dict[str, Any]:
        """Answer "how would this run do elsewhere?" for a simulation; see `Loader.run_record`."""
        if self._loader is None:
            raise UsageError("worker processes leave no record: use a Loader")
        return self._loader.run_record()

    def close(self) -> None:
        """End all workers and threads; iterating the loader again starts new ones."""
        if self._loader is not None:
            self._loader.close()
        with self._turn:
            for iterator in self._iterators:
                iterator.close()
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

    def _make_step_sampler(
        self, shuffle: Any, options: Mapping[str, Any], reading: Mapping[str, Any]
    ) -> StepSampler:
        """Return the sampler of the dataset's order; make the loader first, if one reads here."""
        if not len(self.dataset):
            raise UsageError(f"{type(self.dataset).__name__} is empty: there is nothing to load")
        if self._kind != "engine":
            return make_step_sampler(self.dataset, self.seed, shuffle, **options)
        decode, collate = self._choose_decode()
        self._loader = TensorLoader(
            self.dataset,
            shuffle=shuffle,
            seed=self.seed,
            decode=decode,
            collate=collate,
            decode_threads=self.num_workers or None,
            **options,
            **reading,
        )
        return self._loader.step_sampler

    def _choose_decode(self) -> tuple[Decode | None, Callable[[list[Any]], Any] | None]:
        """Return `decode` and `collate` in the form that the reading side takes."""
        if not self._batched:
            single = self._user_collate or as_tensors
            return self.decode or return_sample, SingleCollation(single)
        if self.decode is None and self._user_collate is not None:
            return return_sample, self._user_collate
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

    def _make_opening(self) -> WorkerOpening:
        reading: TaskReader
        if isinstance(self.dataset, Dataset):
            decode, collate = self._choose_decode()
            budget = divide_budget(self._budget, max(1, self.num_workers))
            reading = ReadSamples(self.dataset, decode, collate, budget)
        else:
            collate = self._user_collate or (default_collate if self._batched else convert)
            reading = FetchItems(self.dataset, collate, self._batched)
        return WorkerOpening(
            reading,
            self.num_workers,
            self._kind == "processes",
            Order(1, self.seed, purpose="augmentation").key() >> 1,
            self.seed,
            self.worker_init_fn if self.num_workers else None,
        )

    def _begin_epoch(self, iterator: EpochIterator) -> OpenEpoch:
        with self._turn:
            return self._open_epoch(iterator)

    def _open_epoch(self, iterator: EpochIterator) -> OpenEpoch:
        workers = self._start_workers()  # before the epoch is begun: this may fail
        serve_if_configured(self)
        if self._leased_budget is None:
            place = detect(None, None, os.environ, sys.modules)
            self._leased_budget = LeasedBudget(
                self.counters, type(self.dataset).__name__, place, self._budget
            )
        epoch, first = self._epochs.begin()
        self.meter.count_epoch(time.perf_counter_ns())
        tasks, budget = self._epochs.tasks(epoch, first), self._leased_budget.budget()
        source = WorkerSource(
            tasks,
            workers,
            self.meter,
            budget,
            ahead=self.num_workers * (self.prefetch_factor or 1),
            timeout_s=float(self.timeout) or None,
            batched=self._batched,
        )
        self._iterators.add(iterator)
        return OpenEpoch(epoch, source)

    def _follow_broker(self) -> int:
        leased = self._leased_budget
        if leased is None:
            return 0
        if leased.changed():
            for iterator in self._iterators:
                iterator.adopt(leased.budget())
        return leased.quiet_until_ns

    def _check_seed(self) -> None:
        """Check the seed: ranks that shuffle differently would read samples twice, or never."""
        if self.generator is None or self._requested_seed is not None or not self._shuffle:
            return
        if not isinstance(self._epochs, StepSampler):
            return
        place = self._epochs.place
        ranks = max(place.world_size, len(place.readers or ()))
        if ranks > 1:
            raise UsageError(f"generators of {ranks} ranks may differ: give the same seed= to all")

    def _finish(self, batch: Any) -> Any:
        if isinstance(batch, Batch):
            batch = finish_batch(batch, raw=self._choose_decode()[0] is None)
        if self._as_tuple:
            batch = pick_fields(self._as_tuple, batch)
        if self._open_transfer is not None:
            return batch  # it is copied to pinned memory on its way
        return pin(batch) if self.pin_memory and can_pin() else batch
