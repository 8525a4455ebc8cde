"""python -m benchmarks.simulate_live [--quick]: emulated hosts that train, and their simulation.

One job is run and recorded (`Loader.run_record`), and a scenario is made of its record and of the
devices' rates, measured by themselves. From that scenario the epochs of six other jobs are
predicted: of other hosts, caches, assignments and lengths of steps; then they are run. Hosts are
emulated as in `cluster`, and ranks in lockstep; computing is sleeping, so that hosts fit on
few processors. What a step computes longer than it was asked to sleep, in the recorded job, is
added to all. The model has no processors: where hosts wait for those of this machine, they are
slower than simulated. Since other work on it can only slow things down, of several turns the best
counts. Record: results/sim-live.json.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from penstock.engine.host import measure_copying
from penstock.limits import cache_block_bytes_default
from penstock_sim.calibrate import Calibration, Measured, calibrate, resize
from penstock_sim.fluid_model import simulate
from penstock_sim.record import merge_ranks, parse_rank
from penstock_sim.scenario import Policy

from . import emulation
from .__main__ import finish
from .baselines.peer_loop import MESSAGE_BYTES
from .cluster import RECORD_BYTES, Bench, Job, emulated
from .contender import ROOT, Contender
from .corpus import Corpora, Sizes, make_warm
from .fleet import Fleet
from .race import say
from .record import Record, Row
from .suite import baseline

BATCH, EPOCHS = 128, 2  # the first, and one of those after it, which are alike
TOLERANCE = 1.1
RECORDED = Job(hosts=2, batch=BATCH, step_ms=20.0)
PREDICTED = (
    Job(hosts=1, batch=BATCH, step_ms=40.0),
    Job(hosts=1, batch=BATCH, step_ms=10.0, kept=0.0, assignment="strided"),
    Job(hosts=2, batch=BATCH, step_ms=10.0, kept=0.5),
    Job(hosts=2, batch=BATCH, step_ms=40.0, kept=0.5, assignment="strided"),
    Job(hosts=4, batch=BATCH, step_ms=40.0, assignment="strided"),
    Job(hosts=4, batch=BATCH, step_ms=20.0, kept=0.5),
)
TURNS = 2
SAMPLES, QUICK_SAMPLES = 16_384, 8_192
CLIENTS = (1, 2, 4)
FETCHED_BYTES = 16_384
"""Samples that peers are measured with."""
READS, MEASURE_BYTES = 3, 32 << 20
"""Storage is read so often, so much at a time."""
READERS = 16
"""The reads in flight of a host; more give no more."""
POLICIES: dict[str, Policy] = {"local": "penstock_local", "strided": "penstock"}


@dataclass(frozen=True, slots=True)
class Ran:
    """A job that was run: seconds of its epochs, and what its ranks recorded."""

    seconds: list[float]
    records: list[dict[str, Any]]


def run(bench: Bench, job: Job) -> Ran:
    """Starting processes is not timed."""
    say(f"{job.label}: ...")
    seconds = []
    with Fleet(bench.way(job, "training_rank")) as fleet:
        fleet.open(bench.paths_of(job))
        for _ in range(EPOCHS):
            done = fleet.pass_()
            bench.check(job, done)
            seconds.append(done.seconds)
    say(f"  {', '.join(f'{each:.2f} s' for each in seconds)}")
    return Ran(seconds, [dict(answer["record"]) for answer in done.answers])


# -- devices, each by itself -----------------------------------------------------------------------


def storage_mb_s(bench: Bench, clients: int) -> float:
    """MB/s that so many hosts read together, in random reads of a cache block, many in flight."""
    return max(_storage_mb_s(bench, clients) for _ in range(READS))


def _storage_mb_s(bench: Bench, clients: int) -> float:
    size = cache_block_bytes_default // RECORD_BYTES * RECORD_BYTES
    random = np.random.default_rng(clients)
    places = random.permutation(bench.bytes // size)[: MEASURE_BYTES // size] * size
    files = [os.open(bench.paths[host], os.O_RDONLY) for host in range(clients)]

    def read(reader: int) -> None:
        file = files[reader % clients]
        for place in places[reader :: READERS * clients].tolist():
            os.pread(file, size, place)

    start = time.perf_counter()
    with ThreadPoolExecutor(READERS * clients) as threads:
        list(threads.map(read, range(READERS * clients)))
    took = time.perf_counter() - start
    for file in files:
        os.close(file)
    return len(places) * size / took / 1e6


def network_mb_s() -> float:
    """The rate at which one process gets from another one through penstock's peers."""
    shape = {"path": "/", "batch": 32, "count": 128, "record_bytes": FETCHED_BYTES}
    with Contender(baseline("peer_fetches", "default", **shape)) as contender:
        rate = max(contender.measure(1).rate_per_s for _ in range(READS))
    return rate * MESSAGE_BYTES / 1e6


