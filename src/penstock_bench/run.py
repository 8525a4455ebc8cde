"""A run: one contender through all epochs of a workload, on each rank; then without reading."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from glob import glob
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock.cli.quantities import counted
from penstock.engine import ThreadPool
from penstock.engine.page_cache import evict, measure_residency
from penstock.errors import StorageError, UsageError

from .contenders import Contender, DeliveryTask, convert, converts, make
from .contenders.delivery import compute_checksums, count_batch
from .measurement import (
    ResourceUse,
    StepPace,
    is_charged,
    measure_memory,
    measure_use,
    sharpen_timers,
    walk,
)
from .ranks import Crew
from .results import metrics
from .results.metrics import Stamps
from .workload.distribution import Distribution
from .workload.sections import DlioWorkload

if TYPE_CHECKING:
    from .checkpoints.run import WorkloadCheckpoints

CONTROL_S = 20.0
"""Longest computation of the control: a run without reading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchJob:
    """A run of one contender.

    paths:   the files of "train" and, where it is evaluated, of "valid"; folders: of these files.
    seed:    of the shuffle.
    limit:   steps of an epoch at most; None is no limit.
    truth:   if given, the checksums of all samples of a part, with which delivered samples are
             compared while the steps compute.
    stage:   a folder near by that the data is copied to first.
    cold:    True if files that were copied or converted are put out of the page cache.
    place:   the folder of the converted data, for contenders that read another format.
    writer:  of checkpoints; scale: of their tensors (see `checkpoints`).
    room:    the name of the folder for staged or converted data; rank 0's counts.
    """

    loader: str
    workload: DlioWorkload
    paths: Mapping[str, Sequence[str]]
    folders: Mapping[str, str]
    seed: int = 0
    compat: bool = False
    limit: int | None = None
    control: bool = True
    truth: Mapping[str, frozenset[int]] | None = None
    stage: str | None = None
    cold: bool = False
    place: str | None = None
    writer: str = "auto"
    scale: float = 1.0
    room: str = field(default_factory=lambda: f"penstock-stage-{os.getpid()}")

    @property
    def is_remote(self) -> bool:
        """True if the data are objects."""
        return "://" in self.folders["train"]

    @property
    def near(self) -> str:
        """The folder in which `room` is made."""
        return self.stage or tempfile.gettempdir()

    def steps(self, part: str, ranks: int) -> int:
        """Steps of an epoch of a part; UsageError if there are none."""
        data, reader = self.workload.dataset, self.workload.reader
        train = part == "train"
        steps = self.workload.steps(ranks) if train else self.workload.eval_steps(ranks)
        if not steps:
            batch = reader.batch_size if train else reader.batch_size_eval
            raise UsageError(
                f"0 steps of {part}: {data.files(part):,} files x {data.num_samples_per_file:,} "
                f"samples < batch {batch} x {ranks} ranks: generate more files, or lower "
                f"reader.{'batch_size' if train else 'batch_size_eval'}"
            )
        return steps if self.limit is None else min(steps, self.limit)

    def epochs(self, ranks: int) -> list[int]:
        """Steps of each training epoch. total_training_steps is of all of them; in DLIO of each."""
        train, steps = self.workload.train, self.steps("train", ranks)
        wanted = train.total_training_steps
        if wanted is None:
            return [steps] * train.epochs
        available = steps if self.compat else steps * train.epochs
        if wanted > available and self.limit is None:
            raise UsageError(
                f"train.total_training_steps: asked {wanted:,} steps, the data holds {steps:,} per "
                f"epoch x {train.epochs} epochs"
            )
        if self.compat:
            return [min(steps, wanted)] * train.epochs
        lengths: list[int] = []
        while wanted > 0 and len(lengths) < train.epochs:
            lengths.append(min(steps, wanted))
            wanted -= lengths[-1]
        return lengths

    def task(self, part: str, crew: Crew) -> DeliveryTask:
        """Make the task of a rank's contender."""
        return DeliveryTask(
            workload=self.workload,
            part=part,
            paths=self.paths[part],
            folder=self.folders[part],
            rank=crew.rank,
            ranks=crew.ranks,
            steps=self.steps(part, crew.ranks),
            seed=self.seed,
            epochs=self.workload.train.epochs,
            compat=self.compat,
            place=self.place,
        )


