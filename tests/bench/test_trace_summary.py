"""The summary of a trace, against the same figures worked out read by read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_bench.traces import summary as trace_summary
from penstock_bench.traces.summary import BINS, Latencies, passes, rank_names, summarise
from penstock_bench.traces.trace_file import OPEN, READ, Trace, TraceWriter, load

Read = tuple[int, int, int, int]
"""Thread, file, offset, length."""


def traced(path: Path, reads: list[Read], files: int = 4) -> Trace:
    """Reads, each of 5 ns every 10 ns, of 4/5 of what was asked for; an open that failed."""
    with TraceWriter(str(path), "a test") as writer:
        for number in range(files):
            writer.file(f"/data/{number}")
        threads = [writer.thread(1, number) for number in range(3)]
        for number, (thread, file, offset, length) in enumerate(reads):
            row = (READ, file, offset, length, length * 4 // 5, 1000 + 10 * number, 5)
            writer.add(threads[thread], *row)
        writer.add(threads[0], OPEN, 0, 0, 0, -2, 1000 + 10 * len(reads), 5)
    return load(str(path))


reads = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 300), st.integers(0, 100)),
    max_size=60,
)


@given(reads, st.sampled_from([1, 10, 1 << 20]))
def test_summaries_count_what_was_read(tmp_path_factory, reads, joined):
    """Bytes, different bytes, sequential reads, sizes, rates, files: as one would by hand."""
    trace = traced(tmp_path_factory.getbasetemp() / "s.trace", reads)
    before = trace_summary._ranges_min
    trace_summary._ranges_min = joined  # ranges are joined as they come, or in the end
    try:
        found = summarise(trace)
    finally:
        trace_summary._ranges_min = before
    gave = [(thread, file, offset, length * 4 // 5) for thread, file, offset, length in reads]
    assert found.counts["read"] == len(reads)
    assert found.counts["open"] == found.failed == 1
    assert found.bytes == sum(row[3] for row in gave)
    assert found.asked_bytes == sum(row[3] for row in reads)
    different = {(file, offset + i) for _, file, offset, length in gave for i in range(length)}
    assert found.unique_bytes == len(different)
    follows, ends = 0, {}
    some = [row for row in gave if row[3]]
    for thread, file, offset, length in some:
        follows += ends.get(thread) == (file, offset)
        ends[thread] = (file, offset + length)
    assert found.sequential == pytest.approx(follows / len(some) if some else 0)
    assert [[row[1] for row in gave].count(file) for file in range(4)] == found.file_reads.tolist()
    assert found.file_bytes.sum() == found.rate.sum() == found.bytes
    assert len(found.rate) == BINS
    sizes = [0] * 64
    for row in gave:
        sizes[row[3].bit_length()] += 1
    assert found.sizes.tolist() == sizes
    assert found.busy_s == pytest.approx(5e-9 * (len(reads) + 1))
    assert found.values()["reread"] == pytest.approx(found.bytes / max(1, len(different)))


def test_a_trace_of_nothing():
    """No division by nothing; `values` is JSON of numbers."""
    assert trace_summary.Summary().values()["reread"] == 0
    assert Latencies().percentile_s(99) == 0
    assert Latencies().share_within(1) == 1


def epochs(orders: list[np.ndarray], per_file: int = 10) -> trace_summary.Passes:
    """Passes over samples, of which so many are in a file."""
    order = np.concatenate(orders)
    file = (order // per_file).astype(np.uint32)
    files = int(file.max()) + 1
    return passes(file, order % per_file * 100, np.arange(files))


def test_shuffled_epochs_are_found():
    """Three, each in another order; and what a torch sampler would give twice."""
    draw = np.random.default_rng(1)
    found = epochs([draw.permutation(1000) for _ in range(3)])
    assert found.count == 3
    assert found.epochs
    assert found.order == "shuffled"
    assert found.reshuffled is True
    assert found.said == "3.0 epochs, shuffled, each in another order"
    order = draw.permutation(1000)
    again = epochs([order, order])
    assert again.reshuffled is False
    assert again.epochs


def test_other_orders_are_told_apart():
    """In the order of storage; read ahead over the ends of epochs; at random; once; in blocks."""
    draw = np.random.default_rng(2)
    inorder = epochs([np.arange(1000)] * 2)
    assert (inorder.order, inorder.reshuffled, inorder.epochs) == ("storage", False, True)
    # Two workers, which are a batch apart.
    workers = np.arange(1000).reshape(-1, 2, 10).transpose(0, 2, 1).reshape(-1)
    assert epochs([workers] * 2).order == "storage"
    flow = np.concatenate([draw.permutation(1000) for _ in range(3)])
    for first in range(0, 2980, 20):  # a little out of turn
        flow[first : first + 20] = draw.permutation(flow[first : first + 20])
    assert epochs([flow]).epochs
    at_random = epochs([draw.integers(0, 1000, 3000)])
    assert not at_random.epochs
    assert "not by epochs" in at_random.said
    once = epochs([draw.permutation(1000)])
    assert (once.count, once.epochs, once.reshuffled) == (1, False, None)
    assert once.said == "one pass, shuffled"
    blocks = epochs([np.concatenate([500 * b + draw.permutation(500) for b in range(2)])])
    assert blocks.order == "partly"


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30))
def test_passes_of_anything(order):
    """Never an error, and never more passes than reads."""
    found = epochs([np.array(order)])
    assert 1 <= found.count <= len(order)
    assert 0 <= found.whole <= 1


def test_files_are_in_the_order_of_their_names():
    """Files are ordered as people count."""
    names = ["/d/10.x", "/d/2.x", "/d/1.x", "/c/9.x", "/d/2.y"]
    assert rank_names(names).tolist() == [4, 2, 1, 0, 3]


@given(st.lists(st.integers(0, 1 << 50), min_size=1, max_size=200), st.integers(1, 100))
def test_percentiles_are_within_a_hundredth(times, percent):
    """Percentiles are within a hundredth of sorting's; sums and the largest are exact."""
    first, second = Latencies(), Latencies()
    first.add(np.array(times[::2], np.int64))
    second.add(np.array(times[1::2], np.int64))
    first.join(second)
    assert (first.count, first.sum_ns, first.max_ns) == (len(times), sum(times), max(times))
    exact = sorted(times)[max(1, -(-len(times) * percent // 100)) - 1] * 1e-9
    assert first.percentile_s(percent) == pytest.approx(exact, rel=0.0101, abs=1e-9)
    within = sum(each <= 1e6 for each in times) / len(times)
    nearly = sum(each <= 1.02e6 for each in times) / len(times)
    assert within <= first.share_within(1e-3) <= nearly
