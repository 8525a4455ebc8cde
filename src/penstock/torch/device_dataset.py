"""Dataset in the memory of a device: read once, then its rows are gathered there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

import torch

from ..dataset.fields import Ragged
from ..errors import CollateError, LimitError, UsageError
from ..loader.batch import Batch
from ..order.order import Order
from ..plan.batch_layout import Ids
from . import gpu


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

    def add(self, part: Any) -> None: ...
    def gather(self, request: DeviceRequest) -> Any: ...


class DeviceDataset:
    """Columns of a whole dataset on a device, filled in the order of storage.

    `add` takes batches of one structure, as loaders give them, and `batch` gives batches of it.
    Raises LimitError if the device has no room.
    """

    def __init__(self, count: int, device: torch.device) -> None:
        self._count, self._device = count, device
        self._root: DeviceColumn | None = None

    def add(self, part: Any) -> None:
        """Add the next samples."""
        try:
            if self._root is None:
                self._root = self._make_column(part)
            self._root.add(part)
        except torch.OutOfMemoryError as error:
            raise LimitError(f"no memory on {self._device} ({error}): use DataLoader") from error

    def batch(self, request: DeviceRequest) -> Any:
        """Gather the batch of these samples."""
        assert self._root is not None
        return self._root.gather(request)

    def _make_column(self, part: Any) -> DeviceColumn:
        if isinstance(part, torch.Tensor):
            return _TensorColumn(self._count, self._device)
        if isinstance(part, Ragged) and isinstance(part.values, Ragged):
            raise UsageError("a batch has lists of texts or lists: use DataLoader")
        if isinstance(part, Ragged):
            return _RaggedColumn(self._device)
        if isinstance(part, np.ndarray):
            return _ArrayColumn()
        if isinstance(part, Mapping):
            return _NestedColumn({name: self._make_column(inner) for name, inner in part.items()})
        if isinstance(part, Sequence) and not isinstance(part, str | bytes):
            if part and all(one is None or isinstance(one, str | bytes) for one in part):
                return _ListColumn()
            return _NestedColumn(dict(enumerate(map(self._make_column, part))))
        raise UsageError(f"a batch has a {type(part).__name__}: make tensors, or use DataLoader")


class _TensorColumn:
    """Column of equal rows: one tensor for all samples."""

    def __init__(self, count: int, device: torch.device) -> None:
        self._count, self._device = count, device
        self._filled = 0
        self._all: torch.Tensor | None = None

    def add(self, part: torch.Tensor) -> None:
        if self._all is None:
            shape = (self._count, *part.shape[1:])
            self._all = torch.empty(shape, dtype=part.dtype, device=self._device)
        if part.shape[1:] != self._all.shape[1:] or part.dtype != self._all.dtype:
            raise CollateError(
                f"{part.dtype} {tuple(part.shape[1:])} from sample {self._filled} on follows "
                f"{self._all.dtype} {tuple(self._all.shape[1:])}: decode to one, or use DataLoader"
            )
        self._all[self._filled : self._filled + len(part)].copy_(part)
        self._filled += len(part)

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

    def add(self, part: Ragged) -> None:
        self._values.append(part.values.to(self._device, copy=True))
        self._lengths.append(np.diff(part.offsets.numpy()))

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
        self._parts: list[npt.NDArray[Any]] = []

    def add(self, part: npt.NDArray[Any]) -> None:
        self._parts.append(part.copy())

    def gather(self, request: DeviceRequest) -> npt.NDArray[Any]:
        self._parts = [np.concatenate(self._parts)] if len(self._parts) > 1 else self._parts
        rows: npt.NDArray[Any] = self._parts[0][request.host]
        return rows


class _ListColumn:
    """Column on the host: strings, bytes and None."""

    def __init__(self) -> None:
        self._values: list[Any] = []

    def add(self, part: Sequence[Any]) -> None:
        self._values += part

    def gather(self, request: DeviceRequest) -> list[Any]:
        return [self._values[i] for i in request.host.tolist()]


class _NestedColumn:
    """Mapping or sequence of columns; batches have its type."""

    def __init__(self, columns: dict[Any, DeviceColumn]) -> None:
        self._columns = columns
        self._construct: Callable[[dict[Any, Any]], Any] = dict

    def add(self, part: Any) -> None:
        self._construct = dict if isinstance(part, Batch) else _find_constructor(type(part))
        for name, column in self._columns.items():
            column.add(part[name])

    def gather(self, request: DeviceRequest) -> Any:
        return self._construct(
            {name: column.gather(request) for name, column in self._columns.items()}
        )


def _find_constructor(kind: Any) -> Callable[[dict[Any, Any]], Any]:
    """Return the function that makes a value of a type from its parts."""
    if issubclass(kind, Mapping):
        return kind  # type: ignore[no-any-return]
    if hasattr(kind, "_fields"):
        return lambda parts: kind(*parts.values())
    return lambda parts: kind(parts.values())


def space_positions(step: int, rank: int, world_size: int, global_batch: int) -> range:
    """Return a rank's positions in a whole step whose samples are dealt one by one ("strided")."""
    return range(step * global_batch + rank, (step + 1) * global_batch, world_size)
