"""Replays: exactly the operations that were recorded, in order, at their times; by penstock too."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.budget import Budget
from penstock.cli import app
from penstock.engine import page_cache
from penstock.errors import FormatError, LimitError, MissingError, UsageError
from penstock_bench.traces import logs as trace_logs
from penstock_bench.traces import replay as replays
from penstock_bench.traces import replay_engine
from penstock_bench.traces import (
    strace as trace_strace,
)
from penstock_bench.traces import trace_file as traces
from penstock_bench.traces.trace_file import (
    CLOSE,
    MAP,
    OPEN,
    READ,
    STAT,
    Operations,
    Trace,
    TraceWriter,
    load,
)
from tests import warm

SOURCE = str(Path(penstock.__file__).parents[1])
SIZE = 50_000


def files_in(folder: Path, count: int = 3) -> list[str]:
    """Files of SIZE random bytes."""
    folder.mkdir(exist_ok=True)
    paths = [str(folder / f"{number}.bin") for number in range(count)]
    for path in paths:
        Path(path).write_bytes(os.urandom(SIZE))
    return paths


def job(path: Path, files: list[str], seed: int = 1, threads: int = 3, reads: int = 40) -> Trace:
    """Threads at the same time, each of which opens, stats, reads at random and closes; one asks
    for what is not there, and reads beyond an end."""
    draw = np.random.default_rng(seed)
    absent = str(Path(files[0]).parent / "absent")
    with TraceWriter(str(path), "a job") as writer:
        for number in range(threads):
            thread = writer.thread(9, number)
            now = [10**18 + number]

            def add(kind: int, name: str, *row: int, thread: int = thread, now=now) -> None:
                offset, length, result = row or (0, 0, 0)
                file = writer.file(name, SIZE)
                writer.add(thread, kind, file, offset, length, result, now[0], 900)
                now[0] += 1000

            add(OPEN, absent, 0, 0, -2)
            for name in files:
                add(STAT, name)
                add(OPEN, name)
            for _ in range(reads):
                name = files[int(draw.integers(len(files)))]
                offset, length = int(draw.integers(SIZE + 100)), int(draw.integers(9000))
                add(READ, name, offset, length, max(0, min(length, SIZE - offset)))
            for name in files:
                add(CLOSE, name)
    return load(str(path))


def names_of(trace: Trace) -> list[str]:
    """Paths as recorded."""
    return [trace.names[number] for number in range(len(trace.names))]


def done_by(trace: Trace) -> list[tuple[object, ...]]:
    """The actions of each thread, in order, whoever it was."""
    return sorted(
        tuple(
            (kind, trace.names[file], *rest)
            for rows in trace.of_thread(number)
            for kind, file, *rest in zip(*(column.tolist() for column in rows[:5]), strict=True)
        )
        for number in range(len(trace.threads))
    )


REPLAY = """
import sys
from penstock_bench.traces import trace_file
from penstock_bench.traces import replay
found = trace_file.load(sys.argv[1])
names = [found.names[i] for i in range(len(found.names))]
replay.replay(found, names, speed=None)
"""


def test_a_replay_does_exactly_what_was_recorded(tmp_path):
    """Seen by strace: each thread the same opens, stats, reads and closes in the same order."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed: apt-get install strace")
    trace = job(tmp_path / "job.trace", files_in(tmp_path / "data"))
    log = tmp_path / "replay.log"
    command = [strace, "-o", str(log), *trace_strace.FLAGS, sys.executable, "-c", REPLAY]
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    ran = subprocess.run([*command, str(tmp_path / "job.trace")], env=environment)
    if ran.returncode != 0 and not log.exists():
        pytest.skip("strace may not trace here")
    assert ran.returncode == 0
    keep = trace_logs.filter_below([str(tmp_path / "data")])
    seen = trace_logs.import_logs([str(log)], str(tmp_path / "seen.trace"), keep)

    # What one thread closes another may be reading: the last to let go of it closes it.
    def of(found: Trace, closes: bool) -> list[list[object]]:
        return sorted(
            [row for row in rows if (row[0] == CLOSE) == closes] for rows in done_by(found)
        )

    assert of(seen, closes=False) == of(trace, closes=False)
    lines = [line for line in log.read_text().splitlines() if " close(" in line]
    for path in names_of(trace):
        closed = sum(f"<{path}>" in line for line in lines)
        assert closed == (0 if path.endswith("absent") else 3)


