"""Measurements as plain values of record.json, from which reports are made; and the verdict on a
run: its figures beside measured ceilings of this machine and these files.
"""

from __future__ import annotations

import contextlib
import json
import platform
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import doctor
from penstock.cli.quantities import number
from penstock.engine import AtomicFile, find_mount, read_machine
from penstock.errors import UsageError

from .. import contenders
from . import metrics
from .recorded import VERSION

if TYPE_CHECKING:
    from ..run import BenchJob, WalkedEpoch, Walks

# -- record.json -----------------------------------------------------------------------------------


def make_run(job: BenchJob, ranks: Sequence[Walks]) -> dict[str, Any]:
    """Make the record of one contender's run from its ranks' measurements.

    docs/bench/figures.md says what each figure is.
    """
    output = job.workload.output
    left_out = output.metric.exclude_start_steps, output.metric.exclude_end_steps
    epochs = [list(epoch) for epoch in zip(*(rank.epochs for rank in ranks), strict=True)]
    trained = [epoch for epoch in epochs if epoch[0].kind == "train"]
    walks = [[walked.stamps for walked in epoch] for epoch in trained]
    samples = sum(walked.samples for epoch in trained for walked in epoch)
    size = sum(walked.bytes for epoch in trained for walked in epoch)
    steps = sum(len(stamps) for epoch in walks for stamps in epoch)
    rate = metrics.throughput(walks, *left_out, samples / steps)
    raw = metrics.utilisation(walks, *left_out)
    startup_s = max(rank.startup_s for rank in ranks)
    from_start = metrics.utilisation(walks, 0, left_out[1], startup_s)
    controls = [rank.control for rank in ranks if rank.control is not None]
    ceiling = metrics.utilisation([controls], *left_out) if controls else None
    spent = [walked.spent for epoch in trained for walked in epoch]
    cpu_s = _add_known(use.cpu_s for use in spent)
    first = trained[0]
    return {
        "loader": job.loader,
        "settings": dict(ranks[0].settings),
        "startup_s": startup_s,
        "staging_s": max(rank.staging_s for rank in ranks),
        "first_batch_s": max(float(w.stamps.got[0] - w.stamps.asked[0]) for w in first) * metrics.S,
        # The kernel does not count as read what comes by io_uring and memory maps.
        "epochs": [
            _make_epoch(epoch, ranks[0].settings.get("backend") not in ("io_uring", "mmap"))
            for epoch in epochs
        ],
        "au": {
            "raw": raw,
            "from_start": from_start,
            "ceiling": ceiling,
            "net": raw / ceiling if ceiling else None,
        },
        "samples_per_s": rate,
        "bytes_per_s": rate * size / samples if samples else 0.0,
        "stall_s": metrics.summarise_waits(metrics.waits_s(walks, *left_out)),
        "cpu_s_per_1000": 1000 * cpu_s / samples if samples and cpu_s is not None else None,
        "peak_rss_bytes": _add_known(rank.peak_rss_bytes for rank in ranks),
        "pss_bytes": _add_known(rank.pss_bytes for rank in ranks),
        "device_bytes": _add_known(use.device_bytes for use in spent),
        "verified": True if job.truth is not None else None,
        "decomposition": metrics.decomposition(walks, *left_out),
        "dlio": compute_dlio(job, epochs),
    }


def _add_known(values: Iterable[float | None]) -> float | None:
    """The sum, if all values are known."""
    known = list(values)
    return None if None in known else sum(value for value in known if value is not None)


def _make_epoch(ranks: Sequence[WalkedEpoch], counted: bool) -> dict[str, Any]:
    first = ranks[0]
    return {
        "epoch": first.number,
        "kind": first.kind,
        "started": format_iso(min(rank.started for rank in ranks)),
        "seconds": max(rank.ended - rank.started for rank in ranks),
        "samples": sum(rank.samples for rank in ranks),
        "bytes": sum(rank.bytes for rank in ranks),
        "ranks": [_make_rank(number, rank, counted) for number, rank in enumerate(ranks)],
        "checkpoints": [
            {name: checkpoint[name] for name in ("step", "seconds", "bytes")}
            for checkpoint in first.checkpoints
        ],
        "cached_before": first.cached_before,
        "cached_after": first.cached_after,
    }


