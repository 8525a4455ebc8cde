"""Tests of the harness itself, on contenders of a few lines."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.attempts import retried

from benchmarks import cluster, dlio_parity, emulation
from benchmarks.__main__ import build_floors
from benchmarks.baselines.serve import all_words, first_bytes, run_epoch
from benchmarks.contender import Candidate, Contender, ContenderError, Measurement
from benchmarks.corpus import Corpora, Sizes, make_cold, make_warm, resident_pages
from benchmarks.fleet import Fleet, Way
from benchmarks.pairing import (
    Pairs,
    bootstrap_interval,
    compare,
    count_turns,
    epochs_per_block,
)
from benchmarks.race import Effort, Truth, run_race
from benchmarks.record import Record, Row, reasons_for_doubt, table
from benchmarks.share.changes import steps_until_held
from benchmarks.share.host import Running
from benchmarks.share.mixes import neighbour
from benchmarks.share.predictions import LEAST, divisions
from benchmarks.share.work import TOKENS, Job
from benchmarks.suite import FLOORS, Race, Reference
from penstock.order.order import Order
from penstock.sharing.allocation import Resources
from penstock.sharing.job_state import Share

SERVE = """
import argparse, numpy as np, os, time
from benchmarks.baselines import serve
def make():
    rows = np.arange({count} * 16, dtype=np.uint8).reshape(-1, 16)
    def epochs():
        time.sleep({seconds})
        return [rows]
    return epochs
serve.arguments = argparse.Namespace
serve.serve(lambda options: (make(), {{}}))
"""


def contender(label: str, seconds: float = 0.01, count: int = 8) -> Candidate:
    """A contender whose epoch takes a given time."""
    code = SERVE.format(seconds=seconds, count=count)
    return Candidate(label, (sys.executable, "-c", code))


def race(subject: Candidate, *references: Reference) -> Race:
    """A race over nothing but this file."""
    return Race("race", lambda: Path(__file__), make_warm, lambda: subject, references)


def reference(*candidates: Candidate, target: float | None = 0.5) -> Reference:
    """A reference with the given candidates."""
    return Reference("floor", "floor", lambda: list(candidates), target)


def test_words_and_bytes_do_not_depend_on_the_order() -> None:
    """Sums of a shuffled epoch equal those of the epoch."""
    rows = np.random.default_rng(0).integers(0, 256, (64, 32), dtype=np.uint8)
    shuffled = rows[np.random.default_rng(1).permutation(64)]
    for touch in (first_bytes, all_words):
        parts = [shuffled[:10], shuffled[10:]]
        assert run_epoch([rows], touch) == run_epoch(parts, touch)


def test_the_interval_holds_the_median() -> None:
    """A bootstrap interval is ordered and contains the median of its values."""
    values = [1.0, 1.1, 0.9, 1.05, 0.95, 1.2]
    low, high = bootstrap_interval(values, 0)
    assert min(values) <= low <= np.median(values) <= high <= max(values)


def test_pairs_give_way_to_time_but_not_below_the_least() -> None:
    """Slow contenders get fewer pairs."""
    pairs = Pairs(12, 4, 60)
    assert [pairs.count(s) for s in (1.0, 10.0, 100.0)] == [12, 6, 4]


def test_turns_are_taken_until_all_ratios_are_settled() -> None:
    """Turns are as many as were asked for, and more while a ratio is noisy; a try has no more."""
    noisy: list[float] = []

    def turns(least: int, wide: int) -> int:
        noisy.clear()
        turns = count_turns(least, lambda: [[1.0] * len(noisy), noisy], row_s=1e9)
        noisy.extend(1.0 + (turn % 2 if turn < wide else 0.0) for turn in turns)
        return len(noisy)

    assert turns(5, 0) == 5
    assert 5 < turns(5, 6) < 60
    assert turns(4, 4) == 4


def test_noisy_ratios_end_with_the_time() -> None:
    """What does not settle, or takes long, ends with its time, but not before the fifth turn."""
    for least, turns in ((5, 5), (9, 5), (3, 3)):
        assert len(list(count_turns(least, lambda: [[1.0, 2.0]], row_s=0.0))) == turns


def test_a_block_is_long_enough() -> None:
    """Short epochs are repeated, long ones are not."""
    assert epochs_per_block(0.1) == 3
    assert epochs_per_block(5.0) == 1


@retried
def test_turns_are_paired_and_a_faster_contender_wins() -> None:
    """The ratio is that of the rates, and both have the same number of blocks."""
    with Contender(contender("fast", 0.05)) as fast, Contender(contender("slow", 0.1)) as slow:
        comparison = compare(fast, 0.05, slow, 0.1, Pairs(2, 2, 10))
    assert len(comparison.pairs) == 2
    assert 1.5 < comparison.ratio < 2.5


@pytest.mark.long
def test_the_fastest_candidate_is_paired_and_judged() -> None:
    """A race sweeps the reference, takes the best and compares the ratio with the target."""
    held = reference(contender("slow", 0.2), contender("fast", 0.05), target=0.1)
    result = run_race(race(contender("subject", 0.05), held), Effort.full(), frozenset(), 0)
    (row,) = result.rows
    assert row.note == "fast"
    assert row.met is True


def test_a_contender_has_the_environment_of_its_candidate() -> None:
    """Two builds of one program can be paired."""
    code = SERVE.format(seconds=0, count=8).replace("{}", "dict(os.environ)")
    candidate = Candidate("other", (sys.executable, "-c", code), {**os.environ, "BUILD": "other"})
    with Contender(candidate) as other, Contender(replace(candidate, environment=None)) as own:
        assert other.about["BUILD"] == "other"
        assert "BUILD" not in own.about


def test_other_data_has_no_result() -> None:
    """A contender that delivers other samples than the floor is a row with an error."""
    subject = contender("subject", count=9)
    result = run_race(race(subject, reference(contender("floor"))), Effort.quick(), frozenset(), 0)
    (row,) = result.rows
    assert row.met is False
    assert row.ratio is None
    assert "wrong data" in row.note


def test_a_contender_that_fails_stays_in_the_table() -> None:
    """Its last words are the note."""
    broken = Candidate("broken", (sys.executable, "-c", "import no_such_module"))
    result = run_race(race(contender("subject"), reference(broken)), Effort.quick(), frozenset(), 0)
    assert "no_such_module" in table(result.rows)
    assert result.rows[0].met is None


def test_a_failing_contender_is_an_error_with_its_message() -> None:
    """Errors travel in the protocol."""
    code = (
        "from benchmarks.baselines import serve; serve.arguments = int; serve.serve(lambda o: 1/0)"
    )
    with pytest.raises(ContenderError, match="ZeroDivisionError"):
        Contender(Candidate("failing", (sys.executable, "-c", code)))


def test_cpu_time_covers_children() -> None:
    """A contender's CPU time includes that of the processes it started."""
    code = SERVE.format(seconds=0, count=8).replace(
        "time.sleep(0)",
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'sum(range(5_000_000))'])",
    )
    with Contender(Candidate("parent", (sys.executable, "-c", code))) as running:
        running.verify()
        assert running.measure(1).cpu_seconds > 0.03


