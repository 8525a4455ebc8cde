"""Probe of files and kernel: facts about them, and the read method that follows.

    io_uring   many reads in flight from each thread; the default for large local files
    pread      a pool of threads; works everywhere; the default if storage is not local
    mmap       copies from a map; cheapest for small extents that are in the page cache

`choose_method` decides from facts about the storage, as the budget allows, and gives the reasons:
why io_uring, O_DIRECT or mmap is not used.
"""

from __future__ import annotations

import os
import resource
from typing import NamedTuple

import numpy as np

from .. import _core, limits
from ..budget import Budget
from ..errors import UsageError
from ..extent import Files
from .protocol import Backend, ReadMethod
from .threads import count_reading_threads

LOCAL = frozenset({"ext4", "xfs", "btrfs", "tmpfs", "ramfs", "overlay"})
"""File systems of the machine itself."""
_CACHED_MIN = 0.9
"""Part of the files in the page cache from which on they count as cached."""


class Facts(NamedTuple):
    """Facts that the choice of a read method depends on.

    file_system:    of the first file ("ext4", "tmpfs", "fuse", "nfs", ...).
    kept_open:      whether the files are few enough to be kept open.
    mean_bytes:     mean length of an extent.
    total_bytes:    size of all files together.
    resident:       part of the files in the page cache; -1 if unknown.
    memory_bytes:   memory of the machine.
    ring_refusal:   errno of io_uring_setup; 0 if it works.
    direct_refusal: errno of O_DIRECT on the first file; 0 if it works.
    cores:          processors this process may use.
    """

    file_system: str
    kept_open: bool
    mean_bytes: float
    total_bytes: int
    resident: float
    memory_bytes: int
    ring_refusal: int
    direct_refusal: int
    cores: int


