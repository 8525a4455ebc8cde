"""A data set in the memory of a device: its loader, and the columns that it gathers rows of."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

import torch

from ..budget import Budget
from ..dataset.dataset import Dataset
from ..dataset.fields import Ragged
from ..dataset.sample import Decode
from ..errors import CollateError, LimitError, UsageError
from ..loader.batch import Batch
from ..loader.epoch import SharedIterator
from ..loader.sampler import PositionedLoader, StepSampler, make_step_sampler
from ..order.order import Order
from ..order.selection import Selection, find_base
from ..plan.batch_layout import Ids
from ..ranks.place import Place, choose_place
from . import gpu
from .arguments import EpochSampler, parse_shuffle
from .tensors import TensorLoader, as_tensors


class DeviceLoader(PositionedLoader):
    """Batches as from `DataLoader`, of a data set in the memory of a device.

    The first `next` reads all samples once, through the engine, in the order of storage; from
    then on batches are gathered on the device, and nothing is read, decoded, copied or waited for.
    Order, steps, ranks, padding, epochs, state and batches are the same, bit for bit, as from
    `DataLoader` with the same arguments, with tensors on the device: a state of
    one continues in the other. Every rank keeps all samples, since each epoch deals them anew.

    dataset:      what `penstock.open` returns, or a selection of it; no mixture.
    device:       "cuda", "cuda:1", "cpu", ...; by default torch's current one.
    num_workers:  threads that decode while the data is read (0: one a core).
    decode:       as for `DataLoader`, but called once for each sample, with "__epoch__" 0: random
                  augmentation belongs behind the loader, on the batches.

    On a GPU with Triton installed samples are found by the GPU itself (`penstock.torch.take`), else
    by their numbers. Rows of different lengths are stored one after the other, twice while they
    are read.
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
        place: Any = None,
        data_axes: str | Iterable[str] | None = None,
        check_peers: int | None = None,
        global_batch_size: int | None = None,
        budget: Budget | None = None,
    ) -> None:
        self._keep_given(DeviceLoader, locals())
        if not isinstance(dataset, Dataset):
            raise UsageError(f"dataset is a {type(dataset).__name__}: give penstock.open(...)")
        kind = parse_shuffle(shuffle, dataset)
        if kind == "auto" or find_base(dataset.order(seed, shuffle=kind)) is None:
            raise UsageError("no 'auto', mixtures, weights, curricula on a device: use DataLoader")
        self.dataset = dataset
        try:
            self.device = torch.empty(0, device=device).device
        except (RuntimeError, TypeError, AssertionError) as error:
            reason = str(error).partition("\n")[0]
            raise UsageError(f"device is {device!r} ({reason}): use 'cuda:0' or 'cpu'") from None
        self.drop_last = drop_last
        self._threads, self._decode, self._budget = num_workers, decode, budget
        self._epochs: StepSampler = make_step_sampler(
            dataset,
            seed,
            kind,
            batch_size=None if global_batch_size is not None else batch_size,
            global_batch_size=global_batch_size,
            drop_last=drop_last,
            pad=not drop_last,
            place=choose_place(place, data_axes, rank, world_size),
            budget=budget or Budget(),
            check_peers=check_peers,
        )
        self.sampler = EpochSampler(self._epochs)
        self._resident: DeviceDataset | None = None
        self._end_making()

    def __len__(self) -> int:
        """Batches of an epoch, the same on every rank."""
        return len(self._epochs)

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over an epoch. The first `next` starts it; see `Loader`."""
        return SharedIterator(self._batches())

    def load(self) -> DeviceDataset:
        """Read the data now, unless that has been done."""
        if self._resident is None:
            self._check_room()
            resident = DeviceDataset(len(self.dataset), self.device)
            rows = max(1, int(_loading_bytes / max(1.0, self.dataset.index.mean_bytes)))
            loader = TensorLoader(
                self.dataset,
                min(rows, len(self.dataset)),
                shuffle="none",
                decode=self._decode,
                place=Place(0, 1),
                decode_threads=self._threads or None,
                budget=self._budget,
            )
            with contextlib.closing(loader):
                for batch in loader:
                    resident.add(as_tensors(batch) if self._decode is None else batch)
            self._resident = resident
        return self._resident

    def set_weights(self, *_: Any, **__: Any) -> None:
        raise UsageError("no weights on a device: use DataLoader")

    def close(self) -> None:
        """Give the memory back; iterating again reads the data again."""
        self._resident = None

    def _batches(self) -> Iterator[Any]:
        resident = self.load()
        epoch, first = self._epochs.begin()
        step_sampler = self._epochs
        steps, place = step_sampler.steps, step_sampler.place
        order = step_sampler.order.at_epoch(epoch)
        exact = find_base(order) if order.shuffle == "exact" else None
        for share in step_sampler.tasks(epoch, first):
            positions = None
            if share.step < steps.full:
                positions = space_positions(
                    share.step, place.rank, place.world_size, steps.global_batch
                )
            rows = order.numbers(share.ids) if isinstance(order, Selection) else share.ids
            request = DeviceRequest(rows, positions if exact else None, exact, self.device)
            batch = resident.batch(request)
            if type(batch) is dict:
                ids = request.ids if rows is share.ids else self._move(share.ids)
                batch = Batch(batch, ids=ids, step=share.step, epoch=epoch, repeats=share.repeats)
            step_sampler.record_step(epoch, share.step + 1)
            yield batch

    def _move(self, ids: Ids) -> torch.Tensor:
        return torch.from_numpy(ids.view(np.int64)).to(self.device)

    def _check_room(self) -> None:
        if self.device.type != "cuda" or self._decode is not None:
            return
        free = torch.cuda.mem_get_info(self.device)[0]
        needed = int(self.dataset.index.mean_bytes * len(self.dataset))
        if needed > free:
            raise LimitError(f"{self.device} has {free:,} of {needed:,} bytes free: use DataLoader")


_loading_bytes = 16 << 20
"""Bytes of samples that are read in one step of loading."""


class DeviceRequest:
    """Samples of a batch: their numbers, and their positions if these are evenly spaced in an exact
    order. A GPU then finds the samples by itself."""

    def __init__(
        self, ids: Ids, positions: range | None, order: Order | None, device: torch.device
    ) -> None:
        self.host = ids.view(np.int64)
        self._device = device
        self._positions = positions if gpu.is_available(device) else None
        self._order = order
        self._ids: torch.Tensor | None = None

    @property
    def ids(self) -> torch.Tensor:
        """Numbers of the samples, on the device, int64."""
        if self._ids is None:
            self._ids = torch.from_numpy(self.host.copy()).to(self._device)
        return self._ids

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """Gather their rows of x on the device."""
        if self._positions is None or self._order is None:
            return x.index_select(0, self.ids)
        return gpu.take(x, self._positions, self._order.seed, self._order.epoch)


class DeviceColumn(Protocol):
    """One leaf of the batches, for all samples."""

    def add(self, rows: Any) -> None: ...
    def gather(self, request: DeviceRequest) -> Any: ...


class DeviceDataset:
    """Columns of a whole dataset on a device, filled in the order of storage.

    `add` takes batches of one structure, as loaders give them, and `batch` gives batches of it.
    Raises LimitError if the device has no room.
    """

    def __init__(self, count: int, device: torch.device) -> None:
        self._count, self._device = count, device
        self._root: DeviceColumn | None = None

    def add(self, batch: Any) -> None:
        """Add the next samples."""
        try:
            if self._root is None:
                self._root = self._make_column(batch)
            self._root.add(batch)
        except torch.OutOfMemoryError as error:
            raise LimitError(f"no memory on {self._device} ({error}): use DataLoader") from error

    def batch(self, request: DeviceRequest) -> Any:
        """Gather the batch of these samples."""
        assert self._root is not None
        return self._root.gather(request)

    def _make_column(self, rows: Any) -> DeviceColumn:
        if isinstance(rows, torch.Tensor):
            return _TensorColumn(self._count, self._device)
        if isinstance(rows, Ragged) and isinstance(rows.values, Ragged):
            raise UsageError("a batch has lists of texts or lists: use DataLoader")
        if isinstance(rows, Ragged):
            return _RaggedColumn(self._device)
        if isinstance(rows, np.ndarray):
            return _ArrayColumn()
        if isinstance(rows, Mapping):
            return _NestedColumn({name: self._make_column(inner) for name, inner in rows.items()})
        if isinstance(rows, Sequence) and not isinstance(rows, str | bytes):
            if rows and all(one is None or isinstance(one, str | bytes) for one in rows):
                return _ListColumn()
            return _NestedColumn(dict(enumerate(map(self._make_column, rows))))
        raise UsageError(f"a batch has a {type(rows).__name__}: make tensors, or use DataLoader")


class _TensorColumn:
    """Column of equal rows: one tensor for all samples."""

    def __init__(self, count: int, device: torch.device) -> None:
        self._count, self._device = count, device
        self._filled = 0
        self._all: torch.Tensor | None = None

    def add(self, rows: torch.Tensor) -> None:
        if self._all is None:
            shape = (self._count, *rows.shape[1:])
            self._all = torch.empty(shape, dtype=rows.dtype, device=self._device)
        if rows.shape[1:] != self._all.shape[1:] or rows.dtype != self._all.dtype:
            kinds = [f"{x.dtype} {tuple(x.shape[1:])}" for x in (rows, self._all)]
            where = f"{kinds[0]} from sample {self._filled} on follows {kinds[1]}"
            raise CollateError(f"{where}: decode to one, or use DataLoader")
        self._all[self._filled : self._filled + len(rows)].copy_(rows)
        self._filled += len(rows)

    def gather(self, request: DeviceRequest) -> torch.Tensor:
        assert self._all is not None
        return request.gather(self._all)


class _RaggedColumn:
    """Column of rows that differ in length, one after the other."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._values: list[torch.Tensor] = []
        self._lengths: list[npt.NDArray[np.int64]] = []
        self._ends: npt.NDArray[np.int64] | None = None

    def add(self, rows: Ragged) -> None:
        self._values.append(rows.values.to(self._device, copy=True))
        self._lengths.append(np.diff(rows.offsets.numpy()))

    def gather(self, request: DeviceRequest) -> Ragged:
        if len(self._values) > 1:  # the first batch
            self._values = [torch.cat(self._values)]
            self._lengths = [np.concatenate(self._lengths)]
        (values,), (lengths,) = self._values, self._lengths
        if self._ends is None:
            self._ends = np.cumsum(lengths)
        ends, widths = self._ends[request.host], lengths[request.host]
        rows = [
            values[end - width : end]
            for end, width in zip(ends.tolist(), widths.tolist(), strict=True)
        ]
        offsets = np.append(0, np.cumsum(widths))
        return Ragged(torch.cat(rows), torch.from_numpy(offsets).to(self._device))


