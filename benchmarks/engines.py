"""Shared work on Ray and Dask against a local pool on the same two cores, of one file against
shards, against other libraries, and at 10^5 shards.

    python -m benchmarks.engines [FOLDER] [--shards 100_000] [--rounds 7] [--quick]
    python -m benchmarks.engines [FOLDER] --only tokens --tokens-mb 2000 --rounds 1

* Tasks of indexes of tars (10 GB of holes of 100 kB between headers; 4 GB of members of 4 KiB, in
  memory) and of the tokens of 256 MB of JSON lines (the web's lengths, by tiktoken), done by two
  workers of an engine that has started and has imported penstock.
* Plan, work and commit of the index of one file, on a local pool of eight workers, against eight
  files with as many bytes in all: 10 GB of tar, and 4 GB of JSON lines of 1 MiB. All are sparse.
* Plan, work and commit of the tokens of 20 MB of JSON lines on a local pool that is started for
  it, against `datatrove` and `litdata.optimize` (benchmarks/token_rivals.py).
* Plan, work and commit of an index of 100,000 tars of two samples (`--shards`), on a local pool,
  and `penstock.open` in a fresh process: its time, and the most memory that the process has.

Those that are compared take turns; a ratio is the time of the other to ours, or of the pool to the
engine's. Without a library its rows are left out, or say so. Record of all:
benchmarks/results/engines.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from penstock import limits
from penstock.errors import UsageError
from penstock.tasks import WorkPlan, distribute, make_engine, plan_work

from .contender import ROOT
from .pairing import bootstrap_interval, count_turns, divide_pairs
from .record import Record, Row, table
from .token_rivals import race_tokens
from .tokenizing import draw_texts, train

PARTS = ["index", "cut", "tokens", "rivals", "shards"]
WORKERS = 2
CUT_WORKERS = 8
WANTED_RATIO = 0.85
WANTED_CUT = 0.8
WANTED_COMMIT_S = 30.0
WANTED_OPEN_S = 1.0
WANTED_OPEN_MB = 300.0
MEMBER_BYTES = 100_000
LINE_BYTES = 1 << 20
LONG_AGO_NS = 10**18 + 1
"""Time of files: an index is not believed whose files were written while it was made."""
OPENING = """
import json, re, sys, time
import penstock
started = time.perf_counter()
count = len(penstock.open(sys.argv[1], index="read"))
seconds = time.perf_counter() - started
most = re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())  # not the parent's
print(json.dumps([seconds, int(most[1]) / 1e3, count]))
"""


def write_tars(folder: Path, size: int, files: int, member_bytes: int, sparse: bool) -> Path:
    """Write tars with `size` bytes in all; sparse: members are holes."""
    folder.mkdir(parents=True)
    held = -(-member_bytes // 512) * 512
    data = bytes(range(256)) * -(-held // 256)
    for number in range(files):
        with open(folder / f"{number:03}.tar", "wb", 1 << 20) as file:
            for member in range(size // files // (512 + held)):
                info = tarfile.TarInfo(f"{number:03}-{member:06}.bin")
                info.size = member_bytes
                file.write(info.tobuf(tarfile.USTAR_FORMAT))
                if sparse:
                    file.seek(held, os.SEEK_CUR)
                else:
                    file.write(data[:held])
            file.write(bytes(1024))
    return folder


def write_long_lines(folder: Path, size: int, files: int) -> Path:
    """Write JSON lines with `size` bytes in all, sparse: texts are holes."""
    folder.mkdir(parents=True)
    for number in range(files):
        with open(folder / f"{number:03}.jsonl", "wb") as file:
            for _ in range(size // files // LINE_BYTES):
                file.write(b'{"text": "')
                file.seek(LINE_BYTES - 13, os.SEEK_CUR)
                file.write(b'"}\n')
    return folder


def write_documents(folder: Path, size: int, files: int, texts: list[str]) -> Path:
    """Write JSON lines of about so many bytes of text, which is repeated."""
    folder.mkdir(parents=True)
    lines = [json.dumps({"text": text}) + "\n" for text in texts]
    repeats = -(-size // files // sum(map(len, texts)))
    for number in range(files):
        with open(folder / f"{number}.jsonl", "w") as file:
            for _ in range(repeats):
                file.writelines(lines)
    return folder


def write_shards(folder: Path, count: int) -> Path:
    """Tars of two samples of two members."""
    folder.mkdir(parents=True)
    for number in range(count):
        parts = []
        for sample in range(2):
            for ending, data in (("bin", bytes(300)), ("cls", b"%d" % sample)):
                info = tarfile.TarInfo(f"{number:06}-{sample}.{ending}")
                info.size = len(data)
                parts.append(info.tobuf(tarfile.USTAR_FORMAT) + data + bytes(-len(data) % 512))
        path = folder / f"{number:06}.tar"
        path.write_bytes(b"".join(parts) + bytes(1024))
        os.utime(path, ns=(LONG_AGO_NS, LONG_AGO_NS))
    os.utime(folder, ns=(LONG_AGO_NS, LONG_AGO_NS))
    return folder


def time_run(work: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def work_on(pool: Executor, plan: WorkPlan) -> None:
    """Do all tasks of a plan, whether they are done or not."""
    for task in range(len(plan)):
        Path(plan.find_part(task)).unlink(missing_ok=True)
    failed = distribute(plan, lambda: nullcontext(pool))
    assert not failed, failed


def start_engines(started: ExitStack) -> dict[str, Executor]:
    """The engines that are installed, each with two workers."""
    pools = {}
    for name in ("local", "ray", "dask"):
        try:
            pools[name] = started.enter_context(make_engine(name, WORKERS)())
        except UsageError as error:
            print(f"left out: {error}", file=sys.stderr)
    return pools


def compare(
    record: Record,
    pools: dict[str, Executor],
    name: str,
    plan: WorkPlan,
    rounds: int,
    first: WorkPlan,
) -> None:
    """Rows of the engines against the local pool, which take turns, after a first plan each."""
    for pool in pools.values():
        work_on(pool, first)  # imports, and the tokenizer
    times: dict[str, list[float]] = {engine: [] for engine in pools}
    others = list(pools)[1:]
    for turn in count_turns(
        rounds, lambda: [divide_pairs(times[one], times["local"]) for one in others]
    ):
        for engine in list(pools) if turn % 2 else reversed(list(pools)):
            times[engine].append(time_run(partial(work_on, pools[engine], plan)))
    record.raw[name] = {"seconds": times}
    for engine in list(pools)[1:]:
        note = f"{len(plan)} tasks; floor: local pool"
        row = time_row(f"{name} / {engine}", times[engine], times["local"], WANTED_RATIO, note)
        record.rows.append(row)


def time_row(
    name: str, seconds: list[float], floor: list[float], target: float | None, note: str
) -> Row:
    """A row of times that took turns: the ratio is the floor's time to the other."""
    ratios = [theirs / ours for ours, theirs in zip(seconds, floor, strict=True)]
    ratio, (low, high) = median(ratios), bootstrap_interval(ratios, 1)
    met = None if target is None else ratio >= target
    values = median(seconds), "s", median(floor), ratio
    return Row(name, *values, target, met, low, high, note=note)


