"""python -m benchmarks.lmdb_study [parts ...] [--quick]: LMDB files on shared storage.

LMDBIO (Pumma, Si, Feng, Balaji; TOPC 2019) found why LMDB is slow under many readers on parallel
file systems, and read it explicitly instead. Its six ideas are all here, applied to a table of
extents. This measures what they give, on emulated storage (see `emulation`) and on the local disk,
against the lmdb package at its best setting and against a bare C++ loop; README.md says more.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import penstock

from . import emulation
from .__main__ import build_floors, finish
from .contender import ROOT, ContenderError
from .corpus import Corpora, Sizes, make_cold, make_warm
from .fleet import Fleet, Pass, Way, python
from .pairing import bootstrap_interval, count_turns
from .race import say
from .record import Record, Row
from .suite import FLOORS

PARTS = ("node", "pass", "disk", "ideas")
READ_NS = META_NS = 500_000
NODE_BYTES_PER_S = 625e6  # half of a link of 10 Gbit/s
CLUSTER_BYTES_PER_S = 200e6
CONSUMERS = 8
BATCH, PASS_BATCH = 64, 2048  # of one rank
LARGE, FITTING, INLINE = (12_000, 200_000), (12_000, 24_000), (794, 180_000)
NODES = (1, 16)
RANKS_PUBLISHED, RANKS_A_NODE, GAIN_PUBLISHED = 9216, 36, 65


@dataclass(frozen=True, slots=True)
class Effort:
    """The amount that is read in a pass, and the number of passes."""

    samples: int
    pairs: int
    pairs_informative: int
    large_count: int

    @classmethod
    def full(cls) -> Effort:
        return cls(8192, 6, 3, LARGE[1])

    @classmethod
    def quick(cls) -> Effort:
        return cls(4096, 3, 1, LARGE[1])


@dataclass(slots=True)
class Data:
    """An LMDB file, the first samples of a shuffled epoch of it, and where these lie."""

    path: Path
    value_bytes: int
    ids: Path
    extents: Path
    samples: int
    seed: int

    def head(self, samples: int) -> Data:
        """The same with the first samples only."""
        ids = self.path.with_name(f"ids-{samples}.npy")
        np.save(ids, np.load(self.ids)[:samples])
        return replace(self, ids=ids, samples=samples)


def prepared(
    corpora: Corpora, shape: tuple[int, int], samples: int, *, ordered: bool = False
) -> Data:
    """The file, warm in the page cache of its own disk, which plays the storage's memory."""
    value_bytes, count = shape
    path = corpora.lmdb(value_bytes, count)
    dataset = penstock.open(path)
    order = penstock.Order(len(dataset), corpora.seed).at_epoch(0)
    samples = min(samples, len(dataset))
    ids = order.samples(np.arange(samples, dtype=np.uint64)).astype(np.int64)
    if ordered:
        ids.sort()
    found = dataset.index.extents(ids)
    data = Data(
        path,
        value_bytes,
        path.with_name(f"ids-{samples}.npy"),
        path.with_name(f"extents-{samples}"),
        samples,
        corpora.seed,
    )
    np.save(data.ids, ids)
    np.column_stack([found.offset, found.length]).astype(np.int64).tofile(data.extents)
    make_warm(path)
    return data


# -- ways to read ----------------------------------------------------------------------------------


def by_lmdb(data: Data, processes: int, *, readahead: bool, sort: bool = False) -> Way:
    """Lookups by key in `processes` readers, that share the samples."""
    label = f"lmdb x{processes}, readahead {'on' if readahead else 'off'}{', sorted' * sort}"
    return python(
        "lmdb_reader",
        label,
        processes,
        ids=data.ids,
        value_bytes=data.value_bytes,
        batch=BATCH,
        readahead=int(readahead),
        sort=int(sort),
    )


def by_walk(data: Data, ranks: int) -> Way:
    """Caffe's distributed layer: every rank steps over the records of the others."""
    options = {"value_bytes": data.value_bytes, "batch": BATCH, "readahead": 1, "walk": 1}
    return python("lmdb_reader", f"lmdb walk x{ranks}", ranks, ids=data.ids, **options)


def by_penstock(data: Data, label: str, processes: int = 1, **options: object) -> Way:
    """One loader for the node, or one for each rank; the same global batches."""
    batch = CONSUMERS * BATCH // processes
    given = {"batch": batch, "seed": data.seed, "ids": data.ids} | options
    return python("penstock_reader", label, processes, **given)


def by_loop(data: Data, depth: int, direct: bool = False) -> Way:
    """The bare C++ loop."""
    words = {"extents": data.extents, "depth": depth, "direct": int(direct)}
    command = [str(FLOORS / "random_floor")]
    command += [word for name, value in words.items() for word in (f"--{name}", str(value))]
    return Way(f"C++, {depth} outstanding{', direct' * direct}", tuple(command))