@dataclass(slots=True, kw_only=True)
class WalkedEpoch:
    """An epoch of one rank. number: from 1 on. started, ended: by the clock on the wall.

    spent:        resources that the process and its workers used.
    checkpoints:  saved by all ranks: step, seconds, bytes, started, ended.
    """

    number: int
    kind: str
    stamps: Stamps
    samples: int
    bytes: int
    started: float
    ended: float
    spent: ResourceUse
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    cached_before: dict[str, int] | None = None
    cached_after: dict[str, int] | None = None


@dataclass(slots=True, kw_only=True)
class Walks:
    """All measurements of one rank. control: the same steps without reading, if asked for."""

    rank: int
    hosts: int
    seed: int
    settings: Mapping[str, Any]
    staging_s: float
    startup_s: float
    epochs: list[WalkedEpoch]
    control: Stamps | None
    peak_rss_bytes: int | None
    pss_bytes: int | None
    loaded: list[dict[str, Any]] = field(default_factory=list)


def run_workload(job: BenchJob, crew: Crew) -> list[Walks] | None:
    """Measure one contender; all ranks call it, and rank 0 gets what all have measured.

    Raises UsageError, on every rank, if the workload has no steps.
    """
    lengths = job.epochs(crew.ranks)
    _check_exclusions(job, lengths, crew.ranks)
    job = replace(job, seed=crew.share(job.seed))
    sharpen_timers()
    gc.collect()
    gc.freeze()  # collections while steps are timed pass over what is there
    with _bring_data(job, crew) as (job, staging_s):
        crew.barrier()
        started_ns = time.perf_counter_ns()
        contenders = {path: make(job.loader, job.task(path, crew)) for path in job.paths}
        startup_s = (time.perf_counter_ns() - started_ns) * metrics.S
        runner = _Runner(job, crew, contenders, lengths)
        try:
            runner.all_epochs()
            used = measure_memory()
        finally:
            for contender in contenders.values():
                contender.close()
        crew.barrier()
    control = runner.control() if job.control else None
    walks = Walks(
        rank=crew.rank,
        hosts=crew.hosts,
        seed=job.seed,
        settings=dict(contenders["train"].settings),
        staging_s=staging_s,
        startup_s=startup_s,
        epochs=runner.walked,
        control=control,
        peak_rss_bytes=used.peak_rss,
        pss_bytes=used.pss,
    )
    return crew.gather(walks)


@contextmanager
def _bring_data(job: BenchJob, crew: Crew) -> Iterator[tuple[BenchJob, float]]:
    """Copy or convert the data for the contender, if it needs that; yield the changed job and the
    seconds that this took. One rank of each host does it; the data is removed afterwards."""
    wants = converts(job.loader)
    if job.stage is None and not wants:
        yield job, 0.0
        return

    with room(job.near, crew.share(job.room), crew.first_of_host) as folder:
        crew.barrier()
        started = time.perf_counter()
        if job.stage is not None:
            paths, folders = copy_files(job.paths, folder, crew.first_of_host)
            job = replace(job, paths=paths, folders=folders)
        if wants:
            job = replace(job, place=folder)
            for part in job.paths if crew.first_of_host else ():
                convert(job.loader, job.task(part, crew))
        crew.barrier()
        took_s = time.perf_counter() - started
        if job.cold and crew.first_of_host:
            evict([path for path in glob(f"{folder}/**", recursive=True) if os.path.isfile(path)])
        crew.barrier()
        yield job, took_s
        crew.barrier()


def _check_exclusions(job: BenchJob, lengths: Sequence[int], ranks: int) -> None:
    skipped, data = job.workload.output.metric, job.workload.dataset
    least = skipped.exclude_start_steps + skipped.exclude_end_steps + 1
    short = next((steps for steps in lengths if steps < least), None)
    if short is not None:
        samples = least * job.workload.reader.batch_size * ranks
        raise UsageError(
            f"an epoch of {counted(short, 'step')} has none to measure: output.metric excludes "
            f"{skipped.exclude_start_steps} at its start and {skipped.exclude_end_steps} at its "
            f"end: take {-(-samples // data.num_samples_per_file):,} files or more, smaller "
            "batches or fewer ranks"
        )


