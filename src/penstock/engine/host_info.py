"""This machine as the kernel describes it: memory, cores, and the limits of its container.

Read from /proc and /sys. A figure that is missing there is None, never a guess.
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


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
    """

    cores: int
    cpu_quota: float | None
    memory_bytes: int
    available_bytes: int | None
    memory_limit_bytes: int | None
    memory_used_bytes: int | None
    shm_bytes: int | None
    open_files: int | None

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
