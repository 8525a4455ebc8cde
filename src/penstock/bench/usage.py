"""What this process and its workers use: processor, reads, memory. From /proc, of Linux."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_MEMORY = {"VmHWM:": 0, "Pss:": 1}


def usage() -> dict[str, float]:
    """So far: cpu_s; read_bytes, by calls of read; device_bytes, read from devices for it.

    Of this process, of its workers that live, and of those that have ended and were waited for.
    """
    own = resource.getrusage(resource.RUSAGE_SELF)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = {
        "cpu_s": own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime,
        "read_bytes": 0.0,
        "device_bytes": 0.0,
    }
    for pid in _tree():
        if pid != os.getpid():
            ticks = _text(pid, "stat").rpartition(")")[2].split()[11:15]
            found["cpu_s"] += sum(map(int, ticks)) * _TICK_S
        for line in _text(pid, "io").splitlines():
            name, _, value = line.partition(": ")
            if name in ("rchar", "read_bytes"):
                found["read_bytes" if name == "rchar" else "device_bytes"] += int(value)
    return found


def memory() -> tuple[int, int]:
    """Bytes: the peaks of this process and its workers, added up; and what they have now, where
    memory that several share counts by its share."""
    found = [0, 0]
    for pid in _tree():
        for line in (_text(pid, "status") + _text(pid, "smaps_rollup")).splitlines():
            name, *words = line.split()
            if name in _MEMORY:
                found[_MEMORY[name]] += int(words[0]) * 1024
    return found[0], found[1]


def _tree(pid: int | None = None) -> Iterator[int]:
    """This process and all that it has started."""
    pid = os.getpid() if pid is None else pid
    yield pid
    for child in _text(pid, f"task/{pid}/children").split():
        yield from _tree(int(child))


def _text(pid: int, name: str) -> str:
    """A file of a process; nothing, where that has ended or may not be asked."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:
        return ""
