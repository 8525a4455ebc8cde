"""Replay of a job's reads: the same operations on the same places, by as many threads, in order.

Each thread of the trace does its operations one after the other. The time between two of them, in
which the job did something with what it had read, is kept (divided by `speed`), and the operations
take what they take here: so the whole takes as long as the job would have waited and worked, with
this storage. Or the times between are dropped, and the reads go as fast as they go. Threads that
never were at work at the same time follow each other here too.

Of this the core does whole blocks of operations, without Python. The trace's files are moved by
their folders to other places on this machine, or synthesized there.
"""

from __future__ import annotations

import contextlib
import os
import resource
import stat
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from penstock import limits
from penstock.engine import compute_open_files_max, start_threads
from penstock.errors import LimitError, MissingError, UsageError
from penstock.extent import Files, Int, Names

from .. import _replay
from .logs import assign_lanes
from .summary import Latencies
from .trace_file import KINDS, OPEN_DIRECT, READ, Operations, Trace

Progress = Callable[[int, int], object]

_CHUNK = 8 << 20


def ignore_progress(done: int, total: int) -> None:
    """Show no progress."""


@dataclass
class ReplayOutcome:
    """Results of a trace's operations, in the job or in its replay.

    seconds:     from the first operation to the end of the last.
    threads:     that were at work.
    took:        of each kind of operation, how long they took.
    late:        how much later than they should have operations began; None where times were
                 dropped.
    bytes:       that reads gave.
    failed:      reads that failed here and not in the job.
    short:       reads that gave less than in the job.
    differed:    other operations that failed here and not in the job: of what it had removed since.
    first_failure:  the first that failed, in words.
    """

    seconds: float = 0.0
    threads: int = 0
    took: dict[str, Latencies] = field(
        default_factory=lambda: {kind: Latencies() for kind in KINDS}
    )
    late: Latencies | None = None
    bytes: int = 0
    failed: int = 0
    short: int = 0
    differed: int = 0
    first_failure: str | None = None

    @property
    def reads(self) -> int:
        """Number of reads."""
        return self.took["read"].count

    @property
    def waited_s(self) -> float:
        """Seconds in operations, of all threads together."""
        return sum(took.sum_ns for took in self.took.values()) * 1e-9

    def add(self, rows: Operations, result: Int, duration_ns: Int) -> None:
        """Add operations and their results."""
        for number, name in enumerate(KINDS):
            self.took[name].add(duration_ns[rows.kind == number])
        read = result[rows.kind == READ]
        self.bytes += int(read[read > 0].sum())

    def join(self, other: ReplayOutcome) -> None:
        """Add the results of other operations at the same time."""
        for name, took in self.took.items():
            took.join(other.took[name])
        if other.late is not None:
            self.late = self.late or Latencies()
            self.late.join(other.late)
        self.bytes += other.bytes
        self.failed += other.failed
        self.first_failure = self.first_failure or other.first_failure
        self.short += other.short
        self.differed += other.differed


def collect_recorded(trace: Trace) -> ReplayOutcome:
    """Collect the results of the operations in the job."""
    outcome = ReplayOutcome(seconds=trace.end_ns * 1e-9, threads=len(group_threads(trace)))
    for _, rows in trace.in_order():
        outcome.add(rows, rows.result, rows.duration_ns)
    return outcome


def group_threads(trace: Trace) -> list[list[int]]:
    """Group threads that one thread can replay in sequence, because they did not overlap."""
    spans = trace.spans()
    order = sorted(
        (number for number, (first, last) in enumerate(spans) if first <= last),
        key=lambda number: spans[number],
    )
    groups: dict[int, list[int]] = {}
    for number, lane in zip(order, assign_lanes([spans[thread] for thread in order]), strict=True):
        groups.setdefault(lane, []).append(number)
    return list(groups.values())


def replay(
    trace: Trace,
    paths: Sequence[str],
    *,
    speed: float | None = 1.0,
    progress: Progress = ignore_progress,
) -> ReplayOutcome:
    """Do the operations of a trace by plain preads on the files at `paths`, by file number.

    speed:  by which the times between operations are divided; None drops them.

    Nothing is written or created. What fails is counted. UsageError for a speed that cannot be,
    LimitError for more threads at a time than `limits.replay_threads_max`, FormatError where the
    trace is damaged.
    """
    if speed is not None and not 0 < speed < float("inf"):
        raise UsageError(f"speed is {speed!r}: use a number above 0, or None for no pauses")
    threads = group_threads(trace)
    if len(threads) > limits.replay_threads_max:
        raise LimitError(
            f"{len(threads):,} threads of the job were at work at the same time, and"
            f" {limits.replay_threads_max:,} can be replayed: take fewer of its folders by"
            " `penstock trace import --under`"
        )
    _raise_file_limit()
    names = Names.of([os.path.abspath(path) for path in paths])
    core = _replay.Replay(names=names.text, ends=names.ends, keep_max=compute_open_files_max())
    # All have started by then, and wait.
    began_ns = time.monotonic_ns() + 1_000_000 * min(300, 20 + len(threads))
    players = [_Player(core, trace, numbers, speed, began_ns, paths) for numbers in threads]
    total = trace.count
    start_threads(players, core.stop)
    try:
        for player in players:
            while player.is_alive():
                player.join(0.1)
                progress(sum(player.done for player in players), total)
    except BaseException:  # Ctrl-C, too: no player outlives the replay
        core.stop()
        for player in players:
            player.join()
        raise
    outcome = ReplayOutcome(threads=len(threads), late=None if speed is None else Latencies())
    for player in players:
        if player.error is not None:
            raise player.error
        outcome.join(player.outcome)
    ends_ns = [player.ended_ns for player in players]
    outcome.seconds = max(0, max(ends_ns, default=began_ns) - began_ns) * 1e-9
    return outcome


