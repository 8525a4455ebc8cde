"""The loader: drives a session over an engine, and hands batches to the user.

`Loader` holds all that outlives an epoch: engine, memory, threads, cursor. `EpochIterator` is one
walk through an epoch. Session, plan and order decide which samples come next.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from ..budget import Budget
from ..cache import Cache, CacheMembership, join_cache
from ..engine import Arena, Buffer, Failure, Purpose, ReadingEngine, open_engine
from ..errors import CollateError, ForkError, PenstockError, UsageError
from ..index import Chunked
from ..meter import Counters, Meter, Requested, waited_for
from ..order import Shuffle, shuffle_quality
from ..plan import (
    Assignment,
    Cursor,
    Group,
    Session,
    StepPlan,
    Steps,
    measure_cache_blocks,
)
from ..sharing import LeasedBudget
from ..topology import Place
from .auto_shuffle import AutoShuffle
from .batch import Batch, build_fields, choose_gap, choose_readahead, describe_failure, open_samples
from .collate import Arrays, Collation, Leaves
from .dataset import Dataset
from .decode import Collate, Decode, DecodeJob, DecodeThreads, Samples, make_raisable
from .epoch_record import record_epoch
from .explain import Explanation, describe_setup, explain_run
from .metrics import serve_if_configured
from .sampler import StepSampler, check_positive
from .workers import make_timeout_error

_poll_ns = 100_000_000  # how soon Ctrl-C is noticed while waiting for storage
_nobody: tuple[Any, Any, Any] = (lambda: None, None, None)
_decode_ahead_steps = 3  # decoded or being decoded beyond the one the user has


class Loader:
    """Batches of a dataset: every sample once an epoch, in a seeded order, on any number of ranks.

    for batch in loader: is one epoch; the next `for` is the next epoch, unless `set_epoch` named
    another. All ranks take the same number of steps. The sequence of global batches depends on the
    data, `seed`, `shuffle` and the global batch, and on nothing else.

    dataset:      from `penstock.open`.
    batch_size:   samples of one rank in a step, as in torch.
    shuffle:      "exact" (every sequence is possible), "blocked" (for storage that punishes small
                  reads; `block` samples stay together, `group` blocks are mixed), "none", or
                  "auto": exact if a few timed reads (0.2 s, at first use) show that random reads
                  are fast, else blocked; a resumed run keeps its choice. See
                  `stats()["shuffle"]` and `shuffle_quality`. Several ranks need torch.distributed
                  for it.
    seed:         0..2^64-1. Equal on all ranks.
    drop_last:    leave out the samples that do not fill a global batch.
    pad:          fill the last step to equal shares with samples from the head of the epoch, as
                  DistributedSampler does; `batch.valid` marks the repeats. Without it the last
                  step's shares differ by at most one and may be empty.
    decode:       function of a sample (a dict of bytes-like fields, "__key__", "__id__" (its
                  number) and "__epoch__", which `penstock.rng` takes, and, where known, "label"),
                  called in `decode_threads` threads; the results are collated as torch's
                  default_collate would, into numpy arrays, or by `collate`, a function of a list
                  (of an empty one where a rank has no sample in the last step: see `pad`).
    rank, world_size: data-parallel coordinates; by default those of torch.distributed or of the
                  launcher, looked up at first use.
    global_batch_size: instead of batch_size * world_size; need not be divisible by world_size.
    assignment:   "strided": within a step rank r has every world_size-th sample from the r-th on;
                  "contiguous": it has the r-th stretch, for reading in the order of storage;
                  "local", with `cache`: as far as equal shares allow, those that its host keeps.
    cache:        memory in which the hosts of the job keep the data between them, each sample once:
                  see `penstock.Cache`. All ranks must begin to iterate.
    budget:       threads, bandwidth, read-ahead and fast paths; may be replaced while running.

    Without `decode` a `Batch` is yielded. An exception of `decode` is raised at its step, with a
    note that names the sample; the next call gives the next batch, as in torch. Raises UsageError
    for invalid arguments. While iterating, raises ChangedError, MissingError or StorageError, which
    name file, offset and sample.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int | None = None,
        *,
        shuffle: Shuffle | Literal["auto"] = "exact",
        seed: int = 0,
        drop_last: bool = False,
        pad: bool = False,
        decode: Decode | None = None,
        collate: Collate | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        global_batch_size: int | None = None,
        assignment: Assignment = "strided",
        cache: Cache | None = None,
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
        if collate is not None and decode is None:
            raise UsageError("collate needs decode: without it a Batch of arrays is yielded")
        if cache is not None and not isinstance(cache, Cache):
            raise UsageError(f"cache is {cache!r}: give a penstock.Cache")
        if assignment == "local" and cache is None:
            raise UsageError(
                "assignment='local' deals samples to the hosts that keep them: give cache= too"
            )
        for name, function in (("decode", decode), ("collate", collate)):
            if function is not None and not callable(function):
                raise UsageError(f"{name} is {function!r}: give a function")
        self.dataset = dataset
        self._cache = cache
        self._membership: CacheMembership | None = None
        self.batch_size = 1 if batch_size is None and global_batch_size is None else batch_size
        own_budget = _check_budget(budget)
        self._auto_shuffle = None
        if shuffle == "auto":
            self._auto_shuffle = AutoShuffle(dataset, seed, own_budget)
            shuffle = "exact"
        self._step_sampler = StepSampler(
            dataset.fingerprint,
            dataset.order(seed, shuffle=shuffle, block=block, group=group),
            batch_size=self.batch_size,
            global_batch_size=global_batch_size,
            drop_last=drop_last,
            pad=pad,
            rank=rank,
            world_size=world_size,
            choice=self._auto_shuffle,
            assignment=assignment,
        )
        self.drop_last = self._step_sampler.drop_last
        self.pad = self._step_sampler.pad
        self._decode = decode
        self._collate = collate
        self._leaves: Leaves = Arrays()
        self._timeout_s = 0.0  # of one batch; 0 waits for ever
        self._decode_threads = (
            len(os.sched_getaffinity(0))
            if decode_threads is None
            else check_positive("decode_threads", decode_threads)
        )
        # The user's, and the part that a broker leaves of it.
        self._requested_budget = self._budget = own_budget
        self._leased_budget: LeasedBudget | None = None
        self._arena: Arena | None = None
        self._engine: ReadingEngine | None = None
        self._threads: DecodeThreads | None = None
        # Tickets not reported yet: the iterator that waits for each, and the step it brings.
        self._waiting: dict[int, tuple[weakref.ref[EpochIterator], StepPlan, Group]] = {}
        # The user's thread and the decode threads drive the engine. One of them polls, without
        # holding the lock; the others wait until it has passed its reports on.
        self._changed = threading.Condition(threading.Lock())
        self._polling = False
        self._pid = os.getpid()
        self.meter = Meter()
        self._past_counters: dict[str, int] = {}  # counters of engines that were closed
        self._history: list[dict[str, float]] = []  # of epochs that were walked to their end
        self._iterators: weakref.WeakSet[EpochIterator] = weakref.WeakSet()

    # -- for the trainer -----------------------------------------------------------------

    def __len__(self) -> int:
        """Steps of an epoch, the same on every rank."""
        return len(self.steps)

    def __iter__(self) -> Iterator[Any]:
        """Begin an epoch. An iterator that was begun before goes on unchanged until dropped."""
        self._check_process()
        locality = None
        if self._step_sampler.assignment == "local":
            locality = self._join(self._step_sampler.renew_place()).locality
        epoch, step = self._step_sampler.begin(locality)
        try:
            return EpochIterator(self, epoch, step)
        except BaseException:  # no memory, a fast path that cannot be had: begin it once more
            self.cursor.not_begun(epoch, step)
            raise

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next `iter()`. Without it epochs count up by themselves."""
        self.cursor.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the run: a few JSON-able values, the same on every rank, O(1).

        Counts the batches that were handed over, not those read ahead. May be taken at any time.
        """
        return self.cursor.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the next `iter()` at the position of `state`, on any world size.

        Raises StateError if the state is of other data, another seed, order or global batch.
        """
        self._step_sampler.restore(state)

    @property
    def sampler(self) -> Loader:
        """This loader itself: trainers call `loader.sampler.set_epoch`."""
        return self

    @property
    def epoch(self) -> int:
        """Epoch of the position that `state_dict` gives."""
        return self.cursor.epoch

    @property
    def budget(self) -> Budget:
        """Budget that the loader may use. Assign another one to change it while running.

        If jobs share the host through a broker (docs/sharing.md), the loader uses less: see
        `stats()["lease"]`.
        """
        return self._requested_budget

    @budget.setter
    def budget(self, budget: Budget) -> None:
        self._requested_budget = _check_budget(budget)
        if self._leased_budget is not None:
            self._leased_budget.own = self._requested_budget
        self._apply_budget()

    def _apply_budget(self) -> None:
        """Apply the part of the budget that the broker leases, from now on."""
        budget = self._requested_budget
        if self._leased_budget is not None:
            budget = self._leased_budget.budget(self._step_bytes)
        if self._engine is not None:
            self._engine.adopt(budget)
        if self._threads is not None:
            self._threads.adopt(budget.cores)
        self._budget = budget
        if self._auto_shuffle is not None:
            self._auto_shuffle.budget = budget
        for iterator in self._iterators:
            iterator.adopt_budget()

    def _follow_broker(self) -> None:
        """Take over the broker's grant, and report measurements to it.

        Called once a step, and while the user waits.
        """
        if self._leased_budget is not None and self._leased_budget.changed():
            self._apply_budget()

    def stats(self) -> dict[str, Any]:
        """Answer "how is my data read, and how much of it so far?" as a dict, for people and logs.

        Totals since the loader was made: batches, stall_ns (time spent waiting in `next`), bytes,
        runs (read operations), extents. The way of reading: backend, direct, threads, reasons. With
        `cache` also "cache_block" (see `penstock.Cache`) and the keys that docs/cluster.md lists;
        and "lease", the budget that a broker grants. The keys depend on the engine; `counters`
        gives a value of fixed attributes.
        """
        totals: dict[str, Any] = {"batches": self.meter.batches, "stall_ns": self.meter.stall_ns}
        if self._step_sampler.choice_record:
            totals["shuffle"] = self._step_sampler.choice_record
        if self._membership is not None:
            totals["cache_block"] = dict(self._membership.cache_block)
        if self._leased_budget is not None and self._leased_budget.lease is not None:
            totals["lease"] = self._leased_budget.lease.message()
        if self._engine is not None:
            choice = self._engine.choice
            totals |= self._engine.counters()
            totals |= {
                "backend": choice.backend,
                "direct": choice.direct,
                "threads": choice.threads,
                "reasons": dict(choice.reasons),
            }
        return totals

    def counters(self) -> Counters:
        """Answer "how much time and work went where between two moments?" for programs.

        Returns the totals since the loader was made, as an immutable value: batches, samples,
        stalls and times by cause. `later.since(earlier)` is the difference. A call takes some
        10 us. `explain` and the metrics are computed from it.
        """
        engine = Counter(self._past_counters)
        if (running := self._engine) is not None:
            engine.update(running.counters())
        return self.meter.counters(time.perf_counter_ns(), engine)

    def explain(self, since: Explanation | None = None) -> Explanation:
        """Answer "why is this run not faster, and what would help, by how much at most?"

        The bound is compute, decode, bandwidth, iops, metadata, network or copy; print() shows it.
        It is computed from the counters since the loader was made, or since an earlier explanation;
        nothing is read or measured for it. See `penstock.loader.Explanation`.
        """
        choice = None if self._engine is None else self._engine.choice
        threads = 0 if self._decode is None else self._decode_threads
        cores = len(os.sched_getaffinity(0))
        leased = self._budget != self._requested_budget
        setup = describe_setup(
            choice, self._budget, threads, cores, self._step_sampler.choice_record, leased
        )
        return explain_run(self.counters(), setup, since)

    def run_record(self) -> dict[str, Any]:
        """Answer "how would this run do on another machine or setting?": the input to a simulation.

        Returns JSON values for `penstock simulate --from-run`: the data, the job, and each epoch
        that this rank has walked through from its first step to the end. An epoch has seconds: its
        duration, the stall in `next`, and compute, the user's time between batches. It also has the
        bytes that this rank read from storage, and the bytes of its batches that came from memory,
        disk and peers. docs/simulator.md lists the keys. Raises UsageError if the loader has not
        begun an epoch, or is closed.
        """
        if self._engine is None:
            raise UsageError("there is no run to record: iterate first, and ask before close()")
        index, steps, place = self.dataset.index, self.steps, self.place
        ahead_bytes, ahead_steps = self._choose_readahead(self._engine)
        chunked = any(isinstance(layout, Chunked) for layout in index.layouts)
        joined, cache = self._membership, self._cache
        placement = None if joined is None else joined.locality.placement
        return {
            "penstock_run": 1,
            "rank": place.rank,
            "ranks": place.world_size,
            "hosts": None if placement is None else placement.nodes,
            "samples": index.count,
            "mean_bytes": index.mean_bytes,
            "deviation_bytes": 0.0 if chunked else measure_cache_blocks(index, 1, 1)[1],
            "global_batch": steps.global_batch,
            "steps": len(steps),
            "seed": self._step_sampler.seed,
            "assignment": steps.assignment,
            "cache_block": None if placement is None else placement.cache_block,
            "ram_bytes": 0 if cache is None else cache.ram_bytes,
            "disk_bytes": 0 if cache is None else cache.disk_bytes,
            "readahead_bytes": ahead_bytes,
            "readahead_steps": ahead_steps,
            "decode_threads": 0 if self._decode is None else self._decode_threads,
            "epochs": [dict(epoch) for epoch in self._history],
        }

    @property
    def shuffle_quality(self) -> float:
        """Quality of the order (`penstock.order.shuffle_quality`); takes 0.3 s if it is blocked.

        For a mixture, the lowest quality of its datasets' orders.
        """
        return min(
            1.0 if order.shuffle == "exact" else shuffle_quality(order)
            for order in self._step_sampler.order.parts()
        )

    def drawn(self) -> list[int]:
        """Count the samples drawn from each dataset of a mixture, over all epochs.

        They are counted up to the position that `state_dict` gives. Divided by the number of a
        dataset's samples, they are its passes.
        """
        return self._step_sampler.drawn()

    def close(self) -> None:
        """End all threads and free the batch memory; the loader may be iterated again."""
        for iterator in list(self._iterators):
            iterator.close()
        if self._threads is not None:
            self._threads.close()
            self._threads = None
        if self._engine is not None:
            if os.getpid() == self._pid:
                self._past_counters = dict(
                    Counter(self._past_counters) + Counter(self._engine.counters())
                )
            self._engine.close()
            self._engine = self._membership = None
        if self._leased_budget is not None:
            self._leased_budget.leave()
            self._leased_budget, self._budget = None, self._requested_budget
        self._waiting.clear()
        self._arena = None

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        place = self._step_sampler.place_if_settled
        where = "" if place is None else f", rank {place.rank}/{place.world_size} ({place.source})"
        return (
            f"Loader({self.dataset!r}, batch_size={self.batch_size}, "
            f"seed={self._step_sampler.seed}, shuffle={self._describe_shuffle()}{where})"
        )

    def _describe_shuffle(self) -> str:
        order = self._step_sampler.order_if_settled
        asked = self._step_sampler.shuffle
        return f"{asked!r} ({order.algorithm})" if asked == "auto" and order else repr(asked)

    # -- settled at first use ----------------------------------------------------------

    @property
    def place(self) -> Place:
        """Rank, world size, and their source."""
        return self._step_sampler.place

    @property
    def steps(self) -> Steps:
        """Geometry of an epoch."""
        return self._step_sampler.steps

    @property
    def cursor(self) -> Cursor:
        return self._step_sampler.cursor

    def follow(self, step_sampler: StepSampler, leaves: Leaves) -> None:
        """Follow another step sampler of the same data, and make batches of these leaves.

        For the faces of frameworks; to be called before the first use.
        """
        self._step_sampler, self._leaves = step_sampler, leaves
        self.drop_last, self.pad = step_sampler.drop_last, step_sampler.pad

    # -- for epoch iterators ---------------------------------------------------------------------

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            if self._engine is None and self._threads is None:
                self._pid = os.getpid()  # nothing has been started: this process may
                return
            raise ForkError(
                f"this loader was used in process {self._pid} and then forked: its threads do not "
                "exist here. Create the loader in the child, or start processes by 'spawn'"
            )

    def _take_resources(self) -> tuple[ReadingEngine, Arena]:
        if self._leased_budget is None:
            name = self.dataset.index.files.root
            self._leased_budget = LeasedBudget(
                self.counters, name, self.place, self._requested_budget
            )
        if self._cache is not None:
            self._engine = self._join(self.place).engine
        if self._engine is None:
            serve_if_configured(self)
            index = self.dataset.index
            self._engine = open_engine(index.files, self._budget, index.mean_bytes)
        elif self._cache is None and not self._waiting:
            # The last epoch may have filled the page cache. With a cache of the job an epoch may
            # read nothing from storage, which may be slow or stall: it is not surveyed then.
            self._engine.survey()
        if self._arena is None:
            self._arena = Arena(2 * self._budget.readahead_bytes)
        return self._engine, self._arena

    def _choose_readahead(self, engine: ReadingEngine) -> tuple[int, int]:
        """Return the most bytes and steps that may be requested or ready at once."""
        return choose_readahead(engine.choice, self._budget, self._step_bytes)

    @property
    def _step_bytes(self) -> float:
        """Mean bytes of a step of this rank."""
        return self.steps.rows(0, self.place.rank) * self.dataset.index.mean_bytes

    def _join(self, place: Place) -> CacheMembership:
        """Return this rank's part of the cache, joined at first use.

        It is joined anew if the world has changed since, because a process group was started after
        the first epoch.
        """
        if self._membership is not None and not self._membership.holds(place):
            self.close()
        if self._membership is None:
            assert self._cache is not None
            self._membership = join_cache(
                self.dataset.index, self.dataset.path, self._cache, place, self._budget
            )
        return self._membership

    def _wait(self) -> None:
        """Wait a while for reports of the engine. Call with `_changed` held."""
        if self._polling:
            self._changed.wait(_poll_ns * 1e-9)
            return
        assert self._engine is not None
        try:
            self._polling = True
            self._changed.release()
            try:
                reports = self._engine.poll(_poll_ns)
            finally:
                self._changed.acquire()
                self._polling = False
                self._changed.notify_all()
            for ticket, failures in reports:
                # Tickets from before an interrupt belong to nobody.
                iterator, planned, group = self._waiting.pop(ticket, _nobody)
                waiting = iterator()
                if waiting is not None:
                    waiting._report(planned, group, failures)
        except BaseException:  # reports may be lost: nobody must wait for them
            self._waiting.clear()
            for iterator in list(self._iterators):
                iterator.close()
            raise

    def _start_threads(self) -> DecodeThreads:
        if self._threads is None:
            self._threads = DecodeThreads(self._decode_threads, self._budget.cores)
        return self._threads


class EpochIterator:
    """One walk through an epoch: an iterator over its batches.

    The session says which extents to read; the iterator submits them, waits for them and builds
    batches. With `decode` each of the next steps is a job for the decode threads. They wait for its
    bytes themselves, so that decoding goes on while the user computes.
    """

    def __init__(self, loader: Loader, epoch: int, step: int) -> None:
        self._buffers: dict[int, Buffer] = {}  # by step: requested and not handed over
        self._faults: dict[int, PenstockError] = {}  # by step: raised when its turn comes
        self._admitted: deque[StepPlan] = deque()  # requested, and no job yet
        self._jobs: deque[tuple[StepPlan, DecodeJob]] = deque()  # of the head and the next steps
        self._open_times: dict[
            int, tuple[int, int]
        ] = {}  # by step: times at which its job began to wait and had its bytes
        self._deadline_s: float | None = None  # of the batch that the user waits for
        self._closed = False
        self._meter = loader.meter
        self._meter.began(time.perf_counter_ns())
        engine, arena = loader._take_resources()
        self._loader = loader
        self._epoch = epoch
        self._engine = engine
        self._arena = arena
        self._index = loader.dataset.index
        self._coded = any(field.codec is not None for field in self._index.fields)
        joined = loader._membership
        ahead_bytes, ahead_steps = loader._choose_readahead(engine)
        self._submit = engine.submit
        if joined is not None and loader._cache is not None and loader._cache.replicas:
            uses = loader._step_sampler.find_uses(epoch, joined.neighbours)
            self._submit = partial(joined.engine.submit, uses=uses)
        self._session = Session(
            self._index if joined is None else joined.addressed,
            loader._step_sampler.order.at_epoch(epoch),
            loader.steps,
            loader.place.rank,
            first_step=step,
            readahead_bytes=ahead_bytes,
            readahead_steps=ahead_steps,
            gap_bytes=choose_gap(self._index, engine.choice) if joined is None else None,
        )
        loader._iterators.add(self)
        self._before = loader.counters() if step == 0 else None  # of a whole epoch
        self._advance()

    def __iter__(self) -> EpochIterator:
        return self

    def __next__(self) -> Any:
        loader = self._loader
        started_ns = time.perf_counter_ns()
        meter = self._meter
        meter.asked(started_ns)
        if self._closed or self._session.finished:
            self._end()
            raise StopIteration
        asked = self._session.head.step
        try:
            loader._check_process()
            loader._follow_broker()
            if loader._timeout_s:
                self._deadline_s = time.monotonic() + loader._timeout_s
            take_next = self._take_raw if loader._decode is None else self._take_decoded
            planned, batch, ready_ns, bytes_ns, decode_ns = take_next(started_ns)
            self._deadline_s = None
            self._advance()
        except Exception:
            self._skip_step(asked)
            meter.raised(time.perf_counter_ns())
            raise
        except BaseException:
            self.close()
            raise
        loader.cursor.moved(self._epoch, planned.step + 1)
        if meter.timeline is not None:
            meter.timeline.given(
                self._epoch, planned.step, started_ns, ready_ns, bytes_ns, decode_ns
            )
        now_ns = time.perf_counter_ns()
        meter.given(started_ns, ready_ns, now_ns, len(planned.ids), bytes_ns, decode_ns)
        return batch

    def __del__(self) -> None:
        self.close()

    def _skip_step(self, step: int) -> None:
        """Skip a step whose bytes or samples failed, so that the next call gives the next batch.

        As in torch. If the step has not even arrived, the iterator cannot go on and is closed.
        """
        if self._session.finished or self._session.head.step != step:
            return  # it failed after it was handed over
        with self._loader._changed:
            going_on = not self._closed and step < self._session.reached
        if not going_on:
            self.close()
            return
        if self._jobs:
            self._jobs.popleft()
        self._hand_over(self._session.head)
        self._advance()

    def _end(self) -> None:
        """Record the epoch: the user has asked for a batch after the last."""
        if self._before is not None and not self._closed:
            walked = self._loader.counters().since(self._before)
            self._loader._history.append(record_epoch(self._epoch, walked))
        self.close()

    def close(self) -> None:
        """Stop here. The engine finishes the reads in flight, and their bytes are dropped."""
        self._closed = True
        for _, job in self._jobs:
            job.fail(UsageError("the iterator was closed"))
        self._jobs.clear()
        self._admitted.clear()
        self._buffers.clear()
        self._open_times.clear()

    def adopt_budget(self) -> None:
        """Adopt the loader's budget, which has changed."""
        self._session.readahead_bytes, _ = self._loader._choose_readahead(self._engine)

    # -- reading -------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Submit the steps that the session admits, and queue the next ones for decoding."""
        loader = self._loader
        with loader._changed:
            for group in self._session.admit():
                buffers = [self._arena.take(step.layout.bytes) for step in group.steps]
                for planned, buffer in zip(group.steps, buffers, strict=True):
                    urgent = planned.step == self._session.head.step  # the user waits for it now
                    purpose: Purpose = "demand" if urgent else "prefetch"
                    ticket = self._submit(planned.requests, buffers, purpose)
                    loader._waiting[ticket] = (weakref.ref(self), planned, group)
                    self._buffers[planned.step] = buffer
                    if self._meter.timeline is not None:
                        runs = len(planned.requests.runs) - 1
                        what = Requested(ticket, planned.layout.bytes, runs)
                        self._meter.timeline.requested(self._epoch, planned.step, what)
                if loader._decode is not None:
                    self._admitted.extend(group.steps)
        while self._admitted and len(self._jobs) < _decode_ahead_steps:
            planned = self._admitted.popleft()
            self._jobs.append((planned, self._queue_job(planned)))

    def _report(self, planned: StepPlan, group: Group, failures: Sequence[Failure]) -> None:
        for failure in failures:
            step, fault = describe_failure(self._index, planned, group, failure)
            self._faults.setdefault(step, fault)
        self._session.arrived(planned.step)
        if self._meter.timeline is not None:
            self._meter.timeline.arrived(self._epoch, planned.step)

    def _wait_for_bytes(
        self, planned: StepPlan, poll_broker: Callable[[], None] | None = None
    ) -> Buffer:
        """Wait until a step is in its buffer. Raises the error that kept its bytes from arriving.

        poll_broker:  called now and then meanwhile.
        """
        with self._loader._changed:
            while self._session.reached <= planned.step and not self._closed:
                self._loader._wait()
                if poll_broker is not None:
                    poll_broker()
                self._check_deadline()
            if planned.step in self._faults:
                raise self._faults[planned.step]
            if self._closed:
                raise UsageError("the iterator was closed")
            return self._buffers[planned.step]

    def _hand_over(self, planned: StepPlan) -> None:
        with self._loader._changed:
            self._session.hand_over()
            del self._buffers[planned.step]

    def _check_deadline(self) -> None:
        if self._deadline_s is not None and time.monotonic() > self._deadline_s:
            raise make_timeout_error(self._loader._timeout_s)

    def _take_raw(self, asked_ns: int) -> tuple[StepPlan, Any, int, int, int]:
        """Return the next step, its batch, the time at which it was ready, and the times waited for
        its bytes and for decoding."""
        head = self._session.head
        buffer = self._wait_for_bytes(head, self._loader._follow_broker)
        arrived_ns = time.perf_counter_ns()
        self._hand_over(head)
        fields = build_fields(self._index, head, buffer)
        batch = Batch(head.ids, head.step, self._epoch, fields, head.repeats)
        ready_ns = time.perf_counter_ns()
        decode_ns = ready_ns - arrived_ns if self._coded else 0
        return head, batch, ready_ns, arrived_ns - asked_ns, decode_ns

    # -- decoding ------------------------------------------------------------------------------

    def _take_decoded(self, asked_ns: int) -> tuple[StepPlan, Any, int, int, int]:
        planned, job = self._jobs[0]
        while not job.wait(_poll_ns * 1e-9):
            self._loader._follow_broker()
            self._check_deadline()  # Ctrl-C is noticed here too
        batch = job.result()
        self._jobs.popleft()
        self._wait_for_bytes(planned)  # a job without rows may end before its (empty) requests
        self._hand_over(planned)
        if len(planned.ids) == 0:
            batch = self._make_empty_batch()
        ready_ns = time.perf_counter_ns()
        opening_ns, arrived_ns = self._open_times.pop(planned.step, (asked_ns, asked_ns))
        waited = waited_for(asked_ns, ready_ns, opening_ns, arrived_ns, job.spans)
        self._meter.decoded(job.spans)
        if self._meter.timeline is not None:
            self._meter.timeline.decoded(self._epoch, planned.step, job.spans)
        return planned, batch, ready_ns, *waited

    def _queue_job(self, planned: StepPlan) -> DecodeJob:
        loader = self._loader
        assert loader._decode is not None
        iterator = weakref.ref(self)  # an abandoned iterator must not live on in the queue

        def open_step() -> Samples:
            alive = iterator()
            if alive is None:
                raise UsageError("the iterator was closed")
            opening_ns = time.perf_counter_ns()
            buffer = alive._wait_for_bytes(planned)
            alive._open_times[planned.step] = opening_ns, time.perf_counter_ns()
            return open_samples(alive._index, planned, buffer, alive._epoch)

        job = DecodeJob(
            len(planned.ids),
            open_step,
            loader._decode,
            loader._collate,
            self._arena.take,
            loader._leaves,
        )
        loader._start_threads().submit(job)
        return job

    def _make_empty_batch(self) -> Any:
        """Make a batch of no samples, in the structure that a sample of the data has."""
        loader = self._loader
        assert loader._decode is not None
        if loader._collate is not None:
            try:
                return loader._collate([])
            except Exception as error:
                raise CollateError(
                    f"rank {loader.place.rank} has no sample in the last step and collate([]) "
                    f"failed ({error!r}): use pad=True or drop_last=True, or make collate take []"
                ) from error
        try:
            first = loader._decode({**loader.dataset[0], "__id__": 0, "__epoch__": self._epoch})
        except Exception as error:
            raise make_raisable(error) from None
        return Collation(first, 0, self._arena.take, loader._leaves).result()


def _check_budget(budget: Budget | None) -> Budget:
    if budget is not None and not isinstance(budget, Budget):
        raise UsageError(f"budget is {budget!r}: give a penstock.Budget")
    return budget or Budget()
