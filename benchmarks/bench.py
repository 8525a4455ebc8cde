"""python -m benchmarks.bench [--quick]: what the benchmark itself costs.

Utilisation without reading, which bounds what any loader can reach; how exactly steps take their
time; small files a second, few and many; the time from a command to its first step; and the loaders
on the same files. Each figure is the median of several rounds; on a machine where others are at
work, the best round, which the note has, says more.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from penstock_bench.contenders import PACKAGES, converts, make
from penstock_bench.contenders.delivery import DeliveryTask
from penstock_bench.measurement import StepPace, sharpen_timers, walk
from penstock_bench.ranks import Crew, launch
from penstock_bench.results import metrics
from penstock_bench.workload.distribution import Distribution
from penstock_bench.workload.sections import DatasetSpec, DlioWorkload, ReaderSpec, TrainSpec

from . import __main__ as command
from . import generation
from .record import Record, Row

STEP_S = {3.5e-3: 0.99, 375e-6: 0.97}
"""Utilisation without reading that is wanted of steps of these lengths."""
ERROR = 0.01
FILES = 16_000
SMALL_PER_S = 4_000
FLAT = 0.9
START_S = 0.5
FOLDER = Path("bench-data")
"""On a disk: where data is generated."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer files")
    quick = parser.parse_args().quick
    rounds, files = 5, 2_000 if quick else FILES
    record = Record("bench-bench" + "-quick" * quick, 0, {"quick": quick})
    raw: dict[str, Any] = {}
    record.raw["bench"] = raw
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        small = [written(place / str(count), count) for count in (files // 16, files)]
        for ranks in (1, 2):
            for step_s, wanted in STEP_S.items():
                record.rows.append(ceiling(raw, ranks, step_s, wanted, rounds))
        record.rows += [in_loop(raw, small[0], step_s, rounds) for step_s in STEP_S]
        record.rows.append(exact(raw))
        record.rows += rates(raw, small, rounds)
        record.rows.append(start(raw, small[0], rounds))
        record.rows += loaders(raw, small[0], 3 if quick else rounds)
    if not quick:
        found, raw["generation"] = generation.rows(FOLDER)
        record.rows += found
    command.finish(record)


def ceiling(raw: dict[str, Any], ranks: int, step_s: float, wanted: float, rounds: int) -> Row:
    """Utilisation of steps that wait for nothing."""
    name = f"utilisation without reading, {ranks} rank(s), {step_s * 1e3:g} ms"
    shares = raw[name] = [walked(ranks, step_s, None) for _ in range(rounds)]
    return over_rounds(name, shares, "", wanted, max)


def in_loop(raw: dict[str, Any], task: DeliveryTask, step_s: float, rounds: int) -> Row:
    """The same with penstock's loader, a file a step, all of it in memory."""
    name = f"utilisation with penstock, 1 rank, {step_s * 1e3:g} ms, a small file a step"
    shares = raw[name] = [walked(1, step_s, task) for _ in range(rounds)]
    return over_rounds(name, shares, "", None, max)


def walked(ranks: int, step_s: float, task: DeliveryTask | None) -> float:
    """Utilisation over half a second."""
    found = launch(ranks, functools.partial(_walk, step_s, task))
    assert found is not None
    return found


def _walk(step_s: float, task: DeliveryTask | None, crew: Crew) -> float:
    sharpen_timers()
    steps = int(0.5 / step_s)
    one = task or DeliveryTask(workload=DlioWorkload(), part="train", paths=[], folder="")
    if task is not None:
        steps = min(steps, len(task.paths))
        workload = replace(task.workload, reader=replace(task.workload.reader, batch_size=1))
        one = replace(task, workload=workload, steps=steps)
    contender = make("none" if task is None else "penstock", one)
    nominal = np.full(steps, round(step_s * 1e9))
    stamps = walk(contender.batches(0), nominal, StepPace(), crew.barrier, lambda batch: None)
    contender.close()
    found = crew.gather(stamps)
    return metrics.utilisation([found], 5, 0) if found else 0.0


def exact(raw: dict[str, Any]) -> Row:
    """The error of a step of 375 us."""
    sharpen_timers()
    pace, nominal_ns, errors = StepPace(), 375_000, []
    for _ in range(4_000):
        due_ns = time.perf_counter_ns() + nominal_ns
        errors.append((pace.until(due_ns) - due_ns) / nominal_ns)
    name = "error of a step of 375 us, median"
    raw[name] = {"mean": statistics.mean(errors), "p99": float(np.percentile(errors, 99))}
    value = statistics.median(errors)
    return Row(name, value, "", target=ERROR, met=value < ERROR, note=f"{raw[name]}")


def rates(raw: dict[str, Any], tasks: list[DeliveryTask], rounds: int) -> list[Row]:
    """Samples a second of many small .npz files, one process; and whether that is as of few."""
    found: list[list[float]] = [[], []]
    for _ in range(rounds):
        for each, task in zip(found, tasks, strict=True):
            each.append(epochs_per_s("penstock", task)[0] * len(task.paths))
    few, many = (len(task.paths) for task in tasks)
    name = f"samples/s of {many:,} small npz, penstock"
    raw[name], raw[f"the same of {few:,}"] = found[1], found[0]
    ratio = statistics.median(b / a for a, b in zip(*found, strict=True))
    return [
        over_rounds(name, found[1], "/s", SMALL_PER_S, max),
        Row(f"the same over {few:,} files", ratio, "", target=FLAT, met=ratio >= FLAT),
    ]


def epochs_per_s(name: str, task: DeliveryTask) -> tuple[float, float]:
    """Rate of the second epoch, and the CPU seconds that it takes, of this process alone."""
    contender = make(name, task)
    try:
        _taken(contender.batches(0), task.steps)
        cpu, started = time.process_time(), time.perf_counter()
        _taken(contender.batches(1), task.steps)
        return 1 / (time.perf_counter() - started), time.process_time() - cpu
    finally:
        contender.close()


def _taken(batches: Any, steps: int) -> None:
    iterator = iter(batches)
    for _ in range(steps):
        next(iterator)


def start(raw: dict[str, Any], task: DeliveryTask, rounds: int) -> Row:
    """The time from the start of a process to its first step's batch, data being there."""
    name = "from the command to the first step"
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        data = Path(task.folder).parent
        (place / "w.yaml").write_text(
            f"framework: pytorch\ndataset: {{data_folder: {data}, format: npz, "
            f"num_files_train: {len(task.paths)}}}\n"
            "reader: {data_loader: pytorch, batch_size: 4}\ntrain: {computation_time: 0.001}\n"
        )
        arguments = ["bench", "run", f"{place}/w.yaml", "--limit", "3", "--output", f"{place}/out"]
        arguments += ["--no-control", "--no-verdict"]
        _started(arguments, place)  # compiles, as installing does
        seconds = [_started(arguments, place) for _ in range(rounds)]
    raw[name] = seconds
    return over_rounds(name, seconds, "s", START_S, min)


def _started(arguments: list[str], place: Path) -> float:
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(place / "compiled")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    program = [sys.executable, "-m", "penstock", *arguments]
    begun = time.time()
    subprocess.run(program, check=True, capture_output=True, env=environment)
    (run,) = json.loads((place / "out" / "record.json").read_text())["runs"]
    first = run["epochs"][0]
    reached = datetime.fromisoformat(first["started"]).timestamp() + first["ranks"][0]["wait_s"][0]
    return reached - begun


def loaders(raw: dict[str, Any], task: DeliveryTask, rounds: int) -> list[Row]:
    """All that is installed, on the same files, in turn: 1 thread or worker each."""
    workload = replace(task.workload, reader=replace(task.workload.reader, read_threads=1))
    task = replace(task, workload=workload)
    names = [
        name
        for name, packages in PACKAGES.items()
        if name not in ("none", "webdataset")
        and not converts(name)
        and all(map(find_spec, packages))
    ]
    found: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            alone = functools.partial(_alone, name, task)
            rate = launch(1, alone)
            assert rate is not None
            found[name].append(rate * len(task.paths))
    raw["loaders"] = found
    count = len(task.paths)
    return [
        over_rounds(f"samples/s of {count:,} small npz, {name}", found[name], "/s", None, max)
        for name in names
    ]


def _alone(name: str, task: DeliveryTask, crew: Crew) -> float:
    return epochs_per_s(name, task)[0]


def over_rounds(
    name: str,
    values: list[float],
    unit: str,
    target: float | None,
    best: Callable[[list[float]], float],
) -> Row:
    """The median, the best round in the note."""
    value = statistics.median(values)
    met = None
    if target is not None:
        met = value >= target if best is max else value <= target
    return Row(name, value, unit, target=target, met=met, note=f"best round {best(values):.4g}")


def written(folder: Path, files: int) -> DeliveryTask:
    """Small .npz files as DLIO's: 64 bytes a sample, one a file."""
    (folder / "train").mkdir(parents=True)
    paths = []
    one = np.zeros((8, 8, 1), np.uint8)
    for number in range(files):
        path = folder / "train" / f"img_{number:05d}_of_{files}.npz"
        np.savez(path, x=one + number % 251, y=np.zeros(1, np.int64))
        paths.append(os.fspath(path))
    batch = 4
    workload = DlioWorkload(
        dataset=DatasetSpec(data_folder=str(folder), format="npz", num_files_train=files,
                     record_length_bytes=64),
        reader=ReaderSpec(batch_size=batch, sample_shuffle="seed", read_threads=1),
        train=TrainSpec(computation_time=Distribution.constant(0.0)),
    )  # fmt: skip
    return DeliveryTask(
        workload=workload, part="train", paths=paths, folder=str(folder / "train"),
        steps=files // batch,
    )  # fmt: skip


if __name__ == "__main__":
    main()
