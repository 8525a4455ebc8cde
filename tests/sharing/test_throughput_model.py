"""The throughput that a job reaches with a share: every limit."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.sharing.allocation import Resources
from penstock.sharing.job_state import JobProfile, Share, predict

JOB = JobProfile(samples_per_s=1000, cpu_s=2e-3, storage_bytes=100e3)

rates = st.floats(1, 1e5)
profiles = st.builds(
    JobProfile,
    samples_per_s=rates,
    cpu_s=st.just(0.0) | st.floats(1e-5, 1e-1),
    storage_bytes=st.just(0.0) | st.floats(1, 1e7),
    remaining_samples=st.floats(1, 1e9),
    efficiency=st.floats(0.5, 1),
)
shares = st.builds(
    Share,
    workers=st.floats(0, 64),
    bytes_per_s=st.just(math.inf) | st.floats(0, 1e10),
)


@pytest.mark.parametrize(
    ("share", "reached", "binding"),
    [
        (Share(workers=4), 1000, "model"),
        (Share(workers=1), 500, "workers"),
        (Share(workers=4, bytes_per_s=25e6), 250, "bandwidth"),
        (Share(workers=0), 0, "workers"),
    ],
)
def test_the_least_limit_binds(share: Share, reached: float, binding: str) -> None:
    """min(G, w/c, b/s), and which of them it is."""
    assert predict(JOB, share) == (reached, 1 - reached / 1000, binding)


@given(profiles, shares, shares)
def test_more_is_never_slower(job: JobProfile, one: Share, other: Share) -> None:
    """With the greater of two shares in every resource, throughput is no less; none of it is above
    the ceiling, and the idle part is what is missing."""

    def join(pick: Callable[[float, float], float]) -> Share:
        return Share(
            workers=pick(one.workers, other.workers),
            bytes_per_s=pick(one.bytes_per_s, other.bytes_per_s),
        )

    low, high = predict(job, join(min)), predict(job, join(max))
    assert low.samples_per_s <= high.samples_per_s * (1 + 1e-9)
    assert 0 <= high.samples_per_s <= job.samples_per_s
    assert high.idle == pytest.approx(1 - high.samples_per_s / job.samples_per_s)


ABSURD = [math.nan, -1.0, -math.inf, 1e-300, 1e300, "1", True]
NUMBERS = [f.name for f in dataclasses.fields(JobProfile)]


@pytest.mark.parametrize("name", NUMBERS)
def test_absurd_profiles_are_refused_by_name(name: str) -> None:
    """NaN, negative, out of all proportion, or no number: UsageError with the name and the value;
    infinite too, and zero but where it says something."""
    alike = {"samples_per_s": 1, "cpu_s": 1, "storage_bytes": 1}
    absurd = [*ABSURD, math.inf]
    if name in ("samples_per_s", "remaining_samples", "efficiency"):
        absurd.append(0.0)
    for value in absurd:
        with pytest.raises(UsageError, match=rf"JobProfile\.{name} is") as caught:
            JobProfile(**{**alike, name: value})  # type: ignore[arg-type]
        assert repr(value) in str(caught.value)


def test_absurd_shares_and_resources_are_refused() -> None:
    """Likewise what is to be divided."""
    for wrong in (0, -1, math.nan, math.inf):
        with pytest.raises(UsageError, match="Resources.cores"):
            Resources(cores=wrong)
    for wrong in (0, -1, math.nan):
        with pytest.raises(UsageError, match="Resources.bytes_per_s"):
            Resources(cores=1, bytes_per_s=wrong)
    for wrong in (-1, math.nan, math.inf):
        with pytest.raises(UsageError, match="Share.workers"):
            Share(workers=wrong)
    with pytest.raises(UsageError, match="efficiency is 1.5"):
        JobProfile(samples_per_s=1, cpu_s=1, storage_bytes=1, efficiency=1.5)
