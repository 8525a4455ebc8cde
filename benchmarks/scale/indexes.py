"""Saved indexes by layout, the merged index of many shards, and the look at their sources."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from penstock.engine import open_store
from penstock.extent import Files
from penstock.index import Field, Index, RowTable
from penstock.index.layout import Pieces
from penstock.index.saved_index import find_staleness
from penstock.order.order import Order
from penstock.tasks import distribute, make_engine, plan_work

from ..contender import ROOT
from ..engines import write_shards
from .costs import COMMIT_S, HOST_MB, RANK_MB, START_S, powers, time_least
from .curves import Curve
from .job import make_index
from .paged_rows import PagedRows

WINDOW = 2048
"""Samples that a rank plans in one pass."""


def make_rows(samples: int, pieces: int) -> Index:
    """Make an index of samples of unequal lengths in files of 10^4, of so many pieces each."""
    length = np.random.default_rng(1).integers(50, 1000, samples * pieces)
    file = (np.arange(samples * pieces) // (pieces * 10**4)).astype(np.uint32)
    offset = np.cumsum(length) - length
    shards = int(file[-1]) + 1
    names = [f"{shard:08}.tar" for shard in range(shards)]
    files = Files.of("/data", names, np.full(shards, int(length.sum())), np.full(shards, 10**18))
    rows: RowTable | Pieces = RowTable(file, offset, length)
    if pieces > 1:
        rows = Pieces(np.arange(samples + 1) * pieces, file, offset, length)
    return Index("tar", files, (Field("data", np.dtype(np.uint8), None),), (rows,), files)


OPENING = """
import json, sys, time
from benchmarks.scale.costs import read_status
from penstock.index import Index
before, started = read_status("RssAnon"), time.thread_time()
index = Index.load(sys.argv[1], outside=True)
opened = time.thread_time()
index.mean_bytes
print(json.dumps([opened - started, time.thread_time() - opened, read_status("RssAnon") - before]))
"""


def open_index(path: Path) -> list[float]:
    """Open a saved index in a process of its own, and ask for the mean size, as a loader does:
    return the processor time of both, and the memory that is not the page cache's, in MB."""
    command = [sys.executable, "-c", OPENING, str(path)]
    runs = [json.loads(subprocess.check_output(command, cwd=ROOT)) for _ in range(3)]
    return [min(values) for values in zip(*runs, strict=True)]


def measure_index(folder: Path, sizes: Sequence[int]) -> list[Curve]:
    """Curves of saved indexes: bytes of the file, opening it, and memory."""
    saved, opening, anonymous = [], [], []
    for samples in sizes:
        path = folder / "rows.penstock"
        make_rows(samples, 1).save(path)
        saved.append((samples, path.stat().st_size / 1e6))
        opened_s, mean_s, _ = open_index(path)
        opening.append((samples, opened_s + mean_s))
        make_rows(samples // 10, 2).save(path)
        anonymous.append((samples // 10, open_index(path)[2]))
        path.unlink()
    by_shard = []
    for shards in powers(3, 6 if sizes[-1] >= 10**6 else 4):
        path = folder / "fixed.penstock"
        make_index(10**12, shards).save(path)
        by_shard.append((shards, path.stat().st_size / 1e6))
        path.unlink()
    told, mb = "two levels", "MB"
    points = map(tuple, (saved, opening, anonymous, by_shard))
    in_rows, opened, in_pieces, in_records = points
    return [
        Curve("index of rows: saved", "samples", mb, 1, HOST_MB, "a host", in_rows, (), told),
        Curve("index of rows: open", "samples", "s", 1, START_S, "once", opened, (), told),
        Curve("index of pieces: memory", "samples", mb, 1, RANK_MB, "a rank", in_pieces, (), told),
        Curve("index of records: saved", "shards", mb, 1, RANK_MB, "a rank", in_records),
    ]


def measure_pages(folder: Path, shards: int, shard_samples: int) -> dict[str, float]:
    """Compare the model of an index in pages with a table of rows; return what it costs."""
    flat = make_rows(shards * shard_samples, 1).layouts[0]
    assert isinstance(flat, RowTable)
    assert flat.offset is not None
    first = np.arange(shards + 1) * shard_samples
    pages = PagedRows.write(folder / "pages", first, flat.offset, flat.length)
    order = Order(int(first[-1]), 1)
    rows, calls = WINDOW, 20
    windows = [order.run(call * rows, rows).astype(np.int64) for call in range(calls)]
    for samples in windows[:3]:
        table_rows, paged = flat.extents(samples), pages.extents(samples)
        assert np.array_equal(table_rows.offset, paged.offset)
        assert np.array_equal(table_rows.length, paged.length)
        assert np.array_equal(paged.file, samples // shard_samples)
    pages.bytes_read = 0
    window_s = time_least(lambda: [pages.extents(samples) for samples in windows], 1)
    read = pages.bytes_read / rows / calls
    pages.bytes_read = 0
    blocked = Order(int(first[-1]), 1, shuffle="blocked")
    for call in range(calls):
        pages.extents(blocked.run(call * rows, rows).astype(np.int64))
    pages.close()
    return {
        "directory_bytes_a_shard": pages.directory_bytes / shards,
        "bytes_a_sample": (folder / "pages").stat().st_size / first[-1],
        "us_a_sample": window_s / rows / calls * 1e6,
        "read_bytes_a_sample": read,
        "read_bytes_a_sample_blocked": pages.bytes_read / rows / calls,
    }


def measure_commit(folder: Path, sizes: Sequence[int]) -> list[Curve]:
    """Curves of the merged index of many small shards: its commit, and opening it."""
    commits, openings = [], []
    for shards in sizes:
        data = folder / f"shards-{shards}"
        if not data.exists():
            write_shards(data, shards)
        plan = plan_work("index", data, f"{data}-work")
        failed = distribute(plan, make_engine("local", 2))
        assert not failed, failed
        started = time.process_time()
        plan.commit()
        commits.append((shards, time.process_time() - started))
        path = Path(f"{data}.penstock")
        openings.append((shards, sum(open_index(path)[:2])))
    return [
        Curve(
            "merged index: commit", "shards", "s", 1, COMMIT_S, "once", tuple(commits), (),
            "two levels",
        ),
        Curve("merged index: open", "shards", "s", 1, START_S, "once", tuple(openings)),
    ]  # fmt: skip


def measure_sources(folder: Path, sizes: Sequence[int]) -> list[Curve]:
    """Curve of the look at the sources of a saved index; few files are named again and again, so
    the system has all of them at hand."""
    tree = folder / "sources"
    tree.mkdir(exist_ok=True)
    times = []
    here = min(10_000, sizes[-1])
    for number in range(here):
        (tree / f"{number:08}.bin").touch()
    for shards in sizes:
        names = [f"{number % here:08}.bin" for number in range(shards)]
        store = open_store(str(tree))
        files = store.stat(names)
        index = Index(
            "records", files, (Field("data", np.dtype(np.uint8), (1,)),), (), files, fingerprint="x"
        )
        started = time.process_time()
        assert find_staleness(index, store) is None
        times.append((shards, time.process_time() - started))
    told = "each rank looks at its part"
    return [Curve("sources looked at", "shards", "s", 1, START_S, "once", tuple(times), (), told)]
