"""This host: what it has, and how fast it reads and copies.

`read_machine` and `find_mount` read /proc and /sys. `time_reads` does a few reads of a dataset's
own files through an engine, about `_share_s` each: single reads of a sample, reads with many in
flight, and large reads. A read that has started is waited for, so on slow storage measuring takes
as long as a few reads. Data in the page cache is read as fast as training will read it.
"""

from __future__ import annotations

import os
import re
import resource
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .. import _core, limits
from ..errors import PenstockError
from ..extent import Extents, Requests
from .protocol import Buffer, Engine
from .threads import ThreadPool


class Machine(NamedTuple):
    """Resources that this process may use.

    cores:           processors it may run on.
    cpu_quota:       processors' worth of time that its control groups allow; None without a limit.
    memory_bytes:    memory of the machine.
    available_bytes: memory that could be allocated now; the page cache may take it as well.
    memory_limit_bytes: lowest limit of its control groups; page cache counts; None without a limit.
    memory_used_bytes:  use of that limit, by the group that has it, without cached files.
    shm_bytes:       free in /dev/shm, where worker processes and caches share memory.
    open_files:      files that the process may have open; None without a limit.
    kernels:         instruction set that each part of the compiled core uses here.
    """

    cores: int
    cpu_quota: float | None
    memory_bytes: int
    available_bytes: int | None
    memory_limit_bytes: int | None
    memory_used_bytes: int | None
    shm_bytes: int | None
    open_files: int | None
    kernels: Mapping[str, str]

    @property
    def usable_cores(self) -> float:
        """Number of cores that can be busy all the time."""
        return self.cores if self.cpu_quota is None else min(float(self.cores), self.cpu_quota)

    @property
    def room_bytes(self) -> int:
        """Memory that is left for a cache or for pages of files."""
        room = self.memory_bytes if self.available_bytes is None else self.available_bytes
        if self.memory_limit_bytes is not None:
            room = min(room, max(0, self.memory_limit_bytes - (self.memory_used_bytes or 0)))
        return room


class Mount(NamedTuple):
    """A mounted file system.

    device:      major and minor number, as "254:0"; the major is 0 without a block device.
    folder:      the folder at which it is mounted.
    file_system: its type, as the kernel calls it ("ext4", "nfs4", "fuse.gcsfuse").
    source:      the device or share that is mounted.
    """

    device: str
    root: str
    folder: str
    file_system: str
    source: str


def read_machine(root: str | os.PathLike[str] = "/") -> Machine:
    """Read the machine's resources, and the part that is left to this process. root: the folder of
    /proc and /sys, for tests and other machines."""
    at = Path(root)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    memory = _read_meminfo(at)
    limit, used = _read_memory_limit(at)
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        cpu_quota=_read_cpu_quota(at),
        memory_bytes=memory.get(
            "MemTotal", os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        ),
        available_bytes=memory.get("MemAvailable"),
        memory_limit_bytes=limit,
        memory_used_bytes=used,
        shm_bytes=_measure_free_bytes("/dev/shm"),
        open_files=None if soft == resource.RLIM_INFINITY else soft,
        kernels=_core.list_kernels(),
    )


def find_mount(path: str) -> Mount | None:
    """Find the mount of a file or folder; None if it cannot be determined."""
    try:
        device = os.stat(path).st_dev
        real = os.path.realpath(path)
    except OSError:
        return None
    number = f"{os.major(device)}:{os.minor(device)}"
    mounts = list(_read_mounts(Path("/")))
    above = [mount for mount in mounts if _is_below(real, mount.folder)]
    # The last mount at the same place hides the others. Sub-volumes of btrfs have device numbers
    # that no mount has.
    deepest = max(above, key=lambda mount: len(mount.folder), default=None)
    if deepest is None:
        return None
    hidden = [mount for mount in above if mount.folder == deepest.folder]
    exact = [mount for mount in hidden if mount.device == number]
    return (exact or hidden)[-1]


def readahead_bytes(mount: Mount) -> int | None:
    """Return how far the kernel reads ahead of a program that reads a file sequentially."""
    text = _read_text(Path(f"/sys/class/bdi/{mount.device}/read_ahead_kb"))
    if text is None:
        text = _read_text(Path(f"/sys/dev/block/{mount.device}/bdi/read_ahead_kb"))
    return int(text) * 1024 if text is not None and text.strip().isdigit() else None


def _is_below(path: str, folder: str) -> bool:
    return folder == "/" or path == folder or path.startswith(folder + "/")


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text(errors="surrogateescape")
    except OSError:
        return None


def _measure_free_bytes(folder: str) -> int | None:
    try:
        status = os.statvfs(folder)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize


