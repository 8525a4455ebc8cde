"""A change of a share: how soon a running job takes what it now may, and that nothing else changes.

What is taken is counted from outside: processor time by the kernel, bytes by the storage. The job
is bound by what changes, so that it takes all that it may.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from benchmarks.contender import process_cpu_seconds
from benchmarks.race import say
from benchmarks.record import Row
from penstock.sharing.job_state import Share

from .host import Running, Site
from .work import Job

CORES = (0.6, 0.2, 0.8, 0.3, 0.6)
RATES = (60e6, 20e6, 80e6, 30e6, 60e6)
PHASE_S, SAMPLE_S = 2.0, 0.005
CLOSE = 0.25
"""A share holds where what was taken since is within this of it: a sample is decoded, and a part of
a file read, as a whole."""
STEPS_MAX = 1


class Case(NamedTuple):
    """A job bound by one resource, the shares that it has one after the other, and what it took."""

    name: str
    job: Job
    shares: tuple[Share, ...]
    rate: Callable[[Share], float]
    count: Callable[[Site, Running], float]


CASES = (
    Case(
        "cores",
        Job("bound by cores", "photos", 16, 5),
        tuple(Share(workers=cores, bytes_per_s=120e6) for cores in CORES),
        lambda share: share.workers,
        lambda site, job: process_cpu_seconds(job.pid),
    ),
    Case(
        "bytes/s",
        Job("bound by bytes", "volumes", 4, 5),
        tuple(Share(workers=1.0, bytes_per_s=rate) for rate in RATES),
        lambda share: share.bytes_per_s,
        lambda site, job: site.mount.counters()["bytes"],
    ),
)


class Change(NamedTuple):
    """steps: after which the new share held, counted from when it was set."""

    what: str
    before: float
    after: float
    steps: int
    taken: list[float]


def sampled(count: Callable[[], float], seconds: float) -> np.ndarray:
    """(time in s, total) for so long."""
    found = []
    end_s = time.monotonic() + seconds
    while (now_s := time.monotonic()) < end_s:
        found.append((now_s, count()))
        time.sleep(SAMPLE_S)
    return np.array(found)


def steps_until_held(
    samples: np.ndarray, set_s: float, steps_s: np.ndarray, rate: float
) -> tuple[int, list[float]]:
    """The least number of steps' times after the change, 0 if there and then, from which on what is
    taken is as it should be, however long that is watched; and what each step took, as a part of
    that."""
    end_s = samples[-1, 0]
    step_s = (end_s - set_s) / max(1, np.count_nonzero((steps_s > set_s) & (steps_s <= end_s)))
    ends = np.arange(set_s, end_s, step_s)
    totals = np.interp(ends, samples[:, 0], samples[:, 1]) / (rate * step_s)
    parts = [round(float(part), 3) for part in np.diff(totals)]
    for first in range(len(totals) - 1):
        since = totals[first + 1 :] - totals[first]
        if (np.abs(since / np.arange(1, len(since) + 1) - 1) <= CLOSE).all():
            return first, parts
    return len(parts), parts


def changes(site: Site, case: Case) -> tuple[list[Change], dict[str, Any], int]:
    """Each change of a case; the job's trace; and how many of its threads did not live through."""
    found: list[Change] = []
    with site.start([case.job]) as host:
        (job,) = host.running
        job.share(case.shares[0])
        job.tell(go=None)
        time.sleep(PHASE_S)
        first = job.report()
        cuts = []
        for share in case.shares[1:]:
            job.share(share, report=True)  # in one line: at one step's boundary
            samples = sampled(lambda: case.count(site, job), PHASE_S)
            cuts.append((share, samples, job.answer()["time_ns"] * 1e-9))
        last = job.report()
        job.tell(stop=True)
        trace = job.trace()
    times_s = np.array([at_ns for at_ns, _ in trace["steps"]]) * 1e-9
    before = case.rate(case.shares[0])
    for share, samples, set_s in cuts:
        rate = case.rate(share)
        steps, parts = steps_until_held(samples, set_s, times_s, rate)
        say(f"    {case.name} {before:g} -> {rate:g}: {steps} steps, {parts[:4]}")
        found.append(Change(case.name, before, rate, steps, parts))
        before = rate
    gone = len({*first["tasks"]} - {*last["tasks"]}) + len({*last["tasks"]} - {*first["tasks"]})
    return found, trace, gone


def undisturbed(site: Site, job: Job, steps: int) -> str:
    """The digest of the ids of so many steps, with nothing limited or changed."""
    with site.start([job]) as host:
        (running,) = host.running
        running.tell(go=steps)
        while not running.done:
            time.sleep(SAMPLE_S)
        digest: str = running.trace()["ids"]
    return digest


def measure(site: Site) -> tuple[list[Row], dict[str, Any]]:
    found: list[Change] = []
    restarted = different = steps = 0
    for case in CASES:
        say(f"  {case.job.name}: shares change")
        site.warm([case.job])
        of_case, trace, gone = changes(site, case)
        found += of_case
        restarted += gone
        steps += len(trace["steps"])
        different += trace["ids"] != undisturbed(site, case.job, len(trace["steps"]))
    slowest = max(found, key=lambda change: change.steps)
    note = "target is an upper limit"
    rows = [
        Row(
            f"change of a share, {len(found)} of them: steps until it holds, worst",
            *(slowest.steps, "steps"),
            target=STEPS_MAX,
            met=slowest.steps <= STEPS_MAX,
            note=f"{slowest.what} from {slowest.before:g} to {slowest.after:g}; {note}",
        ),
        Row(
            "change of a share: threads that ended or began",
            *(restarted, "threads"),
            target=0,
            met=restarted == 0,
            note=note,
        ),
        Row(
            "change of a share: runs whose ids differ from an undisturbed one's",
            *(different, "runs"),
            target=0,
            met=different == 0,
            note=f"{steps} steps; {note}",
        ),
    ]
    return rows, {"changes": [change._asdict() for change in found]}
