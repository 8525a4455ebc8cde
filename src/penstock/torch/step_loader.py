"""A genuine torch DataLoader over steps, for trainers that deal batches to processes by themselves.

Such a trainer (accelerate, and everything built on it) takes a DataLoader apart and makes another
from its dataset and batch sampler; each of W processes gets every W-th batch. Here the dataset
is the *steps* of a `DataLoader` of ours: item k is the finished batch of step k // W on rank k % W.
So the trainer's dealing is ours, its skipping is a seek, and nothing of ours is lost.
"""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch.utils.data
from torch.utils.data import BatchSampler

from ..errors import UsageError
from ..loader.epoch import EpochIterator, OpenIterators, SharedIterator, make_turn
from ..meter import Counters
from .loader import DataLoader


class StepNumber(int):
    """Number of a batch in its epoch; whoever reorders batches hands it on unchanged."""

    epoch: int


class StepBatches(torch.utils.data.Dataset[Any]):
    """Batches of a loader by number: item k is the batch of step k // W on rank k % W, of W ranks.

    Batches are read ahead in their sequence; a number out of turn is a seek, and nothing in
    between is read. A process gives the batches of its rank only. Raises UsageError for another
    rank's batches, and in worker processes: their copies of the loader would each read everything.
    """

    def __init__(self, loader: DataLoader) -> None:
        self.loader = loader
        self._batches: EpochIterator | None = None
        self._next: tuple[int, int] | None = None  # epoch and step that `_batches` gives next
        self._first: tuple[int, int] | None = None  # where a walk begins that was restored
        self._epochs_before = 0  # epoch 0 of the trainer's count
        self._is_restored = False  # and the trainer has named no epoch since
        self._turn = make_turn()
        self.iterators = OpenIterators()
        self._taker: weakref.ref[Any] | None = None  # accelerate's loader that took the last batch
        self._given = 0, 0  # epoch and steps of the walk that a trainer counts
        self._has_warned = False
        loader.is_dealt = True

    def __len__(self) -> int:
        """Number of samples, for trainers that report it."""
        return len(self.loader.dataset)

    @property
    def total_dataset_length(self) -> int:
        """Number of batches on all ranks: accelerate takes its remainder for the last batch."""
        return len(self.loader) * self.loader.place.world_size

    def __getitem__(self, number: int) -> Any:
        if torch.utils.data.get_worker_info() is not None:
            raise UsageError("a StepLoader runs in no worker: give the trainer num_workers=0")
        with self._turn:
            return self._take(number)

    def _take(self, number: int) -> Any:
        place = self.loader.place
        step, rank = divmod(int(number), place.world_size)
        if rank != place.rank:
            who = f"rank {place.rank} of {place.world_size} was asked for rank {rank}'s batch"
            raise UsageError(f"{who}: leave out dispatch_batches and split_batches, or pass place=")
        if "accelerate.state" in sys.modules:
            self._taker = next((weakref.ref(one) for one in self._list_prepared()[-1:]), None)
        wanted = number.epoch if isinstance(number, StepNumber) else self.loader.epoch, step
        if self._first is not None and self._first != wanted:
            where = f"step {self._first[1]} of epoch {self._first[0]} was restored"
            raise UsageError(
                f"{where}, and step {step} asked for: skip or load the state, not both"
            )
        self._first = None
        if wanted != self._next or self._batches is None:
            self._check_dealing()
            self._seek(*wanted)
        assert self._batches is not None
        try:
            batch = next(self._batches, _end)
        except BaseException:
            self._next, self._batches = wanted, None  # a state names the batch that failed
            raise
        if batch is _end:  # a StopIteration would end the trainer's epoch without an error
            self._next, self._batches = wanted, None
            raise UsageError(f"step {step} of epoch {wanted[0]} was not read: begin it again")
        if step == 0 and self._given[1] and self._given[0] == wanted[0]:
            self._warn_of_repeat(*self._given)
        self._next = self._given = wanted[0], step + 1
        return batch

    def _warn_of_repeat(self, epoch: int, steps: int) -> None:
        """Say it once for each loader if an epoch in random order begins again."""
        is_whole = steps >= self.loader.count_steps(epoch)
        is_sorted = isinstance(self.loader.sampler, torch.utils.data.SequentialSampler)
        if not (is_whole or is_sorted or self._has_warned):
            self._has_warned = True
            warnings.warn(
                f"epoch {epoch} begins again after {steps} of its steps: a trainer counts whole "
                "epochs alone; name each by set_epoch(epoch) of the prepared loader",
                stacklevel=2,
            )

    def __reduce__(self) -> Any:
        raise UsageError(
            "a StepLoader is not sent to workers: make it there, or give num_workers=0"
        )

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that starts next, as a trainer counts.

        The epoch that it names first after a restore is the restored one, whatever its number: a
        trainer that was started again counts from 0.
        """
        if self._is_restored:
            self._epochs_before, self._is_restored = self.loader.epoch - epoch, False
        self._move(epoch + self._epochs_before)

    def choose_epoch(self, epoch: int) -> None:
        """Choose the epoch that starts next, counted from the first of the run."""
        self._epochs_before, self._is_restored = 0, False
        self._given = 0, 0
        self._move(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch that the trainer's loop has been given."""
        state = self.loader.state_dict()
        if self._next is None:
            return state
        epoch, step = self._next
        step -= self._count_held()
        if step >= self.loader.count_steps(epoch):
            epoch, step = epoch + 1, 0
        return self.loader.state_at(epoch, step)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.loader.load_state_dict(state)
        self._next, self._batches = None, None
        self._epochs_before, self._is_restored, self._given = 0, True, (0, 0)

    def next_numbers(self) -> Iterator[StepNumber]:
        """Generate the numbers of the next epoch, from its first step."""
        cursor, ranks = self.loader.cursor, self.loader.place.world_size
        epoch, first = cursor.next_epoch, 0 if cursor.begun else cursor.step
        self._first = (epoch, first) if first else None
        for k in range(first * ranks, self.loader.count_steps(epoch) * ranks):
            number = StepNumber(k)
            number.epoch = epoch
            yield number

    def _seek(self, epoch: int, step: int) -> None:
        self.loader.load_state_dict(self.loader.state_at(epoch, step))
        self._batches = iter(self.loader)

    def _move(self, epoch: int) -> None:
        self.loader.set_epoch(epoch)
        self._next = None

    def _count_held(self) -> int:
        """Count the batches that accelerate holds back: one, until it knows which is the last."""
        taker = None if self._taker is None else self._taker()
        if taker is None or taker.end_of_dataloader:
            return 0
        return int(any(one is taker for one in self._list_prepared()))

    def _check_dealing(self) -> None:
        """Check that accelerate deals to as many processes as the place has."""
        for taker in self._list_prepared()[-1:]:
            if getattr(taker, "use_stateful_dataloader", False):
                raise UsageError("use_stateful_dataloader=True restores twice: leave it out")
            processes, sampler = 1, taker.batch_sampler
            while sampler is not None:
                processes = getattr(sampler, "num_processes", processes)
                sampler = getattr(sampler, "batch_sampler", None)
            place = self.loader.place
            if processes != place.world_size:
                ranks = f"accelerate has {processes} processes, the loader {place.world_size}"
                raise UsageError(f"{ranks}: leave dispatch_batches out, or pass place=")

    def _list_prepared(self) -> list[Any]:
        """List accelerate's loaders that iterate over these batches, the last started last."""
        states = sys.modules.get("accelerate.state")
        loaders = [] if states is None else states.GradientState().dataloader_references
        return [loader for loader in loaders if loader is not None and loader.dataset is self]


