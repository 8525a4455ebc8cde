"""python -m benchmarks.broker_overhead [--seconds 8]: what a broker costs that serves eight jobs.

Eight processes step as loaders do, report what goes up and down by a tenth, and hold leases. The
processor time of the broker is by its own clock, as a part of one core; beside it what
`Tenant.step` takes of a loader's step, nearly always: when nothing has come and no report is due.
"""

from __future__ import annotations

import argparse
import json
import math
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from penstock.sharing.client import Tenant
from penstock.sharing.lease import JobMeasurement, Report

from . import __main__ as command
from .contender import ROOT
from .record import Record, Row

JOBS = 8
SECONDS = 8.0
"""More than a period of what the jobs report."""
CORE_MAX = 0.5
"""Per cent of a core."""
STEP_US_MAX = 3.0
STEP_S = 0.005
"""The step of a client: 200 batches a second."""
CALLS, REPEATS = 20_000, 15
BROKER = ("-m", "penstock", "broker", "--cores", "8", "--bytes-per-s", "1GB/s", "--socket")


def report(number: int, now_s: float) -> Report:
    """The report of the job of that number: each wants something else."""
    swing = 1 + 0.1 * math.sin(now_s + number)
    rate = 100.0 * (1 + number)
    profile = {
        "samples_per_s": rate,
        "cpu_s": 0.02 * swing / (1 + number % 3),
        "storage_bytes": 1e5 * swing * (1 + number % 5),
    }
    return Report(profile=profile, measured=JobMeasurement(samples_per_s=rate / 2, stall=0.5))


def client(path: str, number: int) -> None:
    """A job, until it is killed."""
    tenant = Tenant(f"job {number}", 0, "train", path)
    while True:
        now_s = time.monotonic()
        tenant.step(now_s, lambda now_s=now_s: report(number, now_s))  # type: ignore[misc]
        time.sleep(STEP_S)


def state(path: Path) -> dict[str, Any]:
    """The state that the broker shows of itself."""
    with socket.socket(socket.AF_UNIX) as watcher, watcher.makefile("rb") as lines:
        watcher.connect(str(path))
        watcher.sendall(b'{"say":"watch"}\n')
        found: dict[str, Any] = json.loads(lines.readline())
        return found


def step_us(path: str) -> float:
    """Processor time of one call that has nothing to do, the least of several rounds, which others
    disturb least; without a broker where there is none at the path."""
    tenant = Tenant("measured", 0, "train", path)
    now_s = time.monotonic()
    while tenant.step(now_s, lambda: report(0, 0.0)) is None and Path(path).exists():
        pass

    def round_us() -> float:
        started = time.thread_time()
        for _ in range(CALLS):
            tenant.step(now_s, lambda: report(0, 0.0))
        return (time.thread_time() - started) / CALLS * 1e6

    found = min(round_us() for _ in range(REPEATS))
    tenant.close()
    return found


def percent(path: Path, seconds: float) -> float:
    """The percentage of a core that the broker takes by its own clock, over so long."""
    before, started = state(path)["cpu_s"], time.monotonic()
    time.sleep(seconds)
    return 100 * float(state(path)["cpu_s"] - before) / (time.monotonic() - started)


def rows(seconds: float = SECONDS) -> list[Row]:
    """All of them, with a broker and clients of their own."""
    started: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "broker.sock")
        try:
            started.append(subprocess.Popen([sys.executable, *BROKER, str(path)], cwd=ROOT))
            while not path.exists():
                time.sleep(0.01)
            for number in range(JOBS):
                module = ("-m", "benchmarks.broker_overhead", "--client", str(path), str(number))
                started.append(subprocess.Popen([sys.executable, *module], cwd=ROOT))
            while [each["standing"] for each in state(path)["jobs"]] != ["measured"] * JOBS:
                time.sleep(0.1)
            quiet = percent(path, seconds)
            with socket.socket(socket.AF_UNIX) as watcher:
                watcher.connect(str(path))
                watcher.sendall(b'{"say":"watch"}\n')
                watched = percent(path, seconds / 2)
            step = step_us(str(path))
            alone = step_us(folder + "/none")
        finally:
            for each in reversed(started):
                each.kill()
                each.wait()
    return [
        Row(f"broker, {JOBS} jobs", quiet, "% of a core", target=CORE_MAX, met=quiet < CORE_MAX),
        Row(f"broker, {JOBS} jobs and one who watches", watched, "% of a core"),
        Row("Tenant.step, nothing new", step, "us", target=STEP_US_MAX, met=step < STEP_US_MAX),
        Row("Tenant.step, no broker", alone, "us"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.broker_overhead")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--client", nargs=2, metavar=("PATH", "NUMBER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        client(options.client[0], int(options.client[1]))
    record = Record("broker", 1, {"seconds": options.seconds, "jobs": JOBS})
    record.rows += rows(options.seconds)
    command.finish(record)


if __name__ == "__main__":
    main()
