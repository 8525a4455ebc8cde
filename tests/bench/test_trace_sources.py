"""Logs as traces: strace's, real ones and kept ones, Darshan's and tables; and what is none."""

from __future__ import annotations

import csv
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import FormatError, MissingError, PenstockError, UsageError
from penstock_bench.traces import logs as trace_logs
from penstock_bench.traces import strace as trace_strace
from penstock_bench.traces.logs import assign_lanes
from penstock_bench.traces.trace_file import CLOSE, KINDS, MAP, OPEN, READ, Trace, TraceWriter, load
from tests.slices import thinned

LOGS = Path(__file__).parent / "logs"
ODD = 'odd "name>é.bin'


def imported(path: Path, tmp_path: Path, keep: trace_logs.Keep = trace_logs.keep_everything):
    """The trace of a log."""
    return trace_logs.import_logs([str(path)], str(tmp_path / "imported.trace"), keep)


def told(trace: Trace) -> dict[tuple[int, int], list[tuple[str, str, int, int, int]]]:
    """The actions of each thread: kind, file, offset, length, result."""
    found = {}
    for number, thread in enumerate(trace.threads):
        rows = [
            (KINDS[kind], trace.names[file], *rest)
            for block in trace.of_thread(number)
            for kind, file, *rest in zip(*(column.tolist() for column in block[:5]), strict=True)
        ]
        found[tuple(thread)] = found.get(tuple(thread), []) + rows
    return found


def golden(folder: str, threads: tuple[int, ...]) -> dict[tuple[int, int], list[object]]:
    """The actions of the program that the kept logs are of. It reads 100 bytes; 200 at 5000; 300;
    seeks to 9990 and reads 10 of 100; through a duplicate seeks to 10; reads 7; by readv 15, by
    preadv 6 at 77; opens what is not there; stats a file and a folder; three threads read 10 bytes
    three times; a forked child reads 11 bytes; reads 5, closes, reads 4 through the duplicate,
    closes it; and writes another file."""
    a, odd = f"{folder}data/a.bin", f"{folder}data/{ODD}"
    main, first, second, third, child = threads
    reads = [(0, 100, 100), (100 + 4900, 200, 200), (100, 300, 300), (9990, 100, 10), (10, 7, 7)]
    reads += [(17, 15, 15), (77, 6, 6)]
    found = {
        (main, main): [
            ("open", a, 0, 0, 0),
            *(("read", a, *row) for row in reads),
            ("open", f"{folder}data/absent", 0, 0, -2),
            ("stat", odd, 0, 0, 0),
            ("stat", f"{folder}data/", 0, 0, 0),
            ("read", a, 43, 5, 5),
            ("read", a, 48, 4, 4),
            ("close", a, 0, 0, 0),
        ],
        (child, child): [("read", a, 32, 11, 11)],
    }
    for number, thread in enumerate((first, second, third)):
        places = [30 * number + 10 * i for i in range(3)]
        found[main, thread] = [
            ("open", odd, 0, 0, 0),
            *(("read", odd, place, 10, 10) for place in places),
            ("close", odd, 0, 0, 0),
        ]
    return found


def test_a_kept_log_with_paths(tmp_path):
    """By `-y`: nanoseconds, descriptors with their paths."""
    trace = imported(LOGS / "job.strace", tmp_path)
    assert told(trace) == golden("/job/", (29126, 29127, 29128, 29129, 29130))
    sizes = {trace.names[i]: size for i, size in enumerate(trace.sizes.tolist())}
    assert sizes[f"/job/data/{ODD}"] == 100
    assert sizes["/job/data/a.bin"] == 10_000
    first = next(trace.of_thread(0))
    assert trace.began_ns == 1795272317_071019201
    assert first.start_ns[:3].tolist() == [0, 24626, 47928]
    assert first.duration_ns[:3].tolist() == [6407, 8382, 3763]


