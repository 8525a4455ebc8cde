"""Slow, shared storage and nodes, emulated on one machine.

    with Shared(read_ns=500_000, bytes_per_s=200e6) as storage:
        first, second = storage.mount(folder), storage.mount(folder)   # two nodes, one storage
        ...                                                            # read below first.path
        storage.counters()                                             # what the storage served

A mount is a FUSE process of its own (slowfs.c) and so has a page cache of its own, as a node has.
All mounts of one `Shared` draw on one bandwidth and one set of server slots. Nothing stays behind:
mounts end with their `with` block, at exit, and when the process that made them is killed.

`throttled_disk` is the other kind: the local disk itself made slow for child processes. And
`benchmarks.emulation.faulty` serves a folder to write to, whose calls fail and hang as asked.

All need root and Linux; `usable` and `throttling_usable` say what is missing.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import ctypes.util
import errno
import mmap
import os
import select
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import TracebackType

import numpy as np

SOURCES = Path(__file__).parent
BUILD = Path(__file__).resolve().parents[2] / "build" / "emulation"
MOUNTS_MAX = 64
START_S = 200
END_S = 10
MNT_DETACH = 2
FAULTS = ("none", "error", "short", "hang", "truncate")
WHOLE_FILE = (0, 1 << 62)

# Twins of `struct shared` and `struct mount` in slowfs.c: all int64.
_shared = {"bytes_per_s": 0, "meta_ns": 1, "read_ns": 2, "lead_ns": 3, "slots": 4}
_mounts_at, _mount_size = 8 + 256, 16
_mount = {
    name: at
    for at, name in enumerate(
        ("reads", "bytes", "metas", "outstanding", "outstanding_max", "direct", "keep")
        + ("fault", "fault_from", "fault_to", "fault_value")
    )
}
_counters = ("reads", "bytes", "metas", "outstanding_max")
_page_bytes = 8 * (_mounts_at + MOUNTS_MAX * _mount_size)


@cache
def usable() -> str | None:
    """Why storage cannot be emulated here, or None where it can."""
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        return f"/dev/fuse: {error.strerror}"
    if os.geteuid() != 0:
        return "mounting needs root"
    try:
        program("slowfs")
    except RuntimeError as error:
        return str(error)
    try:
        with tempfile.TemporaryDirectory() as folder, Shared() as storage:
            storage.mount(folder)
    except RuntimeError as error:
        return str(error)
    return None


def program(name: str) -> Path:
    """A compiled program, built when its source has changed. RuntimeError where it cannot be."""
    if not (shutil.which("cc") and shutil.which("pkg-config")):
        raise RuntimeError(f"{name} needs a C compiler and pkg-config")
    built, source = BUILD / name, SOURCES / f"{name}.c"
    if built.exists() and built.stat().st_mtime_ns > source.stat().st_mtime_ns:
        return built
    asked = ["pkg-config", "--cflags", "--libs", "fuse3"]
    flags = subprocess.run(asked, capture_output=True, text=True, check=False)
    if flags.returncode != 0:
        raise RuntimeError(f"{name} needs libfuse 3 (Debian: apt-get install libfuse3-dev fuse3)")
    BUILD.mkdir(parents=True, exist_ok=True)
    partial = BUILD / f"{name}.{os.getpid()}"
    words = ["cc", "-O2", "-Wall", "-Wextra", "-o", str(partial), str(source), "-pthread"]
    done = subprocess.run(words + flags.stdout.split(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{name} does not compile: {done.stderr.strip()[-300:]}")
    partial.rename(built)  # others may be building it too
    return built


class Shared:
    """Storage that any number of emulated nodes share.

    read_ns:      latency of a read request, as a reader sees it where nothing else is asked for.
    meta_ns:      latency of a lookup, an attribute, an open.
    bytes_per_s:  of all mounts together; None: unlimited. Idle time earns no burst.
    slots:        requests that the storage serves at once; further ones queue. None: any number.
    calibrate:    send answers earlier by what sleepers wake too late here (measured once).

    The parameters are attributes that may be changed while mounted.
    """

    def __init__(
        self,
        *,
        read_ns: int = 0,
        meta_ns: int = 0,
        bytes_per_s: float | None = None,
        slots: int | None = None,
        calibrate: bool = False,
    ) -> None:
        self._fd = os.memfd_create("slowfs")
        os.ftruncate(self._fd, _page_bytes)
        self._page = np.frombuffer(mmap.mmap(self._fd, _page_bytes), np.int64)
        self.mounts: list[Mount] = []
        self.set(read_ns=read_ns, meta_ns=meta_ns, bytes_per_s=bytes_per_s, slots=slots)
        if calibrate:
            self.set(lead_ns=overshoot_ns())
        atexit.register(self.close)

    def set(self, **parameters: float | None) -> None:
        """Change parameters; they hold for requests that arrive from now on."""
        for name, value in parameters.items():
            self._page[_shared[name]] = int(value or 0)

    def mount(
        self, source: str | os.PathLike[str], *, direct: bool = False, keep: bool = False
    ) -> Mount:
        """Another node: a read-only view of `source` with a page cache of its own.

        direct:  without a page cache.
        keep:    what is cached outlives a close.
        """
        if len(self.mounts) == MOUNTS_MAX:
            raise RuntimeError(f"one storage has at most {MOUNTS_MAX} mounts")
        mount = Mount(self._page, self._fd, len(self.mounts), os.fspath(source), direct, keep)
        self.mounts.append(mount)
        return mount

    def counters(self) -> dict[str, int]:
        """The counts of what the storage has served since the last `reset`: reads, bytes, metas;
        outstanding_max is of one mount."""
        each = [mount.counters() for mount in self.mounts]
        total = {name: sum(one[name] for one in each) for name in _counters}
        total["outstanding_max"] = max((one["outstanding_max"] for one in each), default=0)
        return total

    def reset(self) -> None:
        """Count from zero again."""
        for mount in self.mounts:
            mount.reset()

    def close(self) -> None:
        """Unmount everything; idempotent."""
        for mount in self.mounts:
            mount.close()
        atexit.unregister(self.close)
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Shared:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Server:
    """A FUSE process that serves a folder at `path`. RuntimeError where it does not begin."""

    def __init__(self, name: str, source: str | os.PathLike[str], page_fd: int, *rest: int) -> None:
        self.path = tempfile.mkdtemp(prefix=f"{name}-{os.getpid()}-")
        words = [program(name), os.path.abspath(source), self.path, page_fd, *rest, os.getpid()]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._server = subprocess.Popen(
            [str(word) for word in words],
            pass_fds=[page_fd],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # Ctrl-C is for the owner, who unmounts
        )
        try:
            self._await_ready(name)
        except BaseException:
            self.close()
            raise

    def _await_ready(self, name: str) -> None:
        assert self._server.stdout is not None
        with self._server.stdout as said:  # one byte when it is mounted, or the end
            answered, _, _ = select.select([said], [], [], START_S)
            if answered and os.read(said.fileno(), 1):
                return
        self._errors.seek(0)
        why = self._errors.read().decode(errors="replace").strip()
        raise RuntimeError(f"{name} did not mount {self.path}: {why or 'no answer'}")

    @property
    def pid(self) -> int:
        """The process whose CPU time is part of what the emulation costs."""
        return self._server.pid

    def close(self) -> None:
        """Unmount and end the process; idempotent. Files still open there fail from now on."""
        if self._errors.closed:
            return
        self._server.kill()  # which fails what is outstanding; unmounting alone would wait for it
        self._server.wait()
        unmount(self.path)
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(self.path)
        self._errors.close()


class Mount(Server):
    """One node's view of the storage, at `path`. Made by `Shared.mount`."""

    def __init__(
        self, page: np.ndarray, page_fd: int, number: int, source: str, direct: bool, keep: bool
    ) -> None:
        start = _mounts_at + number * _mount_size
        self._values = page[start : start + _mount_size]
        self.set(direct=direct, keep=keep)
        super().__init__("slowfs", source, page_fd, number)

    def set(self, **values: int) -> None:
        """Set fields of this mount's part of the page."""
        for name, value in values.items():
            self._values[_mount[name]] = int(value)

    def fault(self, kind: str, value: int = 0, where: tuple[int, int] = WHOLE_FILE) -> None:
        """Make reads that overlap the bytes `where` of any file, from now on,

        "error":     fail with errno `value`;
        "short":     return at most `value` bytes;
        "hang":      return nothing for `value` more nanoseconds, then fail with ETIMEDOUT;
        "truncate":  end at byte where[0], although the file's size says otherwise;
        "none":      work.
        """
        self.set(fault=0)
        self.set(fault_from=where[0], fault_to=where[1], fault_value=value)
        self.set(fault=FAULTS.index(kind))

    def counters(self) -> dict[str, int]:
        """The counts of what was served through this mount; see `Shared.counters`."""
        return {name: int(self._values[_mount[name]]) for name in _counters}

    def reset(self) -> None:
        """Count from zero again."""
        self.set(**dict.fromkeys(_counters, 0))


