"""Contenders that others wrote: loaders of libraries, as a competent user would call them, and the
user's own, unchanged.

Each library is imported when its contender is made.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from penstock.errors import UsageError

from .delivery import Contender, DeliveryTask
from .samples import ByNumber, flatten_sample, open_samples, stack_samples


class Nothing(Contender):
    """A loader without reading: its time bounds every loader's utilisation."""

    def __init__(self, task: DeliveryTask) -> None:
        self.settings = {}
        self._loader = itertools.repeat(np.zeros((task.batch_size, 1), np.uint8))


# -- threads of this process -----------------------------------------------------------------------


class Grain(Contender):
    """Google's Grain, MapDataset: reader.read_threads threads, each at another batch."""

    def __init__(self, task: DeliveryTask) -> None:
        import grain.python as grain

        reader = task.workload.reader
        self._task, self._range = task, grain.MapDataset.range
        threads = max(1, reader.read_threads)
        how = {"num_threads": threads, "prefetch_buffer_size": max(threads, reader.prefetch_size)}
        self._options = grain.ReadOptions(**how)
        self._samples = ByNumber(task, whole_kept=2 * threads)
        self.settings = {**how, "shuffle": task.shuffle}

    def batches(self, epoch: int) -> Iterable[Any]:
        ids, samples = self._task.ids(epoch).tolist(), self._samples
        batches = (
            self._range(len(ids))
            .map(lambda number: samples[ids[number]])
            .batch(
                self._task.batch_size,
                drop_remainder=True,
                batch_fn=lambda rows: stack_samples(list(rows)),
            )
        )
        loader: Iterable[Any] = batches.to_iter_dataset(self._options)
        return loader