def test_a_kept_log_without_paths(tmp_path):
    """Descriptors are followed; paths are as the program gave them."""
    trace = imported(LOGS / "job-plain.strace", tmp_path)
    assert told(trace) == golden("", (29134, 29135, 29136, 29137, 29138))
    first = next(trace.of_thread(0))
    assert first.start_ns[:2].tolist() == [0, 18_000]
    assert first.duration_ns[:2].tolist() == [5000, 4000]


def test_only_what_is_wanted_is_kept(tmp_path):
    """Below a folder, whatever the rest does; the open of a file keeps its descriptors right."""
    keep = trace_logs.filter_below([f"/job/data/{ODD}"])
    trace = imported(LOGS / "job.strace", tmp_path, keep)
    assert [trace.names[i] for i in range(len(trace.names))] == [f"/job/data/{ODD}"]
    with pytest.raises(UsageError, match="--under"):
        imported(LOGS / "job.strace", tmp_path, trace_logs.filter_below(["/job/dat"]))
    assert trace_logs.is_job_data("/data/train/usr/x.jpg")
    for path in ("/usr/lib/x", "/proc/self/maps", "/a/lib/python3.11/os", "/x/y.py", "/x/lib.so.1"):
        assert not trace_logs.is_job_data(path)


def test_a_part_of_a_trace_is_a_trace(tmp_path):
    """Import reads traces too, and keeps threads apart that the system numbered alike."""
    whole = imported(LOGS / "job.strace", tmp_path)
    path = tmp_path / "imported.trace"
    other = tmp_path / "other.trace"
    trace_logs.import_logs([str(path), str(path)], str(other), trace_logs.keep_everything)
    twice = load(str(other))
    assert len(twice.threads) == 2 * len(whole.threads)
    assert told(twice) == {thread: 2 * rows for thread, rows in told(whole).items()}
    assert twice.sizes.tolist() == whole.sizes.tolist()
    assert twice.began_ns == whole.began_ns


def said_of(path: Path, tmp_path: Path) -> str:
    """The error's text if the file is refused; else the kind that its trace names."""
    try:
        trace = imported(path, tmp_path)
        for _ in trace.in_order():
            pass
    except PenstockError as error:
        return str(error)
    assert trace.count > 0
    return trace.source


@pytest.mark.wide
@pytest.mark.parametrize("name", ["job.strace", "job-plain.strace", "job.dxt"])
def test_cut_anywhere_is_a_shorter_log_or_an_error(tmp_path, name):
    """Nothing but the library's own errors, whatever is missing."""
    whole = (LOGS / name).read_bytes()
    path = tmp_path / name
    for size in thinned(range(0, len(whole), 37)):
        path.write_bytes(whole[:size])
        assert name in said_of(path, tmp_path)


@given(st.integers(0, 1 << 32))
def test_altered_logs_are_read_or_refused(tmp_path_factory, seed):
    """Nothing but the library's own errors, whatever is written."""
    draw = random.Random(seed)
    folder = tmp_path_factory.getbasetemp()
    name = draw.choice(["job.strace", "job-plain.strace", "job.dxt"])
    data = bytearray((LOGS / name).read_bytes())
    for _ in range(draw.randint(1, 30)):
        place = draw.randrange(len(data))
        data[place : place + draw.randint(0, 3)] = draw.choice(
            [b"", b"9", b"-", b"<", b'"', b", ", b"\xff", b"(", b"\n", b"99999999999999999999"]
        )
    (folder / name).write_bytes(data)
    assert name in said_of(folder / name, folder)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (b"\x7fELF\0\0\1\2", "no text and no trace"),
        (b"hello world\n", "line 1: 'hello world' is no line of strace"),
        (b"12:00:01.5 read(3, 1) = 1 <0.1>\n", "is no line of strace with seconds since 1970"),
        (b"7 2.000000 read(3</a>, 1) = 1\n", "strace -T"),
        (b"7 2.000000 read(3</a>, 1\n", "has no end"),
        (b"7 2.000000 read(3</a>, x) = 1 <0.000001>\n", "has other arguments than read"),
        (b"7 2.000000 read(3</a>, -5) = 1 <0.000001>\n", "impossible values"),
        (b"7 2.000000 read(3</a>, 5) = 6 <0.000001>\n", "impossible values"),
        (b"7 2.000000 %$!(3) = 6 <0.000001>\n", "no system call"),
        (
            b"7 2.000000 read(3</a>, 5) = 5 <0.000001>\n7 1.000000 read(3</a>, 5) = 5 <0.000001>\n",
            "line 2: operations of a thread go back in time",
        ),
    ],
)
def test_what_is_no_log_is_refused(tmp_path, text, said):
    """By file and line, with what to do."""
    path = tmp_path / "x.log"
    path.write_bytes(text)
    with pytest.raises(FormatError, match="x.log") as error:
        imported(path, tmp_path)
    assert said in str(error.value)
    assert os.listdir(tmp_path) == ["x.log"]


