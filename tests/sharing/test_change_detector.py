"""Shares are divided anew after changes that last, and only where it pays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.sharing.allocation import Resources, allocate, even_share
from penstock.sharing.job_state import Drift, JobProfile, Share
from penstock.sharing.ledger import is_worthwhile

JOB = JobProfile(samples_per_s=1000, cpu_s=2e-3, storage_bytes=100e3)
FOLLOWED = ("samples_per_s", "cpu_s", "storage_bytes", "efficiency")


def scaled(name: str, factor: float) -> JobProfile:
    return replace(JOB, **{name: getattr(JOB, name) * factor})


@given(st.lists(st.sampled_from(FOLLOWED[:3]), min_size=1, max_size=50), st.data())
def test_within_tolerance_nothing_happens(names: list[str], data: st.DataObject) -> None:
    """However long values move within 20 %."""
    drift = Drift(JOB)
    for name in names:
        assert drift.observe(scaled(name, data.draw(st.floats(0.81, 1.19)))) is None
    assert drift.profile == JOB


@given(st.sampled_from(FOLLOWED), st.floats(0.05, 0.5), st.integers(1, 6))
def test_a_step_is_told_once(name: str, factor: float, windows: int) -> None:
    """Not before so many windows, soon after, once, and nearly at its new value, in either
    direction."""
    for start, now in ((JOB, scaled(name, factor)), (scaled(name, factor), JOB)):
        drift = Drift(start, windows=windows)
        told = [drift.observe(now) for _ in range(30)]
        first = next(place for place, each in enumerate(told) if each is not None)
        assert windows - 1 <= first <= windows + 4
        assert getattr(drift.profile, name) == pytest.approx(
            getattr(now, name), rel=0.2501
        )  # 1 / 0.8
        gaps = np.diff([place for place, each in enumerate(told) if each is not None])
        assert (gaps >= windows).all()


def test_one_odd_window_changes_nothing() -> None:
    """Nor do many that are not in a row, or on alternating sides."""
    drift = Drift(JOB, windows=2)
    for _ in range(20):
        assert drift.observe(scaled("cpu_s", 30)) is None
        assert drift.observe(JOB) is None
    other = Drift(JOB, windows=2, weight=1)
    for _ in range(20):
        assert other.observe(scaled("cpu_s", 2)) is None
        assert other.observe(scaled("cpu_s", 0.5)) is None


def test_from_and_to_nothing() -> None:
    """Bytes that come up where there were none."""
    cached = replace(JOB, storage_bytes=0.0)
    drift = Drift(cached, windows=2)
    assert [drift.observe(JOB) for _ in range(2)][-1] is not None


def test_switching_must_pay() -> None:
    """A gain is worth a switch if the horizon is long enough; a job below its floor always is."""
    host = Resources(cores=10, bytes_per_s=1e9)
    jobs = [
        replace(JOB, cpu_s=10e-3, storage_bytes=1e3),
        replace(JOB, cpu_s=1e-4, storage_bytes=1e6),
    ]
    even = [even_share(jobs, host)] * 2
    proposed = allocate(jobs, host)
    gain = proposed.value / 1.0 - 1  # an even split gives each half of what its model takes
    assert gain == pytest.approx(0.9, abs=0.1)
    assert is_worthwhile(jobs, even, proposed, horizon_s=60, switch_s=30)
    assert not is_worthwhile(jobs, even, proposed, horizon_s=60, switch_s=90)
    assert not is_worthwhile(jobs, proposed.shares, proposed, horizon_s=1e9, switch_s=1)
    starved = [Share(workers=0.1, bytes_per_s=1e9), Share(workers=9.9, bytes_per_s=1e9)]
    assert is_worthwhile(jobs, starved, proposed, horizon_s=0, switch_s=90)


@given(st.integers(1, 1200))
def test_what_vanishes_is_nothing_in_the_end(windows: int) -> None:
    """Bytes that are no longer read never leave a remainder that no profile may hold."""
    drift = Drift(JOB)
    gone = replace(JOB, storage_bytes=0.0)
    for _ in range(windows):
        drift.observe(gone)
    slower = replace(gone, cpu_s=10 * JOB.cpu_s)
    found = [each for _ in range(5) if (each := drift.observe(slower)) is not None]
    assert found[0].storage_bytes < JOB.storage_bytes / 2
