"""python -m benchmarks.checkpoint [--quick]: what a checkpoint costs the training that it is of.

A state of 2 GB on the CPU, cut as GPT-2's and Adam's tensors are. Each figure is held against the
plainest program that does the same: a memcpy of the state into memory that is there, a sequential
write with O_DIRECT and fdatasync of the same bytes; and against torch.save with fsync and
dcp.async_save. Turns alternate, and ratios are medians over pairs. The state and all memory are
touched before; the first save, which takes the arena, has a row of its own.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import torch
from penstock.checkpoint import Checkpoints, load
from penstock.checkpoint.dcp import Storage

from . import __main__ as command
from . import beside_loop
from .pairing import bootstrap_interval
from .record import Record, Row

FOLDER = Path("bench-data")
"""On a disk: where checkpoints are written."""
WRITE_BYTES = 32 << 20
NOISE_S = 0.01
"""A second of computing varies by more from turn to turn: what is less is not claimed."""

LAYER = [768 * 2304, 2304, 768 * 768, 768, 768 * 3072, 3072, 3072 * 768, 768, 768, 768, 768, 768]
SIZES = [50257 * 768, 1024 * 768, *LAYER * 12, 768, 768]
"""Elements of GPT-2's tensors."""

State = dict[str, torch.Tensor]


