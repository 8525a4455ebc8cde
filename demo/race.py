"""Races: penstock, torch's DataLoader and the floor take turns on the same warm data."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset

import penstock
import torch

from .images import Decode, open_images

RECORD_BYTES = 4096
BATCH = 256
ROUNDS = 5
WORKERS = 2
FLOOR = Path(__file__).parent.parent / "benchmarks" / "floors" / "records_floor.cpp"

warnings.filterwarnings("ignore", "The given buffer is not writable")  # torch, about Records

Epoch = tuple[float, int]
"""Seconds, and the sum of the first byte of every sample: equal for all, or somebody cheats."""


@dataclass(frozen=True)
class Contender:
    name: str
    epoch: Callable[[], Epoch]


def race(
    contenders: list[Contender], progress: Callable[[Iterable[Any], str], Iterator[Any]]
) -> dict[str, list[float]]:
    """Seconds of each contender's epochs, in turns; the first round warms up and does not count."""
    taken: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    sums = set()
    turns = [
        (turn, contender)
        for turn in range(ROUNDS + 1)
        for contender in (contenders if turn % 2 else contenders[::-1])
    ]
    for turn, contender in progress(turns, "racing"):
        seconds, touched = contender.epoch()
        sums.add(touched)
        if turn:
            taken[contender.name].append(seconds)
    if len(sums) > 1:
        raise SystemExit("the contenders did not deliver the same samples: the race is void")
    return taken


def median(values: list[float]) -> float:
    return statistics.median(values)


def _timed(batches: Iterable[Any], touch: Callable[[Any], int]) -> Epoch:
    start = time.perf_counter()
    total = sum(touch(batch) for batch in batches)
    return time.perf_counter() - start, total


def _torch(name: str, data: Dataset[Any], touch: Callable[[Any], int], **options: Any) -> Contender:
    loader = DataLoader(data, shuffle=True, **options)
    return Contender(f"torch, {name}", lambda: _timed(loader, touch))


# -- 4 KiB records ---------------------------------------------------------------------------------


class Records(Dataset[torch.Tensor]):
    """One `os.pread` a sample: what most people write."""

    def __init__(self, path: Path) -> None:
        self.file = os.open(path, os.O_RDONLY)
        self.count = os.fstat(self.file).st_size // RECORD_BYTES

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> torch.Tensor:
        data = os.pread(self.file, RECORD_BYTES, number * RECORD_BYTES)
        return torch.frombuffer(data, dtype=torch.uint8)


class TunedRecords(Records):
    """The best that torch's interface allows: a whole batch at once, into one tensor."""

    def __getitems__(self, numbers: list[int]) -> torch.Tensor:
        batch = torch.empty((len(numbers), RECORD_BYTES), dtype=torch.uint8)
        view, size = memoryview(batch.numpy()).cast("B"), RECORD_BYTES
        for row, number in enumerate(numbers):
            os.preadv(self.file, [view[row * size : (row + 1) * size]], number * size)
        return batch


def write_records(folder: Path) -> Path:
    """Random records; 200,000 of them (819 MB), or half where space is tight."""
    room = shutil.disk_usage(folder).free
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    count = 200_000 if room > 4e9 and memory > 4e9 else 100_000
    path = folder / f"records-{count}.bin"
    if not path.exists():
        unfinished = path.with_suffix(".unfinished")
        random = np.random.default_rng(1)
        with open(unfinished, "wb") as file:
            for _ in range(0, count, 2_000):
                file.write(random.bytes(2_000 * RECORD_BYTES))
        unfinished.rename(path)
    return path


