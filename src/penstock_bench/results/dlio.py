"""Results of DLIO: its files of a run as records of this benchmark, and a run as its files.

DLIO's throughput is (steps - 2) / T x batch whatever it leaves out of T. If its lists of step times
and its configuration with the batch size are there, throughput and utilisation are computed again
from them; the record's notes say which of the two figures it has.

summary.json, <rank>_output.json and <rank>_per_epoch_stats.json have DLIO's fields, by DLIO's
formulas, in strict JSON, so that programs that read its results read ours; .hydra/ has the
configuration. The right figures are in record.json.
"""

from __future__ import annotations

import itertools
import math
import socket
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.arguments import check_path
from penstock.engine import read_machine
from penstock.errors import FormatError, MissingError, UsageError

from . import metrics, record
from .recorded import VERSION, check_record, figure, list_at, mapping_at, read_json

if TYPE_CHECKING:
    from ..run import BenchJob, Walks

# -- reading ---------------------------------------------------------------------------------------


_GIB = 2**30


def read_record(path: str | Path) -> dict[str, Any]:
    """Read the record at a path: a file, or a folder that holds record.json or DLIO's summary.json.

    Raises MissingError if there is none, FormatError if it is something else.
    """
    place = Path(check_path("path", path))
    if place.is_dir():
        files = (place / "record.json", place / "summary.json")
        there = next((file for file in files if file.is_file()), None)
        if there is None:
            raise MissingError(
                f"{place} holds neither record.json nor summary.json: give a folder of results"
            )
        place = there
    if place.name == "summary.json":
        return read_dlio(place.parent)
    return dict(check_record(read_json(place), str(place)))


def read_dlio(folder: Path) -> dict[str, Any]:
    """Read the record of a folder with DLIO's summary.json; NaN in it counts as unknown.

    Raises FormatError if summary.json is something else.
    """
    summary = read_json(folder / "summary.json")
    if not isinstance(summary, Mapping) or not isinstance(summary.get("metric"), Mapping):
        raise FormatError(f"{folder / 'summary.json'} has no 'metric': it is no result of DLIO")
    workload, notes = _read_workload(folder)
    ranks = int(figure(summary, "num_accelerators") or 1)
    details = [_read_details(folder, rank) for rank in range(ranks)]
    if any(outputs is None for outputs, _ in details):
        details = []
        notes.append("the lists of step times (<rank>_output.json) are not all there")
    run = _make_run(summary, workload, details, notes)
    memory = _first_host(summary, "host_memory_GB")
    return {
        "penstock_bench": VERSION,
        "command": "",
        "workload": workload,
        "overrides": [],
        "compat": True,
        "seed": figure(workload, "train", "seed"),
        "started": summary.get("start"),
        "ended": summary.get("end"),
        "machine": {
            "host": summary.get("hostname"),
            "cpu": summary.get("host_processor_name"),
            "cores": _first_host(summary, "host_cpu_count"),
            "memory_bytes": None if memory is None else round(memory * _GIB),
        },
        "versions": {},
        "ranks": ranks,
        "hosts": int(figure(summary, "num_hosts") or 1),
        "runs": [run],
        "notes": [f"made by DLIO: {note}" for note in notes],
    }


