"""The loader: drives a session over an engine, and hands over batches.

What a user iterates. `Loader` holds what outlives an epoch (engine, memory, threads, cursor);
`Reading` is one walk through an epoch. Everything that decides which samples come next is in the
session, the plan and the order.
"""

from __future__ import annotations

import operator
import os
import sys
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from . import limits
from .batch import Batch, Ragged
from .budget import Budget
from .collate import AsArray, no_foreign
from .cursor import Cursor, Identity
from .dataset import Dataset
from .decode import Collate, Decode, DecodeThreads, Job, Samples
from .engine import Buffer, Engine, Failure
from .errors import ForkError, UsageError
from .faults import failure_of
from .native import Arena, NativeEngine
from .order import Order, Shuffle
from .plan import Group, Layout, StepPlan, Steps
from .session import Session
from .topology import Place, detect

_poll_ns = 100_000_000  # how soon Ctrl-C is noticed while waiting for storage
_decode_ahead_steps = 3  # decoded or being decoded beyond the one the user has
_copy_ahead_steps = 16  # from memory to memory: more would only push the batches out of the caches


class Loader:
    """Batches of a dataset: every sample once an epoch, in a seeded order, on any number of ranks.

    for batch in loader: is one epoch; the next `for` is the next epoch, unless `set_epoch` named
    another. All ranks take the same number of steps. The sequence of global batches depends on the
    data, `seed`, `shuffle` and the global batch, and on nothing else.

    dataset:      from `penstock.open`.
    batch_size:   samples of one rank in a step, as in torch.
    shuffle:      "exact" (every sequence is possible), "blocked" (for storage that punishes small
                  reads; `block` samples stay together, `group` blocks are mixed) or "none".
    seed:         0..2^64-1. Equal on all ranks.
    drop_last:    leave out the samples that do not fill a global batch.
    pad:          fill the last step to equal shares with samples from the head of the epoch, as
                  DistributedSampler does; `batch.valid` marks the repeats. Without it the last
                  step's shares differ by at most one and may be empty.
    decode:       function of a sample (a dict of bytes-like fields, "__key__" and, where known,
                  "label"), called in `decode_threads` threads; the results are collated as torch's
                  default_collate would, into numpy arrays, or by `collate`, a function of a list.
    rank, world_size: data-parallel coordinates; by default those of torch.distributed or of the
                  launcher, looked up at first use.
    global_batch_size: instead of batch_size * world_size; need not be divisible by world_size.
    assignment:   "strided": within a step rank r has every world_size-th sample from the r-th on.
    budget:       threads, bandwidth, read-ahead and fast paths; may be replaced while running.

    Without `decode` a `Batch` is yielded. Raises UsageError for arguments that cannot be, and while
    iterating ChangedError, MissingError or StorageError naming file, offset and sample.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int | None = None,
        *,
        shuffle: Shuffle = "exact",
        seed: int = 0,
        drop_last: bool = False,
        pad: bool = False,
        decode: Decode | None = None,
        collate: Collate | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        global_batch_size: int | None = None,
        assignment: Literal["strided"] = "strided",
        decode_threads: int | None = None,
        budget: Budget | None = None,
        block: int = 256,
        group: int = 64,
    ) -> None:
        if not isinstance(dataset, Dataset):
            raise UsageError(
                f"dataset is a {type(dataset).__name__}: give what penstock.open() returns "
                "(penstock.torch.DataLoader also takes torch datasets)"
            )
        if assignment != "strided":
            raise UsageError(f"assignment is {assignment!r}: use 'strided'")
        if collate is not None and decode is None:
            raise UsageError("collate needs decode: without it a Batch of arrays is yielded")
        self.dataset = dataset
        self.drop_last = _flag("drop_last", drop_last)
        self.pad = _flag("pad", pad)
        self.batch_size = _batch_size(batch_size, global_batch_size)
        self._global_batch_size = global_batch_size
        self._order = Order(
            len(dataset), seed, shuffle=shuffle, block=block, group=group
        )
        self._decode = decode
        self._collate = collate
        self._as_array: AsArray = no_foreign
        self._decode_threads = _thread_count(decode_threads)
        self._budget = budget or Budget()
        self._asked_place = (rank, world_size)
        self._place: Place | None = None
        self._steps: Steps | None = None
        self._cursor: Cursor | None = None
        self._arena: Arena | None = None
        self._engine: NativeEngine | None = None
        self._threads: DecodeThreads | None = None
        self._done: set[int] = set()
        self._pid = os.getpid()
        self._stall_ns = 0
        self._batches = 0
        self._readings: weakref.WeakSet[Reading] = weakref.WeakSet()
        if rank is not None or world_size is not None:
            self._settle()
        elif drop_last:
            Steps(len(dataset), self._global_batch(1), 1, drop_last)  # no world makes this more

    # -- what a trainer asks -----------------------------------------------------------------

    def __len__(self) -> int:
        """Steps of an epoch, the same on every rank."""
        return len(self.steps)

    def __iter__(self) -> Iterator[Any]:
        """Begin an epoch. An iterator that was begun before goes on unchanged until dropped."""
        self._check_process()
        epoch, step = self.cursor.begin()
        return Reading(self, epoch, step)

    def set_epoch(self, epoch: int) -> None:
        """The next `iter()` gives this epoch. Without it epochs count up by themselves."""
        self.cursor.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the run stands: a few JSON-able values, the same on every rank, O(1).

        Counts the batches that were handed over, not those read ahead. May be taken at any time.
        """
        return self.cursor.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next `iter()` continues where `state` was taken, on any world size.

        Raises StateError where the state is of other data, another seed, order or global batch.
        """
        self.cursor.restore(state, self.place.world_size)

    @property
    def sampler(self) -> Loader:
        """Itself: trainers call `loader.sampler.set_epoch`."""
        return self

    @property
    def epoch(self) -> int:
        """The epoch that `state_dict` stands in."""
        return self.cursor.epoch

    @property
    def budget(self) -> Budget:
        """What the loader may use. Assign another to change it while running."""
        return self._budget

    @budget.setter
    def budget(self, budget: Budget) -> None:
        if self._engine is not None:
            self._engine.adopt(budget)
        self._budget = budget
        for reading in self._readings:
            reading.adopt(budget)

    def stats(self) -> dict[str, Any]:
        """Totals since the loader was made: batches, stall_ns (time spent waiting in `next`),
        bytes, runs (read operations), extents, and how the engine reads."""
        found: dict[str, Any] = {"batches": self._batches, "stall_ns": self._stall_ns}
        if self._engine is not None:
            choice = self._engine.choice
            found |= self._engine.counters()
            found |= {
                "backend": choice.backend,
                "direct": choice.direct,
                "threads": choice.threads,
                "reasons": dict(choice.reasons),
            }
        return found

    def close(self) -> None:
        """End all threads and free the batch memory; the loader may be iterated again afterwards."""
        for reading in list(self._readings):
            reading.close()
        if self._threads is not None:
            self._threads.close()
            self._threads = None
        if self._engine is not None:
            self._engine.close()
            self._engine = None
        self._done.clear()
        self._arena = None

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        place = self._place
        where = "" if place is None else f", rank {place.rank}/{place.world_size} ({place.source})"
        return (
            f"Loader({self.dataset!r}, batch_size={self.batch_size}, seed={self._order.seed}, "
            f"shuffle={self._order.shuffle!r}{where})"
        )

    # -- what is settled at first use ----------------------------------------------------------

    @property
    def place(self) -> Place:
        """Rank and world size, and who told."""
        self._settle()
        assert self._place is not None
        return self._place

    @property
    def steps(self) -> Steps:
        """The geometry of an epoch."""
        self._settle()
        assert self._steps is not None
        return self._steps

    @property
    def cursor(self) -> Cursor:
        self._settle()
        assert self._cursor is not None
        return self._cursor

    def _settle(self) -> None:
        if self._place is not None:
            return
        place = detect(*self._asked_place, os.environ, sys.modules)
        if place.conflict is not None:
            warnings.warn(
                f"{place.conflict}, but torch.distributed is initialised as rank {place.rank} of "
                f"{place.world_size}, which is used",
                stacklevel=3,
            )
        steps = Steps(
            len(self.dataset),
            self._global_batch(place.world_size),
            place.world_size,
            self.drop_last,
            self.pad,
        )
        identity = Identity(
            self.dataset.fingerprint, self._order.algorithm, self._order.seed, steps.global_batch
        )
        self._place, self._steps, self._cursor = place, steps, Cursor(identity, len(steps))

    def _global_batch(self, world_size: int) -> int:
        return self._global_batch_size or (self.batch_size or 1) * world_size

    # -- what readings use ---------------------------------------------------------------------

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            if self._engine is None and self._threads is None:
                self._pid = os.getpid()  # nothing has been started: this process may
                return
            raise ForkError(
                f"this loader was used in process {self._pid} and then forked: its threads do not "
                "exist here. Create the loader in the child, or start processes by 'spawn'"
            )

    def _resources(self) -> tuple[NativeEngine, Arena]:
        if self._engine is None:
            index = self.dataset.index
            self._engine = NativeEngine(
                index.files, budget=self._budget, mean_bytes=index.mean_bytes
            )
        if self._arena is None:
            self._arena = Arena(2 * self._budget.readahead_bytes)
        return self._engine, self._arena

    def _pool(self) -> DecodeThreads:
        if self._threads is None:
            self._threads = DecodeThreads(self._decode_threads)
        return self._threads


class Reading:
    """One walk through an epoch: an iterator over its batches.

    The session says what to read; this submits it, waits for it and builds batches. With `decode`
    each admitted step becomes a job for the decode threads, which wait for its bytes themselves, so
    that decoding goes on while the user computes.
    """

    def __init__(self, loader: Loader, epoch: int, step: int) -> None:
        engine, arena = loader._resources()
        self._loader = loader
        self._epoch = epoch
        self._engine: Engine = engine
        self._arena = arena
        index = loader.dataset.index
        copying = engine.choice.backend == "mmap"
        self._session = Session(
            index,
            loader._order.at_epoch(epoch),
            loader.steps,
            loader.place.rank,
            first_step=step,
            readahead_bytes=loader.budget.readahead_bytes,
            readahead_steps=_copy_ahead_steps if copying else limits.readahead_steps_max,
            # Small extents of a map are copied in any order at the same cost.
            gap_bytes=None if copying else limits.gap_bytes_default,
        )
        self._fields = index.fields
        self._waiting: dict[int, tuple[int, Group]] = {}  # ticket -> step and its group
        self._buffers: dict[int, Buffer] = {}  # of steps requested and not handed over
        self._jobs: dict[int, Job] = {}
        self._undecoded: deque[StepPlan] = deque()  # requested, no job yet
        self._drive = threading.RLock()  # decode threads and the user's thread drive the engine
        self._structure: Any = None
        self._closed = False
        loader._readings.add(self)
        self._advance()

    def __iter__(self) -> Reading:
        return self

    def __next__(self) -> Any:
        if self._closed:
            raise StopIteration
        loader = self._loader
        loader._check_process()
        try:
            with self._drive:
                if self._session.finished:
                    self.close()
                    raise StopIteration
                if not self._session.ready:
                    self._wait_for_head()
            batch = self._decoded() if loader._decode is not None else self._raw()
            with self._drive:
                self._advance()
        except StopIteration:
            raise
        except BaseException:
            self.close()
            raise
        loader._batches += 1
        loader._cursor.moved(self._epoch, self._next_step)  # type: ignore[union-attr]
        return batch

    def close(self) -> None:
        """Stop here. What is being read is finished by the engine and dropped."""
        self._closed = True
        for job in self._jobs.values():
            job.fail(StopIteration())
        self._jobs.clear()
        self._undecoded.clear()
        self._waiting.clear()
        self._buffers.clear()

    def adopt(self, budget: Budget) -> None:
        """Take over a changed budget."""
        self._session.readahead_bytes = budget.readahead_bytes
