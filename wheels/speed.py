"""The speed of a wheel beside a build of the same tree by this machine's compiler.

`python -m wheels.speed WHEEL`, by the Python of `make setup`, whose modules are the other build.
Two processes, one a build, take turns at the quick rows in the order A B, B A, on the same files in
the page cache. What counts is processor time, of all threads: others' work does not add to it. A
row is short only if the whole interval of its ratio is below the bar, in each of three attempts:
what neighbours do to caches and clocks comes and goes, and a slower kernel stays.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from benchmarks.corpus import Corpora, Sizes
from benchmarks.pairing import bootstrap_interval

from .local import make_local_wheel

RATIO_MIN = 0.95
"""Speed that the wheel has to reach, as part of that of the build by this machine's compiler."""

PAIRS, ATTEMPTS, BLOCK_S = 15, 3, 0.1
ROWS = {
    "records of 4 KiB",
    "order",
    "gather",
    "photographs",
    "JSON lines",
    "LMDB",
    "checksums",
}


@dataclass(frozen=True)
class Build:
    """A process that performs rows by one build."""

    process: subprocess.Popen[str]
    kernels: dict[str, str]

    def time(self, row: str, repeats: int) -> float:
        """Processor seconds of a repeat."""
        assert self.process.stdin is not None
        print(row, repeats, file=self.process.stdin, flush=True)
        return float(self._read())

    def _read(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a build failed at a quick row, as said above")
        return line


def start_build(wheel: Path, folder: Path, data: Path) -> Build:
    """Unpack a wheel in a folder, and start a process that uses it."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    script = Path(__file__).with_name("rows.py")
    packages = Path(np.__file__).parents[1]
    process = subprocess.Popen(
        [sys.executable, "-S", "-E", script, folder, data, packages],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
    )
    assert process.stdout is not None
    return Build(process, json.loads(process.stdout.readline()))


def write_data(folder: Path) -> None:
    """Write what the rows read: 64 MiB of records, photographs, lines, an LMDB database."""
    corpora = Corpora(folder, Sizes(records=16_384, images=48), 1)
    corpora.records(4096)
    corpora.images()
    corpora.lmdb(4096, 10_000)
    random = np.random.default_rng(1)
    words = np.array([f"word{number}" for number in range(500)])
    with open(folder / "documents.jsonl", "w") as file:
        for number in range(8_000):
            text = " ".join(words[random.integers(0, 500, int(random.integers(10, 200)))])
            line = {"id": number, "source": "rows", "text": text, "score": number / 7}
            print(json.dumps(line), file=file)


def is_short(ratios: list[float]) -> bool:
    """Tell whether these pairs show the wheel to be slower than it may be."""
    return bootstrap_interval(ratios, 1)[1] < RATIO_MIN


def measure_row(row: str, wheel: Build, source: Build) -> tuple[list[float], int]:
    """Measure the wheel's speed as part of the other's, pair by pair; and the attempts."""
    wheel.time(row, 1), source.time(row, 1)  # touches all memory
    repeats = max(1, round(BLOCK_S / max(source.time(row, 1), 1e-6)))
    ratios: list[float] = []
    attempts = 0
    while attempts < ATTEMPTS and (not ratios or is_short(ratios)):
        attempts += 1
        ratios = []
        for turn in range(PAIRS):
            pair = (wheel, source) if turn % 2 == 0 else (source, wheel)
            times = {id(build): build.time(row, repeats) for build in pair}
            ratios.append(times[id(source)] / times[id(wheel)])
    return ratios, attempts


def compare(wheel: Path, rows: list[str]) -> bool:
    """Print a line a row; True if none is short and kernels are equal."""
    with tempfile.TemporaryDirectory(prefix="penstock-speed-") as scratch:
        folder = Path(scratch)
        write_data(folder / "data")
        (folder / "local").mkdir()
        local = make_local_wheel(folder / "local")
        ours = start_build(wheel, folder / "wheel", folder / "data")
        source = start_build(local, folder / "source", folder / "data")
        good = ours.kernels == source.kernels
        print(f"kernels: {ours.kernels}" + f", and {source.kernels} of the source" * (not good))
        for row in rows:
            ratios, attempts = measure_row(row, ours, source)
            low, high = bootstrap_interval(ratios, 1)
            mark, good = ("SHORT", False) if is_short(ratios) else ("ok   ", good)
            print(
                f"{mark} {row:<20} {np.median(ratios):.2f} of the source's speed "
                f"({low:.2f} to {high:.2f}), attempt {attempts}",
                flush=True,
            )
        for build in (ours, source):
            build.process.communicate()
    return good


if __name__ == "__main__":
    sys.exit(0 if compare(Path(sys.argv[1]), sys.argv[2:] or sorted(ROWS)) else 1)