def test_a_replay_comes_out_as_the_job(tmp_path):
    """Bytes, counts of each kind, nothing failed; with pauses, and without."""
    trace = job(tmp_path / "job.trace", files_in(tmp_path / "data"))
    recorded = replays.collect_recorded(trace)
    for speed in (None, 1.0, 3.5):
        here = replays.replay(trace, names_of(trace), speed=speed)
        assert here.bytes == recorded.bytes
        assert here.threads == recorded.threads == 3
        assert (here.failed, here.short, here.differed) == (0, 0, 0)
        for kind, took in here.took.items():
            assert took.count == recorded.took[kind].count
        assert (here.late is None) == (speed is None)


def paused(path: Path, files: list[str], threads: int, pause_ns: int, reads: int = 5) -> Trace:
    """Threads that follow each other, with pauses before all reads but the very first."""
    now = 10**18
    with TraceWriter(str(path), "paused") as writer:
        file = writer.file(files[0], SIZE)
        for number in range(threads):
            thread = writer.thread(9, number)
            for _ in range(reads):
                writer.add(thread, READ, file, 0, 10, 10, now, 1000)
                now += 1000 + pause_ns
    return load(str(path))


def test_pauses_are_kept_divided_or_dropped(tmp_path):
    """The whole takes at least what the job did between its reads, on the clock outside as well."""
    trace = paused(tmp_path / "job.trace", files_in(tmp_path / "data"), 2, 10_000_000)
    for speed, least in ((1.0, 0.09), (2.0, 0.045), (0.5, 0.18)):
        began = time.monotonic()
        here = replays.replay(trace, names_of(trace), speed=speed)
        assert time.monotonic() - began >= here.seconds >= least
        assert here.threads == 1  # they follow each other
        assert here.late.count == 10
    dropped = replays.replay(trace, names_of(trace), speed=None)
    assert dropped.took["read"].count == 10
    for speed in (0, -1, float("inf"), float("nan")):
        with pytest.raises(UsageError, match="speed is"):
            replays.replay(trace, names_of(trace), speed=speed)


def test_what_fails_here_is_counted_and_named(tmp_path):
    """Files that are gone, that are shorter, and folders that the job had removed since."""
    paths = files_in(tmp_path / "data")
    with TraceWriter(str(tmp_path / "job.trace"), "") as writer:
        thread = writer.thread(1, 1)
        for number, (kind, name, result) in enumerate(
            [(READ, paths[0], 10), (READ, paths[1], 10), (STAT, "/absent/x", 0), (MAP, paths[2], 0)]
        ):
            row = (kind, writer.file(name), 0, 10, result, 100 * number, 5)
            writer.add(thread, *row)
    trace = load(str(tmp_path / "job.trace"))
    os.unlink(paths[0])
    os.truncate(paths[1], 4)
    here = replays.replay(trace, names_of(trace), speed=None)
    assert (here.failed, here.short, here.differed, here.bytes) == (1, 1, 1, 4)
    assert here.first_failure == f"{paths[0]}: No such file or directory"


@pytest.mark.long
def test_too_many_threads_are_refused(tmp_path):
    """All at the same time; those that follow each other are few."""
    paths = files_in(tmp_path / "data", 1)
    with TraceWriter(str(tmp_path / "job.trace"), "") as writer:
        file = writer.file(paths[0])
        for number in range(1025):
            writer.add(writer.thread(1, number), READ, file, 0, 1, 1, 10, 10)
    with pytest.raises(LimitError, match="1,025 threads"):
        replays.replay(load(str(tmp_path / "job.trace")), paths)
    many = paused(tmp_path / "many.trace", paths, 1500, 0, reads=1)
    assert replays.replay(many, paths, speed=None).took["read"].count == 1500


