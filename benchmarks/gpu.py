"""Shuffling on a GPU against what its memory gives, batches copied to it against what its bus
gives, and checkpoints of a state on it: builds, checks and times all in one call.

    python -m benchmarks.gpu --out gpu.json

Needs a CUDA device, torch and Triton; penstock is built if it is not. Without a device the record
says so and holds no number. `--dry` walks through every line on tiny sizes under Triton's
interpreter, and its numbers mean nothing.

Seconds are medians of CUDA events. Rates count the bytes that must be read and written, once each,
and are held against a device-to-device copy of the same bytes, measured in the same run; data is
larger than any cache. The device has work when a call is made, so that its own time is counted and
the host's for preparing the call is not. Rows of few elements and of batches begin on an idle
device and count both.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch.utils.data

import torch

from .record import Record, Row, table

ROOT = Path(__file__).resolve().parent.parent
CASE_SECONDS_MAX = 4.0
"""After which no case is repeated once more."""
BUSY_CYCLES = 4 << 20
"""Cycles of the device, some 2 ms: longer than a host takes to prepare a call."""


class Sizes(NamedTuple):
    """The amounts that are moved: at full size, or to see that the lines run."""

    rows_bytes: int = 4 << 30
    elements: int = (1 << 29) + 1
    indices: int = 1 << 30
    few: tuple[int, ...] = (1 << 8, 1 << 17, 1 << 20, 1 << 23)
    checked: tuple[int, ...] = (100, 4097, (1 << 20) + 1, (1 << 27) + 1)
    flushed_bytes: int = 256 << 20
    repeats: int = 9
    record_bytes: int = 3 * 224 * 224
    records: int = 8192
    batch: int = 256
    workers: int = 8
    state_bytes: int = 500_000_000
    saves: int = 3


DRY = Sizes(
    *(1 << 14, (1 << 12) + 1, 1 << 13, (1 << 8, 1 << 13), (100, 4097), 1 << 10, 1),
    *(64, 64, 8, 1, 1 << 20, 1),
)
ROW_TARGETS = {16: None, 32: None, 64: None, 128: 0.75, 256: None, 512: 0.90, 2048: 0.95}
ROW_TARGETS |= {16384: 0.95}


class Bench:
    """Times on one device."""

    def __init__(self, device: torch.device, sizes: Sizes, record: Record) -> None:
        self.device, self.sizes, self.record = device, sizes, record
        self._flush = torch.empty(sizes.flushed_bytes, dtype=torch.uint8, device=device)

    def seconds(
        self, name: str, call: Callable[[], object], idle: bool = False, flushed: bool = False
    ) -> float:
        """The median; the first two calls compile and warm.

        idle:     the device has nothing to do when the call is made.
        flushed:  likewise, and its caches hold nothing of the data.
        """
        taken: list[float] = []
        began = time.monotonic()
        for turn in range(self.sizes.repeats + 2):
            if flushed:
                self._flush.zero_()
            spent = self._once(call, idle or flushed)
            if turn >= 2:
                taken.append(spent)
            if time.monotonic() - began > CASE_SECONDS_MAX and len(taken) >= 3:
                break
        self.record.raw[name] = {"seconds": taken}
        return statistics.median(taken)

    def _once(self, call: Callable[[], object], idle: bool) -> float:
        if self.device.type != "cuda":
            began = time.perf_counter()
            call()
            return time.perf_counter() - began
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        if not idle:
            torch.cuda._sleep(BUSY_CYCLES)
        start.record()
        call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e-3

    def row(
        self,
        name: str,
        moved_bytes: int,
        seconds: float,
        floor_seconds: float | None = None,
        target: float | None = None,
        note: str = "",
    ) -> None:
        """A line of the table: GB/s, and how many times as fast as the floor."""
        rate = moved_bytes / seconds / 1e9
        floor = None if floor_seconds is None else moved_bytes / floor_seconds / 1e9
        ratio = None if floor is None else rate / floor
        met = None if target is None or ratio is None else ratio >= target
        self.record.rows.append(Row(name, rate, "GB/s", floor, ratio, target, met, note=note))

    def tensor(self, count: int, width: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.arange(count * width, device=self.device).to(dtype).view(count, width)


def check(bench: Bench) -> None:
    """Before anything is timed: the values are those of the order on the CPU."""
    from penstock import Order
    from penstock.torch import gpu

    from . import published

    device = bench.device
    for n in bench.sizes.checked:
        order = Order(n, 42, 1)
        found = gpu.permutation(n, 42, 1, device=device)
        positions = np.random.default_rng(n).integers(0, n, 100_000)
        want = torch.from_numpy(order.samples(positions).view(np.int64))
        assert torch.equal(found[torch.from_numpy(positions).to(device)].cpu(), want), n
        assert torch.equal(gpu.inverse(n, 42, 1, device=device)[found].cpu(), torch.arange(n)), n
        for dtype in (torch.int64, torch.float32, torch.int16):
            x = torch.arange(n, device=device).to(dtype)
            assert torch.equal(gpu.shuffle(x, 42, 1), x[found]), (n, dtype)
        if n <= 1 << 20:
            x = torch.arange(n * 24, device=device).view(n, 24)
            assert torch.equal(gpu.shuffle(x, 42, 1), x[found]), n
            part = range(n // 3, n, 7)
            assert torch.equal(gpu.take(x, part, 42, 1), x[found[n // 3 :: 7]]), n
    x = torch.arange(5000, device=device)
    out = torch.empty_like(x)
    published.shuffle(x, 42, out)
    assert out.tolist() == published.oracle(5000, 42)
    print(f"checked: equal to the order on the CPU, n = {bench.sizes.checked}")


def rows(bench: Bench) -> None:
    """Rows of many sizes."""
    from penstock.torch import gpu

    for width, target in ROW_TARGETS.items():
        count = max(2, bench.sizes.rows_bytes // width)
        x = bench.tensor(count, width // 8, torch.int64)
        out = torch.empty_like(x)
        moved = 2 * x.nbytes
        name = f"rows of {width} B"
        copy = bench.seconds(f"copy, {name}", lambda out=out, x=x: out.copy_(x))
        ours = bench.seconds(name, lambda out=out, x=x: gpu.shuffle(x, 1, out=out))
        ready = gpu.permutation(count, 1, device=bench.device)
        gather = bench.seconds(
            f"gather, {name}",
            lambda out=out, x=x, ready=ready: torch.index_select(x, 0, ready, out=out),
        )
        bench.row(name, moved, ours, copy, target)
        bench.row(f"{name}, index_select with indices ready", moved, gather, copy)
        del x, out, ready


def elements(bench: Bench) -> None:
    """Elements of 8, 4 and 2 bytes, and those of 8 by others."""
    from penstock.torch import gpu

    n = bench.sizes.elements
    for dtype, target in ((torch.int64, 0.20), (torch.int32, 0.15), (torch.int16, None)):
        x = bench.tensor(n, 1, dtype)
        out = torch.empty_like(x)
        size, moved = x.element_size(), 2 * x.nbytes
        name = f"{size}-byte elements, n = {n:,}"
        copy = bench.seconds(f"copy, {name}", lambda out=out, x=x: out.copy_(x))
        ours = bench.seconds(name, lambda out=out, x=x: gpu.shuffle(x, 1, out=out))
        bench.row(name, moved, ours, copy, target)
        if size == 8:
            against_others(bench, name, x, out, ours, copy)
        del x, out


def against_others(
    bench: Bench, name: str, x: torch.Tensor, out: torch.Tensor, ours: float, copy: float
) -> None:
    """The same elements by others: penstock's time against theirs."""
    from . import published

    n, moved = len(x), 2 * x.nbytes
    flat, flat_out = x.view(-1), out.view(-1)
    ready = [torch.randperm(n, device=bench.device)]
    gather = bench.seconds("gather", lambda: torch.index_select(flat, 0, ready[0], out=flat_out))
    bench.row(f"{name}, index_select with indices ready", moved, gather, copy)
    ready.clear()
    scheme = bench.seconds("published", lambda: published.shuffle(flat, 1, flat_out))
    bench.row(f"{name}, the published scheme", moved, scheme, copy)
    drawn = bench.seconds("randperm", lambda: flat[torch.randperm(n, device=bench.device)])
    bench.row(f"{name}, x[torch.randperm(n)]", moved, drawn, copy)
    bench.row(f"{name}, against the published scheme", moved, ours, scheme, 2.0)
    bench.row(f"{name}, against x[torch.randperm(n)]", moved, ours, drawn, 5.0)