def _read_meminfo(root: Path) -> dict[str, int]:
    lines = re.findall(
        r"^(\w+):\s+(\d+) kB$", _read_text(root / "proc/meminfo") or "", re.MULTILINE
    )
    return {name: int(kib) * 1024 for name, kib in lines}


def _read_mounts(root: Path) -> Iterator[Mount]:
    for line in (_read_text(root / "proc/self/mountinfo") or "").splitlines():
        before, dash, after = line.partition(" - ")
        fields, more = before.split(" "), after.split(" ")
        if dash and len(fields) >= 5 and len(more) >= 2:
            yield Mount(
                fields[2],
                _unescape(fields[3]),
                _unescape(fields[4]),
                more[0],
                _unescape(more[1]),
            )


def _unescape(text: str) -> str:
    """Decode the octal escapes of mountinfo: spaces and such are octal numbers there."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


# -- control groups --------------------------------------------------------------------------------


def _list_groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of the control groups that may limit this process, from its own up: of
    version 2 if the controller is there, else of version 1."""
    for line in (_read_text(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        second = controllers == ""
        if not second and controller not in controllers.split(","):
            continue
        for mount in _read_mounts(root):
            if mount.file_system != ("cgroup2" if second else "cgroup"):
                continue
            top = root / mount.folder.lstrip("/")
            if not second and controller not in top.name.split(","):
                continue
            # In a container the mount may start below the folder that the path is counted from.
            inside = os.path.relpath(path, mount.root) if _is_below(path, mount.root) else "."
            group = top if inside.startswith("..") else top / inside
            while True:
                yield group
                if group == top or top not in group.parents:
                    break
                group = group.parent


def _read_memory_limit(root: Path) -> tuple[int | None, int | None]:
    """Return the lowest limit above this process, and the use of it."""
    least: tuple[int, int | None] | None = None
    for group in _list_groups(root, "memory"):
        for limit, usage in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            text = (_read_text(group / limit) or "").strip()
            # Without a limit version 2 says "max", version 1 the largest number of pages.
            if text.isdigit() and int(text) < 1 << 60 and (least is None or int(text) < least[0]):
                least = int(text), _read_used_bytes(group, usage)
    return least or (None, None)


def _read_used_bytes(group: Path, usage: str) -> int | None:
    used = (_read_text(group / usage) or "").strip()
    if not used.isdigit():
        return None
    cached = dict(line.split() for line in (_read_text(group / "memory.stat") or "").splitlines())
    total = "total_" if "total_cache" in cached else ""  # version 1 counts groups below apart
    files = sum(int(cached.get(f"{total}{state}_file", 0)) for state in ("active", "inactive"))
    return max(0, int(used) - files)


def _read_cpu_quota(root: Path) -> float | None:
    quotas = []
    for group in _list_groups(root, "cpu"):
        text = _read_text(group / "cpu.max")
        if text is None:
            quota, period = (
                (_read_text(group / f"cpu.cfs_{name}_us") or "").strip()
                for name in ("quota", "period")
            )
        else:
            quota, _, period = text.strip().partition(" ")
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


_share_s = 0.06
_single_most = 32
_poll_ns = 100_000_000
_in_flight = 4  # tickets
_per_ticket = 32
_ticket_bytes = 16 << 20
_copied_bytes = 32 << 20


class ProbeResult(NamedTuple):
    """Speed of a storage.

    latency_ns:   of one read.
    reads_per_s:  with many in flight, measured over `reads` reads of `read_bytes` bytes.
    bytes_per_s:  of large reads, measured over `large_bytes`.
    """

    latency_ns: float
    reads_per_s: float
    bytes_per_s: float
    took_s: float
    reads: int = 0
    read_bytes: int = 0
    large_bytes: int = 0


Fault = Callable[[Extents, int, int], PenstockError]
"""Function from extents, row and errno (0: cut short) to the error of a failed read."""


def time_reads(
    engine: Engine,
    small: Extents,
    large: Extents,
    fault: Fault,
    queue: int = 1,
    ready: Callable[[Extents], Extents] = lambda extents: extents,
) -> ProbeResult:
    """Measure reads of these extents; they should not have been read lately.

    queue:  reads that the engine keeps in flight at least; slow storage gets no more at a time.
    ready:  called with the small, and then with the large extents, before they are read; returns
            the extents to read.
    """
    start_s = time.perf_counter()
    small = ready(small)
    count = len(small.file)
    singles = min(_single_most, max(1, count // 2))
    single = _time_tickets(engine, small, fault, range(singles), 1, in_flight=1)
    latency_s = float(np.median(single.seconds))
    per_ticket = _per_ticket if latency_s < 0.002 else max(8, -(-queue // _in_flight))
    rest = range(singles if count > 1 else 0, count)
    rate = _time_tickets(engine, small, fault, rest, per_ticket)
    large = ready(large)
    bandwidth = _time_tickets(engine, large, fault, range(len(large.file)), 1)
    return ProbeResult(
        latency_s * 1e9,
        rate.reads / rate.took_s,
        bandwidth.read_bytes / bandwidth.took_s,
        time.perf_counter() - start_s,
        rate.reads,
        rate.read_bytes,
        bandwidth.read_bytes,
    )


def measure_copying(threads: int = 1) -> float:
    """Measure the bytes a second that several threads together copy in memory; takes 0.1 s, and
    64 MiB for each thread."""

    def copy(start: threading.Barrier) -> tuple[int, float, float]:
        source = np.ones(_copied_bytes, np.uint8)
        target = np.empty_like(source)
        target[:] = source  # memory that was never written is slower
        start.wait()
        start_s, copied_bytes = time.perf_counter(), 0
        while (now_s := time.perf_counter()) - start_s < _share_s or not copied_bytes:
            target[:] = source
            copied_bytes += len(source)
        return copied_bytes, start_s, now_s

    barrier = threading.Barrier(threads)
    with ThreadPool(threads) as pool:
        try:
            futures = [pool.submit(copy, barrier) for _ in range(threads)]
        except BaseException:  # started threads wait for the others
            barrier.abort()
            raise
        copied, starts_s, ends_s = zip(*(future.result() for future in futures), strict=True)
    return float(sum(copied) / (max(ends_s) - min(starts_s)))


class _TimedReads(NamedTuple):
    """Reads in tickets: the seconds that each ticket took, and totals."""

    seconds: list[float]
    reads: int
    read_bytes: int
    took_s: float


def _time_tickets(
    engine: Engine,
    extents: Extents,
    fault: Fault,
    rows: range,
    per_ticket: int,
    in_flight: int = _in_flight,
) -> _TimedReads:
    """Read these extents in tickets until the share of time is up, at least one ticket."""
    longest = int(extents.length.max())
    per_ticket = max(1, min(per_ticket, len(rows), _ticket_bytes // max(1, longest)))
    # Memory that was never written is slower: it is touched before the clock runs.
    tickets = min(in_flight, -(-len(rows) // per_ticket))
    free = [np.ones(per_ticket * longest, np.uint8) for _ in range(tickets)]
    waiting: dict[int, tuple[float, range, Buffer]] = {}
    seconds: list[float] = []
    reads = read_bytes = 0
    start_s = time.perf_counter()
    while rows or waiting:
        now_s = time.perf_counter()
        is_over = now_s >= start_s + _share_s
        while rows and free and not (is_over and (seconds or waiting)):
            ticket_rows, rows, buffer = rows[:per_ticket], rows[per_ticket:], free.pop()
            ticket = engine.submit(_build_requests(extents, ticket_rows), [buffer])
            waiting[ticket] = (time.perf_counter(), ticket_rows, buffer)
        if is_over:
            rows = range(0)
        for ticket, failures in engine.poll(_poll_ns):
            submitted_s, ticket_rows, buffer = waiting.pop(ticket)
            free.append(buffer)
            for failure in failures:
                raise fault(extents, ticket_rows.start + failure.extent, failure.errno)
            seconds.append(time.perf_counter() - submitted_s)
            reads += len(ticket_rows)
            read_bytes += int(extents.length[ticket_rows.start : ticket_rows.stop].sum())
    return _TimedReads(seconds, reads, read_bytes, max(1e-9, time.perf_counter() - start_s))


def _build_requests(extents: Extents, rows: range) -> Requests:
    file, offset, length = extents.file, extents.offset, extents.length
    some = slice(rows.start, rows.stop)
    zeros, runs = np.zeros(len(rows), np.uint32), np.arange(len(rows) + 1, dtype=np.int64)
    targets = np.cumsum(length[some]) - length[some]
    return Requests(file[some], offset[some], length[some], zeros, targets, runs)


def draw_large_extents(
    sizes: np.ndarray[tuple[int], np.dtype[np.int64]], seed: int, most: int = limits.run_bytes_max
) -> Extents:
    """Draw up to 64 reads of `most` bytes, or of whole smaller files, at places derived from the
    seed."""
    draw = np.random.Generator(np.random.Philox(key=seed))
    ends = np.cumsum(sizes)
    file = np.searchsorted(ends, draw.integers(0, ends[-1], 64), side="right")
    length = np.minimum(sizes[file], most)
    room = (sizes[file] - length) // 4096 + 1
    offset = (draw.random(64) * room).astype(np.int64) * 4096
    return Extents(file.astype(np.uint32), offset, length)
