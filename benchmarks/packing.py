"""Rows of packed documents: how full, at what cost, and how soon.

    python -m benchmarks.packing [FOLDER] [--documents N] [--billion N] [--pairs 15] [--quick]

Lengths are drawn like those of pages of the web: lognormal, median 500, sigma 1.1. Measured:

fill         of rows of 2 k, 8 k and 128 k tokens, with the window that `pack` chooses, on 2 million
             documents; window ends included.
packing      nanoseconds of this thread's processor a document, of the core's packer on windows in
             memory; the floor is `np.cumsum` of the same lengths.
counting     seconds on the clock until two threads have counted the rows of an epoch: the order,
             the lengths gathered at random, and packing.
batches      bytes of tensors a second, of packed batches and of fixed records that have as many
             bytes as the packed batch's three tensors: both of files in the page cache, in turns.
first batch  seconds on the clock from `penstock.pack` to the first batch, of a synthetic index of
             10^9 documents, whose lengths repeat, in one file.
balance      see benchmarks/packing_balance.py.
rivals       see benchmarks/packing_rivals.py.

The record is benchmarks/results/packing.json.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import penstock
from penstock import _core
from penstock.dataset import Dataset
from penstock.extent import Extents, Files
from penstock.index import Field, Index, RowTable
from penstock.order import Order, PackedOrder
from penstock.order.packed_order import PackingRule, choose_window

from .packing_balance import measure_balance
from .packing_rivals import measure_rivals
from .pairing import bootstrap_interval, count_turns, divide_pairs
from .record import Record, Row, table

FILLS = ((2048, 99.3), (8192, 99.7), (131072, 99.8))
WANTED_NS = 40
WANTED_COUNT_S = 4.0  # of 10^8 documents
WANTED_RATIO = 0.85
WANTED_FIRST_S = 0.3
ROW_TOKENS = 8192
BATCH_ROWS = 16
BATCHES = 400  # an epoch begins in some 10 ms, which is little of this many


def draw_lengths(count: int, seed: int = 0) -> np.ndarray:
    """Draw the lengths of so many documents of the web."""
    random = np.random.Generator(np.random.Philox(seed))
    lengths = np.empty(count, np.int64)
    for start in range(0, count, 1 << 22):
        part = lengths[start : start + (1 << 22)]
        part[:] = np.maximum(1, random.lognormal(np.log(500), 1.1, len(part)))
    return lengths


def measure_fill(record: Record, documents: int) -> None:
    """The rows of fill, and of the time to pack."""
    lengths = draw_lengths(documents)
    for length, wanted in FILLS:
        window = choose_window(length, float(lengths.mean()))
        windows = [lengths[start : start + window] for start in range(0, documents, window)]
        rows, most = 0, 0
        times: list[float] = []
        floors: list[float] = []
        for _ in range(5):
            before = time.thread_time_ns()
            packed = [_core.pack_documents(each, length, True, 1) for each in windows]
            times.append((time.thread_time_ns() - before) / documents)
            before = time.thread_time_ns()
            for each in windows:
                np.cumsum(each)
            floors.append((time.thread_time_ns() - before) / documents)
            rows = sum(len(offsets) - 1 for offsets, *_ in packed)
            most = max(int(np.diff(offsets).max()) for offsets, *_ in packed)
        fill = 100 * int(lengths.sum()) / (rows * length)
        name = f"rows of {length // 1024} k"
        record.rows.append(
            Row(
                f"fill, {name}",
                fill,
                "%",
                wanted,
                fill / wanted,
                1.0,
                fill >= wanted,
                note=f"windows of {window:,}; at most {most} documents in a row; floor: wanted",
            )
        )
        record.rows.append(
            Row(
                f"packing, {name}",
                min(times),
                "ns a document",
                min(floors),
                min(times) / min(floors),
                note=f"best of 5 (median {median(times):.0f}); wanted: {WANTED_NS}; floor: cumsum",
            )
        )
        record.raw[name] = {"pack_ns": times, "cumsum_ns": floors}


def measure_counting(record: Record, documents: int) -> None:
    """The row of counting an epoch's rows."""
    lengths = draw_lengths(documents, 1)
    rule = PackingRule(ROW_TOKENS, choose_window(ROW_TOKENS, float(lengths[:65536].mean())))
    lengths *= 2
    file = np.broadcast_to(np.zeros(1, np.uint32), documents)
    index = make_index(RowTable(file, None, lengths), "/nowhere", 1)
    read_lengths = Dataset("/nowhere", index).find_id_lengths()
    assert read_lengths is not None
    order = PackedOrder(Order(documents, 7), rule, read_lengths)
    windows = iter(range(order.windows))
    counts = order.counts

    def count() -> None:
        for window in windows:
            counts.fill(window, order.count_window(window))

    threads = [threading.Thread(target=count) for _ in range(2)]
    clock, processors = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds, processors = time.perf_counter() - clock, time.process_time() - processors
    scale = 10**8 / documents
    wanted = WANTED_COUNT_S / scale
    said = "" if documents == 10**8 else f"; that is {seconds * scale:.2f} s for 10^8"
    record.rows.append(
        Row(
            f"counting the rows of {documents:,} documents, two threads",
            seconds,
            "s",
            wanted,
            seconds / wanted,
            1.0,
            seconds <= wanted,
            note=f"{processors:.2f} s of processors, {counts.sum():,} rows{said}; floor: wanted",
        )
    )