def indices(bench: Bench) -> None:
    """A permutation written to memory, against a fill of the same bytes."""
    from penstock import Order
    from penstock.torch import feistel_triton as kernels

    n = bench.sizes.indices
    for dtype, target in ((torch.int64, 0.8), (torch.int32, None)):
        out = torch.empty(n, dtype=dtype, device=bench.device)
        name = f"permutation of {n:,} as {str(dtype).removeprefix('torch.')}"
        fill = bench.seconds(f"fill, {name}", lambda out=out: out.fill_(7))
        of = kernels.make_cipher(Order(n, 1), bench.device)
        ours = bench.seconds(
            name, lambda of=of, out=out: kernels.compute_indices(of, range(n), out)
        )
        bench.row(name, out.nbytes, ours, fill, target, "floor: a fill")
        del out


def small(bench: Bench) -> None:
    """Few elements: what a call costs, caches emptied before each."""
    from penstock.torch import gpu

    for n in bench.sizes.few:
        x = torch.arange(n, device=bench.device)
        out = torch.empty_like(x)
        copy = bench.seconds(f"copy of {n}", lambda out=out, x=x: out.copy_(x), flushed=True)
        ours = bench.seconds(
            f"shuffle of {n}", lambda out=out, x=x: gpu.shuffle(x, 1, out=out), flushed=True
        )
        note = f"{ours * 1e6:.1f} us a call"
        bench.row(f"8-byte elements, n = {n:,}", 2 * x.nbytes, ours, copy, note=note)