def test_logs_that_cannot_be_read(tmp_path):
    """Not there, or a folder."""
    with pytest.raises(MissingError, match="absent"):
        imported(tmp_path / "absent", tmp_path)
    with pytest.raises(UsageError, match="directory"):
        imported(tmp_path, tmp_path)


def test_a_last_line_that_was_cut_is_left_out(tmp_path):
    """And said: jobs are killed."""
    text = (LOGS / "job.strace").read_text()
    (tmp_path / "x.log").write_text(text[: text.index(", 300) = 300")])
    trace = imported(tmp_path / "x.log", tmp_path)
    assert trace.count == 3
    assert trace.notes == ("the log's last line was cut: it is left out",)


@pytest.mark.parametrize("who", ["", "[pid 12] ", "[pid    12] ", "12  "])
def test_lines_name_their_process_or_do_not(tmp_path, who):
    """In all of strace's ways."""
    text = f'{who}1795272317.000001 stat("/a", 0x0) = 0 <0.000001>\n'
    (tmp_path / "x.log").write_text(text)
    trace = imported(tmp_path / "x.log", tmp_path)
    assert trace.began_ns == 1795272317_000001000
    assert trace.threads[0].thread == (12 if who else 0)


def test_what_strace_does_not_see_is_said(tmp_path):
    """Maps, io_uring, and calls that had not ended."""
    path = tmp_path / "x.log"
    path.write_text(
        "7 2.000000 openat(AT_FDCWD</>, \"/a\", O_RDONLY|O_DIRECT) = 3</a> <0.000001>\n"
        "7 2.000010 mmap(NULL, 4096, PROT_READ, MAP_SHARED, 3</a>, 0x1000) = 0x7f <0.000001>\n"
        "7 2.000020 io_uring_setup(64, {flags=0}) = 4 <0.000001>\n"
        "7 2.000030 read(5<pipe:[12]>, \"\", 10) = 0 <0.000001>\n"
        "7 2.000040 read(9, \"\", 10) = 0 <0.000001>\n"
        "7 2.000050 read(3</a>, \"\", 10) = ? ERESTARTSYS (To be restarted) <0.000001>\n"
        "7 2.000060 read(3</a>, \"\", 10) = -1 EIO (Input/output error) <0.000001>\n"
        "7 2.000070 read(3</a>,  <unfinished ...>\n"
    )  # fmt: skip
    trace = imported(path, tmp_path)
    (rows,) = told(trace).values()
    assert rows == [
        ("open_direct", "/a", 0, 0, 0),
        ("map", "/a", 4096, 4096, 0),
        ("read", "/a", 0, 10, -5),
    ]
    for word in ("io_uring", "mapped", "opened before the log", "1 calls had not ended"):
        assert any(word in note for note in trace.notes)


