"""A result is a record: machine, versions, commit, tree, load, seed, raw values, verdict, rows."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
ROOT = RESULTS.parent.parent
SOURCES = ("src", "cpp", "benchmarks")
"""Folders whose files decide what is measured."""
PACKAGES = (
    *(
        "penstock",
        "numpy",
        "torch",
        "triton",
        "ffcv",
        "numba",
        "grain",
        "litdata",
        "simplejpeg",
        "pillow",
    ),
    "lmdb",
    *("obstore", "webdataset", "pyzmq"),
    *("opencv-python-headless", "spdl", "nvidia-dali-cuda120"),
    *("zarr", "h5py", "xarray", "xbatcher", "monai"),
    "av",
    *("ray", "distributed", "datatrove", "tokenizers", "tiktoken"),
)
LOAD_MAX = 0.5
"""Cores busy before the run, above which somebody else was at work."""
LOOK_S = 0.5
"""Time for which cores are looked at. The load average would still hold what ran a minute ago."""
STEAL_MAX = 0.02
"""Share of CPU time the host took away, above which timings are not to be trusted."""
WIDTH_MAX = 0.10
"""Width of a ratio's interval relative to the ratio, above which it is not settled."""
IDLE_MAX = 0.02
"""Share of a core that a waiting contender may use; above it, it has disturbed the others."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    value and floor are in `unit`; floor is what the row is held against (a floor program or another
    loader). ratio is value / floor, taken pair by pair, with its interval low..high. A target of
    None is for information, and then so is `met`. Computed rows are the same on a busy machine.
    """

    name: str
    value: float | None
    unit: str
    floor: float | None = None
    ratio: float | None = None
    target: float | None = None
    met: bool | None = None
    low: float | None = None
    high: float | None = None
    cpu_us_per_sample: float | None = None
    floor_cpu_us_per_sample: float | None = None
    note: str = ""
    is_computed: bool = False


@dataclass(slots=True)
class Record:
    """Collects rows and raw values while the benchmarks run."""

    name: str
    seed: int
    configuration: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    raw: dict[str, Any] = field(default_factory=dict)
    load_before: float = field(default_factory=lambda: count_busy_cores())
    cpu_before: list[int] = field(default_factory=lambda: cpu_ticks())
    started: float = field(default_factory=time.time)
    tree: str = field(default_factory=lambda: tree_hash())
    earlier: dict[str, Any] | None = None
    """Rows of the record that this one replaces, as `summarize` keeps them."""

    def __post_init__(self) -> None:
        path = RESULTS / f"{self.name}.json"
        if self.earlier is None and path.exists():
            self.earlier = summarize(json.loads(path.read_text()))

    def write(self) -> Path:
        """Writes benchmarks/results/<name>.json and returns its path."""
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{self.name}.json"
        path.write_text(json.dumps(self.as_dict(), indent=1) + "\n")
        return path

    def as_dict(self) -> dict[str, Any]:
        steal = steal_share(self.cpu_before, cpu_ticks())
        doubts = reasons_for_doubt(self.rows, self.load_before, steal)
        doubts += restless(self.raw)
        return {
            "name": self.name,
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.started)),
            "seconds": round(time.time() - self.started, 1),
            "command": [Path(sys.executable).name, *map(without_folder, sys.orig_argv[1:])],
            "configuration": without_folders(self.configuration),
            "seed": self.seed,
            "commit": commit(),
            "tree": self.tree,
            "machine": machine(),
            "versions": versions(),
            "load": {"before": [self.load_before], "after": os.getloadavg(), "steal": steal},
            "stable": not doubts,
            "doubts": doubts,
            "earlier": self.earlier,
            "rows": [asdict(row) for row in self.rows],
            "raw": self.raw,
        }


def summarize(record: dict[str, Any]) -> dict[str, Any]:
    """The ratios of a record with their intervals, by row; when and of what it was."""
    rows = {
        row["name"]: [row["ratio"], row["low"], row["high"]]
        for row in record.get("rows", ())
        if row["ratio"] is not None and row["low"] is not None
    }
    return {"date": record.get("date", ""), "tree": record.get("tree", ""), "rows": rows}


def is_other(row: dict[str, Any], earlier: list[float] | None) -> bool:
    """True if the interval of a row does not overlap with its interval in an earlier record."""
    if earlier is None or row["ratio"] is None or row["low"] is None:
        return False
    return bool(row["low"] > earlier[2] or row["high"] < earlier[1])


def read_record(name: str) -> dict[str, Any]:
    """The record benchmarks/results/NAME.json."""
    record: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return record


def is_fit(record: dict[str, Any], tree: str | None) -> bool:
    """Whether a record was made in quiet, and is of `tree` (None: of any): README may show it."""
    is_quiet: bool = record["load"]["before"][0] <= LOAD_MAX
    return is_quiet and tree in (None, record.get("tree"))


def without_folders(configuration: dict[str, Any]) -> dict[str, Any]:
    """The same, with paths reduced to their last part."""
    return {key: without_folder(value) for key, value in configuration.items()}


def without_folder(value: Any) -> Any:
    """The last part of a path: where data lay says nothing to readers. Other values as they are."""
    return Path(value).name if isinstance(value, (str, Path)) and "/" in str(value) else value


