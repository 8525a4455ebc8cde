"""The loader: drives a session over an engine, and hands batches to the user.

`Loader` holds all that outlives an epoch: engine, memory, threads, position. An `EpochIterator` is
one walk through an epoch. Session, plan and order decide which samples come next.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from .. import limits
from ..arguments import check_function, check_kind, check_names, check_whole
from ..budget import Budget
from ..dataset.dataset import Dataset
from ..dataset.kept_chunks import KeptChunks
from ..dataset.packing import Buckets
from ..dataset.sample import Decode, choose_gap, kept_decoded_bytes, share_memory
from ..engine.native import Arena
from ..engine.open import open_engine
from ..engine.protocol import ReadingEngine
from ..engine.storage_queue import PROCESS_QUEUE
from ..engine.threads import make_turn
from ..errors import UsageError
from ..index.layout import Windowed
from ..meter import Counters, Meter
from ..order.order import Shuffle
from ..order.packed_order import PackedOrder
from ..order.shuffling import shuffle_quality
from ..plan.batch_layout import PlanSource
from ..plan.cache_blocks import measure_cache_blocks
from ..plan.readahead import Session
from ..plan.steps import Assignment, Steps
from ..ranks.place import Place, choose_place, find_reader
from ..sharing.leased_budget import LeasedBudget
from .balancing import Balanced
from .batch import choose_readahead, pick_fields
from .collate import Arrays, Leaves
from .decode import Collate, DecodedCounts, DecodeThreads, RowDecode, RowReader
from .epoch import DeviceTransfer, EpochIterator, OpenEpoch, OpenIterators, record_epoch
from .explain import Explanation, Setup, explain_run, hold_images
from .global_generators import DrawWatch
from .metrics import serve_if_configured
from .sampler import PositionedLoader, make_step_sampler
from .sources import ArraySource, DecodeSource, Decoding
from .step_reader import ReadResources, StepReader, Submit, TicketRouter, make_fork_error

if TYPE_CHECKING:
    from ..cache.agreement import Cache, CacheMembership


class Loader(PositionedLoader):
    """Batches of a dataset: every sample once an epoch, in a seeded order, on any number of ranks.

    `for batch in loader:` is one epoch; the next `for` is the next epoch, unless `set_epoch` named
    another. All ranks take the same number of steps. The sequence of global batches depends on the
    data, `seed`, `shuffle` and the global batch, and on nothing else.

    dataset:      from `penstock.open`.
    batch_size:   samples of one rank in a step, as in torch.
    shuffle:      "exact" (all samples are mixed), "blocked" (for storage that punishes small
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
    decode:       function of a sample (a dict of its fields, as bytes or, where the format knows
                  dtype and shape, arrays; "__key__", "__id__" (its number), "__epoch__" and, where
                  known, "label"), called in `decode_threads` threads. Draw random numbers from
                  `sample["__rng__"]`: it depends on seed, epoch and sample alone. Draws from the
                  generators of `random`, numpy or torch are a UsageError. The results
                  are collated as torch's default_collate would, into numpy arrays, or by `collate`,
                  a function of a list (of an empty one where a rank has no sample in the last step:
                  see `pad`).
    rank, world_size: data-parallel coordinates; by default from torch.distributed, from
                  jax.distributed or of the launcher, looked up at first use.
    place:        instead of these, where several processes get the same batches: a torch
                  DeviceMesh, a jax Sharding of the batch, or a `penstock.Place`.
    data_axes:    axes of the mesh that split the batch; by default those that it has of
                  dp_replicate, dp_shard, dp, data and batch.
    check_peers:  steps after which the processes of a data coordinate compare which samples
                  they have: a difference is a UsageError on all of them. Takes a message each.
    global_batch_size: instead of batch_size * world_size; need not be divisible by world_size.
    batch_tokens: instead of these, the most tokens of a rank's batch, padding included, or
                  `penstock.Buckets(...)`: for models that pad. Each batch has samples of near
                  lengths; `len` counts the epoch's batches, `estimate_steps` does not.
    assignment:   "strided": within a step rank r has every world_size-th sample from the r-th on;
                  "contiguous": it has the r-th stretch, for reading in the order of storage;
                  "local", with `cache`: samples that its host keeps, within equal shares;
                  "balanced", or `penstock.Balanced(...)`: samples of about the same total cost as
                  the other ranks', by their lengths, for ranks that wait for each other.
    cache:        memory in which the hosts of the job keep the data between them, each sample once:
                  see `penstock.Cache`. All ranks must start to iterate.
    as_tuple:     names of fields: batches are tuples of these, as torch's are, and have no ids.
    budget:       threads, bandwidth, read-ahead and fast paths; may be replaced while running.
    num_workers:  torch's name: refused, with what to give instead.

    A `Batch` is yielded, a dict of fields with ids, step and epoch; where `decode` returns no dict,
    or `collate` makes none, the list or array that collation gives. An exception of `decode` is
    raised at its step, with a note that names the sample; the next call gives the next batch, as in
    torch. Raises UsageError for invalid arguments. While iterating, raises ChangedError,
    MissingError or StorageError: they name file, offset and sample.
    """

    leaves: Leaves = Arrays()  # of batches; the faces of frameworks have others

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
        place: Any = None,
        data_axes: str | Iterable[str] | None = None,
        check_peers: int | None = None,
        global_batch_size: int | None = None,
        batch_tokens: float | Buckets | None = None,
        assignment: Assignment | Balanced = "strided",
        cache: Cache | None = None,
        decode_threads: int | None = None,
        as_tuple: Sequence[str] | None = None,
        budget: Budget | None = None,
        block: int = 256,
        group: int = 64,
        num_workers: None = None,
    ) -> None:
        self._keep_given(Loader, locals())
        if num_workers is not None:
            what = "give decode_threads=, or use penstock.torch.DataLoader"
            raise UsageError(f"num_workers is {num_workers!r}, and a Loader has none: {what}")
        if not isinstance(dataset, Dataset):
            what = f"a {type(dataset).__name__}: give what penstock.open() returns"
            raise UsageError(f"dataset is {what} (torch datasets go to penstock.torch.DataLoader)")
        check_function("decode", decode, "a function of a sample")
        check_function("collate", collate, "a function of a list of samples")
        decode = dataset.compose_decode(decode)
        if collate is not None and decode is None:
            raise UsageError("collate needs decode: without it a Batch of arrays is yielded")
        if cache is not None:
            from ..cache.agreement import Cache  # here: a loader without one does not load it

            check_kind("cache", cache, Cache, "a penstock.Cache")
        if assignment == "local" and cache is None:
            raise UsageError("assignment='local' deals to the hosts that keep samples: give cache=")
        packed = dataset.rows is not None
        if packed and (cache is not None or shuffle == "auto"):
            raise UsageError('packed rows take no cache= and no shuffle="auto": leave these out')
        self._rows: RowReader | None = None
        if isinstance(decode, RowDecode) and collate is None:
            path = dataset.path if dataset.kind is None else None
            self._rows = decode.open_data(dataset.index, path, self.leaves)
        self.dataset = dataset
        self._cache = cache
        self._membership: CacheMembership | None = None
        self.batch_size = 1 if batch_size is None and global_batch_size is None else batch_size
        # The user's, and the part that a broker leaves of it.
        self._requested_budget = self._budget = _check_budget(budget)
        self.step_sampler = self._epochs = make_step_sampler(
            dataset,
            seed,
            shuffle,
            batch_size=batch_size if batch_tokens is not None else self.batch_size,
            global_batch_size=global_batch_size,
            drop_last=drop_last,
            pad=pad,
            place=choose_place(place, data_axes, rank, world_size),
            budget=self._budget,
            check_peers=check_peers,
            assignment=assignment,
            cache=cache,
            batch_tokens=batch_tokens,
            block=block,
            group=group,
        )
        self.drop_last = self.step_sampler.drop_last
        self.pad = self.step_sampler.pad
        self._decode = decode
        self._row_counts = DecodedCounts()
        self._draw_watch = DrawWatch()
        self._has_windows = any(isinstance(layout, Windowed) for layout in dataset.index.layouts)
        self._kept: KeptChunks | None = None  # of windows, by the last iterator
        # Without `decode`, lines and texts are parsed to fields in the same threads, windows are
        # decoded there, and rows laid out.
        self._in_threads = (
            packed
            or decode is not None
            or any(field.parser or field.text for field in dataset.index.fields)
            or self._has_windows
        )
        self._collate = collate
        self._decode_threads = (
            len(os.sched_getaffinity(0))
            if decode_threads is None
            else check_whole("decode_threads", decode_threads, 1, limits.decode_threads_max)
        )
        self._as_tuple = check_names("as_tuple", as_tuple)
        self._leased_budget: LeasedBudget | None = None
        self._arena: Arena | None = None
        self._engine: ReadingEngine | None = None
        self._router: TicketRouter | None = None
        self._threads: DecodeThreads | None = None
        self._pid = os.getpid()
        self.meter = Meter()
        self._past_counters: dict[str, int] = {}  # counters of engines that were closed
        self._history: list[dict[str, float]] = []  # of epochs that were walked to their end
        self._iterators = OpenIterators()
        self._turn = make_turn()  # of the thread that begins an epoch, or closes
        self._end_making()

    # -- for the trainer -----------------------------------------------------------------

    def __len__(self) -> int:
        """Steps of an epoch, the same on every rank.

        Of packed rows, all of the epoch are counted first: see `estimate_steps`.
        """
        return len(self.step_sampler)

    def estimate_steps(self) -> int:
        """Estimate the steps of an epoch of packed rows, at once; of samples, return their number.

        It is exact once all rows are counted.
        """
        return self.step_sampler.estimate_steps()

    def __iter__(self) -> EpochIterator:
        """Return an iterator over an epoch. Its first `next` starts the epoch, or its `begin`.

        Until then nothing is read, and `set_epoch` and `load_state_dict` choose the epoch. Other
        iterators go on unchanged until dropped.
        """
        return self.iterate()

    @property
    def sampler(self) -> Loader:
        """This loader itself: trainers call `loader.sampler.set_epoch`."""
        return self

    @property
    def budget(self) -> Budget:
        """Budget that the loader may use. Assign another one to change it while running.

        If jobs share the host through a broker (docs/sharing.md), the loader uses less: see
        `stats()["lease"]`.
        """
        return self._requested_budget

    @budget.setter
    def budget(self, budget: Budget) -> None:
        self._requested_budget = self._given["budget"] = _check_budget(budget)
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
        if self._arena is not None:
            self._share_memory(self._arena, budget)
        if self.step_sampler.choice is not None:
            self.step_sampler.choice.budget = budget
        for iterator in self._iterators:
            iterator.adopt(budget)

    def _follow_broker(self) -> int:
        """Take over the broker's grant, and report measurements to it; see `EpochIterator`."""
        leased = self._leased_budget
        if leased is None:
            return 0
        if leased.changed():
            self._apply_budget()
        return leased.quiet_until_ns

    def stats(self) -> dict[str, Any]:
        """Answer "how is my data read, and how much of it so far?" as a dict, for people and logs.

        Totals since the loader was made: batches, stall_ns (time spent waiting in `next`), bytes,
        runs (read operations), extents. The way of reading: backend, direct, threads, reasons. With
        `cache` also "cache_block" (see `penstock.Cache`) and the keys that docs/cluster.md lists;
        and "lease", the budget that a broker grants; with a `decode` of `penstock.images`
        "decoded", the images by the way in which they were (docs/images.md). "storage": what each
        purpose got in this process, all its loaders, checkpoints and conversions together. The keys
        depend on the engine; `counters` gives a value of fixed attributes.
        """
        totals: dict[str, Any] = {"batches": self.meter.batches, "stall_ns": self.meter.stall_ns}
        totals["storage"] = PROCESS_QUEUE.stats()
        if self.step_sampler.choice_record:
            totals["shuffle"] = self.step_sampler.choice_record
        if self._membership is not None:
            totals["cache_block"] = dict(self._membership.cache_block)
        if self._leased_budget is not None and self._leased_budget.lease is not None:
            totals["lease"] = self._leased_budget.lease.message()
        if decoded := self._row_counts.list_all():
            totals["decoded"] = decoded
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
        It is computed from the counters since the loader was made, or since an earlier explanation.
        Only if decoding binds, and `decode` is one of `penstock.images`, some images are read and
        decoded once, for two seconds at most, to say what would help. See
        `penstock.loader.Explanation`.
        """
        setup = Setup(
            bytes_per_s_max=self._budget.bytes_per_s,
            cores_max=self._budget.cores,
            leased=self._budget != self._requested_budget,
            decode_threads=self._decode_threads if self._in_threads else 0,
            cores=len(os.sched_getaffinity(0)),
            images=self._rows is None and hold_images(self.dataset.index),
        ).describe_storage(
            None if self._engine is None else self._engine.choice,
            self.step_sampler.choice_record,
        )
        measure = None
        if self._rows is not None:
            measure = partial(self._rows.measure_gains, self.dataset.index)
        return explain_run(self.counters(), setup, since, measure)

    def run_record(self) -> dict[str, Any]:
        """Answer "how would this run do on another machine or setting?": the input to a simulation.

        Returns JSON values for `penstock simulate --from-run`: the data, the job, and each epoch
        that this rank has walked through from its first step to the end. An epoch has seconds: its
        duration, the stall in `next`, and compute, the user's time between batches. It also has the
        bytes that this rank read from storage, and the bytes of its batches that came from memory,
        disk and peers. docs/simulator/recorded-run.md lists the keys. Raises UsageError if the
        loader has not started an epoch, or is closed.
        """
        if self._engine is None:
            raise UsageError("there is no run to record: iterate first, and ask before close()")
        from ..cache.key_index import Addressed  # here: a loader without one does not load it

        index, steps, place = self.dataset.index, self.steps, self.place
        ahead_bytes, ahead_steps = self._choose_readahead(self._engine)
        joined, cache = self._membership, self._cache
        placement = None if joined is None else joined.locality.placement
        source = Addressed(index)
        each = 1.0 if placement is None else index.count / placement.count  # samples of an item
        deviation_bytes = 0.0 if source.has_chunks else measure_cache_blocks(source, 1, 1)[1]
        return {
            "penstock_run": 1,
            "rank": place.rank,
            "ranks": place.world_size,
            "hosts": None if placement is None else placement.nodes,
            "samples": len(self.dataset),
            "mean_bytes": index.mean_bytes,
            "deviation_bytes": deviation_bytes,
            "global_batch": steps.global_batch,
            "steps": len(self),
            "seed": self.step_sampler.seed,
            "assignment": steps.assignment,
            "cache_block": None if placement is None else round(placement.cache_block * each) or 1,
            "ram_bytes": 0 if cache is None else cache.ram_bytes,
            "disk_bytes": 0 if cache is None else cache.disk_bytes,
            "readahead_bytes": ahead_bytes,
            "readahead_steps": ahead_steps,
            "decode_threads": self._decode_threads if self._in_threads else 0,
            "epochs": [dict(epoch) for epoch in self._history],
        }

    @property
    def shuffle_quality(self) -> float:
        """Quality of the order (`penstock.order.shuffle_quality`); takes 0.3 s if it is blocked.

        For a mixture, the lowest quality of its datasets' orders.
        """
        return min(
            1.0 if order.shuffle == "exact" else shuffle_quality(order)
            for order in self.step_sampler.order.parts()
        )

    def close(self) -> None:
        """End all threads and free the batch memory; the loader may be iterated again."""
        with self._turn:
            for iterator in self._iterators:
                iterator.close()
            self.step_sampler.close()
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
            self._router = self._arena = self._kept = None

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        size = f"batch_size={self.batch_size}"
        return f"Loader({self.dataset!r}, {size}, {self.step_sampler.describe()})"

    # -- settled at first use ----------------------------------------------------------

    @property
    def steps(self) -> Steps:
        """Geometry of an epoch."""
        return self.step_sampler.steps

    # -- an epoch --------------------------------------------------------------------------------

    def iterate(
        self,
        finish: Callable[[Any], Any] | None = None,
        timeout_s: float | None = None,
        open_transfer: Callable[[], DeviceTransfer] | None = None,
    ) -> EpochIterator:
        """Return an iterator over an epoch, as `iter` does, for the faces of frameworks.

        finish:         makes of each batch what the user gets.
        timeout_s:      until a batch is given up: RuntimeError. None waits for ever.
        open_transfer:  opens the way to a device, to which each batch starts to move a step early.
        """
        if self._as_tuple:
            finish = partial(pick_fields, self._as_tuple, finish=finish)
        return EpochIterator(
            partial(self._begin_epoch, timeout_s),
            self.step_sampler,
            self.meter,
            self._follow_broker,
            finish,
            open_transfer,
        )

    def _begin_epoch(self, timeout_s: float | None, iterator: EpochIterator) -> OpenEpoch:
        """Start an epoch and its reads for an iterator."""
        with self._turn:
            return self._open_epoch(timeout_s, iterator)

    def _open_epoch(self, timeout_s: float | None, iterator: EpochIterator) -> OpenEpoch:
        if self._engine is None and self._threads is None:
            self._pid = os.getpid()  # nothing has been started: this process may
        if os.getpid() != self._pid:
            raise make_fork_error(self._pid)
        locality = None
        if self.step_sampler.needs_locality:
            locality = self._join(self.step_sampler.renew_place()).locality
        epoch, step = self.step_sampler.begin(locality)
        self.meter.count_epoch(time.perf_counter_ns())
        try:
            resources = self._open_resources()
            before = self.counters() if step == 0 else None
            source = self._open_source(resources, epoch, step, timeout_s)
            source.start()
            self._prepare_memory(resources.arena, step)
        except BaseException:  # no memory, a fast path that cannot be had: begin it once more
            self.cursor.undo_begin(epoch, step)
            raise

        def record() -> None:
            if before is not None:  # a whole epoch
                self._history.append(record_epoch(epoch, self.counters().since(before)))

        self._iterators.add(iterator)  # not before: joining another world closes those of the last
        return OpenEpoch(epoch, source, record)

    def _open_resources(self) -> ReadResources:
        """Open the engine, at first use, and take memory; with `cache` on all ranks at once."""
        if self._leased_budget is None:
            serve_if_configured(self)
            name = self.dataset.index.files.root
            process = find_reader(self.place, os.environ, sys.modules)
            self._leased_budget = LeasedBudget(self.counters, name, process, self._requested_budget)
        index = self.dataset.index
        if self._cache is not None:
            self._engine = self._join(self.place).engine
        if self._engine is None:
            rows = self.dataset.rows
            sample_bytes = index.mean_bytes if rows is None else rows.document_bytes
            self._engine = open_engine(index.files, self._budget, sample_bytes)
        elif self._router is not None and self._router.is_idle:
            # The last epoch may have filled the page cache; files of kept bytes may have changed.
            self._engine.survey()
        if self._router is None:
            self._router = TicketRouter(self._engine)
        if self._arena is None:
            self._arena = Arena(0)
            self._share_memory(self._arena, self._budget)
        return ReadResources(index, self._engine, self._router, self._arena, self.meter)

    def _prepare_memory(self, arena: Arena, step: int) -> None:
        """Touch memory for the steps after the first, if they are large and there is none yet."""
        size, left = int(self._step_bytes), len(self.steps) - step - 1
        if size > limits.alone_bytes and arena.kept_bytes == 0 and left > 0:
            most = arena.bytes_max // (4 if self._in_threads else 1)  # decoding takes the rest
            arena.prepare(size, min(left, most // size))

    def _share_memory(self, arena: Arena, budget: Budget) -> None:
        joined = self._membership
        engine_bytes = 0 if joined is None else joined.engine.measure_buffers(budget)
        share_memory(arena, self.dataset.index, budget, engine_bytes, self._has_windows)

    def _open_source(
        self, resources: ReadResources, epoch: int, step: int, timeout_s: float | None
    ) -> ArraySource | DecodeSource:
        """Open the source of an epoch's batches from a step on."""
        engine, index, joined = resources.engine, resources.index, self._membership
        ahead_bytes, ahead_steps = self._choose_readahead(engine)
        seed = self.step_sampler.seed
        cropped: PlanSource | None = None
        # A mixture draws by passes, and hosts that share a cache keep whole samples.
        if self._rows is not None and joined is None and self.dataset.kind is None:
            cropped = self._rows.crop_reads(index, seed, epoch)
        memory = None
        if self._has_windows:
            self._kept = KeptChunks(step, self._kept)
            memory = kept_decoded_bytes(self._budget), self._kept.list_wholes()
        session = Session(
            cropped or (index if joined is None else joined.addressed),
            self.step_sampler.order.at_epoch(epoch),
            self.step_sampler.find_steps(epoch),
            self.place.rank,
            first_step=step,
            readahead_bytes=min(ahead_bytes, resources.arena.bytes_max),
            readahead_steps=ahead_steps,
            gap_bytes=choose_gap(index, engine.choice) if joined is None else None,
            row_bytes=self._row_bytes,
            memory=memory,
        )
        submit: Submit = engine.submit
        if joined is not None and self._cache is not None and self._cache.replicas:
            uses = self.step_sampler.find_uses(epoch, joined.neighbours)
            submit = partial(joined.engine.submit, uses=uses)
        reader = StepReader(resources, session, epoch, submit, timeout_s, self._kept)
        if not self._in_threads:
            return ArraySource(reader, self._step_bytes)
        if self._threads is None:
            self._threads = DecodeThreads(self._decode_threads, self._budget.cores)
        decoding = Decoding(
            self._decode,
            self._collate,
            self.leaves,
            self._threads,
            self.place.rank,
            partial(self.dataset.__getitem__, 0),
            seed,
            self._rows,
            cropped is not None,
            self._row_counts,
            self._draw_watch,
            None if self.dataset.rows is None else self.dataset.rows.lay_out,
        )
        return DecodeSource(reader, self._step_bytes, decoding)

    def _choose_readahead(self, engine: ReadingEngine) -> tuple[int, int]:
        """Return the most bytes and steps that may be requested or ready at once."""
        return choose_readahead(engine.choice, self._budget, self._step_bytes)

    @property
    def _step_bytes(self) -> float:
        """Mean bytes of a step of this rank."""
        return self.steps.rows(0, self.place.rank) * self._row_bytes

    @property
    def _row_bytes(self) -> float:
        """Mean bytes of a row of a batch."""
        if self.dataset.rows is not None:
            return self.dataset.rows.row_bytes
        order = self.step_sampler.order
        if isinstance(order, PackedOrder):
            samples = len(order.inner) / max(1, order.counts.estimate())
            return samples * self.dataset.index.mean_bytes
        return self.dataset.index.mean_bytes

    def _join(self, place: Place) -> CacheMembership:
        """Return this rank's part of the cache, joined at first use.

        It is joined again if the world has changed since, because a process group was started after
        the first epoch.
        """
        if self._membership is not None and not self._membership.holds(place):
            self.close()
        if self._membership is None:
            from ..cache.agreement import join_cache

            assert self._cache is not None
            self._membership = join_cache(
                self.dataset.index,
                self.dataset.path,
                self._cache,
                place,
                self._budget,
                "local" if self.step_sampler.needs_locality else self.step_sampler.assignment,
            )
        return self._membership


def _check_budget(budget: Budget | None) -> Budget:
    return Budget() if budget is None else check_kind("budget", budget, Budget, "a penstock.Budget")