class _Runner:
    """One rank's epochs."""

    def __init__(
        self,
        job: BenchJob,
        crew: Crew,
        contenders: Mapping[str, Contender],
        lengths: Sequence[int],
    ) -> None:
        self.job, self.crew, self.contenders, self.lengths = job, crew, contenders, lengths
        self.pace = StepPace()
        self._charged = not job.is_remote and is_charged(job.paths["train"][0])
        self.walked: list[WalkedEpoch] = []
        workload = job.workload
        self._evaluated = "valid" in job.paths
        self._next_eval = workload.evaluation.eval_after_epoch
        self._checkpoints: WorkloadCheckpoints | None = None
        if workload.workflow.checkpoint:
            from .checkpoints.run import WorkloadCheckpoints

            self._checkpoints = WorkloadCheckpoints(
                workload, crew, writer=job.writer, scale=job.scale
            )

    def all_epochs(self) -> None:
        """Train, and evaluate when it is due, one epoch after the other."""
        workload = self.job.workload
        for number, steps in enumerate(self.lengths, 1):
            self._epoch(number, "train", steps, workload.train.computation_time)
            if self._evaluated and number >= self._next_eval:
                self._next_eval += workload.evaluation.epochs_between_evals
                steps = self.job.steps("valid", self.crew.ranks)
                self._epoch(number, "eval", steps, workload.evaluation.eval_time)

    def _epoch(self, number: int, kind: str, steps: int, cost: Distribution) -> None:
        part = "train" if kind == "train" else "valid"
        job, crew = self.job, self.crew
        counter = Counter(job, part)
        nominal = self.nominal(number, kind, steps, cost)
        saved: list[dict[str, Any]] = []
        save = None
        if kind == "train" and self._checkpoints is not None:
            save = partial(self._save_if_due, number, steps, saved)
        within = job.workload.checkpoint.steps_between_checkpoints
        where = f"--loader {job.loader}, rank {crew.rank}, epoch {number} ({kind})"
        cached_before = _count_cached(job, part, crew)
        crew.barrier()
        before, started = measure_use(self._charged), time.time()
        batches = self.contenders[part].batches(number - 1)
        pause = save if within else None
        stamps = walk(batches, nominal, self.pace, crew.barrier, counter.taken, pause, where)
        ended, after = time.time(), measure_use(self._charged)
        counter.check(where)
        walked = WalkedEpoch(
            number=number,
            kind=kind,
            stamps=stamps,
            samples=counter.samples,
            bytes=counter.bytes,
            started=started,
            ended=ended,
            spent=after.since(before),
            checkpoints=saved,
            cached_before=cached_before,
            cached_after=_count_cached(job, part, crew),
        )
        self.walked.append(walked)
        if crew.rank == 0:
            self._tell(walked)
        if save is not None and not within:
            save(steps)

    def _save_if_due(self, epoch: int, steps: int, saved: list[dict[str, Any]], step: int) -> bool:
        """Save a checkpoint after a step, if one is due, and note it; True if so."""
        from .checkpoints.shapes import is_due

        assert self._checkpoints is not None
        if not is_due(self.job.workload.checkpoint, epoch, step, steps):
            return False
        started = time.time()
        taken = self._checkpoints.take(epoch, step)
        saved.append({**taken, "started": started, "ended": time.time()})
        return True

    def _tell(self, walked: WalkedEpoch) -> None:
        """Print a line about an epoch: between epochs, so that printing is not measured."""
        if sys.stderr.isatty():
            spent = walked.ended - walked.started
            print(
                f"penstock: {self.job.loader}: {walked.kind} {walked.number} of {len(self.lengths)}"
                f": {len(walked.stamps):,} steps in {spent:.1f} s, rank 0 computed for "
                f"{metrics.utilisation([[walked.stamps]], 0, 0):.1%}",
                file=sys.stderr,
            )

    def nominal(
        self, number: int, kind: str, steps: int, cost: Distribution
    ) -> npt.NDArray[np.int64]:
        """Draw the time of each step's computation, in ns; draws differ by epoch and rank."""
        words = [self.job.workload.train.seed, number, kind == "train", self.crew.rank]
        generator = np.random.default_rng(words)
        return np.rint(cost.draw(generator, steps, folded=self.job.compat) * 1e9).astype(np.int64)

    def control(self) -> Stamps:
        """Repeat the first epoch with reading switched off, shortened if it would take too long."""
        cost = self.job.workload.train.computation_time
        nominal = self.nominal(1, "train", self.lengths[0], cost)
        enough = int(np.searchsorted(np.cumsum(nominal), CONTROL_S * 1e9)) + 1
        least = self.job.workload.output.metric.exclude_start_steps + 1
        nominal = nominal[: max(enough, least + self.job.workload.output.metric.exclude_end_steps)]
        batches = make("none", self.job.task("train", self.crew)).batches(0)
        counter = Counter(replace(self.job, truth=None), "train")
        steps = self.crew.share(len(nominal))  # draws differ by rank, steps must not
        nominal = np.resize(nominal, steps)
        self.crew.barrier()
        return walk(batches, nominal, self.pace, self.crew.barrier, counter.taken)