def _make_rank(number: int, walked: WalkedEpoch, counted: bool) -> dict[str, Any]:
    stamps = walked.stamps
    columns = {
        "wait_s": stamps.got - stamps.asked,
        "compute_s": stamps.nominal,
        "computed_s": stamps.computed - stamps.got,
        "barrier_s": stamps.left - stamps.computed,
    }
    return {
        "rank": number,
        **{name: (column * metrics.S).round(9).tolist() for name, column in columns.items()},
        "samples": walked.samples,
        "bytes": walked.bytes,
        "cpu_s": walked.spent.cpu_s,
        "read_bytes": walked.spent.read_bytes if counted else None,
        "device_bytes": walked.spent.device_bytes,
    }


def compute_dlio(job: BenchJob, epochs: Sequence[Sequence[WalkedEpoch]]) -> dict[str, Any]:
    """DLIO's metrics of a run, by its formulas. Bytes of a sample are those delivered; in compat
    mode dataset.record_length_bytes."""
    entries: dict[str, Any] = {}
    for kind in ("train", "eval"):
        chosen = [epoch for epoch in epochs if epoch[0].kind == kind]
        if not chosen:
            continue
        samples = sum(walked.samples for epoch in chosen for walked in epoch)
        size = sum(walked.bytes for epoch in chosen for walked in epoch)
        length = size / samples if samples else 0.0
        if job.compat:
            length = job.workload.dataset.record_length_bytes
        figures = [[rank_figures(job, walked) for walked in epoch] for epoch in chosen]
        au = [[rank[1] for rank in ranks] for ranks in figures]
        rates = [[rank[2] for rank in ranks] for ranks in figures]
        entries |= metrics.dlio_metric(kind, au, rates, length, job.workload.metric.au)
    saved = [taken for epoch in epochs for taken in epoch[0].checkpoints]
    if saved:
        from ..checkpoints.run import dlio_metrics
        from ..checkpoints.shapes import count_totals

        whole = count_totals(job.workload.model, job.workload.checkpoint, len(epochs[0]), job.scale)
        entries |= dlio_metrics(whole, saved, (), compat=job.compat)
    return entries


def rank_figures(
    job: BenchJob, walked: WalkedEpoch
) -> tuple[list[tuple[metrics.CheckpointBlock, float, float]], float, float]:
    """By DLIO's formulas, of one rank and epoch: each block with its utilisation and throughput;
    then the epoch's two."""
    reader, output = job.workload.reader, job.workload.output
    ends = output.metric.exclude_start_steps, output.metric.exclude_end_steps
    blocks, steps = metrics.blocks(walked.stamps), len(walked.stamps)
    compute, batch = metrics.dlio_block, reader.batch_size
    if walked.kind == "eval":
        compute, batch = metrics.dlio_eval, reader.batch_size_eval
    pairs = [compute(block, steps, batch, *ends) for block in blocks]
    detailed = [(block, *pair) for block, pair in zip(blocks, pairs, strict=True)]
    au = metrics.weigh_blocks(blocks, [pair[0] for pair in pairs])
    return detailed, au, metrics.weigh_blocks(blocks, [pair[1] for pair in pairs])


def make_record(
    values: Mapping[str, Any], path: str, load_before: Sequence[float]
) -> dict[str, Any]:
    """Make record.json of a command's runs; strict JSON.

    values:       command, workload, overrides, compat, seed, ranks, hosts, runs, and the times at
                  which it started and ended.
    path:         a folder of the data; load_before: of the machine, before the command.
    """
    is_object = "://" in path
    here, mount = read_machine(), None if is_object else find_mount(path)
    record = {
        "penstock_bench": VERSION,
        **values,
        "started": format_iso(values["started"]),
        "ended": format_iso(values["ended"]),
        "machine": {
            "host": socket.gethostname(),
            "cpu": read_processor(),
            "cores": here.cores,
            "memory_bytes": here.memory_bytes,
            "kernel": platform.release(),
            "filesystem": "s3" if is_object else None if mount is None else mount.file_system,
            "load_before": list(load_before),
        },
        "versions": list_versions(),
    }
    strict: dict[str, Any] = metrics.replace_nonfinite(record)
    return strict


