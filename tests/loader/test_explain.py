"""The bounds of a run: exact arithmetic, promises, and real loaders that are bound on purpose."""

from __future__ import annotations

import dataclasses
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.budget import Budget
from penstock.engine.native import NativeEngine
from penstock.engine.protocol import ReadMethod
from penstock.extent import Files
from penstock.loader import epoch
from penstock.loader import loader as loaders
from penstock.loader import sources as engine_source
from penstock.loader.epoch import record_epoch
from penstock.loader.explain import (
    PARTS,
    READY,
    DecodeGain,
    Explanation,
    Setup,
    divide_time,
    explain_run,
    hold_images,
)
from penstock.loader.workers import TimedFetch
from penstock.meter import STALL_BUCKETS, Counters, Meter, Span, divide_wait
from tests.attempts import retried
from tests.engine.wrappers import Throttled

RECORD = 4096
SECOND = 1_000_000_000


def counted(**changes: Any) -> Counters:
    """A hundred steps of a second: 0.5 s of compute, 0.25 of bytes, 0.15 of decode, 0.1 of rest."""
    found = Counters(
        time_ns=110 * SECOND,
        epochs=1,
        batches=101,
        samples=1010,
        compute_ns=50 * SECOND,
        stall_ns=56 * SECOND,
        first_stall_ns=8 * SECOND,
        bytes_ns=25 * SECOND,
        decode_ns=15 * SECOND,
        own_ns=2 * SECOND,
        engine={"bytes": 4_000_000, "runs": 1000, "busy_ns": 80 * SECOND, "work_ns": 90 * SECOND},
    )
    return dataclasses.replace(found, **changes)


# -- arithmetic --------------------------------------------------------------------------------


def test_shares_are_parts_of_the_time_in_steps() -> None:
    """Waiting for first batches is no part of it; time that is neither bytes nor decode is copying,
    and so is the loader's time for itself."""
    found = explain_run(counted(), Setup())
    assert found.shares == {
        "compute": 0.5,
        "storage": 0.25,
        "decode": 0.15,
        "network": 0.0,
        "copy": pytest.approx(0.1),
    }
    assert found.samples_per_s == 10.1
    assert [(each.against, round(each.factor, 4)) for each in found.remedies] == [
        ("storage", 1.3333),
        ("decode", 1.1765),
        ("copy", 1.1111),
    ]


def test_bytes_of_peers_are_the_network() -> None:
    """Waiting for bytes is divided by where they came from."""
    engine = {"bytes": 1000, "peer_bytes": 6000, "ram_bytes": 2000, "disk_bytes": 1000}
    shares = divide_time(counted(engine=engine), Setup())
    assert shares["network"] == pytest.approx(0.15)
    assert shares["storage"] == pytest.approx(0.05)
    assert shares["copy"] == pytest.approx(0.1 + 0.05)
    assert explain_run(counted(engine=engine | {"peer_bytes": 10**6}), Setup()).bound == "network"


def test_data_in_the_page_cache_is_copied() -> None:
    """Unless a rate was set and used up: then it is that."""
    cached = Setup(cached=True)
    assert divide_time(counted(), cached)["storage"] == 0.0
    assert explain_run(counted(), cached).bound == "copy"
    rate = 4_000_000 / 80
    paced = dataclasses.replace(cached, bytes_per_s_max=1.1 * rate)
    assert explain_run(counted(), paced).bound == "bandwidth"
    assert "Budget.bytes_per_s" in explain_run(counted(), paced).remedies[0].how
    idle = dataclasses.replace(cached, bytes_per_s_max=10 * rate)
    assert explain_run(counted(), idle).bound == "copy"