def reasons_for_doubt(rows: list[Row], load: float, steal: float) -> list[str]:
    """Why the record may be unstable; empty when it is not."""
    doubts = []
    if load > LOAD_MAX:
        doubts.append(f"{load:.2f} cores were busy before the run (above {LOAD_MAX})")
    if steal > STEAL_MAX:
        doubts.append(f"the host took {steal:.1%} of the CPU time (above {STEAL_MAX:.0%})")
    for row in rows:
        if row.target is not None and row.ratio and row.low is not None and row.high is not None:
            width = (row.high - row.low) / row.ratio
            if width > WIDTH_MAX:
                doubts.append(f"{row.name}: interval is {width:.0%} wide (above {WIDTH_MAX:.0%})")
    return doubts


def find_reasons(row: dict[str, Any], record: dict[str, Any]) -> list[str]:
    """Reasons for which a row of a record has no verdict; empty if it has one."""
    reasons = []
    load, steal = record["load"]["before"][0], record["load"]["steal"]
    is_timed = not row.get("is_computed")
    if is_timed and load > LOAD_MAX:
        reasons.append(f"load {load:.2f}")
    if is_timed and steal > STEAL_MAX:
        reasons.append(f"the host took {steal:.1%} of the processor time")
    if row["ratio"] and row["low"] is not None and row["high"] is not None:
        width = (row["high"] - row["low"]) / row["ratio"]
        if width > WIDTH_MAX:
            reasons.append(f"interval {width:.0%} wide")
    return reasons


def restless(raw: dict[str, Any]) -> list[str]:
    """Contenders that used the CPU while they should have slept."""
    return [
        f"{name}: {contender} used {share:.0%} of a core while idle"
        for race in raw.values()
        for name, pair in race.get("pairs", {}).items()
        for contender, share in pair["idle_cpu_share"].items()
        if share > IDLE_MAX
    ]


def cpu_ticks() -> list[int]:
    """The first line of /proc/stat: ticks by kind, over all cores."""
    return [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]


def count_busy_cores() -> float:
    """The cores that are busy now, with whatever; those that others take from this host count."""
    before = cpu_ticks()
    time.sleep(LOOK_S)
    spent = [end - start for start, end in zip(before, cpu_ticks(), strict=True)]
    idle = spent[3] + spent[4]
    return (1 - idle / max(1, sum(spent[:8]))) * (os.cpu_count() or 1)


def steal_share(before: list[int], after: list[int]) -> float:
    """Stolen ticks as a share of all ticks between two readings."""
    spent = [end - start for start, end in zip(before, after, strict=True)]
    return spent[7] / max(1, sum(spent[:8]))


def machine() -> dict[str, Any]:
    """The facts that the numbers depend on and a reader cannot guess."""
    return {
        "cpu": first_value("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "memory": first_value("/proc/meminfo", "MemTotal"),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def first_value(path: str, key: str) -> str:
    """The value of the first `key: value` line."""
    for line in Path(path).read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return "unknown"


def versions() -> dict[str, str]:
    """Versions of what took part; absent packages say so."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "absent"
    return found


def commit() -> dict[str, Any]:
    """The commit measured, and whether the tree differed from it (results apart)."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(ROOT), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    changed = git("status", "--porcelain", "--", ".", ":!benchmarks/results")
    return {"hash": git("rev-parse", "HEAD") or "unknown", "dirty": bool(changed)}


def tree_hash(root: Path = ROOT) -> str:
    """Sixteen hexadecimal digits that name the contents of `SOURCES` as they lie on disk.

    Two checkouts with equal sources have equal hashes, whatever their commits are: a commit that
    changes documents or tests alone does not make a record old. Records, pages, and what was
    compiled or cached do not count.
    """
    digest = hashlib.sha256()
    for path in sorted(path for folder in SOURCES for path in (root / folder).rglob("*")):
        if (
            path.is_file()
            and path.parent.name not in ("__pycache__", "results")
            and path.suffix not in (".pyc", ".so", ".md")
        ):
            contents = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(f"{path.relative_to(root).as_posix()} {contents}\n".encode())
    return digest.hexdigest()[:16]


COLUMNS = ("name", "value", "unit", "floor", "ratio", "target", "met", "interval", "cpu us", "note")


def table(rows: list[Row]) -> str:
    """The rows as text."""
    cells = [COLUMNS, *map(row_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for line in cells:
        padded = (
            cell.ljust(width) if column in (0, 2, 9) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def row_cells(row: Row) -> tuple[str, ...]:
    """One row as cells of text."""
    interval = f"{row.low:.2f}..{row.high:.2f}" if row.low is not None else ""
    met = {True: "yes", False: "NO", None: "-"}[row.met]
    cpu = "/".join(map(number, (row.cpu_us_per_sample, row.floor_cpu_us_per_sample)))
    return (
        row.name,
        number(row.value),
        row.unit,
        number(row.floor),
        number(row.ratio),
        number(row.target),
        met,
        interval,
        cpu if cpu != "-/-" else "",
        row.note,
    )


def number(value: float | None) -> str:
    """Three significant digits, thousands grouped; a dash for nothing."""
    if value is None:
        return "-"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"
