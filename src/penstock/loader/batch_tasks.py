"""The epochs of a loader that hands whole batches to workers: which samples each step holds.

`OrderTasks` deals penstock's own order; `SamplerTasks` follows a sampler that the user gave.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from .. import limits
from ..order import Marks, Order
from ..plan import Cursor, Identity
from ..topology import detect
from .sampler import StepSampler


class BatchTask(NamedTuple):
    """What a worker has to do for one step.

    ids:   sample numbers as an array, or what a sampler gave.
    key:   from which random numbers are drawn.
    marks: what the order says of each row besides its sample.
    """

    ids: Any
    epoch: int
    step: int
    repeats: int
    key: int
    marks: Marks | None = None


class EpochTasks(Protocol):
    """Gives the tasks of an epoch and knows where the run stands."""

    @property
    def cursor(self) -> Cursor: ...
    def __len__(self) -> int: ...
    def begin(self) -> tuple[int, int]: ...
    def tasks(self, epoch: int, first: int) -> Iterator[BatchTask]: ...
    def record_step(self, epoch: int, step: int) -> None: ...
    def end_epoch(self, epoch: int) -> None: ...
    def set_epoch(self, epoch: int) -> None: ...
    def restore(self, state: Mapping[str, Any]) -> None: ...


class OrderTasks:
    """Our order, dealt to ranks."""

    def __init__(self, step_sampler: StepSampler) -> None:
        self.step_sampler = step_sampler

    def __len__(self) -> int:
        return len(self.step_sampler)

    @property
    def cursor(self) -> Cursor:
        return self.step_sampler.cursor

    def begin(self) -> tuple[int, int]:
        return self.step_sampler.begin()

    def tasks(self, epoch: int, first: int) -> Iterator[BatchTask]:
        keys = Order(1, self.step_sampler.order.seed, epoch, purpose="augmentation")
        rank = self.step_sampler.place.rank
        for step, ids, repeats, marks in self.step_sampler.iterate_shares(epoch, first):
            yield BatchTask(ids, epoch, step, repeats, keys.key(0, step, rank), marks)

    def record_step(self, epoch: int, step: int) -> None:
        self.cursor.moved(epoch, step)

    def end_epoch(self, epoch: int) -> None:
        pass  # the last step has told

    def set_epoch(self, epoch: int) -> None:
        self.cursor.set_epoch(epoch)

    def restore(self, state: Mapping[str, Any]) -> None:
        self.step_sampler.restore(state)


class SamplerTasks:
    """The samples that a sampler gives, in steps. Their number may differ between epochs, and may
    be unknown.

    The sampler is told the epoch whenever it begins one, if it has `set_epoch`; an epoch that the
    user told it is followed. A state continues exactly what a sampler gives again for the same
    epoch: so not a RandomSampler, which draws from a generator that has moved on.

    steps:  iterable over what each step holds, once an epoch: the sampler, or batches of it.
    place:  rank and world size as asked for; only random numbers depend on it.
    """

    def __init__(
        self,
        dataset: Any,
        sampler: Any,
        steps: Any,
        seed: int,
        place: tuple[int | None, int | None],
    ) -> None:
        self._steps = steps
        self._sampler = sampler
        self._seed = seed
        self._place = place
        self._sampler_epoch = 0  # the epoch that the sampler stands in, as far as we know
        self._length = limits.order_count_max
        size = getattr(steps, "batch_size", 1)
        size = size if isinstance(size, int) else 1
        ranks = getattr(getattr(self._sampler, "sampler", self._sampler), "num_replicas", 1)
        kind = type(self._sampler)
        order = f"sampler:{kind.__qualname__}"
        identity = Identity(identify_data(dataset), order, seed, size * ranks)
        self.cursor = Cursor(identity, limits.order_count_max)

    def __len__(self) -> int:
        return len(self._steps)

    def begin(self) -> tuple[int, int]:
        with contextlib.suppress(TypeError):  # a sampler without a length
            self._length = len(self._steps)
        for sampler in self._list_epoch_samplers():
            named = getattr(sampler, "epoch", None)
            if type(named) is int and named >= 0 and named != self._sampler_epoch:
                self.cursor.set_epoch(named)  # by the user, as is usual in torch
        return self.cursor.begin()

    def tasks(self, epoch: int, first: int) -> Iterator[BatchTask]:
        keys = Order(1, self._seed, epoch, purpose="augmentation")
        rank = detect(*self._place, os.environ, sys.modules).rank
        self._tell(epoch)  # here, as several epochs may be begun before the first is asked for
        for step, ids in enumerate(self._steps):
            if step >= first:
                yield BatchTask(ids, epoch, step, 0, keys.key(0, step, rank))

    def record_step(self, epoch: int, step: int) -> None:
        self.cursor.moved(epoch, step)
        if step >= self._length:
            self.end_epoch(epoch)

    def end_epoch(self, epoch: int) -> None:
        if self.cursor.epoch == epoch:
            self.cursor.moved(epoch, limits.order_count_max)

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
        """The samplers that know their epoch."""
        samplers = (self._sampler, getattr(self._sampler, "sampler", None))
        return [each for each in samplers if callable(getattr(each, "set_epoch", None))]


def identify_data(dataset: Any) -> str:
    """What identifies the data in a state."""
    own = getattr(dataset, "fingerprint", None)
    if isinstance(own, str):
        return own
    kind = type(dataset)
    name = kind.__qualname__  # not its module, which is __main__ in one program and not in another
    with contextlib.suppress(TypeError):  # without a length, with a sampler
        name += f":{len(dataset)}"
    return hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
