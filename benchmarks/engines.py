"""Shared work on Ray and Dask against a local pool on the same two cores, and at 10^5 shards.

    python -m benchmarks.engines [FOLDER] [--shards 100_000] [--rounds 7] [--quick]

Tasks of an index of 10 GB of tar (80 files of holes between headers, members of 100 kB) and of the
tokens of 2 GB of JSON lines (the web's lengths), each done by two workers of an engine that has
started and has imported penstock. The three take turns; the ratio is the pool's time to the
engine's. Then plan, work and commit of an index of so many tars of two samples, on a local pool,
and `penstock.open` in a fresh process: its time, and the most memory that the process has. Without
`ray` or `distributed` their rows are left out. The record is benchmarks/results/engines.json.
"""

from __future__ import annotations

import argparse
import json
import os
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

from penstock.errors import UsageError
from penstock.tasks import WorkPlan, distribute, make_engine, plan_work

from .contender import ROOT
from .pairing import bootstrap_interval
from .record import Record, Row, table
from .tokenizing import draw_texts, train

WORKERS = 2
WANTED_RATIO = 0.85
WANTED_COMMIT_S = 30.0
WANTED_OPEN_S = 1.0
WANTED_OPEN_MB = 300.0
MEMBER_BYTES = 100_000
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


def write_tars(folder: Path, size: int, files: int) -> Path:
    """Write sparse tars, of so many bytes together: headers with holes between them."""
    folder.mkdir(parents=True)
    each = size // files // (512 + -(-MEMBER_BYTES // 512) * 512)
    for number in range(files):
        with open(folder / f"{number:03}.tar", "wb") as file:
            for member in range(each):
                info = tarfile.TarInfo(f"{number:03}-{member:06}.bin")
                info.size = MEMBER_BYTES
                file.write(info.tobuf(tarfile.USTAR_FORMAT))
                file.seek(-(-MEMBER_BYTES // 512) * 512, os.SEEK_CUR)
            file.write(bytes(1024))
    return folder


def write_documents(path: Path, size: int) -> Path:
    """JSON lines of about so many bytes of text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as file:
        texts = draw_texts(min(size, 50_000_000))
        for _ in range(-(-size // 50_000_000)):
            file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    return path


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


def compare(record: Record, name: str, plan: WorkPlan, rounds: int) -> None:
    """Rows of the engines against the local pool, which take turns."""
    with ExitStack() as started:
        pools = start_engines(started)
        for pool in pools.values():
            work_on(pool, plan)  # imports, and the tokenizer
        times: dict[str, list[float]] = {engine: [] for engine in pools}
        for turn in range(rounds):
            for engine in list(pools) if turn % 2 else reversed(list(pools)):
                times[engine].append(time_run(partial(work_on, pools[engine], plan)))
    record.raw[name] = {"seconds": times}
    for engine in list(pools)[1:]:
        ratios = [ours / theirs for ours, theirs in zip(times["local"], times[engine], strict=True)]
        ratio = median(ratios)
        low, high = bootstrap_interval(ratios, 1)
        record.rows.append(
            Row(
                f"{name} / {engine}",
                median(times[engine]),
                "s",
                median(times["local"]),
                ratio,
                WANTED_RATIO,
                ratio >= WANTED_RATIO,
                low,
                high,
                note=f"{len(plan)} tasks; floor: local pool",
            )
        )


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
    options = parser.parse_args()
    scale = 10 if options.quick else 1
    count, rounds = options.shards // scale, min(options.rounds, 3 if options.quick else 99)
    record = Record("engines", 1, {"shards": count, "rounds": rounds, "quick": options.quick})
    folder = options.folder / ("quick" if options.quick else "whole")
    if rounds:
        data = folder / "tars"
        data = data if data.exists() else write_tars(data, 10_000_000_000 // scale, 80)
        plan = plan_work("index", data, folder / "tars-work")
        compare(record, f"index / tar, {10 // scale} GB", plan, rounds)
        lines = folder / "documents.jsonl"
        lines = lines if lines.exists() else write_documents(lines, 2_000_000_000 // scale)
        tokenizer = train(folder / "tokenizer.json", draw_texts(10_000_000))
        plan = plan_work("tokenize", lines, folder / "tokens-work", tokenizer=str(tokenizer))
        compare(record, f"tokenize / JSON lines, {2000 // scale:,} MB", plan, rounds)
    if count:
        data = folder / f"shards-{count}"
        data = data if data.exists() else write_shards(data, count)
        measure_shards(record, data, count)
    print(table(record.rows))
    if not options.quick:
        print(record.write())


if __name__ == "__main__":
    main()
