"""JAX: batches as arrays of JAX, global ones where a sharding spans processes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from ..dataset.dataset import Dataset
from ..dataset.fields import Ragged
from ..errors import UsageError
from ..loader.batch import Batch
from ..loader.epoch import FunctionTransfer
from ..loader.loader import Loader as ArrayLoader
from ..ranks.place import check_division


class JAXLoader:
    """Batches of `penstock.Loader` as arrays of JAX: all processes make one step together.

    dataset:    from `penstock.open`.
    batch_size: samples of one data coordinate in a step: of all processes that have equal rows.
    sharding:   of the arrays; their first axis is the batch. Processes whose devices have equal
                rows get equal samples. None: arrays on the first device of this process.
    drop_last:  leave out the samples that do not fill a global batch. Otherwise repeats fill the
                last batch, marked by "__valid__": batches have one shape, compiled once.
    options:    further arguments of `penstock.Loader`.

    A batch is a dict of its fields with "__id__" (the samples' numbers) and "__valid__" (bool);
    what else `decode` and `collate` make keeps its structure. Numbers have the types that JAX gives
    them: 32 bits unless jax_enable_x64 is set; "__id__" is left out where they do not suffice.
    Raises UsageError if a field is no array, or the sharding cannot divide the batch.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int | None = None,
        *,
        sharding: Sharding | None = None,
        drop_last: bool = False,
        **options: Any,
    ) -> None:
        options |= {"drop_last": drop_last, "pad": not drop_last}
        options |= {"place": sharding} if sharding is not None else {}
        self.loader = ArrayLoader(dataset, batch_size, **options)  # this process's rows, by numpy
        self._sharding = sharding or SingleDeviceSharding(jax.local_devices()[0])
        self._is_global = sharding is not None
        if sharding is not None:
            check_division(sharding, self.loader.steps.global_batch)

    def __len__(self) -> int:
        """Steps of an epoch, the same in every process."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        """Iterate over an epoch, begun by the first `next`; each batch moves a step ahead of it."""
        return self.loader.iterate(open_transfer=lambda: FunctionTransfer(self._make_arrays))

    def set_epoch(self, epoch: int) -> None:
        """Choose the next epoch. Without it epochs count up by themselves."""
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the run, the same in every process; see `Loader.state_dict`."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the position of `state`, with any number of processes."""
        self.loader.load_state_dict(state)

    def get_state(self) -> bytes:
        """Return the state as JSON, as Grain's checkpoint handler for Orbax asks for it."""
        return json.dumps(self.state_dict()).encode()

    def set_state(self, state: bytes) -> None:
        """Load what `get_state` returned."""
        self.load_state_dict(json.loads(state))

    start_prefetch = staticmethod(lambda: None)  # Grain's handler calls it

    def close(self) -> None:
        """End all threads and free the batch memory; the loader may be iterated again."""
        self.loader.close()

    def _make_arrays(self, batch: Any) -> Any:
        steps = self.loader.steps
        rows = count = -(-steps.global_batch // steps.world_size)
        shares = steps.world_size if self._is_global else 1
        if isinstance(batch, Batch) and hasattr(batch, "ids"):
            count, ids = len(batch.ids), batch.ids.astype(np.int64)
            if (packed := self.loader.dataset.rows) is not None:  # the rest differs in length
                batch = batch.replace_fields({name: batch[name] for name in packed.arrays})
            fits = jax.config.jax_enable_x64 or self.loader.dataset.index.count <= 2**31
            batch = dict(batch) | {"__valid__": np.arange(rows) < count - batch.repeats}
            batch |= {"__id__": ids} if fits else {}
        remedy = "make one a sample, or give drop_last=True"

        def make(path: Any, leaf: Any) -> Any:
            where = f"batch{jax.tree_util.keystr(path)}"
            array = np.asarray(None if isinstance(leaf, Ragged) else leaf)
            if array.dtype.kind not in "biufc" or not array.ndim:
                kind = "rows of different lengths" if isinstance(leaf, Ragged) else array.dtype
                raise UsageError(f"{where} has {kind}, not JAX's: make arrays in decode")
            if len(array) not in (count, rows):  # "__valid__" has all rows
                raise UsageError(f"{where} has {len(array)} rows, not {count}: {remedy}")
            array = array[np.arange(rows) % len(array)] if len(array) < rows else array
            at, shape = self._sharding, (rows * shares, *array.shape[1:])
            if len(getattr(at, "spec", ())) > array.ndim:
                at = NamedSharding(at.mesh, PartitionSpec(*at.spec[: array.ndim]))
            return jax.make_array_from_process_local_data(at, array, shape)

        return jax.tree.map_with_path(make, batch, is_leaf=lambda leaf: isinstance(leaf, Ragged))


Loader = JAXLoader