def state_of(size: int) -> State:
    """So many bytes, about: models and their moments until they are full."""
    state: State = {}
    pattern = torch.arange(1 << 20, dtype=torch.float32)
    while size > 0:
        for number, count in enumerate(SIZES):
            count = min(count, size // 4)
            if count <= 0:
                return state
            size -= 4 * count
            values = pattern.repeat(-(-count // len(pattern)))[:count].clone()
            state[f"{len(state) // len(SIZES)}.{number}"] = values
    return state


class Floors:
    """The plainest programs, with memory of their own that is there."""

    def __init__(self, state: State, folder: Path) -> None:
        self._state, self._path = state, folder / "floor.bin"
        self._bytes = sum(tensor.nbytes for tensor in state.values())
        self._map = mmap.mmap(-1, -(-self._bytes // 4096) * 4096)
        self._map.madvise(mmap.MADV_HUGEPAGE)
        self._memory = np.frombuffer(self._map, np.uint8)
        self._memory[:] = 1

    def memcpy(self) -> float:
        """Seconds of one memcpy a tensor."""
        began, at = time.perf_counter(), self._memory.ctypes.data
        for tensor in self._state.values():
            ctypes.memmove(at, tensor.data_ptr(), tensor.nbytes)
            at += tensor.nbytes
        return time.perf_counter() - began

    def write(self) -> float:
        """Seconds of writing as many bytes, until they are on the device."""
        began = time.perf_counter()
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600)
        for at in range(0, len(self._memory), WRITE_BYTES):
            os.pwrite(file, self._memory[at : at + WRITE_BYTES].data, at)
        os.fdatasync(file)
        os.close(file)
        seconds = time.perf_counter() - began
        os.unlink(self._path)
        return seconds


def paired(name: str, ours: list[float], theirs: list[float], **row: Any) -> Row:
    """Medians, and the ratio pair by pair; of seconds or of rates."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    low, high = bootstrap_interval(ratios, 0)
    value, floor = statistics.median(ours), statistics.median(theirs)
    return Row(name, value, floor=floor, ratio=statistics.median(ratios), low=low, high=high, **row)


def blocked_and_written(
    raw: dict[str, Any], state: State, folder: Path, rounds: int
) -> Iterator[Row]:
    """Training blocked, against memcpy; and the write behind it, against the disk."""
    size = sum(tensor.nbytes for tensor in state.values())
    floors = Floors(state, folder)
    found: dict[str, list[float]] = {
        key: [] for key in ("save", "memcpy", "written", "write", "cpu")
    }
    with Checkpoints(folder / "ours", keep=2) as checkpoints:
        checkpoints.save(0, state)
        first = checkpoints.wait()
        assert first is not None
        for number in range(rounds):

            def ours(number: int = number) -> None:
                began = time.perf_counter()
                checkpoints.save(number + 1, state)
                found["save"].append(time.perf_counter() - began)
                cpu = time.process_time()
                saved = checkpoints.wait()
                found["cpu"].append((time.process_time() - cpu) / size * 1e9)
                assert saved is not None
                found["written"].append(size / (saved.seconds - saved.blocked_s) / 1e9)

            def theirs() -> None:
                found["memcpy"].append(floors.memcpy())
                found["write"].append(size / floors.write() / 1e9)

            for turn in (ours, theirs) if number % 2 else (theirs, ours):
                turn()
    raw["blocked and written"] = found
    save, memcpy = found["save"], found["memcpy"]
    row = paired("blocked by a save / memcpy of the state", save, memcpy, unit="s", target=1.3)
    yield met(row, row.ratio <= 1.3)
    row = paired(
        "write behind it / sequential write and fsync",
        found["written"],
        found["write"],
        unit="GB/s",
        target=0.9,
        note=f"{statistics.median(found['cpu']):.2f} s of processors a GB",
    )
    yield met(row, row.ratio >= 0.9)
    yield Row("blocked by the first save, which takes the arena", first.blocked_s, "s")
    began = time.perf_counter()
    load(folder / "ours")
    yield Row("load, checked", size / (time.perf_counter() - began) / 1e9, "GB/s")
    shutil.rmtree(folder / "ours")


def met(row: Row, yes: bool) -> Row:
    return replace(row, met=yes)


def against_others(raw: dict[str, Any], state: State, folder: Path, rounds: int) -> Iterator[Row]:
    """Training blocked by torch.save with fsync, and by dcp.async_save, also with our writer.

    With an optimizer attached, what training is blocked by is `save`, what its step waits for, and
    what a second of computing in between takes longer than without a copy behind it.
    """
    names = ("ours", "attached", "torch.save", "dcp.async_save", "dcp.async_save, our writer")
    found: dict[str, list[float]] = {name: [] for name in names}
    optimizer = torch.optim.SGD(list(state.values()), lr=0.0)
    torch.set_num_threads(1)
    matrix = torch.ones(1024, 1024)

    def compute() -> float:
        """Seconds of what a forward and a backward pass may be: on one core, out of its cache."""
        began = time.perf_counter()
        for _ in range(60):
            matrix @ matrix
        return time.perf_counter() - began

    with (
        Checkpoints(folder / "ours", keep=2) as checkpoints,
        Checkpoints(folder / "attached", keep=2) as attached,
        Storage(folder / "dcp-ours", keep=2) as storage,
        one_rank(),
    ):
        attached.attach(optimizer)
        for each in (checkpoints, attached):
            each.save(0, state)
            each.wait()
        dcp.async_save(state, storage_writer=storage.writer(0)).result()  # type: ignore[union-attr]
        for number in range(rounds):

            def ours(number: int = number) -> None:
                began = time.perf_counter()
                checkpoints.save(number + 1, state)
                found["ours"].append(time.perf_counter() - began)
                checkpoints.wait()

            def behind_passes(number: int = number) -> None:
                alone = compute()
                began = time.perf_counter()
                attached.save(number + 1, state)
                compute()
                optimizer.step()
                both = time.perf_counter() - began
                attached.wait()
                alone = (alone + compute()) / 2
                found["attached"].append(max(both - alone, NOISE_S))

            def torch_save() -> None:
                began = time.perf_counter()
                with open(folder / "torch.pt", "wb") as file:
                    torch.save(state, file)
                    file.flush()
                    os.fsync(file.fileno())
                found["torch.save"].append(time.perf_counter() - began)
                os.unlink(folder / "torch.pt")

            def dcp_save(number: int = number) -> None:
                began = time.perf_counter()
                future = dcp.async_save(state, checkpoint_id=folder / f"dcp-{number}")
                found["dcp.async_save"].append(time.perf_counter() - began)
                future.result()  # type: ignore[union-attr]
                shutil.rmtree(folder / f"dcp-{number}")
                gc.collect()

            def dcp_ours(number: int = number) -> None:
                began = time.perf_counter()
                future = dcp.async_save(state, storage_writer=storage.writer(number + 1))
                found["dcp.async_save, our writer"].append(time.perf_counter() - began)
                future.result()  # type: ignore[union-attr]

            turns = [ours, behind_passes, torch_save, dcp_save, dcp_ours]
            for turn in turns if number % 2 else turns[::-1]:
                turn()
    raw["against others"] = found
    for name, ours_by, times in (
        ("torch.save with fsync", "a save", 10),
        ("dcp.async_save", "a save", 3),
        ("dcp.async_save", "a save, optimizer attached", 3),
        ("dcp.async_save", "dcp.async_save with our writer", None),
    ):
        theirs = found[name.removesuffix(" with fsync")]
        mine = found[_contender[ours_by]]
        target = None if times is None else 1 / times
        row = paired(f"blocked by {ours_by} / by {name}", mine, theirs, unit="s", target=target)
        yield row if target is None else met(row, row.ratio <= target)
    for name in ("ours", "attached", "dcp-ours"):
        shutil.rmtree(folder / name)


_contender = {
    "a save": "ours",
    "a save, optimizer attached": "attached",
    "dcp.async_save with our writer": "dcp.async_save, our writer",
}


@contextmanager
def one_rank() -> Iterator[None]:
    """A process group of one, which dcp.async_save asks for."""
    with tempfile.NamedTemporaryFile() as file:
        store = dist.FileStore(file.name, 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            yield
        finally:
            dist.destroy_process_group()


def ranks_write_once(state: State, folder: Path, ranks: int = 4) -> Row:
    """Bytes of all shards of a model that four ranks have, over those of one."""
    size = sum(tensor.nbytes for tensor in state.values())
    barrier, said = threading.Barrier(ranks), [""] * ranks
    sizes = [0] * ranks

    def rank_main(rank: int) -> None:
        def gather(text: str) -> list[str]:
            said[rank] = text
            barrier.wait()
            found = list(said)
            barrier.wait()
            return found

        with Checkpoints(folder / "x", rank=rank, world_size=ranks, gather=gather) as checkpoints:
            checkpoints.save(0, state)
            saved = checkpoints.wait()
            assert saved is not None
            sizes[rank] = saved.bytes

    threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shutil.rmtree(folder / "x")
    ratio = sum(sizes) / size
    note = f"the largest shard has {max(sizes) / (sum(sizes) / ranks):.3f} of the mean"
    value = sum(sizes) / 1e9
    name = f"bytes that {ranks} ranks write / one copy"
    return Row(name, value, "GB", size / 1e9, ratio, 1.01, ratio <= 1.01, note=note)


def dlio_workloads(raw: dict[str, Any], folder: Path, scale: float) -> Iterator[Row]:
    """DLIO's checkpoint workloads, shrunk, each file synced: by penstock, by torch.save."""
    asked = ["checkpoint.time_between_checkpoints=0", "checkpoint.num_checkpoints_write=4"]
    asked += ["checkpoint.num_checkpoints_read=1", f"checkpoint.checkpoint_folder={folder}/dlio"]
    told = [f"++workload.{each}" for each in asked]
    figure = "save_checkpoint_io_mean_GB_per_second: "
    for workload in ("llama_7b", "llama_8b_zero3"):
        found: dict[str, float] = {}
        for writer in ("penstock", "torch"):
            run = [sys.executable, "-m", "penstock", "bench", "run", workload, *told]
            run += [
                "--writer",
                writer,
                "--scale",
                str(scale),
                "--output",
                str(folder / "results" / writer / workload),
            ]
            done = subprocess.run(run, capture_output=True, text=True, check=True)
            line = next(each for each in done.stdout.splitlines() if each.startswith(figure))
            found[writer] = float(line.removeprefix(figure))
            shutil.rmtree(folder / "dlio")
        raw[f"DLIO {workload}"] = found
        name = f"DLIO's {workload} x {scale}, one rank: saved and synced / by torch.save"
        ours, theirs = found["penstock"], found["torch"]
        yield Row(name, ours, "GB/s", theirs, ours / theirs)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoint", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="200 MB, few rounds")
    quick = parser.parse_args().quick
    size, rounds = (200_000_000, 4) if quick else (1_000_000_000, 6)
    record = Record("checkpoint" + "-quick" * quick, 0, {"bytes": size, "rounds": rounds})
    raw: dict[str, Any] = {}
    record.raw["checkpoint"] = raw
    warnings.simplefilter("ignore")
    state = state_of(size)
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as name:
        folder = Path(name).absolute()
        record.rows += blocked_and_written(raw, state, folder, rounds)
        record.rows += against_others(raw, state, folder, max(3, rounds // 2))
        with one_rank():
            record.rows += beside_loop.measure(raw, state, folder, max(3, rounds // 2))
        record.rows.append(ranks_write_once(state, folder))
        state.clear()
        record.rows += dlio_workloads(raw, folder, 0.001 if quick else 0.003)
    command.finish(record)


if __name__ == "__main__":
    main()