class FileRecords(torch.utils.data.Dataset[torch.Tensor]):
    """Records of a file, as one writes a dataset for torch."""

    def __init__(self, path: Path, width: int) -> None:
        self._rows = np.memmap(path, np.uint8, "r").reshape(-1, width)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.from_numpy(self._rows[number].copy())


def prefetch(loader: Iterable[torch.Tensor], device: torch.device) -> Iterator[torch.Tensor]:
    """Copy the next batch on a stream of its own, as scripts around torch's DataLoader do."""
    if device.type != "cuda":
        yield from loader
        return
    copies, ahead = torch.cuda.Stream(device), None
    for batch in loader:
        following = torch.cuda.current_stream(device)
        with torch.cuda.stream(copies):
            moved = batch.to(device, non_blocking=True)
        if ahead is not None:
            yield ahead
        following.wait_stream(copies)
        moved.record_stream(following)
        ahead = moved
    if ahead is not None:
        yield ahead


def copies(bench: Bench) -> None:
    """Batches handed over on the device: alone, and under steps of twice the time of a copy."""
    import penstock
    from penstock.torch import DataLoader

    sizes, device = bench.sizes, bench.device
    batch_bytes = sizes.batch * sizes.record_bytes
    count = sizes.records // sizes.batch
    pinned = torch.empty(batch_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
    there = torch.empty_like(pinned, device=device)
    copy = bench.seconds("pinned copy", lambda: there.copy_(pinned, non_blocking=True))
    square = torch.rand(2048 if device.type == "cuda" else 32, device=device).outer(
        torch.rand(2048 if device.type == "cuda" else 32, device=device)
    )
    once = bench.seconds("matmul", lambda: square @ square)
    matmuls = max(1, round(2 * copy / once))

    def compute() -> None:
        for _ in range(matmuls):
            square @ square

    alone = bench.seconds("step alone", compute)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.bin"
        np.random.default_rng(1).integers(
            0, 256, (sizes.records, sizes.record_bytes), np.uint8
        ).tofile(path)
        dataset = penstock.open(path, record_bytes=sizes.record_bytes)
        pin = device.type == "cuda"
        ours = DataLoader(dataset, sizes.batch, shuffle=True, device=device)
        theirs = torch.utils.data.DataLoader(
            FileRecords(path, sizes.record_bytes),
            sizes.batch,
            shuffle=True,
            num_workers=sizes.workers,
            pin_memory=pin,
            persistent_workers=True,
        )
        on_cpu = DataLoader(dataset, sizes.batch, shuffle=True)
        pinned_batches = DataLoader(dataset, sizes.batch, shuffle=True, pin_memory=pin)
        ways: dict[str, Callable[[], Iterable[Any]]] = {
            "penstock, device=": lambda: ours,
            "penstock, on the CPU": lambda: on_cpu,
            "penstock, pin_memory=": lambda: pinned_batches,
            "torch's DataLoader, pinned, prefetched": lambda: prefetch(theirs, device),
        }
        for name, walk in ways.items():

            def epoch(work: Callable[[], object] | None, walk: Any = walk) -> None:
                for _ in walk():
                    if work is not None:
                        work()

            taken = bench.seconds(name, partial(epoch, None), idle=True) / count
            case = f"batches of {batch_bytes:,} B: {name}"
            bench.row(case, batch_bytes, taken, copy, note="floor: a copy from pinned memory")
            if name.endswith(("CPU", "pin_memory=")):
                continue  # to show what bounds the first
            busy = bench.seconds(f"{name}, computing", partial(epoch, compute), idle=True) / count
            target = 0.95 if name.startswith("penstock") else None
            case = f"batches under a step of two copies' time: {name}"
            bench.row(case, batch_bytes, busy, alone, target, "floor: the step alone")
        for loader in (ours, on_cpu, pinned_batches):
            loader.close()


def checkpoints(bench: Bench) -> None:
    """Saves of a state on the device beside a loop: ours, and each way of staging that dcp has."""
    from . import beside_loop
    from .checkpoint import one_rank, state_of

    warnings.simplefilter("ignore")
    sizes, raw = bench.sizes, bench.record.raw
    state = {name: one.to(bench.device) for name, one in state_of(sizes.state_bytes).items()}
    with tempfile.TemporaryDirectory() as folder, one_rank():
        for row in beside_loop.measure(raw, state, Path(folder), sizes.saves):
            name = f"state of {sizes.state_bytes:,} B on the device: {row.name}"
            bench.record.rows.append(replace(row, name=name))


def build() -> None:
    """Build and install penstock where its core is missing, and begin again with it."""
    try:
        import penstock._core  # noqa: F401
    except ImportError:
        if os.environ.get("PENSTOCK_BUILT"):
            raise
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", str(ROOT)], check=True)
        os.environ["PENSTOCK_BUILT"] = "1"
        os.execv(sys.executable, [sys.executable, "-m", "benchmarks.gpu", *sys.argv[1:]])


def described(device: torch.device | None) -> dict[str, Any]:
    """The device by name, or that there was none."""
    if device is None:
        return {"device": None, "note": "no CUDA device could be had: nothing was measured"}
    if device.type != "cuda":
        return {"device": "Triton's interpreter", "note": "a dry run: the numbers mean nothing"}
    found = torch.cuda.get_device_properties(device)
    return {
        "device": found.name,
        "memory_bytes": found.total_memory,
        "cache_bytes": found.L2_cache_size,
        "cuda": torch.version.cuda,
    }


def run(dry: bool, out: Path | None) -> Record:
    """All of it, or the record that there is no device."""
    if dry:
        os.environ["TRITON_INTERPRET"] = "1"
    device = torch.device("cpu") if dry else None
    if not dry and torch.cuda.is_available():
        device = torch.device("cuda", torch.cuda.current_device())
    record = Record("gpu", 1, described(device))

    def write() -> None:
        if out is not None:
            out.write_text(json.dumps(record.as_dict(), indent=1) + "\n")

    write()
    if device is None:
        return record
    bench = Bench(device, DRY if dry else Sizes(), record)
    for part in (check, rows, elements, indices, small, copies, checkpoints):
        began = time.monotonic()
        part(bench)
        write()  # a run that is cut short keeps what it has
        print(f"{part.__name__}: {time.monotonic() - began:.0f} s", flush=True)
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="where the record goes (JSON)")
    parser.add_argument("--dry", action="store_true", help="tiny sizes, interpreted")
    options = parser.parse_args()
    build()
    record = run(options.dry, options.out)
    print(record.configuration)
    print(table(record.rows))


if __name__ == "__main__":
    main()