def test_truth_rejects_a_wrong_touch() -> None:
    """Every timed block must add up to whole epochs."""
    truth = Truth(samples=10, total=0)
    truth.check_touched(Measurement(10, 1.0, 1.0, 50))
    truth.check_touched(Measurement(30, 1.0, 1.0, 150))
    for wrong in (Measurement(15, 1.0, 1.0, 75), Measurement(20, 1.0, 1.0, 101)):
        with pytest.raises(ContenderError, match="wrong data"):
            truth.check_touched(wrong)


def test_a_corpus_is_made_once(tmp_path: Path) -> None:
    """The second call reuses the file; content follows the seed."""
    corpora = Corpora(tmp_path, replace(Sizes.quick(), records=10), seed=3)
    path = corpora.records(64)
    assert path.stat().st_size == 640
    stamp = path.stat().st_mtime_ns
    assert corpora.records(64).stat().st_mtime_ns == stamp
    other = Corpora(tmp_path, corpora.sizes, seed=4).records(64)
    assert other.read_bytes() != path.read_bytes()


def test_cold_and_warm_are_what_they_say() -> None:
    """Eviction empties the page cache of one file, reading fills it."""
    path = Path(__file__).with_name("cold-probe.tmp")  # beside the source: on a disk, not tmpfs
    path.write_bytes(os.urandom(1 << 20))
    try:
        make_cold(path)
        cold = resident_pages(path)
        if cold is None:
            pytest.skip("the kernel has no cachestat")
        make_warm(path)
        assert (cold, resident_pages(path)) == (0, 256)
    finally:
        path.unlink()


