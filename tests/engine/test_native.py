"""The native engine and arena: the choice of a backend, live changes, processes, faults, ends."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import resource
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks import emulation

from penstock import limits
from penstock.budget import Budget
from penstock.engine.native import Arena, NativeEngine
from penstock.engine.protocol import Engine, Failure, ReadMethod
from penstock.engine.read_method import Facts, choose_method, compute_open_files_max, survey_files
from penstock.errors import ForkError, UsageError  # noqa: F401 - for children
from penstock.extent import Files, Requests
from penstock.testing import EngineRead, finish, write_files
from tests import warm
from tests.attempts import retried
from tests.opened import Opened
from tests.slices import first

MIB = limits.MIB
SECOND_NS = 1_000_000_000

BUDGETS = {
    "io_uring": Budget(io_uring="required", mmap="off", direct="off", threads=2),
    "pread": Budget(io_uring="off", mmap="off", direct="off", threads=2),
    "mmap": Budget(io_uring="off", mmap="required", direct="off", threads=2),
}
backends = pytest.mark.parametrize("backend", list(BUDGETS))
one_backend = pytest.mark.parametrize("backend", first(1, BUDGETS))


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder on a disk: tmpfs would accept any direct read."""
    parent = os.environ.get("TMPDIR", "/var/tmp")
    with tempfile.TemporaryDirectory(prefix="penstock-", dir=parent) as name:
        yield Path(name)


def random_bytes(size: int, seed: int = 1) -> bytes:
    """Bytes without zeros among them, so that a page that is gone is seen."""
    return np.random.default_rng(seed).integers(1, 256, size, np.uint8).tobytes()


def reading_all(contents: list[bytes], size: int = 4096, seed: int = 0) -> EngineRead:
    """Every byte of the contents, in extents of up to so many bytes, one run each, shuffled."""
    extents = [
        (file, start, min(size, len(content) - start))
        for file, content in enumerate(contents)
        for start in range(0, len(content), size)
    ]
    order = np.random.default_rng(seed).permutation(len(extents))
    return EngineRead(contents, [[extents[i]] for i in order], 2, seed)


def read(engine: Engine, reading: EngineRead) -> tuple[Failure, ...]:
    """Submit, wait, and return the failures."""
    ticket = engine.submit(reading.requests, reading.buffers)
    return finish(engine, [ticket])[ticket].failures