_end = object()


class _One(int):
    """The size of a batch of one item: a finished batch, not divisible."""

    def __mod__(self, ranks: int) -> int:
        if ranks > 1:
            raise UsageError("split_batches cannot divide batches of a StepLoader: leave it out")
        return 0


class StepSequence(BatchSampler):
    """Sampler of the steps of all ranks, one at a time, in turn."""

    def __init__(self, batches: StepBatches, batch_size: int = 1, drop_last: bool = False) -> None:
        if not isinstance(batches, StepBatches):
            kind = f"a trainer replaced the order of a StepLoader by a {type(batches).__name__}"
            raise UsageError(f"{kind}: give Lightning a penstock.lightning.Data")
        self.batch_size = _One(1)
        self.drop_last = False
        self._batches = batches

    def __len__(self) -> int:
        return self._batches.total_dataset_length

    def __iter__(self) -> Iterator[list[int]]:
        for number in self._batches.next_numbers():
            yield [number]

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that starts next, as a trainer counts."""
        self._batches.set_epoch(epoch)


def _take_only(batches: list[Any]) -> Any:
    (batch,) = batches
    return batch


class StepLoader(torch.utils.data.DataLoader[Any]):
    """The batches of `penstock.torch.DataLoader`, as a DataLoader of torch's own class.

    For accelerate, transformers' Trainer, TRL, and whatever else makes another loader out of
    a torch DataLoader, and deals batches to W processes: each gets the batches of its rank, exactly
    as from `DataLoader`, and skipping batches (`skip_first_batches`, a resumed Trainer) is a seek
    that reads nothing. Takes the arguments of `DataLoader`; `batch_size` is one process's, and
    `num_workers` decode.

    `len()` counts the batches of all W processes until the trainer has dealt them; `dataset` is the
    steps, and `len(loader.dataset)` the number of samples. Iterated without a trainer it gives all
    batches on one process, and raises UsageError at the first batch on several.
    """

    def __init__(self, dataset: Any, *arguments: Any, **options: Any) -> None:
        pin_memory = bool(options.pop("pin_memory", False))
        steps = StepBatches(DataLoader(dataset, *arguments, **options))
        device = steps.loader.device
        super().__init__(
            steps,
            batch_sampler=StepSequence(steps),
            collate_fn=_take_only,
            pin_memory=pin_memory and (device is None or device.type == "cpu"),
        )
        self.steps = steps
        # torch has a SequentialSampler here, which would say that nothing is shuffled.
        self.__dict__["sampler"] = steps.loader.sampler

    @property
    def loader(self) -> DataLoader:
        """The loader that reads."""
        return self.steps.loader

    def __iter__(self) -> Any:
        """Return an iterator over an epoch. The first `next` starts it.

        Made of the batch sampler and the dataset as torch's would be, without the 20 us that
        torch's own iterator takes a batch; trainers that rebuild the loader pay them.
        """
        batches: Any = map(self.steps.__getitem__, self.steps.next_numbers())
        batches = SharedIterator(super().__iter__() if self.pin_memory else batches)
        self.steps.iterators.add(batches)
        return batches

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that starts next.

        Without it epochs count up by themselves, or as the trainer counts: accelerate names an
        epoch again whose walk was not taken to its end.
        """
        self.steps.choose_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the run, as `DataLoader` does; either continues from it.

        Accelerate holds one batch back; it is not counted.
        """
        return self.steps.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the position of `state` with the next epoch.

        The epoch that a trainer names first after that is this one, whatever its number.
        """
        self.steps.load_state_dict(state)

    def stats(self) -> dict[str, Any]:
        """Answer "how is my data read, and how much so far?" See `penstock.Loader.stats`."""
        return self.loader.stats()

    def counters(self) -> Counters:
        """Answer "how much time and work went where between two moments?" See `Loader.counters`."""
        return self.loader.counters()

    def close(self) -> None:
        """End all workers and threads; iterating the loader again starts new ones."""
        for iterator in self.steps.iterators:
            iterator.close()
        self.loader.close()
