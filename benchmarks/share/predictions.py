"""What jobs were predicted to do with a share, from profiles measured live, against what they do.

All jobs run together. They are profiled while they have even shares, in one window; then the host is
divided at random, several times, and each job's throughput is predicted before it is measured.
"""

from __future__ import annotations

from statistics import median
from typing import Any

import numpy as np

from benchmarks.race import say
from benchmarks.record import Row
from penstock.allocation import Resources
from penstock.throughput import Share, predict

from .host import Site
from .modes import even_shares
from .work import Job

JOBS = (
    Job("classifier", "photos", 16, 60),
    Job("self-supervised", "views", 8, 80),
    Job("language", "tokens", 8, 100),
    Job("volumes", "volumes", 4, 50),
    Job("speech", "speech", 8, 80),
)
LEAST = 0.35
"""Of an even share, that each job has in each division: with less, a window has too few steps."""
PROFILE_S, SETTLE_S, WINDOW_S = 4.0, 1.5, 4.0
MEDIAN, WORST = 0.05, 0.15


def divisions(count: int, jobs: int, resources: Resources, seed: int) -> list[list[Share]]:
    """Random divisions of all there is."""
    random = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        parts = LEAST / jobs + (1 - LEAST) * random.dirichlet(np.ones(jobs), 2)
        found.append(
            [
                Share(workers=float(cores), bytes_per_s=float(rate))
                for cores, rate in zip(
                    parts[0] * resources.cores, parts[1] * resources.bytes_per_s, strict=True
                )
            ]
        )
    return found


def measure(site: Site, count: int, seed: int, window_s: float = WINDOW_S) -> list[dict[str, Any]]:
    """A point for each division and job."""
    points: list[dict[str, Any]] = []
    first = even_shares(len(JOBS), site.resources)
    with site.start(JOBS, [{}] * len(JOBS)) as host:
        host.share(first)
        host.go()
        profiles = [each.profile for each in host.windows(PROFILE_S, 2 * SETTLE_S)]
        for shares in divisions(count, len(JOBS), site.resources, seed):
            host.share(shares)
            windows = host.windows(window_s, SETTLE_S)
            for job, profile, share, window in zip(JOBS, profiles, shares, windows, strict=True):
                assert profile is not None
                found = predict(profile, share)
                point = {
                    "job": job.name,
                    "cores": share.workers,
                    "bytes_per_s": share.bytes_per_s,
                    "predicted": found.samples_per_s,
                    "binding": found.binding,
                    "measured": window.samples_per_s,
                    "error": found.samples_per_s / window.samples_per_s - 1,
                    "took": {"cores": window.cores, "bytes_per_s": window.bytes_per_s},
                    "profile": [profile.samples_per_s, profile.cpu_s, profile.storage_bytes],
                }
                now = window.profile
                if now is not None:
                    point["profile_now"] = [now.samples_per_s, now.cpu_s, now.storage_bytes]
                points.append(point)
                say(
                    f"  {job.name}: {share.workers:.2f} cores, {share.bytes_per_s / 1e6:.0f} MB/s: "
                    f"{found.samples_per_s:.1f} predicted ({found.binding}), "
                    f"{window.samples_per_s:.1f} measured, {100 * point['error']:+.1f} %"
                )
    return points


def rows(points: list[dict[str, Any]]) -> list[Row]:
    errors = [abs(point["error"]) for point in points]
    bound = {
        name: sum(point["binding"] == name for point in points)
        for name in ("model", "workers", "bandwidth")
    }
    note = ", ".join(f"{count} bound by {name}" for name, count in bound.items())
    worst = points[int(np.argmax(errors))]
    name = f"prediction, {len(points)} profiles x shares"
    return [
        limit(f"{name}: median error", 100 * median(errors), 100 * MEDIAN, note),
        limit(
            f"{name}: worst error",
            100 * max(errors),
            100 * WORST,
            f"{worst['job']}, {worst['cores']:.2f} cores, {worst['bytes_per_s'] / 1e6:.0f} MB/s",
        ),
    ]


def limit(name: str, value: float, target: float, note: str = "") -> Row:
    """A row with an upper limit, in percent."""
    note = "; ".join(filter(None, (note, "target is an upper limit")))
    return Row(name, value, "%", None, value, target, value <= target, note=note)