def test_a_damaged_block_ends_all_threads(tmp_path):
    """With the error, not with a hang: here the last of three threads' blocks, once it is open."""
    path = tmp_path / "job.trace"
    paths = files_in(tmp_path / "data")
    trace = job(path, paths)
    metadata = pq.read_metadata(path)
    column = metadata.row_group(metadata.num_row_groups - 1).column(3)
    with path.open("r+b") as file:
        file.seek(column.data_page_offset + column.total_compressed_size - 2)
        file.write(b"\xff\xff")
    with pytest.raises(FormatError, match="cut or altered"):
        replays.replay(trace, names_of(trace))


@pytest.mark.long
def test_memory_does_not_grow_with_the_trace(tmp_path):
    """A million operations take no more than a few blocks of them."""
    (path,) = files_in(tmp_path / "data", 1)
    count = 1_000_000
    with TraceWriter(str(tmp_path / "job.trace"), "") as writer:
        file, thread = writer.file(path, SIZE), writer.thread(1, 1)
        rows = Operations(
            np.full(count, READ, np.uint8), np.full(count, file, np.uint32),
            np.arange(count, dtype=np.int64) % 1000, np.ones(count, np.int64),
            np.ones(count, np.int64), np.arange(count, dtype=np.int64) * 10,
            np.full(count, 5, np.int64),
        )  # fmt: skip
        writer.extend(thread, rows)
    code = (
        "import resource\nbefore = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        + REPLAY
        + "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    code = code.replace("before =", "import penstock_bench.traces.replay\nbefore =")
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "job.trace")],
        env={**os.environ, "PYTHONPATH": SOURCE},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(ran.stdout) < 30_000  # KiB; all columns at once have 45,000


# -- by penstock -----------------------------------------------------------------------------------


@given(st.integers(0, 1 << 32), st.sampled_from([None, 1.0, 2.0]))
def test_threads_work_as_long_as_they_did(tmp_path_factory, seed, speed):
    """Threads' work before and between their reads, over windows, is the same as one by one."""
    folder = tmp_path_factory.getbasetemp()
    draw = np.random.default_rng(seed)
    threads = int(draw.integers(1, 4))
    with TraceWriter(str(folder / "t.trace"), "") as writer:
        file = writer.file("/a", 1 << 40)
        now = 1000 * np.ones(threads, np.int64)
        for number in range(threads):
            writer.thread(1, number)
        for _ in range(int(draw.integers(1, 60))):
            thread = int(draw.integers(threads))
            kind = int(draw.choice([READ, OPEN]))
            length = int(draw.integers(0, 9 << 20)) * (kind == READ)
            start = int(now[thread] + 2 * draw.integers(0, 1000))
            writer.add(thread, kind, file, 0, length, length, start, 6)
            now[thread] = start + 10
    trace = load(str(folder / "t.trace"))
    expected: dict[int, list[int]] = {}  # what passes before each read
    for thread in range(threads):
        owed, ended = 0, 0
        for rows in trace.of_thread(thread):
            for kind, result, start, took in zip(
                rows.kind, rows.result, rows.start_ns, rows.duration_ns, strict=True
            ):
                owed += int(max(0, start - ended) / speed) if speed else 0
                ended = start + took
                if kind == READ and result > 0:
                    expected.setdefault(thread, []).append(owed)
                    owed = 0
    found: dict[int, list[int]] = {}
    for window in replay_engine._divide_reads(trace, speed):
        size = int(window.extents.length.sum())
        assert size <= replay_engine._window_bytes or len(window.extents.length) == 1
        for thread, first, last in zip(
            window.threads.tolist(), window.first_ns.tolist(), window.all_ns.tolist(), strict=True
        ):
            found.setdefault(thread, []).append((first, last))
    for thread, spans in found.items():
        assert sum(last for _, last in spans) == sum(expected[thread])
        starts = np.cumsum(expected[thread])
        place = 0
        for first, last in spans:
            assert place + first in starts
            place += last
            assert place in starts
    assert found.keys() == expected.keys()