@dataclass(frozen=True)
class RepeatedRows:
    """Layout of documents that all begin at the start of one file, with lengths that repeat: an
    index of any number of documents in little memory."""

    count: int
    length: np.ndarray
    row_bytes: int | None = None

    @property
    def total_bytes(self) -> int:
        """Bytes of all documents, nearly."""
        return int(self.length.mean() * self.count)

    def lengths(self, samples: np.ndarray) -> np.ndarray:
        """Bytes of documents."""
        return self.length.take(samples % len(self.length))

    def pieces(self, samples: np.ndarray) -> tuple[Extents, None]:
        """Extents of documents."""
        zeros = np.zeros(len(samples), np.int64)
        return Extents(zeros.astype(np.uint32), zeros, self.lengths(samples)), None


def make_index(layout: Any, path: str, size: int) -> Index:
    """Make the index of documents of tokens of 16 bits in one file."""
    folder, name = os.path.split(path)
    text = np.frombuffer(name.encode(), np.uint8)
    seconds = os.stat(path).st_mtime_ns if os.path.exists(path) else 0
    columns = ([len(text)], [size], [seconds])
    files = Files(folder, text, *(np.array(column, np.int64) for column in columns))
    field = Field("tokens", np.dtype("<u2"), None)
    return Index("megatron", files, (field,), (layout,), files, fingerprint="benchmark")


def measure_first(record: Record, documents: int, folder: Path) -> None:
    """The row of the first batch of very many documents."""
    path = folder / "first.bin"
    np.arange(1 << 20, dtype="<u2").tofile(path)
    lengths = np.minimum(draw_lengths((1 << 22) - 3), 1 << 19)
    index = make_index(RepeatedRows(documents, 2 * lengths), str(path), path.stat().st_size)
    times = []
    for seed in range(3):
        began = time.perf_counter()
        rows = penstock.pack(Dataset(str(path), index), ROW_TOKENS)
        loader = penstock.Loader(rows, batch_size=BATCH_ROWS, seed=seed)
        batch = next(iter(loader))
        times.append(time.perf_counter() - began)
        assert batch["input_ids"].shape == (BATCH_ROWS, ROW_TOKENS)
        loader.close()
    seconds = median(times)
    record.raw["first"] = {"s": times}
    record.rows.append(
        Row(
            f"first batch of {documents:,} documents",
            seconds,
            "s",
            WANTED_FIRST_S,
            seconds / WANTED_FIRST_S,
            1.0,
            seconds <= WANTED_FIRST_S,
            note=f"median of {times[0]:.2f}, {times[1]:.2f}, {times[2]:.2f}; floor: wanted",
        )
    )