def _read_workload(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """The configuration that DLIO kept, and notes about it."""
    for place in (folder / ".hydra", folder / "dlio_config"):
        path = place / "config.yaml"
        if not path.is_file():
            continue
        try:
            import yaml

            text = path.read_text(encoding="utf-8")
            values = yaml.safe_load(text)
        except ModuleNotFoundError:
            return {}, [f"{path} was not read, for want of PyYAML: pip install pyyaml"]
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise FormatError(f"{path} is no YAML: {error}") from None
        if workload := mapping_at(values, "workload"):
            return dict(workload), []
    return {}, ["its configuration (.hydra/config.yaml) is not there"]


def _read_details(folder: Path, rank: int) -> tuple[Any, Any]:
    """Step times by epoch, and begin and end of blocks, of one rank; None for a missing file."""
    details = []
    for name in (f"{rank}_output.json", f"{rank}_per_epoch_stats.json"):
        path = folder / name
        if not path.is_file():  # up to DLIO 2.0.0 the times of rank 0 stand for all
            path = folder / name.removeprefix(f"{rank}_")
        values = read_json(path) if path.is_file() else None
        details.append(values if isinstance(values, Mapping) else None)
    return details[0], details[1]


class _MeasuredSteps(NamedTuple):
    """The measured steps of one rank in an epoch. clock_s: seconds that they took."""

    epoch: str
    clock_s: float
    compute_s: float
    waits_s: npt.NDArray[np.float64]


def _make_run(
    summary: Mapping[str, Any],
    workload: Mapping[str, Any],
    details: list[tuple[Any, Any]],
    notes: list[str],
) -> dict[str, Any]:
    metric = summary["metric"]
    epochs, windows = _make_epochs(details, workload)
    rate = figure(metric, "train_throughput_mean_samples_per_second")
    percent = figure(metric, "train_au_mean_percentage")
    run: dict[str, Any] = {
        "loader": f"dlio-{workload['framework']}" if workload.get("framework") else "dlio",
        "settings": {},
        "epochs": epochs,
        "au": {"raw": None if percent is None else percent / 100, "ceiling": None, "net": None},
        "samples_per_s": rate,
        "dlio": {
            name: value
            for name, value in metric.items()
            if not isinstance(value, float) or math.isfinite(value)
        },
    }
    if windows:
        clock = sum(steps.clock_s for steps in windows)
        waits = np.concatenate([steps.waits_s for steps in windows])
        computing = sum(steps.compute_s for steps in windows) / clock
        waiting = float(waits.sum()) / clock
        run["au"]["raw"] = computing
        run["decomposition"] = {
            "storage_wait": waiting,
            "barrier": None,
            "compute": computing,
            "other": max(0.0, 1 - waiting - computing),
        }
        run["stall_s"] = metrics.summarise_waits(waits)
        notes.append("barriers are in 'other', and compute is as measured, not as asked for")
    if windows and (batch := figure(workload, "reader", "batch_size")):
        slowest: dict[str, float] = {}
        for steps in windows:
            slowest[steps.epoch] = max(steps.clock_s, slowest.get(steps.epoch, 0.0))
        samples = batch * sum(len(steps.waits_s) for steps in windows)
        run["samples_per_s"] = samples / sum(slowest.values())
        notes.append("samples/s and AU were worked out again from its step times")
    elif rate is not None:
        notes.append("samples/s are its own: (steps - 2) / T, whatever T leaves out")
    return run


def _make_epochs(
    details: list[tuple[Any, Any]], workload: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], list[_MeasuredSteps]]:
    """Epochs as records have them, and the windows of ranks that count for training."""
    skip = figure(workload, "output", "metric", "exclude_start_steps")
    start = 1 if skip is None else int(skip)
    end = int(figure(workload, "output", "metric", "exclude_end_steps") or 0)
    batch = figure(workload, "reader", "batch_size")
    epochs, windows = [], []
    numbers: list[str] = [key for key in (details[0][0] if details else ()) if key.isdigit()]
    for number, kind in itertools.product(sorted(numbers, key=int), ("train", "eval")):
        ranks: list[dict[str, Any]] = []
        clocks = []
        for rank, (outputs, stamps) in enumerate(details):
            times = outputs.get(number)
            load, proc = (_join_blocks(times, name, kind) for name in ("load", "proc"))
            # Its own "compute" is what was asked for up to 2.0.0, and what it took since.
            compute = [both - wait for both, wait in zip(proc, load, strict=False)]
            ranks.append({"rank": rank, "wait_s": load, "computed_s": compute})
            clock = _sum_blocks_s(stamps, number, kind)
            if clock is None:
                continue
            clocks.append(clock)
            last = len(proc) - end
            clock -= sum(proc[:start]) + sum(proc[last:])
            if kind == "train" and start < last and clock > 0:
                waits = np.array(load[start:last])
                windows.append(_MeasuredSteps(number, clock, sum(compute[start:last]), waits))
        trained = kind == "train"
        if steps := sum(len(times["wait_s"]) for times in ranks):
            epochs.append(
                {
                    "epoch": int(number),
                    "kind": kind,
                    "seconds": max(clocks, default=None),
                    "samples": steps * batch if batch and trained else None,
                    "ranks": ranks,
                    "checkpoints": _read_checkpoints(details[0][1], number) if trained else [],
                }
            )
    return epochs, windows


def _join_blocks(values: Any, name: str, kind: str) -> list[float]:
    """The blocks of an epoch as one list; the evaluation is another."""
    lists = mapping_at(values, name)
    blocks = [value for value in lists if (value == "eval") == (kind == "eval")]
    blocks.sort(key=lambda block: (len(block), block))
    return [float(value) for block in blocks for value in lists[block]]


def _sum_blocks_s(stamps: Any, number: str, kind: str) -> float | None:
    """Seconds in the blocks of an epoch, or in its evaluation."""
    named = [
        span
        for name, span in mapping_at(stamps, number).items()
        if isinstance(span, Mapping) and name.startswith("eval" if kind == "eval" else "block")
    ]
    try:
        durations = [
            (datetime.fromisoformat(block["end"]) - datetime.fromisoformat(block["start"]))
            for block in named
        ]
    except (KeyError, TypeError, ValueError):
        return None
    return sum(duration.total_seconds() for duration in durations) if durations else None


