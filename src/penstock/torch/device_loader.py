"""The loader of a data set in the memory of a device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

import torch

from ..budget import Budget
from ..dataset.dataset import Dataset
from ..dataset.sample import Decode
from ..errors import LimitError, UsageError
from ..loader.batch import Batch
from ..loader.sampler import StepSampler
from ..order.selection import Selection, find_base
from ..plan.batch_layout import Ids
from ..ranks.place import Place, choose_place
from .arguments import parse_shuffle
from .device_dataset import DeviceDataset, DeviceRequest, space_positions
from .samplers import EpochSampler, make_sampler
from .tensors import TensorLoader, as_tensors


class DeviceLoader:
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
        if not isinstance(dataset, Dataset):
            raise UsageError(f"dataset is a {type(dataset).__name__}: give penstock.open(...)")
        kind = parse_shuffle(shuffle, dataset)
        if kind == "auto" or find_base(dataset.order(seed, shuffle=kind)) is None:
            raise UsageError(
                "a DeviceLoader takes no 'auto', mixtures, weights and curricula: use DataLoader"
            )
        self.dataset = dataset
        try:
            self.device = torch.empty(0, device=device).device
        except (RuntimeError, TypeError, AssertionError) as error:
            reason = str(error).partition("\n")[0]
            raise UsageError(f"device is {device!r} ({reason}): use 'cuda:0' or 'cpu'") from None
        self.drop_last = drop_last
        self._threads, self._decode, self._budget = num_workers, decode, budget
        self._step_sampler = make_sampler(
            dataset,
            seed,
            kind,
            batch_size,
            global_batch_size,
            drop_last,
            choose_place(place, data_axes, rank, world_size),
            budget or Budget(),
            "strided",
            check_peers,
        )
        self.sampler = EpochSampler(self._step_sampler)
        self._resident: DeviceDataset | None = None

    def __len__(self) -> int:
        """Batches of an epoch, the same on every rank."""
        return len(self._step_sampler)

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over an epoch. The first `next` starts it; see `Loader`."""
        return self._batches()

    def load(self) -> DeviceDataset:
        """Read the data now, unless that has been done."""
        if self._resident is None:
            self._check_room()
            resident = DeviceDataset(len(self.dataset), self.device)
            rows = max(1, int(_loading_bytes / max(1.0, self.dataset.index.mean_bytes)))
            loader = TensorLoader(
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
                    place=Place(0, 1),
                )
            )
            with contextlib.closing(loader):
                for batch in loader:
                    resident.add(as_tensors(batch) if self._decode is None else batch)
            self._resident = resident
        return self._resident

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that starts next. Without it epochs count up by themselves."""
        self._step_sampler.cursor.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the run, as `DataLoader` does; either loader continues from it."""
        return self._step_sampler.cursor.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the position of `state` in the next epoch; errors as `DataLoader`."""
        self._step_sampler.restore(state)

    def close(self) -> None:
        """Give the memory back; iterating again reads the data again."""
        self._resident = None

    def _batches(self) -> Iterator[Any]:
        resident = self.load()
        epoch, first = self._step_sampler.begin()
        step_sampler = self._step_sampler
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