class _ArrayColumn:
    """Column on the host: arrays of strings and other dtypes that tensors lack."""

    def __init__(self) -> None:
        self._arrays: list[npt.NDArray[Any]] = []

    def add(self, rows: npt.NDArray[Any]) -> None:
        self._arrays.append(rows.copy())

    def gather(self, request: DeviceRequest) -> npt.NDArray[Any]:
        self._arrays = [np.concatenate(self._arrays)] if len(self._arrays) > 1 else self._arrays
        rows: npt.NDArray[Any] = self._arrays[0][request.host]
        return rows


class _ListColumn:
    """Column on the host: strings, bytes and None."""

    def __init__(self) -> None:
        self._values: list[Any] = []

    def add(self, rows: Sequence[Any]) -> None:
        self._values += rows

    def gather(self, request: DeviceRequest) -> list[Any]:
        return [self._values[i] for i in request.host.tolist()]


class _NestedColumn:
    """Mapping or sequence of columns; batches have its type."""

    def __init__(self, columns: dict[Any, DeviceColumn]) -> None:
        self._columns = columns
        self._construct: Callable[[dict[Any, Any]], Any] = dict

    def add(self, rows: Any) -> None:
        self._construct = dict if isinstance(rows, Batch) else _find_constructor(type(rows))
        for name, column in self._columns.items():
            column.add(rows[name])

    def gather(self, request: DeviceRequest) -> Any:
        return self._construct(
            {name: column.gather(request) for name, column in self._columns.items()}
        )


def _find_constructor(kind: Any) -> Callable[[dict[Any, Any]], Any]:
    """Return the function that makes a value of a type from its parts."""
    if issubclass(kind, Mapping):
        return kind  # type: ignore[no-any-return]
    if hasattr(kind, "_fields"):
        return lambda fields: kind(*fields.values())
    return lambda fields: kind(fields.values())


def space_positions(step: int, rank: int, world_size: int, global_batch: int) -> range:
    """Return a rank's positions in a whole step whose samples are dealt one by one ("strided")."""
    return range(step * global_batch + rank, (step + 1) * global_batch, world_size)