# -- measuring -------------------------------------------------------------------------------------


class Bench:
    """Passes over one file by several fleets; all must deliver the same samples."""

    def __init__(self, data: Data, stack: ExitStack, raw: dict[str, Any]) -> None:
        self.data = data
        self.raw = raw
        self._stack = stack
        self._fleets: dict[Way, Fleet] = {}
        self._truth: dict[int, int] = {}
        self.served: dict[str, int] = {}

    def opened(self) -> None:
        """All processes have opened the file; the clock starts."""

    @contextmanager
    def cold(self, nodes: int) -> Iterator[list[str]]:
        """Paths of the file, one a node, of which nothing is cached."""
        raise NotImplementedError

    def once(self, way: Way, nodes: int = 1) -> Pass:
        """One cold pass."""
        if way not in self._fleets:
            self._fleets[way] = self._stack.enter_context(Fleet(way))
        with self.cold(nodes) as paths:
            done = self._fleets[way].read(paths, self.opened)
        if self._truth.setdefault(done.samples, done.total) != done.total:
            raise ContenderError(f"{way.label}: other samples than the first way delivered")
        found = self.raw.setdefault(way.label, [])
        found.append({"rate_per_s": done.rate_per_s, "samples": done.samples, **self.served})
        return done

    def forget(self, way: Way) -> None:
        """End the processes of a way that is not needed again."""
        self._fleets.pop(way).close()

    def best(self, ways: Sequence[Way]) -> tuple[Way, dict[str, float]]:
        """The fastest way of some, and what each reached."""
        rates = {}
        for way in ways:
            rates[way] = self.once(way).rate_per_s
            self.forget(way)
            say(f"  {way.label}: {rates[way]:,.0f}/s, {self.served}")
        return max(rates, key=rates.__getitem__), {w.label: r for w, r in rates.items()}

    def row(
        self,
        name: str,
        subject: Way,
        reference: Way,
        pairs: int,
        target: float | None = None,
        *,
        nodes: int = 1,
        note: str = "",
        by_time: bool = False,
    ) -> Row:
        """Passes of the two in turns, A B, B A, ..."""
        taken: list[tuple[Pass, Pass]] = []
        served: dict[Way, dict[str, int]] = {}
        for turn in count_turns(
            pairs, lambda: [[one.rate_per_s / other.rate_per_s for one, other in taken]]
        ):
            both = {}
            for way in (subject, reference)[:: 1 if turn % 2 == 0 else -1]:
                both[way] = self.once(way, nodes)
                served[way] = dict(self.served)
            taken.append((both[subject], both[reference]))
        ratios = [one.rate_per_s / other.rate_per_s for one, other in taken]
        low, high = bootstrap_interval(ratios, self.data.seed)
        ratio = median(ratios)
        what = (lambda p: p.seconds) if by_time else (lambda p: p.rate_per_s)
        counted = " against ".join(
            f"{served[way]['bytes'] / 1e6:,.0f} MB in {served[way]['reads']:,} reads"
            for way in (subject, reference)
            if served[way]
        )
        row = Row(
            name,
            median(what(one) for one, _ in taken),
            "s" if by_time else "samples/s",
            median(what(other) for _, other in taken),
            ratio,
            target,
            None if target is None else ratio >= target,
            low,
            high,
            note="; ".join(filter(None, (f"{subject.label} / {reference.label}", counted, note))),
        )
        say(f"{name}: {ratio:.2f} ({low:.2f}..{high:.2f}); {row.note}")
        return row


class OnStorage(Bench):
    """On emulated shared storage: a mount for each node, new for each pass, so that it is cold."""

    def __init__(
        self, data: Data, stack: ExitStack, raw: dict[str, Any], **parameters: float | None
    ) -> None:
        super().__init__(data, stack, raw)
        self.parameters = {"read_ns": READ_NS, "meta_ns": META_NS, **parameters}
        raw["storage"] = dict(self.parameters)
        self._storage: emulation.Shared | None = None

    def opened(self) -> None:
        assert self._storage is not None
        self._storage.reset()

    @contextmanager
    def cold(self, nodes: int) -> Iterator[list[str]]:
        with emulation.Shared(**self.parameters, calibrate=True) as storage:  # type: ignore[arg-type]
            self._storage = storage
            mounts = [storage.mount(self.data.path.parent) for _ in range(nodes)]
            yield [f"{mount.path}/{self.data.path.name}" for mount in mounts]
            self.served = storage.counters()


class OnDisk(Bench):
    """On the local disk, evicted before each pass."""

    @contextmanager
    def cold(self, nodes: int) -> Iterator[list[str]]:
        make_cold(self.data.path)
        yield [str(self.data.path)]


