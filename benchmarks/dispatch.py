"""python -m benchmarks.dispatch [--quick]: how long demands wait where sweeps wait for storage.

One engine reads a file at a limited rate. Sweeps keep it busy, and so many of them wait that they
would take some time; beside them come demands, one after the other, each of 64 KiB. Once all are
told to be of the same purpose (first come, first served), once each what it is, and once without
sweeps, which is the floor. By purpose a demand waits for what is being read, and for what has
waited for a second.

Beside that, what places of limited rates give together. Record: benchmarks/results/dispatch.json.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from penstock import limits
from penstock.budget import Budget
from penstock.engine.mirrored import MirroredEngine
from penstock.engine.native import NativeEngine
from penstock.engine.protocol import Buffer
from penstock.engine.request_queue import Purpose
from penstock.extent import Files, Requests

from . import __main__ as command
from .record import Record, Row

RATE = 200e6
"""Bytes/s of the storage."""
RUN_BYTES = 1 * limits.MIB
SWEEP_RUNS = 8
DEMAND_BYTES = 64 << 10
PAUSE_S = 0.03
"""The pause from a demand that is there to the next one: others' reads take most of the storage."""
BACKLOGS_S = (0.1, 0.5, 2.0)
"""Time that the sweeps that wait would take."""


class Found(NamedTuple):
    """Waits of demands in ms, and bytes/s of all that was read."""

    waits_ms: list[float]
    bytes_per_s: float


def requests(offsets: np.ndarray, length: int) -> Requests:
    """Runs of one extent each, into one buffer."""
    count = len(offsets)
    return Requests(
        np.zeros(count, np.uint32),
        offsets.astype(np.int64),
        np.full(count, length, np.int64),
        np.zeros(count, np.uint32),
        np.arange(count, dtype=np.int64) * length,
        np.arange(count + 1, dtype=np.int64),
    )


def engine_of(path: Path, rate: float) -> NativeEngine:
    """Two threads that read the file at a rate."""
    state = path.stat()
    size, mtime_ns = (np.array([each], np.int64) for each in (state.st_size, state.st_mtime_ns))
    files = Files.of(str(path.parent), [path.name], size, mtime_ns)
    return NativeEngine(files, budget=Budget(pread="required", threads=2, bytes_per_s=rate))


