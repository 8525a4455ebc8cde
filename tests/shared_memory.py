"""The part of a process's memory that has a name below /dev/shm."""

from __future__ import annotations

from pathlib import Path


def named_memory(pid: int) -> list[str]:
    """The named segments that a process maps; semaphores, which libraries make, do not count."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return [line for line in lines if "/dev/shm/" in line and "/dev/shm/sem." not in line]