def settings(run: Run, data: Data) -> list[Way]:
    """The ways that the lmdb package is tried in. Fewer readers never won, on any storage: four had
    0.7 of the rate of eight, one and two had less."""
    return [
        by_lmdb(data, CONSUMERS, readahead=on, sort=sort)
        for on in (False, True)
        for sort in ((False,) if run.quick else (False, True))
    ]


# -- the parts -------------------------------------------------------------------------------------


def node(run: Run) -> list[Row]:
    """One node with eight consumers, random order, from a file larger than what it reads."""
    data = prepared(run.corpora, (LARGE[0], run.effort.large_count), run.effort.samples)
    pairs, few = run.effort.pairs, run.effort.pairs_informative
    one = by_penstock(data, "penstock, 1 loader")
    loop = by_loop(data, penstock.limits.remote_threads)
    with run.bench(OnStorage, "node", data, bytes_per_s=NODE_BYTES_PER_S) as bench:
        best, run.record.raw["node"]["sweep"] = bench.best(settings(run, data))
        off, on = (by_lmdb(data, CONSUMERS, readahead=one) for one in (False, True))
        rows = [
            bench.row("node / lmdb, best", one, best, pairs, 8),
            bench.row("node / bare C++ loop", one, loop, pairs, 0.85),
            bench.row("node / lmdb, readahead off", one, off, few),
        ]
    # Readahead was twice as fast where bandwidth is free, and half as fast at 200 MB/s.
    with run.bench(OnStorage, "node, no limit of bandwidth", data) as bench:
        direct = by_penstock(data, "penstock, direct", direct="required")
        rows += [
            bench.row("node, any bandwidth / lmdb, best", one, on, few),
            bench.row("node, any bandwidth / bare C++ loop", one, loop, few),
            bench.row("node, any bandwidth, direct / lmdb, best", direct, on, few),
        ]
    with run.bench(OnStorage, "node, 200 MB/s", data, bytes_per_s=CLUSTER_BYTES_PER_S) as bench:
        rows.append(bench.row("node, 200 MB/s / lmdb, best", one, off, few))
    fitting = prepared(run.corpora, FITTING, FITTING[1])
    with run.bench(OnStorage, "node, data fits", fitting, bytes_per_s=NODE_BYTES_PER_S) as bench:
        on = by_lmdb(fitting, CONSUMERS, readahead=True)  # without it, a ninth of the rate
        one = by_penstock(fitting, "penstock, 1 loader")
        rows.append(bench.row("node, whole file fits in memory / lmdb, best", one, on, few))
    return rows


def distributed(run: Run) -> list[Row]:
    """Caffe's pass over a file by N nodes: each walks all of it to read its share."""
    data = prepared(run.corpora, INLINE, INLINE[1], ordered=True)
    rows = []
    for nodes in NODES[-1:] if run.quick else NODES:
        last = nodes == NODES[-1]
        ours = by_penstock(data, f"penstock x{nodes}", nodes, batch=PASS_BATCH, order="contiguous")
        with run.bench(
            OnStorage, f"pass, {nodes} nodes", data, bytes_per_s=CLUSTER_BYTES_PER_S
        ) as bench:
            rows.append(
                bench.row(
                    f"pass, {nodes} nodes / lmdb walk",
                    ours,
                    by_walk(data, nodes),
                    (run.effort.pairs + 1) // 2 if last else run.effort.pairs_informative,
                    16 if last else None,
                    nodes=nodes,
                    by_time=True,
                )
            )
    return [*rows, *at_scale(rows, data)]


def at_scale(rows: list[Row], data: Data) -> list[Row]:
    """The pass at the published scale, by a model of the storage.

    Assumptions: the storage gives its bandwidth whatever the number of nodes; a node's readers
    share what its page cache holds, so a node that walks reads the file once; a node alone needs
    what it was measured to need. A pass takes the longer of one node's time and bytes / bandwidth.
    """
    alone = rows[0]
    if not (alone.value and alone.floor) or not alone.name.startswith("pass, 1 "):
        return []
    nodes = RANKS_PUBLISHED // RANKS_A_NODE
    whole = data.path.stat().st_size / CLUSTER_BYTES_PER_S
    walk = max(alone.floor, nodes * whole)
    ours = max(alone.value / nodes, whole)
    gain = walk / ours
    # (rest + walk) / (rest + ours) = published
    rest = (walk - GAIN_PUBLISHED * ours) / (GAIN_PUBLISHED - 1)
    note = (
        f"model, I/O alone: {RANKS_PUBLISHED:,} readers, {RANKS_A_NODE} a node; LMDBIO published "
        f"{GAIN_PUBLISHED}x for whole runs on other machines, as it would be here if all else took "
        f"{rest / (rest + walk):.1%} of the slow run"
    )
    return [Row(f"pass, {nodes} nodes / lmdb walk", ours, "s", walk, gain, note=note)]