def test_a_number_is_free_before_its_close_returns(tmp_path):
    """Another thread gets the number meanwhile: both files keep their own reads and closes."""
    path = tmp_path / "x.log"
    path.write_text(
        "7 2.000000 openat(AT_FDCWD</>, \"/a\", O_RDONLY) = 3</a> <0.000001>\n"
        "7 2.000010 clone3({flags=CLONE_FILES}, 88) = 8 <0.000001>\n"
        "7 2.000020 close(3</a> <unfinished ...>\n"
        "8 2.000025 openat(AT_FDCWD</>, \"/b\", O_RDONLY) = 3</b> <0.000001>\n"
        "7 2.000030 <... close resumed>) = 0 <0.000015>\n"
        "8 2.000040 read(3, \"\", 10) = 10 <0.000001>\n"
        "8 2.000050 close(3) = 0 <0.000001>\n"
    )  # fmt: skip
    assert told(imported(path, tmp_path)) == {
        (7, 7): [("open", "/a", 0, 0, 0), ("close", "/a", 0, 0, 0)],
        (7, 8): [("open", "/b", 0, 0, 0), ("read", "/b", 0, 10, 10), ("close", "/b", 0, 0, 0)],
    }


def test_every_kind_of_call_is_followed(tmp_path):
    """Old calls, exec, close_range, dup2 and other than the usual descriptors."""
    path = tmp_path / "x.log"
    calls = [
        'open("/a", O_RDONLY|O_CLOEXEC) = 3',
        'openat2(AT_FDCWD, "/b", {flags=O_RDONLY, resolve=0}, 24) = 4',
        'stat("/a", {st_mode=S_IFREG|0644, st_size=77, ...}) = 0',
        'statx(AT_FDCWD, "/b", 0, STATX_ALL, {stx_mode=S_IFREG|0644, stx_size=88, ...}) = 0',
        "fstat(3, {st_mode=S_IFREG|0644, st_size=79, ...}) = 0",
        'read(4, "", 5) = 5',
        "dup2(4, 9) = 9",
        "close(4) = 0",
        'preadv(9, [{iov_base="", iov_len=2}, {iov_base="", iov_len=3}], 2, 40) = 5',
        'preadv2(9, [{iov_base="", iov_len=2}], 1, -1, 0) = 2',
        'openat(AT_FDCWD, "/dir", O_RDONLY|O_DIRECTORY) = 5',
        'execve("/bin/x", [], 0x1 /* 2 vars */) = 0',
        'read(3, "", 5) = -1 EBADF (Bad file descriptor)',
        'read(9, "", 5) = 5',
        "close_range(5, 4294967295, 0) = 0",
        'read(9, "", 5) = -1 EBADF (Bad file descriptor)',
        "getdents64(5, 0x0, 10) = 0",
    ]
    path.write_text("".join(f"{2 + i}.000000 {call} <0.000001>\n" for i, call in enumerate(calls)))
    trace = imported(path, tmp_path)
    (rows,) = told(trace).values()
    assert rows == [
        ("open", "/a", 0, 0, 0),
        ("open", "/b", 0, 0, 0),
        ("stat", "/a", 0, 0, 0),
        ("stat", "/b", 0, 0, 0),
        ("read", "/b", 0, 5, 5),
        ("read", "/b", 40, 5, 5),
        ("read", "/b", 5, 2, 2),
        ("read", "/b", 5, 5, 5),
    ]
    assert trace.sizes.tolist() == [79, 88]


# -- a real strace ---------------------------------------------------------------------------------

READER = """
import os, random, sys, threading, multiprocessing
folder, seed = sys.argv[1], int(sys.argv[2])
def work(number):
    draw = random.Random(seed + number)
    files = [os.open(f"{folder}/{i}.bin", os.O_RDONLY) for i in range(3)]
    for _ in range(60):
        file, offset, length = draw.randrange(3), draw.randrange(50_000), draw.randrange(1, 9000)
        if draw.random() < 0.5:
            os.pread(files[file], length, offset)
        else:
            os.lseek(files[file], offset, 0)
            os.read(files[file], length)
    for file in files:
        os.close(file)
workers = [threading.Thread(target=work, args=(n,)) for n in range(3)]
children = [multiprocessing.get_context("fork").Process(target=work, args=(n,)) for n in (3, 4)]
for each in workers + children: each.start()
for each in workers + children: each.join()
"""


def reads_of(number: int, seed: int) -> list[tuple[int, int, int, int]]:
    """File, offset, length and result of what a worker of READER reads."""
    draw = random.Random(seed + number)
    found = []
    for _ in range(60):
        file, offset, length = draw.randrange(3), draw.randrange(50_000), draw.randrange(1, 9000)
        draw.random()
        found.append((file, offset, length, max(0, min(length, 40_000 - offset))))
    return found


