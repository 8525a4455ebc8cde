"""python -m benchmarks.cluster [--quick]: a data set that several hosts read, epoch after epoch.

Hosts are emulated on one machine: each has its mount of one storage (see `emulation`), which
gives 100 MB/s to all of them together and takes 0.5 ms for a read; its ranks are processes. Mounts
have no page cache: hosts have as much memory as the caches are given. Ranks of penstock keep the
data between them (`penstock.Cache`); those of torch's DataLoader with its DistributedSampler read
it in every epoch. Once more, the DataLoader's hosts have a page cache with all of the data, four
times the memory of the caches. First epochs are compared where storage is far away: at 100 MB/s a
DataLoader draws all that there is, and nobody can be faster. What NoPFS would read follows from its
rule of placement, see `nopfs_bytes`.

Which bytes come from where does not depend on the machine. Times do: all hosts share its processors
(and what encrypts between them), where a cluster has some for each. Record: results/cluster.json.
"""

from __future__ import annotations

import argparse
import importlib
import math
import mmap
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from penstock.order.order import Order
from penstock_sim.closed_forms import remote_share

from . import emulation
from .__main__ import build_floors, finish, rows_of
from .contender import ROOT, ContenderError
from .corpus import Corpora, Sizes, make_warm
from .fleet import WORD, Fleet, Pass, Way, python
from .pairing import bootstrap_interval
from .race import Effort, run_race, say
from .record import Record, Row

RECORD_BYTES = 12_288
BYTES_PER_S, READ_NS = 100e6, 500_000
HOSTS, BATCH, LARGE_BATCH = 4, 32, 256
EPOCHS, MANY_EPOCHS = 3, 7
"""Epochs of a run; and where they are short, or what chance brings is to be averaged."""
STEP_MS = 5.0
WORKERS = (2, 4)
"""Workers of a rank's DataLoader, of which the best is held against; one takes 1.4 times as long as
two."""
PAGED_WORKERS = 0
"""The best number where files are in the page cache: one or two take seven times as long."""
PAGED_EPOCHS = 3
"""Epochs of a turn there: they are short."""
AWAY_MS = (0.5, 5, 20)
"""Latencies of storage that is far away and has no limit of bandwidth."""
AWAY_SAMPLES, AWAY_HOSTS = 4_096, 2
AWAY_WORKERS = 8
"""The best number where storage is far away: four take 1.2 to 1.8 times as long."""
CHUNK_BYTES = 1 << 20
SPARE_BYTES = 2 << 20
"""The spare bytes of a host's cache that is to hold its share for sure."""
MOVED = [(nodes, seats) for nodes in (2, 4) for seats in (BATCH, LARGE_BATCH)]
OF_STRIDED, TOLERANCE = 6, 1.1


@dataclass(frozen=True, slots=True)
class Scale:
    """Samples of the data set, and how often the timed contenders take turns.

    stall_samples:  an epoch's first batch is waited for longest, so that the stall of a step is
                    less the longer epochs are.
    """

    samples: int
    stall_samples: int
    turns: int


FULL, QUICK = Scale(16_384, 32_768, 5), Scale(8_192, 8_192, 1)


@dataclass(frozen=True, slots=True)
class Job:
    """Ranks that read the data together.

    kept:  the part of the data that all caches together are given; without a cache where it is 0.
    """

    loader: str = "penstock"
    hosts: int = HOSTS
    ranks: int = 1  # of a host
    batch: int = BATCH  # of a rank
    kept: float = 1.0
    assignment: str = "local"
    workers: int = 0
    step_ms: float = 0.0

    @property
    def world(self) -> int:
        return self.hosts * self.ranks

    @property
    def label(self) -> str:
        where = f"{self.hosts} hosts x {self.ranks}, batch {self.batch}"
        if self.loader == "torch":
            return f"torch, {where}, {self.workers} workers a rank"
        steps = f", steps of {self.step_ms:g} ms" * bool(self.step_ms)
        return f"penstock {self.assignment}, {where}, caches hold {self.kept:.0%}{steps}"


