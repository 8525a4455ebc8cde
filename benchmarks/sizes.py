"""Costs of a loader as sizes grow: samples, files, ranks, readers, batches, threads.

    python -m benchmarks.sizes [FOLDER] [--quick]

A process with penstock loaded opens data without a saved index, and takes a batch of 64 in exact
order: from records of 16 bytes in a sparse file, from many files (hard links of 4 KiB), as one of
many ranks. Times by the clock and added memory are medians of three processes. Then rates over a
second: of records of 512 bytes in memory by the size of the batch; of samples that take a processor
for a millisecond by the number of threads that decode; of records of 4 KiB from storage that
answers after a millisecond by the number of reads in flight.

A cost bends where it is twice that of the smallest size, once it is above a millisecond or a
megabyte. A rate bends where the next size adds less than a tenth. Each row has all points, and is
held against its smallest size. What ranks agree on, and larger jobs, are in `benchmarks.scale`. The
record is benchmarks/results/sizes.json.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from docsite.drawings import Drawing

import penstock

from . import emulation
from .corpus import Corpora, Sizes
from .record import RESULTS, ROOT, Record, Row, number, read_record, table
from .scale.costs import powers
from .scale.curves import add_line, write_size

PATH = ROOT / "docs" / "sizes.svg"
LINKS_MAX = 60_000
"""Names that one file may have."""
RATE_S = 1.0
LEAST = 1.0
"""Milliseconds and megabytes below which a cost is not looked at."""
AWAY = "records 1 ms away"
FRESH = """
import json, sys, tempfile, time
import penstock
def status(key):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) / 1e3
with tempfile.NamedTemporaryFile(suffix=".bin") as few:  # modules are loaded when they are used
    few.write(bytes(4096))
    few.flush()
    data = penstock.open(few.name, format="records", record_bytes=16, index="memory")
    with penstock.Loader(data, 64, seed=1) as loader:
        next(iter(loader))
asked = json.loads(sys.argv[1])
before, began = status("VmRSS:"), time.perf_counter()
data = penstock.open(asked["path"], index="memory", **asked["options"])
opened = time.perf_counter()
with penstock.Loader(data, 64, seed=1, **asked["more"]) as loader:
    next(iter(loader))
    taken = [1e3 * (opened - began), 1e3 * (time.perf_counter() - opened)]
    print(json.dumps([*taken, status("VmHWM:") - before]))