def strace() -> str:
    """A strace that may trace; else the test is skipped, and says why."""
    found = shutil.which("strace")
    if found is None:
        pytest.skip("strace is not installed: apt-get install strace")
    tried = subprocess.run([found, *trace_strace.FLAGS, "-o", "/dev/null", "true"], check=False)
    if tried.returncode != 0:
        pytest.skip("strace may not trace here")
    return found


def test_a_job_is_traced_read_by_read(tmp_path):
    """Threads and processes: each read of each, byte for byte, and nothing else."""
    data = tmp_path / "data"
    data.mkdir()
    for number in range(3):
        (data / f"{number}.bin").write_bytes(bytes(40_000))
    log = tmp_path / "job.log"
    command = [strace(), "-o", str(log), *trace_strace.FLAGS, sys.executable, "-c", READER]
    subprocess.run([*command, str(data), "5"], check=True)
    trace = imported(log, tmp_path, trace_logs.filter_below([str(data)]))
    names = {str(data / f"{number}.bin"): number for number in range(3)}
    found = []
    for rows in told(trace).values():
        kinds = [row[0] for row in rows]
        assert [kinds.count(kind) for kind in ("open", "close")] == [3, 3]
        found.append([(names[row[1]], *row[2:]) for row in rows if row[0] == "read"])
    expected = [reads_of(number, 5) for number in range(5)]
    assert sorted(found) == sorted(expected)
    assert len({thread.process for thread in trace.threads}) == 3
    assert trace.sizes.tolist() == [40_000] * 3


# -- tables ----------------------------------------------------------------------------------------


def test_dxt(tmp_path):
    """Reads by rank, in order; what overlaps by more than its times are exact is two threads'."""
    trace = imported(LOGS / "job.dxt", tmp_path)
    assert trace.began_ns == 1700000000_002000000
    part = "/data/train: a/part-{}.rec"
    first, second, other = (
        [row for block in trace.of_thread(number) for row in block.offset.tolist()]
        for number in range(3)
    )
    assert [thread.process for thread in trace.threads] == [0, 0, 1]
    assert (first, second, other) == ([0, 262144], [524288], [0, 4])
    (rows,) = trace.of_thread(2)
    assert rows.start_ns.tolist() == [0, 2_900_000]
    assert rows.duration_ns.tolist() == [100_000, 100_000]
    assert [trace.names[i] for i in range(2)] == [part.format(0), part.format(1)]
    assert trace.sizes.tolist() == [786432, 4100]
    assert trace.notes == ("1 writes were left out",)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("X_POSIX       1", "X_OTHER       1", "no module of DXT"),
        ("0.0052  [  3]", "", "is cut"),
        ("0.0048      0.0052", "0.0052      0.0048", "before it begins"),
        ("0.0048      0.0052", "-0.0048      0.0052", "seconds from 0 on"),
        ("262144       262144", "-262144       262144", "use 0 or above"),
        ("262144       262144", "262144         2x144", "a whole number belongs there"),
        ("read_count: 3", "read_count: 9", "the log was cut"),
        ("# DXT, file_id: 16457598720760448348, file_name", "# ", "the name of a file"),
    ],
)
def test_wrong_dxt_is_refused(tmp_path, old, new, said):
    """By line and value."""
    text = (LOGS / "job.dxt").read_text()
    assert old in text
    (tmp_path / "x.dxt").write_text(text.replace(old, new, 1))
    with pytest.raises(FormatError, match="x.dxt") as error:
        imported(tmp_path / "x.dxt", tmp_path)
    assert said in str(error.value)