def test_penstock_reads_the_same_bytes(tmp_path, monkeypatch):
    """Recorded by its own recorder: each byte that the job read, fewer reads, no others."""
    paths = files_in(tmp_path / "data")
    trace = job(tmp_path / "job.trace", paths, reads=300)
    monkeypatch.setenv("PENSTOCK_TRACE", str(tmp_path / "seen.trace"))
    merged = replay_engine.replay_merged(
        trace, names_of(trace), speed=None, budget=Budget(pread="required")
    )
    monkeypatch.delenv("PENSTOCK_TRACE")
    recorded = replays.collect_recorded(trace)
    assert merged.bytes == recorded.bytes
    assert merged.failed == 0
    assert merged.runs < merged.reads <= recorded.reads
    (name,) = [name for name in os.listdir(tmp_path) if name.startswith("seen.")]
    seen = load(str(tmp_path / name))
    wanted, got = np.zeros((3, SIZE), bool), np.zeros((3, SIZE), bool)
    for mask, found in ((wanted, trace), (got, seen)):
        for _, rows in found.in_order():
            for kind, file, offset, result in zip(
                rows.kind, rows.file, rows.offset, rows.result, strict=True
            ):
                if kind == READ and result > 0:
                    mask[paths.index(found.names[int(file)]), offset : offset + result] = True
    assert np.all(got[wanted])
    assert sum(block.rows for block in seen.blocks) == merged.runs


def test_penstock_waits_while_the_job_works(tmp_path):
    """No sooner over than the job's own work takes; no read-ahead beyond its budget."""
    paths = files_in(tmp_path / "data", 1)
    trace = paused(tmp_path / "job.trace", paths, 1, 10_000_000)
    merged = replay_engine.replay_merged(trace, paths, budget=Budget(readahead_bytes=1))
    assert merged.seconds >= 0.04
    assert merged.reads == 5
    dropped = replay_engine.replay_merged(trace, paths, speed=None)
    assert dropped.waited_s <= dropped.seconds


def test_penstock_counts_what_fails(tmp_path):
    """A file that is shorter than it was."""
    paths = files_in(tmp_path / "data", 1)
    trace = paused(tmp_path / "job.trace", paths, 1, 0)
    os.truncate(paths[0], 3)
    assert replay_engine.replay_merged(trace, paths, speed=None).failed == 5


# -- files -----------------------------------------------------------------------------------------


def test_paths_are_moved_by_the_longest_root():
    """At the ends of names only."""
    roots = [replays.parse_root(text) for text in ("/d=/m", "/d/train/=/t", "s3://b=/o")]
    names = ["/d/x", "/d/train/x", "/d/trainer", "/dd/x", "/d", "s3://b/k"]
    moved = ["/m/x", "/t/x", "/m/trainer", "/dd/x", "/m", "/o/k"]
    assert replays.map_paths(names, roots) == moved
    for text in ("/d", "=/m", "/d="):
        with pytest.raises(UsageError, match="--root is"):
            replays.parse_root(text)


@given(st.text("./ab:", max_size=12))
def test_nothing_is_made_outside_its_folder(name):
    """Whatever a trace calls its files."""
    (path,) = replays.place_below([name], "/safe/place")
    assert os.path.normpath(path).startswith("/safe/place")
    assert ".." not in path.split("/")