def compute_open_files_max() -> int:
    """Return the number of files that an engine keeps open: a quarter of the process's limit.

    All engines of the process together keep half of the limit open at most: the rest is the user's.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return limits.open_files_max
    return min(limits.open_files_max, soft // 4)


def measure_resident_fraction(path: str) -> float | None:
    """Measure the part of a file that is in the page cache, from up to 64 places spread over it;
    None if the kernel refuses."""
    fraction = _core.measure_residency(os.fsencode(path))
    return None if fraction < 0 else fraction


def probe_io_uring() -> int:
    """Return the errno with which the kernel refuses io_uring to this process; 0 if it is
    allowed."""
    return _core.probe_io_uring()


def find_file_system(path: str) -> str:
    """Return the name of a path's file system ("ext4", "tmpfs", "nfs", ...), or its number in
    hexadecimal."""
    return _core.get_file_system(os.fsencode(path))


def survey_files(files: Files, mean_bytes: float, keep_open_max: int) -> Facts:
    """Collect the facts about these files from the machine; probes a few of them."""
    count = len(files)
    probed = sorted({int(i) for i in np.linspace(0, count - 1, 8)}) if count else []
    first = files.path(0) if count else files.root
    fractions = [measure_resident_fraction(files.path(i)) for i in probed]
    return Facts(
        file_system=find_file_system(first),
        kept_open=count <= keep_open_max,
        mean_bytes=mean_bytes,
        total_bytes=int(files.size.sum()),
        resident=min(
            (-1.0 if fraction is None else fraction for fraction in fractions), default=-1.0
        ),
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        ring_refusal=probe_io_uring(),
        direct_refusal=_core.probe_direct_io(os.fsencode(first)) if count else 0,
        cores=len(os.sched_getaffinity(0)),
    )


def choose_method(facts: Facts, budget: Budget) -> ReadMethod:
    """Choose the backend, O_DIRECT or not, and the number of threads. Pure.

    UsageError if the budget requires a fast path that is not available.
    """
    reasons: dict[str, str] = {}
    direct = _decide_direct(facts, budget, reasons)
    backend: Backend = "pread"
    if budget.pread == "required":
        reasons["mmap"] = reasons["io_uring"] = "the budget requires pread"
    elif _decide_mmap(facts, budget, direct, reasons):
        backend = "mmap"
        reasons["io_uring"] = "the data is copied from maps"
    elif _decide_ring(facts, budget, direct, reasons):
        backend = "io_uring"
    elif budget.pread == "off":
        backend = _replace_pread(facts, budget, direct, reasons)
    is_cached = facts.resident >= _CACHED_MIN
    is_near = facts.file_system in LOCAL or is_cached
    threads = budget.threads or count_reading_threads(backend, facts.cores, is_near)
    return ReadMethod(backend, direct, threads, reasons, not direct and is_cached)


def _replace_pread(facts: Facts, budget: Budget, direct: bool, reasons: dict[str, str]) -> Backend:
    """Choose the next best backend, because the budget says pread off."""
    if budget.io_uring != "off" and facts.ring_refusal == 0:
        reasons["io_uring"] += "; but the budget says pread off"
        return "io_uring"
    if budget.mmap != "off" and not direct:
        reasons["mmap"] += "; but the budget says pread off"
        return "mmap"
    raise UsageError(
        f"Budget.pread is 'off' and nothing else can read: io_uring: {reasons['io_uring']}; mmap: "
        f"{reasons['mmap']}: use pread='auto'"
    )


def _decide_direct(facts: Facts, budget: Budget, reasons: dict[str, str]) -> bool:
    if budget.direct == "off":
        reasons["direct"] = "the budget says off"
    elif facts.direct_refusal != 0:
        reasons["direct"] = f"{facts.file_system} refuses it: {os.strerror(facts.direct_refusal)}"
        if budget.direct == "required":
            raise UsageError(
                f"Budget.direct is 'required' but {reasons['direct']}: use 'auto', or move the data"
            )
    elif budget.direct == "required":
        reasons["direct"] = "the budget says required"
        return True
    elif budget.mmap == "required":
        reasons["direct"] = "the budget requires mmap, which reads through the page cache"
    elif facts.total_bytes < facts.memory_bytes / 2:
        reasons["direct"] = "the data fits in the page cache"
    elif facts.mean_bytes < 64 * 1024:
        reasons["direct"] = "the extents are small: the page cache may hold their neighbours"
    elif facts.file_system not in {"ext4", "xfs", "btrfs"}:
        reasons["direct"] = f"not known to help on {facts.file_system}"
    else:
        reasons["direct"] = "the data is larger than half of memory and its extents are large"
        return True
    return False


def _decide_mmap(facts: Facts, budget: Budget, direct: bool, reasons: dict[str, str]) -> bool:
    if budget.mmap != "auto" or budget.io_uring == "required":
        reasons["mmap"] = (
            f"the budget says {budget.mmap}"
            if budget.mmap != "auto"
            else "the budget requires io_uring"
        )
        return budget.mmap == "required"
    if direct:
        reasons["mmap"] = "reading with O_DIRECT"
    elif not facts.kept_open:
        reasons["mmap"] = "too many files to keep them mapped"
    elif facts.mean_bytes > limits.mmap_extent_bytes_max:
        reasons["mmap"] = f"the mean extent is above {limits.mmap_extent_bytes_max} bytes"
    elif facts.file_system not in LOCAL:
        reasons["mmap"] = f"{facts.file_system} is not local: a page fault there blocks its thread"
    elif facts.resident < _CACHED_MIN:
        reasons["mmap"] = (
            f"{facts.resident:.0%} of the data is in the page cache"
            if facts.resident >= 0
            else "whether the data is in the page cache is not known (files of another user)"
        )
    else:
        reasons["mmap"] = "small extents of local files in the page cache"
        return True
    return False


def _decide_ring(facts: Facts, budget: Budget, direct: bool, reasons: dict[str, str]) -> bool:
    if budget.io_uring == "off":
        reasons["io_uring"] = "the budget says off"
    elif facts.ring_refusal != 0:
        reasons["io_uring"] = f"the kernel refuses it: {os.strerror(facts.ring_refusal)}"
        if budget.io_uring == "required":
            raise UsageError(
                f"Budget.io_uring is 'required' but {reasons['io_uring']} "
                "(containers often forbid it): use 'auto', or allow io_uring_setup"
            )
    elif budget.io_uring == "required":
        reasons["io_uring"] = "the budget says required"
        return True
    elif facts.file_system in {"tmpfs", "ramfs"}:
        reasons["io_uring"] = (
            f"{facts.file_system} hands each read to a kernel worker, which costs more than pread"
        )
    elif facts.file_system not in LOCAL and not direct:
        reasons["io_uring"] = (
            f"{facts.file_system} keeps a kernel worker waiting for each buffered read, and there "
            "are few of them"
        )
    elif not facts.kept_open:
        reasons["io_uring"] = "each file is opened for its read, which a ring does not speed up"
    else:
        reasons["io_uring"] = "files that stay open, local or read with O_DIRECT"
        return True
    return False