class Load:
    """Sweeps that always wait, and demands, in one engine."""

    def __init__(self, path: Path, backlog_s: float, by_purpose: bool, seed: int) -> None:
        self.engine = engine_of(path, RATE)
        self.random = np.random.default_rng(seed)
        self.size = path.stat().st_size
        self.demand: Purpose = "demand" if by_purpose else "sweep"
        self.buffers = [
            np.empty(SWEEP_RUNS * RUN_BYTES, np.uint8)
            for _ in range(round(backlog_s * RATE / (SWEEP_RUNS * RUN_BYTES)))
        ]
        self.sweeps: dict[int, Buffer] = {}
        self.read_bytes = 0

    def submit(self, runs: int, length: int, purpose: Purpose, buffer: Buffer) -> int:
        offsets = self.random.integers(0, (self.size - length) // 4096, runs) * 4096
        return self.engine.submit(requests(offsets, length), [buffer], purpose)

    def sweep(self, buffer: Buffer) -> None:
        ticket = self.submit(SWEEP_RUNS, RUN_BYTES, "sweep", buffer)
        self.sweeps[ticket] = buffer

    def reports(self, timeout_s: float) -> Iterator[int]:
        """Tickets that ended; a sweep that did is followed by another one."""
        for completion in self.engine.poll(int(timeout_s * 1e9)):
            buffer = self.sweeps.pop(completion.ticket, None)
            if buffer is not None:
                self.read_bytes += len(buffer)
                self.sweep(buffer)
            yield completion.ticket

    def pause(self, until: float) -> None:
        while (left := until - time.perf_counter()) > 0:
            if self.sweeps:
                list(self.reports(left))
            else:
                time.sleep(left)

    def run(self, demands: int) -> Found:
        for buffer in self.buffers:
            self.sweep(buffer)
        wanted = np.empty(DEMAND_BYTES, np.uint8)
        # Until the queue is as old as it gets.
        self.pause(time.perf_counter() + len(self.buffers) * SWEEP_RUNS * RUN_BYTES / RATE)
        began, self.read_bytes = time.perf_counter(), 0
        waits_ms = []
        for _ in range(demands):
            asked = time.perf_counter()
            ticket = self.submit(1, DEMAND_BYTES, self.demand, wanted)
            while ticket not in set(self.reports(1.0)):
                pass
            waits_ms.append((time.perf_counter() - asked) * 1e3)
            self.read_bytes += DEMAND_BYTES
            self.pause(time.perf_counter() + PAUSE_S)
        seconds = time.perf_counter() - began
        self.engine.close()
        return Found(waits_ms, self.read_bytes / seconds)


def rows(path: Path, demands: int, seed: int) -> tuple[list[Row], dict[str, list[float]]]:
    """All backlogs, either way, beside the floor."""
    floor = Load(path, 0, True, seed).run(demands)
    found, raw = [], {"floor": floor.waits_ms}
    bare = float(np.median(floor.waits_ms))
    found.append(Row("demands alone", bare, "ms, median"))
    for backlog_s, by_purpose in itertools.product(BACKLOGS_S, (False, True)):
        name = f"{backlog_s:g} s of sweeps wait, {'by purpose' if by_purpose else 'as they come'}"
        # Who comes last waits for the whole backlog: fewer of them.
        count = demands if by_purpose else max(5, min(demands, int(10 / backlog_s)))
        load = Load(path, backlog_s, by_purpose, seed).run(count)
        raw[name] = load.waits_ms
        middle, high = np.percentile(load.waits_ms, (50, 95)).tolist()
        note = f"95 %: {high:.1f} ms; {load.bytes_per_s / 1e6:.0f} MB/s read"
        found.append(Row(name, middle, "ms, median", bare, middle / bare, note=note))
    return found, raw


def together(path: Path, rates: tuple[float, ...]) -> Row:
    """The gain of the same file at several places."""
    places = [engine_of(path, rate) for rate in rates]
    engine = MirroredEngine(places, np.ones((1, len(places)), np.bool_))
    random = np.random.default_rng(1)
    most = path.stat().st_size - RUN_BYTES
    free = [np.empty(SWEEP_RUNS * RUN_BYTES, np.uint8) for _ in range(8)]
    reading: dict[int, Buffer] = {}
    began = time.perf_counter()
    for _ in range(64):  # some 3 s
        while not free:
            free += [reading.pop(each.ticket) for each in engine.poll(10**9)]
        buffer = free.pop()
        offsets = random.integers(0, most // 4096, SWEEP_RUNS) * 4096
        reading[engine.submit(requests(offsets, RUN_BYTES), [buffer])] = buffer
    while reading:
        free += [reading.pop(each.ticket) for each in engine.poll(10**9)]
    rate = 64 * SWEEP_RUNS * RUN_BYTES / (time.perf_counter() - began)
    engine.close()
    names = " + ".join(f"{each / 1e6:.0f}" for each in rates)
    return Row(f"places of {names} MB/s", rate / 1e6, "MB/s", sum(rates) / 1e6, rate / sum(rates))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dispatch", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few demands")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    name = "dispatch-quick" if options.quick else "dispatch"
    record = Record(name, options.seed, vars(options))
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        path = Path(folder) / "data"
        path.write_bytes(np.random.default_rng(options.seed).bytes(64 * limits.MIB))
        record.rows, record.raw["waits_ms"] = rows(path, 20 if options.quick else 200, options.seed)
        for rates in ((100e6,), (100e6, 100e6), (50e6, 150e6), (20e6, 80e6, 100e6)):
            record.rows.append(together(path, rates))
    command.finish(record)


if __name__ == "__main__":
    main()