def test_a_record_says_what_it_doubts() -> None:
    """Load, stolen time and wide intervals make a record unstable."""
    row = Row("row", 1.0, "s", target=1.0, ratio=1.0, low=0.5, high=1.5)
    assert len(reasons_for_doubt([row], load=2.0, steal=0.5)) == 3
    assert reasons_for_doubt([replace(row, low=1.0, high=1.01)], load=0.0, steal=0.0) == []


def test_a_record_carries_what_a_reader_needs() -> None:
    """Machine, versions, commit, load, seed, rows."""
    record = Record("name", 1, {}, [Row("row", 1.0, "s", floor=2.0, target=1.0, met=True)])
    written = record.as_dict()
    assert {"machine", "versions", "commit", "tree", "load", "seed", "raw", "stable"} <= set(
        written
    )
    assert {"name", "value", "unit", "floor", "target", "met"} <= set(written["rows"][0])


@pytest.mark.long
def test_a_fleet_adds_up_its_processes(tmp_path: Path) -> None:
    """The samples and sums of all processes, from the first start to the last end."""
    extents = np.array([[8, 8], [0, 8], [24, 8]], np.int64)
    extents.tofile(tmp_path / "extents")
    np.arange(4, dtype=np.uint64).tofile(tmp_path / "data")
    build_floors()
    words = ("--extents", str(tmp_path / "extents"), "--depth", "2", "--direct", "0")
    asked: list[str] = []
    with Fleet(Way("floor", (str(FLOORS / "random_floor"), *words), 2)) as fleet:
        for _ in range(2):
            done = fleet.read([str(tmp_path / "data")], lambda: asked.append("opened"))
            assert (done.samples, done.total) == (6, 2 * (1 + 0 + 3))
            assert done.seconds > 0
        with pytest.raises(ContenderError, match="absent"):
            fleet.read([str(tmp_path / "absent")], lambda: None)
    assert asked == ["opened"] * 2


TELLING = """
import argparse, contextlib, numpy as np
from benchmarks.baselines import read_loop
def make(options):
    @contextlib.contextmanager
    def opened(path):
        told = options.gather(f"{options.rank} {path}")
        yield lambda: iter([np.full((len("".join(told)), 8), 0, np.uint8)])
    return opened
read_loop.serve(make, argparse.ArgumentParser())
"""


def test_processes_of_a_fleet_tell_each_other_while_they_open() -> None:
    """Everybody is told what all said."""
    with Fleet(Way("telling", (sys.executable, "-c", TELLING), 2)) as fleet:
        assert fleet.read(["a", "bc"], lambda: None).samples == 2 * len("0 a1 bc")


def test_nopfs_reads_what_its_ranks_touch_and_never_less_than_the_least() -> None:
    """With room for all, each rank reads once what it ever processes; with none, all in each epoch;
    in between more than caches that are filled together. With peers, with room for all, the data
    once."""
    count, ranks, epochs = 2000, 4, 3
    order = Order(count, seed=5)
    read = [
        cluster.nopfs_bytes(order, ranks, kept, epochs, 10, seed=0, from_peers=False)
        for kept in range(0, 2001, 50)
    ]
    assert read[0] == 10 * epochs * count
    touched = set()
    for epoch in range(epochs):
        dealt = order.at_epoch(epoch).samples(np.arange(count, dtype=np.uint64)).tolist()
        touched |= {(position % ranks, sample) for position, sample in enumerate(dealt)}
    assert read[-1] == 10 * len(touched)
    assert cluster.nopfs_bytes(order, ranks, 2000, epochs, 10, seed=0) == 10 * count
    for kept, value in zip(range(0, 2001, 50), read, strict=True):
        assert value >= cluster.least_bytes(10 * count, 10 * ranks * kept, epochs)


@pytest.mark.long
def test_an_emulated_cluster_reads_its_data_once(tmp_path: Path) -> None:
    """Two hosts of two ranks, several epochs: what storage served is the data, once."""
    if missing := emulation.usable():
        pytest.skip(missing)
    path = Corpora(tmp_path, replace(Sizes.quick(), records=512), seed=3).records(
        cluster.RECORD_BYTES
    )
    with cluster.emulated(path, seed=1) as bench:
        epochs = bench.run(cluster.Job(hosts=2, ranks=2), epochs=3)
        assert bench.sequential() > 0
    assert [each.storage_bytes for each in epochs] == [path.stat().st_size, 0, 0]
    for each in epochs:
        assert each.ram_bytes + each.peer_bytes == path.stat().st_size
        assert 0 < each.peer_bytes < each.ram_bytes


