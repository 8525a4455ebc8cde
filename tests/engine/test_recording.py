"""penstock's own reads, recorded as traces."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock.budget import Budget
from penstock.engine.native import NativeEngine
from penstock.engine.protocol import Engine
from penstock.engine.recording import RecordedEngine
from penstock.engine.request_queue import Aging
from penstock.errors import UsageError
from penstock.testing import EngineSuite, write_files
from penstock_bench.traces import trace_file as traces
from penstock_bench.traces.trace_file import (
    READ,
    load,
)
from tests import held, warm


class TestRecorded(EngineSuite):
    """Recorded into a trace, which nobody notices."""

    def make(self, contents: list[bytes | None], folder: Path) -> Engine:
        """By preads."""
        files = write_files(folder, contents)
        engine = NativeEngine(files, budget=Budget(pread="required"))
        return RecordedEngine(engine, files, str(folder / "x.trace"))

    @contextmanager
    def held(
        self, contents: list[bytes | None], folder: Path, aging: Aging
    ) -> Iterator[tuple[Engine, Callable[[], None]]]:
        """By preads, one after the other."""
        files = write_files(folder, contents)
        with held.native(files, aging) as (engine, release):
            yield RecordedEngine(engine, files, str(folder / "x.trace")), release


JOB = """
import sys, penstock
data = penstock.open(sys.argv[1], record_bytes=int(sys.argv[2]))
loader = penstock.Loader(data, batch_size=32, seed=3)
for epoch in range(2):
    for batch in loader:
        pass
"""


def run_job(folder: Path, record_bytes: int, code: str = JOB, **environment: str) -> str:
    """Messages of a job in a process of its own."""
    source = str(Path(penstock.__file__).parents[1])
    done = warm.run(
        [sys.executable, "-c", code, str(folder / "data.bin"), str(record_bytes)],
        env={**os.environ, "PYTHONPATH": source, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_an_unchanged_script_is_recorded(tmp_path):
    """Each record is read once an epoch, from where it is; without the variable nothing is
    written."""
    (tmp_path / "data.bin").write_bytes(os.urandom(1000 * 700))
    run_job(tmp_path, 700)
    before = set(os.listdir(tmp_path))
    run_job(tmp_path, 700, PENSTOCK_TRACE=str(tmp_path / "run.trace"))
    (name,) = set(os.listdir(tmp_path)) - before
    assert name.startswith("run.")
    assert name.endswith(".trace")
    trace = load(str(tmp_path / name))
    assert [trace.names[i] for i in range(len(trace.names))] == [str(tmp_path / "data.bin")]
    assert trace.sizes.tolist() == [1000 * 700]
    assert trace.timing == "shared"
    rows = traces.concatenate_operations([rows for _, rows in trace.in_order()])
    assert set(rows.kind.tolist()) == {READ}
    assert np.array_equal(rows.length, rows.result)
    seen = Counter()
    for offset, length in zip(rows.offset.tolist(), rows.length.tolist(), strict=True):
        first, last = -(-offset // 700), (offset + length) // 700
        seen.update(range(first, last))
    assert seen == Counter(dict.fromkeys(range(1000), 2))


def test_what_cannot_be_written_any_more_ends_with_a_warning(tmp_path):
    """The job goes on."""
    (tmp_path / "data.bin").write_bytes(bytes(40_000))
    code = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n" + JOB
    output = run_job(tmp_path, 1, code, PENSTOCK_TRACE=str(tmp_path / "run.trace"))
    assert "recording" in output or "cannot write" in output
    assert not [name for name in os.listdir(tmp_path) if name.startswith("run.")]


def test_a_place_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    """Before anything is read."""
    (tmp_path / "data.bin").write_bytes(bytes(100))
    monkeypatch.setenv("PENSTOCK_TRACE", str(tmp_path / "absent" / "run.trace"))
    loader = penstock.Loader(penstock.open(str(tmp_path / "data.bin"), record_bytes=10))
    with pytest.raises(UsageError, match="PENSTOCK_TRACE: cannot write traces"):
        next(iter(loader))


def test_failures_are_recorded(tmp_path):
    """A file that is gone, and one that ended early."""
    files = write_files(tmp_path, [b"x" * 100, b"y" * 100])
    os.unlink(files.path(0))
    engine = NativeEngine(files, budget=Budget(pread="required"))
    recorded = RecordedEngine(engine, files, str(tmp_path / "t.trace"))
    requests = penstock.extent.Requests(
        np.array([0, 1, 1], np.uint32),
        np.array([0, 90, 150], np.int64),
        np.array([10, 20, 0], np.int64),
        np.zeros(3, np.uint32),
        np.array([0, 10, 30], np.int64),
        np.array([0, 1, 2, 3], np.int64),
    )
    recorded.submit(requests, [np.zeros(64, np.uint8)])
    while not recorded.poll(10**9):
        pass
    recorded.close()
    (path,) = tmp_path.glob("t.*.trace")
    ((_, rows),) = load(str(path)).in_order()
    reads = sorted(
        zip(rows.offset.tolist(), rows.length.tolist(), rows.result.tolist(), strict=True)
    )
    assert reads == [(0, 10, -2), (90, 20, 10)]


KILLED = """
import os, signal, sys, penstock
from penstock.engine import recording
recording.FLUSH_READS = 64
data = penstock.open(sys.argv[1], record_bytes=int(sys.argv[2]))
for batch in penstock.Loader(data, batch_size=32, seed=3):
    pass
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_loses_only_the_last_reads(tmp_path):
    """Files that were written before the kill are one trace, by the same threads."""
    (tmp_path / "data.bin").write_bytes(os.urandom(1000 * 700))
    source = str(Path(penstock.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "data.bin"), "700"],
        env={
            **os.environ,
            "PYTHONPATH": source,
            "PENSTOCK_TRACE": str(tmp_path / "run.trace"),
        },
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    paths = [str(path) for path in tmp_path.glob("run.*.trace")]
    assert len(paths) > 1
    trace = load(*paths)
    assert len(trace.threads) == len(load(paths[0]).threads)
    records = sum(int(rows.result.sum()) for _, rows in trace.in_order()) // 700
    assert 1000 - 64 - 32 <= records <= 1000


def test_recording_without_pyarrow_names_the_extra(tmp_path):
    """One sentence, before anything is read; without the variable nothing imports pyarrow."""
    (tmp_path / "data.bin").write_bytes(bytes(100))
    code = (
        "import os, sys, penstock\n"
        "data = penstock.open(sys.argv[1], record_bytes=10)\n"
        "next(iter(penstock.Loader(data)))\n"
        "assert 'pyarrow' not in sys.modules\n"
        "sys.modules['pyarrow'] = None\n"
        "os.environ['PENSTOCK_TRACE'] = sys.argv[1] + '.trace'\n"
        "try: next(iter(penstock.Loader(data)))\n"
        "except penstock.errors.UsageError as error: print(error, file=sys.stderr)\n"
    )
    output = run_job(tmp_path, 10, code)
    assert "a trace needs pyarrow: pip install pyarrow (or 'penstock[parquet]')" in output
