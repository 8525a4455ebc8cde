"""The throughput of jobs with a share, against what was predicted from profiles that were measured
live.

All jobs run together. The host is divided at random, several times; what each job was seen to need
with one share says what it will do with the next. Both are measured in one time, A B B A A B B A:
the machine's speed drifts by a tenth in seconds, and shares would be blamed for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby, pairwise
from statistics import median
from typing import Any

import numpy as np

from benchmarks.race import say
from benchmarks.record import Row
from penstock.sharing.allocation import Resources
from penstock.sharing.job_state import JobProfile, Share, predict

from .host import Host, Site, Window, window_of
from .work import Job

JOBS = (
    Job("classifier", "photos", 16, 60),
    Job("self-supervised", "views", 8, 80),
    Job("language", "tokens", 8, 100),
    Job("volumes", "volumes", 4, 50),
    Job("speech", "speech", 8, 80),
)
LEAST = 0.35
"""The part of an even share that each job has at least: with less, a window has too few steps."""
SETTLE_S, WINDOW_S, ROUNDS = 1.2, 2.0, 2
MEDIAN, OUTSIDE = 0.05, 0.1


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


def measure(site: Site, count: int, seed: int) -> tuple[list[Row], list[dict[str, Any]]]:
    """Rows, and a point for each division and job."""
    site.warm(JOBS)
    points: list[dict[str, Any]] = []
    with site.start(JOBS) as host:
        host.go()
        for old, new in pairwise(divisions(count + 1, len(JOBS), site.resources, seed)):
            windows, profiles = take_turns(host, old, new)
            for job, profile, share, window in zip(JOBS, profiles, new, windows, strict=True):
                assert profile is not None, f"{job.name} got no batch: windows are too short"
                points.append(point(job, profile, share, window))
    return rows_of(points), points


def take_turns(
    host: Host, old: Sequence[Share], new: Sequence[Share]
) -> tuple[list[Window], list[JobProfile | None]]:
    """The jobs' windows with new shares, and their profiles with old ones, of the same time."""
    found = ([Counter[str]() for _ in JOBS], [Counter[str]() for _ in JOBS])
    for is_new, turns in groupby((0, 1, 1, 0) * ROUNDS):
        host.share(new if is_new else old)
        counted = host.counts(WINDOW_S * len([*turns]), SETTLE_S)
        for total, one in zip(found[is_new], counted, strict=True):
            total.update(one)
    windows, before = (list(map(window_of, JOBS, totals)) for totals in found[::-1])
    return windows, [each.profile for each in before]


def point(job: Job, profile: JobProfile, share: Share, window: Window) -> dict[str, Any]:
    """A prediction, and what came of it."""
    found = predict(profile, share)
    error = found.samples_per_s / window.samples_per_s - 1
    say(
        f"  {job.name}: {share.workers:.2f} cores ({window.cores:.2f} taken), "
        f"{share.bytes_per_s / 1e6:.0f} MB/s ({window.bytes_per_s / 1e6:.0f}): "
        f"{found.least_samples_per_s:.1f} to {found.samples_per_s:.1f} predicted "
        f"({found.binding}), "
        f"{window.samples_per_s:.1f} measured, {100 * error:+.1f} %"
    )
    return {
        "job": job.name,
        "cores": share.workers,
        "bytes_per_s": share.bytes_per_s,
        "profile": asdict(profile),
        "predicted": found.samples_per_s,
        "predicted_least": found.least_samples_per_s,
        "binding": found.binding,
        "measured": window.samples_per_s,
        "error": error,
        "taken": {"cores": window.cores, "bytes_per_s": window.bytes_per_s},
    }


def rows_of(points: list[dict[str, Any]]) -> list[Row]:
    errors = [abs(point["error"]) for point in points]
    bound = {
        name: sum(point["binding"] == name for point in points)
        for name in ("model", "workers", "bandwidth")
    }
    note = ", ".join(f"{count} bound by {name}" for name, count in bound.items())
    outside = [measure_outside(point) for point in points]
    worst = points[int(np.argmax(outside))]
    where = f"{worst['job']}, {worst['cores']:.2f} cores, {worst['bytes_per_s'] / 1e6:.0f} MB/s"
    widths = [1 - point["predicted_least"] / point["predicted"] for point in points]
    name = f"prediction, {len(points)} profiles x shares"
    return [
        limit(f"{name}: median error", 100 * median(errors), 100 * MEDIAN, note),
        limit(
            f"{name}: furthest outside its interval",
            100 * max(outside),
            100 * OUTSIDE,
            f"{where}; intervals are {100 * median(widths):.0f} % wide, the median",
        ),
        Row(
            f"{name}: worst error",
            *(100 * max(errors), "%"),
            note="of the interval's upper end, which is the rate of resources that never wait for "
            "each other",
        ),
    ]


def measure_outside(point: dict[str, Any]) -> float:
    """Distance of the measured rate from the predicted interval, as a part of it; 0 within."""
    measured = point["measured"]
    outside = max(point["predicted_least"] - measured, measured - point["predicted"], 0.0)
    return float(outside / measured)


def limit(name: str, value: float, target: float, note: str = "") -> Row:
    """A row with an upper limit, in percent."""
    note = "; ".join(filter(None, (note, "target is an upper limit")))
    return Row(name, value, "%", target=target, met=value <= target, note=note)