@dataclass(frozen=True, slots=True)
class Epoch:
    """The figures of one epoch, over all ranks.

    storage_bytes, storage_reads:  as the storage counted them.
    ram_bytes, peer_bytes, direct_bytes:  of batches, by where they came from.
    stall_s:                       that ranks waited in `next`, of a step.
    """

    seconds: float
    samples: int
    storage_bytes: int
    storage_reads: int
    ram_bytes: int
    peer_bytes: int
    direct_bytes: int
    stall_s: float

    @property
    def rate_per_s(self) -> float:
        return self.samples / self.seconds

    @property
    def local(self) -> float:
        """The part of a batch that its own host kept."""
        return self.ram_bytes / (self.samples * RECORD_BYTES)

    def __str__(self) -> str:
        return (
            f"{self.seconds:.2f} s, {self.rate_per_s:,.0f} samples/s, storage "
            f"{self.storage_bytes / 1e6:,.0f} MB in {self.storage_reads:,} reads, peers "
            f"{self.peer_bytes / 1e6:,.0f} MB, local {self.local:.1%}, "
            f"stall {1e3 * self.stall_s:.2f} ms a step"
        )


Read = Callable[[int], list[Epoch]]


class Bench:
    """Jobs over one file, all of which must deliver all its samples in each epoch."""

    def __init__(
        self, path: Path, storage: emulation.Shared, seed: int, *, keeps_pages: bool = False
    ) -> None:
        self.path, self.storage, self.seed = path, storage, seed
        self.bytes = path.stat().st_size
        self.samples = self.bytes // RECORD_BYTES
        mounts = [
            storage.mount(path.parent, direct=not keeps_pages, keep=keeps_pages)
            for _ in range(HOSTS)
        ]
        self.paths = [f"{mount.path}/{path.name}" for mount in mounts]
        heads = np.memmap(path, np.uint64, "r").reshape(self.samples, -1)[:, 0]
        self._truth = int(np.add.reduce(heads, dtype=np.uint64)) % WORD
        self.raw: dict[str, Any] = {}

    def run(self, job: Job, epochs: int = EPOCHS) -> list[Epoch]:
        """Epochs of a fresh job."""
        with self.started(job) as read:
            return read(epochs)

    @contextmanager
    def started(self, job: Job) -> Iterator[Read]:
        """Start ranks; each call of what is yielded makes them read that many more epochs. Their
        start, and telling them of each other, is not timed."""
        before: dict[str, int] = {}

        def read(epochs: int) -> list[Epoch]:
            nonlocal before
            found = []
            say(f"{job.label}: ...")
            for _ in range(epochs):
                self.storage.reset()
                done = fleet.pass_()
                self.check(job, done)
                totals = totals_of(done.answers)
                found.append(epoch_of(done, self.storage.counters(), before, totals))
                before = totals
                say(f"  {found[-1]}")
            self.raw.setdefault(job.label, []).append([asdict(each) for each in found])
            return found

        with Fleet(self.way(job)) as fleet:
            fleet.open(self.paths_of(job))
            yield read

    def way(self, job: Job, module: str = "cluster_rank") -> Way:
        """The way its ranks are started, which are those of this module."""
        return python(
            module,
            job.label,
            job.world,
            loader=job.loader,
            record_bytes=RECORD_BYTES,
            batch=job.batch,
            seed=self.seed,
            ranks=job.ranks,
            cache_bytes=self.cache_bytes(job),
            assignment=job.assignment,
            workers=job.workers,
            step_ms=job.step_ms,
        )

    def paths_of(self, job: Job) -> list[str]:
        """The paths that each rank reads: its host's view of the storage."""
        return [self.paths[rank // job.ranks] for rank in range(job.world)]

    def cache_bytes(self, job: Job) -> int:
        """The bytes of each host's cache."""
        share = int(job.kept * self.bytes / job.hosts)
        return share + SPARE_BYTES if job.kept >= 1 else share

    def fill_pages(self) -> None:
        """Read all of the file on each host, whose page cache keeps it."""
        for path in self.paths:
            make_warm(Path(path))

    def sequential(self) -> float:
        """Bytes a second of bare readers, one a host, each of its part of the file in order."""

        def read(host: int) -> int:
            at, end = (self.bytes * k // HOSTS for k in (host, host + 1))
            file = os.open(self.paths[host], os.O_RDONLY)
            buffer = memoryview(mmap.mmap(-1, CHUNK_BYTES))
            try:
                while at < end:
                    at += os.preadv(file, [buffer[: end - at]], at)
            finally:
                os.close(file)
            return at

        start = time.perf_counter()
        with ThreadPoolExecutor(HOSTS) as threads:
            list(threads.map(read, range(HOSTS)))
        rate = self.bytes / (time.perf_counter() - start)
        say(f"bare sequential readers: {rate / 1e6:.1f} MB/s")
        self.raw.setdefault("sequential", []).append(rate)
        return rate

    def check(self, job: Job, done: Pass) -> None:
        if (done.samples, done.total) != (self.samples, self._truth):
            raise ContenderError(
                f"{job.label}: wrong data: {done.samples} samples with sum {done.total}, "
                f"the file has {self.samples} with sum {self._truth}"
            )


def totals_of(answers: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """The totals that loaders have counted since their start, over all ranks."""
    names = ("steps", "stall_ns", "ram_bytes", "peer_bytes", "direct_bytes")
    return {name: sum(answer.get(name, 0) for answer in answers) for name in names}


def epoch_of(
    done: Pass, served: Mapping[str, int], before: Mapping[str, int], totals: Mapping[str, int]
) -> Epoch:
    """The figures that are new since the epoch before."""
    new = {name: total - before.get(name, 0) for name, total in totals.items()}
    return Epoch(
        done.seconds,
        done.samples,
        served["bytes"],
        served["reads"],
        new["ram_bytes"],
        new["peer_bytes"],
        new["direct_bytes"],
        1e-9 * new["stall_ns"] / max(1, new["steps"]),
    )


# -- what others would read ------------------------------------------------------------------------


def least_bytes(data_bytes: int, cache_bytes: int, epochs: int) -> int:
    """No caches of so many bytes in all read less from storage: each epoch needs everything once,
    and finds at most what was kept."""
    return data_bytes + (epochs - 1) * max(0, data_bytes - cache_bytes)


def nopfs_bytes(
    order: Order,
    ranks: int,
    cache_samples: int,
    epochs: int,
    sample_bytes: int,
    seed: int,
    *,
    from_peers: bool = True,
) -> int:
    """The least that NoPFS (Dryden et al., SC '21) reads from storage, by its rule of placement.

    Each rank by itself keeps the samples that it is to process most often in the whole run, as many
    as fit: `cache_samples` of a rank. Where it processes several equally often, the rule leaves it
    open which; here chance decides, for each rank by itself. What some rank keeps leaves storage
    once, or, if `from_peers` is False, once for each rank that keeps it, as its published code
    reads; what no rank keeps is read in each epoch. Assumed in its favour: a rank always knows
    whether another one has a sample already, and none reads a sample a second time while it is on
    its way.
    """
    samples = np.arange(order.count, dtype=np.uint64)
    times = np.zeros((ranks, order.count), np.int32)
    for epoch in range(epochs):
        dealt = order.at_epoch(epoch).samples(samples).astype(np.int64)
        for rank in range(ranks):
            times[rank, dealt[rank::ranks]] += 1
    random = np.random.default_rng(seed)
    kept, held = 0, np.zeros(order.count, bool)
    for own in times:
        most = np.lexsort((random.random(order.count), -own))[:cache_samples]
        most = most[own[most] > 0]
        held[most] = True
        kept += len(most)
    if from_peers:
        kept = int(np.count_nonzero(held))
    return sample_bytes * (kept + epochs * int(np.count_nonzero(~held)))


# -- rows ------------------------------------------------------------------------------------------


def at_most(
    name: str, value: float, unit: str, floor: float, target: float | None, note: str = ""
) -> Row:
    """A row whose ratio to `floor` has an upper limit."""
    ratio = value / floor
    met = None if target is None else ratio <= target
    limit = "target is an upper limit" if target is not None else ""
    note = "; ".join(filter(None, (note, limit)))
    return Row(name, value, unit, floor, ratio, target, met, note=note)


def at_least(
    name: str,
    values: Sequence[float],
    unit: str,
    floors: Sequence[float],
    target: float | None,
    note: str = "",
) -> Row:
    """A row of turns: medians, and the median of the ratios turn by turn."""
    ratios = [value / floor for value, floor in zip(values, floors, strict=True)]
    low, high = bootstrap_interval(ratios, 0) if len(ratios) > 1 else (None, None)
    ratio = median(ratios)
    met = None if target is None else ratio >= target
    return Row(name, median(values), unit, median(floors), ratio, target, met, low, high, note=note)


def close_to(name: str, value: float, expected: float, note: str) -> Row:
    """A row that may differ from a formula by a tenth, either way."""
    ratio = value / expected
    met = 1 / TOLERANCE <= ratio <= TOLERANCE
    return Row(name, value, "of samples", expected, ratio, TOLERANCE, met, note=note)


def storage_rows(bench: Bench) -> list[Row]:
    """The bytes that all epochs together read from storage, and those that NoPFS would."""
    rows = []
    for kept, target in ((1.0, 1.01), (0.5, 1.02)):
        job = Job(ranks=2, kept=kept)
        read = sum(epoch.storage_bytes for epoch in bench.run(job))
        # With everything kept, the spare room is no part of what could be used.
        given = min(bench.bytes, job.hosts * bench.cache_bytes(job))
        least = least_bytes(bench.bytes, given, EPOCHS)
        name = f"storage bytes in {EPOCHS} epochs, caches hold {kept:.0%}"
        about = f"{job.hosts} hosts x {job.ranks} ranks"
        rows.append(at_most(f"{name} / least", read / 1e6, "MB", least / 1e6, target, about))
        # Its caches are of ranks: each has its part of the host's.
        some = given // job.world // RECORD_BYTES
        order = Order(bench.samples, bench.seed)
        note = "computed from its rule of placement, not run"
        for way, from_peers in (("NoPFS", True), ("NoPFS as published", False)):
            theirs = nopfs_bytes(
                *(order, job.world, some, EPOCHS, RECORD_BYTES, bench.seed), from_peers=from_peers
            )
            title = f"{name}, {way} / least"
            rows.append(at_most(title, theirs / 1e6, "MB", least / 1e6, None, note))
    return rows


def turns(bench: Bench, count: int) -> tuple[list[Row], list[Epoch]]:
    """Bare sequential readers, penstock and the DataLoader one after the other, several times."""
    bare, ours, torch = [], [], []
    with ExitStack() as stack:
        # The DataLoaders stay: their processes start slowly, and use nothing between their epochs.
        jobs = {workers: Job("torch", workers=workers) for workers in WORKERS}
        loaders = {each: stack.enter_context(bench.started(job)) for each, job in jobs.items()}
        rates = {workers: read(1)[0].rate_per_s for workers, read in loaders.items()}
        workers = max(rates, key=rates.__getitem__)
        for _ in range(count):
            bare.append(bench.sequential())
            ours.append(bench.run(Job(), MANY_EPOCHS))
            torch.append(loaders[workers](1)[0].rate_per_s)
    best = f"{workers} workers a rank, the best of {', '.join(map(str, WORKERS))}"
    first = [epochs[0].rate_per_s for epochs in ours]
    warm = [find_rate(epochs[1:]) for epochs in ours]
    rows = [
        at_least(
            "first epoch / bare sequential readers",
            [rate * RECORD_BYTES / 1e6 for rate in first],
            "MB/s",
            [rate / 1e6 for rate in bare],
            0.9,
        ),
        at_least("warm epochs / DataLoader", warm, "samples/s", torch, 10, best),
    ]
    return rows, ours[-1]


def find_rate(epochs: Sequence[Epoch]) -> float:
    """The median rate of epochs."""
    return median(epoch.rate_per_s for epoch in epochs)


def away_rows(path: Path, seed: int, count: int) -> Iterator[Row]:
    """First epochs where storage is far away; the DataLoader's epochs are all first ones, because
    nothing is kept."""
    make_warm(path)
    with emulation.Shared(calibrate=True) as storage:
        bench = Bench(path, storage, seed)
        with bench.started(Job("torch", hosts=AWAY_HOSTS, workers=AWAY_WORKERS)) as torch:
            torch(1)
            for away_ms in AWAY_MS:
                storage.set(read_ns=away_ms * 1e6, meta_ns=away_ms * 1e6)
                ours, theirs = [], []
                for _ in range(count):
                    ours.append(bench.run(Job(hosts=AWAY_HOSTS), 1)[0].rate_per_s)
                    theirs.append(torch(1)[0].rate_per_s)
                name = f"first epoch, storage {away_ms:g} ms away / DataLoader"
                note = f"{AWAY_HOSTS} hosts, samples of {RECORD_BYTES:,} bytes; "
                note += f"{AWAY_WORKERS} workers a rank"
                yield at_least(name, ours, "samples/s", theirs, 2, note)


def paged_rows(path: Path, seed: int, ours: Sequence[Epoch]) -> Iterator[Row]:
    """Warm epochs where all of the data is in each host's page cache; of penstock's caches, too,
    which have a quarter of that memory and ask each other.

    ours:  warm epochs of `Job()`, of the same data.
    """
    with emulation.Shared(read_ns=READ_NS, meta_ns=READ_NS, calibrate=True) as storage:
        bench = Bench(path, storage, seed, keeps_pages=True)
        bench.fill_pages()
        job, other = Job(kept=0, assignment="strided"), Job("torch", workers=PAGED_WORKERS)
        rates, floors = [], []
        with bench.started(job) as read, bench.started(other) as torch:
            read(1), torch(1)
            for _ in ours:
                rates.append(find_rate(read(PAGED_EPOCHS)))
                floors.append(find_rate(torch(PAGED_EPOCHS)))
        note = f"{PAGED_WORKERS} workers a rank"
        others = [epoch.rate_per_s for epoch in ours]
        name = "warm epochs / DataLoader, both from each host's page cache"
        yield at_least(name, rates, "samples/s", floors, 1, f"{note}; penstock without a cache")
        name = "warm epochs with caches of a quarter each / DataLoader from each host's page cache"
        yield at_least(name, others, "samples/s", floors, None, note)


def moved_row(job: Job, epochs: Sequence[Epoch]) -> Row:
    """The part of the batches that came from peers, in epochs without storage."""
    total = sum(epoch.samples for epoch in epochs) * RECORD_BYTES
    moved = sum(epoch.peer_bytes for epoch in epochs) / total
    expected = float(remote_share(job.batch * job.ranks, job.hosts))
    name = f"from peers, {job.hosts} hosts, batch {job.batch} / formula"
    finite = math.sqrt(1 - job.batch * job.world / epochs[0].samples)
    note = f"bytes of a live run; so few samples move about {finite:.2f} of the formula"
    return close_to(name, moved, expected, note)


def moved_rows(bench: Bench, main: Sequence[Epoch]) -> list[Row]:
    """The same for all shapes, of which `main` is one."""
    jobs = [Job(hosts=nodes, batch=seats) for nodes, seats in MOVED]
    return [
        moved_row(job, (main if job == Job() else bench.run(job, MANY_EPOCHS))[1:]) for job in jobs
    ]


def strided_row(bench: Bench, torch_per_s: float) -> Row:
    """The gain by the caches where ranks keep the samples that a DistributedSampler deals them."""
    epochs = bench.run(Job(assignment="strided"), MANY_EPOCHS)
    rates = [epoch.rate_per_s for epoch in epochs[1:]]
    note = f"{epochs[-1].local:.0%} of the bytes are local, the others are encrypted"
    name = "warm epochs, strided / DataLoader"
    theirs = [torch_per_s] * len(rates)
    return at_least(name, rates, "samples/s", theirs, OF_STRIDED, note)


def stall_row(path: Path, seed: int) -> Row:
    """Waiting for batches beside computing."""
    with emulated(path, seed) as bench:
        epochs = bench.run(Job(step_ms=STEP_MS), MANY_EPOCHS)[1:]
    parts = [100 * epoch.stall_s / (STEP_MS / 1e3) for epoch in epochs]
    part = median(parts)
    note = (
        f"of a step that computes (sleeps) {STEP_MS:g} ms, mean over {HOSTS} hosts, median of "
        f"{len(epochs)} warm epochs, {max(parts):.2g} % in the worst; target is an upper limit"
    )
    return Row("stall", part, "%", STEP_MS, None, 2.0, part <= 2, note=note)


def dealing_rows(record: Record) -> list[Row]:
    """The costs of placement and local assignment, and what real orders move."""
    found, record.raw["dealing"] = rows_of("dealing")
    rows = []
    wanted = {f"dealing / moved, {nodes} nodes, {seats} each a step" for nodes, seats in MOVED}
    for row in found:
        if row.name in wanted and row.value is not None and row.floor is not None:
            rows.append(close_to(row.name, row.value, row.floor, "orders dealt, nothing read"))
        elif not row.name.startswith("dealing / moved"):
            rows.append(row)
    return rows


def raced_rows(name: str, options: argparse.Namespace, record: Record) -> list[Row]:
    """The rows of a benchmark of one part, which also runs by itself."""
    try:
        module = importlib.import_module(f"benchmarks.{name}")
    except ModuleNotFoundError as error:
        return [Row(name, None, "", met=False, note=f"absent: {error}")]
    rows: list[Row] = []
    for race in module.races(options):
        say(f"{race.name}: ...")
        result = run_race(race, Effort.quick() if options.quick else Effort.full(), frozenset(), 0)
        record.raw[race.name] = result.raw
        rows += result.rows
    return rows


# -- the command -----------------------------------------------------------------------------------


@contextmanager
def emulated(path: Path, seed: int) -> Iterator[Bench]:
    """The storage, mounted once for each host; the page cache plays its memory."""
    make_warm(path)
    with emulation.Shared(
        read_ns=READ_NS, meta_ns=READ_NS, bytes_per_s=BYTES_PER_S, calibrate=True
    ) as storage:
        yield Bench(path, storage, seed)


def measure(bench: Bench, records: Callable[[int], Path], record: Record, scale: Scale) -> None:
    """All rows of the emulated cluster.

    records:  makes a file with a given number of samples.
    """
    record.raw["jobs"] = bench.raw

    def add(rows: Sequence[Row]) -> None:
        record.rows += rows
        record.write()  # a run that is cut short keeps what it has

    rows, main = turns(bench, scale.turns)
    add(rows)
    torch_per_s = rows[-1].floor
    assert torch_per_s is not None
    parts: list[Callable[[], Sequence[Row]]] = [
        lambda: storage_rows(bench),
        lambda: moved_rows(bench, main),
        lambda: [strided_row(bench, torch_per_s)],
        lambda: [stall_row(records(scale.stall_samples), bench.seed)],
        lambda: [*paged_rows(bench.path, bench.seed, main[1:])],
        lambda: [*away_rows(records(AWAY_SAMPLES), bench.seed, scale.turns)],
    ]
    for part in parts:
        add(part())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less data, no turns")
    parser.add_argument("--data", default=str(ROOT / "bench-data"), help="folder of the corpora")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if missing := emulation.usable():
        parser.exit(1, f"storage cannot be emulated here: {missing}\n")
    scale = QUICK if options.quick else FULL
    record = Record("cluster" + "-quick" * options.quick, options.seed, vars(options))
    record.configuration |= asdict(scale)
    record.configuration["overshoot_ns"] = emulation.overshoot_ns()

    def records(samples: int) -> Path:
        sizes = replace(Sizes.quick(), records=samples)
        return Corpora(Path(options.data).resolve(), sizes, options.seed).records(RECORD_BYTES)

    with emulated(records(scale.samples), options.seed) as bench:
        measure(bench, records, record, scale)
    record.rows += dealing_rows(record)
    build_floors()
    for name in ("tiers", "peers"):
        record.rows += raced_rows(name, options, record)
    finish(record)


if __name__ == "__main__":
    main()
