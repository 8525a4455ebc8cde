"""Costs of a run, as the kernel counts them: bytes read, CPU time, memory.

    charged = is_charged("/data")
    before = measure_use(charged)
    ...
    spent = measure_use(charged).since(before)

Counters are of this process and of all that it started. The counters of a process that has ended
go to its parent once that has waited for it; if its parent left it behind, they are lost. A figure
that the kernel does not give, or gives wrongly for this file system, is None.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from penstock.engine import find_mount

CHARGED = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "vfat", "overlay", "tmpfs", "ramfs"}
    | {"nfs", "nfs4"}
)
"""File systems whose reads from the device, or the server, are charged to the process that asked
for them. Others (FUSE, Lustre, CIFS) read in other threads: `read_bytes` of /proc/PID/io
says 0 there, or less than it was."""

_tick_s = 1 / os.sysconf("SC_CLK_TCK")
_tries = 4


class ResourceUse(NamedTuple):
    """Resources used so far, or since an earlier time.

    cpu_s:         user and system time. That of children that are still alive comes in steps of
                   10 ms each.
    read_bytes:    returned by read(2) and its like, from files, pipes and sockets. What is read
                   through maps or io_uring is not counted: loaders count that themselves.
    device_bytes:  fetched from the device, page cache and read-ahead included.
    """

    cpu_s: float | None
    read_bytes: int | None
    device_bytes: int | None

    def since(self, earlier: ResourceUse) -> ResourceUse:
        """The difference to an earlier use. A counter that went back, because one of its processes
        was left behind, is None."""
        return ResourceUse._make(
            None if now is None or before is None or now < before else now - before
            for now, before in zip(self, earlier, strict=True)
        )


class Memory(NamedTuple):
    """Bytes of memory.

    peak_rss:  of this process alone, at most so far.
    pss:       of this process and all that it started: pages that several share are divided among
               them, so that the sum counts each once.
    """

    peak_rss: int | None
    pss: int | None


def is_charged(path: str) -> bool:
    """True if reads of this file or folder from its device are charged to the processes."""
    mount = find_mount(path)
    return mount is not None and mount.file_system in CHARGED


def measure_use(charged: bool = True) -> ResourceUse:
    """Measure the resources used so far; takes half a millisecond, and 0.2 ms more for each living
    child.

    charged:  False leaves bytes of the device out, as of a file system that does not charge them.
    """
    cpu_s, read = _look_steadily(lambda pids: (_measure_cpu_s(pids), read_io(pids))) or (None, None)
    if read is None:
        return ResourceUse(cpu_s, None, None)
    return ResourceUse(cpu_s, read["rchar"], read["read_bytes"] if charged else None)


def measure_memory() -> Memory:
    """Measure the memory in use now; takes about a millisecond for each gigabyte."""
    status = _parse_sizes(_read_text("/proc/self/status"))
    return Memory(
        status.get("VmHWM"),
        _look_steadily(lambda pids: _add_up(_read_pss, pids)),
    )


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


def read_io(pids: Sequence[int] = ()) -> dict[str, int] | None:
    """Bytes that this process and these have read, by the names of /proc/PID/io; None if the system
    does not give them."""
    total = {"rchar": 0, "read_bytes": 0}
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