def compare_cut(record: Record, folder: Path, size: int, rounds: int) -> None:
    """Rows of the index of one file against that of shards of as many bytes."""
    with make_engine("local", CUT_WORKERS)() as pool:
        sparse_tars = partial(write_tars, member_bytes=MEMBER_BYTES, sparse=True)
        for kind, write, amount in (
            ("tar", sparse_tars, size),
            ("jsonl", write_long_lines, size * 2 // 5),  # holes of text are read
        ):
            name = f"index of one .{kind}, {amount / 1e9:g} GB / {CUT_WORKERS} shards"
            places = [folder / f"cut-{kind}-{amount}-{files}" for files in (1, CUT_WORKERS)]
            for place, files in zip(places, (1, CUT_WORKERS), strict=True):
                if not place.exists():
                    write(place, amount, files)
            times: list[list[float]] = [[], []]
            tasks = [0, 0]
            for turn in count_turns(rounds + 1, lambda: [divide_pairs(*times)]):  # noqa: B023
                for side in (0, 1) if turn % 2 else (1, 0):
                    seconds, tasks[side] = make_index(places[side], kind, pool)
                    times[side] += [seconds] if turn else []
            note = f"{tasks[0]} tasks, {CUT_WORKERS} workers; floor: shards, {tasks[1]} tasks"
            record.rows.append(time_row(name, *times, WANTED_CUT, note))
            record.raw[name] = {"seconds": times}


def make_index(data: Path, format: str, pool: Executor) -> tuple[float, int]:
    """Plan, work and commit: seconds, and the number of tasks."""
    work = Path(f"{data}-work")
    shutil.rmtree(work, ignore_errors=True)
    started = time.perf_counter()
    plan = plan_work("index", data, work, open_options={"format": format})
    work_on(pool, plan)
    plan.commit()
    return time.perf_counter() - started, len(plan)


def compare_rivals(record: Record, data: Path, tokenizer: Path, rounds: int) -> None:
    """Rows of the tokens of other libraries."""
    seconds, notes = race_tokens(data, tokenizer, data.parent / "rivals", WORKERS, rounds)
    size = sum(path.stat().st_size for path in data.iterdir())
    for ours, target in (("penstock", 1.0), ("penstock, tiktoken", None)):
        for rival in ("datatrove", "litData.optimize"):
            name, note = f"tokens of {size / 1e6:.0f} MB, {ours} / {rival}", notes[rival]
            if rival in seconds:
                record.rows.append(time_row(name, seconds[ours], seconds[rival], target, note))
            else:
                record.rows.append(Row(name, None, "s", note=note))
    record.raw["tokens of rivals"] = {"seconds": seconds}


def measure_shards(record: Record, data: Path, count: int) -> None:
    """Rows of plan, work, commit and opening, of so many shards."""
    seconds: dict[str, Any] = {}
    plan = None

    def make_plan() -> None:
        nonlocal plan
        plan = plan_work("index", data, f"{data}-work")

    seconds["plan"] = time_run(make_plan)
    assert plan is not None
    seconds["work"] = time_run(lambda: distribute(plan, make_engine("local", WORKERS)))
    seconds["commit"] = time_run(plan.commit)
    command = [sys.executable, "-c", OPENING, str(data)]
    opened = [json.loads(subprocess.check_output(command, cwd=ROOT)) for _ in range(3)]
    assert all(samples == 2 * count for _, _, samples in opened)
    record.raw["shards"] = {"seconds": seconds, "opened": opened}
    name = f"index of {count:,} shards"
    for step, limit in (("plan", None), ("work", None), ("commit", WANTED_COMMIT_S)):
        record.rows.append(ceiling_row(f"{name} / {step}", seconds[step], "s", limit))
    for column, step, unit, limit in (
        (0, "open", "s", WANTED_OPEN_S),
        (1, "memory", "MB", WANTED_OPEN_MB),
    ):
        value = median(run[column] for run in opened)
        record.rows.append(ceiling_row(f"{name} / {step}", value, unit, limit))


def ceiling_row(name: str, value: float, unit: str, limit: float | None) -> Row:
    """A row whose target is an upper limit on the value itself."""
    met = None if limit is None else value <= limit
    return Row(name, value, unit, target=limit, met=met, note="target is an upper limit")


def main() -> None:
    """Print the rows, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("bench-data/engines"))
    parser.add_argument("--shards", type=int, default=100_000, help="0 leaves them out")
    parser.add_argument("--rounds", type=int, default=7, help="0 leaves the engines out")
    parser.add_argument("--quick", action="store_true", help="a tenth of all, and no record")
    parser.add_argument("--only", nargs="*", choices=PARTS, default=PARTS, help="no record")
    parser.add_argument("--tokens-mb", type=int, default=256)
    options = parser.parse_args()
    scale = 10 if options.quick else 1
    count, rounds = options.shards // scale, min(options.rounds, 3 if options.quick else 99)
    record = Record("engines", 1, {"shards": count, "rounds": rounds, "quick": options.quick})
    folder = options.folder / ("quick" if options.quick else "whole")
    folder.mkdir(parents=True, exist_ok=True)

    def measure(work: Callable[..., None], *arguments: Any) -> None:
        before = len(record.rows)
        work(record, *arguments)
        print(table(record.rows[before:]), flush=True)
        if not options.quick and options.only == PARTS:
            record.write()  # a run that is cut short keeps what it has

    limits.task_text_bytes //= scale  # as many tasks
    parts = [part for part in options.only if (count if part == "shards" else rounds)]
    few = min(rounds, 2 if options.quick else 3)
    if "tokens" in parts or "rivals" in parts:
        texts = draw_texts(10_000_000 // scale)
        tokenizer = train(folder / "tokenizer.json", texts)
        settings: dict[str, Any] = {"tokenizer": str(tokenizer), "engine": "tiktoken"}

    def write_lines(size_mb: int, files: int) -> Path:
        lines = folder / f"documents-{size_mb}-{files}"
        if not lines.exists():
            write_documents(lines, size_mb * 1_000_000 // scale, files, texts)
        return lines

    with ExitStack() as started:
        pools = start_engines(started) if {"index", "tokens"} & {*parts} else {}
        if "index" in parts:
            for size_gb, member_bytes, sparse in ((10, MEMBER_BYTES, True), (4, 4096, False)):
                data = folder / f"tars-{size_gb}-{member_bytes}"
                if not data.exists():
                    write_tars(data, size_gb * 10**9 // scale, 8 * size_gb, member_bytes, sparse)
                plan = plan_work("index", data, Path(f"{data}-work"))
                name = f"index / tar of {member_bytes:,} B, {size_gb / scale:g} GB"
                measure(compare, pools, name, plan, rounds, plan)
        if "tokens" in parts:
            size = options.tokens_mb
            few_lines, lines = write_lines(10, 1), write_lines(size, 1)
            first = plan_work("tokenize", few_lines, folder / "tokens-10-work", **settings)
            plan = plan_work("tokenize", lines, folder / f"tokens-{size}-work", **settings)
            name = f"tokenize / JSON lines, {size // scale} MB"
            measure(compare, pools, name, plan, few, first)
    if "cut" in parts:
        measure(compare_cut, folder, 10_000_000_000 // scale, min(rounds, 5))
    if "rivals" in parts:
        measure(compare_rivals, write_lines(20, 2), tokenizer, few)
    if "shards" in parts:
        data = folder / f"shards-{count}"
        data = data if data.exists() else write_shards(data, count)
        measure(measure_shards, data, count)


if __name__ == "__main__":
    main()
