"""Time and memory of a call, and the limits that they are held against."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

HOST_RANKS = 8
BLOCK_SAMPLES = 128
"""Samples of a cache block: 64 KiB."""
RANK_MB = 256.0
HOST_MB = 64e3
"""Index that a host maps and would keep in its page cache."""
START_S = 10.0
COMMIT_S = 30.0
STEP_MS = 100.0
"""A tenth of a training step of a second."""
SAMPLE_NS = 1000.0
DESCRIPTORS = 1024.0


def time_least(call: Callable[[], object], repeats: int = 3) -> float:
    """Return the least processor time of this thread over several calls, in seconds."""
    times = []
    for _ in range(repeats):
        started = time.thread_time()
        call()
        times.append(time.thread_time() - started)
    return min(times)


def trace_peak(call: Callable[[], object]) -> float:
    """Return the most memory that a call takes besides what there was, in MB."""
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 1e6


def powers(low: int, high: int) -> list[int]:
    """Return the powers of ten from 10^low to 10^high."""
    return [10**power for power in range(low, high + 1)]


def read_status(key: str) -> float:
    """Return a line of /proc/self/status, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1e3 for line in lines if line.startswith(f"{key}:"))