@pytest.mark.parametrize(
    ("engine", "setup", "bound"),
    [
        ({"bytes": 4_000, "runs": 1}, {}, "iops"),
        ({"bytes": 40_000, "runs": 1}, {}, "bandwidth"),
        ({"bytes": 40_000, "runs": 1}, {"gap_bytes": 50_000}, "iops"),
        # What was measured of the storage decides: 10 us a read, and 40 us for its bytes.
        ({"bytes": 4_000, "runs": 1}, {"reads_per_s": 1e5, "bytes_per_s": 1e8}, "bandwidth"),
        ({"bytes": 4_000, "runs": 1}, {"reads_per_s": 1e4, "bytes_per_s": 1e8}, "iops"),
        ({"bytes": 9, "runs": 1, "open_ns": 34, "work_ns": 100}, {}, "metadata"),
        ({"bytes": 9, "runs": 1, "open_ns": 33, "work_ns": 100}, {}, "iops"),
        ({}, {}, "storage"),
    ],
)
def test_what_of_storage_binds(engine: dict[str, int], setup: Any, bound: str) -> None:
    """Told by what its reads were made of."""
    assert explain_run(counted(engine=engine), Setup(**setup)).bound == bound


def test_without_reading_ahead_the_longer_turn_binds() -> None:
    """Half of the time computing is longer than a quarter waiting, and the two could overlap."""
    turns = explain_run(counted(), Setup(ahead=False))
    assert turns.bound == "compute"
    assert turns.remedies[0].how.startswith("a faster step")
    waits = explain_run(counted(compute_ns=10 * SECOND), Setup(ahead=False))
    assert waits.bound in ("iops", "bandwidth")
    assert ("turns", 1 / (50 / 60)) in [(each.against, each.factor) for each in waits.remedies]


def test_a_loader_that_keeps_up() -> None:
    """Then compute binds, and a faster step gives what loading allows: here two threads that decode
    for 20 of 100 seconds could give ten times as many."""
    keeps_up = counted(
        compute_ns=96 * SECOND,
        stall_ns=10 * SECOND,
        bytes_ns=SECOND,
        decode_ns=0,
        own_ns=2 * SECOND,
    )
    found = explain_run(keeps_up, Setup())
    assert (found.bound, found.shares["compute"]) == ("compute", 0.96)
    assert found.remedies[0].factor == pytest.approx(25)
    busy = dataclasses.replace(keeps_up, decode_busy_ns=20 * SECOND)
    (remedy,) = explain_run(busy, Setup(decode_threads=2)).remedies
    assert remedy.factor == pytest.approx(10)


def test_how_sure() -> None:
    """Few steps and close calls are said."""
    assert explain_run(counted(decode_ns=20 * SECOND), Setup()).certainty.startswith("a close call")
    assert explain_run(counted(decode_ns=0, bytes_ns=40 * SECOND), Setup()).certainty == "clear"
    few = explain_run(counted(batches=5), Setup())
    assert few.certainty.startswith("hardly: 5 steps")
    nothing = explain_run(Counters(), Setup())
    assert nothing.bound == "unknown"
    assert nothing.remedies == ()
    assert "nothing to explain" in str(nothing)


def test_it_can_be_read() -> None:
    """The text has the verdict, the shares, what helps, and what it follows from."""
    text = str(explain_run(counted(), Setup()))
    assert text.splitlines()[0].startswith("Bound by reads per second of storage (IOPS): 50%")
    assert "compute 50.0%, storage 25.0%, decode 15.0%, network 0.0%, copy 10.0%" in text
    assert "at most 1.33x: larger reads" in text
    assert "1,000 reads of 4,000 bytes" in text


@given(st.integers(1, 50), st.integers(1, 50), st.integers(1, 500))
def test_the_text_ends_with_the_one_change_that_helps_most(
    decode_s: int, waiting_s: int, compute_s: int
) -> None:
    """Whatever bounds a run; the other changes stand before it."""
    times = {"decode_ns": decode_s, "bytes_ns": waiting_s, "compute_ns": compute_s}
    found = explain_run(
        counted(**{name: seconds * SECOND for name, seconds in times.items()}), Setup()
    )
    best = max(found.remedies, key=lambda remedy: remedy.factor)
    told = [line for line in str(found).splitlines() if line.startswith(("also", "change"))]
    assert len(told) == len(found.remedies)
    assert str(found).splitlines()[-1] == told[-1]
    assert told[-1].startswith("change    ")
    assert told[-1].endswith(best.how)


# -- promises ----------------------------------------------------------------------------------

amounts = st.integers(0, 10**15)


