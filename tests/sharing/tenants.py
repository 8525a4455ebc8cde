"""Jobs of a broker in processes of their own: tests start them, stop them and kill them.

Such a job steps every few milliseconds, takes what its lease allows and reports that; it says its
lease whenever that changes.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests import ROOT, warm

Lease = dict[str, Any] | None


def environ(**changes: str) -> dict[str, str]:
    """The environment of processes that import the same penstock."""
    import penstock

    source = str(Path(penstock.__file__).parent.parent)
    ours = ("PENSTOCK_BROKER", "COLUMNS")  # the tests' own settings
    kept = {name: value for name, value in os.environ.items() if name not in ours}
    path = os.pathsep.join([source, str(ROOT)])
    return {**kept, "PYTHONPATH": path, **changes}


class Ended(Exception):
    """The other side is no more."""


class Job:
    """The test's end of a job.

    profile:  what it reports, fields of a JobProfile; None for nothing.
    greed:    how many times more it says that it takes than it does.
    """

    def __init__(
        self,
        path: Path,
        job: str,
        profile: Mapping[str, float] | None,
        *,
        rank: int = 0,
        greed: float = 1.0,
        step_s: float = 0.01,
    ) -> None:
        told = [str(path), job, rank, profile, greed, step_s]
        self.process = warm.Popen(
            [sys.executable, __file__, json.dumps(told)], stdout=subprocess.PIPE, env=environ()
        )
        self.lease: Lease = None

    def hear(self) -> Lease:
        """The lease that it says next."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise Ended
        self.lease = json.loads(line)
        return self.lease

    def until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The lease that it has last said, or the next that is as wanted; a test that waits in vain
        times out."""
        while self.lease is None or not wanted(self.lease):
            self.hear()
        return self.lease

    def until_alone(self) -> None:
        """Until it has no lease."""
        while self.lease is not None:
            self.hear()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextlib.contextmanager
def job(
    path: Path, name: str, profile: Mapping[str, float] | None, **options: Any
) -> Iterator[Job]:
    """A job, until the end of the block."""
    started = Job(path, name, profile, **options)
    try:
        yield started
    finally:
        started.end()


@contextlib.contextmanager
def broker(path: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """`penstock broker`, serving."""
    command = [sys.executable, "-m", "penstock", "broker", "--socket", str(path), *options]
    process = warm.Popen(command, stderr=subprocess.PIPE, text=True, env=environ())
    try:
        assert process.stderr is not None
        said = process.stderr.readline()
        assert "dividing" in said, said + process.stderr.read()
        yield process
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


class Caller:
    """Somebody who says whatever a test likes to a broker."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(path))
        self._file = self.socket.makefile("rb")

    def say(self, line: bytes | dict[str, Any]) -> None:
        text = line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n"
        self.socket.sendall(text)

    def hear(self) -> dict[str, Any]:
        """The message that it is told next; Ended where the broker has closed."""
        try:
            line = self._file.readline()
        except ConnectionResetError:
            raise Ended from None
        if not line:
            raise Ended
        found: dict[str, Any] = json.loads(line)
        return found

    def join(self, job: str, **changes: Any) -> None:
        told = {"say": "join", "version": 1, "job": job, "rank": 0, "pid": 1, "name": "test"}
        self.say({**told, **changes})

    def state(self) -> dict[str, Any]:
        """The broker's state, as it is shown."""
        self.say({"say": "watch"})
        while (found := self.hear())["say"] != "state":
            pass
        return found

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *raised: object) -> None:
        self._file.close()
        self.socket.close()


def main() -> None:
    """Run as the process of a job."""
    from penstock import limits
    from penstock.sharing.client import Tenant
    from penstock.sharing.job_state import JobProfile, Share, predict
    from penstock.sharing.lease import JobMeasurement, Report

    limits.broker_retry_s = 0.2  # tests wait for it
    path, name, rank, said, greed, step_s = json.loads(sys.argv[1])
    profile = None if said is None else JobProfile(**said)
    tenant = Tenant(name, rank, "train", path)
    lease = None

    def measure() -> Report:
        if profile is None:
            return Report(profile=None, measured=JobMeasurement(samples_per_s=0.0))
        mine = Share(workers=1e6)
        if lease is not None:
            rate = math.inf if lease.bytes_per_s is None else lease.bytes_per_s
            mine = Share(workers=lease.cores, bytes_per_s=rate)
        reached = predict(profile, mine)
        measured = JobMeasurement(
            samples_per_s=reached.samples_per_s,
            cores=greed * reached.samples_per_s * profile.cpu_s,
            bytes_per_s=reached.samples_per_s * profile.storage_bytes,
            stall=max(0.0, reached.idle),
        )
        return Report(profile=said, measured=measured)

    while True:
        found = tenant.step(time.monotonic(), measure)
        if found != lease:
            lease = found
            print(json.dumps(None if lease is None else lease.message()), flush=True)
        time.sleep(step_s)


if __name__ == "__main__":
    main()