"""


@dataclass(frozen=True, slots=True)
class Curve:
    """Cost of something, or its rate, by its size.

    over:  what the size counts.
    unit:  "ms" and "MB" are costs; "samples/s" is a rate.
    why:   why it bends where it does, or does not.
    """

    name: str
    over: str
    unit: str
    why: str
    points: tuple[tuple[int, float], ...]

    @property
    def bends_at(self) -> int | None:
        """The size at which the curve bends; None if it does not."""
        sizes = [size for size, _ in self.points]
        values = [value for _, value in self.points]
        if self.unit == "samples/s":
            bends = [after < 1.1 * before for before, after in itertools.pairwise(values)]
            return sizes[bends.index(True)] if True in bends else None
        bends = [value > 2 * max(values[0], LEAST) for value in values]
        return sizes[bends.index(True)] if True in bends else None

    def make_row(self) -> Row:
        """The row of the curve: its largest size, held against its smallest."""
        (small, first), (large, last) = self.points[0], self.points[-1]
        bends = (
            "does not bend" if self.bends_at is None else f"bends at {write_size(self.bends_at)}"
        )
        listed = ", ".join(f"{write_size(size)}: {number(value)}" for size, value in self.points)
        name = f"{self.name}, {write_size(large)} {self.over} / {write_size(small)}"
        note = f"{listed}; {bends}: {self.why}"
        return Row(name, last, self.unit, first, last / first if first else None, note=note)


# -- costs -----------------------------------------------------------------------------------------


def open_fresh(path: Path, options: dict[str, Any], **more: Any) -> list[float]:
    """Milliseconds to open and to the first batch, and megabytes, in processes of their own."""
    asked = json.dumps({"path": str(path), "options": options, "more": more})
    command = [sys.executable, "-c", FRESH, asked]
    said = [json.loads(subprocess.check_output(command, cwd=ROOT)) for _ in range(3)]
    return [median(column) for column in zip(*said, strict=True)]


def make_costs(
    what: str, over: str, whys: Sequence[str], found: dict[int, list[float]]
) -> list[Curve]:
    """The curves of what fresh processes said, by size."""
    kinds = (("open", "ms"), ("first batch", "ms"), ("memory", "MB"))
    return [
        Curve(
            f"{what}: {kind}",
            over,
            unit,
            why,
            tuple((size, said[at]) for size, said in found.items()),
        )
        for at, ((kind, unit), why) in enumerate(zip(kinds, whys, strict=True))
    ]


def measure_samples(folder: Path, sizes: Sequence[int]) -> list[Curve]:
    """Records of one file, which occupies no disk."""
    found = {}
    for size in sizes:
        path = folder / f"records-{size}.bin"
        with open(path, "wb") as file:
            file.truncate(16 * size)
        found[size] = open_fresh(path, {"format": "records", "record_bytes": 16})
        path.unlink()
    flat = "places and order are functions of the number"
    return make_costs("records of one file", "samples", (flat, flat, flat), found)


def measure_files(folder: Path, sizes: Sequence[int]) -> list[Curve]:
    """A sample a file, a thousand in each folder."""
    found = {}
    for size in sizes:
        data = folder / f"files-{size}"
        if not data.exists():
            part = folder / f"files-{size}.part"
            for number in range(size):
                inner = part / f"{number // 1000:04}"
                if number % 1000 == 0:
                    inner.mkdir(parents=True)
                if number % LINKS_MAX == 0:
                    first = inner / f"{number:07}.bin"
                    first.write_bytes(bytes(4096))
                else:
                    os.link(first, inner / f"{number:07}.bin")
            part.rename(data)
        found[size] = open_fresh(data, {})
    whys = (
        "each file is listed and looked at once",
        "the table of places is made of the list",
        "a file has its name, size and time",
    )
    return make_costs("a sample a file", "files", whys, found)


def measure_ranks(folder: Path, sizes: Sequence[int]) -> list[Curve]:
    """One of many ranks, which compute their own samples."""
    path = folder / "records-of-ranks.bin"
    with open(path, "wb") as file:
        file.truncate(16 * 10**10)
    options = {"format": "records", "record_bytes": 16}
    found = {size: open_fresh(path, options, rank=size - 1, world_size=size) for size in sizes}
    path.unlink()
    flat = "a rank computes its own samples, and asks nobody"
    return make_costs("10^10 records, the last rank", "ranks", (flat, flat, flat), found)[1:]


# -- rates -----------------------------------------------------------------------------------------


def measure_rate(data: Any, batch: int, **more: Any) -> float:
    """Samples a second of a loader that is warm."""
    with penstock.Loader(data, batch, seed=1, drop_last=True, **more) as loader:
        for _ in loader:
            break
        samples, began = 0, time.perf_counter()
        while True:
            for got in loader:
                samples += len(got.ids) if hasattr(got, "ids") else len(got)
                spent = time.perf_counter() - began
                if spent > RATE_S:
                    return samples / spent


def measure_batches(corpora: Corpora, sizes: Sequence[int]) -> Curve:
    """Records in memory, by the size of a batch."""
    path = corpora.records(512)
    path.read_bytes()
    data = penstock.open(path, format="records", record_bytes=512, index="memory")
    points = tuple((size, measure_rate(data, size)) for size in sizes)
    fixed_us = 1e6 / points[0][1]
    why = f"a batch costs {fixed_us:.0f} us besides its samples, which are copied"
    return Curve("records of 512 B in memory", "samples a batch", "samples/s", why, points)


def measure_threads(folder: Path, sizes: Sequence[int]) -> Curve:
    """Samples that take a processor for a millisecond, by the number of threads."""
    np.save(folder / "numbers.npy", np.arange(4096))
    data = penstock.open(folder / "numbers.npy", index="memory")
    block = bytes(1 << 16)
    began_ns = time.thread_time_ns()
    for _ in range(50):
        hashlib.sha256(block).digest()
    rounds = max(1, round(50e6 / (time.thread_time_ns() - began_ns)))

    def decode(sample: dict[str, Any]) -> np.ndarray:
        for _ in range(rounds):
            hashlib.sha256(block).digest()
        return np.full(16, sample["data"], np.float32)

    points = tuple((n, measure_rate(data, 16, decode=decode, decode_threads=n)) for n in sizes)
    why = f"there are {len(os.sched_getaffinity(0))} cores"
    return Curve("decoding of 1 ms a sample", "threads", "samples/s", why, points)


def measure_readers(corpora: Corpora, sizes: Sequence[int]) -> Curve:
    """Records from storage that answers after a millisecond, by the number of reads in flight."""
    path = corpora.records(4096)
    points = []
    with emulation.Shared(read_ns=1_000_000, meta_ns=1_000_000, calibrate=True) as storage:
        for size in sizes:
            with_none = storage.mount(path.parent, direct=True)
            data = penstock.open(
                f"{with_none.path}/{path.name}", format="records", record_bytes=4096, index="memory"
            )
            budget = penstock.Budget(
                requests=size, threads=min(size, 256), readahead_bytes=64 << 20
            )
            points.append((size, measure_rate(data, 64, budget=budget)))
            with_none.close()
    why = "each read waits a millisecond; then two cores have the storage's process to run, too"
    return Curve(AWAY, "reads in flight", "samples/s", why, tuple(points))


# -- the chart -------------------------------------------------------------------------------------

WIDTH, HEIGHT, COLUMNS = 200.0, 110.0, 3


def draw_curves(curves: Sequence[Curve]) -> str:
    """Draw a small chart for each curve; both axes are logarithmic."""
    rows = math.ceil(len(curves) / COLUMNS)
    drawing = Drawing("What a loader costs as sizes grow", round(20 + rows * (HEIGHT + 90)))
    for place, curve in enumerate(curves):
        x, y = 24 + place % COLUMNS * (WIDTH + 36), 30 + place // COLUMNS * (HEIGHT + 90)
        sizes, values = zip(*curve.points, strict=True)
        low, high = math.log10(sizes[0]), math.log10(sizes[-1])
        least = math.floor(math.log10(max(min(values), 1e-3)))
        most = max(math.ceil(math.log10(max(*values, 1e-3))), least + 1)
        drawing.text(x, y, curve.name, soft=True)
        drawing.box(x, y + 10, WIDTH, HEIGHT, "none")
        places = [
            (
                x + (math.log10(size) - low) / (high - low) * WIDTH,
                y + 10 + HEIGHT * (1 - (math.log10(max(value, 1e-3)) - least) / (most - least)),
            )
            for size, value in curve.points
        ]
        add_line(drawing, places, "")
        scale = f"{number(10.0**least)} to {number(10.0**most)} {curve.unit}"
        drawing.text(x, y + HEIGHT + 28, scale, soft=True)
        spread = f"{write_size(sizes[0])} to {write_size(sizes[-1])} {curve.over}"
        drawing.text(x, y + HEIGHT + 46, spread, soft=True)
    return drawing.render()


def write_pages() -> dict[Path, str]:
    """The chart by its path, if there is a record with curves."""
    if not (RESULTS / "sizes.json").exists():
        return {}
    found = read_record("sizes")["raw"].get("curves", {}).get("all", [])
    curves = [Curve(**one | {"points": tuple(map(tuple, one["points"]))}) for one in found]
    return {PATH: draw_curves(curves)} if curves else {}


def main() -> None:
    """Print the rows, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "bench-data")
    parser.add_argument("--quick", action="store_true", help="small sizes, and no record")
    options = parser.parse_args()
    quick = options.quick
    folder = options.folder.resolve() / "sizes"
    folder.mkdir(parents=True, exist_ok=True)
    corpora = Corpora(folder.parent, Sizes.quick() if quick else Sizes(), 1)
    record = Record("sizes", 1, {"quick": quick})
    curves = measure_samples(folder, powers(4, 6 if quick else 10))
    curves += measure_files(folder, powers(0, 3 if quick else 6))
    curves += measure_ranks(folder, powers(0, 2 if quick else 5))
    curves.append(measure_batches(corpora, (1, 64) if quick else (1, 8, 64, 512, 4096, 65_536)))
    curves.append(measure_threads(folder, (1, 2) if quick else (1, 2, 4, 8)))
    if missing := emulation.usable():
        record.rows.append(Row(AWAY, None, "samples/s", note=missing))
    else:
        curves.append(measure_readers(corpora, (1, 16) if quick else (1, 4, 16, 64, 256, 1024)))
    record.rows = [curve.make_row() for curve in curves] + record.rows
    record.raw["curves"] = {
        "all": [
            {name: getattr(curve, name) for name in ("name", "over", "unit", "why", "points")}
            for curve in curves
        ]
    }
    print(table(record.rows))
    if not quick:
        print(record.write())


if __name__ == "__main__":
    main()