def disk(run: Run) -> list[Row]:
    """Random order from the local disk, cold."""
    data = prepared(run.corpora, (LARGE[0], run.effort.large_count), run.effort.samples)
    with run.bench(OnDisk, "disk", data) as bench:
        best, run.record.raw["disk"]["sweep"] = bench.best(settings(run, data))
        ours = by_penstock(data, f"penstock x{best.processes}", best.processes)
        rows = [bench.row("disk / lmdb, best", ours, best, run.effort.pairs, 2)]
        few = run.effort.pairs_informative
        single = by_penstock(data, "penstock, 1 loader")
        rows.append(bench.row("disk / lmdb x1", single, by_lmdb(data, 1, readahead=False), few))
        loop = by_loop(data, 64)
        rows.append(bench.row("disk / bare C++ loop", single, loop, few))
    return rows


def ideas(run: Run) -> list[Row]:
    """Each of the six ideas against penstock without it: above 1, the idea gains."""
    data = prepared(run.corpora, (LARGE[0], run.effort.large_count), run.effort.samples)
    pairs = run.effort.pairs_informative
    one = by_penstock(data, "penstock, 1 loader")
    rows = []

    def row(bench: Bench, idea: str, way: Way, subject: Way = one) -> None:
        rows.append(bench.row(f"idea: {idea}", subject, way, pairs))

    with run.bench(OnStorage, "ideas", data, bytes_per_s=NODE_BYTES_PER_S) as bench:
        each = by_penstock(data, f"{CONSUMERS} loaders", CONSUMERS)
        row(bench, "one reader for the node", each)
        # A map takes 36 times as long: a quarter of the samples is enough.
        part = data.head(data.samples // 4)
        mapped = by_penstock(part, "mmap", mmap="required")
        row(bench, "explicit reads, not a map", mapped, by_penstock(part, one.label))
        row(bench, "known offsets, not a walk", by_penstock(data, "walk in each pass", walk=1))
        row(bench, "merging, random order", by_penstock(data, "no merging", gap=-1))
        row(bench, "planning ahead", by_penstock(data, "one step", readahead_bytes=1))
    with run.bench(OnStorage, "ideas, few slots", data, slots=16) as bench:
        deep = by_penstock(data, "8 loaders, 256 outstanding each", CONSUMERS, threads=256)
        shallow = by_penstock(data, "8 loaders, 4 outstanding each", CONSUMERS, threads=4)
        row(bench, "bounded depth", deep, shallow)
    inline = prepared(run.corpora, INLINE, INLINE[1], ordered=True)
    with run.bench(
        OnStorage, "ideas, file order", inline, bytes_per_s=CLUSTER_BYTES_PER_S
    ) as bench:
        merged = by_penstock(inline, "merging", order="none")
        row(bench, "merging, file order", by_penstock(inline, "none", order="none", gap=-1), merged)
    return rows


@dataclass(slots=True)
class Run:
    """The values that all parts share."""

    record: Record
    corpora: Corpora
    effort: Effort
    quick: bool

    @contextmanager
    def bench(
        self, kind: Callable[..., Bench], name: str, data: Data, **parameters: float | None
    ) -> Iterator[Bench]:
        """A bench whose processes end with it."""
        say(f"{name}: ...")
        raw = self.record.raw.setdefault(name, {})
        with ExitStack() as stack:
            yield kind(data, stack, raw, **parameters)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lmdb_study", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all if none")
    parser.add_argument("--quick", action="store_true", help="less data and few pairs")
    parser.add_argument("--data", default=str(ROOT / "bench-data"), help="folder of the corpora")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    parts = options.parts or list(PARTS)
    if unknown := {*parts} - {*PARTS}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    missing = emulation.usable()
    if missing:
        parser.exit(1, f"storage cannot be emulated here: {missing}\n")
    build_floors()
    name = "lmdb" + "-quick" * options.quick + "-partial" * (len(parts) < len(PARTS))
    record = Record(name, options.seed, {**vars(options), "parts": parts})
    corpora = Corpora(Path(options.data).resolve(), Sizes.quick(), options.seed)
    effort = Effort.quick() if options.quick else Effort.full()
    run = Run(record, corpora, effort, options.quick)
    record.configuration["overshoot_ns"] = emulation.overshoot_ns()
    for part, measure in zip(PARTS, (node, distributed, disk, ideas), strict=True):
        if part in parts:
            record.rows += measure(run)
            record.write()  # a run that is cut short keeps what it has
    finish(record)


if __name__ == "__main__":
    main()