@st.composite
def counts(draw: st.DrawFn) -> Counters:
    waits = {name: draw(amounts) for name in ("bytes_ns", "decode_ns", "first_stall_ns")}
    names = ("bytes", "runs", "peer_bytes", "ram_bytes", "disk_bytes", "open_ns", "work_ns")
    return Counters(
        **waits,
        stall_ns=sum(waits.values()) + draw(amounts),
        compute_ns=draw(amounts),
        own_ns=draw(amounts),
        batches=draw(st.integers(0, 1000)),
        samples=draw(st.integers(0, 10**6)),
        time_ns=draw(amounts),
        engine={name: draw(amounts) for name in names if draw(st.booleans())},
    )


setups = st.builds(
    Setup,
    cached=st.booleans(),
    ahead=st.booleans(),
    decode_threads=st.integers(0, 8),
    bytes_per_s_max=st.none() | st.floats(1, 1e12),
)
of_storage = {"bandwidth", "iops", "metadata", "storage"}


def part_of(bound: str) -> str:
    return "storage" if bound in of_storage else bound


@given(counts(), setups)
def test_shares_sum_to_one_and_the_verdict_is_the_largest(counted: Counters, setup: Setup) -> None:
    """Shares are of all the time if loading and computing take turns, and of waiting if it is more
    than jitter. No remedy promises less than nothing, or more than its share."""
    found = explain_run(counted, setup)
    assert sum(found.shares.values()) == pytest.approx(1)
    assert min(found.shares.values()) >= 0
    assert str(found)
    if found.bound == "unknown":
        assert counted.batches < 2 or counted.steps_ns == 0
        return
    waiting = {part: found.shares[part] for part in PARTS if part != "compute"}
    bound = part_of(found.bound)
    if setup.ahead:
        assert (bound == "compute") == (found.shares["compute"] >= 1 - READY)
    else:
        assert found.shares[bound] == max(found.shares.values())
    if bound != "compute":
        assert found.shares[bound] == max(waiting.values())
        for each in found.remedies:
            if each.against in waiting:
                assert each.factor == pytest.approx(1 / max(1 - waiting[each.against], 1e-3))
    assert all(each.factor >= 1 for each in found.remedies)


@given(counts(), setups, amounts)
def test_more_of_what_binds_still_binds(counted: Counters, setup: Setup, more: int) -> None:
    """More waiting for what binds, or a longer step where compute binds, does not change the
    verdict, and its share does not shrink."""
    found = explain_run(counted, setup)
    bound = part_of(found.bound)
    names = {"compute": "compute_ns", "decode": "decode_ns", "copy": "own_ns"}
    if bound == "unknown":
        return
    name = names.get(bound, "bytes_ns")
    changes = {name: getattr(counted, name) + more}
    if name in ("bytes_ns", "decode_ns"):
        changes["stall_ns"] = counted.stall_ns + more
    then = explain_run(dataclasses.replace(counted, **changes), setup)
    assert part_of(then.bound) == bound
    assert then.shares[bound] >= found.shares[bound] - 1e-9  # type: ignore[index]


