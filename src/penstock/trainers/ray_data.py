"""Ray Train's data sets: the exact order of a loader, in code that is written for Ray Data.

Ray carries descriptions: a path, options, a worker's place. Each worker opens the saved index and
reads its own samples; no sample passes through Ray.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import ray.train

from ..dataset.dataset import Dataset
from ..dataset.dataset import open as open_dataset
from ..errors import UsageError
from ..ranks.place import Place

_remedies = {
    "dtypes": "cast in decode= of penstock.ray.Data",
    "collate_fn": "give penstock.ray.Data decode= or collate_fn=, of samples",
    "local_shuffle_buffer_size": "leave it out, all samples are mixed",
    "local_shuffle_seed": "give penstock.ray.Data seed=",
}


class RayData:
    """Samples for the `datasets=` of a trainer of Ray, with `dataset_config=DataConfig()`.

    data:     path for `penstock.open`, or what that returned.
    global_batch_size: samples of all workers in a step.
    options:  further arguments of `penstock.torch.DataLoader`, such as `seed` and `decode`. Here
              `shuffle` is True and `device` is the one that Ray gives the worker, "auto".

    In a worker, `ray.train.get_dataset_shard` returns its share: a `penstock.torch.DataLoader`,
    made at first use, behind Ray's names. It has a state, for `penstock.ray.report` and `restore`.
    """

    def __init__(
        self, data: str | os.PathLike[str] | Dataset, *, global_batch_size: int, **options: Any
    ) -> None:
        self.dataset = data if isinstance(data, Dataset) else open_dataset(data)
        given = {"global_batch_size": global_batch_size}
        self.options: dict[str, Any] = {"shuffle": True, "device": "auto"} | options | given
        self._loader: Any = None

    def __call__(self) -> RayData:
        """Return this: Ray calls what is no data set of its own; Train V1 takes nothing else."""
        return self

    def __getattr__(self, name: str) -> Any:
        remedy = (
            "use decode= and iter_torch_batches(), and dataset_config=penstock.ray.DataConfig()"
        )
        raise AttributeError(f"penstock.ray.Data has no {name}: {remedy}")

    @property
    def loader(self) -> Any:
        """The `penstock.torch.DataLoader` of this worker."""
        if self._loader is None:
            from ray.train.torch import get_device  # here: Ray Data needs no torch

            from ..torch.loader import DataLoader

            device = {"device": get_device()} if self.options["device"] == "auto" else {}
            self._loader = DataLoader(self.dataset, **self.options | device)
        return self._loader

    def iter_torch_batches(self, *, batch_size: int | None = None, **settings: Any) -> Any:
        """Return the batches of this worker: each walk over them is an epoch, or the rest of one.

        Ray's arguments may be given, but none that differs from `Data`: that is a UsageError.
        `prefetch_batches` has no effect: `budget=` of `Data` says how far ahead is read.
        """
        world, size = self.loader.place.world_size, self.options["global_batch_size"]
        if batch_size is not None and batch_size * world != size:
            what = f"batch_size is {batch_size}, and {world} workers share {size} samples a step"
            raise UsageError(f"{what}: leave it out")
        for name, value in settings.items():
            if (value or None) != (self.options.get(name) or None) and name != "prefetch_batches":
                remedy = _remedies.get(name, f"give penstock.ray.Data {name}=")
                raise UsageError(f"iter_torch_batches has {name}={value!r}: {remedy}")
        return self.loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        return dict(self.loader.state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.loader.load_state_dict(state)


class RayDataConfig(ray.train.DataConfig):
    """Shares of `penstock.ray.Data` for a group of workers; Ray's data sets go Ray's way.

    Those that `datasets_to_split=` leaves out are each worker's alone, as with Ray.
    """

    def configure(
        self, datasets: Mapping[str, Any], world_size: int, *workers: Any, **more: Any
    ) -> list[dict[str, Any]]:
        """Return for each worker its share of each data set: Ray calls it for each new group."""
        ours = {name: data for name, data in datasets.items() if isinstance(data, RayData)}
        others = {name: data for name, data in datasets.items() if name not in ours}
        shares: list[dict[str, Any]] = super().configure(others, world_size, *workers, **more)
        for name, data in ours.items():
            is_split = self._datasets_to_split == "all" or name in self._datasets_to_split
            for rank, share in enumerate(shares):
                place = Place(rank, world_size) if is_split else Place(0, 1)
                share[name] = RayData(data.dataset, **data.options | {"place": place})
        return shares
