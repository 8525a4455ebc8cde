"""Costs of a run, as the kernel counts them: bytes read, CPU time, memory.

    observer = Observer("/data")
    before = observer.snapshot()
    ...
    spent = observer.snapshot().since(before)

Counters are of this process and of all that it started. The counters of a process that has ended
go to its parent once that has waited for it; if its parent left it behind, they are lost. A figure
that the kernel does not give, or gives wrongly for this file system, is None.

`penstock.page_cache` tells how much of a file is in the page cache, and drops files from it.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from ..engine import find_mount

CHARGED = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "vfat", "overlay", "tmpfs", "ramfs"}
    | {"nfs", "nfs4"}
)
"""File systems whose reads from the device, or the server, are charged to the process that asked
for them. Others (FUSE, Lustre, CIFS) read in threads of their own: `read_bytes` of /proc/PID/io
says 0 there, or less than it was."""

_tick_s = 1 / os.sysconf("SC_CLK_TCK")
_sector_bytes = 512  # of these counters, whatever the device has
_tries = 4


class ResourceUse(NamedTuple):
    """The difference of two snapshots: `Snapshot` says what each figure is."""

    seconds: float
    cpu_s: float | None
    read_bytes: int | None
    device_bytes: int | None
    written_bytes: int | None
    disk_bytes: int | None
    disk_reads: int | None


class Snapshot(NamedTuple):
    """Counters at one time.

    at_s:          seconds of a clock that only goes forward.
    cpu_s:         user and system time. That of children that are still alive comes in steps of
                   10 ms each.
    read_bytes:    returned by read(2) and its like, from files, pipes and sockets. What is read
                   through maps or io_uring is not counted: loaders count that themselves.
    device_bytes:  fetched from the device, page cache and read-ahead included.
    written_bytes: handed to the device, or about to be.
    disk_bytes, disk_reads: of the whole block device below, for anybody.
    """

    at_s: float
    cpu_s: float | None
    read_bytes: int | None
    device_bytes: int | None
    written_bytes: int | None
    disk_bytes: int | None
    disk_reads: int | None

    def since(self, earlier: Snapshot) -> ResourceUse:
        """The difference to an earlier snapshot. A counter that went back, because one of its
        processes was left behind, is None."""
        pairs = zip(self, earlier, strict=True)
        return ResourceUse._make(
            None if now is None or before is None or now < before else now - before
            for now, before in pairs
        )


class Memory(NamedTuple):
    """Bytes of memory.

    rss, peak_rss: of this process alone, now and at most so far (see `forget_peak`).
    pss:           of this process and all that it started: pages that several share are divided
                   among them, so that the sum counts each once.
    """

    rss: int | None
    peak_rss: int | None
    pss: int | None


class Observer:
    """Looks at this process, its descendants, and the disk that a path lies on.

    path:   a file or folder; None looks at no disk, and believes the process's counters whatever
            file system it reads.
    device: of the disk, as "254:0"; None if no block device is below (network, FUSE, memory).

    A look takes half a millisecond, and 0.2 ms more for each living child.
    """

    def __init__(self, path: str | None = None) -> None:
        mount = None if path is None else find_mount(path)
        self._charged = path is None or (mount is not None and mount.file_system in CHARGED)
        self._disk = None if mount is None else Path("/sys/dev/block", mount.device, "stat")
        if self._disk is not None and _read_disk(self._disk) is None:
            self._disk = None
        self.device = None if mount is None or self._disk is None else mount.device

    def snapshot(self) -> Snapshot:
        """The counters now."""
        cpu_s, read = _look_steadily(lambda pids: (_measure_cpu_s(pids), _read_io(pids))) or (
            None,
            None,
        )
        disk = None if self._disk is None else _read_disk(self._disk)
        return Snapshot(
            time.perf_counter(),
            cpu_s,
            None if read is None else read["rchar"],
            None if read is None or not self._charged else read["read_bytes"],
            None if read is None or not self._charged else read["write_bytes"],
            None if disk is None else disk[1],
            None if disk is None else disk[0],
        )


def measure_memory() -> Memory:
    """Measure the memory in use now; takes about a millisecond for each gigabyte."""
    status = _parse_sizes(_read_text("/proc/self/status"))
    return Memory(
        status.get("VmRSS"),
        status.get("VmHWM"),
        _look_steadily(lambda pids: _add_up(_read_pss, pids)),
    )


def forget_peak() -> bool:
    """Restart `Memory.peak_rss` at the memory in use now; False if the kernel refuses."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def list_processes() -> list[int] | None:
    """The living descendants of this process; None if the kernel does not list them."""
    pids: list[int] = []
    look = [os.getpid()]
    while look:
        pid = look.pop()
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except OSError:
            continue  # it ended
        for thread in threads:
            text = _read_text(f"/proc/{pid}/task/{thread}/children")
            if text is None:
                if pid == os.getpid() and thread == str(pid):
                    return None
                continue
            children = [int(word) for word in text.split()]
            pids += children
            look += children
    return pids