@given(st.lists(st.tuples(*[st.integers(0, 10**9)] * 5), max_size=30), st.integers(0, 30))
def test_a_meter_adds_up(steps: list[tuple[int, int, int, int, int]], cut: int) -> None:
    """Against sums over a list of (stall, bytes, decode, own, compute): totals, windows, and the
    histogram."""
    meter, now_ns = Meter(), 1
    meter.count_epoch(now_ns)
    middle = meter.counters(now_ns, {})
    for number, (rest, of_bytes, of_decode, own, compute) in enumerate(steps):
        if number == cut:
            middle = meter.counters(now_ns, {"runs": number})
        asked_ns = now_ns
        meter.count_request(asked_ns)
        ready_ns = asked_ns + rest + of_bytes + of_decode
        meter.count_batch(asked_ns, ready_ns, ready_ns + own, 3, of_bytes, of_decode)
        now_ns = ready_ns + own + compute
    meter.count_request(now_ns)
    found = meter.counters(now_ns, {"runs": len(steps)})
    assert (found.batches, found.samples) == (len(steps), 3 * len(steps))
    stalls = [sum(step[:3]) for step in steps]
    assert found.stall_ns == sum(stalls)
    assert found.first_stall_ns == sum(stalls[:1])
    assert found.bytes_ns == sum(step[1] for step in steps[1:])
    assert found.rest_ns == sum(step[0] for step in steps[1:])
    assert found.compute_ns == sum(step[4] for step in steps)
    assert found.first_batch_ns == sum(map(sum, [step[:4] for step in steps[:1]]))
    firsts = sum(map(sum, [step[:4] for step in steps[:1]]))
    assert found.steps_ns + firsts == now_ns - 1 == sum(map(sum, steps))
    assert len(found.stalls) == STALL_BUCKETS
    for fraction in (0.5, 0.99, 1.0):
        if stalls:
            exact = sorted(stalls)[-(-int(fraction * len(stalls) * 100) // 100) - 1]
            assert exact < found.stall_quantile_ns(fraction) <= max(1, 2 * exact)
    window = found.since(middle)
    assert sum(window.stalls) == window.batches == len(steps) - (cut if cut < len(steps) else 0)
    assert window.time_ns == now_ns - middle.time_ns
    for name in ("stall_ns", "bytes_ns", "compute_ns", "own_ns"):
        assert getattr(window, name) + getattr(middle, name) == getattr(found, name)


def test_an_engine_that_was_made_anew_counts_whole() -> None:
    first = Counters(engine={"bytes": 100, "runs": 5})
    assert Counters(engine={"bytes": 130, "runs": 9}).since(first).engine == {
        "bytes": 30,
        "runs": 4,
    }
    assert Counters(engine={"bytes": 20, "runs": 9}).since(first).engine == {"bytes": 20, "runs": 9}


@given(*[st.integers(0, 1000)] * 5)
def test_waiting_for_a_job(since: int, length: int, opening: int, reading: int, work: int) -> None:
    """Against counting each nanosecond of the wait by what the threads were at."""
    arrived, until = opening + reading, since + length
    spans = [Span(1, arrived, arrived + work // 2, 0), Span(2, arrived, arrived + work, 0)]
    found = divide_wait(since, until, opening, arrived, spans)
    moments = range(since, until)
    assert found[0] == sum(opening <= moment < arrived for moment in moments)
    assert found[1] == sum(
        moment < opening or arrived <= moment < arrived + work for moment in moments
    )
    assert divide_wait(since, until, opening, arrived, []) == (0, 0)


# -- real loaders ------------------------------------------------------------------------------


@pytest.fixture
def records(tmp_path: Path) -> penstock.Dataset:
    """1024 records of 4 KiB, which are in the page cache."""
    np.random.default_rng(0).integers(0, 256, 1024 * RECORD, np.uint8).tofile(tmp_path / "r.bin")
    return penstock.open(tmp_path / "r.bin", record_bytes=RECORD, index="memory")


class Far(Throttled):
    """Storage far away: real files that answer late, and are not in the page cache."""

    inner: NativeEngine

    @property
    def choice(self) -> ReadMethod:
        return dataclasses.replace(self.inner.choice, cached=False)

    def adopt(self, budget: Budget) -> None:
        self.inner.adopt(budget)

    def survey(self) -> None:
        self.inner.survey()

    def counters(self) -> dict[str, int]:
        return self.inner.counters()


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Have loaders read from storage that is so slow."""

    def slow(bytes_per_s: float, latency_ns: int = 0, **options: Any) -> None:
        def engine_for(files: Files, budget: Budget, mean_bytes: float) -> Far:
            inner = NativeEngine(files, budget=budget, mean_bytes=mean_bytes, **options)
            found = Far(inner, bytes_per_s, latency_ns)
            found.inner = inner
            return found

        monkeypatch.setattr(loaders, "open_engine", engine_for)

    return slow


def walked(loader: Any, steps: int, step_s: float = 0.0) -> Explanation:
    """The explanation of a loader's first steps."""
    with loader if isinstance(loader, penstock.Loader) else loader_closing(loader):
        for number, _ in enumerate(loader, 1):
            if number == steps:
                break
            time.sleep(step_s)
        found = loader.explain()
    assert found.counters.batches == steps
    assert sum(found.shares.values()) == pytest.approx(1)
    return found


class loader_closing:
    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __enter__(self) -> None: ...

    def __exit__(self, *exception: object) -> None:
        self.loader.close()


@retried
def test_bound_by_the_budget(records: penstock.Dataset) -> None:
    """1 MB/s, and 64 KiB a step."""
    loader = penstock.Loader(records, 16, budget=Budget(bytes_per_s=1e6))
    found = walked(loader, 8)
    assert (found.bound, found.shares["storage"] > 0.8) == ("bandwidth", True)
    assert found.counters.engine["bytes"] >= 8 * 16 * RECORD
    assert "Budget.bytes_per_s" in found.remedies[0].how


@pytest.mark.parametrize("leased", [False, True])
def test_bound_by_granted_cores(leased: bool) -> None:
    """If decoding takes all the cores that it may, more of these is what helps."""
    busy = Counters(
        batches=100,
        samples=100,
        decode_ns=int(9e9),
        stall_ns=int(9e9),
        compute_ns=int(1e9),
        decode_cpu_ns=int(5e9),
        decode_busy_ns=int(9e9),
    )
    setup = Setup(backend="pread", decode_threads=2, cores=2, cores_max=0.5, leased=leased)
    found = explain_run(busy, setup)
    assert found.bound == "decode"
    assert ("a lease of cores" if leased else "a Budget.cores") in found.remedies[0].how
    plenty = explain_run(busy, dataclasses.replace(setup, cores_max=2.0))
    assert "above" not in plenty.remedies[0].how


@retried
def test_bound_by_bandwidth(tmp_path: Path, far: Callable[..., None]) -> None:
    """Records of 64 KiB, from storage of 1 MB/s."""
    (tmp_path / "large.bin").write_bytes(bytes(32 * 65536))
    far(bytes_per_s=1e6)
    dataset = penstock.open(tmp_path / "large.bin", record_bytes=65536, index="memory")
    found = walked(penstock.Loader(dataset, 1), 8)
    assert (found.bound, found.shares["storage"] > 0.8) == ("bandwidth", True)


@retried
def test_bound_by_iops(records: penstock.Dataset, far: Callable[..., None]) -> None:
    """Single records at random, from storage that gives 1,000 of them a second."""
    far(bytes_per_s=1000 * RECORD)
    found = walked(penstock.Loader(records, 16), 30)
    assert (found.bound, found.shares["storage"] > 0.5) == ("iops", True)
    assert "larger reads" in found.remedies[0].how


@retried
def test_bound_by_metadata(tmp_path: Path, far: Callable[..., None]) -> None:
    """A file for each sample of a few bytes, opened for each read."""
    for number in range(1000):
        (tmp_path / f"{number:04}.txt").write_bytes(b"x" * 8)
    far(bytes_per_s=200_000, keep_open_max=0)
    with penstock.Loader(penstock.open(tmp_path, index="memory"), 100) as loader:
        for _ in range(15):  # what keeps a thread from running hits opening and reading alike
            list(loader)
        found = loader.explain()
    assert (found.bound, found.shares["storage"] > 0.5) == ("metadata", True)
    assert found.counters.engine["opens"] == 15_000
    assert "packed" in found.remedies[0].how


@retried
def test_bound_by_decode(records: penstock.Dataset) -> None:
    """Each sample takes a thread 3 ms."""

    def decode(sample: dict[str, Any]) -> int:
        threading.Event().wait(0.003)
        return len(sample["data"])

    found = walked(penstock.Loader(records, 16, decode=decode, decode_threads=2), 12)
    assert (found.bound, found.shares["decode"] > 0.7) == ("decode", True)
    assert found.counters.decode_busy_ns >= 12 * 16 * 3_000_000
    assert found.remedies[0].against == "decode"


class SteppedClock:
    """The module `time` with a clock that goes on by 0.1 ms a look, and by the user's steps."""

    def __init__(self) -> None:
        self.now_ns = 0

    def perf_counter_ns(self) -> int:
        self.now_ns += 100_000
        return self.now_ns

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def test_bound_by_compute(records: penstock.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of 60 ms, beside which loading takes the time of a few looks at the clock."""
    clock = SteppedClock()
    for module in (loaders, epoch, engine_source):
        monkeypatch.setattr(module, "time", clock)
    loader = penstock.Loader(records, 16)
    batches = iter(loader)
    for _ in range(10):
        next(batches)
        clock.now_ns += 60_000_000
    explanation = loader.explain()
    loader.close()
    assert (explanation.bound, explanation.shares["compute"] >= 1 - READY) == ("compute", True)
    assert explanation.counters.compute_ns >= 9 * 60_000_000


@retried
def test_since_an_earlier_explanation(records: penstock.Dataset) -> None:
    """A run that changes: first the budget bounds it, then the step."""
    loader = penstock.Loader(records, 16, budget=Budget(bytes_per_s=1e6))
    walk = iter(loader)
    for _ in range(5):
        next(walk)
    first = loader.explain()
    loader.budget = Budget()
    next(walk)
    second = loader.explain()
    for _ in range(8):
        time.sleep(0.06)
        next(walk)
    last = loader.explain(since=second)
    loader.close()
    assert [first.bound, last.bound] == ["bandwidth", "compute"]
    assert (first.counters.batches, last.counters.batches) == (5, 8)
    assert last.until.batches == 14


def test_totals_outlive_engines(records: penstock.Dataset) -> None:
    """Counters never go back when a loader is closed and iterated again; each epoch that was walked
    whole, and alone, is recorded."""
    loader = penstock.Loader(records, 128)
    totals = []
    for _ in range(3):
        list(loader)
        totals.append(loader.counters())
        loader.close()
    assert [each.engine["bytes"] for each in totals] == [k * 1024 * RECORD for k in (1, 2, 3)]
    assert [each.batches for each in totals] == [8, 16, 24]
    assert totals[-1].epochs == 3
    assert loader.stats()["batches"] == 24
    record = record_epoch(0, totals[1].since(totals[0]))
    assert (record["steps"], record["storage_bytes"]) == (8, 1024 * RECORD)


def test_a_failed_batch_is_counted(records: penstock.Dataset) -> None:
    """A failed batch is no batch, and the time of the step before it is counted once."""

    def decode(sample: dict[str, Any]) -> int:
        if sample["__id__"] == 20:
            raise ValueError("no")
        return 1

    loader = penstock.Loader(records, 16, shuffle="none", decode=decode, decode_threads=1)
    walk = iter(loader)
    next(walk)
    with pytest.raises(ValueError, match="no"):
        next(walk)
    next(walk)
    found = loader.counters()
    loader.close()
    assert (found.batches, found.samples, found.failed) == (2, 32, 1)
    assert found.compute_ns + found.stall_ns < found.time_ns


# -- workers that load whole batches -----------------------------------------------------------


class Items:
    """64 samples that wait, or work, for so long each."""

    def __init__(self, wait_s: float = 0.0, work_s: float = 0.0) -> None:
        self.wait_s, self.work_s = wait_s, work_s

    def __len__(self) -> int:
        return 64

    def __getitem__(self, number: int) -> int:
        time.sleep(self.wait_s)
        until_s = time.thread_time() + self.work_s
        while time.thread_time() < until_s:
            pass
        return number


@pytest.mark.parametrize("workers", ["threads", "processes"])
@retried
def test_bound_by_storage_in_workers(workers: Any) -> None:
    """The waiting of a dataset is taken for storage."""
    from penstock.torch.loader import DataLoader

    found = walked(DataLoader(Items(wait_s=0.05), 2, num_workers=1, workers=workers), 8)
    assert found.shares["storage"] > 0.5
    assert found.bound in of_storage
    assert found.counters.samples == 16
    assert ("runs" in found.counters.engine) is (workers == "processes")


@retried
def test_bound_by_decode_in_workers() -> None:
    """Work on a processor is decode, also where others keep it from running."""
    from penstock.torch.loader import DataLoader

    found = walked(DataLoader(Items(work_s=0.01), 4, num_workers=1), 10)
    assert (found.bound, found.shares["decode"] > 0.7) == ("decode", True)
    assert found.counters.decode_busy_ns >= 10 * 4 * 10_000_000


@retried
def test_taking_turns() -> None:
    """Without workers the longer turn binds: a step of 30 ms, and not the 8 ms of loading."""
    from penstock.torch.loader import DataLoader

    found = walked(DataLoader(Items(wait_s=0.002), 4), 8, 0.03)
    assert found.bound == "compute"
    assert not found.setup.ahead


def test_the_threads_face_is_the_loader(records: penstock.Dataset) -> None:
    from penstock.torch.loader import DataLoader

    found = walked(DataLoader(records, 16, decode=lambda s: len(s["data"])), 4)
    assert found.counters.samples == 64
    assert found.counters.engine["bytes"] >= 64 * RECORD
    assert found.setup.backend == "mmap"


def test_a_fetch_is_timed() -> None:
    """Time beside processors is not time on them, and a fetch that raises leaves nothing."""
    timed = TimedFetch(lambda wait_s: time.sleep(wait_s) if wait_s else 1 // 0)
    timed(0.05)
    assert timed.spent.busy_ns >= 50_000_000
    with pytest.raises(ZeroDivisionError):
        timed(0)
    assert timed.spent.busy_ns == 0


# -- changes that were measured --------------------------------------------------------------------


def decoding(**changes: Any) -> Counters:
    """A hundred steps of a second, in which two threads decode; half of it is waited for."""
    return counted(
        compute_ns=50 * SECOND,
        bytes_ns=0,
        decode_ns=50 * SECOND,
        own_ns=0,
        stall_ns=58 * SECOND,
        decode_busy_ns=200 * SECOND,
        decode_cpu_ns=200 * SECOND,
        **changes,
    )


def test_measured_gains_shrink_what_threads_decode_for() -> None:
    """A step takes what its threads decode for, and at least what it takes without waiting."""
    gains = [DecodeGain(1.25, "an index"), DecodeGain(4.0, "smaller copies")]
    setup = Setup(decode_threads=2, cores=2)
    found = explain_run(decoding(), setup, None, lambda: gains)
    factors = {each.how: each.factor for each in found.remedies if each.against == "decode"}
    assert factors["an index"] == pytest.approx(1.25)
    assert factors["smaller copies"] == pytest.approx(2)  # the other half of a step is compute
    assert factors["twice as many processors: 2 threads decode now"] == pytest.approx(2)
    few = explain_run(decoding(), Setup(decode_threads=2, cores=3), None, lambda: gains)
    (more,) = (each for each in few.remedies if each.how.startswith("more than 2"))
    assert more.factor == pytest.approx(1.5)
    turns = explain_run(
        decoding(), Setup(decode_threads=2, cores=2, ahead=False), None, lambda: gains
    )
    assert all(each.how != "an index" for each in turns.remedies) == (turns.bound != "decode")


def test_nothing_is_measured_unless_decoding_binds() -> None:
    """Images are decoded for an explanation only if it is of decoding."""

    def measure() -> list[DecodeGain]:
        raise AssertionError("measured")

    for run in (counted(), counted(batches=0), counted(decode_ns=0)):
        assert explain_run(run, Setup(), None, measure).bound != "decode"
    with pytest.raises(AssertionError, match="measured"):
        explain_run(decoding(), Setup(decode_threads=2, cores=2), None, measure)


@pytest.mark.parametrize(
    ("name", "field", "is_image"),
    [("cat/0.JPG", "data", True), ("0.bin", "data", False), ("0.tar", "jpeg", True)],
)
def test_a_decode_of_images_is_compared_with_ours(
    tmp_path: Path, name: str, field: str, is_image: bool
) -> None:
    """Where samples have names of images, our transforms are a remedy; where they have not, not."""
    path = tmp_path / "data" / name
    path.parent.mkdir(parents=True)
    if name.endswith(".tar"):
        with tarfile.open(path, "w") as archive:
            archive.addfile(tarfile.TarInfo(f"first.{field}"))
    else:
        path.write_bytes(b"x")
    dataset = penstock.open(tmp_path / "data", index="memory")
    assert hold_images(dataset.index) == is_image
    with penstock.Loader(dataset, 1, decode=lambda sample: 0) as loader:
        assert loader.explain().setup.images == is_image
    found = explain_run(decoding(), Setup(decode_threads=2, cores=2, images=is_image))
    assert ("penstock.images" in str(found)) == is_image