def _count_cached(job: BenchJob, part: str, crew: Crew) -> dict[str, int] | None:
    """Bytes of a part's files in the page cache, as rank 0 sees it."""
    is_asked = crew.rank == 0 and not job.is_remote
    cached = measure_residency(job.paths[part]) if is_asked else None
    return cached and {"cached_bytes": cached.cached_bytes, "total_bytes": cached.total_bytes}


class Counter:
    """Counts delivered samples, and compares them with those on disk if asked."""

    def __init__(self, job: BenchJob, part: str) -> None:
        reader = job.workload.reader
        self._batch = reader.batch_size if part == "train" else reader.batch_size_eval
        self._truth = None if job.truth is None else job.truth[part]
        self._loader = job.loader
        self.samples = self.bytes = self.wrong = 0

    def taken(self, batch: Any) -> None:
        """Count a batch."""
        samples, size = count_batch(batch, self._batch)
        self.samples += samples
        self.bytes += size
        if self._truth is not None:
            self.wrong += sum(
                checksum not in self._truth for checksum in compute_checksums(batch, self._batch)
            )

    def check(self, where: str) -> None:
        """Raise UsageError if samples were not those on disk."""
        if self.wrong:
            raise UsageError(
                f"--verify: {where}: {self.wrong:,} of {self.samples:,} samples that --loader "
                f"{self._loader} delivered have a checksum that no sample on disk has: the loader "
                "changes, cuts or mixes them up"
            )


_THREADS = 16

Paths = Mapping[str, Sequence[str]]


@contextmanager
def room(place: str, name: str, first: bool) -> Iterator[str]:
    """Make a folder of this name below `place`, and remove it afterwards.

    first:  True on the one rank that makes and removes the folder that several share.
    """
    folder = os.path.join(place, name)
    if not first:
        yield folder
        return
    try:
        os.makedirs(folder)
    except OSError as error:
        raise StorageError(f"no folder can be made in {place}: {error.strerror}") from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def copy_files(
    paths: Paths, folder: str, first: bool
) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Copy the files of each part into the folder, if `first`; return their paths and folders
    there, by part. StorageError if there is no room, or a file cannot be copied."""
    copies, folders = {}, {}
    for part, sources in paths.items():
        root = os.path.commonpath([os.path.dirname(path) for path in sources])
        folders[part] = os.path.join(folder, part)
        targets = [os.path.join(folders[part], os.path.relpath(source, root)) for source in sources]
        copies[part] = targets
        if first:
            _copy_all(sources, targets)
    return copies, folders


def _copy_all(sources: Sequence[str], targets: Sequence[str]) -> None:
    pairs = [
        (source + more, target + more)
        for source, target in zip(sources, targets, strict=True)
        for more in ("", ".off.idx", ".sz.idx")
        if not more or os.path.exists(source + more)
    ]
    total = sum(os.stat(source).st_size for source, _ in pairs)
    for place in {os.path.dirname(target) for target in targets}:
        os.makedirs(place, exist_ok=True)
    free = shutil.disk_usage(os.path.dirname(targets[0])).free
    if total > free:
        raise StorageError(
            f"{os.path.dirname(targets[0])}: {total:,} bytes are to be staged and {free:,} are "
            "free: make room, or stage elsewhere"
        )
    with ThreadPool(_THREADS) as threads:
        try:
            list(threads.map(shutil.copyfile, *zip(*pairs, strict=True)))
        except OSError as error:
            raise StorageError(f"staging to {targets[0]}, ...: {error}") from None
