"""Times of many operations in little memory: counted in bins that are 1 % wide."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from penstock.extent import Int

_RATIO = math.log(1.01)
_BINS = 4400  # up to 2^63 ns


class Latencies:
    """Times in nanoseconds: how many, their sum and largest exactly, percentiles within 1 %."""

    def __init__(self) -> None:
        self.count = 0
        self.sum_ns = 0
        self.max_ns = 0
        self._bins: npt.NDArray[np.int64] = np.zeros(_BINS, np.int64)

    def add(self, times_ns: Int) -> None:
        """Add some times; those below 0 count as 0."""
        if len(times_ns) == 0:
            return
        times_ns = np.maximum(times_ns, 0)
        self.count += len(times_ns)
        self.sum_ns += int(times_ns.sum())
        self.max_ns = max(self.max_ns, int(times_ns.max()))
        # Bin 0 is below 1 ns; bin i from 1.01^(i-1) on.
        bins = (np.log(np.maximum(times_ns, 1)) / _RATIO).astype(np.int64) + (times_ns > 0)
        self._bins += np.bincount(bins, minlength=_BINS)

    def join(self, other: Latencies) -> None:
        """Add the times of another."""
        self.count += other.count
        self.sum_ns += other.sum_ns
        self.max_ns = max(self.max_ns, other.max_ns)
        self._bins += other._bins

    def percentile_s(self, percent: float) -> float:
        """Seconds that so many percent of the times do not exceed; 0 if there are none."""
        if self.count == 0:
            return 0.0
        rank = max(1, math.ceil(self.count * percent / 100))
        bin = int(np.searchsorted(np.cumsum(self._bins), rank))
        middle = 0.0 if bin == 0 else math.exp((bin - 0.5) * _RATIO)
        return min(middle, self.max_ns) * 1e-9

    def share_within(self, limit_s: float) -> float:
        """About the share of times within a limit; 1 if there are none."""
        if self.count == 0:
            return 1.0
        last = int(math.log(max(1.0, limit_s * 1e9)) / _RATIO) + 1
        return float(self._bins[: last + 1].sum() / self.count)

    def values(self) -> dict[str, float]:
        """Figures for reports, in seconds."""
        return {
            "count": self.count,
            "sum_s": self.sum_ns * 1e-9,
            "p50_s": self.percentile_s(50),
            "p95_s": self.percentile_s(95),
            "p99_s": self.percentile_s(99),
            "max_s": self.max_ns * 1e-9,
        }
