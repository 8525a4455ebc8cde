"""The price of looking whether files have changed, beside an epoch over them.

    python -m benchmarks.survey [FOLDER] [--files 1_000_000]

Files of 1 KiB are written once into FOLDER (default bench-data/). Timed, all warm: opening with the
saved index; the index's version, by which caches are compared; the survey at the start of an epoch
with a cache; its floor, one os.stat for each file in one thread; an epoch that reads all files. The
record is benchmarks/results/survey.json.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import penstock

from .record import Record, Row

FILE_BYTES = 1024
FILES_A_FOLDER = 1000


def write_files(folder: Path, count: int) -> Path:
    """Write the files that are not there yet; the folder of all."""
    tree = folder / f"survey-{count}"
    for first in range(0, count, FILES_A_FOLDER):
        place = tree / f"{first // FILES_A_FOLDER:05d}"
        place.mkdir(parents=True, exist_ok=True)
        for number in range(len(os.listdir(place)), min(FILES_A_FOLDER, count - first)):
            (place / f"{number:03d}.bin").write_bytes(bytes(FILE_BYTES))
    return tree


def read_all(dataset: penstock.Dataset) -> None:
    """An epoch without a cache."""
    with penstock.Loader(dataset, 256) as loader:
        for _ in loader:
            pass


def stat_all(paths: list[str]) -> None:
    """The floor of a survey."""
    for path in paths:
        os.stat(path)


def measure(act: Callable[[], object], repeats: int) -> list[tuple[float, float]]:
    """Seconds on the clock and on processors, of each repetition."""
    runs = []
    for _ in range(repeats):
        clock, processors = time.perf_counter(), time.process_time()
        act()
        runs.append((time.perf_counter() - clock, time.process_time() - processors))
    return runs


def main() -> None:
    """Print a line for each, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("bench-data"))
    parser.add_argument("--files", type=int, default=1_000_000)
    options = parser.parse_args()
    record = Record("survey", 0, {"files": options.files, "file_bytes": FILE_BYTES})
    tree = write_files(options.folder, options.files)
    dataset = penstock.open(tree)
    files = dataset.index.files
    paths = [files.path(row) for row in range(len(files))]
    probe = partial(penstock.engine.open_store(files.root).probe, files)
    acts: list[tuple[str, Callable[[], object], int]] = [
        ("open with the saved index", partial(penstock.open, tree), 5),
        ("version of the index", lambda: penstock.open(tree).index.version, 5),
        ("survey of all files", probe, 3),
        ("floor: os.stat of all files", partial(stat_all, paths), 3),
        ("epoch without a cache", partial(read_all, dataset), 3),
    ]
    for what, act, repeats in acts:
        runs = measure(act, repeats)
        record.raw[what] = {"runs": runs}
        clock, processors = (median(times) for times in zip(*runs, strict=True))
        record.rows.append(Row(what, clock, "s", note=f"{processors:.3f} s of processors"))
        print(
            f"{what:28} {clock:8.3f} s on the clock {processors:8.3f} s on processors", flush=True
        )
    print(record.write())


if __name__ == "__main__":
    main()
