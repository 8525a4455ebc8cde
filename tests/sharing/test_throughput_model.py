"""The throughput that a job reaches with a share: every limit."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.sharing.allocation import Resources
from penstock.sharing.job_state import JobProfile, Share, predict
from penstock.sharing.lease import steps_ahead

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
    found = predict(JOB, share)
    assert (found.samples_per_s, found.idle, found.binding) == (
        reached,
        1 - reached / 1000,
        binding,
    )


@pytest.mark.parametrize(
    ("share", "least"),
    [
        (Share(workers=2), 4 / (2e-3 + 3 * 1e-3)),  # steps and decoding take 1 ms each
        (Share(workers=1, bytes_per_s=50e6), 4 / (5e-3 + 3 * 2e-3)),
        (Share(workers=0), 0),
    ],
)
def test_the_least_rate_of_varying_times(share: Share, least: float) -> None:
    """The bound of four batches: N / (sum of the times + (N - 1) * the longest)."""
    assert predict(JOB, share).least_samples_per_s == pytest.approx(least)


@settings(max_examples=20)
@given(st.lists(st.floats(0.1, 1), min_size=3, max_size=3), st.integers(0, 2**32))
def test_a_loop_of_exponential_times_is_within_the_interval(times: list[float], seed: int) -> None:
    """Four batches go round reading, decoding and a step, which take exponential times: the oracle
    is a simulation of that loop."""
    job = JobProfile(samples_per_s=1 / times[0], cpu_s=times[1], storage_bytes=times[2])
    found = predict(job, Share(workers=1, bytes_per_s=1))
    random = np.random.default_rng(seed)
    free, ready = [0.0] * 3, [0.0] * steps_ahead
    rounds = 5_000
    for drawn in random.exponential(times, (rounds, 3)):
        batch = int(np.argmin(ready))
        at = ready[batch]
        for station in range(3):
            at = free[station] = max(at, free[station]) + drawn[station]
        ready[batch] = at
    rate = rounds / max(ready)
    assert found.least_samples_per_s * 0.95 <= rate <= found.samples_per_s * 1.05


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
    assert 0 <= low.least_samples_per_s <= low.samples_per_s
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