def record_contenders(path: Path, stack: ExitStack) -> tuple[list[Contender], str]:
    """Everybody who runs, and a note where the floor cannot."""
    plain, tuned = Records(path), TunedRecords(path)
    contenders = [
        # The workers first: they are forked before penstock has threads.
        _torch(
            f"{WORKERS} workers",
            plain,
            _touch_rows,
            batch_size=BATCH,
            num_workers=WORKERS,
            persistent_workers=True,
        ),
        _torch("0 workers", plain, _touch_rows, batch_size=BATCH),
        _torch(
            "0 workers, own __getitems__",
            tuned,
            _touch_rows,
            batch_size=BATCH,
            collate_fn=_as_it_is,
        ),
    ]
    loader = stack.enter_context(
        penstock.Loader(penstock.open(path, record_bytes=RECORD_BYTES), BATCH, rank=0, world_size=1)
    )
    contenders.append(
        Contender("penstock", lambda: _timed(loader, lambda batch: _touch_rows(batch["data"])))
    )
    try:
        contenders.append(_floor(path, stack))
    except (OSError, subprocess.CalledProcessError) as error:
        return contenders, f"The floor is missing: {error}"
    return contenders, ""


def _touch_rows(rows: Any) -> int:
    return int(rows[:, 0].sum())


def _as_it_is(batch: torch.Tensor) -> torch.Tensor:
    return batch


def _floor(path: Path, stack: ExitStack) -> Contender:
    """A C++ program: one thread copies every record, in a shuffled order, out of a warm map."""
    program = Path("build") / "demo" / FLOOR.stem
    if not program.exists() or program.stat().st_mtime < FLOOR.stat().st_mtime:
        program.parent.mkdir(parents=True, exist_ok=True)
        options = ["-std=c++20", "-O3", "-march=native", "-pthread"]
        subprocess.run(["c++", *options, str(FLOOR), "-o", str(program)], check=True)
    settings = {"path": path, "record-bytes": RECORD_BYTES, "batch": BATCH, "seed": 1}
    settings |= {"mode": "mmap", "threads": 1}
    arguments = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
    child = stack.enter_context(
        subprocess.Popen(
            [program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    )
    stack.callback(child.kill)
    assert child.stdin is not None
    assert child.stdout is not None
    into, out = child.stdin, child.stdout
    json.loads(out.readline())  # it says that it is ready

    def epoch() -> Epoch:
        print("epoch 1", file=into, flush=True)
        answer = json.loads(out.readline())
        return answer["seconds"], answer["touch"]

    return Contender("floor: C++ memcpy, 1 thread", epoch)


# -- the user's images -----------------------------------------------------------------------------


class Images(Dataset[Mapping[str, Any]]):
    """The same decode function under torch's interface."""

    def __init__(self, paths: list[str], decode: Decode) -> None:
        self.paths, self.decode = paths, decode

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> Mapping[str, Any]:
        with open(self.paths[number], "rb", buffering=0) as file:
            return self.decode({"data": file.read(), "__key__": ""})


def image_contenders(
    listing: Path, decode: Decode, batch: int, stack: ExitStack
) -> list[Contender]:
    """Everybody who runs; the floor decodes bytes that are in memory already."""
    dataset = open_images(listing)
    files = dataset.index.files
    paths = [files.path(number) for number in range(len(files))]
    images = Images(paths, decode)
    contenders = [
        _torch(
            f"{WORKERS} workers",
            images,
            _touch_images,
            batch_size=batch,
            num_workers=WORKERS,
            persistent_workers=True,
        ),
        _torch("0 workers", images, _touch_images, batch_size=batch),
    ]
    loader = stack.enter_context(
        penstock.Loader(dataset, batch, decode=decode, rank=0, world_size=1)
    )
    contenders.append(Contender("penstock", lambda: _timed(loader, _touch_images)))
    threads = len(os.sched_getaffinity(0))
    pool = stack.enter_context(ThreadPoolExecutor(threads))
    held = [{"data": Path(path).read_bytes(), "__key__": ""} for path in paths]

    def decode_share(thread: int) -> int:
        return sum(int(decode(each)["image"][0, 0, 0]) for each in held[thread::threads])

    def floor() -> Epoch:
        return _timed(pool.map(decode_share, range(threads)), int)

    contenders.append(Contender(f"floor: decode only, {threads} threads", floor))
    return contenders


def _touch_images(batch: Mapping[str, Any]) -> int:
    return int(batch["image"][:, 0, 0, 0].sum())
