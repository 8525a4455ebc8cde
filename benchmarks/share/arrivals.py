"""Jobs that arrive and leave: when the last one is done, by who divides the host among those there.

Processes are started before the clock, and begin to train when they arrive; where a job's last step
is done it leaves.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

from benchmarks.pairing import bootstrap_interval
from benchmarks.race import say
from benchmarks.record import Row
from penstock.allocation import Objective, Resources

from .host import Host, Report, Running, Site, window_of
from .modes import allocated, even_shares
from .work import Job

POLL_S = 0.01
PROFILE_S, WARM_S = 1.5, 0.5
"""A job that has arrived is profiled for so long, after so long."""
SHORTER = 0.9


@dataclass(frozen=True, slots=True)
class Arrival:
    """A job, when it arrives, and how many steps it does."""

    at_s: float
    job: Job
    steps: int


TRACE = (
    Arrival(0, Job("language", "tokens", 8, 100), 250),
    Arrival(0, Job("classifier", "photos", 32, 80), 130),
    Arrival(3, Job("volumes", "volumes", 4, 40), 450),
    Arrival(6, Job("self-supervised", "views", 8, 100), 90),
    Arrival(10, Job("speech", "speech", 8, 80), 110),
    Arrival(14, Job("fine-tuning", "photos", 16, 60), 120),
)
"""A morning on a workstation, in a few dozen seconds."""


class Divider(Protocol):
    """Divides the host anew when something has changed; `step` is called again and again."""

    name: str

    def changed(self, present: Sequence[Running]) -> None: ...
    def step(self, now_s: float) -> None: ...


class Even:
    """The same for each who is present."""

    name = "even"

    def __init__(self, resources: Resources) -> None:
        self._resources = resources

    def changed(self, present: Sequence[Running]) -> None:
        if present:
            for each, share in zip(
                present, even_shares(len(present), self._resources), strict=True
            ):
                each.share(share)

    def step(self, now_s: float) -> None:
        pass


class Allocating:
    """As the broker does: even shares for those who have not been measured; all anew when somebody
    comes, goes, or has been measured."""

    def __init__(self, resources: Resources, objective: Objective = "utilisation") -> None:
        self.name = f"broker, {objective}"
        self._resources, self._objective = resources, objective
        self._present: list[Running] = []
        self._profiles: dict[int, Any] = {}
        self._due: dict[int, float] = {}  # by pid: when its next report is to be asked for
        self._before: dict[int, Report] = {}

    def changed(self, present: Sequence[Running]) -> None:
        now_s = time.monotonic()
        for each in present:
            if each not in self._present:
                self._due[each.pid] = now_s + WARM_S
        self._present = list(present)
        self._divide()

    def step(self, now_s: float) -> None:
        for each in self._present:
            if now_s < self._due.get(each.pid, now_s + 1):
                continue
            report = each.report()
            before = self._before.get(each.pid)
            self._before[each.pid] = report
            self._due[each.pid] = now_s + PROFILE_S
            if before is not None:
                profile = window_of(each.job, before, report).profile
                if profile is not None:
                    known = each.pid in self._profiles
                    self._profiles[each.pid] = profile
                    if not known:
                        self._divide()

    def _divide(self) -> None:
        if self._present:
            profiles = [self._profiles.get(each.pid) for each in self._present]
            shares = allocated(profiles, self._resources, self._objective)
            for each, share in zip(self._present, shares, strict=True):
                each.share(share)


def run(host: Host, trace: Sequence[Arrival], divider: Divider) -> dict[str, float]:
    """Seconds from the first arrival until each job was done."""
    coming = sorted(zip(trace, host.running, strict=True), key=lambda pair: pair[0].at_s)
    present: list[Running] = []
    done: dict[str, float] = {}
    start_s = time.monotonic()
    while coming or present:
        now_s = time.monotonic()
        arrived = [pair for pair in coming if pair[0].at_s <= now_s - start_s]
        left = [each for each in present if each.done]
        for each in left:
            done[each.job.name] = now_s - start_s
            say(f"    {now_s - start_s:.1f} s: {each.job.name} is done")
        if arrived or left:
            coming = coming[len(arrived) :]
            present = [each for each in present if each not in left]
            present += [running for _, running in arrived]
            divider.changed(present)
            for arrival, running in arrived:
                say(f"    {now_s - start_s:.1f} s: {arrival.job.name} begins")
                running.tell(go=arrival.steps)
        divider.step(now_s)
        time.sleep(POLL_S)
    return done


def measure(site: Site, turns: int, scale: float = 1.0) -> tuple[list[Row], dict[str, Any]]:
    """Both ways, in turns; `scale` shortens the trace."""
    trace = [
        Arrival(scale * each.at_s, each.job, max(10, int(scale * each.steps))) for each in TRACE
    ]
    jobs = [each.job for each in trace]
    site.warm(jobs)
    found: dict[str, list[dict[str, float]]] = {}
    for turn in range(turns):
        dividers: list[Divider] = [Even(site.resources), Allocating(site.resources)]
        for divider in dividers[:: -1 if turn % 2 else 1]:
            say(f"  {divider.name}: {len(jobs)} jobs arrive")
            with site.start(jobs, [{}] * len(jobs)) as host:
                found.setdefault(divider.name, []).append(run(host, trace, divider))
    return rows_of(found), {"trace": [str(each) for each in trace], "done": found}


def rows_of(found: dict[str, list[dict[str, float]]]) -> list[Row]:
    ours, theirs = ([max(turn.values()) for turn in turns] for turns in _pair(found))
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    low, high = bootstrap_interval(ratios, 0) if len(ratios) > 1 else (None, None)
    ratio = median(ratios)
    note = f"{len(TRACE)} jobs that arrive and leave; target is an upper limit"
    rows = [
        Row(
            "makespan, broker / even",
            *(median(ours), "s", median(theirs), ratio, SHORTER, ratio <= SHORTER, low, high),
            note=note,
        )
    ]
    means = [[sum(turn.values()) / len(turn) for turn in turns] for turns in _pair(found)]
    ratio = median(a / b for a, b in zip(*means, strict=True))
    rows.append(
        Row(
            "mean time of a job's end, broker / even",
            *map(median, means[:1]),
            "s",
            median(means[1]),
            ratio,
        )
    )
    return rows


def _pair(found: dict[str, list[dict[str, float]]]) -> list[list[dict[str, float]]]:
    """The broker's turns and the even split's."""
    return [found[name] for name in sorted(found, key="even".__eq__)]