class _Player(threading.Thread):
    """Replays some threads of a trace, one after the other."""

    def __init__(
        self,
        core: _replay.Replay,
        trace: Trace,
        threads: Sequence[int],
        speed: float | None,
        began_ns: int,
        paths: Sequence[str],
    ) -> None:
        super().__init__(daemon=True, name=f"replay-{threads[0]}")
        self.outcome = ReplayOutcome(late=None if speed is None else Latencies())
        self.error: BaseException | None = None
        self.done = 0
        self.ended_ns = began_ns
        self._core = core
        self._trace = trace
        self._threads = threads
        self._speed = speed
        self._paths = paths

    def run(self) -> None:
        try:
            self._play()
        except BaseException as error:
            self.error = error
            self._core.stop()

    def _play(self) -> None:
        due_ns, before_ns = self.ended_ns, 0
        if self._speed is None:
            time.sleep(max(0, due_ns - time.monotonic_ns()) * 1e-9)
        for thread in self._threads:
            for rows in self._trace.of_thread(thread):
                think_ns, before_ns = compute_pauses(rows, before_ns)
                if self._speed not in (None, 1.0):
                    think_ns = (think_ns / self._speed).astype(np.int64)
                count = len(rows.kind)
                result, late_ns, duration_ns = (np.zeros(count, np.int64) for _ in range(3))
                done, due_ns = self._core.perform(
                    *rows[:4], think_ns, self._speed is not None, due_ns,
                    result, late_ns, duration_ns,
                )  # fmt: skip
                self.ended_ns = due_ns + int(late_ns[max(0, done - 1)])
                self._note(rows.at(slice(done)), result[:done], late_ns[:done], duration_ns[:done])
                if done < count:
                    return

    def _note(self, rows: Operations, result: Int, late_ns: Int, duration_ns: Int) -> None:
        self.done += len(result)
        outcome = self.outcome
        outcome.add(rows, result, duration_ns)
        if outcome.late is not None:
            outcome.late.add(late_ns)
        failed = (result < 0) & (rows.result >= 0)
        read = rows.kind == READ
        outcome.failed += int(np.count_nonzero(failed & read))
        outcome.differed += int(np.count_nonzero(failed & ~read))
        if outcome.first_failure is None and failed.any():
            first = int(failed.argmax())
            reason = os.strerror(-int(result[first]))
            if rows.kind[first] == OPEN_DIRECT:
                reason += " (with O_DIRECT)"
            outcome.first_failure = f"{self._paths[int(rows.file[first])]}: {reason}"
        outcome.short += int(np.count_nonzero(read & ~failed & (result < rows.result)))


def compute_pauses(rows: Operations, before_ns: int) -> tuple[Int, int]:
    """Nanoseconds before each operation, since the one before it ended; and the last end."""
    ends_ns = rows.start_ns + rows.duration_ns
    think_ns = rows.start_ns - np.concatenate([[before_ns], ends_ns[:-1]])
    return np.maximum(think_ns, 0), int(ends_ns[-1])


def _raise_file_limit() -> None:
    """Raise the limit: a job of many processes has more files open than one may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


# -- files of a replay -----------------------------------------------------------------------------


def parse_root(text: str) -> tuple[str, str]:
    """Parse FROM=TO."""
    source, equals, target = text.partition("=")
    if not (equals and source and target):
        raise UsageError(f"--root is {text!r}: use FROM=TO, such as /data/train=/mnt/new/train")
    return source, target


def map_paths(names: Sequence[str], roots: Sequence[tuple[str, str]]) -> list[str]:
    """Replace in each path the longest FROM that it is below by its TO."""
    pairs = sorted(((a.rstrip("/"), b.rstrip("/")) for a, b in roots), key=lambda p: -len(p[0]))

    def moved(name: str) -> str:
        for source, target in pairs:
            if name == source or name.startswith(source + "/"):
                return target + name[len(source) :]
        return name

    return [moved(name) for name in names]


def place_below(names: Sequence[str], folder: str) -> list[str]:
    """Each path, or URL, as one below a folder; none leaves it by "..": folders end in /."""
    top = os.path.abspath(folder)
    return [
        top
        + os.path.normpath("/" + name.replace("://", "/").lstrip("/"))
        + "/" * name.endswith("/")
        for name in names
    ]


def find_used(trace: Trace) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Masks of the files that the job found, and of those that it read from."""
    seen = np.zeros(len(trace.names), np.bool_)
    read = np.zeros(len(trace.names), np.bool_)
    for _, rows in trace.in_order():
        seen[rows.file[rows.result >= 0]] = True
        read[rows.file[rows.result > 0]] = True
    return seen, read