def unmount(path: str) -> None:
    """Take the mount out of the tree; whoever uses it still keeps it alive until they let go."""
    libc = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True)
    if libc.umount2(os.fsencode(path), MNT_DETACH) != 0:
        code = ctypes.get_errno()
        if code not in (errno.EINVAL, errno.ENOENT):  # it is not mounted, or gone
            raise OSError(code, os.strerror(code), path)


@cache
def overshoot_ns(asked_ns: int = 500_000, reads: int = 200) -> int:
    """By how much a read takes longer than the latency asked for, as the median of single reads."""
    with tempfile.TemporaryDirectory() as folder, Shared(read_ns=asked_ns) as storage:
        Path(folder, "null").write_bytes(bytes(4096))
        file = os.open(os.path.join(storage.mount(folder, direct=True).path, "null"), os.O_RDONLY)
        try:
            taken = [_timed(lambda: os.pread(file, 4096, 0)) for _ in range(reads)]
        finally:
            os.close(file)
    return max(0, int(statistics.median(taken)) - asked_ns)


def _timed(call: Callable[[], object]) -> int:
    start = time.perf_counter_ns()
    call()
    return time.perf_counter_ns() - start


# -- the local disk made slow ----------------------------------------------------------------------

BLKIO = Path("/sys/fs/cgroup/blkio")


