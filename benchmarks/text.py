"""python -m benchmarks.text [--quick]: JSON lines, as language models are trained from.

Indexing against a memchr pass over the page cache; documents in an exact shuffle, their text
extracted, against a bare loop of pread and orjson in two threads and, where it is installed,
Hugging Face's `datasets` over the Arrow that it makes of the same lines; memory of a hundred
million documents. Contenders take turns on
warm files. The rates are those of processor time, of all threads: both sides of a pair are equally
slowed by whatever else the machine does. Record: benchmarks/results/text.json.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import subprocess
import threading
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import orjson

import penstock

from .__main__ import build_floors, finish
from .contender import ROOT
from .pairing import bootstrap_interval, count_turns
from .record import Record, Row
from .selecting import read_memory
from .suite import FLOORS

THREADS = 2
BATCH = 256
TOKEN_BYTES = 4.4
WEB_MEDIAN, WEB_SIGMA = 500, 1.1
"""Tokens of a document of the web: lognormal."""


def write_lines(path: Path, size: int, lengths: Callable[[np.random.Generator], float]) -> Path:
    """A file of about that size, made if it is not there: objects with a text, an id and a URL."""
    if path.exists():
        return path
    random = np.random.default_rng(1)
    words = ["".join(map(chr, random.integers(97, 123, n))) for n in random.integers(2, 11, 4000)]
    words += ["“", "”", "naïve", "\n", '"quoted"', "1999", "—", "."] * 8
    pool = " ".join(words[i] for i in random.integers(0, len(words), 1_500_000))
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        number = 0
        while file.tell() < size:
            length = min(max(1, int(lengths(random))), 1_000_000)
            start = int(random.integers(0, len(pool) - length))
            record = {
                "text": pool[start : start + length],
                "id": number,
                "url": f"https://example.org/{number}",
            }
            file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
            number += 1
    part.rename(path)
    return path


def write_web_lines(folder: Path, size: int) -> Path:
    """A file of about that size with documents of the web's lengths, made if it is not there."""
    mean = np.log(WEB_MEDIAN)
    return write_lines(
        folder / f"web-{size}.jsonl",
        size,
        lambda random: TOKEN_BYTES * random.lognormal(mean, WEB_SIGMA),
    )


def take_turns(ours: Callable[[], Any], theirs: Callable[[], Any], rounds: int) -> list[list[Any]]:
    """What both took, pair by pair: so many rounds, and more until the seconds are settled, which
    are all that was measured, or the first of it."""
    pairs: list[list[Any]] = []

    def list_ratios() -> list[list[float]]:
        seconds = [[one[0] if isinstance(one, tuple) else one for one in pair] for pair in pairs]
        return [[theirs / ours for ours, theirs in seconds]]

    for turn in count_turns(rounds, list_ratios):
        seconds = [one() for one in ((ours, theirs) if turn % 2 else (theirs, ours))]
        pairs.append(seconds if turn % 2 else seconds[::-1])
    return pairs


def make_row(
    name: str,
    pairs: list[list[float]],
    amount: float,
    unit: str,
    target: float | None,
    seed: int,
    note: str,
) -> Row:
    """The row of these pairs, as rates of an amount. A target of None is for information."""
    ratios = [theirs / ours for ours, theirs in pairs]
    low, high = bootstrap_interval(ratios, seed)
    ratio = median(ratios)
    own, other = (median(amount / pair[side] for pair in pairs) for side in (0, 1))
    met = None if target is None else ratio >= target
    return Row(name, own, unit, other, ratio, target, met, low, high, note=note)


# -- indexing --------------------------------------------------------------------------------------


def time_opening(path: Path) -> float:
    """Processor seconds of penstock.open without a saved index."""
    began = time.process_time()
    penstock.open(path, index="memory")
    return time.process_time() - began


