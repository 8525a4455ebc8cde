"""Leased budget of a loader on a shared host: the part that a broker leases to it for now.

A loader asks once a step, and while it waits for a batch; nothing waits for the broker. Without a
broker, its own budget holds. The loader reports a profile, measured over windows of some batches:

    samples_per_s   rate of the user's steps if batches were there at once
    cpu_s           processor time of decoding a sample, by the threads' own clocks
    storage_bytes   bytes read for a sample

None of it depends on the loader's share: a starved loader is measured as well as a full one.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ..budget import Budget
from ..meter import Counters
from ..ranks.place import Place
from .client import Tenant
from .lease import JobMeasurement, Lease, Report, limit_budget

_window_ns = 1_000_000_000
_batches = 4


class LeasedBudget:
    """Budget of one loader, limited by its lease.

    counters:  method of the loader, called a few times a second at most.
    name:      of the loader, for people.
    place:     of its process. Ranks of one job on this host share the job's part.
    budget:    the loader's own.
    """

    def __init__(
        self, counters: Callable[[], Counters], name: str, place: Place, budget: Budget
    ) -> None:
        self.own = budget
        self._counters = weakref.WeakMethod(counters)  # loaders end with their last reference
        self._tenant = Tenant(name_job(place, os.environ), place.rank, name)
        self._profiler = Profiler()
        self.lease: Lease | None = None
        """The lease now; None without a broker."""

    def changed(self) -> bool:
        """True if the lease has changed since the last call. Never waits; takes 2 us."""
        before, self.lease = self.lease, self._tenant.step(time.monotonic(), self._report)
        return before is not self.lease and before != self.lease

    @property
    def quiet_until_ns(self) -> int:
        """Time (`time.perf_counter_ns`) before which `changed` is False: 0 with a broker, else the
        time at which one is looked for again."""
        quiet_s = self._tenant.quiet_until_s - time.monotonic()
        return time.perf_counter_ns() + int(quiet_s * 1e9) if quiet_s > 0 else 0

    def budget(self, step_bytes: float = 0.0) -> Budget:
        """Return the loader's own budget, limited by the lease; see `lease.limit_budget`."""
        return self.own if self.lease is None else limit_budget(self.own, self.lease, step_bytes)

    def leave(self) -> None:
        """Give the lease back."""
        self._tenant.close()
        self.lease = None

    def _report(self) -> Report:
        ask = self._counters()
        assert ask is not None, "the loader is asking"
        counters = ask()
        step_s = counters.steps_ns * 1e-9 / max(1, counters.batches)
        window = self._profiler.measure(counters)
        if window is None:
            return Report(profile=None, measured=JobMeasurement(samples_per_s=0.0, step_s=step_s))
        return Report(
            profile={
                "samples_per_s": self._ceiling(window),
                "cpu_s": window.cpu_s,
                "storage_bytes": window.storage_bytes,
            },
            measured=JobMeasurement(
                samples_per_s=window.rate,
                cores=window.cpu_s * window.rate,
                bytes_per_s=window.storage_bytes * window.rate,
                stall=window.stall,
                samples=counters.samples,
                step_s=step_s,
            ),
        )

    def _ceiling(self, window: ProfileWindow) -> float:
        """Return the rate of the user's steps, or the rate that the loader's own budget allows if
        that is less: a larger share would be no use."""
        rates = [window.samples_per_s]
        for most, cost in (
            (self.own.cores, window.cpu_s),
            (self.own.bytes_per_s, window.storage_bytes),
        ):
            if most is not None and cost > 0:
                rates.append(most / cost)
        return min(rates)


def name_job(place: Place, environ: Mapping[str, str]) -> str:
    """Return the name shared by the ranks of a job on this host.

    It is $PENSTOCK_JOB, or Slurm's number, or the process that started them: for several ranks
    their launcher.
    """
    if "PENSTOCK_JOB" in environ:
        return environ["PENSTOCK_JOB"]
    if place.world_size == 1:
        return f"process {os.getpid()}"
    if "SLURM_JOB_ID" in environ:
        return f"slurm {environ['SLURM_JOB_ID']}.{environ.get('SLURM_STEP_ID', '')}"
    return f"ranks of process {os.getppid()}"


class ProfileWindow(NamedTuple):
    """Measurement of a loader over some time.

    samples, seconds:  samples handed over; length of the window.
    samples_per_s:     ceiling of the user's steps; 0 if unknown.
    cpu_s, storage_bytes:  of a sample.
    stall:             part of the time in which the user waited for batches.
    """

    samples: int
    seconds: float
    samples_per_s: float
    cpu_s: float
    storage_bytes: float
    stall: float

    @property
    def rate(self) -> float:
        """Samples handed over a second."""
        return self.samples / self.seconds


def measure_window(window: Counters, ever: Counters | None = None) -> ProfileWindow | None:
    """Measure a window from a difference of counters; return None without a whole step, or a step
    that was read in the window or before it (`ever`): a loader far ahead may read nothing for long.

    Reading runs ahead of the user, so bytes are counted by the steps that were read. Bytes kept for
    several steps (by a cache) are counted by samples.
    """
    engine = window.engine
    read, tickets = engine.get("bytes", 0), engine.get("tickets", 0)
    by_steps = "tickets" in engine and "loaded_bytes" not in engine
    if by_steps and tickets == 0 and ever is not None:
        read, tickets = ever.engine.get("bytes", 0), ever.engine.get("tickets", 0)
    seconds, steps_s = window.time_ns * 1e-9, (window.compute_ns + window.own_ns) * 1e-9
    if window.samples == 0 or steps_s == 0 or (by_steps and tickets == 0):
        return None
    rows = window.samples / window.batches
    return ProfileWindow(
        samples=window.samples,
        seconds=seconds,
        samples_per_s=window.samples / steps_s,
        cpu_s=window.decode_cpu_ns * 1e-9 / window.samples,
        storage_bytes=read / tickets / rows if by_steps else read / window.samples,
        stall=min(1.0, window.stall_ns / max(1, window.time_ns)),
    )


class Profiler:
    """Repeated measurement of one loader, over at least a second and some batches each time."""

    def __init__(self) -> None:
        self._since: Counters | None = None

    def measure(self, counters: Counters) -> ProfileWindow | None:
        """Return the window that has ended now, or None while it goes on."""
        if self._since is None:
            self._since = counters
        ended = (
            counters.time_ns - self._since.time_ns >= _window_ns
            and counters.batches - self._since.batches >= _batches
        )
        window = measure_window(counters.since(self._since), counters) if ended else None
        if window is not None:
            self._since = counters
        return window