def check_files(paths: Sequence[str], read: npt.NDArray[np.bool_]) -> None:
    """Raise MissingError unless each file that the job read from is here, UsageError if a path is
    neither file nor folder: a trace is no reason to open a device."""
    absent = []
    for path, needed in zip(paths, read.tolist(), strict=True):
        if needed and "://" in path:
            raise UsageError(
                f"the job read {path}, an object, and only files are replayed: use --root"
                " URL=FOLDER or --synthesize FOLDER"
            )
        try:
            mode = os.stat(path).st_mode
        except OSError:
            absent += [path] * needed
            continue
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise UsageError(f"{path} is neither file nor folder: map it elsewhere with --root")
    if absent:
        raise MissingError(
            f"{len(absent):,} of {int(read.sum()):,} files that the job read are not here, such"
            f" as {absent[0]}: say where they are with --root FROM=TO, or make files of the same"
            " sizes with --synthesize FOLDER"
        )


def synthesize(
    paths: Sequence[str],
    sizes: npt.NDArray[np.int64],
    wanted: npt.NDArray[np.bool_],
    *,
    sparse: bool = False,
    progress: Progress = ignore_progress,
) -> int:
    """Make each wanted file that is not there yet, of its size; returns the bytes that were made.

    They hold incompressible random bytes, the same each time; sparse: none at all, so
    that reading them asks no device. UsageError for a file of another size: not ours.
    """
    numbers = np.flatnonzero(wanted).tolist()
    folders = {os.path.dirname(paths[number].rstrip("/")) for number in numbers}
    folders |= {paths[number].rstrip("/") for number in numbers if paths[number].endswith("/")}
    try:
        for folder in sorted(folders):
            os.makedirs(folder, exist_ok=True)
        missing = [
            number
            for number in numbers
            if not os.path.isdir(paths[number])
            and not _is_there(paths[number], int(sizes[number]), sparse)
        ]
        needed = int(sizes[missing].sum())
        if missing and not sparse:
            space = os.statvfs(os.path.dirname(paths[missing[0]]))
            if needed > space.f_bavail * space.f_frsize:
                raise UsageError(
                    f"files of {needed:,} bytes in all have no room beside {paths[missing[0]]},"
                    f" where {space.f_bavail * space.f_frsize:,} are free: use another folder, or"
                    " --sparse"
                )
        made = 0
        for number in missing:
            made += _make_file(paths[number], int(sizes[number]), number, sparse)
            progress(made, needed)
    except OSError as error:
        raise UsageError(f"cannot make {error.filename}: {error.strerror}") from None
    return needed


def _is_there(path: str, size: int, sparse: bool) -> bool:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(status.st_mode) or status.st_size != size:
        raise UsageError(
            f"{path} is there and no file of {size:,} bytes: give --synthesize a folder of its own"
        )
    if not sparse and status.st_blocks * 512 < size // 2:  # blocks of 512 bytes everywhere
        raise UsageError(
            f"{path} was made sparse: reading it asks no device; give --synthesize another folder"
        )
    return True


def _make_file(path: str, size: int, seed: int, sparse: bool) -> int:
    draw = np.random.Generator(np.random.Philox(key=seed))
    partial = f"{path}.partial"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(partial)  # of a run that was killed
    with open(partial, "xb") as file:
        if sparse:
            file.truncate(size)
        else:
            for place in range(0, size, _CHUNK):
                file.write(draw.bytes(min(_CHUNK, size - place)))
            file.flush()
            os.fdatasync(file.fileno())  # what is not on the device yet cannot be evicted
    os.replace(partial, path)
    return size


def make_table(paths: Sequence[str]) -> Files:
    """Make the engine's table of the files as they are now; missing files are empty."""
    sizes, times = np.zeros(len(paths), np.int64), np.zeros(len(paths), np.int64)
    for number, path in enumerate(paths):
        try:
            status = os.stat(path)
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode):
            sizes[number], times[number] = status.st_size, status.st_mtime_ns
    return Files.of("/", [os.path.abspath(path)[1:] or "." for path in paths], sizes, times)


def read_once(paths: Sequence[str], progress: Progress = ignore_progress) -> None:
    """Read these files once."""
    memory = bytearray(_CHUNK)
    for number, path in enumerate(paths):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            continue  # the replay says so
        try:
            if stat.S_ISREG(os.fstat(fd).st_mode):
                place = 0
                while got := os.preadv(fd, [memory], place):
                    place += got
        finally:
            os.close(fd)
        progress(number + 1, len(paths))
