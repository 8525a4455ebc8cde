"""The jobs of this host: processes that train, held to shares that may change while they do."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.contender import ANSWER_S, EXIT_S, ROOT, ContenderError
from benchmarks.corpus import Corpora, make_warm
from benchmarks.emulation import Mount, Shared
from penstock.sharing.allocation import Resources
from penstock.sharing.job_state import JobProfile, Share
from penstock.sharing.lease import steps_ahead

from .work import KINDS, Job

READAHEAD_S = 0.5
"""Seconds of bytes at its rate that a job may have read ahead, and at least the steps that a lease
leaves it: a change is seen that much later."""
ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_TOP_PAD_": str(16 << 20),
}
"""Memory that was used is used again, as jobs' allocators do: fresh pages are slow in a virtual
machine, the slower the less often they are asked for."""
LEAST_CORES, LEAST_BYTES_PER_S = 0.01, 100e3
"""A job that was found to need nothing of a resource is left so much, to begin an epoch with."""

Report = Mapping[str, Any]


def budget_of(job: Job, share: Share) -> dict[str, Any]:
    """The fields of the Budget that holds a loader to a share."""
    rate = max(LEAST_BYTES_PER_S, share.bytes_per_s)
    return {
        "cores": max(LEAST_CORES, share.workers),
        "bytes_per_s": rate,
        "readahead_bytes": max(steps_ahead * job.step_bytes, int(rate * READAHEAD_S)),
    }


UNLIMITED: dict[str, Any] = {}
"""A Budget's fields that hold a loader to nothing."""


@dataclass(frozen=True, slots=True)
class Window:
    """The progress of a job in some time."""

    samples_per_s: float
    profile: JobProfile | None
    cores: float
    bytes_per_s: float
    process_cores: float
    stall: float


def count_between(before: Report, after: Report) -> dict[str, int]:
    """Counts of a job between two reports, by name."""
    return {name: after[name] - before[name] for name in after if name != "tasks"}


def window_of(job: Job, new: Mapping[str, float]) -> Window:
    """`profile` is None where nothing was handed over."""
    seconds = new["time_ns"] * 1e-9
    profile = None
    if new["samples"] and new["tickets"]:
        own_s = (new["compute_ns"] + new["own_ns"]) * 1e-9
        profile = JobProfile(
            samples_per_s=new["samples"] / own_s,
            cpu_s=new["decode_cpu_ns"] * 1e-9 / new["samples"],
            storage_bytes=new["bytes"] / new["tickets"] / job.batch,
        )
    return Window(
        samples_per_s=new["samples"] / seconds,
        profile=profile,
        cores=new["decode_cpu_ns"] * 1e-9 / seconds,
        bytes_per_s=new["bytes"] / seconds,
        process_cores=new["process_s"] / seconds,
        stall=new["stall_ns"] * 1e-9 / seconds,
    )