def test_shares_that_are_tried_are_all_there_is() -> None:
    """No more and no less, and in random divisions nobody has next to nothing."""
    host = Resources(cores=1.5, bytes_per_s=1e8)
    drawn = divisions(20, 4, host, seed=0)
    near = [neighbour(shares, host, 0.3, np.random.default_rng(1)) for shares in drawn]
    for shares in drawn + near:
        assert sum(share.workers for share in shares) == pytest.approx(host.cores)
        assert sum(share.bytes_per_s for share in shares) == pytest.approx(host.bytes_per_s)
    assert min(share.workers for shares in drawn for share in shares) >= LEAST * 1.5 / 4 * 0.999
    assert len({share.workers for shares in drawn + near for share in shares}) == 160


@pytest.mark.parametrize("late", [0, 1, 4])
def test_steps_until_a_share_holds(late: int) -> None:
    """Counted in steps of 0.1 s; what was taken before at three times the rate is seen."""
    steps_s = np.arange(0, 4, 0.1)
    times_s = np.arange(0, 4, 0.005)
    taken = np.cumsum(np.where(times_s < 1 + 0.1 * late, 3.0, 1.0) * 0.005)
    samples = np.column_stack([times_s, taken])[times_s >= 1]
    found, parts = steps_until_held(samples, 1.0, steps_s, 1.0)
    assert found == late
    assert parts[late:] == pytest.approx([1.0] * len(parts[late:]), abs=0.05)


@pytest.mark.long
def test_a_job_does_what_it_is_told(tmp_path: Path) -> None:
    """So many steps, then it has left; whatever shares it had, with the same samples."""
    path = tmp_path / "tokens.bin"
    path.write_bytes(np.random.default_rng(0).bytes(200 * 2 * TOKENS))
    digests = []
    for shares in ([], [Share(workers=0.5, bytes_per_s=1e6), Share(workers=1, bytes_per_s=5e6)]):
        job = Running(Job("language", "tokens", 8, 1), path, tmp_path / "no.sock")
        try:
            job.answer()
            job.tell(go=400)
            for share in shares:
                job.share(share)
                before = job.report()["samples"]
                while job.report()["samples"] == before:
                    pass
            while not job.done:
                time.sleep(0.01)
            trace = job.trace()
        finally:
            job.close()
        assert [samples for _, samples in trace["steps"]] == [8] * 400
        digests.append(trace["ids"])
    assert digests[0] == digests[1]


def test_parity_wants_a_dlio_that_starts(tmp_path):
    """And says how to get one."""
    broken = tmp_path / "dlio_benchmark"
    broken.write_text("#!/bin/sh\necho No module named hydra >&2\nexit 1\n")
    broken.chmod(0o755)
    for program, said in (("/nowhere/dlio", "there is no command"), (broken, "named hydra")):
        with pytest.raises(SystemExit, match=f"{said}.*pip install") as raised:
            dlio_parity.main(["--dlio", str(program)])
        assert str(program) in str(raised.value)


def test_parity_is_of_turns():
    """The difference is the median of those of each turn, not that of the medians."""
    case = dlio_parity.CASES[0]
    theirs = [dlio_parity.Result(said=90, au=au, rate=20) for au in (50, 70, 90)]
    ours = [dlio_parity.Result(said=91, au=au, rate=22) for au in (50.5, 72, 90)]
    row, _ = dlio_parity.rows_of(case, {"dlio": theirs, "torch": ours, "penstock": ours})
    assert (row.value, row.floor, row.met) == (72, 70, True)
    assert row.note.startswith("+0.50 points (+0.00..+2.00), as each says +1.00; ")
    assert row.note.endswith("x1.100")


def test_a_save_stays_a_short_walk() -> None:
    """A save of one rank to a folder goes through at most 40 functions until it is committed.

    It runs in another process: here, objects that other tests left would be freed during the walk.
    """
    command = [sys.executable, "-m", "benchmarks.walk", "save"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    own = [line for line in lines if line.startswith("checkpoint/")]
    assert own[0].endswith("Checkpoints.save")
    assert "checkpoint/repository.py Folder.commit" in own
    assert len(own) <= 40
    assert len({name.partition(" ")[0] for name in own}) <= 12
