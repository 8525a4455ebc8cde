"""Leased budget of a loader on a shared host: the part that a broker leases to it for now.

There is nothing to start or to wait for: a loader asks once a step, and while it waits for a batch.
Without a broker, its budget is its own.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Mapping

from ..budget import Budget
from ..meter import Counters
from ..ranks import Place
from .client import Tenant
from .job_profile import Profiler, ProfileWindow
from .lease import JobMeasurement, Lease, Report, limit_budget


class LeasedBudget:
    """Leased budget of one loader.

    counters:  a method of the loader; called a few times a second at most.
    name:      of the loader, for people.
    place:     of its process. Ranks of one job that run on this host share the job's part.
    own:       the loader's own budget.
    """

    def __init__(
        self, counters: Callable[[], Counters], name: str, place: Place, own: Budget
    ) -> None:
        self.own = own
        self._counters = weakref.WeakMethod(counters)  # loaders end with their last reference
        self._tenant = Tenant(name_job(place, os.environ), place.rank, name)
        self._profiler = Profiler()
        self._lease: Lease | None = None

    @property
    def lease(self) -> Lease | None:
        """The lease now; None without a broker."""
        return self._lease

    def changed(self) -> bool:
        """Return whether the lease is another one than at the last call; to be called once a step.

        Never waits; takes 2 us.
        """
        lease = self._tenant.step(time.monotonic(), self._report)
        if lease is self._lease:
            return False
        changed = lease != self._lease
        self._lease = lease
        return changed

    def budget(self, step_bytes: float = 0.0) -> Budget:
        """Return the loader's own budget, limited by the lease; see `lease.limit_budget`."""
        return self.own if self._lease is None else limit_budget(self.own, self._lease, step_bytes)

    def leave(self) -> None:
        """Give the lease back."""
        self._tenant.close()
        self._lease = None

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
        """Return the rate of the user's steps, or less if the loader's own budget allows only less.

        A larger share would be no use.
        """
        rates = [window.samples_per_s]
        for most, cost in (
            (self.own.cores, window.cpu_s),
            (self.own.bytes_per_s, window.storage_bytes),
        ):
            if most is not None and cost > 0:
                rates.append(most / cost)
        return min(rates)


def name_job(place: Place, environ: Mapping[str, str]) -> str:
    """Return the name that the ranks of a job on this host have in common.

    It is $PENSTOCK_JOB, or Slurm's number, or the process that started them, which for several
    ranks is their launcher.
    """
    if "PENSTOCK_JOB" in environ:
        return environ["PENSTOCK_JOB"]
    if place.world_size == 1:
        return f"process {os.getpid()}"
    if "SLURM_JOB_ID" in environ:
        return f"slurm {environ['SLURM_JOB_ID']}.{environ.get('SLURM_STEP_ID', '')}"
    return f"ranks of process {os.getppid()}"