class Running:
    """One job's process."""

    def __init__(self, job: Job, path: Path, socket: Path) -> None:
        self.job = job
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        options = {
            "kind": job.kind,
            "path": str(path),
            "batch": job.batch,
            "step_ms": job.step_ms,
        }
        self._child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.baselines.sharing_job", json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=ROOT,
            env={**os.environ, **ALLOCATOR, "PENSTOCK_BROKER": str(socket)},
            start_new_session=True,
        )
        assert self._child.stdout is not None
        os.set_blocking(self._child.stdout.fileno(), False)
        self._rest = b""
        self._done = False

    @property
    def pid(self) -> int:
        return self._child.pid

    def tell(self, **line: Any) -> None:
        """Send a line; if the job has ended, asking it will say so."""
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            os.write(self._child.stdin.fileno(), json.dumps(line).encode() + b"\n")

    def share(self, share: Share, *, report: bool = False) -> None:
        """Set the share from its next step on; with a report of that moment."""
        self.tell(budget=budget_of(self.job, share), **({"report": True} if report else {}))

    def report(self) -> Report:
        """At its next step's boundary."""
        self.tell(report=True)
        return self.answer()

    def trace(self) -> Mapping[str, Any]:
        """The trace of a job that stands still, or at its next step's boundary."""
        self.tell(trace=True)
        return self.answer()

    @property
    def done(self) -> bool:
        """True if it has done the steps that it was told to."""
        while not self._done and self._hears() is not None:
            pass
        return self._done

    def _hears(self) -> dict[str, Any] | None:
        """An answer, if there is one."""
        assert self._child.stdout is not None
        while b"\n" not in self._rest:
            try:
                part = os.read(self._child.stdout.fileno(), 1 << 20)
            except BlockingIOError:
                return None
            if not part:
                raise ContenderError(f"{self.job.name}: ended: {self._last_words()}")
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        self._done |= "done" in found
        return found

    def answer(self) -> dict[str, Any]:
        """The next answer, waited for."""
        deadline_s = time.monotonic() + ANSWER_S
        while (found := self._hears()) is None or "done" in found:
            if time.monotonic() > deadline_s:
                raise ContenderError(f"{self.job.name}: no answer in {ANSWER_S} s")
            time.sleep(0.002)
        return found

    def close(self) -> None:
        """End the process, kindly first."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(EXIT_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        self._child.stdout.close()
        self._errors.close()

    def _last_words(self) -> str:
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()[-3:]
        return " | ".join(said)


class Site:
    """The resources to share, and the place of the data: one mount, as a host has."""

    def __init__(self, corpora: Corpora, resources: Resources, storage: Shared) -> None:
        self.corpora, self.resources, self.storage = corpora, resources, storage
        self.mount: Mount = storage.mount(corpora.folder, direct=True)
        self._folder = tempfile.TemporaryDirectory(prefix="share-")
        self.socket = Path(self._folder.name) / "broker.sock"
        self._warm: set[Path] = set()

    def path(self, job: Job) -> Path:
        """Below the mount; what plays the storage's disk is in memory."""
        made = KINDS[job.kind].made(self.corpora)
        return Path(self.mount.path) / made.name

    def warm(self, jobs: Sequence[Job]) -> None:
        """Bring the data of jobs into memory, once."""
        paths = {KINDS[job.kind].made(self.corpora) for job in jobs}
        for path in paths - self._warm:
            make_warm(path)
        self._warm |= paths

    def start(self, jobs: Sequence[Job]) -> Host:
        """Processes that wait to be told to go, with nothing limited. Where there is a broker at
        the socket, they find it."""
        with contextlib.ExitStack() as started:
            found = []
            for job in jobs:
                running = Running(job, self.path(job), self.socket)
                started.callback(running.close)
                found.append(running)
            host = Host(found, self.socket)
            started.pop_all()
        return host

    def close(self) -> None:
        self._folder.cleanup()


class Host:
    """Jobs that run together."""

    def __init__(self, running: Sequence[Running], socket: Path) -> None:
        self.running, self.socket = list(running), socket
        for each in self.running:
            each.answer()

    @property
    def jobs(self) -> list[Job]:
        return [each.job for each in self.running]

    def __enter__(self) -> Host:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        for each in self.running:
            each.close()

    def go(self) -> None:
        for each in self.running:
            each.tell(go=None)

    def hold(self, budgets: Sequence[Mapping[str, Any]]) -> None:
        """To budgets, from each job's next step on."""
        for each, budget in zip(self.running, budgets, strict=True):
            each.tell(budget=dict(budget))

    def share(self, shares: Sequence[Share]) -> None:
        for each, share in zip(self.running, shares, strict=True):
            each.share(share)

    def reports(self) -> list[Report]:
        """The reports of all jobs, each at its next step's boundary."""
        for each in self.running:
            each.tell(report=True)
        return [each.answer() for each in self.running]

    def counts(self, seconds: float, settle_s: float = 0.0) -> list[dict[str, int]]:
        """Counts of the jobs for so long, after so long."""
        time.sleep(settle_s)
        before = self.reports()
        time.sleep(seconds)
        return list(map(count_between, before, self.reports()))

    def windows(self, seconds: float, settle_s: float = 0.0) -> list[Window]:
        """The progress of the jobs for so long, after so long."""
        return list(map(window_of, self.jobs, self.counts(seconds, settle_s)))