def test_files_are_made_once_and_nobody_elses_are_touched(tmp_path):
    """Files have the sizes that were read, and the same bytes each time; folders are folders."""
    paths = [f"{tmp_path}/{name}" for name in ("a/x", "a/y", "b/", "a", "absent")]
    sizes = np.array([100_000, 0, 0, 0, 5], np.int64)
    wanted = np.array([True, True, True, True, False])
    assert replays.synthesize(paths, sizes, wanted) == 100_000
    first = Path(paths[0]).read_bytes()
    assert len(first) == 100_000
    assert len(set(first)) == 256
    assert os.path.isdir(tmp_path / "b")
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]
    before = os.stat(paths[0]).st_mtime_ns
    assert replays.synthesize(paths, sizes, wanted) == 0
    assert os.stat(paths[0]).st_mtime_ns == before
    sizes[0] += 1
    with pytest.raises(UsageError, match="no file of 100,001 bytes"):
        replays.synthesize(paths, sizes, wanted)
    assert Path(paths[0]).read_bytes() == first
    sizes[0] = 1 << 60
    (other,) = replays.place_below(["/x"], str(tmp_path / "other"))
    with pytest.raises(UsageError, match="have no room"):
        replays.synthesize([other], sizes, wanted[:1])
    Path(tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot make"):
        replays.synthesize([str(tmp_path / "file" / "x")], sizes, wanted[:1])


def test_sparse_files_take_no_room(tmp_path):
    """And are not taken for full ones later."""
    path, sizes, wanted = str(tmp_path / "x"), np.array([1 << 30]), np.array([True])
    replays.synthesize([path], sizes, wanted, sparse=True)
    assert os.stat(path).st_size == 1 << 30
    assert os.stat(path).st_blocks == 0
    with pytest.raises(UsageError, match="was made sparse"):
        replays.synthesize([path], sizes, wanted)


def test_files_are_warmed(tmp_path):
    """Warmed is what the kernel can place; a file that is not there is left to the replay."""
    paths = files_in(tmp_path / "data")
    page_cache.evict(paths)
    replays.read_once([*paths, "/absent"])
    found = page_cache.measure_residency(paths)
    if found is None:
        pytest.skip("this file system does not tell what is in the page cache")
    assert found.fraction == 1.0


def test_only_files_that_are_there_are_opened(tmp_path):
    """Missing ones are counted; pipes, devices and objects refused."""
    trace = job(tmp_path / "job.trace", files_in(tmp_path / "data"))
    paths = names_of(trace)
    found, read = replays.find_used(trace)
    assert [bool(found[i]) for i, path in enumerate(paths)] == [
        not path.endswith("absent") for path in paths
    ]
    replays.check_files(paths, read)
    with pytest.raises(MissingError, match="3 of 3 files") as error:
        replays.check_files([f"/gone{path}" for path in paths], read)
    assert "--root" in str(error.value)
    os.unlink(paths[1])
    os.mkfifo(paths[1])
    with pytest.raises(UsageError, match="neither file nor folder"):
        replays.check_files(paths, read)
    with pytest.raises(UsageError, match="an object"):
        replays.check_files(["s3://b/k"] * len(paths), read)


# -- the command line ------------------------------------------------------------------------------


class Ran(NamedTuple):
    """The output of a command, and its exit code."""

    out: str
    err: str
    code: int


@pytest.fixture
def run(monkeypatch, capsys) -> Callable[..., Ran]:
    """Runs the command line in this process, as `penstock ARGUMENTS` does."""

    def ran(*arguments: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["penstock", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            app.main()
        return Ran(*capsys.readouterr(), int(ended.value.code or 0))

    return ran


def test_replay_as_users_run_it(tmp_path, run):
    """Both ways, elsewhere, as a table and as JSON."""
    files_in(tmp_path / "data")
    trace = job(tmp_path / "job.trace", [str(tmp_path / f"data/{n}.bin") for n in range(3)])
    shutil.move(tmp_path / "data", tmp_path / "moved")
    root = f"{tmp_path}/data={tmp_path}/moved"
    shown = run("bench", "replay", tmp_path / "job.trace", "--root", root, "--speed", "2x")
    assert "all of 150 operations came out as in the job" in shown.out
    assert "by penstock" in shown.out
    said = run("bench", "replay", tmp_path / "job.trace", "--root", root, "--json", "--cache=warm")
    values = json.loads(said.out)
    recorded = replays.collect_recorded(trace)
    assert values["pread"]["bytes"] == values["penstock"]["bytes"] == recorded.bytes
    assert values["pread"]["took"]["read"]["count"] == values["recorded"]["reads"] == 120
    gone = run("bench", "replay", tmp_path / "job.trace")
    assert gone.code == 1
    assert "3 of 3 files that the job read are not here" in gone.err
    made = run(
        "bench", "replay", tmp_path / "job.trace", "--synthesize", tmp_path / "made",
        "--speed", "max", "--by", "pread",
    )  # fmt: skip
    assert "all of 150 operations" in made.out
    assert (tmp_path / "made" / str(tmp_path)[1:] / "data/0.bin").stat().st_size == SIZE


def test_wrong_calls_are_told(tmp_path, run):
    """In one line each."""
    with TraceWriter(str(tmp_path / "empty.trace"), "nothing"):
        pass
    empty = tmp_path / "empty.trace"
    for arguments, said in (
        (("bench", "replay", empty), "holds no operations"),
        (("bench", "replay", empty, "--speed", "fast"), "--speed is 'fast'"),
        (("bench", "replay", empty, "--speed", "0"), "--speed is '0'"),
        (("bench", "replay", empty, "--by", "x"), "--by is 'x'"),
        (("bench", "replay", empty, "--cache", "x"), "--cache is 'x'"),
        (("bench", "replay", empty, "--sparse"), "--synthesize"),
        (("bench", "replay", tmp_path / "absent"), "does not exist"),
        (("trace", "show", tmp_path), "Is a directory"),
        (("trace", "import", empty, "-o", empty), "would be read and written"),
        (("trace", "import", empty, "-o", "/absent/x"), "there is no folder"),
        (("trace", "import", empty, "--under", "/", "--all"), "--under and --all"),
    ):
        told = run(*arguments)
        assert told.code == 1
        assert told.err.count("\n") == 1
        assert said in told.err
    assert "operations: none" in run("trace", "show", empty).out
    assert json.loads(run("trace", "show", empty, "--json").out)["bytes"] == 0


def test_a_command_is_recorded_shown_and_replayed(tmp_path, run):
    """`trace record -- COMMAND` keeps its exit code; what it wrote down is what it read."""
    if shutil.which("strace") is None:
        assert "apt-get install strace" in run("trace", "record", "true").err
        return
    (path,) = files_in(tmp_path / "data", 1)
    code = (
        f"f = open({path!r}, 'rb', 0); f.seek(99); f.read(1000); f.read(1000); raise SystemExit(7)"
    )
    output = tmp_path / "job.trace"
    recorded = run("trace", "record", "-o", output, "--", sys.executable, "-c", code)
    assert recorded.code == 7
    assert "operations on" in recorded.out
    assert sorted(os.listdir(tmp_path)) == ["data", "job.trace"]
    trace = load(str(output))
    rows = traces.concatenate_operations([rows for _, rows in trace.in_order()])
    mine = rows.at((rows.file == names_of(trace).index(path)) & (rows.kind == READ))
    assert list(zip(mine.offset.tolist(), mine.result.tolist(), strict=True)) == [
        (99, 1000),
        (1099, 1000),
    ]
    part = tmp_path / "part.trace"
    run("trace", "import", output, "--under", tmp_path / "data", "-o", part)
    values = json.loads(run("trace", "show", part, "--json").out)
    assert (values["bytes"], values["unique_bytes"], values["sequential"]) == (2000, 2000, 0.5)
    assert "2.0 KiB, of which 2.0 KiB different" in run("trace", "show", part).out
    assert "faithful" in run("bench", "replay", part).out


def test_ctrl_c_ends_a_replay(tmp_path):
    """At once, though a thread sleeps until its next read, in an hour."""
    paths = files_in(tmp_path / "data", 1)
    paused(tmp_path / "job.trace", paths, 1, 3600 * 10**9)
    command = [sys.executable, "-c", REPLAY.replace("None", "1.0")]
    with warm.Popen(
        [*command, str(tmp_path / "job.trace")],
        env={**os.environ, "PYTHONPATH": SOURCE},
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        tasks = Path(f"/proc/{running.pid}/task")
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:  # until it sleeps in the core
            names = [(each / "wchan").read_text() for each in tasks.iterdir()]
            if any("nanosleep" in name for name in names):
                break
            assert running.poll() is None
            time.sleep(0.01)
        running.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in running.communicate(timeout=240)[1]
