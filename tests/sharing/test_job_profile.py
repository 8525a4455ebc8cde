"""Profiles measured from a loader's counters, against loops whose figures are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.meter import Counters, Meter, Span
from penstock.sharing.job_state import JobProfile
from penstock.sharing.leased_budget import Profiler, measure_window

MS = 1_000_000


@given(
    st.integers(1, 300),
    st.integers(1, 64),
    st.integers(1, 5000),
    st.integers(0, 5000),
    st.integers(0, 20),
    st.integers(0, 10**6),
)
def test_what_went_in_comes_out(
    batches: int, rows: int, compute_ms: int, wait_ms: int, cpu_ms: int, sample_bytes: int
) -> None:
    """Steps that are all alike, whatever was read ahead, give ceiling, cost and stall exactly."""
    meter = Meter()
    now = 1
    meter.count_epoch(now)
    for _ in range(batches):
        meter.count_request(now)
        ready = now + wait_ms * MS
        meter.count_decoding([Span(1, now, ready, cpu_ms * MS)])
        meter.count_batch(now, ready, ready, rows, 0, 0)
        now = ready + compute_ms * MS
    meter.count_request(now)
    ahead = 3
    engine = {"bytes": (batches + ahead) * rows * sample_bytes, "tickets": batches + ahead}
    found = measure_window(meter.counters(now, engine).since(Counters(time_ns=1)))
    assert found is not None
    assert found.samples_per_s == pytest.approx(rows / (compute_ms * 1e-3))
    assert found.cpu_s == pytest.approx(cpu_ms * 1e-3 / rows)
    assert found.storage_bytes == pytest.approx(sample_bytes)
    assert found.stall == pytest.approx(wait_ms / (wait_ms + compute_ms))
    assert found.rate == pytest.approx(rows / ((wait_ms + compute_ms) * 1e-3))


def test_nothing_is_measured_of_nothing() -> None:
    """No batch, or no step of the user's: no profile."""
    assert measure_window(Counters(time_ns=10)) is None
    assert measure_window(Counters(time_ns=10, batches=1, samples=4)) is None
    stepped = Counters(time_ns=10, batches=1, samples=4, compute_ns=5, engine={"tickets": 0})
    assert measure_window(stepped) is None


def test_who_has_read_far_ahead_is_measured_too() -> None:
    """By the bytes of what it read before, for as long as it uses that up."""
    profiler = Profiler()
    engine = {"bytes": 64 * 8 * 100, "tickets": 64}
    for second in range(4):
        found = profiler.measure(
            Counters(
                time_ns=int(second * 1e9),
                batches=10 * second,
                samples=80 * second,
                compute_ns=1000 * second * MS,
                engine=engine,
            )
        )
        assert (found is None) == (second == 0)
        assert found is None or (found.storage_bytes, found.samples_per_s) == (100, 80)


def test_windows_are_whole() -> None:
    """A window holds a second and four batches; until then the last one stands."""
    profiler = Profiler()

    def at(second: float, batches: int) -> Counters:
        return Counters(
            time_ns=int(second * 1e9),
            batches=batches,
            samples=8 * batches,
            compute_ns=batches * 100 * MS,
        )

    assert profiler.measure(at(0, 0)) is None
    assert profiler.measure(at(0.9, 9)) is None
    first = profiler.measure(at(1.1, 10))
    assert first is not None
    assert first.samples == 80
    assert profiler.measure(at(9.0, 13)) is None
    second = profiler.measure(at(9.1, 14))
    assert second is not None
    assert second.samples == 32


def test_a_loader_is_measured(tmp_path: Path) -> None:
    """The bytes of a sample are those of the file, whatever is read ahead; and a profile it is."""
    path = tmp_path / "records.bin"
    path.write_bytes(np.arange(64 * 500, dtype=np.uint64).tobytes())
    dataset = penstock.open(path, record_bytes=512, index="memory")
    loader = penstock.Loader(dataset, 20, budget=penstock.Budget(readahead_bytes=20 * 512))
    batches = iter(loader)
    next(batches)
    before = loader.counters()
    for _ in range(5):
        next(batches)
    found = measure_window(loader.counters().since(before))
    assert found is not None
    assert found.samples == 100
    assert found.cpu_s == 0
    assert found.storage_bytes == 512
    JobProfile(
        samples_per_s=found.samples_per_s, cpu_s=found.cpu_s, storage_bytes=found.storage_bytes
    )
