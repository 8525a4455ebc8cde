"""open1e9: a fresh process opens 10^9 fixed-size records and takes its first batch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from .contender import ROOT
from .corpus import OPEN_RECORD_BYTES, make_cold
from .record import Row

FIRST_BATCH_S = 0.2
RSS_MB = 100.0
LIMIT_S = 120


def rows(path: Path, repeats: int) -> tuple[list[Row], dict[str, Any]]:
    """Time to first batch and memory, medians over fresh processes, beside a bare reader's."""
    ours, bare = [], []
    for _ in range(repeats):
        ours.append(open_once("penstock", path))
        bare.append(open_once("bare", path))
    table = [
        ceiling_row("open1e9 / first batch", "first_batch_s", "s", FIRST_BATCH_S, ours, bare),
        ceiling_row("open1e9 / memory above numpy", "rss_mb", "MB", RSS_MB, ours, bare),
    ]
    return table, {"penstock": ours, "bare": bare}


def open_once(reader: str, path: Path) -> dict[str, Any]:
    """One fresh process."""
    make_cold(path)  # else the second run would find the first one's pages
    module = "benchmarks.baselines.open_first_batch"
    command = [sys.executable, "-m", module, reader, str(path), str(OPEN_RECORD_BYTES)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no first batch within {LIMIT_S} s"}
    if done.returncode != 0:
        return {"error": (done.stderr.strip().splitlines() or ["no message"])[-1]}
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def ceiling_row(
    name: str,
    key: str,
    unit: str,
    limit: float,
    ours: list[dict[str, Any]],
    bare: list[dict[str, Any]],
) -> Row:
    """A row whose target is an upper limit on the value itself."""
    errors = [run["error"] for run in (*ours, *bare) if "error" in run]
    values = [run[key] for run in ours if key in run]
    floors = [run[key] for run in bare if key in run]
    value = median(values) if values else None
    return Row(
        name=name,
        value=value,
        unit=unit,
        floor=median(floors) if floors else None,
        target=limit,
        met=value is not None and not errors and value <= limit,
        note=errors[0] if errors else "target is an upper limit",
    )
