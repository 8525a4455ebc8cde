"""Trace files: what is written is read back, damage is found, and many files are one trace."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine import recording
from penstock.errors import FormatError, MissingError, UsageError
from penstock_bench.traces import trace_file as traces
from penstock_bench.traces.trace_file import (
    BLOCK,
    READ,
    Operations,
    Trace,
    TraceWriter,
    load,
)
from tests.slices import stride


def drawn(seed: int, count: int, files: int) -> Operations:
    """Operations of one thread, of which some run into the next."""
    draw = np.random.default_rng(seed)
    length = draw.integers(0, 1 << 40, count)
    return Operations(
        draw.integers(0, len(traces.KINDS), count).astype(np.uint8),
        draw.integers(0, files, count).astype(np.uint32),
        draw.integers(0, 1 << 50, count),
        length,
        np.where(draw.random(count) < 0.1, -2, length // 2),
        10**18 + np.cumsum(draw.integers(0, 1000, count)),
        draw.integers(0, 1000, count),
    )


def cut(rows: Operations) -> Operations:
    """Cut operations as a trace stores them: none runs into the next, time begins with the
    trace."""
    room = np.diff(rows.start_ns, append=1 << 62)
    return rows._replace(duration_ns=np.minimum(rows.duration_ns, room))


def same(a: Operations, b: Operations) -> bool:
    """Equal in all columns and their types."""
    return all(x.dtype == y.dtype and np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def written(path: Path, threads: list[Operations], files: int = 5) -> Trace:
    """A trace of some threads, by `extend`, each in two parts."""
    with TraceWriter(str(path), "a test") as writer:
        for number in range(files):
            writer.file(f"/data/{number}", number)
        for number, rows in enumerate(threads):
            thread = writer.thread(7, number)
            half = len(rows.kind) // 3
            writer.extend(thread, rows.at(slice(half)))
            writer.extend(thread, rows.at(slice(half, None)))
    return load(str(path))


counts = st.lists(
    st.integers(0, 40) | st.integers(BLOCK - 1, 2 * BLOCK + 2), min_size=1, max_size=4
)


@given(counts, st.integers(0, 1 << 32))
def test_what_is_written_is_read_back(tmp_path_factory, counts, seed):
    """Every column of every thread, whole and in the order of time."""
    path = tmp_path_factory.getbasetemp() / "round.trace"
    threads = [drawn(seed + i, count, 5) for i, count in enumerate(counts)]
    trace = written(path, threads)
    assert trace.count == sum(counts)
    assert len(trace.threads) == len(counts)
    assert [trace.names[i] for i in range(5)] == [f"/data/{i}" for i in range(5)]
    began_ns = min((int(rows.start_ns[0]) for rows in threads if len(rows.kind)), default=0)
    assert trace.began_ns == began_ns
    expected = [cut(rows)._replace(start_ns=rows.start_ns - began_ns) for rows in threads]
    for number, rows in enumerate(expected):
        rows_of_thread = traces.concatenate_operations(list(trace.of_thread(number)))
        assert same(rows_of_thread, rows) or (len(rows.kind) == 0 and len(rows_of_thread.kind) == 0)
    parts = list(trace.in_order())
    who = np.concatenate([part[0] for part in parts]) if parts else np.zeros(0, np.uint32)
    rows = traces.concatenate_operations([part[1] for part in parts])
    assert np.all(np.diff(rows.start_ns) >= 0)
    for number, mine in enumerate(expected):
        rows_of_thread = rows.at(who == number)
        assert len(rows_of_thread.kind) == len(mine.kind)
        assert np.array_equal(np.sort(rows_of_thread.offset), np.sort(mine.offset))


def test_in_order_holds_few_blocks_at_a_time(tmp_path):
    """Memory is that of the threads at work, not that of the trace."""
    threads = []
    for number in range(40):  # one after the other
        rows = drawn(number, 2 * BLOCK, 5)
        threads.append(rows._replace(start_ns=rows.start_ns + number * 10**9))
    trace = written(tmp_path / "t.trace", threads)
    assert max(len(who) for who, _ in trace.in_order()) <= 5 * BLOCK


def test_add_and_extend_write_the_same(tmp_path):
    """One by one or as columns: the same bytes."""
    rows = cut(drawn(1, 3 * BLOCK, 5))._replace(kind=np.full(3 * BLOCK, READ, np.uint8))
    paths = [tmp_path / "a.trace", tmp_path / "b.trace"]
    for path in paths:
        with TraceWriter(str(path), "same") as writer:
            thread = writer.thread(1, 2)
            for number in range(5):
                writer.file(str(number), 1 << 60)
            if path == paths[0]:
                for row in zip(*(column.tolist() for column in rows), strict=True):
                    writer.add(thread, *row)
            else:
                writer.extend(thread, rows)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_sizes_are_known_or_what_was_read(tmp_path):
    """At least the end of what was read."""
    with TraceWriter(str(tmp_path / "t.trace"), "") as writer:
        thread, file = writer.thread(1, 1), writer.file("/a", 10)
        writer.add(thread, READ, file, 100, 50, 20, 5, 1)
        assert writer.file("/a") == file
        assert writer.thread(1, 1) == thread
        assert writer.thread(1, 1, new=True) != thread
    assert load(str(tmp_path / "t.trace")).sizes.tolist() == [120]


def values_of(path: Path) -> object:
    """Load a trace, and return all that it holds."""
    trace = load(str(path))
    rows = [
        (threads.tolist(), *(column.tolist() for column in rows))
        for threads, rows in trace.in_order()
    ]
    names = [trace.names[i] for i in range(len(trace.names))]
    head = trace.source, trace.timing, trace.notes, trace.began_ns, trace.threads
    return *head, names, trace.sizes.tolist(), rows


@stride(7)
def test_every_cut_and_every_altered_byte_is_found(tmp_path, stride):
    """A FormatError that names the file, and never other operations."""
    path = tmp_path / "t.trace"
    written(path, [drawn(1, 4, 2), drawn(2, 1, 2)], 2)
    whole = path.read_bytes()
    for size in range(0, len(whole), stride):
        path.write_bytes(whole[:size])
        with pytest.raises(FormatError, match="t.trace"):
            values_of(path)
    for place in range(0, len(whole), stride):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x41]) + whole[place + 1 :])
        with pytest.raises(FormatError, match="t.trace"):
            values_of(path)
    path.write_bytes(whole + b"x")
    with pytest.raises(FormatError, match="t.trace"):
        values_of(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"sizes": [-1, 1, 2, 3, 4]},
        {"sizes": ["", 1, 2, 3, 4]},
        {"sizes": [1, 2, 3, 4]},
        {"timing": "wrong"},
        {"threads": [[7]]},
        {"threads": []},
        {"names": ["/data/0"], "sizes": [0]},
        {"names": [3] * 5},
        {"names": None},
    ],
)
def test_a_directory_that_lies_is_found(tmp_path, changes):
    """Checksums match, and the directory is impossible."""
    path = tmp_path / "t.trace"
    written(path, [drawn(1, 30, 5)])
    table = pq.read_table(path)
    directory = json.loads(pq.read_metadata(path).metadata[b"penstock"]) | changes
    value = json.dumps(directory).encode()
    pq.write_table(table.replace_schema_metadata({b"penstock": value}), path)
    recording.add_sum(str(path))
    with pytest.raises(FormatError, match="cut or altered"):
        values_of(path)


def test_operations_that_cannot_be_are_found(tmp_path):
    """Row groups that are too long, of two threads, or overlap."""
    path = tmp_path / "t.trace"
    rows = drawn(1, BLOCK, 5)
    written(path, [rows, rows])
    table, metadata = pq.read_table(path), pq.read_metadata(path).metadata
    for wrong in [
        table,  # one row group of all
        table.slice(BLOCK // 2, 10).take([0, 9, 5]),
        table.slice(0, 10).take([9, 0]),
        table.slice(0, 3).drop_columns("result"),
    ]:
        pq.write_table(wrong.replace_schema_metadata(metadata), path)
        recording.add_sum(str(path))
        with pytest.raises(FormatError, match="t.trace"):
            values_of(path)


def test_what_is_no_trace_is_refused(tmp_path):
    """By name, with what to do."""
    (tmp_path / "log").write_text("1 2.000000 read(3) = 1 <0.000001>\n")
    with pytest.raises(FormatError, match="penstock trace import"):
        load(str(tmp_path / "log"))
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(FormatError, match="no trace"):
        load(str(tmp_path / "empty"))
    with pytest.raises(MissingError, match="absent"):
        load(str(tmp_path / "absent"))
    with pytest.raises(UsageError, match="directory"):
        load(str(tmp_path))
    with pytest.raises(UsageError, match="no trace was named"):
        load()


def test_impossible_operations_are_refused_and_leave_nothing(tmp_path):
    """Backwards in time, of no file, longer than asked; after the error no file is there."""
    good = (READ, 0, 0, 10, 10, 100, 5)
    bad = [(READ, 1), (9, 0), (READ, 0, -1), (READ, 0, 0, -1, -1), (READ, 0, 0, 10, 11)]
    bad += [(*good[:5], 99), (*good[:5], -1), (*good[:6], -1), (READ, 0, 1 << 62)]
    for row in bad:
        wrong = (*row, *good[len(row) :])
        with (
            pytest.raises(UsageError),
            TraceWriter(str(tmp_path / "t.trace"), "") as writer,
        ):
            writer.file("/a")
            thread = writer.thread(1, 1)
            writer.add(thread, *good)
            with pytest.raises(UsageError):
                writer.extend(thread, traces.build_operations([wrong]))
            writer.add(thread, *wrong)
        assert os.listdir(tmp_path) == []
    with pytest.raises(UsageError, match="cannot write a trace to"):
        TraceWriter(str(tmp_path / "absent" / "t.trace"), "")


def test_traces_of_several_processes_are_one(tmp_path):
    """Files by name, times by the clock, threads side by side."""
    for number in range(2):
        with TraceWriter(str(tmp_path / f"{number}.trace"), "job") as writer:
            names = ["/x", "/y"] if number else ["/y", "/x"]
            thread = writer.thread(number, 0)
            for i, name in enumerate(names):
                file = writer.file(name, 10 * number)
                writer.add(thread, READ, file, i, 1, 1, 1000 + 10 * i - number, 1)
    trace = load(str(tmp_path / "0.trace"), str(tmp_path / "1.trace"))
    ((who, rows),) = trace.in_order()
    assert who.tolist() == [1, 0, 1, 0]
    assert rows.start_ns.tolist() == [0, 1, 10, 11]
    assert [trace.names[file] for file in rows.file.tolist()] == ["/x", "/y", "/y", "/x"]
    assert trace.sizes.tolist() == [10, 10]
    assert trace.source == "job"
