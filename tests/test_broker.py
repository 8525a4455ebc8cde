"""The broker with real processes: a socket, jobs that come and go."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tenants import Job, broker

CORES, RATE = 4.0, 100e6
OPTIONS = ("--cores", "4", "--bytes-per-s", "100MB/s")
DECODES = {"samples_per_s": 1000.0, "cpu_s": 10e-3, "storage_bytes": 10e3}
"""Wants 10 cores."""
READS = {"samples_per_s": 1000.0, "cpu_s": 0.1e-3, "storage_bytes": 1e6}
"""Wants 1 GB/s."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "broker.sock"


@contextlib.contextmanager
def job(
    path: Path, name: str, profile: Mapping[str, float] | None, **options: float
) -> Iterator[Job]:
    started = Job(path, name, profile, **options)  # type: ignore[arg-type]
    try:
        yield started
    finally:
        started.end()


def test_two_jobs_share_a_host(path: Path) -> None:
    """The first has all of it, then half; once both are measured each has what it can use; and all
    of it is the other's when one is killed."""
    with broker(path, *OPTIONS), job(path, "a", DECODES) as decodes:
        decodes.until(lambda lease: lease is not None and lease["cores"] == CORES)
        with job(path, "b", READS) as reads:
            found = decodes.until(lambda lease: lease is not None and lease["cores"] > 0.9 * CORES)
            assert found is not None
            assert found["floor_cores"] == CORES / 2
            reads.until(lambda lease: lease is not None and lease["bytes_per_s"] > 0.9 * RATE)
        found = decodes.until(lambda lease: lease is not None and lease["floor_cores"] == CORES)
        assert found is not None
        assert found["cores"] == CORES
        assert found["bytes_per_s"] == RATE
