"""The native engine and arena: the compiled core behind the Engine protocol.

Besides this module only `store`, `penstock.order` and the shared memory of `penstock.cache` and
`penstock.checkpoint` import the core. A request is read by one of three backends:

    io_uring   many reads in flight from each thread; the default for large local files
    pread      a pool of threads; works everywhere; the default if storage is not local
    mmap       copies from a map; cheapest for small extents that are in the page cache

`choose_method` decides from facts about the storage, as the budget allows, and gives the reasons.
"""

from __future__ import annotations

import os
import resource
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, get_args

import numpy as np

from .. import _core, limits
from ..budget import Budget
from ..errors import LimitError, UsageError
from ..extent import Files, Int, Requests
from .protocol import Buffer, Completion, Engine, Failure, check_usable
from .queue import PATIENCE, Patience, Purpose, check_purpose
from .store import LOCAL

crc32c = _core.crc32c
"""CRC-32C of bytes-like data: (data, before=0) -> int, as in the stub of the core."""

gather = _core.gather
move_blocks = _core.move_blocks

if _core.get_sanitizers():  # nobody should time this build
    warnings.warn(
        f"penstock's core was built with sanitizers: {_core.get_sanitizers()}", stacklevel=2
    )

Backend = Literal["pread", "io_uring", "mmap", "object"]
"""The way data is read. "object" is `penstock.engine.objects`, which uses the same type."""
_backend_number: dict[Backend, int] = {"pread": 0, "io_uring": 1, "mmap": 2}

_resident_min = 0.9
_timeout_ns_max = 1 << 62
_counted = ("bytes", "runs", "extents", "tickets", "opens", "open_ns", "work_ns", "busy_ns")


class Facts(NamedTuple):
    """Facts that the choice of a read method depends on.

    file_system:    of the first file ("ext4", "tmpfs", "fuse", "nfs", ...).
    kept_open:      whether the files are few enough to be kept open.
    mean_bytes:     mean length of an extent.
    total_bytes:    size of all files together.
    resident:       part of the files found in the page cache; -1 if unknown.
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


@dataclass(frozen=True, slots=True)
class ReadMethod:
    """The way the engine reads, with the reasons against the other ways.

    cached:     whether the data was found in the page cache, so that reading is copying.
    gap_bytes:  unwanted bytes between two extents that are cheaper to read than to skip.
    """

    backend: Backend
    direct: bool
    threads: int
    reasons: dict[str, str]
    cached: bool = False
    gap_bytes: int = limits.gap_bytes_default


class ReadingEngine(Engine, Protocol):
    """An engine as loaders use it: it reports how it reads, and accepts another budget.

    `adopt` may be called in the middle of any step: it asks storage for nothing. `survey` does,
    to see whether another way to read has become the better one.
    """

    @property
    def choice(self) -> ReadMethod: ...
    def adopt(self, budget: Budget) -> None: ...
    def survey(self) -> None: ...
    def counters(self) -> dict[str, int]: ...


def choose_method(facts: Facts, budget: Budget) -> ReadMethod:
    """Choose the backend, O_DIRECT or not, and the number of threads. Pure.

    Raises UsageError if the budget requires a fast path that is not available.
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
    if budget.threads is not None:
        threads = budget.threads
    elif backend == "pread":
        threads = _count_pread_threads(facts)  # a thread for each read in flight
    elif backend == "io_uring":
        threads = min(4, facts.cores)
    else:
        threads = max(1, facts.cores - 1)  # the thread that waits for a batch copies too
    cached = not direct and facts.resident >= _resident_min
    return ReadMethod(backend, direct, threads, reasons, cached)


def _count_pread_threads(facts: Facts) -> int:
    """Count the reads in flight: as many as storage needs; from the page cache a few more than
    processors."""
    if facts.file_system in LOCAL or facts.resident >= _resident_min:
        return min(16, 2 * facts.cores)
    return limits.remote_threads


def _replace_pread(facts: Facts, budget: Budget, direct: bool, reasons: dict[str, str]) -> Backend:
    """Choose a backend that would otherwise not have been chosen, because pread is off."""
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
    elif facts.resident < _resident_min:
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


