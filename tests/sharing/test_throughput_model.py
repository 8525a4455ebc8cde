"""What a job reaches with a share: every limit, and streams that share a storage."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.sharing.allocation import Contention, JobProfile, Resources, Share, predict

JOB = JobProfile(samples_per_s=1000, cpu_s=2e-3, storage_bytes=100e3)

rates = st.floats(1, 1e5)
profiles = st.builds(
    JobProfile,
    samples_per_s=rates,
    cpu_s=st.just(0.0) | st.floats(1e-5, 1e-1),
    storage_bytes=st.just(0.0) | st.floats(1, 1e7),
    stream_bytes_per_s=st.just(math.inf) | st.floats(1e5, 1e10),
    separate=st.booleans(),
    samples=st.none() | st.integers(1, 10**9),
    remaining_samples=st.floats(1, 1e9),
    efficiency=st.floats(0.5, 1),
)
shares = st.builds(
    Share,
    workers=st.floats(0, 64),
    bytes_per_s=st.just(math.inf) | st.floats(0, 1e10),
    streams=st.none() | st.integers(1, 64),
    cache_bytes=st.floats(0, 1e12),
)
curves = st.lists(st.floats(1e6, 1e9), min_size=1, max_size=5).map(
    lambda rates: Contention(  # the more, the slower each of them
        streams=tuple(2.0**place for place in range(len(rates))),
        bytes_per_s=tuple(
            2.0**place * each for place, each in enumerate(sorted(rates, reverse=True))
        ),
    )
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


def test_blocking_reads_hold_a_worker_or_a_stream() -> None:
    """100 kB at 50 MB/s are 2 ms: beside decoding they halve what a worker does; in a pool of their
    own they limit what their streams bring."""
    alike = {"samples_per_s": 1000, "cpu_s": 2e-3, "storage_bytes": 100e3}
    together = JobProfile(**alike, stream_bytes_per_s=50e6)
    apart = JobProfile(**alike, stream_bytes_per_s=50e6, separate=True)
    assert predict(together, Share(workers=1)).samples_per_s == pytest.approx(250)
    assert predict(apart, Share(workers=1)).samples_per_s == pytest.approx(500)
    assert predict(apart, Share(workers=1, streams=0.5)) == (250, 0.75, "streams")


def test_a_cached_byte_saves_one_an_epoch() -> None:
    """Half of the data cached halves the bytes; what was held while measuring is counted."""
    job = JobProfile(samples_per_s=1e6, cpu_s=0, storage_bytes=100e3, samples=1000)
    assert job.cacheable_bytes == 100e6
    assert predict(job, Share(workers=1, bytes_per_s=1e6, cache_bytes=50e6))[0] == 20
    held = JobProfile(
        samples_per_s=1e6, cpu_s=0, storage_bytes=50e3, samples=1000, cached_bytes=50e6
    )
    assert held.cacheable_bytes == 100e6
    assert predict(held, Share(workers=1, bytes_per_s=1e6))[0] == 10
    assert predict(held, Share(workers=1, cache_bytes=100e6)).binding == "model"


@given(profiles, shares, shares, curves)
def test_more_is_never_slower(job: JobProfile, one: Share, other: Share, curve: Contention) -> None:
    """With the greater of two shares in every resource, throughput is no less; none of it is above
    the ceiling, and the idle part is what is missing."""

    def join(pick: Callable[[float, float], float]) -> Share:
        known = None if None in (one.streams, other.streams) else pick(one.streams, other.streams)
        return Share(
            workers=pick(one.workers, other.workers),
            bytes_per_s=pick(one.bytes_per_s, other.bytes_per_s),
            streams=known,
            cache_bytes=pick(one.cache_bytes, other.cache_bytes),
        )

    low, high = predict(job, join(min)), predict(job, join(max))
    assert low.samples_per_s <= high.samples_per_s * (1 + 1e-9)
    assert 0 <= high.samples_per_s <= job.samples_per_s
    assert high.idle == pytest.approx(1 - high.samples_per_s / job.samples_per_s)
    assert predict(job, one, curve).samples_per_s <= predict(job, one).samples_per_s * (1 + 1e-9)


def test_streams_share_what_storage_gives() -> None:
    """Four workers that only read get what storage gives to four streams, and to eight half of it
    with as many of another job; one reads alone at its own rate."""
    curve = Contention(streams=(1, 4, 8), bytes_per_s=(50e6, 120e6, 160e6))
    job = JobProfile(samples_per_s=1e6, cpu_s=0, storage_bytes=1e5, stream_bytes_per_s=50e6)
    assert predict(job, Share(workers=4), curve)[0] == pytest.approx(1200)
    assert predict(job, Share(workers=4), curve, other_streams=4)[0] == pytest.approx(800)
    assert predict(job, Share(workers=1), curve)[0] == pytest.approx(500)
    assert curve.total(2) == pytest.approx(50e6 + 70e6 / 3)
    assert (curve.total(0.5), curve.total(100), curve.best) == (25e6, 160e6, 8)


@pytest.mark.parametrize(("workers", "reached"), [(1, 500), (1.5, 750), (2, 1000), (3, 1000)])
def test_busy_streams_are_those_that_read(workers: float, reached: float) -> None:
    """Decoding takes 1 ms and reading alone 1 ms, of a storage that gives no more to several: two
    workers, of which one reads at a time, have it to themselves."""
    curve = Contention(streams=(1,), bytes_per_s=(100e6,))
    job = JobProfile(samples_per_s=1e6, cpu_s=1e-3, storage_bytes=1e5, stream_bytes_per_s=1e8)
    assert predict(job, Share(workers=workers), curve)[0] == pytest.approx(reached)


@given(profiles, st.floats(0.1, 64), curves, st.floats(0, 64))
def test_contention_slows_by_the_streams_that_are_busy(
    job: JobProfile, workers: float, curve: Contention, others: float
) -> None:
    """No faster than with the others' streams alone, no slower than with all of its own busy."""
    share = Share(workers=workers, streams=workers)

    def at(streams: float) -> float:
        rate = min(job.stream_bytes_per_s, curve.each(streams))
        rate = math.inf if job.stream_bytes_per_s == math.inf else rate
        return predict(dataclasses.replace(job, stream_bytes_per_s=rate), share).samples_per_s

    found = predict(job, share, curve, others).samples_per_s
    assert at(others + workers) * (1 - 1e-9) <= found <= at(others) * (1 + 1e-9)