def write_record(folder: Path, values: Mapping[str, Any]) -> Path:
    """Write record.json; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "record.json", values)
    return folder / "record.json"


def write_json(path: Path, values: Any) -> None:
    text = json.dumps(metrics.replace_nonfinite(values), indent=1, allow_nan=False)
    write_text(path, f"{text}\n")


def write_text(path: Path, text: str) -> None:
    """Replace a file by this text; if the name is a link, the link."""
    with AtomicFile(str(path)) as file:
        file.write(text.encode())
        file.sync()
        file.commit(durable=False)


def format_iso(seconds: float) -> str:
    """A time with its zone."""
    return datetime.fromtimestamp(seconds).astimezone().isoformat()


def read_processor() -> str:
    """The processor's name, as its maker gives it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.machine()


def list_versions() -> dict[str, str]:
    """Versions of the installed packages that may have been measured."""
    versions = {"python": platform.python_version()}
    loaders = {package for packages in contenders.PACKAGES.values() for package in packages}
    for package in ("penstock", "numpy", *sorted(loaders), "mpi4py"):
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package)
    if "penstock" not in versions:
        from penstock import __version__

        versions["penstock"] = __version__
    return versions


# -- verdict ---------------------------------------------------------------------------------------


_waiting_min = 0.05
"""Part of the time below which a run is not considered to be waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCounts:
    """Counters of a run within an interval.

    seconds:        of the interval.
    samples:        that were handed over.
    waited_s:       of the seconds, how long the user waited for the next batch.
    """

    seconds: float
    samples: int
    waited_s: float

    def __post_init__(self) -> None:
        if not (self.seconds > 0 and self.samples > 0):
            raise UsageError(
                f"{self.samples} samples in {self.seconds:g} s: there is nothing to judge yet"
            )
        if not 0 <= self.waited_s <= self.seconds:
            raise UsageError(f"waited {self.waited_s:g} s of {self.seconds:g}: give a part of them")


def staging_supply(samples: int, staged_s: float, epochs: int) -> doctor.Supply:
    """Compute the supply of copying all data to a nearer place first, spread over the epochs that
    read it."""
    if not staged_s > 0:
        raise UsageError(f"staging takes {staged_s!r} s: give more than 0, or leave it out")
    how = f"{staged_s:g} s of staging, spread over {epochs} epoch{'s' * (epochs != 1)}"
    return doctor.Supply(epochs * samples / staged_s, how)


def judge_run(
    counted: RunCounts,
    demand: doctor.Demand,
    supplies: Mapping[doctor.Resource, doctor.Supply],
    *,
    data: doctor.DataProfile | None = None,
) -> doctor.Roofline:
    """Find the resource that binds a run in progress, from its counters and earlier measurements.

    The run itself measures compute (the time without waiting). That takes precedence over the
    supplies: no ceiling is below the rate that the run reached; compute does not bind if the run
    waits for more than a twentieth of the time, and nothing else binds if it waits for less.

    UsageError if it waits, and no supply is known that it could be waiting for.
    """
    measured = counted.samples / counted.seconds
    known = dict(supplies)
    known.pop("compute", None)
    waited = counted.waited_s / counted.seconds
    others = doctor.compute_ceilings(known, demand)
    if waited <= _waiting_min:
        compute = doctor.Ceiling("compute", measured, f"it waits for {waited:.1%} of the time")
        raised = (_raise_to_measured(other, measured) for other in others)
        return doctor.build_roofline([compute, *raised], measured, data)
    if not others:
        raise UsageError(
            f"it waits for {waited:.0%} of the time, and no supply is known that it could be "
            f"waiting for: measure what storage delivers (penstock.doctor.ceilings)"
        )
    lowest = min(others, key=lambda other: other.samples_per_s)
    how = lowest.how
    if measured < 0.5 * lowest.samples_per_s:
        allowed = number(lowest.samples_per_s)
        how += f"; on its own that allows {allowed}, so something that was not measured limits it"
    ceilings = [doctor.Ceiling(lowest.resource, measured, how)]
    ceilings += [_raise_to_measured(other, measured) for other in others if other is not lowest]
    if counted.seconds > counted.waited_s:
        busy_s = counted.seconds - counted.waited_s
        how = f"it computes for {1 - waited:.0%} of the time"
        ceilings.append(doctor.Ceiling("compute", counted.samples / busy_s, how))
    return doctor.build_roofline(ceilings, measured, data)


def _raise_to_measured(ceiling: doctor.Ceiling, measured: float) -> doctor.Ceiling:
    if ceiling.samples_per_s >= measured:
        return ceiling
    allowed = number(ceiling.samples_per_s)
    how = f"{ceiling.how}; that allows {allowed}, but the run reached more"
    return doctor.Ceiling(ceiling.resource, measured, how)


class Verdicts:
    """Judges runs of a workload; measuring takes 2 to 3 seconds, once.

    Raises the error of a file that cannot be read.
    """

    def __init__(self, job: BenchJob, ranks: int) -> None:
        task = contenders.DeliveryTask(
            workload=job.workload, part="train", paths=job.paths["train"],
            folder=job.folders["train"], seed=job.seed,
        )  # fmt: skip
        dataset = contenders.open_task(task)
        examination = doctor.examine(
            dataset, doctor.PlannedJob(decode=contenders.choose_decode(task))
        )
        per_unit = task.count / max(1, len(dataset))  # samples of what is read as one
        self._samples = task.count
        index = None if examination.dataset is None else examination.dataset.index
        self._data = doctor.DataProfile(
            total_bytes=0 if index is None else index.total_bytes,
            memory_bytes=examination.machine.room_bytes,
            own_files=task.per_file == 1,
        )
        self._supplies: dict[doctor.Resource, doctor.Supply] = {
            resource: replace(supply, per_s=supply.per_s * per_unit)
            if resource == "decode"
            else supply
            for resource, supply in examination.supplies.items()
        }
        self._demand = (examination.demand or doctor.Demand()).scaled(1 / per_unit)
        step_s = job.workload.train.computation_time.mean
        if step_s > 0:
            self._supplies["compute"] = doctor.computing_supply(
                step_s, job.workload.reader.batch_size, ranks
            )

    def of(self, run: Mapping[str, Any]) -> dict[str, Any]:
        """Compute the roofline of a run, as values for its record. Data that was cached before its
        epochs is not read from storage, and the run's own figures count before later ceilings."""
        supplies = dict(self._supplies)
        epochs = [epoch for epoch in run["epochs"] if epoch["kind"] == "train"]
        if run["staging_s"]:
            supplies["staging"] = staging_supply(self._samples, run["staging_s"], len(epochs))
        known = [epoch["cached_before"] for epoch in epochs if epoch["cached_before"]]
        total = sum(before["total_bytes"] for before in known)
        share = sum(before["cached_bytes"] for before in known) / total if total else 0.0
        cached = self._demand.cached(share)
        samples = sum(epoch["samples"] for epoch in epochs)
        if not (samples and run["samples_per_s"]):
            return doctor.estimate_roofline(supplies, cached, data=self._data).as_json()
        seconds = samples / run["samples_per_s"]
        counted = RunCounts(
            seconds=seconds,
            samples=samples,
            waited_s=seconds * min(1.0, max(0.0, run["decomposition"]["storage_wait"])),
        )
        return judge_run(counted, cached, supplies, data=self._data).as_json()
