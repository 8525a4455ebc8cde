"""python -m benchmarks.asynchrony [--quick]: a save beside a loop that wants the same rate.

`Budget.process_bytes_per_s` bounds the bytes/s that a process reads and saves together. A loop
reads at 0.25 to 2 times of that rate (its steps sleep) while a state is saved behind it. Figures of
each cell: how long `save` blocked the loop, how fast the loop was while the save was written,
against its share, and how long the save took until it was durable, against what the rate alone
allows: its bytes at the whole rate, without a loop.

A loop's share is what it reads without a save, and at most what the floor of checkpoints leaves of
the rate (`request_queue.FLOORS`).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

import penstock
from penstock.checkpoint import Checkpoints
from penstock.engine.request_queue import FLOORS

from . import __main__ as command
from .checkpoint import FOLDER
from .record import Record, Row

RATES = (20, 100, 400)
"""Rates of a process, MB/s."""
WANTED = (0.25, 0.5, 1.0, 2.0)
"""Parts of the rate that the loop asks for."""
SAVE_S = 1.5
"""Time that the rate alone needs for a save."""
RECORD_BYTES, BATCH = 1 << 16, 16
STEP_BYTES = RECORD_BYTES * BATCH
SLOWER, OF_SHARE = 3.0, 0.7


class Cell(NamedTuple):
    """A save and a loop, each alone and both together. Times are in seconds."""

    alone_s: float
    alone_mb_s: float
    blocked_s: float
    durable_s: float
    loop_mb_s: float


def read_steps(loader: penstock.Loader, mb_s: float) -> Iterator[int]:
    """Read for ever, by steps that wait until `mb_s` allows them; give the bytes of each."""
    due_s = time.perf_counter()
    while True:
        for batch in loader:
            due_s = max(due_s, time.perf_counter() - 0.1) + STEP_BYTES / mb_s / 1e6
            time.sleep(max(0.0, due_s - time.perf_counter()))
            yield batch["data"].nbytes


def run_cell(data: Path, rate: float, wanted: float) -> Cell:
    """Save once without a loop and once beside it."""
    budget = penstock.Budget(process_bytes_per_s=rate * 1e6)
    state = {"weights": np.ones(int(rate * 1e6 * SAVE_S) // 8)}
    with (
        tempfile.TemporaryDirectory(dir=FOLDER) as folder,
        Checkpoints(folder, budget=budget) as checkpoints,
    ):
        checkpoints.prepare(state)
        start_s = time.perf_counter()
        checkpoints.save(1, state)
        checkpoints.wait()
        alone_s = time.perf_counter() - start_s
        records = penstock.open(data, record_bytes=RECORD_BYTES)
        with penstock.Loader(records, batch_size=BATCH, seed=0, budget=budget) as loader:
            steps = read_steps(loader, wanted * rate)
            start_s, moved_bytes = time.perf_counter(), 0
            while time.perf_counter() < start_s + SAVE_S:
                moved_bytes += next(steps)
            alone_mb_s = moved_bytes / (time.perf_counter() - start_s) / 1e6
            start_s = time.perf_counter()
            checkpoints.save(2, state)
            blocked_s, moved_bytes = time.perf_counter() - start_s, 0
            while checkpoints.last is None or checkpoints.last.step == 1:
                moved_bytes += next(steps)
            durable_s = time.perf_counter() - start_s
        checkpoints.wait()
    return Cell(alone_s, alone_mb_s, blocked_s, durable_s, moved_bytes / durable_s / 1e6)


def cell_rows(rate: float, wanted: float, cell: Cell) -> list[Row]:
    """Rows of a cell."""
    name = f"rate {rate} MB/s, loop wants {wanted:g} of it"
    share = min(cell.alone_mb_s, rate * (1 - FLOORS["checkpoint"]))
    slower, part = cell.durable_s / SAVE_S, cell.loop_mb_s / share
    note = f"the save alone {cell.alone_s:.2f} s"
    return [
        Row(f"{name}: save blocks for", cell.blocked_s, "s"),
        Row(
            *(f"{name}: save durable / the rate alone", cell.durable_s, "s", SAVE_S, slower),
            *(SLOWER, slower <= SLOWER),
            note=note,
        ),
        Row(
            *(f"{name}: loop / its share", cell.loop_mb_s, "MB/s", share, part),
            *(OF_SHARE, part >= OF_SHARE),
            note=f"without a save {cell.alone_mb_s:.0f} MB/s",
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.asynchrony", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one rate, one loop")
    options = parser.parse_args()
    record = Record("asynchrony" + "-quick" * options.quick, 0, vars(options))
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        data = Path(folder) / "records.bin"
        data.write_bytes(bytes(256 * STEP_BYTES))
        for rate in RATES[:1] if options.quick else RATES:
            for wanted in WANTED[-1:] if options.quick else WANTED:
                record.rows += cell_rows(rate, wanted, run_cell(data, rate, wanted))
    command.finish(record)


if __name__ == "__main__":
    main()
