"""Results from files, as records of this benchmark: its own, and DLIO's.

DLIO's throughput is (steps - 2) / T x batch whatever it leaves out of T. If its lists of step times
and its configuration with the batch size are there, throughput and utilisation are computed again
from them; the record's notes say which of the two figures it has.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.arguments import check_path
from penstock.errors import FormatError, MissingError

from .recorded import VERSION, check_record, figure, read_json


def read_record(path: str | Path) -> dict[str, Any]:
    """Read the record at a path: a file, or a folder that holds record.json or DLIO's summary.json.

    Raises MissingError if there is none, FormatError if it is something else.
    """
    place = Path(check_path("path", path))
    if place.name == "summary.json":
        return read_dlio(place.parent)
    if place.is_dir():
        if not (place / "record.json").is_file() and (place / "summary.json").is_file():
            return read_dlio(place)
        if not (place / "record.json").is_file():
            raise MissingError(
                f"{place} holds neither record.json nor summary.json: give the folder that "
                "`penstock bench run` or DLIO wrote its results to"
            )
        place = place / "record.json"
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
    run = _make_run(summary, workload, details, ranks, notes)
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
            "memory_bytes": _bytes_of(_first_host(summary, "host_memory_GB")),
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
        workload = values.get("workload") if isinstance(values, Mapping) else None
        if isinstance(workload, Mapping):
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
    ranks: int,
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
        "dlio": {name: value for name, value in metric.items() if _is_known(value)},
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
        run["stall_s"] = {f"p{q}": float(np.percentile(waits, q)) for q in (50, 95, 99)}
        run["stall_s"] |= {"max": float(waits.max()), "mean": float(waits.mean())}
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
    numbers: list[str] = [each for each in (details[0][0] if details else ()) if each.isdigit()]
    for number, kind in itertools.product(sorted(numbers, key=int), ("train", "eval")):
        ranks, clocks = [], []
        for rank, (outputs, stamps) in enumerate(details):
            load, proc = (
                _join_blocks(outputs.get(number), name, kind) for name in ("load", "proc")
            )
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
        steps = [len(each["wait_s"]) for each in ranks]  # type: ignore[arg-type]
        if any(steps):
            epochs.append(
                {
                    "epoch": int(number),
                    "kind": kind,
                    "seconds": max(clocks, default=None),
                    "samples": sum(steps) * batch if batch and kind == "train" else None,
                    "ranks": ranks,
                    "checkpoints": _read_checkpoints(details[0][1], number)
                    if kind == "train"
                    else [],
                }
            )
    return epochs, windows


def _join_blocks(values: Any, name: str, kind: str) -> list[float]:
    """The blocks of an epoch as one list; the evaluation is one of its own."""
    lists = values.get(name) if isinstance(values, Mapping) else None
    if not isinstance(lists, Mapping):
        return []
    blocks = [value for value in lists if (value == "eval") == (kind == "eval")]
    blocks.sort(key=lambda block: (len(block), block))
    return [float(value) for block in blocks for value in lists[block]]


def _sum_blocks_s(stamps: Any, number: str, kind: str) -> float | None:
    """Seconds in the blocks of an epoch, or in its evaluation."""
    spans = stamps.get(number) if isinstance(stamps, Mapping) else None
    if not isinstance(spans, Mapping):
        return None
    named = [
        span
        for name, span in spans.items()
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
    spans = stamps.get(number) if isinstance(stamps, Mapping) else None
    checkpoints = []
    for name, span in spans.items() if isinstance(spans, Mapping) else ():
        if name.startswith("save_ckpt") and isinstance(span, Mapping):
            seconds, rate = figure(span, "duration"), figure(span, "throughput")
            known = seconds is not None and rate is not None
            size = seconds * rate * 2**30 if known else None  # type: ignore[operator]
            checkpoints.append({"step": None, "seconds": seconds, "bytes": size})
    return checkpoints


def _first_host(summary: Mapping[str, Any], name: str) -> float | None:
    """The value of the first host."""
    values = summary.get(name)
    return figure({name: values[0]}, name) if isinstance(values, list) and values else None


def _bytes_of(gibibytes: float | None) -> int | None:
    return None if gibibytes is None else round(gibibytes * 2**30)


def _is_known(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)
