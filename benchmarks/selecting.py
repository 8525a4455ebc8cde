"""Selections of many samples, against plain numpy arrays.

    python -m benchmarks.selecting [FOLDER] [--count 1_000_000_000] [--pairs 15] [--quick]

A random half of the samples is selected. Timed: position to sample through order and bitmap, and
through the bitmap alone, against np.take of an array of the selected numbers (int64, so 4 GB at
10^9; memory of 8 GB is needed); back from sample to number; opening the saved selection to its
first sample; and, at a tenth of the count, a condition over two numeric columns of the user
against the same condition in numpy, and a seeded fraction. At a tenth, too: weights, picks to
samples against np.searchsorted of the same points in summed-up weights (float64), and the memory of
a process that weighs the samples by a mapped file and draws from all of an epoch. Lookups are in
batches of 4,096 random positions, in seconds of this thread's processor, pair by pair; the rest is
by the clock, with seconds of processors in the note. The record is
benchmarks/results/selecting.json.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

import numpy as np

import penstock
from penstock.order import Order, Selection
from penstock.order.selection import Bitmap, allot_words

from .pairing import bootstrap_interval
from .record import Record, Row, table

BATCH = 4096
BATCHES = 50
OPENINGS = 5
WANTED_NS = 25
WANTED_BITS = 1.1
WANTED_OPEN_S = 0.1
WANTED_WHERE_S = 0.5
WANTED_MB = 200


def draw_half(count: int) -> Bitmap:
    """A random half of [0, count)."""
    words = allot_words(count)
    random = np.random.Generator(np.random.Philox(1))
    whole = count // 64
    words[:whole] = random.integers(0, 2**64, whole, np.uint64)
    return Bitmap.from_words(count, words)


def list_selected(bitmap: Bitmap) -> np.ndarray:
    """The selected numbers as an array."""
    found = np.empty(len(bitmap), np.int64)
    for start in range(0, len(found), 1 << 22):
        part = found[start : start + (1 << 22)]
        numbers = np.arange(start, start + len(part), dtype=np.uint64)
        bitmap.forward(numbers, part.view(np.uint64))
    return found


def time_batches(act: Callable[[np.ndarray], object], batches: list[np.ndarray]) -> float:
    """Nanoseconds of this thread's processor for each value."""
    before = time.thread_time_ns()
    for batch in batches:
        act(batch)
    return (time.thread_time_ns() - before) / sum(map(len, batches))


def time_run(act: Callable[[], object]) -> tuple[float, float]:
    """Seconds on the clock and on processors."""
    clock, processors = time.perf_counter(), time.process_time()
    act()
    return time.perf_counter() - clock, time.process_time() - processors


def measure_lookups(record: Record, bitmap: Bitmap, pairs: int) -> None:
    """The rows of single lookups."""
    order = Order(len(bitmap), 7)
    selection = Selection(order, bitmap)
    selected = list_selected(bitmap)
    out = np.empty(BATCH, np.uint64)
    takes = np.empty(BATCH, np.int64)
    acts: dict[str, Callable[[np.ndarray], object]] = {
        "bitmap": lambda numbers: bitmap.forward(numbers, out),
        "selection": lambda positions: selection.samples(positions),
        "take": lambda numbers: np.take(selected, numbers.view(np.int64), out=takes, mode="clip"),
        "back": lambda samples: bitmap.inverse(samples, out),
    }
    runs: dict[str, list[float]] = {name: [] for name in acts}
    for pair in range(pairs):
        start = pair * BATCH * BATCHES % (len(bitmap) - BATCH * BATCHES)
        positions = np.arange(start, start + BATCH * BATCHES, dtype=np.uint64)
        numbers = order.samples(positions)
        samples = selected[numbers.view(np.int64)].view(np.uint64)
        for name, act in acts.items():
            values = {"selection": positions, "back": samples}.get(name, numbers)
            fresh = values[:: -1 if pair % 2 else 1].copy()
            runs[name].append(time_batches(act, np.split(fresh, BATCHES)))
        assert np.array_equal(acts["take"](numbers[:BATCH]), samples[:BATCH].view(np.int64))
        acts["bitmap"](numbers[:BATCH])
        assert np.array_equal(out, samples[:BATCH])
    record.raw["ns"] = {"runs": runs}
    wanted = f"wanted: {WANTED_NS} ns"
    for name, act, note in (
        ("number to sample by the bitmap", "bitmap", wanted),
        ("position to sample, order and bitmap", "selection", ""),
        ("sample to number by the bitmap", "back", ""),
    ):
        ratios = [take / own for own, take in zip(runs[act], runs["take"], strict=True)]
        low, high = bootstrap_interval(ratios, 1)
        value, floor = median(runs[act]), median(runs["take"])
        note = f"{note}; floor: np.take".lstrip("; ")
        record.rows.append(
            Row(name, value, "ns", floor, median(ratios), low=low, high=high, note=note)
        )


