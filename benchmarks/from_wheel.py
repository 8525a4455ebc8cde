"""The wheel that users install beside the build of this tree: the quick benchmarks, from both.

    python -m benchmarks.from_wheel dist/penstock-....whl [--turns 2]

`benchmarks`, `benchmarks.images` and `benchmarks.text` run with `--quick`, in turns, with the
modules of the wheel and with those of the editable install; so do the processes that they start.
A row is the wheel's rate, held against this tree's. Record: benchmarks/results/wheel.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from statistics import median
from typing import Any

from . import record as records
from .contender import ROOT
from .pairing import bootstrap_interval
from .record import Record, Row, table

STUDIES = {
    "bench-quick": "benchmarks --record bench-quick --only penstock,floor,torch",
    "images-quick": "benchmarks.images",
    "text-quick": "benchmarks.text",
}
"""Records, and the commands that write them; other rivals would tell the same rate of penstock
again."""
WANTED = 0.95
RATES = ("/s",)
"""How the units end of which more is better."""
CUSTOMIZE = """
import sys
sys.meta_path[:] = [
    finder
    for finder in sys.meta_path
    if "penstock" not in str(getattr(finder, "known_source_files", ""))
]
sys.path.insert(0, {site!r})
import penstock
assert penstock.__file__.startswith({site!r}), penstock.__file__
"""
"""Run as an interpreter starts: the editable install's finder would come first."""


def run_study(name: str, study: str, site: Path | None) -> dict[str, Row]:
    """Run a study, of this tree or of the modules in a folder; its rows by name."""
    environment = dict(os.environ)
    if site is not None:
        paths = [str(site / "start"), os.environ.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = ":".join(filter(None, paths))
    command = [sys.executable, "-m", *study.split(), "--quick"]
    subprocess.run(command, check=True, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    path = records.RESULTS / f"{name}.json"
    found = json.loads(path.read_text())["rows"]
    path.unlink()
    return {row["name"]: Row(**row) for row in found}


def compare(name: str, study: str, site: Path, turns: int) -> tuple[list[Row], dict[str, Any]]:
    """The rows of one study."""
    taken: dict[str, list[dict[str, Row]]] = {"wheel": [], "tree": []}
    for turn in range(turns):
        for side in ("wheel", "tree") if turn % 2 else ("tree", "wheel"):
            taken[side].append(run_study(name, study, site if side == "wheel" else None))
    rows, raw = [], {}
    for row in taken["tree"][0].values():
        if not row.unit.endswith(RATES) or row.value is None:
            continue
        pairs = [
            (wheel[row.name].value, tree[row.name].value)
            for wheel, tree in zip(taken["wheel"], taken["tree"], strict=True)
        ]
        whole = [(ours, theirs) for ours, theirs in pairs if ours and theirs]
        ratios = [ours / theirs for ours, theirs in whole]
        low, high = bootstrap_interval(ratios, 0)
        ratio = median(ratios)
        ours, theirs = (median(side) for side in zip(*whole, strict=True))
        title = f"{name.removesuffix('-quick')}: {row.name}"
        rows.append(Row(title, ours, row.unit, theirs, ratio, WANTED, ratio >= WANTED, low, high))
        raw[title] = {"values": pairs}
    return rows, raw


def main() -> None:
    """Print the rows, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--turns", type=int, default=2)
    options = parser.parse_args()
    record = Record("wheel", 0, {"wheel": options.wheel.name, "turns": options.turns})
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder)
        with zipfile.ZipFile(options.wheel) as archive:
            archive.extractall(site)
        (site / "start").mkdir()
        (site / "start" / "sitecustomize.py").write_text(CUSTOMIZE.format(site=str(site)))
        for name, study in STUDIES.items():
            rows, record.raw[name] = compare(name, study, site, options.turns)
            record.rows += rows
            print(table(rows), flush=True)
            record.write()


if __name__ == "__main__":
    main()
