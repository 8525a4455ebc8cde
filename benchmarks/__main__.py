"""python -m benchmarks [rows ...] [--quick] [--only groups]: measure, print, write a record."""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import opening, planning
from .contender import ROOT
from .corpus import Corpora, Sizes
from .race import Effort, run_race, say
from .record import Record, Row, table
from .suite import FLOORS, races

RACES = ("records4k", "records512", "tokens", "files100k", "cold128k", "jpeg")
OTHERS = ("order", "dealing", "open1e9", "planning")
GROUPS = ("penstock", "floor", "torch", "getitems", "ffcv", "grain", "litdata")


def main() -> None:
    options = parse()
    names = options.rows or [*RACES, *OTHERS]
    only = frozenset(options.only.split(",")) if options.only else frozenset()
    record = Record(
        options.record or default_name(options), options.seed, {**vars(options), "rows": names}
    )
    # A photograph takes a millisecond, so that an epoch of a thousand is long enough.
    sizes = Sizes.quick() if options.quick else Sizes(images=1_000)
    corpora = Corpora(Path(options.data).resolve(), sizes, options.seed)
    record.configuration["sizes"] = asdict(sizes)
    build_floors()
    effort = Effort.quick() if options.quick else Effort.full()
    for race in races(corpora):
        if race.name in names:
            result = run_race(race, effort, only, options.seed)
            record.rows += result.rows
            record.raw[race.name] = result.raw
            record.write()  # a run that is cut short keeps what it has
    for name in [each for each in ("order", "dealing") if each in names]:
        found, record.raw[name] = rows_of(name)
        record.rows += found
    if "open1e9" in names:
        opened, record.raw["open1e9"] = opening.rows(corpora.sparse(), 2 if options.quick else 5)
        record.rows += opened
    if "planning" in names:
        planned, record.raw["planning"] = planning.rows(
            corpora.records(4096), 4096, 3 if options.quick else 11
        )
        record.rows += planned
    finish(record)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("rows", nargs="*", help=f"of {', '.join((*RACES, *OTHERS))}; all if none")
    parser.add_argument("--quick", action="store_true", help="small data and few pairs")
    parser.add_argument("--only", default="", help=f"contenders, of {','.join(GROUPS)}")
    parser.add_argument("--data", default=str(ROOT / "bench-data"), help="folder of the corpora")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", default="", help="name of the record")
    options = parser.parse_args()
    unknown = {*options.rows} - {*RACES, *OTHERS}
    unknown |= {*filter(None, options.only.split(","))} - {*GROUPS}
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    return options


def default_name(options: argparse.Namespace) -> str:
    """A partial run never overwrites the record of a full one."""
    parts = ["bench"]
    parts += ["quick"] if options.quick else []
    parts += ["partial"] if options.rows or options.only else []
    return "-".join(parts)


def build_floors() -> None:
    """Builds the floor programs; cheap when nothing changed."""
    configure = ["cmake", "-S", str(ROOT), "-B", str(FLOORS), "-DPENSTOCK_FLOORS=ON"]
    programs = [path.stem for path in sorted((ROOT / "benchmarks" / "floors").glob("*.cpp"))]
    for command in (
        [*configure, "-DPENSTOCK_PYTHON=OFF"],
        ["cmake", "--build", str(FLOORS), "--target", *programs],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def rows_of(name: str) -> tuple[list[Row], dict[str, Any]]:
    """The rows of a benchmark that also runs by itself, and its raw values."""
    try:
        benchmark = importlib.import_module(f"benchmarks.{name}")
    except ModuleNotFoundError as error:
        return [Row(name, None, "", met=False, note=f"absent: {error}")], {}
    say(f"{name}: ...")
    rows, raw = [], {}
    for found in benchmark.rows():
        raw[found["name"]] = found.pop("raw", None)
        met = None if found["target"] is None else found["met"]
        rows.append(Row(**{**found, "name": f"{name} / {found['name']}", "met": met}))
    return rows, raw


def finish(record: Record) -> None:
    """Writes the record, prints table and verdict."""
    path = record.write()
    print(table(record.rows))
    gated = [row for row in record.rows if row.met is not None]
    print(f"\n{sum(bool(row.met) for row in gated)} of {len(gated)} targets met")
    summary = record.as_dict()
    print("stable" if summary["stable"] else "MAY BE UNSTABLE: " + "; ".join(summary["doubts"]))
    print(f"{summary['seconds']} s, record in {os.path.relpath(path)}")


if __name__ == "__main__":
    main()
