"""Jobs of a broker in processes of their own: tests start them, stop them and kill them.

Such a job steps every few milliseconds, takes what its lease allows and reports that; it says its
lease whenever that changes.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

Lease = dict[str, Any] | None


def environ(**changes: str) -> dict[str, str]:
    """Of processes that import the same penstock."""
    import penstock

    source = str(Path(penstock.__file__).parent.parent)
    kept = {name: value for name, value in os.environ.items() if name != "PENSTOCK_BROKER"}
    return {**kept, "PYTHONPATH": source, **changes}


class Ended(Exception):
    """The job is no more."""


class Job:
    """The test's end of a job.

    profile:  what it reports, fields of a JobProfile; None for nothing.
    lie:      how many times more it reports to bring than it does.
    """

    def __init__(
        self,
        path: Path,
        job: str,
        profile: Mapping[str, float] | None,
        *,
        rank: int = 0,
        lie: float = 1.0,
        step_s: float = 0.01,
    ) -> None:
        told = [str(path), job, rank, profile, lie, step_s]
        self.process = subprocess.Popen(
            [sys.executable, __file__, json.dumps(told)], stdout=subprocess.PIPE, env=environ()
        )

    def hear(self) -> Lease:
        """What it says next."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise Ended
        found: Lease = json.loads(line)
        return found

    def until(self, wanted: Callable[[Lease], bool]) -> Lease:
        """The next lease that is as wanted; a test that waits in vain times out."""
        while not wanted(found := self.hear()):
            pass
        return found

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextlib.contextmanager
def broker(path: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """`penstock broker`, serving."""
    command = [sys.executable, "-m", "penstock", "broker", "--socket", str(path), *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environ())
    try:
        assert process.stderr is not None
        said = process.stderr.readline()
        assert "serving" in said, said
        yield process
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def main() -> None:
    """What the process does."""
    from penstock.lease import Measured, Report
    from penstock.tenant import Tenant
    from penstock.throughput import JobProfile, Share, predict

    path, job, rank, said, lie, step_s = json.loads(sys.argv[1])
    profile = None if said is None else JobProfile(**said)
    tenant = Tenant(job, rank, "train", path)
    lease = None

    def measure() -> Report:
        if profile is None:
            return Report(profile=None, measured=Measured(samples_per_s=0.0))
        mine = Share(workers=1e6)
        if lease is not None:
            rate = lease.bytes_per_s
            mine = Share(workers=lease.cores, bytes_per_s=float("inf") if rate is None else rate)
        reached = predict(profile, mine)
        measured = Measured(
            samples_per_s=reached.samples_per_s / lie,
            cores=reached.samples_per_s * profile.cpu_s,
            bytes_per_s=reached.samples_per_s * profile.storage_bytes,
            stall=reached.idle,
        )
        return Report(profile=said, measured=measured)

    print("null", flush=True)
    while True:
        found = tenant.step(time.monotonic(), measure)
        if found != lease:
            lease = found
            print(json.dumps(None if lease is None else lease.message()), flush=True)
        time.sleep(step_s)


if __name__ == "__main__":
    main()