class Spdl(Contender):
    """Meta's SPDL, a pipeline: reader.read_threads threads; each reads a batch, or a file
    where that is read as a whole."""

    def __init__(self, task: DeliveryTask) -> None:
        from spdl.pipeline import PipelineBuilder

        reader = task.workload.reader
        self._builder = PipelineBuilder
        self._task, self._samples = task, ByNumber(task)
        self._threads, self._ahead = max(1, reader.read_threads), max(1, reader.prefetch_size)
        self.settings = {
            "threads": self._threads, "buffer_size": self._ahead, "shuffle": task.shuffle
        }  # fmt: skip

    def batches(self, epoch: int) -> Iterator[Any]:
        ids, size = self._task.ids(epoch).tolist(), self._task.batch_size
        how = {"concurrency": self._threads, "output_order": "input"}
        builder: Any = self._builder()
        if self._task.by_file:
            files = itertools.groupby(ids, lambda number: number // self._task.per_file)
            builder = builder.add_source(list(run) for _, run in files)
            builder = builder.pipe(self._read_file, **how).disaggregate()
            builder = builder.aggregate(size, drop_last=True).pipe(stack_samples)
        else:
            steps = (ids[first : first + size] for first in range(0, len(ids), size))
            builder = builder.add_source(steps).pipe(self._read_batch, **how)
        pipeline = builder.add_sink(self._ahead).build(num_threads=self._threads)
        with pipeline.auto_stop():
            yield from pipeline

    def _read_file(self, ids: list[int]) -> list[Any]:
        """Read consecutive samples of one file."""
        per_file = self._task.per_file
        samples = open_samples(self._task.workload.dataset, self._task.paths[ids[0] // per_file])
        return [samples[number % per_file] for number in ids]

    def _read_batch(self, ids: Iterable[int]) -> Any:
        return stack_samples([self._samples[number] for number in ids])


# -- worker processes of torch ---------------------------------------------------------------------


def _set_workers(task: DeliveryTask, **more: Any) -> dict[str, Any]:
    """Arguments of torch's DataLoader: reader.read_threads workers. more: if there are any."""
    reader = task.workload.reader
    workers = reader.read_threads
    if not workers:
        return {"num_workers": 0}
    ahead = -(-reader.prefetch_size // workers) or 2
    return {"num_workers": workers, "prefetch_factor": ahead, **more}


class Batches:
    """The numbers of each batch of an epoch. If files are read as a whole, the files of the batches
    w, w + workers, ... of worker w are in these batches alone."""

    def __init__(self, task: DeliveryTask, workers: int) -> None:
        self._task = task
        self._lanes = workers if task.by_file and workers > 1 else 1
        self.epoch = 0

    def __len__(self) -> int:
        return self._task.steps

    def __iter__(self) -> Iterator[list[int]]:
        ids = self._task.ids(self.epoch)
        lanes = self._deal_files(ids) if self._lanes > 1 else [ids]
        size, taken = self._task.batch_size, [0] * len(lanes)
        for step in range(self._task.steps):
            batch: list[int] = []
            for lane in range(step, step + len(lanes)):  # its own, and where that is used up others
                lane %= len(lanes)
                more = lanes[lane][taken[lane] : taken[lane] + size - len(batch)].tolist()
                taken[lane] += len(more)
                batch += more
                if len(batch) == size:
                    break
            yield batch

    def _deal_files(self, ids: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
        """The files of the sequence, dealt to workers."""
        file = ids // self._task.per_file
        number = np.concatenate([[0], np.cumsum(file[1:] != file[:-1])])
        return [ids[number % self._lanes == lane] for lane in range(self._lanes)]


def _collate_tensors(rows: list[Any]) -> Any:
    """Arrays of one shape become a tensor, others stay a list."""
    import torch.utils.data

    import torch

    first = rows[0]
    if isinstance(first, tuple):
        return tuple(_collate_tensors(list(column)) for column in zip(*rows, strict=True))
    if not isinstance(first, np.ndarray) or any(row.shape != first.shape for row in rows):
        return [torch.from_numpy(row) if isinstance(row, np.ndarray) else row for row in rows]
    out = torch.from_numpy(np.empty(0, first.dtype)).new_empty((len(rows), *first.shape))
    if torch.utils.data.get_worker_info() is not None:  # written where the other process reads
        out.share_memory_()  # type: ignore[no-untyped-call]
    np.stack(rows, out=out.numpy())
    return out


class Torch(Contender):
    """torch.utils.data.DataLoader over a map dataset: workers that last for the run."""

    def __init__(self, task: DeliveryTask) -> None:
        import torch.utils.data

        reader = task.workload.reader
        more = _set_workers(
            task,
            multiprocessing_context=reader.multiprocessing_context,
            persistent_workers=True,
        )
        more["pin_memory"] = reader.pin_memory and torch.cuda.is_available()
        self._order = Batches(task, reader.read_threads)
        self._loader = torch.utils.data.DataLoader(
            cast(Any, ByNumber(task)),
            batch_sampler=self._order,
            collate_fn=_collate_tensors,
            **more,
        )
        self.settings = {**more, "shuffle": task.shuffle}

    def batches(self, epoch: int) -> Iterable[Any]:
        self._order.epoch = epoch
        return super().batches(epoch)

    def close(self) -> None:
        iterator = self._loader._iterator
        if iterator is not None and hasattr(iterator, "_shutdown_workers"):
            iterator._shutdown_workers()


class WebDataset(Contender):
    """WebDataset over tar archives, WebLoader. Its shuffle is one of shards and of a buffer of
    reader.shuffle_size samples, not an exact one."""

    def __init__(self, task: DeliveryTask) -> None:
        self._task, self._more = task, _set_workers(task)
        self._mine = list(task.paths[task.rank :: task.ranks])
        workers = self._more["num_workers"]
        if len(self._mine) < max(1, workers):
            raise UsageError(
                f"--loader webdataset: rank {task.rank} has {len(self._mine)} shards for {workers} "
                "workers, and a worker needs one: lower reader.read_threads, or make more files"
            )
        buffer = task.workload.reader.shuffle_size
        self.settings = {**self._more, "shuffle": task.shuffle, "buffer": buffer}

    def batches(self, epoch: int) -> Iterable[Any]:
        import webdataset

        task = self._task
        mixed = task.shuffle != "none"
        seed = task.seed + task.order_epoch(epoch)
        shards = webdataset.WebDataset(
            self._mine,
            shardshuffle=len(self._mine) if mixed else False,
            nodesplitter=lambda urls: urls,
            seed=seed,
            empty_check=False,
        ).repeat()
        if mixed:
            shards = shards.shuffle(task.workload.reader.shuffle_size, seed=seed)
        batched = shards.map(_join_payload).batched(
            task.batch_size, collation_fn=None, partial=False
        )
        loader: Iterable[Any] = webdataset.WebLoader(batched, batch_size=None, **self._more)
        return loader


def _join_payload(sample: dict[str, Any]) -> bytes:
    """The bytes of a sample, without its name."""
    return b"".join(value for key, value in sample.items() if not key.startswith("__"))


# -- formats of their own, to which the data is converted beforehand -------------------------------


class _FfcvRows:
    """The samples as FFCV's writer asks for them: tuples of fields, by number."""

    def __init__(self, task: DeliveryTask) -> None:
        self._samples, self._count = ByNumber(task), task.count
        self._size = len(flatten_sample(self._samples[0]))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> tuple[npt.NDArray[np.uint8]]:
        row = flatten_sample(self._samples[int(number)])
        if len(row) != self._size:
            raise UsageError(
                f"--loader ffcv: sample {number} has {len(row)} bytes and sample 0 has "
                f"{self._size}: set dataset.record_length_bytes_stdev to 0"
            )
        return (row,)


class Ffcv(Contender):
    """FFCV's Loader: reader.read_threads threads; each rank mixes what it has for the whole run."""

    def __init__(self, task: DeliveryTask) -> None:
        from ffcv.fields.decoders import BytesDecoder
        from ffcv.loader import Loader, OrderOption

        order = OrderOption.SEQUENTIAL if task.shuffle == "none" else OrderOption.RANDOM
        how = {"num_workers": max(1, task.workload.reader.read_threads), "batches_ahead": 3}
        self._loader = Loader(
            self._path(task),
            batch_size=task.batch_size,
            os_cache=True,
            order=order,
            seed=task.seed,
            indices=np.arange(task.rank, task.count, task.ranks),
            pipelines={"x": [BytesDecoder()]},
            drop_last=True,
            recompile=False,
            **how,
        )
        self.settings = {**how, "order": order.name}

    @staticmethod
    def _path(task: DeliveryTask) -> str:
        return os.path.join(task.place or "", f"{task.part}.beton")

    @classmethod
    def convert(cls, task: DeliveryTask) -> None:
        from ffcv.fields import BytesField
        from ffcv.writer import DatasetWriter

        rows = _FfcvRows(task)
        for number in range(len(task.paths)):  # the writer's processes cannot tell what is wrong
            rows[number * task.per_file]
        workers = os.cpu_count() or 1
        writer = DatasetWriter(cls._path(task), {"x": BytesField()}, num_workers=workers)
        writer.from_indexed_dataset(rows, chunksize=max(1, min(100, task.count // 8)))


class _LitDataRows:
    """Decodes the samples of a file, as bytes in arrays."""

    def __init__(self, task: DeliveryTask) -> None:
        self._data = task.workload.dataset

    def __call__(self, path: str) -> Iterator[Any]:
        samples = open_samples(self._data, path)
        yield from (flatten_sample(samples[n]) for n in range(self._data.num_samples_per_file))


class LitData(Contender):
    """Lightning's LitData, StreamingDataLoader: reader.read_threads workers, chunks and
    samples mixed as it does."""

    _chunk_bytes = "64MB"

    def __init__(self, task: DeliveryTask) -> None:
        import litdata
        from litdata.utilities.env import _DistributedEnv

        dataset = litdata.StreamingDataset(
            self._folder(task), shuffle=task.shuffle != "none", drop_last=True, seed=task.seed
        )
        dataset.distributed_env = _DistributedEnv(task.ranks, task.rank, 1)
        more = _set_workers(task, persistent_workers=True)
        self._loader = litdata.StreamingDataLoader(
            dataset, batch_size=task.batch_size, drop_last=True, collate_fn=stack_samples, **more
        )
        self.settings = {**more, "shuffle": task.shuffle, "chunk_bytes": self._chunk_bytes}

    @staticmethod
    def _folder(task: DeliveryTask) -> str:
        return os.path.join(task.place or "", f"litdata-{task.part}")

    @classmethod
    def convert(cls, task: DeliveryTask) -> None:
        import litdata

        litdata.optimize(
            _LitDataRows(task),
            inputs=list(task.paths),
            output_dir=cls._folder(task),
            chunk_bytes=cls._chunk_bytes,
            num_workers=min(4, os.cpu_count() or 1),
            start_method="fork",
            verbose=False,
        )


# -- the user's own --------------------------------------------------------------------------------


class User(Contender):
    """The loader that the user's `module:function` returns.

    The function is given what it takes by name: path, batch_size, rank, world_size, seed and
    epochs. If the loader (or its `sampler`) has set_epoch, that is called for each epoch;
    if it can be iterated only once, the function is called again for the next epoch.
    """

    def __init__(self, name: str, task: DeliveryTask) -> None:
        function = _import_function(name)
        known = {
            "path": task.folder,
            "batch_size": task.batch_size,
            "rank": task.rank,
            "world_size": task.ranks,
            "seed": task.seed,
            "epochs": task.epochs,
        }
        taken = _choose_arguments(name, function, known)
        self._make: Callable[[], Any] = lambda: function(**taken)
        self._loader = self._make()
        self._begun = False
        self.settings = {"function": name, **taken}
        if not isinstance(self._loader, Iterable):
            kind = type(self._loader).__name__
            raise UsageError(
                f"--loader {name} returned a {kind}, which cannot be iterated: give batches"
            )

    def batches(self, epoch: int) -> Iterable[Any]:
        if self._begun and isinstance(self._loader, Iterator):
            self._loader = self._make()
        self._begun = True
        for owner in (self._loader, getattr(self._loader, "sampler", None)):
            set_epoch = getattr(owner, "set_epoch", None)
            if callable(set_epoch):
                set_epoch(epoch)
        return super().batches(epoch)

    def close(self) -> None:
        close = getattr(self._loader, "close", None)
        if callable(close):
            close()
        self._loader = None


def _import_function(name: str) -> Callable[..., Any]:
    module_name, _, function_name = name.partition(":")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and module_name.startswith(error.name):
            raise UsageError(
                f"--loader {name}: there is no module {module_name!r} here ({here})"
            ) from None
        raise
    function: Callable[..., Any] | None = getattr(module, function_name, None)
    if not callable(function):
        there = ", ".join(key for key, value in vars(module).items() if inspect.isfunction(value))
        raise UsageError(
            f"--loader {name}: {module.__file__} has no function {function_name!r}"
            f"{'; it has ' if there else ''}{there}"
        )
    return function


def _choose_arguments(
    name: str, function: Callable[..., Any], known: dict[str, Any]
) -> dict[str, Any]:
    """Choose the values that the function takes."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return known
    for parameter in parameters:
        is_optional = parameter.default is not parameter.empty
        if is_optional or parameter.kind is parameter.VAR_POSITIONAL:
            continue
        if parameter.name not in known or parameter.kind is parameter.POSITIONAL_ONLY:
            raise UsageError(
                f"--loader {name} wants {parameter.name!r}, which is not known here: give it a "
                f"default (known by name are {', '.join(known)})"
            )
    names = {parameter.name for parameter in parameters}
    return {key: value for key, value in known.items() if key in names}