def measure_batches(record: Record, folder: Path, pairs: int) -> None:
    """The rows of tensors, by the time that passes and by that of the processor."""
    import penstock.torch

    random = np.random.default_rng(3)
    tokens = BATCH_ROWS * ROW_TOKENS * BATCHES
    lengths = draw_lengths(tokens // 916, 2)
    documents = [random.integers(0, 50_000, size, np.uint16) for size in lengths.tolist()]
    prefix = write_megatron(folder / "corpus", documents)
    packed = penstock.pack(penstock.open(prefix), ROW_TOKENS)
    row_bytes = 3 * 8 * ROW_TOKENS
    with open(folder / "records.bin", "wb") as file:
        for _ in range(BATCH_ROWS * BATCHES):
            file.write(random.integers(0, 50_000, row_bytes // 8).tobytes())
        # Else the system would write to the disk while the turns are taken.
        os.fsync(file.fileno())
    records = penstock.open(folder / "records.bin", dtype="<i8", shape=(3 * ROW_TOKENS,))
    loaders = {
        name: penstock.torch.DataLoader(
            dataset, batch_size=BATCH_ROWS, shuffle=True, seed=1, drop_last=True
        )
        for name, dataset in (("packed", packed), ("records", records))
    }
    clocks = {"": time.perf_counter, ", by processor time": time.process_time}
    speeds = {(name, clock): list[float]() for name in loaders for clock in clocks}
    for pair in count_turns(
        pairs + 1,
        lambda: [divide_pairs(speeds["records", one], speeds["packed", one]) for one in clocks],
    ):
        for name in ("packed", "records") if pair % 2 else ("records", "packed"):
            began, held = {clock: now() for clock, now in clocks.items()}, 0
            for batch in loaders[name]:
                parts = ("input_ids", "labels", "position_ids") if name == "packed" else ("data",)
                held += sum(batch[part].nbytes for part in parts)
            for clock, now in clocks.items():
                if pair:
                    speeds[name, clock].append(held / (now() - began[clock]) / 1e9)
    record.raw["batches"] = {
        f"{name}{clock}, GB/s": found for (name, clock), found in speeds.items()
    }
    for clock in clocks:
        packed_speeds, record_speeds = speeds["packed", clock], speeds["records", clock]
        ratios = [own / other for own, other in zip(packed_speeds, record_speeds, strict=True)]
        low, high = bootstrap_interval(ratios, 1)
        record.rows.append(
            Row(
                f"packed batches to tensors{clock}",
                median(packed_speeds),
                "GB/s",
                median(record_speeds),
                median(ratios),
                WANTED_RATIO,
                median(ratios) >= WANTED_RATIO,
                low,
                high,
                note=f"rows of {ROW_TOKENS}, int64 from uint16; floor: fixed records of as many "
                "bytes",
            )
        )


def write_megatron(prefix: Path, documents: list[np.ndarray]) -> Path:
    """Write documents as Megatron's tokens of 16 bits."""
    lengths = np.array([len(each) for each in documents], np.int32)
    offsets = 2 * (np.cumsum(lengths, dtype=np.int64) - lengths)
    with open(prefix.with_suffix(".bin"), "wb") as file:
        for each in documents:
            file.write(each.astype("<u2").tobytes())
    head = b"MMIDIDX\0\0" + (1).to_bytes(8, "little") + b"\x08"
    counts = np.array([len(documents), len(documents) + 1], "<u8")
    parts = (counts, lengths, offsets, np.arange(len(documents) + 1, dtype="<i8"))
    prefix.with_suffix(".idx").write_bytes(head + b"".join(part.tobytes() for part in parts))
    return prefix


def add_rivals(record: Record) -> None:
    """The rows of other libraries' packers."""
    for length, _ in FILLS:
        for found in measure_rivals(length):
            name = f"fill, rows of {length // 1024} k, {found['name']}"
            note = f"{found['ns']:,.0f} ns a document, {found['documents']:,}; {found['source']}"
            record.rows.append(Row(name, 100 * found["fill"], "%", note=note))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", nargs="?", help="where data is written; by default a new one")
    parser.add_argument("--documents", type=int, default=10**8)
    parser.add_argument("--billion", type=int, default=10**9)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="a hundredth of all; for a try")
    arguments = parser.parse_args()
    small = 100 if arguments.quick else 1
    record = Record("packing", 0, vars(arguments))
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = name  # counts of rows are kept there
        measure_fill(record, 2_000_000 if not arguments.quick else 500_000)
        measure_counting(record, arguments.documents // small)
        measure_batches(record, folder, 3 if arguments.quick else arguments.pairs)
        measure_first(record, arguments.billion // small, folder)
    record.rows += measure_balance()
    add_rivals(record)
    print(table(record.rows))
    if not arguments.quick:
        print(record.write())


if __name__ == "__main__":
    main()
