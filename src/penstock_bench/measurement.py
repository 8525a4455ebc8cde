"""Measurement of a run: the times of its steps, and its costs as the kernel counts them.

`walk` does one rank's steps through an epoch: wait for a batch, compute, meet the others; with
stamps. A step computes on an emulated accelerator: a wait that ends when it should, on a core that
is mostly free. A sleep alone ends late, by the timer's slack and a wake-up (about 0.1 ms, a third
of a short step). So most of a wait is slept, without the interpreter's lock, and its last part is
watched.

    charged = is_charged("/data")
    before = measure_use(charged)
    ...
    spent = measure_use(charged).since(before)

Counters are of this process and of all that it started. The counters of a process that has ended
go to its parent once that has waited for it; if its parent left it behind, they are lost. A figure
that the kernel does not give, or gives wrongly for this file system, is None.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.engine import find_mount
from penstock.errors import UsageError

from .results.metrics import Stamps

_MARGIN_NS = (60_000, 250_000)
"""Least and most time that is watched at the end of a wait. Watching takes time from the loader's
own threads, so it has to be short even if sleeps end late."""


class StepPace:
    """Waits until a time; learns how late sleeps end, and wakes up as much earlier.

    clock, sleep:  of the world; tests have their own.
    """

    def __init__(
        self,
        clock: Callable[[], int] = time.perf_counter_ns,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.clock = clock
        self._sleep = sleep
        self._margin_ns = sum(_MARGIN_NS) // 2

    def until(self, due_ns: int) -> int:
        """Wait until `due_ns`, or not at all if it has passed; return the time then."""
        clock, margin_ns = self.clock, self._margin_ns
        now_ns = clock()
        left_ns = due_ns - now_ns - margin_ns
        if left_ns > 0:
            self._sleep(left_ns * 1e-9)
            late_ns = clock() - now_ns - left_ns
            least_ns, most_ns = _MARGIN_NS
            wanted_ns = max(margin_ns * 63 // 64, late_ns * 5 // 4, least_ns)  # shrinks slowly
            self._margin_ns = min(wanted_ns, most_ns)
            now_ns = clock()
        while now_ns < due_ns:
            now_ns = clock()
        return now_ns


def sharpen_timers() -> None:
    """Let this process's main thread sleep to the nanosecond instead of to 50 us, if the kernel
    permits it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/timerslack_ns").write_text("1")


_END = object()


def walk(
    batches: Iterable[Any],
    nominal_ns: npt.NDArray[np.int64],
    pace: StepPace,
    barrier: Callable[[], object],
    taken: Callable[[Any], object],
    pause: Callable[[int], bool] | None = None,
    where: str = "the loader",
) -> Stamps:
    """Do `len(nominal_ns)` steps, each of which computes as long as its entry says.

    Beginning to iterate belongs to the first step's wait.

    taken:  receives each batch while the step computes: a step takes the longer of both.
    pause:  called after each step (from 1 on); True if it saved a checkpoint, whose time is then
            kept apart.
    where:  owner of the batches, for the error of an epoch that ends too early.
    """
    steps, nominal = len(nominal_ns), nominal_ns.tolist()
    columns = [array("q", bytes(8 * steps)) for _ in range(5)]
    asked, got, computed, left, paused = columns
    clock, until = pace.clock, pace.until
    began = clock()
    iterator = iter(batches)
    for step in range(steps):
        asked[step] = clock() if step else began
        batch = next(iterator, _END)
        arrived = got[step] = clock()
        if batch is _END:
            raise UsageError(
                f"{where} ended after {step:,} of {steps:,} steps: give --limit {step}, or make "
                "the workload's files, samples and batch size those of the loader"
            )
        taken(batch)
        computed[step] = until(arrived + nominal[step])
        barrier()
        left[step] = clock()
        if pause is not None and pause(step + 1):
            paused[step] = clock() - left[step]
    ended = clock()
    stamps = [np.frombuffer(column, np.int64) for column in columns]
    return Stamps(stamps[0], stamps[1], stamps[2], stamps[3], stamps[4], nominal_ns, began, ended)


# -- costs -----------------------------------------------------------------------------------------

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
    peak_rss = _parse_numbers(_read_text("/proc/self/status")).get("VmHWM")
    return Memory(peak_rss, _look_steadily(_add_up_pss))


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


def _add_up_pss(pids: list[int]) -> int | None:
    sizes = [_read_pss("self"), *(_read_pss(str(pid)) for pid in pids)]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def _measure_cpu_s(pids: list[int]) -> float | None:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = usage.ru_utime + usage.ru_stime + ended.ru_utime + ended.ru_stime
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
    return _parse_numbers(text).get("Pss")


def _read_text(path: str | Path) -> str | None:
    try:
        return Path(path).read_text(errors="surrogateescape")
    except OSError:
        return None


def _parse_numbers(text: str | None) -> dict[str, int]:
    """Parse lines such as "rchar: 12", and "VmRSS:   12 kB" into bytes."""
    lines = re.findall(r"^(\w+):\s*(\d+)( kB)?$", text or "", re.MULTILINE)
    return {name: int(number) * (1024 if unit else 1) for name, number, unit in lines}