def weigh_and_report(path: Path, weights: Path, sender: Connection) -> None:
    """Weigh the samples of a file of holes, draw from all of an epoch, and send what that took:
    seconds on the clock and on processors, bytes of memory, and of files that are mapped."""
    dataset = penstock.open(path, dtype="i8", shape=(1,), index="memory")
    own_before = read_memory()[0]
    values = np.load(weights, mmap_mode="r")
    weighed = []
    took = time_run(lambda: weighed.append(dataset.weigh(values)))
    own = [read_memory()[0]]
    order = weighed[0].order(7)
    for start in range(0, len(order), len(order) // 64):
        order.samples(np.arange(start, min(start + BATCH, len(order)), dtype=np.uint64))
        own.append(read_memory()[0])
    sender.send((*took, max(own), own_before, read_memory()[1]))


def read_memory() -> tuple[int, int]:
    """Bytes of this process's own memory that are resident, and of files that it has mapped."""
    status = Path("/proc/self/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return tuple(int(fields[name].split()[0]) << 10 for name in ("RssAnon", "RssFile"))


def measure_weights(record: Record, folder: Path, path: Path, count: int, pairs: int) -> None:
    """The rows of weights."""
    os.environ["XDG_CACHE_HOME"] = str(folder)  # of the files without a name
    values = np.random.Generator(np.random.Philox(3)).random(count) + 0.01
    source = folder / "weights.npy"
    np.save(source, values)
    context = get_context("spawn")
    receiver, sender = context.Pipe(False)
    child = context.Process(target=weigh_and_report, args=(path, source, sender))
    child.start()
    clock_s, processors_s, own, own_before, mapped = receiver.recv()
    child.join()
    source.unlink()
    note = f"{processors_s:.1f} s of processors"
    record.rows.append(Row(f"weigh by an array, {count:.0e} samples", clock_s, "s", note=note))
    note = f"{own_before / 1e6:.0f} MB before; and {mapped / 1e6:.0f} MB of mapped files"
    note += f"; wanted: {WANTED_MB} MB"
    record.rows.append(Row(f"memory with weights, {count:.0e}", own / 1e6, "MB", note=note))

    weighed = penstock.open(path, dtype="i8", shape=(1,), index="memory").weigh(values)
    table = weighed.weighting.table
    sums = np.cumsum(table.weights, dtype=np.float64)
    offset = weighed.order(7).offset
    out = np.empty(BATCH, np.uint64)
    random = np.random.Generator(np.random.Philox(4))
    runs: dict[str, list[float]] = {"table": [], "searchsorted": []}
    for _ in range(pairs):
        picks = random.integers(0, count, BATCH * BATCHES).astype(np.uint64)
        points = (picks.astype(np.float64) * table.total + offset) / count
        acts: dict[str, tuple[Callable[[np.ndarray], object], np.ndarray]] = {
            "table": (lambda numbers: table.pick(numbers, out, count, offset), picks),
            "searchsorted": (lambda at: np.searchsorted(sums, at, side="right"), points),
        }
        for name, (act, given) in acts.items():
            runs[name].append(time_batches(act, np.split(given, BATCHES)))
    record.raw["weights_ns"] = {"runs": runs}
    ratios = [floor / own for own, floor in zip(runs["table"], runs["searchsorted"], strict=True)]
    low, high = bootstrap_interval(ratios, 1)
    value, floor = median(runs["table"]), median(runs["searchsorted"])
    name, note = f"pick to sample by weights, {count:.0e}", "floor: np.searchsorted"
    record.rows.append(Row(name, value, "ns", floor, median(ratios), low=low, high=high, note=note))


def main() -> None:
    """Print the rows, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("bench-data"))
    parser.add_argument("--count", type=int, default=1_000_000_000)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="10^7 samples, and no record")
    options = parser.parse_args()
    if options.quick:
        options.count, options.pairs = 10_000_000, 3
    options.folder.mkdir(exist_ok=True)
    record = Record("selecting", 7, {"count": options.count, "batch": BATCH})
    count = options.count
    bitmap = draw_half(count)
    bits = bitmap.nbytes * 8 / count
    record.rows.append(
        Row("memory of a selection", bits, "bits a sample", note=f"wanted: {WANTED_BITS}")
    )
    measure_lookups(record, bitmap, options.pairs)

    path = options.folder / "selecting.bin"  # a file of holes: samples of 8 bytes
    with open(path, "wb") as file:
        file.truncate(count * 8)
    dataset = penstock.open(path, dtype="i8", shape=(1,), index="memory")
    saved = options.folder / "selecting.selection"
    dataset._keep(bitmap).save_selection(saved)
    third = len(bitmap) // 3
    openings = [
        time_run(lambda: dataset.select(saved=saved).ids([third]))[0] for _ in range(OPENINGS)
    ]
    record.raw["open_s"] = {"runs": openings}
    note = f"to the first sample; wanted: {WANTED_OPEN_S} s"
    record.rows.append(Row("open a saved selection", median(openings), "s", note=note))
    saved.unlink()

    count //= 10
    os.truncate(path, count * 8)
    dataset = penstock.open(path, dtype="i8", shape=(1,), index="memory")
    random = np.random.Generator(np.random.Philox(2))
    a, b = random.integers(0, 1000, count), random.random(count)
    columns = {"a": a, "b": b}
    where = [
        (
            time_run(lambda: dataset.select(where="a < 100 and b > 0.5", columns=columns)),
            time_run(lambda: np.flatnonzero((a < 100) & (b > 0.5))),
        )
        for _ in range(OPENINGS)
    ]
    record.raw["where_s"] = {"runs": where}
    ratios = [floor[0] / own[0] for own, floor in where]
    low, high = bootstrap_interval(ratios, 1)
    processors = median(own[1] for own, _ in where)
    name = f"a condition over two columns, {count:.0e} samples"
    note = f"{processors:.2f} s of processors; wanted: {WANTED_WHERE_S} s; floor: numpy"
    value, floor = (median(pair[k][0] for pair in where) for k in (0, 1))
    record.rows.append(Row(name, value, "s", floor, median(ratios), low=low, high=high, note=note))
    fractions = [time_run(lambda: dataset.select(fraction=0.1)) for _ in range(OPENINGS)]
    record.raw["fraction_s"] = {"runs": fractions}
    note = f"{median(run[1] for run in fractions):.2f} s of processors"
    value = median(run[0] for run in fractions)
    record.rows.append(Row(f"a fraction, {count:.0e} samples", value, "s", note=note))
    measure_weights(record, options.folder, path, count, options.pairs)
    path.unlink()
    print(table(record.rows))
    if not options.quick:
        print(record.write())


if __name__ == "__main__":
    main()
