"""Tasks of an epoch for loaders whose workers load whole batches: the samples of each step.

`StepSampler` deals penstock's own order; `SamplerTasks` follows a sampler that the user gave.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from .. import limits
from ..order.order import Marks, Order, key_state
from ..plan.cursor import Cursor, Identity
from ..ranks.place import Place, detect


class BatchTask(NamedTuple):
    """One step's work for a worker.

    ids:     sample numbers as an array, or the value that a sampler gave.
    repeats: rows at the end that only fill a padded step.
    epoch_key, rank:  from which `key` is derived.
    marks:   columns that the order gives besides samples, such as a mixture's "source".
    """

    ids: Any
    epoch: int
    step: int
    repeats: int
    epoch_key: int
    rank: int
    marks: Marks | None = None

    @property
    def key(self) -> int:
        """Seed of the random numbers that user code draws in this step."""
        return key_state(self.epoch_key, self.step, self.rank)


class EpochTasks(Protocol):
    """Source of the tasks of each epoch; it also keeps the position of the run."""

    @property
    def cursor(self) -> Cursor: ...

    @property
    def place(self) -> Place:
        """Rank and world size, and their source."""
        ...

    def __len__(self) -> int:
        """Steps of an epoch."""
        ...

    def begin(self) -> tuple[int, int]:
        """Start an epoch, and return its number and its first step."""
        ...

    def tasks(self, epoch: int, first: int) -> Iterator[BatchTask]:
        """Generate the tasks of an epoch from the step `first` on."""
        ...

    def record_step(self, epoch: int, step: int) -> None:
        """Record that all batches before this step were handed over."""
        ...

    def end_epoch(self, epoch: int) -> None:
        """Record that the epoch has no further batch."""
        ...

    def set_epoch(self, epoch: int) -> None: ...
    def restore(self, state: Mapping[str, Any]) -> None: ...


class SamplerTasks:
    """Tasks of the samples that a sampler gives. The number of steps may differ between epochs, and
    may be unknown.

    The sampler's `set_epoch`, if it has one, is called at the start of each epoch. An epoch
    that the user has set on the sampler is followed. A state continues exactly if the sampler
    gives the same samples again for the same epoch. A RandomSampler does not: it draws from a
    generator that has moved on.

    steps:  iterable over the samples of each step, once an epoch: the sampler, or batches of it.
    place:  of this process, None detects it; only random numbers depend on it.
    """

    def __init__(
        self,
        dataset: Any,
        sampler: Any,
        steps: Any,
        seed: int,
        place: Place | None,
    ) -> None:
        self._steps = steps
        self._sampler = sampler
        self._seed = seed
        self._requested_place = place
        self._sampler_epoch = 0  # the epoch that the sampler stands in, as far as we know
        self._length = limits.order_count_max
        size = getattr(steps, "batch_size", 1)
        size = size if isinstance(size, int) else 1
        ranks = getattr(getattr(self._sampler, "sampler", self._sampler), "num_replicas", 1)
        kind = type(self._sampler)
        order = f"sampler:{kind.__qualname__}"
        identity = Identity(
            identify_data(dataset), order, seed, size * ranks, getattr(dataset, "commit", "")
        )
        self.cursor = Cursor(identity, limits.order_count_max)

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def place(self) -> Place:
        return self._requested_place or detect(None, None, os.environ, sys.modules)

    def begin(self) -> tuple[int, int]:
        with contextlib.suppress(TypeError):  # a sampler without a length
            self._length = len(self._steps)
        for sampler in self._list_epoch_samplers():
            named = getattr(sampler, "epoch", None)
            if type(named) is int and named >= 0 and named != self._sampler_epoch:
                self.cursor.set_epoch(named)  # the user has set it, as is usual in torch
        return self.cursor.begin()

    def tasks(self, epoch: int, first: int) -> Iterator[BatchTask]:
        key = Order(1, self._seed, epoch, purpose="augmentation").key()
        rank = self.place.rank
        self._tell(epoch)  # here, because several epochs may be begun before the first task
        for step, ids in enumerate(self._steps):
            if step >= first:
                yield BatchTask(ids, epoch, step, 0, key, rank)

    def record_step(self, epoch: int, step: int) -> None:
        self.cursor.move(epoch, step)
        if step >= self._length:
            self.end_epoch(epoch)

    def end_epoch(self, epoch: int) -> None:
        if self.cursor.epoch == epoch:
            self.cursor.move(epoch, limits.order_count_max)

    def set_epoch(self, epoch: int) -> None:
        self.cursor.set_epoch(epoch)
        self._tell(epoch)

    def restore(self, state: Mapping[str, Any]) -> None:
        self.cursor.restore(state, 1)
        if state:
            self._tell(self.cursor.epoch)

    def _tell(self, epoch: int) -> None:
        for sampler in self._list_epoch_samplers():
            sampler.set_epoch(epoch)
        self._sampler_epoch = epoch

    def _list_epoch_samplers(self) -> list[Any]:
        """List the samplers that have `set_epoch`."""
        samplers = (self._sampler, getattr(self._sampler, "sampler", None))
        return [one for one in samplers if callable(getattr(one, "set_epoch", None))]


def identify_data(dataset: Any) -> str:
    """Return the data's identity for a state: its fingerprint, or a hash of type and length."""
    own = getattr(dataset, "fingerprint", None)
    if isinstance(own, str):
        return own
    kind = type(dataset)
    name = kind.__qualname__  # without its module, which may be __main__ in one program only
    with contextlib.suppress(TypeError):  # a dataset without a length, which has a sampler
        name += f":{len(dataset)}"
    return hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