def compute_open_files_max() -> int:
    """Return the number of files up to which an engine keeps them open: a quarter of the process's
    limit. All engines of the process together keep half of it at most, so that the user's own
    fit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return limits.open_files_max
    return min(limits.open_files_max, soft // 4)


def measure_resident_fraction(path: str) -> float | None:
    """Measure the part of a file that is in the page cache, from up to 64 places spread over it;
    None if the kernel does not tell."""
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
    first = os.fsencode(files.path(0) if count else files.root)
    resident = [measure_resident_fraction(files.path(i)) for i in probed]
    return Facts(
        file_system=_core.get_file_system(first),
        kept_open=count <= keep_open_max,
        mean_bytes=mean_bytes,
        total_bytes=int(files.size.sum()),
        resident=min(
            (-1.0 if fraction is None else fraction for fraction in resident), default=-1.0
        ),
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        ring_refusal=_core.probe_io_uring(),
        direct_refusal=_core.probe_direct_io(first) if count else 0,
        cores=len(os.sched_getaffinity(0)),
    )


def make_tallies() -> dict[Purpose, Int]:
    """Return a sum for each purpose, 0, to which engines of all threads may add."""
    return {purpose: np.zeros(1, np.int64) for purpose in get_args(Purpose)}


class NativeEngine:
    """Reads the files of an index with the compiled core; see `penstock.engine.Engine`.

    A file whose size or modification time is not that of `files` is reported with ESTALE.
    A table of more than `keep_open_max` files has each opened for each read; None leaves that to
    the process's limit of open files.
    tallies: by purpose, a sum to which the bytes of what is submitted are added.
    Threads are started here and joined by `close`, which the garbage collector also calls.
    """

    def __init__(
        self,
        files: Files,
        *,
        budget: Budget | None = None,
        mean_bytes: float | None = None,
        keep_open_max: int | None = None,
        patience: Patience = PATIENCE,
        tallies: Mapping[Purpose, Int] | None = None,
    ) -> None:
        budget = budget or Budget()
        if tallies is None:
            tallies = make_tallies()
        self._purposes = {each: (patience.of(each), tallies[each]) for each in get_args(Purpose)}
        self._keep_open_max = compute_open_files_max() if keep_open_max is None else keep_open_max
        if mean_bytes is None:
            mean_bytes = float(files.size.mean()) if len(files) else 0.0
        self.files = files
        self._mean_bytes = mean_bytes
        self._budget = budget
        self._facts = survey_files(files, mean_bytes, self._keep_open_max)
        self.choice = choose_method(self._facts, budget)
        self._core = _core.Engine(
            root=os.fsencode(files.root),
            names=files.names,
            ends=files.ends,
            size=files.size,
            mtime_ns=files.mtime_ns,
            keep_max=self._keep_open_max,
            backend=_backend_number[self.choice.backend],
            direct=self.choice.direct,
            threads=self.choice.threads,
        )
        self._core.throttle(budget.bytes_per_s or 0.0)

    def submit(
        self, requests: Requests, buffers: Sequence[Buffer], purpose: Purpose = "prefetch"
    ) -> int:
        self._check_usable()
        if purpose not in self._purposes:
            check_purpose(purpose)
        try:
            ticket: int = self._core.submit(*requests, buffers, *self._purposes[purpose])
        except (ValueError, TypeError) as error:
            raise UsageError(f"the engine cannot accept these requests: {error}") from None
        return ticket

    def poll(self, timeout_ns: int) -> list[Completion]:
        self._check_usable()
        return [
            Completion(ticket, tuple(Failure(*failure) for failure in failures) if failures else ())
            for ticket, failures in self._core.poll(min(timeout_ns, _timeout_ns_max))
        ]

    def close(self) -> None:
        if not self._core.is_inherited:
            self._core.close()

    def adopt(self, budget: Budget) -> None:
        """Apply a changed budget to all reads that no thread has begun. The last survey is reused:
        no file is opened."""
        self._check_usable()
        self._apply_choice(self._facts, budget)

    def survey(self) -> None:
        """Survey a few files again, and read in the way that is best now: much may have entered the
        page cache since. Opens files, which may be slow on slow storage."""
        self._check_usable()
        self._apply_choice(
            survey_files(self.files, self._mean_bytes, self._keep_open_max), self._budget
        )

    def _apply_choice(self, facts: Facts, budget: Budget) -> None:
        choice = choose_method(facts, budget)
        self._facts, self._budget, self.choice = facts, budget, choice
        self._core.set_backend(_backend_number[choice.backend], choice.direct)
        self._core.set_threads(choice.threads)
        self._core.throttle(budget.bytes_per_s or 0.0)

    def counters(self) -> dict[str, int]:
        """Return totals of finished tickets: bytes, runs (read operations), extents, tickets.

        And totals of all work begun: opens (of files); open_ns, time that threads spent opening and
        closing files, part of work_ns; work_ns, time that threads spent at work or waiting for
        storage; busy_ns, time while there was something to read.
        """
        check_usable(self._core.is_inherited)
        return dict(zip(_counted, self._core.counters(), strict=True))

    def _check_usable(self) -> None:
        if self._core.is_closed:  # to a forked child it is
            check_usable(self._core.is_inherited, is_closed=True)


INSTALLED_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
"""Memory of the machine. The system might lend more, and kill the process that uses it."""


class Arena:
    """Recycled, pre-faulted, page-aligned memory for batches.

    An array from `take` returns its memory when the last view of it is gone, to be used again. What
    is kept for that, and what is lent and not handed over, take at most `bytes_max` and one block;
    what is kept makes room, so that only lending more than `bytes_max` exceeds it.
    """

    def __init__(self, bytes_max: int) -> None:
        self._core = _core.Arena(bytes_max)

    def take(self, size_bytes: int) -> Buffer:
        """Return a writable uint8 array of the given size; its content is undefined."""
        try:
            if size_bytes > INSTALLED_BYTES:
                raise MemoryError
            block: Buffer = self._core.take(size_bytes)
        except MemoryError:
            raise LimitError(
                f"no memory for a batch of {size_bytes:,} bytes: lower batch_size; if it has one "
                f"sample, cut that into several, or use a machine with more memory"
            ) from None
        return block

    def hand_over(self, block: Buffer) -> None:
        """Count an array of `take` as the user's from now on: only `lent_bytes` includes it."""
        self._core.hand_over(block)

    def has_room(self, sizes: list[int], reserved_bytes: int = 0) -> bool:
        """Tell whether arrays of these sizes, and so many bytes, fit the bound besides those lent
        and not handed over."""
        return self._core.has_room(sizes, reserved_bytes)

    def limit(self, bytes_max: int) -> None:
        """Change the bound. Memory that is kept above it is freed at once."""
        self._core.bytes_max = bytes_max

    @property
    def bytes_max(self) -> int:
        """Bound of the memory that is kept, or lent and not handed over."""
        return int(self._core.bytes_max)

    @property
    def ahead_bytes(self) -> int:
        """Bytes in arrays that are alive and not handed over."""
        return int(self._core.ahead_bytes)

    @property
    def lent_bytes(self) -> int:
        """Bytes in arrays that are alive."""
        return int(self._core.lent_bytes)

    @property
    def kept_bytes(self) -> int:
        """Bytes that are kept for reuse."""
        return int(self._core.kept_bytes)