def index_row(path: Path, name: str, target: float, rounds: int, seed: int) -> tuple[Row, Any]:
    """Indexing a file against a memchr pass over it."""
    command = [str(FLOORS / "lines_floor"), str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as floor:
        assert floor.stdin is not None
        assert floor.stdout is not None

        def scan() -> float:
            print(file=floor.stdin, flush=True)
            lines, nanoseconds = map(int, floor.stdout.readline().split())
            assert lines == count
            return nanoseconds * 1e-9

        count = len(penstock.open(path, index="memory"))
        scan()  # which makes the file warm
        pairs = take_turns(partial(time_opening, path), scan, rounds)
        floor.stdin.close()
    size = path.stat().st_size
    row = make_row(name, pairs, size / 1e9, "GB/s", target, seed, "of processor time")
    return row, {"seconds": pairs, "bytes": size, "lines": count}


# -- text ------------------------------------------------------------------------------------------


class Bare:
    """The simplest correct program: threads that read a line, parse it and keep a batch of texts.

    The batch is what keeps it honest: a text that is dropped at once is made in memory that is
    still in the processor's cache, which no training loop can have.
    """

    def __init__(self, path: Path, dataset: penstock.Dataset) -> None:
        extents = dataset.index.extents(np.arange(len(dataset)))
        self._offset, self._length = extents.offset.tolist(), extents.length.tolist()
        self._file = os.open(path, os.O_RDONLY)
        self._epoch = 0

    def __call__(self) -> int:
        """Characters of all texts, in a new order."""
        self._epoch += 1
        order = np.random.default_rng(self._epoch).permutation(len(self._offset)).tolist()
        found = [0] * THREADS

        def work(number: int) -> None:
            mine = order[number::THREADS]
            for first in range(0, len(mine), BATCH):
                texts = [
                    orjson.loads(os.pread(self._file, self._length[i], self._offset[i]))["text"]
                    for i in mine[first : first + BATCH]
                ]
                found[number] += sum(map(len, texts))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(found)


def walk(loader: Any) -> int:
    """Characters of all texts of an epoch."""
    return sum(sum(map(len, batch["text"])) for batch in loader)


def walk_bytes(loader: Any) -> int:
    """Bytes of all texts of an epoch, which come as UTF-8."""
    return sum(len(batch["text"].values) for batch in loader)


def processor_s() -> float:
    """Processor time of this process and of those it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def time_epoch(epoch: Callable[[], int], characters: int) -> float:
    """Processor seconds of an epoch, which has to give all texts."""
    began = processor_s()
    found = epoch()
    assert found == characters, f"{found:,} characters, not {characters:,}"
    return processor_s() - began


def hugging_face(path: Path, cache: Path, workers: int) -> Callable[[], int]:
    """Epochs of `datasets` in map style over its Arrow files, under torch's DataLoader."""
    from datasets import load_dataset
    from torch.utils.data import DataLoader

    data = load_dataset("json", data_files=str(path), split="train", cache_dir=str(cache))
    loader = DataLoader(data.select_columns(["text"]), BATCH, shuffle=True, num_workers=workers)
    return partial(walk, loader)


def text_rows(path: Path, cache: Path, rounds: int, seed: int) -> tuple[list[Row], dict[str, Any]]:
    """Extracting the text against the bare loop and against `datasets`."""
    dataset = penstock.open(path, fields="text", index="memory")
    bare = Bare(path, dataset)
    loader = penstock.Loader(dataset, BATCH, rank=0, world_size=1, decode_threads=THREADS)
    characters = bare()
    ours = partial(time_epoch, partial(walk, loader), characters)
    ours()
    as_bytes = penstock.open(path, fields="text", types={"text": "bytes"}, index="memory")
    encoder = penstock.Loader(as_bytes, BATCH, rank=0, world_size=1, decode_threads=THREADS)
    ours_bytes = partial(time_epoch, partial(walk_bytes, encoder), walk_bytes(encoder))
    pairs = take_turns(ours, partial(time_epoch, bare, characters), rounds)
    name = "text / shuffled documents of the web"
    note = f"pread and orjson, {THREADS} threads; of processor time"
    rows = [make_row(name, pairs, len(dataset), "samples/s", 0.9, seed, note)]
    raw: dict[str, Any] = {"bare": {"seconds": pairs, "lines": len(dataset)}}
    if importlib.util.find_spec("datasets") is None:
        rows.append(Row("text / datasets", None, "samples/s", note="absent: datasets"))
        return rows, raw
    best: tuple[float, int] | None = None
    for workers in (0, 1, 2):
        theirs = partial(time_epoch, hugging_face(path, cache, workers), characters)
        theirs()
        costs = [theirs() for _ in range(3)]
        raw[f"datasets, {workers} workers"] = {"seconds": costs}
        if best is None or median(costs) < best[0]:
            best = median(costs), workers
    assert best is not None
    theirs = partial(time_epoch, hugging_face(path, cache, best[1]), characters)
    theirs()
    note = f"map style over its Arrow, {best[1]} workers; of processor time"
    for name, own, target in (
        ("text / datasets", ours, 2.0),
        ("text as UTF-8 / datasets", ours_bytes, 3.0),
    ):
        pairs = take_turns(own, theirs, rounds)
        raw[name] = {"seconds": pairs}
        rows.append(make_row(name, pairs, len(dataset), "samples/s", target, seed, note))
    return rows, raw


def write_short_lines(path: Path, count: int) -> Path:
    """Write so many objects with a short text."""
    if path.exists():
        return path
    part = path.with_suffix(".part")
    line = np.frombuffer(b'{"text":"000000000"}\n', np.uint8)
    with part.open("wb") as file:
        for first in range(0, count, 1_000_000):
            numbers = np.arange(first, min(count, first + 1_000_000))
            lines = np.tile(line, (len(numbers), 1))
            for digit in range(9):
                lines[:, 9 + digit] += ((numbers // 10**digit) % 10).astype(np.uint8)
            file.write(lines.tobytes())
    part.rename(path)
    return path


def report_memory(path: Path, batches: int, sender: Any) -> None:
    """Train on texts in an exact shuffle, and send the bytes of memory at the end of that, first of
    a process that makes the index, which is saved, then of one that finds it."""
    loader = penstock.Loader(
        penstock.open(path, fields=["text"]), BATCH, shuffle="exact", rank=0, world_size=1
    )
    for _ in zip(range(batches), loader, strict=False):
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    sender.send((*read_memory(), peak))


def memory_rows(folder: Path, count: int) -> list[Row]:
    """The rows of memory for so many documents."""
    path = write_short_lines(folder / f"short-{count}.jsonl", count)
    for saved in folder.glob(f"{path.name}.penstock*"):
        saved.unlink()
    rows: list[Row] = []
    for what in ("first run", "later runs"):
        receiver, sender = get_context("spawn").Pipe(False)
        child = get_context("spawn").Process(target=report_memory, args=(path, 2000, sender))
        child.start()
        own, mapped, peak = receiver.recv()
        child.join()
        note = f"and {mapped / 1e6:,.0f} MB of mapped files; wanted: at most 200 MB"
        note += f"; {peak / 1e6:,.0f} MB for a moment, while lines are indexed" * (not rows)
        name = f"memory, {count:.0e} documents, {what}"
        rows.append(Row(name, own / 1e6, "MB", note=note))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.text", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small data and few pairs")
    parser.add_argument("--data", default=str(ROOT / "bench-data"), help="folder of the corpora")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    build_floors()
    folder = Path(options.data).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    size, rounds = (50_000_000, 3) if options.quick else (400_000_000, 10)
    record = Record("text-quick" if options.quick else "text", options.seed, vars(options))
    for line_bytes, target in ((11_500, 0.8), (192, 0.7)):
        path = folder / f"lines-{line_bytes}-{size}.jsonl"
        # About 55 bytes of a line are no text; a character takes 1.06 bytes.
        write_lines(
            path, size, lambda random, n=line_bytes: (n - 55) / 1.06 * random.uniform(0.9, 1.1)
        )
        name = f"index / lines of {line_bytes:,} B"
        row, record.raw[name] = index_row(path, name, target, rounds, options.seed)
        record.rows.append(row)
    web = write_web_lines(folder, size // 4)
    rows, record.raw["text"] = text_rows(web, folder / "datasets-cache", rounds, options.seed)
    record.rows += rows
    record.rows += memory_rows(folder, 10**6 if options.quick else 10**8)
    finish(record)


if __name__ == "__main__":
    main()