def devices(bench: Bench) -> Measured:
    storage = {clients: storage_mb_s(bench, clients) for clients in CLIENTS}
    found = Measured(storage, network_mb_s(), measure_copying() / 1e6)
    say(f"storage {found.storage} MB/s by hosts, network {found.network:.0f} MB/s")
    return found


# -- predictions -----------------------------------------------------------------------------------


def predicted(bench: Bench, found: Calibration, job: Job) -> list[float]:
    """Seconds of its first epoch, and of each one after it."""
    training = found.scenario.training
    step_s = found.scenario.batch * found.scenario.data.mean_mb / training.compute_mb_s
    scenario = resize(
        found.scenario,
        nodes=job.hosts,
        ram_mb=bench.cache_bytes(job) / 1e6,
        step_s=step_s + (job.step_ms - RECORDED.step_ms) / 1e3,
        epochs=EPOCHS,
    )
    seconds = simulate(scenario, POLICIES[job.assignment]).epochs_s
    return [float(seconds[0]), float(seconds[1:].mean())]


def rows_of(job: Job, turns: Sequence[Ran], simulated: Sequence[float], gated: bool) -> list[Row]:
    """The first epoch, and those after it."""
    first = min(turn.seconds[0] for turn in turns)
    warm = min(min(turn.seconds[1:]) for turn in turns)
    rows = []
    for name, ran, said in zip(
        ("first epoch", "warm epochs"), (first, warm), simulated, strict=True
    ):
        ratio = ran / said
        met = 1 / TOLERANCE <= ratio <= TOLERANCE if gated else None
        note = "predicted; a tenth either way" if gated else "calibrated on, not predicted"
        target = TOLERANCE if gated else None
        label = f"{job.label}: {name}, live / simulated"
        rows.append(Row(label, ran, "s", said, ratio, target, met, note=note))
    return rows


def measure(bench: Bench, record: Record, count: int) -> None:
    """All rows, of so many turns."""
    measured = devices(bench)
    recorded = [run(bench, RECORDED) for _ in range(count)]
    ran = min(recorded, key=lambda turn: sum(turn.seconds))
    names = [f"rank {rank}" for rank in range(RECORDED.world)]
    ranks = [parse_rank(each, name) for each, name in zip(ran.records, names, strict=True)]
    found = calibrate(merge_ranks(list(zip(names, ranks, strict=True))), measured)
    say(found.yaml())
    record.raw["calibration"] = {
        "devices": measured._asdict(),
        "records": ran.records,
        "scenario": found.scenario.model_dump(),
        "sources": dict(found.sources),
    }
    record.raw["jobs"] = {}
    for each in (RECORDED, *PREDICTED):
        simulated = predicted(bench, found, each)  # before it is run
        turns = recorded if each == RECORDED else [run(bench, each) for _ in range(count)]
        record.rows += rows_of(each, turns, simulated, gated=each != RECORDED)
        record.raw["jobs"][each.label] = {
            "simulated": simulated,
            "live": [turn.seconds for turn in turns],
        }
        record.write()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulate_live", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less data, one turn")
    parser.add_argument("--data", default=str(ROOT / "bench-data"), help="folder of the corpora")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if missing := emulation.usable():
        parser.exit(1, f"storage cannot be emulated here: {missing}\n")
    record = Record("sim-live" + "-quick" * options.quick, options.seed, vars(options))
    sizes = replace(Sizes.quick(), records=QUICK_SAMPLES if options.quick else SAMPLES)
    path = Corpora(Path(options.data).resolve(), sizes, options.seed).records(RECORD_BYTES)
    make_warm(path)  # it plays the storage's memory
    with emulated(path, options.seed) as bench:
        measure(bench, record, 1 if options.quick else TURNS)
    finish(record)


if __name__ == "__main__":
    main()
