"""The way to read: io_uring, pread or mmap, decided from facts about the storage and the budget.

The decision gives its reasons: why io_uring, O_DIRECT or mmap is not used, such as an errno with
which the system refuses io_uring.
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

INSTALLED_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
"""Memory of the machine. The system might lend more, and kill the process that uses it."""

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
        memory_bytes=INSTALLED_BYTES,
        ring_refusal=probe_io_uring(),
        direct_refusal=_core.probe_direct_io(os.fsencode(first)) if count else 0,
        cores=len(os.sched_getaffinity(0)),
    )


# -- the way to read ------------------------------------------------------------------------------


def choose_method(facts: Facts, budget: Budget) -> ReadMethod:
    """Choose the backend, O_DIRECT or not, and the number of threads. Pure.

    UsageError if the budget requires a fast path that is not available.
    """
    reasons: dict[str, str] = {}
    direct, reasons["direct"] = _decide_direct(facts, budget)
    backend: Backend = "pread"
    if budget.pread == "required":
        reasons["mmap"] = reasons["io_uring"] = "the budget requires pread"
    else:
        is_mapped, reasons["mmap"] = _decide_mmap(facts, budget, direct)
        if is_mapped:
            backend, reasons["io_uring"] = "mmap", "the data is copied from maps"
        else:
            is_ring, reasons["io_uring"] = _decide_ring(facts, budget, direct)
            if is_ring:
                backend = "io_uring"
            elif budget.pread == "off":
                backend = _replace_pread(facts, budget, direct, reasons)
    is_cached = facts.resident >= _CACHED_MIN
    is_near = facts.file_system in LOCAL or is_cached
    threads = budget.threads or count_reading_threads(backend, facts.cores, is_near, direct)
    return ReadMethod(backend, direct, threads, reasons, not direct and is_cached)


def _replace_pread(facts: Facts, budget: Budget, direct: bool, reasons: dict[str, str]) -> Backend:
    """Choose the next best backend, because the budget says pread off."""
    if budget.io_uring != "off" and facts.ring_refusal == 0:
        reasons["io_uring"] += "; but the budget says pread off"
        return "io_uring"
    if budget.mmap != "off" and not direct:
        reasons["mmap"] += "; but the budget says pread off"
        return "mmap"
    what = f"io_uring: {reasons['io_uring']}; mmap: {reasons['mmap']}"
    raise UsageError(f"Budget.pread is 'off' and nothing else can read: {what}: use 'auto'")


_Rule = tuple[bool, bool, str]
"""Whether a rule applies, what it decides, and the reason."""


def _apply_rules(*rules: _Rule) -> tuple[bool, str]:
    """Return the decision and the reason of the first rule that applies."""
    return next((decision, reason) for applies, decision, reason in rules if applies)


def _decide_direct(facts: Facts, budget: Budget) -> tuple[bool, str]:
    is_asked = budget.direct == "required"
    refusal = f"{facts.file_system} refuses it: {os.strerror(facts.direct_refusal)}"
    if is_asked and facts.direct_refusal:
        raise UsageError(f"Budget.direct is 'required' but {refusal}: use 'auto', or move the data")
    large = "the data is larger than half of memory and its extents are large"
    map_asked = "the budget requires mmap, which reads through the page cache"
    small = "the extents are small: the page cache may hold their neighbours"
    is_known = facts.file_system in {"ext4", "xfs", "btrfs"}
    fits = facts.total_bytes < facts.memory_bytes / 2
    return _apply_rules(
        (budget.direct == "off", False, "the budget says off"),
        (facts.direct_refusal != 0, False, refusal),
        (is_asked, True, "the budget says required"),
        (budget.mmap == "required", False, map_asked),
        (fits, False, "the data fits in the page cache"),
        (facts.mean_bytes < 64 * 1024, False, small),
        (not is_known, False, f"not known to help on {facts.file_system}"),
        (True, True, large),
    )


def _decide_mmap(facts: Facts, budget: Budget, direct: bool) -> tuple[bool, str]:
    asked = budget.mmap
    remote = f"{facts.file_system} is not local: a page fault there blocks its thread"
    long = f"the mean extent is above {limits.mmap_extent_bytes_max} bytes"
    cached = f"{facts.resident:.0%} of the data is in the page cache"
    if facts.resident < 0:
        cached = "whether the data is in the page cache is not known (files of another user)"
    return _apply_rules(
        (asked != "auto", asked == "required", f"the budget says {asked}"),
        (budget.io_uring == "required", False, "the budget requires io_uring"),
        (direct, False, "reading with O_DIRECT"),
        (not facts.kept_open, False, "too many files to keep them mapped"),
        (facts.mean_bytes > limits.mmap_extent_bytes_max, False, long),
        (facts.file_system not in LOCAL, False, remote),
        (facts.resident < _CACHED_MIN, False, cached),
        (True, True, "small extents of local files in the page cache"),
    )


def _decide_ring(facts: Facts, budget: Budget, direct: bool) -> tuple[bool, str]:
    is_asked, name = budget.io_uring == "required", facts.file_system
    refusal = f"the kernel refuses it: {os.strerror(facts.ring_refusal)}"
    if is_asked and facts.ring_refusal:
        what = f"Budget.io_uring is 'required' but {refusal} (containers often forbid it)"
        raise UsageError(f"{what}: use 'auto', or allow io_uring_setup")
    memory = f"{name} hands each read to a kernel worker, which costs more than pread"
    remote = (
        f"{name} keeps a kernel worker waiting for each buffered read, and there are few of them"
    )
    many = "each file is opened for its read, which a ring does not speed up"
    return _apply_rules(
        (budget.io_uring == "off", False, "the budget says off"),
        (facts.ring_refusal != 0, False, refusal),
        (is_asked, True, "the budget says required"),
        (name in {"tmpfs", "ramfs"}, False, memory),
        (name not in LOCAL and not direct, False, remote),
        (not facts.kept_open, False, many),
        (True, True, "files that stay open, local or read with O_DIRECT"),
    )