T = TypeVar("T")


def _look_steadily(look: Callable[[list[int]], T]) -> T | None:
    """Look at the children while none of them begins or ends: one that did would be counted twice,
    by itself and by its parent, or not at all."""
    before = list_processes()
    for _ in range(_tries):
        if before is None:
            return None
        seen = look(before)
        after = list_processes()
        if after == before:
            return seen
        before = after
    return None


def _add_up(one: Callable[[str], int | None], pids: list[int]) -> int | None:
    parts = [one("self"), *(one(str(pid)) for pid in pids)]
    return None if None in parts else sum(part for part in parts if part is not None)


def _measure_cpu_s(pids: list[int]) -> float | None:
    own = resource.getrusage(resource.RUSAGE_SELF)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime
    for pid in pids:
        text = _read_text(f"/proc/{pid}/stat")
        if text is None:
            return None
        # After the name, which may hold anything: state is field 3, the four times are 14 to 17.
        fields = text.rpartition(")")[2].split()
        seconds += sum(int(ticks) for ticks in fields[11:15]) * _tick_s
    return seconds


def _read_io(pids: list[int]) -> dict[str, int] | None:
    total = {"rchar": 0, "read_bytes": 0, "write_bytes": 0}
    for pid in ("self", *map(str, pids)):
        fields = _parse_numbers(_read_text(f"/proc/{pid}/io"))
        if not total.keys() <= fields.keys():
            return None
        for name in total:
            total[name] += fields[name]
    return total


def _read_pss(pid: str) -> int | None:
    text = _read_text(f"/proc/{pid}/smaps_rollup")
    if text is None:  # of one that has ended, and waits to be waited for
        state = _read_text(f"/proc/{pid}/stat")
        return 0 if state is not None and state.rpartition(")")[2].split()[0] == "Z" else None
    return _parse_sizes(text).get("Pss")


def _read_disk(path: Path) -> tuple[int, int] | None:
    """Reads and bytes read of a block device."""
    fields = (_read_text(path) or "").split()
    return (int(fields[0]), int(fields[2]) * _sector_bytes) if len(fields) >= 11 else None


def _read_text(path: str | Path) -> str | None:
    try:
        return Path(path).read_text(errors="surrogateescape")
    except OSError:
        return None


def _parse_numbers(text: str | None) -> dict[str, int]:
    """Parse lines such as "rchar: 12"."""
    pairs = (line.split(":") for line in (text or "").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].strip().isdigit()}


def _parse_sizes(text: str | None) -> dict[str, int]:
    """Parse lines such as "VmRSS:   12 kB" into bytes."""
    sizes = {}
    for line in (text or "").splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if len(words) == 2 and words[1] == "kB":
            sizes[name] = int(words[0]) * 1024
    return sizes