def in_child(
    script: str, *arguments: object, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run a script with the helpers of this file, in a folder of its own; it prints "done" last."""
    paths = [*map(os.path.abspath, filter(None, sys.path))]
    prelude = f"import sys; sys.path[:0] = {paths!r}\nfrom tests.engine.test_native import *\n"
    parent = os.environ.get("TMPDIR", "/var/tmp")
    with tempfile.TemporaryDirectory(prefix="penstock-", dir=parent) as name:
        result = warm.run(
            [sys.executable, "-c", prelude + textwrap.dedent(script), *map(str, arguments)],
            cwd=name,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
            lean=True,
        )
    if check:
        assert result.returncode == 0, result.stderr[-4000:]
        assert result.stdout.endswith("done\n"), result
        assert "leaked" not in result.stderr, result.stderr
    return result


def thread_count() -> int:
    """Threads of this process, those of the core included."""
    return len(os.listdir("/proc/self/task"))


def settled(count: int, counted: Any) -> bool:
    """True if a count comes down to a number: a joined thread leaves /proc a moment later."""
    deadline = time.monotonic() + 10
    while counted() > count and time.monotonic() < deadline:
        os.sched_yield()
    return bool(counted() <= count)


# -- the choice ------------------------------------------------------------------------------

DISK = Facts("ext4", True, 4096.0, 1 << 30, 1.0, 1 << 34, 0, 0, 8)
COLD = DISK._replace(resident=0.1)
LARGE = COLD._replace(mean_bytes=1e6, total_bytes=1 << 40)

CHOICES: list[tuple[str, Facts, Budget, ReadMethod]] = [
    ("hot and small", DISK, Budget(), ReadMethod("mmap", False, 7, {})),
    ("one core", DISK._replace(cores=1), Budget(), ReadMethod("mmap", False, 1, {})),
    ("many cores", COLD._replace(cores=96), Budget(), ReadMethod("io_uring", False, 16, {})),
    ("cold", COLD, Budget(), ReadMethod("io_uring", False, 8, {})),
    (
        "residency unknown",
        DISK._replace(resident=-1),
        Budget(),
        ReadMethod("io_uring", False, 8, {}),
    ),
    (
        "not local, hot",
        DISK._replace(file_system="nfs"),
        Budget(),
        ReadMethod("pread", False, 16, {}),
    ),
    (
        "not local, cold",
        COLD._replace(file_system="nfs"),
        Budget(),
        ReadMethod("pread", False, 64, {}),
    ),
    (
        "not local, direct",
        COLD._replace(file_system="nfs"),
        Budget(direct="required"),
        ReadMethod("io_uring", True, 4, {}),
    ),
    ("hot and long", DISK._replace(mean_bytes=1e5), Budget(), ReadMethod("io_uring", False, 8, {})),
    ("hot, many", DISK._replace(kept_open=False), Budget(), ReadMethod("pread", False, 16, {})),
    ("memory", COLD._replace(file_system="tmpfs"), Budget(), ReadMethod("pread", False, 16, {})),
    ("fuse", COLD._replace(file_system="fuse"), Budget(), ReadMethod("pread", False, 64, {})),
    (
        "no ring",
        COLD._replace(ring_refusal=errno.EPERM),
        Budget(),
        ReadMethod("pread", False, 16, {}),
    ),
    ("larger than memory", LARGE, Budget(), ReadMethod("io_uring", True, 4, {})),
    (
        "larger, direct refused",
        LARGE._replace(direct_refusal=errno.EINVAL),
        Budget(),
        ReadMethod("io_uring", False, 8, {}),
    ),
    (
        "larger, on nfs",
        LARGE._replace(file_system="nfs"),
        Budget(),
        ReadMethod("pread", False, 64, {}),
    ),
    (
        "larger, small extents",
        LARGE._replace(mean_bytes=999),
        Budget(),
        ReadMethod("io_uring", False, 8, {}),
    ),
    ("larger, map required", LARGE, Budget(mmap="required"), ReadMethod("mmap", False, 7, {})),
    ("direct off", LARGE, Budget(direct="off"), ReadMethod("io_uring", False, 8, {})),
    ("direct required", DISK, Budget(direct="required"), ReadMethod("io_uring", True, 4, {})),
    ("threads given", DISK, Budget(threads=3), ReadMethod("mmap", False, 3, {})),
    ("all off", DISK, Budget(io_uring="off", mmap="off"), ReadMethod("pread", False, 16, {})),
    ("pread required", DISK, Budget(pread="required"), ReadMethod("pread", False, 16, {})),
    (
        "pread off",
        DISK._replace(kept_open=False),
        Budget(pread="off"),
        ReadMethod("io_uring", False, 8, {}),
    ),
    (
        "pread and ring off",
        COLD,
        Budget(pread="off", io_uring="off"),
        ReadMethod("mmap", False, 7, {}),
    ),
    ("ring required", DISK, Budget(io_uring="required"), ReadMethod("io_uring", False, 8, {})),
    (
        "ring required in memory",
        COLD._replace(file_system="tmpfs", kept_open=False),
        Budget(io_uring="required"),
        ReadMethod("io_uring", False, 8, {}),
    ),
    (
        "map required, cold and many",
        COLD._replace(kept_open=False),
        Budget(mmap="required"),
        ReadMethod("mmap", False, 7, {}),
    ),
]


@pytest.mark.parametrize(
    ("facts", "budget", "expected"), [c[1:] for c in CHOICES], ids=[c[0] for c in CHOICES]
)
def test_choice(facts: Facts, budget: Budget, expected: ReadMethod) -> None:
    """Facts and budget decide, and the reasons say why each fast path is used or is not."""
    choice = choose_method(facts, budget)
    assert (choice.backend, choice.direct, choice.threads) == (
        expected.backend,
        expected.direct,
        expected.threads,
    )
    assert choice.cached == (facts.resident >= 0.9 and not choice.direct)
    assert set(choice.reasons) == {"direct", "mmap", "io_uring"}
    assert all(choice.reasons.values())


@pytest.mark.parametrize(
    ("facts", "budget", "words"),
    [
        (COLD._replace(ring_refusal=errno.EPERM), Budget(io_uring="required"), "not permitted"),
        (COLD._replace(ring_refusal=errno.ENOSYS), Budget(io_uring="required"), "io_uring"),
        (DISK._replace(direct_refusal=errno.EINVAL), Budget(direct="required"), "direct"),
        (
            COLD._replace(ring_refusal=errno.EPERM),
            Budget(pread="off", mmap="off"),
            "pread is 'off' and nothing else",
        ),
    ],
)
def test_required_but_refused(facts: Facts, budget: Budget, words: str) -> None:
    """A required read method that is not available is an error with the reason."""
    with pytest.raises(UsageError, match=words):
        choose_method(facts, budget)


def test_survey(folder: Path) -> None:
    """The facts are those of the machine and the files."""
    files = write_files(folder, [random_bytes(10_000), random_bytes(20_000)])
    facts = survey_files(files, 123.0, 2)
    assert facts.kept_open
    assert not survey_files(files, 123.0, 1).kept_open
    assert facts.mean_bytes == 123.0
    assert facts.total_bytes == 30_000
    assert facts.resident == 1.0  # just written
    assert facts.file_system not in ("", "unknown")
    assert facts.cores == len(os.sched_getaffinity(0))
    fd = os.open(files.path(0), os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    assert survey_files(files, 1.0, 2).resident in (0.0, 1.0)  # tmpfs keeps its pages
    assert survey_files(
        Files.of(str(folder), [], np.zeros(0, np.int64), np.zeros(0, np.int64)), 0.0, 9
    )
    gone = survey_files(
        Files.of("/nowhere", ["x"], np.ones(1, np.int64), np.ones(1, np.int64)), 1.0, 9
    )
    assert (gone.file_system, gone.resident, gone.direct_refusal) == ("unknown", -1.0, 0)


def test_survey_does_not_wait_for_a_pipe(folder: Path) -> None:
    """A pipe in the place of a file is neither waited for nor read."""
    os.mkfifo(folder / "pipe")
    files = Files.of(str(folder), ["pipe"], np.ones(1, np.int64), np.ones(1, np.int64))
    assert survey_files(files, 1.0, 9).resident == -1.0
    engine = NativeEngine(files)
    reading = EngineRead([b"x"], [[(0, 0, 1)]])
    assert read(engine, reading) == (Failure(0, errno.ESTALE, 0),)
    engine.close()


def test_open_files_max() -> None:
    """The number of files kept open leaves most of the process's limit to its user."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (400, before[1]))
        assert compute_open_files_max() == 100
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert 1 <= compute_open_files_max() <= limits.open_files_max


# -- the arena -------------------------------------------------------------------------------


def address(array: np.ndarray) -> int:
    """The address at which an array begins."""
    return int(array.__array_interface__["data"][0])


def test_arena_recycles() -> None:
    """A returned block is the next one of its size, and blocks are page-aligned and writable."""
    arena = Arena(8 * MIB)
    for size in (0, 1, 4097, 3 * MIB):
        block = arena.take(size)
        assert block.shape == (size,)
        assert block.dtype == np.uint8
        assert block.flags.writeable
        place = address(block)
        assert place % 4096 == 0
        assert arena.lent_bytes >= size
        block[:] = 7
        del block
        assert arena.lent_bytes == 0
        again = arena.take(size)
        assert address(again) == place
        del again


def test_arena_views_keep_memory() -> None:
    """A block returns when the last view of it is gone, also after the arena itself."""
    arena = Arena(8 * MIB)
    block = arena.take(MIB)
    view = block[100:200].view(np.int8)
    del block
    gc.collect()
    assert arena.lent_bytes >= MIB
    view[:] = 5
    assert address(arena.take(MIB)) + 100 != address(view)
    del arena
    gc.collect()
    assert view.sum() == 500


def test_arena_keeps_no_more_than_its_bound() -> None:
    """Whatever the sizes, no more than the bound waits to be used again."""
    arena = Arena(4 * MIB)
    random = np.random.default_rng(1)
    for _ in range(200):
        blocks = [arena.take(int(size)) for size in random.integers(0, 2 * MIB, 3)]
        assert arena.kept_bytes <= 4 * MIB
        del blocks
        assert arena.kept_bytes <= 4 * MIB
    del random
    assert arena.lent_bytes == 0
    assert Arena(0).take(10).size == 10


@pytest.mark.parametrize("size", [1 << 62, (1 << 63) - 1, (1 << 64) - 1, 1 << 47])
def test_arena_refuses_the_impossible(size: int) -> None:
    """Memory that nobody has is a MemoryError that names the size, and nothing is lent."""
    arena = Arena(MIB)
    with pytest.raises(MemoryError, match="batch_size"):
        arena.take(size)
    assert arena.lent_bytes == 0


def test_arena_in_threads() -> None:
    """Threads that take and return at the same time never share memory."""
    arena = Arena(4 * MIB)
    wrong: list[int] = []

    def churn(number: int) -> None:
        random = np.random.default_rng(number)
        for _ in range(200):
            block = arena.take(int(random.integers(1, 200_000)))
            block[:] = number
            if not (block == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=churn, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert arena.lent_bytes == 0


# -- changes while running -------------------------------------------------------------------


@pytest.mark.long
def test_adopt_while_reading(folder: Path) -> None:
    """Threads, rate, backend and O_DIRECT change with tickets in flight, and every byte arrives."""
    contents = [random_bytes(MIB + 13, seed) for seed in range(3)]
    engine = NativeEngine(write_files(folder, contents), budget=BUDGETS["pread"])
    direct = [b.replace(direct="required") for b in BUDGETS.values() if b.mmap != "required"]
    budgets = [*BUDGETS.values(), *direct]
    random = np.random.default_rng(1)
    readings: dict[int, EngineRead] = {}
    for round_ in range(60):
        reading = reading_all(contents, 30_000, round_)
        readings[engine.submit(reading.requests, reading.buffers)] = reading
        budget = budgets[random.integers(len(budgets))]
        rate = [None, 1e9, 3e8][random.integers(3)]
        engine.adopt(budget.replace(threads=int(random.integers(1, 6)), bytes_per_s=rate))
        assert engine.choice.direct == (budget.direct == "required")
        while len(readings) > 5:
            for done in engine.poll(SECOND_NS):
                readings.pop(done.ticket).assert_done(done)
    for ticket, done in finish(engine, readings).items():
        readings[ticket].assert_done(done)
    assert engine.counters()["bytes"] == 60 * 3 * (MIB + 13)
    engine.close()


def test_adopt_refuses_and_goes_on(folder: Path) -> None:
    """A budget that cannot be had leaves the engine as it was."""
    contents = [random_bytes(10_000)]
    engine = NativeEngine(write_files(folder, contents), budget=BUDGETS["pread"])
    before = engine.choice
    with pytest.raises(UsageError):
        engine.adopt(Budget(io_uring="required", mmap="required"))
    assert engine.choice is before
    assert read(engine, reading_all(contents)) == ()
    engine.close()
    with pytest.raises(UsageError, match="closed"):
        engine.adopt(Budget())


def test_a_budget_opens_no_file(folder: Path) -> None:
    """Only a survey looks at files: with them gone a budget still changes, from what is known."""
    contents = [random_bytes(8192, seed) for seed in range(3)]
    files = write_files(folder, contents)
    budget = Budget(mmap="auto", io_uring="off", threads=2)
    engine = NativeEngine(files, budget=budget)
    before = engine.choice
    assert before.cached
    with Opened(files.path(i) for i in range(3)) as opened:
        engine.adopt(budget.replace(bytes_per_s=1e9, cores=0.5, readahead_bytes=MIB))
        engine.adopt(BUDGETS["pread"])
        assert engine.choice.backend == "pread"
        engine.adopt(budget)
        assert not opened()
        engine.survey()
        assert opened()
    assert engine.choice == before
    for i in range(3):
        os.unlink(files.path(i))
    engine.adopt(budget.replace(bytes_per_s=1e9))
    assert engine.choice == before
    engine.survey()
    assert not engine.choice.cached
    engine.close()
    with pytest.raises(UsageError, match="closed"):
        engine.survey()


def test_threads_follow_the_budget(folder: Path) -> None:
    """More threads are started when asked for, surplus ones do not read, all are joined."""
    contents = [random_bytes(MIB)]
    before = thread_count()
    engine = NativeEngine(write_files(folder, contents), budget=BUDGETS["pread"].replace(threads=1))
    assert thread_count() == before + 1
    engine.adopt(BUDGETS["pread"].replace(threads=9))
    assert thread_count() == before + 9
    engine.adopt(BUDGETS["pread"].replace(threads=1))
    assert read(engine, reading_all(contents)) == ()
    engine.close()
    assert settled(before, thread_count)


RATE = 100e6


def read_at_rate(backend: str, folder: Path) -> tuple[int, float]:
    """Read half a second of small extents; the bytes, and how many `RATE` would have allowed."""
    contents = [random_bytes(2 * MIB)]
    budget = BUDGETS[backend].replace(threads=4, bytes_per_s=RATE)
    engine = NativeEngine(write_files(folder, contents), budget=budget)
    reading = reading_all(contents)
    start = time.monotonic()
    for _ in range(25):
        assert read(engine, reading) == ()
    allowed = (time.monotonic() - start) * RATE
    engine.close()
    return 25 * 2 * MIB, allowed


@backends
def test_rate_is_not_exceeded(backend: str, folder: Path) -> None:
    """One chunk and 25 milliseconds may run ahead."""
    total, allowed = read_at_rate(backend, folder)
    assert total - 2 * limits.MIB / 4 - 0.03 * RATE <= allowed


@backends
@retried
def test_rate_is_not_missed(backend: str, folder: Path) -> None:
    """Threads that have slept too long catch up: a tenth is lost at most."""
    total, allowed = read_at_rate(backend, folder)
    assert allowed <= 1.1 * total


def test_rate_changes_at_once(folder: Path) -> None:
    """A read that waits for a slow rate is released by a fast one, and a crawl hinders no close."""
    contents = [random_bytes(3 * MIB)]
    crawl = BUDGETS["pread"].replace(bytes_per_s=1e-6)
    engine = NativeEngine(write_files(folder, contents), budget=crawl)
    reading = reading_all(contents)
    ticket = engine.submit(reading.requests, reading.buffers)
    assert engine.poll(50_000_000) == []
    engine.adopt(BUDGETS["pread"].replace(bytes_per_s=1e9))
    reading.assert_done(finish(engine, [ticket])[ticket])
    engine.adopt(crawl)
    engine.submit(reading.requests, reading.buffers)
    start = time.monotonic()
    engine.close()
    assert time.monotonic() - start < 120  # for ever, were it to wait


@backends
def test_timeouts_of_any_size(backend: str, folder: Path) -> None:
    """Negative and enormous waits mean none, and until something is done."""
    contents = [random_bytes(MIB)]
    engine = NativeEngine(write_files(folder, contents), budget=BUDGETS[backend])
    for timeout_ns in (-1, -(1 << 62), 1 << 62, (1 << 63) - 1, 1 << 70):
        reading = reading_all(contents)
        ticket = engine.submit(reading.requests, reading.buffers)
        done = engine.poll(timeout_ns)
        assert [completion.ticket for completion in done] == [ticket] or timeout_ns < 0
        if not done:
            finish(engine, [ticket])
    engine.close()


def test_refuses_what_it_would_have_to_copy(folder: Path) -> None:
    """No buffer but a writable array of bytes is accepted: the bytes would go to a copy."""
    contents = [random_bytes(100)]
    with_engine = NativeEngine(write_files(folder, contents))
    requests = EngineRead(contents, [[(0, 0, 100)]]).requests
    for buffer in (
        None,
        b"x" * 200,
        np.zeros(200, np.int16),
        np.zeros(400, np.uint8)[::2],
        [0] * 200,
    ):
        with pytest.raises(UsageError):
            with_engine.submit(requests, [buffer])  # type: ignore[list-item]
    with_engine.close()


# -- the end ---------------------------------------------------------------------------------


@one_backend
def test_leaves_nothing(backend: str, folder: Path) -> None:
    """A hundred engines, closed or collected with work in flight, leave no thread, file or map."""
    contents = [random_bytes(50_000, seed) for seed in range(3)]
    files = write_files(folder, contents)
    reading = reading_all(contents)
    read(NativeEngine(files, budget=BUDGETS[backend]), reading)
    gc.collect()

    def maps() -> int:
        return Path("/proc/self/maps").read_text().count(str(folder))

    threads, descriptors = thread_count(), len(os.listdir("/proc/self/fd"))
    for number in range(100):
        engine = NativeEngine(files, budget=BUDGETS[backend], keep_open_max=number % 2 * 10)
        engine.submit(reading.requests, reading.buffers)
        if number % 3:
            engine.close()
        if number % 5 == 0:
            read(NativeEngine(files, budget=BUDGETS[backend]), reading)
    del engine
    gc.collect()
    assert settled(threads, thread_count)
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert maps() == 0


def test_close_from_another_thread(folder: Path) -> None:
    """Closing while another thread polls ends that poll, and neither writes afterwards."""
    contents = [random_bytes(MIB)]
    for backend in BUDGETS:
        crawl = BUDGETS[backend].replace(bytes_per_s=1.0)
        engine = NativeEngine(write_files(folder, contents), budget=crawl)
        reading = reading_all(contents)
        engine.submit(reading.requests, reading.buffers)
        polled = threading.Event()
        ended = threading.Event()

        def poll(engine: NativeEngine = engine, polled: Any = polled, ended: Any = ended) -> None:
            polled.set()
            with contextlib.suppress(UsageError):  # closed before it began
                engine.poll(60 * SECOND_NS)
            ended.set()

        thread = threading.Thread(target=poll)
        thread.start()
        assert polled.wait(240)
        engine.close()
        assert ended.wait(240)
        thread.join()
        left = [buffer.copy() for buffer in reading.buffers]
        assert all((a == b).all() for a, b in zip(left, reading.buffers, strict=True))


CHILD_ENGINE = """
contents = [random_bytes(4 * MIB)]
budget = BUDGETS[sys.argv[1]]
files = write_files(Path.cwd(), contents)
engine = NativeEngine(files, budget=budget)
reading = reading_all(contents)
"""


@backends
def test_exit_with_reads_in_flight(backend: str) -> None:
    """An interpreter may end with an engine alive and tickets unreported."""
    in_child(
        CHILD_ENGINE
        + """
for _ in range(20):
    engine.submit(reading.requests, reading.buffers)
import builtins
builtins.kept_to_the_very_end = engine
print("done")
""",
        backend,
    )


@backends
def test_exit_while_a_daemon_polls(backend: str) -> None:
    """An interpreter may end while a daemon thread waits in poll for what never comes."""
    result = in_child(
        CHILD_ENGINE
        + """
engine.adopt(budget.replace(bytes_per_s=1.0))
def poll():
    for _ in range(3):
        engine.submit(reading.requests, reading.buffers)
    polling.set()
    while True:
        engine.poll(1_000_000)
polling = threading.Event()
threading.Thread(target=poll, daemon=True).start()
polling.wait()
print("done")
""",
        backend,
        check=False,
    )
    assert (result.returncode, result.stdout[-5:]) == (0, "done\n"), result.stderr[-2000:]


@one_backend
def test_fork(backend: str) -> None:
    """A forked child is refused by name, ends without hanging, and harms no parent, whatever the
    engine's threads do meanwhile."""
    in_child(
        CHILD_ENGINE
        + """
tickets = []
arena = Arena(MIB)
block = arena.take(1000)
for how in ("exit", *["_exit"] * 10, "new", "collect"):
    sys.stdout.flush()
    tickets.append(engine.submit(reading.requests, reading.buffers))
    child = os.fork()
    if child == 0:
        for call in (
            lambda: engine.submit(reading.requests, reading.buffers),
            lambda: engine.poll(0),
            lambda: engine.adopt(budget),
            engine.counters,
        ):
            with pytest.raises(ForkError, match="spawn"):
                call()
        engine.close()
        engine.close()
        block[:] = 1
        del block
        assert arena.take(1000).size == 1000
        if how == "new":
            own = NativeEngine(files, budget=budget)
            assert read(own, reading_all(contents)) == ()
        if how == "collect":
            del engine
            gc.collect()
        if how == "_exit":
            os._exit(0)
        sys.exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, (how, status)
reading.assert_done(finish(engine, tickets)[tickets[-1]])
print("done")
""",
        backend,
    )


# -- other users and kernels -----------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_unprivileged_user() -> None:
    """A user without privileges and with the usual memory lock limit reads by io_uring."""
    in_child(
        CHILD_ENGINE
        + """
engine.close()
os.chmod(".", 0o755)
resource.setrlimit(resource.RLIMIT_MEMLOCK, (8 * MIB, 8 * MIB))
child = os.fork()
if child == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    own = NativeEngine(files, budget=budget.replace(threads=8))
    assert own.choice.backend == "io_uring"
    assert survey_files(files, 1.0, 9).resident == -1.0  # the kernel does not tell
    assert read(own, reading) == ()
    own.close()
    os._exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
print("done")
""",
        "io_uring",
    )


REFUSE = """
import ctypes, platform, struct
if platform.machine() != "x86_64":
    print("skip: the filter is written for x86-64")
    raise SystemExit
def refuse(number, code):
    load = struct.pack("HBBI", 0x20, 0, 0, 0)
    compare = struct.pack("HBBI", 0x15, 0, 1, number)
    deny = struct.pack("HBBI", 0x06, 0, 0, 0x00050000 | code)
    allow = struct.pack("HBBI", 0x06, 0, 0, 0x7fff0000)
    program = ctypes.create_string_buffer(load + compare + deny + allow)
    head = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", 4, ctypes.addressof(program)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, head, 0, 0):
        print("skip: no system call filters here")
        raise SystemExit
"""


def in_filtered_child(script: str, *arguments: object) -> None:
    """Run a script that may `refuse` system calls."""
    result = in_child(REFUSE + textwrap.dedent(script), *arguments, check=False)
    if result.stdout.startswith("skip: "):
        pytest.skip(result.stdout[6:].strip())
    assert (result.returncode, result.stdout[-5:]) == (0, "done\n"), result.stderr[-4000:]


def test_io_uring_forbidden() -> None:
    """If a ring is refused, 'auto' reads by pread and says why, and 'required' is an error."""
    in_filtered_child(
        """
refuse(425, errno.EPERM)
contents = [random_bytes(MIB)]
files = write_files(Path.cwd(), contents)
engine = NativeEngine(files, budget=Budget(mmap="off"))
assert engine.choice.backend == "pread"
assert "Operation not permitted" in engine.choice.reasons["io_uring"]
assert read(engine, reading_all(contents)) == ()
with pytest.raises(UsageError, match="Operation not permitted"):
    NativeEngine(files, budget=BUDGETS["io_uring"])
engine.close()
print("done")
"""
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "code",
    first(1, [errno.ENOMEM, errno.EAGAIN, errno.EBUSY, errno.EPERM]),
)
def test_ring_takes_no_entries(code: int) -> None:
    """A ring that was granted but takes nothing is no endless loop and no abort: bytes arrive."""
    in_filtered_child(
        """
refuse(426, int(sys.argv[1]))
contents = [random_bytes(MIB), random_bytes(5 * MIB + 1)]
files = write_files(Path.cwd(), contents)
for direct in ("off", "required"):
    engine = NativeEngine(files, budget=BUDGETS["io_uring"].replace(direct=direct))
    for seed in range(5):
        reading = reading_all(contents, 70_001, seed)
        ticket = engine.submit(reading.requests, reading.buffers)
        reading.assert_done(finish(engine, [ticket])[ticket])
    engine.close()
print("done")
""",
        code,
    )


def test_late_refusal_of_a_ring() -> None:
    """If rings are refused after the choice, the data still arrives."""
    in_filtered_child(
        CHILD_ENGINE.replace("engine = ", "first = ")
        + """
engine = NativeEngine(files, budget=BUDGETS["pread"])
assert read(engine, reading) == ()
first.close()
refuse(425, errno.EPERM)
engine.adopt(budget)  # from what was known
assert read(engine, reading) == ()
with pytest.raises(UsageError):
    engine.survey()
engine._core.set_backend(1, False)
assert read(engine, reading) == ()
engine.close()
print("done")
""",
        "io_uring",
    )


def test_fewer_threads_than_wanted() -> None:
    """If the system refuses threads, the engine reads with those it got."""
    in_child(
        CHILD_ENGINE
        + """
engine.close()
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))  # 8 MiB of stack each
engine = NativeEngine(files, budget=budget.replace(threads=250))
assert thread_count() < 250
engine.adopt(budget.replace(threads=256))
assert read(engine, reading) == ()
engine.close()
print("done")
""",
        "pread",
    )


# -- files that change -----------------------------------------------------------------------

CUTS = [0, 1, 4096, 5000, 8192, 3 * 4096 + 1, 8 * 4096 - 1]


@backends
@pytest.mark.parametrize("cut", CUTS)
def test_truncated_while_open(backend: str, cut: int, folder: Path) -> None:
    """A file cut short after it was opened is reported, and what is not reported is right."""
    contents = [random_bytes(8 * 4096)]
    files = write_files(folder, contents)
    engine = NativeEngine(files, budget=BUDGETS[backend])
    reading = reading_all(contents, 3000)
    assert read(engine, reading) == ()
    os.truncate(files.path(0), cut)
    reading = reading_all(contents, 3000, 5)
    failures = {failure.extent: failure for failure in read(engine, reading)}
    file, offset, length, buffer, target, _ = reading.requests
    for i in range(len(file)):
        if i not in failures:
            assert offset[i] + length[i] <= cut
            data = reading.buffers[buffer[i]][target[i] : target[i] + length[i]].tobytes()
            assert data == contents[0][offset[i] : offset[i] + length[i]]
        elif failures[i].errno == 0:
            assert failures[i].got == max(0, cut - int(offset[i]))
        else:
            assert failures[i] == Failure(i, errno.ESTALE, 0)
    engine.close()


@pytest.mark.long
def test_truncated_again_and_again_under_maps() -> None:
    """While threads copy from its map a file is cut and grown: failures, and never a signal."""
    in_child(
        CHILD_ENGINE
        + """
engine.adopt(budget.replace(threads=4))
assert read(engine, reading) == ()
stop = threading.Event()
def cut():
    size = 0
    while not stop.is_set():
        os.truncate(files.path(0), size)
        size = (size + 1_234_567) % (4 * MIB)
cutter = threading.Thread(target=cut)
cutter.start()
for seed in range(30):
    reading = reading_all(contents, 4096, seed)
    failures = {each.extent: each for each in read(engine, reading)}
    assert all(each.errno == errno.ESTALE or each.got < 4096 for each in failures.values())
    file, offset, length, buffer, target, _ = reading.requests
    for i in set(range(len(file))) - set(failures):
        found = reading.buffers[buffer[i]][target[i] : target[i] + length[i]].tobytes()
        assert found == contents[0][offset[i] : offset[i] + length[i]]
stop.set()
cutter.join()
engine.close()
print("done")
""",
        "mmap",
    )


@backends
def test_cut_and_grown_again_while_open(backend: str, folder: Path) -> None:
    """A file rewritten in place under a map is another file, although its size is the same."""
    contents = [random_bytes(100_000)]
    files = write_files(folder, contents)
    engine = NativeEngine(files, budget=BUDGETS[backend])
    assert read(engine, reading_all(contents)) == ()
    os.truncate(files.path(0), 0)
    os.truncate(files.path(0), 100_000)
    reading = reading_all(contents)
    failures = read(engine, reading)
    if backend == "mmap":
        assert {failure.errno for failure in failures} == {errno.ESTALE}
        assert len(failures) == len(reading.requests.file)
    engine.close()


@backends
def test_grown_while_open(backend: str, folder: Path) -> None:
    """Bytes appended to a file that is open change nothing of what was indexed."""
    contents = [random_bytes(10_000)]
    files = write_files(folder, contents)
    engine = NativeEngine(files, budget=BUDGETS[backend])
    assert read(engine, reading_all(contents)) == ()
    with open(files.path(0), "ab") as file:
        file.write(b"more" * 5000)
    reading = reading_all(contents)
    failures = read(engine, reading)
    assert failures == () or {failure.errno for failure in failures} == {errno.ESTALE}
    if not failures:
        file_, offset, length, buffer, target, _ = reading.requests
        for i in range(len(file_)):
            data = reading.buffers[buffer[i]][target[i] : target[i] + length[i]].tobytes()
            assert data == contents[0][offset[i] : offset[i] + length[i]]
    engine.close()


@backends
@pytest.mark.parametrize("keep_open_max", [0, 10])
def test_changed_after_indexing(backend: str, keep_open_max: int, folder: Path) -> None:
    """Files replaced, touched, resized, gone, or folders now, are told from those that stay."""
    contents = [random_bytes(5000, seed) for seed in range(6)]
    files = write_files(folder, contents)
    stamp = os.stat(files.path(0))
    Path(files.path(0)).unlink()
    Path(files.path(0)).write_bytes(contents[0][::-1])
    os.utime(files.path(0), ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 1))
    os.utime(files.path(1))
    with open(files.path(2), "ab") as file:
        file.write(b"x")
    Path(files.path(3)).unlink()
    Path(files.path(4)).unlink()
    Path(files.path(4)).mkdir()
    engine = NativeEngine(files, budget=BUDGETS[backend], keep_open_max=keep_open_max)
    reading = EngineRead(contents, [[(file, 100, 50)] for file in range(6)])
    failures = {failure.extent: (failure.errno, failure.got) for failure in read(engine, reading)}
    stale = (errno.ESTALE, 0)
    assert failures == {0: stale, 1: stale, 2: stale, 3: (errno.ENOENT, 0), 4: stale}
    engine.close()


@backends
def test_open_files_that_lose_their_names(backend: str, folder: Path) -> None:
    """A file that is held open and is deleted is ENOENT some milliseconds later, one that is
    replaced is ESTALE, unless what has its name has its size and time. Until then, and if it was
    only renamed, its bytes are those that were indexed."""
    contents = [random_bytes(5000, seed) for seed in range(5)]
    files = write_files(folder, contents)
    engine = NativeEngine(files, budget=BUDGETS[backend], keep_open_max=10)
    wanted = [[(file, 100, 50)] for file in range(5)]
    assert read(engine, EngineRead(contents, wanted)) == ()
    Path(files.path(0)).unlink()
    for file in (1, 2):
        stamp, other = os.stat(files.path(file)), folder / "other"
        other.write_bytes(contents[file])
        os.utime(other, ns=(stamp.st_atime_ns, stamp.st_mtime_ns + (file == 1)))
        other.rename(files.path(file))
    Path(files.path(3)).rename(folder / "moved")
    told: dict[int, int] = {}
    while told.keys() != {0, 1}:
        reading = EngineRead(contents, wanted)
        told |= {failure.extent: failure.errno for failure in read(engine, reading)}
        for extent in {0, 1, 2, 3, 4} - told.keys():
            at = reading.requests.target[extent]
            buffer = reading.buffers[reading.requests.buffer[extent]]
            assert buffer[at : at + 50].tobytes() == contents[extent][100:150]
    assert told == {0: errno.ENOENT, 1: errno.ESTALE}
    engine.close()


@pytest.mark.parametrize("backend", ["io_uring", "pread"])
def test_failed_reads(backend: str) -> None:
    """An error of the storage concerns its extent alone, in a run of its own or with others."""
    # The memory of this process is a file whose holes are read errors.
    page = 4096
    arena = np.zeros(16 * page, np.uint8)
    arena[:] = np.frombuffer(random_bytes(len(arena)), np.uint8)
    start = address(arena)
    hole = page  # nothing is mapped there
    os.stat("/proc/self/mem")
    holder = open("/proc/self/mem", "rb")  # noqa: SIM115 - keeps the inode and its times
    stamp = os.fstat(holder.fileno())
    files = Files.of(
        "/proc/self",
        ["mem"],
        np.array([stamp.st_size], np.int64),
        np.array([stamp.st_mtime_ns], np.int64),
    )
    engine = NativeEngine(files, budget=BUDGETS[backend])
    extents = [(hole, 100), (start, 500), (hole, 100), (hole + 300, 100), (start + 700, 300)]
    buffer = np.zeros(2000, np.uint8)
    requests = Requests(
        np.zeros(5, np.uint32),
        np.array([extent[0] for extent in extents], np.int64),
        np.array([extent[1] for extent in extents], np.int64),
        np.zeros(5, np.uint32),
        np.array([0, 100, 600, 700, 800], np.int64),
        np.array([0, 1, 2, 4, 5], np.int64),
    )
    ticket = engine.submit(requests, [buffer])
    failures = {failure.extent: failure for failure in finish(engine, [ticket])[ticket].failures}
    holder.close()
    if failures.get(1) is not None and failures[1].errno == errno.ESTALE:
        pytest.skip("the times of /proc/self/mem are not kept")
    assert failures == {i: Failure(i, errno.EIO, 0) for i in (0, 2, 3)}
    assert (buffer[100:600] == arena[:500]).all()
    assert (buffer[800:1100] == arena[700:1000]).all()
    engine.close()


@backends
def test_offsets_beyond_gigabytes(backend: str, folder: Path) -> None:
    """Bytes far behind 2 GiB and 4 GiB of a sparse file arrive."""
    path = folder / "sparse"
    places = [(1 << 31) - 100, (1 << 32) - 100, (1 << 33) + 12_345, 5 * (1 << 31)]
    with open(path, "wb") as file:
        for place in places:
            file.seek(place)
            file.write(random_bytes(1000, place))
    stamp = os.stat(path)
    files = Files.of(
        str(folder), ["sparse"], np.array([stamp.st_size]), np.array([stamp.st_mtime_ns])
    )
    direct = [BUDGETS[backend]]
    if backend != "mmap":
        direct.append(BUDGETS[backend].replace(direct="required"))
    for budget in direct:
        engine = NativeEngine(files, budget=budget)
        buffer = np.zeros(4000, np.uint8)
        requests = Requests(
            np.zeros(4, np.uint32),
            np.array(places, np.int64),
            np.full(4, 1000, np.int64),
            np.zeros(4, np.uint32),
            np.arange(4) * 1000,
            np.arange(5),
        )
        ticket = engine.submit(requests, [buffer])
        assert finish(engine, [ticket])[ticket].failures == ()
        assert buffer.tobytes() == b"".join(random_bytes(1000, place) for place in places)
        engine.close()


# -- signals of others -----------------------------------------------------------------------

BUS_ERROR = """
import faulthandler, mmap
def fault():
    path = Path("other")
    path.write_bytes(b"x" * 8192)
    with open(path, "r+b") as file:
        view = mmap.mmap(file.fileno(), 8192)
    os.truncate(path, 0)
    print("done", flush=True)
    return view[5000]
"""


@pytest.mark.parametrize("order", ["before", "after", "both", "never"])
def test_bus_errors_of_others(order: str) -> None:
    """A SIGBUS that is not the engine's meets the handler of others, and ends the process once."""
    result = in_child(
        CHILD_ENGINE
        + BUS_ERROR
        + """
order = sys.argv[2]
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
if order in ("before", "both"):
    faulthandler.enable()
assert read(engine, reading) == ()
if order in ("after", "both"):
    faulthandler.enable()
    assert read(engine, reading) == ()
fault()
""",
        "mmap",
        order,
        check=False,
    )
    assert result.returncode == -signal.SIGBUS, (result.returncode, result.stderr[-2000:])
    assert result.stdout == "done\n"
    dumps = result.stderr.count("Fatal Python error: Bus error")
    assert dumps >= 1 if order in ("before", "both") else True
    assert dumps <= 2, result.stderr[-3000:]


def test_signal_handler_of_python() -> None:
    """A SIGBUS sent by somebody reaches a handler that was installed before the engine's."""
    in_child(
        """
calls = []
signal.signal(signal.SIGBUS, lambda number, frame: calls.append(number))
"""
        + CHILD_ENGINE
        + """
assert read(engine, reading) == ()
os.kill(os.getpid(), signal.SIGBUS)
assert calls == [signal.SIGBUS]
assert read(engine, reading) == ()
engine.close()
print("done")
""",
        "mmap",
    )


@pytest.mark.skipif(emulation.usable() is not None, reason=f"no storage: {emulation.usable()}")
def test_a_limited_rate_leaves_requests_in_flight(folder: Path) -> None:
    """Where storage is far away, threads wait for it side by side, while there is credit, too."""
    contents = [random_bytes(8 * MIB)]
    written = write_files(folder, contents)
    burst = EngineRead(contents, [[(0, MIB * run, MIB)] for run in range(4)], 2)
    short = EngineRead(contents, [[(0, 64 * 1024 * run, 4096)] for run in range(128)], 2)
    with emulation.Shared(read_ns=50_000_000) as storage:
        files = replace(written, root=storage.mount(folder, direct=True).path)
        budget = BUDGETS["pread"].replace(threads=128, bytes_per_s=RATE)
        engine = NativeEngine(files, budget=budget)
        tickets = [engine.submit(one.requests, one.buffers) for one in (burst, short)]
        found = finish(engine, tickets)
        most = storage.counters()["outstanding_max"]
        engine.close()
    for one, ticket in zip((burst, short), tickets, strict=True):
        one.assert_done(found[ticket])
    assert most >= 64