ABSURD = [math.nan, -1.0, -math.inf, 1e-300, 1e300, "1", True]
NUMBERS = [f.name for f in dataclasses.fields(JobProfile) if f.name != "separate"]


@pytest.mark.parametrize("name", NUMBERS)
def test_absurd_profiles_are_refused_by_name(name: str) -> None:
    """NaN, negative, out of all proportion, or no number: UsageError with the name and the value;
    zero and infinite too, but where they say something."""
    alike = {"samples_per_s": 1, "cpu_s": 1, "storage_bytes": 1, "samples": 1}
    absurd = list(ABSURD)
    if name in (
        "samples_per_s",
        "samples",
        "remaining_samples",
        "efficiency",
        "stream_bytes_per_s",
    ):
        absurd.append(0.0)
    if name != "stream_bytes_per_s":
        absurd.append(math.inf)
    for value in absurd:
        with pytest.raises(UsageError, match=rf"JobProfile\.{name} is") as caught:
            JobProfile(**{**alike, name: value})  # type: ignore[arg-type]
        assert repr(value) in str(caught.value)


def test_absurd_shares_and_resources_are_refused() -> None:
    """Likewise what is to be divided, and contention that is no curve."""
    for wrong in (0, -1, math.nan, math.inf):
        with pytest.raises(UsageError, match="Resources.cores"):
            Resources(cores=wrong)
    for wrong in (0, -1, math.nan):
        with pytest.raises(UsageError, match="Resources.bytes_per_s"):
            Resources(cores=1, bytes_per_s=wrong)
    for wrong in (-1, math.nan, math.inf):
        with pytest.raises(UsageError, match="Share.workers"):
            Share(workers=wrong)
    for streams, rates in (((), ()), ((1, 2), (1,)), ((2, 1), (1, 1)), ((0.5,), (1,))):
        with pytest.raises(UsageError, match="Contention"):
            Contention(streams=streams, bytes_per_s=rates)
    with pytest.raises(UsageError, match=r"Contention\.bytes_per_s"):
        Contention(streams=(1, 2), bytes_per_s=(1, math.nan))
    with pytest.raises(UsageError, match="efficiency is 1.5"):
        JobProfile(samples_per_s=1, cpu_s=1, storage_bytes=1, efficiency=1.5)
    with pytest.raises(UsageError, match="cached_bytes is 5"):
        JobProfile(samples_per_s=1, cpu_s=1, storage_bytes=1, cached_bytes=5)