def throttling_usable() -> str | None:
    """Why the disk cannot be throttled here, or None where it can."""
    if not (BLKIO / "blkio.throttle.read_bps_device").exists():
        return "no cgroup v1 blkio controller"
    if not os.access(BLKIO, os.W_OK):
        return "throttling needs root"
    return None


@contextlib.contextmanager
def throttled_disk(
    folder: str | os.PathLike[str], *, bytes_per_s: int = 0, iops: int = 0
) -> Iterator[list[str]]:
    """The disk below `folder` gives at most so much to the processes started this way.

    Yields the words to put before a command. What is in the page cache is not throttled. 0 is
    unlimited.
    """
    disk = _disk_of(os.stat(folder).st_dev)
    with _group(BLKIO) as group:
        for name, value in (("bps", bytes_per_s), ("iops", iops)):
            if value:
                (group / f"blkio.throttle.read_{name}_device").write_text(f"{disk} {value}")
        join = f'echo $$ > {group}/cgroup.procs && exec "$@"'
        yield ["sh", "-c", join, "sh"]


@contextlib.contextmanager
def _group(controller: Path) -> Iterator[Path]:
    """A control group that is removed afterwards; processes still in it go back to the root group.

    Groups of owners that were killed are removed by the next one.
    """
    for old in controller.glob("penstock-*"):
        if not Path("/proc", old.name.split("-")[1]).exists():
            _remove_group(old)
    group = controller / f"penstock-{os.getpid()}-{time.monotonic_ns()}"
    group.mkdir()
    try:
        yield group
    finally:
        _remove_group(group)


def _remove_group(group: Path) -> None:
    for pid in (group / "cgroup.procs").read_text().split():
        with contextlib.suppress(OSError):  # it has ended
            (group.parent / "cgroup.procs").write_text(pid)
    deadline = time.monotonic() + END_S
    while True:
        try:
            group.rmdir()
            return
        except OSError:  # a process on its way out is still counted
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _disk_of(device: int) -> str:
    """MAJOR:MINOR of the disk: throttling knows no partitions."""
    path = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    if (path / "partition").exists():
        path = path.parent
    return (path / "dev").read_text().strip()
