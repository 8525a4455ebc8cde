"""The files of a run as DLIO writes them, so that programs that read its results read ours.

summary.json, <rank>_output.json and <rank>_per_epoch_stats.json have DLIO's fields, by DLIO's
formulas, in strict JSON; .hydra/ has the configuration. The right figures are in record.json.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from penstock.engine import AtomicFile, read_machine
from penstock.errors import UsageError

from ..run import BenchJob, WalkedEpoch, Walks
from . import metrics, record

_GIB = 2**30


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
        _write_config(folder / subfolder, config, overrides)
    started = min(walked.started for walks in ranks for walked in walks.epochs)
    ended = max(walked.ended for walks in ranks for walked in walks.epochs)
    host = _describe_host(job)
    summary = _make_summary(job, ranks, run["dlio"], host, format_time(started), format_time(ended))
    _write_json(folder / "summary.json", summary)
    for walks in ranks:
        _write_json(folder / f"{walks.rank}_output.json", _make_step_lists(job, walks, host))
        _write_json(folder / f"{walks.rank}_per_epoch_stats.json", _make_stats(job, walks))
    lines = _make_log(job, ranks, run["dlio"], started, ended)
    write_text(folder / job.workload.output.log_file, "".join(f"{line}\n" for line in lines))


def write_record(folder: Path, values: Mapping[str, Any]) -> Path:
    """Write record.json; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "record.json"
    _write_json(path, values)
    return path


def format_time(seconds: float) -> str:
    """A time as DLIO writes it: local, without a zone."""
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%dT%H:%M:%S.%f")


def _write_json(path: Path, values: Any) -> None:
    write_text(
        path, json.dumps(metrics.replace_nonfinite(values), indent=1, allow_nan=False) + "\n"
    )


def write_text(path: Path, text: str) -> None:
    """Replace a file by this text; if the name is a link, the link."""
    with AtomicFile(str(path)) as file:
        file.write(text.encode())
        file.sync()
        file.commit(durable=False)


def _write_config(folder: Path, config: Mapping[str, Any], overrides: Sequence[str]) -> None:
    import yaml

    for name, values in (("config", {"workload": dict(config)}), ("overrides", list(overrides))):
        write_text(folder / f"{name}.yaml", yaml.safe_dump(values, sort_keys=False))


def _describe_host(job: BenchJob) -> dict[str, Any]:
    """DLIO's fields of a host. potential_caching: 1 if memory could hold the data."""
    meminfo = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        meminfo[name] = value.strip()
    here = read_machine()
    return {
        "host_memory_GB": here.memory_bytes / _GIB,
        "host_cpu_count": here.cores,
        "host_processor_name": record.read_processor(),
        "potential_caching": int(_data_bytes(job) < here.memory_bytes),
        "host_cpuinfo": {},
        "host_meminfo": meminfo,
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
    started: str,
    ended: str,
) -> dict[str, Any]:
    data, hosts = job.workload.dataset, ranks[0].hosts
    return {
        "start": started,
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
        "end": ended,
    }


def _make_step_lists(job: BenchJob, walks: Walks, host: Mapping[str, Any]) -> dict[str, Any]:
    """Lists of the steps' times, by epoch and block."""
    lists: dict[str, Any] = dict(host)
    for walked in walks.epochs:
        epoch = lists.setdefault(
            str(walked.number),
            {name: {} for name in ("load", "proc", "compute", "throughput", "au")},
        )
        detailed, _, _ = record.rank_figures(job, walked)
        for number, (block, au, rate) in enumerate(detailed, 1):
            name = "eval" if walked.kind == "eval" else f"block{number}"
            values = (block.load, block.proc, block.compute, rate, au)
            for key, value in zip(
                ("load", "proc", "compute", "throughput", "au"), values, strict=True
            ):
                epoch[key][name] = value
        epoch.setdefault("start", format_time(walked.started))
        epoch |= {"host_meminfo": host["host_meminfo"], "end": format_time(walked.ended)}
    return lists


def _make_stats(job: BenchJob, walks: Walks) -> dict[str, Any]:
    """Begin and end of epochs, blocks, evaluations and checkpoints."""
    stats: dict[str, Any] = {}
    for walked in walks.epochs:
        epoch = stats.setdefault(str(walked.number), {"start": format_time(walked.started)})
        spans = _time_blocks(job, walked)
        epoch |= spans
        for number, taken in enumerate(walked.checkpoints, 1):
            span = {"start": format_time(taken["started"]), "end": format_time(taken["ended"])}
            rate = taken["bytes"] / _GIB / taken["seconds"] if taken["seconds"] else None
            epoch[f"save_ckpt{number}"] = span | {
                "duration": taken["seconds"],
                "throughput": rate,
            }
        epoch["end"] = format_time(walked.ended)
    for epoch in stats.values():
        spent = datetime.fromisoformat(epoch["end"]) - datetime.fromisoformat(epoch["start"])
        epoch["duration"] = f"{spent.total_seconds():.2f}"
    return stats


def _time_blocks(job: BenchJob, walked: WalkedEpoch) -> dict[str, dict[str, str]]:
    """Begin and end of an epoch's blocks, or of its evaluation."""
    origin = walked.started - walked.stamps.began * metrics.S
    spans = {}
    for number, (block, _, _) in enumerate(record.rank_figures(job, walked)[0], 1):
        name = "eval" if walked.kind == "eval" else f"block{number}"
        spans[name] = {
            "start": format_time(origin + block.start),
            "end": format_time(origin + block.end),
            "duration": f"{block.end - block.start:.2f}",
        }
    return spans


_LINES = (
    (
        "train_au",
        "Training Accelerator Utilization [AU] (%)",
        "_mean_percentage",
        "_stdev_percentage",
    ),
    (
        "train_throughput",
        "Training Throughput (samples/second)",
        "_mean_samples_per_second",
        "_stdev_samples_per_second",
    ),
    (
        "train_io",
        "Training I/O Throughput (MB/second)",
        "_mean_MB_per_second",
        "_stdev_MB_per_second",
    ),
)


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
    for kind in ("train", "eval"):
        if f"{kind}_au_mean_percentage" not in dlio:
            continue
        for key, text, mean, stdev in _LINES:
            key = key.replace("train", kind)
            text = text.replace("Training", "Training" if kind == "train" else "Eval")
            lines.append(f"[METRIC] {text}: {dlio[key + mean]:.4f} ({dlio[key + stdev]:.4f})")
        met = f"{kind}_au_meet_expectation"
        lines.append(f"[METRIC] {met}: {dlio[met]}")
    if "save_checkpoint_io_mean_GB_per_second" in dlio:
        for name, text in (
            ("save_checkpoint_duration_{}_seconds", "Checkpoint save duration (seconds)"),
            ("save_checkpoint_io_{}_GB_per_second", "Checkpoint save I/O Throughput (GB/second)"),
        ):
            mean, stdev = dlio[name.format("mean")], dlio[name.format("stdev")]
            lines.append(f"[METRIC] {text}: {mean:.4f} ({stdev:.4f})")
    return lines