def _read_checkpoints(stamps: Any, number: str) -> list[dict[str, Any]]:
    """Checkpoints saved in an epoch; DLIO notes GiB/s, from which the bytes follow."""
    checkpoints = []
    for name, span in mapping_at(stamps, number).items():
        if name.startswith("save_ckpt") and isinstance(span, Mapping):
            seconds, rate = figure(span, "duration"), figure(span, "throughput")
            known = seconds is not None and rate is not None
            size = seconds * rate * _GIB if known else None  # type: ignore[operator]
            checkpoints.append({"step": None, "seconds": seconds, "bytes": size})
    return checkpoints


def _first_host(summary: Mapping[str, Any], name: str) -> float | None:
    """The value of the first host."""
    values = list_at(summary, name)
    return figure({name: values[0]}, name) if values else None


# -- writing ---------------------------------------------------------------------------------------


def write(
    folder: Path,
    job: BenchJob,
    ranks: Sequence[Walks],
    run: Mapping[str, Any],
    *,
    config: Mapping[str, Any],
    overrides: Sequence[str],
    subfolder: str = ".hydra",
) -> None:
    """Write DLIO's files of one run.

    config:     the resolved workload, by sections.
    subfolder:  of the configuration, "" for none; MLPerf's tools want "dlio_config".
    """
    folder.mkdir(parents=True, exist_ok=True)
    if subfolder:
        if (folder / subfolder).is_symlink():
            raise UsageError(f"{folder / subfolder} is a symbolic link: remove it")
        (folder / subfolder).mkdir(exist_ok=True)
        import yaml

        texts = {"config": {"workload": dict(config)}, "overrides": list(overrides)}
        for name, values in texts.items():
            text = yaml.safe_dump(values, sort_keys=False)
            record.write_text(folder / subfolder / f"{name}.yaml", text)
    epochs = [walked for walks in ranks for walked in walks.epochs]
    started = min(walked.started for walked in epochs)
    ended = max(walked.ended for walked in epochs)
    host = _describe_host(job)
    summary = _make_summary(job, ranks, run["dlio"], host, started, ended)
    record.write_json(folder / "summary.json", summary)
    for walks in ranks:
        record.write_json(folder / f"{walks.rank}_output.json", _make_step_lists(job, walks, host))
        record.write_json(folder / f"{walks.rank}_per_epoch_stats.json", _make_stats(job, walks))
    lines = _make_log(job, ranks, run["dlio"], started, ended)
    record.write_text(folder / job.workload.output.log_file, "".join(f"{line}\n" for line in lines))


def format_time(seconds: float) -> str:
    """A time as DLIO writes it: local, without a zone."""
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%dT%H:%M:%S.%f")


def _describe_host(job: BenchJob) -> dict[str, Any]:
    """DLIO's fields of a host. potential_caching: 1 if memory could hold the data."""
    lines = (line.partition(":") for line in Path("/proc/meminfo").read_text().splitlines())
    here = read_machine()
    return {
        "host_memory_GB": here.memory_bytes / _GIB,
        "host_cpu_count": here.cores,
        "host_processor_name": record.read_processor(),
        "potential_caching": int(_data_bytes(job) < here.memory_bytes),
        "host_cpuinfo": {},
        "host_meminfo": {name: value.strip() for name, _, value in lines},
        "hostname": socket.gethostname(),
    }


def _data_bytes(job: BenchJob) -> float:
    data = job.workload.dataset
    return data.record_length_bytes * data.samples("train")


def _make_summary(
    job: BenchJob,
    ranks: Sequence[Walks],
    dlio: Mapping[str, Any],
    host: Mapping[str, Any],
    started: float,
    ended: float,
) -> dict[str, Any]:
    data, hosts = job.workload.dataset, ranks[0].hosts
    return {
        "start": format_time(started),
        "num_accelerators": len(ranks),
        "num_hosts": hosts,
        "hostname": host["hostname"],
        "metric": dict(dlio),
        "num_files_train": data.num_files_train,
        "num_files_eval": data.num_files_eval,
        "num_samples_per_file": data.num_samples_per_file,
        "host_cpu_count": [host["host_cpu_count"]] * hosts,
        "host_processor_name": host["host_processor_name"],
        "potential_caching": [host["potential_caching"]] * hosts,
        "host_cpuinfo": {},
        "host_meminfo": host["host_meminfo"],
        "host_memory_GB": [host["host_memory_GB"]] * hosts,
        "data_size_per_host_GB": _data_bytes(job) / hosts / _GIB,
        "epochs": job.workload.train.epochs,
        "end": format_time(ended),
    }