HEAD = "pid,time,op,path,offset,length,duration"


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),
            st.integers(0, 10**12),
            st.sampled_from(["read", "open", "stat", "close"]),
            st.sampled_from(["/a", "/b, c", '/"d"', "/ü"]),
            st.integers(0, 1 << 50),
            st.integers(0, 1 << 40),
            st.integers(0, 10**10),
        ),
        min_size=1,
        max_size=40,
    )
)
def test_tables_are_read_exactly(tmp_path_factory, rows):
    """All operations, with their times to the nanosecond, each process in order of time."""
    folder = tmp_path_factory.getbasetemp()
    with open(folder / "x.csv", "w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(HEAD.split(","))
        for pid, start, op, path, offset, length, took in rows:
            times = [f"{ns // 10**9}.{ns % 10**9:09}" for ns in (start, took)]
            lines.writerow([pid, times[0], op, path, offset, length, times[1]])
    trace = imported(folder / "x.csv", folder)
    found = []
    for number, thread in enumerate(trace.threads):
        for block in trace.of_thread(number):
            assert (block.start_ns[1:] >= (block.start_ns + block.duration_ns)[:-1]).all()
            columns = (column.tolist() for column in block)
            for kind, file, offset, length, _, start, took in zip(*columns, strict=True):
                name = trace.names[file]
                start += trace.began_ns
                found.append((thread.process, start, KINDS[kind], name, offset, length, took))
    expected = [
        (pid, start, op, path, *((offset, length) if op == "read" else (0, 0)), took)
        for pid, start, op, path, offset, length, took in rows
    ]
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("1,0,read,/a,0,10", "6 values for 7 columns: was it cut?"),
        ("1,0,read,/a,-1,10,0", "offset is -1"),
        ("1,0,read,/a,0,-10,0", "length is -10"),
        ("1,0,read,/a,0,9999999999999999999,0", "length is 9999999999999999999"),
        ("1,-3,read,/a,0,10,0", "time is '-3'"),
        ("1,nan,read,/a,0,10,0", "time is 'nan'"),
        ("1,1e300,read,/a,0,10,0", "time is '1e300'"),
        ("x,0,read,/a,0,10,0", "pid is 'x'"),
        ("1,0,fly,/a,0,10,0", "op is 'fly'"),
        ("1,0,read,,0,10,0", "path is empty"),
        (f"1,0,read,/a,{(1 << 62) - 1},10,0", "no place in a file"),
    ],
)
def test_wrong_tables_are_refused(tmp_path, line, said):
    """By line and value."""
    (tmp_path / "x.csv").write_text(f"{HEAD}\n1,0,read,/a,0,10,0\n{line}\n")
    with pytest.raises(FormatError, match=r"x\.csv, line 3") as error:
        imported(tmp_path / "x.csv", tmp_path)
    assert said in str(error.value)


def test_tables_need_their_columns(tmp_path):
    """The missing ones are named; with `thread` threads are known."""
    (tmp_path / "x.csv").write_text("time,path\n0,/a\n")
    with pytest.raises(FormatError, match="no pid, op, offset, length, duration"):
        imported(tmp_path / "x.csv", tmp_path)
    (tmp_path / "x.csv").write_text(
        f"{HEAD},thread\n1,0,read,/a,0,10,1,5\n1,0,read,/a,0,10,1,6\n1,9,write,/a,0,1,0,6\n"
    )
    trace = imported(tmp_path / "x.csv", tmp_path)
    assert [tuple(thread) for thread in trace.threads] == [(1, 5), (1, 6)]


def test_kinds_are_those_of_traces():
    """The importers write exactly the kinds that `KINDS` names."""
    assert [KINDS[kind] for kind in (READ, OPEN, CLOSE, MAP)] == ["read", "open", "close", "map"]
    assert TraceWriter.__doc__ is not None


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20))))
def test_lanes_are_as_many_as_overlap(spans):
    """No lane is in two spans at once, and no lane more than are open at some time."""
    spans = sorted((first, first + length) for first, length in spans)
    lanes = assign_lanes(spans)
    last: dict[int, int] = {}
    for (first, end), lane in zip(spans, lanes, strict=True):
        assert last.get(lane, 0) <= first
        last[lane] = end
    # Spans of no length share a lane with what begins where they are.
    most = max((sum(a <= t < max(b, a + 1) for a, b in spans) for t in range(71)), default=0)
    assert len(last) <= most
