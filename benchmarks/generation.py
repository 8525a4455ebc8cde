"""Unet3d's data: the rate of its generation, against the floor: writing as many bytes.

    python -m benchmarks.generation [FOLDER] [--format npz] [--contents random] [--files 8]

The floor writes files of the same sizes from one buffer, on as many threads, and makes each durable
as the generator does: a hidden name, fsync, the rename, fsync of the folder. Both take turns in
FOLDER (default bench-data/), which is emptied in between. The ratio is that of the floor's time to
the generator's.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from .pairing import bootstrap_interval, count_turns, divide_pairs
from .record import Row, table

ROUNDS = 10
TARGET = 0.8
TARGET_MB_PER_S = 690.0
THREADS = 4
PIECE_BYTES = 1 << 20


def rows(
    folder: Path, form: str = "npz", contents: str = "random", files: int = 8, rounds: int = ROUNDS
) -> tuple[list[Row], dict[str, Any]]:
    """One row: MB/s of samples written and durable, paired with the floor. The target is met where
    the ratio is, or the rate itself."""
    from penstock_bench.data.generate import generate_data
    from penstock_bench.workload.sections import DatasetSpec

    data = DatasetSpec(
        record_length_bytes=146600628 / 2,
        record_length_bytes_stdev=68341808 / 2,
        num_files_train=files,
        format=form,
    )
    where = folder / "generation"
    buffer = os.urandom(PIECE_BYTES)
    raw: dict[str, list[float]] = {"generate": [], "floor": []}
    sizes, count = [0], 0
    turns = count_turns(rounds + 1, lambda: [divide_pairs(raw["floor"], raw["generate"])])
    for turn in turns:  # the first is a rehearsal, which tells the sizes
        for name in ("generate", "floor") if turn % 2 == 0 else ("floor", "generate"):
            shutil.rmtree(where, ignore_errors=True)
            where.mkdir(parents=True)
            os.sync()
            started = time.perf_counter()
            if name == "generate":
                made = generate_data(
                    replace(data), ("train",), root=str(where), kind=contents, threads=THREADS
                )
                count = made.written_bytes
            else:
                plain(where, sizes, buffer)
            seconds = time.perf_counter() - started
            if turn == 0 and name == "generate":
                sizes = [os.path.getsize(each) for each in sorted((where / "data/train").iterdir())]
            elif turn:
                raw[name].append(count / seconds / 1e6)
    shutil.rmtree(where, ignore_errors=True)
    ratios = [one / other for one, other in zip(raw["generate"], raw["floor"], strict=True)]
    low, high = bootstrap_interval(ratios, seed=1)
    rate = median(raw["generate"])
    row = Row(
        f"generate {form}, {contents}: 690 MB/s, or 0.8 of plain writing",
        rate,
        "MB/s",
        floor=median(raw["floor"]),
        ratio=median(ratios),
        target=TARGET,
        met=median(ratios) >= TARGET or rate >= TARGET_MB_PER_S,
        low=low,
        high=high,
        note=f"{files} files, {count / 1e6:,.0f} MB, {THREADS} threads",
    )
    return [row], {row.name: raw}


def plain(folder: Path, sizes: list[int], buffer: bytes) -> None:
    """Write files of these sizes, each durable under its name."""

    def write(number: int) -> None:
        hidden, named = folder / f".{number}.part", folder / str(number)
        file = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        left = sizes[number]
        while left:
            left -= os.write(file, buffer[: min(left, PIECE_BYTES)])
        os.fsync(file)
        os.close(file)
        os.replace(hidden, named)
        file = os.open(folder, os.O_RDONLY)
        os.fsync(file)
        os.close(file)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(write, range(len(sizes))))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.generation", description=__doc__)
    parser.add_argument("folder", nargs="?", default="bench-data")
    parser.add_argument("--format", default="npz")
    parser.add_argument("--contents", default="random")
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    found, _ = rows(
        Path(options.folder), options.format, options.contents, options.files, options.rounds
    )
    print(table(found))
    sys.exit(0 if all(row.met for row in found) else 1)


if __name__ == "__main__":
    main()