def _make_step_lists(job: BenchJob, walks: Walks, host: Mapping[str, Any]) -> dict[str, Any]:
    """Lists of the steps' times, by epoch and block."""
    lists: dict[str, Any] = dict(host)
    keys = ("load", "proc", "compute", "throughput", "au")
    for walked in walks.epochs:
        epoch = lists.setdefault(str(walked.number), {name: {} for name in keys})
        for number, (block, au, rate) in enumerate(record.rank_figures(job, walked)[0], 1):
            name = "eval" if walked.kind == "eval" else f"block{number}"
            values = (block.load, block.proc, block.compute, rate, au)
            for key, value in zip(keys, values, strict=True):
                epoch[key][name] = value
        epoch.setdefault("start", format_time(walked.started))
        epoch |= {"host_meminfo": host["host_meminfo"], "end": format_time(walked.ended)}
    return lists


def _make_stats(job: BenchJob, walks: Walks) -> dict[str, Any]:
    """Begin and end of epochs, blocks, evaluations and checkpoints."""
    stats: dict[str, Any] = {}
    for walked in walks.epochs:
        epoch = stats.setdefault(str(walked.number), {"start": format_time(walked.started)})
        origin = walked.started - walked.stamps.began * metrics.S
        for number, (block, _, _) in enumerate(record.rank_figures(job, walked)[0], 1):
            epoch["eval" if walked.kind == "eval" else f"block{number}"] = {
                "start": format_time(origin + block.start),
                "end": format_time(origin + block.end),
                "duration": f"{block.end - block.start:.2f}",
            }
        for number, taken in enumerate(walked.checkpoints, 1):
            span = {"start": format_time(taken["started"]), "end": format_time(taken["ended"])}
            rate = taken["bytes"] / _GIB / taken["seconds"] if taken["seconds"] else None
            epoch[f"save_ckpt{number}"] = span | {"duration": taken["seconds"], "throughput": rate}
        epoch["end"] = format_time(walked.ended)
    for epoch in stats.values():
        spent = datetime.fromisoformat(epoch["end"]) - datetime.fromisoformat(epoch["start"])
        epoch["duration"] = f"{spent.total_seconds():.2f}"
    return stats


_LINES = {
    "train_au_{}_percentage": "Training Accelerator Utilization [AU] (%)",
    "train_throughput_{}_samples_per_second": "Training Throughput (samples/second)",
    "train_io_{}_MB_per_second": "Training I/O Throughput (MB/second)",
    "train_au_meet_expectation": "train_au_meet_expectation",
    "eval_au_{}_percentage": "Eval Accelerator Utilization [AU] (%)",
    "eval_throughput_{}_samples_per_second": "Eval Throughput (samples/second)",
    "eval_io_{}_MB_per_second": "Eval I/O Throughput (MB/second)",
    "eval_au_meet_expectation": "eval_au_meet_expectation",
    "save_checkpoint_duration_{}_seconds": "Checkpoint save duration (seconds)",
    "save_checkpoint_io_{}_GB_per_second": "Checkpoint save I/O Throughput (GB/second)",
}
"""Metrics of dlio.log by their keys, or the keys of their mean and deviation."""


def _make_log(
    job: BenchJob, ranks: Sequence[Walks], dlio: Mapping[str, Any], started: float, ended: float
) -> list[str]:
    """The lines of dlio.log."""
    name = job.workload.model.name
    lines = [f"[OUTPUT] {format_time(started)} Running {name} with {len(ranks)} process(es)"]
    for walked in ranks[0].epochs:
        steps, spent = len(walked.stamps), walked.ended - walked.started
        begun = f"epoch {walked.number} ({walked.kind}): {steps} steps expected"
        lines.append(f"[OUTPUT] {format_time(walked.started)} Starting {begun}")
        done = f"epoch {walked.number} ({walked.kind}) - {steps} steps completed in {spent:.2f} s"
        lines.append(f"[OUTPUT] {format_time(walked.ended)} Ending {done}")
    lines.append(f"[OUTPUT] {format_time(ended)} Saved outputs")
    lines.append(f"[METRIC] Number of Simulated Accelerators: {len(ranks)}")
    for key, text in _LINES.items():
        if key in dlio:
            lines.append(f"[METRIC] {text}: {dlio[key]}")
        elif key.format("mean") in dlio:
            mean, stdev = dlio[key.format("mean")], dlio[key.format("stdev")]
            lines.append(f"[METRIC] {text}: {mean:.4f} ({stdev:.4f})")
    return lines
